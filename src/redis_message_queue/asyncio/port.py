"""The asyncio port: it suspends where the blocking one waits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import redis.asyncio
from redis import exceptions

from redis_message_queue import wire
from redis_message_queue.client_port import ClientPort
from redis_message_queue.protocol.port import Answer, Argument, Command, Pause


class AsyncioPort(ClientPort):
    """A `Port` over an asyncio redis-py client and the running loop."""

    _plain_client = redis.asyncio.Redis
    _plain_pools = (redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool)
    _plain_connections = (
        redis.asyncio.Connection,
        redis.asyncio.SSLConnection,
        redis.asyncio.UnixDomainSocketConnection,
    )

    async def call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        try:
            try:
                if self._packs_by_hand:
                    return await self._exchange(wire.pack(command, open_keys, arguments))
                return await self._execute(*wire.words("EVALSHA", command.script.sha, command, open_keys, arguments))
            except exceptions.NoScriptError:
                # EVAL runs it and leaves it in the cache of just the node that it was wanted on.
                return await self._execute(*wire.words("EVAL", command.script.source, command, open_keys, arguments))
        except exceptions.ResponseError as error:
            raise wire.translated(error, command.script.name) from error

    async def _execute(self, *words: Any) -> Any:
        """A command by the client's own way, for a client that is not plain."""
        return await self._client.execute_command(*words, NEVER_DECODE=True)

    async def _exchange(self, packed: bytes) -> Any:
        """The same without redis-py's command layer, which costs its client more than the socket does."""
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        answered = False
        try:
            await connection.send_packed_command((packed,))
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

    async def wait(self, bell: str, seconds: float) -> bool:
        words = ("BLPOP", bell, f"{seconds:.6f}")
        if self._packs_by_hand:
            return await self._exchange(wire.pack_words(words)) is not None
        return await self._execute(*words) is not None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        try:
            value = function(*arguments)
            return Answer(await value if inspect.isawaitable(value) else value)
        except StopIteration as error:
            # No coroutine can let it through; this is what Python itself makes of it.
            trouble = RuntimeError("a callback raised StopIteration")
            trouble.__cause__ = error
            return Answer(error=trouble)
        except Exception as error:
            return Answer(error=error)

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> HeartbeatTask:
        return HeartbeatTask(work)

    def lock(self) -> AbstractContextManager[Any]:
        return nullcontext()  # one thread, and no await inside

    def is_cancellation(self, error: BaseException) -> bool:
        return isinstance(error, asyncio.CancelledError)


class HeartbeatTask:
    """A task that runs a coroutine of the protocol beside a handler."""

    _STOP_SECONDS = 0.1  # a renewal takes a few ms; one that hangs is fenced off, and must not delay the ack

    def __init__(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> None:
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(work(self._pause), name="redis-message-queue-heartbeat")

    async def _pause(self, seconds: float) -> bool:
        if seconds <= 0 or self._stopped.is_set():
            return self._stopped.is_set()
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.wait({self._task}, timeout=self._STOP_SECONDS)
        self._task.cancel()

    def abandon(self) -> None:
        self._task.cancel()
