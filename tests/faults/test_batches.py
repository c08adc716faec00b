"""Chunks, batches and loops under faults: nothing is lost, nothing is duplicated, and held messages are redelivered."""

import asyncio
import contextlib
import inspect
import json
import random
import signal
import threading
import time
from collections import Counter

import pytest
import redis
import redis.asyncio

from redis_message_queue import EventOperation, EventOutcome, RedisMessageQueue
from tests.concurrency import LIMIT_SECONDS, beside, until
from tests.depth import often
from tests.faults.proxy import ARRIVE_LATE, BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, delayed
from tests.faults.shells import AsyncioShell, BlockingShell, OrdinaryAsyncioRedis
from tests.faults.stepping import LIBRARY, LIBRARY_AND_REDIS_PY, Cancellation, CtrlC
from tests.faults.workers import Workers

pytestmark = pytest.mark.topic("The consumer loop")


# Losses of a call's first attempts, for a caller's first call and for a later one.
CUTS = [(CUT_BEFORE,), (CUT_AFTER, CUT_BEFORE), (PASS, CUT_AFTER, CUT_AFTER)]
every_cut = pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: ", ".join(map(str, cuts)))

# The acks of a loop travel with its second claim: which of the two arrive.
PAIRS = {
    "neither arrives": {"settle": (CUT_BEFORE,)},
    "the acks arrive": {"settle": (PASS,), "claim": (PASS, CUT_BEFORE)},
    "both arrive": {"claim": (PASS, CUT_AFTER)},
    "both arrive, then neither": {"settle": (PASS, CUT_BEFORE), "claim": (PASS, CUT_AFTER)},
    "the acks arrive, then both": {"settle": (PASS, PASS), "claim": (PASS, CUT_BEFORE, CUT_AFTER)},
}
every_pair = pytest.mark.parametrize("faults", PAIRS.values(), ids=PAIRS)


def words(count, first=0):
    return [f"message {number:03}" for number in range(first, first + count)]


def done(shell, answer):
    """The result of a call, sync or async."""
    return shell.runner.run(answer) if inspect.iscoroutine(answer) else answer


def handle_batch(shell, queue, count, handler=lambda batch: None, **options):
    """Give a batch to a handler. Returns its payloads and delivery counts."""
    context = queue.process_messages(count, **options)

    async def handle():
        async with context as batch:
            return look_at(batch), handler(batch)

    if isinstance(shell, AsyncioShell):
        return shell.runner.run(handle())[0]
    with context as batch:
        seen = look_at(batch)
        handler(batch)
        return seen


def look_at(batch):
    return [(message.payload.decode(), message.delivery_count) for message in batch]


def fail(_):
    raise LookupError


def once(messages, deliveries=1):
    return [(message, deliveries) for message in messages]


def seen_later(truth, count=1000):
    """The messages that another consumer finds, without the proxy."""
    with RedisMessageQueue("faults", client=truth.client).process_messages(count, wait_seconds=0) as batch:
        return look_at(batch)


# Lost requests and replies


@pytest.mark.promise("A chunk that is retried after a lost reply is stored once and returns its first results.")
@every_cut
def test_a_chunk_is_published_once(proxy, truth, shell, cuts):
    queue = shell.queue()
    proxy.meet("enqueue", *cuts)
    calls = 1 + cuts.count(PASS)
    for call in range(calls):
        assert done(shell, queue.publish_many(words(3, first=3 * call))) == [True] * 3
    assert proxy.seen["enqueue"] == len(cuts) + 1
    assert seen_later(truth) == once(words(3 * calls))


@pytest.mark.promise("A chunk that is retried after a lost reply is stored once and returns its first results.")
@every_cut
def test_a_repeated_chunk_gets_its_first_reply(proxy, truth, shell, cuts):
    """A repeated publish is no duplicate of itself; a real duplicate stays one."""
    queue = shell.queue(deduplication=True)
    proxy.meet("enqueue", *cuts)
    for call in range(1 + cuts.count(PASS)):
        assert done(shell, queue.publish_many([f"a {call}", f"b {call}", f"a {call}"])) == [True, True, False]
    assert truth.pending == 2 * (1 + cuts.count(PASS))


