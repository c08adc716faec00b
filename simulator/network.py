"""The network between simulated processes and the server: it delays, loses, repeats and reorders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from redis import exceptions

from simulator.keyspace import RedisError
from simulator.loop import Process, SimulatedLoop
from simulator.lua import as_bytes
from simulator.oracle.steps import split_key
from simulator.server import Server, Waiter


@dataclass
class Weather:
    """How bad the network is. All are probabilities for one exchange, unless they are times in seconds."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    repeated: float = 0.0  # the request arrives a second time, later
    late: float = 0.0  # the request arrives when its caller has long given up
    slow: float = 0.0  # it takes much longer than usual, in either direction
    latency: float = 0.001
    slow_latency: float = 0.5
    latest: float = 20.0


CLEAR = Weather()


class Network:
    """Carries requests to the servers and replies back, each on a connection of its own."""

    def __init__(
        self, loop: SimulatedLoop, random: Random, servers: Sequence[Server], trace: Callable[..., None]
    ) -> None:
        self._loop = loop
        self._random = random
        self.servers = servers  # one, or the nodes of a cluster
        self.weather = CLEAR
        self.cut_off: set[Process] = set()  # nothing gets through to or from these
        self._trace = trace
        self.last_arrival = 0.0  # when the last request that is on its way gets there

    def _travel(self) -> float:
        weather, random = self.weather, self._random
        usual = weather.latency * (0.2 + random.random())
        if weather.slow and random.random() < weather.slow:
            return usual + weather.slow_latency * random.random()
        return usual

    def owner(self, key: str | bytes) -> Server:
        """The server of a key. The partitions of a queue go round the nodes of a cluster."""
        number = split_key(as_bytes(key))[0].rpartition("::partition::")[2]
        return self.servers[int(number) % len(self.servers) if number.isdigit() else 0]

    def send(
        self, process: Process, server: Server, label: str, work: Callable[[], Any], timeout: float
    ) -> asyncio.Future[Any]:
        """Send a request to a server. The future gets the reply, a `RedisError`, or a lost connection."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        weather, random, loop = self.weather, self._random, self._loop
        incarnation = server.incarnation
        is_lost = weather.request_lost and random.random() < weather.request_lost
        is_late = weather.late and random.random() < weather.late
        if is_lost or process in self.cut_off:
            self._trace("lost request", process, label)
            self._break(reply, timeout)
            return reply
        delay = random.random() * weather.latest if is_late else self._travel()
        self.last_arrival = max(self.last_arrival, loop.time() + delay)
        if is_late:
            self._trace("late request", process, label, f"{delay:.3f}")
        request = (process, server, label, work)
        loop.call_later(delay, self._arrive, *request, reply, incarnation, timeout, context=_WORLD)
        if weather.repeated and random.random() < weather.repeated:
            again = delay + random.random() * weather.latest
            self._trace("repeated request", process, label, f"{again:.3f}")
            self.last_arrival = max(self.last_arrival, loop.time() + again)
            loop.call_later(again, self._arrive, *request, None, incarnation, timeout, context=_WORLD)
        self._time_out(reply, timeout)
        return reply

    def _time_out(self, reply: asyncio.Future[Any], timeout: float) -> None:
        timer = self._loop.call_later(timeout, _fail, reply, "Timeout reading from socket", context=_WORLD)
        reply.add_done_callback(lambda _: timer.cancel(), context=_WORLD)

    def _break(self, reply: asyncio.Future[Any], timeout: float) -> None:
        """The connection breaks: the caller notices at once, or after its timeout."""
        if self._random.random() < 0.5:
            self._loop.call_later(self._travel(), _fail, reply, "Connection lost", context=_WORLD)
        self._time_out(reply, timeout)

    def _arrive(
        self,
        process: Process,
        server: Server,
        label: str,
        work: Callable[[], Any],
        reply: asyncio.Future[Any] | None,
        incarnation: int,
        timeout: float,
    ) -> None:
        if (left := server.stopped_until - self._loop.time()) > 0:
            arguments = (process, server, label, work, reply, incarnation, timeout)
            self._loop.call_later(left, self._arrive, *arguments, context=_WORLD)
            return
        if not server.is_up or incarnation != server.incarnation:
            if reply is not None:
                self._loop.call_later(self._travel(), _fail, reply, "Connection refused", context=_WORLD)
            return
        try:
            answer = work()
        except RedisError as error:
            answer = error
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(
                lambda done: self._answer(process, label, done.result(), reply, timeout), context=_WORLD
            )
        else:
            self._answer(process, label, answer, reply, timeout)

    def _answer(
        self, process: Process, label: str, answer: Any, reply: asyncio.Future[Any] | None, timeout: float
    ) -> None:
        if reply is None:
            return
        weather = self.weather
        if process in self.cut_off or (weather.reply_lost and self._random.random() < weather.reply_lost):
            self._trace("lost reply", process, label)
            if self._random.random() < 0.5:
                self._loop.call_later(self._travel(), _fail, reply, "Connection lost", context=_WORLD)
            return
        self._loop.call_later(self._travel(), self._deliver, process, label, answer, reply, context=_WORLD)

    def _deliver(self, process: Process, label: str, answer: Any, reply: asyncio.Future[Any]) -> None:
        if process in self.cut_off:
            self._trace("lost reply", process, label)
        elif not reply.done():
            reply.set_result(answer)

    def block(self, keys: tuple[str, ...], seconds: float, until_gone: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """On the server: a BLPOP that ends with an element, after its time, or when its client has gone."""
        done: asyncio.Future[Any] = self._loop.create_future()
        server, waiters = self.owner(keys[0]), list[Waiter]()

        def answer(element: list[bytes] | None) -> None:
            for waiter in waiters:  # those of the other keys; its own has gone
                server.stop_blocking(waiter)
            if not done.done():
                done.set_result(element)

        for key in keys:
            waiter = server.block(key, answer)
            if waiter is None:
                return done
            waiters.append(waiter)
        self._loop.call_later(seconds, self._end_block, server, waiters, server.incarnation, answer, context=_WORLD)
        until_gone.add_done_callback(lambda _: [server.stop_blocking(one) for one in waiters], context=_WORLD)
        return done

    def _end_block(
        self, server: Server, waiters: list[Waiter], incarnation: int, answer: Callable[[None], None]
    ) -> None:
        if incarnation == server.incarnation and sum(server.stop_blocking(one) for one in waiters):
            answer(None)


def _fail(reply: asyncio.Future[Any], why: str) -> None:
    if not reply.done():
        timed_out = why.startswith("Timeout")
        reply.set_exception(exceptions.TimeoutError(why) if timed_out else exceptions.ConnectionError(why))


def _world_context() -> Any:
    """A context of no process, for callbacks that outlive whoever caused them."""
    import contextvars

    return contextvars.Context()


_WORLD = _world_context()
