"""A message is acknowledged and its results are published in one step."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.shells import (
    EVERY_WIRING,
    Awaited,
    Sent,
    Shell,
    SubclassedAsyncRedis,
    SubclassedRedis,
    claim_and_die,
    silent_gateway,
    take,
    until,
)

pytestmark = pytest.mark.topic("Hand-off")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


def complete(message: Any, *results: tuple[Any, ...]) -> Any:
    """Hand a message off to queues of these tests."""
    return Awaited(message).complete(publish=[(target.queue, *rest) for target, *rest in results])


async def hand_off(queue: Any, *results: tuple[Any, ...]) -> None:
    """Take the next message and turn it into these."""
    async with queue.process_messages(1) as batch:
        await complete(batch[0], *results)


def everything(shell: Shell) -> dict[bytes, bytes]:
    """What is in Redis, but for answers to calls."""
    return {key: shell.redis.dump(key) for key in shell.redis.keys("*") if b"::reply::" not in key}


async def waiting(queue: Any) -> list[bytes]:
    return [one.payload for one in await Awaited(queue).peek(100)]


# In one step


@pytest.mark.promise(
    "`message.complete(publish=[(queue, payload), ...])` acks the message and publishes its results in one script."
)
@every_wiring
async def test_results_enter_their_queues_when_the_message_leaves(shell: Shell) -> None:
    """In their order, over every kind of connection; the block has nothing left to acknowledge."""
    queue, one, other = (shell.queue(name, wait=0, enable_completed_queue=True) for name in ("q", "one", "other"))
    await queue.publish("order")
    async with queue.process_messages(1) as batch:
        await complete(batch[0], (one, "a"), (other, {"b": 1}), (one, "c"))
        stats = await Awaited(queue).stats()
        assert (stats.processing, stats.completed) == (0, 1)
    assert [await take(one) for _ in range(3)] == [shell.payload("a"), shell.payload("c"), None]
    assert [await take(other) for _ in range(2)] == [shell.payload('{"b": 1}'), None]
    assert await take(queue) is None
    (record,) = await Awaited(queue).records("completed")
    assert (record.payload, record.reason) == (shell.payload("order"), "completed")
    assert record.claimed_at <= record.finished_at


@pytest.mark.promise(
    "`message.complete(publish=[(queue, payload), ...])` acks the message and publishes its results in one script."
)
async def test_it_is_one_round_trip(shell: Shell) -> None:
    """Whatever the number of queues and results; leaving the block sends nothing more."""
    queue, one, other = shell.queue(), shell.queue("one"), shell.queue("other", deduplication=True)
    for _ in range(2):
        await queue.publish("m")
    await hand_off(queue, (one, "warm-up"))
    with Sent(shell.server) as sent:
        async with queue.process_messages(1) as batch:
            await complete(batch[0], *((one, str(number)) for number in range(50)), (other, "x"), (other, "y"))
    assert [word for word in sent.commands if word != "ECHO"] == ["EVALSHA"] * 2  # the claim, and the hand-off


@pytest.mark.promise("You can call `complete()` in a block, a callback, a batch and `run()`.")
async def test_every_kind_of_consumer_can_hand_off(shell: Shell) -> None:
    """process_message with current_message(), a callback, a batch, and the loop with one message or a list."""
    queue, results = shell.queue(wait=0, enable_completed_queue=True), shell.queue("results", wait=0)

    def publish(message: Any) -> Any:
        """Returns None, or a coroutine if it is async."""
        return message.complete(publish=[(results.queue, f"of {message.payload.decode()}")])

    await queue.publish_many(["a", "b", "c", "d", "e", "f"])
    async with queue.process_message():
        await complete(queue.current_message(), (results, "of a"))
    await queue.process_message_callback(lambda message: publish(queue.current_message()))
    async with queue.process_messages(2) as batch:
        for message in batch:
            await complete(message, (results, f"of {message.payload.decode()}"))
    summary = await queue.run(publish, prefetch=5, until_empty=True)
    assert (summary.handled, summary.failed, summary.requeued) == (2, 0, 0)
    assert await waiting(results) == [b"of %c" % letter for letter in b"abcdef"]
    assert [one.decode() for one in shell.listed(queue.key.completed)] == list("fedcba")

    await queue.publish_many(["g", "h"])
    summary = await queue.run(lambda messages: publish(messages[0]), batch_size=5, until_empty=True)
    assert summary.handled == 2
    assert (await waiting(results))[-1] == b"of g"
    assert sorted(shell.listed(queue.key.completed)[:2]) == [b"g", b"h"]
    assert (await Awaited(queue).stats()).processing == 0


@pytest.mark.promise(
    "`complete()` without results acks immediately; what the block does afterwards does not affect the message."
)
async def test_completing_without_results_is_an_ack(shell: Shell) -> None:
    """Now, and not when the block ends: what the block does afterwards is no matter of this message."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    for publish in ({}, {"publish": ()}, {"publish": []}):
        await queue.publish("m")
        with pytest.raises(LookupError):
            async with queue.process_message():
                await Awaited(queue.current_message()).complete(**publish)
                assert (await Awaited(queue).stats()).processing == 0
                raise LookupError
    assert shell.listed(queue.key.completed) == [b"m"] * 3
    assert shell.listed(queue.key.failed) == []


@pytest.mark.promise(
    "`complete()` without results acks immediately; what the block does afterwards does not affect the message."
)
async def test_the_rest_of_a_batch_goes_its_own_way(shell: Shell) -> None:
    """An exception requeues what was not completed, and nothing else."""
    queue, results = shell.queue(wait=0), shell.queue("results")
    await queue.publish_many(["a", "b", "c"])
    with pytest.raises(LookupError):
        async with queue.process_messages(3) as batch:
            await complete(batch[1], (results, "of b"))
            raise LookupError
    assert await waiting(queue) == [b"a", b"c"]
    assert await waiting(results) == [b"of b"]


