"""Shutting down: running handlers finish, waiting calls end, and later calls are refused."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
import redis

from redis_message_queue import EventDrivenInterruptHandler, QueueBackpressureError, QueueDrainedError
from tests.contract.shells import LIMIT_SECONDS, Shell, only_woken, take, until, with_unconfirmed_claim

pytestmark = [pytest.mark.topic("Draining"), pytest.mark.both_shells]

LONG = 4 * LIMIT_SECONDS  # a wait that no test sits out
FOR_EVER = 100_000  # more losses than any test lives to see


class SlowKey:
    """A deduplication key that takes its time, so that a publish is under way while the test looks around."""

    def __init__(self, shell: Shell) -> None:
        self.asked, self._free = threading.Event(), threading.Event()
        self.function = self._blocking if shell.name == "sync" else self._awaited

    def _blocking(self, message: str) -> str:
        self.asked.set()
        assert self._free.wait(LIMIT_SECONDS)
        return message

    async def _awaited(self, message: str) -> str:
        self.asked.set()
        assert await until(self._free.is_set)
        return message

    def answer(self) -> None:
        self._free.set()


# Beside a handler


@pytest.mark.promise("An interrupt stops neither a running handler nor its heartbeat.")
@pytest.mark.promise("A drain neither cancels handlers nor waits for them; they settle their messages as usual.")
@pytest.mark.parametrize("way", ["drain", "interrupt"])
async def test_a_stop_neither_waits_for_a_handler_nor_hurries_it(shell: Shell, way: str) -> None:
    """The handler works on, its lease is renewed, and its ack counts; a drain is true at once."""
    stop = threading.Event()
    events = shell.events()
    queue = shell.queue(
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.03,
        enable_completed_queue=True,
        interrupt=EventDrivenInterruptHandler(stop),
        on_event=events.listen,
    )
    await queue.publish("a")
    entered, free = threading.Event(), threading.Event()

    async def consumer() -> None:
        async with queue.process_message():
            entered.set()
            assert await until(free.is_set)

    working = shell.beside(consumer)
    assert await until(entered.is_set)
    if way == "drain":
        assert await queue.drain(timeout=LIMIT_SECONDS) is True
    else:
        stop.set()
    renewed = len(events.of("lease_renew"))
    await events.wait_for("lease_renew", renewed + 2)
    assert shell.processing(queue) == 1
    free.set()
    await working
    assert shell.listed(queue.key.completed) == [b"a"]


@pytest.mark.promise("A drain neither cancels handlers nor waits for them; they settle their messages as usual.")
async def test_a_drain_leaves_a_failing_handler_its_failure(shell: Shell) -> None:
    """The message goes where failures go, and the handler's error to its caller."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    with pytest.raises(ValueError, match="mine"):
        async with queue.process_message():
            await queue.drain()
            raise ValueError("mine")
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise("A drain does not touch messages of other consumers.")
async def test_a_drain_does_not_touch_messages_of_other_consumers(shell: Shell) -> None:
    """Neither what another object works on nor what a dead consumer left to its lease."""
    queue, other = shell.queue(wait=0), shell.queue(wait=0)
    await queue.publish("a")
    async with other.process_message():
        assert await queue.drain() is True
        assert (shell.pending(queue), shell.processing(queue)) == (0, 1)


# After a drain


@pytest.mark.promise(
    "After a drain, `process_message()` gives `None` immediately and `process_message_callback()` returns `False`."
)
async def test_a_drained_queue_calls_neither_a_handler_nor_redis(shell: Shell) -> None:
    """The callback form says False, as for an empty poll; neither form sends anything."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=LONG)
    await shell.queue().publish("a")
    assert await queue.drain() is True
    assert await queue.process_message_callback(pytest.fail) is False
    assert await take(queue) is None
    assert client.losses.sent == 0


@pytest.mark.promise("An interrupted consumer sends no new claim to Redis.")
async def test_an_interrupted_queue_does_not_call_redis(shell: Shell) -> None:
    """A program that was told to stop is not held up by a server that has gone."""
    stop = threading.Event()
    stop.set()
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    await shell.queue().publish("a")
    assert await queue.process_message_callback(pytest.fail) is False
    assert await take(queue) is None
    assert client.losses.sent == 0


@pytest.mark.promise("Draining affects one queue object only: other objects, and new ones, keep working.")
async def test_a_drained_queue_stays_drained(shell: Shell) -> None:
    """As often as it is drained again."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    assert [await queue.drain(), await queue.drain(timeout=1), await queue.drain(timeout=0)] == [True] * 3
    with pytest.raises(QueueDrainedError):
        await queue.publish("b")
    assert await take(queue) is None


