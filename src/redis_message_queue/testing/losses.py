"""Lose the request or the reply of a call, as a connection does that breaks at the worst moment."""

from __future__ import annotations

import functools
import hashlib
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Literal, Self

import redis.asyncio
from redis import exceptions

from redis_message_queue.protocol.port import finish
from redis_message_queue.stored.keys import REGISTRY_KEY
from redis_message_queue.stored.scripts import all_names, all_scripts
from redis_message_queue.testing.queue_internals import Client, Queue, client_of
from redis_message_queue.values import checks
from redis_message_queue.values.errors import FaultInjectionError

# What a queue does, and the scripts that do it; any other name is that of a script or of a Redis command.
OPERATIONS = {
    "publish": {"publish", "enqueue"},
    "ack": {"settle"},
    "fail": {"settle"},
    "retry": {"retry_later"},
    "complete": {"settle", "hand_off"},
}
_REGISTRATION = "register"
# What a client sends to set up or check a connection, and what we send at the first use of a queue.
_HANDSHAKE = {"HELLO", "AUTH", "SELECT", "CLIENT", "READONLY", "PING", "SCRIPT"}
_HANDSHAKE |= {"open_queue", "read_shared_state", "share_state", _REGISTRATION}


class Loss:
    """A planned loss of calls. It ends with `stop`, or with its ``with`` block; ``happened`` counts the lost calls."""

    def __init__(
        self,
        queue_or_client: Queue | Client,
        part: Literal["reply", "request"],
        of: str | None,
        nth: int,
        times: int | None,
    ) -> None:
        if of is not None:
            checks.text("of", of)
        checks.whole_number("nth", nth)
        checks.whole_number("times", times, optional=True)
        self._part = part
        self._of, self._nth, self._times = of, nth, times
        self._names = None if of is None else {name.upper() for name in OPERATIONS.get(of.lower(), {of})}
        self._matched = 0
        self._sent: Counter[str] = Counter()
        self.happened = 0
        self._pool = _LossyPool.of(client_of(queue_or_client))
        self._pool.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.check()

    def __repr__(self) -> str:
        of = "" if self._of is None else f" of {self._of!r}"
        return f"<loss of the {self._part}{of}: happened {self.happened} times>"

    def stop(self) -> None:
        """Lose nothing more."""
        self._pool.remove(self)

    def check(self) -> None:
        """Raise FaultInjectionError if nothing was lost: the test would prove nothing."""
        if self.happened:
            return
        sent = ", ".join(f"{name} ({count})" for name, count in self._sent.items()) or "nothing"
        call = "call" if self._of is None else f"{self._of!r} call"
        number = "" if self._nth == 1 else f" number {self._nth}"
        raise FaultInjectionError(
            f"lose_{self._part} lost nothing: there was no {call}{number}. The client sent: {sent}. "
            "Choose one of these with of=..., or make the call while the loss is planned"
        )

    # For the pool

    def _take(self, names: list[str]) -> bool:
        """Count this request, and say whether to lose it."""
        self._sent.update(map(_shown, names))
        if not self._matches(names):
            return False
        self._matched += 1
        lost = self._matched >= self._nth and (self._times is None or self._matched < self._nth + self._times)
        self.happened += lost
        return lost

    def _forget(self, names: list[str]) -> None:
        """Do not count this request: the server did not know the queue yet, and the client sends it again."""
        self._sent.subtract(map(_shown, names))
        self._sent = +self._sent
        self._matched -= self._matches(names)

    def _matches(self, names: list[str]) -> bool:
        return self._names is None or not self._names.isdisjoint(name.upper() for name in names)

    def _not_executed(self) -> None:
        """Undo a loss: the server did not know the script, so there was no reply to lose."""
        self._matched -= 1
        self.happened -= 1


def _shown(name: str) -> str:
    return name.lower() if name.lower() in all_names() else name


def lose_reply(queue_or_client: Queue | Client, *, of: str | None = None, nth: int = 1, times: int | None = 1) -> Loss:
    """Let the server execute the next call, and lose its reply.

    Args:
        queue_or_client: Whose calls are lost. It must have a connection pool, so not a ``RedisCluster``.
        of: Which calls: what a queue does (``publish``, ``claim``, ``ack``, ``fail``, ``renew``, ``retry``,
            ``requeue``, ``complete``), or a Redis command. Without it, any call.
        nth: The first call to be lost. A call that is sent again counts again.
        times: How many calls in a row are lost; None for all that follow.

    Raises:
        FaultInjectionError: At the end of the ``with`` block, if nothing was lost.
    """
    return Loss(queue_or_client, "reply", of, nth, times)


def lose_request(
    queue_or_client: Queue | Client, *, of: str | None = None, nth: int = 1, times: int | None = 1
) -> Loss:
    """Lose the next call before it reaches the server. The arguments are those of `lose_reply`."""
    return Loss(queue_or_client, "request", of, nth, times)


