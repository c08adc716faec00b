"""The port of a simulated process: the library's own protocol runs over it, unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from redis import exceptions

from redis_message_queue.asyncio.runtime import AsyncioRuntime
from redis_message_queue.protocol.port import Argument, Call, Command, Port, attempt_ends_at
from redis_message_queue.redis_py import wire
from redis_message_queue.stored.scripts import Script
from redis_message_queue.values.errors import RedisMessageQueueError
from simulator.keyspace import RedisError
from simulator.loop import Process, SimulatedLoop
from simulator.network import Network
from simulator.server import NO_SCRIPT, Server


class ProcessDied(BaseException):
    """The process of this port is dead: whatever still runs of it is Python closing its coroutines."""


class SimulatedPort(AsyncioRuntime):
    """A `Port` of one process. It asks the simulated network for everything that the real one asks a socket."""

    retry_window = 0.0
    decodes = False
    address = "a simulated server"

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        process: Process,
        random: Random,
        heard: Callable[[Process, Call, float, Any], None],
        socket_timeout: float = 2.0,
    ) -> None:
        self._loop = loop
        self._network = network
        self._process = process
        self._random = random
        self._heard = heard
        self.socket_timeout = socket_timeout
        self.owner_pid = process.number
        self.is_waiting = False  # in BLPOP
        self.is_cluster = len(network.servers) > 1

    # -- the runtime

    def now(self) -> float:
        return self._loop.time() + self._process.clock_offset

    def random(self) -> float:
        return self._random.random()

    def new_id(self) -> bytes:
        return self._random.randbytes(16)

    def slot_name(self) -> bytes:
        return self._random.randbytes(15)

    def process(self) -> int:
        return self._process.number

    def after_fork(self) -> None:
        raise AssertionError("simulated processes do not fork")

    def is_transient(self, error: BaseException) -> bool:
        return wire.is_transient(error)

    # -- Redis

    def reaches_the_same(self, other: Port) -> bool:
        return isinstance(other, SimulatedPort) and self._network is other._network

    def note_the_same(self, other: Port) -> None:
        """There is one server or cluster."""

    async def close_idle(self) -> None:
        """Each exchange has a connection of its own."""

    async def connect(self) -> None:
        servers, now = self._network.servers, self._loop.time()
        # Any node tells where the others are.
        server = next((one for one in servers if one.is_up and one.stopped_until <= now), servers[0])
        await self._exchange(server, "connect", lambda: None)

    def _timeout(self) -> float:
        if self._process.is_dead:
            raise ProcessDied
        until = attempt_ends_at()
        return self.socket_timeout if until is None else max(0.0, min(self.socket_timeout, until - self.now()))

    async def _exchange(self, server: Server, label: str, work: Callable[[], Any]) -> Any:
        answer = await self._network.send(self._process, server, label, work, self._timeout())
        if isinstance(answer, RedisError):
            raise as_client_error(answer)
        return answer

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        name, sent_at = command.script.name, self._loop.time()
        try:
            # A digest that the server does not know costs another exchange, and nothing else.
            server = self._network.owner((*command.keys, *extra_keys)[0])
            work = partial(server.run_script, self._process.name, *_request((command, extra_keys, arguments)))
            answer = await self._exchange(server, name, work)
        except exceptions.ResponseError as error:
            raise wire.translated(error, name) from error
        self._heard(self._process, (command, extra_keys, arguments), sent_at, answer)
        return answer

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        if self.is_cluster:
            return await self._call_or_error(first), await self._call_or_error(second)
        (server,), sent_at = self._network.servers, self._loop.time()
        names = [call[0].script.name for call in (first, second)]
        answers = await self._exchange(
            server, " and ".join(names), lambda: [self._or_error(server, first), self._or_error(server, second)]
        )
        results = []
        for call, answer in zip((first, second), answers, strict=True):
            if not isinstance(answer, RedisError):
                self._heard(self._process, call, sent_at, answer)
                results.append(answer)
            elif str(answer) == NO_SCRIPT and call is second:  # whoever sent the first sends it again, when it likes
                results.append(await self.call(*second))
            else:
                results.append(wire.translated(as_client_error(answer), call[0].script.name))
        return results[0], results[1]

    async def _call_or_error(self, call: Call) -> Any:
        """As the library's ports do on a cluster."""
        try:
            return await self.call(*call)
        except (exceptions.RedisError, RedisMessageQueueError) as error:
            return error

    def _or_error(self, server: Server, call: Call) -> Any:
        try:
            return server.run_cached(self._process.name, *_request(call))
        except RedisError as error:
            return error

    async def pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        label, server = " ".join(str(words[0]) for words in commands), self._network.owner(key)
        answers = await self._exchange(server, label, lambda: self._converse(server, commands))
        return [as_client_error(one) if isinstance(one, RedisError) else one for one in answers]

    def _converse(self, server: Server, commands: tuple[tuple[Argument, ...], ...]) -> Any:
        """All commands of a pipeline. A WAIT at its end is answered when it is fulfilled, or when its time is over."""
        confirmation = None
        answers: list[Any] = []
        for words in commands:
            if words[0] in ("WAIT", "WAITAOF"):
                confirmation = words
            elif words[0] == "MULTI":
                answers.append(b"OK")
            elif words[0] == "EXEC":
                answers = [*[b"QUEUED"] * (len(answers) - 1), answers[1:]]
            else:
                try:
                    answers.append(server.run_command(self._process.name, words))
                except RedisError as error:
                    answers.append(error)
        if confirmation is None:
            return answers
        return self._confirm(server, confirmation, answers)

    def _confirm(self, server: Server, words: tuple[Argument, ...], answers: list[Any]) -> Any:
        loop = self._loop
        is_aof, deadline = words[0] == "WAITAOF", loop.time() + int(words[-1]) / 1000
        wanted = [int(word) for word in words[1:-1]]
        done: asyncio.Future[Any] = loop.create_future()
        incarnation = server.incarnation

        def look() -> None:
            if incarnation != server.incarnation:
                return  # the connection is gone, and with it the answer
            disk, replica = int(not server.is_disk_behind), int(not server.is_replica_behind)
            found: list[int] = [disk, replica] if is_aof else [replica]
            if all(map(int.__ge__, found, wanted)) or loop.time() >= deadline:
                done.set_result([*answers, found if is_aof else found[0]])
            else:
                loop.call_later(0.02, look)

        look()
        return done if not done.done() else done.result()

    async def wait(self, wakeup: str, seconds: float, *, punctual: bool = False) -> bool:
        return bool(await self.wait_any((wakeup,), seconds, punctual=punctual))

    async def wait_any(self, wakeups: tuple[str, ...], seconds: float, *, punctual: bool = False) -> list[str]:
        self.is_waiting = True
        try:
            if self.is_cluster:
                return await self._wait_on_nodes(wakeups, seconds)
            return await self._wait(wakeups, seconds)
        finally:
            self.is_waiting = False

    async def _wait(self, wakeups: tuple[str, ...], seconds: float) -> list[str]:
        network, timeout = self._network, self._timeout()
        gone: asyncio.Future[Any] = self._loop.create_future()
        try:
            work = partial(network.block, wakeups, seconds, gone)
            answer = await network.send(self._process, network.owner(wakeups[0]), "BLPOP", work, timeout)
        finally:
            if not gone.done():
                gone.set_result(None)
        if isinstance(answer, RedisError):
            raise wire.translated(as_client_error(answer), "claim")
        return [] if answer is None else [answer[0].decode()]

    async def _wait_on_nodes(self, wakeups: tuple[str, ...], seconds: float) -> list[str]:
        """As the library's port does: on a connection for each key, until the first wake-up."""
        waits = [asyncio.ensure_future(self._wait((key,), seconds)) for key in wakeups]
        ends_at, is_woken = self._loop.time() + min(seconds + wire.LATE_TIMER_SECONDS, self._timeout()), False
        try:
            while not is_woken and not all(one.done() for one in waits) and self._loop.time() < ends_at:
                pending = [one for one in waits if not one.done()]
                left = ends_at - self._loop.time()
                done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                is_woken = any(one.exception() is None and one.result() for one in done)
        finally:
            for one in waits:
                one.cancel()  # which is nothing to one that has ended
        failures = [error for one in waits if one.done() and (error := one.exception()) is not None]
        if len(failures) == len(waits):
            raise failures[0]
        return [key for one in waits if one.done() and one.exception() is None for key in one.result()]


def _request(call: Call) -> tuple[Script, tuple[str, ...], tuple[Argument, ...]]:
    """The script, all its keys and all its arguments."""
    command, extra_keys, arguments = call
    return command.script, (*command.keys, *extra_keys), (*command.settings, *arguments)


def as_client_error(error: RedisError) -> exceptions.ResponseError:
    """As redis-py reads an error reply: known kinds have a class of their own and lose their first word."""
    text = str(error)
    if text.startswith("OOM "):
        return exceptions.OutOfMemoryError(text.removeprefix("OOM "))
    if text.startswith("NOSCRIPT "):
        return exceptions.NoScriptError(text.removeprefix("NOSCRIPT "))
    if text.startswith("ERR "):
        text = text.removeprefix("ERR ")
    return exceptions.ResponseError(text)
