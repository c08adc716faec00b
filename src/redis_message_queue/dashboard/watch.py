"""Watches queues while somebody looks at them: all viewers share one sample, and nobody looking costs nothing."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from redis.exceptions import RedisError

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard.sample import QueueDetails, Sample, Sampler, TenantBacklog
from redis_message_queue.dashboard.verdict import Finding, findings, unreachable
from redis_message_queue.values.errors import PartitionCountError, RedisMessageQueueError
from redis_message_queue.values.plain_values import error_text

INTERVAL_SECONDS = 2.0
_DETAILS_SECONDS = 6.0
_SHARE = 50  # at most one 50th of the time goes into reading: a slow answer makes the next look later
_HISTORY_SECONDS = 300.0
_GAP_SECONDS = 30.0  # after which nothing is known about the time between
_AT_ONCE = 4  # queues that are read at the same time
_SECONDS_A_QUEUE = 0.02
_KEPT_WATCHES = 2_000

UNREADABLE = (RedisError, RedisMessageQueueError, OSError)


class ReadThrottle:
    """Says when something may be read again: not too often, and later if reading it takes long."""

    def __init__(self) -> None:
        self._asked = self._begun = float("-inf")
        self._took = 0.0

    def is_due(self, seconds: float) -> bool:
        """Return whether it may be read now, if it is to be read every so many seconds."""
        self._asked = time.monotonic()
        return self._asked >= self._begun + max(seconds, _SHARE * self._took)

    def done(self) -> None:
        """Note that it was read since `is_due` said so."""
        self._begun, self._took = self._asked, time.monotonic() - self._asked


class Watch:
    """The last minutes of one queue, as far as somebody looked at it."""

    parts: Sequence[Watch] = ()  # its partitions
    whole: Watch | None = None  # the queue that it is a partition of

    def __init__(self, name: str, queue: RedisMessageQueue) -> None:
        self.name = name
        self.short_name = name  # in the path of its pages
        self.address = {"name": name}  # what links to its pages say
        self.queue = queue
        self.history: deque[Sample] = deque()
        self.details = QueueDetails()
        self.error: str | None = None
        self.findings: list[Finding] = []  # the worst first

    @property
    def is_outdated(self) -> bool:
        """Whether the queue has another number of partitions by now."""
        raise NotImplementedError

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        """Read the queue, unless that was done these seconds ago; ``closely`` for what only its own page shows."""
        raise NotImplementedError

    @property
    def samplers(self) -> Sequence[Sampler]:
        """What looks at it: one, or one for each partition."""
        raise NotImplementedError

    async def tenants(self, most: int) -> list[TenantBacklog]:
        """Return about ``most`` tenants that are next in turn, the longest backlog first."""
        raise NotImplementedError

    def address_of(self, finding: Finding) -> dict[str, str]:
        """Return what a link to the messages of a finding says."""
        return self.address

    def keep(self, sample: Sample) -> None:
        """Add a sample to the history."""
        if self.history and sample.at - self.history[-1].at > _GAP_SECONDS:
            self.history.clear()
        if self.history:
            sample = sample.after(self.history[-1])
            self.history[-1] = self.history[-1].without_messages()
        self.history.append(sample)
        while sample.at - self.history[0].at > _HISTORY_SECONDS:
            self.history.popleft()

    @property
    def now(self) -> Sample | None:
        """The newest sample; None before the first, and while the queue cannot be read."""
        return self.history[-1] if self.history and self.error is None else None

    @property
    def headline(self) -> Finding:
        """The worst finding, once the queue was looked at."""
        return self.findings[0]


class QueueWatch(Watch):
    """Watches a queue without partitions."""

    def __init__(self, name: str, queue: RedisMessageQueue) -> None:
        super().__init__(name, queue)
        self.sampler = Sampler(queue)
        self._is_outdated = False
        self._lock = asyncio.Lock()
        self._pace, self._oldest_pace, self._details_pace = ReadThrottle(), ReadThrottle(), ReadThrottle()

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        await self.read(seconds, closely=closely)

    @property
    def is_outdated(self) -> bool:
        return self._is_outdated

    async def read(self, seconds: float, *, closely: bool) -> None:
        """Read what is due."""
        async with self._lock:
            try:
                if self._pace.is_due(seconds):
                    await self._sample()
                if closely and self.now is not None and self._details_pace.is_due(_DETAILS_SECONDS):
                    self.details = await self.sampler.details(self.details, self.now)
                    self._details_pace.done()
            except UNREADABLE as error:
                self._is_outdated = isinstance(error, PartitionCountError)
                self.error = error_text(error) or type(error).__name__
                self.findings = [unreachable(self.error)]
                self._pace.done()

    async def _sample(self) -> None:
        # With many tenants, finding the oldest message takes many scripts, so that is done less often.
        oldest = self._oldest_pace.is_due(INTERVAL_SECONDS)
        sample = await self.sampler.read(oldest=oldest)
        if oldest:
            self._oldest_pace.done()
        elif self.now is not None and sample.stats.pending:
            sample = sample.with_oldest(self.now.oldest_seconds)
        self.keep(sample)
        self.error = None
        self.findings = findings(tuple(self.history))
        self._pace.done()

    @property
    def samplers(self) -> Sequence[Sampler]:
        return [self.sampler]

    async def tenants(self, most: int) -> list[TenantBacklog]:
        return await self.sampler.tenants(self.now, most) if self.now else []


class Watches:
    """The queues that were looked at lately, by name."""

    def __init__(self, open_watch: Callable[[str], Awaitable[Watch]]) -> None:
        self._open = open_watch
        self._by_name: dict[str, Watch] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def of(self, name: str) -> Watch:
        """Return the watch of a queue; raises `ConfigurationError` for a name that no queue can have."""
        watch = self._by_name.get(name)
        if watch is None or watch.is_outdated:
            watch = await self._open(name)
        self._by_name.pop(name, None)
        self._by_name[name] = watch  # the last one now
        while len(self._by_name) > _KEPT_WATCHES:
            del self._by_name[next(iter(self._by_name))]
        return watch

    async def look_at(self, names: Sequence[str]) -> list[Watch]:
        """Look at several queues, a few at a time, and return those that need attention first.

        The more there are, the less often each of them is read: about a hundred commands a second for all of them.
        """
        watches = [await self.of(name) for name in names]
        seconds = max(INTERVAL_SECONDS, _SECONDS_A_QUEUE * sum(len(watch.samplers) for watch in watches))

        async def look(watch: Watch) -> None:
            async with self._turns:
                await watch.look(seconds)

        await asyncio.gather(*map(look, watches))
        return sorted(watches, key=urgency)


def urgency(watch: Watch) -> tuple[int, float, str]:
    """Return what to sort by: the worst first, then the one whose oldest message has waited longest."""
    oldest = (watch.now.oldest_seconds or 0.0) if watch.now else 0.0
    return (watch.headline.level, -oldest, watch.name)
