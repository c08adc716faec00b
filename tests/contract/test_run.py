"""`run()` calls a handler for each message, one or several at the same time."""

import asyncio
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_message_queue import ConfigurationTypeError, RedisMessageQueueError
from tests.contract.custom_gateways import overriding
from tests.contract.loops import LONG, Crossing, ended, filled, running, side_by_side, summary_of, text, words
from tests.contract.shells import (
    BEATING,
    EVERY_WIRING,
    LIMIT_SECONDS,
    Shell,
    Wiring,
    asyncio_only,
    sync_only,
    take_over,
    until,
)
from tests.contract.test_run_queues import run_queues
from tests.tables import row

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]


# Handling


@pytest.mark.promise(
    "`run(handler)` claims messages, calls the handler and acks until it is stopped or, with `until_empty`, until "
    "nothing is pending."
)
@pytest.mark.promise("`run()` returns exactly how many messages were handled, failed and requeued.")
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


@pytest.mark.promise("The handler of `run()` receives a message as in a batch; its return value is ignored.")
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


@pytest.mark.promise(
    "`run(handler)` claims messages, calls the handler and acks until it is stopped or, with `until_empty`, until "
    "nothing is pending."
)
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


@pytest.mark.promise("The handler of `run()` receives a message as in a batch; its return value is ignored.")
async def test_what_a_handler_returns_does_not_matter(shell: Shell) -> None:
    """False or None, it has returned, and the message is acked."""
    queue = await filled(shell)
    answers = iter([False, None, 0, "text"])
    assert summary_of(await queue.run(lambda message: next(answers), until_empty=True)) == (4, 0, 0)


@pytest.mark.promise(
    "`run()` accepts plain and `async def` handlers in the async queue; in the sync queue an awaitable raises "
    "`TypeError`."
)
@asyncio_only
async def test_a_handler_of_the_async_queue_may_be_sync_or_async(shell: Shell) -> None:
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


@pytest.mark.promise(
    "`run()` accepts plain and `async def` handlers in the async queue; in the sync queue an awaitable raises "
    "`TypeError`."
)
@sync_only
async def test_an_async_handler_of_the_sync_queue_is_refused_before_anything_is_claimed(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """In every form of a loop; an object with an async `__call__` and a partial are recognized, too."""
    queue = await filled(shell, "ab")

    async def handle(message: Any) -> None:
        pytest.fail("ran")

    class Handler:
        async def __call__(self, message: Any) -> None:
            pytest.fail("ran")

    for one in (handle, Handler(), functools.partial(handle), Handler().__call__):
        with row(subtests, handler=type(one)):
            for loop in (
                lambda one=one: queue.run(one),
                lambda one=one: run_queues(shell, {queue: 1}, one),
                lambda one=one: run_queues(shell, {queue: one}, None),
            ):
                with pytest.raises(shell.module.ConfigurationTypeError, match="handler is an async function"):
                    await loop()
    assert (shell.processing(queue), shell.pending(queue)) == (0, 2)


@pytest.mark.promise(
    "`run()` accepts plain and `async def` handlers in the async queue; in the sync queue an awaitable raises "
    "`TypeError`."
)
@sync_only
@side_by_side
async def test_a_handler_of_the_sync_queue_must_not_be_awaited(shell: Shell, concurrency: int) -> None:
    """Nothing of it has run: a TypeError ends the loop, and the message is left to its lease."""
    queue = await filled(shell, "ab")

    async def handle(message: Any) -> None:
        pytest.fail("ran")

    with pytest.raises(TypeError, match="awaitable"):
        loop = queue.run(lambda message: handle(message), concurrency=concurrency, prefetch=2)
        await asyncio.wait_for(loop, LIMIT_SECONDS)
    # With several workers each may have begun one.
    assert 1 <= shell.processing(queue) <= concurrency
    assert shell.processing(queue) + shell.pending(queue) == 2


# Concurrency


@pytest.mark.promise("`concurrency` is how many handlers run at the same time (default: one).")
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


@pytest.mark.promise("`concurrency` is how many handlers run at the same time (default: one).")
async def test_workers_work_at_the_same_time_without_prefetching(shell: Shell) -> None:
    """One claims while the others work."""
    queue, crossing = await filled(shell, words(3)), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=3, until_empty=True) as loop:
        await crossing.is_entered_by(3)
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (3, 0, 0)


@pytest.mark.promise("`concurrency` is how many handlers run at the same time (default: one).")
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


@pytest.mark.promise("`concurrency` is how many handlers run at the same time (default: one).")
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


