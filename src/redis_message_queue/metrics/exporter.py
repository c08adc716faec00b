"""Shows what is in the queues of a server to Prometheus: read once for each scrape, within a time limit."""

from __future__ import annotations

import asyncio
import time

from redis_message_queue.metrics.prometheus import text_of
from redis_message_queue.metrics.server_queues import ServerQueues
from redis_message_queue.metrics.stats_poller import AsyncStatsPoller

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_AT_ONCE = 10  # queues that are read at the same time
_LONGEST_SECONDS = 8.0  # for all queues: Prometheus gives up after 10


class MetricsExporter:
    """The metrics of all queues that `ServerQueues` knows, as text."""

    def __init__(self, queues: ServerQueues, *, max_tenants: int | None = None, timeout_seconds: float = 3.0) -> None:
        self._queues, self._max_tenants, self._timeout_seconds = queues, max_tenants, timeout_seconds
        self._pollers: dict[str, AsyncStatsPoller] = {}
        self._reading = asyncio.Lock()

    async def scrape(self) -> bytes:
        """Read each queue, and return its metrics. A queue that cannot be read has ``rmq_stats_up`` 0."""
        async with self._reading:
            deadline, room = time.monotonic() + _LONGEST_SECONDS, asyncio.Semaphore(_AT_ONCE)
            names = await self._queues.known()

            async def read(name: str) -> AsyncStatsPoller:
                async with room:
                    poller = self._pollers.get(name)
                    if poller is None or poller.has_failed:  # perhaps it has more partitions now
                        failures = {} if poller is None else poller.failures
                        opened = await self._queues.open(name)
                        poller = AsyncStatsPoller(opened, self._max_tenants, 1.0, self._timeout_seconds)
                        poller.name, poller.failures = name, failures
                    await poller.read(min(self._timeout_seconds, deadline - time.monotonic()))
                    return poller

            read_now = await asyncio.gather(*map(read, names))
            self._pollers = dict(zip(names, read_now, strict=True))
            return text_of(read_now)
