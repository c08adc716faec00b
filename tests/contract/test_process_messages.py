"""Several messages for one block: claimed in one step, settled together or one by one, given back if it raises."""

import asyncio
import contextlib
import logging
import threading
import time
from datetime import timedelta
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
from tests.contract.test_delays import Sleeper

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

# Long enough that no lease ends by itself here; renewals come often.
BEATING = {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 0.05}


def payloads(batch: Any) -> list[str]:
    """As text, in the order of the batch."""
    return [message.payload if isinstance(message.payload, str) else message.payload.decode() for message in batch]


async def look(queue: Any, count: int = 100) -> list[tuple[str, int]]:
    """Payload and delivery count of everything that can be claimed, which stays in processing."""
    with contextlib.suppress(Died):
        async with queue.process_messages(count, wait_seconds=0) as batch:
            seen = [(message.payload.decode(), message.delivery_count) for message in batch]
            raise Died
    return seen


def scripts(sent: Sent) -> list[str]:
    """The names of the scripts that were called, in their order."""
    from tests.faults.proxy import our_scripts

    assert set(sent.commands) <= {"EVALSHA"}, sent.commands
    return [our_scripts()[line.split(" ", 2)[1].strip('"')] for line in sent.lines]


async def filled(shell: Shell, letters: str = "abcd", **options: Any) -> Any:
    """A queue with a message for each letter."""
    queue = shell.queue(**{"wait": 0} | options)
    await queue.publish_many(list(letters))
    return queue


# Taking


@every_wiring
async def test_messages_are_claimed_together_and_acked_together(shell: Shell, wiring: Wiring) -> None:
    """In their order, two round trips in all, and nothing is left behind."""
    queue = await filled(shell)
    await queue.publish("warm")
    async with queue.process_messages(1):
        pass
    with Sent(shell.server) as sent:
        async with queue.process_messages(3) as batch:
            assert [message.payload for message in batch] == [shell.payload(letter) for letter in "bcd"]
    assert sent.commands == ["EVALSHA"] * 2
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)
    await take(queue)
    assert shell.leftovers(queue) == set()


async def test_a_batch_is_what_is_there(shell: Shell) -> None:
    """Fewer than wanted, without a wait for more."""
    queue = await filled(shell, "ab", wait=PATIENCE_SECONDS)
    started = time.monotonic()
    async with queue.process_messages(10) as batch:
        assert payloads(batch) == ["a", "b"]
    assert time.monotonic() - started < PATIENCE_SECONDS


async def test_a_batch_is_a_sequence(shell: Shell) -> None:
    """It has a length, places, slices and an order, and is false when it is empty."""
    queue = await filled(shell)
    async with queue.process_messages(4) as batch:
        assert len(batch) == 4
        assert batch[0].payload == b"a"
        assert batch[-1].payload == b"d"
        assert payloads(batch[1:3]) == ["b", "c"]
        assert payloads(reversed(batch)) == ["d", "c", "b", "a"]
        assert batch[2] in batch
        with pytest.raises(IndexError):
            batch[4]
    async with queue.process_messages(4) as nothing:
        assert not nothing
        assert list(nothing) == []


async def test_a_message_tells_what_is_known_of_it(shell: Shell) -> None:
    """Payload, parsed payload, id, tenant, delivery count, time of publishing, and whether the lease still holds."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, wait=0)
    await queue.publish({"kind": "json"}, tenant="acme")
    async with queue.process_messages(5) as batch:
        (message,) = batch
        assert isinstance(message, shell.module.ReceivedMessage)
        assert message.payload == b'{"kind": "json"}'
        assert message.json() == {"kind": "json"}
        assert message.id == events.the("publish").message_id
        assert message.tenant == "acme"
        assert message.delivery_count == 1
        assert message.published_at.utcoffset() == timedelta(0)
        assert message.lease_lost is False
        assert message.replay_of is None


async def test_an_empty_batch_changes_nothing(shell: Shell) -> None:
    """The block runs with nothing in hand: one look, no ack, one event."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, wait=0, **BEATING)
    await queue.publish("warm")
    await take(queue)
    events.clear()
    with Sent(shell.server) as sent:
        async with queue.process_messages(5) as batch:
            assert len(batch) == 0
    assert sent.commands == ["EVALSHA"]
    assert events.names == ["claim_empty/skipped"]


