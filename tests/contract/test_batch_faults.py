"""A batch loses no message when a reply is lost, an ack fails or its task is cancelled."""

import asyncio
from typing import Any

import pytest
import redis

from tests.contract.batches import filled, look, payloads
from tests.contract.shells import (
    BEATING,
    LIMIT_SECONDS,
    Shell,
    Wiring,
    asyncio_only,
)

pytestmark = [pytest.mark.topic("Batches"), pytest.mark.both_shells]


# Failing connections


@pytest.mark.promise(
    "A batch whose reply was lost is recovered by the same call, the next call or a drain, as its first delivery."
)
async def test_a_claim_of_many_whose_reply_was_lost_is_found_again(shell: Shell) -> None:
    """By the same call where there is a budget: the same messages in their first delivery."""
    client = shell.lossy_client()
    queue = await filled(shell, client=client)
    client.losses.reply(2)
    async with queue.process_messages(3) as batch:
        assert [(message.payload, message.delivery_count) for message in batch] == [("a", 1), ("b", 1), ("c", 1)]
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


@pytest.mark.promise(
    "A batch whose reply was lost is recovered by the same call, the next call or a drain, as its first delivery."
)
@pytest.mark.parametrize("lease", [300, None])
@pytest.mark.parametrize("count", [2, 3, 5])
async def test_a_batch_that_ran_out_of_retries_is_recovered_by_the_next(shell: Shell, lease: Any, count: int) -> None:
    """A smaller claim gets the first messages; the others are back at the front, not delivered yet."""
    events = shell.events()
    client = shell.lossy_client()
    queue = await filled(
        shell,
        "abcde",
        client=client,
        retry_budget_seconds=0,
        on_event=events.listen,
        visibility_timeout_seconds=lease,
    )
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        async with queue.process_messages(3):
            pytest.fail("nobody saw the answer")
    assert (shell.pending(queue), shell.processing(queue)) == (2, 3)
    events.clear()
    async with queue.process_messages(count) as batch:
        assert [(message.payload, message.delivery_count) for message in batch] == [
            (letter, 1) for letter in "abc"[:count]
        ]
    assert events.names[: 2 * min(count, 3)] == ["claim_reclaim/success", "claim/success"] * min(count, 3)
    async with queue.process_messages(5) as batch:
        assert [(message.payload, message.delivery_count) for message in batch] == [
            (letter, 1) for letter in "abcde"[min(count, 3) :]
        ]


@pytest.mark.promise(
    "A batch whose reply was lost is recovered by the same call, the next call or a drain, as its first delivery."
)
async def test_a_drain_requeues_an_unconfirmed_batch(shell: Shell) -> None:
    """To the front, in its order, and not as a delivery."""
    client = shell.lossy_client()
    queue = await filled(shell, "abcd", client=client, retry_budget_seconds=0)
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        async with queue.process_messages(3):
            pytest.fail("nobody saw the answer")
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert await look(shell.queue()) == [(letter, 1) for letter in "abcd"]


@pytest.mark.promise("An ack or requeue of a batch that is retried after a lost reply takes effect once.")
async def test_an_ack_whose_reply_was_lost_is_an_ack(shell: Shell) -> None:
    """All of the batch, kept once."""
    client = shell.lossy_client()
    queue = await filled(shell, client=client, enable_completed_queue=True)
    async with queue.process_messages(4):
        client.losses.reply(2)
    assert shell.listed(queue.key.completed) == [b"d", b"c", b"b", b"a"]


@pytest.mark.promise("An ack or requeue of a batch that is retried after a lost reply takes effect once.")
async def test_a_requeue_whose_reply_was_lost_takes_effect_once(shell: Shell) -> None:
    """Each message is back once, with one delivery more."""
    client = shell.lossy_client()
    queue = await filled(shell, client=client)
    with pytest.raises(LookupError):
        async with queue.process_messages(4):
            client.losses.reply(2)
            raise LookupError
    assert await look(shell.queue()) == [(letter, 2) for letter in "abcd"]


@pytest.mark.promise(
    "An ack of a batch that cannot be sent raises `CleanupFailedError`, unless the block has raised its own error."
)
async def test_an_ack_that_cannot_be_sent_is_a_failed_cleanup(shell: Shell) -> None:
    """Of the whole batch: the error says so, each message is told of, and all are still there."""
    events, client = shell.events(), shell.lossy_client()
    queue = await filled(shell, "ab", client=client, retry_budget_seconds=0, on_event=events.listen)
    with pytest.raises(shell.module.CleanupFailedError) as failure:
        async with queue.process_messages(2) as batch:
            client.losses.request()
    assert isinstance(failure.value.__cause__, redis.exceptions.ConnectionError)
    assert (failure.value.queue, failure.value.operation, failure.value.message_id) == ("q", "ack", batch[0].id)
    assert [event.message_id for event in events.of("cleanup_failed")] == [message.id for message in batch]
    assert shell.processing(queue) == 2