@pytest.mark.promise("A message can be completed once, and only inside its block.")
async def test_a_message_is_completed_once(shell: Shell) -> None:
    """The second time is refused, with nothing published; so are an ack and a failure after it."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish_many(["a", "b"])
    async with queue.process_messages(2) as batch:
        await complete(batch[0], (results, "first"))
        with pytest.raises(shell.module.ConfigurationError, match="completed already"):
            await complete(batch[0], (results, "second"))
        for settle in (lambda: batch.ack(batch[0]), lambda: batch.fail(batch[0], ValueError())):
            with pytest.raises(shell.module.ConfigurationError, match="settled already"):
                await settle()
        await batch.ack(batch[1])
        with pytest.raises(shell.module.RedisMessageQueueError):
            await complete(batch[1], (results, "third"))
    assert await waiting(results) == [b"first"]


@pytest.mark.promise("A message can be completed once, and only inside its block.")
async def test_after_the_block_there_is_nothing_to_complete(shell: Shell) -> None:
    """A message that was acknowledged, failed or requeued is not its handler's any more."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish_many(["a", "b"])
    async with queue.process_messages(1) as batch:
        acknowledged = batch[0]
    with pytest.raises(LookupError):
        async with queue.process_messages(1) as batch:
            requeued = batch[0]
            raise LookupError
    for message in (acknowledged, requeued):
        with pytest.raises(shell.module.LeaseLostError):
            await complete(message, (results, "late"))
    assert await waiting(results) == []
    assert await waiting(queue) == [b"b"]


# The rules of the targets


@pytest.mark.promise("A hand-off suppresses a duplicate at its target and still succeeds.")
async def test_a_duplicate_at_a_target_is_no_refusal(shell: Shell) -> None:
    """It is suppressed there, inside one hand-off as well; the message and the other results go their way."""
    events = shell.events()
    queue, results = shell.queue(), shell.queue("results", deduplication=True, on_event=events.listen)
    await results.publish("known")
    await queue.publish("m")
    events.clear()
    await hand_off(queue, (results, "known"), (results, "new"), (results, "new"))
    assert await waiting(results) == [b"known", b"new"]
    assert events.names == ["publish_dedup_hit/skipped", "publish/success", "publish_dedup_hit/skipped"]
    assert await results.publish("new") is False
    assert (await Awaited(queue).stats()).processing == 0


@pytest.mark.promise(
    "A full target refuses the whole hand-off immediately, whatever its overload policy; the message stays leased."
)
async def test_a_full_target_refuses_everything(shell: Shell) -> None:
    """The message stays in hand, under its lease, and nothing has changed anywhere; later it may go."""
    queue, free = shell.queue(), shell.queue("free", deduplication=True)
    full = shell.queue("full", max_pending_length=2)
    await queue.publish("m")
    await full.publish("x")
    async with queue.process_messages(1) as batch:
        before = everything(shell)
        with pytest.raises(shell.module.QueueBackpressureError, match="'full'") as caught:
            await complete(batch[0], (free, "a"), (full, "b"), (full, "c"))
        assert (caught.value.queue, caught.value.message_id) == ("q", batch[0].id)
        assert everything(shell) == before
        assert not batch[0].lease_lost
        await take(full)
        await complete(batch[0], (free, "a"), (full, "b"), (full, "c"))
    assert (await waiting(free), await waiting(full)) == ([b"a"], [b"b", b"c"])


@pytest.mark.promise(
    "A full target refuses the whole hand-off immediately, whatever its overload policy; the message stays leased."
)
@pytest.mark.parametrize("policy", ["raise", "block"])
async def test_a_full_target_refuses_at_once_whatever_it_does_with_publishers(shell: Shell, policy: str) -> None:
    """Nobody waits inside a script; and the limit of one tenant counts, too."""
    queue = shell.queue()
    patient = {"pending_overload_policy": policy, "pending_overload_block_timeout_seconds": 1_000}
    full = shell.queue("full", max_pending_per_tenant=1, **(patient if policy == "block" else {}))
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.QueueBackpressureError):
            await complete(batch[0], (full, "a", {"tenant": "t"}), (full, "b", {"tenant": "t"}))
        assert (await Awaited(full).stats()).pending == 0
        await complete(batch[0], (full, "a", {"tenant": "t"}), (full, "b", {"tenant": "u"}), (full, "c"))
    assert (await Awaited(full).stats()).pending == 3


@pytest.mark.promise("A target with `drop_oldest` drops its oldest message and emits the event.")
async def test_a_target_with_drop_oldest_drops_its_oldest_and_emits_the_event(shell: Shell) -> None:
    """The same rule as for a publish, and the same event, at each target for its own."""
    queue = shell.queue()
    events = [shell.events(), shell.events()]
    targets = [
        shell.queue(
            name,
            max_pending_length=2,
            pending_overload_policy="drop_oldest",
            max_delivery_count=None,
            on_event=heard.listen,
        )
        for name, heard in zip(("one", "other"), events, strict=True)
    ]
    for target in targets:
        await target.publish_many(["old", "older"])
    oldest = [heard.of("publish")[0].message_id for heard in events]
    await queue.publish("m")
    await hand_off(queue, *((target, "new") for target in targets))
    assert [await waiting(target) for target in targets] == [[b"older", b"new"]] * 2
    assert [[event.message_id for event in heard.of("dropped")] for heard in events] == [[one] for one in oldest]


@pytest.mark.promise("A result can have a tenant or a delay, and a tenant can be the target.")
async def test_a_result_may_be_for_a_tenant_and_for_later(shell: Shell) -> None:
    """The options of publish, in a third place; a queue's tenant may be named as the target, too."""
    queue, results = shell.queue(), shell.queue("results", wait=0)
    await queue.publish("m", tenant="source")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await hand_off(
        queue,
        (results, "a", {"tenant": "ä"}),
        (results, "b", {"delay_seconds": 100}),
        (results, "c", {"at": at, "tenant": "b"}),
        (results, "d", {}),
        (results, "e", {"tenant": None, "delay_seconds": None, "at": None}),
    )
    assert await Awaited(results).tenants() == {"ä": 1}
    delayed = await Awaited(results).peek(source="delayed")
    assert [(one.payload, one.tenant) for one in delayed] == [(b"b", None), (b"c", "b")]
    assert delayed[1].due_at == at
    assert sorted(await waiting(results)) == [b"a", b"d", b"e"]
    assert (await Awaited(queue).stats()).tenants == 0


