"""After a long pause a schedule has the last 1,000 ticks that it would have had, also where the clocks went back."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise, takewhile

import pytest

from redis_message_queue.protocol.schedule_timing import MOST_MISSED, Timing
from tests.depth import FULL, only_in_full

pytestmark = pytest.mark.topic("Schedules")

# On 5 April 2026 the clocks of Lord Howe go from 2:00 back to 1:30, on 25 October those of Vienna from 3:00 to 2:00.
BACK = {"Australia/Lord_Howe": "2026-04-04T15:00:00Z", "Europe/Vienna": "2026-10-25T01:00:00Z"}


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


@pytest.mark.promise("Of more than 1,000 missed ticks the last 1,000 count: those that the schedule would have had.")
@pytest.mark.parametrize("zone", BACK)
@pytest.mark.parametrize(
    "cron",
    ["30 * * * *", "30-59 1 * * *", *map(only_in_full, ("45 * * * *", "*/5 1 * * *", "*/5 2 * * *"))],
)
def test_missed_ticks_are_those_of_a_schedule_that_was_never_late(zone: str, cron: str) -> None:
    """Where a part of an hour is repeated, counting backwards would list ticks that never come, or leave some out."""
    timing = Timing.checked(cron, None, zone)
    for hours_later in (0.3, 1, 5, 40) if FULL else (0.3, 5):
        now = us(BACK[zone]) + int(hours_later * 3_600_000_000)
        after = now - 100 * 86_400_000_000
        every = list(takewhile(lambda tick: tick <= now, timing._ticks_after(after)))  # noqa: B023
        assert len(every) > MOST_MISSED
        found = timing.due(after, now)
        assert found == every[-MOST_MISSED:]
        assert all(first < second for first, second in pairwise(found))
