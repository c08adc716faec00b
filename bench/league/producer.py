"""`python -m bench.league.producer MEMBER`: the process that publishes for a member of the league.

It reads requests as JSON lines from stdin and writes their results to stdout.
"""

import asyncio
import gc
import inspect
import json
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any, TextIO

from bench.league.settings import URL
from bench.meter import Cost, Meter
from bench.payload import payload

BATCH = 100
# How often the loss test publishes a message again whose publish raised, and for how long it waits in between.
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.2


class Producer:
    """Each public method is a request."""

    def __init__(self, member: str) -> None:
        self._adapter = import_module(f"bench.league.adapters.{member}")
        self._queue, self._crowd = self._adapter.Producer(), None
        self._meter = Meter(URL)
        self._numbers = count(1)
        self._runner = asyncio.Runner()
        if hasattr(self._queue, "open"):
            self._runner.run(self._queue.open())

    def describe(self, packages: list[str]) -> dict[str, Any]:
        """The versions, and which of the workloads this member has."""
        found = {"python": platform.python_version(), **{name: _version(name) for name in packages}}
        workloads = [name for name in ("publish", "publish_once", "publish_batch") if hasattr(self._queue, name)]
        workloads.append("publish_crowd")
        return {"versions": found, "workloads": workloads}

    def slice(self, workload: str, messages: int) -> Cost:
        """The cost of publishing so many messages, one call after the other."""
        batch: list[Any] = [payload(next(self._numbers)) for _ in range(messages)]
        if workload == "publish_batch":
            batch = [batch[at : at + BATCH] for at in range(0, messages, BATCH)]
        gc.collect()
        with self._meter.running() as cost:
            self._each(workload, iter(batch))
        return cost

    def crowd(self, messages: int, callers: int) -> Cost:
        """The cost of publishing so many messages, by several callers at the same time: tasks, or else threads."""
        batch = iter([payload(next(self._numbers)) for _ in range(messages)])
        if self._crowd is None and hasattr(self._adapter, "Crowd"):
            self._crowd = self._adapter.Crowd()
        publish = (self._crowd or self._queue).publish
        gc.collect()
        with self._meter.running() as cost:
            if inspect.iscoroutinefunction(publish):
                self._runner.run(_beside_each_other(publish, batch, callers))
            else:
                with ThreadPoolExecutor(callers) as threads:
                    for done in [threads.submit(publish, one) for one in batch]:
                        done.result()
        return cost

    def now(self) -> None:
        """Publish one message that contains the current time."""
        self._each("publish", iter([payload(time.monotonic_ns())]))

    def paced(self, messages: int, per_second: float) -> None:
        """Publish messages that contain the time, at an even rate."""
        began = time.monotonic()

        def on_time() -> Iterator[dict[str, Any]]:
            for number in range(messages):
                time.sleep(max(0.0, began + number / per_second - time.monotonic()))
                yield payload(time.monotonic_ns())

        self._each("publish", on_time())

    def insist(self, messages: int, per_second: float) -> dict[str, Any]:
        """Publish messages with increasing numbers, and those again that raised. Returns what was confirmed."""
        began, confirmed, errors = time.monotonic(), [], 0
        for number in range(1, messages + 1):
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
            for _ in range(_ATTEMPTS):
                try:
                    self._each("publish", iter([payload(number)]))
                except Exception as error:
                    errors += 1
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    time.sleep(_PAUSE_SECONDS)
                else:
                    confirmed.append(number)
                    break
        return {"confirmed": confirmed, "errors": errors}

    def _each(self, workload: str, batch: Iterator[Any]) -> None:
        operation = getattr(self._queue, workload)
        if inspect.iscoroutinefunction(operation):
            self._runner.run(_in_turn(operation, batch))
            return
        for one in batch:
            operation(one)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a test runs a member in its own environment
        return "missing"


async def _in_turn(operation: Callable[[Any], Awaitable[object]], batch: Iterator[Any]) -> None:
    for one in batch:
        await operation(one)


async def _beside_each_other(operation: Callable[[Any], Awaitable[object]], batch: Iterator[Any], callers: int) -> None:
    await asyncio.gather(*[_in_turn(operation, batch) for _ in range(callers)])


def _answer(producer: Producer, line: str) -> dict[str, Any]:
    request = json.loads(line)
    try:
        return {"result": getattr(producer, request.pop("do"))(**request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(member: str, answers: TextIO) -> None:
    producer = Producer(member)
    for line in sys.stdin:
        print(json.dumps(_answer(producer, line)), file=answers, flush=True)


if __name__ == "__main__":
    # A library that prints must not disturb the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    main(sys.argv[1], answers)
