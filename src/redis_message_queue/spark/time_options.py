"""Options that are times: how they are written, and what they stand for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief

_AGO = re.compile(r"(\d+) ?(m|h|d)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def parse_time(name: str, value: str | datetime, now: datetime | None = None) -> datetime:
    """Return the time that a value of ``since`` or ``until`` stands for.

    Raises:
        ConfigurationError: It is none. Times without a zone are UTC.
    """
    try:
        found = _time_of(value, now or datetime.now(UTC))
        found.astimezone(UTC)  # its year must be one of 1 to 9999 there too
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{name} must be a time such as 2026-09-21, 2026-09-21T08:00 (UTC) or 2026-09-21T08:00+02:00, a time ago "
            f"such as 90m, 24h or 7d, today or yesterday, not {brief(value)}"
        ) from None
    return found


def _time_of(value: str | datetime, now: datetime) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"today": midnight, "yesterday": midnight - timedelta(days=1)}
    if value in days:
        return days[value]
    if ago := _AGO.fullmatch(value):
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    found = datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def check_time(name: str, value: Any) -> None:
    """Raise for what is no time."""
    if not isinstance(value, str | datetime):
        raise ConfigurationTypeError(f"{name} must be a datetime or a text, not {type(value).__name__}")
    parse_time(name, value)


def microseconds(time: datetime) -> int:
    """Return a time as the scripts write it: microseconds since 1970."""
    return round(time.timestamp() * 1_000_000)
