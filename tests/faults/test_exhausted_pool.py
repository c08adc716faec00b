"""A pool with too few connections makes callers wait or fail; two connections are enough for a serial consumer."""

import asyncio
import contextlib
import logging
import threading
import time
from functools import partial

import pytest
import redis
import redis.asyncio

from redis_message_queue import EventOperation, EventOutcome, RedisMessageQueue
from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.shells import AsyncioShell, BlockingShell

pytestmark = pytest.mark.topic("Connections and clients")


pools = pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])

# One consumer holds its message so long that the other one waits for more than one slice.
HELD_SECONDS = 1.2
LEASED = {"message_visibility_timeout_seconds": 20, "message_wait_interval_seconds": 1.5, "retry_budget_seconds": 10}


def pool_of(module, server, pool_class, size):
    options = {"timeout": 5} if pool_class == "BlockingConnectionPool" else {}
    return getattr(module, pool_class)(host="127.0.0.1", port=server.port, max_connections=size, **options)


@pytest.fixture(params=["sync", "asyncio"])
def shell(request, server, truth):
    blocking = request.param == "sync"
    opened = BlockingShell(server.port, redis.Redis) if blocking else AsyncioShell(server.port, redis.asyncio.Redis)
    yield opened
    opened.close()


def module_of(shell):
    return redis.asyncio if isinstance(shell, AsyncioShell) else redis


def hold_while_another_waits(shell, queue):
    """One consumer holds a message with a heartbeat while another waits for a wake-up. Returns both results."""
    if isinstance(shell, AsyncioShell):
        return shell.runner.run(asyncio.wait_for(_hold_in_tasks(queue), LIMIT_SECONDS))
    holding = threading.Event()

    def hold():
        with queue.process_message() as message:
            holding.set()
            time.sleep(HELD_SECONDS)
            return message

    def wait():
        holding.wait(LIMIT_SECONDS)
        with queue.process_message() as message:
            return message

    futures = [start(hold), start(wait)]
    return [future.exception(LIMIT_SECONDS) or future.result() for future in futures]


async def _hold_in_tasks(queue):
    holding = asyncio.Event()

    async def hold():
        async with queue.process_message() as message:
            holding.set()
            await asyncio.sleep(HELD_SECONDS)
            return message

    async def wait():
        await holding.wait()
        async with queue.process_message() as message:
            return message

    return await asyncio.gather(hold(), wait(), return_exceptions=True)


@pytest.mark.promise("An exhausted connection pool is a transient error: the call waits, and nothing is lost.")
@pools
def test_one_connection_for_two_consumers_and_a_heartbeat_loses_nothing(shell, server, truth, pool_class):
    """A caller waits or gets an error: nothing hangs, and the message is acked or still there."""
    client = shell.client(connection_pool=pool_of(module_of(shell), server, pool_class, 1))
    queue = shell.queue(client, LEASED, heartbeat_interval_seconds=0.2, enable_completed_queue=True)
    RedisMessageQueue("faults", client=truth.client).publish("message")
    held, waited = hold_while_another_waits(shell, queue)
    errors = [outcome for outcome in (held, waited) if isinstance(outcome, BaseException)]
    assert all(isinstance(error, redis.RedisError | OSError) or error.__cause__ for error in errors), errors
    assert len(truth.completed) + truth.processing + truth.pending == 1
    if not errors:
        assert (held, waited) == (b"message", None)
        assert truth.completed == [b"message"]
        assert truth.is_empty


@pytest.mark.promise("Two connections are enough for a serial consumer with heartbeats, and two per consumer for many.")
@pools
def test_two_connections_serve_a_serial_consumer_with_heartbeats(shell, server, truth, pool_class):
    """It waits for a wake-up, claims, renews while the handler uses the client too, and acks: no retries."""
    trouble = []

    def on_event(event):
        if event.outcome is EventOutcome.FAILURE or event.operation is EventOperation.RETRY_ATTEMPT:
            trouble.append(event)

    client = shell.client(connection_pool=pool_of(module_of(shell), server, pool_class, 2))
    queue = shell.queue(
        client,
        LEASED,
        heartbeat_interval_seconds=0.01,
        on_heartbeat_failure=lambda: trouble.append("heartbeat"),
        on_event=on_event,
        enable_completed_queue=True,
    )
    handled = []

    def publish_slowly():
        publisher = RedisMessageQueue("faults", client=truth.client)
        for number in range(3):
            already = len(handled)
            time.sleep(0.05)  # long enough for the consumer to be waiting
            publisher.publish(f"message {number}")
            until(partial(is_handled_after, already))

    def is_handled_after(count):
        return len(handled) > count

    publishing = start(publish_slowly)
    for number in range(3):
        asked = handle_with_commands_of_its_own(shell, queue, client, handled)
        assert asked == b"message %d" % number
    publishing.result(LIMIT_SECONDS)
    assert trouble == []
    assert len(truth.completed) == 3
    assert truth.is_empty


def handle_with_commands_of_its_own(shell, queue, client, handled):
    """The handler uses the same pool while its heartbeat renews every 10 ms."""
    if isinstance(shell, AsyncioShell):

        async def handle():
            async with queue.process_message() as message:
                for _ in range(20):
                    await client.set("progress", message)
                    await asyncio.sleep(0.005)
                handled.append(message)
                return message

        return shell.runner.run(asyncio.wait_for(handle(), LIMIT_SECONDS))
    with queue.process_message() as message:
        for _ in range(20):
            client.set("progress", message)
            time.sleep(0.005)
        handled.append(message)
        return message