@pytest.mark.promise("A chunk that arrives after its producer gave up changes nothing.")
def test_a_chunk_that_arrives_late_is_refused(proxy, truth, shell):
    """Its publisher has given up and continued: the late request changes nothing."""
    queue = shell.queue(gateway={"retry_budget_seconds": 0})
    proxy.meet("enqueue", ARRIVE_LATE)
    with pytest.raises(redis.exceptions.ConnectionError) as lost:
        done(shell, queue.publish_many(words(3)))
    assert getattr(lost.value, "results", None) == []
    assert done(shell, queue.publish_many(words(2, first=3))) == [True, True]
    (answer,) = proxy.send_late_requests()
    assert b"OVERTAKEN" in answer
    assert seen_later(truth) == once(words(2, first=3))


@pytest.mark.promise(
    "A batch whose reply was lost is recovered by the same call, the next call or a drain, as its first delivery."
)
@every_cut
def test_a_batch_is_claimed_once(proxy, truth, shell, cuts):
    queue = shell.queue(enable_completed_queue=True)
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    proxy.meet("claim", *cuts)
    assert handle_batch(shell, queue, 3) == once(words(3))
    assert handle_batch(shell, queue, 5) == once(words(3, first=3))
    assert handle_batch(shell, queue, 5) == []
    assert truth.completed == [word.encode() for word in words(6)]
    assert truth.is_empty


@pytest.mark.promise("An ack or requeue of a batch that is retried after a lost reply takes effect once.")
@every_cut
def test_the_acks_of_a_batch_are_applied_once(proxy, truth, shell, cuts):
    events = []
    queue = shell.queue(enable_completed_queue=True, on_event=lambda event: events.append(event.operation))
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    proxy.meet("settle", *cuts)
    for _ in range(2):
        handle_batch(shell, queue, 3)
    assert truth.completed == [word.encode() for word in words(6)]
    assert truth.is_empty
    assert events.count(EventOperation.ACK) == 6
    assert EventOperation.STALE_LEASE_ACK not in events


@pytest.mark.promise("An ack or requeue of a batch that is retried after a lost reply takes effect once.")
@every_cut
def test_a_batch_is_requeued_once(proxy, truth, shell, cuts):
    """Each message returns to the front in its order, and its delivery count grows by one each time."""
    queue = shell.queue()
    RedisMessageQueue("faults", client=truth.client).publish_many(words(4))
    proxy.meet("requeue", *cuts)
    for _ in range(2):
        with pytest.raises(LookupError):
            handle_batch(shell, queue, 3, fail)
    assert seen_later(truth) == [*once(words(3), deliveries=3), *once(words(1, first=3))]


@pytest.mark.promise("With lost requests and replies, `run()` still handles, acks and requeues each message once.")
@every_pair
def test_acks_that_travel_with_a_claim_are_applied_once(proxy, truth, shell, faults):
    """So is the claim: every message is handled once, in order, and acked."""
    events, handled = [], []
    queue = shell.queue(enable_completed_queue=True, on_event=lambda event: events.append(event.operation))
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    for name, plan in faults.items():
        proxy.meet(name, *plan)

    def handle(message):
        handled.append((message.payload.decode(), message.delivery_count))

    summary = done(shell, queue.run(handle, prefetch=2, until_empty=True))
    assert handled == once(words(6))
    assert (summary.handled, summary.failed, summary.requeued) == (6, 0, 0)
    assert truth.completed == [word.encode() for word in words(6)]
    assert truth.is_empty
    assert events.count(EventOperation.ACK) == 6


@pytest.mark.promise("With lost requests and replies, `run()` still handles, acks and requeues each message once.")
@every_cut
def test_a_loop_requeues_its_messages_once(proxy, truth, shell, cuts):
    """As if they had never been claimed, whichever requests and replies are lost."""
    handled, rounds = [], 1 + cuts.count(PASS)
    proxy.meet("requeue", *cuts)
    for _ in range(rounds):
        queue = shell.queue()
        RedisMessageQueue("faults", client=truth.client).publish_many(words(5))

        def handle(message, queue=queue):
            handled.append(message.payload.decode())
            if isinstance(shell, AsyncioShell):
                return queue.drain(timeout=0)
            queue.drain(timeout=0)
            return None

        assert done(shell, queue.run(handle, prefetch=4)).requeued == 3
        assert seen_later(truth) == once(words(4, first=1))
    assert handled == words(1) * rounds
    assert proxy.seen["requeue"] == len(cuts) + 1
    assert truth.is_empty


