"""Redis without a server: what each script does to the keys of a queue, in plain Python.

This is the executable specification of ``lua/``, written from the headers of the scripts and held against real
servers by ``tests/model``. Waiting messages are in ``backlog.py``, adding them is in ``enqueueing.py``, and
claiming them in ``claiming.py``. Time passes only when a test says so.
"""

import hashlib
import heapq
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from redis_message_queue.errors import LuaScriptError
from redis_message_queue.headers import decode
from redis_message_queue.protocol.port import Argument, Command, StateMissingError
from redis_message_queue.scripts import all_names, script
from tests.protocol.backlog import Backlog, by_tenant
from tests.protocol.claiming import SECOND, Claiming, Taken, Ticket
from tests.protocol.enqueueing import Enqueueing, NewMessage
from tests.protocol.header import argument_names, held_by, in_groups, named
from tests.protocol.stored import (
    HAS_TENANT,
    IN_FLIGHT,
    PLAIN,
    Entry,
    extras_of,
    id_of,
    is_message,
    payload_of,
    tenant_of,
    time_of,
)

_TARGET_RULES = (
    *("tenant_pending", "expired", "window_ms", "limit", "tenant_limit", "overload", "base", "version_field"),
    "number",
)
_TARGET_KEYS = (
    *("pending", "wakeup", "deliveries", "leases", "tenant_ring", "tenant_backlog", "weights", "delayed"),
    "delayed_messages",
    *("journal", "meta", "longest"),
)
SCRIPT_US = 10  # what a script takes: two that follow each other never have the same time


