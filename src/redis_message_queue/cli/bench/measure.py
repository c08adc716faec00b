"""One interleaved run: in each round a slice of everything, by turns, so that a slow moment meets everybody."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles

from redis_message_queue.cli.bench.contenders import Contender, Payloads
from redis_message_queue.cli.bench.meter import Cost, Meter


@dataclass(frozen=True, slots=True)
class Workload:
    """What is done before the clock starts, and what is measured; both get the same messages."""

    name: str
    before: str | None
    measured: str
    times: int = 1  # as many messages as usual: a batch costs so little a message that it would drown in the noise


WORKLOADS = (
    Workload("publish", None, "publish"),
    Workload("claim and ack", "publish_batch", "consume"),
    Workload("publish, batches of 100", None, "publish_batch", 10),
    Workload("claim and ack, batches of 100", "publish_batch", "consume_batch", 10),
    Workload("run, prefetch 100", "publish_batch", "run", 2),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one workload. A ratio of 1 is as fast as raw Redis, 0.5 takes twice as much."""

    workload: str
    ratio: float
    spread: float
    wall_ratio: float
    cpu_us: float
    raw_cpu_us: float
    messages_per_second: float
    raw_messages_per_second: float


Slices = dict[Workload, list[tuple[Cost, Cost]]]


def measure(
    raw: Contender, library: Contender, meter: Meter, *, rounds: int, messages: int, step: Callable[[], None]
) -> list[Figures]:
    """The figures of all workloads."""
    slices: Slices = {workload: [] for workload in WORKLOADS}
    payloads = Payloads()
    for turn in range(rounds + 1):
        for workload in WORKLOADS:
            costs = _pair(raw, library, workload, payloads, meter, messages, raw_first=turn % 2 == 0)
            if turn:  # round 0 opens connections and loads scripts
                slices[workload].append(costs)
            step()
    return [_figures(workload, costs) for workload, costs in slices.items()]


def _pair(
    raw: Contender,
    library: Contender,
    workload: Workload,
    payloads: Payloads,
    meter: Meter,
    messages: int,
    *,
    raw_first: bool,
) -> tuple[Cost, Cost]:
    """One slice of each, each on an empty queue; who was first is last in the next round."""
    order = (raw, library) if raw_first else (library, raw)
    count = messages * workload.times
    costs = [_slice(one, workload, payloads.take(count), meter) for one in order]
    return (costs[0], costs[1]) if raw_first else (costs[1], costs[0])


def _slice(contender: Contender, workload: Workload, messages: list[str], meter: Meter) -> Cost:
    if workload.before is not None:
        getattr(contender, workload.before)(messages)
    gc.collect()
    with meter.running() as cost:
        getattr(contender, workload.measured)(messages)
    if workload.before is None:
        contender.consume_batch(messages)
    for clock in ("client", "server", "wall"):
        setattr(cost, clock, getattr(cost, clock) / len(messages))
    return cost


def _figures(workload: Workload, costs: list[tuple[Cost, Cost]]) -> Figures:
    """A ratio is taken within a round; the median of them is what counts."""
    ratios = [raw.cpu / own.cpu for raw, own in costs]
    return Figures(
        workload=workload.name,
        ratio=median(ratios),
        spread=_spread(ratios),
        wall_ratio=median(raw.wall / own.wall for raw, own in costs),
        cpu_us=median(_column(costs, 1, "cpu")) * 1e6,
        raw_cpu_us=median(_column(costs, 0, "cpu")) * 1e6,
        messages_per_second=1 / median(_column(costs, 1, "wall")),
        raw_messages_per_second=1 / median(_column(costs, 0, "wall")),
    )


def _column(costs: list[tuple[Cost, Cost]], place: int, clock: str) -> Iterator[float]:
    return (getattr(pair[place], clock) for pair in costs)


def _spread(ratios: list[float]) -> float:
    """Half of what the middle half of the rounds spans."""
    if len(ratios) < 2:
        return 0.0
    low, _, high = quantiles(ratios, n=4)
    return (high - low) / 2
