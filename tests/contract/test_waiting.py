"""A consumer waits without asking: the bell wakes it, the next deadline does, or somebody who wants to stop."""

import asyncio
import threading
import time
from typing import Any

import pytest

from redis_message_queue import BaseGracefulInterruptHandler, EventDrivenInterruptHandler
from tests.contract.shells import PATIENCE_SECONDS, Sent, Shell, claim_and_die, take, until

LONG = 3 * PATIENCE_SECONDS  # a wait that no test sits out
SLICE = 1.0  # a waiter looks for itself once a second; whoever is quicker was woken


def waiters(shell: Shell) -> int:
    """How many connections lie in a blocking read."""
    return int(shell.redis.info("clients")["blocked_clients"])


async def timed(work: Any) -> tuple[Any, float]:
    started = time.monotonic()
    return await work, time.monotonic() - started


async def test_an_idle_consumer_sends_at_most_two_commands_a_second(shell: Shell) -> None:
    """One to look and one to wait; also while others hold messages whose leases go on for long."""
    queue = shell.queue(wait=LONG)
    await queue.publish("held")
    await claim_and_die(queue)
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: waiters(shell) == 1)
    with Sent(shell.server) as sent:
        await asyncio.sleep(2.1)
    await queue.publish("a")
    assert await consumer == b"a"
    # A window may begin and end between the two commands of a slice.
    assert 2 <= len(sent.commands) <= 2 * sent.seconds + 2
    assert set(sent.commands) == {"EVALSHA", "BLPOP"}


async def test_a_consumer_that_does_not_wait_asks_once(shell: Shell) -> None:
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


async def test_a_publish_wakes_a_waiting_consumer(shell: Shell) -> None:
    """Not at the end of its slice but at once: five wake-ups take less than half of what five slices would."""
    queue = shell.queue(wait=LONG)
    total = 0.0
    for number in range(5):
        consumer = shell.beside(lambda: take(queue))
        assert await until(lambda: waiters(shell) == 1)
        started = time.monotonic()
        await queue.publish(str(number))
        assert int(await consumer) == number
        total += time.monotonic() - started
    assert total < 5 * SLICE / 2


async def test_any_publisher_wakes_any_consumer(shell: Shell) -> None:
    """The bell is in Redis, not in the object."""
    consumer = shell.beside(lambda: take(shell.queue(wait=LONG)))
    assert await until(lambda: waiters(shell) == 1)
    await shell.queue().publish("a")
    assert await asyncio.wait_for(consumer, PATIENCE_SECONDS) == b"a"


async def test_the_end_of_a_lease_wakes_a_waiting_consumer(shell: Shell) -> None:
    """It is awake when the dead consumer's lease is over, and not before."""
    queue = shell.queue(wait=LONG, visibility_timeout_seconds=0.6)
    await queue.publish("a")
    started = time.monotonic()
    await claim_and_die(queue)
    message = await take(queue)
    assert message == b"a"
    assert 0.6 <= time.monotonic() - started < PATIENCE_SECONDS


async def test_every_lease_that_ends_finds_a_waiting_consumer(shell: Shell) -> None:
    """One of them is on watch for the next deadline, and passes the watch on."""
    queue = shell.queue(wait=LONG, visibility_timeout_seconds=0.5)
    for text in "abc":
        await queue.publish(text)
    for _ in range(3):
        await claim_and_die(queue)
    consumers = [shell.beside(lambda: take(queue)) for _ in range(3)]
    assert sorted(await asyncio.wait_for(asyncio.gather(*consumers), PATIENCE_SECONDS)) == [b"a", b"b", b"c"]


async def test_messages_that_come_together_wake_as_many_consumers(shell: Shell) -> None:
    """Whoever takes one and leaves more rings again; here each holds its message until all have one."""
    queue = shell.queue(wait=LONG)
    working: set[bytes] = set()

    async def consumer() -> bool:
        async with queue.process_message() as message:
            working.add(message)
            return await until(lambda: len(working) == 6)

    consumers = [shell.beside(consumer) for _ in range(6)]
    assert await until(lambda: waiters(shell) == 6)
    for number in range(6):
        await queue.publish(str(number))
    assert await asyncio.gather(*consumers) == [True] * 6


