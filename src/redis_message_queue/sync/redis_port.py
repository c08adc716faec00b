"""The sync port: runs scripts through a blocking redis-py client."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

import redis
from redis import exceptions

from redis_message_queue.process.identity import after_fork, free_if_orphaned
from redis_message_queue.protocol.port import (
    Argument,
    Command,
    finish,
    innermost_attempt_end,
    note_missing_connection,
)
from redis_message_queue.redis_py import wire
from redis_message_queue.redis_py.attempt_limits import AttemptLimits, limit_nodes
from redis_message_queue.redis_py.client_port import ClientPort
from redis_message_queue.redis_py.simple_reply import NOT_SENT, NOTHING_SENT
from redis_message_queue.sync.direct_pool import DirectPool
from redis_message_queue.sync.runtime import BlockingRuntime

T = TypeVar("T")

# What redis-py lets out if another thread closes the connection that it uses.
_CLOSED_MEANWHILE = (AttributeError, ValueError, OSError)
# What keeps a wait from a node: it is gone, or another command has closed the connections of all threads.
_NOT_REACHED = (exceptions.RedisError, AttributeError, ValueError)
# How often a caller looks whether a pool that is full has a connection again: redis-py tells nobody.
_SHORTEST_NAP_SECONDS, _LONGEST_NAP_SECONDS = 0.001, 0.01
_ANSWERS = frozenset((int, bytes))  # what the fast paths of our scripts return


class BlockingPort(ClientPort, BlockingRuntime):
    """A `Port` over a blocking redis-py client."""

    _plain_client = redis.Redis
    _plain_pools = (redis.ConnectionPool, redis.BlockingConnectionPool)
    _plain_connections = (
        redis.Connection,
        redis.SSLConnection,
        redis.UnixDomainSocketConnection,
    )

    def __init__(self, client: Any, *, pack_by_hand: bool = True, client_retries: bool = False) -> None:
        super().__init__(client, pack_by_hand=pack_by_hand, client_retries=client_retries)
        pool = getattr(client, "connection_pool", None)
        # The user's own `Retry` repeats what redis-py does on a connection of its own.
        is_direct = self._packs_by_hand and not client_retries and type(pool) is redis.ConnectionPool
        self._direct = DirectPool(pool) if is_direct and DirectPool.fits(pool) else None
        self._in_line: set[object] = set()  # callers that wait for a connection of a pool that is full
        _ports.add(self)

    def after_fork(self) -> None:
        """Close idle connections: redis-py notices a fork by itself, but not a restored snapshot."""
        wire.close_idle_connections(self._client)

    def free_inherited_locks(self, deadline: float) -> None:
        """Free locks in a forked child: redis-py drops the connections of its pools there, but keeps their locks."""
        self._in_line.clear()  # those threads are the parent's
        for lock in wire.locks_of(self._client):
            free_if_orphaned(lock, deadline)

    def _attempt(self) -> AttemptLimits:
        limits = super()._attempt()
        if self.is_cluster and limits.is_timed:
            limit_nodes(self._client)
        return limits

    async def close_idle(self) -> None:
        if not self.is_cluster:
            wire.close_idle_connections(self._client)

    async def connect(self) -> None:
        if self.is_cluster or not hasattr(self._client, "connection_pool"):
            return  # a cluster client has connected when it was made; other clients manage their own connections
        try:
            with self._connecting():
                pool = self._client.connection_pool
                pool.release(self._get_connection(pool, waits=False))
        except exceptions.RedisError as error:
            if not self._has_answered(error):
                raise self._explained(error) from error.__cause__

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        reply: Any = NOT_SENT
        packed = wire.pack(command, extra_keys, arguments) if self._packs_by_hand else None
        if self._in_line:
            time.sleep(_SHORTEST_NAP_SECONDS)  # others wait for a connection, and this caller may just have had one
        if packed is not None and self._direct is not None:
            # The fast path: redis-py's own timeout is all that it needs.
            if innermost_attempt_end() is None and not self._default_limits.is_timed:
                (reply,) = self._direct.exchange(packed, 1, math.inf)
            else:
                with self._attempt() as limits:
                    (reply,) = self._direct.exchange(packed, 1, limits.ends_at())
            if type(reply) in _ANSWERS:
                return reply
        with self._attempt():
            return await self._call_by_redis_py(command, extra_keys, arguments, packed, reply)

    async def _close_after_failover(self) -> None:
        wire.close_idle_connections(self._client)

    def _closed_or_own(self, error: Exception) -> Exception:
        """Return what to raise for an error that may mean that another thread has closed the connection."""
        if not wire.is_closed_meanwhile(error, self._client):
            return error
        return exceptions.ConnectionError("the client closed this connection while it was in use")

    async def _execute(self, *command_args: Any) -> Any:
        try:
            return self._when_pool_has_room(partial(self._client.execute_command, *command_args, NEVER_DECODE=True))
        except _CLOSED_MEANWHILE as error:
            raise self._closed_or_own(error) from error
        except Exception:
            raise
        except BaseException:
            # A Ctrl-C may make redis-py put a connection back before its reply has come; the next command would
            # read that reply.
            wire.close_idle_connections(self._client)
            raise

    async def _exchange(self, packed: bytes, *, waits: bool = True) -> Any:
        pool = self._client.connection_pool
        connection = self._get_connection(pool, waits=waits)
        answered = False
        try:
            if self._client_retries:
                reply = self._with_client_retry(connection, lambda: _send_and_read(connection, packed))
            else:
                connection.send_packed_command((packed,))
                reply = connection.read_response(disable_decoding=True)
            answered = True
            return reply
        except exceptions.ResponseError:
            answered = True
            raise
        except _CLOSED_MEANWHILE as error:
            raise self._closed_or_own(error) from error
        finally:
            # The next command would read a reply that is left unread, so such a connection must not go back open.
            if not answered:
                connection.disconnect()
            pool.release(connection)

    def _with_client_retry(self, connection: Any, attempt: Callable[[], T]) -> T:
        """Retry with the `Retry` that the user gave the client."""
        answer: T = connection.retry.call_with_retry(attempt, lambda error: connection.disconnect(error))
        return answer

    async def _exchange_directly(
        self, packed: bytes, count: int, limits: AttemptLimits, nudge_at: float | None = None, nudge: Any = None
    ) -> list[Any]:
        if self._direct is None:
            return NOTHING_SENT
        finishing = None if nudge is None else lambda: finish(nudge())
        return self._direct.exchange(packed, count, limits.ends_at(), nudge_at, finishing)

    async def _exchange_all(self, packed: Sequence[bytes]) -> list[Any]:
        return self._send_all(self._client.connection_pool, packed)

    async def _wait_on_nodes(self, wakeups: tuple[str, ...], seconds: float, limits: AttemptLimits) -> list[str]:
        """Wait on one connection for each key until the first wake-up, and close those that wait in vain."""
        waiting: dict[Any, tuple[Any, str]] = {}  # connection to its pool and its key
        woken: list[str] = []
        failure: Exception | None = None
        try:
            for key in wakeups:
                try:
                    self._begin_to_wait(key, seconds, waiting)
                except _NOT_REACHED as error:
                    failure = error
            reached = len(waiting)
            ends_at = time.monotonic() + min(seconds + wire.LATE_TIMER_SECONDS, limits.seconds_left())
            while waiting and not woken and (left := ends_at - time.monotonic()) > 0:
                for connection in wire.readable(list(waiting), left):
                    try:
                        if connection.read_response(disable_decoding=True) is not None:
                            woken.append(waiting[connection][1])
                    except (*_NOT_REACHED, exceptions.ResponseError) as error:
                        failure = error
                        self._refresh_nodes()
                    waiting[connection][0].release(connection)
                    del waiting[connection]
        finally:
            for connection, (pool, _) in waiting.items():
                connection.disconnect()  # its reply would be read as that of the next command
                pool.release(connection)
        if failure is not None and not reached:
            raise failure
        return woken

    def _begin_to_wait(self, key: str, seconds: float, waiting: dict[Any, tuple[Any, str]]) -> None:
        """Send a BLPOP on a connection of its own, and note that one."""
        pool = self._pool_of(key)
        connection = self._get_connection(pool, waits=False)  # others of this caller may hold the rest
        waiting[connection] = (pool, key)
        try:
            connection.send_packed_command((wire.pack_command(wire.blpop((key,), seconds)),))
        except BaseException:
            del waiting[connection]
            connection.disconnect()
            pool.release(connection)
            raise

    async def pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        with self._attempt():
            answers = self._send_all(self._pool_of(key), [wire.pack_command(command) for command in commands])
        if wire.is_cluster(self._client) and wire.has_moved(answers):
            self._client.nodes_manager.initialize()
            raise exceptions.TryAgainError(f"the slot of {key!r} has moved")
        return wire.with_advice(answers, commands)

    def _send_all(self, pool: Any, packed: Sequence[bytes]) -> list[Any]:
        """Send several commands on one connection; return the reply to each, or its error."""
        connection = self._get_connection(pool)
        answers: list[Any] = []

        def attempt() -> None:
            answers.clear()
            connection.send_packed_command(packed)
            while len(answers) < len(packed):
                try:
                    answers.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    answers.append(error.with_traceback(None))  # whose frames would hold the connection

        try:
            if self._client_retries:
                self._with_client_retry(connection, attempt)
            else:
                attempt()
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            self._refresh_nodes()
            raise
        except _CLOSED_MEANWHILE as error:
            raise self._closed_or_own(error) from error
        finally:
            # The next command would read a reply that is left unread, so such a connection must not go back open.
            if len(answers) < len(packed):
                connection.disconnect()
            pool.release(connection)
        if wire.any_is_read_only(answers):
            wire.close_idle_connections(self._client)
        return answers

    def _when_pool_has_room(self, use: Callable[[], T]) -> T:
        """Call a function that needs a connection of the pool, again and again while all of them are in use.

        That is the only error after which nothing was sent for sure. It lasts no longer than an attempt.
        """
        until, nap, place = math.inf, _SHORTEST_NAP_SECONDS, object()
        try:
            while True:
                try:
                    return use()
                except exceptions.ConnectionError as error:
                    if not wire.is_full_pool(error) or time.monotonic() >= until:
                        raise
                if until == math.inf:
                    until = time.monotonic() + self._longest_wait_for_pool()
                    self._in_line.add(place)
                time.sleep(nap)
                nap = min(_LONGEST_NAP_SECONDS, 1.5 * nap)
        finally:
            self._in_line.discard(place)

    def _get_connection(self, pool: Any, *, waits: bool = True) -> Any:
        try:
            return self._when_pool_has_room(pool.get_connection) if waits else pool.get_connection()
        except _CLOSED_MEANWHILE as error:
            raise self._closed_or_own(error) from error
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            note_missing_connection()
            self._refresh_nodes()
            raise
        except Exception:
            raise
        except BaseException:
            wire.close_idle_connections(self._client)  # one of them may be half open
            raise

    def _refresh_nodes(self) -> None:
        """Find out which cluster nodes have the slots now, because one node may be gone for good."""
        if wire.is_cluster(self._client):
            with contextlib.suppress(exceptions.RedisError):
                self._client.nodes_manager.initialize()

    def _pool_of(self, key: str) -> Any:
        if not wire.is_cluster(self._client):
            return self._client.connection_pool
        return self._client.get_redis_connection(self._client.get_node_from_key(key)).connection_pool


def _send_and_read(connection: Any, packed: bytes) -> Any:
    connection.send_packed_command((packed,))
    return connection.read_response(disable_decoding=True)


_ports: WeakSet[BlockingPort] = WeakSet()


def _free_inherited_locks(deadline: float) -> None:
    for port in list(_ports):
        port.free_inherited_locks(deadline)


after_fork(_free_inherited_locks)