@pytest.mark.promise("A drain leaves your client open.")
async def test_a_drain_leaves_the_client_open(shell: Shell) -> None:
    """It belongs to the program that made it."""
    queue = shell.queue()
    await queue.publish("a")
    await queue.drain()
    answer = shell.client.ping()
    assert (answer if shell.name == "sync" else await answer) is True


@pytest.mark.promise("Draining affects one queue object only: other objects, and new ones, keep working.")
async def test_a_drain_of_one_queue_does_not_affect_another(shell: Shell) -> None:
    """Also where two queue objects share a gateway."""
    gateway = shell.gateway(message_wait_interval_seconds=0)
    drained, other = shell.queue(gateway=gateway), shell.queue(gateway=gateway)
    await drained.drain()
    assert await other.publish("a") is True
    assert await take(other) == b"a"


# Publishes under way


@pytest.mark.promise("A drain waits for a publish that has started and refuses later ones.")
async def test_a_publish_that_comes_while_a_drain_waits_is_refused(shell: Shell) -> None:
    """The gate shuts first; what was inside goes through."""
    key = SlowKey(shell)
    queue = shell.queue(deduplication=True, get_deduplication_key=key.function)
    early = shell.beside(lambda: queue.publish("early"))
    assert await until(key.asked.is_set)
    draining = shell.beside(lambda: queue.drain(timeout=LIMIT_SECONDS))
    assert await until(lambda: queue.queue.is_draining)
    with pytest.raises(QueueDrainedError):
        await queue.publish("late")
    key.answer()
    assert await early is True
    assert await draining is True
    assert await take(shell.queue(wait=0)) == b"early"
    assert shell.pending(queue) == 0


@pytest.mark.promise(
    "`drain()` returns `True` when nothing is unconfirmed or running, `False` on timeout or without Redis; you can "
    "call it again."
)
async def test_a_drain_that_times_out_before_a_publish_ends_returns_false(shell: Shell) -> None:
    """False, and true when it is called again afterwards."""
    key = SlowKey(shell)
    queue = shell.queue(deduplication=True, get_deduplication_key=key.function)
    publisher = shell.beside(lambda: queue.publish("a"))
    assert await until(key.asked.is_set)
    assert await queue.drain(timeout=0.05) is False
    assert await queue.drain(timeout=0) is False
    key.answer()
    assert await publisher is True
    assert await queue.drain(timeout=LIMIT_SECONDS) is True


@pytest.mark.promise("An interrupt or a drain also ends a blocked publish that has lost its connection.")
@pytest.mark.parametrize("way", ["drain", "interrupt"])
async def test_stopping_ends_a_blocked_publish_that_lost_redis(shell: Shell, way: str) -> None:
    """It waited for room, and while it does its questions fail: it ends with an error, long before its time."""
    stop = threading.Event()
    client = shell.lossy_client()
    queue = shell.queue(
        client=client,
        interrupt=EventDrivenInterruptHandler(stop),
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=LONG,
        retry_max_delay_seconds=0.05,
    )
    await queue.publish("a")
    asked = client.losses.sent
    publisher = shell.beside(lambda: queue.publish("b"))
    assert await until(lambda: client.losses.sent > asked + 2)
    client.losses.request(FOR_EVER)
    asked = client.losses.sent
    assert await until(lambda: client.losses.sent > asked + 2)
    if way == "drain":
        ending = shell.beside(lambda: queue.drain(timeout=LONG))
    else:
        stop.set()
        ending = publisher
    let_go = await until(publisher.done)
    client.losses.heal()
    with pytest.raises((QueueBackpressureError, redis.exceptions.RedisError)):
        await publisher
    with contextlib.suppress(QueueBackpressureError, redis.exceptions.RedisError):
        await ending
    assert let_go, "it was let go only when Redis was there again"
    assert shell.pending(queue) == 1


# Unconfirmed claims