async def test_a_crowd_of_waiters_does_not_stampede(shell: Shell) -> None:
    """Fifty wait, and each message wakes about one of them; what they ask on their own account is one claim a slice."""
    stop = threading.Event()
    queue = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    handled: list[bytes] = []

    async def consumer() -> None:
        while not stop.is_set():
            await queue.process_message_callback(lambda message: None if message is None else handled.append(message))

    def calls() -> int:
        return int(shell.redis.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    await queue.publish("warm")
    consumers = [shell.beside(consumer) for _ in range(50)]
    assert await until(lambda: waiters(shell) == 50 and len(handled) == 1)
    before, started = calls(), time.monotonic()
    for number in range(30):
        await queue.publish(str(number))
        assert await until(lambda number=number: len(handled) == number + 2)
    asked, seconds = calls() - before, time.monotonic() - started
    stop.set()
    await asyncio.gather(*consumers)
    # Publish, claim and ack are 3 a message, and one claim more may find that it came too late. Everybody at each
    # message would be 50 more.
    assert asked <= 5 * 30 + 50 * (seconds / SLICE + 2)


async def test_a_wait_ends_at_its_time_with_one_event(shell: Shell) -> None:
    """claim_empty is told once a call, however many slices the call waited; it says how long that was."""
    events = shell.events()
    queue = shell.queue(wait=1.1, on_event=events.listen)
    message, seconds = await timed(take(queue))
    assert message is None
    assert 1.1 <= seconds < PATIENCE_SECONDS
    assert events.names == ["claim_empty/skipped"]
    assert 1.1 <= events.all[0].duration_seconds <= seconds


async def test_a_short_socket_timeout_does_not_break_a_long_wait(shell: Shell) -> None:
    """The blocking read is kept shorter than the client listens; no error, no retry, and the bell is still heard."""
    events = shell.events()
    client = shell.new_client(socket_timeout=0.3)
    queue = shell.queue(client=client, wait=0.7, on_event=events.listen)
    assert await take(queue) is None
    assert events.names == ["claim_empty/skipped"]
    consumer = shell.beside(lambda: take(shell.queue(client=client, wait=LONG)))
    await asyncio.sleep(0.1)
    await shell.queue().publish("a")
    assert await asyncio.wait_for(consumer, PATIENCE_SECONDS) == b"a"


async def test_two_connections_serve_a_consumer_with_heartbeats(shell: Shell) -> None:
    """The bell gives its connection back before the handler runs; a third would be refused by this pool."""
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
    await asyncio.wait_for(running, PATIENCE_SECONDS)
    assert {"claim/failure", "lease_renew/failure", "retry_attempt/failure"}.isdisjoint(events.names)
    assert len(events.of("ack")) == 3


# Stopping


async def test_an_interrupt_ends_a_wait_soon(shell: Shell) -> None:
    """Within about a slice, with None; the wait itself would have gone on for a minute."""
    stop = threading.Event()
    queue = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: waiters(shell) == 1)
    stop.set()
    message, seconds = await timed(consumer)
    assert message is None
    assert seconds < 5 * SLICE


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
    assert seconds < PATIENCE_SECONDS
    assert await queue.process_message_callback(pytest.fail) is False
    assert (shell.pending(queue), shell.processing(queue)) == (1, 1)


async def test_an_interrupt_lets_the_handler_finish(shell: Shell) -> None:
    """The message in hand is acked as ever."""
    stop = threading.Event()
    queue = shell.queue(interrupt=EventDrivenInterruptHandler(stop), enable_completed_queue=True)
    await queue.publish("a")
    async with queue.process_message():
        stop.set()
        await queue.publish("a result may still be published")
    assert shell.listed(queue.key.completed) == [b"a"]


async def test_a_stop_of_ones_own_will_do(shell: Shell) -> None:
    """Any subclass of the base, in both colours; what it says counts at each moment anew."""

    class Quota(BaseGracefulInterruptHandler):
        spent = True

        def is_interrupted(self) -> bool:
            return self.spent

    interrupt = Quota()
    queue = shell.queue(wait=LONG, interrupt=interrupt)
    await queue.publish("a")
    message, seconds = await timed(take(queue))
    assert message is None
    assert seconds < PATIENCE_SECONDS
    interrupt.spent = False
    assert await take(queue) == b"a"


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
        assert await asyncio.wait_for(stayer, PATIENCE_SECONDS) == b"a"
        assert await leaver is None
