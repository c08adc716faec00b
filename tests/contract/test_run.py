"""The loop that most people write by hand: it claims ahead, works side by side, acks together, and ends gracefully."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from redis_message_queue import EventDrivenInterruptHandler, RedisMessageQueueError, RetryPolicy
from tests.contract.shells import (
    EVERY_WIRING,
    PATIENCE_SECONDS,
    Died,
    Sent,
    Shell,
    Wiring,
    asyncio_only,
    sync_only,
    take,
    until,
)

LONG = 3 * PATIENCE_SECONDS  # a wait that no test sits out
# Long enough that no lease ends by itself here; renewals come often.
BEATING = {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 0.05}

side_by_side = pytest.mark.parametrize("concurrency", [1, 4])


def words(count: int) -> list[str]:
    return [f"{number:04}" for number in range(count)]


def text(message: Any) -> str:
    payload: str | bytes = message.payload
    return payload if isinstance(payload, str) else payload.decode()


def summary_of(summary: Any) -> tuple[int, int, int]:
    return summary.handled, summary.failed, summary.given_back


async def filled(shell: Shell, messages: Any = "abcd", **options: Any) -> Any:
    """A queue with these messages."""
    queue = shell.queue(**options)
    await queue.publish_many(list(messages))
    return queue


async def look(shell: Shell) -> list[tuple[str, int]]:
    """Payload and delivery count of everything that waits, as another consumer gets it."""
    seen: list[tuple[str, int]] = []
    async with shell.queue("q", client=shell.new_client()).process_messages(1_000, wait_seconds=0) as batch:
        seen += [(text(message), message.delivery_count) for message in batch]
    return seen


@contextlib.asynccontextmanager
async def running(shell: Shell, queue: Any, handler: Any, **options: Any) -> AsyncIterator[Any]:
    """A loop beside the block, which ends with it at the latest."""
    loop = asyncio.ensure_future(queue.run(handler, **options))
    try:
        yield loop
    finally:
        await queue.drain(timeout=0)
        shell.redis.lpush(queue.key.bell, "1")  # so that nobody sits out the rest of his second
        await asyncio.wait({loop}, timeout=2 * PATIENCE_SECONDS)


async def ended(loop: Any) -> Any:
    """What the loop came to, without anybody stopping it."""
    done, _ = await asyncio.wait({loop}, timeout=PATIENCE_SECONDS)
    assert done, "the loop does not end"
    return loop.result()


class Crossing:
    """Handlers meet here: each comes in and waits until the crossing is opened."""

    def __init__(self, shell: Shell) -> None:
        self.inside: list[str] = []
        self.done: list[str] = []
        self.is_open = threading.Event()
        self.handler = shell.handler(self._wait)

    async def _wait(self, message: Any) -> None:
        self.inside.append(text(message))
        assert await until(self.is_open.is_set)
        self.done.append(text(message))

    async def is_entered_by(self, count: int) -> None:
        assert await until(lambda: len(self.inside) >= count), self.inside


# Handling


@pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)
async def test_a_loop_handles_what_is_there_and_ends_when_nothing_waits(shell: Shell, wiring: Wiring) -> None:
    """Every message once, in its order, acked; the summary says how many."""
    queue = await filled(shell, words(25), enable_completed_queue=True)
    handled: list[str] = []
    summary = await queue.run(lambda message: handled.append(text(message)), prefetch=10, until_empty=True)
    assert handled == words(25)
    assert summary_of(summary) == (25, 0, 0)
    assert len(shell.listed(queue.key.completed)) == 25
    assert shell.leftovers(queue) == {b"q::completed"}


async def test_a_handler_gets_a_message_with_what_is_known_of_it(shell: Shell) -> None:
    """The same as in a batch."""
    queue = shell.queue()
    await queue.publish({"kind": "json"}, tenant="acme")
    seen: list[Any] = []

    def handle(message: Any) -> None:
        assert isinstance(message, shell.module.ReceivedMessage)
        seen.append((message.json(), message.tenant, message.delivery_count, message.lease_lost, len(message.id)))

    await queue.run(handle, until_empty=True)
    assert seen == [({"kind": "json"}, "acme", 1, False, 32)]


async def test_a_loop_goes_on_until_it_is_stopped(shell: Shell) -> None:
    """It waits for messages and is woken by them."""
    queue, handled = shell.queue(), []
    async with running(shell, queue, lambda message: handled.append(text(message)), prefetch=5) as loop:
        for letter in "abc":
            await queue.publish(letter)
            assert await until(lambda letter=letter: handled[-1:] == [letter])
        await queue.drain()
        assert summary_of(await ended(loop)) == (3, 0, 0)
    assert shell.leftovers(queue) == set()


async def test_what_a_handler_returns_does_not_matter(shell: Shell) -> None:
    """False or None, it has returned, and the message is acked."""
    queue = await filled(shell)
    answers = iter([False, None, 0, "text"])
    assert summary_of(await queue.run(lambda message: next(answers), until_empty=True)) == (4, 0, 0)


@asyncio_only
async def test_a_handler_of_the_asyncio_queue_may_be_of_either_colour(shell: Shell) -> None:
    """What it returns is awaited if it can be."""
    queue, handled = await filled(shell, "ab"), []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        handled.append(text(message))

    await queue.run(handle, until_empty=True)
    await queue.publish("c")
    await queue.run(lambda message: handle(message), until_empty=True)
    await queue.publish("d")
    await queue.run(lambda message: handled.append(text(message)), until_empty=True)
    assert handled == ["a", "b", "c", "d"]


@sync_only
@side_by_side
async def test_a_handler_of_the_sync_queue_must_not_be_awaited(shell: Shell, concurrency: int) -> None:
    """Nothing of it has run: a TypeError ends the loop, and the message is left to its lease."""
    queue = await filled(shell, "ab")

    async def handle(message: Any) -> None:
        pytest.fail("ran")

    with pytest.raises(TypeError, match="awaitable"):
        await asyncio.wait_for(queue.run(handle, concurrency=concurrency, prefetch=2), PATIENCE_SECONDS)
    # With several workers each may have begun one.
    assert 1 <= shell.processing(queue) <= concurrency
    assert shell.processing(queue) + shell.pending(queue) == 2


# Side by side


async def test_workers_work_at_the_same_time(shell: Shell) -> None:
    """Four handlers are inside at once, and no fifth."""
    queue, crossing = await filled(shell, words(8)), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=4, prefetch=8, until_empty=True) as loop:
        await crossing.is_entered_by(4)
        await asyncio.sleep(0.1)
        assert sorted(crossing.inside) == words(4)
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (8, 0, 0)
    assert sorted(crossing.done) == words(8)


async def test_workers_work_at_the_same_time_without_prefetching(shell: Shell) -> None:
    """One claims while the others work."""
    queue, crossing = await filled(shell, words(3)), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=3, until_empty=True) as loop:
        await crossing.is_entered_by(3)
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (3, 0, 0)


async def test_without_concurrency_one_message_is_handled_after_the_other(shell: Shell) -> None:
    """The default, in the caller's own thread or task."""
    queue, crossing = await filled(shell, words(3)), Crossing(shell)
    async with running(shell, queue, crossing.handler, prefetch=3, until_empty=True) as loop:
        await crossing.is_entered_by(1)
        await asyncio.sleep(0.1)
        assert crossing.inside == ["0000"]
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (3, 0, 0)
    assert crossing.done == words(3)