async def test_an_exception_in_an_empty_batch_comes_out(shell: Shell) -> None:
    """There is nothing to give back."""
    queue = shell.queue(wait=0)
    with pytest.raises(LookupError, match="mine"):
        async with queue.process_messages(5):
            raise LookupError("mine")


async def test_a_thousand_messages_fit_into_one_batch(shell: Shell) -> None:
    """Claimed, renewed, kept and acked in one script each."""
    events = shell.events()
    queue = shell.queue(wait=0, enable_completed_queue=True, on_event=events.listen, **BEATING)
    expected = [str(number) for number in range(1_000)]
    await queue.publish_many(expected)
    async with queue.process_messages(1, wait_seconds=0) as batch:  # loads the scripts
        await events.wait_for("lease_renew")
    shell.redis.delete(queue.key.completed, queue.key.records("completed"))
    await queue.publish_many(["1000"])
    expected = [*expected[1:], "1000"]
    events.clear()
    with Sent(shell.server) as sent:
        async with queue.process_messages(1_000) as batch:
            assert payloads(batch) == expected
            await events.wait_for("lease_renew", 1_000)
    called = scripts(sent)
    assert (called[0], called[-1], set(called[1:-1])) == ("claim", "settle", {"renew"})
    renewals = len(events.of("lease_renew")) / 1_000
    assert called.count("renew") - 1 <= renewals <= called.count("renew")  # the last may have been on its way
    assert len(events.of("ack")) == 1_000
    assert [payload.decode() for payload in shell.listed(queue.key.completed)] == expected[::-1]
    assert shell.processing(queue) == 0


async def test_tenants_take_turns_inside_a_batch(shell: Shell) -> None:
    """Whatever anyone's backlog is."""
    queue = shell.queue(wait=0)
    await queue.publish_many([f"a{number}" for number in range(6)], tenant="a")
    await queue.publish_many([f"b{number}" for number in range(2)], tenant="b")
    async with queue.process_messages(4) as batch:
        assert sorted(payloads(batch)) == ["a0", "a1", "b0", "b1"]
        assert {message.tenant for message in batch[:2]} == {"a", "b"}


# Waiting


async def test_a_batch_waits_for_its_first_message(shell: Shell) -> None:
    """It is woken by the publish, and has what is there then."""
    queue, consumer = shell.queue(), Sleeper(shell, wait=0)

    async def consume(sleeping: Any) -> list[str]:
        async with sleeping.process_messages(10, wait_seconds=Sleeper.SLICE_SECONDS) as batch:
            return payloads(batch)

    await consumer.sleep(consume)
    await queue.publish_many(list("abc"))
    assert await consumer.wakes() == ["a", "b", "c"]


async def test_wait_seconds_rules_over_the_queues_own_wait(shell: Shell) -> None:
    """Both ways: 0 looks once, and more waits that long; without it the queue's interval counts."""
    patient, impatient = shell.queue(wait=3 * PATIENCE_SECONDS), shell.queue(wait=0.3)
    started = time.monotonic()
    async with patient.process_messages(5, wait_seconds=0) as batch:
        assert len(batch) == 0
    assert time.monotonic() - started < PATIENCE_SECONDS
    for queue, options in ((patient, {"wait_seconds": 0.3}), (impatient, {}), (impatient, {"wait_seconds": None})):
        started = time.monotonic()
        async with queue.process_messages(5, **options) as batch:
            assert len(batch) == 0
        assert 0.3 <= time.monotonic() - started < PATIENCE_SECONDS


async def test_a_stopped_or_drained_queue_gives_an_empty_batch(shell: Shell) -> None:
    """At once; the messages are there for others."""
    stop = threading.Event()
    drained = await filled(shell, wait=3 * PATIENCE_SECONDS)
    stopped = shell.queue(wait=3 * PATIENCE_SECONDS, interrupt=EventDrivenInterruptHandler(stop))
    await drained.drain()
    stop.set()
    started = time.monotonic()
    for queue in (drained, stopped):
        async with queue.process_messages(5) as batch:
            assert len(batch) == 0
    assert time.monotonic() - started < PATIENCE_SECONDS
    assert shell.pending(drained) == 4