@pytest.mark.promise("A result can have a tenant or a delay, and a tenant can be the target.")
async def test_a_tenant_can_be_a_target(shell: Shell) -> None:
    """What queue.tenant() gives publishes for that tenant here as well, and never into the common line."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        await Awaited(batch[0]).complete(publish=[(results.queue.tenant("acme"), "for acme")])
    assert await Awaited(results).tenants() == {"acme": 1}


@pytest.mark.promise("A hand-off wakes a waiting consumer of each target.")
async def test_a_sleeping_consumer_of_the_target_is_woken(shell: Shell) -> None:
    """As by a publish, for each target: for what waits, what is delayed, and what is a tenant's."""
    queue = shell.queue()
    await queue.publish("m")
    details = {"one": {}, "other": {"delay_seconds": 0.05}, "third": {"tenant": "new"}}
    asleep = {name: await blocked_consumer(shell, name) for name in details}
    await hand_off(queue, *((shell.queue(name), f"for {name}", options) for name, options in details.items()))
    for name, one in asleep.items():
        assert await one.wakes() == f"for {name}".encode()


@pytest.mark.promise("A hand-off wakes a waiting consumer of each target.")
async def test_results_for_several_wake_several(shell: Shell) -> None:
    """A woken consumer that leaves messages behind wakes up the next."""
    queue = shell.queue()
    await queue.publish("m")
    asleep = [await blocked_consumer(shell, "results") for _ in range(2)]
    results = shell.queue("results")
    await hand_off(queue, (results, "1"), (results, "2"))
    assert sorted([await one.wakes() for one in asleep]) == [b"1", b"2"]


async def test_each_target_gets_a_wakeup(shell: Shell) -> None:
    """If there was nothing before: for what waits, for a tenant, and for what is due first."""
    queue = shell.queue()
    targets = {name: shell.queue(name) for name in ("line", "tenant", "later", "busy")}
    await targets["busy"].publish("m")
    await queue.publish("m")
    for target in targets.values():
        shell.redis.delete(target.key.wakeup)
    details = {"tenant": {"tenant": "t"}, "later": {"delay_seconds": 100}}
    await hand_off(queue, *((target, "r", details.get(name, {})) for name, target in targets.items()))
    tokens = {name: shell.redis.llen(target.key.wakeup) for name, target in targets.items()}
    assert tokens == {"line": 1, "tenant": 1, "later": 1, "busy": 0}


@pytest.mark.promise("A message can be handed off to its own queue and needs no room there while it leaves.")
async def test_a_message_may_be_handed_to_its_own_queue(shell: Shell) -> None:
    """Its result is a new message at the tail, with a fresh id and budget; also for its own tenant."""
    queue = shell.queue(wait=0, max_delivery_count=1, deduplication=True)
    await queue.publish("first")
    await queue.publish("t0", tenant="t")
    await queue.publish("second")
    seen = []
    while True:
        async with queue.process_messages(1) as batch:
            if not batch:
                break
            message = batch[0]
            seen.append((message.payload, message.tenant, message.delivery_count))
            if not message.payload.endswith(b"again"):
                details = {} if message.tenant is None else {"tenant": message.tenant}
                await complete(message, (queue, f"{message.payload.decode()} again", details))
    assert sorted(one for one in seen if one[1] is None) == [
        (text, None, 1) for text in (b"first", b"first again", b"second", b"second again")
    ]
    assert [one for one in seen if one[1]] == [(b"t0", "t", 1), (b"t0 again", "t", 1)]
    assert {key for key in shell.leftovers(queue) if b"deduplication" not in key} == set()


@pytest.mark.promise("A message can be handed off to its own queue and needs no room there while it leaves.")
async def test_a_full_queue_does_not_count_the_message_that_leaves(shell: Shell) -> None:
    """What is in flight does not wait: a queue of one takes the result of its own message, and not two."""
    queue = shell.queue(max_pending_length=1)
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.QueueBackpressureError):
            await complete(batch[0], (queue, "a"), (queue, "b"))
        await complete(batch[0], (queue, "a"))
    assert await waiting(queue) == [b"a"]


@pytest.mark.promise("Two objects of one queue are one target, with one limit and one deduplication window.")
async def test_two_objects_of_one_queue_are_one_target(shell: Shell) -> None:
    """The limit holds for what both bring, and a duplicate of the other's is one."""
    queue = shell.queue()
    one, other = (shell.queue("results", max_pending_length=2, deduplication=True) for _ in range(2))
    for _ in range(2):
        await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.QueueBackpressureError):
            await complete(batch[0], (one, "a"), (other, "b"), (one, "c"))
        await complete(batch[0], (one, "a"), (other, "b"), (one, "b"))
    assert await waiting(one) == [b"a", b"b"]


