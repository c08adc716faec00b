"""Watches queues while somebody looks at them: all viewers share one sample, and nobody looking costs nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard.queue_verdict import Finding, Level, findings, unreachable
from redis_message_queue.dashboard.sample import QueueDetails, Sample, Sampler, TenantBacklog
from redis_message_queue.dashboard.sums import merged_tenants, summed_details, summed_sample
from redis_message_queue.values.errors import PartitionCountError, RedisMessageQueueError
from redis_message_queue.values.plain_values import class_name, error_text

INTERVAL_SECONDS = 2.0
_DETAILS_SECONDS = 6.0
_SHARE = 50  # at most one 50th of the time goes into reading: a slow answer makes the next look later
_HISTORY_SECONDS = 300.0
_GAP_SECONDS = 30.0  # after which nothing is known about the time between
_AT_ONCE = 4  # queues, and parts of each, that are read at the same time
_SECONDS_A_QUEUE = 0.02
_KEPT_WATCHES = 2_000
_SHOWN = 100  # parts on the page of the queue
_NAMED = 5  # parts that have their own line in the verdict
_FEWEST_TENANTS = 50  # of each part

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
    """The last minutes of a queue, or of one of its parts, as far as somebody looked at it."""

    parts: Sequence[PartWatch]
    whole: Watch | None = None  # the queue that it is a part of

    def __init__(self, name: str, queue: RedisMessageQueue) -> None:
        self.name = name
        self.short_name = name  # in the path of its pages
        self.address = {"name": name}  # what links to its pages say
        self.queue = queue
        self.history: deque[Sample] = deque()
        self.details = QueueDetails()
        self.error: str | None = None
        self.findings: list[Finding] = []  # the worst first

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        """Read the queue, unless that was done these seconds ago; ``closely`` for what only its own page shows."""
        raise NotImplementedError

    @property
    def partitions(self) -> Sequence[PartWatch]:
        """The parts that have pages of their own: none if the queue has only one."""
        return self.parts if len(self.parts) > 1 else ()

    @property
    def samplers(self) -> Sequence[Sampler]:
        """The samplers of all parts."""
        return [part.sampler for part in self.parts]

    @property
    def is_outdated(self) -> bool:
        """Whether the queue has another number of parts by now."""
        return any(part.has_other_count for part in self.parts)

    async def tenants(self, most: int) -> list[TenantBacklog]:
        """Return about ``most`` tenants that are next in turn, the longest backlog first."""
        each = max(_FEWEST_TENANTS, most // len(self.parts))
        return merged_tenants(
            [await part.sampler.tenants(part.now, each) for part in self.parts if part.now is not None]
        )

    def address_of(self, finding: Finding) -> dict[str, str]:
        """Return what a link to the messages of a finding says."""
        return self.address if finding.partition is None else self.parts[finding.partition].address

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


class PartWatch(Watch):
    """Watches one part. Its verdict needs the others, because consumers serve all of them in turn."""

    whole: QueueWatch

    def __init__(self, whole: QueueWatch, number: int) -> None:
        super().__init__(f"{whole.name}, partition {number}", whole.queue.partition(number))
        self.short_name = f"Partition {number}"
        self.address = whole.address | {"partition": str(number)}
        self.whole = whole
        self.number = number
        self.parts = (self,)
        self.sampler = Sampler(self.queue)
        self.has_other_count = False  # the queue has another number of parts by now
        self._pace, self._oldest_pace, self._details_pace = ReadThrottle(), ReadThrottle(), ReadThrottle()

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        await self.whole.look(seconds, closely=closely)

    async def read(self, seconds: float, *, closely: bool) -> None:
        """Read what is due."""
        try:
            if self._pace.is_due(seconds):
                await self._sample()
            if closely and self.now is not None and self._details_pace.is_due(_DETAILS_SECONDS):
                self.details = await self.sampler.details(self.details, self.now)
                self._details_pace.done()
        except UNREADABLE as error:
            self.has_other_count = isinstance(error, PartitionCountError)
            self.error = error_text(error) or class_name(error)
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
        self._pace.done()


class QueueWatch(Watch):
    """Watches all parts of a queue, and adds up what they have."""

    def __init__(self, name: str, queue: RedisMessageQueue) -> None:
        super().__init__(name, queue)
        self.parts = tuple(PartWatch(self, number) for number in range(queue.partitions))
        self._lock = asyncio.Lock()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @property
    def shown_parts(self) -> list[PartWatch]:
        """The parts that need attention most, in the order of their numbers."""
        return sorted(sorted(self.parts, key=urgency)[:_SHOWN], key=lambda part: part.number)

    async def look(self, seconds: float = INTERVAL_SECONDS, *, closely: bool = False) -> None:
        async def read(part: PartWatch) -> None:
            async with self._turns:
                await part.read(seconds, closely=closely)

        async with self._lock:
            await asyncio.gather(*map(read, self.parts))
            self._add_up()

    def _add_up(self) -> None:
        readable = [part for part in self.parts if part.now is not None]
        if not readable:
            self.error = self.parts[0].error
            self.findings = [unreachable(self.error or "no partition answers")]
            return
        self.error = None
        sample = summed_sample([part.now for part in readable if part.now is not None])
        if not self.history or sample.at > self.history[-1].at:
            self.keep(sample)
        self.details = summed_details([part.details for part in readable])
        among = tuple(self.history)
        for part in readable:
            part.findings = findings(tuple(part.history), among)
        self.findings = _findings_of_whole(among, self.parts)


def _findings_of_whole(history: Sequence[Sample], parts: Sequence[PartWatch]) -> list[Finding]:
    """Return what there is to say about the whole, and about partitions that need more attention than it does."""
    found, worst = findings(history), min(part.headline.level for part in parts)
    if worst > Level.STUCK:  # what waits in a partition that somebody has paused is no sign of missing consumers
        found = [one for one in found if one.level > Level.STUCK]
    level = found[0].level if found else Level.IDLE
    is_paused = history[-1].paused_at is not None

    def is_named(part: PartWatch) -> bool:
        # What all partitions have together says nothing about one that cannot be read, or is paused alone.
        is_apart = part.now is None or (part.now.paused_at is not None and not is_paused)
        return part.headline.level <= Level.WARNING and (part.headline.level < level or is_apart)

    named = sorted(filter(is_named, parts), key=lambda part: part.headline.level)
    own = [
        replace(part.headline, text=f"Partition {part.number}: {part.headline.text}", partition=part.number)
        for part in named[:_NAMED]
    ]
    if more := len(named) - len(own):
        need = "partition needs" if more == 1 else "partitions need"
        own.append(Finding(named[_NAMED].headline.level, f"{more} more {need} attention."))
    return sorted((*own, *found), key=lambda one: one.level)


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
        """Look at several queues, a few at a time, and return their watches.

        The more there are, the less often each of them is read: about a hundred commands a second for all of them.
        """
        watches = [await self.of(name) for name in names]
        seconds = max(INTERVAL_SECONDS, _SECONDS_A_QUEUE * sum(len(watch.samplers) for watch in watches))

        async def look(watch: Watch) -> None:
            async with self._turns:
                await watch.look(seconds)

        await asyncio.gather(*map(look, watches))
        return watches


COLUMNS = {
    "waiting": "pending",
    "in_flight": "processing",
    "delayed": "delayed",
    "failed": "failed",
    "dead": "dead_letters",
}
"""The columns of counts by which the first page can be sorted; also by the name, and by the age of the oldest."""


def in_order(watches: Iterable[Watch], column: str) -> list[Watch]:
    """Return watches with the largest first, by the name if they are equal; without a column, the worst first.

    The order by how bad it is has no numbers in it: the rows of working queues would change places all the time.
    """

    def key(watch: Watch) -> tuple[float, str]:
        if column == "name" or watch.now is None:
            return 0.0 if column == "name" else -math.inf, watch.name
        if column == "oldest":
            return -(watch.now.oldest_seconds or 0.0), watch.name
        if column in COLUMNS:
            return -float(getattr(watch.now.stats, COLUMNS[column])), watch.name
        return watch.headline.level, watch.name

    return sorted(watches, key=key)


def urgency(watch: Watch) -> tuple[int, float, str]:
    """Return what to sort by: the worst first, then the one whose oldest message has waited longest."""
    oldest = (watch.now.oldest_seconds or 0.0) if watch.now else 0.0
    return (watch.headline.level, -oldest, watch.name)
