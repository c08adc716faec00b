"""The server's clock, which leases and delays go by: whether it agrees with ours, and whether it runs evenly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from redis_message_queue.cli.doctor.finding import Finding, advice, ok, problem
from redis_message_queue.cli.node import time_at

_LOOKS = 20
_PAUSE_SECONDS = 0.02
_APART_SECONDS = 1.0
_JUMP_SECONDS = 0.25  # beyond what the way there and back explains
_SLOW_SECONDS, _STALLED_SECONDS = 0.01, 0.1


def clock(
    node: Any, now: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Iterator[Finding]:
    """The way there and back is the doubt of each look."""
    apart: list[float] = []
    drifts: list[tuple[float, float]] = []
    for _ in range(_LOOKS):
        before, sent = now(), steady()
        theirs = time_at(node).timestamp()
        received = steady()
        apart.append(theirs - (before + (received - sent) / 2))
        drifts.append((theirs - (sent + received) / 2, (received - sent) / 2))
        time.sleep(_PAUSE_SECONDS)
    yield _evenness(drifts)
    yield _agreement(median(apart))


def _evenness(drifts: list[tuple[float, float]]) -> Finding:
    """Against a clock of ours that nobody sets."""
    first, doubt = drifts[0]
    jumps = [abs(drift - first) - more - doubt for drift, more in drifts]
    if max(jumps) > _JUMP_SECONDS:
        return problem(
            "clock",
            f"the server's clock jumped by {max(jumps):.1f} s while it was watched",
            "let chrony or ntpd slew it: leases end too early or too late when it jumps",
        )
    return ok("clock", "the server's clock runs evenly")


def _agreement(apart: float) -> Finding:
    if abs(apart) < _APART_SECONDS:
        return ok("clock", f"{apart * 1000:+.0f} ms from this machine's")
    return advice(
        "clock",
        f"{apart:+,.1f} s from this machine's",
        "run chrony or ntpd on both: leases go by the server's clock alone, but publish(at=...) means yours",
    )


def latency(node: Any, steady: Callable[[], float] = time.monotonic) -> Iterator[Finding]:
    """What each command pays before anything happens."""
    ways: list[float] = []
    for _ in range(_LOOKS):
        sent = steady()
        node.ping()
        ways.append(steady() - sent)
    usual, longest = median(ways), max(ways)
    found = f"{usual * 1000:.1f} ms there and back, {longest * 1000:.1f} ms at the most of {_LOOKS}"
    if usual > _SLOW_SECONDS:
        yield advice("latency", found, "move the consumers nearer, or claim in batches: run(prefetch=100)")
    elif longest > _STALLED_SECONDS:
        yield advice("latency", found, "look for slow commands (SLOWLOG GET), forks and a machine that swaps")
    else:
        yield ok("latency", found)