@pytest.mark.promise("A hand-off publishes up to 1,000 results in order, and refuses more.")
async def test_a_thousand_results_fit_and_no_more(shell: Shell) -> None:
    """In their order; one more is refused before anything is done."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.ConfigurationError, match="1,000"):
            await complete(batch[0], *((results, str(number)) for number in range(1_001)))
        await complete(batch[0], *((results, str(number)) for number in range(1_000)))
    async with results.process_messages(1_000) as batch:
        assert [message.payload for message in batch] == [b"%d" % number for number in range(1_000)]


# Whose message it is


@pytest.mark.promise("A hand-off without a valid lease publishes nothing and raises `LeaseLostError`.")
async def test_a_consumer_that_lost_its_lease_hands_nothing_off(shell: Shell) -> None:
    """The new holder has it: nothing is published, and nothing of it is changed."""
    events = shell.events()
    queue, results = shell.queue(wait=0, on_event=events.listen), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        shell.lapse(queue)
        assert await claim_and_die(queue) == b"m"
        before = everything(shell)
        with pytest.raises(shell.module.LeaseLostError) as caught:
            await complete(batch[0], (results, "late"))
        assert (caught.value.queue, caught.value.message_id) == ("q", batch[0].id)
        assert everything(shell) == before
    assert events.names[-1] == "stale_lease_ack/skipped"
    assert (await Awaited(queue).stats()).processing == 1


@pytest.mark.promise("A lease that ran out stays valid until another consumer claims the message.")
async def test_a_lease_that_ran_out_stays_valid_until_another_consumer_claims(shell: Shell) -> None:
    """Without tenants, and with them, where it has returned to its line already."""
    results = shell.queue("results")
    for tenant in (None, "a"):
        queue = shell.queue(wait=0)
        await queue.publish("slow", tenant=tenant)
        async with queue.process_messages(1) as batch:
            shell.lapse(queue)
            if tenant:
                await queue.publish("other", tenant="b")
                assert await take(queue) == b"other"
                assert await Awaited(queue).tenants() == {"a": 1}
            await complete(batch[0], (results, "in time"))
        assert await take(queue) is None
        assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()
    assert await waiting(results) == [b"in time"] * 2


@pytest.mark.promise("A completed message has no lease to lose and reports none.")
async def test_the_heartbeat_of_a_completed_message_ends(shell: Shell) -> None:
    """Nobody is told of a lease that was lost: there is none to lose."""
    failures: list[str] = []
    queue = shell.queue(
        visibility_timeout_seconds=5,
        heartbeat_interval_seconds=0.02,
        on_heartbeat_failure=shell.callback(lambda: failures.append("failed")),
    )
    events = shell.events()
    listening = shell.queue("q", on_event=events.listen, visibility_timeout_seconds=5, heartbeat_interval_seconds=0.02)
    results = shell.queue("results")
    for consumer in (queue, listening):
        await queue.publish("m")
        async with consumer.process_messages(1) as batch:
            await complete(batch[0], (results, "r"))
            assert not batch[0].lease_lost
            await asyncio.sleep(0.1)
            assert not batch[0].lease_lost
    assert failures == []
    assert not [name for name in events.names if "stale" in name]


@pytest.mark.promise("A hand-off works in queues without leases.")
async def test_at_most_once_queues_hand_off_as_well(shell: Shell) -> None:
    """Without leases there is nothing to lose but the message itself."""
    queue, results = shell.queue(visibility_timeout_seconds=None), shell.queue("results")
    await queue.publish("m")
    await hand_off(queue, (results, "r"))
    assert await waiting(results) == [b"r"]
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


# What is told


@pytest.mark.promise(
    "The source emits `ack` and `handed_off`, each target emits its publishes, and a failed trim is reported as after "
    "an ack."
)
async def test_events_tell_of_both_sides(shell: Shell) -> None:
    """The source of an ack and a hand-off, each target of what was published there, with the ids that it has."""
    heard, there = shell.events(), shell.events()
    queue = shell.queue(on_event=heard.listen, enable_completed_queue=True)
    results = shell.queue("results", on_event=there.listen)
    await queue.publish("m")
    heard.clear()
    await hand_off(queue, (results, "a"), (results, "b"))
    assert heard.names == ["claim/success", "ack/success", "completed/success", "handed_off/success"]
    assert there.names == ["publish/success"] * 2
    assert [event.message_id for event in there.all] == [one.id for one in await Awaited(results).peek()]


@pytest.mark.promise(
    "The source emits `ack` and `handed_off`, each target emits its publishes, and a failed trim is reported as after "
    "an ack."
)
async def test_a_list_that_cannot_be_trimmed_emits_an_event(shell: Shell, user_without_ltrim: dict[str, str]) -> None:
    """As after an ack."""
    events = shell.events()
    queue = shell.queue(
        client=shell.new_client(**user_without_ltrim),
        enable_completed_queue=True,
        max_completed_length=1,
        on_event=events.listen,
    )
    for text in "ab":
        await queue.publish(text)
        await hand_off(queue)
    assert shell.listed(queue.key.completed) == [b"b", b"a"]
    assert "trim_failed/failure" in events.names


@pytest.mark.promise("No event, error or log line contains a payload.")
async def test_events_of_a_hand_off_contain_no_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of the message nor of its results: in events, errors and log lines, where it works and where it fails."""
    secret, heard, errors = "s3cret", shell.events(), []
    client = shell.lossy_client()
    options: dict[str, Any] = {"on_event": heard.listen, "client": client, "wait": 0}
    queue = shell.queue(**options, retry_budget_seconds=0, enable_completed_queue=True)
    full = shell.queue("full", max_pending_length=1, **options)
    small = shell.queue("small", max_payload_bytes=1, **options)
    spoiled, results = shell.queue("spoiled", **options), shell.queue("results", deduplication=True, **options)
    shell.redis.set(spoiled.key.pending, "no list")

    async def fails(message: Any, *publish: tuple[Any, ...]) -> None:
        with pytest.raises(Exception) as caught:  # whatever it is, it is looked at below
            await complete(message, *publish)
        errors.append(caught.value)

    with caplog.at_level(logging.DEBUG):
        await queue.publish_many([secret] * 3)
        async with queue.process_messages(3) as batch:
            await complete(batch[0], (results, secret), (results, secret), (full, secret, {"tenant": "t"}))
            await fails(batch[0], (results, secret))
            for target in (full, small, spoiled):
                await fails(batch[1], (target, secret))
            await fails(batch[1], (results, {"k": {secret}}))
            await fails(batch[1], (results, secret, {"delay_seconds": -1}))
            await fails(batch[1], secret)  # type: ignore[arg-type]  # no pair
            client.losses.reply()
            await fails(batch[1], (results, secret))
            await fails(batch[1], (results, secret))
            shell.lapse(queue)
            await claim_and_die(queue)
            await fails(batch[2], (results, secret))
    assert len(errors) == 10
    told = {event.operation for event in heard.all}
    assert {"handed_off", "publish_dedup_hit", "stale_lease_ack"} <= told
    assert [event for event in heard.all if secret in repr(event)] == []
    assert [error for one in errors for error in chain(one) if secret in f"{error!r} {error}"] == []
    assert secret not in caplog.text


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and what led to it."""
    return [] if error is None else [error, *chain(error.__cause__ or error.__context__)]


# When answers are lost


@pytest.mark.promise(
    "A hand-off that is retried after a lost reply takes effect once, and one that arrives late publishes nothing."
)
async def test_a_lost_answer_hands_off_once(shell: Shell) -> None:
    """However often the call is sent: the message leaves once, and each result enters once, where keys count or not."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, enable_completed_queue=True)
    plain, strict = shell.queue("plain", client=client), shell.queue("strict", client=client, deduplication=True)
    await queue.publish_many(["a", "b", "c"])
    for losses in (("reply",), ("request",), ("reply", "request", "reply")):
        async with queue.process_messages(1) as batch:
            message = batch[0]
            for one in losses:
                getattr(client.losses, one)()
            await complete(message, *((target, f"of {message.payload}") for target in (plain, strict)))
    for target in (plain, strict):
        assert [one.payload for one in await Awaited(target).peek()] == ["of a", "of b", "of c"]
    assert shell.listed(queue.key.completed) == [b"c", b"b", b"a"]
    assert (await Awaited(queue).stats()).processing == 0


