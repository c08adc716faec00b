"""`run()` claims ahead, acks together, and sends few commands."""

import asyncio
from typing import Any

import pytest

from tests.contract.loops import LONG, Crossing, filled, running, text, words
from tests.contract.shells import (
    BEATING,
    Sent,
    Shell,
    until,
)

pytestmark = pytest.mark.topic("The consumer loop")


@pytest.mark.promise("`run()` claims `prefetch` messages in one round trip and piggybacks acks on the next claim.")
@pytest.mark.parametrize("kept", [False, True])
async def test_messages_are_claimed_ahead_and_acks_travel_with_the_next_claim(shell: Shell, kept: bool) -> None:
    """Ten messages at a time: one claim for ten, and the acks of ten beside it."""
    queue = await filled(shell, words(3), enable_completed_queue=kept)
    await queue.run(lambda message: None, prefetch=2, until_empty=True)
    await queue.publish_many(words(30))
    with Sent(shell.server) as sent:
        await queue.run(lambda message: None, prefetch=10, until_empty=True)
    assert set(sent.commands) == {"EVALSHA"}, sent.commands
    assert sent.scripts == ["claim", *["settle", "claim"] * 3]
    assert shell.processing(queue) == 0


@pytest.mark.promise("`run()` claims `prefetch` messages in one round trip and piggybacks acks on the next claim.")
async def test_without_prefetching_a_message_costs_one_claim_and_the_ack_beside_it(shell: Shell) -> None:
    """One round trip and one script a message, of which a consumer by hand has two.

    Only when the queue has run empty, the last ack and the last claim are sent once more, as two scripts.
    """
    queue = await filled(shell, words(3))
    await queue.run(lambda message: None, until_empty=True)
    await queue.publish_many(words(4))
    with Sent(shell.server) as sent:
        await queue.run(lambda message: None, until_empty=True)
    assert set(sent.commands) == {"EVALSHA"}, sent.commands
    assert sent.scripts == [*["claim"] * 5, "settle", "claim"]


@pytest.mark.both_shells
@pytest.mark.promise("Without `prefetch`, one claim of `run()` takes a message for each idle handler, and no more.")
async def test_one_claim_serves_all_idle_handlers(shell: Shell) -> None:
    """Also one that has waited since only one of them was idle."""
    queue, crossing = shell.queue(wait=LONG), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=4):
        assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
        with Sent(shell.server) as sent:
            await queue.publish_many(words(10))
            await crossing.is_entered_by(4)
            assert shell.processing(queue) == 4
        claims = sent.scripts.count("claim")
        assert claims <= 2, sent.scripts
        with Sent(shell.server) as sent:
            crossing.is_open.set()
            assert await until(lambda: len(crossing.done) == 10 and not shell.processing(queue))
        assert sent.scripts.count("settle") <= 8, sent.scripts


@pytest.mark.promise(
    "An idle `run()` sends at most two commands per second, whatever its concurrency and wait interval."
)
async def test_an_idle_loop_sends_at_most_two_commands_a_second(shell: Shell) -> None:
    """One to look and one to wait, however many workers there are."""
    queue, handled = await filled(shell, "a", wait=LONG, **BEATING), []
    async with running(shell, queue, handled.append, concurrency=4, prefetch=10):
        assert await until(lambda: handled)
        assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
        with Sent(shell.server) as sent:
            await asyncio.sleep(1.3)
    assert 2 <= len(sent.commands) <= 2 * sent.seconds + 2
    assert set(sent.commands) - {"EVAL"} == {"EVALSHA", "BLPOP"}  # the first entry of a worker brings its script


@pytest.mark.promise(
    "An idle `run()` sends at most two commands per second, whatever its concurrency and wait interval."
)
async def test_an_idle_loop_of_a_queue_that_does_not_wait_sends_no_more(shell: Shell) -> None:
    """The wait interval is how long `process_message` waits; a loop waits until it is stopped."""
    queue, handled = await filled(shell, "a", wait=0), []
    async with running(shell, queue, handled.append):
        assert await until(lambda: handled)
        with Sent(shell.server) as sent:
            await asyncio.sleep(1.0)
    assert len(sent.commands) <= 2 * sent.seconds + 4


@pytest.mark.promise("`run()` acks a handled message without waiting for the next message or for other handlers.")
async def test_what_is_done_is_acked_while_the_loop_waits(shell: Shell) -> None:
    """In Redis and for the listener: the ack does not wait for the next message to come."""
    events = shell.events()
    queue = await filled(shell, "a", wait=LONG, on_event=events.listen)
    async with running(shell, queue, lambda message: None, prefetch=5):
        await events.wait_for("ack")
        assert shell.processing(queue) == 0


@pytest.mark.promise("`run()` acks a handled message without waiting for the next message or for other handlers.")
async def test_what_is_done_is_acked_while_others_work(shell: Shell) -> None:
    """One handler takes its time; what the other one has done does not wait for it."""
    queue, crossing = await filled(shell, "abc", wait=LONG), Crossing(shell)

    async def handle(message: Any) -> None:
        if text(message) == "a":
            crossing.inside.append("a")
            assert await until(crossing.is_open.is_set)

    async with running(shell, queue, shell.handler(handle), concurrency=2, prefetch=3):
        await crossing.is_entered_by(1)
        assert await until(lambda: shell.processing(queue) == 1)
        crossing.is_open.set()
        assert await until(lambda: shell.processing(queue) == 0)
