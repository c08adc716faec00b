"""`process_messages()` claims several messages for one block."""

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from redis_message_queue import EventDrivenInterruptHandler
from tests.contract.batches import filled, look, payloads
from tests.contract.blocked_consumers import BlockedConsumer
from tests.contract.custom_gateways import overriding
from tests.contract.shells import (
    BEATING,
    EVERY_WIRING,
    LIMIT_SECONDS,
    Sent,
    Shell,
    Wiring,
    take,
    take_over,
)
from tests.tables import row

pytestmark = [pytest.mark.topic("Batches"), pytest.mark.both_shells]

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


# Claiming


@pytest.mark.promise(
    "`process_messages(n)` claims up to `n` messages in order in one round trip and acks them in another."
)
@every_wiring
async def test_messages_are_claimed_together_and_acked_together(shell: Shell, wiring: Wiring) -> None:
    """In their order, two round trips in all, and nothing is left behind."""
    queue = await filled(shell, "abcdef")
    async with queue.process_messages(2):
        pass  # from now on the server knows the scripts for several messages
    with Sent(shell.server) as sent:
        async with queue.process_messages(3) as batch:
            assert [message.payload for message in batch] == [shell.payload(letter) for letter in "cde"]
    assert sent.commands == ["EVALSHA"] * 2
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)
    await take(queue)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("A batch contains the messages that are available; it does not wait for more and can be empty.")
async def test_a_batch_is_what_is_there(shell: Shell) -> None:
    """Fewer than wanted, without a wait for more."""
    queue = await filled(shell, "ab", wait=LIMIT_SECONDS)
    started = time.monotonic()
    async with queue.process_messages(10) as batch:
        assert payloads(batch) == ["a", "b"]
    assert time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise(
    "A batch is a sequence of messages with payload, `json()`, id, tenant, delivery count, publishing time and "
    "`lease_lost`."
)
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


@pytest.mark.promise(
    "A batch is a sequence of messages with payload, `json()`, id, tenant, delivery count, publishing time and "
    "`lease_lost`."
)
async def test_a_message_has_its_details(shell: Shell) -> None:
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


@pytest.mark.promise("A batch contains the messages that are available; it does not wait for more and can be empty.")
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


async def test_an_exception_in_an_empty_batch_reaches_the_caller(shell: Shell) -> None:
    """There is nothing to requeue."""
    queue = shell.queue(wait=0)
    with pytest.raises(LookupError, match="mine"):
        async with queue.process_messages(5):
            raise LookupError("mine")


@pytest.mark.promise(
    "A batch size must be 1 to 1,000 and its wait a number of seconds; anything else is refused by name."
)
@pytest.mark.promise("One heartbeat renews the whole batch with one command per interval.")
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
    assert set(sent.commands) == {"EVALSHA"}, sent.commands
    called = sent.scripts
    assert (called[0], called[-1], set(called[1:-1])) == ("claim", "settle", {"renew"})
    renewals = len(events.of("lease_renew")) / 1_000
    assert called.count("renew") - 1 <= renewals <= called.count("renew")  # the last may have been on its way
    assert len(events.of("ack")) == 1_000
    assert [payload.decode() for payload in shell.listed(queue.key.completed)] == expected[::-1]
    assert shell.processing(queue) == 0


@pytest.mark.promise("Batches and `run()` serve tenants round-robin as single claims do.")
async def test_tenants_take_turns_inside_a_batch(shell: Shell) -> None:
    """Whatever anyone's backlog is."""
    queue = shell.queue(wait=0)
    await queue.publish_many([f"a{number}" for number in range(6)], tenant="a")
    await queue.publish_many([f"b{number}" for number in range(2)], tenant="b")
    async with queue.process_messages(4) as batch:
        assert sorted(payloads(batch)) == ["a0", "a1", "b0", "b1"]
        assert {message.tenant for message in batch[:2]} == {"a", "b"}


# Waiting


@pytest.mark.promise(
    "`wait_seconds` is how long a batch waits for its first message; the default is the queue's wait interval."
)
async def test_a_batch_waits_for_its_first_message(shell: Shell) -> None:
    """It is woken by the publish, and has what is there then."""
    queue, consumer = shell.queue(), BlockedConsumer(shell, wait=0)

    async def consume(sleeping: Any) -> list[str]:
        async with sleeping.process_messages(10, wait_seconds=BlockedConsumer.SLICE_SECONDS) as batch:
            return payloads(batch)

    await consumer.sleep(consume)
    await queue.publish_many(list("abc"))
    assert await consumer.wakes() == ["a", "b", "c"]


@pytest.mark.promise(
    "`wait_seconds` is how long a batch waits for its first message; the default is the queue's wait interval."
)
async def test_wait_seconds_rules_over_the_queues_own_wait(shell: Shell) -> None:
    """Both ways: 0 looks once, and more waits that long; without it the queue's interval counts."""
    patient, impatient = shell.queue(wait=3 * LIMIT_SECONDS), shell.queue(wait=0.3)
    started = time.monotonic()
    async with patient.process_messages(5, wait_seconds=0) as batch:
        assert len(batch) == 0
    assert time.monotonic() - started < LIMIT_SECONDS
    for queue, options in ((patient, {"wait_seconds": 0.3}), (impatient, {}), (impatient, {"wait_seconds": None})):
        started = time.monotonic()
        async with queue.process_messages(5, **options) as batch:
            assert len(batch) == 0
        assert 0.3 <= time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise(
    "An interrupt ends the wait for a batch; a stopped or drained queue gives an empty batch immediately."
)
async def test_a_stopped_or_drained_queue_gives_an_empty_batch(shell: Shell) -> None:
    """At once; the messages are there for others."""
    stop = threading.Event()
    drained = await filled(shell, wait=3 * LIMIT_SECONDS)
    stopped = shell.queue(wait=3 * LIMIT_SECONDS, interrupt=EventDrivenInterruptHandler(stop))
    await drained.drain()
    stop.set()
    started = time.monotonic()
    for queue in (drained, stopped):
        async with queue.process_messages(5) as batch:
            assert len(batch) == 0
    assert time.monotonic() - started < LIMIT_SECONDS
    assert shell.pending(drained) == 4


