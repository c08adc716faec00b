"""Sends commands on idle connections of a redis-py pool, without the work that redis-py does around each of them.

redis-py makes, authenticates and closes every connection. We take one that is open out of the pool's list of idle
connections for a single exchange, write to its socket, read the reply, and put it back. So nothing is held between two
calls, and `client.close()`, the limit of the pool, forks and idle connections are redis-py's business as before.

Whatever is unusual is left to redis-py: no open idle connection, a connection with unread bytes or one that the server
has closed, TLS, health checks, credentials that are renewed, a pool or a connection whose methods somebody replaced. A
reply that is not simple (an error, a list, a push message) is read by redis-py's own parser, from its first byte.
"""

from __future__ import annotations

import math
import select
import socket
import time
import weakref
from collections.abc import Callable
from functools import partial
from os import getpid
from typing import Any

from redis import exceptions

from redis_message_queue.redis_py import redis_internals
from redis_message_queue.redis_py.redis_internals import idle_of, in_use_of, lock_of, socket_of
from redis_message_queue.redis_py.simple_reply import INCOMPLETE, INTEGER, NOT_SIMPLE, NOTHING_SENT, STRING, read_simple

_READ_BYTES = 65_536
_LONGEST_READ = 1_048_576
_CLOSED = "Connection closed by server."
_CLOSED_HERE = "the client closed this connection while it was in use"
_LOOK_AGAIN_SECONDS = 1.0  # longer than a consumer waits at a time, so that it costs nothing


class _OpenSocket:
    """An open connection that we can use directly."""

    __slots__ = ("_connection", "closer", "feed", "has_input", "has_unread", "sock", "waits_forever")

    def __init__(self, connection: Any, sock: socket.socket, parser: redis_internals.Parser) -> None:
        # The connection holds us. If we held it too, it would not be closed as soon as nobody uses it any more.
        self._connection = weakref.ref(connection)
        # A pool that nobody closed is collected as a cycle, in which the socket may come first and complain.
        self.closer = weakref.finalize(connection, sock.close)
        self.closer.atexit = False
        self.sock = sock
        self.waits_forever = sock.gettimeout() is None
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        # Whether there are bytes, or the end of the connection, to be read from the socket.
        self.has_input: Callable[[], Any] = partial(poller.poll, 0)
        # Whether redis-py's parser has bytes that nobody has read, and how to give it some.
        self.has_unread, self.feed = parser

    @property
    def connection(self) -> Any:
        connection = self._connection()
        assert connection is not None  # whoever asks holds it
        return connection

    def has_input_at(self, until: float) -> bool:
        """Wait until a certain time; return whether something has come."""
        try:
            _wait(self.sock, select.POLLIN, until)
        except TimeoutError:
            return False
        return True

    def discard_unless_pushed(self) -> None:
        """Close a connection whose server has closed it, or that has a reply which nobody read.

        redis-py handles push messages. But if a server could send them, redis-py 8 takes a stale reply for its own.
        """
        try:
            if self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b">":
                return
        except OSError:  # it is broken
            pass
        self.connection.disconnect()

    def send(self, packed: bytes, until: float) -> None:
        """Send everything until a certain time, on a socket that has no timeout of its own."""
        sent = 0
        while sent < len(packed):
            try:
                sent += self.sock.send(packed[sent:] if sent else packed, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self.sock, select.POLLOUT, until)

    def read(self, size: int, until: float) -> bytes:
        # A socket with a timeout of its own waits by itself, unless an attempt must end earlier.
        if self.waits_forever or until != math.inf:
            _wait(self.sock, select.POLLIN, until)
        data = self.sock.recv(size)
        if not data:
            raise exceptions.ConnectionError(_CLOSED)
        return data

    def talk(
        self, packed: bytes, count: int, until: float, nudge_at: float | None, nudge: Callable[[], None] | None
    ) -> list[Any]:
        """Send commands and return their replies, with a time limit or a nudge."""
        if self.waits_forever:
            self.send(packed, until)
        else:
            self.sock.sendall(packed)
        if nudge is not None and nudge_at is not None and not self.has_input_at(nudge_at):
            nudge()
        return self.read_on(self.read(_READ_BYTES, until), count, until)

    def read_on(self, data: bytes, count: int, until: float) -> list[Any]:
        """Return the replies to so many commands, errors among them, whose first bytes are these."""
        if not data:
            raise exceptions.ConnectionError(_CLOSED)
        at = 0
        replies: list[Any] = []
        while len(replies) < count:
            reply, end = read_simple(data, at) if at < len(data) else (NOT_SIMPLE, at)
            if reply is INCOMPLETE:
                data = self._read_up_to(data, end, until)
                continue
            if reply is NOT_SIMPLE:
                break
            at = end
            replies.append(reply)
        if len(replies) < count or at < len(data):
            return self._read_by_redis_py(data, count)
        return replies

    def _read_up_to(self, data: bytes, size: int, until: float) -> bytes:
        parts, missing = [data], size - len(data)
        while missing > 0:
            part = self.read(min(max(missing, _READ_BYTES), _LONGEST_READ), until)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _read_by_redis_py(self, data: bytes, count: int) -> list[Any]:
        """Give the bytes to redis-py's parser, which handles push messages as redis-py does."""
        self.feed(data)
        replies: list[Any] = []
        while len(replies) < count:
            try:
                replies.append(self.connection.read_response(disable_decoding=True))
            except exceptions.ResponseError as error:
                replies.append(error.with_traceback(None))  # whose frames would hold the connection
        if self.has_unread():
            self.connection.disconnect()  # a part of a push message, whose rest we would take for a reply
        return replies


