"""A port to the in-memory Redis that loses requests and replies, and interrupts calls, where a test says so."""

import inspect
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis_message_queue.protocol.port import Answer, Argument, Call, Command, Pause, attempt_ends_at
from redis_message_queue.values.errors import LuaScriptError
from simulator.oracle.steps import by_name
from simulator.server import script_of
from tests.protocol.memory import SECOND, MemoryRedis, to_us

MOST_CALLS = 1000  # of one port: no test needs a tenth of it


class Lost(ConnectionError):
    """The connection broke. Whether the call was executed, only the test knows."""


class Cancelled(BaseException):
    """What asyncio's CancelledError is to a task."""


@dataclass(frozen=True)
class Loss:
    """How a call is lost: before or after its execution, or executed after its caller has continued."""

    executed: bool
    late_by: int | None = None

    def __repr__(self) -> str:
        if self.late_by is not None:
            return f"late by {self.late_by}"
        return "reply lost" if self.executed else "request lost"


REQUEST = Loss(executed=False)
REPLY = Loss(executed=True)


def late(calls: int) -> Loss:
    """A late request: it arrives after so many later calls."""
    return Loss(executed=False, late_by=calls)


class Turn:
    """A point where a caller lets others go first.

    One that sleeps may be the next to go on, and then time has passed; one that waits to be woken goes on when it
    is, or when nobody else can.
    """

    def __init__(self, until_us: int | None = None, wakes: Callable[[], bool] | None = None) -> None:
        self.until_us = until_us
        self._wakes = wakes
        self._woken = False

    def is_ready(self, clock_us: int) -> bool:
        """Whether the caller could be the next to go on."""
        if self._wakes is None or self.until_us is None:
            return True
        self._woken = self._woken or self._wakes()
        return self._woken or clock_us >= self.until_us

    @property
    def sleeps_until_us(self) -> int:
        """When a sleeping caller continues; others continue at once."""
        return 0 if self._woken or self.until_us is None else self.until_us

    def __await__(self) -> Generator["Turn", None, bool]:
        yield self
        return self._woken


class Sent(NamedTuple):
    """A call as it left the port."""

    verb: str
    keys: tuple[str, ...]
    given: dict[str, Any]  # the arguments, by the names of the script's header
    at: float
    ends_at: float | None = None  # when a client must have given up, if it gets no reply


class Talk(NamedTuple):
    """A pipeline as it left the port: several commands for one connection."""

    commands: tuple[tuple[Argument, ...], ...]
    at: float

    @property
    def verb(self) -> str:
        """What it is all about: the last word is the question, what stands before it prepares it."""
        return str(self.commands[-1][0])

    @property
    def question(self) -> tuple[Argument, ...]:
        return self.commands[-1]

    @property
    def spelled_out(self) -> Sent:
        """The call that it begins with, as if it had been sent by itself."""
        return _sent(_called(self.commands[0]), self.at)


def _sent(call: Call, at: float) -> Sent:
    command, _, arguments = call
    given = by_name(command.script, (*command.settings, *arguments))
    return Sent(command.script.name, command.keys, given, at, attempt_ends_at())


@dataclass
class Followers:
    """What stands behind the server, as WAIT and WAITAOF see it; a test changes it whenever it likes."""

    in_step: int = 0  # replicas that have everything
    on_disk: bool = False
    replicas_on_disk: int = 0
    refusals: dict[str, list[Exception]] = field(default_factory=dict)  # the next answers, by the command's name


