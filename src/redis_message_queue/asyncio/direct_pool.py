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
from typing import Any

from redis import exceptions

from redis_message_queue.redis_py import redis_internals
from redis_message_queue.redis_py.redis_internals import idle_of, in_use_of, lock_of, reader_of, writer_of
from redis_message_queue.redis_py.simple_reply import INCOMPLETE, INTEGER, NOT_SIMPLE, NOTHING_SENT, STRING, read_simple

_CLOSED = "Connection closed by server."


class _Tap(asyncio.Protocol):
    """Stands between a transport and the protocol of redis-py's streams."""

    def __init__(self, connection: Any, streams: asyncio.BaseProtocol, loop: asyncio.AbstractEventLoop) -> None:
        # The streams that redis-py has now: it makes new ones when it connects again.
        self.reader, self.writer = reader_of(connection), writer_of(connection)
        self.transport = self.writer.transport
        self.loop = loop
        self.is_over = False  # the server has closed the connection, or it broke
        self._streams: Any = streams
        self._count = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 0  # how many bytes there must be before it is worth to look
        # The exchange that gets the bytes that arrive. The streams get them if there is none, or if the reply is not
        # simple.
        self._waiter: asyncio.Future[list[Any] | None] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # when it looks at the clock

    def send(self, packed: bytes, count: int, deadline: float) -> asyncio.Future[list[Any] | None]:
        """Send commands; the future gets the list of their replies, or None if redis-py has to read them."""
        self._waiter = waiter = self.loop.create_future()
        self._count, self._size, self._wanted, self._deadline = count, 0, 0, deadline
        if deadline < self._timer_at:
            self._start_timer()
        self.transport.write(packed)
        return waiter

    def stop(self) -> None:
        """Nobody waits for the reply any more: its connection is about to be closed."""
        self._waiter = None
        self._parts.clear()

    # -- what the transport tells

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
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
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(replies)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        self._parts.clear()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    # -- the time limit: one timer for many exchanges, because starting and cancelling one costs more than looking again

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, left = self._deadline, max(0.0, self._deadline - time.monotonic())
        self._timer = self.loop.call_later(left, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._waiter is None or self._deadline == math.inf:
            return
        if time.monotonic() < self._deadline:
            self._start_timer()
        else:
            self._fail(exceptions.TimeoutError("no reply in time"))


def _tap_of(connection: Any) -> _Tap | None:
    """Return the tap of a connection, installed at its first use; None if redis-py must do the work."""
    reader, writer, loop = reader_of(connection), writer_of(connection), asyncio.get_running_loop()
    known: _Tap | None = connection.__dict__.get("_rmq_tap")
    if known is not None and known.writer is writer and known.reader is reader and known.loop is loop:
        return None if known.transport.is_closing() else known
    if writer is None or reader is None or redis_internals.loop_of(connection) is not loop:
        return None  # closed, or a connection of another event loop: redis-py knows what to do
    transport = writer.transport
    if transport.is_closing():
        return None
    streams = transport.get_protocol()
    if (
        type(streams) is not asyncio.StreamReaderProtocol
        or not redis_internals.has_known_streams(connection)
        or redis_internals.needs_care(connection)
    ):
        return None
    connection._rmq_tap = tap = _Tap(connection, streams, loop)
    tap.is_over = reader.at_eof() or reader.exception() is not None
    transport.set_protocol(tap)
    return tap


class DirectPool:
    """Exchanges commands and replies on the idle connections of an asyncio redis-py pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._is_locked: Callable[[], bool] = lock_of(pool).locked  # whether redis-py is about to change the lists

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
        if not idle_of(pool) or self._is_locked() or "get_connection" in pool.__dict__:
            return NOTHING_SENT
        connection = idle_of(pool)[-1]
        tap = _tap_of(connection)
        if tap is not None and (tap.is_over or redis_internals.has_unread(connection)):
            if redis_internals.unread_of(connection)[:1] != b">":
                # A reply that nobody read. If a server could send push messages, redis-py 8 would take it for its own.
                await connection.disconnect(nowait=True)
            tap = None
        if tap is None or redis_internals.is_set_apart(connection):
            return NOTHING_SENT
        task: Any = asyncio.current_task()
        if task is not None and getattr(task, "_must_cancel", False):
            await asyncio.sleep(0)  # raises the cancellation before anything is sent
        idle_of(pool).pop()
        in_use_of(pool).add(connection)
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
            idle_of(pool).append(connection)
            in_use_of(pool).discard(connection)
        return replies

    async def _put(self, connection: Any) -> None:
        pool = self._pool
        if self._is_locked():
            await pool.release(connection)
        elif connection in in_use_of(pool):
            idle_of(pool).append(connection)
            in_use_of(pool).discard(connection)

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
