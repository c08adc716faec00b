"""A queue with partitions is one queue on the dashboard, and its parts can be looked at."""

import re

import pytest

from redis_message_queue.dashboard.rates import Rates, summed
from redis_message_queue.testing.fast_forward import fast_forward
from tests.dashboard.pages import Page, comes
from tests.dashboard.scenario import PARTITIONED, PARTITIONS, crash_with, fail, fill_partitions, open_queue
from tests.dashboard.test_changes import change

pytestmark = pytest.mark.topic("Dashboard")


@pytest.fixture
def queue(text_client):
    return fill_partitions(text_client)


@pytest.fixture
def browser(queue, serve):
    with serve(allow_changes=True) as opened:
        yield opened


def page_of(browser, path="/queue", **asked) -> Page:
    response = browser.get(path, params={"name": PARTITIONED} | asked)
    assert response.status_code == 200, response.text
    return Page(response)


def rows(page: Page) -> list[tuple[str, str]]:
    return [(one["data-row"], one["class"]) for one in page.all("tr") if "data-row" in one and "class" in one]


@pytest.mark.promise("The dashboard shows a queue with partitions as one queue, with the verdict of the worst part.")
def test_the_first_page_has_the_whole_once(browser):
    page = Page(browser.get("/"))
    assert rows(page) == [(PARTITIONED, "stuck")]
    assert re.search(rf"{PARTITIONED} stuck {PARTITIONS} partitions ?3 messages are in flight", page.words)
    assert re.search(r" 55 12 min 3 1 2 0 ", page.words)  # waiting, oldest, in flight, delayed, failed, dead


def test_the_page_of_the_queue_has_the_whole_and_its_partitions(browser):
    page = page_of(browser)
    for said in ("55 waiting", "3 in flight", "1 delayed", "2 failed", "1 schedule", "From the journal."):
        assert said in page.words
    parts = rows(page)[:PARTITIONS]
    names = [f"{PARTITIONED}, partition {number}" for number in range(PARTITIONS)]
    assert [name for name, _ in parts] == names
    assert dict(parts)[names[0]] == "stuck"
    assert dict(parts)[names[3]] == "idle"
    assert re.search(r"acme 12 22 % 22 %", page.words)  # a tenant's share of the whole


def test_a_partition_has_its_own_pages(browser):
    links = [link for link in page_of(browser).links if "partition=2" in link]
    page = Page(browser.get(links[0]))
    assert "15 waiting" in page.words
    assert "1 delayed" in page.words
    assert f"/queue?name={PARTITIONED}" in page.links
    listed = page_of(browser, "/messages", source="pending", partition="2")
    assert len([link for link in listed.links if link.startswith("/message?") and "partition=2" in link]) == 15
    assert "2 of 2 tenants" in page_of(browser, "/tenants", partition="2").words
    assert "2 of 2 tenants" in page_of(browser, "/tenants").words
    assert browser.get("/queue", params={"name": PARTITIONED, "partition": PARTITIONS}).status_code == 404
    assert browser.get("/queue", params={"name": PARTITIONED, "partition": "x"}).status_code == 404


def test_messages_of_all_partitions_are_listed_and_searched(browser, queue):
    listed = page_of(browser, "/messages", source="pending", limit="200")
    assert len([link for link in listed.links if link.startswith("/message?")]) == 55
    assert "partition 1" in listed.words
    found = page_of(browser, "/messages", source="pending", q="bolt")
    assert "Searched all 55." in found.words
    assert len([link for link in found.links if link.startswith("/message?")]) == 3
    one_tenant = page_of(browser, "/messages", source="pending", tenant="acme")
    assert len([link for link in one_tenant.links if link.startswith("/message?")]) == 12


def test_a_message_is_found_by_its_id_in_whichever_partition_it_is(browser, queue):
    for number, source in ((0, "processing"), (2, "delayed"), (1, "failed"), (2, "pending")):
        (record,) = queue.partition(number).peek(1, source=source)
        page = page_of(browser, "/message", id=record.id)
        assert f"Partition{number}" in page.words
        assert "Published" in page.words.partition("History")[2]
        payload = browser.get("/payload", params={"name": PARTITIONED, "source": source, "id": record.id})
        assert payload.content.decode() == record.payload
    handled = queue.partition(1).peek(1)[0]
    queue.partition(1).process_message_callback(len)
    page = page_of(browser, "/message", id=handled.id)
    assert "this is what the journal tells" in page.words
    assert "Partition1" in page.words


