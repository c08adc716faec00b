"""The history of one message, in words: from the journal, or else from the times in its record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from redis.exceptions import ResponseError

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.protocol.operate.part_operator import PartOperator
from redis_message_queue.values.messages import MessageRecord, TraceEntry, moment
from redis_message_queue.values.wording import age, clock, messages, one_line

# Entries of the journal that one page reads: backwards from its end, or from the end of the message; and then forwards
# from when the message was published, if the first part did not reach that.
_BACKWARDS, _FORWARDS = 10_000, 5_000
_MARGIN = timedelta(milliseconds=100)  # between the time of a record and that of its entry: one script wrote both
_NO_JOURNAL = "These are the times in its record. The whole history needs a journal (journal=True)."
_NOT_ALLOWED = "These are the times in its record: the journal cannot be read with this Redis user, or is damaged."
_NOTHING = "These are the times in its record: the journal tells nothing of it, or not any more."
_CUT = f"The journal is long: {_BACKWARDS:,} entries were searched, and something may be missing."

ENDS = {
    "acked": "Acknowledged",
    "handed_off": "Acknowledged",
    "discarded": "Discarded by its handler",
    "expired": "Expired",
    "dropped": "Dropped to make room",
    "duplicate": "Suppressed as a duplicate",
    "cancelled": "Cancelled",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a message, and how long after the one before."""

    title: str
    at: datetime | None = None
    level: str = "idle"  # the color of its mark
    consumer: str | None = None
    details: tuple[str, ...] = ()
    other_id: str | None = None  # a message that has to do with it
    after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The steps of a message so far, and a note on what is missing."""

    steps: list[Step]
    note: str = ""
    ended_as: str | None = None  # if it has left the queue


async def history_of(queue: RedisMessageQueue, message_id: str, record: MessageRecord | None) -> History:
    """Return the history of a message, from at most 15,000 entries of the journal."""
    try:
        entries, note = await _journal_of(queue, message_id, record)
    except ResponseError:  # this user may not read journals, or somebody else's key is in its place
        entries, note = [], _NOT_ALLOWED
    if not entries:
        return History(_spaced(_steps_of_record(record)) if record else [], note)
    return History(_spaced(map(_step, _with_attempts(entries))), note, ENDS.get(entries[-1].event))


async def _journal_of(
    queue: RedisMessageQueue, message_id: str, record: MessageRecord | None
) -> tuple[list[TraceEntry], str]:
    finder = PartOperator(queue._protocol).finder
    if not await finder.has_journal():
        return [], _NO_JOURNAL
    ended = record.finished_at if record else None
    last = b"+" if ended is None else _entry_at(ended + _MARGIN)
    part = await finder.search_journal(message_id, max_entries=_BACKWARDS, last=last)
    found = dict(part.entries)
    if not part.is_whole and record and record.published_at:
        first = _entry_at(record.published_at - _MARGIN)
        beginning = await finder.search_journal(message_id, max_entries=_FORWARDS, first=first, last=last, forward=True)
        found = dict(beginning.entries) | found
    note = "" if part.is_whole else _CUT
    return [found[number] for number in sorted(found, key=_order)], note if found else note or _NOTHING


def _entry_at(time: datetime) -> bytes:
    """Return the id of an entry of that time: its milliseconds."""
    return str(max(0, int(time.timestamp() * 1000))).encode()


def _order(number: bytes) -> tuple[int, ...]:
    return tuple(map(int, number.split(b"-")))


def _with_attempts(entries: list[TraceEntry]) -> Iterable[TraceEntry]:
    """Number the claims, if the history begins with the first: the count of an entry is the one for the limit."""
    attempt = 0
    for entry in entries:
        if entries[0].event in ("published", "redriven") and "count" in entry.details:
            attempt += entry.event in ("claimed", "reclaimed")
            rest = {name: value for name, value in entry.details.items() if name != "count"}
            entry = replace(entry, details={"attempt": str(attempt)} | rest)
        yield entry


def _spaced(steps: Iterable[Step]) -> list[Step]:
    spaced: list[Step] = []
    for step in steps:
        before = spaced[-1].at if spaced else None
        passed = (step.at - before).total_seconds() if step.at and before else None
        spaced.append(replace(step, after_seconds=None if passed is None else max(0.0, passed)))
    return spaced


def _steps_of_record(record: MessageRecord) -> Iterable[Step]:
    times = (
        ("Published", record.published_at),
        ("Claimed", record.claimed_at),
        ("Left the queue", record.finished_at),
        ("Due", record.due_at),
    )
    return (Step(title, at) for title, at in times if at)


def _step(entry: TraceEntry) -> Step:
    said = {name: one_line(value, 300) for name, value in entry.details.items() if name not in _UNSAID}
    title, level, first = _SAID.get(entry.event, (one_line(entry.event or "unknown", 40), "idle", ()))
    names = [name for name in first if name in said] + [name for name in said if name not in first]
    details = tuple(_detail(name, said[name]) for name in names if name not in _OTHERS)
    other = next((said[name] for name in _OTHERS if name in said), None)
    return Step(title, entry.at, level, entry.consumer, details, other)


def _detail(name: str, value: str) -> str:
    if name in ("error_type", "reason"):
        return value
    if not _is_number(value):
        return f"{one_line(name, 40)} {value}"
    number = int(value)
    if name == "due":
        return f"due {clock(moment(number / 1e6))}"
    if name == "handled":
        return f"the handler ran {age(number / 1e6)}"
    if name == "results":
        return f"{messages(number)} published with it"
    words = {"count": "delivery", "failures": "failure"}
    return f"{words.get(name, one_line(name, 40))} {number}"


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 17


_OTHERS = ("of", "replay_of")  # ids of other messages
_UNSAID = ("headers", "started")
# What the page says for each event of the journal, its color, and the details that come first.
_SAID: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "published": ("Published", "idle", ()),
    "duplicate": ("Suppressed as a duplicate", "warning", ()),
    "delayed": ("Delayed", "idle", ("due",)),
    "claimed": ("Claimed", "idle", ("attempt", "count")),
    "reclaimed": ("Claimed again: the lease before had expired", "warning", ("attempt", "count")),
    "acked": ("Acknowledged", "working", ("results",)),
    "handed_off": ("Acknowledged", "working", ("results",)),
    "failed": ("Failed for good", "stuck", ("error_type", "reason", "attempt", "count")),
    "dead": ("Moved to the dead letters", "stuck", ("error_type", "reason", "attempt", "count")),
    "expired": ("Expired", "stuck", ("error_type", "reason", "attempt", "count")),
    "retried": ("Failed, to be retried", "warning", ("error_type", "due", "failures")),
    "discarded": ("Discarded by its handler", "warning", ("error_type", "reason", "attempt", "count")),
    "requeued": ("Returned to the front of the queue", "warning", ()),
    "dropped": ("Dropped to make room", "stuck", ()),
    "redriven": ("Published again, from a message that had failed", "idle", ()),
    "cancelled": ("Cancelled", "warning", ()),
}