@pytest.mark.promise(
    "If Redis is unreachable, a hand-off happened whole or not at all, and repeating one that arrived is refused."
)
async def test_when_redis_is_out_of_reach_nothing_is_certain_and_nothing_is_doubled(shell: Shell) -> None:
    """The error says so; a second try of the handler after the first one had arrived is refused."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, retry_budget_seconds=0)
    results = shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        client.losses.reply()
        with pytest.raises(shell.module.CleanupFailedError, match="all of it has happened, or nothing"):
            await complete(batch[0], (results, "r"))
        with pytest.raises(shell.module.LeaseLostError):
            await complete(batch[0], (results, "r"))
    assert await waiting(results) == [b"r"]
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


async def test_a_new_target_is_no_sign_of_a_flushed_server(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Its state is written at its first contact, in one more round trip; the state of the source is not missing."""
    queue, results = shell.queue(wait=0), shell.queue("results")
    shell.redis.delete(results.key.meta)
    await queue.publish_many(["a", "b"])
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        await hand_off(queue, (results, "r"))
        await hand_off(queue, (results, "s"))
    assert caplog.records == []
    assert await waiting(results) == [b"r", b"s"]


@pytest.mark.promise("`complete()` raises `CleanupFailedError` if Redis did not confirm it, and never a Redis error.")
@pytest.mark.parametrize("budget", [0, 0.05])
@pytest.mark.parametrize("has_results", [False, True])
async def test_a_hand_off_without_a_reply_raises_our_own_error(shell: Shell, budget: float, has_results: bool) -> None:
    """With and without results or retries. The error names the message, and its cause is what Redis or we said."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=budget, on_event=events.listen)
    results = shell.queue("results", client=client)
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        message = batch[0]
        client.losses.request(10_000)
        with pytest.raises(shell.module.CleanupFailedError) as caught:
            await complete(message, *([(results, "r")] if has_results else []))
        client.losses.heal()
        error = caught.value
        assert (error.queue, error.message_id, error.operation) == ("q", message.id, "complete")
        cause = shell.module.RetryBudgetExhaustedError if budget else redis.ConnectionError
        assert isinstance(error.__cause__, cause)
        assert events.the("cleanup_failed").message_id == message.id
        await complete(message, *([(results, "r")] if has_results else []))
    assert await waiting(results) == (["r"] if has_results else [])
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


@pytest.mark.promise("`complete()` raises `CleanupFailedError` if Redis did not confirm it, and never a Redis error.")
async def test_a_target_that_cannot_be_looked_for_is_our_own_error_too(shell: Shell) -> None:
    """Whether both queues are in one place is asked before anything is sent, and so the error says."""
    client = shell.new_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0)
    await queue.publish("m")
    results = shell.queue("results", client=shell.new_client())
    async with queue.process_messages(1) as batch:
        shell.redis.config_set("maxclients", 1)
        shell.redis.client_kill_filter(_type="normal", skipme=True)
        try:
            with pytest.raises(shell.module.CleanupFailedError, match="nothing was published"):
                await complete(batch[0], (results, "r"))
        finally:
            shell.redis.config_set("maxclients", 10_000)
        await complete(batch[0], (results, "r"))
    assert await waiting(results) == [b"r"]


@pytest.mark.promise(
    "A message whose `complete()` got no reply is left to its lease, like one whose acknowledgement got none."
)
@pytest.mark.parametrize("way", ["block", "callback", "run"])
@pytest.mark.parametrize("has_arrived", [False, True])
async def test_a_hand_off_without_a_reply_does_not_fail_its_message(
    shell: Shell, way: str, has_arrived: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis was out of reach, which is no fault of the message: it is neither removed nor a dead letter."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0, on_event=events.listen)
    results = shell.queue("results", client=client)
    await queue.publish("m")

    def handler(given: Any) -> Any:
        """Returns a coroutine if it is async."""
        (client.losses.reply if has_arrived else client.losses.request)()
        message = given if way == "run" else queue.current_message()
        return message.complete(publish=[(results.queue, "r")])

    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        if way == "run":
            assert (await queue.run(handler, until_empty=True)).failed == 1
        else:
            with pytest.raises(shell.module.CleanupFailedError):
                if way == "callback":
                    await queue.process_message_callback(handler)
                else:
                    async with queue.process_message() as payload:
                        if (awaitable := handler(payload)) is not None:
                            await awaitable
    assert "could not be completed; if Redis still has it" in caplog.text
    assert events.of("nack") == events.of("dlq") == []
    if not has_arrived:
        shell.lapse(queue)
    assert await take(queue) == (None if has_arrived else "m")
    assert await waiting(results) == (["r"] if has_arrived else [])
    assert shell.listed(queue.key.dead_letter) == []


# What is refused


@pytest.mark.promise("A result that cannot be published refuses the whole hand-off with the error of `publish()`.")
async def test_results_that_are_no_list_are_refused(shell: Shell) -> None:
    """With a typed error that names the parameter; the message is still in hand. A generator is a list as well."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        for wrong in (None, 7, "results", b"results", {results.queue: "m"}):
            with pytest.raises(shell.module.ConfigurationError, match="publish") as caught:
                await Awaited(batch[0]).complete(publish=wrong)
            assert isinstance(caught.value, TypeError)
        await Awaited(batch[0]).complete(publish=((results.queue, text) for text in ("a", "b")))
    assert await waiting(results) == [b"a", b"b"]