@pytest.mark.promise("An exhausted connection pool is a transient error: the call waits, and nothing is lost.")
def test_a_call_waits_for_a_connection_of_an_exhausted_pool(shell, server, truth):
    """An exhausted pool is a transient error: the call continues when a connection is released."""
    client = shell.client(connection_pool=pool_of(module_of(shell), server, "ConnectionPool", 1))
    queue = shell.queue(client, enable_completed_queue=True)
    with all_connections_taken(shell, client, for_seconds=0.3):
        assert shell.publish(queue, "message") is True
    with all_connections_taken(shell, client, for_seconds=0.3):
        assert shell.process(queue) == b"message"
    assert truth.completed == [b"message"]


@contextlib.contextmanager
def all_connections_taken(shell, client, for_seconds):
    """Another user holds the only connection and releases it after a while."""
    pool = client.connection_pool
    if isinstance(shell, AsyncioShell):
        connection = shell.runner.run(pool.get_connection())
        loop = shell.runner.get_loop()
        requeued = []
        loop.call_later(for_seconds, lambda: requeued.append(loop.create_task(pool.release(connection))))
        yield
        assert requeued
    else:
        connection = pool.get_connection()
        timer = threading.Timer(for_seconds, pool.release, (connection,))
        timer.start()
        yield
        timer.join()


@pytest.mark.promise("A full connection pool is waited for, without retries: callers get connections in turn.")
@pytest.mark.parametrize(
    "subclassed",
    [
        pytest.param(False, id="plain client"),
        pytest.param(True, id="any client", marks=pytest.mark.in_full),
    ],
)
def test_a_thousand_tasks_share_a_hundred_connections(server, truth, caplog, subclassed):
    """They wait for each other, and no attempt fails."""
    events = []

    async def publish_all():
        kind = type("Redis", (redis.asyncio.Redis,), {}) if subclassed else redis.asyncio.Redis
        async with kind(port=server.port, max_connections=100, socket_timeout=LIMIT_SECONDS) as client:
            queue = AsyncioQueue("faults", client=client, on_event=events.append)
            return await asyncio.gather(*(queue.publish(str(number)) for number in range(1_000)))

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(publish_all()) == [True] * 1_000
    assert RedisMessageQueue("faults", client=truth.client).stats().pending == 1_000
    assert {event.operation for event in events} == {EventOperation.PUBLISH}
    assert caplog.records == []


@pytest.mark.promise("A full connection pool is waited for, without retries: callers get connections in turn.")
def test_tasks_that_publish_again_and_again_let_the_others_have_connections(server, truth, caplog):
    """Nobody starves beside those that just had a connection."""

    async def publish_all():
        async with redis.asyncio.Redis(port=server.port, max_connections=5, socket_timeout=LIMIT_SECONDS) as client:
            queue = AsyncioQueue("faults", client=client, retry_budget_seconds=0)

            async def publish_often(name):
                for number in range(20):
                    await queue.publish(f"{name} {number}")

            await asyncio.gather(*map(publish_often, range(40)))

    asyncio.run(publish_all())
    assert RedisMessageQueue("faults", client=truth.client).stats().pending == 800
    assert caplog.records == []


@pytest.mark.promise("A full connection pool is waited for, without retries: callers get connections in turn.")
@pytest.mark.parametrize(
    "subclassed",
    [
        pytest.param(False, id="plain client", marks=pytest.mark.in_full),
        pytest.param(True, id="any client"),
    ],
)
def test_threads_share_fewer_connections_than_they_are(server, truth, caplog, subclassed):
    """The same for the sync queue."""
    kind = type("Redis", (redis.Redis,), {}) if subclassed else redis.Redis
    with kind(port=server.port, max_connections=3, socket_timeout=LIMIT_SECONDS) as client:
        queue = RedisMessageQueue("faults", client=client, retry_budget_seconds=0)

        def publish_often():
            for number in range(30):
                queue.publish(str(number))

        for future in [start(publish_often) for _ in range(30)]:
            assert future.exception(LIMIT_SECONDS) is None
    assert RedisMessageQueue("faults", client=truth.client).stats().pending == 900
    assert caplog.records == []


@pytest.mark.promise("A full connection pool is waited for, without retries: callers get connections in turn.")
def test_a_pool_that_stays_full_is_not_waited_for_longer_than_an_attempt(shell, server, truth):
    """Then the call fails as before, and nothing was sent."""
    pool = pool_of(module_of(shell), server, "ConnectionPool", 1)
    pool.connection_kwargs["socket_timeout"] = 0.3
    queue = shell.queue(shell.client(connection_pool=pool), {"retry_budget_seconds": 0})
    run = shell.runner.run if isinstance(shell, AsyncioShell) else lambda given: given
    connection, begun = run(pool.get_connection()), time.monotonic()
    with pytest.raises(redis.exceptions.MaxConnectionsError):
        shell.publish(queue, "message")
    assert time.monotonic() - begun >= 0.3
    run(pool.release(connection))
    assert RedisMessageQueue("faults", client=truth.client).stats().pending == 0
    assert shell.publish(queue, "message") is True
