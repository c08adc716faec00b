"""`python -m chaos page`: writes the generated part of docs/explanation/reliability.md, and its plots."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.plan import NEMESES
from docs.plots import Band, Line, draw

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "reliability.md"
PLOTS = PAGE.with_suffix("")
# What stands between these lines is generated; everything else is written by hand.
_BEGIN, _END = "<!-- begin {}: python -m chaos page -->", "<!-- end {} -->"

_COUNTS = {
    "publishes confirmed": "publishes were confirmed to their producers",
    "publishes suppressed": "publishes were suppressed as duplicates",
    "publishes unknown": "publishes ended with an error that leaves their outcome open: each is stored once or not at "
    "all",
    "publishes refused": "publishes were refused, and none of them is stored",
    "publishes none": "publishes had no outcome, because their producer was killed",
    "confirmed publishes lost with a stale failover": "confirmed publishes were lost with a primary whose replica "
    "lagged behind, all of them of the queue that does not ask for confirmation by replicas",
    "deliveries": "deliveries to handlers",
    "messages acked": "messages were acknowledged",
    "messages handed_off": "messages were completed together with the publish of their results",
    "messages dead": "messages went to the dead letters: rejected at every attempt, or delivered too often",
    "settlements refused because the lease was lost": "settlements were refused, because their consumer had lost its "
    "lease",
    "turns checked for fairness": "turns of waiting tenants were checked",
    "deliveries in the order of their tenant": "deliveries were in order, in the queue that keeps that of its tenants",
    "ticks of schedules": "ticks of schedules were published, each once",
    "messages found in the partition of their key": "messages with a key were found in the partition that it names",
    "messages left in Redis": "messages were left in Redis",
}


def campaign_text(result: dict[str, Any]) -> str:
    """The section about a campaign."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    times = defaultdict[str, list[dict[str, Any]]](list)
    for one in result["injected"]:
        times[one["nemesis"]].append(one)
    lines = [
        f"Run at {result['started_at'].replace('+00:00', ' UTC')} with `python -m chaos --seed {result['seed']} "
        f"--minutes {result['minutes']:g}`: {len(result['injected'])} faults in {result['minutes']:g} minutes, "
        f"{result['processes']['started']} worker processes, on {result['machine']['cpus']} CPUs "
        f"({versions}).",
        "",
        "| fault | times | what happened |",
        "|---|---|---|",
        *(f"| `{name}` | {_times(times[name])} | {what} |" for name, what in NEMESES.items() if times[name]),
        *(f"| `{name}` | **left out** | {why} |" for name, why in result["left_out"].items()),
        "",
        "What the checker counted:",
        "",
        *(f"- {result['counts'][name]:,} {what}." for name, what in _COUNTS.items() if result["counts"].get(name)),
        f"- {result['journal_entries']:,} journal entries and {result['ledger_lines']:,} ledger lines were compared.",
        "",
        _verdict(result),
        *(["", result["note"]] if "note" in result else []),
        "",
        "![Throughput through the faults](reliability/throughput.svg)",
        "",
        "![Latency through the faults](reliability/latency.svg)",
        "",
        "The shaded times are faults. In a browser, the pointer shows which one.",
    ]
    return "\n".join(lines)


def _times(injected: Sequence[dict[str, Any]]) -> str:
    hits = sum(one["hits"] for one in injected)
    return f"{len(injected)}, {hits} requests" if injected[0]["nemesis"].startswith("cut") else f"{len(injected)}"


def _verdict(result: dict[str, Any]) -> str:
    if not result["violations"] and not result["failures"]:
        return "**No promise was broken, and no process ended with an error that it should have survived.**"
    broken = Counter(one.partition(" (")[0] for one in result["violations"])
    found = [f"- {rule}: {count} times" for rule, count in broken.items()]
    found += [f"- a process failed: {one.splitlines()[-1]}" for one in result["failures"]]
    return "\n".join(["**Promises were broken:**", "", *found])


