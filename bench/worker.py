"""The process of one contender: reads requests as JSON lines from stdin and writes their cost to stdout."""

import asyncio
import gc
import json
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.meter import Cost, Meter
from bench.payload import number, payload, payloads

# The operation before the clock starts, and the operation that is measured. Both get the same messages.
WORKLOADS = {
    "publish": (None, "publish"),
    "dedup": (None, "publish_once"),
    "duplicate": ("publish_once", "publish_once"),
    "consume": ("publish", "consume"),
    "crowd": (None, "publish"),
    "publish_batch": (None, "publish_batch"),
    "consume_batch": ("publish_batch", "consume_batch"),
    "run_1": ("publish_batch", "run_1"),
    "run_100": ("publish_batch", "run_100"),
    "tenants": ("publish_for_tenants", "consume_of_tenants"),
}
# How many messages these operations get per call; the others get one.
_AT_ONCE = {"publish_batch": 100, "consume_batch": 100, "run_1": 10_000, "run_100": 10_000}
# "library" stands for this package, which runs from the clone, and for the peer, which has the same import name.
_THREADS, _TASKS = 16, 100  # callers at the same time, in the workload "crowd"
_PACKAGES = {"library": ("redis", "hiredis", "redis-message-queue")}


class Worker:
    """Each public method is a request. The other fields of the JSON line are its arguments."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        self._module, self._kind, self._url = import_module(f"bench.{kind}"), kind, url
        self._meter = Meter(url)
        self._queues = {
            "sync": self._module.SyncQueue(url, name),
            "async": self._module.AsyncQueue(url, name),
        }
        self._each: dict[str, Any] = {"sync": _each, "async": _AsyncEach()}
        self._crowds: dict[str, Callable[..., None]] = {"sync": _crowd, "async": self._each["async"].crowd}
        self._in_flight: dict[str, Any] = {}

    def describe(self) -> dict[str, str | None]:
        """The interpreter and the packages that this contender really runs on."""
        return {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES.get(self._kind, ("redis", "hiredis"))},
        }

    def slice(self, shell: str, workload: str, count: int) -> Cost:
        """The cost of `count` operations of a workload, one after the other."""
        queue, each, batch = self._queues[shell], self._each[shell], payloads(count)
        before, measured = WORKLOADS[workload]
        if before is not None and hasattr(queue, "open_group"):
            each(queue.open_group, [None])
        if before is not None:
            each(getattr(queue, before), _pieces(before, batch))
        gc.collect()
        if workload == "crowd":
            each = self._crowds[shell]
        with self._meter.running() as cost:
            each(getattr(queue, measured), _pieces(measured, batch))
        return cost

    def send(self, shell: str) -> None:
        """Publish one message that contains the current time."""
        self._each[shell](self._queues[shell].publish, [payload(time.monotonic_ns())])

    def send_later(self, shell: str, seconds: float) -> None:
        """Publish one message with a delay; it contains the time at which it is due."""
        due = payload(time.monotonic_ns() + int(seconds * 1e9))
        self._each[shell](lambda message: self._queues[shell].publish_later(message, seconds), [due])

    def listen(self, shell: str) -> float:
        """Wait for one sent message. Returns the seconds from its publish, or from its due time, to its handler."""
        delays: list[int] = []

        def handle(message: str | bytes) -> None:
            delays.append(time.monotonic_ns() - number(message))

        self._each[shell](self._queues[shell].listen, [handle])
        return delays[0] / 1e9

    def hold(self, name: str, publish: int = 0, claim: int = 0) -> None:
        """Publish messages to the queue of that name, then claim some and keep them in flight."""
        if name not in self._in_flight:
            self._in_flight[name] = self._module.InFlight(self._url, name)
        queue = self._in_flight[name]
        _each(queue.publish, payloads(publish))
        for _ in range(claim):
            queue.claim()
        # The held contexts belong to the benchmark: the garbage collector must not walk them during an ack.
        gc.freeze()

    def ack_oldest(self, name: str, count: int) -> Cost:
        """The cost of acknowledging the messages that were claimed first."""
        oldest = self._in_flight[name].take_oldest(count)
        with self._meter.running() as cost:
            for context in oldest:
                context.__exit__(None, None, None)
        return cost


def _pieces(operation: str, messages: list[dict[str, Any]]) -> list[Any]:
    size = _AT_ONCE.get(operation)
    return messages if size is None else [messages[at : at + size] for at in range(0, len(messages), size)]


def _each(operation: Callable[[Any], object], batch: Iterable[Any]) -> None:
    for message in batch:
        operation(message)


def _crowd(operation: Callable[[Any], object], batch: list[Any]) -> None:
    """The same in several threads."""
    threads = [threading.Thread(target=_each, args=(operation, batch[nth::_THREADS])) for nth in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _AsyncEach:
    """The same loop as one task, in an event loop that lives as long as the worker."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __call__(self, operation: Callable[[Any], Any], batch: Iterable[Any]) -> None:
        self._runner.run(self._loop(operation, batch))

    def crowd(self, operation: Callable[[Any], Any], batch: list[Any]) -> None:
        """The same in several tasks."""
        self._runner.run(self._gather(operation, batch))

    async def _gather(self, operation: Callable[[Any], Any], batch: list[Any]) -> None:
        await asyncio.gather(*[self._loop(operation, batch[nth::_TASKS]) for nth in range(_TASKS)])

    async def _loop(self, operation: Callable[[Any], Any], batch: Iterable[Any]) -> None:
        for message in batch:
            await operation(message)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _reply(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": getattr(worker, request.pop("do"))(**request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    # The parent handles Ctrl-C and closes this process's input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(*sys.argv[1:])
    for line in sys.stdin:
        print(json.dumps(_reply(worker, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
