"""Limits how often a user's client retries our commands, which also limits how long they take.

A redis-py client may retry each command, and each connection, by itself, and may wait for a reply without a timeout.
That is the user's choice for the user's own commands. Ours have a retry budget and time limits, which such a client
would exceed. So we replace the client's `Retry` and its connection class once by subclasses. They behave as before,
unless `running_attempt` says that the command is ours.
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

from redis_message_queue.redis_py.redis_internals import connections_of, errors_of, socket_of

_SHORTEST = 0.001  # seconds: a socket with a timeout of 0 would not block at all


class AttemptLimits:
    """A block in which the client keeps the limits of one attempt of ours; such blocks are not nested.

    The limits hold as long as a local variable refers to this object. A Ctrl-C may come before the block is left, and
    must not leave them behind for the user's own commands. The next attempt removes what is left.
    """

    __slots__ = ("__weakref__", "_known_as", "_shortest", "is_timed", "read", "repeats", "until")

    def __init__(self, repeats: bool, until: float, read: float, shortest: float = _SHORTEST) -> None:
        self.repeats = repeats  # whether the client's own Retry applies
        self.until = until  # when the attempt must be over, by the monotonic clock
        self.read = read  # seconds that one read may take, for a client without a socket_timeout
        self._shortest = shortest  # seconds that one step may take even if the attempt should be over
        self.is_timed = until != math.inf or read != math.inf
        self._known_as: ref[AttemptLimits] = ref(self)

    def seconds_left(self) -> float:
        """Return how long the next step may take."""
        if self.until == math.inf:
            return self.read
        return max(self._shortest, min(self.read, self.until - time.monotonic()))

    def ends_at(self) -> float:
        """Return when a step that begins now must be over, by the monotonic clock."""
        if self.read == math.inf:
            return self.until
        return min(self.until, time.monotonic() + self.read)

    def __enter__(self) -> Self:
        _limits.set(self._known_as)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _limits.set(None)


_limits: ContextVar[ref[AttemptLimits] | None] = ContextVar("redis_message_queue_limits", default=None)


def running_attempt() -> AttemptLimits | None:
    """Return the limits of the running attempt; None if the command is the user's own."""
    known = _limits.get()
    return None if known is None else known()