def test_changes_work_on_the_whole(browser, queue):
    assert "Paused." in change(browser, name=PARTITIONED, action="pause")
    assert [queue.partition(number).is_paused() for number in range(PARTITIONS)] == [True] * PARTITIONS
    assert comes(lambda: "Paused for" in page_of(browser).words)
    assert "Resumed." in change(browser, name=PARTITIONED, action="resume")
    assert "Paused." in change(browser, name=PARTITIONED, action="pause", tenant="acme")
    assert list(queue.paused_tenants()) == ["acme"]
    (delayed,) = queue.peek(source="delayed")
    assert "Removed 1 message." in change(browser, name=PARTITIONED, action="cancel", source="delayed", id=[delayed.id])
    chosen = [record.id for record in queue.records("failed")][:1]
    asked = {"name": PARTITIONED, "action": "redrive", "source": "failed"}
    assert "Published 1 message again." in change(browser, **asked, id=chosen)
    assert "Published 1 message again." in change(browser, **asked)
    assert queue.stats().failed == 0
    assert "nightly" in page_of(browser, "/schedules").words
    assert "Removed." in change(browser, name=PARTITIONED, action="unschedule", schedule="nightly")
    assert queue.schedules() == []
    change(browser, typed=PARTITIONED, name=PARTITIONED, action="purge", source="pending", tenant="bolt")
    assert "Deleted 54 messages." in change(
        browser, typed=PARTITIONED, name=PARTITIONED, action="purge", source="pending"
    )
    assert queue.stats().pending == 0


def test_changes_of_a_partition_leave_the_others_alone(browser, queue):
    assert "Paused." in change(browser, name=PARTITIONED, partition="3", action="pause")
    assert [queue.partition(number).is_paused() for number in range(PARTITIONS)] == [False, False, False, True]
    assert comes(lambda: "Partition 3: Paused for" in page_of(browser).words)
    name = f"{PARTITIONED}, partition 1"
    purge = {"name": PARTITIONED, "partition": "1", "action": "purge", "source": "pending"}
    assert "Nothing was changed." in change(browser, typed=PARTITIONED, **purge)
    assert "Deleted 3 messages." in change(browser, typed=name, **purge)
    assert queue.stats().pending == 52


def test_a_partition_that_waits_while_its_consumers_serve_another_is_not_stuck(text_client, start_dashboard):
    queue = open_queue(text_client, PARTITIONED, partitions=2)
    queue.partition(0).publish_many(["a", "b"])
    queue.partition(1).publish("c")
    fast_forward(text_client, 60, queue.partition(1))
    crash_with(queue.partition(0), 1)
    with start_dashboard().browser() as browser:
        assert [level for _, level in rows(page_of(browser))][:2] == ["working", "working"]


def test_what_waits_in_a_paused_partition_does_not_make_the_whole_stuck(text_client, start_dashboard):
    queue = open_queue(text_client, PARTITIONED, partitions=2)
    queue.partition(1).publish("c")
    queue.partition(1).pause()
    fast_forward(text_client, 60, queue.partition(1))
    with start_dashboard().browser() as browser:
        page = page_of(browser)
        assert f"{PARTITIONED} warning Partition 1: Paused for" in page.words
        assert "stuck" not in page.words


def test_the_rates_of_the_partitions_are_added_up():
    journal = [
        Rates("the journal", published=2.0, handled=1.0, failed=0.0, retried=0.5, waits=(1.0, 2.0), handlings=(0.1,)),
        Rates("the journal", published=3.0, handled=1.5, failed=1.0, retried=0.0, waits=(9.0,)),
    ]
    without = Rates("the completed list", handled=7.0)
    total = summed([*journal, None, without])
    assert total is not None
    assert (total.source, total.published, total.handled, total.failed, total.retried) == (
        "the journal",
        5.0,
        2.5,
        1.0,
        0.5,
    )
    assert (total.wait_seconds, total.handling_seconds) == (2.0, 0.1)
    by_records = summed([without, without, None])
    assert by_records is not None
    assert (by_records.handled, by_records.published) == (14.0, None)
    assert summed([None, None]) is None


@pytest.mark.parametrize(
    ("named", "discover"),
    [((), True), pytest.param((PARTITIONED,), True, marks=pytest.mark.in_full), ((PARTITIONED,), False)],
)
def test_a_queue_that_grows_is_shown_with_its_new_partitions(text_client, serve, named, discover):
    queue = open_queue(text_client, PARTITIONED)
    queue.publish("one")
    with serve(*named, discover=discover) as browser:
        assert "Partitions" not in page_of(browser).words
        for count in (2, 3):
            queue.grow_partitions(count)
            queue = open_queue(text_client, PARTITIONED, partitions=count)
            queue.partition(count - 1).publish("another")
            said = f"{count} waiting"
            assert comes(lambda: said in page_of(browser).words)  # noqa: B023  it is called at once
            assert [link for link in page_of(browser).links if f"partition={count - 1}" in link]


def test_a_partition_with_new_failures_is_named(text_client, serve):
    queue = open_queue(text_client, PARTITIONED, partitions=2, enable_failed_queue=True)
    queue.partition(1).publish("one")
    fail(queue.partition(1), ValueError("no such event"))
    with serve() as browser:
        page = page_of(browser)
        assert "1 new failed message in the last 5 min: ValueError: no such event." in page.words
        assert [level for _, level in rows(page)] == ["idle", "warning"]
