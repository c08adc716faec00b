"""What the doctor says: how bad it is, what was found, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much it matters to a queue."""

    OK = "ok"
    ADVICE = "advice"  # it works, and could be safer or faster
    PROBLEM = "problem"  # messages can be lost or doubled, or the queue does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence about one thing, and one about what would be better."""

    level: Level
    check: str
    found: str
    change: str | None = None


def ok(check: str, found: str) -> Finding:
    return Finding(level=Level.OK, check=check, found=found)


def advice(check: str, found: str, change: str) -> Finding:
    return Finding(level=Level.ADVICE, check=check, found=found, change=change)


def problem(check: str, found: str, change: str) -> Finding:
    return Finding(level=Level.PROBLEM, check=check, found=found, change=change)
