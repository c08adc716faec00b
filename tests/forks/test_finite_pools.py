"""Pools with just as many connections as the documentation requires, and with fewer."""

import asyncio
from functools import partial

import pytest
import redis
import redis.asyncio

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import until

pytestmark = pytest.mark.topic("Connections and clients")


pools = pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])

# Renews several times while a message is handled, with a lease longer than any test.
LEASED = {"visibility_timeout_seconds": 30, "heartbeat_interval_seconds": 0.005}


def pooled_client(shell, pool_class, size):
    """A client with a limited pool; one kind of pool raises when it is exhausted, the other one waits."""
    module = redis.asyncio if shell.name == "asyncio" else redis
    options = {"timeout": 10} if pool_class == "BlockingConnectionPool" else {}
    pool = getattr(module, pool_class)(host="127.0.0.1", port=shell.server.port, max_connections=size, **options)
    return shell.closing(module.Redis.from_pool(pool))


def pooled_queue(shell, pool_class, size, **options):
    """A queue on such a client, with a budget shorter than the test's limits."""
    usual = {"retry_budget_seconds": LIMIT_SECONDS / 2, "retry_max_delay_seconds": 0.05}
    return shell.queue(client=pooled_client(shell, pool_class, size), **usual | options)


async def hand_in(shell, names):
    """Publish through another client, so that the pool under test is not used."""
    queue = shell.queue()
    for name in names:
        assert await queue.publish(name)


async def consume(queue, handled, total, seconds=0.0):
    """Handle messages until all consumers together have handled enough."""
    while len(handled) < total:
        async with queue.process_message() as message:
            if message is not None:
                await asyncio.sleep(seconds)
                assert not queue.current_message().lease_lost
                handled.append(message.decode())


async def together(shell, queue, consumers, handled, total, seconds):
    """Run consumers of one queue object, each in its own thread or task."""
    workers = [shell.beside(lambda: consume(queue, handled, total, seconds)) for _ in range(consumers)]
    await asyncio.wait_for(asyncio.gather(*workers), LIMIT_SECONDS)


@pytest.mark.promise("Two connections are enough for a serial consumer with heartbeats, and two per consumer for many.")
@pools
async def test_two_connections_serve_a_serial_consumer_with_heartbeats_for_many_messages(shell, pool_class):
    """No connection leaks with a message: the fiftieth is handled like the first, and in order."""
    queue = pooled_queue(shell, pool_class, 2, wait=0.2, **LEASED)
    names = [f"message {number}" for number in range(50)]
    await hand_in(shell, names)
    handled = []
    await asyncio.wait_for(consume(queue, handled, len(names), seconds=0.01), LIMIT_SECONDS)
    assert handled == names
    assert not shell.leftovers(queue)


@pytest.mark.promise("Two connections are enough for a serial consumer with heartbeats, and two per consumer for many.")
@pools
async def test_two_connections_per_consumer_serve_concurrent_consumers_with_heartbeats(shell, pool_class):
    """Four consumers of one queue object, eight connections: each message is handled once, and no lease is lost."""
    queue = pooled_queue(shell, pool_class, 8, wait=0.1, **LEASED)
    names = [f"message {number}" for number in range(60)]
    await hand_in(shell, names)
    handled = []
    await together(shell, queue, 4, handled, len(names), seconds=0.01)
    assert sorted(handled) == sorted(names)
    assert not shell.leftovers(queue)


@pytest.mark.promise("An exhausted connection pool is a transient error: the call waits, and nothing is lost.")
@pools
async def test_one_connection_serves_a_serial_consumer_without_heartbeats(shell, pool_class):
    """It publishes, claims, acks and waits for a wake-up on the same connection, without a retry."""
    events = shell.events()
    queue = pooled_queue(shell, pool_class, 1, wait=LIMIT_SECONDS, on_event=events.listen)
    handled = []

    async def publish_when_it_waits():
        for number in range(3):
            assert await until(partial(waits_after, number))
            await hand_in(shell, [f"message {number}"])

    def waits_after(count):
        return len(handled) == count and waiting_for_a_wakeup(shell)

    publishing = shell.beside(publish_when_it_waits)
    await asyncio.wait_for(consume(queue, handled, 3), LIMIT_SECONDS)
    await publishing
    assert handled == ["message 0", "message 1", "message 2"]
    assert await queue.publish("its own")
    async with queue.process_message() as message:
        assert message == b"its own"
    assert not events.of("retry_attempt")
    assert not shell.leftovers(queue)


def waiting_for_a_wakeup(shell):
    return any(each["cmd"] == "blpop" for each in shell.redis.client_list())


@pytest.mark.promise("An exhausted connection pool is a transient error: the call waits, and nothing is lost.")
@pools
async def test_more_consumers_than_connections_still_handle_everything(shell, pool_class):
    """Six consumers with heartbeats on two connections: those without one retry; nothing is lost or duplicated."""
    queue = pooled_queue(shell, pool_class, 2, wait=0.05, enable_completed_queue=True, **LEASED)
    names = [f"message {number}" for number in range(60)]
    await hand_in(shell, names)
    handled = []
    await together(shell, queue, 6, handled, len(names), seconds=0.01)
    assert sorted(handled) == sorted(names)
    assert sorted(shell.listed(queue.key.completed)) == sorted(name.encode() for name in names)
    assert shell.leftovers(queue) == {queue.key.completed.encode()}


@pytest.mark.promise("An exhausted connection pool is a transient error: the call waits, and nothing is lost.")
@pools
async def test_concurrent_publishers_on_a_small_pool_publish_each_message_once(shell, pool_class):
    """A publish without a connection was not sent, and a repeated one counts once."""
    queue = pooled_queue(shell, pool_class, 1, wait=0)
    names = [f"publisher {who} message {number}" for who in range(5) for number in range(20)]

    async def publish(who):
        return [await queue.publish(name) for name in names[who * 20 : (who + 1) * 20]]

    publishers = [shell.beside(lambda who=who: publish(who)) for who in range(5)]
    answers = await asyncio.wait_for(asyncio.gather(*publishers), LIMIT_SECONDS)
    assert answers == [[True] * 20] * 5
    handled = []
    await asyncio.wait_for(consume(queue, handled, len(names)), LIMIT_SECONDS)
    assert sorted(handled) == sorted(names)
    assert not shell.leftovers(queue)
