"""Chunks, batches and loops under faults: nothing is lost, nothing is doubled, and what was held comes again."""

import asyncio
import contextlib
import inspect
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import redis
import redis.asyncio

from redis_message_queue import CleanupFailedError, EventOperation, EventOutcome, RedisMessageQueue
from tests.faults.meanwhile import PATIENCE_SECONDS, beside, until
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, STRAGGLE, delayed
from tests.faults.shells import AsyncioShell, BlockingShell, OrdinaryAsyncioRedis
from tests.faults.stepping import LIBRARY, LIBRARY_AND_REDIS_PY, Cancellation, CtrlC

# Losses of a call's first tries, for a caller's first call and for a later one.
CUTS = [(CUT_BEFORE,), (CUT_AFTER, CUT_BEFORE), (PASS, CUT_AFTER, CUT_AFTER)]
every_cut = pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: ", ".join(map(str, cuts)))

# Where the acks of a loop travel with its second claim: what of both arrives.
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
    """What a call of the queue came to, in either colour."""
    return shell.runner.run(answer) if inspect.iscoroutine(answer) else answer


def handle_batch(shell, queue, count, handler=lambda batch: None, **options):
    """Give a batch to a handler; its payloads and delivery counts."""
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
    """What another consumer finds, past all faults."""
    with RedisMessageQueue("faults", client=truth.client).process_messages(count, wait_seconds=0) as batch:
        return look_at(batch)


# Lost requests and answers


@every_cut
def test_a_chunk_is_published_once(proxy, truth, shell, cuts):
    queue = shell.queue()
    proxy.meet("enqueue", *cuts)
    calls = 1 + cuts.count(PASS)
    for call in range(calls):
        assert done(shell, queue.publish_many(words(3, first=3 * call))) == [True] * 3
    assert proxy.seen["enqueue"] == len(cuts) + 1
    assert seen_later(truth) == once(words(3 * calls))


@every_cut
def test_a_chunk_gives_its_first_answer(proxy, truth, shell, cuts):
    """It is no duplicate of itself; what is one stays one."""
    queue = shell.queue(deduplication=True)
    proxy.meet("enqueue", *cuts)
    for call in range(1 + cuts.count(PASS)):
        assert done(shell, queue.publish_many([f"a {call}", f"b {call}", f"a {call}"])) == [True, True, False]
    assert truth.pending == 2 * (1 + cuts.count(PASS))


def test_a_chunk_that_arrives_late_is_refused(proxy, truth, shell):
    """Its publisher has given it up and gone on: the straggler changes nothing."""
    queue = shell.queue(gateway={"retry_budget_seconds": 0})
    proxy.meet("enqueue", STRAGGLE)
    with pytest.raises(redis.exceptions.ConnectionError) as lost:
        done(shell, queue.publish_many(words(3)))
    assert lost.value.results == []
    assert done(shell, queue.publish_many(words(2, first=3))) == [True, True]
    (answer,) = proxy.let_stragglers_through()
    assert b"OVERTAKEN" in answer
    assert seen_later(truth) == once(words(2, first=3))


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


@every_cut
def test_the_acks_of_a_batch_count_once(proxy, truth, shell, cuts):
    told = []
    queue = shell.queue(enable_completed_queue=True, on_event=lambda event: told.append(event.operation))
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    proxy.meet("settle", *cuts)
    for _ in range(2):
        handle_batch(shell, queue, 3)
    assert truth.completed == [word.encode() for word in words(6)]
    assert truth.is_empty
    assert told.count(EventOperation.ACK) == 6
    assert EventOperation.STALE_LEASE_ACK not in told


@every_cut
def test_a_batch_is_given_back_once(proxy, truth, shell, cuts):
    """Each of its messages, to the front and in its order, with one delivery more for each time."""
    queue = shell.queue()
    RedisMessageQueue("faults", client=truth.client).publish_many(words(4))
    proxy.meet("give_back", *cuts)
    for _ in range(2):
        with pytest.raises(LookupError):
            handle_batch(shell, queue, 3, fail)
    assert seen_later(truth) == [*once(words(3), deliveries=3), *once(words(1, first=3))]