@pytest.mark.promise("A result that cannot be published refuses the whole hand-off with the error of `publish()`.")
async def test_a_result_that_cannot_be_published_refuses_all(shell: Shell) -> None:
    """Whatever is wrong with it, with the error that publish would give, before anything is done."""
    module = shell.module
    queue, results = shell.queue(), shell.queue("results", max_payload_bytes=10)
    moment = datetime.now(UTC)
    wrong: list[tuple[Any, type[Exception]]] = [
        ((), module.ConfigurationError),
        ((results.queue,), module.ConfigurationError),
        ((results.queue, "m", {}, "more"), module.ConfigurationError),
        ("no pair", module.ConfigurationError),
        (results.queue, module.ConfigurationError),
        (("results", "m"), module.ConfigurationError),
        ((shell.client, "m"), module.ConfigurationError),
        ((results.queue, 7), module.PayloadTypeError),
        ((results.queue, b"bytes"), module.PayloadTypeError),
        ((results.queue, {1: 2}), module.PayloadTypeError),
        ((results.queue, "\ud800"), module.PayloadValueError),
        ((results.queue, "longer than ten"), module.PayloadTooLargeError),
        ((results.queue, "m", None), module.ConfigurationError),
        ((results.queue, "m", 7), module.ConfigurationError),
        ((results.queue, "m", "tenant"), module.ConfigurationError),
        ((results.queue, "m", {"repeat_of": None}), module.ConfigurationError),
        ((results.queue, "m", {"queue": "q"}), module.ConfigurationError),
        ((results.queue, "m", {"tenant": ""}), module.PayloadValueError),
        ((results.queue, "m", {"tenant": 7}), module.PayloadTypeError),
        ((results.queue, "m", {"delay_seconds": -1}), module.ConfigurationError),
        ((results.queue, "m", {"delay_seconds": True}), module.ConfigurationError),
        ((results.queue, "m", {"at": moment.replace(tzinfo=None)}), module.ConfigurationError),
        ((results.queue, "m", {"at": moment, "delay_seconds": 1}), module.ConfigurationError),
    ]
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        before = everything(shell)
        for one, kind in wrong:
            with pytest.raises(kind):
                await Awaited(batch[0]).complete(publish=[(results.queue, "good"), one])
        assert everything(shell) == before
        await complete(batch[0], (results, "good"))
    assert await waiting(results) == [b"good"]


@pytest.mark.promise("A result that cannot be published refuses the whole hand-off with the error of `publish()`.")
async def test_a_key_function_that_fails_refuses_all(shell: Shell) -> None:
    """Its own error comes out, and nothing was done."""

    def broken(message: Any) -> str:
        raise LookupError("mine")

    queue = shell.queue()
    results = shell.queue("results", deduplication=True, get_deduplication_key=shell.callback(broken))
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(LookupError, match="mine"):
            await complete(batch[0], (results, "r"))
        assert (await Awaited(queue).stats()).processing == 1
    assert await waiting(results) == []


@pytest.mark.promise("A drained target refuses the whole hand-off; a drained source finishes what it started.")
async def test_a_drained_target_refuses_all(shell: Shell) -> None:
    """As it refuses a publish; the error says which queue it was."""
    queue, good, drained = shell.queue(), shell.queue("good"), shell.queue("drained")
    await drained.drain()
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.QueueDrainedError) as caught:
            await complete(batch[0], (good, "a"), (drained, "b"))
        assert caught.value.queue == "drained"
        assert await waiting(good) == []
        await complete(batch[0], (good, "a"))
    assert await waiting(good) == [b"a"]


