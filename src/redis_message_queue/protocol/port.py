"""The port: all that the protocol uses of the outside world, such as Redis, clocks, threads and user functions."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from redis_message_queue.stored.scripts import Script
from redis_message_queue.values.errors import LuaScriptError

T = TypeVar("T")
Argument = bytes | str | int


class AttemptEnd:
    """A block in which an attempt must be over at this time, by the port's clock; None: when the client gives up.

    It holds as long as somebody holds this object, in a local variable: a Ctrl-C may come before the end is taken back,
    and must not leave a deadline behind that cuts short whatever this thread does next.
    """

    __slots__ = ("__weakref__", "_around", "_known_as", "at", "had_no_connection")

    def __init__(self, at: float | None) -> None:
        self.at = at
        self.had_no_connection = False  # whether nothing was sent, because there was no connection to send it on

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


innermost_attempt_end = _attempt_end.get
"""Returns None unless there is a block around the caller: quicker than `attempt_ends_at`, for the fast path."""


def attempt_ends_at() -> float | None:
    """Return when the present attempt must end, or None if the client decides."""
    known = _attempt_end.get()
    end = None if known is None else known()
    return None if end is None else end.at


def note_missing_connection() -> None:
    """Tell whoever made the present attempt that nothing was sent."""
    known = _attempt_end.get()
    end = None if known is None else known()
    if end is not None:
        end.had_no_connection = True


@dataclass(slots=True, eq=False)
class Command:
    """A script with everything that is the same in each call of one caller, so that a port can pack it once."""

    script: Script
    keys: tuple[str, ...]
    settings: tuple[Argument, ...] = ()
    # The packed halves around the keys that a call brings itself, by the number of those keys and of its arguments.
    packed: dict[tuple[int, int], tuple[bytes, bytes]] = field(default_factory=dict, init=False)

    def spelled_out(self, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Return the whole command with the text of the script, for a server that has never seen it."""
        keys = (*self.keys, *extra_keys)
        return ("EVAL", self.script.source, len(keys), *keys, *self.settings, *arguments)


Call = tuple[Command, tuple[str, ...], tuple[Argument, ...]]
"""A command, the keys that the call brings itself, and its arguments."""


@dataclass(slots=True, eq=False)
class Answer(Generic[T]):
    """What a user's function returned or raised."""

    value: Any = None  # a T, unless there is an error
    error: BaseException | None = None
    unawaited: bool = False  # the error is that this shell cannot await what the function gave

    def unwrap(self) -> T:
        """Return the value or raise the error. A `StopIteration` is wrapped, because coroutines would swallow it."""
        if self.error is None:
            value: T = self.value
            return value
        if isinstance(self.error, StopIteration):
            raise WrappedStopIteration(self.error)
        raise self.error


class WrappedStopIteration(Exception):
    """Takes a user's `StopIteration` out of a coroutine, where raising it would end in a `RuntimeError`."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


def unwrap(error: Exception) -> Exception:
    """Return the error that a user's function raised, without its wrapper."""
    return error.error if isinstance(error, WrappedStopIteration) else error


class StateMissingError(LuaScriptError):
    """Redis has no state of a queue, or has lost it: write the state and repeat the call."""

    @staticmethod
    def said_of(meta: str) -> str:
        """What a script says if this key is missing: see lua/lib/state.lua."""
        return f"NOSTATE {hashlib.sha1(meta.encode(), usedforsecurity=False).hexdigest()}"

    def is_of(self, meta: str) -> bool:
        """Whether it is the state in this key that is missing."""
        return self.said_of(meta) in str(self)


class BackgroundTask(Protocol):
    """A thread or a task that runs beside a handler and can be stopped."""

    async def stop(self) -> None:
        """Stop, and wait a moment for its end. A call that is still under way then ends by itself."""

    async def end(self) -> None:
        """Stop, and wait for its end however long that takes."""

    def abandon(self) -> None:
        """Stop without waiting."""


class Notification(Protocol):
    """Lets one caller wait until another one has something for it."""

    def send(self) -> None:
        """End the wait, or the next one if nobody waits now."""

    async def wait(self, seconds: float) -> None:
        """Wait until it is sent, or for this long."""


