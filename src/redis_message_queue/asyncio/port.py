"""The asyncio port: scripts over an asyncio redis-py client."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import redis.asyncio
from redis import exceptions

from redis_message_queue import wire
from redis_message_queue.asyncio.runtime import AsyncioRuntime
from redis_message_queue.attempt_limits import Limited
from redis_message_queue.client_port import ClientPort
from redis_message_queue.errors import ConfigurationError, RedisMessageQueueError
from redis_message_queue.protocol.port import Argument, Call, Command

T = TypeVar("T")


async def heeding_cancellation(work: Awaitable[T]) -> T:
    """A cancellation that waits for the work to begin, or meets its end, is raised all the same.

    redis-py sends through `asyncio.wait_for`, and that of Python 3.11 swallows a cancellation that finds its inner
    task finished: most of those that met a publish.
    """
    task = asyncio.current_task()
    if task is None:
        return await work
    try:
        await deliver_pending_cancellation(task)
    except asyncio.CancelledError:
        if inspect.iscoroutine(work):
            work.close()
        raise
    before = task.cancelling()
    result = await work
    if task.cancelling() > before:
        raise asyncio.CancelledError
    return result


async def deliver_pending_cancellation(task: asyncio.Task[Any]) -> None:
    """Raise a cancellation that was requested before the task reached its next suspension.

    redis-py would swallow it in two places: in `asyncio.wait_for`, and in the `asyncio.timeout(0)` in which hiredis
    looks for unread bytes before a pool gives out a connection (redis-py 6 and 7): that timeout takes the
    cancellation for its own.
    """
    if getattr(task, "_must_cancel", False):
        await asyncio.sleep(0)


def _no_loop() -> asyncio.AbstractEventLoop | None:
    """Stands for the loop of a port that has not been used yet."""
    return None


def open_loops(client: Any) -> Iterator[asyncio.AbstractEventLoop]:
    """The loops that the open connections of a client belong to, whoever opened them."""
    if wire.is_cluster(client):
        held = [getattr(node, "_connections", ()) for node in client.get_nodes()]
    else:
        pool = getattr(client, "connection_pool", None)
        held = [getattr(pool, name, ()) for name in ("_available_connections", "_in_use_connections")]
    for connection in [each for connections in held for each in connections]:
        loop = getattr(getattr(connection, "_reader", None), "_loop", None)  # it has no reader unless it is open
        if loop is not None:
            yield loop


class AsyncioPort(ClientPort, AsyncioRuntime):
    """A `Port` over an asyncio redis-py client and the running loop."""

    _plain_client = redis.asyncio.Redis
    _plain_pools = (redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool)
    _plain_connections = (
        redis.asyncio.Connection,
        redis.asyncio.SSLConnection,
        redis.asyncio.UnixDomainSocketConnection,
    )

    def __init__(self, client: Any, *, pack_by_hand: bool = True, client_retries: bool = False) -> None:
        super().__init__(client, pack_by_hand=pack_by_hand, client_retries=client_retries)
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = _no_loop

    def start_over(self) -> None:
        """Belong to this process and to the loop that is used next: for a child that gave the client a fresh pool."""
        self.born_in = self.process()
        self._loop = _no_loop

    def inherit(self) -> None:
        """Sockets and loop behind an asyncio client are shared with the parent after a fork, and nobody resets them."""
        raise ConfigurationError(
            "this asyncio queue was made in another process, and its connections are that process's; "
            "make the client and the queue in the process that uses them, after the fork or the restored snapshot"
        )

    def _our_client(self) -> Any:
        """The client, for its own process alone: the other's command would be answered to us."""
        if self.process() != self.born_in:
            self.inherit()
        if self._loop() is not asyncio.get_running_loop():
            self._bind_to_the_running_loop()
        return self._client

    def _bind_to_the_running_loop(self) -> None:
        """Raise where another loop has the queue or the client's connections: a command would be sent, its answer lost.

        A loop that is over has nothing any more, if the client was closed on it or keeps no connection open.
        """
        running, before = asyncio.get_running_loop(), self._loop()
        is_in_use = before is not None and not before.is_closed()
        if is_in_use or any(loop is not running for loop in open_loops(self._client)):
            raise ConfigurationError(
                "this asyncio queue, or its client, was used on another event loop, and its connections belong to that "
                "one; nothing was sent. Make the client and the queue in the loop that uses them, once for each "
                "asyncio.run()"
            )
        self._loop = weakref.ref(running)

    async def close_idle(self) -> None:
        if not self.is_cluster:
            await self._our_client().connection_pool.disconnect(inuse_connections=False)

    async def meet(self) -> None:
        client = self._our_client()
        with self._attempt() as limits:
            if self.is_cluster:
                await self._in_time(limits, client.initialize())
                return
            if not hasattr(client, "connection_pool"):
                return  # a client of some other kind, whose connections are its own affair
            try:
                connection = await self._in_time(limits, self._borrow(client.connection_pool))
                await client.connection_pool.release(connection)
            except exceptions.RedisError as error:
                if not self._has_answered(error):
                    raise

    async def _in_time(self, limits: Limited, work: Awaitable[T]) -> T:
        """The work, broken off when the time of this attempt is over."""
        left = limits.seconds_left()
        if left == math.inf or (limits.read == math.inf and left >= 2 * self.socket_timeout):
            return await work  # redis-py's own limits will do
        try:
            async with asyncio.timeout(left) as ending:
                return await work
        except TimeoutError as error:
            if ending.expired():
                raise exceptions.TimeoutError(f"no answer within {left:.3g} s") from error
            raise

    async def call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        with self._attempt() as limits:
            if not limits.is_timed:
                return await self._call(command, open_keys, arguments)
            return await self._in_time(limits, self._call(command, open_keys, arguments))

    async def _call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        try:
            try:
                if self._packs_by_hand:
                    return await self._exchange(wire.pack(command, open_keys, arguments))
                return await self._execute(*wire.words("EVALSHA", command.script.sha, command, open_keys, arguments))
            except exceptions.NoScriptError:
                # EVAL runs it and leaves it in the cache of just the node that it was wanted on.
                return await self._execute(*wire.words("EVAL", command.script.source, command, open_keys, arguments))
        except exceptions.ResponseError as error:
            if wire.is_read_only(error) and not wire.is_cluster(self._client):
                await self._our_client().connection_pool.disconnect(inuse_connections=False)
            raise wire.translated(error, command.script.name) from error

    async def _execute(self, *words: Any) -> Any:
        """A command by the client's own way, for a client that is not plain."""
        try:
            return await heeding_cancellation(self._our_client().execute_command(*words, NEVER_DECODE=True))
        except AttributeError as error:
            if not wire.is_cluster(self._client):
                raise
            # redis-py closes the connections of all tasks after a few MOVED; one that was being opened has no writer.
            raise exceptions.ConnectionError("the client closed this connection while it was in use") from error

    async def _borrow(self, pool: Any) -> Any:
        """A connection of the pool; to open one, redis-py goes through `asyncio.wait_for` as well."""
        task = asyncio.current_task()
        if task is None:
            return await pool.get_connection()
        await deliver_pending_cancellation(task)
        before = task.cancelling()
        connection = await pool.get_connection()
        if task.cancelling() > before:
            await pool.release(connection)
            raise asyncio.CancelledError
        return connection

    async def _exchange(self, packed: bytes) -> Any:
        """The same without redis-py's command layer, which costs its client more than the socket does."""
        pool = self._our_client().connection_pool
        connection = await self._borrow(pool)
        answered = False
        try:
            if self._client_retries:
                reply = await self._repeated(connection, lambda: _ask(connection, packed))
            else:
                await heeding_cancellation(connection.send_packed_command((packed,)))
                reply = await connection.read_response(disable_decoding=True)
            answered = True
            return reply
        except exceptions.ResponseError:
            answered = True
            raise
        finally:
            # A connection with an unread answer would give it to whoever asks next: it must not go back open.
            if not answered:
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def _repeated(self, connection: Any, ask: Callable[[], Awaitable[T]]) -> T:
        """As the client does with its own commands: repeated by the `Retry` that its user gave it."""
        answer: T = await connection.retry.call_with_retry(ask, lambda error: connection.disconnect(nowait=True))
        return answer

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        if not self._packs_by_hand:
            return await self._call_or_error(first), await self._call_or_error(second)
        with self._attempt() as limits:
            answers = await self._in_time(limits, self._talk_on_one((wire.pack(*first), wire.pack(*second))))
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

    async def _talk_on_one(self, packed: Sequence[bytes]) -> list[Any]:
        """Several commands on one connection of a client that is not a cluster's."""
        pool = self._our_client().connection_pool
        connection = await self._borrow(pool)
        try:
            answers = await self._talk(connection, packed)
        finally:
            await pool.release(connection)
        if wire.any_is_read_only(answers):
            await pool.disconnect(inuse_connections=False)
        return answers

    async def wait(self, bell: str, seconds: float) -> bool:
        words = wire.blpop(bell, seconds)
        with self._attempt() as limits:
            try:
                if self._packs_by_hand:
                    return await self._in_time(limits, self._exchange(wire.pack_words(words))) is not None
                return await self._in_time(limits, self._execute(*words)) is not None
            except exceptions.ResponseError as error:
                raise wire.translated(error, "claim") from error

    async def converse(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        packed = [wire.pack_words(words) for words in commands]
        with self._attempt() as limits:
            talk = self._talk_to_node(key, packed) if self.is_cluster else self._talk_on_one(packed)
            return wire.with_advice(await self._in_time(limits, talk), commands)

    async def _talk_to_node(self, key: str, packed: Sequence[bytes]) -> list[Any]:
        await heeding_cancellation(self._our_client().initialize())
        node = self._our_client().get_node_from_key(key)
        connection = node.acquire_connection()
        try:
            answers = await self._talk(connection, packed)
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            # The node may be gone for good: find out who has its slots now.
            with contextlib.suppress(exceptions.RedisError):
                await heeding_cancellation(self._client.nodes_manager.initialize())
            raise
        except AttributeError as error:
            # As in `_execute`: somebody else's command has closed the connections of all tasks.
            raise exceptions.ConnectionError("the client closed this connection while it was in use") from error
        finally:
            node.release(connection)
        if wire.has_moved(answers):
            await heeding_cancellation(self._our_client().nodes_manager.initialize())
            raise exceptions.TryAgainError(f"the slot of {key!r} has moved")
        return answers

    async def _talk(self, connection: Any, packed: Sequence[bytes]) -> list[Any]:
        """Several commands on one connection; an answer or an error of each."""
        answers: list[Any] = []

        async def ask() -> None:
            answers.clear()
            await heeding_cancellation(connection.send_packed_command(packed))
            while len(answers) < len(packed):
                try:
                    answers.append(await connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    answers.append(error)

        try:
            await (self._repeated(connection, ask) if self._client_retries else ask())
            return answers
        finally:
            if len(answers) < len(packed):
                await connection.disconnect(nowait=True)


async def _ask(connection: Any, packed: bytes) -> Any:
    await heeding_cancellation(connection.send_packed_command((packed,)))
    return await connection.read_response(disable_decoding=True)
