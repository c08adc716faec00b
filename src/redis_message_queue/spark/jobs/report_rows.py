"""The rows of the tables of a report: which columns are times and texts, and what is shown for those not known."""

from typing import Any

from redis_message_queue.spark.journal import from_microseconds

Row = dict[str, Any]
TIMES = frozenset({"minute", "second", "first_at", "last_at", "after_at", "before_at", "from_at", "to_at"})
_TEXTS = frozenset({"tenant", "error_type", "reason", "newest_id", "journal"})


def in_utc(row: Row) -> Row:
    """Make times from numbers, and nothing from texts that are not known."""
    return {
        name: from_microseconds(value)
        if name in TIMES and value is not None
        else value or None
        if name in _TEXTS
        else value
        for name, value in row.items()
    }