@pytest.mark.promise(
    "If a claim of `run()` runs out of retries, `run()` raises the error and the next one recovers the claim."
)
@pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=str)
def test_a_loop_without_a_budget_raises_and_the_next_loop_continues(proxy, truth, shell, cut):
    """The next loop repeats the acks and recovers the claimed messages in their first delivery."""
    queue = shell.queue(gateway={"retry_budget_seconds": 0}, enable_completed_queue=True)
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    proxy.meet("claim", PASS, cut)
    handled = []

    def handle(message):
        handled.append((message.payload.decode(), message.delivery_count))

    with pytest.raises(redis.exceptions.ConnectionError):
        done(shell, queue.run(handle, prefetch=2, until_empty=True))
    assert truth.completed == [word.encode() for word in words(2)]
    assert done(shell, queue.run(handle, prefetch=2, until_empty=True)).handled == 4
    assert handled == once(words(6))
    assert truth.is_empty


@pytest.mark.promise(
    "If acks cannot be delivered, `run()` goes on: it retries them beside its handlers, then leaves the messages to "
    "their leases and counts them as unsettled."
)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "without leases"])
def test_a_loop_goes_on_when_its_acks_cannot_be_delivered(proxy, truth, shell, concurrency, lease, caplog):
    """It handles all messages. Those without an ack are redelivered, or stay in `processing` without leases."""
    events, handled = [], []
    queue = shell.queue(
        gateway={"retry_budget_seconds": 1.0, "message_visibility_timeout_seconds": lease},
        enable_completed_queue=True,
        on_event=lambda event: events.append((event.operation, event.message_id)),
    )
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    proxy.always("settle", CUT_BEFORE)
    summary = done(
        shell,
        queue.run(lambda message: handled.append(message.id), prefetch=2, concurrency=concurrency, until_empty=True),
    )
    proxy.relent()
    assert (summary.handled, summary.unsettled, summary.attempts) == (0, 6, 6)
    failed = [one for name, one in events if name == EventOperation.CLEANUP_FAILED]
    assert sorted(failed) == sorted(handled)
    assert (len(handled), truth.processing, truth.pending, truth.completed) == (6, 6, 0, [])
    assert all(any(one in record.getMessage() for record in caplog.records) for one in handled)
    stats = done(shell, queue.stats())
    assert stats.processing == 6
    truth.end_leases()
    assert sorted(seen_later(truth)) == (once(words(6), deliveries=2) if lease else [])


def test_acks_that_could_not_be_delivered_at_once_are_delivered_before_the_loop_ends(proxy, truth, shell):
    """A stop does not forget them."""
    queue = shell.queue(enable_completed_queue=True)
    RedisMessageQueue("faults", client=truth.client).publish_many(words(4))
    proxy.meet("settle", *[CUT_BEFORE] * 4)
    summary = done(shell, queue.run(lambda message: None, prefetch=4, until_empty=True))
    assert (summary.handled, summary.unsettled) == (4, 0)
    assert sorted(truth.completed) == [word.encode() for word in words(4)]
    assert truth.is_empty


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
def test_scripts_that_the_server_lost_are_loaded_again(proxy, truth, shell):
    """Both scripts of a pipeline, each time it happens; nothing is done twice."""
    queue = shell.queue(enable_completed_queue=True)
    done(shell, queue.publish_many(words(8)))
    handled = []

    def handle(message):
        handled.append((message.payload.decode(), message.delivery_count))
        truth.client.script_flush()

    assert done(shell, queue.run(handle, prefetch=2, until_empty=True)).handled == 8
    assert handled == once(words(8))
    assert truth.completed == [word.encode() for word in words(8)]
    assert truth.is_empty
    assert proxy.seen["EVAL"] >= 8
    truth.client.script_flush()
    done(shell, queue.publish_many(words(3)))
    truth.client.script_flush()
    assert handle_batch(shell, queue, 3, lambda batch: truth.client.script_flush()) == once(words(3))
    assert truth.is_empty


@pytest.mark.promise("`run()` claims `prefetch` messages in one round trip and piggybacks acks on the next claim.")
@pytest.mark.parametrize("shell", ["sync-packed", "asyncio-packed"], indirect=True)
def test_acks_and_the_next_claim_share_a_round_trip(proxy, truth, shell):
    """Both are sent before either reply is read."""
    queue_client = shell.client(max_connections=1)
    queue = shell.queue(queue_client)
    done(shell, queue.publish_many(words(6)))
    spoken = []
    watch_the_connection(shell, queue_client, spoken)
    done(shell, queue.run(lambda message: None, prefetch=2, until_empty=True))
    assert spoken == [("send", 1), "read", *[("send", 2), "read", "read"] * 3]