@pytest.mark.parametrize("options", [{}, {"prefetch": 3}, {"batch_size": 2}], ids=str)
async def test_without_concurrency_the_handler_runs_where_run_was_called(shell: Shell, options: dict[str, Any]) -> None:
    """In the caller's own thread or task, so that what belongs to it can be used there; several workers are others."""

    def here() -> Any:
        return threading.current_thread() if shell.name == "sync" else asyncio.current_task()

    seen: list[Any] = []
    for concurrency, is_the_callers in ((1, True), (2, False)):
        queue = await filled(shell, words(4), **BEATING)
        seen.clear()
        answer = queue.queue.run(
            lambda given: seen.append(here()), concurrency=concurrency, until_empty=True, **options
        )
        summary = answer if shell.name == "sync" else await answer
        assert summary.handled == 4
        assert {place is here() for place in seen} == {is_the_callers}


async def test_many_workers_handle_each_message_once_and_count_right(shell: Shell) -> None:
    """The sums are exact, however the workers get into each other's way."""
    queue = await filled(shell, words(1_000), enable_failed_queue=True)
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(text(message))
        if text(message).endswith("7"):
            raise ValueError

    summary = await queue.run(handle, concurrency=8, prefetch=20, until_empty=True)
    assert sorted(handled) == words(1_000)
    assert summary_of(summary) == (900, 100, 0)
    assert len(shell.listed(queue.key.failed)) == 100
    assert shell.leftovers(queue) == {b"q::failed"}


async def test_two_loops_of_one_object_share_out_the_messages(shell: Shell) -> None:
    """Each message once, in one of them; each loop counts its own."""
    queue = await filled(shell, words(60))
    handled: list[str] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.002)
        handled.append(text(message))

    loops = [queue.run(shell.handler(handle), prefetch=3, concurrency=2, until_empty=True) for _ in range(2)]
    summaries = await asyncio.gather(*loops)
    assert sorted(handled) == words(60)
    assert sum(summary.handled for summary in summaries) == 60
    assert all(summary.handled > 0 for summary in summaries)


async def test_what_handlers_publish_is_handled_too(shell: Shell) -> None:
    """A loop until nothing waits does not end while somebody still makes work: also if the others found none."""
    queue, handled = shell.queue(), []

    async def handle(message: Any) -> None:
        handled.append(text(message))
        if len(handled) < 3:
            # Long enough that the other worker has looked, and found nothing.
            await asyncio.sleep(0.2)
            await queue.publish(f"follows {text(message)}")

    await queue.publish("a")
    summary = await queue.run(shell.handler(handle), concurrency=2, until_empty=True)
    assert handled == ["a", "follows a", "follows follows a"]
    assert summary_of(summary) == (3, 0, 0)


# Round trips


def scripts(sent: Sent) -> list[str]:
    """The names of the scripts that were called, in their order."""
    from tests.faults.proxy import our_scripts

    assert set(sent.commands) <= {"EVALSHA"}, sent.commands
    return [our_scripts()[line.split(" ")[1].strip('"')] for line in sent.lines]


@pytest.mark.parametrize("kept", [False, True])
async def test_messages_are_claimed_ahead_and_acks_travel_with_the_next_claim(shell: Shell, kept: bool) -> None:
    """Ten messages at a time: one claim for ten, and the acks of ten beside it."""
    queue = await filled(shell, words(3), enable_completed_queue=kept)
    await queue.run(lambda message: None, prefetch=2, until_empty=True)
    await queue.publish_many(words(30))
    with Sent(shell.server) as sent:
        await queue.run(lambda message: None, prefetch=10, until_empty=True)
    assert scripts(sent) == ["claim", *["settle", "claim"] * 3]
    assert shell.processing(queue) == 0


