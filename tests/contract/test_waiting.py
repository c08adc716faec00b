"""A waiting consumer does not poll: a wake-up, the next deadline or a stop signal ends its wait."""

import asyncio
import threading
import time
from typing import Any

import pytest

from redis_message_queue import BaseGracefulInterruptHandler, EventDrivenInterruptHandler
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.redis_py import wire
from tests.contract.shells import LIMIT_SECONDS, Sent, Shell, asyncio_only, claim_and_die, only_woken, take, until

pytestmark = [pytest.mark.topic("Waiting for messages"), pytest.mark.both_shells, pytest.mark.every_server]

LONG = 3 * LIMIT_SECONDS  # a wait that no test sits out


def waiters(shell: Shell) -> int:
    """How many connections lie in a blocking read."""
    return int(shell.redis.info("clients")["blocked_clients"])


async def timed(work: Any) -> tuple[Any, float]:
    started = time.monotonic()
    return await work, time.monotonic() - started


@pytest.mark.promise("An idle consumer sends at most two commands per second.")
async def test_an_idle_consumer_sends_at_most_two_commands_a_second(shell: Shell) -> None:
    """One to look and one to wait; also while others hold messages whose leases go on for long."""
    queue = shell.queue(wait=LONG)
    await queue.publish("held")
    await claim_and_die(queue)
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: waiters(shell) == 1)
    with Sent(shell.server) as sent:
        await asyncio.sleep(1.7)
    await queue.publish("a")
    assert await consumer == b"a"
    # A window may begin and end between the two commands of a slice.
    assert 2 <= len(sent.commands) <= 2 * sent.seconds + 2
    assert set(sent.commands) == {"EVALSHA", "BLPOP"}


async def test_a_consumer_that_does_not_wait_calls_redis_once(shell: Shell) -> None:
    """One claim, no blocking read."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    await take(queue)
    with Sent(shell.server) as sent:
        assert await take(queue) is None
    assert sent.commands == ["EVALSHA"]


async def test_a_message_that_is_there_costs_two_round_trips(shell: Shell) -> None:
    """Claim and ack; a publish costs one."""
    queue = shell.queue(deduplication=True, enable_completed_queue=True, max_pending_length=5)
    await queue.publish("warm")
    await take(queue)
    with Sent(shell.server) as sent:
        await queue.publish("a")
        await take(queue)
    assert sent.commands == ["EVALSHA"] * 3


@pytest.mark.promise("Any publish wakes a waiting consumer.")
async def test_a_publish_wakes_a_waiting_consumer(shell: Shell) -> None:
    """At once, and not when it would look for itself."""
    queue = only_woken(shell)
    for number in range(5):
        consumer = shell.beside(lambda: take(queue))
        assert await until(lambda: waiters(shell) == 1)
        await queue.publish(str(number))
        assert int(await asyncio.wait_for(consumer, LIMIT_SECONDS)) == number


@pytest.mark.promise("Any publish wakes a waiting consumer.")
async def test_any_publisher_wakes_any_consumer(shell: Shell) -> None:
    """The wake-up key is in Redis, not in the object."""
    consumer = shell.beside(lambda: take(shell.queue(wait=LONG)))
    assert await until(lambda: waiters(shell) == 1)
    await shell.queue().publish("a")
    assert await asyncio.wait_for(consumer, LIMIT_SECONDS) == b"a"


@pytest.mark.promise("A waiting consumer sleeps exactly until the next lease ends or the next delayed message is due.")
async def test_the_end_of_a_lease_wakes_a_waiting_consumer(shell: Shell) -> None:
    """It is awake when the dead consumer's lease is over: not before, and not as late as its own next look."""
    queue = only_woken(shell, visibility_timeout_seconds=0.2)
    for number in range(3):
        await queue.publish(str(number))
        started = time.monotonic()
        await claim_and_die(queue)
        assert int(await take(queue)) == number
        assert 0.2 <= time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise("A waiting consumer sleeps exactly until the next lease ends or the next delayed message is due.")
async def test_every_lease_that_ends_finds_a_waiting_consumer(shell: Shell) -> None:
    """One of them is on watch for the next deadline, and passes the watch on."""
    queue = shell.queue(wait=LONG, visibility_timeout_seconds=0.5)
    for text in "abc":
        await queue.publish(text)
    for _ in range(3):
        await claim_and_die(queue)
    consumers = [shell.beside(lambda: take(queue)) for _ in range(3)]
    assert sorted(await asyncio.wait_for(asyncio.gather(*consumers), LIMIT_SECONDS)) == [b"a", b"b", b"c"]


