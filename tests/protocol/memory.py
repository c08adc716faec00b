"""Redis without a server: what each script does to the keys of a queue, in plain Python.

This is the executable specification of ``lua/``, written from the headers of the scripts and held against real
servers by ``tests/model``. Time stands still unless somebody lets it pass.
"""

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count, zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple

from redis_message_queue.errors import LuaScriptError
from redis_message_queue.protocol.port import Argument, Command

SECOND = 1_000_000
SCRIPT_US = 10  # what a script takes: two that follow each other never have the same time

_ARGV = re.compile(r"^-- ARGV {2}(.*?)^-- Returns", re.MULTILINE | re.DOTALL)


class Entry(NamedTuple):
    """What the deliveries hash keeps of a message. Most are delivered once and never get one."""

    lease: int
    times: int


FRESH, WOKEN, ON_WATCH = 0, 1, 2  # where a claim comes from
IN_LINE, IN_FLIGHT = Entry(0, 0), Entry(1, 1)  # what an entry would say, where there is none


class Ticket(NamedTuple):
    """A message that a claim took."""

    id: bytes
    lease: int
    times: int
    origin: str

    @property
    def text(self) -> bytes:
        return f"{self.lease}:{self.times}:{self.origin}".encode()


class Taken(NamedTuple):
    """What is remembered of a claim: ids and numbers, no bodies."""

    again: int
    tickets: tuple[Ticket, ...]
    dead: tuple[Any, ...]