def watch_the_connection(shell, client, spoken):
    """Record requests and reads on the only connection of a client."""
    pool = client.connection_pool
    connection = done(shell, pool.get_connection())
    send, read = connection.send_packed_command, connection.read_response

    def note_sent(packed, *rest, **options):
        spoken.append(("send", len(packed)))
        return send(packed, *rest, **options)

    def note_read(*arguments, **options):
        spoken.append("read")
        return read(*arguments, **options)

    connection.send_packed_command, connection.read_response = note_sent, note_read
    done(shell, pool.release(connection))


# Pools


@pytest.fixture(params=["sync", "asyncio"])
def straight(request, server, truth):
    """Sync and async, without a proxy."""
    blocking = request.param == "sync"
    opened = BlockingShell(server.port, redis.Redis) if blocking else AsyncioShell(server.port, redis.asyncio.Redis)
    yield opened
    opened.close()


def pool_of(shell, server, pool_class, size):
    module = redis.asyncio if isinstance(shell, AsyncioShell) else redis
    options = {"timeout": 5} if pool_class == "BlockingConnectionPool" else {}
    return getattr(module, pool_class)(host="127.0.0.1", port=server.port, max_connections=size, **options)


@pytest.mark.promise(
    "Two connections are enough for `run()` with heartbeats; with one, or with an empty pool, nothing is lost."
)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])
def test_two_connections_serve_a_loop_with_heartbeats(straight, server, truth, pool_class, concurrency):
    """One for the loop and one for its heartbeat, for any number of workers: no retries, no failures."""
    trouble, handled, renewed = [], [], []

    def on_event(event):
        if event.outcome is EventOutcome.FAILURE or event.operation is EventOperation.RETRY_ATTEMPT:
            trouble.append(event)
        if event.operation is EventOperation.LEASE_RENEW:
            renewed.append(event)

    client = straight.client(connection_pool=pool_of(straight, server, pool_class, 2))
    queue = straight.queue(
        client,
        {"message_visibility_timeout_seconds": 20},
        heartbeat_interval_seconds=0.005,
        on_heartbeat_failure=lambda: trouble.append("heartbeat"),
        on_event=on_event,
        enable_completed_queue=True,
    )
    done(straight, queue.publish_many(words(40)))

    async def handle_awaited(message):
        await asyncio.sleep(0.005)
        handled.append(message.payload.decode())

    def handle(message):
        time.sleep(0.005)
        handled.append(message.payload.decode())

    handler = handle_awaited if isinstance(straight, AsyncioShell) else handle
    options = {"prefetch": 10, "concurrency": concurrency, "until_empty": True}
    assert done(straight, queue.run(handler, **options)).handled == 40
    assert trouble == []
    assert (handled if concurrency == 1 else sorted(handled)) == words(40)
    assert len(renewed) > 0
    assert truth.is_empty


@pytest.mark.promise(
    "Two connections are enough for `run()` with heartbeats; with one, or with an empty pool, nothing is lost."
)
def test_one_connection_for_everything_loses_nothing(straight, server, truth):
    """Workers, acks and heartbeats wait for each other, and everything is handled in the end."""
    client = straight.client(connection_pool=pool_of(straight, server, "ConnectionPool", 1))
    queue = straight.queue(
        client,
        {"message_visibility_timeout_seconds": 20},
        heartbeat_interval_seconds=0.005,
        enable_completed_queue=True,
    )
    RedisMessageQueue("faults", client=truth.client).publish_many(words(60))
    summary = done(straight, queue.run(lambda message: None, concurrency=4, prefetch=5, until_empty=True))
    assert summary.handled == 60
    assert sorted(truth.completed) == [word.encode() for word in words(60)]
    assert truth.is_empty


@pytest.mark.promise(
    "Two connections are enough for `run()` with heartbeats; with one, or with an empty pool, nothing is lost."
)
def test_calls_wait_for_a_connection_of_an_exhausted_pool(straight, server, truth):
    """Chunks, batches and loops treat an exhausted pool as a transient error."""
    client = straight.client(connection_pool=pool_of(straight, server, "ConnectionPool", 1))
    queue = straight.queue(client, enable_completed_queue=True)
    with all_connections_taken(straight, client):
        assert done(straight, queue.publish_many(words(4))) == [True] * 4
    with all_connections_taken(straight, client):
        assert handle_batch(straight, queue, 2) == once(words(2))
    with all_connections_taken(straight, client):
        assert done(straight, queue.run(lambda message: None, prefetch=2, until_empty=True)).handled == 2
    assert truth.completed == [word.encode() for word in words(4)]