async def test_an_interrupt_ends_the_wait_for_a_batch(shell: Shell) -> None:
    """Within a slice of its wait, long before its end."""
    stop = threading.Event()
    queue = shell.queue(interrupt=EventDrivenInterruptHandler(stop))
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    started = time.monotonic()
    async with queue.process_messages(5, wait_seconds=3 * PATIENCE_SECONDS) as batch:
        assert len(batch) == 0
    assert time.monotonic() - started < PATIENCE_SECONDS
    timer.join()


# Leaving


async def test_an_exception_gives_the_rest_back_to_the_front_in_its_order(shell: Shell) -> None:
    """Before what nobody has claimed; the error comes out as it is, and the delivery counts."""
    queue = await filled(shell, "abcdef")
    with pytest.raises(LookupError, match="mine"):
        async with queue.process_messages(4):
            raise LookupError("mine")
    assert shell.processing(queue) == 0
    assert await look(queue) == [("a", 2), ("b", 2), ("c", 2), ("d", 2), ("e", 1), ("f", 1)]


async def test_what_was_settled_before_the_exception_is_not_given_back(shell: Shell) -> None:
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


async def test_an_exception_gives_each_tenant_its_own_back(shell: Shell) -> None:
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


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Died, asyncio.CancelledError])
async def test_what_is_not_an_exception_keeps_its_hands_off(shell: Shell, kind: type[BaseException]) -> None:
    """Nothing is acked, failed or given back: the leases bring the rest again, in its order."""
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


@sync_only
async def test_a_generator_that_is_closed_keeps_its_hands_off(shell: Shell) -> None:
    """The consumer of the messages went away: they come again when their leases are over."""
    queue = (await filled(shell)).queue

    def messages() -> Any:
        with queue.process_messages(4) as batch:
            yield from batch

    generator = messages()
    assert next(generator).payload == b"a"
    generator.close()
    assert shell.redis.hlen(queue.key.processing) == 4


@asyncio_only
async def test_an_async_generator_that_is_closed_keeps_its_hands_off(shell: Shell) -> None:
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


# One by one


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


async def test_a_completed_list_is_cut_to_its_length(shell: Shell) -> None:
    """Also by a batch that is longer than the list; its records are cut along."""
    queue = await filled(shell, "abcdef", enable_completed_queue=True, max_completed_length=4)
    async with queue.process_messages(6):
        pass
    assert shell.listed(queue.key.completed) == [b"f", b"e", b"d", b"c"]
    assert [record.payload for record in await queue.records("completed")] == [b"f", b"e", b"d", b"c"]


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


@pytest.mark.parametrize("wrong", [None, "a", b"a", 0], ids=repr)
async def test_what_is_settled_must_be_a_message(shell: Shell, wrong: Any) -> None:
    """A payload or a place is none."""
    queue = await filled(shell, "a")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.ConfigurationError, match="message"):
            await batch.ack(wrong)
        with pytest.raises(shell.module.ConfigurationError, match="message"):
            await batch.fail(wrong, ValueError())
    assert shell.leftovers(queue) == set()


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


# A retry policy


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


async def test_an_exception_out_of_the_block_gives_back_at_once_even_with_a_policy(shell: Shell) -> None:
    """Nobody knows which of them failed."""
    policy = RetryPolicy(initial_delay_seconds=60)
    queue = await filled(shell, "ab", retry_policy=policy)
    with pytest.raises(LookupError):
        async with queue.process_messages(2):
            raise LookupError
    assert await look(queue) == [("a", 2), ("b", 2)]


# Events


async def test_every_message_of_a_batch_has_its_own_story(shell: Shell) -> None:
    """Claimed, acked and kept, each under its id and with its lease."""
    events = shell.events()
    queue = await filled(shell, "ab", on_event=events.listen, enable_completed_queue=True)
    async with queue.process_messages(2):
        assert events.names[2:] == ["claim/success"] * 2
    assert events.names[4:] == ["ack/success", "completed/success"] * 2
    ids = [event.message_id for event in events.of("publish")]
    for operation in ("claim", "ack", "completed"):
        assert [event.message_id for event in events.of(operation)] == ids
        assert all(event.delivery_count == 1 and event.lease_token_hash for event in events.of(operation))


