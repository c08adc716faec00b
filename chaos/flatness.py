"""Decides whether a measurement that was sampled over time stays flat."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The first third of a run fills caches, pools and lists up to their limits, so it does not count.
WARM_UP_SHARE = 1 / 3
# How much a measurement may grow over the rest of the run, as a share of its median.
TOLERANCE = 0.05
RULE = (
    "The first third of the run is warm-up. Over the rest, a straight line is fitted: its slope is the median of the "
    "slopes between all pairs of samples, so that single peaks do not matter. A measurement is flat if that line rises "
    f"by at most {TOLERANCE:.0%} of the median, or by no more than a floor: 2 MB of memory, 2 descriptors, threads or "
    "connections, 20 keys."
)


@dataclass(frozen=True, slots=True)
class Flatness:
    """How much a measurement grew over the counted part of a run, and whether that is flat."""

    median: float
    growth: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


def flatness_of(times: Sequence[float], values: Sequence[float], floor: float) -> Flatness:
    """Judge one measurement. ``floor`` is a growth that never matters."""
    first = int(len(times) * WARM_UP_SHARE)
    times, values = times[first:], values[first:]
    if len(times) < 2:
        raise ValueError("a verdict needs at least three samples; let it run longer")
    slopes = [
        (values[later] - values[earlier]) / (times[later] - times[earlier])
        for earlier in range(len(times))
        for later in range(earlier + 1, len(times))
    ]
    median = statistics.median(values)
    growth = statistics.median(slopes) * (times[-1] - times[0])
    return Flatness(median, growth, max(floor, TOLERANCE * median))