@every_pair
def test_acks_that_travel_with_a_claim_count_once(proxy, truth, shell, faults):
    """And so does the claim: every message is handled once, in its order, and acked."""
    told, handled = [], []
    queue = shell.queue(enable_completed_queue=True, on_event=lambda event: told.append(event.operation))
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    for name, plan in faults.items():
        proxy.meet(name, *plan)

    def handle(message):
        handled.append((message.payload.decode(), message.delivery_count))

    summary = done(shell, queue.run(handle, prefetch=2, until_empty=True))
    assert handled == once(words(6))
    assert (summary.handled, summary.failed, summary.given_back) == (6, 0, 0)
    assert truth.completed == [word.encode() for word in words(6)]
    assert truth.is_empty
    assert told.count(EventOperation.ACK) == 6


@every_cut
def test_what_a_loop_gives_back_is_given_back_once(proxy, truth, shell, cuts):
    """As if it had never been claimed, whatever of its requests and answers is lost."""
    handled, rounds = [], 1 + cuts.count(PASS)
    proxy.meet("give_back", *cuts)
    for _ in range(rounds):
        queue = shell.queue()
        RedisMessageQueue("faults", client=truth.client).publish_many(words(5))

        def handle(message, queue=queue):
            handled.append(message.payload.decode())
            if isinstance(shell, AsyncioShell):
                return queue.drain(timeout=0)
            queue.drain(timeout=0)
            return None

        assert done(shell, queue.run(handle, prefetch=4)).given_back == 3
        assert seen_later(truth) == once(words(4, first=1))
    assert handled == words(1) * rounds
    assert proxy.seen["give_back"] == len(cuts) + 1
    assert truth.is_empty


@pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=str)
def test_a_loop_without_a_budget_ends_with_the_error_and_the_next_one_goes_on(proxy, truth, shell, cut):
    """The acks beside the lost claim are made good; what the claim took is found again, in its first delivery."""
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


def test_acks_that_cannot_be_sent_end_the_loop_and_nothing_is_lost(proxy, truth, shell):
    """The error says what happened; what was handled comes again, what was claimed beside it is in line at once."""
    told, handled = [], []
    queue = shell.queue(
        gateway={"retry_budget_seconds": 0},
        enable_completed_queue=True,
        on_event=lambda event: told.append((event.operation, event.message_id)),
    )
    RedisMessageQueue("faults", client=truth.client).publish_many(words(6))
    proxy.always("settle", CUT_BEFORE)
    with pytest.raises(CleanupFailedError) as failure:
        done(shell, queue.run(lambda message: handled.append(message.id), prefetch=2))
    proxy.relent()
    assert isinstance(failure.value.__cause__, redis.exceptions.ConnectionError)
    assert (failure.value.queue, failure.value.operation, failure.value.message_id) == ("faults", "ack", handled[0])
    assert [one for name, one in told if name == EventOperation.CLEANUP_FAILED] == handled
    assert (len(handled), truth.processing, truth.pending, truth.completed) == (2, 2, 4, [])
    assert seen_later(truth, 4) == once(words(4, first=2))
    truth.end_leases()
    assert sorted(seen_later(truth)) == once(words(2), deliveries=2)
    assert truth.is_empty


def test_a_server_that_forgets_its_scripts_is_told_them_again(proxy, truth, shell):
    """Both that travel together, as often as it happens; nothing is done twice."""
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


@pytest.mark.parametrize("shell", ["sync-packed", "asyncio-packed"], indirect=True)
def test_acks_and_the_next_claim_share_a_round_trip(proxy, truth, shell):
    """Both are sent before either answer is read."""
    queue_client = shell.client(max_connections=1)
    queue = shell.queue(queue_client)
    done(shell, queue.publish_many(words(6)))
    spoken = []
    watch_the_connection(shell, queue_client, spoken)
    done(shell, queue.run(lambda message: None, prefetch=2, until_empty=True))
    assert spoken == [("send", 1), "read", *[("send", 2), "read", "read"] * 3]


def watch_the_connection(shell, client, spoken):
    """Write down what is sent, and when an answer is read, on the only connection of a client."""
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
    """Both colours, without a proxy."""
    blocking = request.param == "sync"
    opened = BlockingShell(server.port, redis.Redis) if blocking else AsyncioShell(server.port, redis.asyncio.Redis)
    yield opened
    opened.close()


def pool_of(shell, server, pool_class, size):
    module = redis.asyncio if isinstance(shell, AsyncioShell) else redis
    options = {"timeout": 5} if pool_class == "BlockingConnectionPool" else {}
    return getattr(module, pool_class)(host="127.0.0.1", port=server.port, max_connections=size, **options)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])
