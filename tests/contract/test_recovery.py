"""The next claim recovers a claim whose reply was lost, with the same events and retries as any claim."""

import asyncio
import contextlib
import logging
import threading
import time
from typing import Any

import pytest
import redis

from redis_message_queue import EventDrivenInterruptHandler, RetryBudgetExhaustedError
from tests.contract.shells import LIMIT_SECONDS, Shell, take, until

pytestmark = [pytest.mark.topic("Retries of Redis calls"), pytest.mark.every_server]

QUICK = {"retry_initial_delay_seconds": 0.01, "retry_max_delay_seconds": 0.02}
FOR_EVER = 100_000  # more losses than any test lives to see


async def lose_a_claim(shell: Shell, client: Any, queue: Any) -> None:
    """The message is leased to this queue object, and nobody heard of it; now the connection is good again."""
    await shell.queue().publish("a")
    client.losses.reply(FOR_EVER)
    with pytest.raises(redis.exceptions.RedisError):
        await take(queue)
    client.losses.heal()
    assert (shell.pending(queue), shell.processing(queue)) == (0, 1)


@pytest.mark.promise(
    "A claim, or the recovery of one, emits `retry_attempt` for each failed attempt and `retry_exhausted` at the end."
)
async def test_recovering_a_claim_emits_the_events_of_a_claim(shell: Shell) -> None:
    """Each failed try, giving up, and the claim's own failure; the error knows its queue and operation."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, on_event=events.listen, retry_budget_seconds=0.2, **QUICK)
    await lose_a_claim(shell, client, queue)
    events.clear()
    client.losses.request(FOR_EVER)
    with pytest.raises(RetryBudgetExhaustedError) as spent:
        await take(queue)
    client.losses.heal()
    assert (spent.value.queue, spent.value.operation) == ("q", "claim")
    assert events.names[-2:] == ["retry_exhausted/failure", "claim/failure"]
    tries = events.all[:-2]
    assert len(tries) >= 2
    assert {event.operation for event in tries} == {"retry_attempt"}
    assert [event.attempt for event in tries] == list(range(1, len(tries) + 1))
    assert await take(queue) == "a"


@pytest.mark.promise(
    "A claim, or the recovery of one, emits `retry_attempt` for each failed attempt and `retry_exhausted` at the end."
)
async def test_without_a_budget_looking_for_a_lost_claim_fails_as_a_claim(shell: Shell) -> None:
    """One try, redis-py's own exception, and the claim's failure as an event."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, on_event=events.listen, retry_budget_seconds=0)
    await lose_a_claim(shell, client, queue)
    events.clear()
    client.losses.request()
    with pytest.raises(redis.exceptions.ConnectionError) as original:
        await take(queue)
    assert events.names == ["claim/failure"]
    assert events.all[0].error is original.value
    assert await take(queue) == "a"


@pytest.mark.promise("An interrupt ends the retries of a claim and the recovery of an unconfirmed one.")
async def test_an_interrupt_ends_the_search_for_a_lost_claim(shell: Shell) -> None:
    """A consumer that should stop does not sit out its budget because Redis is gone; the claim stays to be found."""
    stop = threading.Event()
    client = shell.lossy_client()
    queue = shell.queue(
        client=client,
        wait=0,
        interrupt=EventDrivenInterruptHandler(stop),
        retry_budget_seconds=4 * LIMIT_SECONDS,
        **QUICK,
    )

    async def consumer() -> Any:
        with contextlib.suppress(redis.exceptions.RedisError):
            return await take(queue)

    async def stop_while_it_fails() -> None:
        tried = client.losses.sent
        looking = shell.beside(consumer)
        assert await until(lambda: client.losses.sent > tried + 2)
        stop.set()
        stopped = await until(looking.done)
        client.losses.heal()
        assert await looking is None
        assert stopped, "it went on until Redis was there again"
        stop.clear()

    await queue.publish("a")
    client.losses.reply(FOR_EVER)
    await stop_while_it_fails()  # which leaves its claim unconfirmed
    assert (shell.pending(queue), shell.processing(queue)) == (0, 1)
    client.losses.request(FOR_EVER)
    await stop_while_it_fails()
    assert await take(queue) == "a"


@pytest.mark.promise("An interrupt leaves unconfirmed claims alone; the next call or a drain resolves them.")
async def test_after_an_interrupt_the_next_call_resolves_an_unconfirmed_claim(shell: Shell) -> None:
    """A stop signal takes no fresh work, and strands nothing: what was claimed before is handed out or requeued."""
    stop = threading.Event()
    client = shell.lossy_client()
    queue = shell.queue(
        client=client, wait=0, interrupt=EventDrivenInterruptHandler(stop), retry_budget_seconds=0.1, **QUICK
    )
    await lose_a_claim(shell, client, queue)
    await queue.publish("fresh")
    stop.set()
    assert (shell.pending(queue), shell.processing(queue)) == (1, 1), "the signal itself asks nobody"
    assert await take(queue) in ("a", None)
    assert shell.processing(queue) == 0
    assert await take(queue) is None
    assert shell.pending(queue) >= 1


@pytest.mark.promise("An interrupt leaves unconfirmed claims alone; the next call or a drain resolves them.")
async def test_after_an_interrupt_a_drain_requeues_an_unconfirmed_claim(shell: Shell) -> None:
    """The way out of a loop that was told to stop: nothing waits for a lease to end."""
    stop = threading.Event()
    client = shell.lossy_client()
    queue = shell.queue(
        client=client, wait=0, interrupt=EventDrivenInterruptHandler(stop), retry_budget_seconds=0.1, **QUICK
    )
    await lose_a_claim(shell, client, queue)
    stop.set()
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


