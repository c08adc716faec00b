"""The blocking port: scripts over a redis-py client, each done before the call returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import redis
from redis import exceptions

from redis_message_queue import wire
from redis_message_queue.client_port import ClientPort
from redis_message_queue.errors import RedisMessageQueueError
from redis_message_queue.identity import after_fork, free_if_orphaned
from redis_message_queue.protocol.port import Argument, Call, Command
from redis_message_queue.sync.runtime import BlockingRuntime

T = TypeVar("T")


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
        _ports.add(self)

    def inherit(self) -> None:
        """redis-py's blocking pools notice a fork by themselves, but not that a snapshot was restored."""
        wire.close_idle_connections(self._client)

    def free_inherited_locks(self, deadline: float) -> None:
        """In a forked child: redis-py drops the connections of its pools, and goes on with their locks as they are."""
        for lock in wire.locks_of(self._client):
            free_if_orphaned(lock, deadline)

    async def close_idle(self) -> None:
        if not self.is_cluster:
            wire.close_idle_connections(self._client)

    async def meet(self) -> None:
        if self.is_cluster or not hasattr(self._client, "connection_pool"):
            return  # it was reached when the client was made, or its connections are its own affair
        with self._attempt():
            try:
                pool = self._client.connection_pool
                pool.release(self._connection_of(pool))
            except exceptions.RedisError as error:
                if not self._has_answered(error):
                    raise

    async def call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        with self._attempt():
            try:
                try:
                    if self._packs_by_hand:
                        return self._exchange(wire.pack(command, open_keys, arguments))
                    return self._execute(*wire.words("EVALSHA", command.script.sha, command, open_keys, arguments))
                except exceptions.NoScriptError:
                    # EVAL runs it and leaves it in the cache of just the node that it was wanted on.
                    return self._execute(*wire.words("EVAL", command.script.source, command, open_keys, arguments))
            except exceptions.ResponseError as error:
                if wire.is_read_only(error):
                    wire.close_idle_connections(self._client)
                raise wire.translated(error, command.script.name) from error

    def _execute(self, *words: Any) -> Any:
        """A command by the client's own way, for a client that is not plain."""
        try:
            return self._client.execute_command(*words, NEVER_DECODE=True)
        except (AttributeError, ValueError) as error:
            if not wire.is_cluster(self._client):
                raise
            # After a few MOVED redis-py closes the connections of all threads, also those that are being read.
            raise exceptions.ConnectionError("the client closed this connection while it was in use") from error
        except Exception:
            raise
        except BaseException:
            # redis-py may have put a connection back whose answer is still to come, if Ctrl-C met it at the
            # wrong moment; the next command would read that answer.
            wire.close_idle_connections(self._client)
            raise

    def _exchange(self, packed: bytes) -> Any:
        """The same without redis-py's command layer, which costs its client more than the socket does."""
        pool = self._client.connection_pool
        connection = self._connection_of(pool)
        answered = False
        try:
            if self._client_retries:
                reply = self._repeated(connection, lambda: _ask(connection, packed))
            else:
                connection.send_packed_command((packed,))
                reply = connection.read_response(disable_decoding=True)
            answered = True
            return reply
        except exceptions.ResponseError:
            answered = True
            raise
        finally:
            # A connection with an unread answer would give it to whoever asks next: it must not go back open.
            if not answered:
                connection.disconnect()
            pool.release(connection)

    def _repeated(self, connection: Any, ask: Callable[[], T]) -> T:
        """As the client does with its own commands: repeated by the `Retry` that its user gave it."""
        answer: T = connection.retry.call_with_retry(ask, lambda error: connection.disconnect(error))
        return answer

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        if not self._packs_by_hand:
            return await self._call_or_error(first), await self._call_or_error(second)
        with self._attempt():
            answers = self._talk(self._client.connection_pool, (wire.pack(*first), wire.pack(*second)))
        # A script that the server has forgotten is run again by itself; the other one has had its turn.
        return await self._settled(answers[0], first), await self._settled(answers[1], second)

    async def _settled(self, answer: Any, call: Call) -> Any:
        if isinstance(answer, exceptions.NoScriptError):
            return await self._call_or_error(call)
        return wire.translated(answer, call[0].script.name) if isinstance(answer, exceptions.ResponseError) else answer

    async def _call_or_error(self, call: Call) -> Any:
        try:
            return await self.call(*call)
        except (exceptions.RedisError, RedisMessageQueueError) as error:
            return error

    async def wait(self, bell: str, seconds: float) -> bool:
        words = wire.blpop(bell, seconds)
        with self._attempt():
            try:
                if self._packs_by_hand:
                    return self._exchange(wire.pack_words(words)) is not None
                return self._execute(*words) is not None
            except exceptions.ResponseError as error:
                raise wire.translated(error, "claim") from error

    async def converse(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        with self._attempt():
            answers = self._talk(self._pool_of(key), [wire.pack_words(words) for words in commands])
        if wire.is_cluster(self._client) and wire.has_moved(answers):
            self._client.nodes_manager.initialize()
            raise exceptions.TryAgainError(f"the slot of {key!r} has moved")
        return wire.with_advice(answers, commands)

    def _talk(self, pool: Any, packed: Sequence[bytes]) -> list[Any]:
        """Several commands on one connection; an answer or an error of each."""
        connection = self._connection_of(pool)
        answers: list[Any] = []

        def ask() -> None:
            answers.clear()
            connection.send_packed_command(packed)
            while len(answers) < len(packed):
                try:
                    answers.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    answers.append(error)

        try:
            if self._client_retries:
                self._repeated(connection, ask)
            else:
                ask()
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            self._look_around()
            raise
        except (AttributeError, ValueError) as error:
            if not wire.is_cluster(self._client):
                raise
            # As in `_execute`: somebody else's command has closed the connections of all threads.
            raise exceptions.ConnectionError("the client closed this connection while it was in use") from error
        finally:
            if len(answers) < len(packed):
                connection.disconnect()
            pool.release(connection)
        if wire.any_is_read_only(answers):
            wire.close_idle_connections(self._client)
        return answers

    def _connection_of(self, pool: Any) -> Any:
        try:
            return pool.get_connection()
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            self._look_around()
            raise
        except Exception:
            raise
        except BaseException:
            wire.close_idle_connections(self._client)  # one of them may be half made
            raise

    def _look_around(self) -> None:
        """A node of a cluster may be gone for good: find out who has its slots now."""
        if wire.is_cluster(self._client):
            with contextlib.suppress(exceptions.RedisError):
                self._client.nodes_manager.initialize()

    def _pool_of(self, key: str) -> Any:
        if not wire.is_cluster(self._client):
            return self._client.connection_pool
        return self._client.get_redis_connection(self._client.get_node_from_key(key)).connection_pool


def _ask(connection: Any, packed: bytes) -> Any:
    connection.send_packed_command((packed,))
    return connection.read_response(disable_decoding=True)


_ports: WeakSet[BlockingPort] = WeakSet()


def _free_inherited_locks(deadline: float) -> None:
    for port in list(_ports):
        port.free_inherited_locks(deadline)


after_fork(_free_inherited_locks)
