"""The pages say what is stuck and why, and show the messages."""

import json
import os
import re
import socket
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored.permissions import OPERATOR
from redis_message_queue.testing.fast_forward import fast_forward
from tests.dashboard.pages import Page, comes
from tests.dashboard.running import served
from tests.dashboard.scenario import HOSTILE, QUEUES, crash_with, fill, open_queue
from tests.workers import connect_worker

pytestmark = pytest.mark.topic("Dashboard")

SOURCES = ("pending", "processing", "delayed", "failed", "dead_letters", "completed")


def events(browser: httpx.Client, path: str, count: int, **parameters) -> list[Page]:
    """The first parts that a stream sends."""
    found = []
    with browser.stream("GET", path, params=parameters) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(Page(httpx.Response(200, text=json.loads(line.removeprefix("data: ")))))
            if len(found) == count:
                return found
    raise AssertionError("the stream ended")


def every_page(browser: httpx.Client) -> dict[str, httpx.Response]:
    """Each page of each queue, also of each message that a list links to."""
    found = {"/": browser.get("/")}
    for name in QUEUES:
        found[f"queue {name}"] = browser.get("/queue", params={"name": name})
        found[f"schedules {name}"] = browser.get("/schedules", params={"name": name})
        found[f"tenants {name}"] = browser.get("/tenants", params={"name": name, "q": HOSTILE})
        for source in SOURCES:
            listed = browser.get("/messages", params={"name": name, "source": source, "q": "", "where": ""})
            found[f"{source} {name}"] = listed
            for link in [one for one in Page(listed).links if one.startswith("/message?")][:2]:
                found[link] = browser.get(link)
    return found


@dataclass
class Looked:
    """Everything that the dashboard shows, and what the server contained before and after."""

    pages: dict[str, httpx.Response]
    streams: list[Page]
    before: dict[bytes, bytes]
    after: dict[bytes, bytes]


@pytest.fixture(scope="module")
def looked(server: EmbeddedRedis) -> Looked:
    """Once for several tests, because there are more than a hundred pages."""
    with server.client() as client:

        def content() -> dict[bytes, bytes]:
            return {key: client.dump(key) for key in client.scan_iter()}

        client.flushall()
        fill(client)
        before = content()
        with served(server.url, *QUEUES) as browser:
            pages = every_page(browser)
            browser.get("/queue", params={"name": "never used"})
            streams = [*events(browser, "/events", 2), *events(browser, "/events", 1, name=HOSTILE)]
        return Looked(pages, streams, before, content())


@pytest.mark.promise("The dashboard says in plain words which queue is stuck and why, the worst first.")
def test_the_first_page_says_what_is_stuck_and_why(browser):
    page = Page(browser.get("/"))
    assert "2 of 8 queues are stuck" in page.words
    assert re.search(
        r"3 messages are in flight with no consumer renewing: the first lease ended \d+ min ago", page.words
    )
    assert re.search(r"1,204 messages waiting, the oldest for \d+ min, and none in flight", page.words)
    assert "6 new failed messages in the last 5 min: most often ValueError: no such customer." in page.words
    assert "Consumer group nightly holds 300 messages, and no query is running." in page.words
    rows = [attributes for attributes in page.all("tr") if "data-row" in attributes]
    assert [row["class"] for row in rows] == ["stuck"] * 2 + ["warning"] * 4 + ["working", "idle"]


def test_a_queue_has_its_counts_consumers_tenants_and_throughput(browser, client):
    page = Page(browser.get("/queue", params={"name": "thumbnails"}))
    assert "144 waiting" in page.words
    assert re.search(rf"{re.escape(socket.gethostname())}:{os.getpid()} 4 \d", page.words)
    assert re.search(r"acme 1\d\d 8\d % 8\d % \d", page.words)
    assert "From the journal." in page.words
    assert "nightly not running 300 2 0 ms 2" in Page(browser.get("/queue", params={"name": "reports"})).words
    assert "From the completed list." in Page(browser.get("/queue", params={"name": "invoices"})).words
    assert "Throughput and latency need a journal" in Page(browser.get("/queue", params={"name": "orders"})).words


