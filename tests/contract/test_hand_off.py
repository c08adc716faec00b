"""A message is acknowledged and its results are published in one step."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.hand_offs import complete, everything, hand_off, waiting
from tests.contract.shells import (
    EVERY_WIRING,
    Awaited,
    Sent,
    Shell,
    take,
)

pytestmark = pytest.mark.topic("Hand-off")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


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
