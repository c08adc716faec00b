"""How much is measured."""

from dataclasses import dataclass, field, replace
from itertools import product

from bench.placement import possible

COLOURS = ("sync", "asyncio")
RATES = (
    *("publish", "dedup", "duplicate", "consume"),
    *("publish_batch", "consume_batch", "run_1", "run_100", "tenants"),
)
MEASURES = (*RATES, "latency", "ack", "memory")
# A duplicate has no target, so it is measured when asked for.
_USUAL = tuple(measure for measure in MEASURES if measure != "duplicate")

# Colour, rate and placement.
Case = tuple[str, str, str]


@dataclass(frozen=True)
class Plan:
    """The sizes of a run, and the words that choose what is in it."""

    rounds: int = 20
    operations: int = 100
    latency_seconds: float = 15
    in_flight: int = 50_000
    keys: int = 20_000
    ack_rounds: int = 60
    colours: tuple[str, ...] = COLOURS
    measures: tuple[str, ...] = _USUAL
    placements: tuple[str, ...] = field(default_factory=possible)

    def only(self, words: list[str]) -> "Plan":
        """Words of one sort add up, words of two sorts narrow down: `asyncio,publish,consume`."""
        colours = tuple(word for word in COLOURS if word in words)
        measures = tuple(word for word in MEASURES if word in words)
        return replace(self, colours=colours or COLOURS, measures=measures or _USUAL)

    @property
    def cases(self) -> list[Case]:
        """What is measured in each round, in this order."""
        rates = [rate for rate in RATES if rate in self.measures]
        return list(product(self.colours, rates, self.placements))


DEFAULT = Plan()
# An eighth of the messages fills the hash tables, which grow in powers of two, as full as all of them do.
QUICK = Plan(rounds=5, operations=80, latency_seconds=4, in_flight=6_250, keys=5_000, ack_rounds=20)
