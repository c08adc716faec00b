"""Messages of a batch are settled together or one by one, and requeued if the block raises."""

import asyncio
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueueError, RetryPolicy
from tests.contract.batches import filled, look, payloads
from tests.contract.shells import (
    BEATING,
    Died,
    Sent,
    Shell,
    asyncio_only,
    sync_only,
)
from tests.tables import row

pytestmark = [pytest.mark.topic("Batches"), pytest.mark.both_shells]


# Leaving the block


@pytest.mark.promise(
    "If the block of a batch raises, its unsettled messages return to the front in order, and the exception reaches "
    "the caller."
)
async def test_an_exception_requeues_the_rest_at_the_front_in_order(shell: Shell) -> None:
    """Before what nobody has claimed; the error comes out as it is, and the delivery counts."""
    queue = await filled(shell, "abcdef")
    with pytest.raises(LookupError, match="mine"):
        async with queue.process_messages(4):
            raise LookupError("mine")
    assert shell.processing(queue) == 0
    assert await look(queue) == [("a", 2), ("b", 2), ("c", 2), ("d", 2), ("e", 1), ("f", 1)]


@pytest.mark.promise(
    "If the block of a batch raises, its unsettled messages return to the front in order, and the exception reaches "
    "the caller."
)
async def test_messages_settled_before_the_exception_are_not_requeued(shell: Shell) -> None:
    """Acked is acked and failed is failed; the others keep their order."""
    queue = await filled(shell, "abcde", enable_completed_queue=True, enable_failed_queue=True)
    with pytest.raises(LookupError):
        async with queue.process_messages(5) as batch:
            await batch.ack(batch[1])
            await batch.fail(batch[3], ValueError("bad"))
            raise LookupError
    assert shell.listed(queue.key.completed) == [b"b"]
    assert shell.listed(queue.key.failed) == [b"d"]
    assert await look(queue) == [("a", 2), ("c", 2), ("e", 2)]


@pytest.mark.promise("A requeued batch returns to the front of each tenant queue.")
async def test_an_exception_requeues_each_message_to_its_tenant(shell: Shell) -> None:
    """Each to the front of its own line, in its order; those without a tenant, too."""
    queue = shell.queue(wait=0)
    for tenant in ("a", "b", None):
        await queue.publish_many([f"{tenant}{number}" for number in range(4)], tenant=tenant)
    with pytest.raises(LookupError):
        async with queue.process_messages(7) as batch:
            claimed = payloads(batch)
            raise LookupError
    assert (await queue.stats()).pending == 12
    async with queue.process_messages(12) as batch:
        after = [(message.tenant, message.payload.decode(), message.delivery_count) for message in batch]
    for tenant in ("a", "b", None):
        names = [f"{tenant}{number}" for number in range(4)]
        assert [(name, count) for whose, name, count in after if whose == tenant] == [
            (name, 2 if name in claimed else 1) for name in names
        ]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "A batch that raises counts as a delivery, so one that always raises ends in the dead-letter queue."
)
async def test_a_batch_that_raises_again_and_again_ends_among_the_dead_letters(shell: Shell) -> None:
    """Leaving by an exception counts as a delivery: one of the messages may be the poison."""
    queue = await filled(shell, "ab", max_delivery_count=3)
    for _ in range(3):
        with pytest.raises(LookupError):
            async with queue.process_messages(2) as batch:
                assert payloads(batch) == ["a", "b"]
                raise LookupError
    assert await look(queue) == []
    assert shell.listed(queue.key.dead_letter) == [b"b", b"a"]


@pytest.mark.promise(
    "A batch that ends with a cancellation or another non-`Exception` leaves its unsettled messages to their leases."
)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Died, asyncio.CancelledError])
async def test_a_base_exception_leaves_the_batch_to_its_leases(shell: Shell, kind: type[BaseException]) -> None:
    """Nothing is acked, failed or requeued: the leases bring the rest again, in its order."""
    events = shell.events()
    queue = await filled(shell, on_event=events.listen, **BEATING)
    with pytest.raises(kind):
        async with queue.process_messages(4) as batch:
            await batch.ack(batch[0])
            events.clear()
            raise kind
    assert (shell.pending(queue), shell.processing(queue)) == (0, 3)
    assert {event.operation for event in events.all} <= {"lease_renew"}
    shell.lapse(queue)
    assert await look(queue) == [("b", 2), ("c", 2), ("d", 2)]


@pytest.mark.promise(
    "A batch that ends with a cancellation or another non-`Exception` leaves its unsettled messages to their leases."
)
@sync_only
async def test_a_closed_generator_leaves_the_batch_to_its_leases(shell: Shell) -> None:
    """The consumer of the messages went away: they come again when their leases are over."""
    queue = (await filled(shell)).queue

    def messages() -> Any:
        with queue.process_messages(4) as batch:
            yield from batch

    generator = messages()
    assert next(generator).payload == b"a"
    generator.close()
    assert shell.redis.hlen(queue.key.processing) == 4