@pytest.mark.promise(
    "Nothing that a queue contains can run in a browser: names, tenants, payloads and errors are text."
)
def test_hostile_names_tenants_payloads_and_errors_are_only_text(looked):
    pages = looked.pages
    assert len(pages) > 50
    for where, response in pages.items():
        page = Page(response)
        assert response.status_code == 200, where
        assert page.dangers() == [], where
        assert "\x1b" not in page.text, where
        assert "\u202e" not in page.text, where
        assert "49" not in re.findall(r"evil(\w+)", page.text), where  # {{7*7}} is no template
    assert "<script>alert(1)</script>" in Page(pages["/"]).text
    assert [stream.dangers() for stream in looked.streams] == [[], [], []]


@pytest.mark.promise("Every page of the dashboard forbids inline scripts, other hosts and frames.")
@pytest.mark.promise(
    "The page of a dead letter names the consumer that had it; each page of the dashboard has one heading."
)
def test_every_page_has_one_heading(looked):
    for path, response in looked.pages.items():
        assert len(Page(response).all("h1")) == 1, path


def test_every_answer_has_a_strict_policy(browser):
    paths = ("/", "/queue?name=orders", "/nowhere", "/static/dashboard.js", "/queue?name=a::pending::b", "/events")
    for path in paths:
        with browser.stream("GET", path) as response:
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["x-frame-options"] == "DENY"


def test_nothing_is_loaded_from_elsewhere(browser):
    for path in ("/static/dashboard.js", "/static/dashboard.css", "/static/icon.svg"):
        response = browser.get(path)
        assert response.status_code == 200
        assert "//" not in response.text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")
        assert len(response.content) < 12_000


@pytest.mark.promise("The pages of the dashboard update themselves while you look at them.")
def test_a_stream_shows_what_has_changed(browser, client):
    first, second = events(browser, "/events", 2, name="invoices")
    assert "Empty: nothing waits" in first.words
    assert second.words.startswith("invoices idle")
    open_queue(client, "invoices").publish("fresh")
    assert comes(lambda: "1 waiting" in events(browser, "/events", 1, name="invoices")[0].words)


def test_messages_can_be_searched_by_text_id_and_condition(browser, client):
    def found(**asked: str) -> list[str]:
        page = Page(browser.get("/messages", params={"name": "payments", "source": "failed"} | asked))
        return [one for one in page.links if one.startswith("/message?")]

    everything = found()
    assert len(everything) == 6
    assert len(found(q="no such CUSTOMER")) == 5
    assert len(found(where="error_type == 'TimeoutError'")) == 1
    assert found(q=httpx.URL(everything[2]).params["id"]) == [everything[2]]
    assert found(q="nowhere to be found") == []


def test_a_search_says_whether_it_has_seen_everything(browser, client):
    open_queue(client, "invoices").publish_many([f"invoice {number}" for number in range(60)])

    def words(text: str) -> str:
        asked = {"name": "invoices", "source": "pending", "q": text, "limit": "5"}
        return Page(browser.get("/messages", params=asked)).words

    assert "Searched the first 50." in words("invoice")  # the first step has found enough
    assert "Searched all 60." in words("nowhere to be found")


def test_a_condition_that_cannot_be_read_is_explained(browser):
    for where in ("tenant ==", "__import__('os')", "1 +", "x" * 20_000, "\0"):
        response = browser.get("/messages", params={"name": "payments", "source": "failed", "where": where})
        assert response.status_code == 200
        assert "condition:" in Page(response).words


def test_a_message_has_its_payload_and_history(browser):
    listed = Page(browser.get("/messages", params={"name": "payments", "source": "failed"}))
    link = next(one for one in listed.links if one.startswith("/message?"))
    page = Page(browser.get(link))
    assert "TimeoutError: bank did not answer" in page.words
    assert "Published" in page.words
    assert '"amount": "12.50"' in page.text
    download = browser.get(next(one for one in page.links if one.startswith("/payload?")))
    assert download.content == b'{"payment": 5, "amount": "12.50"}'
    assert download.headers["content-type"] == "application/octet-stream"
    assert download.headers["content-disposition"].startswith("attachment")


