"""How long handlers of a loop ran: their messages are claimed ahead and acked later, so the journal cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from redis_message_queue.protocol.consume.claim import Claim


class HandlerTimes:
    """When handlers started and ended, until their messages are settled."""

    __slots__ = ("_now", "_times")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._times: dict[Claim, tuple[float, float | None]] = {}

    def started(self, claims: Iterable[Claim], at: float) -> None:
        """A handler gets these messages."""
        for claim in claims:
            self._times[claim] = (at, None)

    def ended(self, claims: Iterable[Claim]) -> None:
        """The handler of these messages has returned."""
        now = self._now()
        for claim in claims:
            if claim in self._times:
                self._times[claim] = (self._times[claim][0], now)

    def forget(self, claims: Iterable[Claim]) -> None:
        """These messages are not settled by this loop."""
        for claim in claims:
            self._times.pop(claim, None)

    def take(self, claims: Sequence[Claim]) -> Sequence[int]:
        """Return for each message how many microseconds ago its handler started, and how many it ran.

        Empty if that is not known of all of them.
        """
        now, found = self._now(), [self._times.pop(claim, None) for claim in claims]
        times = []
        for one in found:
            if one is None:
                return ()
            start, end = one
            times += [_microseconds(now - start), _microseconds((end or now) - start)]
        return times


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1_000_000))