@pytest.mark.promise("`run()` returns exactly how many messages were handled, failed and requeued.")
@pytest.mark.promise("Workers and loops share the messages, each message once.")
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


@pytest.mark.promise("Workers and loops share the messages, each message once.")
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


@pytest.mark.promise(
    "`run(until_empty=True)` also handles messages that its handlers publish, and leaves later retries for later."
)
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


# Invalid arguments


@pytest.mark.promise(
    "`run()` refuses options that cannot work, and a handler that is not callable, by name and before it claims."
)
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
async def test_invalid_options_of_a_loop_are_refused(shell: Shell, options: dict[str, Any], named: str) -> None:
    """By name, before anything is claimed."""
    queue = await filled(shell, "a")
    with pytest.raises(shell.module.ConfigurationError, match=rf"^{named} "):
        await queue.run(lambda message: queue.queue.drain(0), **options)
    assert shell.pending(queue) == 1


@pytest.mark.promise(
    "`run()` refuses options that cannot work, and a handler that is not callable, by name and before it claims."
)
@pytest.mark.parametrize("wrong", [None, "handler", 7], ids=repr)
async def test_a_handler_can_be_called(shell: Shell, wrong: Any) -> None:
    """Refused by name."""
    queue = await filled(shell, "a")
    with pytest.raises(TypeError, match=r"^handler ") as refusal:
        await queue.run(wrong)
    assert isinstance(refusal.value, RedisMessageQueueError)
    assert shell.pending(queue) == 1


@pytest.mark.promise("A queue with a custom gateway refuses `run()`.")
async def test_a_custom_gateway_refuses_to_run(shell: Shell) -> None:
    """It hands over one message at a time; nothing is claimed."""
    await filled(shell)
    queue = shell.queue(gateway=overriding(shell, "remove_message"))
    with pytest.raises(shell.module.GatewayContractError, match="batches"):
        await queue.run(lambda message: None)
    assert shell.pending(queue) == 4


# Events


@pytest.mark.promise("`run()` emits events and keeps records for each message.")
async def test_a_loop_reports_what_it_does(shell: Shell) -> None:
    """Claims, acks, what is requeued, and one empty claim where it found nothing."""
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
    assert all(event.duration_seconds is not None and event.duration_seconds >= 0 for event in events.of("ack"))


@pytest.mark.promise("`run()` emits events and keeps records for each message.")
async def test_each_handled_message_has_a_record(shell: Shell) -> None:
    """Many were acked together; each has its own record."""
    queue = await filled(shell, "abc", enable_completed_queue=True)
    await queue.run(lambda message: None, prefetch=3, until_empty=True)
    records = await queue.records("completed")
    assert [record.payload for record in records] == [b"c", b"b", b"a"]
    for record in records:
        assert (record.reason, record.delivery_count) == ("completed", 1)
        assert record.published_at <= record.claimed_at <= record.finished_at


@pytest.mark.promise("Records of messages that `run()` claimed separately and acked together have no claim time.")
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


@pytest.mark.promise("No event, error or log line contains a payload.")
async def test_events_of_a_loop_contain_no_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """In no event, error or log line: handled, failed, requeued, too late, not to be acknowledged."""
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
        with pytest.raises(redis.exceptions.ConnectionError) as uncertain:
            await queue.run(shell.handler(handle), prefetch=2, until_empty=True)
        client.losses.heal()
        refuse: Callable[[Any], None] = lambda messages: messages[-1]["no list"]  # noqa: E731  # raises
        assert (await queue.run(refuse, batch_size=1, until_empty=True)).requeued > 0
    told = {event.operation for event in events.all}
    assert {"ack", "failed", "nack", "stale_lease_ack", "cleanup_failed", "requeued"} <= told
    assert [event for event in events.all if secret in repr(event)] == []
    assert secret not in f"{uncertain.value!r} {uncertain.value} {uncertain.value.__cause__!r}"
    assert secret not in caplog.text
    assert caplog.records


@pytest.mark.promise(
    "A misspelt option of a constructor, of `run()`, of `rmq` or of Spark gets an error that names the nearest."
)
async def test_a_misspelt_option_of_a_loop_names_the_nearest(shell: Shell) -> None:
    """Before anything is claimed."""
    queue = await filled(shell, ["a"])
    with pytest.raises(ConfigurationTypeError, match=r"RedisMessageQueue.run has no option 'concurency'; did you mean"):
        await queue.run(lambda message: None, concurency=2)
    assert (await queue.stats()).pending == 1