def _wait(sock: socket.socket, event: int, until: float) -> None:
    """Wait until the socket is ready, or raise when the time is over or another thread closes the socket.

    A socket that is closed just before we wait is not noticed: its number may be another socket's by then. So we look
    again after a while.
    """
    number = sock.fileno()
    if number < 0:
        raise exceptions.ConnectionError(_CLOSED_HERE)
    poller = select.poll()
    poller.register(number, event)
    while True:
        seconds = until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        if poller.poll(min(seconds, _LOOK_AGAIN_SECONDS) * 1000):
            return
        if sock.fileno() != number:
            raise exceptions.ConnectionError(_CLOSED_HERE)


def _open_socket(connection: Any) -> _OpenSocket | None:
    """Return the open socket of a connection, and remember it there; None if redis-py must do the work."""
    sock = socket_of(connection)
    if (
        sock is None
        or type(sock).__module__ != "socket"  # TLS, or a library that replaces sockets
        or sock.gettimeout() == 0
        or redis_internals.needs_care(connection)
    ):
        return None
    parser = redis_internals.parser_of(connection)
    if parser is None:
        return None
    if (before := connection.__dict__.get("_rmq_open_socket")) is not None:
        before.closer.detach()
    connection._rmq_open_socket = opened = _OpenSocket(connection, sock, parser)
    return opened


class DirectPool:
    """Exchanges commands and replies on the idle connections of a redis-py pool."""

    @staticmethod
    def fits(pool: Any) -> bool:
        """Return whether we know how this pool keeps its connections, and can watch a socket."""
        return redis_internals.fits(pool) and hasattr(pool, "pid") and hasattr(select, "poll")

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def exchange(
        self,
        packed: bytes,
        count: int,
        until: float,
        nudge_at: float | None = None,
        nudge: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Send ``count`` commands and return the list of their replies, errors among them; or only `NOT_SENT`.

        It ends at the time ``until``, by the monotonic clock. If there is no reply at the time ``nudge_at``, it calls
        ``nudge``, and waits on. Raises ConnectionError and TimeoutError of redis-py.
        One function with few calls: behind each wait for the server, every further call costs about a microsecond.
        """
        pool = self._pool
        if pool.pid != getpid() or "get_connection" in pool.__dict__:  # somebody watches what is sent
            return NOTHING_SENT
        connection, is_sent = None, False
        try:
            with lock_of(pool):
                idle = idle_of(pool)
                if not idle:
                    return NOTHING_SENT
                # A Ctrl-C can come after each call. A connection that is in both places does no harm.
                connection = idle[-1]
                in_use_of(pool).add(connection)
                del idle[-1]
            opened = connection.__dict__.get("_rmq_open_socket")
            if opened is None or opened.sock is not socket_of(connection):
                opened = _open_socket(connection)
            if opened is not None and opened.has_input():
                opened.discard_unless_pushed()
                opened = None
            if opened is None or redis_internals.is_set_apart(connection):
                self._put(connection)
                return NOTHING_SENT
            is_sent = True  # a part of the command or of its reply may be on the way
            if opened.has_unread():
                raise exceptions.ConnectionError("the connection had unread bytes")
            if opened.waits_forever or until != math.inf or count > 1 or nudge is not None:
                replies: list[Any] = opened.talk(packed, count, until, nudge_at, nudge)
            else:
                opened.sock.sendall(packed)
                data = opened.sock.recv(_READ_BYTES)
                # Nearly always one whole reply, an integer or a string: without the calls that any other needs.
                kind, end = data[0] if data else None, data.find(b"\r\n")
                if kind == INTEGER and 0 < end == len(data) - 2:
                    replies = [int(data[1:end])]
                elif kind == STRING and end > 0 and len(data) == end + 4 + int(data[1:end]):
                    replies = [data[end + 2 : -2]]
                else:
                    replies = opened.read_on(data, count, until)
            with lock_of(pool):
                idle_of(pool).append(connection)
                in_use_of(pool).discard(connection)
            return replies
        except BaseException as error:
            self._give_up(connection, is_sent, error)
            raise

    def _give_up(self, connection: Any, is_sent: bool, error: BaseException) -> None:
        """Put a connection back, closed if it may still get a reply. Raises what redis-py raises for the error."""
        was_closed = connection is not None and socket_of(connection) is None  # by another thread
        if connection is not None:
            if is_sent:
                connection.disconnect()
            self._put(connection)
        if isinstance(error, TimeoutError):
            raise exceptions.TimeoutError("no reply in time") from error
        if isinstance(error, OSError):
            raise exceptions.ConnectionError(f"the connection broke: {error}") from error
        if was_closed and isinstance(error, ValueError | AttributeError):
            raise exceptions.ConnectionError(_CLOSED_HERE) from error

    def _put(self, connection: Any) -> None:
        """Put a connection back, wherever it is now."""
        pool = self._pool
        if pool.pid != getpid():
            return  # this is a forked child: the connection is its parent's
        with lock_of(pool):
            if connection not in idle_of(pool):
                idle_of(pool).append(connection)
            in_use_of(pool).discard(connection)
