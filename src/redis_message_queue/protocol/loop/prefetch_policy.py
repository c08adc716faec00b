"""How far ahead of its handlers a loop may claim, and for how long what it claimed may wait."""

from __future__ import annotations

import math
from collections.abc import Sequence

from redis_message_queue.protocol.event_emitter import log

_FLUSH_SECONDS = 0.5  # how long a handled message waits for a claim that its ack can travel with
_SMOOTHING = 0.3  # the weight of the latest handler in the average


class PrefetchPolicy:
    """What a loop knows of the time that its handlers need and that its leases leave them.

    Only a loop that renews no leases has to care: there a message that waits in the loop uses up its lease.
    """

    def __init__(
        self, queue: str, size: int, workers: int, *, lease: float | None, has_heartbeat: bool, in_batches: bool
    ) -> None:
        self._queue = queue
        self._size = size
        self._workers = workers
        self.lease = lease
        self._in_batches = in_batches
        self._allowed = size  # fewer after a message was seen that had been delivered before
        rounds = 1 if in_batches else math.ceil(size / workers)
        self._enough_seconds = math.inf if lease is None else lease / rounds  # what a handler may take
        self._handler_seconds = 0.0  # what a handler takes, on average; 0 if that does not matter
        self._shortest = self._enough_seconds / 16
        self.notable_seconds = self._shortest  # handlers that take no longer do not change the pace
        self._has_warned = False
        self.counts_time = lease is not None and not has_heartbeat
        self.flush_seconds = _FLUSH_SECONDS if lease is None else min(_FLUSH_SECONDS, lease / 4)
        self.look_seconds = max(0.01, self.flush_seconds / 2 if self.counts_time else self.flush_seconds)
        # How much of its lease a message must have left when its handler begins.
        self.reserve = self._needed_reserve()

    def claim_size(self, *, is_careful: bool) -> int:
        """How many messages the next claim may take: no more than can be begun in time."""
        if is_careful:
            return 1
        if not self.counts_time or self._in_batches or self._handler_seconds == 0:
            return self._allowed
        assert self.lease is not None
        rounds = int((self.lease - self.reserve) / self._handler_seconds)
        return max(1, min(self._allowed, rounds * self._workers))

    def after_claim(self, *, redelivered: bool) -> None:
        """After a redelivered message the loop claims one at a time, and then twice as many with each claim."""
        self._allowed = 1 if redelivered else min(self._size, 2 * self._allowed)

    def _needed_reserve(self) -> float:
        if self.lease is None:
            return 0.0
        if not self.counts_time or self._in_batches:
            return 0.05 * self.lease
        return max(self.lease / 4, min(self._handler_seconds, self.lease / 2))

    def longest_wait(self, left: float) -> float:
        """How long a batch may still fill, if this is what the lease of its first message has left."""
        return left - 2 * self.reserve if self.counts_time else math.inf

    def reachable(self, left: Sequence[float], running_seconds: float) -> int:
        """How many of the messages that wait will be begun in time, if these are their leases.

        The running handlers have taken ``running_seconds`` so far: if that is longer than usual, so may be the next.
        """
        seconds = max(self._handler_seconds, running_seconds)
        first = seconds - running_seconds
        for place, lasts in enumerate(left):
            if lasts - (first + place // self._workers * seconds) <= self.reserve:
                return place
        return len(left)

    def handled_in(self, seconds: float) -> None:
        """Learn how long a handler took."""
        known = self._handler_seconds
        average = seconds if known == 0 else known + _SMOOTHING * (seconds - known)
        # An average that matters is corrected by every handler; without one, the quick ones are not looked at.
        self._handler_seconds = average if average > self._shortest else 0.0
        self.notable_seconds = 0.0 if self._handler_seconds else self._shortest
        self.reserve = self._needed_reserve()
        self.warn_if_too_slow(self._handler_seconds)

    def warn_if_too_slow(self, seconds: float) -> None:
        """Say once that a loop claims more than it can handle before the leases end."""
        if self._has_warned or seconds <= self._enough_seconds:
            return
        self._has_warned = True
        log.warning(
            "%s: %s and a handler takes about %.3g s, but a lease lasts %.3g s. Messages that would wait too long are "
            "requeued. Lower prefetch, raise visibility_timeout_seconds or leave out renew_leases=False",
            self._queue,
            f"{self._size} messages are handled at once" if self._in_batches else f"prefetch is {self._size}",
            *(seconds, self.lease),
            extra={"queue": self._queue},
        )
