"""Decides what is logged of an outage: an operation once a second while Redis is away, and one line when it is back."""

from __future__ import annotations

from dataclasses import dataclass

_LOG_SECONDS = 1.0  # between two lines about one operation
_SHORTEST_SECONDS = 1.0  # whoever has lost one connection, and opened another, needs no second line
# A failure so soon after the end belongs to the outage that has ended: its connection was opened before.
_LATE_SECONDS = 1.0


@dataclass(slots=True)
class _Outage:
    began: float
    attempts: int = 0


class Outage:
    """The failed attempts since Redis last answered, of one queue or of one partition on a node of its own."""

    def __init__(self) -> None:
        self._open: list[_Outage] = []  # one, or none: several threads may end it, and one of them does
        self._ended = float("-inf")
        self._logged: dict[str, float] = {}

    def note(self, operation: str, now: float) -> bool:
        """Count a failed attempt. Returns whether to log it."""
        if not self._open and now - self._ended > _LATE_SECONDS:
            self._open.append(_Outage(now))
        for outage in self._open:
            outage.attempts += 1
        is_due = now - self._logged.get(operation, float("-inf")) >= _LOG_SECONDS
        if is_due:
            self._logged[operation] = now
        return is_due

    def end(self, now: float) -> tuple[float, int] | None:
        """Return how long the outage took and how many attempts failed; None if it was short, or has been logged."""
        try:
            outage = self._open.pop()
        except IndexError:
            return None
        self._ended = now
        seconds = now - outage.began
        return (seconds, outage.attempts) if seconds >= _SHORTEST_SECONDS else None
