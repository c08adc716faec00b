"""The dashboard of a queue whose partitions are on several nodes, all of them well or one of them gone."""

import re
from collections.abc import Iterator

import httpx
import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.testing.fast_forward import fast_forward
from tests.dashboard.pages import Page
from tests.dashboard.running import dashboard
from tests.embedded.waiting import until
from tests.topologies.cluster import Cluster

pytestmark = pytest.mark.topic("Dashboard")

PARTITIONS = 6


@pytest.fixture
def browser(killable_cluster: Cluster) -> Iterator[httpx.Client]:
    with killable_cluster.client() as client:
        queue = RedisMessageQueue("orders", client=client, partitions=PARTITIONS)
        for number in range(PARTITIONS):
            part = queue.partition(number)
            part.publish_many(["one"] * 10)
            fast_forward(killable_cluster.owner(part.key.pending).redis, 60, part)
    # The node that is killed later must not be the one that the dashboard asks first.
    url = killable_cluster.primaries[0].server.url
    with dashboard(url=url) as running, running.browser() as opened:
        yield opened


def parts_of(page: Page) -> dict[str, str]:
    return {one["data-row"][-1]: one["class"] for one in page.all("tr") if "partition" in one.get("data-row", "")}


@pytest.mark.promise("If a node of a cluster is gone, the dashboard names the partitions there and shows the others.")
def test_the_whole_is_shown_and_a_node_that_is_gone_is_named(browser: httpx.Client, killable_cluster: Cluster):
    """At first the partitions of every node are shown. No consumer runs, which is said of the others."""
    overview = Page(browser.get("/"))
    assert [one["data-row"] for one in overview.all("tr") if "data-row" in one] == ["{orders}"]
    assert f"{PARTITIONS} partitions" in overview.words
    page = Page(browser.get("/queue", params={"name": "orders"}))
    assert "60 waiting" in page.words
    assert len(parts_of(page)) == PARTITIONS
    assert "Cannot be read" not in page.words
    listed = Page(browser.get("/messages", params={"name": "orders", "source": "pending", "limit": "200"}))
    assert len([link for link in listed.links if link.startswith("/message?")]) == 60
    owners = {
        str(number): killable_cluster.owner("{orders}::x" if number == 0 else f"{{orders::partition::{number}}}::x")
        for number in range(PARTITIONS)
    }
    gone = next(owner for owner in owners.values() if owner is not killable_cluster.primaries[0])
    lost = {number for number, owner in owners.items() if owner is gone}
    assert until(lambda: len(parts_of(Page(browser.get("/queue", params={"name": "orders"})))) == PARTITIONS)
    gone.server.kill()

    def names_them_alone() -> bool:
        page = Page(browser.get("/queue", params={"name": "orders"}))
        unread = set(re.findall(r"Partition (\d): Cannot be read", page.words))
        return unread == lost and f" {10 * (PARTITIONS - len(lost))} waiting" in page.words

    assert until(names_them_alone)
