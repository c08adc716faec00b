"""The blocking port: it does what the protocol asks before it returns, so nothing ever suspends."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

import redis
from redis import exceptions

from redis_message_queue import wire
from redis_message_queue.client_port import ClientPort
from redis_message_queue.protocol.port import Answer, Argument, Command, Pause, finish


class BlockingPort(ClientPort):
    """A `Port` over a blocking redis-py client, `time` and `threading`."""

    _plain_client = redis.Redis
    _plain_pools = (redis.ConnectionPool, redis.BlockingConnectionPool)
    _plain_connections = (
        redis.Connection,
        redis.SSLConnection,
        redis.UnixDomainSocketConnection,
    )

    async def call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        try:
            try:
                if self._packs_by_hand:
                    return self._exchange(wire.pack(command, open_keys, arguments))
                return self._execute(*wire.words("EVALSHA", command.script.sha, command, open_keys, arguments))
            except exceptions.NoScriptError:
                # EVAL runs it and leaves it in the cache of just the node that it was wanted on.
                return self._execute(*wire.words("EVAL", command.script.source, command, open_keys, arguments))
        except exceptions.ResponseError as error:
            raise wire.translated(error, command.script.name) from error

    def _execute(self, *words: Any) -> Any:
        """A command by the client's own way, for a client that is not plain."""
        try:
            return self._client.execute_command(*words, NEVER_DECODE=True)
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
        try:
            connection = pool.get_connection()
        except Exception:
            raise
        except BaseException:
            wire.close_idle_connections(self._client)  # one of them may be half made
            raise
        answered = False
        try:
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

    async def wait(self, bell: str, seconds: float) -> bool:
        words = ("BLPOP", bell, f"{seconds:.6f}")
        if self._packs_by_hand:
            return self._exchange(wire.pack_words(words)) is not None
        return self._execute(*words) is not None

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Answer[Any]:
        try:
            value = function(*arguments)
        except Exception as error:
            return Answer(error=error)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            name = getattr(function, "__name__", repr(function))
            return Answer(error=TypeError(f"{name} returned an awaitable, which the sync queue cannot await"))
        return Answer(value)

    def spawn(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> HeartbeatThread:
        return HeartbeatThread(work)

    def lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def is_cancellation(self, error: BaseException) -> bool:
        return False


class HeartbeatThread:
    """A daemon thread that runs a coroutine of the protocol beside a handler."""

    _STOP_SECONDS = 0.1  # a renewal takes a few ms; one that hangs is fenced off, and must not delay the ack

    def __init__(self, work: Callable[[Pause], Coroutine[Any, Any, None]]) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=lambda: finish(work(self._pause)), name="redis-message-queue-heartbeat", daemon=True
        )
        self._thread.start()

    async def _pause(self, seconds: float) -> bool:
        return self._stopped.wait(seconds)

    async def stop(self) -> None:
        self._stopped.set()
        self._thread.join(self._STOP_SECONDS)

    def abandon(self) -> None:
        self._stopped.set()