@pytest.mark.promise(
    "A batch that ends with a cancellation or another non-`Exception` leaves its unsettled messages to their leases."
)
@asyncio_only
async def test_a_closed_async_generator_leaves_the_batch_to_its_leases(shell: Shell) -> None:
    """The same for asyncio, also where a heartbeat has to be stopped."""
    queue = await filled(shell, **BEATING)

    async def messages() -> Any:
        async with queue.process_messages(4) as batch:
            for message in batch:
                yield message

    generator = messages()
    assert (await anext(generator)).payload == b"a"
    await generator.aclose()
    assert shell.processing(queue) == 4


@pytest.mark.promise("The result of `process_messages()` can be entered once.")
async def test_a_context_is_for_one_block(shell: Shell) -> None:
    """A second one would claim behind the back of the first."""
    queue = await filled(shell)
    context = queue.process_messages(2)
    async with context:
        pass
    with pytest.raises(RuntimeError, match="process_messages"):
        async with context:
            pytest.fail("was entered again")
    assert shell.pending(queue) == 2


# Settling one message


@pytest.mark.promise(
    "`batch.ack(message)` settles one message immediately; leaving the block acks the rest in one round trip, if any."
)
async def test_ack_settles_one_message_now(shell: Shell) -> None:
    """While the block goes on; the rest follows in one round trip."""
    queue = await filled(shell, enable_completed_queue=True)
    async with queue.process_messages(4) as batch:
        assert await batch.ack(batch[2]) is True
        assert shell.listed(queue.key.completed) == [b"c"]
        assert shell.processing(queue) == 3
        with Sent(shell.server) as sent:
            assert await batch.ack(batch[0]) is True
        assert sent.commands == ["EVALSHA"]
        leaving = Sent(shell.server).__enter__()
    leaving.__exit__(None, None, None)
    assert leaving.commands == ["EVALSHA"]
    assert shell.listed(queue.key.completed) == [b"d", b"b", b"a", b"c"]


@pytest.mark.promise(
    "`batch.ack(message)` settles one message immediately; leaving the block acks the rest in one round trip, if any."
)
async def test_a_batch_that_is_settled_one_by_one_has_nothing_left_to_ack(shell: Shell) -> None:
    """Leaving sends nothing more."""
    queue = await filled(shell, "ab")
    async with queue.process_messages(2) as batch:
        for message in batch:
            await batch.ack(message)
        sent = Sent(shell.server).__enter__()
    sent.__exit__(None, None, None)
    assert sent.commands == []
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "`batch.fail(message, error)` fails one message under its retry policy; the other messages are acked."
)
async def test_fail_takes_the_failure_path_of_one_message(shell: Shell) -> None:
    """Kept as failed with its record; the block goes on, and the others are acked."""
    events = shell.events()
    queue = await filled(shell, "abc", enable_completed_queue=True, enable_failed_queue=True, on_event=events.listen)
    events.clear()
    async with queue.process_messages(3) as batch:
        assert await batch.fail(batch[1], ValueError("no address")) is True
    assert shell.listed(queue.key.failed) == [b"b"]
    assert shell.listed(queue.key.completed) == [b"c", b"a"]
    (record,) = await queue.records("failed")
    assert (record.payload, record.reason, record.error_type, record.error, record.delivery_count) == (
        *(b"b", "failed", "ValueError", "no address"),
        1,
    )
    assert record.id == events.the("nack").message_id
    told = [name for name in events.names if not name.startswith("claim/")]
    assert told == ["failed/failure", "nack/success", *["ack/success", "completed/success"] * 2]


@pytest.mark.promise("Each message of a batch has its own record, and the completed list keeps its limit.")
async def test_completed_messages_have_records(shell: Shell) -> None:
    """Each its own: id, tenant, counts and times."""
    queue = shell.queue(wait=0, enable_completed_queue=True)
    await queue.publish("a", tenant="acme")
    await queue.publish("b")
    async with queue.process_messages(2) as batch:
        known = {message.payload: (message.id, message.tenant) for message in batch}
    records = await queue.records("completed")
    assert {record.payload: (record.id, record.tenant) for record in records} == known
    for record in records:
        assert (record.reason, record.delivery_count, record.error) == ("completed", 1, None)
        assert record.published_at <= record.claimed_at <= record.finished_at


@pytest.mark.promise("Each message of a batch has its own record, and the completed list keeps its limit.")
async def test_a_completed_list_is_cut_to_its_length(shell: Shell) -> None:
    """Also by a batch that is longer than the list; its records are cut along."""
    queue = await filled(shell, "abcdef", enable_completed_queue=True, max_completed_length=4)
    async with queue.process_messages(6):
        pass
    assert shell.listed(queue.key.completed) == [b"f", b"e", b"d", b"c"]
    assert [record.payload for record in await queue.records("completed")] == [b"f", b"e", b"d", b"c"]


