"""Computes medians and ratios from the costs, and whether the library reaches its targets."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from statistics import median, quantiles
from typing import Any

from bench.contender import Contender
from bench.in_flight import FEW, MANY, Site
from bench.latency import Delays
from bench.meter import Cost
from bench.plan import Plan
from bench.rates import Costs

Figures = dict[str, Any]

# The least speed relative to raw redis-py, by CPU time: with hiredis on both sides, and without it.
_RATES = {
    ("sync", "publish"): (1.0, 1.3),
    ("sync", "dedup"): (1.3, 1.5),
    ("sync", "consume"): (0.85, 1.0),
    ("sync", "crowd"): (2.0, 2.0),
    ("async", "crowd"): (5.0, 5.0),
    ("sync", "publish_batch"): (2.0, 2.0),
    ("sync", "consume_batch"): (2.6, 2.6),
    ("async", "publish"): (1.2, 1.2),
    ("async", "consume"): (1.2, 1.2),
}
# The largest median delay, relative to a raw blocking read.
_LATENCY = 2.0
# The largest median delay of a message that is due, in milliseconds.
_DUE_MS = 10.0
# The largest CPU time of an ack with many messages in flight, relative to one with 10 in flight.
_ACK = 1.3
# The most bytes of Redis memory per message. A deduplication key is compared with the peer's.
_BYTES = {"pending": 240.0, "claimed": 450.0}


def rates(costs: Costs, contenders: list[Contender]) -> list[Figures]:
    rows = []
    for (shell, workload, placement), by_name in costs.items():
        found = {c.name: _rate(by_name[c.name], by_name[c.baseline]) for c in _present(contenders, by_name)}
        target, plain = _RATES.get((shell, workload), (None, None))
        row: Figures = {"shell": shell, "workload": workload, "placement": placement}
        row |= {"target": target, "target_plain": plain, "contenders": found}
        row |= {"met": _met(found, "cpu_ratio", target, at_least)}
        rows.append(row | {"met_plain": _met(found, "cpu_ratio", plain, at_least, "library, plain")})
    return rows


def _rate(costs: list[Cost], baseline: list[Cost]) -> Figures:
    by_cpu = [_cpu(raw) / _cpu(own) for raw, own in zip(baseline, costs, strict=False)]
    by_wall = [raw["wall"] / own["wall"] for raw, own in zip(baseline, costs, strict=False)]
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
    for shell, by_name in delays.items():
        found = {c.name: _latency(by_name[c.name], by_name[c.baseline]) for c in _present(contenders, by_name)}
        row = {"shell": shell, "target": _LATENCY, "contenders": found}
        rows.append(row | {"met": _met(found, "times_raw", _LATENCY, at_most)})
    return rows


def _latency(delays: list[float], baseline: list[float]) -> Figures:
    return {
        "median_ms": median(delays) * 1e3,
        "p99_ms": _p99(delays) * 1e3,
        "times_raw": median(delays) / median(baseline),
        "p99_times_raw": _p99(delays) / _p99(baseline),
        "samples": len(delays),
    }


def due(delays: dict[str, list[float]]) -> list[Figures]:
    """How late delayed messages are, in milliseconds."""
    return [
        {
            "shell": shell,
            "median_ms": median(found) * 1e3,
            "p90_ms": sorted(found)[len(found) * 9 // 10] * 1e3,
            "samples": len(found),
            "target": _DUE_MS,
            "met": median(found) * 1e3 <= _DUE_MS,
        }
        for shell, found in delays.items()
        if found
    ]


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
        found = {site.name: site.memory[what] for site in sites if site.memory}
        target = _BYTES.get(what, found.get("peer", {}).get("used"))
        rows.append({"what": what, "target": target, "contenders": found, "met": _met(found, "used", target, at_most)})
    return rows


def _present(contenders: list[Contender], by_name: Mapping[str, object]) -> list[Contender]:
    """The contenders that did not fail and whose baseline did not fail."""
    return [c for c in contenders if by_name.get(c.name) and by_name.get(c.baseline)]


def at_least(value: float, target: float) -> bool:
    return value >= target


def at_most(value: float, target: float) -> bool:
    return value <= target


def _met(
    found: dict[str, Figures],
    figure: str,
    target: float | None,
    holds: Callable[[float, float], bool],
    name: str = "library",
) -> bool | None:
    """Whether the library meets the target, compared with two decimals as shown. None without target or library."""
    if target is None or name not in found:
        return None
    return holds(round(found[name][figure], 2), round(target, 2))


_client, _server, _wall = itemgetter("client"), itemgetter("server"), itemgetter("wall")


def _cpu(cost: Cost) -> float:
    return cost["client"] + cost["server"]


def _micros(clock: Callable[[Cost], float], costs: list[Cost]) -> float:
    return median(map(clock, costs)) * 1e6


def _spread(ratios: list[float]) -> float:
    """Half of the interquartile range."""
    if len(ratios) < 2:
        return 0.0
    low, _, high = quantiles(ratios, n=4)
    return (high - low) / 2


def _p99(delays: list[float]) -> float:
    return sorted(delays)[min(len(delays) - 1, len(delays) * 99 // 100)]