@pytest.mark.promise("Any publish wakes a waiting consumer.")
async def test_messages_that_come_together_wake_as_many_consumers(shell: Shell) -> None:
    """One token for four messages: a consumer that leaves some behind wakes up the next, and no slice is waited for."""
    queue, aside = only_woken(shell), shell.queue("aside")
    for _ in range(3):
        for number in range(4):
            await aside.publish(str(number))
        working: set[bytes] = set()

        async def consumer(working: set[bytes] = working) -> bool:
            async with queue.process_message() as message:
                working.add(message)
                return await until(lambda: len(working) == 4)

        consumers = [shell.beside(consumer) for _ in range(4)]
        assert await until(lambda: waiters(shell) == 4)
        with shell.redis.pipeline(transaction=True) as together:
            together.rename(aside.key.pending, queue.key.pending).lpush(queue.key.wakeup, "1").execute()
        assert await asyncio.gather(*consumers) == [True] * 4


async def scripts_run_for(shell: Shell, messages: int, waiting: int) -> int:
    """How many scripts it takes to deliver messages one by one to a crowd of consumers that only wait to be woken."""
    queue = only_woken(shell, connections=2 * waiting)
    handled: list[bytes] = []

    async def consumer() -> None:
        while True:
            async with queue.process_message() as message:
                if message == b"leave":
                    return
                handled.append(message)

    def calls() -> int:
        return int(shell.redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    consumers = []
    for number in range(0, waiting, 10):  # a few at a time: a busy machine does not connect hundreds within a timeout
        consumers += [shell.beside(consumer) for _ in range(10)]
        assert await until(lambda number=number: waiters(shell) == number + 10)
    before = calls()
    for number in range(messages):
        await queue.publish(str(number))
        assert await until(lambda number=number: len(handled) == number + 1)
    asked = calls() - before
    await queue.publish_many(["leave"] * waiting)
    await asyncio.gather(*consumers)
    return asked


# Publish, claim and ack are 3 scripts a message, and one claim more may find that it came too late. Everybody at each
# message would be as many more as there are consumers.
@pytest.mark.promise("A wake-up causes no stampede, even with 500 waiting consumers.")
async def test_a_crowd_of_waiters_does_not_stampede(shell: Shell) -> None:
    assert await scripts_run_for(shell, messages=30, waiting=50) <= 5 * 30


@pytest.mark.promise("A wake-up causes no stampede, even with 500 waiting consumers.")
@asyncio_only
async def test_five_hundred_waiters_do_not_stampede(shell: Shell) -> None:
    assert await scripts_run_for(shell, messages=30, waiting=500) <= 5 * 30


@pytest.mark.promise("Waits and timeouts use the monotonic clock.")
@pytest.mark.promise("`claim_empty` is emitted once per call, however long it waited.")
async def test_a_wait_ends_at_its_time_with_one_event(shell: Shell) -> None:
    """claim_empty is told once a call, however many slices the call waited; it says how long that was."""
    events = shell.events()
    queue = shell.queue(wait=1.1, on_event=events.listen)
    message, seconds = await timed(take(queue))
    assert message is None
    assert 1.1 <= seconds < LIMIT_SECONDS
    assert events.names == ["claim_empty/skipped"]
    assert 1.1 <= (events.all[0].duration_seconds or 0) <= seconds


async def test_a_blocking_read_is_shorter_than_the_client_listens(shell: Shell) -> None:
    """With a short socket timeout the slices are shorter still: no retry, and nothing to be seen of it outside."""
    events = shell.events()
    queue = shell.queue(client=shell.new_client(socket_timeout=0.5), wait=1.5, on_event=events.listen)
    with Sent(shell.server) as sent:
        assert await take(queue) is None
    asked = [float(line.rsplit(" ", 1)[1]) for line in sent.lines if line.startswith("BLPOP")]
    assert len(asked) >= 2
    assert max(asked) < 0.5
    assert events.names == ["claim_empty/skipped"]


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 4e-7, 0.0009, 0.001, 0.0011])
def test_every_server_ends_a_very_short_wait(server: EmbeddedRedis, seconds: float) -> None:
    """Redis 6.2 reads a timeout of 0.001 as none at all, and would block forever: here a TimeoutError."""
    with server.client(socket_timeout=10) as client:
        assert client.execute_command(*wire.blpop(("nothing",), seconds)) is None


