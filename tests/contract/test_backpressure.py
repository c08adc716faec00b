"""A queue with a limit never exceeds it, and follows its overload policy when it is full."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from redis_message_queue import EventDrivenInterruptHandler
from tests.contract.shells import LIMIT_SECONDS, Shell, claim_and_die, take
from tests.tables import row

pytestmark = [pytest.mark.topic("Backpressure"), pytest.mark.every_server]


@pytest.mark.promise(
    "With the `raise` policy, a publish to a full queue raises `QueueBackpressureError` and changes nothing."
)
async def test_a_full_queue_raises_and_stays_as_it_is(shell: Shell) -> None:
    """The default policy; the error knows its queue and operation, and claiming makes room again."""
    events = shell.events()
    queue = shell.queue(max_pending_length=2, on_event=events.listen)
    await queue.publish("a")
    await queue.publish("b")
    before = shell.listed(queue.key.pending)
    with pytest.raises(shell.module.QueueBackpressureError, match="2") as full:
        await queue.publish("c")
    assert shell.listed(queue.key.pending) == before
    assert (full.value.queue, full.value.operation) == ("q", "publish")
    assert full.value.message_id == events.all[-1].message_id
    assert events.names == ["publish/success", "publish/success", "publish/failure"]
    assert events.all[-1].error is full.value
    assert await take(queue) == b"a"
    assert await queue.publish("c") is True


@pytest.mark.promise("The limit counts pending messages; messages in processing and redelivered messages need no room.")
async def test_messages_in_processing_take_no_room(shell: Shell) -> None:
    """The limit is on what waits."""
    queue = shell.queue(max_pending_length=1)
    for number in range(3):
        await queue.publish(str(number))
        await claim_and_die(queue)
    assert (shell.pending(queue), shell.processing(queue)) == (0, 3)


@pytest.mark.promise("The limit counts pending messages; messages in processing and redelivered messages need no room.")
async def test_what_comes_back_needs_no_room(shell: Shell) -> None:
    """A message whose lease ran out is delivered from a full queue, too; it does not count among those that wait."""
    queue = shell.queue(wait=0, max_pending_length=1)
    await queue.publish("a")
    await claim_and_die(queue)
    await queue.publish("b")
    shell.lapse(queue)
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("c")
    assert [await take(queue), await take(queue), await take(queue)] == [b"a", b"b", None]


@pytest.mark.promise("By default the number of pending messages is unlimited.")
async def test_without_a_limit_nothing_is_full(shell: Shell) -> None:
    """The default."""
    queue = shell.queue()
    assert all([await queue.publish(str(number)) for number in range(100)])


@pytest.mark.promise("With `gateway=`, the gateway's limit applies.")
async def test_a_gateway_carries_the_limit_for_its_queue(shell: Shell) -> None:
    """Where a queue is made with gateway=, that is where the limit is set."""
    queue = shell.queue(gateway=shell.gateway(max_pending_length=1))
    await queue.publish("a")
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("b")


@pytest.mark.promise("Checking the limit and publishing is atomic: concurrent producers never exceed the limit.")
async def test_concurrent_publishers_fill_the_queue_to_its_limit_and_not_beyond(shell: Shell) -> None:
    """Look and push are one script: of 80 attempts exactly 5 get in."""
    queue = shell.queue(max_pending_length=5)

    async def publisher() -> int:
        accepted = 0
        for _ in range(10):
            with contextlib.suppress(shell.module.QueueBackpressureError):
                accepted += await queue.publish("m")
            await asyncio.sleep(0)
        return accepted

    assert sum(await asyncio.gather(*[shell.beside(publisher) for _ in range(8)])) == 5
    assert shell.pending(queue) == 5


# block


def blocking(shell: Shell, seconds: float, **options: Any) -> Any:
    return shell.queue(
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=seconds,
        **options,
    )


@pytest.mark.promise(
    "`block` waits for room for up to `pending_overload_block_timeout_seconds` (default: one second) and then raises."
)
async def test_a_blocked_publisher_goes_on_when_room_opens(shell: Shell) -> None:
    """Long before its own time limit."""
    queue = blocking(shell, 5 * LIMIT_SECONDS)
    await queue.publish("a")

    async def publisher() -> tuple[bool, float]:
        started = time.monotonic()
        return await queue.publish("b"), time.monotonic() - started

    waiting = shell.beside(publisher)
    await asyncio.sleep(0.2)
    assert shell.pending(queue) == 1
    assert await take(queue) == b"a"
    accepted, waited = await waiting
    assert accepted is True
    assert 0.1 < waited < LIMIT_SECONDS
    assert await take(queue) == b"b"


@pytest.mark.promise(
    "`block` waits for room for up to `pending_overload_block_timeout_seconds` (default: one second) and then raises."
)
async def test_a_blocked_publisher_gives_up_when_its_time_is_over(shell: Shell) -> None:
    """It has waited all of it, and nothing was published."""
    queue = blocking(shell, 0.3)
    await queue.publish("a")
    started = time.monotonic()
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("b")
    assert 0.3 <= time.monotonic() - started < LIMIT_SECONDS
    assert shell.pending(queue) == 1


@pytest.mark.promise("An interrupt ends a blocked publish promptly with `QueueBackpressureError`.")
async def test_an_interrupt_releases_a_blocked_publisher_promptly(shell: Shell) -> None:
    """Shutdown does not wait for the block timeout."""
    stop = threading.Event()
    queue = blocking(shell, 5 * LIMIT_SECONDS, interrupt=EventDrivenInterruptHandler(stop))
    await queue.publish("a")
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    started = time.monotonic()
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("b")
    timer.join()
    assert 0.1 < time.monotonic() - started < LIMIT_SECONDS
    assert shell.pending(queue) == 1


@pytest.mark.promise("An interrupted queue still publishes while there is room.")
async def test_an_interrupted_queue_still_publishes_while_there_is_room(shell: Shell) -> None:
    """Only the waiting is given up: a handler that finishes its work may publish its results."""
    stop = threading.Event()
    stop.set()
    queue = blocking(shell, 5 * LIMIT_SECONDS, interrupt=EventDrivenInterruptHandler(stop))
    assert await queue.publish("a") is True
    started = time.monotonic()
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("b")
    assert time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise("Checking the limit and publishing is atomic: concurrent producers never exceed the limit.")
async def test_blocked_publishers_never_exceed_the_limit(shell: Shell) -> None:
    """Eight publishers, one consumer, a limit of three: all get in, and never four wait."""
    queue = shell.queue(
        max_pending_length=3,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=5 * LIMIT_SECONDS,
        wait=LIMIT_SECONDS,
    )

    async def publisher() -> None:
        for _ in range(3):
            assert await queue.publish("m") is True

    publishers = [shell.beside(publisher) for _ in range(8)]
    longest = 0
    for _ in range(24):
        longest = max(longest, shell.pending(queue))
        assert await take(queue) == b"m"
    await asyncio.gather(*publishers)
    assert longest <= 3
    assert shell.pending(queue) == 0


@pytest.mark.promise("Transient errors while `block` waits are retried within its timeout and do not extend it.")
async def test_the_block_timeout_bounds_a_publish_that_cannot_reach_redis(shell: Shell, dead_port: int) -> None:
    """Transient errors are retried inside the same window and do not extend it, however large the retry budget."""
    queue = blocking(shell, 0.3, client=shell.dead_client(dead_port), retry_budget_seconds=600)
    started = time.monotonic()
    with pytest.raises(shell.module.RedisMessageQueueError):
        await queue.publish("a")
    assert time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise("Retries of operations other than claims emit no event.")
async def test_a_blocked_publish_is_one_publish(shell: Shell) -> None:
    """One event at its end, however often it asked."""
    events = shell.events()
    queue = blocking(shell, 0.2, on_event=events.listen)
    await queue.publish("a")
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("b")
    assert events.names == ["publish/success", "publish/failure"]


# drop_oldest


def dropping(shell: Shell, limit: int, **options: Any) -> Any:
    return shell.queue(
        max_pending_length=limit, pending_overload_policy="drop_oldest", max_delivery_count=None, **options
    )


@pytest.mark.promise("`drop_oldest` removes the oldest pending message and returns `True`.")
async def test_the_oldest_message_makes_room_for_the_newest(shell: Shell) -> None:
    """publish() says True, and what is left is the end of the line."""
    queue = dropping(shell, 2)
    assert [await queue.publish(text) for text in "abcd"] == [True] * 4
    assert [await take(queue), await take(queue)] == [b"c", b"d"]
    assert shell.pending(queue) == 0


@pytest.mark.promise("Backpressure never drops a message that is being processed.")
async def test_what_is_in_processing_is_not_dropped(shell: Shell) -> None:
    """Room is made in the line alone: a handler keeps its message, and its end counts."""
    queue = dropping(shell, 1, enable_completed_queue=True)
    await queue.publish("in hand")
    async with queue.process_message():
        await queue.publish("dropped")
        await queue.publish("stays")
    assert shell.listed(queue.key.completed) == [b"in hand"]
    assert await take(queue) == b"stays"


@pytest.mark.promise("`drop_oldest` removes the oldest pending message and returns `True`.")
@pytest.mark.promise("`drop_oldest` emits an event for each message that it drops.")
async def test_a_dropped_message_has_an_event_of_its_own(shell: Shell) -> None:
    """It names the message that went; the publish that pushed it out succeeded."""
    events = shell.events()
    queue = dropping(shell, 1, on_event=events.listen)
    await queue.publish("a")
    await queue.publish("b")
    first, dropped, second = events.all
    assert events.names == ["publish/success", "dropped/success", "publish/success"]
    assert dropped.message_id == first.message_id != second.message_id


@pytest.mark.promise("`drop_oldest` emits an event for each message that it drops.")
async def test_a_lowered_limit_drops_as_many_as_it_must(shell: Shell) -> None:
    """Each of them is told."""
    events = shell.events()
    before = shell.queue(on_event=events.listen)
    for number in range(5):
        await before.publish(str(number))
    oldest = [event.message_id for event in events.all[:4]]
    events.clear()
    queue = dropping(shell, 2, on_event=events.listen)
    await queue.publish("new")
    assert [event.message_id for event in events.of("dropped")] == oldest
    assert [await take(queue), await take(queue)] == [b"4", b"new"]


@pytest.mark.promise("One publish drops at most 1,000 messages and about 4 MB; the next ones drop the rest.")
@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_one_publish_drops_a_few_megabytes_at_most(shell: Shell, tenant: str | None) -> None:
    """A lowered limit is reached step by step, so that no script copies everything; the figures stay right."""
    large, events = "x" * 1_000_000, shell.events()
    before = shell.queue()
    for _ in range(12):
        await before.publish(large, tenant=tenant)
    queue = dropping(shell, 1, wait=0, on_event=events.listen)
    dropped = []
    for text in "abcd":
        events.clear()
        await queue.publish(text, tenant=tenant)
        dropped.append(len(events.of("dropped")))
        assert (await queue.stats()).pending == 12 + len(dropped) - sum(dropped)
    assert dropped == [4, 4, 4, 3]
    assert await take(queue) == b"d"
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


# What cannot be asked for


@pytest.mark.promise("`block` and `drop_oldest` require a limit.")
@pytest.mark.promise("`drop_oldest` requires `max_delivery_count=None`; you can combine it with at-most-once delivery.")
@pytest.mark.promise("You cannot combine `drop_oldest` with deduplication, whether on the queue or on the gateway.")
async def test_policies_that_could_not_be_kept_are_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """At construction, with the policy and what stands against it in the text."""
    cases: list[Any] = [
        ({"pending_overload_policy": "block"}, "max_pending_length"),
        ({"pending_overload_policy": "drop_oldest", "max_delivery_count": None}, "max_pending_length"),
        ({"pending_overload_policy": "drop_oldest", "max_pending_length": 5}, "max_delivery_count"),
        (
            {"pending_overload_policy": "drop_oldest", "max_pending_length": 5, "max_delivery_count": 3},
            "max_delivery_count",
        ),
        (
            {
                "pending_overload_policy": "drop_oldest",
                "max_pending_length": 5,
                "max_delivery_count": None,
                "deduplication": True,
            },
            "deduplication",
        ),
        ({"pending_overload_policy": "drop", "max_pending_length": 5}, "pending_overload_policy"),
        ({"pending_overload_policy": "", "max_pending_length": 5}, "pending_overload_policy"),
    ]
    for options, named in cases:
        with row(subtests, options=options, named=named):
            with pytest.raises(shell.module.ConfigurationError, match=named) as refusal:
                shell.queue(**options)
            assert "pending_overload_policy" in str(refusal.value)


@pytest.mark.promise("`block` and `drop_oldest` require a limit.")
@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
async def test_a_gateway_refuses_a_policy_without_a_limit(shell: Shell, policy: Any) -> None:
    """The same rule at the gateway's own door."""
    with pytest.raises(shell.module.ConfigurationError, match="max_pending_length"):
        shell.gateway(pending_overload_policy=policy)


@pytest.mark.promise("You cannot combine `drop_oldest` with deduplication, whether on the queue or on the gateway.")
async def test_a_dropping_gateway_is_refused_by_a_queue_with_deduplication(shell: Shell) -> None:
    """The combination is found although the two halves are set in two places."""
    gateway = shell.gateway(max_pending_length=5, pending_overload_policy="drop_oldest")
    with pytest.raises(shell.module.ConfigurationError, match="deduplication"):
        shell.queue(gateway=gateway, deduplication=True)


@pytest.mark.promise("`drop_oldest` requires `max_delivery_count=None`; you can combine it with at-most-once delivery.")
async def test_drop_oldest_can_be_combined_with_at_most_once(shell: Shell) -> None:
    """Without a visibility timeout the defaulted delivery limit is inert, so nothing forbids dropping."""
    queue = shell.queue(visibility_timeout_seconds=None, max_pending_length=1, pending_overload_policy="drop_oldest")
    await queue.publish("a")
    assert await queue.publish("b") is True