async def test_what_is_given_back_is_told_with_its_reason(shell: Shell) -> None:
    """Each message, in its order, with the error that sent it back; its next claim comes from the line."""
    events = shell.events()
    queue = await filled(shell, "ab", on_event=events.listen)
    events.clear()
    error = LookupError("mine")
    with pytest.raises(LookupError):
        async with queue.process_messages(2):
            raise error
    assert events.names == ["claim/success"] * 2 + ["given_back/success"] * 2
    assert all(event.error is error for event in events.of("given_back"))
    events.clear()
    async with queue.process_messages(2):
        assert [event.delivery_count for event in events.of("claim")] == [2, 2]


async def test_what_comes_back_is_told_as_reclaimed(shell: Shell) -> None:
    """A batch of expired leases beside fresh messages: only the former."""
    events = shell.events()
    queue = await filled(shell, "abc", on_event=events.listen)
    assert await look(queue, 2) == [("a", 1), ("b", 1)]
    shell.lapse(queue)
    events.clear()
    async with queue.process_messages(3) as batch:
        assert payloads(batch) == ["a", "b", "c"]
        assert events.names == ["claim_reclaim/success", "claim/success"] * 2 + ["claim/success"]


async def test_no_payload_is_told_of_a_batch(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """In no event, error or log line: acked, failed, given back, lost, dead, not to be settled."""
    secret, events, client, errors = "s3cret", shell.events(), shell.lossy_client(), []
    options: dict[str, Any] = {"on_event": events.listen, "wait": 0, "retry_budget_seconds": 0, "max_delivery_count": 2}
    queue = shell.queue(client=client, enable_completed_queue=True, enable_failed_queue=True, **options)
    with caplog.at_level(logging.DEBUG):
        await queue.publish_many([f"{secret} {number}" for number in range(6)], tenant="t")
        with pytest.raises(LookupError):
            async with queue.process_messages(4) as batch:
                assert repr(batch[0]).startswith("<ReceivedMessage")
                errors.append(RuntimeError(f"{batch!r} {list(batch)!r}"))
                await batch.ack(batch[0])
                await batch.fail(batch[1], ValueError("why"))
                with pytest.raises(shell.module.ConfigurationError) as refused:
                    await batch.ack(batch[1])
                errors.append(refused.value)
                await lose_one(shell, batch[2])
                raise LookupError
        with pytest.raises(shell.module.CleanupFailedError) as uncertain:
            async with queue.process_messages(1):
                client.losses.request()
        errors.append(uncertain.value)
        shell.lapse(queue)
        while await look(shell.queue(**options)):
            shell.lapse(queue)
    told = {event.operation for event in events.all}
    assert {"ack", "nack", "given_back", "stale_lease_nack", "cleanup_failed", "claim_reclaim", "dlq"} <= told
    assert [event for event in events.all if secret in repr(event)] == []
    assert [error for error in errors if secret in f"{error!r} {error} {error.__cause__!r}"] == []
    assert secret not in caplog.text
    assert caplog.records


# Leases


def helpers(shell: Shell) -> set[Any]:
    """The threads or tasks that there are."""
    return set(threading.enumerate()) if shell.name == "sync" else set(asyncio.all_tasks())


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


async def lose_one(shell: Shell, message: Any) -> None:
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


async def test_a_lost_lease_is_lost_for_one_message_of_a_batch(shell: Shell) -> None:
    """It says so, its ack comes too late, and the others are renewed and acked as ever."""
    events, failures = shell.events(), []
    queue = await filled(
        shell, on_event=events.listen, on_heartbeat_failure=shell.callback(lambda: failures.append(1)), **BEATING
    )
    async with queue.process_messages(4) as batch:
        await lose_one(shell, batch[1])
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


async def test_what_was_lost_can_neither_be_acked_nor_failed_nor_given_back(shell: Shell) -> None:
    """Each says False or nothing, and the second holder's message stays."""
    events = shell.events()
    queue = await filled(shell, "abc", on_event=events.listen, enable_completed_queue=True, enable_failed_queue=True)
    with pytest.raises(LookupError):
        async with queue.process_messages(3) as batch:
            for message in batch:
                await lose_one(shell, message)
            events.clear()
            assert await batch.ack(batch[0]) is False
            assert await batch.fail(batch[1], ValueError()) is False
            raise LookupError
    assert events.names == [
        *("stale_lease_ack/skipped", "failed/failure", "stale_lease_nack/skipped", "stale_lease_nack/skipped"),
    ]
    assert (shell.pending(queue), shell.processing(queue)) == (0, 3)
    assert shell.listed(queue.key.completed) == shell.listed(queue.key.failed) == []


async def test_a_lease_that_is_over_by_our_own_clock_is_lost_without_a_heartbeat(shell: Shell) -> None:
    """Nobody had to say so."""
    queue = await filled(shell, "ab", visibility_timeout_seconds=0.2)
    with contextlib.suppress(Died):
        async with queue.process_messages(2) as batch:
            assert await until(lambda: all(message.lease_lost for message in batch))
            raise Died


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
        async with other.process_messages(2, wait_seconds=PATIENCE_SECONDS) as taken_over:
            assert len(taken_over) >= 1
        assert await until(lambda: all(message.lease_lost for message in batch))
    skipped = [event.message_id for event in events.of("lease_renew") if event.outcome == "skipped"]
    assert skipped == [message.id for message in batch]
    assert "stale_lease_ack/skipped" in events.names


# Trouble


async def test_a_claim_of_many_whose_reply_was_lost_is_found_again(shell: Shell) -> None:
    """By the same call where there is a budget: the same messages in their first delivery."""
    client = shell.lossy_client()
    queue = await filled(shell, client=client)
    client.losses.reply(2)
    async with queue.process_messages(3) as batch:
        assert [(message.payload, message.delivery_count) for message in batch] == [("a", 1), ("b", 1), ("c", 1)]
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)