@pytest.mark.promise("A drained target refuses the whole hand-off; a drained source finishes what it started.")
async def test_a_drained_source_finishes_what_it_has_started(shell: Shell) -> None:
    """A drain leaves handlers their messages, and their hand-offs."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        await queue.drain(0)
        await complete(batch[0], (results, "r"))
    assert await waiting(results) == [b"r"]


@pytest.mark.promise(
    "Targets must be in the same database of the same server, and share a hash tag on a cluster; others are refused."
)
async def test_a_target_elsewhere_is_refused(shell: Shell, dead_port: int) -> None:
    """Another server, and another database of the same: one script is one place."""
    queue = shell.queue()
    await queue.publish("m")
    elsewhere = [
        shell.queue("far", client=shell.dead_client(dead_port)),
        shell.queue("deep", client=shell.new_client(db=1)),
    ]
    async with queue.process_messages(1) as batch:
        for target in elsewhere:
            with pytest.raises(shell.module.ConfigurationError, match="another server"):
                await complete(batch[0], (target, "r"))
        nearby = shell.queue("near", client=shell.new_client())
        await complete(batch[0], (nearby, "r"))
    assert await waiting(nearby) == [b"r"]


@pytest.mark.promise(
    "The library tests whether two clients reach the same server and database; it does not compare their settings."
)
@pytest.mark.parametrize("spelling", ["from_url", "host and port", "localhost", "unix socket", "subclass"])
async def test_clients_of_one_server_are_one_place_however_they_are_made(
    shell: Shell, start_server: Any, tmp_path: Path, spelling: str
) -> None:
    """What counts is where their keys are: the database decides, too."""
    socket, server = str(tmp_path / "s"), shell.server
    if spelling == "unix socket":
        server = start_server(config={"unixsocket": socket})
    module: Any = redis if shell.name == "sync" else redis.asyncio
    queue = shell.queue(client=shell.closing(module.Redis(host="127.0.0.1", port=server.port)))

    def client(db: int) -> Any:
        kind = module.Redis
        if spelling == "subclass":
            kind = SubclassedRedis if shell.name == "sync" else SubclassedAsyncRedis
        made = {
            "from_url": lambda: kind.from_url(f"redis://127.0.0.1:{server.port}/{db}?protocol=3"),
            "localhost": lambda: kind(host="localhost", port=server.port, db=db),
            "unix socket": lambda: kind(unix_socket_path=socket, db=db),
        }.get(spelling, lambda: kind(host="127.0.0.1", port=server.port, db=db))
        return shell.closing(made())

    near, deep = shell.queue("near", client=client(0)), shell.queue("deep", client=client(1))
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.ConfigurationError, match="in another database"):
            await complete(batch[0], (near, "no"), (deep, "no"))
        await complete(batch[0], (near, "r"))
    assert (await waiting(near), await waiting(deep)) == ([b"r"], [])


@pytest.mark.promise(
    "The library tests whether two clients reach the same server and database; it does not compare their settings."
)
async def test_whether_two_clients_share_a_server_is_tested_once(shell: Shell) -> None:
    """Two more commands for the first hand-off between them, and a key that goes by itself."""
    queue, results = shell.queue(), shell.queue("results", client=shell.new_client())
    await queue.publish_many(["a", "b", "c"])
    await results.publish("warm-up")
    with Sent(shell.server) as sent:
        for _ in range(3):
            await hand_off(queue, (results, "r"))
    assert [word for word in sent.commands if word == "SET"] == ["SET"] * 2
    assert all(shell.redis.ttl(key) > 0 for key in shell.redis.keys("results::reply::*"))


@pytest.mark.promise("A queue with a custom gateway cannot be a target.")
async def test_custom_gateways_take_no_part(shell: Shell) -> None:
    """Neither as a target, nor one that is ours but publishes in its own way; the message is still in hand."""

    mine = silent_gateway(shell)
    auditing = type("Auditing", (shell.module.RedisGateway,), {"add_message": type(mine).add_message})
    queue = shell.queue()
    await queue.publish("m")
    for gateway, name in ((mine, "Mine"), (auditing(redis_client=shell.client), "Auditing")):
        target = shell.queue("custom", gateway=gateway)
        async with queue.process_messages(1) as batch:
            before = everything(shell)
            with pytest.raises(shell.module.GatewayContractError, match=name):
                await complete(batch[0], (target, "r"))
            assert everything(shell) == before
        await queue.publish("m")


@pytest.mark.promise("A sync queue refuses an async target and the reverse, before anything is done.")
async def test_a_sync_queue_refuses_an_async_target_and_the_reverse(shell: Shell) -> None:
    """With an error that names it, before anything is done or told, also beside a good one; the message is in hand."""
    heard: list[str] = []

    def listen(event: Any) -> None:
        heard.append(event.operation)

    async def listen_awaited(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append(event.operation)

    client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    other = shell.other_module.RedisMessageQueue(
        "other", client=client, on_event=listen if shell.name == "asyncio" else listen_awaited
    )
    queue, good = shell.queue(), shell.queue("good")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        before = everything(shell)
        for target in (other, other.tenant("t")):
            with pytest.raises(
                shell.module.ConfigurationError, match="'other' are not both sync or both async"
            ) as caught:
                await Awaited(batch[0]).complete(publish=[(good.queue, "r"), (target, "r")])
            assert isinstance(caught.value, TypeError)
            assert (caught.value.queue, caught.value.operation) == ("other", "complete")
        assert everything(shell) == before
        assert heard == []
        await complete(batch[0], (good, "r"))
    assert await waiting(good) == [b"r"]
    await (client.aclose() if shell.name == "sync" else Awaited(client).close())


@pytest.mark.promise(
    "A hand-off waits for no replica or disk confirmation, even if its targets require one of producers."
)
@pytest.mark.parametrize(
    ("promise", "refusal"),
    [({"confirm_replicas": 1}, "PublishNotConfirmedError"), ({"confirm_fsync": True}, "ConfigurationError")],
)
async def test_a_hand_off_waits_for_no_confirmation(shell: Shell, promise: dict[str, Any], refusal: str) -> None:
    """What a target wants of a publish it does not have here: the results are there, as safe as the message was."""
    queue = shell.queue()
    careful = shell.queue("careful", confirm_timeout_seconds=0.05, **promise)
    await queue.publish_many(["warm-up", "m"])
    await hand_off(queue, (shell.queue("other"), "r"))
    with Sent(shell.server) as sent:
        await hand_off(queue, (careful, "r"))
    assert sent.commands == ["EVALSHA"] * 2  # the claim, and the hand-off
    assert await waiting(careful) == [b"r"]
    assert (await Awaited(queue).stats()).processing == 0
    with pytest.raises(getattr(shell.module, refusal)):
        await careful.publish("nobody here can confirm it")


@pytest.mark.promise("Messages of a custom gateway cannot be handed off, unless it only overrides publishing.")
async def test_the_messages_of_a_custom_gateway_cannot_be_handed_off(shell: Shell) -> None:
    """It hands over payloads alone, so there is no message object to complete; its handler is served as ever."""
    gateways = {
        "claims": ("wait_for_message_and_move",),
        "settles": ("remove_message", "move_message"),
        "renews": ("renew_message_lease",),
    }
    results = shell.queue("results")
    for name, operations in gateways.items():
        kind = type(name, (shell.module.RedisGateway,), {one: overriding(shell, one) for one in operations})
        gateway = kind(redis_client=shell.client, message_visibility_timeout_seconds=60)
        queue = shell.queue(name, gateway=gateway)
        await queue.publish("m")
        async with queue.process_message() as message:
            assert message == b"m"
            with pytest.raises(shell.module.GatewayContractError, match="payloads alone"):
                await complete(queue.current_message(), (results, "r"))
        assert (shell.pending(queue), shell.processing(queue)) == (0, 0)
    assert await waiting(results) == []


@pytest.mark.promise("Messages of a custom gateway cannot be handed off, unless it only overrides publishing.")
async def test_a_gateway_that_only_publishes_in_its_own_way_may_be_the_source(shell: Shell) -> None:
    """Its messages are claimed and settled as any others; what it does with a publish is no matter of their leaving."""
    kind = type("Auditing", (shell.module.RedisGateway,), {"add_message": overriding(shell, "add_message")})
    gateway = kind(redis_client=shell.client, message_visibility_timeout_seconds=60)
    queue, results = shell.queue(gateway=gateway, enable_completed_queue=True), shell.queue("results")
    await queue.publish("m")
    await hand_off(queue, (results, "r"))
    assert await waiting(results) == [b"r"]
    assert shell.listed(queue.key.completed) == [b"m"]
    assert shell.processing(queue) == 0


def overriding(shell: Shell, operation: str) -> Any:
    """An operation of a gateway of one's own, which does what the built-in one does."""
    usual = getattr(shell.module.RedisGateway, operation)
    if shell.name == "sync":
        return lambda self, *arguments, **options: usual(self, *arguments, **options)

    async def awaited(self: Any, *arguments: Any, **options: Any) -> Any:
        return await usual(self, *arguments, **options)

    return awaited


