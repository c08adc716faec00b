"""The async port: runs scripts through an asyncio redis-py client."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import redis.asyncio
from redis import exceptions

from redis_message_queue.asyncio.direct_pool import DirectPool
from redis_message_queue.asyncio.runtime import AsyncioRuntime
from redis_message_queue.protocol.port import Argument, Command, innermost_attempt_end, note_missing_connection
from redis_message_queue.redis_py import wire
from redis_message_queue.redis_py.attempt_limits import AttemptLimits
from redis_message_queue.redis_py.client_port import ClientPort
from redis_message_queue.redis_py.redis_internals import connections_of, fits, loop_of, reload_nodes
from redis_message_queue.redis_py.simple_reply import NOT_SENT, NOTHING_SENT
from redis_message_queue.values.errors import ConfigurationError

T = TypeVar("T")

_NAP_SECONDS = 0.001  # between two looks whether a pool that is full has a connection again: redis-py tells nobody
_LONGEST_NAP_SECONDS = 0.02  # the same for a cluster client, whose nodes have pools of their own
_ANSWERS = frozenset((int, bytes))  # what the fast paths of our scripts return


async def heeding_cancellation(work: Awaitable[T]) -> T:
    """Await the work, and raise a cancellation that came just before it began or just when it ended.

    redis-py sends through `asyncio.wait_for`. In Python 3.11 that swallows a cancellation if its inner task has just
    finished, which happened to most cancellations of a publish.
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
    """Stand for the loop of a port that has not been used yet."""
    return None