async def test_without_prefetching_a_message_costs_one_claim_and_the_ack_beside_it(shell: Shell) -> None:
    """One round trip a message, in which a consumer by hand has two."""
    queue = await filled(shell, words(3))
    await queue.run(lambda message: None, until_empty=True)
    await queue.publish_many(words(4))
    with Sent(shell.server) as sent:
        await queue.run(lambda message: None, until_empty=True)
    assert scripts(sent) == ["claim", *["settle", "claim"] * 4]


async def test_an_idle_loop_sends_at_most_two_commands_a_second(shell: Shell) -> None:
    """One to look and one to wait, however many workers there are."""
    queue, handled = await filled(shell, "a", wait=LONG, **BEATING), []
    async with running(shell, queue, handled.append, concurrency=4, prefetch=10):
        assert await until(lambda: handled)
        assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
        with Sent(shell.server) as sent:
            await asyncio.sleep(1.3)
    assert 2 <= len(sent.commands) <= 2 * sent.seconds + 2
    assert set(sent.commands) == {"EVALSHA", "BLPOP"}


async def test_an_idle_loop_of_a_queue_that_does_not_wait_sends_no_more(shell: Shell) -> None:
    """The wait interval is how long `process_message` waits; a loop waits until it is stopped."""
    queue, handled = await filled(shell, "a", wait=0), []
    async with running(shell, queue, handled.append):
        assert await until(lambda: handled)
        with Sent(shell.server) as sent:
            await asyncio.sleep(1.0)
    assert len(sent.commands) <= 2 * sent.seconds + 4


async def test_what_is_done_is_acked_while_the_loop_waits(shell: Shell) -> None:
    """In Redis and for the listener: the ack does not wait for the next message to come."""
    events = shell.events()
    queue = await filled(shell, "a", wait=LONG, on_event=events.listen)
    async with running(shell, queue, lambda message: None, prefetch=5):
        await events.wait_for("ack")
        assert shell.processing(queue) == 0


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


# Failing


async def test_a_handler_that_raises_does_not_end_the_loop(shell: Shell) -> None:
    """Its message takes the failure path, with its record; the others are acked."""
    events = shell.events()
    queue = await filled(shell, on_event=events.listen, enable_failed_queue=True, enable_completed_queue=True)

    def handle(message: Any) -> None:
        if text(message) in "bd":
            raise ValueError(f"bad {text(message)}")

    summary = await queue.run(handle, prefetch=3, until_empty=True)
    assert summary_of(summary) == (2, 2, 0)
    assert shell.listed(queue.key.failed) == [b"d", b"b"]
    assert shell.listed(queue.key.completed) == [b"c", b"a"]
    assert [(record.error_type, record.error) for record in await queue.records("failed")] == [
        ("ValueError", "bad d"),
        ("ValueError", "bad b"),
    ]
    stories = {
        event.message_id: [other.operation for other in events.all if other.message_id == event.message_id]
        for event in events.of("publish")
    }
    assert (
        list(stories.values())
        == [
            ["publish", "claim", "ack", "completed"],
            ["publish", "claim", "failed", "nack"],
        ]
        * 2
    )


async def test_a_handler_may_raise_the_end_of_an_iteration(shell: Shell) -> None:
    """StopIteration is an exception like any other here."""
    queue = await filled(shell, "ab", enable_failed_queue=True)

    def handle(message: Any) -> None:
        raise StopIteration

    assert summary_of(await queue.run(handle, until_empty=True)) == (0, 2, 0)
    assert len(shell.listed(queue.key.failed)) == 2


async def test_a_retry_policy_holds_in_the_loop(shell: Shell) -> None:
    """A failure is tried again later, by the same loop, until its attempts are used up."""
    events = shell.events()
    policy = RetryPolicy(max_attempts=3, initial_delay_seconds=0.05, multiplier=1, jitter=0)
    queue = await filled(shell, "ab", retry_policy=policy, on_event=events.listen)
    tried: list[str] = []

    def handle(message: Any) -> None:
        tried.append(text(message))
        if text(message) == "a":
            raise ValueError("always")

    async with running(shell, queue, handle, prefetch=5):
        assert await until(lambda: tried.count("a") == 3)
        await events.wait_for("dlq")
    assert Counter(tried) == {"a": 3, "b": 1}
    assert len(events.of("retried")) == 2
    assert shell.listed(queue.key.dead_letter) == [b"a"]


async def test_a_loop_until_nothing_waits_leaves_later_attempts_for_later(shell: Shell) -> None:
    """A message that waits for its time does not wait now."""
    queue = await filled(shell, "a", retry_policy=RetryPolicy(initial_delay_seconds=60))

    def handle(message: Any) -> None:
        raise ValueError

    assert summary_of(await queue.run(handle, until_empty=True)) == (0, 1, 0)
    assert (await queue.stats()).delayed == 1


@side_by_side
async def test_what_is_not_an_exception_ends_the_loop_and_comes_out(shell: Shell, concurrency: int) -> None:
    """Its own message is left to its lease; what nobody has begun is given back, undelivered, in its order."""
    queue = await filled(shell, words(50))
    handled: list[str] = []

    async def handle(message: Any) -> None:
        if text(message) == "0002":
            raise Died
        handled.append(text(message))
        await asyncio.sleep(0.02)

    loop = asyncio.ensure_future(queue.run(shell.handler(handle), concurrency=concurrency, prefetch=50))
    done, _ = await asyncio.wait({loop}, timeout=PATIENCE_SECONDS)
    await queue.drain(timeout=0)
    assert done, "the loop does not end"
    with pytest.raises(Died):
        loop.result()
    assert shell.processing(queue) == 1
    # The other workers finish what they had begun, and begin nothing more.
    assert len(handled) <= 2 + 2 * concurrency
    left = [word for word in words(50) if word not in handled and word != "0002"]
    assert await look(shell) == [(word, 1) for word in left]


