"""Sends commands on idle connections of an asyncio redis-py pool, without the work that redis-py does around each.

The same as `sync/direct_pool.py`: redis-py makes and closes every connection, and we take one out of the pool's list of
idle connections for a single exchange. A `_Tap` between the transport and redis-py's streams takes the reply to our
command as it arrives, so that a call waits for one future and not for a chain of streams, timeouts and locks. All other
bytes go to redis-py's streams as before.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

from redis import exceptions
from redis.credentials import StreamingCredentialProvider

from redis_message_queue.redis_py.simple_reply import INCOMPLETE, INTEGER, NOT_SIMPLE, STRING, read_simple

NOT_SENT: Final = object()
"""Stands for the reply to a command that was not sent: redis-py must send it."""

_NOTHING_SENT = [NOT_SENT]
_CLOSED = "Connection closed by server."
_NO_LOCK = asyncio.Lock()  # of the pools of redis-py 6 and 7: nobody acquires it


class _State(Enum):
    """Who gets the bytes that arrive."""

    PASSING = "passing"  # redis-py's streams: nobody waits here, or the reply is not simple
    COLLECTING = "collecting"  # the exchange that has sent a command


_PASSING, _COLLECTING = _State.PASSING, _State.COLLECTING


class _Tap(asyncio.Protocol):
    """Stands between a transport and the protocol of redis-py's streams."""

    def __init__(self, connection: Any, streams: asyncio.BaseProtocol, loop: asyncio.AbstractEventLoop) -> None:
        # The streams that redis-py has now: it makes new ones when it connects again.
        self.reader, self.writer = connection._reader, connection._writer
        self.transport = self.writer.transport
        self.loop = loop
        self.is_over = False  # the server has closed the connection, or it broke
        self._streams: Any = streams
        self._state = _PASSING
        self._count = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 0  # how many bytes there must be before it is worth to look
        self._waiter: asyncio.Future[list[Any] | None] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def send(self, packed: bytes, count: int, deadline: float) -> asyncio.Future[list[Any] | None]:
        """Send commands; the future gets the list of their replies, or None if redis-py has to read them."""
        self._waiter = waiter = self.loop.create_future()
        self._state, self._count, self._size, self._wanted, self._deadline = _COLLECTING, count, 0, 0, deadline
        if self._timer is None and deadline != math.inf:
            self._start_timer()
        self.transport.write(packed)
        return waiter

    def stop(self) -> None:
        """Nobody waits for the reply any more: its connection is about to be closed."""
        self._state, self._waiter = _PASSING, None
        self._parts.clear()

    # -- what the transport tells

    def data_received(self, data: bytes) -> None:
        if self._state is _PASSING:
            self._streams.data_received(data)
            return
        self._size += len(data)
        if self._parts:
            self._parts.append(data)
            if self._size < self._wanted:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        elif self._size < self._wanted:
            self._parts.append(data)
            return
        self._look_at(data)

    def eof_received(self) -> bool | None:
        self.is_over = True
        self._fail(exceptions.ConnectionError(_CLOSED))
        result: bool | None = self._streams.eof_received()
        return result

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._fail(exceptions.ConnectionError(_CLOSED if exc is None else f"the connection broke: {exc}"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._streams.connection_lost(exc)

    def pause_writing(self) -> None:
        self._streams.pause_writing()

    def resume_writing(self) -> None:
        self._streams.resume_writing()

    # -- the reply

    def _look_at(self, data: bytes) -> None:
        # Nearly always one whole reply, an integer or a string: without the calls that any other needs.
        kind, end, at = data[0], data.find(b"\r\n") if self._count == 1 else -1, 0
        replies: list[Any] = []
        try:
            if kind == INTEGER and 0 < end == len(data) - 2:
                self._end([int(data[1:end])])
                return
            if kind == STRING and end > 0 and len(data) == end + 4 + int(data[1:end]):
                self._end([data[end + 2 : -2]])
                return
            while len(replies) < self._count:
                reply, end = read_simple(data, at) if at < len(data) else (NOT_SIMPLE, at)
                if reply is INCOMPLETE:
                    self._parts.append(data)
                    self._wanted = end
                    return
                if reply is NOT_SIMPLE:
                    break
                at = end
                replies.append(reply)
        except ValueError as error:
            self._fail(exceptions.InvalidResponse(str(error)))
            return
        if len(replies) == self._count and at == len(data):
            self._end(replies)
        else:
            self._end(None)
            self._streams.data_received(data)

    def _end(self, replies: list[Any] | None) -> None:
        waiter, self._waiter, self._state = self._waiter, None, _PASSING
        if waiter is not None and not waiter.done():
            waiter.set_result(replies)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter, self._state = self._waiter, None, _PASSING
        self._parts.clear()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    # -- the time limit: one timer for many exchanges, because starting and cancelling one costs more than looking again

    def _start_timer(self) -> None:
        left = max(0.0, self._deadline - time.monotonic())
        self._timer = self.loop.call_later(left, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._waiter is None or self._deadline == math.inf:
            return
        if time.monotonic() < self._deadline:
            self._start_timer()
        else:
            self._fail(exceptions.TimeoutError("no reply in time"))


def _has_unread(connection: Any, tap: _Tap) -> bool:
    """Return whether bytes, or the end of the connection, wait to be read by redis-py."""
    if tap.is_over or tap.reader._buffer:
        return True
    parser = connection._parser
    reader = getattr(parser, "_reader", None)
    return bool(reader.has_data()) if reader is not None else bool(parser._buffer)


def _tap_of(connection: Any) -> _Tap | None:
    """Return the tap of a connection, installed at its first use; None if redis-py must do the work."""
    writer, loop = connection._writer, asyncio.get_running_loop()
    known: _Tap | None = connection.__dict__.get("_rmq_tap")
    if known is not None and known.writer is writer and known.reader is connection._reader and known.loop is loop:
        return None if known.transport.is_closing() else known
    if writer is None or connection._reader is None:
        return None
    if getattr(connection._reader, "_loop", None) is not loop:
        return None  # a connection of another event loop: redis-py knows what to do
    transport = writer.transport
    if transport.is_closing():
        return None
    streams = transport.get_protocol()
    parser = getattr(connection, "_parser", None)
    by_hiredis, by_python = getattr(parser, "_reader", None), getattr(parser, "_buffer", None)
    if (
        type(streams) is not asyncio.StreamReaderProtocol
        or not isinstance(getattr(connection._reader, "_buffer", None), bytearray)
        or not (hasattr(by_hiredis, "has_data") or isinstance(by_python, bytes))
        or connection.health_check_interval
        or isinstance(getattr(connection, "credential_provider", None), StreamingCredentialProvider)
    ):
        return None
    connection._rmq_tap = tap = _Tap(connection, streams, loop)
    tap.is_over = connection._reader.at_eof() or connection._reader.exception() is not None
    transport.set_protocol(tap)
    return tap


class DirectPool:
    """Exchanges commands and replies on the idle connections of an asyncio redis-py pool."""

    @staticmethod
    def fits(pool: Any) -> bool:
        """Return whether we know how this pool keeps its connections."""
        available, in_use = (getattr(pool, name, None) for name in ("_available_connections", "_in_use_connections"))
        return isinstance(available, list) and isinstance(in_use, set)

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        # Whether redis-py is about to change the lists of the pool (redis-py 8).
        self._is_locked: Callable[[], bool] = getattr(pool, "_lock", _NO_LOCK).locked

    async def exchange(
        self,
        packed: bytes,
        count: int,
        until: float,
        nudge_at: float | None = None,
        nudge: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Any]:
        """Send ``count`` commands and return the list of their replies, errors among them; or only `NOT_SENT`.

        It ends at the time ``until``, by the monotonic clock. If there is no reply at the time ``nudge_at``, it calls
        ``nudge``, and waits on. Raises ConnectionError and TimeoutError of redis-py.
        """
        pool = self._pool
        if not pool._available_connections or self._is_locked() or "get_connection" in pool.__dict__:
            return _NOTHING_SENT
        connection = pool._available_connections[-1]
        tap, about = _tap_of(connection), connection.__dict__
        if tap is not None and _has_unread(connection, tap):
            if connection._reader._buffer[:1] != b">":
                # A reply that nobody read. If a server could send push messages, redis-py 8 would take it for its own.
                await connection.disconnect(nowait=True)
            tap = None
        if (
            tap is None
            or about.get("_should_reconnect")  # redis-py 8: its server announced that it moves
            or "send_packed_command" in about  # somebody watches what is sent
            or "read_response" in about
        ):
            return _NOTHING_SENT
        task: Any = asyncio.current_task()
        if task is not None and getattr(task, "_must_cancel", False):
            await asyncio.sleep(0)  # raises the cancellation before anything is sent
        pool._available_connections.pop()
        pool._in_use_connections.add(connection)
        try:
            timeout = connection.socket_timeout
            deadline = until if not timeout else min(until, time.monotonic() + timeout)
            reply = tap.send(packed, count, deadline)
            if nudge is not None and nudge_at is not None:
                await asyncio.wait((reply,), timeout=max(0.0, nudge_at - time.monotonic()))
                if not reply.done():
                    await nudge()
            replies = await reply
            if replies is None:
                replies = await self._read_by_redis_py(connection, count, until)
        except BaseException:
            tap.stop()
            try:
                await connection.disconnect(nowait=True)
            finally:
                await self._put(connection)
            raise
        if self._is_locked():
            await self._put(connection)
        else:
            pool._available_connections.append(connection)
            pool._in_use_connections.discard(connection)
        return replies

    async def _put(self, connection: Any) -> None:
        pool = self._pool
        if self._is_locked():
            await pool.release(connection)
        elif connection in pool._in_use_connections:
            pool._available_connections.append(connection)
            pool._in_use_connections.discard(connection)

    async def _read_by_redis_py(self, connection: Any, count: int, until: float) -> list[Any]:
        """Let redis-py read the replies, and handle push messages as it does."""
        replies: list[Any] = []
        try:
            async with asyncio.timeout(None if until == math.inf else max(0.0, until - time.monotonic())):
                while len(replies) < count:
                    try:
                        replies.append(await connection.read_response(disable_decoding=True))
                    except exceptions.ResponseError as error:
                        replies.append(error.with_traceback(None))  # whose frames would hold the connection
        except TimeoutError as error:
            raise exceptions.TimeoutError("no reply in time") from error
        return replies
