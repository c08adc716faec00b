"""The page of a report stands alone, its verdict says no more than is known, and bad options are refused."""

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from redis_message_queue.spark.jobs.archive import ArchiveOptions
from redis_message_queue.spark.jobs.lake import SPREADS, STATES
from redis_message_queue.spark.jobs.page import render_overview, render_page
from redis_message_queue.spark.jobs.plots import (
    NARROW,
    WIDE,
    Line,
    Series,
    amount,
    bucket_size,
    draw,
    duration,
    floor_time,
    time_ticks,
    value_ticks,
)
from redis_message_queue.spark.jobs.report import OverviewOptions, ReportOptions, Window, directory_of, report
from redis_message_queue.spark.jobs.statistics import ReportStatistics, jain
from redis_message_queue.spark.jobs.verdict import Accounts, judge
from redis_message_queue.spark.time_options import parse_time
from redis_message_queue.values.errors import ArchiveError, ConfigurationError
from tests.pipeline.journal_samples import JournalSample, write_journal
from tests.pipeline.plain_archiver import NO_SESSION, archive_plainly

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def options(server, client, tmp_path):
    return ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path / "archive"))


def test_a_directory_that_cannot_be_written_is_named_before_anything_is_computed(client, options, tmp_path):
    write_journal(client, options, JournalSample(1).story(5))
    archive_plainly(options)
    (tmp_path / "file").write_text("not a directory")
    output, heard = str(tmp_path / "file" / "report"), []
    with pytest.raises(ArchiveError, match=rf"the storage at {re.escape(output)} failed: .*Not a directory"):
        report(NO_SESSION, ReportOptions(path=options.path, queue="orders", output=output), heard.append)
    assert heard == []
    with pytest.raises(ArchiveError, match=r"the storage at .*journal failed: .*Not a directory"):
        archive_plainly(ArchiveOptions(url=options.url, queue="orders", path=output))


def test_a_queue_that_was_not_archived_is_named_with_those_that_were(client, options, tmp_path):
    write_journal(client, options, JournalSample(1).story(5))
    archive_plainly(options)
    with pytest.raises(ArchiveError, match=r"no archive of the queue 'invoices' at .*; archived there: 'orders'"):
        report(NO_SESSION, ReportOptions(path=options.path, queue="invoices", output=str(tmp_path)))


# The verdict

AT = datetime(2026, 9, 21, tzinfo=UTC)


def incident(kind: str, messages: int = 1, refresh: int = 1, **more: Any) -> dict[str, Any]:
    fields = ("journal", "first_serial", "state", "tenant", "ids", "reason", "after_at", "before_at")
    return dict.fromkeys(fields) | {"kind": kind, "messages": messages, "refresh": refresh, "at": AT} | more


def verdict(*incidents: dict[str, Any], remaining: int = 0, purged: int = 0, **known: Any) -> str:
    return judge(Accounts({"waiting": remaining}, {"waiting": purged}, incidents, **{"held": 0} | known)).verdict


@pytest.mark.promise(
    "If entries are missing, or messages are older than the journal, a report says what is unknown instead of that it "
    "balances."
)
@pytest.mark.parametrize(
    ("incidents", "known", "word"),
    [
        ((), {}, "balanced"),
        ((), {"remaining": 3, "held": 3}, "balanced"),
        ((), {"remaining": 3, "purged": 2, "held": 1}, "balanced"),
        ((), {"remaining": 3, "held": 2}, "unbalanced"),
        ((), {"remaining": 3, "held": 3, "foreign": 1}, "unbalanced"),
        ((), {"remaining": 3, "held": 4, "foreign": 1}, "unknown"),
        ((), {"held": 1}, "unknown"),
        ((), {"purged": 1}, "unknown"),
        ((), {"remaining": 3, "held": None}, "unknown"),
        ((), {"held": None}, "balanced"),
        (("lost",), {}, "unbalanced"),
        (("repeated",), {}, "unbalanced"),
        (("violation",), {}, "unbalanced"),
        (("unseen",), {}, "unknown"),
        (("missing",), {}, "unknown"),
        (("missing",), {"remaining": 3, "held": 3}, "unknown"),
        (("missing", "violation"), {}, "unknown"),
        (("purged",), {}, "balanced"),
    ],
)
def test_the_verdict_is_balanced_only_where_nothing_is_missing_and_all_adds_up(incidents, known, word):
    assert verdict(*map(incident, incidents), **known) == word