class MemoryRedis:
    """The keys of one or more queues, the server's clock, and the verbs that change them."""

    STEPS = 1000  # of each kind of housekeeping in one script

    def __init__(self) -> None:
        self.clock_us = 1_700_000_000 * SECOND
        self.knows_all_queues = True  # or a script misses the version of what is stored, until somebody writes it
        self.lists: defaultdict[str, list[Any]] = defaultdict(list)  # the left end first
        self.hashes: defaultdict[str, dict[bytes, Any]] = defaultdict(dict)
        self.zsets: defaultdict[str, dict[bytes, Any]] = defaultdict(dict)
        self.strings: dict[str, tuple[Any, float]] = {}  # with the time when they expire
        self.ids = count(1)
        self.order = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._late: list[tuple[int, Callable[[], Any]]] = []
        self._executed = 0

    def run(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Execute one script as Redis would: alone, and at a time of its own."""
        self._executed += 1
        self._run_late_requests()
        return self.execute(command, extra_keys, arguments)

    def execute(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Read keys and arguments by the names that the script's header gives them."""
        self.clock_us += SCRIPT_US
        opens = command.script.name == "open_queue"
        for key in () if self.knows_all_queues or opens else (*command.keys, *extra_keys):
            if key.endswith("::meta") and b"version" not in self.hashes[key]:
                raise StateMissingError(StateMissingError.said_of(key))
        keys = named(command.script.keys, (*command.keys, *extra_keys))
        given = named(argument_names(command.script.source), (*command.settings, *arguments))
        return getattr(self, command.script.name)(keys, given)

    # -- the verbs

    def publish(self, keys: Any, given: Any) -> int:
        """Add one message without a tenant or a delay to a queue without a limit, once for each call."""
        answer = self._remembered(keys, given)
        if answer is None:
            answer = 0
            if keys.marker is None or self.get(keys.marker) is None:
                answer = 1
                line = self.lists[keys.pending]
                line.insert(0, given.head + self.stamp() + given.body)
                # A queue that was not empty has its token already, or a consumer took it and will wake up the next.
                if len(line) == 1:
                    self.notify(keys)
                if keys.marker is not None:
                    self.set(keys.marker, given.head[1:], given.window_ms)
        self._remember(keys, given, answer)  # a repetition as well: a WAIT behind it waits for something
        return answer

    def enqueue(self, keys: Any, given: Any) -> bytes:
        """Add messages, some of them delayed: all of a chunk or none, once for each call."""
        answer = self._remembered(keys, given)
        if answer is None:
            answer = self._enqueue_chunk(keys, given)
        self._remember(keys, given, answer)
        return answer

    def _enqueue_chunk(self, keys: Any, given: Any) -> bytes:
        if given.form == "bare":
            messages = [NewMessage("", None, b"\x80" + payload) for payload in given.rest]
        elif given.form == "ready":
            pairs, own = in_groups(given.rest, 2), (keys.markers, *keys.rest)
            markers = own if keys.markers is not None else (None,) * len(pairs)
            messages = [NewMessage("", *one) for one in zip(markers, map(b"".join, pairs), strict=True)]
        else:
            markers = (None, keys.markers, *keys.rest)
            messages = [NewMessage(due, markers[place], body) for due, place, body in in_groups(given.rest, 3)]
        chunk = Enqueueing(self, keys, given, messages)
        return chunk.marks + chunk.carry_out() if chunk.has_room else b"-"

    def claim(self, keys: Any, given: Any) -> Any:
        """Lease messages to the caller: expired ones first, then waiting ones, tenants in turn."""
        claiming = Claiming(self, keys, given)
        remembered = self._remembered(keys, given)
        if remembered is not None:
            if not isinstance(remembered, Taken):
                raise LuaScriptError("this number was used for another verb")
            return claiming.replay(remembered)
        answer = claiming.usual() or claiming.thorough()
        self._remember(keys, given, claiming.remembered())
        return answer

    def take(self, keys: Any, given: Any) -> Any:
        """Lease the first message to the caller in the usual case; None if there is none, 0 in any other case."""
        if self._remembered(keys, given) is not None:
            return 0
        queue, waiting = keys.pending.removesuffix("pending"), self.lists[keys.pending]
        # Alarms among the leases tell the script of delays and turns.
        times = (*self.zsets[keys.leases].values(), *self.zsets[queue + "delayed"].values())
        if self.zsets[queue + "tenant_ring"] or any(when <= self.clock_us for when in times):
            return 0
        if not waiting:
            return None
        if not self._is_usual(queue, waiting[-1], (PLAIN,)):
            return 0
        stored = waiting.pop()
        self.hashes[keys.processing][id_of(stored)] = stored
        self.zsets[keys.leases][id_of(stored) + given.nonce] = self.clock_us + given.lease_us
        answer = Taken(0, (Ticket(id_of(stored), 1, 1, "queue", 0),), (), b"")
        self.set(keys.reply, (int(given.call), answer), given.hold_ms)
        return stored

    def ack_one(self, keys: Any, given: Any) -> bytes:
        """Remove a message that the caller holds in the usual case; nothing in any other, and nothing has changed."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        leases, processing = self.zsets[keys.leases], self.hashes[keys.processing]
        queue, stored = keys.processing.removesuffix("processing"), processing.get(given.token[:16], b"")
        if given.token not in leases or not self._is_usual(queue, stored, (PLAIN, PLAIN | HAS_TENANT)):
            return b""
        del leases[given.token], processing[given.token[:16]]
        self._remember(keys, given, b"1")
        return b"1"

    def ack_and_take(self, keys: Any, given: Any) -> Any:
        """Remove a message and lease the next one, in the usual case of both; 0 in any other, and nothing changes."""
        if self._remembered(keys, given) is not None or self._number(keys.ack_reply) >= int(given.ack_call):
            return 0
        queue, done = keys.pending.removesuffix("pending"), self.hashes[keys.processing].get(given.token[:16], b"")
        if given.token not in self.zsets[keys.leases] or not self._is_usual(queue, done, (PLAIN,)):
            return 0
        stored = self.take(keys, given)
        if not stored:
            return 0
        del self.zsets[keys.leases][given.token], self.hashes[keys.processing][given.token[:16]]
        self.set(keys.ack_reply, (int(given.ack_call), b"1"), given.hold_ms)
        return stored

    def _is_usual(self, queue: str, stored: bytes, flags: Sequence[int]) -> bool:
        """Whether it has no more than these flags; memory has no flag for an entry in the deliveries."""
        return is_message(stored) and stored[0] in flags and id_of(stored) not in self.hashes[queue + "deliveries"]

    def settle(self, keys: Any, given: Any) -> bytes:
        """Remove messages that the caller holds, with or without a copy of their payload in a terminal list."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        marks = self._marks(keys, given)
        self._let_go(keys, given, self._held(marks, given), keys.kept, given.limit)
        return self._answer_with(marks, keys, given)

    def _let_go(self, keys: Any, given: Any, held: Sequence[bytes], kept_in: str | None, limit: int) -> None:
        backlog, note, kept = Backlog(self, keys, given), json.loads(given.note or "{}"), []
        for token in held:
            key = token[:16]
            stored, times = self.hashes[keys.processing][_field(given, token)], self._entry(keys, key).times
            kept.append((payload_of(stored), self.record(stored, payload_of(stored), times, note)))
            self._take_out(keys, given, token)
            self.hashes[keys.deliveries].pop(key, None)
            backlog.forget_lease(stored, token)
        if kept_in is not None:
            self.terminal_list(kept_in, keys.records, kept, limit)

    def hand_off(self, keys: Any, given: Any) -> bytes:
        """Remove a message and add its results to other queues: all of it or nothing."""
        answer = self._remembered(keys, given)
        if answer is None:
            if not self.holds(keys, given, given.tokens):
                return b"0"
            answer = self._hand_off_to(self._targets(keys, given), keys, given)
        self._remember(keys, given, answer)
        return answer

    def _hand_off_to(self, targets: list[Enqueueing], keys: Any, given: Any) -> bytes:
        for number, target in enumerate(targets, 1):
            if not target.has_room:
                return b"-%d" % number
        marks = b"".join(target.marks for target in targets)
        dropped = [target.carry_out() for target in targets]
        self._let_go(keys, given, [given.tokens], keys.kept if given.kept_limit >= 0 else None, given.kept_limit)
        return b"1" + marks + b"".join((len(gone) // 16).to_bytes(2, "big") + gone for gone in dropped)

    def _targets(self, keys: Any, given: Any) -> list[Enqueueing]:
        """Each has its keys, nine settings and three arguments a message; the markers of all are at the end."""
        names, rest, settings = (keys.targets, *keys.rest), list(given.rest), []
        while rest:
            rules = named(_TARGET_RULES, rest[: len(_TARGET_RULES)])
            rest = rest[len(_TARGET_RULES) :]
            rules.messages = in_groups(rest[: 3 * rules.number], 3)
            settings.append(rules)
            rest = rest[3 * rules.number :]
        markers = (None, *names[len(_TARGET_KEYS) * len(settings) :])
        return [
            Enqueueing(
                self,
                named(_TARGET_KEYS, names[len(_TARGET_KEYS) * place :][: len(_TARGET_KEYS)]),
                rules,
                [NewMessage(due, markers[place], body) for due, place, body in rules.messages],
            )
            for place, rules in enumerate(settings)
        ]

    def requeue(self, keys: Any, given: Any) -> bytes:
        """Return messages to the front of their queues, in order, if the caller holds them."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        backlog, marks = Backlog(self, keys, given), self._marks(keys, given)
        held = self._held(marks, given)
        tokens = {token[:16]: token for token in held}
        for key in tokens:
            entry, counted = self._entry(keys, key), int(bool(given.forgiven))
            numbers = Entry(entry.attempts - counted, entry.times - counted, entry.failures)
            self.hashes[keys.deliveries][key] = numbers
        coming_back = by_tenant(self._take_out(keys, given, token) for token in held)
        for tenant, messages in coming_back.items():
            backlog.return_to_front(tenant, messages)
            for stored in messages:
                backlog.forget_lease(stored, tokens[id_of(stored)])
        if held:
            self.notify(keys)
        return self._answer_with(marks, keys, given)

    def retry_later(self, keys: Any, given: Any) -> bytes:
        """Delay a failed message until its next attempt, if the caller holds it."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        if not self.holds(keys, given, given.tokens):
            return b"0"
        key = given.tokens[:16]
        backlog, entry = Backlog(self, keys, given), self._entry(keys, key)
        # A failure is counted by itself: it does not use up the deliveries that are meant for crashes.
        self.hashes[keys.deliveries][key] = Entry(entry.attempts, entry.times - 1, entry.failures + 1)
        stored = self._take_out(keys, given, given.tokens)
        if backlog.retry_later({key: self.clock_us + given.delay_us}, {key: stored}):
            self.notify(keys)
        backlog.forget_lease(stored, given.tokens)
        return self._answer_with([b"1"], keys, given)

    def renew(self, keys: Any, given: Any) -> bytes:
        """Renew leases, expired ones too, unless another consumer has claimed the message."""
        backlog, leases, marks = Backlog(self, keys, given), self.zsets[keys.leases], []
        for place, token in enumerate(held_by(given), 1):
            is_ours = bool(given.lease_us) and self.holds(keys, given, token)
            if is_ours:
                backlog.forget_lease(self.hashes[keys.processing][token[:16]], token)
                leases[token] = self.clock_us + given.lease_us + place
            marks.append(b"1" if is_ours else b"0")
        return b"".join(marks)

    def open_queue(self, keys: Any, given: Any) -> int:
        """Write the version of a queue, and the weights of its tenants."""
        self.hashes[keys.meta].setdefault(b"version", given.version)
        self.hashes[keys.meta].setdefault(b"partitions", 1)
        if given.version_field:
            self.hashes[keys.meta].setdefault(given.version_field.encode(), given.version)
        for tenant, weight in in_groups(given.rest, 2):
            if weight == 1:
                self.hashes[keys.weights].pop(tenant.encode(), None)
            else:
                self.hashes[keys.weights][tenant.encode()] = weight
        return 1

    def notify(self, keys: Any, _given: Any = None) -> int:
        """Add a wake-up token if there is none."""
        if self.lists[keys.wakeup]:
            return 0
        self.lists[keys.wakeup].append(b"1")
        return 1

    # -- shared steps

    def _entry(self, keys: Any, key: bytes) -> Entry:
        entry: Entry = self.hashes[keys.deliveries].get(key, IN_FLIGHT)
        return entry

    def holds(self, keys: Any, given: Any, token: bytes) -> bool:
        """Whether nobody else has claimed the message since this lease was given."""
        stored = self.hashes[keys.processing].get(_field(given, token))
        if stored is None or not _is_leased(given):
            return stored is not None
        expired = Backlog(self, keys, given).expired(tenant_of(stored))
        return token in self.zsets[keys.leases] or token in expired

    def _marks(self, keys: Any, given: Any) -> list[bytes]:
        return [b"1" if self.holds(keys, given, token) else b"0" for token in held_by(given)]

    def _held(self, marks: list[bytes], given: Any) -> list[bytes]:
        return [token for mark, token in zip(marks, held_by(given), strict=True) if mark == b"1"]

    def _take_out(self, keys: Any, given: Any, token: bytes) -> bytes:
        self.zsets[keys.leases].pop(token, None)
        stored: bytes = self.hashes[keys.processing].pop(_field(given, token))
        return stored

    def record(self, stored: bytes | None, payload: bytes, times: int, note: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a message; times are text, in microseconds."""
        one = {"bytes": len(payload), "sha1": hashlib.sha1(payload).hexdigest(), "finished": str(self.clock_us), **note}
        if "held_us" in one:
            one["claimed"] = str(self.clock_us - one.pop("held_us"))
        if stored is not None:
            one |= {"id": id_of(stored).hex(), "deliveries": times, "published": str(time_of(stored))}
            if tenant := tenant_of(stored):
                one["tenant"] = tenant.decode()
            if isinstance(replayed := extras_of(stored).get("replay_of"), str):
                one["replay_of"] = replayed
            if headers := decode(extras_of(stored)):
                one["headers"] = headers
        return one

    def terminal_list(self, key: str, records: str, kept: Sequence[tuple[bytes, dict[str, Any]]], limit: int) -> int:
        """Keep payloads and their records, the newest first, both cut to the limit. Returns how many were cut off."""
        for payload, note in kept:
            self.lists[key].insert(0, payload)
            self.lists[records].insert(0, note)
        cut = max(0, len(self.lists[key]) - limit) if kept and limit else 0
        if cut:
            del self.lists[key][limit:]
        if kept:
            del self.lists[records][len(self.lists[key]) :]
        return cut

    def stamp(self) -> bytes:
        return self.clock_us.to_bytes(8, "big")

    def _answer_with(self, marks: list[bytes], keys: Any, given: Any) -> bytes:
        """A stale call changed nothing and will never change anything: it need not be remembered."""
        answer = b"".join(marks)
        if b"1" in marks:
            self._remember(keys, given, answer)
        return answer

    def _remembered(self, keys: Any, given: Any) -> Any:
        last = self.get(keys.reply)
        if last is None:
            return None
        number, answer = last
        if number > int(given.call):
            raise LuaScriptError("OVERTAKEN by a later call of the same caller")
        return answer if number == int(given.call) else None

    def _number(self, slot: str) -> int:
        """Of the last call in a slot of the reply cache."""
        last = self.get(slot)
        return 0 if last is None else int(last[0])

    def _remember(self, keys: Any, given: Any, answer: Any) -> None:
        holds = isinstance(answer, Taken) and answer.tickets
        self.set(keys.reply, (int(given.call), answer), given.hold_ms if holds else given.keep_ms)

    def get(self, key: str) -> Any:
        value, ends = self.strings.get(key, (None, 0))
        return value if ends > self.clock_us else None

    def set(self, key: str, value: Any, keep_ms: float) -> None:
        self.strings[key] = (value, self.clock_us + 1000 * keep_ms)

    # -- commands without a script

    def obey(self, words: tuple[Argument, ...]) -> Any:
        """One command of a pipeline; an error of the server is an answer too."""
        verb, *rest = words
        return getattr(self, f"_{str(verb).lower()}")(*rest)

    def _sadd(self, key: str, member: str) -> int:
        """The registry of queues, which nothing else depends on."""
        return 1

    def _eval(self, source: str, number: int, *words: Any) -> Any:
        found = next(script(name) for name in all_names() if script(name).source == source)
        try:
            return self.run(Command(found, words[:number]), (), words[number:])
        except LuaScriptError as error:
            return error

    # -- time, and what happens in it

    def at(self, seconds_from_now: float, happens: Callable[[], Any]) -> None:
        """Let something happen when the clock reaches this time."""
        heapq.heappush(self._agenda, (self.clock_us + to_us(seconds_from_now), next(self.order), happens))

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass, and what is planned happen. Returns whether ``until`` came true before the end."""
        end = self.clock_us + to_us(seconds)
        while not until():
            if not self._agenda or self._agenda[0][0] > end:
                self.clock_us = max(self.clock_us, end)
                return False
            when, _, happens = heapq.heappop(self._agenda)
            self.clock_us = max(self.clock_us, when)
            happens()
        return True

    def deliver_late(self, calls: int, execute: Callable[[], Any]) -> None:
        """Keep a request back until so many other calls have been executed."""
        self._late.append((self._executed + calls, execute))

    def _run_late_requests(self) -> None:
        if not self._late:
            return
        due = [execute for when, execute in self._late if when < self._executed]
        self._late = [one for one in self._late if one[0] >= self._executed]
        for execute in due:
            execute()

    def run_all_late_requests(self) -> None:
        """Execute the last requests that are on their way."""
        late, self._late = self._late, []
        for _, execute in late:
            execute()

    def take_token(self, wakeup: str) -> bool:
        """BLPOP, once there is something to pop."""
        tokens = self.lists[wakeup]
        return bool(tokens and tokens.pop(0))


def to_us(seconds: float) -> int:
    """Microseconds, rounded up, so that no sleep is too short."""
    return math.ceil(seconds * SECOND)


def _is_leased(given: Any) -> bool:
    """A script is told whether its caller has leases, or how long they are."""
    return bool(given.leased if hasattr(given, "leased") else given.lease_us)


def _field(given: Any, token: bytes) -> bytes:
    """The field of a message in `processing`: without leases it names the holder."""
    return token[:16] if _is_leased(given) else token