@side_by_side
async def test_what_is_not_an_exception_ends_a_loop_whose_other_workers_are_idle(
    shell: Shell, concurrency: int
) -> None:
    """They wait for a message, and have to be told."""
    queue = await filled(shell, "a", wait=LONG)

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.1)
        raise Died

    async with running(shell, queue, shell.handler(handle), concurrency=concurrency) as loop:
        with pytest.raises(Died):
            await ended(loop)


# Lists


async def test_a_handler_may_get_lists(shell: Shell) -> None:
    """Of up to so many messages, in their order; all of them are acked when it returns."""
    queue, lists = await filled(shell, words(25)), []
    summary = await queue.run(lambda messages: lists.append(messages), batch_size=10, until_empty=True)
    assert [len(messages) for messages in lists] == [10, 10, 5]
    assert all(type(messages) is list for messages in lists)
    assert [text(message) for messages in lists for message in messages] == words(25)
    assert summary_of(summary) == (25, 0, 0)
    assert shell.leftovers(queue) == set()


async def test_a_list_costs_one_claim_and_its_acks_travel_with_the_next(shell: Shell) -> None:
    """As single messages do."""
    queue = await filled(shell, words(3))
    await queue.run(lambda messages: None, batch_size=2, until_empty=True)
    await queue.publish_many(words(30))
    with Sent(shell.server) as sent:
        await queue.run(lambda messages: None, batch_size=10, until_empty=True)
    assert scripts(sent) == ["claim", *["settle", "claim"] * 3]


async def test_a_list_that_is_full_does_not_wait(shell: Shell) -> None:
    """By size: long before its time."""
    queue, lists = await filled(shell, words(3)), []
    async with running(shell, queue, lists.append, batch_size=4, batch_seconds=LONG):
        await asyncio.sleep(0.1)
        assert lists == []
        await queue.publish("last")
        assert await until(lambda: lists)
    assert [text(message) for message in lists[0]] == [*words(3), "last"]


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
    assert 0.5 <= when - started < PATIENCE_SECONDS


async def test_a_list_that_fills_is_given_back_when_the_loop_stops(shell: Shell) -> None:
    """Nobody has begun with it."""
    queue, lists = await filled(shell, "abc"), []
    async with running(shell, queue, lists.append, batch_size=9, batch_seconds=LONG) as loop:
        assert await until(lambda: shell.processing(queue) == 3)
        await queue.drain()
        assert summary_of(await ended(loop)) == (0, 0, 3)
    assert lists == []
    assert await look(shell) == [(letter, 1) for letter in "abc"]


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
    assert len(events.of("given_back")) == 12
    assert shell.listed(queue.key.dead_letter) == [b"d", b"c", b"b", b"a"]


async def test_a_list_whose_handler_raises_under_a_policy_is_tried_again_message_by_message(shell: Shell) -> None:
    """Each has its own attempts and its own time."""
    events = shell.events()
    policy = RetryPolicy(initial_delay_seconds=60)
    queue = await filled(shell, "abc", retry_policy=policy, on_event=events.listen)

    def handle(messages: Any) -> None:
        raise ValueError

    assert summary_of(await queue.run(handle, batch_size=3, until_empty=True)) == (0, 3, 0)
    assert len(events.of("retried")) == 3
    assert (await queue.stats()).delayed == 3


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


# Stopping


def drains(queue: Any, stop: threading.Event) -> Callable[[], Any]:
    return queue.drain


def interrupts(queue: Any, stop: threading.Event) -> Callable[[], Any]:
    async def interrupt() -> None:
        stop.set()

    return interrupt


@pytest.mark.parametrize("way", [drains, interrupts])
@side_by_side
async def test_a_loop_that_is_stopped_finishes_what_it_began_and_gives_back_the_rest(
    shell: Shell, way: Any, concurrency: int
) -> None:
    """What was begun is acked, the rest is at the front in its order, as if it had never been claimed."""
    stop, events = threading.Event(), shell.events()
    queue = await filled(
        shell, words(20), interrupt=EventDrivenInterruptHandler(stop), on_event=events.listen, **BEATING
    )
    crossing = Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=concurrency, prefetch=10) as loop:
        await crossing.is_entered_by(concurrency)
        await way(queue, stop)()
        assert not loop.done()
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (concurrency, 0, 10 - concurrency)
    assert sorted(crossing.done) == words(concurrency)
    assert len(events.of("ack")) == concurrency
    assert len(events.of("given_back")) == 10 - concurrency
    assert shell.processing(queue) == 0
    assert await look(shell) == [(word, 1) for word in words(20)[concurrency:]]


async def test_what_is_given_back_keeps_its_order_in_every_line(shell: Shell) -> None:
    """Each tenant's messages go to the front of its own line."""
    queue, crossing = shell.queue(), Crossing(shell)
    for tenant in ("a", "b", None):
        await queue.publish_many([f"{tenant} {word}" for word in words(4)], tenant=tenant)
    async with running(shell, queue, crossing.handler, prefetch=8) as loop:
        await crossing.is_entered_by(1)
        await queue.drain()
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (1, 0, 7)
    left = await look(shell)
    for tenant in ("a", "b", None):
        expected = [f"{tenant} {word}" for word in words(4)]
        assert [word for word, count in left if word.startswith(f"{tenant} ")] == [
            word for word in expected if word not in crossing.done
        ]
    assert {count for _, count in left} == {1}