@contextlib.contextmanager
def all_connections_taken(shell, client, for_seconds=0.15):
    """Another user holds the only connection and releases it after a while."""
    pool = client.connection_pool
    connection = done(shell, pool.get_connection())
    if isinstance(shell, AsyncioShell):
        loop, requeued = shell.runner.get_loop(), []
        loop.call_later(for_seconds, lambda: requeued.append(loop.create_task(pool.release(connection))))
        yield
        assert requeued
    else:
        timer = threading.Timer(for_seconds, pool.release, (connection,))
        timer.start()
        yield
        timer.join()


# Lost heartbeats


LOST = {"message_visibility_timeout_seconds": 0.6}
two_ways = pytest.mark.parametrize("shell", ["sync-packed", "asyncio-ordinary"], indirect=True)


class LostRenewals:
    """A queue whose renewals are lost, and the events that it emits."""

    def __init__(self, shell):
        self.events, self.failures = [], []
        self.queue = shell.queue(
            shell.client(socket_timeout=0.1),
            LOST,
            heartbeat_interval_seconds=0.1,
            on_heartbeat_failure=lambda: self.failures.append("failed"),
            on_event=lambda event: self.events.append(event.operation),
            enable_completed_queue=True,
        )

    def wait_until_replaced(self, messages, taken_over):
        """A handler that is busy until another consumer holds all its messages."""
        until(lambda: taken_over and self.failures and all(message.lease_lost for message in messages))


def take_over(truth, taken_over, finished, count):
    """Another consumer, without the proxy, gets the lost messages and holds them until the first one is done."""
    queue = RedisMessageQueue("faults", client=truth.client, message_wait_interval_seconds=LIMIT_SECONDS)
    until(lambda: truth.processing == count)
    seen = []
    with contextlib.ExitStack() as batches:
        while len(seen) < count:
            seen += look_at(batches.enter_context(queue.process_messages(count)))
        taken_over += seen
        until(lambda: finished)
        assert truth.processing == count
        assert truth.completed == []


@pytest.mark.promise(
    "A batch that is not renewed, or exceeds `max_processing_seconds`, goes to other consumers, and its late acks are "
    "refused."
)
@two_ways
def test_a_batch_whose_heartbeats_are_lost_loses_all_its_leases(proxy, truth, shell):
    """Every message reports it; the late acks are refused, and the messages stay with the second consumer."""
    unrenewed, taken_over, finished = LostRenewals(shell), [], []
    RedisMessageQueue("faults", client=truth.client).publish_many(words(3))
    proxy.always("renew", BLACK_HOLE)
    with beside(take_over, truth, taken_over, finished, 3):
        handle_in_a_thread(shell, unrenewed, taken_over)
        finished.append(True)
    assert sorted(taken_over) == once(words(3), deliveries=2)
    assert unrenewed.events.count(EventOperation.STALE_LEASE_ACK) == 3
    assert EventOperation.ACK not in unrenewed.events
    assert truth.is_empty


def handle_in_a_thread(shell, unrenewed, taken_over):
    """A handler that does not block the event loop of its heartbeat."""
    if not isinstance(shell, AsyncioShell):
        handle_batch(shell, unrenewed.queue, 3, lambda batch: unrenewed.wait_until_replaced(batch, taken_over))
        return

    async def handle():
        async with unrenewed.queue.process_messages(3) as batch:
            await asyncio.to_thread(unrenewed.wait_until_replaced, batch, taken_over)

    shell.runner.run(handle())


@pytest.mark.promise("A message whose lease was lost is not counted as handled, and `run()` continues with the others.")
@two_ways
def test_a_loop_whose_heartbeats_are_lost_loses_its_leases_and_continues(proxy, truth, shell):
    """Current messages are acked too late, waiting ones are not started. Once renewals arrive, the loop works again."""
    unrenewed, taken_over, finished = LostRenewals(shell), [], []
    RedisMessageQueue("faults", client=truth.client).publish_many(words(2))
    proxy.always("renew", BLACK_HOLE)

    def handle(message):
        if not finished:
            unrenewed.wait_until_replaced([message], taken_over)
            proxy.relent()
            finished.append(True)

    async def handle_awaited(message):
        await asyncio.to_thread(handle, message)

    handler = handle_awaited if isinstance(shell, AsyncioShell) else handle
    with beside(take_over, truth, taken_over, finished, 2):
        summary = done(shell, unrenewed.queue.run(handler, prefetch=2, until_empty=True))
    assert summary.handled == 0
    assert unrenewed.events.count(EventOperation.STALE_LEASE_ACK) == 1
    assert unrenewed.events.count(EventOperation.STALE_LEASE_NACK) == 1
    RedisMessageQueue("faults", client=truth.client).publish_many(words(4))
    assert done(shell, unrenewed.queue.run(handler, prefetch=2, until_empty=True)).handled == 4
    assert truth.is_empty