def test_a_message_in_flight_or_waiting_can_be_opened(browser):
    for source in ("processing", "pending"):
        listed = Page(browser.get("/messages", params={"name": "orders", "source": source}))
        page = Page(browser.get(next(one for one in listed.links if one.startswith("/message?"))))
        assert '"order": ' in page.text
        assert ("Held by" in page.words) == (source == "processing")


@pytest.mark.promise("The dashboard tells the whole history of a message: who claimed it, and what became of it.")
def test_a_message_has_its_whole_history_from_the_journal(browser, client):
    (record,) = open_queue(client, "shipments").records("failed")
    page = Page(browser.get("/message", params={"name": "shipments", "source": "failed", "id": record.id}))
    here = rf"{re.escape(socket.gethostname())}:{os.getpid()}"
    told = (
        *("Published", f"Claimed by {here} attempt 1", f"lease before had expired by {here} attempt 2"),
        *("Failed, to be retried TimeoutError", "due 20", f"Claimed by {here} attempt 3", "Failed for good ValueError"),
    )
    assert re.search(".*".join(told), page.words), page.words
    assert page.words.count(" later") == 5
    assert page.words.count("in handler raise error ValueError: ") == 1, "where it was raised"
    assert "needs a journal" not in page.words


@pytest.mark.promise("The dashboard knows who works on a queue, also while it waits, and says when nobody does.")
def test_a_queue_has_its_workers_and_a_message_what_it_waits_for(browser, text_client):
    queue = open_queue(text_client, "shipments")
    waiting = queue.submit("a", tenant="acme")
    asked = {"name": "shipments", "id": waiting.id}
    page = Page(browser.get("/message", params=asked))
    assert "It is the next message of tenant acme; no registered worker, but messages are being claimed." in page.words
    connect_worker(text_client, queue, claimed_ago=20)
    shown = re.compile(r"Workers Worker.* host7:4711 1 \d+ s ago 5 min 0\.1\.0")
    assert comes(lambda: shown.search(Page(browser.get("/queue", params={"name": "shipments"})).words) is not None)


def test_a_message_is_found_by_its_id_wherever_it_is(browser, text_client):
    queue = open_queue(text_client, "shipments", journal=True, enable_failed_queue=True)
    acked, waiting, delayed = queue.submit("a"), queue.submit("b"), queue.submit("c", delay_seconds=60)
    (failed,) = queue.records("failed")

    def place(message_id: str | None, **asked: str) -> str:
        page = Page(browser.get("/message", params={"name": "shipments", "id": message_id} | asked))
        return page.words.partition(f"{message_id} ")[2].partition(" History")[0]

    assert place(acked.id).startswith("Waiting")
    queue.process_message_callback(len)
    acknowledged = place(acked.id, source="pending")
    assert re.match(r"Acknowledged It was acknowledged by \S+ at .* UTC\. ?It is not among", acknowledged), acknowledged
    assert place(waiting.id).startswith("Waiting")
    pasted = {"name": "shipments", "id": f" {waiting.id.upper()} "}
    assert waiting.id in Page(browser.get("/message", params=pasted)).words
    assert place(delayed.id).startswith("Delayed")
    assert place(failed.id, source="pending").startswith("Failed ValueError: no such street")
    assert queue.redrive_failed().redriven == 1
    (again,) = (record.id for record in queue.peek() if record.replay_of)
    assert "Published again" in Page(browser.get("/message", params={"name": "shipments", "id": again})).words
    page = Page(browser.get("/message", params={"name": "shipments", "id": again}))
    assert f"/message?name=shipments&id={failed.id}" in page.links
    assert browser.get("/message", params={"name": "shipments", "id": "0" * 32}).status_code == 404