async def test_a_stopped_loop_ends_soon_where_nothing_waits(shell: Shell) -> None:
    """An idle worker is not held up by its wait."""
    stop = threading.Event()
    queue = shell.queue(wait=LONG, interrupt=EventDrivenInterruptHandler(stop))
    async with running(shell, queue, lambda message: None, concurrency=3) as loop:
        assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
        stop.set()
        assert summary_of(await ended(loop)) == (0, 0, 0)


async def test_a_handler_may_stop_its_own_loop(shell: Shell) -> None:
    """By draining the queue: its message is acked, the rest goes back."""
    queue = await filled(shell)

    async def handle(message: Any) -> None:
        await queue.drain(timeout=0)

    assert summary_of(await queue.run(shell.handler(handle), prefetch=4)) == (1, 0, 3)
    assert await look(shell) == [("b", 1), ("c", 1), ("d", 1)]


async def test_a_loop_of_a_stopped_queue_ends_at_once(shell: Shell) -> None:
    """Drained or interrupted: nothing is claimed, and the summary is empty."""
    stop = threading.Event()
    drained, interrupted = await filled(shell, "a"), shell.queue(interrupt=EventDrivenInterruptHandler(stop))
    await drained.drain()
    stop.set()
    for queue in (drained, interrupted):
        async with running(shell, queue, lambda message: None, concurrency=2) as loop:
            assert summary_of(await ended(loop)) == (0, 0, 0)
    assert shell.pending(drained) == 1


async def test_a_second_loop_goes_on_where_the_first_one_ended(shell: Shell) -> None:
    """A queue object can be run as often as one likes."""
    queue = shell.queue()
    for round_ in range(3):
        await queue.publish_many(words(5))
        assert summary_of(await queue.run(lambda message: None, prefetch=2, until_empty=True)) == (5, 0, 0), round_


@asyncio_only
@side_by_side
async def test_a_cancelled_loop_acks_what_is_done_and_gives_back_what_nobody_began(
    shell: Shell, concurrency: int
) -> None:
    """The handlers at work are cancelled, and their messages are left to their leases."""
    queue, crossing = await filled(shell, words(20)), Crossing(shell)

    async def handle(message: Any) -> None:
        if len(crossing.done) < 2:
            crossing.done.append(text(message))
        else:
            await crossing.handler(message)

    loop = asyncio.ensure_future(queue.run(handle, concurrency=concurrency, prefetch=10))
    await crossing.is_entered_by(concurrency)
    loop.cancel()
    await asyncio.wait({loop}, timeout=PATIENCE_SECONDS)
    assert loop.cancelled()
    assert shell.processing(queue) == concurrency
    assert await look(shell) == [(word, 1) for word in words(20)[2 + concurrency :]]


@asyncio_only
@pytest.mark.parametrize("moment", ["ack", "failed", "nack", "given_back"])
async def test_a_cancellation_is_not_swallowed(shell: Shell, moment: str) -> None:
    """It lands while the loop settles or tells of a message: that is finished, and then the loop ends as cancelled."""
    told: list[str] = []

    async def listen(event: Any) -> None:
        told.append(str(event.operation))
        if event.operation == moment and told.count(moment) == 1:
            loop.cancel()
            await asyncio.sleep(0)

    queue = await filled(shell, "abc", on_event=listen)

    def handle(message: Any) -> None:
        if moment != "ack":
            raise ValueError

    options: dict[str, Any] = {"batch_size": 1} if moment == "given_back" else {}
    loop = asyncio.ensure_future(queue.run(handle, **options))
    await asyncio.wait({loop}, timeout=PATIENCE_SECONDS)
    done = loop.done()
    await queue.drain(timeout=0)
    assert done, f"the loop goes on: {told}"
    assert loop.cancelled()


@asyncio_only
@side_by_side
async def test_a_handler_that_was_cancelled_from_inside_ends_the_loop(shell: Shell, concurrency: int) -> None:
    """Something that it awaited was cancelled: no `Exception`, so its message is left alone and the loop ends."""
    queue = await filled(shell, "ab", wait=LONG)

    async def handle(message: Any) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(LONG))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    async with running(shell, queue, handle, concurrency=concurrency) as loop:
        with pytest.raises(asyncio.CancelledError):
            await ended(loop)


# Leases


async def test_a_heartbeat_renews_what_waits_and_what_is_in_hand(shell: Shell) -> None:
    """One command an interval for all that were claimed; what is acked is left out."""
    events = shell.events()
    queue, crossing = await filled(shell, words(6), on_event=events.listen, **BEATING), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=2, prefetch=6):
        await crossing.is_entered_by(2)
        await events.wait_for("lease_renew", 12)
        assert {event.message_id for event in events.of("lease_renew")} == {
            event.message_id for event in events.of("claim")
        }
        crossing.is_open.set()
        await events.wait_for("ack", 6)
        await asyncio.sleep(0.2)
        renewed = len(events.of("lease_renew"))
        await asyncio.sleep(0.2)
        assert len(events.of("lease_renew")) == renewed
    assert len(crossing.done) == 6


async def quiet(shell: Shell, events: Any, failures: list[Any]) -> None:
    """Nobody was told of a loss that was none."""
    assert failures == []
    assert "stale_lease_renew/skipped" not in events.names


def quick(shell: Shell, listen: Any, failures: list[Any]) -> dict[str, Any]:
    """Heartbeats that meet every moment."""
    return {
        "on_event": listen,
        "on_heartbeat_failure": shell.callback(lambda: failures.append(1)),
        "visibility_timeout_seconds": 60,
        "heartbeat_interval_seconds": 0.001,
    }


