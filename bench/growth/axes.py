"""The things that grow: for each, queues of several sizes, and the cost of a message in each of them."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from statistics import median
from typing import Any

import redis

from bench.contender import ROOT, ContenderFailed
from bench.meter import Cost, Meter
from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis

SMALL, CHUNK = "x" * 20, 1_000
_LEASE_SECONDS = 7_200
_WAIT_SECONDS = 60.0
# Time enough for a woken consumer to handle a message and to wait again.
_APART_SECONDS = 0.008
# The names under which costs are shown. Each is an operation on one message.
PUBLISH, CONSUME, BATCH, WAKE = (
    "publish",
    "claim and ack",
    "claim and ack, 100 at once",
    "publish to a waiting consumer",
)


@dataclass(frozen=True)
class Sizes:
    """How far each axis goes, and how often it is measured."""

    pending: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    in_flight: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000)
    tenants: tuple[int, ...] = (1, 10, 100, 1_000, 10_000, 100_000)
    waiting: tuple[int, ...] = (1, 10, 100, 500)
    payload: tuple[int, ...] = (100, 1_000, 10_000, 100_000, 1_000_000)
    journal: tuple[int, ...] = (1, 2)  # without and with
    rounds: int = 9
    operations: int = 100

    @property
    def full(self) -> "Sizes":
        return replace(self, pending=(*self.pending, 10_000_000))

    @property
    def quick(self) -> "Sizes":
        parts = {axis: getattr(self, axis)[:3] for axis in AXES if axis != "journal"}
        return replace(self, **parts, rounds=3)


@dataclass
class State:
    """A queue of one size. All sizes of an axis exist at the same time, so that they can be measured in turns."""

    size: int
    queue: RedisMessageQueue
    message: str = SMALL
    tenants: Iterator[str | None] = field(default_factory=lambda: cycle([None]))


def _pending(size: int, client: redis.Redis, _: ExitStack) -> State:
    queue = RedisMessageQueue(f"pending-{size}", client=client)
    _fill(queue, size)
    return State(size, queue)


def _in_flight(size: int, client: redis.Redis, stack: ExitStack) -> State:
    queue = RedisMessageQueue(f"flight-{size}", client=client, visibility_timeout_seconds=_LEASE_SECONDS)
    for start in range(0, size, CHUNK):
        part = min(CHUNK, size - start)
        _fill(queue, part)
        if len(stack.enter_context(queue.process_messages(part))) < part:
            raise ContenderFailed(f"fewer than {size} messages could be claimed")
    _fill(queue, CHUNK)
    return State(size, queue)


def _tenants(size: int, client: redis.Redis, _: ExitStack) -> State:
    queue = RedisMessageQueue(f"tenants-{size}", client=client)
    names = [f"tenant-{number:06}" for number in range(size)]
    for name in names:
        queue.publish(SMALL, tenant=name)
    for name in islice(cycle(names), max(0, CHUNK - size)):
        queue.publish(SMALL, tenant=name)
    return State(size, queue, tenants=cycle(names))


def _payload(size: int, client: redis.Redis, _: ExitStack) -> State:
    queue = RedisMessageQueue(f"payload-{size}", client=client)
    for _number in range(20):
        queue.publish("x" * size)
    return State(size, queue, message="x" * size)


def _journal(size: int, client: redis.Redis, _: ExitStack) -> State:
    queue = RedisMessageQueue(f"journal-{size}", client=client, journal=size == 2)
    _fill(queue, CHUNK)
    return State(size, queue)


def _fill(queue: RedisMessageQueue, messages: int) -> None:
    for start in range(0, messages, CHUNK):
        queue.publish_many([SMALL] * min(CHUNK, messages - start))


AXES: dict[str, str] = {
    "pending": "messages that wait",
    "in_flight": "messages in flight",
    "tenants": "tenants that wait",
    "waiting": "consumers that wait",
    "payload": "bytes of a payload",
    "journal": "1: without a journal, 2: with one",
}
_BUILD: dict[str, Callable[[int, redis.Redis, ExitStack], State]] = {
    "pending": _pending,
    "in_flight": _in_flight,
    "tenants": _tenants,
    "payload": _payload,
    "journal": _journal,
}
# Microseconds for each message, by operation and size, and the longest script in milliseconds.
Figures = dict[str, Any]


def measure(axis: str, sizes: Sizes, binary: str) -> Figures:
    """The costs along one axis."""
    values: tuple[int, ...] = getattr(sizes, axis)
    if axis == "waiting":
        return {"axis": axis, "points": [_waiting(value, sizes, binary) for value in values]}
    with EmbeddedRedis(binary=binary, password=False) as server, server.client() as client, ExitStack() as stack:
        states = [_BUILD[axis](value, client, stack) for value in values]
        memory = int(client.info("memory")["used_memory"])
        meter = Meter(server.url)
        found: dict[int, dict[str, list[Cost]]] = defaultdict(lambda: defaultdict(list))
        for turn in range(sizes.rounds + 1):
            for state in states[:: 1 if turn % 2 else -1]:
                for name, cost in _slice(state, sizes.operations, meter).items():
                    if turn:  # the first round opens connections and loads scripts
                        found[state.size][name].append(cost)
        longest = {state.size: _longest_script(state, client) for state in states}
        client.close()
    return {
        "axis": axis,
        "used_memory": memory,
        "points": [_point(size, costs, longest[size]) for size, costs in found.items()],
    }


def _point(size: int, costs: dict[str, list[Cost]], longest_ms: float) -> Figures:
    middle = {
        name: {clock: median(cost[clock] for cost in each) * 1e6 for clock in ("client", "server")}
        for name, each in costs.items()
    }
    return {"size": size, "costs": middle, "longest_ms": longest_ms}


def _slice(state: State, operations: int, meter: Meter) -> dict[str, Cost]:
    """The cost of each operation. What is published is consumed, so the size stays."""
    # A megabyte a hundred times is enough work for a slice of any size.
    operations = max(5, min(operations, 2_000_000 // len(state.message)))
    found = {}
    with meter.running() as found[PUBLISH]:
        _publish(state, operations)
    with meter.running() as found[CONSUME]:
        _consume(state, operations)
    if len(state.message) == len(SMALL):
        _publish(state, operations)
        with meter.running() as found[BATCH], state.queue.process_messages(operations) as batch:
            taken = len(batch)
        if taken < operations:
            raise ContenderFailed(f"only {taken} of {operations} messages were claimed")
    return {name: {clock: seconds / operations for clock, seconds in cost.items()} for name, cost in found.items()}


def _publish(state: State, operations: int) -> None:
    for tenant in islice(state.tenants, operations):
        state.queue.publish(state.message, tenant=tenant)


def _consume(state: State, operations: int) -> None:
    for _ in range(operations):
        with state.queue.process_message() as message:
            if message is None:
                raise ContenderFailed("the queue ran empty")


def _longest_script(state: State, client: redis.Redis) -> float:
    """Milliseconds of the longest command while messages are published and consumed."""
    client.config_set("slowlog-max-len", 2_000)
    client.slowlog_reset()
    client.config_set("slowlog-log-slower-than", 0)
    _publish(state, 20)
    _consume(state, 20)
    with state.queue.process_messages(20):
        pass
    client.config_set("slowlog-log-slower-than", -1)
    _publish(state, 20)  # what the batch took
    return _longest(client)


def _longest(client: redis.Redis) -> float:
    entries: Any = client.slowlog_get(2_000)
    return float(max(entry["duration"] for entry in entries if entry["command"].startswith(b"EVAL")) / 1e3)


def _waiting(consumers: int, sizes: Sizes, binary: str) -> Figures:
    """One message at a time to one of many waiting consumers: what it costs until it is acknowledged."""
    with EmbeddedRedis(binary=binary, password=False) as server, server.client() as client:
        queue = RedisMessageQueue("waiting", client=client)
        with _consumers(server.url, consumers) as process:
            _wait(lambda: client.info("clients")["blocked_clients"] >= consumers, "all consumers to wait")
            clocks = _Clocks(client, process.pid)
            idle = clocks.spent_in(lambda: time.sleep(3.0))
            found = clocks.spent_in(lambda: _deliver(queue, sizes.operations))
            client.config_set("slowlog-log-slower-than", 0)
            _deliver(queue, 20)
            _wait(lambda: not client.exists(queue.key.pending, queue.key.processing), "the messages to be handled")
            longest = _longest(client)
    cost = {
        clock: (found[clock] - idle[clock] / idle["wall"] * found["wall"]) / sizes.operations * 1e6
        for clock in ("client", "server")
    }
    scripts = (found["scripts"] - idle["scripts"] / idle["wall"] * found["wall"]) / sizes.operations
    return {"size": consumers, "costs": {WAKE: cost}, "longest_ms": longest, "scripts": scripts}


@contextmanager
def _consumers(url: str, how_many: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "bench.growth.waiters", url, "waiting", str(how_many)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class _Clocks:
    """The CPU time of the server, and of this process together with that of the consumers."""

    client: redis.Redis
    consumers: int

    def spent_in(self, work: Callable[[], object]) -> Cost:
        before = self._read()
        work()
        return {clock: now - before[clock] for clock, now in self._read().items()}

    def _read(self) -> Cost:
        used = self.client.info("cpu")
        theirs = time.clock_gettime((~self.consumers << 3) | 2)  # see clock_getcpuclockid(3)
        return {
            "server": float(used["used_cpu_sys"] + used["used_cpu_user"]),
            "client": time.process_time() + theirs,
            "wall": time.monotonic(),
            "scripts": float(self.client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)),
        }


def _deliver(queue: RedisMessageQueue, messages: int) -> None:
    for _ in range(messages):
        queue.publish(SMALL)
        time.sleep(_APART_SECONDS)


def _wait(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if time.monotonic() > until:
            raise ContenderFailed(f"waited {_WAIT_SECONDS:g} s for {what}")
        time.sleep(0.005)


def fits(sizes: Sizes) -> bool:
    """Whether ten million small messages fit into half of the memory that is free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(sizes.pending) * 1.2 * 150 < free / 2