@pytest.mark.promise("Any queue object on the same gateway recovers a lost claim; objects on other gateways do not.")
async def test_a_lost_claim_is_found_through_its_gateway(shell: Shell) -> None:
    """The next call of any queue object on the same gateway and name asks first, not only of the one that lost it."""
    client = shell.lossy_client()
    gateway = shell.gateway(
        redis_client=client,
        retry_budget_seconds=0,
        message_wait_interval_seconds=0,
        message_visibility_timeout_seconds=300,
    )
    one, other = shell.queue(gateway=gateway), shell.queue(gateway=gateway)
    await lose_a_claim(shell, client, one)
    assert await take(other) == "a"
    assert await take(one) is None
    assert shell.processing(one) == 0


@pytest.mark.promise("A lost claim is recovered by exactly one consumer.")
async def test_of_two_consumers_one_finds_a_lost_claim(shell: Shell) -> None:
    """They ask side by side, and the message is handled once."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0)
    for _ in range(5):
        await lose_a_claim(shell, client, queue)
        assert sorted(
            await asyncio.gather(*(shell.beside(lambda: take(queue)) for _ in range(2))), key=lambda one: one is None
        ) == ["a", None]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("Every lease counts as a delivery, even if no handler started.")
async def test_a_claim_whose_reply_was_never_seen_counts_as_a_delivery(shell: Shell) -> None:
    """The count goes up when Redis grants the lease: a consumer that died before its handler began has had it."""
    client = shell.lossy_client()
    dying, queue = shell.queue(client=client, wait=0, retry_budget_seconds=0), shell.queue(wait=0)
    await lose_a_claim(shell, client, dying)
    shell.lapse(queue)
    async with queue.process_message():
        assert queue.current_message().delivery_count == 2


@pytest.mark.promise("With `max_delivery_count=1` a message is delivered once.")
async def test_a_claim_whose_reply_was_never_seen_uses_up_a_limit_of_one(shell: Shell) -> None:
    """The next consumer buries the message."""
    client = shell.lossy_client()
    dying = shell.queue(client=client, wait=0, max_delivery_count=1, retry_budget_seconds=0)
    await lose_a_claim(shell, client, dying)
    shell.lapse(dying)
    assert await take(shell.queue(wait=0, max_delivery_count=1)) is None
    assert shell.listed(dying.key.dead_letter) == [b"a"]


@pytest.mark.promise(
    "`get_deduplication_key` is called once per publish with the message itself, even if the publish is retried."
)
async def test_the_key_function_is_called_once_however_often_a_publish_is_sent(shell: Shell) -> None:
    """A function that counts or draws lots would give the repetition another key."""
    client, asked = shell.lossy_client(), []

    def key(message: str) -> str:
        asked.append(message)
        return f"{message}{len(asked)}"

    queue = shell.queue(client=client, deduplication=True, get_deduplication_key=key, **QUICK)
    client.losses.reply(2)
    client.losses.request(2)
    assert await queue.publish("a") is True
    assert asked == ["a"]
    assert shell.pending(queue) == 1


@pytest.mark.promise("The retry budget uses the monotonic clock and includes the time of the first attempt.")
async def test_an_attempt_that_outlasts_the_budget_is_the_only_one(shell: Shell) -> None:
    """The budget counts from the first attempt, its own time included."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0.05, **QUICK)
    slow_loss = client.losses.before

    def before(command: str, *arguments: Any) -> None:
        time.sleep(0.1)
        slow_loss(command, *arguments)

    client.losses.before = before
    client.losses.request(FOR_EVER)
    with pytest.raises(RetryBudgetExhaustedError):
        await queue.publish("a")
    assert client.losses.sent == 1
    with pytest.raises(RetryBudgetExhaustedError):
        await take(queue)
    assert client.losses.sent == 2


@pytest.mark.promise("A retried call logs a warning without the payload.")
async def test_a_retried_call_is_logged(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """A publish and an ack have no event for a lost try, so the log is where an operator sees a bad connection."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, **QUICK)
    with caplog.at_level(logging.DEBUG, "redis_message_queue"):
        client.losses.request(2)
        await queue.publish("secret")
        assert len(caplog.records) == 1  # the second retry comes within the same second
        caplog.clear()
        async with queue.process_message():
            client.losses.reply(2)
        assert len(caplog.records) == 1  # the second retry comes within the same second
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "ConnectionError" in caplog.text and "secret" not in caplog.text


@pytest.mark.promise(
    "A claim, or the recovery of one, emits `retry_attempt` for each failed attempt and `retry_exhausted` at the end."
)
async def test_a_claim_that_cannot_put_a_broken_message_aside_fails_as_a_claim(shell: Shell) -> None:
    """The payload cannot be decoded and the dead letters cannot be written: an error that knows where it happened."""
    events = shell.events()
    queue = shell.queue(wait=0, client=shell.new_client(decode_responses=True), on_event=events.listen)
    await queue.publish("broken")
    stored = shell.redis.lindex(queue.key.pending, 0)
    shell.redis.lset(queue.key.pending, 0, stored.replace(b"broken", b"br\xffken"))
    shell.redis.set(queue.key.dead_letter, "not a list")
    with pytest.raises(shell.module.LuaScriptError) as refusal:
        await take(queue)
    assert refusal.value.queue == "q"
    assert events.names[-1] == "claim/failure"
    assert shell.processing(queue) == 1
    shell.redis.delete(queue.key.dead_letter)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"br\xffken"]