# Cancellations

CLIENTS = {"packed": redis.asyncio.Redis, "ordinary": OrdinaryAsyncioRedis}


@pytest.fixture(params=CLIENTS)
def tasks(request, proxy):
    """The async queue, through the proxy."""
    opened = AsyncioShell(proxy.port, CLIENTS[request.param])
    proxy.always("EVALSHA", delayed(0.002))  # so that no reply is there before it is awaited
    yield opened
    opened.close()


async def ended(work):
    """Whether the work was cancelled, in its own task."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task})
    if not task.cancelled():
        with contextlib.suppress(LookupError):
            task.result()
    return task.cancelled()


again_too = pytest.mark.parametrize("again", [0, 1], ids=["once", "again at the next await"])


@pytest.mark.promise("A batch whose consumer is cancelled or interrupted during the claim is recovered.")
@again_too
def test_cancelling_a_batch_at_every_await_loses_nothing(tasks, truth, again):
    """Before the handler the messages are recovered; after it they are acked, and then the cancellation goes on."""
    publisher = RedisMessageQueue("faults", client=truth.client)

    async def take_a_batch(queue, handled):
        async with queue.process_messages(3) as batch:
            handled += look_at(batch)

    async def cancel_everywhere():
        awaits, broken_off, carried_through = 0, 0, 0
        while True:
            awaits += 1
            queue = tasks.queue(tasks.client(), enable_completed_queue=True)
            publisher.publish_many(words(3))
            handled = []
            cancellation = Cancellation(awaits, awaits + again)
            was_cancelled = await ended(cancellation.of(take_a_batch(queue, handled)))
            assert was_cancelled == cancellation.came
            if handled:
                carried_through += 1
            else:
                broken_off += 1
                await take_a_batch(queue, handled)
            assert handled == once(words(3))
            assert truth.completed == [word.encode() for word in words(3)]
            assert truth.is_empty
            truth.client.delete(truth.key.completed)
            if not cancellation.came:
                return broken_off, carried_through

    # A read with one await more or less can skip the only await of the ack; not for long.
    for _ in range(10):
        broken_off, carried_through = tasks.runner.run(cancel_everywhere())
        assert broken_off >= 3
        if carried_through >= 2:
            break
    assert carried_through >= 2


@pytest.mark.promise("A cancellation waits for the running ack or requeue of a batch.")
@again_too
def test_cancelling_a_failing_batch_at_every_await_requeues_it_once(tasks, truth, again):
    """Recovered or requeued: every message is there, in order."""
    publisher = RedisMessageQueue("faults", client=truth.client)

    async def fail_a_batch(queue, begun):
        async with queue.process_messages(3):
            begun.append(True)
            raise LookupError

    async def cancel_everywhere():
        awaits = 0
        while True:
            awaits += 1
            queue = tasks.queue(tasks.client())
            publisher.publish_many(words(3))
            begun = []
            cancellation = Cancellation(awaits, awaits + again)
            await ended(cancellation.of(fail_a_batch(queue, begun)))
            async with queue.process_messages(5) as batch:
                assert look_at(batch) == once(words(3), deliveries=2 if begun else 1)
            assert truth.is_empty
            if not cancellation.came:
                return awaits

    assert tasks.runner.run(cancel_everywhere()) >= 4


@pytest.mark.promise("A cancelled `run()` acks what is handled, requeues prefetched messages, and ends as cancelled.")
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("drains", [False, True], ids=["until empty", "until drained"])
def test_cancelling_a_loop_at_every_await_loses_nothing(tasks, truth, concurrency, drains):
    """Handled messages are acked and the others requeued; the cancellation waits for that and then goes on."""
    publisher = RedisMessageQueue("faults", client=truth.client)

    async def cancel_everywhere():
        awaits, cancelled = 0, 0
        while True:
            awaits += 1
            queue = tasks.queue(tasks.client(), enable_completed_queue=True)
            publisher.publish_many(words(5))
            handled = []

            def handle(message, handled=handled, queue=queue):
                handled.append((message.payload.decode(), message.delivery_count))
                if drains and len(handled) == 3:
                    return queue.drain(timeout=0)
                return None

            options = {"prefetch": 2, "concurrency": concurrency, "until_empty": True}
            cancellation = Cancellation(awaits)
            was_cancelled = await ended(cancellation.of(queue.run(handle, **options)))
            assert was_cancelled == cancellation.came
            cancelled += was_cancelled
            assert len(truth.completed) == len(handled)
            # The same object recovers unconfirmed messages, or its drain requeues them.
            await queue.drain()
            handled += seen_later(truth)
            assert sorted(handled) == once(words(5))
            assert truth.is_empty
            truth.client.delete(truth.key.completed)
            if not cancellation.came:
                return cancelled

    # With several workers the task of the loop only waits for them.
    assert tasks.runner.run(cancel_everywhere()) >= (10 if concurrency == 1 else 2)


@pytest.mark.promise("A cancelled `run()` acks what is handled, requeues prefetched messages, and ends as cancelled.")
def test_cancelling_a_loop_at_random_moments_loses_nothing(tasks, truth):
    """Its handlers are cancelled too: each message is handled completely at least once, and acked once."""
    expected = words(often(100, 300))

    async def run():
        chance = random.Random(7)
        queue = tasks.queue(
            gateway={"message_visibility_timeout_seconds": 0.5}, enable_completed_queue=True, max_completed_length=None
        )
        await queue.publish_many(expected)
        handled, enough = [], asyncio.Event()

        async def handle(message):
            await asyncio.sleep(0.001)
            handled.append(message.payload.decode())
            if chance.random() < 0.2:
                enough.set()

        async def a_few_more():
            """On a busy machine a loop that is cancelled by the clock alone may never get anywhere."""
            enough.clear()
            with contextlib.suppress(TimeoutError):  # the rest is leased to earlier loops, or there is none
                await asyncio.wait_for(enough.wait(), 0.3)
            await asyncio.sleep(chance.random() * 0.006)

        cancelled, completed, deadline = 0, 0, time.monotonic() + LIMIT_SECONDS
        while completed < len(expected):
            if truth.completions > completed:
                completed, deadline = truth.completions, time.monotonic() + LIMIT_SECONDS
            assert time.monotonic() < deadline, f"{completed} are completed"
            loop = asyncio.ensure_future(queue.run(handle, concurrency=3, prefetch=5))
            await a_few_more()
            for _ in range(chance.randrange(1, 3)):
                loop.cancel()
                await asyncio.sleep(chance.random() * 0.003)
            await asyncio.wait({loop})
            assert loop.cancelled()
            cancelled += 1
        return handled, cancelled

    handled, cancelled = tasks.runner.run(run())
    assert set(handled) == set(expected)
    assert sorted(truth.completed) == [word.encode() for word in expected]
    assert truth.is_empty
    assert cancelled > 5


# Ctrl-C

# Python warns about a coroutine that was interrupted before it was awaited; nothing is lost then.
unawaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
# Ctrl-C inside redis-py can leave this many connections half open.
MANY_CONNECTIONS = 5_000


@pytest.fixture
def threads(server, truth):
    """The sync queue."""
    opened = BlockingShell(server.port, redis.Redis)
    yield opened
    opened.close()


@pytest.mark.promise("A batch whose consumer is cancelled or interrupted during the claim is recovered.")
@unawaited
def test_ctrl_c_while_claiming_a_batch_leaves_it_recoverable(threads, truth):
    """Other tests try every moment with single messages; this one tries every third."""
    client = threads.client(max_connections=MANY_CONNECTIONS)
    moment, came, stranded = 0, True, []
    while came:
        moment += 3
        queue = threads.queue(client)
        queue.publish_many(words(3))
        delivered = []
        with CtrlC(moment, LIBRARY_AND_REDIS_PY) as interruption, queue.process_messages(3) as batch:
            interruption.stop()
            delivered += look_at(batch)
        came = interruption.came
        if came and handle_batch(threads, queue, 5) != once(words(3)):
            stranded.append(moment)
        truth.clear()
    assert delivered == once(words(3))
    assert moment > 100
    assert stranded == []


def background_threads():
    """The threads that renew leases and flush acks, of all queues in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]