class _LossyPool:
    """The connection pool of a client, and the losses that are planned for it.

    It replaces methods of the connections: below the retries of redis-py, and above the socket. So it breaks a call
    where a connection does, also for commands that the queue packs itself.
    """

    def __init__(self, pool: Any, *, is_async: bool) -> None:
        self._pool = pool
        self._adapt = _as_is if is_async else _as_sync
        self._losses: list[Loss] = []
        self._lock = threading.Lock()
        self._patched: list[Any] = []

    @classmethod
    def of(cls, client: Client) -> _LossyPool:
        pool: Any = client.connection_pool
        if "_lossy_pool" not in vars(pool):
            pool._lossy_pool = cls(pool, is_async=isinstance(client, redis.asyncio.Redis))
        lossy: _LossyPool = pool._lossy_pool
        return lossy

    def add(self, loss: Loss) -> None:
        with self._lock:
            self._losses.append(loss)
            if len(self._losses) == 1:
                original = self._pool.get_connection
                self._pool.get_connection = self._adapt(functools.partial(self._get_connection, original))

    def remove(self, loss: Loss) -> None:
        with self._lock:
            if loss not in self._losses:
                return
            self._losses.remove(loss)
            if not self._losses:
                del self._pool.get_connection
                for connection in self._patched:
                    del connection.send_packed_command, connection.read_response
                self._patched.clear()

    def loss_of(self, names: list[str]) -> Loss | None:
        """Return the first loss that takes this request. All of them count it."""
        with self._lock:
            takers = [loss for loss in self._losses if loss._take(names)]
        return takers[0] if takers else None

    def forget(self, names: list[str]) -> None:
        with self._lock:
            for loss in self._losses:
                loss._forget(names)

    async def _get_connection(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        connection = await _result_of(original(*arguments, **options))
        with self._lock:
            if self._losses and "send_packed_command" not in vars(connection):
                lossy = _LossyConnection(self, connection)
                connection.send_packed_command = self._adapt(lossy.send)
                connection.read_response = self._adapt(lossy.read)
                self._patched.append(connection)
        return connection


class _LossyConnection:
    """One connection whose requests and replies can be lost."""

    def __init__(self, pool: _LossyPool, connection: Any) -> None:
        self._pool = pool
        self._connection = connection
        self._send, self._read = connection.send_packed_command, connection.read_response
        self._loss: Loss | None = None
        self._names: list[str] = []

    async def send(self, command: Any, *arguments: Any, **options: Any) -> Any:
        names = [name for name in names_in(command) if name not in _HANDSHAKE]
        loss = self._pool.loss_of(names) if names else None
        if loss is not None and loss._part == "request":
            await self._disconnect("request")
        sent = await _result_of(self._send(command, *arguments, **options))
        # Only now: sending may connect first, and the handshake uses these same methods.
        self._loss, self._names = loss, names
        return sent

    async def read(self, *arguments: Any, **options: Any) -> Any:
        loss, self._loss = self._loss, None
        if loss is None:
            try:
                return await _result_of(self._read(*arguments, **options))
            except exceptions.ResponseError as error:
                if "NOSTATE" in str(error):
                    self._pool.forget(self._names)
                raise
        # Read all replies, so that the server has surely executed the call.
        for _ in self._names:
            try:
                await _result_of(self._read(*arguments, **options))
            except exceptions.ResponseError as error:
                if len(self._names) == 1 and isinstance(error, exceptions.NoScriptError):
                    loss._not_executed()
                    raise
                if len(self._names) == 1 and "NOSTATE" in str(error):
                    loss.happened -= 1
                    self._pool.forget(self._names)
                    raise
        return await self._disconnect("reply")

    async def _disconnect(self, part: str) -> None:
        await _result_of(self._connection.disconnect())
        raise exceptions.ConnectionError(f"the {part} was lost, because lose_{part} planned it")


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _as_is(work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    return work


def _as_sync(work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Turn the coroutine function into a plain function. With a sync connection it never suspends."""
    return lambda *arguments, **options: finish(work(*arguments, **options))


def names_in(packed: Any) -> list[str]:
    """Return the name of each command in these packed bytes: that of our script, or the Redis command."""
    parts = [packed] if isinstance(packed, str | bytes | bytearray | memoryview) else packed
    data = b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in parts)
    return [_name_of(*words) for words in _commands_in(data)]


def _commands_in(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first two words of each command."""
    at = 0

    def number() -> int:
        nonlocal at
        end = data.index(b"\r\n", at)
        value = int(data[at + 1 : end])
        at = end + 2
        return value

    while at < len(data):
        first = [b"", b""]
        for place in range(number()):
            length = number()
            if place < 2:
                first[place] = data[at : at + length]
            at += length + 2
        yield first[0], first[1]


def _name_of(command: bytes, argument: bytes) -> str:
    name = command.decode(errors="replace").upper()
    if (name, argument) == ("SADD", REGISTRY_KEY.encode()):
        return _REGISTRATION
    if name == "EVAL":
        argument = hashlib.sha1(argument, usedforsecurity=False).hexdigest().encode()
    return _scripts().get(argument, name) if name in ("EVAL", "EVALSHA") else name


@functools.cache
def _scripts() -> dict[bytes, str]:
    return {one.sha.encode(): one.verb for one in all_scripts()}