def test_the_history_of_an_old_message_is_found_in_a_long_journal(browser, client):
    """Its record says where to look, so that a page costs little."""
    queue = open_queue(client, "shipments")
    (record,) = queue.records("failed")

    def lengthen_journal(queue: RedisMessageQueue) -> None:
        """Add more than one page reads, a second later."""
        last = int(client.xinfo_stream(queue.key.journal)["last-generated-id"].partition(b"-")[0])
        add = """
            for place = 0, 11999 do
                redis.call("XADD", KEYS[1], ARGV[1] .. "-" .. place, "event", "acked", "id", ARGV[2])
            end
        """
        client.eval(add, 1, queue.key.journal, last + 1_000, "f" * 32)

    lengthen_journal(queue)
    asked = {"name": "shipments", "source": "failed", "id": record.id}
    page = Page(browser.get("/message", params=asked))
    assert "Claimed by" in page.words and "Failed for good" in page.words
    assert "something may be missing" not in page.words
    # The latest of a message in flight is at the end of the journal, and its beginning where it was published.
    thumbnails = open_queue(client, "thumbnails")
    held = thumbnails.peek(source="processing")[0]
    lengthen_journal(thumbnails)
    page = Page(browser.get("/message", params={"name": "thumbnails", "source": "processing", "id": held.id}))
    assert re.search("Published .* Claimed by .* something may be missing", page.words), page.words
    # Without a record, the search has to start at the end of the journal, and gives up.
    queue.purge("failed")
    assert browser.get("/message", params=asked).status_code == 404


def test_without_a_journal_the_record_tells_its_times(browser, client):
    (record, *_) = open_queue(client, "payments").records("failed")
    page = Page(browser.get("/message", params={"name": "payments", "source": "failed", "id": record.id}))
    assert "needs a journal (journal=True)" in page.words
    assert re.search("Published .* Left the queue", page.words)


def test_bytes_that_are_no_text_and_values_that_are_not_ours_are_shown(browser, client):
    client.lpush("orders::pending", b"\xff\xfe foreign", b"")
    client.lpush("orders::dlq", b"\xff\xfe foreign")
    client.lpush("orders::records::dlq", b"not json", b"[1]")
    for source in SOURCES:
        assert browser.get("/messages", params={"name": "orders", "source": source}).status_code == 200
    assert "base64:" in Page(browser.get("/messages", params={"name": "orders", "source": "dead_letters"})).words
    client.set("emails::dlq", "of another program")
    page = Page(browser.get("/queue", params={"name": "emails"}))
    assert comes(lambda: "Cannot be read" in Page(browser.get("/")).words), page.words


def test_an_address_that_means_nothing_is_refused(browser):
    addresses = {
        "/queue?name=": 400,
        "/queue?name=a::pending::b": 400,
        "/messages?name=orders&source=nowhere": 400,
        "/message?name=orders&source=failed&id=../../etc": 400,
        "/message?name=orders&source=failed&id=" + "0" * 32: 404,
        "/nowhere": 404,
        "/static/../app.py": 404,
        "/static/%2e%2e/app.py": 404,
    }
    assert {path: browser.get(path).status_code for path in addresses} == addresses


def test_only_named_queues_are_shown_if_it_must_not_discover(scene, start_dashboard):
    with start_dashboard("orders", "--no-discover").browser() as browser:
        assert browser.get("/queue", params={"name": "orders"}).status_code == 200
        for path in ("/queue", "/messages", "/message", "/tenants", "/schedules", "/events", "/change"):
            assert browser.get(path, params={"name": "emails"}).status_code == 404


@pytest.mark.promise("Looking at the dashboard writes nothing to Redis.")
def test_looking_changes_nothing(looked):
    assert looked.before
    assert looked.after == looked.before


@pytest.mark.promise("The dashboard needs no more permissions in Redis than an operator.")
def test_a_user_with_the_permissions_of_an_operator_can_look(scene, client, clean_server):
    client.execute_command("ACL", "SETUSER", "looker", "on", ">secret", *OPERATOR.rules("orders").split())
    try:
        url = clean_server.url.replace("redis://", "redis://looker:secret@")
        with served(url, "orders") as browser:
            assert "3 messages are in flight" in Page(browser.get("/queue", params={"name": "orders"})).words
            assert browser.get("/messages", params={"name": "orders", "source": "processing"}).status_code == 200
        # Without a permission to read the journal, the page tells what the record does.
        client.execute_command("ACL", "SETUSER", "looker", *OPERATOR.rules("shipments").split(), "-xrevrange")
        (record,) = open_queue(client, "shipments").records("failed")
        with served(url, "shipments") as browser:
            page = Page(browser.get("/message", params={"name": "shipments", "source": "failed", "id": record.id}))
            assert "the journal cannot be read with this Redis user" in page.words
            assert "Published" in page.words
    finally:
        client.execute_command("ACL", "DELUSER", "looker")