class MemoryRedis:
    """The keys of one or more queues, the server's clock, and the verbs that change them."""

    STEPS = 1000  # of housekeeping in one claim

    def __init__(self) -> None:
        self.clock_us = 1_700_000_000 * SECOND
        self.lists: defaultdict[str, list[bytes]] = defaultdict(list)  # the left end first
        self.hashes: defaultdict[str, dict[bytes, Any]] = defaultdict(dict)
        self.zsets: defaultdict[str, dict[bytes, int]] = defaultdict(dict)
        self.strings: dict[str, tuple[Any, int]] = {}  # with the time when they expire
        self.ids = count(1)
        self._order = count()
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
        keys = _named(command.script.keys, (*command.keys, *open_keys))
        given = _named(argument_names(command.script.source), (*command.settings, *arguments))
        verb = getattr(self, f"_{command.script.name}")
        return verb(keys, given)

    # -- the verbs

    def _publish(self, keys: Any, given: Any) -> Any:
        """A message enters the line, once for each call."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        line = self.lists[keys.pending]
        over = len(line) + 1 - given.limit if given.limit else 0
        if keys.marker is not None and self.get(keys.marker) is not None:
            answer = 0
        elif over > 0 and given.overload == "refuse":
            answer = -1
        else:
            line.insert(0, given.head + self.clock_us.to_bytes(8, "big") + given.body)
            if keys.marker is not None:
                self.set(keys.marker, b"", given.window_ms)
            answer = 1
            # A line that was not empty has its token already, or somebody holds it and will pass it on.
            if len(line) == 1:
                self._ring(keys)
            if over > 0:
                dropped = [line.pop() for _ in range(min(over, 1000))]
                ids = [id_of(stored) for stored in dropped if is_message(stored)]
                for key in ids:
                    self.hashes[keys.deliveries].pop(key, None)
                answer = b"d" + b"".join(ids)
        self._remember(keys, given, answer)
        return answer

    def _claim(self, keys: Any, given: Any) -> Any:
        """Messages are leased to the caller: first those whose lease ran out, then the head of the line."""
        remembered = self._remembered(keys, given)
        if remembered is not None:
            return self._replay(keys, given, remembered)
        search = _Search(self, keys, given)
        if given.count and given.lease_us:
            search.look_at_leases()
        search.look_at_line()
        search.write_leases()
        taken, dead = search.taken, tuple(part for one in search.dead for part in one)
        again = int(not taken and search.steps >= self.STEPS)
        self._remember(keys, given, Taken(again, tuple(taken), dead))
        if search.found_the_usual_case:
            if given.woken == WOKEN and self.lists[keys.pending]:
                self._ring(keys)
            return self.hashes[keys.processing][taken[0].id]
        deadlines = self.zsets[keys.leases].values() if given.lease_us else ()
        next_us = min(deadlines, default=None)
        next_us = None if next_us is None else next_us - self.clock_us

        # The baton: whoever took the token, or would have, and leaves work behind rings; so does a watcher that leaves.
        is_due = next_us is not None and next_us <= 0
        left_behind = bool(taken) and (is_due or bool(self.lists[keys.pending]))
        if given.woken == ON_WATCH:
            self.strings.pop(keys.watch, None)
            left_behind |= next_us is not None and next_us < SECOND and (bool(taken) or given.slice_us == 0)
        if left_behind:
            self._ring(keys)

        # One of those who find nothing stays awake for the next deadline.
        wait_us = -1
        due_soon = next_us is not None and 0 < next_us < given.slice_us
        if due_soon and not taken and not again and self.get(keys.watch) is None:
            self.set(keys.watch, given.call, -(-next_us // 1000))
            wait_us = next_us
        return self._told(keys, again, wait_us, dead, taken)

    def _replay(self, keys: Any, given: Any, remembered: Taken) -> Any:
        """The same call again: what it took and still holds is leased anew and read; the rest is left out."""
        if not isinstance(remembered, Taken):
            raise LuaScriptError("this number was used for another verb")
        held = [one for one in remembered.tickets if self._holds(keys, one.id, one.lease)]
        if given.lease_us:
            for place, ticket in enumerate(held):
                self.zsets[keys.leases][ticket.id] = self.clock_us + given.lease_us + place
        return self._told(keys, remembered.again, -1, remembered.dead, held)

    def _told(self, keys: Any, again: int, wait_us: int, dead: Any, tickets: list[Ticket]) -> list[Any]:
        bodies = self.hashes[keys.processing]
        return [again, wait_us, list(dead), b"", *(part for one in tickets for part in (bodies[one.id], one.text))]

    def _settle(self, keys: Any, given: Any) -> bytes:
        """Messages leave the queue, into a list that keeps their payload or for good, if the caller holds them."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        marks = [self._settle_one(keys, *pair) for pair in given.pairs]
        if given.limit and b"1" in marks and keys.kept is not None:
            del self.lists[keys.kept][given.limit :]
        return self._answer_with(marks, keys, given)

    def _settle_one(self, keys: Any, key: bytes, lease: int) -> bytes:
        if not self._holds(keys, key, lease):
            return b"0"
        stored = self._take_out(keys, key)
        self.hashes[keys.deliveries].pop(key, None)
        if keys.kept is not None:
            self.lists[keys.kept].insert(0, payload_of(stored))
        return b"1"

    def _give_back(self, keys: Any, given: Any) -> bytes:
        """Messages return to the head of the line, in their order, if the caller holds them."""
        answer = self._remembered(keys, given)
        if answer is not None:
            return answer
        bodies: list[bytes] = []
        marks = [self._give_one_back(keys, bodies, given.forgiven, *pair) for pair in given.pairs]
        self.lists[keys.pending] += reversed(bodies)
        if bodies:
            self._ring(keys)
        return self._answer_with(marks, keys, given)

    def _give_one_back(self, keys: Any, bodies: list[bytes], forgiven: int, key: bytes, lease: int) -> bytes:
        if not self._holds(keys, key, lease):
            return b"0"
        times = self.hashes[keys.deliveries].get(key, IN_FLIGHT).times
        bodies.append(self._take_out(keys, key))
        # The lease number stays, so that the next holder gets a higher one and this one is fenced off.
        self.hashes[keys.deliveries][key] = Entry(lease, times - 1 if forgiven else times)
        return b"1"

    def _renew(self, keys: Any, given: Any) -> bytes:
        """Leases begin anew, as far as the caller still holds them."""
        return b"".join(
            self._renew_one(keys, self.clock_us + given.lease_us + place, *pair)
            for place, pair in enumerate(given.pairs, 1)
        )

    def _renew_one(self, keys: Any, deadline: int, key: bytes, lease: int) -> bytes:
        leases, entry = self.zsets[keys.leases], self.hashes[keys.deliveries].get(key, IN_FLIGHT)
        if key not in leases or entry.lease != lease:
            return b"0"
        leases[key] = deadline
        return b"1"

    def _ring(self, keys: Any, _given: Any = None) -> int:
        """Leave a token for the next waiter, if none lies there."""
        if self.lists[keys.bell]:
            return 0
        self.lists[keys.bell].append(b"1")
        return 1

    # -- shared steps

    def _holds(self, keys: Any, key: bytes, lease: int) -> bool:
        entry = self.hashes[keys.deliveries].get(key, IN_FLIGHT)
        return key in self.hashes[keys.processing] and entry.lease == lease

    def _take_out(self, keys: Any, key: bytes) -> bytes:
        self.zsets[keys.leases].pop(key, None)
        return self.hashes[keys.processing].pop(key)

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
        self.set(keys.reply, (int(given.call), answer), given.keep_ms)

    def get(self, key: str) -> Any:
        value, ends = self.strings.get(key, (None, 0))
        return value if ends > self.clock_us else None

    def set(self, key: str, value: Any, keep_ms: int) -> None:
        self.strings[key] = (value, self.clock_us + 1000 * keep_ms)

    # -- time, and what happens in it

    def at(self, seconds_from_now: float, happens: Callable[[], Any]) -> None:
        """Something happens by itself when the clock gets there."""
        heapq.heappush(self._agenda, (self.clock_us + to_us(seconds_from_now), next(self._order), happens))

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