@pytest.mark.parametrize("lease", [300, None])
@pytest.mark.parametrize("count", [2, 3, 5])
async def test_a_batch_that_was_given_up_is_found_by_the_next(shell: Shell, lease: Any, count: int) -> None:
    """Whoever wants fewer gets the first of it, and the others are back at the front, not delivered yet."""
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


async def test_a_batch_that_nobody_saw_goes_back_with_a_drain(shell: Shell) -> None:
    """To the front, in its order, and not as a delivery."""
    client = shell.lossy_client()
    queue = await filled(shell, "abcd", client=client, retry_budget_seconds=0)
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        async with queue.process_messages(3):
            pytest.fail("nobody saw the answer")
    assert await queue.drain(timeout=PATIENCE_SECONDS) is True
    assert await look(shell.queue()) == [(letter, 1) for letter in "abcd"]


async def test_an_ack_whose_reply_was_lost_is_an_ack(shell: Shell) -> None:
    """All of the batch, kept once."""
    client = shell.lossy_client()
    queue = await filled(shell, client=client, enable_completed_queue=True)
    async with queue.process_messages(4):
        client.losses.reply(2)
    assert shell.listed(queue.key.completed) == [b"d", b"c", b"b", b"a"]


async def test_a_give_back_whose_reply_was_lost_is_one(shell: Shell) -> None:
    """Each message is back once, with one delivery more."""
    client = shell.lossy_client()
    queue = await filled(shell, client=client)
    with pytest.raises(LookupError):
        async with queue.process_messages(4):
            client.losses.reply(2)
            raise LookupError
    assert await look(shell.queue()) == [(letter, 2) for letter in "abcd"]


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
    assert sorted(event.message_id for event in events.of("ack")) == sorted(message.id for message in batch)
    assert events.of("stale_lease_ack") == []


async def test_a_message_whose_ack_failed_is_given_back_in_its_place(shell: Shell) -> None:
    """It is not settled, so an exception gives it back with the others, in their order."""
    client = shell.lossy_client()
    queue = await filled(shell, "abc", client=client, retry_budget_seconds=0)
    with pytest.raises(shell.module.CleanupFailedError):
        async with queue.process_messages(3) as batch:
            client.losses.request()
            await batch.ack(batch[1])
    assert await look(shell.queue()) == [(letter, 2) for letter in "abc"]


async def test_a_message_whose_ack_failed_is_renewed_again(shell: Shell) -> None:
    """The heartbeat goes on, even if there was nothing else to renew while the ack was tried."""
    events, client = shell.events(), shell.lossy_client()
    queue = await filled(shell, "a", client=client, retry_budget_seconds=0.5, on_event=events.listen, **BEATING)
    async with queue.process_messages(1) as batch:
        await events.wait_for("lease_renew")
        client.losses.request(1_000_000)
        with pytest.raises(shell.module.CleanupFailedError):
            await batch.ack(batch[0])
        client.losses.heal()
        events.clear()
        await events.wait_for("lease_renew", 2)
        assert await batch.ack(batch[0]) is True
    assert shell.processing(queue) == 0


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