@pytest.mark.promise("Ctrl-C at any moment of `run()` loses nothing and leaves no unstarted message leased.")
@unawaited
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "at most once"])
def test_ctrl_c_in_a_loop_strands_no_message_that_no_handler_has_started(threads, truth, lease):
    """A second loop of the same object recovers it, or it waits already; handled messages are not handled again."""
    client = threads.client(max_connections=MANY_CONNECTIONS)
    # Every moment would take a minute; the gaps where a message could get lost are wider than these steps.
    moment, came, stranded, doubled = 0, True, [], []
    while came:
        moment += often(29, 13)
        queue = threads.queue(client, {"message_visibility_timeout_seconds": lease})
        queue.publish_many(words(3))
        handled = []
        with CtrlC(moment, LIBRARY) as interruption:
            queue.run(lambda message, handled=handled: handled.append(message.payload), prefetch=2, until_empty=True)
        came = interruption.came
        queue.run(lambda message, handled=handled: handled.append(message.payload), prefetch=2, until_empty=True)
        if set(handled) != {word.encode() for word in words(3)}:
            stranded.append(moment)
        if len(handled) > 3:
            doubled.append(moment)
        truth.clear()
    assert moment > 500
    assert (stranded, doubled) == ([], [])
    until(lambda: not background_threads(), "no background thread is left")


