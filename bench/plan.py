"""What a run measures, and how much."""

from dataclasses import dataclass, field, replace
from itertools import product

from bench.placement import possible

SHELLS = ("sync", "async")
RATES = (
    *("publish", "dedup", "duplicate", "consume"),
    *("crowd", "publish_batch", "consume_batch", "run_1", "run_100", "tenants"),
)
MEASURES = (*RATES, "latency", "due", "ack", "memory")
# A duplicate has no target, so it is measured only on request.
_USUAL = tuple(measure for measure in MEASURES if measure != "duplicate")

# Shell (sync or async), workload and placement.
Case = tuple[str, str, str]


@dataclass(frozen=True)
class Plan:
    """The sizes of a run, and what it measures."""

    rounds: int = 20
    operations: int = 100
    latency_seconds: float = 15
    in_flight: int = 50_000
    keys: int = 20_000
    ack_rounds: int = 60
    shells: tuple[str, ...] = SHELLS
    measures: tuple[str, ...] = _USUAL
    placements: tuple[str, ...] = field(default_factory=possible)

    def only(self, words: list[str]) -> "Plan":
        """The plan limited to these shells and measures, for example `async,publish,consume`."""
        shells = tuple(word for word in SHELLS if word in words)
        measures = tuple(word for word in MEASURES if word in words)
        return replace(self, shells=shells or SHELLS, measures=measures or _USUAL)

    @property
    def cases(self) -> list[Case]:
        """What is measured in each round, in this order."""
        rates = [rate for rate in RATES if rate in self.measures]
        return list(product(self.shells, rates, self.placements))


DEFAULT = Plan()
# Hash tables grow in powers of two: an eighth of the messages fills them to the same degree.
QUICK = Plan(rounds=5, operations=80, latency_seconds=4, in_flight=6_250, keys=5_000, ack_rounds=20)