def test_two_connections_serve_a_loop_with_heartbeats(straight, server, truth, pool_class, concurrency):
    """One for the loop and one for its heartbeat, however many workers there are: no retries, no failures."""
    trouble, handled, renewed = [], [], []

    def hear(event):
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
        on_event=hear,
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


def test_one_connection_for_everything_loses_nothing(straight, server, truth):
    """Workers, acks and heartbeats get into each other's way, and everything is handled in the end."""
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


def test_a_pool_that_others_have_emptied_is_waited_for(straight, server, truth):
    """An exhausted pool is a passing trouble for chunks, batches and loops."""
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
    """Somebody else has the only connection, and gives it back after a while."""
    pool = client.connection_pool
    connection = done(shell, pool.get_connection())
    if isinstance(shell, AsyncioShell):
        loop, given_back = shell.runner.get_loop(), []
        loop.call_later(for_seconds, lambda: given_back.append(loop.create_task(pool.release(connection))))
        yield
        assert given_back
    else:
        timer = threading.Timer(for_seconds, pool.release, (connection,))
        timer.start()
        yield
        timer.join()


# Heartbeats that do not get through


LOST = {"message_visibility_timeout_seconds": 0.6}
two_ways = pytest.mark.parametrize("shell", ["sync-packed", "asyncio-ordinary"], indirect=True)


class Hearing:
    """A queue whose renewals are lost, and everything that it tells."""

    def __init__(self, shell):
        self.told, self.failures = [], []
        self.queue = shell.queue(
            shell.client(socket_timeout=0.1),
            LOST,
            heartbeat_interval_seconds=0.1,
            on_heartbeat_failure=lambda: self.failures.append("failed"),
            on_event=lambda event: self.told.append(event.operation),
            enable_completed_queue=True,
        )

    def wait_until_replaced(self, messages, taken_over):
        """A handler that is busy until all of its messages have another holder."""
        until(lambda: taken_over and self.failures and all(message.lease_lost for message in messages))


def take_over(truth, taken_over, finished, count):
    """Another consumer, past the proxy, gets what was lost, and keeps it until the first holder is done."""
    queue = RedisMessageQueue("faults", client=truth.client, message_wait_interval_seconds=PATIENCE_SECONDS)
    until(lambda: truth.processing == count)
    seen = []
    with contextlib.ExitStack() as batches:
        while len(seen) < count:
            seen += look_at(batches.enter_context(queue.process_messages(count)))
        taken_over += seen
        until(lambda: finished)
        assert truth.processing == count
        assert truth.completed == []


@two_ways
def test_a_batch_whose_heartbeat_is_not_heard_is_lost_as_a_whole(proxy, truth, shell):
    """Every message says so; the late acks are refused, and the second holder's messages stay."""
    hearing, taken_over, finished = Hearing(shell), [], []
    RedisMessageQueue("faults", client=truth.client).publish_many(words(3))
    proxy.always("renew", BLACK_HOLE)
    with beside(take_over, truth, taken_over, finished, 3):
        handle_in_a_thread(shell, hearing, taken_over)
        finished.append(True)
    assert sorted(taken_over) == once(words(3), deliveries=2)
    assert hearing.told.count(EventOperation.STALE_LEASE_ACK) == 3
    assert EventOperation.ACK not in hearing.told
    assert truth.is_empty


def handle_in_a_thread(shell, hearing, taken_over):
    """A handler that does not hold up the loop of its heartbeat."""
    if not isinstance(shell, AsyncioShell):
        handle_batch(shell, hearing.queue, 3, lambda batch: hearing.wait_until_replaced(batch, taken_over))
        return

    async def handle():
        async with hearing.queue.process_messages(3) as batch:
            await asyncio.to_thread(hearing.wait_until_replaced, batch, taken_over)

    shell.runner.run(handle())


@two_ways
def test_a_loop_whose_heartbeat_is_not_heard_loses_what_it_holds_and_goes_on(proxy, truth, shell):
    """What is in hand is acked too late and what waits is not started; when renewals get through, it works as ever."""
    hearing, taken_over, finished = Hearing(shell), [], []
    RedisMessageQueue("faults", client=truth.client).publish_many(words(2))
    proxy.always("renew", BLACK_HOLE)

    def handle(message):
        if not finished:
            hearing.wait_until_replaced([message], taken_over)
            proxy.relent()
            finished.append(True)

    async def handle_awaited(message):
        await asyncio.to_thread(handle, message)

    handler = handle_awaited if isinstance(shell, AsyncioShell) else handle
    with beside(take_over, truth, taken_over, finished, 2):
        summary = done(shell, hearing.queue.run(handler, prefetch=2, until_empty=True))
    assert summary.handled == 0
    assert hearing.told.count(EventOperation.STALE_LEASE_ACK) == 1
    assert hearing.told.count(EventOperation.STALE_LEASE_NACK) == 1
    RedisMessageQueue("faults", client=truth.client).publish_many(words(4))
    assert done(shell, hearing.queue.run(handler, prefetch=2, until_empty=True)).handled == 4
    assert truth.is_empty


