"""One contender in a process of its own: requests come in as JSON lines, what they cost goes out."""

import asyncio
import gc
import json
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.meter import Cost, Meter
from bench.payload import number, payload, payloads

# What is done before the clock starts, and what is measured; both get the same messages.
WORKLOADS = {
    "publish": (None, "publish"),
    "dedup": (None, "publish_once"),
    "duplicate": ("publish_once", "publish_once"),
    "consume": ("publish", "consume"),
    "publish_batch": (None, "publish_batch"),
    "consume_batch": ("publish_batch", "consume_batch"),
    "run_1": ("publish_batch", "run_1"),
    "run_100": ("publish_batch", "run_100"),
    "tenants": ("publish_for_tenants", "consume_of_tenants"),
}
# How many messages these get at once; the others get one.
_AT_ONCE = {"publish_batch": 100, "consume_batch": 100, "run_1": 10_000, "run_100": 10_000}
_PACKAGES = {"raw": ("redis", "hiredis"), "library": ("redis", "hiredis", "redis-message-queue")}


class Worker:
    """Each public method is a request, its arguments are the rest of the JSON line."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        self._module, self._kind, self._url = import_module(f"bench.{kind}"), kind, url
        self._meter = Meter(url)
        self._queues = {
            "sync": self._module.SyncQueue(url, name),
            "asyncio": self._module.AsyncQueue(url, name),
        }
        self._each: dict[str, Callable[..., None]] = {"sync": _each, "asyncio": _AsyncEach()}
        self._piles: dict[str, Any] = {}

    def describe(self) -> dict[str, str | None]:
        """The interpreter and the packages that this contender really runs on."""
        return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES[self._kind]}}

    def slice(self, colour: str, workload: str, count: int) -> Cost:
        """So many operations of a workload, one after the other."""
        queue, each, batch = self._queues[colour], self._each[colour], payloads(count)
        before, measured = WORKLOADS[workload]
        if before is not None:
            each(getattr(queue, before), _pieces(before, batch))
        gc.collect()
        with self._meter.running() as cost:
            each(getattr(queue, measured), _pieces(measured, batch))
        return cost

    def send(self, colour: str) -> None:
        """One message that carries the moment of its publish."""
        self._each[colour](self._queues[colour].publish, [payload(time.monotonic_ns())])

    def listen(self, colour: str) -> float:
        """Wait for one message that was sent; the seconds from its publish to its handler."""
        delays: list[int] = []

        def handle(message: str | bytes) -> None:
            delays.append(time.monotonic_ns() - number(message))

        self._each[colour](self._queues[colour].listen, [handle])
        return delays[0] / 1e9

    def pile(self, name: str, publish: int = 0, claim: int = 0) -> None:
        """Publish so many messages to a queue of that name, then claim so many and hold them."""
        if name not in self._piles:
            self._piles[name] = self._module.Pile(self._url, name)
        pile = self._piles[name]
        _each(pile.publish, payloads(publish))
        for _ in range(claim):
            pile.claim()
        # What is held belongs to the benchmark: the collector must not walk it while an ack is measured.
        gc.freeze()

    def ack_oldest(self, name: str, count: int) -> Cost:
        """Leave the contexts that were entered first."""
        oldest = self._piles[name].take_oldest(count)
        with self._meter.running() as cost:
            for context in oldest:
                context.__exit__(None, None, None)
        return cost


def _pieces(operation: str, messages: list[str]) -> list[Any]:
    size = _AT_ONCE.get(operation)
    return messages if size is None else [messages[at : at + size] for at in range(0, len(messages), size)]


def _each(operation: Callable[[Any], object], batch: Iterable[Any]) -> None:
    for message in batch:
        operation(message)


class _AsyncEach:
    """The same loop in one task of an event loop that lives as long as the worker."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __call__(self, operation: Callable[[Any], Any], batch: Iterable[Any]) -> None:
        self._runner.run(self._loop(operation, batch))

    async def _loop(self, operation: Callable[[Any], Any], batch: Iterable[Any]) -> None:
        for message in batch:
            await operation(message)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": getattr(worker, request.pop("do"))(**request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    # Ctrl-C is the driver's: it closes this process's input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(*sys.argv[1:])
    for line in sys.stdin:
        print(json.dumps(_answer(worker, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