async def test_poison_on_the_way_goes_to_the_dead_letters_and_the_rest_is_delivered(shell: Shell) -> None:
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


async def test_a_wrong_typed_key_fails_the_claim_and_loses_nothing(shell: Shell) -> None:
    """Fail closed: the messages are still in the line when the key is mended."""
    queue = await filled(shell)
    shell.redis.set(queue.key.processing, "not a hash")
    with pytest.raises(shell.module.LuaScriptError):
        async with queue.process_messages(4):
            pytest.fail("was entered")
    shell.redis.delete(queue.key.processing)
    assert await look(queue) == [(letter, 1) for letter in "abcd"]


async def test_at_most_once_works_in_batches_too(shell: Shell) -> None:
    """Without leases: taken, acked, and given back by an exception; a sudden end leaves orphans."""
    queue = await filled(shell, visibility_timeout_seconds=None)
    with pytest.raises(LookupError):
        async with queue.process_messages(4):
            raise LookupError
    async with queue.process_messages(2) as batch:
        assert payloads(batch) == ["a", "b"]
    assert await look(queue) == [("c", 2), ("d", 2)]
    assert shell.processing(queue) == 2
    assert shell.redis.exists(queue.key.leases) == 0


# Bad input


@pytest.mark.parametrize("wrong", [0, -1, 1_001, True, 2.0, "5", None], ids=repr)
async def test_a_batch_has_between_one_and_a_thousand_messages(shell: Shell, wrong: Any) -> None:
    """Refused by name, at the call, before anything is claimed."""
    queue = await filled(shell)
    with pytest.raises(shell.module.ConfigurationError, match=r"^max_messages ") as refusal:
        queue.process_messages(wrong)
    assert isinstance(refusal.value, TypeError) is not (type(wrong) is int)
    assert shell.pending(queue) == 4


@pytest.mark.parametrize("wrong", [-1, True, "5", float("nan"), float("inf")], ids=repr)
async def test_a_wait_is_a_number_of_seconds(shell: Shell, wrong: Any) -> None:
    """Refused by name."""
    queue = await filled(shell)
    with pytest.raises(shell.module.ConfigurationError, match=r"^wait_seconds "):
        queue.process_messages(1, wait_seconds=wrong)


async def test_a_custom_gateway_refuses_batches(shell: Shell) -> None:
    """It hands over one message at a time; nothing is claimed."""

    class Plain(shell.module.RedisGateway):  # type: ignore[name-defined,misc]  # the module is known at run time only
        def remove_message(self, queue: str, message: Any, *, lease_token: str | None = None) -> Any:
            return super().remove_message(queue, message, lease_token=lease_token)

    await filled(shell)
    queue = shell.queue(gateway=Plain(redis_client=shell.client))
    with pytest.raises(shell.module.GatewayContractError, match="batches"):
        async with queue.process_messages(2):
            pytest.fail("was entered")
    assert shell.pending(queue) == 4


# Many at once


async def test_batches_side_by_side_share_out_the_messages(shell: Shell) -> None:
    """Four consumers of one object: each message once, and no batch has a gap in its order."""
    queue = shell.queue(wait=0)
    expected = [f"{number:03}" for number in range(200)]
    await queue.publish_many(expected)

    async def consume() -> list[str]:
        mine: list[str] = []
        while True:
            async with queue.process_messages(7) as batch:
                if not batch:
                    return mine
                assert payloads(batch) == sorted(payloads(batch))
                mine += payloads(batch)
                await asyncio.sleep(0)

    shares = await asyncio.gather(*[shell.beside(consume) for _ in range(4)])
    assert sorted(payload for share in shares for payload in share) == expected
    assert shell.leftovers(queue) == set()


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


@asyncio_only
async def test_a_cancellation_while_giving_back_is_in_the_chain_of_the_blocks_error(shell: Shell) -> None:
    """All are given back, and the error that comes out is the block's own."""
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