@pytest.mark.promise(
    "An interrupt ends the wait for a batch; a stopped or drained queue gives an empty batch immediately."
)
async def test_an_interrupt_ends_the_wait_for_a_batch(shell: Shell) -> None:
    """Within a slice of its wait, long before its end."""
    stop = threading.Event()
    queue = shell.queue(interrupt=EventDrivenInterruptHandler(stop))
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    started = time.monotonic()
    async with queue.process_messages(5, wait_seconds=3 * LIMIT_SECONDS) as batch:
        assert len(batch) == 0
    assert time.monotonic() - started < LIMIT_SECONDS
    timer.join()


# Events


@pytest.mark.promise(
    "Each message of a batch has its own events: claimed, acked, requeued with the reason, or reclaimed."
)
async def test_every_message_of_a_batch_has_its_own_events(shell: Shell) -> None:
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


@pytest.mark.promise(
    "Each message of a batch has its own events: claimed, acked, requeued with the reason, or reclaimed."
)
async def test_a_requeued_message_emits_an_event_with_the_reason(shell: Shell) -> None:
    """Each message, in its order, with the error that sent it back; its next claim comes from the line."""
    events = shell.events()
    queue = await filled(shell, "ab", on_event=events.listen)
    events.clear()
    error = LookupError("mine")
    with pytest.raises(LookupError):
        async with queue.process_messages(2):
            raise error
    assert events.names == ["claim/success"] * 2 + ["requeued/success"] * 2
    assert all(event.error is error for event in events.of("requeued"))
    events.clear()
    async with queue.process_messages(2):
        assert [event.delivery_count for event in events.of("claim")] == [2, 2]


@pytest.mark.promise(
    "Each message of a batch has its own events: claimed, acked, requeued with the reason, or reclaimed."
)
async def test_a_redelivered_message_emits_claim_reclaim(shell: Shell) -> None:
    """A batch of expired leases beside fresh messages: only the former."""
    events = shell.events()
    queue = await filled(shell, "abc", on_event=events.listen)
    assert await look(queue, 2) == [("a", 1), ("b", 1)]
    shell.lapse(queue)
    events.clear()
    async with queue.process_messages(3) as batch:
        assert payloads(batch) == ["a", "b", "c"]
        assert events.names == ["claim_reclaim/success", "claim/success"] * 2 + ["claim/success"]


@pytest.mark.promise("No event, error or log line contains a payload.")
async def test_events_of_a_batch_contain_no_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """In no event, error or log line: acked, failed, requeued, lost, dead, not to be settled."""
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
                await take_over(shell, batch[2])
                raise LookupError
        with pytest.raises(shell.module.CleanupFailedError) as uncertain:
            async with queue.process_messages(1):
                client.losses.request()
        errors.append(uncertain.value)
        shell.lapse(queue)
        while await look(shell.queue(**options)):
            shell.lapse(queue)
    told = {event.operation for event in events.all}
    assert {"ack", "nack", "requeued", "stale_lease_nack", "cleanup_failed", "claim_reclaim", "dlq"} <= told
    assert [event for event in events.all if secret in repr(event)] == []
    assert [error for error in errors if secret in f"{error!r} {error} {error.__cause__!r}"] == []
    assert secret not in caplog.text
    assert caplog.records


# Invalid arguments


@pytest.mark.promise(
    "A batch size must be 1 to 1,000 and its wait a number of seconds; anything else is refused by name."
)
async def test_a_batch_has_between_one_and_a_thousand_messages(shell: Shell, subtests: pytest.Subtests) -> None:
    """Refused by name, at the call, before anything is claimed."""
    for wrong in [0, -1, 1_001, True, 2.0, "5", None]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            queue = await filled(shell)
            with pytest.raises(shell.module.ConfigurationError, match=r"^max_messages ") as refusal:
                queue.process_messages(wrong)
            assert isinstance(refusal.value, TypeError) is not (type(wrong) is int)
            assert shell.pending(queue) == 4


@pytest.mark.promise(
    "A batch size must be 1 to 1,000 and its wait a number of seconds; anything else is refused by name."
)
async def test_a_wait_is_a_number_of_seconds(shell: Shell, subtests: pytest.Subtests) -> None:
    """Refused by name."""
    for wrong in [-1, True, "5", float("nan"), float("inf")]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            queue = await filled(shell)
            with pytest.raises(shell.module.ConfigurationError, match=r"^wait_seconds "):
                queue.process_messages(1, wait_seconds=wrong)


@pytest.mark.promise("Batches are refused with a custom gateway, which hands over one message at a time.")
async def test_a_custom_gateway_refuses_batches(shell: Shell) -> None:
    """It hands over one message at a time; nothing is claimed."""
    await filled(shell)
    queue = shell.queue(gateway=overriding(shell, "remove_message"))
    with pytest.raises(shell.module.GatewayContractError, match="batches"):
        async with queue.process_messages(2):
            pytest.fail("was entered")
    assert shell.pending(queue) == 4


# Concurrent consumers


@pytest.mark.promise("Concurrent consumers share the messages in batches, each message once.")
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
