"""With `batch_size`, `run()` passes lists of messages to the handler."""

import asyncio
import threading
import time
from typing import Any

import pytest

from redis_message_queue import RetryPolicy
from tests.contract.loops import LONG, ended, filled, look, running, summary_of, text, words
from tests.contract.shells import (
    LIMIT_SECONDS,
    Sent,
    Shell,
    until,
)

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]


@pytest.mark.promise(
    "With `batch_size` the handler receives lists; each list is one claim, and lists are handled concurrently."
)
async def test_a_handler_may_get_lists(shell: Shell) -> None:
    """Of up to so many messages, in their order; all of them are acked when it returns."""
    queue, lists = await filled(shell, words(25)), []
    summary = await queue.run(lambda messages: lists.append(messages), batch_size=10, until_empty=True)
    assert [len(messages) for messages in lists] == [10, 10, 5]
    assert all(type(messages) is list for messages in lists)
    assert [text(message) for messages in lists for message in messages] == words(25)
    assert summary_of(summary) == (25, 0, 0)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "With `batch_size` the handler receives lists; each list is one claim, and lists are handled concurrently."
)
async def test_a_list_costs_one_claim_and_its_acks_travel_with_the_next(shell: Shell) -> None:
    """As single messages do."""
    queue = await filled(shell, words(3))
    await queue.run(lambda messages: None, batch_size=2, until_empty=True)
    await queue.publish_many(words(30))
    with Sent(shell.server) as sent:
        await queue.run(lambda messages: None, batch_size=10, until_empty=True)
    assert set(sent.commands) == {"EVALSHA"}, sent.commands
    assert sent.scripts == ["claim", *["settle", "claim"] * 3]


@pytest.mark.promise(
    "A list is handled when it is full or `batch_seconds` after its first message, whichever comes first."
)
async def test_a_list_that_is_full_does_not_wait(shell: Shell) -> None:
    """By size: long before its time."""
    queue, lists = await filled(shell, words(3)), []
    async with running(shell, queue, lists.append, batch_size=4, batch_seconds=LONG):
        await asyncio.sleep(0.1)
        assert lists == []
        await queue.publish("last")
        assert await until(lambda: lists)
    assert [text(message) for message in lists[0]] == [*words(3), "last"]


@pytest.mark.promise(
    "A list is handled when it is full or `batch_seconds` after its first message, whichever comes first."
)
async def test_a_list_whose_time_is_over_is_handled_as_it_is(shell: Shell) -> None:
    """By time, counted from its first message."""
    queue, lists = shell.queue(wait=LONG), []

    def handle(messages: Any) -> None:
        lists.append(([text(message) for message in messages], time.monotonic()))

    async with running(shell, queue, handle, batch_size=9, batch_seconds=0.5):
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await queue.publish("a")
        await asyncio.sleep(0.1)
        await queue.publish("b")
        assert await until(lambda: lists)
    ((payloads, when),) = lists
    assert payloads == ["a", "b"]
    assert 0.5 <= when - started < LIMIT_SECONDS


@pytest.mark.promise(
    "When `run()` stops, prefetched messages return to the front of their tenant queue in order and uncounted."
)
async def test_an_incomplete_list_is_requeued_when_the_loop_stops(shell: Shell) -> None:
    """Nobody has begun with it."""
    queue, lists = await filled(shell, "abc"), []
    async with running(shell, queue, lists.append, batch_size=9, batch_seconds=LONG) as loop:
        assert await until(lambda: shell.processing(queue) == 3)
        await queue.drain()
        assert summary_of(await ended(loop)) == (0, 0, 3)
    assert lists == []
    assert await look(shell) == [(letter, 1) for letter in "abc"]


@pytest.mark.promise(
    "A list whose handler raises is requeued whole and counts as a delivery; completed messages stay completed."
)
async def test_a_list_whose_handler_raises_goes_back_as_a_whole(shell: Shell) -> None:
    """To the front, in its order, as a delivery, and from then on each by itself: one that always fails ends among the
    dead letters, alone."""
    events = shell.events()
    queue = await filled(shell, max_delivery_count=3, on_event=events.listen)
    lists: list[list[str]] = []

    def handle(messages: Any) -> None:
        lists.append([text(message) for message in messages])
        raise ValueError

    summary = await queue.run(handle, batch_size=3, until_empty=True)
    assert lists == [["a", "b", "c"], *([letter] for letter in "aabbccddd")]
    assert summary_of(summary) == (0, 0, 12)
    assert (summary.dead_lettered, summary.refused_at_claim) == (0, 4)
    assert len(events.of("requeued")) == 12
    assert shell.listed(queue.key.dead_letter) == [b"d", b"c", b"b", b"a"]


@pytest.mark.promise("`run()` applies the retry policy, for lists to each message.")
async def test_a_list_whose_handler_raises_under_a_policy_is_tried_again_message_by_message(shell: Shell) -> None:
    """Each has its own attempts and its own time."""
    events = shell.events()
    policy = RetryPolicy(initial_delay_seconds=60)
    queue = await filled(shell, "abc", retry_policy=policy, on_event=events.listen)

    def handle(messages: Any) -> None:
        raise ValueError

    summary = await queue.run(handle, batch_size=3, until_empty=True)
    assert (summary_of(summary), summary.retried, summary.attempts) == ((0, 0, 0), 3, 3)
    assert len(events.of("retried")) == 3
    assert (await queue.stats()).delayed == 3


@pytest.mark.promise(
    "A list whose handler raises is requeued whole and counts as a delivery; completed messages stay completed."
)
@pytest.mark.promise("A message that its handler has completed is not acked again and counts as handled once.")
async def test_messages_of_a_list_can_be_completed_one_by_one(shell: Shell) -> None:
    """What was completed stays so when the handler raises; the others go back."""
    queue = await filled(shell, "abc", max_delivery_count=1, enable_completed_queue=True)

    async def handle(messages: Any) -> None:
        done = messages[1].complete()
        if shell.name == "asyncio":
            await done
        raise ValueError

    summary = await queue.run(shell.handler(handle), batch_size=3, until_empty=True)
    assert summary_of(summary) == (1, 0, 2)
    assert shell.listed(queue.key.completed) == [b"b"]
    assert sorted(shell.listed(queue.key.dead_letter)) == [b"a", b"c"]


@pytest.mark.promise("A message that its handler has completed is not acked again and counts as handled once.")
async def test_a_completed_message_is_not_acked_again(shell: Shell) -> None:
    """It counts as handled, once."""
    events = shell.events()
    queue = await filled(shell, on_event=events.listen)

    async def handle(message: Any) -> None:
        done = message.complete()
        if shell.name == "asyncio":
            await done

    assert summary_of(await queue.run(shell.handler(handle), prefetch=4, until_empty=True)) == (4, 0, 0)
    assert len(events.of("ack")) == 4
    assert "stale_lease_ack/skipped" not in events.names
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "With `batch_size` the handler receives lists; each list is one claim, and lists are handled concurrently."
)
async def test_lists_are_worked_on_side_by_side(shell: Shell) -> None:
    """One worker's list fills while the others work."""
    queue, inside, opened = await filled(shell, words(6)), [], threading.Event()

    async def handle(messages: Any) -> None:
        inside.append([text(message) for message in messages])
        assert await until(opened.is_set)

    async with running(shell, queue, shell.handler(handle), batch_size=2, concurrency=3, until_empty=True) as loop:
        assert await until(lambda: len(inside) == 3)
        opened.set()
        assert summary_of(await ended(loop)) == (6, 0, 0)
    assert sorted(inside) == [words(6)[0:2], words(6)[2:4], words(6)[4:6]]