Pause = Callable[[float], Awaitable[bool]]
"""Sleeps in a background task, and returns whether to stop."""


class Runtime(Protocol):
    """What the protocol needs of a shell besides Redis. The sync runtime never suspends; the async one may."""

    async def sleep(self, seconds: float) -> None: ...

    async def call_user(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        """Call a function of the user's, sync or async; its exception is returned as a value."""

    async def call_user_shielded(
        self, cancellations: list[BaseException], function: Callable[..., Any], *arguments: Any
    ) -> Answer[Any]:
        """The same, but a cancellation does not stop it: it is added to the list."""

    async def shielded(self, cancellations: list[BaseException], work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end. A cancellation does not stop it: it is added to the list."""

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> BackgroundTask: ...

    def lock(self) -> AbstractContextManager[Any]:
        """Return a reentrant lock: a signal handler may run while its own thread holds it."""

    def notification(self) -> Notification: ...

    def thread(self) -> object:
        """Return the thread: a call in it cannot wait for another one there, which it interrupts. None if it can."""

    def group_scope(self) -> object:
        """Return what callers must share to wait for each other: the process, and in asyncio the loop."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def random(self) -> float:
        """Return a random number from 0 up to 1."""

    def new_id(self) -> bytes:
        """Return sixteen unique bytes."""

    def slot_name(self) -> bytes:
        """Return fifteen bytes that name a reply slot: 4 for the host, 4 for the process, 7 random ones."""

    def process(self) -> int:
        """Return the identity of this process. It changes after a fork and after `after_restore()`."""

    def is_transient(self, error: BaseException) -> bool:
        """Whether the same call may succeed a moment later."""

    def is_cancellation(self, error: BaseException) -> bool:
        """Whether the running task was cancelled."""


class Port(Runtime, Protocol):
    """A runtime that can talk to Redis."""

    retry_window: float  # how long the client itself may repeat a command
    owner_pid: int  # the process that made it
    decodes: bool  # whether its user wants text instead of bytes
    is_cluster: bool  # whether keys of one script must share a slot

    @property
    def address(self) -> str:
        """The address of Redis, for people to read."""

    @property
    def socket_timeout(self) -> float | None:
        """How long to wait for one reply."""

    def reaches_the_same(self, other: Port) -> bool | None:
        """Return whether the other port leads to the same keys, or None if that is not known."""

    def note_the_same(self, other: Port) -> None:
        """Remember that it does, for a while and until a Sentinel names another primary."""

    async def close_idle(self) -> None:
        """Close idle connections, so that the next one leads to the present primary."""

    def after_fork(self) -> None:
        """Called in a process that was forked or restored from a snapshot. Raises if the port cannot be used there."""

    async def connect(self) -> None:
        """Connect without sending anything. Raises if Redis cannot be reached."""

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Run a script once."""

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        """Run two scripts, in one round trip if possible. Returns a reply or an error for each.

        The second is executed behind the first, or without it if the first has an error: then it is not run again.
        """

    async def pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        """Send commands to the node that holds ``key``, on one connection. Returns a reply or an error for each."""

    async def wait(self, wakeup: str, seconds: float, *, punctual: bool = False) -> bool:
        """Wait for a wake-up. Returns whether one came.

        ``punctual``: return within 2 ms of the end instead of up to 100 ms later.
        """

    async def wait_any(self, wakeups: tuple[str, ...], seconds: float, *, punctual: bool = False) -> list[str]:
        """Wait for the first wake-up in any of these keys, which may be on different nodes. Returns where one came.

        On a cluster, a key that cannot be waited for does not disturb the others, as long as there are any.
        """


def split(items: Sequence[T], sizes: Sequence[int], most: int, most_bytes: int) -> Iterator[Sequence[T]]:
    """Yield pieces for one script each: within the limits of items and bytes, or one item that is larger."""
    if 0 < len(items) <= most and sum(sizes) <= most_bytes:  # the fast path, without a loop in Python
        yield items
        return
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == most or total + size > most_bytes):
            yield items[start:place]
            start, total = place, 0
        total += size
    if start < len(items):
        yield items[start:]


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because its port blocks instead."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    except WrappedStopIteration as carried:
        raise carried.error from None
    work.close()
    raise RuntimeError("the protocol awaited something that is not its port")
