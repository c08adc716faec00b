"""Looks at queues for a gauge: `stats()`, in time or not at all, and what came of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from redis_message_queue.checks import number
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.identity import process
from redis_message_queue.messages import QueueStats
from redis_message_queue.metrics.labels import Capped
from redis_message_queue.protocol.tell import log
from redis_message_queue.sync.runtime import BlockingRuntime

STATES = ("pending", "processing", "delayed", "completed", "failed", "dead_letters")
_MOST_TROUBLES = 20
_MOST_TENANTS_ASKED = 10_000  # what one look at tenants returns


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look found: the numbers, or the name of the error that came instead."""

    queue: str
    stats: QueueStats | None
    tenants: dict[str, int]
    trouble: str | None
    took: float
    at: float  # monotonic

    @property
    def age(self) -> float:
        return time.monotonic() - self.at


class Watched(Protocol):
    """A queue, and the latest sight of it."""

    name: str
    failures: dict[str, int]

    def look(self) -> Sight: ...


class Looking:
    """What both colours of queues share: how tenants are counted, and how a failure is told."""

    def __init__(self, queue: Any, max_tenants: int | None) -> None:
        self.queue = queue
        self.name = name_of(queue)
        self.failures: dict[str, int] = {}  # by the class of what was raised
        self._cap = None if max_tenants is None else Capped("max_tenants", max_tenants)
        self._troubles = Capped("max_exception_types", _MOST_TROUBLES)

    def _seen(self, stats: QueueStats, tenants: dict[str, int], started: float) -> Sight:
        counts = {} if self._cap is None else self._cap.summed(tenants)
        return Sight(self.name, stats, counts, None, time.monotonic() - started, time.monotonic())

    def _missed(self, trouble: str, started: float) -> Sight:
        return Sight(self.name, None, {}, trouble, time.monotonic() - started, time.monotonic())

    def _noted(self, sight: Sight) -> Sight:
        if sight.trouble is not None:
            log.warning("a look at the queue %s for metrics failed: %s", self.name, sight.trouble)
            label = self._troubles(sight.trouble)
            self.failures[label] = self.failures.get(label, 0) + 1
        return sight


class BlockingLook(Looking):
    """Looks when it is asked to, in a thread of its own: a server that hangs must not hang the scrape."""

    def __init__(self, queue: Any, max_tenants: int | None, timeout_seconds: float) -> None:
        super().__init__(queue, max_tenants)
        number("timeout_seconds", timeout_seconds)
        self._timeout = timeout_seconds
        self._lock = BlockingRuntime().lock()  # which a forked child finds free
        self._under_way: _Errand | None = None

    def look(self) -> Sight:
        started = time.monotonic()
        process()  # which frees the lock in a forked child
        with self._lock:
            # One at a time: those who come while it hangs wait with it, and start no more of them.
            if self._under_way is None or self._under_way.is_over:
                self._under_way = _Errand(lambda: self._ask(time.monotonic()))
            errand = self._under_way
        return self._noted(errand.wait(self._timeout) or self._missed("TimeoutError", started))

    def _ask(self, started: float) -> Sight:
        try:
            stats: QueueStats = self.queue.stats()
            tenants = {} if self._cap is None else self.queue.tenants(max_tenants=_MOST_TENANTS_ASKED)
        except Exception as error:
            return self._missed(type(error).__name__, started)
        return self._seen(stats, tenants, started)


class _Errand:
    """A thread that looks once; whoever waits for it may go away earlier."""

    def __init__(self, work: Callable[[], Sight]) -> None:
        self._work = work
        self._process = process()
        self._sight: Sight | None = None
        self._thread = threading.Thread(target=self._run, name="redis-message-queue-look", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        # Also in a forked child, which has the object and not the thread.
        return self._process != process() or not self._thread.is_alive()

    def _run(self) -> None:
        self._sight = self._work()

    def wait(self, seconds: float) -> Sight | None:
        self._thread.join(seconds)
        return self._sight


class AwaitedLook(Looking):
    """Looks again and again in a task of the queue's own loop; asked, it shows what it saw last."""

    def __init__(self, queue: Any, max_tenants: int | None) -> None:
        super().__init__(queue, max_tenants)
        self._latest = Sight(self.name, None, {}, "NotYetSeen", 0.0, time.monotonic())

    def look(self) -> Sight:
        return self._latest

    async def update(self, timeout_seconds: float) -> None:
        """One look, in time or not at all."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_seconds):
                stats: QueueStats = await self.queue.stats()
                tenants = {} if self._cap is None else await self.queue.tenants(max_tenants=_MOST_TENANTS_ASKED)
        except Exception as error:
            self._latest = self._noted(self._missed(type(error).__name__, started))
        else:
            self._latest = self._seen(stats, tenants, started)

    async def keep_looking(self, interval_seconds: float, timeout_seconds: float) -> None:
        """Until somebody cancels the task."""
        number("interval_seconds", interval_seconds)
        number("timeout_seconds", timeout_seconds)
        while True:
            await self.update(timeout_seconds)
            await asyncio.sleep(interval_seconds)


def name_of(queue: Any) -> str:
    """The name of a queue object of either colour, or an error for what is none."""
    protocol = getattr(queue, "_protocol", None)
    if protocol is None or not hasattr(protocol, "operator"):
        raise ConfigurationTypeError(f"queue must be a RedisMessageQueue, not {type(queue).__name__}")
    protocol.operator  # noqa: B018  a custom gateway refuses it, and better now than at every scrape
    name: str = protocol.options.name
    return name


def refuse_twice(name: str, watched: dict[str, Any]) -> None:
    """Two series with the same labels would make every scrape invalid."""
    if name in watched:
        raise ConfigurationError(f"a queue {name!r} is watched here already; one look for each name is enough")
