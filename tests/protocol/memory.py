"""Redis without a server: what each script does to the keys of a queue, in plain Python.

This is the executable specification of ``lua/``, written from the headers of the scripts and held against real
servers by ``tests/model``. Where messages wait is told in ``lines.py``, how they get there in ``arrivals.py``, and how
they are claimed in ``claiming.py``. Time stands still unless somebody lets it pass.
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
from redis_message_queue.headers import found_in
from redis_message_queue.protocol.port import Argument, Command, StateMissingError
from redis_message_queue.scripts import all_names, script
from tests.protocol.arrivals import Arrival, Arrivals
from tests.protocol.claiming import SECOND, Claiming, Taken
from tests.protocol.header import argument_names, held_by, in_groups, named
from tests.protocol.lines import Lines, by_tenant
from tests.protocol.stored import IN_FLIGHT, Entry, extras_of, id_of, payload_of, tenant_of, time_of

_TARGET_KEYS = (
    *("pending", "bell", "deliveries", "leases", "tenants", "size", "weights", "delayed", "later"),
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

    def run(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Execute one script as Redis would: alone, and in a moment of its own."""
        self._executed += 1
        self._let_stragglers_in()
        return self.execute(command, open_keys, arguments)

    def execute(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Read keys and arguments by the names that the script's header gives them."""
        self.clock_us += SCRIPT_US
        for key in () if self.knows_all_queues else (*command.keys, *open_keys):
            if key.endswith("::meta") and b"version" not in self.hashes[key]:
                raise StateMissingError(f"NOSTATE in {key}")
        keys = named(command.script.keys, (*command.keys, *open_keys))
        given = named(argument_names(command.script.source), (*command.settings, *arguments))
        return getattr(self, command.script.name)(keys, given)

    # -- the verbs

    def publish(self, keys: Any, given: Any) -> int:
        """One message without a tenant or a delay enters a line without a limit, once for each call."""
        answer = self._remembered(keys, given)
        if answer is None:
            answer = 0
            if keys.marker is None or self.get(keys.marker) is None:
                answer = 1
                line = self.lists[keys.pending]
                line.insert(0, given.head + self.stamp() + given.body)
                # A line that was not empty has its token already, or somebody holds it and will pass it on.
                if len(line) == 1:
                    self.ring(keys)
                if keys.marker is not None:
                    self.set(keys.marker, given.head[1:], given.window_ms)
        self._remember(keys, given, answer)  # a repetition as well: a WAIT behind it waits for something
        return answer

    def enqueue(self, keys: Any, given: Any) -> bytes:
        """Messages enter their lines, or wait for their time: all of a chunk or none, once for each call."""
        answer = self._remembered(keys, given)
        if answer is None:
            answer = self._enqueue_chunk(keys, given)
        self._remember(keys, given, answer)
        return answer

    def _enqueue_chunk(self, keys: Any, given: Any) -> bytes:
        if given.form == "bare":
            arrivals = [Arrival("", None, b"\x80" + payload) for payload in given.rest]
        else:
            markers = (None, keys.marker, *keys.rest)
            arrivals = [Arrival(due, markers[place], body) for due, place, body in in_groups(given.rest, 3)]
        chunk = Arrivals(self, keys, given, arrivals)
        return chunk.marks + chunk.carry_out() if chunk.has_room else b"-"

    def claim(self, keys: Any, given: Any) -> Any:
        """Messages are leased to the caller: what came back first, then the heads of the lines, tenants in turn."""
        claiming = Claiming(self, keys, given)
        remembered = self._remembered(keys, given)
        if remembered is not None:
            if not isinstance(remembered, Taken):
                raise LuaScriptError("this number was used for another verb")
            return claiming.replay(remembered)
        answer = claiming.usual() or claiming.thorough()
        self._remember(keys, given, claiming.remembered())
        return answer

    def settle(self, keys: Any, given: Any) -> bytes:
        """Messages leave the queue, into a list that keeps their payload or for good, if the caller holds them."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        marks = self._marks(keys, given)
        self._let_go(keys, given, self._held(marks, given), keys.kept, given.limit)
        return self._answer_with(marks, keys, given)

    def _let_go(self, keys: Any, given: Any, held: Sequence[bytes], kept_in: str | None, limit: int) -> None:
        lines, note, kept = Lines(self, keys, given), json.loads(given.note or "{}"), []
        for token in held:
            key = token[:16]
            stored, times = self.hashes[keys.processing][_field(given, token)], self._entry(keys, key).times
            kept.append((payload_of(stored), self.record(stored, payload_of(stored), times, note)))
            self._take_out(keys, given, token)
            self.hashes[keys.deliveries].pop(key, None)
            lines.forget_lease(stored, token)
        if kept_in is not None:
            self.keep(kept_in, keys.records, kept, limit)

    def hand_off(self, keys: Any, given: Any) -> bytes:
        """A message leaves its queue and its results enter others, all of it or nothing."""
        answer = self._remembered(keys, given)
        if answer is None:
            if not self.holds(keys, given, given.tokens):
                return b"0"
            answer = self._hand_off_to(self._targets(keys, given), keys, given)
        self._remember(keys, given, answer)
        return answer

    def _hand_off_to(self, targets: list[Arrivals], keys: Any, given: Any) -> bytes:
        for number, target in enumerate(targets, 1):
            if not target.has_room:
                return b"-%d" % number
        marks = b"".join(target.marks for target in targets)
        dropped = [target.carry_out() for target in targets]
        self._let_go(keys, given, [given.tokens], keys.kept if given.kept_limit >= 0 else None, given.kept_limit)
        return b"1" + marks + b"".join((len(gone) // 16).to_bytes(2, "big") + gone for gone in dropped)

    def _targets(self, keys: Any, given: Any) -> list[Arrivals]:
        """Each has its keys, eight settings and three arguments a message; the markers of all are at the end."""
        names, rest, settings = (keys.target, *keys.rest), list(given.rest), []
        while rest:
            rules = named(
                ("line", "returned", "window_ms", "limit", "tenant_limit", "overload", "base", "number"), rest[:8]
            )
            rules.arrivals = in_groups(rest[8 : 8 + 3 * rules.number], 3)
            settings.append(rules)
            rest = rest[8 + 3 * rules.number :]
        markers = (None, *names[len(_TARGET_KEYS) * len(settings) :])
        return [
            Arrivals(
                self,
                named(_TARGET_KEYS, names[len(_TARGET_KEYS) * place :][: len(_TARGET_KEYS)]),
                rules,
                [Arrival(due, markers[place], body) for due, place, body in rules.arrivals],
            )
            for place, rules in enumerate(settings)
        ]

    def give_back(self, keys: Any, given: Any) -> bytes:
        """Messages return to the heads of their lines, in their order, if the caller holds them."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        lines, marks = Lines(self, keys, given), self._marks(keys, given)
        held = self._held(marks, given)
        tokens = {token[:16]: token for token in held}
        for key in tokens:
            entry, counted = self._entry(keys, key), int(bool(given.forgiven))
            numbers = Entry(entry.attempts - counted, entry.times - counted, entry.failures)
            self.hashes[keys.deliveries][key] = numbers
        coming_back = by_tenant(self._take_out(keys, given, token) for token in held)
        for tenant, messages in coming_back.items():
            lines.come_back(tenant, messages)
            for stored in messages:
                lines.forget_lease(stored, tokens[id_of(stored)])
        if held:
            self.ring(keys)
        return self._answer_with(marks, keys, given)

    def put_off(self, keys: Any, given: Any) -> bytes:
        """A message whose handler failed waits for its next attempt, if the caller holds it."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        if not self.holds(keys, given, given.tokens):
            return b"0"
        key = given.tokens[:16]
        lines, entry = Lines(self, keys, given), self._entry(keys, key)
        # A failure is counted by itself: it does not use up the deliveries that are meant for crashes.
        self.hashes[keys.deliveries][key] = Entry(entry.attempts, entry.times - 1, entry.failures + 1)
        stored = self._take_out(keys, given, given.tokens)
        if lines.put_off({key: self.clock_us + given.delay_us}, {key: stored}):
            self.ring(keys)
        lines.forget_lease(stored, given.tokens)
        return self._answer_with([b"1"], keys, given)

    def renew(self, keys: Any, given: Any) -> bytes:
        """Leases begin anew, also those that had run out, as far as nobody else has taken the messages over."""
        lines, leases, marks = Lines(self, keys, given), self.zsets[keys.leases], []
        for place, token in enumerate(held_by(given), 1):
            is_ours = bool(given.lease_us) and self.holds(keys, given, token)
            if is_ours:
                lines.forget_lease(self.hashes[keys.processing][token[:16]], token)
                leases[token] = self.clock_us + given.lease_us + place
            marks.append(b"1" if is_ours else b"0")
        return b"".join(marks)

    def ring(self, keys: Any, _given: Any = None) -> int:
        """Leave a token for the next waiter, if none lies there."""
        if self.lists[keys.bell]:
            return 0
        self.lists[keys.bell].append(b"1")
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
        returned = Lines(self, keys, given).returned(tenant_of(stored))
        return token in self.zsets[keys.leases] or token in returned

    def _marks(self, keys: Any, given: Any) -> list[bytes]:
        return [b"1" if self.holds(keys, given, token) else b"0" for token in held_by(given)]

    def _held(self, marks: list[bytes], given: Any) -> list[bytes]:
        return [token for mark, token in zip(marks, held_by(given), strict=True) if mark == b"1"]

    def _take_out(self, keys: Any, given: Any, token: bytes) -> bytes:
        self.zsets[keys.leases].pop(token, None)
        stored: bytes = self.hashes[keys.processing].pop(_field(given, token))
        return stored

    def record(self, stored: bytes | None, payload: bytes, times: int, note: Mapping[str, Any]) -> dict[str, Any]:
        """What is remembered of a message beside its payload; times are text, in microseconds."""
        one = {"bytes": len(payload), "sha1": hashlib.sha1(payload).hexdigest(), "finished": str(self.clock_us), **note}
        if "held_us" in one:
            one["claimed"] = str(self.clock_us - one.pop("held_us"))
        if stored is not None:
            one |= {"id": id_of(stored).hex(), "deliveries": times, "published": str(time_of(stored))}
            if tenant := tenant_of(stored):
                one["tenant"] = tenant.decode()
            if isinstance(replayed := extras_of(stored).get("replay_of"), str):
                one["replay_of"] = replayed
            if headers := found_in(extras_of(stored)):
                one["headers"] = headers
        return one

    def keep(self, key: str, records: str, kept: Sequence[tuple[bytes, dict[str, Any]]], limit: int) -> None:
        """Payloads and their records, the newest first, both cut to the limit; records follow their list."""
        for payload, note in kept:
            self.lists[key].insert(0, payload)
            self.lists[records].insert(0, note)
        if kept and limit:
            del self.lists[key][limit:]
        if kept:
            del self.lists[records][len(self.lists[key]) :]

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
        """One command of a conversation; what the server refuses is an answer too."""
        verb, *rest = words
        return getattr(self, f"_{str(verb).lower()}")(*rest)

    def _hset(self, key: str, field: str, value: int) -> int:
        is_new = field.encode() not in self.hashes[key]
        self.hashes[key][field.encode()] = value
        return int(is_new)

    def _hsetnx(self, key: str, field: str, value: int) -> int:
        return 0 if field.encode() in self.hashes[key] else self._hset(key, field, value)

    def _hdel(self, key: str, field: str) -> int:
        return int(self.hashes[key].pop(field.encode(), None) is not None)

    def _eval(self, source: str, number: int, *words: Any) -> Any:
        found = next(script(name) for name in all_names() if script(name).source == source)
        try:
            return self.run(Command(found, words[:number]), (), words[number:])
        except LuaScriptError as error:
            return error

    # -- time, and what happens in it

    def at(self, seconds_from_now: float, happens: Callable[[], Any]) -> None:
        """Something happens by itself when the clock gets there."""
        heapq.heappush(self._agenda, (self.clock_us + to_us(seconds_from_now), next(self.order), happens))

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass, and what is on the agenda happen; whether ``until`` came true before the end."""
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

    def _let_stragglers_in(self) -> None:
        if not self._late:
            return
        due = [execute for when, execute in self._late if when < self._executed]
        self._late = [one for one in self._late if one[0] >= self._executed]
        for execute in due:
            execute()

    def let_all_stragglers_in(self) -> None:
        """The last requests that were on their way arrive."""
        late, self._late = self._late, []
        for _, execute in late:
            execute()

    def take_token(self, bell: str) -> bool:
        """BLPOP, once there is something to pop."""
        tokens = self.lists[bell]
        return bool(tokens and tokens.pop(0))


def to_us(seconds: float) -> int:
    """Microseconds, rounded up: whoever sleeps sleeps."""
    return math.ceil(seconds * SECOND)


def _is_leased(given: Any) -> bool:
    """A script is told whether its caller has leases, or how long they are."""
    return bool(given.leased if hasattr(given, "leased") else given.lease_us)


def _field(given: Any, token: bytes) -> bytes:
    """Where a message in flight lies: without leases its field names the holder."""
    return token[:16] if _is_leased(given) else token