@pytest.mark.promise(
    "An ack of a batch that cannot be sent raises `CleanupFailedError`, unless the block has raised its own error."
)
@pytest.mark.promise("If the ack of a message in a batch fails, you can ack it again; leaving the block does it too.")
async def test_an_ack_of_one_message_that_cannot_be_sent_says_so(shell: Shell) -> None:
    """The block goes on with the others, and acknowledges this one with them when it is left."""
    client = shell.lossy_client()
    queue = await filled(shell, "ab", client=client, retry_budget_seconds=0, enable_completed_queue=True)
    async with queue.process_messages(2) as batch:
        client.losses.request()
        with pytest.raises(shell.module.CleanupFailedError, match="leave the block") as failure:
            await batch.ack(batch[0])
        assert failure.value.message_id == batch[0].id
        assert shell.processing(queue) == 2
    assert shell.processing(queue) == 0
    assert sorted(shell.listed(queue.key.completed)) == [b"a", b"b"]


@pytest.mark.promise("If the ack of a message in a batch fails, you can ack it again; leaving the block does it too.")
@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_an_ack_that_failed_can_be_repeated(shell: Shell, lost: str) -> None:
    """As often as need be; also where the first one was done and only its answer was lost, it counts once."""
    events, client = shell.events(), shell.lossy_client()
    options = {"client": client, "retry_budget_seconds": 0, "enable_completed_queue": True}
    queue = await filled(shell, "abc", on_event=events.listen, **options)
    async with queue.process_messages(3) as batch:
        getattr(client.losses, lost)(2)
        for _ in range(2):
            with pytest.raises(shell.module.CleanupFailedError):
                await batch.ack(batch[1])
        assert await batch.ack(batch[1]) is True
        with pytest.raises(shell.module.ConfigurationError, match="settled already"):
            await batch.ack(batch[1])
        getattr(client.losses, lost)()
        with pytest.raises(shell.module.CleanupFailedError):
            await batch.ack(batch[0])
    assert shell.processing(queue) == 0
    assert sorted(shell.listed(queue.key.completed)) == [b"a", b"b", b"c"]
    assert sorted(str(event.message_id) for event in events.of("ack")) == sorted(message.id for message in batch)
    assert events.of("stale_lease_ack") == []


@pytest.mark.promise("If the ack of a message in a batch fails, you can ack it again; leaving the block does it too.")
async def test_a_message_whose_ack_failed_is_requeued_in_its_place(shell: Shell) -> None:
    """It is not settled, so an exception gives it back with the others, in their order."""
    client = shell.lossy_client()
    queue = await filled(shell, "abc", client=client, retry_budget_seconds=0)
    with pytest.raises(shell.module.CleanupFailedError):
        async with queue.process_messages(3) as batch:
            client.losses.request()
            await batch.ack(batch[1])
    assert await look(shell.queue()) == [(letter, 2) for letter in "abc"]


@pytest.mark.promise("If the ack of a message in a batch fails, you can ack it again; leaving the block does it too.")
async def test_a_message_whose_ack_failed_is_renewed_again(shell: Shell) -> None:
    """The heartbeat goes on, even if there was nothing else to renew while the ack was tried."""
    events, client = shell.events(), shell.lossy_client()
    queue = await filled(shell, "a", client=client, retry_budget_seconds=0.5, on_event=events.listen, **BEATING)
    async with queue.process_messages(1) as batch:
        await events.wait_for("lease_renew")
        client.losses.request(1_000_000, only="settle")
        with pytest.raises(shell.module.CleanupFailedError):
            await batch.ack(batch[0])
        client.losses.heal()
        events.clear()
        await events.wait_for("lease_renew", 2)
        assert await batch.ack(batch[0]) is True
    assert shell.processing(queue) == 0


@pytest.mark.promise(
    "An ack of a batch that cannot be sent raises `CleanupFailedError`, unless the block has raised its own error."
)
async def test_the_blocks_error_is_what_the_caller_sees_even_if_giving_back_fails(shell: Shell) -> None:
    """The trouble is told message by message; the leases bring them back."""
    events, client = shell.events(), shell.lossy_client()
    queue = await filled(shell, "ab", client=client, retry_budget_seconds=0, on_event=events.listen)
    with pytest.raises(LookupError, match="mine"):
        async with queue.process_messages(2):
            client.losses.request()
            raise LookupError("mine")
    assert len(events.of("cleanup_failed")) == 2
    assert shell.processing(queue) == 2


