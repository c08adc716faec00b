"""When the ticks of a schedule are: time zones, daylight saving time, and long pauses."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from redis_message_queue.protocol.schedule_timing import MOST_MISSED, Timing

pytestmark = pytest.mark.topic("Schedules")

BERLIN = ZoneInfo("Europe/Berlin")


def us(text: str) -> int:
    """A time in microseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def local(ticks: list[int]) -> list[str]:
    """Ticks as a clock on a wall in Berlin shows them."""
    return [datetime.fromtimestamp(tick / 1_000_000, BERLIN).isoformat() for tick in ticks]


def ticks(timing: Timing, start: str, end: str) -> list[str]:
    return local(timing.due(us(start), us(end)))


def berlin(cron: str) -> Timing:
    return Timing.checked(cron, None, "Europe/Berlin")


@pytest.mark.promise("A schedule follows the clock of its time zone, in summer and in winter.")
def test_a_tick_has_the_local_time_in_summer_and_in_winter() -> None:
    found = ticks(berlin("0 3 1 * *"), "2026-01-15T00:00:00Z", "2026-08-15T00:00:00Z")
    assert [one[11:16] for one in found] == ["03:00"] * 7
    assert {one[-6:] for one in found} == {"+01:00", "+02:00"}


@pytest.mark.promise("A tick in an hour that the clocks skip comes right after that hour.")
def test_a_tick_in_the_skipped_hour_comes_right_after_it() -> None:
    """On 29 March 2026 the clocks go from 2:00 to 3:00."""
    assert ticks(berlin("30 2 * * *"), "2026-03-28T00:00:00Z", "2026-03-30T12:00:00Z") == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


@pytest.mark.promise("A tick in an hour that the clocks repeat comes once, the first time.")
def test_a_tick_in_the_doubled_hour_comes_once() -> None:
    """On 25 October 2026 the clocks go from 3:00 back to 2:00."""
    assert ticks(berlin("30 2 * * *"), "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z") == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


@pytest.mark.parametrize("minute", range(0, 60, 7))
def test_a_pause_that_ends_in_the_doubled_hour_changes_nothing(minute: int) -> None:
    """Whenever a consumer looks, it finds the same ticks, and the next one is in the future."""
    timing, start = berlin("30 2 * * *"), "2026-10-24T12:00:00Z"
    end = f"2026-10-25T01:{minute:02}:00Z"  # the second time that it is two o'clock
    assert ticks(timing, start, end) == ["2026-10-25T02:30:00+02:00"]
    following = timing.next_after(us(end))
    assert following is not None and local([following]) == ["2026-10-26T02:30:00+01:00"]


@pytest.mark.promise(
    "A schedule of every hour or more often has ticks in a doubled hour twice, and none in a skipped one."
)
def test_hourly_ticks_follow_the_time_that_passes() -> None:
    assert ticks(berlin("15 * * * *"), "2026-10-25T00:00:00Z", "2026-10-25T02:30:00Z") == [
        "2026-10-25T02:15:00+02:00",
        "2026-10-25T02:15:00+01:00",
        "2026-10-25T03:15:00+01:00",
    ]
    assert ticks(berlin("15 * * * *"), "2026-03-29T00:00:00Z", "2026-03-29T02:30:00Z") == [
        "2026-03-29T01:15:00+01:00",
        "2026-03-29T03:15:00+02:00",
        "2026-03-29T04:15:00+02:00",
    ]


def test_ticks_of_every_so_many_seconds_count_from_1970() -> None:
    timing = Timing.checked(None, 0.5 + 1, "UTC")
    assert timing.due(us("1970-01-01T00:00:00Z"), 4_500_000) == [1_500_000, 3_000_000, 4_500_000]
    assert timing.next_after(4_500_000) == 6_000_000
    assert timing.next_after(4_499_999) == 4_500_000


def test_seconds_are_an_optional_first_field() -> None:
    timing = Timing.checked("*/20 * * * * *", None, "UTC")
    assert timing.due(0, 60_000_000) == [20_000_000, 40_000_000, 60_000_000]


@pytest.mark.parametrize(("cron", "every_seconds"), [("* * * * * *", None), (None, 1)])
@pytest.mark.parametrize("rest_us", [0, 1, 500_000, 999_999])
def test_of_a_long_pause_the_last_ticks_count(cron: str | None, every_seconds: int | None, rest_us: int) -> None:
    timing, end = Timing.checked(cron, every_seconds, "UTC"), us("2026-02-01T00:00:00Z")
    found = timing.due(us("2026-01-01T00:00:00Z"), end + rest_us)
    assert found == [end - 1_000_000 * back for back in reversed(range(MOST_MISSED))]


@pytest.mark.parametrize("count", [MOST_MISSED - 1, MOST_MISSED, MOST_MISSED + 1])
def test_no_tick_is_lost_where_a_pause_becomes_long(count: int) -> None:
    timing, start = Timing.checked("* * * * * *", None, "UTC"), us("2026-01-01T00:00:00Z")
    found = timing.due(start, start + 1_000_000 * count)
    assert len(found) == min(count, MOST_MISSED) and found[-1] == start + 1_000_000 * count


def test_the_stored_form_is_the_same_for_the_same_timing() -> None:
    timing = Timing.checked(" 0  3 * * * ", None, "Europe/Berlin")
    assert timing == Timing.checked("0 3 * * *", None, "Europe/Berlin")
    assert Timing.from_json(timing.to_json().encode()) == timing
