"""Reads the `stats()` of queues for gauges, within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.metrics.labels import BoundedLabels
from redis_message_queue.process.identity import process
from redis_message_queue.protocol.event_emitter import log
from redis_message_queue.sync.runtime import BlockingRuntime
from redis_message_queue.values.checks import number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, NotPermittedError
from redis_message_queue.values.messages import QueueStats

STATES = ("pending", "processing", "delayed", "completed", "failed", "dead_letters")
_MAX_ERROR_TYPES = 20
_MAX_TENANTS_READ = 10_000  # the most that one call of tenants() returns


@dataclass(frozen=True, slots=True)
class StatsSample:
    """The statistics of a queue at one time, or the class name of the error that came instead."""

    queue: str
    stats: QueueStats | None
    tenants: dict[str, int]
    workers: int | None  # None if nobody may know, or for a partition
    error: str | None
    duration_seconds: float
    taken_at: float  # monotonic

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.taken_at


class StatsPollers:
    """The queues that are watched, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, StatsPoller] = {}

    def __iter__(self) -> Iterator[StatsPoller]:
        return iter(list(self._by_name.values()))

    def watch(self, queue: Any, max_tenants: int | None, timeout_seconds: float) -> None:
        """Read a sync queue whenever a sample is asked for."""
        name = _name_of(queue)
        if isinstance(queue, AsyncioQueue):
            raise ConfigurationTypeError(
                f"the queue {name!r} is an asyncio queue, and collecting metrics cannot await it; "
                "start a task with keep_watching(queue) in its event loop"
            )
        self._add(name, SyncStatsPoller(queue, max_tenants, timeout_seconds))

    async def keep_watching(
        self, queue: Any, max_tenants: int | None, interval_seconds: float, timeout_seconds: float
    ) -> None:
        """Read an asyncio queue every ``interval_seconds``, until the task is cancelled."""
        name = _name_of(queue)
        if not isinstance(queue, AsyncioQueue):
            raise ConfigurationTypeError(f"the queue {name!r} is a sync queue; use watch(queue)")
        poller = AsyncStatsPoller(queue, max_tenants, interval_seconds, timeout_seconds)
        self._add(name, poller)
        try:
            await poller.run()
        finally:
            self.forget(name)

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)

    def _add(self, name: str, poller: StatsPoller) -> None:
        if name in self._by_name:  # two series with the same labels would make every scrape invalid
            raise ConfigurationError(f"a queue {name!r} is watched here already; watch each name once")
        self._by_name[name] = poller


class StatsPoller(ABC):
    """Reads the statistics of one queue, and counts failures by the class of the error."""

    def __init__(self, queue: Any, max_tenants: int | None, timeout_seconds: float) -> None:
        number("timeout_seconds", timeout_seconds)
        self.queue = queue
        self.name = _name_of(queue)
        self.failures: dict[str, int] = {}
        self._timeout_seconds = timeout_seconds
        self._has_workers = self.name == queue._protocol.options.name  # a partition has none of its own
        self._tenant_labels = None if max_tenants is None else BoundedLabels("max_tenants", max_tenants)
        self._error_labels = BoundedLabels("max_exception_types", _MAX_ERROR_TYPES)

    @abstractmethod
    def sample(self) -> StatsSample:
        """Return the statistics, or the error if they could not be read in time."""

    def _succeeded(
        self, stats: QueueStats, tenants: dict[str, int], workers: int | None, started: float
    ) -> StatsSample:
        counts = {} if self._tenant_labels is None else self._tenant_labels.sum_by_label(tenants)
        now = time.monotonic()
        return StatsSample(self.name, stats, counts, workers, None, now - started, now)

    def _failed(self, error: str, started: float) -> StatsSample:
        now = time.monotonic()
        return StatsSample(self.name, None, {}, None, error, now - started, now)

    def _counted(self, sample: StatsSample) -> StatsSample:
        if sample.error is not None:
            log.warning("%s: reading stats for metrics failed (%s)", self.name, sample.error)
            label = self._error_labels(sample.error)
            self.failures[label] = self.failures.get(label, 0) + 1
        return sample


