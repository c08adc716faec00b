"""How fast a queue works: messages per second, and how long a message waits and is handled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from redis_message_queue.values.messages import MessageRecord

WINDOW_SECONDS = 10.0
_JOURNAL, _RECORDS = "the journal", "the completed list"
_KINDS = {  # events of the journal
    b"published": "published",
    b"redriven": "published",
    b"acked": "handled",
    b"handed_off": "handled",
    b"failed": "failed",
    b"dead": "failed",
    b"expired": "failed",
    b"retried": "retried",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second. None where the source does not tell."""

    source: str
    published: float | None = None
    handled: float | None = None
    failed: float | None = None
    retried: float | None = None
    waits: tuple[float, ...] = ()  # seconds from publishing to the claim
    handlings: tuple[float, ...] = ()  # seconds from the claim to the end
    serial: int = 0  # of the journal
    at: float = 0.0

    @property
    def wait_seconds(self) -> float | None:
        """The median."""
        return median(self.waits) if self.waits else None

    @property
    def handling_seconds(self) -> float | None:
        """The median."""
        return median(self.handlings) if self.handlings else None


def summed(parts: Sequence[Rates | None]) -> Rates | None:
    """Return the rates of a whole queue from those of its partitions, as far as they come from the same source."""
    known = [one for one in parts if one is not None]
    # A partition without a message has no journal yet.
    source = _JOURNAL if any(one.source == _JOURNAL for one in known) else _RECORDS
    same = [one for one in known if one.source == source]
    if not same:
        return None

    def total(kind: str) -> float | None:
        rates = [rate for one in same if (rate := getattr(one, kind)) is not None]
        return sum(rates) if rates else None

    return Rates(
        source,
        published=total("published"),
        handled=total("handled"),
        failed=total("failed"),
        retried=total("retried"),
        waits=tuple(wait for one in same for wait in one.waits),
        handlings=tuple(handling for one in same for handling in one.handlings),
    )


def rates_of_records(records: Sequence[MessageRecord], at: float) -> Rates:
    """Return what the newest records of handled messages tell."""
    ends = [record.finished_at.timestamp() for record in records if record.finished_at]
    recent = [end for end in ends if end > at - WINDOW_SECONDS]
    # If all of them are recent, there were more before them: count over the time that they cover.
    covered = max(at - min(recent), 0.001) if recent and len(recent) == len(records) else WINDOW_SECONDS
    claims = [record for record in records if record.claimed_at and record.published_at and record.finished_at]
    return Rates(
        _RECORDS,
        handled=len(recent) / covered,
        waits=tuple((one.claimed_at - one.published_at).total_seconds() for one in claims),  # type: ignore[operator]
        handlings=tuple((one.finished_at - one.claimed_at).total_seconds() for one in claims),  # type: ignore[operator]
    )


def rates_of_journal(
    entries: Sequence[Mapping[bytes, bytes]], serial: int, is_cut: bool, before: Rates | None, at: float
) -> Rates:
    """Return what the newest entries of a journal tell.

    If they do not reach back over the whole window, the serial numbers tell how many there were, and the entries
    which share of them each kind has.
    """
    timed = [(_seconds(entry.get(b"at")), entry) for entry in entries]
    recent = [entry for time, entry in timed if time > at - WINDOW_SECONDS]
    counts = Counter(_KINDS[event] for entry in recent if (event := entry.get(b"event", b"")) in _KINDS)
    factor = 1 / WINDOW_SECONDS
    if is_cut and len(recent) == len(entries):
        if before is not None and before.serial and at > before.at:
            factor = max(0, serial - before.serial) / (at - before.at) / len(recent)
        else:
            factor = 1 / max(at - min(time for time, _ in timed), 0.001)
    waits, handlings = _durations(timed)
    return Rates(
        _JOURNAL,
        **{kind: counts[kind] * factor for kind in ("published", "handled", "failed", "retried")},
        waits=tuple(waits),
        handlings=tuple(handlings),
        serial=serial,
        at=at,
    )


def _durations(timed: Sequence[tuple[float, Mapping[bytes, bytes]]]) -> tuple[list[float], list[float]]:
    """Return how long messages waited and were handled, as far as both ends are among these entries."""
    since: dict[tuple[bytes, str], float] = {}
    waits, handlings = [], []
    for time, entry in reversed(timed):
        message, event = entry.get(b"id", b""), entry.get(b"event", b"")
        if event == b"published":
            since[message, "published"] = time
        elif event in (b"claimed", b"reclaimed"):
            since[message, "claimed"] = time
            if (published := since.pop((message, "published"), None)) is not None:
                waits.append(time - published)
        elif (claimed := since.pop((message, "claimed"), None)) is not None:
            handlings.append(time - claimed)
    return waits, handlings


def _seconds(microseconds: bytes | None) -> float:
    return int(microseconds) / 1e6 if microseconds and microseconds.isdigit() else 0.0
