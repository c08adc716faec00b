"""From costs to figures: medians, ratios, and whether the library reached its target."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from statistics import median, quantiles
from typing import Any

from bench.contender import Contender
from bench.latency import Delays
from bench.meter import Cost
from bench.pile import FEW, MANY, Site
from bench.plan import Plan
from bench.rates import Costs

Figures = dict[str, Any]

# At least so much of the speed of raw redis-py, by CPU time.
_RATES = {
    ("sync", "publish"): 1.0,
    ("sync", "dedup"): 1.1,
    ("sync", "consume"): 0.9,
    ("asyncio", "publish"): 0.9,
    ("asyncio", "dedup"): 0.9,
    ("asyncio", "consume"): 0.9,
    ("sync", "publish_batch"): 2.0,
    ("sync", "consume_batch"): 2.0,
    ("sync", "run_1"): 1.0,
    ("sync", "run_100"): 20.0,
}
# At most so many times the median delay of a raw blocking read.
_LATENCY = 2.0
# At most so many times the CPU time of an ack with 10 in flight.
_ACK = 1.3
# At most so many bytes of Redis memory; a deduplication key is compared with the peer's.
_BYTES = {"pending": 240.0, "claimed": 450.0}


def rates(costs: Costs, contenders: list[Contender]) -> list[Figures]:
    rows = []
    for (colour, workload, placement), by_name in costs.items():
        found = {c.name: _rate(by_name[c.name], by_name[c.yardstick]) for c in _present(contenders, by_name)}
        target = _RATES.get((colour, workload))
        row: Figures = {"colour": colour, "workload": workload, "placement": placement}
        row |= {"target": target, "contenders": found}
        rows.append(row | {"met": _met(found, "cpu_ratio", target, at_least)})
    return rows


def _rate(costs: list[Cost], yardstick: list[Cost]) -> Figures:
    by_cpu = [_cpu(raw) / _cpu(own) for raw, own in zip(yardstick, costs, strict=False)]
    by_wall = [raw["wall"] / own["wall"] for raw, own in zip(yardstick, costs, strict=False)]
    return {
        "cpu_ratio": median(by_cpu),
        "cpu_ratio_spread": _spread(by_cpu),
        "wall_ratio": median(by_wall),
        "cpu_us": _micros(_cpu, costs),
        "client_us": _micros(_client, costs),
        "server_us": _micros(_server, costs),
        "wall_us": _micros(_wall, costs),
    }


def latencies(delays: dict[str, Delays], contenders: list[Contender]) -> list[Figures]:
    rows = []
    for colour, by_name in delays.items():
        found = {c.name: _latency(by_name[c.name], by_name[c.yardstick]) for c in _present(contenders, by_name)}
        row = {"colour": colour, "target": _LATENCY, "contenders": found}
        rows.append(row | {"met": _met(found, "times_raw", _LATENCY, at_most)})
    return rows


def _latency(delays: list[float], yardstick: list[float]) -> Figures:
    return {
        "median_ms": median(delays) * 1e3,
        "p99_ms": _p99(delays) * 1e3,
        "times_raw": median(delays) / median(yardstick),
        "p99_times_raw": _p99(delays) / _p99(yardstick),
        "samples": len(delays),
    }


def acks(sites: list[Site], plan: Plan) -> Figures:
    found = {site.name: _ack(site) for site in sites if site.acks[MANY]}
    row = {"in_flight": plan.in_flight, "target": _ACK, "contenders": found}
    return row | {"met": _met(found, "times_few", _ACK, at_most)}


def _ack(site: Site) -> Figures:
    many, few = site.acks[MANY], site.acks[FEW]
    return {
        "many_us": _micros(_cpu, many),
        "few_us": _micros(_cpu, few),
        "times_few": _micros(_cpu, many) / _micros(_cpu, few),
        "server_times_few": _micros(_server, many) / _micros(_server, few),
    }


def memory(sites: list[Site]) -> list[Figures]:
    rows = []
    for what in ("pending", "claimed", "dedup key"):
        found = {site.name: site.weights[what] for site in sites if site.weights}
        target = _BYTES.get(what, found.get("peer", {}).get("used"))
        rows.append({"what": what, "target": target, "contenders": found, "met": _met(found, "used", target, at_most)})
    return rows


def _present(contenders: list[Contender], by_name: Mapping[str, object]) -> list[Contender]:
    """Those that did not fall out, and whose yardstick did not either."""
    return [c for c in contenders if by_name.get(c.name) and by_name.get(c.yardstick)]


def at_least(value: float, target: float) -> bool:
    return value >= target


def at_most(value: float, target: float) -> bool:
    return value <= target


def _met(
    found: dict[str, Figures], figure: str, target: float | None, holds: Callable[[float, float], bool]
) -> bool | None:
    """Compared as shown, with two decimals; None where there is no target, or no library to reach it."""
    if target is None or "library" not in found:
        return None
    return holds(round(found["library"][figure], 2), round(target, 2))


_client, _server, _wall = itemgetter("client"), itemgetter("server"), itemgetter("wall")


def _cpu(cost: Cost) -> float:
    return cost["client"] + cost["server"]


def _micros(clock: Callable[[Cost], float], costs: list[Cost]) -> float:
    return median(map(clock, costs)) * 1e6


def _spread(ratios: list[float]) -> float:
    """Half of what the middle half of the rounds spans."""
    if len(ratios) < 2:
        return 0.0
    low, _, high = quantiles(ratios, n=4)
    return (high - low) / 2


def _p99(delays: list[float]) -> float:
    return sorted(delays)[min(len(delays) - 1, len(delays) * 99 // 100)]