class SyncStatsPoller(StatsPoller):
    """Reads when it is asked, in a thread, so that a server that hangs does not block the scrape."""

    def __init__(self, queue: Any, max_tenants: int | None, timeout_seconds: float) -> None:
        super().__init__(queue, max_tenants, timeout_seconds)
        self._lock = BlockingRuntime().lock()  # a fork releases it in the child
        self._thread: _ReadThread | None = None

    def sample(self) -> StatsSample:
        started = time.monotonic()
        process()  # releases the lock in a forked child
        with self._lock:
            # One thread at a time: while it hangs, other scrapes wait for the same one.
            if self._thread is None or self._thread.has_ended:
                self._thread = _ReadThread(lambda: self._read(time.monotonic()))
            thread = self._thread
        return self._counted(thread.wait(self._timeout_seconds) or self._failed("TimeoutError", started))

    def _read(self, started: float) -> StatsSample:
        try:
            stats: QueueStats = self.queue.stats()
            tenants = {} if self._tenant_labels is None else self.queue.tenants(max_tenants=_MAX_TENANTS_READ)
            workers = None
            with contextlib.suppress(NotPermittedError):  # rules of before there were entries of workers
                workers = len(self.queue.workers()) if self._has_workers else None
        except Exception as error:
            return self._failed(type(error).__name__, started)
        return self._succeeded(stats, tenants, workers, started)


class _ReadThread:
    """A thread that takes one sample; you need not wait for its end."""

    def __init__(self, read: Callable[[], StatsSample]) -> None:
        self._read = read
        self._process = process()
        self._sample: StatsSample | None = None
        self._thread = threading.Thread(target=self._run, name="redis-message-queue-stats", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        # A forked child has this object, but not the thread.
        return self._process != process() or not self._thread.is_alive()

    def _run(self) -> None:
        self._sample = self._read()

    def wait(self, seconds: float) -> StatsSample | None:
        self._thread.join(seconds)
        return self._sample


class AsyncStatsPoller(StatsPoller):
    """Reads again and again in a task of the queue's event loop, and returns the latest sample."""

    def __init__(self, queue: Any, max_tenants: int | None, interval_seconds: float, timeout_seconds: float) -> None:
        super().__init__(queue, max_tenants, timeout_seconds)
        number("interval_seconds", interval_seconds)
        self._interval_seconds = interval_seconds
        self._latest = self._failed("NotYetRead", time.monotonic())

    def sample(self) -> StatsSample:
        return self._latest

    @property
    def has_failed(self) -> bool:
        return self._latest.error is not None

    async def run(self) -> None:
        """Read until the task is cancelled."""
        while True:
            await self.read(self._timeout_seconds)
            await asyncio.sleep(self._interval_seconds)

    async def read(self, timeout_seconds: float) -> None:
        """Read once, within a time limit."""
        started = time.monotonic()
        workers = None
        try:
            async with asyncio.timeout(timeout_seconds):
                stats: QueueStats = await self.queue.stats()
                tenants = {} if self._tenant_labels is None else await self.queue.tenants(max_tenants=_MAX_TENANTS_READ)
                with contextlib.suppress(NotPermittedError):
                    workers = len(await self.queue.workers()) if self._has_workers else None
        except Exception as error:
            self._latest = self._counted(self._failed(type(error).__name__, started))
        else:
            self._latest = self._succeeded(stats, tenants, workers, started)


def _name_of(queue: Any) -> str:
    """Return the name of a queue; raise if this is not a queue that has statistics."""
    protocol = getattr(queue, "_protocol", None)
    if protocol is None or not hasattr(protocol, "operator"):
        raise ConfigurationTypeError(f"queue must be a RedisMessageQueue, not {type(queue).__name__}")
    protocol.operator  # noqa: B018  raises for a custom gateway, now instead of at every scrape
    name: str = protocol.options.name
    if len(protocol.parts) > 1 or protocol.store.calls.partitions == 1:
        return name
    # One of several partitions. The first one has the keys of the queue, and must not have its name.
    keys = protocol.store.keys
    mark = f"{keys.separator}partition{keys.separator}"
    return keys.prefix if mark in keys.prefix else f"{name}{mark}0"
