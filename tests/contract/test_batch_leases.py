"""One heartbeat keeps the leases of a whole batch."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from redis_message_queue import RetryPolicy
from tests.contract.batches import filled
from tests.contract.shells import (
    BEATING,
    LIMIT_SECONDS,
    Died,
    Sent,
    Shell,
    take_over,
    until,
)

pytestmark = [pytest.mark.topic("Batches"), pytest.mark.both_shells]


def helpers(shell: Shell) -> set[Any]:
    """The threads or tasks that there are."""
    return set(threading.enumerate()) if shell.name == "sync" else set(asyncio.all_tasks())


@pytest.mark.promise("One heartbeat renews the whole batch with one command per interval.")
async def test_one_heartbeat_renews_the_whole_batch(shell: Shell) -> None:
    """One command an interval for all of them, and no thread or task more than for one."""
    events = shell.events()
    queue = await filled(shell, "xabcd", on_event=events.listen, **BEATING)
    idle = helpers(shell)
    async with queue.process_messages(1):
        assert len(helpers(shell) - idle) == 1
        await events.wait_for("lease_renew")
    assert await until(lambda: helpers(shell) == idle)
    events.clear()
    async with queue.process_messages(4) as batch:
        await events.wait_for("lease_renew", 4)
        busy = helpers(shell) - idle  # a renewal under way may have one for a moment
        with Sent(shell.server) as sent:
            await events.wait_for("lease_renew", len(events.of("lease_renew")) + 8)
        assert len(busy & helpers(shell)) == 1
        assert {event.message_id for event in events.of("lease_renew")} == {message.id for message in batch}
        assert set(sent.commands) == {"EVALSHA"}
        assert len(sent.commands) <= len(events.of("lease_renew")) / 4 + 1
    assert len(events.of("ack")) == 4


@pytest.mark.promise("The heartbeat of a batch skips settled messages and reports no lost lease for them.")
async def test_a_heartbeat_leaves_out_what_is_settled(shell: Shell) -> None:
    """Nobody is told that a lease was lost which was not needed any more."""
    events, failures = shell.events(), []
    queue = await filled(
        shell,
        "abcd",
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: failures.append(1)),
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.002,
        retry_policy=RetryPolicy(initial_delay_seconds=60),
    )
    async with queue.process_messages(4) as batch:
        await events.wait_for("lease_renew", 4)
        await batch.ack(batch[0])
        await batch.fail(batch[1], ValueError())
        done = batch[2].complete()
        if shell.name == "asyncio":
            await done
        assert await until(lambda: {event.message_id for event in events.of("lease_renew")[-5:]} == {batch[3].id})
    assert failures == []
    assert "stale_lease_renew/skipped" not in events.names


@pytest.mark.promise("The heartbeat of a batch skips settled messages and reports no lost lease for them.")
async def test_settling_messages_one_by_one_loses_no_lease(shell: Shell) -> None:
    """A heartbeat may be under way while one is acked, failed or completed; it has nothing to say about that one."""
    events, failures = shell.events(), []
    queue = shell.queue(
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: failures.append(1)),
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.001,
    )
    await queue.publish_many([str(number) for number in range(150)])
    async with queue.process_messages(150) as batch:
        for number, message in enumerate(batch):
            if number % 3 == 0:
                await batch.ack(message)
            elif number % 3 == 1:
                await batch.fail(message, ValueError())
            elif shell.name == "asyncio":
                await message.complete()
            else:
                message.complete()
    assert failures == []
    assert "stale_lease_renew/skipped" not in events.names


@pytest.mark.promise(
    "A batch can lose the lease of one message: that message says so and cannot be acked, failed or requeued."
)
async def test_a_lost_lease_is_lost_for_one_message_of_a_batch(shell: Shell) -> None:
    """It says so, its ack comes too late, and the others are renewed and acked as ever."""
    events, failures = shell.events(), []
    queue = await filled(
        shell, on_event=events.listen, on_heartbeat_failure=shell.callback(lambda: failures.append(1)), **BEATING
    )
    async with queue.process_messages(4) as batch:
        await take_over(shell, batch[1])
        await events.wait_for("stale_lease_renew")
        assert await until(lambda: failures)
        assert [message.lease_lost for message in batch] == [False, True, False, False]
        renewed = len(events.of("lease_renew"))
        await events.wait_for("lease_renew", renewed + 6)
        assert batch[1].id not in {event.message_id for event in events.of("lease_renew")[renewed:]}
    assert failures == [1]
    assert events.the("stale_lease_renew").message_id == batch[1].id
    assert events.the("stale_lease_ack").message_id == batch[1].id
    assert {event.message_id for event in events.of("ack")} == {batch[0].id, batch[2].id, batch[3].id}
    assert shell.processing(queue) == 1


@pytest.mark.promise(
    "A batch can lose the lease of one message: that message says so and cannot be acked, failed or requeued."
)
async def test_a_message_with_a_lost_lease_can_neither_be_acked_nor_failed_nor_requeued(shell: Shell) -> None:
    """Each says False or nothing, and the second holder's message stays."""
    events = shell.events()
    queue = await filled(shell, "abc", on_event=events.listen, enable_completed_queue=True, enable_failed_queue=True)
    with pytest.raises(LookupError):
        async with queue.process_messages(3) as batch:
            for message in batch:
                await take_over(shell, message)
            events.clear()
            assert await batch.ack(batch[0]) is False
            assert await batch.fail(batch[1], ValueError()) is False
            raise LookupError
    assert events.names == [
        *("stale_lease_ack/skipped", "failed/failure", "stale_lease_nack/skipped", "stale_lease_nack/skipped"),
    ]
    assert (shell.pending(queue), shell.processing(queue)) == (0, 3)
    assert shell.listed(queue.key.completed) == shell.listed(queue.key.failed) == []


@pytest.mark.promise(
    "A batch can lose the lease of one message: that message says so and cannot be acked, failed or requeued."
)
async def test_a_lease_that_is_over_by_our_own_clock_is_lost_without_a_heartbeat(shell: Shell) -> None:
    """Nobody had to say so."""
    queue = await filled(shell, "ab", visibility_timeout_seconds=0.2)
    with contextlib.suppress(Died):
        async with queue.process_messages(2) as batch:
            assert await until(lambda: all(message.lease_lost for message in batch))
            raise Died


@pytest.mark.promise(
    "A batch that is not renewed, or exceeds `max_processing_seconds`, goes to other consumers, and its late acks are "
    "refused."
)
async def test_a_batch_that_takes_too_long_is_no_longer_renewed(shell: Shell) -> None:
    """After max_processing_seconds others get it; each message is told of once."""
    events = shell.events()
    queue = await filled(
        shell,
        "ab",
        on_event=events.listen,
        visibility_timeout_seconds=0.6,
        heartbeat_interval_seconds=0.1,
        max_processing_seconds=0.25,
    )
    other = shell.queue()
    async with queue.process_messages(2) as batch:
        async with other.process_messages(2, wait_seconds=LIMIT_SECONDS) as taken_over:
            assert len(taken_over) >= 1
        assert await until(lambda: all(message.lease_lost for message in batch))
    skipped = [event.message_id for event in events.of("lease_renew") if event.outcome == "skipped"]
    assert skipped == [message.id for message in batch]
    assert "stale_lease_ack/skipped" in events.names