@pytest.mark.promise(
    "A running claim counts as unconfirmed until its result is known; a consumer that only waits does not."
)
async def test_a_drain_returns_false_while_a_claim_is_unconfirmed(shell: Shell) -> None:
    """A consumer has claimed and hears no answer: the drain waits for it, and says False if it cannot be asked."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=LONG, retry_max_delay_seconds=0.05)
    await queue.publish("a")
    client.losses.reply(FOR_EVER)
    tried = client.losses.sent
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: client.losses.sent > tried + 2)
    assert shell.processing(queue) == 1
    assert await queue.drain(timeout=1) is False
    assert await consumer is None
    client.losses.heal()
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


@pytest.mark.promise(
    "A running claim counts as unconfirmed until its result is known; a consumer that only waits does not."
)
async def test_a_drain_does_not_wait_for_consumers_that_only_wait(shell: Shell) -> None:
    """They hold nothing, and leave by themselves: with no time at all it can be true."""
    queue = shell.queue(wait=LONG)
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: shell.redis.info("clients")["blocked_clients"] == 1)
    assert await queue.drain(timeout=0) is True
    assert await asyncio.wait_for(consumer, LIMIT_SECONDS) is None


@pytest.mark.promise(
    "`drain()` returns `True` when nothing is unconfirmed or running, `False` on timeout or without Redis; you can "
    "call it again."
)
async def test_a_drain_that_loses_redis_half_way_keeps_to_its_time(shell: Shell) -> None:
    """It has asked what the claim took, and cannot give it back: False in time, and true when it is called again."""
    stop = threading.Event()
    client = shell.lossy_client()
    queue = shell.queue(
        client=client,
        wait=0,
        interrupt=EventDrivenInterruptHandler(stop),
        retry_budget_seconds=LONG,
        retry_max_delay_seconds=0.05,
    )
    await queue.publish("a")
    client.losses.reply(FOR_EVER)
    tried = client.losses.sent
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: client.losses.sent > tried + 2)
    stop.set()
    assert await consumer is None
    client.losses.heal()
    answered = client.losses.after

    def lose_everything_after_this(command: str, *arguments: Any) -> None:
        answered(command, *arguments)
        client.losses.request(FOR_EVER)

    client.losses.after = lose_everything_after_this
    draining = shell.beside(lambda: queue.drain(timeout=0.3))
    in_time = await until(draining.done)
    client.losses.after = answered
    client.losses.heal()
    drained = await draining
    assert in_time, "it went on until Redis was there again"
    assert drained is False
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


@pytest.mark.promise("An interrupt ends the retries of a claim and the recovery of an unconfirmed one.")
async def test_a_consumer_stopped_with_a_wakeup_token_does_not_wait_for_redis(shell: Shell) -> None:
    """It was woken and told to stop, and cannot wake another one instead: it leaves, and the others look anyway."""
    stop = threading.Event()
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=LONG, interrupt=EventDrivenInterruptHandler(stop))

    def stop_at_the_wakeup(command: str, *arguments: Any) -> None:
        if command == "BLPOP":
            stop.set()
            client.losses.request(FOR_EVER)

    client.losses.after = stop_at_the_wakeup
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: shell.redis.info("clients")["blocked_clients"] == 1)
    await shell.queue().publish("a")
    left = await until(consumer.done)
    client.losses.heal()
    with contextlib.suppress(redis.exceptions.RedisError):
        assert await consumer is None
    assert left, "it left only when Redis was there again"
    assert await take(shell.queue()) == b"a"


@pytest.mark.promise("A drain returns unconfirmed claims to the front of the queue without counting a delivery.")
async def test_a_drain_requeues_a_lost_claim_without_a_lease(shell: Shell) -> None:
    """At-most-once as well: no handler saw the message, so it is still to be delivered."""
    client = shell.lossy_client()
    options: dict[str, Any] = {"wait": 0, "visibility_timeout_seconds": None}
    queue = shell.queue(client=client, retry_budget_seconds=0, **options)
    await queue.publish("a")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    assert shell.processing(queue) == 1
    assert await queue.drain() is True
    assert await take(shell.queue(**options)) == b"a"
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("The limit counts pending messages; messages in processing and redelivered messages need no room.")
async def test_a_requeued_message_needs_no_room(shell: Shell) -> None:
    """The limit is for publishers; what was in the line before goes back to its head."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0, max_pending_length=1)
    await queue.publish("a")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    await queue.publish("b")
    assert await queue.drain() is True
    assert shell.pending(queue) == 2
    other = shell.queue(wait=0, max_pending_length=1)
    with pytest.raises(QueueBackpressureError):
        await other.publish("c")
    assert [await take(other), await take(other)] == [b"a", b"b"]


@pytest.mark.promise("A drain returns unconfirmed claims to the front of the queue without counting a delivery.")
async def test_a_drain_wakes_a_waiting_consumer_for_what_it_requeues(shell: Shell) -> None:
    """Another object's, at once and not at its own next look, which comes once a second."""
    for _ in range(3):
        queue = await with_unconfirmed_claim(shell)
        shell.redis.delete(queue.key.wakeup)  # the token of the publish, which nobody has taken
        consumer = shell.beside(lambda: take(only_woken(shell)))
        assert await until(lambda: shell.redis.info("clients")["blocked_clients"] == 1)
        assert await queue.drain() is True
        assert await asyncio.wait_for(consumer, LIMIT_SECONDS) == b"a"