@pytest.mark.promise(
    "A key of the wrong type, or a server out of memory, refuses the whole hand-off, and the message stays leased."
)
async def test_a_target_key_of_a_wrong_type_refuses_all(shell: Shell) -> None:
    """Fail closed: nothing is changed at any target, and the message is still in hand."""
    queue, good, spoiled = shell.queue(enable_completed_queue=True), shell.queue("good"), shell.queue("spoiled")
    await queue.publish("m")
    for key, details in (
        (spoiled.key.pending, {}),
        (spoiled.key.wakeup, {}),
        (spoiled.key.tenant_pending("t"), {"tenant": "t"}),
        (spoiled.key.tenant_ring, {"tenant": "t"}),
        (spoiled.key.delayed_messages, {"delay_seconds": 5}),
        (queue.key.completed, {}),
    ):
        async with queue.process_messages(1) as batch:
            shell.redis.set(key, "somebody else's")
            before = everything(shell)
            with pytest.raises(shell.module.LuaScriptError, match="WRONGTYPE"):
                await complete(batch[0], (good, "a"), (spoiled, "b", details))
            assert everything(shell) == before, key
            shell.redis.delete(key)
        await queue.publish("m")


@pytest.mark.promise(
    "A key of the wrong type, or a server out of memory, refuses the whole hand-off, and the message stays leased."
)
async def test_on_a_full_server_nothing_is_handed_off_and_everything_can_be_completed(
    shell: Shell, start_server: Any
) -> None:
    """A refused hand-off has changed nothing; without results it is an ack, which a full server takes."""
    server = start_server()
    with server.client() as onlooker:
        client = shell.closing(server.client() if shell.name == "sync" else server.async_client())
        queue = shell.queue(client=client, enable_completed_queue=True)
        results = shell.queue("results", client=client)
        await queue.publish_many(["a", "b"])
        await hand_off(queue, (results, "warm-up"))
        async with queue.process_messages(1) as batch:
            onlooker.config_set("maxmemory", 1)
            with pytest.raises(Exception, match="memory"):
                await complete(batch[0], (results, "r"))
            assert (onlooker.llen(results.key.pending), onlooker.hlen(queue.key.processing)) == (1, 1)
            await complete(batch[0])
            assert onlooker.hlen(queue.key.processing) == 0
            onlooker.config_set("maxmemory", 0)
        assert onlooker.lrange(queue.key.completed, 0, -1) == [b"b", b"a"]


@pytest.mark.promise(
    "Targets must be in the same database of the same server, and share a hash tag on a cluster; others are refused."
)
@pytest.mark.promise("Every feature works on a cluster.")
async def test_on_a_cluster_queues_share_a_hash_tag(shell: Shell, start_server: Any) -> None:
    """Those that do hand off as ever; one in another slot is refused with a word about tags."""
    server = start_server(config={"cluster-enabled": "yes"})
    with server.client() as node:
        node.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        assert await until(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO"))
    kind = redis.RedisCluster if shell.name == "sync" else redis.asyncio.RedisCluster
    client = shell.closing(kind(host=server.host, port=server.port))
    queue = shell.queue("{orders}in", client=client, enable_completed_queue=True)
    near, far = shell.queue("{orders}out", client=client, deduplication=True), shell.queue("far", client=client)
    await queue.publish("m", tenant="t")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.ConfigurationError, match="hash tag"):
            await complete(batch[0], (near, "r"), (far, "r"))
        await complete(batch[0], (near, "r"), (near, "s", {"tenant": "u"}), (queue, "t", {"delay_seconds": 100}))
    assert sorted(await waiting(near)) == [b"r", b"s"]
    assert [one.payload for one in await Awaited(queue).records("completed")] == [b"m"]
    assert (await Awaited(far).stats()).pending == 0
