"""Sentinel replaces a lost primary: replicated messages are delivered, and calls under way are done once."""

import asyncio
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Shell, take, until
from tests.topologies.sentinels import SentinelSet

pytestmark = pytest.mark.topic("Connections and clients")


# A budget for the seconds of a failover, and short pauses so that the test is fast.
LONG_BUDGET = {"retry_budget_seconds": LIMIT_SECONDS, "retry_max_delay_seconds": 0.1}
KEPT = {"enable_completed_queue": True, "max_completed_length": None}
# Enough time to reconnect, which is all that is needed while there is a primary.
QUICK = LONG_BUDGET | {"retry_budget_seconds": 15}
MOST_MESSAGES = 5_000
STUCK_SECONDS = 0.5  # a call under way for so long was not answered by the primary before it was lost


@pytest.fixture
def topology(sentinels: SentinelSet) -> SentinelSet:
    return sentinels


class Traffic:
    """Producers and a consumer during a failover, and when each of their calls started and ended."""

    def __init__(self, shell: Shell) -> None:
        self.published: dict[str, tuple[float, float]] = {}
        self.handled: list[tuple[str, float]] = []
        self._under_way: dict[int, tuple[str, float]] = {}
        self._shell = shell
        self._producers: list[Any] = []
        self._consumer: Any = None
        self._is_enough = threading.Event()

    def start(self) -> None:
        self._producers = [self._shell.beside(partial(self._produce, number)) for number in range(2)]
        self._consumer = self._shell.beside(self._consume)

    async def flow(self) -> None:
        """Wait until messages arrive."""
        wanted = len(self.handled) + 20
        work = [*self._producers, self._consumer]

        def has_news() -> bool:
            return len(self.handled) >= wanted or any(one.done() for one in work)

        assert await until(has_news, LIMIT_SECONDS), "no message arrives"
        for one in work:
            if one.done():  # too early: it has failed
                await one

    async def stuck(self) -> list[str]:
        """Wait until no producer gets an answer; return what they are publishing."""
        lost_at = time.monotonic()

        def are_stuck() -> bool:
            latest, calls = time.monotonic() - STUCK_SECONDS, list(self._under_way.values())
            return latest > lost_at and len(calls) == 2 and all(began < latest for _, began in calls)

        assert await until(are_stuck, LIMIT_SECONDS), "publishes end without a primary"
        return [text for text, _ in self._under_way.values()]

    async def stop(self) -> None:
        self._is_enough.set()
        await asyncio.wait_for(asyncio.gather(*self._producers, self._consumer), LIMIT_SECONDS)

    async def _produce(self, number: int) -> None:
        queue = self._shell.queue("orders", **LONG_BUDGET)
        while not self._is_enough.is_set() and len(self.published) < MOST_MESSAGES:
            text, began = f"{number}: {len(self.published)}", time.monotonic()
            self._under_way[number] = text, began
            assert await queue.publish(text) is True
            del self._under_way[number]
            self.published[text] = (began, time.monotonic())
            await asyncio.sleep(0.002)

    async def _consume(self) -> None:
        queue = self._shell.queue("orders", wait=0.1, **KEPT, **LONG_BUDGET)
        while not (self._is_enough.is_set() and all(producer.done() for producer in self._producers)):
            await self.hand_out(queue)

    async def hand_out(self, queue: Any) -> None:
        """Handle the available messages; the time is that of the ack."""
        while (message := await take(queue)) is not None:
            self.handled.append((message.decode(), time.monotonic()))


@pytest.mark.promise("The queue survives a Sentinel failover, even with a connection to the demoted primary.")
async def test_a_failover_under_load_loses_nothing_replicated(shell: Shell, sentinels: SentinelSet) -> None:
    """Every message that reached the replica in time is delivered, and none that was settled there comes again.

    Redis replicates after its reply: writes between the last `WAIT` and the crash may be lost with the server. About
    those the test only asserts that no unknown message appears.
    """
    events = shell.events()
    holder = shell.queue("held", heartbeat_interval_seconds=0.2, on_event=events.listen, **KEPT, **LONG_BUDGET)
    await holder.publish("held")
    traffic = Traffic(shell)
    async with holder.process_message():
        traffic.start()
        await traffic.flow()
        before_wait = time.monotonic()
        sentinels.replicate()
        with sentinels.patient():
            sentinels.lose_the_primary()
            lost_at = time.monotonic()
            stuck = await traffic.stuck()
        await asyncio.to_thread(sentinels.await_promotion)
        await traffic.flow()
        await traffic.stop()
        assert holder.current_message().lease_lost is False
    queue = shell.queue("orders", wait=0, **KEPT)
    if shell.redis.exists(queue.key.leases):
        shell.lapse(queue)  # of consumers whose ack only the lost server has
    await traffic.hand_out(queue)

    # The handler that ran all the time is done once.
    assert events.of("cleanup_failed") == events.of("stale_lease_ack") == []
    assert shell.listed(holder.key.completed) == [b"held"]

    times = Counter(text for text, _ in traffic.handled)
    assert set(times) <= set(traffic.published)
    replicated = [text for text, (_, ended) in traffic.published.items() if ended < before_wait]
    afterwards = [text for text, (began, _) in traffic.published.items() if began > lost_at]
    settled = [text for text, acked_at in traffic.handled if acked_at < before_wait]
    assert all(times[text] >= 1 for text in replicated)
    assert all(times[text] == 1 for text in (*afterwards, *settled))
    # Each producer had a call under way without a primary, and it was done in the end.
    assert len(stuck) == 2
    assert set(stuck) <= set(traffic.published)
    assert (shell.pending(queue), shell.processing(queue)) == (0, 0)

    # The lost server returns as a replica and disturbs no call.
    sentinels.bring_back_the_lost_one()
    assert await queue.publish("and on") is True
    assert [await take(queue) for _ in range(2)] == [b"and on", None]
    sentinels.replicate()
    assert sentinels.replica.redis.lindex(queue.key.completed, 0) == b"and on"


@pytest.mark.promise("The queue survives a Sentinel failover, even with a connection to the demoted primary.")
async def test_a_connection_to_a_demoted_primary_is_replaced(shell: Shell, sentinels: SentinelSet) -> None:
    """It stays open and replies READONLY forever; a new connection finds the current primary."""
    queue = shell.queue("orders", wait=0, **KEPT, **QUICK)
    await queue.publish("held")
    await queue.publish("waiting")
    async with queue.process_message():
        sentinels.replicate()
        sentinels.switch_over()
        assert sentinels.replica.redis.info("replication")["role"] == "slave"
        assert await asyncio.wait_for(shell.beside(partial(queue.publish, "late")), LIMIT_SECONDS) is True
    assert [await take(queue) for _ in range(3)] == [b"waiting", b"late", None]
    assert shell.listed(queue.key.completed) == [b"late", b"waiting", b"held"]