async def test_an_idle_loop_has_no_lease_to_lose(shell: Shell) -> None:
    """What was acked beside a claim that waits on is no longer renewed, so nothing seems to be lost."""
    events, failures = shell.events(), []
    queue = await filled(shell, "ab", wait=LONG, **quick(shell, events.listen, failures))
    handled: list[Any] = []
    async with running(shell, queue, handled.append, prefetch=2):
        assert await until(lambda: len(handled) == 2)
        assert await until(lambda: shell.processing(queue) == 0)
        await asyncio.sleep(0.1)
    await quiet(shell, events, failures)


@pytest.mark.parametrize("moment", ["nack", "given_back", "ack", "retried"])
async def test_a_settled_message_is_no_lost_lease_however_slow_its_listener_is(shell: Shell, moment: str) -> None:
    """The heartbeat beats on while the events of the settlement are told."""
    failures: list[Any] = []
    events = shell.events()

    def listen(event: Any) -> Any:
        heard = events.listen(event)
        if event.operation == moment and shell.name == "sync":
            time.sleep(0.02)
        return heard

    async def listen_awaited(event: Any) -> None:
        await listen(event)
        if event.operation == moment:
            await asyncio.sleep(0.02)

    settings = quick(shell, listen if shell.name == "sync" else listen_awaited, failures)
    if moment == "retried":
        settings["retry_policy"] = RetryPolicy(initial_delay_seconds=60)
    queue = await filled(shell, words(6), **settings)

    async def handle(message: Any) -> None:
        if moment == "given_back":
            await queue.drain(timeout=0)
        elif moment != "ack":
            raise ValueError

    await queue.run(shell.handler(handle), prefetch=6, until_empty=True)
    await quiet(shell, events, failures)
    assert len(events.of(moment)) >= 5


async def test_a_completed_message_is_no_lost_lease(shell: Shell) -> None:
    """Its heartbeat may be under way while it is completed from inside the handler."""
    events, failures = shell.events(), []
    queue = await filled(shell, words(150), **quick(shell, events.listen, failures))

    async def handle(message: Any) -> None:
        done = message.complete()
        if shell.name == "asyncio":
            await done

    assert summary_of(await queue.run(shell.handler(handle), prefetch=50, until_empty=True)) == (150, 0, 0)
    await quiet(shell, events, failures)


async def test_a_lost_lease_is_lost_for_one_message_of_the_loop(shell: Shell) -> None:
    """It says so, its ack comes too late and is not counted; the others go on."""
    events, failures = shell.events(), []
    queue = await filled(
        shell,
        "abc",
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: failures.append(1)),
        **BEATING,
    )
    inside: dict[str, Any] = {}
    opened = threading.Event()

    async def handle(message: Any) -> None:
        inside[text(message)] = message
        assert await until(opened.is_set)

    async with running(shell, queue, shell.handler(handle), concurrency=3, prefetch=3, until_empty=True) as loop:
        assert await until(lambda: len(inside) == 3)
        await take_over(shell, inside["b"])
        await events.wait_for("stale_lease_renew")
        assert await until(lambda: failures)
        assert {name: message.lease_lost for name, message in inside.items()} == {"a": False, "b": True, "c": False}
        opened.set()
        assert summary_of(await ended(loop)) == (2, 0, 0)
    assert failures == [1]
    assert events.the("stale_lease_ack").message_id == inside["b"].id
    assert len(events.of("ack")) == 2
    assert shell.processing(queue) == 1


async def take_over(shell: Shell, message: Any) -> None:
    """Its lease ends, and another consumer takes it and keeps it."""
    thief, taken = shell.queue(wait=0), []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while message.id not in taken:
        assert time.monotonic() < deadline, "the message cannot be taken over"
        # As if the lease had run out; if a renewal was quicker, once more.
        shell.redis.zadd(thief.key.leases, dict.fromkeys(shell.leases(thief, message.id), 1) or {b"": 1}, xx=True)
        with contextlib.suppress(Died):
            async with thief.process_messages(1) as batch:
                taken += [stolen.id for stolen in batch]
                raise Died


async def test_a_handler_that_hangs_loses_its_message_and_is_told_of_once(shell: Shell) -> None:
    """After max_processing_seconds its lease is not renewed; the others' are, and another consumer gets it."""
    events = shell.events()
    queue = await filled(
        shell,
        "abc",
        on_event=events.listen,
        visibility_timeout_seconds=2,
        heartbeat_interval_seconds=0.1,
        max_processing_seconds=0.5,
    )
    ids = [event.message_id for event in events.of("publish")]
    crossing = Crossing(shell)
    async with running(shell, queue, crossing.handler, prefetch=3) as loop:
        await crossing.is_entered_by(1)
        assert await take(shell.queue(wait=PATIENCE_SECONDS)) == b"a"
        skipped = [event.message_id for event in events.of("lease_renew") if event.outcome == "skipped"]
        assert skipped == ids[:1]
        before = len(events.of("lease_renew"))
        await events.wait_for("lease_renew", before + 6)
        assert {event.message_id for event in events.of("lease_renew")[before:]} == set(ids[1:])
        assert await take(shell.queue(wait=0)) is None
        crossing.is_open.set()
        await events.wait_for("ack", 2)
        await queue.drain()
        assert summary_of(await ended(loop)) == (2, 0, 0)
    assert events.names.count("lease_renew/skipped") == 1
    assert events.the("stale_lease_ack").message_id == ids[0]
    assert [event.message_id for event in events.of("ack")] == ids[1:]
    assert crossing.done == ["a", "b", "c"]
    assert shell.leftovers(queue) == set()