@pytest.mark.promise("Two connections are enough for a serial consumer with heartbeats, and two per consumer for many.")
async def test_two_connections_serve_a_consumer_with_heartbeats(shell: Shell) -> None:
    """The wake-up key gives its connection back before the handler runs; a third would be refused by this pool."""
    events = shell.events()
    queue = shell.queue(
        client=shell.new_client(max_connections=2),
        wait=LONG,
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.03,
        on_event=events.listen,
    )
    publisher = shell.queue(client=shell.new_client())

    async def consumer() -> None:
        for _ in range(3):
            async with queue.process_message():
                seen = len(events.of("lease_renew"))
                await events.wait_for("lease_renew", seen + 2)

    running = shell.beside(consumer)
    for number in range(3):
        await publisher.publish(str(number))
        await asyncio.sleep(0.1)
    await asyncio.wait_for(running, LIMIT_SECONDS)
    assert {"claim/failure", "lease_renew/failure", "retry_attempt/failure"}.isdisjoint(events.names)
    assert len(events.of("ack")) == 3


# Stopping


@pytest.mark.promise("An interrupt ends a waiting claim promptly.")
async def test_an_interrupt_ends_a_wait_soon(shell: Shell) -> None:
    """Within about a slice, with None; the wait itself would have gone on for a minute."""
    stop = threading.Event()
    queue = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: waiters(shell) == 1)
    stop.set()
    message, seconds = await timed(consumer)
    assert message is None
    assert seconds < LIMIT_SECONDS


@pytest.mark.promise("An interrupt handler of your own is checked between claims.")
@pytest.mark.promise("An interrupted consumer sends no new claim to Redis.")
async def test_an_interrupted_queue_claims_nothing(shell: Shell) -> None:
    """Neither what waits nor what came back; the callback is not called."""
    stop = threading.Event()
    queue = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    await queue.publish("came back")
    await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("waits")
    stop.set()
    (message, seconds) = await timed(take(queue))
    assert message is None
    assert seconds < LIMIT_SECONDS
    assert await queue.process_message_callback(pytest.fail) is False
    assert (shell.pending(queue), shell.processing(queue)) == (1, 1)


@pytest.mark.promise(
    "After a signal, a consumer finishes its message and claims no other, so its process can exit normally."
)
async def test_an_interrupt_lets_the_handler_finish(shell: Shell) -> None:
    """The message in hand is acked as ever."""
    stop = threading.Event()
    queue = shell.queue(interrupt=EventDrivenInterruptHandler(stop), enable_completed_queue=True)
    await queue.publish("a")
    async with queue.process_message():
        stop.set()
        await queue.publish("a result may still be published")
    assert shell.listed(queue.key.completed) == [b"a"]


@pytest.mark.promise("An interrupt handler of your own is checked between claims.")
async def test_a_stop_of_ones_own_will_do(shell: Shell) -> None:
    """Any subclass of the base, sync and async; its answer is read anew each time."""

    class Quota(BaseGracefulInterruptHandler):
        spent = True

        def is_interrupted(self) -> bool:
            return self.spent

    interrupt = Quota()
    queue = shell.queue(wait=LONG, interrupt=interrupt)
    await queue.publish("a")
    message, seconds = await timed(take(queue))
    assert message is None
    assert seconds < LIMIT_SECONDS
    interrupt.spent = False
    assert await take(queue) == b"a"


@pytest.mark.promise("Any publish wakes a waiting consumer.")
async def test_a_consumer_that_stops_does_not_swallow_the_wake_up_of_another(shell: Shell) -> None:
    """Two wait, one is told to stop while a message arrives: the other one gets it."""
    for _ in range(3):
        stop = threading.Event()
        stopping = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
        staying = shell.queue(wait=LONG)
        leaver, stayer = (
            shell.beside(lambda queue=stopping: take(queue)),
            shell.beside(lambda queue=staying: take(queue)),
        )
        assert await until(lambda: waiters(shell) == 2)
        stop.set()
        await staying.publish("a")
        assert await asyncio.wait_for(stayer, LIMIT_SECONDS) == b"a"
        assert await leaver is None
