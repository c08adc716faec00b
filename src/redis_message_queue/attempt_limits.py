"""What one attempt of ours may do with a client that belongs to the user: how often it repeats, and how long it takes.

A redis-py client may repeat each command by itself, connecting included, and may listen without a limit. Both are the
user's choice for the user's own commands. Ours have a retry budget and time limits of their own, which such a client
would exceed. So the client's `Retry` and its connection class are replaced once by subclasses of theirs that behave
as before, unless `running_attempt` says that it is ours.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ClassVar, Self
from weakref import ref

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.connection
import redis.retry

_SHORTEST = 0.001  # seconds: a socket with a limit of 0 would not block at all


class Limited:
    """A block in which the client keeps to the limits of one attempt of ours; such blocks are not nested.

    They hold as long as somebody holds this object, in a local variable: a Ctrl-C may come before they are taken back,
    and must not leave them behind for the user's own commands. The next attempt takes back what is left.
    """

    __slots__ = ("__weakref__", "_known_as", "is_timed", "read", "repeats", "until")

    def __init__(self, repeats: bool, until: float, read: float) -> None:
        self.repeats = repeats  # whether the client's own Retry applies
        self.until = until  # when the attempt must be over, by the monotonic clock
        self.read = read  # seconds that one read may take, for a client that would listen without a limit
        self.is_timed = until != math.inf or read != math.inf
        self._known_as: ref[Limited] = ref(self)

    def seconds_left(self) -> float:
        """How long the next step may take."""
        if self.until == math.inf:
            return self.read
        return max(_SHORTEST, min(self.read, self.until - time.monotonic()))

    def __enter__(self) -> Self:
        _limits.set(self._known_as)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _limits.set(None)


_limits: ContextVar[ref[Limited] | None] = ContextVar("redis_message_queue_limits", default=None)


def running_attempt() -> Limited | None:
    """The limits of the running attempt; None where the command is the user's own."""
    known = _limits.get()
    return None if known is None else known()


class LimitedRetry:
    """Goes before a `Retry` class, sync or async: an attempt of ours is repeated by us, not by the client."""

    plain_class: ClassVar[type]
    _supported_errors: tuple[type[Exception], ...]

    def get_retries(self) -> int:
        """How often a command is repeated; the cluster client asks for the number and repeats by itself."""
        running = running_attempt()
        if running is not None and not running.repeats:
            return 0
        return int(super().get_retries())  # type: ignore[misc]  # of the class that this one goes before

    def call_with_retry(self, do: Any, fail: Any, *arguments: Any, **options: Any) -> Any:
        running = running_attempt()
        if running is None:
            return super().call_with_retry(do, fail, *arguments, **options)  # type: ignore[misc]
        if not running.repeats:
            return self._once(do, fail, *arguments, **options)
        if running.until != math.inf:
            fail = self._ending(fail, running.until)
        return super().call_with_retry(do, fail, *arguments, **options)  # type: ignore[misc]

    def _once(self, do: Any, fail: Any, is_retryable: Any = None, with_failure_count: bool = False) -> Any:
        """What redis-py does when it has no retries left, without its preparations for more."""
        if isinstance(self, redis.asyncio.retry.Retry):
            return self._once_awaited(do, fail, is_retryable, with_failure_count)
        try:
            return do()
        except self._supported_errors as error:
            if is_retryable is None or is_retryable(error):
                fail(error, 1) if with_failure_count else fail(error)
            raise

    async def _once_awaited(self, do: Any, fail: Any, is_retryable: Any, with_failure_count: bool) -> Any:
        try:
            return await do()
        except self._supported_errors as error:
            if is_retryable is None or is_retryable(error):
                await (fail(error, 1) if with_failure_count else fail(error))
            raise

    def _ending(self, fail: Any, until: float) -> Any:
        """The same step after a failure; when the time of the attempt is over it raises, so that nothing follows."""

        def end(error: Exception, *more: Any) -> None:
            fail(error, *more)
            if time.monotonic() >= until:
                raise error

        async def end_awaited(error: Exception, *more: Any) -> None:
            await fail(error, *more)
            if time.monotonic() >= until:
                raise error

        return end_awaited if isinstance(self, redis.asyncio.retry.Retry) else end