def test_a_server_that_went_away_is_told_and_found_again(start_server):
    server = start_server()
    with server.client() as client:
        open_queue(client, "orders").publish("one")
    with served(server.url, "orders") as browser:
        assert "1 waiting" in Page(browser.get("/")).words
        server.kill()
        assert comes(lambda: "1 of 1 queue is stuck Queue" in Page(browser.get("/")).words)
        assert "Cannot be read" in Page(browser.get("/queue", params={"name": "orders"})).words
        assert browser.get("/messages", params={"name": "orders"}).status_code == 502


def test_a_query_that_runs_is_no_problem(scene, serve, client):
    client.hset("reports::group::nightly", "deadline", int(9e15))
    with serve("reports") as browser:
        page = Page(browser.get("/queue", params={"name": "reports"}))
    assert "nightly running 300" in page.words
    assert "no query is running" not in page.words


def test_schedules_are_shown_with_their_next_tick(browser, client):
    page = Page(browser.get("/queue", params={"name": "reports"}))
    assert re.search(r"2 schedules ?, the next tick in \d", page.words), page.words
    page = Page(browser.get("/schedules", params={"name": "reports"}))
    assert re.search(r"pulse ?acme every 100 days", page.words), page.words
    assert re.search(r"nightly 0 3 29 2 \* ?Europe/Berlin 20", page.words), page.words
    assert "Remove" not in page.words
    assert "has no schedules" in Page(browser.get("/schedules", params={"name": "orders"})).words
    client.zadd("reports::schedules", {"pulse": 1e15})  # nobody has followed it for years
    assert "overdue by" in Page(browser.get("/schedules", params={"name": "reports"})).words
    assert comes(lambda: "A schedule is overdue by" in Page(browser.get("/queue?name=reports")).words)


@pytest.mark.promise("The dashboard finds the queues of its server by itself.")
def test_queues_are_found_in_the_registry(client, start_dashboard, serve):
    open_queue(client, "orders").publish("one")
    open_queue(client, "emails", key_separator="--").publish("one")
    open_queue(client, "orders", key_separator="--").publish("one")
    with serve("orders") as browser:
        page = Page(browser.get("/"))
        rows = [one["data-row"] for one in page.all("tr") if "data-row" in one]
        assert sorted(rows) == ["emails", "orders", "orders (separator --)"]
        for name in rows:
            assert "1 waiting" in Page(browser.get("/queue", params={"name": name})).words
    with start_dashboard("orders", "--no-discover").browser() as browser:
        assert [one["data-row"] for one in Page(browser.get("/")).all("tr") if "data-row" in one] == ["orders"]


def test_the_worst_of_many_queues_is_on_the_first_page(client, start_dashboard):
    names = [f"queue {number:03}" for number in range(120)]
    stuck = open_queue(client, names[-1])
    stuck.publish("one")
    fast_forward(client, 600, stuck)
    with start_dashboard(*names, "--no-discover").browser() as browser:
        page = Page(browser.get("/"))
        assert "1 of 120 queues is stuck" in page.words
        assert next(one["data-row"] for one in page.all("tr") if "data-row" in one) == names[-1]


def test_many_queues_come_in_pages_and_can_be_filtered(client, serve):
    names = [f"queue {number:03}" for number in range(120)]
    with serve(*names, discover=False) as browser:
        first = Page(browser.get("/"))
        assert len([one for one in first.all("tr") if "data-row" in one]) == 50
        assert "1 to 50 of 120" in first.words
        last = Page(browser.get("/", params={"first": "100"}))
        assert "101 to 120 of 120" in last.words
        assert len([one for one in Page(browser.get("/", params={"q": "07"})).all("tr") if "data-row" in one]) == 12


def rows(browser: httpx.Client, **asked: str) -> list[str]:
    return [one["data-row"] for one in Page(browser.get("/", params=asked)).all("tr") if "data-row" in one]