def test_what_an_operator_has_acknowledged_is_accounted_for_by_name():
    """What happens afterwards is not."""
    lost, known = incident("lost"), incident("acknowledged", 0, reason="the failover of March")
    found = judge(Accounts({}, {}, [lost, known], held=0))
    assert (found.verdict, found.since, found.accounted_for) == ("balanced", AT, ("2026-09-21: the failover of March",))
    assert verdict(lost, known, incident("lost", refresh=2)) == "unbalanced"
    absent = incident("acknowledged", 2, state="absent", reason="the failover of March")
    assert verdict(known, absent, remaining=5, held=3) == "balanced"
    assert verdict(known, absent, remaining=5, held=2) == "unbalanced"


def test_what_retention_has_deleted_is_not_missing():
    """Entries that a refresh did not find at the beginning of a journal; others are."""
    deleted, first = incident("retention", 100, 0), incident("missing", 100, first_serial=1)
    assert verdict(first) == "unknown"
    assert verdict(deleted, first) == "balanced"
    assert verdict(deleted, incident("unseen")) == "balanced"
    assert verdict(deleted, incident("missing", 5, first_serial=300)) == "unknown"


@pytest.mark.parametrize(("served", "index"), [([5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([], None), ([0, 0], None)])
def test_fairness_is_one_for_equals_and_one_nth_for_a_monopoly(served, index):
    assert jain(served) == pytest.approx(index)


# The page


class Reader(HTMLParser):
    """Sees that every element that was opened is closed, in order."""

    VOID = frozenset({"meta", "line", "circle", "polyline", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in self.VOID or (tag == "rect" and not self.get_starttag_text().endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def stands_alone(text: str) -> None:
    """Nothing is fetched and nothing runs."""
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert not reader.attributes & {"src", "href", "onclick", "onload"}
    assert "url(" not in text
    assert not re.search(r"https?:", text)
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text


HOSTILE = """<script>alert('x')</script><img src=x onerror="alert(1)">"""


def small_figures(text: str = HOSTILE, queue: str = "a <b> & c", **changed) -> ReportStatistics:
    at = datetime(2026, 9, 21, 10, tzinfo=UTC)
    counts = dict.fromkeys(
        ("published", "duplicates", "delivered", "acked", "failed", "retried", "dead", "expired", "dropped"), 1
    )
    spread = {f"{name}_p{one}": None for name in SPREADS for one in (50, 95, 99)}
    levels = dict.fromkeys((*STATES, "backlog", "peak"), 0)
    conservation: dict[str, Any] = {
        "verdict": "balanced",
        "because": "all is well",
        "balanced_since": None,
        "accounted_for": [],
    }
    conservation |= {"missing_serials": 0, "odd": 0, "remaining": 0, "held": 0, "foreign": 0}
    summary = (
        *(counts | spread | levels).items(),
        *dict.fromkeys(("since", "until", "fairness", "previous", "duplicate_ratio")).items(),
        *{"entries": 5, "redriven": 0, "reclaimed": 0, "redelivered": 0, "first_at": at, "last_at": at}.items(),
        *{"redelivery_ratio": 0.5, "outcomes": 1, "errors": 1, "error_ratio": 1.0, "tenants": 1}.items(),
        *{"unit": "minute", "conservation": conservation}.items(),
    )
    tables = {
        "over_time": [
            counts | spread | levels | {"start": at, "seconds": 60, "removed": 0, "outcomes": 1, "errors": 1}
        ],
        "tenants": [counts | spread | {"tenant": text, "share": 1.0, "served": 1, "demand": 1}],
        "tenants_over_time": [counts | {"start": at, "tenant": text}],
        "consumers": [counts | {"consumer": text, "errors": 1, "outcomes": 1, "first_at": at, "last_at": at}],
        "failures": [
            {"error_type": text, "failed": 1, "retried": 0, "dead": 0, "total": 1, "messages": 1, "error": text}
        ],
        "dead_letters": [
            {"error_type": text, "reason": text, "letters": 1, "tenants": 1, "newest_id": text}
            | {"first_at": at, "last_at": at, "error": text}
        ],
        "conservation": [{"account": "entered", "messages": 1}, {"account": "acked", "messages": 1}],
        "missing": [],
    }
    return ReportStatistics(queue, dict(summary), tables | changed)


@pytest.mark.promise("The HTML report is self-contained: it loads and runs nothing, and escapes names from outside.")
def test_names_from_outside_stay_text():
    text = render_page(small_figures(), datetime.now(UTC))
    stands_alone(text)
    # A tenant is also in the legend, the values and the tooltips of its plot, in two sizes.
    assert text.count("&lt;script&gt;alert") == 8 + 4
    assert "<img" not in text
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text


def test_an_overview_escapes_names_and_links_to_each_report():
    row = small_figures().summary | {"queue": HOSTILE, "directory": directory_of(HOSTILE), "verdict": "unbalanced"}
    text = render_overview([row | {"because": HOSTILE}], Window(), START_TIME)
    assert "<script" not in text
    assert "<img" not in text
    assert f'href="{directory_of(HOSTILE).replace("%", "%25")}/report.html"' in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("name", ["..", "a/b", "Ärger", "a b%2F", "."])
def test_every_queue_has_a_directory_of_its_own_name(name):
    assert re.fullmatch(r"[A-Za-z0-9%_~-]+", directory_of(name))


START_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_page_of_a_single_minute_has_a_plot_where_there_is_something_to_show():
    """In two sizes, one for a phone. Where there is nothing it says so: no axis from 0 to 1."""
    text = render_page(small_figures(), datetime.now(UTC))
    drawn = re.findall(r'<svg class="(\w+)" .*? aria-label="([\w ]+)"', text)
    assert [name for size, name in drawn if size == "wide"] == [
        *("Throughput", "Failed attempts", "Error rate", "Tenants"),
    ]
    assert sorted(name for size, name in drawn if size == "narrow") == sorted(
        name for size, name in drawn if size == "wide"
    )
    assert "The queue was empty." in text
    assert "No message was claimed." in text


def test_a_year_fits_into_a_plot():
    at = START_TIME
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    assert bucket_size(at, at, minute) == 1
    assert bucket_size(at, at + timedelta(days=1), minute) == 10
    assert bucket_size(at, at + timedelta(days=364), minute) == 10080
    assert bucket_size(at, at + timedelta(seconds=15), second) == 1
    assert bucket_size(at, at + timedelta(seconds=599), second) == 5


def test_buckets_begin_at_round_times():
    at = datetime(2026, 1, 1, 10, 17, tzinfo=UTC)
    assert floor_time(at, timedelta(minutes=10)) == at.replace(minute=10)
    assert floor_time(at, timedelta(days=1)) == at.replace(hour=0, minute=0)


@pytest.mark.parametrize(
    ("span", "ticks"),
    [
        (timedelta(), ["10:17"]),
        (timedelta(minutes=40), ["10:20", "10:30", "10:40", "10:50"]),
        (timedelta(hours=5), ["11:00", "12:00", "13:00", "14:00", "15:00"]),
        (timedelta(days=2), ["12:00", "00:00", "12:00", "00:00"]),
    ],
)
def test_an_axis_has_round_times(span, ticks):
    at = datetime(2026, 1, 1, 10, 17, tzinfo=UTC)
    assert [one.strftime("%H:%M") for one in time_ticks(at, at + span, 6)] == ticks


@pytest.mark.parametrize(
    ("top", "unit", "ticks"),
    [
        (0, "count", [0, 1]),
        (3, "count", [0, 1, 2, 3]),
        (1_234, "count", [0, 500, 1_000, 1_500]),
        (1_900, "seconds", [0, 600, 1_200, 1_800, 2_400]),
        (0.012, "seconds", [0, 0.005, 0.01, 0.015]),
        (800_000, "seconds", [0, 172_800, 345_600, 518_400, 691_200, 864_000]),
        (0.03, "share", [0, 0.01, 0.02, 0.03]),
        (1, "count", [0, 1]),
        (1 / 30, "average", [0, 0.01, 0.02, 0.03, 0.04]),
        (0.9, "average", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3, "average", [0, 1, 2, 3]),
    ],
)
def test_an_axis_has_round_values(top, unit, ticks):
    assert value_ticks(top, unit) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (7, "7"),
        (1 / 30, "0.033"),
        (0.5, "0.5"),
        (0.04, "0.04"),
        (0.996, "1"),
        (1 / 43_200, "0.000023"),
        (2.25, "2.2"),
        (123.4, "123"),
        (1_234_567, "1,234,567"),
    ],
)
def test_an_amount_that_is_not_zero_never_reads_as_zero(value, text):
    assert amount(value) == text


def test_one_failure_in_days_is_seen_in_the_plot_and_in_its_values():
    """Over several days its bucket is an average: one dead letter in 30 minutes read 0.0, under an axis up to 1."""
    row = small_figures().tables["over_time"][0] | dict.fromkeys(("failed", "retried", "dead"), 0)
    minutes = [row | {"start": START_TIME}, row | {"start": START_TIME + timedelta(days=4)}]
    minutes.insert(1, row | {"start": START_TIME + timedelta(days=2), "dead": 1})
    found = small_figures(over_time=[one | {"seconds": 1800} for one in minutes], tenants_over_time=[])
    found.summary.update(first_at=START_TIME, last_at=START_TIME + timedelta(days=5))
    text = render_page(found, datetime.now(UTC))
    plot = text[text.index('aria-label="Failed attempts"') :]
    drawn, table = plot[: plot.index("</svg>")], plot[: plot.index("</details>")].split("<tbody>")[1]
    assert "Dead-lettered: 0.033<" in drawn
    assert re.findall(r'text-anchor="end">([\d.]+)<', drawn) == ["0", "0.01", "0.02", "0.03", "0.04"]
    assert table.count("<td>0.033</td>") == 1
    assert "0.0<" not in text


def series(lines, unit="count", times=5, **more) -> Series:
    at = [START_TIME + timedelta(minutes=minute) for minute in range(times)]
    return Series("x", "", unit, at, timedelta(minutes=1), lines, **more)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_label_has_room_beside_its_axis(size):
    """It was cut to a wrong number: "33 min" read "3 min"."""
    drawn = draw(series([Line("p", 1, [100_000.0] * 5)], "seconds"), size)
    labels = re.findall(r'<text class="tick" x="(\d+)" [^>]*text-anchor="end">([^<]+)<', drawn)
    assert any(len(text) > 5 for _, text in labels)
    assert all(int(x) >= 6.4 * len(text) for x, text in labels)


def test_a_value_between_two_gaps_is_a_dot_and_not_invisible():
    drawn = draw(series([Line("p", 1, [None, 3, None, 1, 2])]))
    assert drawn.count("<circle") == 1
    assert drawn.count("<polyline") == 1


def test_a_line_on_the_same_values_is_seen_on_the_wider_one():
    drawn = draw(series([Line("50", 1, [1] * 5, 1.5), Line("99", 2, [1] * 5, 6)]))
    assert re.findall(r'class="line (c\d)"', drawn) == ["c2", "c1"]


def test_a_page_without_entries_says_so_instead_of_naming_no_times():
    nothing = {"entries": 0, "first_at": None, "last_at": None}
    found = small_figures(over_time=[], tenants_over_time=[])
    found.summary.update(nothing | {"since": START_TIME})
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert "from 2026-01-01 00:00:00 UTC on: nothing. From 0 journal entries" in text
    found.summary["until"] = START_TIME + timedelta(days=1)
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert "from 2026-01-01 00:00:00 UTC to 2026-01-02 00:00:00 UTC: nothing. From 0 journal entries" in text
    found.summary["since"] = None
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert "What went through this queue until 2026-01-02 00:00:00 UTC: nothing. From 0 journal entries" in text


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (Window(START_TIME), "What happened from 2026-01-01 00:00:00 UTC on. Made"),
        (Window(None, START_TIME), "What happened until 2026-01-01 00:00:00 UTC. Made"),
        (
            Window(START_TIME, START_TIME + timedelta(days=1)),
            "What happened from 2026-01-01 00:00:00 UTC to 2026-01-02 00:00:00 UTC. Made",
        ),
        (Window(), "All that is archived. Made"),
    ],
)
def test_an_overview_names_only_the_bounds_that_it_has(window, says):
    text = " ".join(render_overview([], window, datetime.now(UTC)).split())
    assert says in text


@pytest.mark.parametrize(("tenants", "worst"), [(1, None), (4, "0.250")])
def test_the_worst_fairness_is_told_only_among_several_tenants(tenants, worst):
    """A tenant that asked for nothing is not one of them."""
    (row,) = small_figures().tables["tenants"]
    rows = [row | {"tenant": str(number)} for number in range(tenants)]
    found = small_figures(tenants=[*rows, row | {"tenant": "idle", "demand": 0, "served": 0}])
    found.summary["fairness"] = 1.0
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    told = re.findall(r"part of its messages delivered(?:, ([\d.]+) if only one got any)?\)", text)
    assert told == [worst or ""]


def test_missing_entries_are_a_gap_and_not_a_zero():
    minutes = [START_TIME + timedelta(minutes=minute) for minute in (0, 1, 8, 9)]
    row = small_figures().tables["over_time"][0]
    gap = {"journal": "x", "first_serial": 1, "count": 5}
    gap |= {"after_at": minutes[1], "before_at": minutes[2]}
    found = small_figures(over_time=[row | {"start": one} for one in minutes], missing=[gap], tenants_over_time=[])
    text = render_page(found, datetime.now(UTC))
    throughput = text[text.index('aria-label="Throughput"') :]
    throughput = throughput[: throughput.index("</svg>")]
    assert throughput.count("<polyline") == 4, "each of two lines is interrupted"
    assert "Entries are missing from 2026-01-01 00:01:00 UTC to 2026-01-01 00:08:00 UTC" in throughput
    found = small_figures(over_time=[row | {"start": one} for one in minutes], tenants_over_time=[])
    quiet = render_page(found, datetime.now(UTC))
    assert quiet[quiet.index('aria-label="Throughput"') :].split("</svg>")[0].count("<polyline") == 2


@pytest.mark.parametrize(
    ("given", "time"),
    [
        ("2026-09-21", "2026-09-21T00:00:00+00:00"),
        ("2026-09-21T08:00", "2026-09-21T08:00:00+00:00"),
        ("2026-09-21T08:00+02:00", "2026-09-21T08:00:00+02:00"),
        ("yesterday", "2026-11-16T00:00:00+00:00"),
        ("today", "2026-11-17T00:00:00+00:00"),
        ("36h", "2026-11-15T22:30:00+00:00"),
        ("90m", "2026-11-17T09:00:00+00:00"),
        (datetime(2026, 9, 21), "2026-09-21T00:00:00+00:00"),
    ],
)
def test_a_window_is_given_in_many_ways(given, time):
    assert parse_time("since", given, datetime(2026, 11, 17, 10, 30, tzinfo=UTC)).isoformat() == time


@pytest.mark.parametrize(
    ("times", "error", "says"),
    [
        ({"since": "monday"}, ConfigurationError, "since must be a time such as 2026-09-21.* not 'monday'"),
        ({"until": 5}, TypeError, "until must be a datetime or a text, not int"),
        ({"since": "today", "until": "yesterday"}, ConfigurationError, "until must be later than since"),
        ({"since": "99999999999d"}, ConfigurationError, "since must be a time such as .*, not '99999999999d'"),
        ({"since": "9999999999999999999h"}, ConfigurationError, "since must be a time such as"),
        ({"since": "9" * 5_000 + "m"}, ConfigurationError, "since must be a time such as"),
        (
            {"since": "0001-01-01T00:00+14:00"},
            ConfigurationError,
            r"since must be a time .*, not '0001-01-01T00:00\+14",
        ),
        ({"until": "9999-12-31T23:00-02:00"}, ConfigurationError, "until must be a time such as"),
        (
            {"since": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))},
            ConfigurationError,
            "since must be a time such as",
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused(times, error, says):
    with pytest.raises(error, match=says):
        ReportOptions(path="a", queue="b", output="c", **times)
    with pytest.raises(error, match=says):
        OverviewOptions(path="a", output="c", **times)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0"),
        (0.0000421, "42 µs"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (119.4, "119 s"),
        (7265, "2 h 1 min"),
        (86400, "1 d"),
    ],
)
def test_a_duration_is_told_in_a_handy_unit(seconds, text):
    assert duration(seconds) == text


def test_options_that_cannot_work_are_refused():
    with pytest.raises(ConfigurationError, match="output must not be empty"):
        ReportOptions(path="a", queue="b", output="")


def test_times_are_those_of_the_readers_zone(monkeypatch):
    """Without one, those of this machine."""
    found = small_figures(tenants_over_time=[])
    assert "2026-09-21 12:00:00 CEST" in render_page(found, datetime.now(UTC), ZoneInfo("Europe/Vienna"))
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert "2026-09-21 15:30:00 IST" in render_page(found, datetime.now(UTC), None)
    finally:
        monkeypatch.undo()
        time.tzset()
    with pytest.raises(ConfigurationError, match=r"timezone must be the name of a time zone .*, not 'Vienna'"):
        ReportOptions(path="a", queue="b", output="c", timezone="Vienna")


def test_the_last_bucket_is_not_drawn_as_a_fall():
    """Half of it is still to come, so its rate is that of the half that is known."""
    row = small_figures().tables["over_time"][0] | {"seconds": 600, "published": 100}
    found = small_figures(over_time=[row | {"start": START_TIME}, row | {"start": START_TIME + timedelta(minutes=10)}])
    found.tables["over_time"][1] |= {"published": 50}
    found.summary.update(first_at=START_TIME, last_at=START_TIME + timedelta(minutes=15))
    text = render_page(found, datetime.now(UTC))
    assert text.split('aria-label="Throughput"')[1].split("</svg>")[0].count("Published: 10\n") == 2


def test_a_last_bucket_of_which_less_than_a_minute_is_known_has_no_rate():
    row = small_figures().tables["over_time"][0] | {"seconds": 60, "published": 100}
    rows = [row | {"start": START_TIME + timedelta(minutes=minute)} for minute in range(3)]
    rows[2] |= {"published": 30}
    found = small_figures(over_time=rows, tenants_over_time=[])
    found.summary.update(first_at=START_TIME, last_at=START_TIME + timedelta(minutes=2, seconds=20))
    text = render_page(found, datetime.now(UTC))
    throughput = text.split('aria-label="Throughput"')[1].split("</svg>")[0]
    assert (throughput.count("Published: 100\n"), throughput.count("Published: ")) == (2, 2)


def test_the_period_before_is_shown_beside_this_one():
    found = small_figures(tenants_over_time=[])
    found.summary["previous"] = found.summary | {"since": START_TIME, "until": START_TIME, "published": 7}
    text = " ".join(render_page(found, datetime.now(UTC)).split())
    assert '<td class="text">Published</td><td>1</td><td>7</td>' in text
