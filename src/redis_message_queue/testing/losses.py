"""Calls whose request or reply is lost on the way, as on a connection that breaks at the worst moment."""

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

from redis_message_queue import checks
from redis_message_queue.errors import RehearsalError
from redis_message_queue.protocol.port import finish
from redis_message_queue.scripts import all_names, script
from redis_message_queue.testing.inside import Client, Queue, client_of

# What a queue does, and the scripts that do it; any other name is that of a script or of a Redis command.
OPERATIONS = {
    "publish": {"publish", "enqueue"},
    "ack": {"settle"},
    "fail": {"settle"},
    "retry": {"put_off"},
    "complete": {"settle", "hand_off"},
}
# Sent by a client for itself, when it connects or looks whether a connection is alive.
_HANDSHAKE = {"HELLO", "AUTH", "SELECT", "CLIENT", "READONLY", "PING", "SCRIPT", "HSETNX"}  # the last one opens a queue


class Loss:
    """Calls that are going to be lost; `stop` it, or leave its ``with`` block, and the connection is good again."""

    def __init__(
        self, thing: Queue | Client, what: Literal["reply", "request"], of: str | None, nth: int, times: int | None
    ) -> None:
        if of is not None:
            checks.text("of", of)
        checks.whole_number("nth", nth)
        checks.whole_number("times", times, optional=True)
        self._what, self._of, self._nth, self._times = what, of, nth, times
        self._names = None if of is None else {name.upper() for name in OPERATIONS.get(of.lower(), {of})}
        self._met = 0
        self._sent: Counter[str] = Counter()
        self.happened = 0
        """How many calls were lost."""
        self._line = _Line.of(client_of(thing))
        self._line.add(self)

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
        return f"<loss of the {self._what}{of}: happened {self.happened} times>"

    def stop(self) -> None:
        """Lose nothing more."""
        self._line.remove(self)

    def check(self) -> None:
        """Raise if nothing was lost: a test would have shown nothing."""
        if self.happened:
            return
        sent = ", ".join(f"{name} ({count})" for name, count in self._sent.items()) or "nothing"
        whose = "call" if self._of is None else f"call of {self._of!r}"
        which = whose if self._nth == 1 else f"{whose}, the one with number {self._nth},"
        raise RehearsalError(
            f"lose_{self._what} was to lose a {which} and there was none. The client sent: {sent}. "
            "Name one of these with of=..., or make the call while the loss is planned"
        )

    def meets(self, names: list[str]) -> bool:
        """Whether this request is one to be lost. Asked once for each request."""
        self._sent.update(map(_as_told, names))
        if not self._concerns(names):
            return False
        self._met += 1
        doomed = self._met >= self._nth and (self._times is None or self._met < self._nth + self._times)
        self.happened += doomed
        return doomed

    def _concerns(self, names: list[str]) -> bool:
        return self._names is None or not self._names.isdisjoint(name.upper() for name in names)

    def take_back(self) -> None:
        """The server did not know the script, so nothing was executed whose reply could be lost."""
        self._met -= 1
        self.happened -= 1

    def forget(self, names: list[str]) -> None:
        """The server did not know the queue: this was the first contact, and the same request comes again."""
        self._sent.subtract(map(_as_told, names))
        self._sent = +self._sent
        self._met -= self._concerns(names)

    @property
    def loses_the_request(self) -> bool:
        return self._what == "request"


def _as_told(name: str) -> str:
    """A script by its name, a command as it is."""
    return name.lower() if name.lower() in all_names() else name


def lose_reply(thing: Queue | Client, *, of: str | None = None, nth: int = 1, times: int | None = 1) -> Loss:
    """From now on: the server executes the next call of this client, or queue, and its reply is lost.

    ``of`` names what is lost: something that a queue does (``publish``, ``claim``, ``ack``, ``fail``, ``renew``,
    ``retry``, ``give_back``, ``complete``), or a Redis command. ``nth=2`` lets one of them pass before, ``times=3``
    loses three in a row, and ``times=None`` all that follow. A call that is sent again counts again.
    """
    return Loss(thing, "reply", of, nth, times)


def lose_request(thing: Queue | Client, *, of: str | None = None, nth: int = 1, times: int | None = 1) -> Loss:
    """From now on: the next call of this client, or queue, never reaches the server. Else as `lose_reply`."""
    return Loss(thing, "request", of, nth, times)