@pytest.mark.promise("In a batch, `message.complete()` acks the message, and leaving the block does not ack it again.")
async def test_a_message_can_be_completed_from_inside_its_block(shell: Shell) -> None:
    """`complete()` acks it now; leaving does not ack it again, and `batch.ack` says that it is settled."""
    events = shell.events()
    queue = await filled(shell, "ab", on_event=events.listen)
    async with queue.process_messages(2) as batch:
        done = batch[0].complete()
        if shell.name == "asyncio":
            await done
        assert shell.processing(queue) == 1
        with pytest.raises(shell.module.ConfigurationError, match="settled"):
            await batch.ack(batch[0])
    assert len(events.of("ack")) == 2
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "A message is settled once, by its own batch, and fails with an exception; anything else is refused without effect."
)
async def test_a_message_is_settled_once(shell: Shell) -> None:
    """A second ack or fail, one of another batch's message, or after the block, is a mistake that is told."""
    queue = await filled(shell, "abc")
    async with queue.process_messages(1) as other:
        async with queue.process_messages(2) as batch:
            await batch.ack(batch[0])
            for settle in (batch.ack, lambda message: batch.fail(message, ValueError())):
                for message in (batch[0], other[0]):
                    with pytest.raises(shell.module.ConfigurationError, match=message.id) as refusal:
                        await settle(message)
                    assert refusal.value.message_id == message.id
        with pytest.raises(shell.module.ConfigurationError, match=batch[1].id):
            await batch.ack(batch[1])
        assert shell.processing(queue) == 1
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "A message is settled once, by its own batch, and fails with an exception; anything else is refused without effect."
)
async def test_what_is_settled_must_be_a_message(shell: Shell, subtests: pytest.Subtests) -> None:
    """A payload or a place is none."""
    for wrong in [None, "a", b"a", 0]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            queue = await filled(shell, "a")
            async with queue.process_messages(1) as batch:
                with pytest.raises(shell.module.ConfigurationError, match="message"):
                    await batch.ack(wrong)
                with pytest.raises(shell.module.ConfigurationError, match="message"):
                    await batch.fail(wrong, ValueError())
            assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "A message is settled once, by its own batch, and fails with an exception; anything else is refused without effect."
)
@pytest.mark.parametrize("wrong", [None, "text", ValueError, KeyboardInterrupt()], ids=repr)
async def test_a_message_fails_with_an_exception(shell: Shell, wrong: Any) -> None:
    """A text, a class or something that is not an `Exception` is refused, and the message is still in hand."""
    queue = await filled(shell, "a", enable_failed_queue=True)
    async with queue.process_messages(1) as batch:
        with pytest.raises(TypeError, match="error") as refusal:
            await batch.fail(batch[0], wrong)
        assert isinstance(refusal.value, RedisMessageQueueError)
        assert await batch.fail(batch[0], ValueError()) is True
    assert shell.listed(queue.key.failed) == [b"a"]


# With a retry policy


@pytest.mark.promise(
    "`batch.fail(message, error)` fails one message under its retry policy; the other messages are acked."
)
async def test_a_failed_message_of_a_batch_is_tried_again_by_the_policy(shell: Shell) -> None:
    """Later, with its count of failures; the others are acked."""
    events = shell.events()
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0, jitter=0)
    queue = await filled(shell, "ab", retry_policy=policy, on_event=events.listen)
    async with queue.process_messages(2) as batch:
        assert await batch.fail(batch[0], ValueError("first")) is True
        assert shell.processing(queue) == 1
    assert events.the("retried").message_id == events.of("publish")[0].message_id
    async with queue.process_messages(2) as batch:
        assert payloads(batch) == ["a"]
        # A failure under a policy is counted by itself, and not as a delivery.
        assert batch[0].delivery_count == 1
        assert await batch.fail(batch[0], ValueError("second")) is True
    assert shell.listed(queue.key.dead_letter) == [b"a"]
    (record,) = await queue.records("dead_letters")
    assert (record.reason, record.error) == ("attempts used up", "second")


@pytest.mark.promise("Even with a retry policy, a batch that raises is requeued whole and immediately.")
async def test_an_exception_requeues_the_batch_immediately_even_with_a_policy(shell: Shell) -> None:
    """Nobody knows which of them failed."""
    policy = RetryPolicy(initial_delay_seconds=60)
    queue = await filled(shell, "ab", retry_policy=policy)
    with pytest.raises(LookupError):
        async with queue.process_messages(2):
            raise LookupError
    assert await look(queue) == [("a", 2), ("b", 2)]
