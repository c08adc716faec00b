"""Looks at queues, one after the other, and what has changed between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redis_message_queue.cli.as_json import as_facts
from redis_message_queue.cli.stopping import StopSignals

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue

Counts = dict[str, dict[str, Any]]

KEPT_LOOKS = 40  # as many as the curve has columns
_NAP_SECONDS = 0.1  # how long a signal may wait to be noticed


def look(queues: Mapping[str, RedisMessageQueue], oldest: bool = True) -> Counts:
    """What `stats()` knows of each queue."""
    return {name: as_facts(queue.stats(oldest=oldest)) for name, queue in queues.items()}


@dataclass(frozen=True, slots=True)
class Look:
    """All queues at one time."""

    at: datetime
    clock: float
    counts: Counts


class Watch:
    """Looks again and again, until somebody stops it or the count is reached; the last ones are kept."""

    def __init__(
        self,
        queues: Mapping[str, RedisMessageQueue],
        every_seconds: float,
        count: int | None,
        stop: StopSignals,
        *,
        oldest: bool = True,
    ) -> None:
        self._queues = queues
        self._every = every_seconds
        self._count = count
        self._stop = stop
        self._oldest = oldest
        self.looks: deque[Look] = deque(maxlen=KEPT_LOOKS)

    def go_on(self) -> Iterator[Look]:
        """Each look when it is time for it; a slow server is not hurried."""
        done = 0
        while not self._stop.is_interrupted():
            begun = time.monotonic()
            self.looks.append(Look(datetime.now(UTC), begun, look(self._queues, self._oldest)))
            yield self.looks[-1]
            done += 1
            if done == self._count:
                return
            self._rest_until(begun + self._every)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each queue and look, for scripts."""
        for one in self.go_on():
            for name, counts in one.counts.items():
                yield {"queue": name, "at": one.at, **counts, "per_second": self.changes(name)}

    def changes(self, queue: str) -> dict[str, float] | None:
        """How much each count grew or shrank a second between the last two looks; None before the second."""
        if len(self.looks) < 2:
            return None
        before, now = self.looks[-2], self.looks[-1]
        seconds = max(now.clock - before.clock, 1e-6)
        former = before.counts[queue]
        return {
            name: (count - former[name]) / seconds
            for name, count in now.counts[queue].items()
            if isinstance(count, int) and isinstance(former.get(name), int)
        }

    def course(self, queue: str, name: str) -> list[int]:
        """One count in all looks that are kept, the oldest first."""
        return [one.counts[queue].get(name) or 0 for one in self.looks]

    def _rest_until(self, deadline: float) -> None:
        while not self._stop.is_interrupted() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_SECONDS))