def soak_text(result: dict[str, Any]) -> str:
    """The section about a soak test."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"Run at {result['started_at'].replace('+00:00', ' UTC')} with `python -m chaos soak --minutes "
        f"{result['minutes']:g}`: {result['processes']} processes, {result['changes_per_second']:g} state changes a "
        f"second, a sample every {result['every_seconds']:g} s ({versions}).",
        "",
        result["rule"],
        "",
        "| measured | median | growth | allowed | verdict |",
        "|---|---|---|---|---|",
    ]
    for name, one in result["measures"].items():
        unit = f" {one['unit']}" if one["unit"] else ""
        figures = f"{one['median']:g}{unit} | {one['growth']:+.3g}{unit} | {one['allowed']:.3g}{unit}"
        lines.append(f"| {name} | {figures} | {'flat' if one['flat'] else '**grows**'} |")
    lines += ["", "![Memory over the soak test](reliability/soak-memory.svg)", ""]
    lines += ["![Descriptors, threads, connections and keys over the soak test](reliability/soak-counts.svg)"]
    return "\n".join(lines)


def campaign_plots(result: dict[str, Any]) -> dict[str, str]:
    series = result["series"]
    seconds = [place * series["step_seconds"] for place in range(len(series["published_per_second"]))]
    bands = [Band(f"{one['nemesis']} {one['target']}", one["began"], one["ended"]) for one in result["injected"]]
    throughput = [
        Line("published", series["published_per_second"]),
        Line("handled", series["handled_per_second"]),
    ]
    latency = [
        Line("publish, median", series["publish_median_seconds"]),
        Line("publish, p99", series["publish_p99_seconds"]),
        Line("delivery, median", series["delivery_median_seconds"]),
        Line("delivery, p99", series["delivery_p99_seconds"]),
    ]
    return {
        "throughput.svg": draw("Messages a second through the faults", seconds, throughput, bands=bands),
        "latency.svg": draw(
            "Seconds that a publish and a delivery took", seconds, latency, unit=" s", bands=bands, logarithmic=True
        ),
    }


def soak_plots(result: dict[str, Any]) -> dict[str, str]:
    def lines(*names: str) -> list[Line]:
        return [Line(name, result["measures"][name]["values"]) for name in names]

    memory = lines("server memory", "server resident memory", "process memory")
    counts = lines("descriptors", "threads", "connections", "keys")
    return {
        "soak-memory.svg": draw("Memory over the soak test", result["seconds"], memory, unit=" MB"),
        "soak-counts.svg": draw("Descriptors, threads, connections and keys", result["seconds"], counts),
    }


def replace_section(text: str, name: str, section: str) -> str:
    """The page with another generated section. Raises ValueError if the page has no place for it."""
    begin, end = _BEGIN.format(name), _END.format(name)
    before, found, rest = text.partition(begin)
    _, also_found, after = rest.partition(end)
    if not found or not also_found:
        raise ValueError(f"the page has no line {begin!r} with {end!r} after it")
    return f"{before}{begin}\n\n{wrapped(section)}\n\n{end}{after}"


def wrapped(section: str) -> str:
    """The text in lines of readable length. Tables and images stay as they are."""
    return "\n".join(
        line
        if line.startswith(("|", "!", "#"))
        else textwrap.fill(line, 120, subsequent_indent="  " if line.startswith("- ") else "", break_long_words=False)
        for line in section.splitlines()
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos page", description=__doc__)
    parser.add_argument("--campaign", type=Path, help="the JSON file of a campaign")
    parser.add_argument("--soak", type=Path, help="the JSON file of a soak test")
    options = parser.parse_args(arguments)
    if not (options.campaign or options.soak):
        parser.error("give the result of a campaign or of a soak test: --campaign FILE, --soak FILE")
    text, plots = PAGE.read_text(encoding="utf-8"), dict[str, str]()
    if options.campaign:
        result = json.loads(options.campaign.read_text())
        text = replace_section(text, "campaign", campaign_text(result))
        plots |= campaign_plots(result)
    if options.soak:
        result = json.loads(options.soak.read_text())
        text = replace_section(text, "soak", soak_text(result))
        plots |= soak_plots(result)
    PAGE.write_text(text, encoding="utf-8")
    PLOTS.mkdir(exist_ok=True)
    for name, plot in plots.items():
        (PLOTS / name).write_text(plot, encoding="utf-8")
    print(f"{PAGE} written", file=sys.stderr)
    return 0