class LimitedRetry:
    """Goes before a `Retry` class, sync or async: we retry our commands, not the client."""

    plain_class: ClassVar[type]

    def get_retries(self) -> int:
        """Return how many times a command is retried; the cluster client uses the number and retries itself."""
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
        """Do what redis-py does when it has no retries left."""
        if isinstance(self, redis.asyncio.retry.Retry):
            return self._once_awaited(do, fail, is_retryable, with_failure_count)
        try:
            return do()
        except errors_of(self) as error:
            if is_retryable is None or is_retryable(error):
                fail(error, 1) if with_failure_count else fail(error)
            raise

    async def _once_awaited(self, do: Any, fail: Any, is_retryable: Any, with_failure_count: bool) -> Any:
        try:
            return await do()
        except errors_of(self) as error:
            if is_retryable is None or is_retryable(error):
                await (fail(error, 1) if with_failure_count else fail(error))
            raise

    def _ending(self, fail: Any, until: float) -> Any:
        """Return the step after a failure, made to raise when the time of the attempt is over."""

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
    """Goes before a sync connection class: our waits end in time, even if the client has no timeout."""

    plain_class: ClassVar[type]
    socket_timeout: float | None
    socket_connect_timeout: float | None
    _own_timeouts: tuple[float | None, float | None] | None = None  # while those above are shortened

    def connect(self) -> None:
        if socket_of(self) is None:  # a pool calls this each time, and redis-py would prepare a retry each time
            super().connect()  # type: ignore[misc]  # of the class that this one goes before

    def connect_check_health(self, *arguments: Any, **options: Any) -> None:
        running = running_attempt()
        if running is None or socket_of(self) is not None:
            super().connect_check_health(*arguments, **options)  # type: ignore[misc]  # of the class behind this one
            return
        # The new socket is never in a local variable here: a Ctrl-C would lose it.
        self._own_timeouts = (self.socket_timeout, self.socket_connect_timeout)
        try:
            left = running.seconds_left()
            self.socket_timeout = _shorter(self.socket_timeout, left)
            self.socket_connect_timeout = _shorter(self.socket_connect_timeout, left)
            super().connect_check_health(*arguments, **options)  # type: ignore[misc]
        finally:
            self._restore_timeouts()

    def on_connect_check_health(self, *arguments: Any, **options: Any) -> None:
        self._restore_timeouts()  # before redis-py copies them
        super().on_connect_check_health(*arguments, **options)  # type: ignore[misc]

    def _restore_timeouts(self) -> None:
        if self._own_timeouts is None:
            return
        self.socket_timeout, self.socket_connect_timeout = self._own_timeouts
        self._own_timeouts = None
        if socket_of(self) is not None:
            socket_of(self).settimeout(self.socket_timeout)

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

    def _ending_in_time(self, running: AttemptLimits) -> contextlib.AbstractContextManager[None]:
        left, sock = running.seconds_left(), socket_of(self)
        if sock is None or (self.socket_timeout is not None and left >= self.socket_timeout):
            return _NO_LIMIT
        return self._shortened(sock, left)

    @contextlib.contextmanager
    def _shortened(self, sock: Any, seconds: float) -> Iterator[None]:
        sock.settimeout(seconds)
        try:
            yield
        finally:
            if socket_of(self) is sock:  # else it was closed
                sock.settimeout(self.socket_timeout)


_NO_LIMIT = contextlib.nullcontext()


def _shorter(seconds: float | None, left: float) -> float | None:
    if left == math.inf:
        return seconds
    return left if seconds is None else min(seconds, left)


def plain_class(kind: Any) -> Any:
    """Return the class that the user gave."""
    return getattr(kind, "plain_class", kind)


@functools.cache
def _before(limiting: Any, plain: Any) -> Any:
    named = {"plain_class": plain, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (limiting, plain), named)


def limited_retry(retry: Any) -> Any:
    """Return a `Retry` like this one that keeps our limits."""
    known = redis.retry.Retry | redis.asyncio.retry.Retry
    if isinstance(retry, LimitedRetry) or not isinstance(retry, known):
        return retry
    limiting = _before(LimitedRetry, type(retry))
    twin = limiting.__new__(limiting)
    twin.__dict__.update(vars(retry))
    return twin


def limit(client: Any) -> None:
    """Make a client keep our limits in our commands, and change nothing else about it."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        client.set_retry(limited_retry(client.retry))
        return
    pool: Any = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if settings is None:
        return
    if settings.get("retry") is not None:
        settings["retry"] = limited_retry(settings["retry"])
    for connection in connections_of(pool):  # made before we got the client
        if hasattr(connection, "retry"):
            connection.retry = limited_retry(connection.retry)
    kind: Any = getattr(pool, "connection_class", None)
    if _is_subclass(kind, redis.connection.AbstractConnection) and not _is_subclass(kind, LimitedConnection):
        pool.connection_class = _before(LimitedConnection, kind)
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        limit(sentinel)


def limit_nodes(client: Any) -> None:
    """Make the connections of a blocking cluster client keep our limits, on all nodes that it knows now."""
    for node in client.get_nodes():
        pool = getattr(node.redis_connection, "connection_pool", None)
        if pool is None or _is_subclass(pool.connection_class, LimitedConnection):
            continue
        limit(node.redis_connection)
        for connection in connections_of(pool):
            if type(connection) is plain_class(pool.connection_class):
                connection.__class__ = pool.connection_class  # it has opened a socket that we want to keep


def _is_subclass(kind: Any, of: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)