class _Line:
    """The connections of one pool, and the losses that are planned for them.

    The place is below redis-py's own retries and above the socket, where a connection really breaks, and the same for
    commands that the queue packs by hand.
    """

    def __init__(self, pool: Any, *, asynchronous: bool) -> None:
        self._pool = pool
        self._colour = _awaited if asynchronous else _blocking
        self._losses: list[Loss] = []
        self._lock = threading.Lock()
        self._watched: list[Any] = []

    @classmethod
    def of(cls, client: Client) -> _Line:
        pool: Any = client.connection_pool
        existing: _Line | None = vars(pool).get("_line_of_losses")
        line = existing or cls(pool, asynchronous=isinstance(client, redis.asyncio.Redis))
        pool._line_of_losses = line
        return line

    def add(self, loss: Loss) -> None:
        with self._lock:
            self._losses.append(loss)
            if len(self._losses) == 1:
                self._pool.get_connection = self._colour(functools.partial(self._connect, self._pool.get_connection))

    def remove(self, loss: Loss) -> None:
        with self._lock:
            if loss not in self._losses:
                return
            self._losses.remove(loss)
            if not self._losses:
                del self._pool.get_connection
                for connection in self._watched:
                    del connection.send_packed_command, connection.read_response
                self._watched.clear()

    def fate(self, names: list[str]) -> Loss | None:
        """The first loss that this request meets; each of them counts it."""
        with self._lock:
            met = [loss for loss in self._losses if loss.meets(names)]
        return met[0] if met else None

    def forget(self, names: list[str]) -> None:
        """It comes again, and counts then."""
        with self._lock:
            for loss in self._losses:
                loss.forget(names)

    async def _connect(self, get_connection: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        connection = await _settled(get_connection(*arguments, **options))
        with self._lock:
            if self._losses and "send_packed_command" not in vars(connection):
                ends = _Ends(self, connection)
                connection.send_packed_command = self._colour(ends.send)
                connection.read_response = self._colour(ends.read)
                self._watched.append(connection)
        return connection


class _Ends:
    """Both ends of one connection."""

    def __init__(self, line: _Line, connection: Any) -> None:
        self._line = line
        self._connection = connection
        self._send, self._read = connection.send_packed_command, connection.read_response
        self._doomed: Loss | None = None
        self._names: list[str] = []
        self._replies = 0

    async def send(self, command: Any, *arguments: Any, **options: Any) -> Any:
        names = [name for name in names_in(command) if name not in _HANDSHAKE]
        loss = self._line.fate(names) if names else None
        if loss is not None and loss.loses_the_request:
            await self._cut("request")
        sent = await _settled(self._send(command, *arguments, **options))
        # Not before: to connect anew is a conversation of its own, with these very methods.
        self._doomed, self._names, self._replies = loss, names, len(names)
        return sent

    async def read(self, *arguments: Any, **options: Any) -> Any:
        loss, self._doomed = self._doomed, None
        if loss is None:
            try:
                return await _settled(self._read(*arguments, **options))
            except exceptions.ResponseError as error:
                if "NOSTATE" in str(error):
                    self._line.forget(self._names)
                raise
        for _ in range(self._replies):
            # Read to the end, so that it has surely been executed.
            try:
                await _settled(self._read(*arguments, **options))
            except exceptions.NoScriptError:
                if self._replies == 1:
                    loss.take_back()
                    raise
            except exceptions.ResponseError as error:
                if "NOSTATE" in str(error) and self._replies == 1:
                    loss.happened -= 1
                    self._line.forget(self._names)
                    raise
        return await self._cut("reply")

    async def _cut(self, what: str) -> None:
        await _settled(self._connection.disconnect())
        raise exceptions.ConnectionError(f"the {what} was lost, as lose_{what} wants it")


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _awaited(work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    return work


def _blocking(work: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """A function that does what the coroutine would, which never suspends here."""
    return lambda *arguments, **options: finish(work(*arguments, **options))


def names_in(packed: Any) -> list[str]:
    """What the commands in these bytes are called: the name of our script, or the Redis command."""
    parts = [packed] if isinstance(packed, str | bytes | bytearray | memoryview) else packed
    data = b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in parts)
    return [_name_of(*words) for words in _commands_in(data)]


def _commands_in(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The first two words of each command."""
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


def _name_of(verb: bytes, word: bytes) -> str:
    name = verb.decode(errors="replace").upper()
    if name == "EVAL":
        word = hashlib.sha1(word, usedforsecurity=False).hexdigest().encode()
    return _scripts().get(word, name) if name in ("EVAL", "EVALSHA") else name


@functools.cache
def _scripts() -> dict[bytes, str]:
    return {script(name).sha.encode(): name for name in all_names()}
