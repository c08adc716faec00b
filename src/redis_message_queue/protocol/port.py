"""The only door of the protocol to the outside: Redis, clocks, chance, threads or tasks, and the user's functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import ref

from redis_message_queue.errors import LuaScriptError
from redis_message_queue.scripts import Script

T = TypeVar("T")
Argument = bytes | str | int


class AttemptEnd:
    """A block in which an attempt must be over at this time, by the port's clock; None: when the client gives up.

    It holds as long as somebody holds this object, in a local variable: a Ctrl-C may come before the end is taken back,
    and must not leave a deadline behind that cuts short whatever this thread does next.
    """

    __slots__ = ("__weakref__", "_around", "_known_as", "at")

    def __init__(self, at: float | None) -> None:
        self.at = at

    def __enter__(self) -> None:
        self._around, self._known_as = _attempt_end.get(), ref(self)
        _attempt_end.set(self._known_as)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without a token: a task that is thrown away is closed outside of its context, and there is nothing to undo.
        if _attempt_end.get() is self._known_as:
            _attempt_end.set(self._around)


_attempt_end: ContextVar[ref[AttemptEnd] | None] = ContextVar("redis_message_queue_attempt_end", default=None)


def attempt_ends_at() -> float | None:
    """The end of the attempt that is made now; None: what the client allows."""
    known = _attempt_end.get()
    end = None if known is None else known()
    return None if end is None else end.at


@dataclass(slots=True, eq=False)
class Command:
    """A script with everything that is the same in each call of one caller, so that a port can pack it once."""

    script: Script
    keys: tuple[str, ...]
    settings: tuple[Argument, ...] = ()
    # The packed halves around the keys that a call brings itself, by the number of those keys.
    packed: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, init=False)

    def spelled_out(self, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """The whole command with the script's text in it, so that it runs on a server that has never seen it."""
        keys = (*self.keys, *open_keys)
        return ("EVAL", self.script.source, len(keys), *keys, *self.settings, *arguments)


Call = tuple[Command, tuple[str, ...], tuple[Argument, ...]]
"""A command, the keys that the call brings itself, and its arguments."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came of asking: a value or an error."""

    value: T | None = None
    error: BaseException | None = None
    unawaited: bool = False  # the error is that this shell cannot await what the function gave

    def unwrap(self) -> T:
        """The value, or the error raised; a `StopIteration` is carried past the coroutines that would eat it."""
        if isinstance(self.error, StopIteration):
            raise Carried(self.error)
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


class Carried(Exception):
    """Takes a user's `StopIteration` out of a coroutine, where raising it would end in a `RuntimeError`."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


def uncarried(error: Exception) -> Exception:
    """The error that a user's function raised, without what took it past the coroutines."""
    return error.error if isinstance(error, Carried) else error


class StateMissingError(LuaScriptError):
    """Redis does not know a queue yet, or has forgotten it: its state is written and the call repeated."""


class Sidecar(Protocol):
    """Something that runs beside a handler and can be told to stop."""

    async def stop(self) -> None:
        """Stop and wait a moment for the end; what is still under way then ends by itself."""

    async def end(self) -> None:
        """Stop and wait for the end, however long that takes: what is under way matters."""

    def abandon(self) -> None:
        """Stop without waiting."""


Pause = Callable[[float], Awaitable[bool]]
"""Sleep beside a handler; the answer is whether to stop."""


class Runtime(Protocol):
    """What the protocol asks of a shell besides Redis. A blocking one never suspends; an asyncio one may."""

    async def sleep(self, seconds: float) -> None: ...

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        """Call a function of the user's, of either colour; its exception comes back as a value."""

    async def ask_to_the_end(
        self, cancellations: list[BaseException], function: Callable[..., Any], *arguments: Any
    ) -> Answer[Any]:
        """The same, and a cancellation is noted and does not stop it."""

    async def shielded(self, cancellations: list[BaseException], work: Coroutine[Any, Any, T]) -> T:
        """The work to its end; a cancellation is noted and does not stop it."""

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> Sidecar: ...

    def lock(self) -> AbstractContextManager[Any]:
        """Keeps other threads out, and lets its own thread in again: a signal handler may come in between."""

    def now(self) -> float:
        """Monotonic seconds."""

    def chance(self) -> float:
        """A number from 0 up to 1."""

    def fresh_id(self) -> bytes:
        """Sixteen bytes that nobody else has."""

    def slot_name(self) -> bytes:
        """Fifteen bytes that name a slot of the reply cache: 4 for the host, 4 for the process, 7 of chance."""

    def process(self) -> int:
        """Which process this is; another one after a fork, and after `after_restore()` (it may exceed 32 bits then)."""

    def is_transient(self, error: BaseException) -> bool:
        """Whether the same call may succeed a moment later."""

    def is_cancellation(self, error: BaseException) -> bool:
        """Whether somebody cancelled the running task."""


class Port(Runtime, Protocol):
    """A runtime with Redis at its end."""

    retry_window: float  # how long the client itself may go on repeating a command
    born_in: int  # the process that made it
    decodes: bool  # whether its user wants text instead of bytes
    is_cluster: bool  # whether keys of one script must share a slot

    @property
    def address(self) -> str:
        """Where Redis is, for people to read."""

    @property
    def socket_timeout(self) -> float | None:
        """How long one answer is waited for."""

    def reaches_the_same(self, other: Port) -> bool | None:
        """Whether the other one's keys are where ours are, as far as that is known; None if it has to be tried."""

    def note_the_same(self, other: Port) -> None:
        """It was tried, and they are; good for a while, and until a Sentinel names another primary."""

    async def close_idle(self) -> None:
        """Close the connections that nobody uses: what is opened next leads to whoever is the primary now."""

    def inherit(self) -> None:
        """Asked in a process that has this port from its parent or a snapshot: refuse, if it cannot be used there."""

    async def meet(self) -> None:
        """Connect, and send nothing of a queue's; raises where Redis cannot be reached."""

    async def call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Run a script once."""

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        """Run two scripts, in one round trip where that can be; an answer or an error of each."""

    async def converse(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        """Send commands on one connection to the node that holds ``key``; the answer to each, an error as a value."""

    async def wait(self, bell: str, seconds: float) -> bool:
        """Wait for the bell; whether it rang."""


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because its port blocks instead."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    except Carried as carried:
        raise carried.error from None
    work.close()
    raise RuntimeError("the protocol awaited something that is not its port")