def open_loops(client: Any) -> Iterator[asyncio.AbstractEventLoop]:
    """Yield the loops that the open connections of a client belong to."""
    pools = client.get_nodes() if wire.is_cluster(client) else [getattr(client, "connection_pool", None)]
    for connection in [each for pool in pools for each in connections_of(pool)]:
        loop = loop_of(connection)
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
        pool = getattr(client, "connection_pool", None)
        # The user's own `Retry` repeats what redis-py does on a connection of its own.
        is_direct = self._packs_by_hand and not client_retries and type(pool) is redis.asyncio.ConnectionPool
        self._direct = DirectPool(pool) if is_direct and fits(pool) else None
        self._line = asyncio.Lock()  # of the callers that wait for a connection of a pool that is full

    def start_over(self) -> None:
        """Bind to this process and to the next loop: for a child that gave the client a new pool."""
        self.owner_pid = self.process()
        self._loop = _no_loop

    def after_fork(self) -> None:
        """Raise: after a fork the client shares its sockets and its loop with the parent."""
        raise ConfigurationError(
            "this asyncio queue was made in another process, and its connections are that process's; "
            "make the client and the queue in the process that uses them, after the fork or the restored snapshot"
        )

    def _our_client(self) -> Any:
        """Return the client; raise in another process or loop, whose replies we would read."""
        if self.process() != self.owner_pid:
            self.after_fork()
        if self._loop() is not asyncio.get_running_loop():
            self._bind_to_the_running_loop()
        return self._client

    def _bind_to_the_running_loop(self) -> None:
        """Raise if the queue or the client's connections belong to another loop: a reply would be lost.

        A closed loop does not count if the client has no connection left that was opened on it.
        """
        running, before = asyncio.get_running_loop(), self._loop()
        is_in_use = before is not None and not before.is_closed()
        if is_in_use or any(loop is not running for loop in open_loops(self._client)):
            raise ConfigurationError(
                "this asyncio queue, or its client, was used on another event loop, and its connections belong to that "
                "one; nothing was sent; make the client and the queue in the loop that uses them, once for each "
                "asyncio.run()"
            )
        self._loop = weakref.ref(running)
        self._line = asyncio.Lock()  # those of a loop that is closed wait no more

    async def close_idle(self) -> None:
        if not self.is_cluster:
            await self._our_client().connection_pool.disconnect(inuse_connections=False)

    async def connect(self) -> None:
        client = self._our_client()
        if self.is_cluster:
            with self._attempt() as limits:
                await self._in_time(limits, client.initialize())
            return
        if not hasattr(client, "connection_pool"):
            return  # another kind of client, which manages its own connections
        try:
            with self._connecting() as limits:
                connection = await self._in_time(limits, self._open_connection(client.connection_pool))
                await client.connection_pool.release(connection)
        except exceptions.RedisError as error:
            if not self._has_answered(error):
                raise await asyncio.to_thread(self._explained, error) from error.__cause__

    async def _in_time(self, limits: AttemptLimits, work: Awaitable[T]) -> T:
        """Await the work, and cancel it when the time of this attempt is over."""
        left = limits.seconds_left()
        if left == math.inf or (limits.read == math.inf and left >= 2 * self.socket_timeout):
            return await work  # redis-py's own timeouts are short enough
        try:
            async with asyncio.timeout(left) as ending:
                return await work
        except TimeoutError as error:
            if ending.expired():
                raise exceptions.TimeoutError(f"no answer within {left:.3g} s") from error
            raise

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        reply: Any = NOT_SENT
        packed = wire.pack(command, extra_keys, arguments) if self._packs_by_hand else None
        if packed is not None and self._direct is not None and not self._line.locked():
            if self.process() != self.owner_pid or self._loop() is not asyncio.get_running_loop():
                self._our_client()
            # The fast path: redis-py's own timeout is all that it needs.
            is_timed = innermost_attempt_end() is not None or self._default_limits.is_timed
            (reply,) = await self._direct.exchange(packed, 1, self._attempt().ends_at() if is_timed else math.inf)
            if type(reply) in _ANSWERS:
                return reply
        with self._attempt() as limits:
            work = self._call_by_redis_py(command, extra_keys, arguments, packed, reply)
            return await (self._in_time(limits, work) if limits.is_timed else work)

    async def _close_after_failover(self) -> None:
        await self.close_idle()

    async def _execute(self, *command_args: Any) -> Any:
        until = math.inf
        try:
            while True:
                if self._line.locked():
                    await self._wait_for_room()
                try:
                    sending = self._our_client().execute_command(*command_args, NEVER_DECODE=True)
                    return await heeding_cancellation(sending)
                except exceptions.ConnectionError as error:
                    # The only error after which nothing was sent for sure.
                    if not wire.is_full_pool(error) or time.monotonic() >= until:
                        raise
                if until == math.inf:
                    until = time.monotonic() + self._longest_wait_for_pool()
                await self._wait_for_room()
        except AttributeError as error:
            if not wire.is_cluster(self._client):
                raise
            # After a few MOVED redis-py closes the connections of all tasks, even those that are being opened.
            raise exceptions.ConnectionError("the client closed this connection while it was in use") from error

    async def _wait_for_room(self) -> None:
        """Wait in line until a pool that is full has a connection for a command that the client itself will send."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is None:
            await asyncio.sleep(_LONGEST_NAP_SECONDS)
        else:
            await pool.release(await self._get_connection(pool))

    async def _get_connection(self, pool: Any) -> Any:
        """Return a connection of the pool. While all of them are in use, callers wait in line, and the first looks.

        They wait no longer than an attempt. Newcomers join the line: they may just have had a connection.
        """
        if not self._line.locked():
            try:
                return await self._open_connection(pool)
            except exceptions.ConnectionError as error:
                if not wire.is_full_pool(error):
                    raise
        seconds = self._longest_wait_for_pool()
        try:
            async with asyncio.timeout(seconds) as ending, self._line:
                while True:
                    try:
                        return await self._open_connection(pool)
                    except exceptions.ConnectionError as error:
                        if not wire.is_full_pool(error):
                            raise
                    await asyncio.sleep(_NAP_SECONDS)
        except TimeoutError as error:
            if not ending.expired():
                raise
            raise exceptions.MaxConnectionsError(f"no connection of the pool was free for {seconds:.3g} s") from error

    async def _open_connection(self, pool: Any) -> Any:
        """Return a connection of the pool; redis-py opens it through `asyncio.wait_for`, too."""
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

    async def _exchange(self, packed: bytes, *, waits: bool = True) -> Any:
        pool = self._our_client().connection_pool
        try:
            connection = await (self._get_connection(pool) if waits else self._open_connection(pool))
        except BaseException:  # also the end of the attempt
            note_missing_connection()
            raise
        answered = False
        try:
            if self._client_retries:
                reply = await self._with_client_retry(connection, lambda: _send_and_read(connection, packed))
            else:
                await heeding_cancellation(connection.send_packed_command((packed,)))
                reply = await connection.read_response(disable_decoding=True)
            answered = True
            return reply
        except exceptions.ResponseError:
            answered = True
            raise
        finally:
            # The next command would read a reply that is left unread, so such a connection must not go back open.
            if not answered:
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def _with_client_retry(self, connection: Any, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry with the `Retry` that the user gave the client."""
        answer: T = await connection.retry.call_with_retry(attempt, lambda error: connection.disconnect(nowait=True))
        return answer

    async def _exchange_directly(
        self, packed: bytes, count: int, limits: AttemptLimits, nudge_at: float | None = None, nudge: Any = None
    ) -> list[Any]:
        if self._direct is None or self._line.locked():
            return NOTHING_SENT
        self._our_client()
        return await self._direct.exchange(packed, count, limits.ends_at(), nudge_at, nudge)

    async def _exchange_all(self, packed: Sequence[bytes]) -> list[Any]:
        pool = self._our_client().connection_pool
        connection = await self._get_connection(pool)
        try:
            answers = await self._send_all(connection, packed)
        finally:
            await pool.release(connection)
        if wire.any_is_read_only(answers):
            await pool.disconnect(inuse_connections=False)
        return answers

    async def _wait_on_nodes(self, wakeups: tuple[str, ...], seconds: float, limits: AttemptLimits) -> list[str]:
        """Wait on one connection for each key until the first wake-up, and close those that wait in vain."""
        waits = {
            asyncio.ensure_future(self._pipeline_on_node(key, [wire.pack_command(wire.blpop((key,), seconds))])): key
            for key in wakeups
        }
        ends_at = time.monotonic() + min(seconds + wire.LATE_TIMER_SECONDS, limits.seconds_left())
        pending = set(waits)
        try:
            while pending and (left := ends_at - time.monotonic()) > 0:
                done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if any(not isinstance(_answer(wait), Exception | None) for wait in done):
                    break
        finally:
            for wait in pending:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        answers = {key: _answer(wait) for wait, key in waits.items()}
        failures = [answer for answer in answers.values() if isinstance(answer, Exception)]
        if len(failures) == len(answers):
            raise failures[0]
        return [key for key, answer in answers.items() if isinstance(answer, list)]

    async def pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        packed = [wire.pack_command(command) for command in commands]
        with self._attempt() as limits:
            talk = self._pipeline_on_node(key, packed) if self.is_cluster else self._exchange_all(packed)
            try:
                return wire.with_advice(await self._in_time(limits, talk), commands)
            except exceptions.TimeoutError:
                if self.is_cluster:
                    await self._refresh_nodes(key)
                raise

    async def _pipeline_on_node(self, key: str, packed: Sequence[bytes]) -> list[Any]:
        await heeding_cancellation(self._our_client().initialize())
        node = self._our_client().get_node_from_key(key)
        connection = node.acquire_connection()
        try:
            answers = await self._send_all(connection, packed)
        except exceptions.ConnectionError:
            await self._refresh_nodes(key)
            raise
        except AttributeError as error:
            # As in `_execute`: another command has closed the connections of all tasks.
            raise exceptions.ConnectionError("the client closed this connection while it was in use") from error
        finally:
            node.release(connection)
        if wire.has_moved(answers):
            await heeding_cancellation(self._our_client().nodes_manager.initialize())
            raise exceptions.TryAgainError(f"the slot of {key!r} has moved")
        return answers

    async def _refresh_nodes(self, key: str) -> None:
        """Find out which nodes have the slots now: the one that had this key's may be gone for good."""
        with contextlib.suppress(exceptions.RedisError, exceptions.RedisClusterException):
            silent = self._our_client().get_node_from_key(key)
            await heeding_cancellation(reload_nodes(self._client, silent.name))

    async def _send_all(self, connection: Any, packed: Sequence[bytes]) -> list[Any]:
        """Send several commands on one connection; return the reply to each, or its error."""
        answers: list[Any] = []

        async def attempt() -> None:
            answers.clear()
            await heeding_cancellation(connection.send_packed_command(packed))
            while len(answers) < len(packed):
                try:
                    answers.append(await connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    answers.append(error.with_traceback(None))  # whose frames would hold the connection

        try:
            await (self._with_client_retry(connection, attempt) if self._client_retries else attempt())
            return answers
        finally:
            # The next command would read a reply that is left unread, so such a connection must not go back open.
            if len(answers) < len(packed):
                await connection.disconnect(nowait=True)


def _answer(wait: asyncio.Future[list[Any]]) -> Any:
    """Return what a wait has brought: None at the end of its time or if it was cancelled, or its error."""
    if wait.cancelled():
        return None
    error = wait.exception()
    if error is not None:
        return error
    return wait.result()[0]


async def _send_and_read(connection: Any, packed: bytes) -> Any:
    await heeding_cancellation(connection.send_packed_command((packed,)))
    return await connection.read_response(disable_decoding=True)
