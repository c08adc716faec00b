"""Redis in memory: the simulator's server, with a clock that a test moves, and requests that arrive late.

Tests that try every loss or every order begin anew each time, and most of what they do has been done before. So a
server remembers what every sequence of requests from its beginning led to, and executes only what is new.
"""

import heapq
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

from redis_message_queue.protocol.port import Argument, Call
from redis_message_queue.redis_py import wire
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import LuaScriptError
from simulator.keyspace import Hash, Keyspace, RedisError, copied
from simulator.lua import interpreter
from simulator.port import as_client_error
from simulator.server import Server, Step

SECOND = 1_000_000
SCRIPT_US = 10  # what a script takes: two that follow each other never have the same time
MOST_MOMENTS = 3000  # that are remembered at a time


@dataclass(slots=True, eq=False)
class Moment:
    """What the server had and answered after a sequence of requests, and what it did next whenever it got so far."""

    keyspace: Keyspace  # which nobody changes
    reply: Any = None
    error: str | None = None
    next: dict[tuple[Any, ...], "Moment"] = field(default_factory=dict)


class Beginning:
    """The moment at which every server begins: empty."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.moment, self.known = Moment(Keyspace()), 0


_beginning = Beginning()


class MemoryRedis:
    """A server for one or more queues, all of which were used before. Time passes only when a test says so."""

    def __init__(self, observe: Callable[[Step], None] | None = None) -> None:
        self.clock_us = 1_700_000_000 * SECOND
        self._server = Server(interpreter(), lambda: self.clock_us, observe or (lambda step: None))
        if _beginning.known > MOST_MOMENTS:
            _beginning.forget()
        self._moment = None if observe else _beginning.moment  # who observes sees everything executed
        self._is_behind = False  # the server has not executed what led to this moment
        self.ids = count(1)
        self._order = count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._late: list[tuple[int, tuple[Call, ...]]] = []
        self._executed = 0

    # -- what the server does

    def run(self, call: Call) -> Any:
        """Execute one script as Redis would: alone, and at a time of its own."""
        self._executed += 1
        self._run_late_requests()
        return self.execute(call)

    def execute(self, call: Call) -> Any:
        """The same for a request that arrives late."""
        command, extra_keys, arguments = call
        keys, arguments = (*command.keys, *extra_keys), (*command.settings, *arguments)
        self.clock_us += SCRIPT_US
        source = self._server.patched.get(command.script.name, command.script).source

        def run() -> Any:
            if command.script.name != "open_queue":
                self._open_queues(keys)
            return self._server.run_script("", command.script, keys, arguments)

        try:
            return self._answer((source, keys, arguments), run)
        except RedisError as error:
            raise wire.translated(as_client_error(error), command.script.name) from error

    def _open_queues(self, keys: tuple[str, ...]) -> None:
        """Write the version of what is stored, as the first user of a queue does."""
        values = self._server.keyspace.values
        for key in keys:
            if "::meta" in key and key.encode() not in values:
                values[key.encode()] = Hash({b"version": b"1", b"partitions": b"1"})

    def obey(self, *words: Argument) -> Any:
        """Execute one command that is no script."""
        return self._answer(words, lambda: self._server.run_command("", words))

    def _answer(self, request: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """Execute a request, or remember what it did when everything before it had been the same."""
        if self._moment is None:
            return run()
        request = (*request, self.clock_us)
        moment = self._moment.next.get(request)
        if moment is None:
            moment = self._moment.next[request] = self._executed_now(run)
        else:
            self._is_behind = True
        self._moment = moment
        if moment.error is not None:
            raise RedisError(moment.error)
        return _fresh(moment.reply)

    def _executed_now(self, run: Callable[[], Any]) -> Moment:
        self._catch_up()
        reply, error = None, None
        try:
            reply = run()
        except RedisError as refusal:
            error = str(refusal)
        _beginning.known += 1
        return Moment(self._server.keyspace.copy(), reply, error)

    def _catch_up(self) -> None:
        if self._is_behind:
            assert self._moment is not None
            self._server.restore(self._moment.keyspace.copy())
            self._is_behind = False

    def take_token(self, wakeup: str) -> bool:
        """BLPOP, once there is something to pop."""
        return self.obey("LPOP", wakeup) is not None

    def look_at_few(self, steps: int) -> None:
        """Let a claim of a queue without weights do so many steps of each kind, instead of a thousand."""
        claim = script("claim")
        source = claim.source.replace("local MAX_MESSAGES = 1000", f"local MAX_MESSAGES = {steps}")
        assert source != claim.source
        self._server.patched["claim"] = replace(claim, source=source)

    # -- what it has

    @property
    def keyspace(self) -> Keyspace:
        self._catch_up()
        self._moment = None  # it may be changed from outside
        return self._server.keyspace

    def value(self, key: str) -> Any:
        """What is stored in a key, None if there is nothing."""
        value = self._current.values.get(key.encode())
        return value if self._moment is None or value is None else copied(value)

    def keys(self, part: str = "") -> list[str]:
        """The names of all keys that have this part."""
        return [key for key in map(bytes.decode, self._current.values) if part in key]

    @property
    def _current(self) -> Keyspace:
        """What the server has now."""
        self._catch_up()
        self._server.keyspace.advance(self.clock_us)
        return self._server.keyspace

    # -- time, and what happens in it

    def at(self, seconds_from_now: float, happens: Callable[[], Any]) -> None:
        """Let something happen when the clock reaches this time."""
        heapq.heappush(self._agenda, (self.clock_us + to_us(seconds_from_now), next(self._order), happens))

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

    def deliver_late(self, after: int, *calls: Call) -> None:
        """Keep requests back until so many other calls have been executed."""
        self._late.append((self._executed + after, calls))

    def _run_late_requests(self) -> None:
        if self._late:
            due = [calls for when, calls in self._late if when < self._executed]
            self._late = [one for one in self._late if one[0] >= self._executed]
            self._arrive(due)

    def run_all_late_requests(self) -> None:
        """Execute the last requests that are on their way."""
        late, self._late = self._late, []
        self._arrive([calls for _, calls in late])

    def _arrive(self, requests: list[tuple[Call, ...]]) -> None:
        for call in chain.from_iterable(requests):
            with suppress(LuaScriptError):  # refused as overtaken; nobody is there to hear it
                self.execute(call)


def to_us(seconds: float) -> int:
    """Microseconds, rounded up, so that no sleep is too short."""
    return math.ceil(seconds * SECOND)


def _fresh(reply: Any) -> Any:
    """A reply that its reader may change."""
    return [_fresh(one) for one in reply] if type(reply) is list else reply