class MemoryPort:
    """A `Port` of one queue object. It never suspends, or it does so before each call: as the test says.

    ``losses`` tells by its place (0, 1, ...) which round trip is lost, and how. ``break_at`` are the numbers of
    points, of all those where a real port could be broken off: before and after whatever it is asked to do. A port
    that ``suspends`` can do so ``between`` execution and answer as well.
    """

    retry_window = 0.0
    address = "a memory"
    is_cluster = False
    owner_pid = 1

    def __init__(
        self,
        memory: MemoryRedis,
        losses: Mapping[int, Loss] | None = None,
        *,
        break_at: Collection[int] = (),
        break_with: type[BaseException] = KeyboardInterrupt,
        suspends: bool = False,
        between: bool = False,
        decodes: bool = False,
        socket_timeout: float | None = None,
        latency: float = 0.0,
        followers: Followers | None = None,
    ) -> None:
        self.memory = memory
        self.losses = dict(losses or {})
        self.break_at = break_at
        self.break_with = break_with
        self.suspends = suspends
        self.between = between
        self.decodes = decodes
        self.socket_timeout = socket_timeout
        self.latency = latency  # of the way to the server, and of the way back
        self.followers = followers or Followers()
        self.pid = self.owner_pid = 1
        self.luck = 0.5
        self.sent: list[Sent | Talk] = []
        self.exchanges = 0  # round trips so far
        self.waits: list[float] = []
        self.waits_end_at: list[float | None] = []
        self.sleeps: list[float] = []
        self.points: list[str] = []
        self.sidecars: list[MemorySidecar] = []

    def verbs(self) -> list[str]:
        """What was sent, in order."""
        return [sent.verb for sent in self.sent]

    async def connect(self) -> None:
        """A memory is always there."""

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        call = (command, extra_keys, arguments)
        self._note(call)
        return await self._exchange(command.script.name, lambda: self.memory.run(call), call)

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        """In one round trip: a loss is the loss of both."""
        calls = (first, second)
        for call in calls:
            self._note(call)
        answers: list[Any] = await self._exchange(
            " and ".join(call[0].script.name for call in calls),
            lambda: [self._run_or_error(call) for call in calls],
            *calls,
        )
        return answers[0], answers[1]

    def _note(self, call: Call) -> None:
        self.sent.append(_sent(call, self.now()))

    async def _exchange(self, what: str, execute: Callable[[], Any], *calls: Call) -> Any:
        """There and back, unless it is lost on the way."""
        loss = self.losses.get(self.exchanges)
        self.exchanges += 1
        assert self.exchanges <= MOST_CALLS, "the protocol goes round in circles"
        await self._point(f"before {what} is sent")
        if self.suspends:
            await Turn()
        self._travel()
        if loss is not None and not loss.executed:
            if loss.late_by is not None:
                self.memory.deliver_late(loss.late_by, *calls)
            raise Lost(f"the request of {what} was lost")
        answer = execute()
        self._travel()
        await self._point(f"after {what} was executed")
        if self.suspends and self.between:
            await Turn()
        if loss is not None:
            raise Lost(f"the reply of {what} was lost")
        return answer

    def _run_or_error(self, call: Call) -> Any:
        try:
            return self.memory.run(call)
        except LuaScriptError as error:
            return error

    def _travel(self) -> None:
        if self.latency:
            self.memory.pass_time(self.latency)

    async def pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        """One request and one reply, however many commands there are: both are lost as a whole."""
        talk, loss = Talk(commands, self.now()), self.losses.get(self.exchanges)
        self.sent.append(talk)
        self.exchanges += 1
        assert self.exchanges <= MOST_CALLS, "the protocol goes round in circles"
        await self._point(f"before {talk.verb} is sent")
        if self.suspends:
            await Turn()
        self._travel()
        if loss is not None and not loss.executed:
            if loss.late_by is not None and commands[0][0] == "EVAL":  # a probe changes nothing, whenever it arrives
                self.memory.deliver_late(loss.late_by, _called(commands[0]))
            raise Lost(f"the request of {talk.verb} was lost")
        answers = [await self._answer(words) for words in commands]
        self._travel()
        await self._point(f"after {talk.verb} was answered")
        if loss is not None:
            raise Lost(f"the reply of {talk.verb} was lost")
        return answers

    async def _answer(self, words: tuple[Argument, ...]) -> Any:
        """An error comes back as a value, as it does from a connection that is read to its end."""
        verb, followers = str(words[0]), self.followers
        if followers.refusals.get(verb):
            return followers.refusals[verb].pop(0)
        if verb == "EVAL":
            return self._run_or_error(_called(words))
        if verb not in ("WAIT", "WAITAOF"):
            return self.memory.obey(*words)
        *wanted, milliseconds = map(int, words[1:])
        if verb == "WAIT":
            await self._pass_time(milliseconds / 1000, lambda: followers.in_step >= wanted[0])
            return followers.in_step
        await self._pass_time(
            milliseconds / 1000, lambda: followers.on_disk >= wanted[0] and followers.replicas_on_disk >= wanted[1]
        )
        return [int(followers.on_disk), followers.replicas_on_disk]

    async def wait(self, wakeup: str, seconds: float, *, punctual: bool = False) -> bool:
        self.waits.append(seconds)
        self.waits_end_at.append(attempt_ends_at())
        await self._point("before waiting for the wake-up key")
        woken = await self._pass_time(seconds, lambda: self.memory.take_token(wakeup))
        await self._point("after waiting for the wake-up key")
        return woken

    async def wait_any(self, wakeups: tuple[str, ...], seconds: float, *, punctual: bool = False) -> list[str]:
        self.waits.append(seconds)
        self.waits_end_at.append(attempt_ends_at())
        await self._point("before waiting for the wake-up keys")
        woken: list[str] = []

        def take() -> bool:
            woken.extend(key for key in wakeups if not woken and self.memory.take_token(key))
            return bool(woken)

        await self._pass_time(seconds, take)
        await self._point("after waiting for the wake-up keys")
        return woken

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await self._point("before sleeping")
        await self._pass_time(seconds)

    async def _pass_time(self, seconds: float, wakes: Callable[[], bool] | None = None) -> bool:
        if self.suspends:
            return await Turn(self.memory.clock_us + to_us(seconds), wakes)
        return self.memory.pass_time(seconds, wakes or (lambda: False))

    async def call_user(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        await self._point("before a function of the user's")
        try:
            value = function(*arguments)
            return Answer(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            return Answer(error=error)

    async def call_user_shielded(
        self, cancellations: list[BaseException], function: Callable[..., Any], *arguments: Any
    ) -> Answer[Any]:
        return await self.call_user(function, *arguments)

    async def shielded(self, cancellations: list[BaseException], work: Coroutine[Any, Any, Any]) -> Any:
        """Nobody breaks off a single call here."""
        return await work

    async def _point(self, name: str) -> None:
        self.points.append(name)
        if len(self.points) - 1 in self.break_at:
            raise self.break_with(name)

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> "MemorySidecar":
        self.sidecars.append(MemorySidecar(self.memory, work))
        return self.sidecars[-1]

    def notification(self) -> "MemoryNotification":
        return MemoryNotification(self)

    def thread(self) -> None:
        """No call of this port is inside of another one."""

    def group_scope(self) -> int:
        return self.pid

    def now(self) -> float:
        return self.memory.clock_us / SECOND

    def random(self) -> float:
        return self.luck

    def lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def new_id(self) -> bytes:
        return next(self.memory.ids).to_bytes(8, "big") * 2

    def slot_name(self) -> bytes:
        return next(self.memory.ids).to_bytes(15, "big")

    def after_fork(self) -> None:
        return

    def process(self) -> int:
        return self.pid

    def reaches_the_same(self, other: Any) -> bool:
        return self.memory is other.memory

    def note_the_same(self, other: Any) -> None:
        """It is never asked: `reaches_the_same` always knows."""

    async def close_idle(self) -> None:
        """A memory has no connections."""

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, Lost)

    def is_cancellation(self, error: BaseException) -> bool:
        return isinstance(error, Cancelled)


def _called(words: tuple[Argument, ...]) -> Call:
    """An EVAL, taken apart into what a port is called with."""
    _, source, key_count, *rest = words
    keys, arguments = rest[: int(key_count)], rest[int(key_count) :]
    return Command(script_of(str(source)), tuple(map(str, keys))), (), tuple(arguments)


class MemoryNotification:
    """Wakes a caller that lets others go first."""

    def __init__(self, port: MemoryPort) -> None:
        self._port = port
        self._is_sent = False

    def send(self) -> None:
        self._is_sent = True

    async def wait(self, seconds: float) -> None:
        await self._port._point("before waiting for another caller")
        if not self._is_sent:
            await self._port._pass_time(seconds, lambda: self._is_sent)
        self._is_sent = False


class MemorySidecar:
    """A coroutine that goes on whenever the clock passes the end of its pause."""

    def __init__(self, memory: MemoryRedis, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> None:
        self._memory = memory
        self._stopped = False
        self._work = work(self._pause)
        self.finished = False
        self._go_on()

    async def _pause(self, seconds: float) -> bool:
        if seconds > 0 and not self._stopped:
            await Turn(self._memory.clock_us + to_us(seconds))
        return self._stopped

    def _go_on(self) -> None:
        if self.finished:
            return
        try:
            turn = self._work.send(None)
            while turn.until_us is None:
                turn = self._work.send(None)
        except StopIteration:
            self.finished = True
        else:
            self._memory.at((turn.until_us - self._memory.clock_us) / SECOND, self._go_on)

    async def stop(self) -> None:
        self._stopped = True
        self._go_on()
        self.abandon()

    async def end(self) -> None:
        await self.stop()

    def abandon(self) -> None:
        self._stopped = self.finished = True
        self._work.close()