async def test_the_time_of_a_handler_begins_when_it_begins(shell: Shell) -> None:
    """What was claimed ahead and waits for its turn is not taken for a handler that hangs."""
    events = shell.events()
    queue = await filled(shell, words(8), on_event=events.listen, max_processing_seconds=1, **BEATING)

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.2)

    assert summary_of(await queue.run(shell.handler(handle), prefetch=8, until_empty=True)) == (8, 0, 0)
    assert "lease_renew/skipped" not in events.names


# Trouble


@pytest.mark.parametrize("budget", [0, 20], ids=["given up before", "in the same call"])
async def test_a_claim_whose_answer_was_lost_is_found_again_by_the_loop(shell: Shell, budget: float) -> None:
    """Every message is handled once, in its order and in its first delivery, and claimed no more than once."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=budget, on_event=events.listen)
    await queue.run(lambda message: None, until_empty=True)  # loads the script
    await queue.publish_many(list("abcd"))
    if budget == 0:
        client.losses.reply()
        with pytest.raises(redis.exceptions.ConnectionError):
            async with queue.process_messages(3):
                pytest.fail("nobody saw the answer")
        assert shell.processing(queue) == 3
    else:
        client.losses.reply(2)
    handled: list[tuple[str, int]] = []
    summary = await queue.run(
        lambda message: handled.append((text(message), message.delivery_count)), prefetch=2, until_empty=True
    )
    assert handled == [(letter, 1) for letter in "abcd"]
    assert summary_of(summary) == (4, 0, 0)
    published = [event.message_id for event in events.of("publish")]
    assert [event.message_id for event in events.of("claim") if event.outcome == "success"] == published
    assert [event.message_id for event in events.of("ack")] == published
    assert len(events.of("claim_reclaim")) == (2 if budget == 0 else 0)  # the third went back, and came from the line
    assert len(events.of("retry_attempt")) == (0 if budget == 0 else 2)
    assert shell.leftovers(queue) == set()


async def test_a_loop_whose_claim_was_given_up_leaves_it_to_the_next(shell: Shell) -> None:
    """The error comes out; what was done is acked; a second loop of the object finds what the first one took."""
    client, handled = shell.lossy_client(), []
    queue = await filled(shell, client=client, wait=0, retry_budget_seconds=0)

    def handle(message: Any) -> None:
        handled.append(text(message))
        if len(handled) == 2:
            client.losses.pass_on()  # the acks, which go first
            client.losses.reply()  # the claim

    with pytest.raises(redis.exceptions.ConnectionError):
        await queue.run(handle, prefetch=2, until_empty=True)
    assert handled == ["a", "b"]
    assert shell.processing(queue) == 2
    assert summary_of(await queue.run(handle, prefetch=2, until_empty=True)) == (2, 0, 0)
    assert handled == ["a", "b", "c", "d"]


async def test_lost_requests_and_answers_are_made_good(shell: Shell) -> None:
    """Claims, acks and failures under a budget: each message once."""
    client, handled = shell.lossy_client(), []
    queue = await filled(
        shell, words(12), client=client, wait=0, enable_completed_queue=True, retry_initial_delay_seconds=0.001
    )

    def handle(message: Any) -> None:
        handled.append(text(message))
        client.losses.reply()
        client.losses.request()

    summary = await queue.run(handle, prefetch=4, until_empty=True)
    assert handled == words(12)
    assert summary_of(summary) == (12, 0, 0)
    assert [payload.decode() for payload in shell.listed(queue.key.completed)] == words(12)[::-1]


@side_by_side
async def test_an_ack_that_redis_refuses_ends_the_loop_and_loses_nothing(shell: Shell, concurrency: int) -> None:
    """The error is a failed cleanup, with its cause; each message is told of, and what nobody began is given back."""
    events = shell.events()
    queue = await filled(shell, words(6), on_event=events.listen, enable_completed_queue=True)
    shell.redis.set(queue.key.completed, "not a list")
    async with running(shell, queue, lambda message: None, prefetch=2, concurrency=concurrency) as loop:
        with pytest.raises(shell.module.CleanupFailedError) as failure:
            await ended(loop)
    assert isinstance(failure.value.__cause__, shell.module.LuaScriptError)
    assert len(events.of("cleanup_failed")) >= 1
    stats = shell.pending(queue), shell.processing(queue)
    assert sum(stats) == 6


async def test_a_server_that_cannot_be_reached_ends_the_loop_with_the_error(shell: Shell, dead_port: int) -> None:
    """When the budget is spent; nobody loops silently around a dead server."""
    queue = shell.queue(client=shell.dead_client(dead_port), retry_budget_seconds=0.1)
    with pytest.raises(shell.module.RetryBudgetExhaustedError):
        await asyncio.wait_for(queue.run(lambda message: None, concurrency=2), PATIENCE_SECONDS)


async def test_at_most_once_runs_too(shell: Shell) -> None:
    """Without leases: handled, acked, and given back where nobody has begun."""
    queue, crossing = await filled(shell, visibility_timeout_seconds=None), Crossing(shell)
    async with running(shell, queue, crossing.handler, prefetch=4) as loop:
        await crossing.is_entered_by(1)
        await queue.drain()
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (1, 0, 3)
    assert await look(shell) == [("b", 1), ("c", 1), ("d", 1)]
    assert shell.processing(queue) == 0


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": None}, "concurrency"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": 1_001}, "prefetch"),
        ({"prefetch": "5"}, "prefetch"),
        ({"prefetch": True}, "prefetch"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1_001}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": 5, "batch_seconds": -1}, "batch_seconds"),
        ({"batch_size": 5, "batch_seconds": float("nan")}, "batch_seconds"),
        ({"batch_size": 5, "batch_seconds": True}, "batch_seconds"),
        ({"batch_seconds": 2}, "batch_seconds"),
        ({"until_empty": 1}, "until_empty"),
        ({"until_empty": "no"}, "until_empty"),
    ],
    ids=str,
)
async def test_a_loop_that_could_not_work_is_refused(shell: Shell, options: dict[str, Any], named: str) -> None:
    """By name, before anything is claimed."""
    queue = await filled(shell, "a")
    with pytest.raises(shell.module.ConfigurationError, match=rf"^{named} "):
        await queue.run(lambda message: queue.queue.drain(0), **options)
    assert shell.pending(queue) == 1


@pytest.mark.parametrize("wrong", [None, "handler", 7], ids=repr)
async def test_a_handler_can_be_called(shell: Shell, wrong: Any) -> None:
    """Refused by name."""
    queue = await filled(shell, "a")
    with pytest.raises(TypeError, match=r"^handler ") as refusal:
        await queue.run(wrong)
    assert isinstance(refusal.value, RedisMessageQueueError)
    assert shell.pending(queue) == 1


async def test_a_custom_gateway_refuses_to_run(shell: Shell) -> None:
    """It hands over one message at a time; nothing is claimed."""

    class Plain(shell.module.RedisGateway):  # type: ignore[name-defined,misc]  # the module is known at run time only
        def remove_message(self, queue: str, message: Any, *, lease_token: str | None = None) -> Any:
            return super().remove_message(queue, message, lease_token=lease_token)

    await filled(shell)
    queue = shell.queue(gateway=Plain(redis_client=shell.client))
    with pytest.raises(shell.module.GatewayContractError, match="batches"):
        await queue.run(lambda message: None)
    assert shell.pending(queue) == 4


# Events


async def test_a_loop_reports_what_it_does(shell: Shell) -> None:
    """Claims, acks, what is given back, and one empty claim where it found nothing."""
    events = shell.events()
    queue = await filled(shell, "abc", on_event=events.listen, enable_completed_queue=True)
    events.clear()
    await queue.run(lambda message: None, prefetch=2, until_empty=True)
    assert Counter(events.names) == {
        "claim/success": 3,
        "ack/success": 3,
        "completed/success": 3,
        "claim_empty/skipped": 1,
    }
    assert all(event.duration_seconds >= 0 for event in events.of("ack"))


async def test_each_handled_message_has_a_record(shell: Shell) -> None:
    """Many were acked together; each has its own story."""
    queue = await filled(shell, "abc", enable_completed_queue=True)
    await queue.run(lambda message: None, prefetch=3, until_empty=True)
    records = await queue.records("completed")
    assert [record.payload for record in records] == [b"c", b"b", b"a"]
    for record in records:
        assert (record.reason, record.delivery_count) == ("completed", 1)
        assert record.published_at <= record.claimed_at <= record.finished_at


async def test_records_of_messages_that_were_claimed_apart_and_acked_together_leave_that_time_out(shell: Shell) -> None:
    """Rather than say that something was claimed before it was published; the other times are there."""
    queue = await filled(shell, "a", enable_completed_queue=True)
    async with running(shell, queue, lambda messages: None, batch_size=2, batch_seconds=LONG):
        assert await until(lambda: shell.processing(queue) == 1)
        await asyncio.sleep(0.05)
        await queue.publish("b")
        assert await until(lambda: shell.redis.llen(queue.key.completed) == 2)
    records = await shell.queue().records("completed")
    assert [record.payload for record in records] == [b"b", b"a"]
    assert [record.claimed_at for record in records] == [None, None]
    assert records[1].published_at < records[0].published_at <= records[0].finished_at == records[1].finished_at


async def test_no_payload_is_told_of_what_a_loop_does(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """In no event, error or log line: handled, failed, given back, too late, not to be acknowledged."""
    secret, events, client = "s3cret", shell.events(), shell.lossy_client()
    options: dict[str, Any] = {"on_event": events.listen, "wait": 0, "retry_budget_seconds": 0}
    queue = shell.queue(client=client, enable_completed_queue=True, enable_failed_queue=True, **options)

    async def handle(message: Any) -> None:
        number = int(text(message).split()[-1])
        if number == 1:
            raise ValueError("why")
        if number == 2:
            await take_over(shell, message)
        if number == 5:
            client.losses.request(3)  # the acks, the claim beside them, and the acks once more

    with caplog.at_level(logging.DEBUG):
        await queue.publish_many([f"{secret} {number}" for number in range(8)], tenant="t")
        with pytest.raises(shell.module.CleanupFailedError) as uncertain:
            await queue.run(shell.handler(handle), prefetch=2, until_empty=True)
        client.losses.heal()
        refuse: Callable[[Any], None] = lambda messages: messages[-1]["no list"]  # noqa: E731  # raises
        assert (await queue.run(refuse, batch_size=1, until_empty=True)).given_back > 0
    told = {event.operation for event in events.all}
    assert {"ack", "failed", "nack", "stale_lease_ack", "cleanup_failed", "given_back"} <= told
    assert [event for event in events.all if secret in repr(event)] == []
    assert secret not in f"{uncertain.value!r} {uncertain.value} {uncertain.value.__cause__!r}"
    assert secret not in caplog.text
    assert caplog.records