class LimitedConnection:
    """Goes before a sync connection class: what we wait for ends in time, also where the client sets no limit."""

    plain_class: ClassVar[type]
    socket_timeout: float | None
    socket_connect_timeout: float | None
    _sock: Any
    _own_timeouts: tuple[float | None, float | None] | None = None  # while those above are shortened

    def connect(self) -> None:
        if self._sock is None:  # a pool asks each time; this spares the preparations for a retry
            super().connect()  # type: ignore[misc]  # of the class that this one goes before

    def connect_check_health(self, *arguments: Any, **options: Any) -> None:
        running = running_attempt()
        if running is None or self._sock is not None:
            super().connect_check_health(*arguments, **options)  # type: ignore[misc]  # of the class behind this one
            return
        # The new socket itself never comes through here: in a local variable it would be lost to a Ctrl-C.
        self._own_timeouts = (self.socket_timeout, self.socket_connect_timeout)
        try:
            left = running.seconds_left()
            self.socket_timeout = _shorter(self.socket_timeout, left)
            self.socket_connect_timeout = _shorter(self.socket_connect_timeout, left)
            super().connect_check_health(*arguments, **options)  # type: ignore[misc]
        finally:
            self._restore_timeouts()

    def on_connect_check_health(self, *arguments: Any, **options: Any) -> None:
        self._restore_timeouts()  # before redis-py notes them anywhere
        super().on_connect_check_health(*arguments, **options)  # type: ignore[misc]

    def _restore_timeouts(self) -> None:
        if self._own_timeouts is None:
            return
        self.socket_timeout, self.socket_connect_timeout = self._own_timeouts
        self._own_timeouts = None
        if self._sock is not None:
            self._sock.settimeout(self.socket_timeout)

    def send_packed_command(self, *arguments: Any, **options: Any) -> Any:
        running = running_attempt()
        if running is None or not running.is_timed:
            return super().send_packed_command(*arguments, **options)  # type: ignore[misc]
        with self._ending_in_time(running):
            return super().send_packed_command(*arguments, **options)  # type: ignore[misc]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        running = running_attempt()
        if running is None or not running.is_timed:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        with self._ending_in_time(running):
            return super().read_response(*arguments, **options)  # type: ignore[misc]

    def _ending_in_time(self, running: Limited) -> contextlib.AbstractContextManager[None]:
        left, sock = running.seconds_left(), self._sock
        if sock is None or (self.socket_timeout is not None and left >= self.socket_timeout):
            return _NO_LIMIT
        return self._shortened(sock, left)

    @contextlib.contextmanager
    def _shortened(self, sock: Any, seconds: float) -> Iterator[None]:
        sock.settimeout(seconds)
        try:
            yield
        finally:
            if self._sock is sock:  # else it was closed
                sock.settimeout(self.socket_timeout)


_NO_LIMIT = contextlib.nullcontext()


def _shorter(seconds: float | None, left: float) -> float | None:
    if left == math.inf:
        return seconds
    return left if seconds is None else min(seconds, left)


def plain_class(kind: Any) -> Any:
    """The class as the user gave it."""
    return getattr(kind, "plain_class", kind)


@functools.cache
def _before(limiting: Any, plain: Any) -> Any:
    named = {"plain_class": plain, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (limiting, plain), named)


def limited_retry(retry: Any) -> Any:
    """A `Retry` like this one that knows our limits."""
    known = redis.retry.Retry | redis.asyncio.retry.Retry
    if isinstance(retry, LimitedRetry) or not isinstance(retry, known):
        return retry
    limiting = _before(LimitedRetry, type(retry))
    twin = limiting.__new__(limiting)
    twin.__dict__.update(vars(retry))
    return twin


def limit(client: Any) -> None:
    """Make a client heed our limits in our calls, and nothing else about it different."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        client.set_retry(limited_retry(client.retry))
        return
    pool: Any = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if settings is None:
        return
    if settings.get("retry") is not None:
        settings["retry"] = limited_retry(settings["retry"])
    for held in ("_available_connections", "_in_use_connections", "_connections"):
        for connection in list(getattr(pool, held, ())):  # made before the client came to us
            if hasattr(connection, "retry"):
                connection.retry = limited_retry(connection.retry)
    kind: Any = getattr(pool, "connection_class", None)
    if _is_subclass(kind, redis.connection.AbstractConnection) and not _is_subclass(kind, LimitedConnection):
        pool.connection_class = _before(LimitedConnection, kind)
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        limit(sentinel)


def _is_subclass(kind: Any, of: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)
