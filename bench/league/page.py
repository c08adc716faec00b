"""Writes docs/explanation/league.md: the tables of the league, its plots, and what makes it unfair."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.contender import ROOT
from bench.league.loss import HANDLER_SECONDS as LOSS_SECONDS
from bench.league.loss import PER_SECOND, SCHEDULE
from bench.league.measure import CALLERS, HANDLER_SECONDS, Plan
from bench.league.members import LIBRARY, MEMBERS, RAW, Member
from docs.plots import OTHER, OURS, Bar, bars

PATH = Path("docs", "explanation", "league.md")
PLOTS = Path("docs", "explanation", "league")
_WORKLOADS = {
    "publish": "publish",
    "publish_once": "deduplicated",
    "publish_batch": "publish, 100 at once",
    "publish_crowd": "publish, 100 callers",
    "consume": "consume",
    "consume_batch": "consume, 100 at once",
}
_ABOUT = """# The league

Other queues on Redis for Python beside this one. `make league` measures and writes this page. Each member runs its
ordinary worker, through its documented API. The yardstick is raw redis-py (`LPUSH`; `BLMOVE` and `LREM`), which
guarantees nothing.
"""
_HOW = """
## How it measures

- Each member has its own environment and server, and is measured in turns with raw redis-py, in alternating order. A
  ratio is computed within a round: the table shows the median.
- A figure is the CPU time of client or worker, with its child processes, and server, on one CPU. A ratio is raw cost /
  own cost: 1.00 is as fast as raw redis-py, 0.50 takes twice as long.
