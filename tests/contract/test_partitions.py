"""A queue with partitions: several queues in Redis behind one object, each with all guarantees."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import redis

from redis_message_queue import (
    ConfigurationError,
    LuaScriptError,
    PartitionCountError,
    QueueBackpressureError,
    QueueDrainedError,
    RegisteredQueue,
    RetryPolicy,
)
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.testing import fast_forward
from tests.contract.shells import (
    EVERY_WIRING,
    Awaited,
    Died,
    Shell,
    holding,
    only_woken,
    silent_gateway,
    take,
    until,
)

pytestmark = pytest.mark.topic("Partitions")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


def parted(shell: Shell, count: int = 3, **options: Any) -> Any:
    return shell.queue(**{"wait": 0, "partitions": count} | options)


def part(queue: Any, number: int) -> Any:
    return queue.queue.partition(number)


async def depths(queue: Any) -> list[int]:
    """How many messages wait in each partition."""
    return [(await Awaited(part(queue, number)).stats()).pending for number in range(queue.queue.partitions)]


def keys_for(count: int, of: int = 3) -> list[str]:
    """A key for each partition, so often."""
    found: dict[int, list[str]] = {number: [] for number in range(of)}
    candidates = (f"key-{number}" for number in range(10_000))
    while any(len(keys) < count for keys in found.values()):
        key = next(candidates)
        found[partition_of(key, of)].append(key)
    return [key for number in range(of) for key in found[number][:count]]


async def drained(queue: Any) -> list[Any]:
    """Everything that waits, in the order of delivery."""
    found = []
    while (message := await take(queue)) is not None:
        found.append(message)
    return found


# -- which partition


@pytest.mark.promise(
    "The partition of a key is the jump consistent hash of the first 8 bytes of its SHA-256, in every release."
)
def test_the_partition_of_a_key_never_changes() -> None:
    """These numbers are part of the stored format."""
    keys = ["", "a", "acme", "grüße", "order-17"]
    assert [partition_of(key, 1) for key in keys] == [0, 0, 0, 0, 0]
    assert [partition_of(key, 8) for key in keys] == [5, 1, 1, 5, 2]
    assert [partition_of(key, 1000) for key in keys] == [22, 912, 126, 701, 680]


def test_growing_moves_keys_to_new_partitions_only() -> None:
    """From 4 to 5 partitions one key of five moves, and all of those to the fifth."""
    places = [(partition_of(f"key-{number}", 4), partition_of(f"key-{number}", 5)) for number in range(5_000)]
    moved = [after for before, after in places if before != after]
    assert set(moved) == {4}
    assert 800 < len(moved) < 1200
    assert min(Counter(after for _, after in places).values()) > 800


@pytest.mark.promise(
    "`partition_key` decides on the partition; else the tenant, else the deduplication key, else each in turn."
)
@every_wiring
async def test_a_key_decides_on_the_partition(shell: Shell) -> None:
    queue = parted(shell)
    first, second, third = keys_for(1)
    await queue.publish("a", partition_key=second, tenant=third, deduplication_key=first)
    assert await depths(queue) == [0, 1, 0]
    await queue.publish_many(["b", "c"], partition_key=second)
    receipt = await Awaited(queue).submit("d", tenant=third, deduplication_key=second)
    assert receipt.accepted
    await queue.publish("e", deduplication_key=first)
    assert await depths(queue) == [1, 3, 1]
    (one, two) = await Awaited(queue).submit_many(["f", "g"], partition_key=first)
    assert one.accepted and two.accepted and one.id != two.id
    await Awaited(queue.queue.tenant(third)).publish("h")
    assert await depths(queue) == [3, 3, 2]


async def test_messages_without_a_key_take_turns(shell: Shell) -> None:
    queue = parted(shell)
    for number in range(6):
        await queue.publish(str(number))
    assert await depths(queue) == [2, 2, 2]
    assert all(await queue.publish_many(str(number) for number in range(2_500)))
    assert sorted(await depths(queue)) == [502, 1002, 1002]


@pytest.mark.promise("With partitions, order holds among messages with the same partition key or tenant.")
async def test_messages_with_one_key_keep_their_order(shell: Shell) -> None:
    queue = parted(shell)
    keys = keys_for(1)
    for number in range(5):
        for key in keys:
            await queue.publish({"key": key, "number": number}, partition_key=key)
    seen: dict[str, list[int]] = {key: [] for key in keys}
    async with queue.process_messages(1) as batch:
        seen[batch[0].json()["key"]].append(batch[0].json()["number"])
    while sum(map(len, seen.values())) < 15:
        async with queue.process_messages(2) as batch:
            for message in batch:
                seen[message.json()["key"]].append(message.json()["number"])
    assert seen == {key: [0, 1, 2, 3, 4] for key in keys}


@pytest.mark.promise("With partitions, a deduplication key suppresses duplicates in the whole queue.")
async def test_deduplication_holds_for_the_whole_queue(shell: Shell) -> None:
    """Unless partition keys put the same message into two partitions."""
    queue = parted(shell, deduplication=True)
    texts = [f"message {number}" for number in range(30)]
    assert await queue.publish_many([*texts, *texts]) == [True] * 30 + [False] * 30
    assert all(await depths(queue))
    assert not any([await queue.publish(text) for text in texts])
    receipts = await Awaited(queue).submit_many(texts)
    waiting = {one.id for one in await Awaited(queue).peek(100)}
    assert {one.duplicate_of for one in receipts} == waiting
    first, second, _ = keys_for(1)
    assert [await queue.publish("a", partition_key=key) for key in (first, second, first)] == [True, True, False]


async def test_the_function_for_deduplication_keys_is_called_once_for_each_message(shell: Shell) -> None:
    asked = []

    def key(message: Any) -> str:
        asked.append(message)
        return str(message)

    queue = parted(shell, deduplication=True, get_deduplication_key=shell.callback(key))
    await queue.publish("a")
    assert await queue.publish_many(["a", "b"]) == [False, True]
    assert asked == ["a", "a", "b"]
    with pytest.raises(TypeError):
        await queue.publish_many(["c", object()])
    assert "c" not in asked


# -- consuming


@pytest.mark.promise("With partitions, each partition is served within as many claims as there are partitions.")
async def test_no_partition_starves(shell: Shell) -> None:
    """Two have much to do, and a message in the third is served within three claims."""
    queue = parted(shell)
    first, second, third = keys_for(1)
    await queue.publish_many(["many"] * 50, partition_key=first)
    await queue.publish_many(["many"] * 50, partition_key=second)
    for _ in range(10):
        await queue.publish("one", partition_key=third)
        assert b"one" in [await take(queue) for _ in range(3)]


@every_wiring
async def test_a_batch_comes_from_one_partition_and_the_next_from_another(shell: Shell) -> None:
    queue = parted(shell)
    for key in keys_for(1):
        await queue.publish_many([key] * 4, partition_key=key)
    batches = []
    for _ in range(3):
        async with queue.process_messages(10) as batch:
            batches.append({message.payload for message in batch})
            assert len(batch) == 4
    assert [len(batch) for batch in batches] == [1, 1, 1]
    assert len(set.union(*batches)) == 3
    async with queue.process_messages(10) as batch:
        assert len(batch) == 0


@pytest.mark.promise("With partitions, a publish to any of them wakes a waiting consumer.")
async def test_a_publish_wakes_a_consumer_whatever_its_partition(shell: Shell) -> None:
    queue = only_woken(shell, partitions=3)
    for number in (0, 1, 2, 1):
        waiting = shell.beside(lambda: take(queue))
        await until(lambda: _is_blocked(shell))
        await Awaited(part(queue, number)).publish(str(number))
        assert await waiting == shell.payload(str(number))


async def test_every_waiting_consumer_gets_its_message(shell: Shell) -> None:
    """Each wake-up wakes one; a message in each partition wakes three."""
    queue = only_woken(shell, partitions=3)
    waiting = [shell.beside(lambda: take(queue)) for _ in range(3)]
    await until(lambda: _is_blocked(shell, 3))
    for number in range(3):
        await Awaited(part(queue, number)).publish(str(number))
    assert sorted([await one for one in waiting]) == [shell.payload(str(number)) for number in range(3)]


async def test_a_delay_that_ends_in_any_partition_wakes_a_consumer(shell: Shell) -> None:
    """Its timer is set when it is published, and nothing else happens."""
    queue = only_woken(shell, partitions=3)
    for key in keys_for(1):
        waiting = shell.beside(lambda: take(queue))
        await until(lambda: _is_blocked(shell))
        await queue.publish(key, partition_key=key, delay_seconds=0.2)
        assert await waiting == shell.payload(key)


async def test_a_consumer_that_leaves_with_a_message_passes_its_timers_on(shell: Shell) -> None:
    """It is the timer owner of one partition and gets a message of another: somebody else must wake up in time."""
    queue = only_woken(shell, partitions=2)
    first, second = keys_for(1, of=2)
    waiting = [shell.beside(lambda: take(queue)) for _ in range(2)]
    await until(lambda: _is_blocked(shell, 2))
    await queue.publish("later", partition_key=first, delay_seconds=1)
    await until(lambda: shell.redis.exists(part(queue, 0).key.timer_owner))
    await until(lambda: _is_blocked(shell, 2))
    await queue.publish("now", partition_key=second)
    await queue.publish("now", partition_key=second)
    third = shell.beside(lambda: take(queue))
    assert sorted([await one for one in (*waiting, third)]) == [shell.payload(one) for one in ("later", "now", "now")]


@every_wiring
@pytest.mark.parametrize("options", [{}, {"prefetch": 10}, {"prefetch": 5, "concurrency": 3}, {"batch_size": 4}])
async def test_a_loop_serves_all_partitions(shell: Shell, options: dict[str, int]) -> None:
    queue = parted(shell, enable_completed_queue=True)
    sent = [f"message {number}" for number in range(60)]
    for text in sent:
        await queue.publish(text)
    handled: list[Any] = []

    def handle(messages: Any) -> None:
        handled.extend(one.payload for one in (messages if isinstance(messages, list) else [messages]))

    summary = await queue.run(shell.callback(handle), until_empty=True, **options)
    assert (summary.handled, summary.attempts) == (60, 60)
    assert sorted(handled) == sorted(map(shell.payload, sent))
    stats = await queue.stats()
    assert (stats.pending, stats.processing, stats.completed) == (0, 0, 60)


async def test_failures_retries_and_dead_letters_stay_in_their_partition(shell: Shell) -> None:
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0.001, max_delay_seconds=0.001)
    queue = parted(shell, retry_policy=policy)
    first, second, third = keys_for(1)
    for key in (first, second, third):
        await queue.publish(key, partition_key=key)

    def handle(message: Any) -> None:
        if message.payload != shell.payload(first):
            raise ValueError(message.payload)

    summary = await queue.run(shell.callback(handle), until_empty=True, wait_for_retries=True)
    assert (summary.handled, summary.dead_lettered, summary.retried) == (1, 2, 2)
    letters = [await Awaited(part(queue, number)).records() for number in range(3)]
    assert [[one.payload for one in some] for some in letters] == [[], [second.encode()], [third.encode()]]
    assert {one.payload for one in await Awaited(queue).records()} == {second.encode(), third.encode()}


async def test_a_crashed_consumer_loses_no_message(shell: Shell) -> None:
    queue = parted(shell, 2, visibility_timeout_seconds=60)
    await queue.publish_many(["a"], partition_key=keys_for(1, of=2)[1])
    async with holding(queue) as message:
        assert message == b"a"
    assert await take(queue) is None
    fast_forward(shell.redis, 61, queue.queue)
    assert await take(queue) == b"a"


async def test_heartbeats_renew_the_messages_of_all_partitions(shell: Shell) -> None:
    """One loop holds messages of three partitions and renews them together."""
    events = shell.events()
    queue = parted(shell, visibility_timeout_seconds=60, heartbeat_interval_seconds=0.02, on_event=events.listen)
    for key in keys_for(1):
        await queue.publish(key, partition_key=key)

    async def handle(messages: Any) -> None:
        wanted = {one.id for one in messages}
        await until(lambda: wanted <= {event.message_id for event in events.all if event.operation == "lease_renew"})

    await queue.run(shell.handler(handle), batch_size=3, batch_seconds=5, until_empty=True)
    assert (await queue.stats()).processing == 0
    assert not events.of("stale_lease_renew")


async def test_an_exception_in_a_batch_requeues_it(shell: Shell) -> None:
    queue = parted(shell)
    await queue.publish_many(["a", "b", "c"], partition_key="k")
    with contextlib.suppress(Died):
        async with queue.process_messages(3) as batch:
            await batch.ack(batch[0])
            raise Died
    with pytest.raises(ValueError):
        fast_forward(shell.redis, 301, queue.queue)
        async with queue.process_messages(3) as batch:
            assert [one.payload for one in batch] == [b"b", b"c"]
            raise ValueError
    assert [one.payload for one in await Awaited(queue).peek(5)] == [b"b", b"c"]


@pytest.mark.promise("With partitions, `message.complete()` works; a partitioned queue cannot be a target of it.")
async def test_a_message_can_be_completed_and_handed_off(shell: Shell) -> None:
    queue, target = parted(shell, 2), shell.queue("target", wait=0)
    for key in keys_for(1, of=2):
        await queue.publish(key, partition_key=key)
    for _ in range(2):
        async with queue.process_messages(1) as batch:
            with pytest.raises(ConfigurationError, match=r"a queue with partitions cannot be a target"):
                await Awaited(batch[0]).complete(publish=[(queue.queue, "again")])
            await Awaited(batch[0]).complete(publish=[(target.queue, "result"), (part(queue, 1), "here")])
    assert (await target.stats()).pending == 2
    assert await depths(queue) == [0, 2]
    assert (await queue.stats()).processing == 0


async def test_the_current_message_is_known(shell: Shell) -> None:
    queue = parted(shell)
    await queue.publish("a", tenant="acme")
    async with queue.process_message():
        message = queue.current_message()
        assert message is not None
        assert (message.tenant, message.queue) == ("acme", "q")
    assert queue.current_message() is None


# -- lost requests and replies, drains


@pytest.mark.parametrize("fate", ["reply", "request"])
async def test_a_claim_without_an_answer_is_recovered_by_the_next_call(shell: Shell, fate: str) -> None:
    """Whatever partition it was about: no message is lost or delivered twice."""
    client = shell.lossy_client()
    queue = parted(shell, client=client, retry_budget_seconds=0)
    sent = [str(number) for number in range(9)]
    for text in sent:
        await queue.publish(text)
    found = []
    for _ in range(9):
        getattr(client.losses, fate)()
        with pytest.raises(redis.exceptions.ConnectionError):
            await take(queue)
        found.append(await take(queue))
    assert sorted(found) == sent
    assert (await queue.stats()).processing == 0


async def test_a_claim_that_is_retried_takes_one_message(shell: Shell) -> None:
    """With a retry budget the same call is sent again, or asked for after a look at the other partitions."""
    client = shell.lossy_client()
    queue = parted(shell, client=client)
    for number in range(9):
        await queue.publish(str(number))
    found = []
    for _ in range(9):
        client.losses.reply()
        message = None
        while message is None:
            message = await take(queue)
        found.append(message)
    assert sorted(found) == [str(number) for number in range(9)]
    assert (await queue.stats()).processing == 0


async def test_a_drain_requeues_what_claims_may_have_taken(shell: Shell) -> None:
    client = shell.lossy_client()
    queue = parted(shell, client=client, retry_budget_seconds=0)
    for number in range(3):
        await queue.publish(str(number))
    for _ in range(3):
        consumer = parted(shell, client=client, retry_budget_seconds=0)
        client.losses.reply()
        with pytest.raises(redis.exceptions.ConnectionError):
            await take(consumer)
        assert await consumer.drain() is True
        assert (await queue.stats()).processing == 0
    assert await queue.drain() is True
    with pytest.raises(QueueDrainedError):
        await queue.publish("late")
    assert await take(queue) is None
    assert await depths(parted(shell)) == [1, 1, 1]


async def test_an_ack_without_an_answer_is_sent_again(shell: Shell) -> None:
    client = shell.lossy_client()
    queue = parted(shell, client=client)
    for number in range(6):
        await queue.publish(str(number))
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(message.payload)
        client.losses.reply()

    summary = await queue.run(shell.callback(handle), prefetch=2, until_empty=True)
    assert summary.handled == 6
    assert sorted(handled) == [str(number) for number in range(6)]
    assert (await queue.stats()).processing == 0


# -- limits


@pytest.mark.promise("With partitions, `max_pending_length` is the limit of each partition.")
async def test_the_limit_is_that_of_a_partition(shell: Shell) -> None:
    queue = parted(shell, max_pending_length=2)
    first, second, _ = keys_for(1)
    assert await queue.publish_many(["a", "b"], partition_key=first) == [True, True]
    with pytest.raises(QueueBackpressureError):
        await queue.publish("c", partition_key=first)
    assert await queue.publish("c", partition_key=second) is True


async def test_an_error_says_what_was_published_before(shell: Shell) -> None:
    """Messages without a key go to one partition after the other, a thousand at a time."""
    queue = parted(shell, 2, max_pending_length=1500)
    with pytest.raises(QueueBackpressureError) as refusal:
        await queue.publish_many(str(number) for number in range(5_000))
    assert refusal.value.results == [True] * sum(await depths(queue))
    keyed = parted(shell, 2, name="keyed", deduplication=True, max_pending_length=100)
    with pytest.raises(QueueBackpressureError) as refusal:
        await keyed.publish_many(f"keyed {number}" for number in range(1_000))
    assert refusal.value.results == []


# -- operators


@pytest.mark.promise("With partitions, operators work on the whole queue, or on one with `queue.partition(number)`.")
@every_wiring
async def test_operators_see_the_whole_and_the_parts(shell: Shell) -> None:
    queue = parted(shell, enable_failed_queue=True, journal=True)
    ask, keys = Awaited(queue), keys_for(2)
    receipts = await ask.submit_many(["a"], tenant=keys[0])
    for key in keys:
        await queue.publish(key, tenant=key)
    await queue.publish("later", tenant=keys[0], delay_seconds=60)
    stats = await queue.stats()
    assert (stats.pending, stats.delayed, stats.tenants) == (7, 1, 6)
    assert stats.oldest_pending_seconds is not None
    assert await depths(queue) == [3, 2, 2]
    assert await ask.tenants() == {keys[0]: 2} | dict.fromkeys(keys[1:], 1)
    assert await Awaited(queue.queue.tenant(keys[0])).length() == 2
    assert [one.payload for one in await ask.peek(1, source="delayed")] == [shell.payload("later")]
    assert {one.payload for one in await ask.peek(100)} == {shell.payload(one) for one in ("a", *keys)}
    assert (await ask.get(receipts[0].id)).state == "pending"
    assert [one.event for one in await ask.trace(receipts[0].id)] == ["published"]
    assert await ask.get("00" * 16) is None

    def fail(message: Any) -> None:
        raise ValueError(message.id)

    assert (await queue.run(shell.callback(fail), until_empty=True)).failed == 7
    assert len(await ask.records("failed")) == 7
    assert len(await ask.records("failed", max_records=3)) == 3
    done = await ask.redrive_failed(max_messages=4)
    assert (done.matched, done.redriven) == (4, 4)
    done = await ask.redrive_failed(where=lambda record: record.tenant == keys[-1])
    assert done.matched <= 1
    assert (await queue.stats()).pending == 4 + done.redriven
    length = await Awaited(queue.queue.tenant(keys[0])).length()
    assert await Awaited(queue.queue.tenant(keys[0])).delete() == length
    waiting = (await queue.stats()).pending
    assert await ask.purge("pending") == waiting
    assert await ask.purge("delayed") == 1
    assert (await queue.stats()).pending == 0


async def test_a_message_is_cancelled_wherever_it_is(shell: Shell) -> None:
    queue = parted(shell)
    ask = Awaited(queue)
    for key in keys_for(1):
        await queue.publish("other", partition_key=key)
        waiting = await ask.submit("waiting", partition_key=key)
        delayed = await ask.submit("delayed", partition_key=key, delay_seconds=60)
        assert await ask.cancel(delayed.id) == "cancelled"
        assert await ask.cancel(waiting.id) == "marked"
    assert await drained(queue) == [b"other"] * 3
    assert await ask.cancel("00" * 16) == "unknown"


async def test_a_full_server_lets_a_delayed_message_be_cancelled_in_any_partition(shell: Shell) -> None:
    """Another partition, where messages wait, refuses a mark. An id that nobody knows is refused, too."""
    queue = parted(shell)
    ask = Awaited(queue)
    delayed = []
    for key in keys_for(1):
        await queue.publish("waiting", partition_key=key)
        delayed.append(await ask.submit("delayed", partition_key=key, delay_seconds=60))
    shell.redis.config_set("maxmemory", 1)
    try:
        assert [await ask.cancel(one.id) for one in delayed] == ["cancelled"] * 3
        with pytest.raises(LuaScriptError, match="maxmemory"):
            await ask.cancel("00" * 16)
    finally:
        shell.redis.config_set("maxmemory", 0)
    assert (await queue.stats()).delayed == 0
    assert await drained(queue) == [b"waiting"] * 3


async def test_each_schedule_is_in_one_partition_and_its_ticks_are_published_once(shell: Shell) -> None:
    queue = parted(shell)
    ask, names = Awaited(queue), keys_for(1)
    for name in names:
        assert await ask.schedule(name, message=name, every_seconds=3600) is True
        assert await ask.schedule(name, message=name, every_seconds=3600) is False
    assert [len(await Awaited(part(queue, number)).schedules()) for number in range(3)] == [1, 1, 1]
    assert sorted(one.name for one in await ask.schedules()) == sorted(names)
    fast_forward(shell.redis, 3601, queue.queue)
    handled: list[Any] = []
    while len(handled) < 3:
        handled += [message for message in [await take(queue)] if message is not None]
    assert sorted(handled) == sorted(name.encode() for name in names)
    assert await take(queue) is None
    assert await ask.schedule(names[0], message="moved", every_seconds=3600, tenant=names[1]) is True
    assert [len(await Awaited(part(queue, number)).schedules()) for number in range(3)] == [0, 2, 1]
    assert [await ask.unschedule(name) for name in names] == [True, True, True]
    assert await ask.unschedule(names[0]) is False


async def test_records_of_all_partitions_are_sorted(shell: Shell) -> None:
    queue = parted(shell, enable_completed_queue=True)
    for number in range(9):
        await queue.publish(str(number))
        assert await take(queue) == str(number).encode()
    found = [one.payload for one in await Awaited(queue).records("completed")]
    assert found == [str(number).encode() for number in reversed(range(9))]


async def test_all_partitions_are_paused_and_resumed(shell: Shell) -> None:
    queue = only_woken(shell, partitions=3)
    ask = Awaited(queue)
    assert await ask.pause() is True
    assert await ask.pause() is False
    assert await ask.is_paused() is True
    await queue.publish("a")
    waiting = shell.beside(lambda: take(queue))
    await until(lambda: _is_blocked(shell))
    assert await ask.resume() is True
    assert await waiting == b"a"
    assert await ask.is_paused() is False
    await Awaited(part(queue, 1)).pause()
    assert await ask.is_paused() is False


async def test_a_tenant_is_paused_in_all_partitions(shell: Shell) -> None:
    queue = parted(shell)
    ask = Awaited(queue)
    for key in keys_for(1):
        await queue.publish("a", tenant="acme", partition_key=key)
    assert await ask.pause(tenant="acme") is True
    assert (await ask.is_paused(tenant="acme"), list(await ask.paused_tenants())) == (True, ["acme"])
    assert (await queue.stats()).paused_tenants == 1
    assert await take(queue) is None
    assert await ask.resume(tenant="acme") is True
    assert await drained(queue) == [b"a"] * 3


async def test_the_keys_are_those_of_a_partition(shell: Shell) -> None:
    queue = parted(shell)
    with pytest.raises(ConfigurationError, match=r"use queue\.partition\(number\)\.key"):
        _ = queue.key
    assert [part(queue, number).key.pending for number in range(3)] == [
        "q::pending",
        "q::partition::1::pending",
        "q::partition::2::pending",
    ]
    tagged = parted(shell, hash_tag=True)
    assert [part(tagged, number).key.pending for number in range(3)] == [
        "{q}::pending",
        "{q::partition::1}::pending",
        "{q::partition::2}::pending",
    ]
    for number in (-1, 3):
        with pytest.raises(ConfigurationError, match="number must be from 0 to 2"):
            part(queue, number)
    plain = shell.queue()
    assert (plain.queue.partitions, part(plain, 0).key) == (1, plain.key)
    with pytest.raises(ConfigurationError, match="reserved word 'partition'"):
        shell.queue("q::partition::1")


# -- the number of partitions


@pytest.mark.promise("A queue object with another number of partitions than the stored one is refused by every call.")
@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (3, 4), (4, 3)])
async def test_another_number_is_refused(shell: Shell, before: int, after: int) -> None:
    await shell.queue(partitions=before).publish("a")
    if before == 1:
        shell.redis.hset("q::meta", "partitions", 1)
    everything = {key: shell.redis.dump(key) for key in shell.redis.keys("*") if b"reply" not in key}
    other = shell.queue(partitions=after, wait=0)
    ask = Awaited(other)
    for call in (
        lambda: other.publish("b"),
        lambda: other.publish_many(["b"]),
        lambda: take(other),
        other.stats,
        lambda: ask.peek(1),
        lambda: ask.records(),
        lambda: ask.tenants(),
        lambda: ask.pause(),
        lambda: ask.purge("pending"),
        lambda: ask.redrive_dead_letters(),
        lambda: ask.get("00" * 16),
    ):
        with pytest.raises(PartitionCountError, match=f"partitions={before}|{before} partitions|no partitions"):
            await call()
    assert {key: shell.redis.dump(key) for key in shell.redis.keys("*") if b"reply" not in key} == everything


@pytest.mark.promise("`grow_partitions()` gives a queue more partitions; its messages stay where they are.")
@pytest.mark.parametrize("before", [1, 2])
async def test_a_queue_grows(shell: Shell, before: int) -> None:
    old = shell.queue(partitions=before, journal=True, wait=0, tenant_weights={"acme": 2})
    for number in range(4):
        await old.publish(str(number))
    await Awaited(old).pause()
    assert await Awaited(old).grow_partitions(5) == before
    for call in (lambda: old.publish("late"), lambda: take(old), old.stats):
        with pytest.raises(PartitionCountError):
            await call()
    queue = parted(shell, 5)
    assert sum(await depths(queue)) == 4
    assert await Awaited(part(queue, 0)).is_paused() is True, "the state of a partition is kept"
    await Awaited(queue).resume()
    assert sorted(await drained(queue)) == [b"0", b"1", b"2", b"3"]
    assert await Awaited(queue).grow_partitions(5) == 5
    assert await queue.publish("a") is True


async def test_a_growth_that_was_interrupted_can_be_repeated(shell: Shell) -> None:
    """At each point: clients with either number are refused in the partitions that are not theirs yet, and no more."""
    for cut in range(1, 8):
        shell.redis.flushall()
        client = shell.lossy_client()
        old = parted(shell, 2, client=client, retry_budget_seconds=0)
        await old.publish_many(["a"], partition_key=keys_for(1, of=2)[0])
        await old.publish_many(["b"], partition_key=keys_for(1, of=2)[1])
        client.losses.pass_on(cut - 1)
        client.losses.reply()
        with contextlib.suppress(redis.exceptions.ConnectionError):
            await Awaited(old).grow_partitions(4)
        client.losses.heal()
        await Awaited(parted(shell, 2)).grow_partitions(4)
        queue = parted(shell, 4)
        assert sorted(await drained(queue)) == [b"a", b"b"]
        for key in keys_for(1, of=4):
            assert await queue.publish("x", partition_key=key) is True
        with pytest.raises(PartitionCountError):
            await take(old)


async def test_what_cannot_grow_is_refused(shell: Shell) -> None:
    queue = parted(shell, 3)
    with pytest.raises(ConfigurationError, match="there is no queue 'q' to grow"):
        await Awaited(queue).grow_partitions(4)
    await queue.publish("a")
    with pytest.raises(ConfigurationError, match="partitions must be at least 3"):
        await Awaited(queue).grow_partitions(2)
    with pytest.raises(ConfigurationError, match="this is a partition of a queue"):
        await Awaited(part(queue, 1)).grow_partitions(5)
    for wrong in (0, -1, 1001, True, "3", None):
        with pytest.raises(ConfigurationError, match="partitions must be"):
            await Awaited(queue).grow_partitions(wrong)


async def test_a_claim_is_refused_after_its_queue_has_grown_and_the_message_comes_again(shell: Shell) -> None:
    """An ack of a client with the old number is refused, too: the message is delivered again when its lease ends."""
    old = parted(shell, 2)
    await old.publish("a")
    with pytest.raises(Exception, match="could not be acknowledged"):
        async with old.process_message() as message:
            assert message == b"a"
            await Awaited(parted(shell, 2)).grow_partitions(3)
    fast_forward(shell.redis, 301, parted(shell, 3).queue)
    assert await take(parted(shell, 3)) == b"a"


async def test_a_queue_with_partitions_survives_a_flush(shell: Shell) -> None:
    queue = parted(shell)
    await queue.publish("a")
    shell.redis.flushall()
    for number in range(3):
        await Awaited(part(queue, number)).publish(str(number))
    assert sorted(await drained(queue)) == [b"0", b"1", b"2"]


async def test_the_registry_has_one_entry_with_the_number(shell: Shell) -> None:
    queue = parted(shell, hash_tag=True)
    for key in keys_for(1):
        await queue.publish(key, partition_key=key)
    found = shell.module.queues(shell.client)
    (one,) = await found if shell.name == "asyncio" else found
    assert one == RegisteredQueue(name="{q}", partitions=3)
    opened = shell.module.open_registered(one, shell.client)
    assert (await Awaited(opened).stats()).pending == 3


# -- what cannot be combined


async def test_options_that_know_nothing_of_partitions_are_refused(shell: Shell) -> None:
    with pytest.raises(ConfigurationError, match="cannot be combined with a custom gateway"):
        shell.queue(partitions=2, gateway=silent_gateway(shell))
    with pytest.raises(ConfigurationError, match="cannot be combined with dead_letter_queue"):
        shell.queue(partitions=2, gateway=shell.gateway(dead_letter_queue="graveyard"))
    kind = type("Mine", (shell.module.RedisGateway,), {"trim_queue": lambda *arguments: None})
    with pytest.raises(ConfigurationError, match="cannot be combined with a gateway that overrides operations"):
        shell.queue(partitions=2, gateway=kind(redis_client=shell.client))
    for wrong in (0, -1, 1001, True, 1.5, "3", None):
        with pytest.raises(ConfigurationError, match="partitions must be"):
            shell.queue(partitions=wrong)
    for bad_key in ("", 3, b"k"):
        for queue in (parted(shell), shell.queue()):
            with pytest.raises(ConfigurationError, match="partition_key"):
                await queue.publish("a", partition_key=bad_key)


async def test_a_queue_without_partitions_takes_a_partition_key(shell: Shell) -> None:
    """So the same code works with both."""
    queue = shell.queue(wait=0)
    assert await queue.publish("a", partition_key="k") is True
    assert await take(queue) == b"a"


def _is_blocked(shell: Shell, count: int = 1) -> bool:
    return int(shell.redis.info("clients")["blocked_clients"]) == count
