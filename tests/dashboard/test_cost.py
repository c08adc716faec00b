"""What the dashboard costs the server: little, however large a queue is and however many people look."""

import concurrent.futures
import signal
import time

import httpx
import pytest

from tests.dashboard.pages import Page
from tests.dashboard.scenario import open_queue
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Dashboard")


def commands(client) -> int:
    """How many commands the server has run, those of scripts included."""
    return sum(one["calls"] for one in client.info("commandstats").values())


@pytest.mark.promise("Opening a page of the dashboard costs the server a bounded number of commands.")
def test_a_page_reads_little_of_a_large_queue(client, start_dashboard):
    queue = open_queue(client, "orders")
    for _ in range(20):
        queue.publish_many(["x" * 10] * 1_000)
    pipe = client.pipeline(transaction=False)
    (stored,) = client.lrange(queue.key.pending, 0, 0)
    tenants = [f"tenant {number:05}" for number in range(5_000)]
    for tenant in tenants:
        marked = bytes([stored[0] | 1]) + stored[1:25] + bytes([len(tenant)]) + tenant.encode() + stored[25:]
        pipe.lpush(queue.key.tenant_pending(tenant), marked)
    pipe.zadd(queue.key.tenant_ring, dict.fromkeys(tenants, 0))
    pipe.incrby(queue.key.tenant_backlog, len(tenants))
    pipe.execute()
    with start_dashboard("orders").browser() as browser:
        before = commands(client)
        page = Page(browser.get("/queue", params={"name": "orders"}))
        assert "25,000 waiting" in page.words
        assert "5,000 tenants wait" in page.words
        # The oldest message is found by one command for each tenant, and that is not repeated soon.
        assert commands(client) - before < 5_000 + 1_500
        before = commands(client)
        browser.get("/messages", params={"name": "orders", "source": "pending", "limit": "1000"})
        assert commands(client) - before < 4_000
        before = commands(client)
        assert browser.get("/tenants", params={"name": "orders"}).status_code == 200
        assert commands(client) - before < 4_000


@pytest.mark.promise("Many people who look at the dashboard cost the server no more than one.")
def test_a_hundred_requests_at_once_share_one_look(client, start_dashboard):
    open_queue(client, "orders").publish("one")
    running = start_dashboard("orders")

    def get(_) -> int:
        return httpx.get(f"{running.url}/queue?name=orders", timeout=120, trust_env=False).status_code

    get(0)
    before, begun = commands(client), time.monotonic()
    get(0)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert set(pool.map(get, range(100))) == {200}
    looks = 2 + (time.monotonic() - begun) / 2  # at most one every two seconds, and the first may be due
    assert commands(client) - before < 60 * looks


def test_nobody_looking_costs_nothing(client, start_dashboard):
    open_queue(client, "orders").publish("one")
    with start_dashboard("orders").browser() as browser:
        with browser.stream("GET", "/events") as response:
            next(response.iter_lines())

        def is_quiet() -> bool:
            before = commands(client)
            time.sleep(5)
            return commands(client) - before <= 1  # our own INFO

        assert until(is_quiet)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_although_somebody_watches(client, start_dashboard, number):
    running = start_dashboard("orders")
    with running.browser() as browser, browser.stream("GET", "/events") as response:
        lines = response.iter_lines()
        assert next(lines).startswith("retry")
        running.process.send_signal(number)
        for _ in lines:
            pass
    _, said = running.process.communicate(timeout=120)
    assert (running.process.returncode, said) == (0, "")


def test_a_port_that_is_taken_is_one_line(client, start_dashboard, clean_server):
    import subprocess
    import sys

    port = start_dashboard().url.rpartition(":")[2]
    command = [sys.executable, "-m", "redis_message_queue", "dashboard", "--port", port, "--url", clean_server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port} (Address already in use)" in ended.stderr
    assert ended.stderr.count("\n") == 1