- A message is a dict whose JSON has 198 bytes. Its handler appends a line to a file.
- *Consume* is the time until a stopped worker that continues has handled a full queue.
- *Memory* is the sum of `MEMORY USAGE` over all keys, for each message.
"""


def tables(results: list[dict[str, Any]]) -> str:
    """All tables as Markdown."""
    found = [one for one in results if "left_out" not in one]
    return "\n".join(
        [
            *(*_speed(found), *_micros(found), *_callers(found), *_delays(found), *_memory(found), *_loss(found)),
            *_missing(results),
        ]
    )


def write(results: list[dict[str, Any]]) -> None:
    """Replace the page and its plots."""
    found = [one for one in results if "left_out" not in one]
    (ROOT / PATH).write_text(
        "\n".join([_ABOUT, *_when(found), tables(results), _HOW, *_unfair(results)]).rstrip() + "\n"
    )
    (ROOT / PLOTS).mkdir(exist_ok=True)
    for workload in ("publish", "consume"):
        values = {one["name"]: ratio for one in found if (ratio := _ratio(one, workload))}
        title = f"{workload}: speed relative to raw redis-py (1.00 is as fast)"
        (ROOT / PLOTS / f"{workload}.svg").write_text(relative_bars(title, values))


def relative_bars(title: str, values: dict[str, float]) -> str:
    """Bars of all members, the fastest first, with ours in another colour."""
    ordered = sorted(values.items(), key=lambda one: -one[1])
    rows = {name: [Bar(value, OURS if name == LIBRARY else OTHER)] for name, value in ordered}
    return bars(title, rows, line=1.0)


def _when(found: list[dict[str, Any]]) -> Iterator[str]:
    first = found[0]
    loads = [load for one in found for load in one["load"]]
    yield (
        f"Measured on {first['date']} with {first['server']} on {first['cpus']} CPUs ({first['processor']}), "
        f"{first['plan']['rounds']} rounds. The load average was {min(loads):g} to {max(loads):g}."
    )


def _speed(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n## Speed, relative to raw redis-py\n"
    yield from _table(
        ["", *_WORKLOADS.values()],
        ([_name(one), *(_number(_ratio(one, workload), "{:.2f}") for workload in _WORKLOADS)] for one in found),
    )
    yield "\nA dash: the member has no such call.\n"
    yield "![Publish](league/publish.svg)\n\n![Consume](league/consume.svg)"


def _micros(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n## Microseconds for each message\n\nCPU time of client and server, and the wall clock in brackets.\n"

    def cell(one: dict[str, Any], workload: str) -> str:
        own = one["costs"].get(workload, {}).get("own")
        if not own:
            return "-"
        cpu, wall = (median(sum(cost[clock] for clock in clocks) for cost in own) * 1e6 for clocks in (_CPU, ("wall",)))
        return f"{cpu:,.0f} ({wall:,.0f})"

    yield from _table(["", *_WORKLOADS.values()], ([_name(one), *(cell(one, w) for w in _WORKLOADS)] for one in found))


def _callers(found: list[dict[str, Any]]) -> Iterator[str]:
    """Many callers at a time: what most applications and workers are."""
    yield "\n## Many callers\n"
    yield (
        f"*Publish*: messages a second that {CALLERS} callers publish at the same time, by the wall clock, while "
        f"client and server share a CPU. *Handlers*: messages a second that a worker handles, {CALLERS} at a time, if "
        "each handler only waits; in brackets the share of what is possible.\n"
    )

    def cells(one: dict[str, Any]) -> Iterator[str]:
        own = one["costs"].get("publish_crowd", {}).get("own")
        yield f"{1 / median(cost['wall'] for cost in own):,.0f}" if own else "-"
        for seconds in HANDLER_SECONDS:
            rate = one.get("waiting_handlers", {}).get(f"{seconds:g}")
            yield f"{rate:,.0f} ({rate * seconds / CALLERS:.2f})" if rate else "-"

    heads = [f"handlers of {seconds * 1e3:g} ms" for seconds in HANDLER_SECONDS]
    yield from _table(["", "publish", *heads], ([_name(one), *cells(one)] for one in found))


def _delays(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n## Delay from publish to handler, in milliseconds\n"
    yield "By the wall clock. *Load* is an even rate of messages; who cannot keep up shows its backlog here.\n"

    def cells(one: dict[str, Any]) -> Iterator[str]:
        for kind in ("idle", "load"):
            samples = sorted(one.get("delays", {}).get(kind, []))
            for part in (0.5, 0.99):
                yield f"{samples[int((len(samples) - 1) * part)] * 1e3:,.1f}" if samples else "-"

    plan = found[0]["plan"] if found else {}
    load = f"{plan.get('load_per_second', 0):g}/s"
    yield from _table(
        ["", "idle, p50", "idle, p99", f"{load}, p50", f"{load}, p99"], ([_name(one), *cells(one)] for one in found)
    )


def _memory(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n## Bytes in Redis for each message\n"
    yield "0: Redis has no copy of a message while a worker handles it, and cannot bring it back if the worker dies.\n"
    rows = (
        [_name(one), *(_number(one.get("memory", {}).get(kind), "{:,.0f}") for kind in ("waiting", "in flight"))]
        for one in found
    )
    yield from _table(["", "waiting", "in flight"], rows)


def _loss(found: list[dict[str, Any]]) -> Iterator[str]:
    kills, cuts = (sum(what.startswith(word) for _, what in SCHEDULE) for word in ("kill", "cut"))
    plan = Plan(**found[0]["plan"]) if found else Plan()
    lost = sum(what == "lose reply" for _, what in SCHEDULE)
    yield "\n## Messages lost, stuck and doubled\n"
    yield (
        f"While a producer publishes {PER_SECOND:g} messages a second, the worker's processes are killed {kills} "
        f"times, connections are cut {cuts} times, and the reply to a request of the producer is lost {lost} times. A "
        f"handler takes {LOSS_SECONDS * 1e3:g} ms. The producer publishes again if its call raises, and a worker "
        "that ends is started again. What recovers the messages of a dead worker is set to "
        f"{plan.lease_seconds} s if it can be. "
        f"*Stuck*: in Redis, but not handled within {plan.loss_grace_seconds:g} s. *Doubled*: handled more than once, "
        "which is nobody's fault if the worker is killed between handler and acknowledgement.\n"
    )
    columns = ("confirmed", "lost", "stuck", "doubled", "errors", "crashes")
    head = ["", *columns[:4], "publishes that raised", "workers that ended", "settings"]
    rows = (
        [_name(one), *(_number(one.get("loss", {}).get(column), "{:,}") for column in columns), _member(one).settings]
        for one in found
    )
    yield from _table(head, rows)


def _missing(results: list[dict[str, Any]]) -> Iterator[str]:
    whole = {one["name"]: one["left_out"] for one in results if "left_out" in one}
    parts = {f"{one['name']}, {part}": why for one in results for part, why in one.get("parts_left_out", {}).items()}
    if whole or parts:
        yield "\n## Left out\n"
        yield from (f"- {name}: {why}" for name, why in (whole | parts).items())


def _unfair(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "\n## What makes each comparison unfair\n"
    rows = ([_name(one), _member(one).guarantee, _member(one).unfair, _versions(one)] for one in results)
    yield from _table(["", "guarantee", "what to bear in mind", "versions"], rows)


def _versions(one: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in one.get("versions", {}).items())


_CPU = ("client", "server")


def _ratio(one: dict[str, Any], workload: str) -> float | None:
    sides = one["costs"].get(workload)
    if not sides:
        return None
    both = zip(sides["raw"], sides["own"], strict=True)
    ratios = [sum(raw[clock] for clock in _CPU) / sum(own[clock] for clock in _CPU) for raw, own in both]
    return float(median(ratios))


def _member(one: dict[str, Any]) -> Member:
    return next(member for member in MEMBERS if member.name == one["name"])


def _name(one: dict[str, Any]) -> str:
    return f"**{LIBRARY}**" if one["name"] == LIBRARY else "raw redis-py" if one["name"] == RAW else str(one["name"])


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
