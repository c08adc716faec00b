"""When the ticks of a schedule are: a cron expression in a time zone, or every so many seconds.

Times are microseconds since 1970, as the scripts count them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from redis_message_queue.values.checks import number, text
from redis_message_queue.values.errors import ConfigurationError, MissingExtraError
from redis_message_queue.values.plain_values import brief, plain

MOST_MISSED = 1_000  # ticks that are looked at after a pause; of more, the oldest are left out
_SHORTEST_SECONDS = 1
_SECOND_US = 1_000_000
_REPEATED_US = 7_200 * _SECOND_US  # longer than what the clocks repeat anywhere
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """When the ticks of a schedule are."""

    cron: str | None
    every_us: int | None
    timezone: str

    @classmethod
    def checked(cls, cron: Any, every_seconds: Any, timezone: Any) -> Timing:
        """Return the timing that these arguments describe; raise if they describe none."""
        if (cron is None) == (every_seconds is None):
            raise ConfigurationError("give cron or every_seconds, and only one of them")
        text("timezone", timezone)
        if every_seconds is not None:
            number("every_seconds", every_seconds, least=_SHORTEST_SECONDS)
            if plain(timezone) != "UTC":
                raise ConfigurationError("timezone is for cron; every_seconds counts the same in all time zones")
            return cls(None, round(plain(every_seconds) * _SECOND_US), "UTC")
        text("cron", cron)
        timing = cls(" ".join(plain(cron).split()), None, plain(timezone))
        if timing.next_after(0) is None:
            raise ConfigurationError(f"cron {brief(timing.cron)} has no date within 50 years")
        return timing

    @classmethod
    def from_json(cls, stored: bytes) -> Timing:
        """Return the timing that was stored; raise ValueError for anything else."""
        try:
            found = json.loads(stored)
            cron, every_us, timezone = found["cron"], found["every_us"], found["timezone"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("its timing is damaged") from None
        is_cron = isinstance(cron, str) and every_us is None
        is_interval = cron is None and type(every_us) is int and every_us >= _SHORTEST_SECONDS * _SECOND_US
        if not (isinstance(timezone, str) and (is_cron or is_interval)):
            raise ValueError("its timing is damaged")
        return cls(cron, every_us, timezone)

    def to_json(self) -> str:
        """Return the timing as it is stored, the same text for the same timing."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    def next_after(self, time_us: int) -> int | None:
        """Return the first tick after a time; None if there is none within 50 years."""
        return next(self._ticks_after(time_us), None)

    def due(self, after_us: int, now_us: int) -> list[int]:
        """Return the ticks after one time and up to another: of many, the last 1,000."""
        found = list(takewhile(lambda tick: tick <= now_us, islice(self._ticks_after(after_us), MOST_MISSED)))
        if len(found) < MOST_MISSED:
            return found
        # Where the clocks go back, the library finds other ticks backwards: these only tell where to begin.
        first = min(islice(self._ticks_until(now_us), 2 * MOST_MISSED))
        ticks = self._ticks_after(max(after_us, first - _REPEATED_US))
        return list(deque(takewhile(lambda tick: tick <= now_us, ticks), MOST_MISSED))

    def _ticks_after(self, time_us: int) -> Iterator[int]:
        if self.every_us is not None:
            tick = time_us - time_us % self.every_us
            while True:
                tick += self.every_us
                yield tick
        else:
            # Where the clocks go back, an expression has one tick in the doubled hour, and that may be over.
            yield from (tick for tick in self._cron_ticks(time_us, reverse=False) if tick > time_us)

    def _ticks_until(self, time_us: int) -> Iterator[int]:
        if self.every_us is not None:
            tick = time_us - time_us % self.every_us
            while True:
                yield tick
                tick -= self.every_us
        else:
            # One second later, because the library begins before the time that it is given.
            yield from (tick for tick in self._cron_ticks(time_us + _SECOND_US, reverse=True) if tick <= time_us)

    def _cron_ticks(self, time_us: int, *, reverse: bool) -> Iterator[int]:
        assert self.cron is not None
        library = _cronsim()
        start = (_EPOCH + timedelta(microseconds=time_us)).astimezone(_zone(self.timezone))
        try:
            ticks = library.CronSim(self.cron, start, reverse=reverse)
        except library.CronSimError as error:
            raise ConfigurationError(
                f"cron {brief(self.cron)} is not a cron expression ({error}); an example is '0 3 * * *', every day at "
                "three o'clock"
            ) from None
        return map(_microseconds, ticks)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError:
        raise MissingExtraError(
            "schedules with a cron expression need cronsim. Run: pip install 'redis-exact-queue[schedules]'"
        ) from None
    return cronsim


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ConfigurationError(
            f"timezone {brief(name)} is not known here; use a name such as 'Europe/Vienna', and install the package "
            "tzdata where the system has no time zones"
        ) from None
