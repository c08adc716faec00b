"""What the dashboard costs the server: little, however large a queue is and however many people look."""

import asyncio
import concurrent.futures
import re
import signal
import sys
import time
from collections import Counter

import httpx
import pytest

from tests import fork_server
from tests.dashboard.pages import Page
from tests.dashboard.running import BROWSER
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
        assert re.search(r"\d+ of 5,000 tenants: the longest of the next \d+ in turn", page.words)
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
    with start_dashboard("orders").browser() as browser, concurrent.futures.ThreadPoolExecutor(10) as pool:

        def get(_) -> int:
            return browser.get("/queue", params={"name": "orders"}).status_code

        get(0)
        before, begun = commands(client), time.monotonic()
        get(0)
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
            time.sleep(3)  # it would look every two seconds
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
    port = start_dashboard().url.rpartition(":")[2]
    words = ["dashboard", "--port", port, "--url", clean_server.url]
    ended = fork_server.run([sys.executable, "-W", "error", "-m", "redis_message_queue", *words])
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port} (Address already in use)" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_burst_of_streams_does_not_pass_the_limit(client, serve):
    """They are refused while the first hundred watch, and a place is free again when one of these leaves."""
    open_queue(client, "orders").publish("one")

    async def burst(url: httpx.URL) -> tuple[Counter[int], int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, **BROWSER) as browser:
            opened: list[httpx.Response] = []

            async def watch() -> int:
                response = await browser.send(browser.build_request("GET", "/events?name=orders"), stream=True)
                opened.append(response)
                return response.status_code

            statuses = Counter(await asyncio.gather(*(watch() for _ in range(150))))
            for response in opened:
                await response.aclose()
            for _ in range(400):  # the server notices that they are gone when it sends the next part
                if (status := await watch()) == 200:
                    break
                await asyncio.sleep(0.1)
            await opened[-1].aclose()
            return statuses, status

    with serve("orders") as browser:
        statuses, later = asyncio.run(burst(browser.base_url))
    assert statuses == {200: 100, 503: 50}
    assert later == 200