# Processes

LOOPS = {
    "one by one": ("sync", {}),
    "prefetching": ("sync", {"prefetch": 20}),
    "side by side": ("sync", {"concurrency": 4, "prefetch": 10}),
    "in lists": ("sync", {"concurrency": 2, "batch_size": 10, "batch_seconds": 0.05}),
    "in tasks": ("asyncio", {"concurrency": 4, "prefetch": 20}),
}


class LoopWorkers(Workers):
    """One process for each of these loops."""

    def __init__(self, server, truth, *loops):
        shells_and_options = (LOOPS[loop] for loop in loops)
        arguments = [[server.port, shell_name, json.dumps(options)] for shell_name, options in shells_and_options]
        super().__init__("killed_runner.py", *arguments)
        self._truth = truth

    def interrupt(self, place):
        """SIGINT: Ctrl-C."""
        self.members[place].send_signal(signal.SIGINT)

    def be_ready(self):
        """Wait until all workers run and handle signals."""
        until(lambda: all(self._truth.client.sismember("ready", member.pid) for member in self.members))

    def stop(self):
        """SIGTERM: all workers finish. Returns those that ended with an error or wrote to stderr."""
        self.be_ready()
        for member in self.members:
            member.terminate()
        return self.failures()


@pytest.mark.promise("Workers killed with SIGKILL lose nothing: each message is completed once.")
def test_killing_workers_at_random_moments_loses_nothing(server, truth):
    """Each message is completed once, and handled more than once only if its worker was killed."""
    kills = often(5, 15)
    expected = [word.encode() for word in words(40 * kills)]
    chance = random.Random(7)
    queue = RedisMessageQueue("faults", client=truth.client)
    with LoopWorkers(server, truth, *LOOPS) as workers:
        workers.be_ready()
        for kill in range(kills):
            queue.publish_many(words(40, first=40 * kill))
            # At any point: claiming, handling, acknowledging, waiting.
            time.sleep(chance.random() * 0.06)
            workers.kill(kill % len(LOOPS))
        until(lambda: truth.completions >= len(expected))
        assert workers.stop() == []
    assert sorted(truth.completed) == expected
    assert truth.is_empty
    assert not truth.dead
    handled = Counter(truth.client.lrange("handled", 0, -1))
    assert set(handled) == set(expected)
    assert sum(handled.values()) - len(expected) <= truth.client.llen("redelivered")


@pytest.mark.promise("Ctrl-C at any moment of `run()` loses nothing and leaves no unstarted message leased.")
def test_ctrl_c_at_random_moments_loses_nothing(server, truth):
    """Workers are interrupted again and again, even in their handlers, and continue."""
    count = often(200, 400)
    expected = [word.encode() for word in words(count)]
    chance = random.Random(7)
    with LoopWorkers(server, truth, "prefetching", "side by side") as workers:
        workers.be_ready()
        RedisMessageQueue("faults", client=truth.client).publish_many(words(count))
        deadline = time.monotonic() + LIMIT_SECONDS
        while truth.completions < len(expected):
            assert time.monotonic() < deadline, f"{truth.completions} are completed"
            time.sleep(0.005 + chance.random() * 0.05)
            workers.interrupt(chance.randrange(2))
        assert workers.stop() == []
    assert sorted(truth.completed) == expected
    assert truth.is_empty
    assert int(truth.client.get("interrupted")) > 5


@pytest.mark.promise(
    "A handler that raises something other than an `Exception` ends `run()` with it, even while other workers are idle."
)
def test_ctrl_c_ends_an_idle_loop(server, truth):
    """Its workers wait for a message in their own threads and have to be stopped."""
    with LoopWorkers(server, truth, "side by side") as workers:
        workers.be_ready()
        until(lambda: truth.client.info("clients")["blocked_clients"] == 1)
        workers.interrupt(0)
        until(lambda: truth.client.get("interrupted"))
        assert workers.stop() == []