@pytest.mark.promise(
    "A batch dead-letters messages that are over their limit, malformed or cannot be decoded, and contains the others."
)
async def test_a_batch_dead_letters_messages_over_their_limit_and_delivers_the_rest(shell: Shell) -> None:
    """Foreign bytes and messages over their limit are stepped over, however they lie among the others."""
    events = shell.events()
    queue = await filled(shell, "ab", max_delivery_count=1, on_event=events.listen)
    assert await look(queue, 1) == [("a", 1)]
    shell.lapse(queue)
    shell.redis.rpush(queue.key.pending, b"foreign")
    await queue.publish("c")
    async with queue.process_messages(5) as batch:
        assert payloads(batch) == ["b", "c"]
    assert sorted(shell.listed(queue.key.dead_letter)) == [b"a", b"foreign"]
    assert len(events.of("dlq")) == 2


@pytest.mark.promise(
    "A batch dead-letters messages that are over their limit, malformed or cannot be decoded, and contains the others."
)
@pytest.mark.parametrize("wiring", [Wiring(decode_responses=True)], ids=str)
async def test_what_cannot_be_decoded_leaves_the_batch_for_the_dead_letters(shell: Shell, wiring: Wiring) -> None:
    """The others are in hand, in their order."""
    queue = await filled(shell, "abc")
    stored = shell.redis.lindex(queue.key.pending, 1)
    shell.redis.lset(queue.key.pending, 1, stored[:-1] + b"\xff")
    async with queue.process_messages(5) as batch:
        assert payloads(batch) == ["a", "c"]
    assert shell.listed(queue.key.dead_letter) == [b"\xff"]
    assert shell.processing(queue) == 0


@pytest.mark.promise("A key of the wrong type makes the claim of a batch fail, and nothing is lost.")
async def test_a_wrong_typed_key_fails_the_claim_and_loses_nothing(shell: Shell) -> None:
    """Fail closed: the messages are still in the queue when the key is repaired."""
    queue = await filled(shell)
    shell.redis.set(queue.key.processing, "not a hash")
    with pytest.raises(shell.module.LuaScriptError):
        async with queue.process_messages(4):
            pytest.fail("was entered")
    shell.redis.delete(queue.key.processing)
    assert await look(queue) == [(letter, 1) for letter in "abcd"]


@pytest.mark.promise("Batches work without leases; then only a crash leaves messages in `processing`.")
async def test_at_most_once_works_in_batches_too(shell: Shell) -> None:
    """Without leases: taken, acked, and requeued by an exception; a sudden end leaves orphans."""
    queue = await filled(shell, visibility_timeout_seconds=None)
    with pytest.raises(LookupError):
        async with queue.process_messages(4):
            raise LookupError
    async with queue.process_messages(2) as batch:
        assert payloads(batch) == ["a", "b"]
    assert await look(queue) == [("c", 2), ("d", 2)]
    assert shell.processing(queue) == 2
    assert shell.redis.exists(queue.key.leases) == 0


# Cancellation


@pytest.mark.promise("A cancellation waits for the running ack or requeue of a batch.")
@asyncio_only
async def test_a_cancellation_during_the_ack_waits_for_it(shell: Shell) -> None:
    """The messages are acked, and then the task ends as cancelled."""
    queue = await filled(shell, enable_completed_queue=True)

    async def consume() -> None:
        async with queue.process_messages(4):
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)

    consuming = asyncio.ensure_future(consume())
    await asyncio.wait({consuming})
    assert consuming.cancelled()
    assert len(shell.listed(queue.key.completed)) == 4


@pytest.mark.promise("A cancellation waits for the running ack or requeue of a batch.")
@asyncio_only
async def test_a_cancellation_during_an_ack_of_one_waits_for_it_and_leaves_the_rest(shell: Shell) -> None:
    """That one is acked; the block ends as cancelled, and keeps its hands off the others."""
    queue = await filled(shell, enable_completed_queue=True)

    async def consume() -> None:
        async with queue.process_messages(4) as batch:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            await batch.ack(batch[0])
            pytest.fail("the cancellation was swallowed")

    consuming = asyncio.ensure_future(consume())
    await asyncio.wait({consuming})
    assert consuming.cancelled()
    assert shell.listed(queue.key.completed) == [b"a"]
    assert shell.processing(queue) == 3


@pytest.mark.promise("A cancellation waits for the running ack or requeue of a batch.")
@asyncio_only
async def test_a_cancellation_while_giving_back_is_in_the_chain_of_the_blocks_error(shell: Shell) -> None:
    """All are requeued, and the error that comes out is the block's own."""
    queue = await filled(shell)

    async def consume() -> None:
        async with queue.process_messages(4):
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            raise LookupError("mine")

    consuming = asyncio.ensure_future(consume())
    await asyncio.wait({consuming})
    error = consuming.exception()
    assert isinstance(error, LookupError)
    assert isinstance(error.__context__, asyncio.CancelledError)
    assert await look(queue) == [(letter, 2) for letter in "abcd"]