# Cancellations

CLIENTS = {"packed": redis.asyncio.Redis, "ordinary": OrdinaryAsyncioRedis}


@pytest.fixture(params=CLIENTS)
def tasks(request, proxy):
    """The asyncio queue, through the proxy."""
    opened = AsyncioShell(proxy.port, CLIENTS[request.param])
    proxy.always("EVALSHA", delayed(0.002))  # no answer is there before it is awaited
    yield opened
    opened.close()


async def ended(work):
    """Whether the work was cancelled, in a task of its own."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task})
    if not task.cancelled():
        with contextlib.suppress(LookupError):
            task.result()
    return task.cancelled()


again_too = pytest.mark.parametrize("again", [0, 1], ids=["once", "again at the next await"])


@again_too
def test_cancelling_a_batch_at_every_await_loses_nothing(tasks, truth, again):
    """Up to the handler the messages are found again; after it they are acked, and the cancellation goes on."""
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

    # A read that needs one await more or less can move the one await of the ack out of reach; not for long.
    for _ in range(10):
        broken_off, carried_through = tasks.runner.run(cancel_everywhere())
        assert broken_off >= 3
        if carried_through >= 2:
            break
    assert carried_through >= 2


@again_too
def test_cancelling_the_failure_of_a_batch_at_every_await_gives_it_back_once(tasks, truth, again):
    """Found again or given back: every message is there, in its order."""
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


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("drains", [False, True], ids=["until empty", "until drained"])
def test_cancelling_a_loop_at_every_await_loses_nothing(tasks, truth, concurrency, drains):
    """What was handled is acked, and the rest is in line: the cancellation waits for that, and then goes on."""
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
            # What was in doubt is found by the same object, or goes back with its drain.
            await queue.drain()
            handled += seen_later(truth)
            assert sorted(handled) == once(words(5))
            assert truth.is_empty
            truth.client.delete(truth.key.completed)
            if not cancellation.came:
                return cancelled

    # With several workers the loop's own task only waits for them.
    assert tasks.runner.run(cancel_everywhere()) >= (10 if concurrency == 1 else 2)


def test_cancelling_a_loop_again_and_again_at_random_moments_loses_nothing(tasks, truth):
    """Its handlers are cancelled, too: each message is handled to the end at least once, and acked once."""
    expected = words(300)

    async def run():
        chance = random.Random(7)
        queue = tasks.queue(
            gateway={"message_visibility_timeout_seconds": 0.5}, enable_completed_queue=True, max_completed_length=None
        )
        await queue.publish_many(expected)
        handled = []

        async def handle(message):
            await asyncio.sleep(0.001)
            handled.append(message.payload.decode())

        cancelled, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        while len(truth.completed) < len(expected):
            assert time.monotonic() < deadline, f"{len(truth.completed)} are completed"
            loop = asyncio.ensure_future(queue.run(handle, concurrency=3, prefetch=5))
            await asyncio.sleep(chance.random() * 0.06)
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

# A coroutine that was made and interrupted before it was awaited: Python says so, and nothing was lost.
unawaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
# So many connections can be left half open by Ctrl-C inside redis-py.
MANY_CONNECTIONS = 5_000


@pytest.fixture
def threads(server, truth):
    """The blocking queue."""
    opened = BlockingShell(server.port, redis.Redis)
    yield opened
    opened.close()


@unawaited
def test_ctrl_c_at_many_moments_of_claiming_a_batch_leaves_it_to_be_found(threads, truth):
    """Every moment is tried with single messages; here it is every third."""
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
        truth.client.flushdb()
    assert delivered == once(words(3))
    assert moment > 100
    assert stranded == []


@unawaited
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "at most once"])
def test_ctrl_c_at_many_moments_of_a_loop_strands_nothing_that_no_handler_has_begun(threads, truth, lease):
    """A second loop of the same object finds it, or it is in line already; what was handled is not handled again."""
    client = threads.client(max_connections=MANY_CONNECTIONS)
    # Every moment would take a minute; the places where a message could slip through are wider than these steps.
    moment, came, stranded, doubled = 0, True, [], []
    while came:
        moment += 13
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
        truth.client.flushdb()
    assert moment > 500
    assert (stranded, doubled) == ([], [])


# Processes

LOOPS = {
    "one by one": ("sync", {}),
    "prefetching": ("sync", {"prefetch": 20}),
    "side by side": ("sync", {"concurrency": 4, "prefetch": 10}),
    "in lists": ("sync", {"concurrency": 2, "batch_size": 10, "batch_seconds": 0.05}),
    "in tasks": ("asyncio", {"concurrency": 4, "prefetch": 20}),
}


class Crew:
    """One worker for each of these loops at any time: where one is killed, another begins."""

    def __init__(self, server, truth, *loops):
        program = [sys.executable, "-W", "error", str(Path(__file__).with_name("mortal_runner.py")), str(server.port)]
        self._truth = truth
        self._commands = [[*program, colour, json.dumps(options)] for colour, options in map(LOOPS.get, loops)]
        self.members = []

    def __enter__(self):
        self.members = [self._hire(place) for place in range(len(self._commands))]
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.kill()
            member.communicate()

    def _hire(self, place):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self._commands[place], start_new_session=True, **pipes)

    def kill(self, place):
        """SIGKILL: no clean-up, no last word."""
        self.members[place].send_signal(signal.SIGKILL)
        self.members[place].communicate()
        self.members[place] = self._hire(place)

    def interrupt(self, place):
        """SIGINT: Ctrl-C."""
        self.members[place].send_signal(signal.SIGINT)

    def be_ready(self):
        """Everybody is at work, and knows what to do with a signal."""
        until(lambda: all(self._truth.client.sismember("ready", member.pid) for member in self.members))

    def go_home(self):
        """SIGTERM: everybody finishes and ends; who did so with an error or a complaint."""
        self.be_ready()
        for member in self.members:
            member.terminate()
        outcomes = [(member.communicate(timeout=PATIENCE_SECONDS), member.returncode) for member in self.members]
        return [outcome for outcome in outcomes if outcome != ((b"", b""), 0)]


def test_killing_workers_at_random_moments_loses_nothing(server, truth):
    """Each message is completed once; more than once it is handled only if somebody held it when he was killed."""
    kills, expected = 15, [word.encode() for word in words(600)]
    chance = random.Random(7)
    queue = RedisMessageQueue("faults", client=truth.client)
    with Crew(server, truth, *LOOPS) as crew:
        crew.be_ready()
        for kill in range(kills):
            queue.publish_many(words(40, first=40 * kill))
            # Wherever they are then: claiming, handling, acknowledging, waiting.
            time.sleep(chance.random() * 0.06)
            crew.kill(kill % len(LOOPS))
        until(lambda: len(truth.completed) >= len(expected))
        assert crew.go_home() == []
    assert sorted(truth.completed) == expected
    assert truth.is_empty
    assert not truth.dead
    handled = Counter(truth.client.lrange("handled", 0, -1))
    assert set(handled) == set(expected)
    assert sum(handled.values()) - len(expected) <= truth.client.llen("redelivered")


def test_ctrl_c_at_random_moments_loses_nothing(server, truth):
    """Workers that are interrupted again and again, also in their handlers, catch it and run on."""
    expected = [word.encode() for word in words(400)]
    chance = random.Random(7)
    with Crew(server, truth, "prefetching", "side by side") as crew:
        crew.be_ready()
        RedisMessageQueue("faults", client=truth.client).publish_many(words(400))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(truth.completed) < len(expected):
            assert time.monotonic() < deadline, f"{len(truth.completed)} are completed"
            time.sleep(0.005 + chance.random() * 0.05)
            crew.interrupt(chance.randrange(2))
        assert crew.go_home() == []
    assert sorted(truth.completed) == expected
    assert truth.is_empty
    assert int(truth.client.get("interrupted")) > 5


def test_ctrl_c_ends_a_loop_whose_workers_have_nothing_to_do(server, truth):
    """They wait for a message in threads of their own, and have to be told."""
    with Crew(server, truth, "side by side") as crew:
        crew.be_ready()
        until(lambda: truth.client.info("clients")["blocked_clients"] == 1)
        crew.interrupt(0)
        until(lambda: truth.client.get("interrupted"))
        assert crew.go_home() == []
