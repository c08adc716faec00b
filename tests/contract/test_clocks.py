"""Leases, ages and windows use the server's clock; waits and budgets use a monotonic clock."""

import datetime
import itertools
import time

import pytest

from redis_message_queue import QueueBackpressureError, RetryBudgetExhaustedError
from tests.contract.shells import LIMIT_SECONDS, Shell, claim_and_die, holding, take, with_unconfirmed_claim

A_DAY = 86_400.0


@pytest.fixture(params=[A_DAY, -A_DAY], ids=["set forward", "set back"])
def host_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever somebody looks at the clock of this host, it has been set by a day; the server's is as ever."""
    real, looks = time.time, itertools.count(1)

    def wrong() -> float:
        return real() + next(looks) * request.param

    monkeypatch.setattr(time, "time", wrong)
    monkeypatch.setattr(time, "time_ns", lambda: int(wrong() * 1e9))


pytestmark = [pytest.mark.topic("Clocks"), pytest.mark.usefixtures("host_clock"), pytest.mark.every_server]


def server_time(shell: Shell) -> float:
    seconds, micros = shell.redis.time()
    return float(seconds + micros / 1e6)


@pytest.mark.promise("Deadlines use the server's clock; changing the clock of the host has no effect.")
async def test_a_lease_begins_and_ends_by_the_servers_clock(shell: Shell) -> None:
    """A consumer whose host is wrong about the time neither takes what is held nor holds for a day longer."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    async with holding(queue):
        ((_, deadline),) = shell.redis.zrange(queue.key.leases, 0, -1, withscores=True)
        assert 0 < deadline / 1e6 - server_time(shell) <= 300
        assert queue.current_message().lease_lost is False
        assert await take(queue) is None
    shell.lapse(queue)
    assert await take(queue) == b"a"


@pytest.mark.promise("The publishing time of a message comes from the server's clock.")
async def test_the_age_of_a_message_and_its_window_are_the_servers(shell: Shell) -> None:
    """published_at is a time in UTC that the server stamped; the marker lives for an hour of the server's."""
    queue = shell.queue(deduplication=True, get_deduplication_key=str)
    await queue.publish("k")
    async with queue.process_message():
        published_at = queue.current_message().published_at
    assert abs(published_at.timestamp() - server_time(shell)) < LIMIT_SECONDS
    assert published_at.tzinfo is datetime.UTC
    assert 3_500_000 < shell.redis.pttl(queue.key.deduplication("k")) <= 3_600_000


@pytest.mark.promise("Waits and timeouts use the monotonic clock.")
async def test_a_wait_lasts_as_long_as_configured(shell: Shell) -> None:
    """Neither cut short nor prolonged by a host clock that is set."""
    queue = shell.queue(wait=0.2)
    started = time.monotonic()
    assert await take(queue) is None
    assert 0.2 <= time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise("A waiting consumer sleeps exactly until the next lease ends or the next delayed message is due.")
async def test_a_waiting_consumer_wakes_when_the_lease_of_another_ends(shell: Shell) -> None:
    """How long to sleep is told by the server, as a length and not as a time of day."""
    queue = shell.queue(wait=LIMIT_SECONDS, visibility_timeout_seconds=0.3)
    await queue.publish("a")
    started = time.monotonic()
    await claim_and_die(queue)
    assert await take(queue) == b"a"
    assert time.monotonic() - started >= 0.3


@pytest.mark.promise("The retry budget uses the monotonic clock and includes the time of the first attempt.")
async def test_a_budget_and_a_block_timeout_last_as_long_as_configured(shell: Shell, dead_port: int) -> None:
    """Monotonic seconds, counted from the first attempt."""
    lost = shell.queue(client=shell.dead_client(dead_port), retry_budget_seconds=0.2, retry_max_delay_seconds=0.02)
    started = time.monotonic()
    with pytest.raises(RetryBudgetExhaustedError):
        await lost.publish("a")
    assert 0.2 <= time.monotonic() - started < LIMIT_SECONDS
    full = shell.queue(
        max_pending_length=1, pending_overload_policy="block", pending_overload_block_timeout_seconds=0.2
    )
    await full.publish("a")
    started = time.monotonic()
    with pytest.raises(QueueBackpressureError):
        await full.publish("b")
    assert 0.2 <= time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise("The timeout of a drain is in monotonic seconds and is validated.")
async def test_the_timeout_of_a_drain_lasts_as_long_as_configured(shell: Shell) -> None:
    """Also where Redis cannot be reached all that time."""
    client = shell.lossy_client()
    queue = await with_unconfirmed_claim(shell, client)
    client.losses.request(1)
    assert await queue.drain(timeout=0.2) is False
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
