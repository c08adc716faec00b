"""Whether a cost grows, and how, computed from what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

Points = Sequence[tuple[float, float]]

# A busy machine moves a cost by this much from one run to the next: less is no growth.
_NOISE = 0.25
# If each decade adds at most this part of the first cost, the growth is that of a logarithm.
_PER_DECADE = 0.35


@dataclass(frozen=True)
class Verdict:
    """How a cost grows from the first point to the last."""

    word: str  # flat, flat from a size on, logarithmic, a power, or linear
    times: float  # the last cost divided by the first
    exponent: float  # of the power of n that fits best

    def __str__(self) -> str:
        return f"{self.word} (x {self.times:.2f}, n^{self.exponent:.2f})"


def judge(points: Points) -> Verdict:
    """Flat, logarithmic, or a power of n, for costs at increasing sizes."""
    times = points[-1][1] / points[0][1]
    exponent = _slope([(log10(size), log10(cost)) for size, cost in points])
    decades = log10(points[-1][0] / points[0][0])
    if times <= 1 + _NOISE:
        word = "flat"
    elif all(cost / points[0][1] <= 1 + _NOISE + _PER_DECADE * log10(size / points[0][0]) for size, cost in points):
        word = "logarithmic"
    elif (start := _levels_off(points)) is not None:
        word = f"flat from {start:,.0f}"
    else:
        word = "linear" if exponent > 0.8 else "a power"
    return Verdict(word, times, exponent if decades else 0.0)


def _levels_off(points: Points) -> float | None:
    """The size from which on all costs are like the last one, if that is at least half of the axis."""
    last = points[-1][1]
    calm = 0
    for _, cost in reversed(points):
        if not last / (1 + _NOISE) <= cost <= last * (1 + _NOISE):
            break
        calm += 1
    return points[-calm][0] if 2 * calm > len(points) else None


def _slope(points: Points) -> float:
    """Of the straight line with the least squares."""
    middle_x, middle_y = (sum(point[at] for point in points) / len(points) for at in (0, 1))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