@pytest.mark.promise("The first page of the dashboard keeps its order, and can be sorted by each column.")
def test_queues_keep_their_order_and_can_be_sorted(client, serve):
    """By how bad it is, and by the name; or by a column, the largest first; or only those with dead letters."""
    for name, pending in (("a", 1), ("b", 3), ("c", 2)):
        open_queue(client, name).publish_many(["m"] * pending)
        crash_with(open_queue(client, name), 1)
    letters = open_queue(client, "d")
    client.lpush(letters.key.dead_letter, *["dead"] * 50)
    with serve("c", "a", "d", "b") as browser:
        assert rows(browser) == ["d", "a", "b", "c"]
        page = Page(browser.get("/"))
        assert "50 dead letters" in page.words and "1 of 4 queues needs attention" in page.words
        links = [one["href"] for one in page.all("a") if "sort=" in one.get("href", "")]
        assert len(links) == 7
        expected = {"name": ["a", "b", "c", "d"], "waiting": ["b", "c", "a", "d"], "dead": ["d", "a", "b", "c"]}
        assert {column: rows(browser, sort=column) for column in expected} == expected
        assert sorted(rows(browser, sort="oldest")) == sorted(rows(browser, sort="nonsense")) == ["a", "b", "c", "d"]
        chosen = Page(browser.get("/", params={"sort": "waiting", "q": "", "dead": "1"}))
        assert [one["aria-sort"] for one in chosen.all("th") if "aria-sort" in one] == ["descending"]
        (events_url,) = (one["data-events"] for one in chosen.all("div") if "data-events" in one)
        assert "sort=waiting" in events_url and "dead=1" in events_url
        assert rows(browser, dead="1") == ["d"]
        assert "No queue has dead letters" in Page(browser.get("/", params={"dead": "1", "q": "a"})).words


@pytest.mark.promise(
    "The page of a dead letter names the consumer that had it; each page of the dashboard has one heading."
)
@pytest.mark.promise("The page of a dead letter has its traceback, and names the consumer that had it.")
def test_a_dead_letter_names_its_consumer(client, serve):
    """The one that had it when it failed."""
    queue = open_queue(client, "orders", consumer_name="billing", max_delivery_count=1)
    queue.publish("a")
    queue.run(fail_always, until_empty=True)
    with serve("orders") as browser:
        listed = Page(browser.get("/messages", params={"name": "orders", "source": "dead_letters"}))
        page = Page(browser.get(next(one for one in listed.links if one.startswith("/message?"))))
    assert f"Consumerbilling@{socket.gethostname()}:{os.getpid()}" in page.words
    assert "fail_always" in page.words, "the traceback"


def fail_always(message: Any) -> None:
    raise ValueError("no such customer")


def test_a_consumer_is_shown_with_its_name(client, serve):
    queue = open_queue(client, "orders", consumer_name="<b>billing</b>")
    queue.publish("one")
    crash_with(queue, 1)
    with serve("orders") as browser:
        page = Page(browser.get("/queue", params={"name": "orders"}))
        assert f"<b>billing</b>@{socket.gethostname()}:{os.getpid()}" in page.words
        assert page.dangers() == []


def test_a_consumer_that_lets_its_handler_hang_is_seen(client, serve):
    queue = open_queue(client, "orders")
    queue.publish_many(["one", "two"])
    crash_with(queue, 1)
    with serve("orders") as browser:
        page = Page(browser.get("/queue", params={"name": "orders"}))
        assert "Working: 1 in flight, 1 waiting" in page.words


@pytest.mark.parametrize("tenant", ["x" * 256, "ü" * 128], ids=["too long", "too many bytes"])
def test_a_tenant_that_cannot_be_one_is_a_mistake_in_the_request(editor, tenant):
    """And not of the server."""
    pages = {
        "/messages": {"source": "pending", "tenant": tenant},
        "/tenants": {"q": tenant},
        "/change": {"action": "pause", "tenant": tenant},
    }
    for path, parameters in pages.items():
        response = editor.get(path, params={"name": "orders", **parameters})
        assert response.status_code == 400, path
        assert "255 bytes" in Page(response).words