class _Search:
    """One claim's way through the leases and the line, until it has what it wants or has done enough."""

    def __init__(self, memory: MemoryRedis, keys: Any, given: Any) -> None:
        self.memory, self.keys, self.given = memory, keys, given
        self.line = memory.lists[keys.pending]
        self.processing = memory.hashes[keys.processing]
        self.deliveries = memory.hashes[keys.deliveries]
        self.leases = memory.zsets[keys.leases]
        self.taken: list[Ticket] = []
        self.dead: list[tuple[bytes, int]] = []
        self.steps = 0

    @property
    def wants_more(self) -> bool:
        return len(self.taken) < self.given.count and self.steps < self.memory.STEPS

    @property
    def found_the_usual_case(self) -> bool:
        """A consumer comes for one message, nothing was due, and the head of the line had never been delivered."""
        came_for_one = self.given.count == 1 and self.given.woken != ON_WATCH
        return came_for_one and self.steps == 1 and [(one.lease, one.origin) for one in self.taken] == [(1, "line")]

    def look_at_leases(self) -> None:
        """What is due, the oldest deadline first."""
        due = [key for key in by_deadline(self.leases) if self.leases[key] <= self.memory.clock_us]
        while due and self.wants_more:
            self.steps += 1
            key = due.pop(0)
            if key in self.processing:
                self._weigh(self.processing[key], self.deliveries.get(key, IN_FLIGHT), "lease")
            else:
                self._remove(key)

    def look_at_line(self) -> None:
        """The head of the line; what is not a message of ours becomes a dead letter as it is."""
        while self.line and self.wants_more:
            self.steps += 1
            stored = self.line.pop()
            if is_message(stored):
                self._weigh(stored, self.deliveries.get(id_of(stored), IN_LINE), "line")
            else:
                self._bury(stored, b"", 0)

    def _weigh(self, stored: bytes, entry: Entry, origin: str) -> None:
        key = id_of(stored)
        if self.given.most and entry.times >= self.given.most:
            self._bury(payload_of(stored), key, entry.times)
            self._remove(key)
            return
        # A message that is delivered for the first time gets no entry: there is nothing to say of it.
        if key in self.deliveries or origin == "lease":
            self.deliveries[key] = Entry(entry.lease + 1, entry.times + 1)
        self.processing[key] = stored
        self.taken.append(Ticket(key, entry.lease + 1, entry.times + 1, origin))

    def _bury(self, payload: bytes, key: bytes, times: int) -> None:
        letters = self.memory.lists[self.keys.dlq]
        letters.insert(0, payload)
        self.dead.append((key, times))
        if self.given.dlq_limit:
            del letters[self.given.dlq_limit :]

    def _remove(self, key: bytes) -> None:
        self.processing.pop(key, None)
        self.deliveries.pop(key, None)
        self.leases.pop(key, None)

    def write_leases(self) -> None:
        """What was taken is leased, in its order."""
        if self.given.lease_us:
            for place, ticket in enumerate(self.taken, 1):
                self.leases[ticket.id] = self.memory.clock_us + self.given.lease_us + place


@cache
def argument_names(source: str) -> tuple[str, ...]:
    """The names in a header's ARGV paragraph; what follows "then" are pairs without names."""
    paragraph = _ARGV.search(source)
    rows = re.split(r"\||\n--", paragraph[1]) if paragraph else []
    return tuple(row.split(":")[0].strip() for row in rows if ":" in row and not row.strip().startswith("then "))


def _named(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Values by name. Names at the end may be left out; values at the end may be pairs."""
    named = SimpleNamespace(**dict(zip_longest(names, values[: len(names)])))
    rest = iter(values[len(names) :])
    named.pairs = list(zip(rest, rest, strict=True))
    return named


def is_message(stored: bytes) -> bool:
    """What envelope.py packs: flags, id, a time of this age, and a tenant if the flags say so."""
    if len(stored) < 25 or not 0x80 <= stored[0] <= 0x83 or stored[17] != 0:
        return False
    return not stored[0] & 1 or (len(stored) > 25 and len(stored) >= 26 + stored[25])


def id_of(stored: bytes) -> bytes:
    return stored[1:17]


def payload_of(stored: bytes) -> bytes:
    return stored[26 + stored[25] :] if stored[0] & 1 else stored[25:]


def by_deadline(leases: Mapping[bytes, int]) -> list[bytes]:
    """The order of a sorted set: by score, then by name."""
    return sorted(leases, key=lambda key: (leases[key], key))


def to_us(seconds: float) -> int:
    """Microseconds, rounded up: whoever sleeps sleeps."""
    return math.ceil(seconds * SECOND)
