"""What operators do with a live queue: count, look, read records, send the dead back, remove."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import redis_message_queue
from redis_message_queue.protocol.operator import Operator
from tests.contract.shells import (
    EVERY_WIRING,
    PATIENCE_SECONDS,
    Awaited,
    Died,
    Sent,
    Shell,
    claim_and_die,
    fail,
    holding,
    silent_gateway,
    take,
)
from tests.contract.test_delays import sleeper

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

SOURCES = ["pending", "processing", "delayed", "completed", "failed", "dead_letters"]
LISTS = ["completed", "failed", "dead_letters"]
NO_COUNTS = [0, -1, True, 1.0, "1", None, 10_001]


def key_of(queue: Any, source: str) -> str:
    return str(queue.key.dead_letter if source == "dead_letters" else getattr(queue.key, source))


def records_key(queue: Any, source: str) -> str:
    return str(queue.key.records("dlq" if source == "dead_letters" else source))


def mortal(shell: Shell, **options: Any) -> Any:
    """A queue whose messages die of one crash."""
    return shell.queue(**{"wait": 0, "max_delivery_count": 1} | options)


async def bury(shell: Shell, queue: Any, *texts: str, tenant: str | None = None) -> None:
    """Make dead letters of these, the first one first."""
    await queue.publish_many(texts, tenant=tenant)
    left = len(texts)
    while left:
        with contextlib.suppress(Died):
            async with queue.process_messages(1_000) as batch:
                left -= len(batch)
                raise Died
    shell.lapse(queue)
    assert await take(queue) is None


def snapshot(shell: Shell) -> dict[bytes, bytes]:
    """Everything that is in Redis, as it is."""
    return {key: shell.redis.dump(key) for key in shell.redis.keys("*")}


async def payloads(queue: Any, source: str, count: int = 100) -> list[Any]:
    return [one.payload for one in await Awaited(queue).peek(count, source=source)]


# Counting


@every_wiring
async def test_stats_count_what_is_where(shell: Shell) -> None:
    """Over every kind of connection."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await bury(shell, queue, "dead 1", "dead 2")
    await queue.publish_many(["done", "failing", "handled"])
    await take(queue)
    await fail(queue, ValueError())
    async with queue.process_message():
        await queue.publish("waiting")
        await queue.publish_many(["a", "b"], tenant="x")
        await queue.publish("c", tenant="y")
        await queue.publish("later", delay_seconds=100)
        await queue.publish("later", delay_seconds=100, tenant="z")
        stats = await Awaited(queue).stats()
    assert (stats.pending, stats.processing, stats.delayed) == (4, 1, 2)
    assert (stats.completed, stats.failed, stats.dead_letters, stats.tenants) == (1, 1, 2, 2)
    assert 0 <= stats.oldest_pending_seconds < 60
    assert type(stats).__name__ == "QueueStats"


async def test_a_damaged_weight_does_not_stop_a_look(shell: Shell) -> None:
    """It counts as one, as in a claim."""
    queue = shell.queue()
    for name in "ab":
        await queue.publish_many(["m"] * 2, tenant=name)
    shell.redis.hset(queue.key.weights, "a", "heavy")
    assert [one.tenant for one in await Awaited(queue).peek(4)] == ["a", "b", "a", "b"]


async def test_stats_of_nothing_are_zeros(shell: Shell) -> None:
    """And leave nothing behind."""
    stats = await Awaited(shell.queue()).stats()
    assert stats.oldest_pending_seconds is None
    assert {getattr(stats, name) for name in (*SOURCES, "tenants")} == {0}
    assert shell.is_empty


async def test_the_oldest_waits_in_whichever_line(shell: Shell) -> None:
    """With a tenant or without; its age grows, and what has been taken or is delayed does not count."""
    queue = shell.queue()
    await queue.publish("delayed", delay_seconds=1_000)
    for tenants in (("a", None, "b"), (None, "a", "b"), ("b", "a", None), (None, None, "a"), ("a", "a", "b")):
        for tenant in tenants:
            await queue.publish(f"of {tenant}", tenant=tenant)
            await asyncio.sleep(0.01)  # so that their ages can be told apart
        for _ in range(3):
            waiting = await Awaited(queue).peek()
            oldest = min(one.published_at for one in waiting)
            assert len({one.published_at for one in waiting}) == len(waiting)
            for _ in range(2):
                before = shell.server_time
                age = (await Awaited(queue).stats()).oldest_pending_seconds
                assert (before - oldest).total_seconds() <= age <= (shell.server_time - oldest).total_seconds()
            await take(queue)
    assert (await Awaited(queue).stats()).oldest_pending_seconds is None


# Looking


@every_wiring
async def test_a_look_shows_each_source_and_touches_nothing(shell: Shell) -> None:
    """Payloads as the client decodes, with what is known of each."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await bury(shell, queue, "dead")
    await queue.publish_many(["done", "failing", "handled"])
    await take(queue)
    await fail(queue, ValueError("why"))
    async with queue.process_message():
        handled = queue.current_message()
        await queue.publish("waiting", tenant="ä")
        await queue.publish("later", delay_seconds=100)
        before = snapshot(shell)
        seen = {source: await Awaited(queue).peek(source=source) for source in SOURCES}
        assert snapshot(shell) == before
    expected = dict(zip(SOURCES, ["waiting", "handled", "later", "done", "failing", "dead"], strict=True))
    assert {source: [one.payload for one in seen[source]] for source in SOURCES} == {
        source: [shell.payload(text)] for source, text in expected.items()
    }
    assert seen["pending"][0].tenant == "ä"
    assert seen["processing"][0].id == handled.id
    assert seen["delayed"][0].due_at is not None
    assert (seen["failed"][0].error_type, seen["failed"][0].error) == ("ValueError", "why")
    assert all(one.published_at is not None and one.id for (one,) in seen.values())


async def test_pending_is_shown_in_the_order_of_delivery(shell: Shell) -> None:
    """With tenants, weights and messages without a tenant, in the middle of a round."""
    queue = shell.queue(tenant_weights={"heavy": 3})
    for name in ("b", "heavy", None, "a"):
        await queue.publish_many([f"{name} {number}" for number in range(6)], tenant=name)
    await take(queue)
    for _ in range(3):
        foreseen = await payloads(queue, "pending", 7)
        assert [await take(queue) for _ in range(5)] == foreseen[:5]
    foreseen = await payloads(queue, "pending", 100)
    assert [await take(queue) for _ in range(8)] == foreseen


async def test_one_tenants_line_can_be_looked_at(shell: Shell) -> None:
    """Its next messages, and nobody else's; other sources know no tenant."""
    queue = shell.queue()
    await queue.publish_many(["a0", "a1", "a2"], tenant="a")
    await queue.publish("b0", tenant="b")
    assert [one.payload for one in await Awaited(queue).peek(2, tenant="a")] == [b"a0", b"a1"]
    assert await Awaited(queue).peek(tenant="nobody") == []
    with pytest.raises(shell.module.ConfigurationError, match="tenant"):
        await Awaited(queue).peek(source="failed", tenant="a")


async def test_in_flight_is_shown_by_when_it_comes_back(shell: Shell) -> None:
    """Whose lease ends first stands first; without leases any of them are shown."""
    queue = shell.queue()
    await queue.publish_many(["a", "b", "c"])
    async with holding(queue), holding(queue), holding(queue):
        assert await payloads(queue, "processing") == [b"a", b"b", b"c"]
        assert await payloads(queue, "processing", 2) == [b"a", b"b"]
    unleased = shell.queue("unleased", visibility_timeout_seconds=None)
    await unleased.publish_many(["a", "b", "c"])
    async with holding(unleased), holding(unleased), holding(unleased):
        assert sorted(await payloads(unleased, "processing")) == [b"a", b"b", b"c"]
        assert len(await payloads(unleased, "processing", 2)) == 2


async def test_what_has_come_back_to_its_tenant_is_still_shown(shell: Shell) -> None:
    """Everything that stats() counts as in flight can be looked at."""
    queue = shell.queue(wait=0)
    await queue.publish("came back", tenant="a")
    await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("handled", tenant="b")
    async with queue.process_message() as message:
        assert message == b"handled"
        assert (await Awaited(queue).stats()).processing == 2
        assert sorted(await payloads(queue, "processing")) == [b"came back", b"handled"]


async def test_a_source_that_does_not_exist_is_refused(shell: Shell) -> None:
    """With the names of those that do."""
    queue = shell.queue()
    for source in ("dlq", "", "PENDING", None, 7, ["failed"]):
        with pytest.raises(shell.module.ConfigurationError, match="source must be one of 'pending'"):
            await Awaited(queue).peek(source=source)
    for source in ("pending", "processing", "delayed", "", None):
        with pytest.raises(shell.module.ConfigurationError, match="source must be one of 'completed'"):
            await Awaited(queue).records(source)
    for target in ("", "everything", None, 7):
        with pytest.raises(shell.module.ConfigurationError, match="target must be one of 'pending'"):
            await Awaited(queue).purge(target)


@pytest.mark.parametrize("count", NO_COUNTS)
async def test_a_count_that_is_none_is_refused(shell: Shell, count: Any) -> None:
    """From 1 to 10,000, by every method that takes one."""
    queue = shell.queue()
    for work, word in (
        (lambda: Awaited(queue).peek(count), "count"),
        (lambda: Awaited(queue).records(max_records=count), "max_records"),
        (lambda: Awaited(queue).tenants(max_tenants=count), "max_tenants"),
    ):
        with pytest.raises(shell.module.ConfigurationError, match=word):
            await work()


# Records


async def test_a_record_tells_the_whole_story(shell: Shell) -> None:
    """Who, how often, when and why, by the server's clock; the newest first."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    start = shell.server_time
    await queue.publish("done", tenant="a")
    await claim_and_die(queue)
    shell.lapse(queue)
    async with queue.process_message():
        done = queue.current_message()
    (record,) = await Awaited(queue).records("completed")
    assert (record.payload, record.id, record.tenant, record.delivery_count) == (b"done", done.id, "a", 2)
    assert (record.reason, record.error_type, record.error, record.replay_of) == ("completed", None, None, None)
    assert start <= record.published_at == done.published_at <= record.claimed_at
    assert record.claimed_at <= record.finished_at <= shell.server_time
    await queue.publish_many(["one", "two"])
    await fail(queue, ValueError("first"))
    await fail(queue, OSError("second"))
    failures = await Awaited(queue).records("failed")
    assert [(one.payload, one.error_type, one.error) for one in failures] == [
        (b"two", "OSError", "second"),
        (b"one", "ValueError", "first"),
    ]
    assert [one.payload for one in await Awaited(queue).records("failed", max_records=1)] == [b"two"]


async def test_records_of_a_batch_and_of_the_loop_are_alike(shell: Shell) -> None:
    """Each message has its own."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish_many(["a", "b", "c"])
    async with queue.process_messages(3):
        pass
    await queue.publish_many(["d", "e"], tenant="t")
    await queue.run(lambda message: None, prefetch=5, until_empty=True)
    records = await Awaited(queue).records("completed")
    assert [one.payload for one in records] == [b"e", b"d", b"c", b"b", b"a"]
    assert len({one.id for one in records}) == 5
    assert [one.tenant for one in records] == ["t", "t", None, None, None]
    assert all(one.published_at <= one.claimed_at <= one.finished_at for one in records)


async def test_lists_and_records_are_trimmed_together(shell: Shell) -> None:
    """A limit of the list is one of its records."""
    queue = shell.queue(enable_completed_queue=True, max_completed_length=3)
    await queue.publish_many([str(number) for number in range(10)])
    async with queue.process_messages(8):
        pass
    await take(queue)
    assert await payloads(queue, "completed") == [b"8", b"7", b"6"]
    assert shell.redis.llen(records_key(queue, "completed")) == 3
    assert all(one.id for one in await Awaited(queue).records("completed"))


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (("ltrim", 0, 2), ["e", "d", "c"]),
        (("ltrim", 3, -1), ["b", "a"]),
        (("lrem", 0, "c"), ["e", "d", "b", "a"]),
        (("lpop",), ["d", "c", "b", "a"]),
        (("rpop",), ["e", "d", "c", "b"]),
        (("lset", 1, "changed"), ["e", "changed", "c", "b", "a"]),
        (("lpush", "new"), ["new", "e", "d", "c", "b", "a"]),
        (("linsert", "BEFORE", "c", "new"), ["e", "d", "new", "c", "b", "a"]),
    ],
    ids=lambda value: str(value[0]),
)
async def test_a_list_that_was_cut_by_hand_is_the_truth(shell: Shell, cut: tuple[Any, ...], left: list[str]) -> None:
    """What is there is shown with its own record or with none, what is gone without payload; the next write heals."""
    queue = shell.queue(enable_failed_queue=True)
    for text in "abcde":
        await queue.publish(text)
        await fail(queue, ValueError(f"of {text}"))
    command, *arguments = cut
    getattr(shell.redis, command)(queue.key.failed, *arguments)
    for text in ("", "f", "g"):
        if text:
            await queue.publish(text)
            await fail(queue, ValueError(f"of {text}"))
            left = [text, *left]
        records = await Awaited(queue).records("failed")
        shown = [one for one in records if one.payload is not None]
        assert [one.payload.decode() for one in shown] == left
        assert all(one.error in (None, f"of {one.payload.decode()}") for one in shown)
        assert shown[0].error is not None or left[0] == "new"
    assert shell.redis.llen(records_key(queue, "failed")) <= len(left)


async def test_records_without_a_list_are_shown_without_payload(shell: Shell) -> None:
    """And a list without records with payloads alone; only what has a payload can be sent back."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await bury(shell, queue, "a")
    await queue.publish_many(["a", "a"])
    await take(queue)
    await fail(queue, ValueError("of a"))
    ids = {source: (await Awaited(queue).records(source))[0].id for source in LISTS}
    assert len(set(ids.values())) == 3
    reasons = {"completed": "completed", "failed": "failed", "dead_letters": "deliveries"}
    for source in LISTS:
        shell.redis.delete(key_of(queue, source))
        (lonely,) = await Awaited(queue).records(source)
        assert (lonely.payload, lonely.id, lonely.reason) == (None, ids[source], reasons[source])
    summary = await Awaited(queue).redrive_dead_letters()
    assert (summary.matched, summary.redriven, summary.suppressed) == (0, 0, 0)
    assert await take(queue) is None
    for source in LISTS:
        shell.redis.delete(records_key(queue, source))
        shell.redis.lpush(key_of(queue, source), "x", "y")
        records = await Awaited(queue).records(source)
        assert [(one.payload, one.id, one.reason) for one in records] == [(b"y", None, None), (b"x", None, None)]
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    assert [await take(queue) for _ in range(3)] == [b"x", b"y", None]


async def test_identical_payloads_keep_their_own_records(shell: Shell) -> None:
    """In their order."""
    queue = shell.queue(enable_failed_queue=True)
    for number in range(4):
        await queue.publish("same")
        await fail(queue, ValueError(f"number {number}"))
    records = await Awaited(queue).records("failed")
    assert [one.error for one in records] == [f"number {number}" for number in (3, 2, 1, 0)]


async def test_a_payload_does_not_take_the_record_of_a_twin_that_was_cut(shell: Shell) -> None:
    """Records that were passed over stay with what is gone."""
    queue = shell.queue(enable_failed_queue=True)
    for number, text in enumerate(("same", "other", "same")):
        await queue.publish(text)
        await fail(queue, ValueError(f"number {number}"))
    shell.redis.lpop(queue.key.failed)
    records = await Awaited(queue).records("failed")
    assert [(one.payload, one.error) for one in records] == [
        (None, "number 2"),
        (b"other", "number 1"),
        (b"same", "number 0"),
    ]


@pytest.mark.parametrize(
    "foreign",
    [b"not json", b"[]", b"7", b"null", b"\xff\xfe", b'{"bytes": 1}', b'{"finished": "soon", "deliveries": []}'],
)
async def test_foreign_records_spoil_nothing(shell: Shell, foreign: bytes) -> None:
    """Whatever lies in their list, payloads are shown, and the others with their records."""
    queue = mortal(shell)
    await bury(shell, queue, "a", "b")
    shell.redis.lpush(records_key(queue, "dead_letters"), foreign)
    records = await Awaited(queue).records("dead_letters")
    assert [(one.payload, one.reason) for one in records if one.payload] == [(b"b", "deliveries"), (b"a", "deliveries")]
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    assert sorted([await take(queue), await take(queue)]) == [b"a", b"b"]


async def test_what_cannot_be_decoded_is_shown_as_it_is(shell: Shell) -> None:
    """A client that decodes sees bytes where there is no text."""
    queue = shell.queue(client=shell.new_client(decode_responses=True), wait=0)
    shell.redis.lpush(queue.key.dead_letter, b"\xff\xfe", "text")
    shell.redis.lpush(queue.key.pending, b"foreign \xff")
    assert await payloads(queue, "dead_letters") == ["text", b"\xff\xfe"]
    (seen,) = await Awaited(queue).peek()
    assert (seen.payload, seen.reason) == (b"foreign \xff", "foreign")
    assert await take(queue) is None
    (letter, *_) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.reason, letter.id) == (b"foreign \xff", "foreign", None)


# Sending the dead back


async def test_dead_letters_become_messages_again(shell: Shell) -> None:
    """The oldest first, each once, with a fresh id that remembers the old one, its tenant, and a fresh budget."""
    events = shell.events()
    queue = mortal(shell, on_event=events.listen)
    await bury(shell, queue, "first", "second", tenant="ä")
    dead = {one.payload: one.id for one in await Awaited(queue).records()}
    summary = await Awaited(queue).redrive_dead_letters()
    assert (summary.matched, summary.redriven, summary.suppressed) == (2, 2, 0)
    assert shell.redis.exists(queue.key.dead_letter, records_key(queue, "dead_letters")) == 0
    redriven = [event.message_id for event in events.of("redriven")]
    seen = []
    for _ in range(2):
        async with queue.process_message() as message:
            received = queue.current_message()
            assert (received.tenant, received.delivery_count, received.replay_of) == ("ä", 1, dead[message])
            assert received.id not in dead.values()
            seen.append((message, received.id))
    assert seen == list(zip([b"first", b"second"], redriven, strict=True))
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


async def test_failed_messages_become_messages_again(shell: Shell) -> None:
    """As dead letters do: the oldest first, with lineage and tenant; dead letters and other failures stay."""
    events = shell.events()
    queue = mortal(shell, enable_failed_queue=True, on_event=events.listen)
    await bury(shell, queue, "dead")
    await queue.publish_many(["first", "second", "third"], tenant="ä")
    for number in range(3):
        await fail(queue, ValueError(f"number {number}"))
    failed = {one.payload: one.id for one in await Awaited(queue).records("failed")}
    before = snapshot(shell)
    dry = await Awaited(queue).redrive_failed(dry_run=True)
    assert (dry.matched, dry.redriven) == (3, 0)
    assert snapshot(shell) == before
    summary = await Awaited(queue).redrive_failed(where=lambda one: one.error != "number 1", max_messages=2)
    assert (summary.matched, summary.redriven, summary.suppressed) == (2, 2, 0)
    assert len(events.of("redriven")) == 2
    for text in (b"first", b"third"):
        async with queue.process_message() as message:
            received = queue.current_message()
            assert (message, received.tenant, received.replay_of) == (text, "ä", failed[text])
            assert (received.delivery_count, received.id in failed.values()) == (1, False)
    assert await take(queue) is None
    assert [(one.payload, one.error) for one in await Awaited(queue).records("failed")] == [(b"second", "number 1")]
    assert await payloads(queue, "dead_letters") == [b"dead"]
    assert (await Awaited(queue).redrive_failed()).redriven == 1
    assert shell.redis.exists(queue.key.failed, records_key(queue, "failed")) == 0


async def test_lineage_goes_on_from_death_to_death(shell: Shell) -> None:
    """A message that dies again remembers whom it repeated, in its record and for the next of its kind."""
    queue = mortal(shell, enable_completed_queue=True)
    await bury(shell, queue, "m")
    ids = [(await Awaited(queue).records())[0].id]
    for _ in range(2):
        await Awaited(queue).redrive_dead_letters()
        await claim_and_die(queue)
        shell.lapse(queue)
        assert await take(queue) is None
        (letter,) = await Awaited(queue).records()
        assert letter.replay_of == ids[-1]
        ids.append(letter.id)
    await Awaited(queue).redrive_dead_letters()
    (waiting,) = await Awaited(queue).peek()
    assert waiting.replay_of == ids[-1]
    await take(queue)
    (record,) = await Awaited(queue).records("completed")
    assert record.replay_of == ids[-1]
    assert len(set(ids)) == 3


async def test_so_many_and_no_more(shell: Shell) -> None:
    """max_messages takes the oldest; what is left keeps its order and its records."""
    queue = mortal(shell)
    await bury(shell, queue, *"abcde")
    assert (await Awaited(queue).redrive_dead_letters(max_messages=2)).redriven == 2
    assert [(one.payload, bool(one.id)) for one in await Awaited(queue).records()] == [
        (b"e", True),
        (b"d", True),
        (b"c", True),
    ]
    assert [await take(queue) for _ in range(3)] == [b"a", b"b", None]
    assert (await Awaited(queue).redrive_dead_letters(max_messages=1_000)).redriven == 3
    assert (await Awaited(queue).redrive_dead_letters()).matched == 0


async def test_a_dry_run_only_counts(shell: Shell) -> None:
    """It asks the predicate, and changes nothing."""
    queue = mortal(shell)
    await bury(shell, queue, *"abcde")
    before = snapshot(shell)
    summary = await Awaited(queue).redrive_dead_letters(dry_run=True)
    assert (summary.matched, summary.redriven, summary.suppressed) == (5, 0, 0)
    some = await Awaited(queue).redrive_dead_letters(dry_run=True, where=lambda letter: letter.payload > b"b")
    assert some.matched == 3
    assert (await Awaited(queue).redrive_dead_letters(dry_run=True, max_messages=2)).matched == 2
    assert snapshot(shell) == before


async def test_a_predicate_chooses_among_thousands(shell: Shell) -> None:
    """Every third of 2,500 goes back, in order; the rest stays, in order, each with its record."""
    queue = mortal(shell)
    texts = [str(number) for number in range(2_500)]
    await bury(shell, queue, *texts)
    asked: list[Any] = []

    def wanted(letter: Any) -> bool:
        asked.append(letter.payload)
        assert (letter.reason, letter.delivery_count) == ("deliveries", 1)
        return int(letter.payload) % 3 == 0

    summary = await Awaited(queue).redrive_dead_letters(where=wanted)
    assert asked == [text.encode() for text in texts]
    assert (summary.matched, summary.redriven) == (834, 834)
    async with queue.process_messages(1_000) as batch:
        assert [message.payload for message in batch] == [b"%d" % number for number in range(0, 2_500, 3)]
    rest = await Awaited(queue).records(max_records=2_500)
    assert [one.payload for one in rest] == [b"%d" % number for number in range(2_499, -1, -1) if number % 3]
    assert all(one.id for one in rest)
    assert (await Awaited(queue).redrive_dead_letters(max_messages=700)).redriven == 700
    assert shell.redis.llen(queue.key.dead_letter) == 2_500 - 834 - 700


async def test_a_predicate_may_be_of_the_shells_colour(shell: Shell) -> None:
    """An async function for the asyncio queue; the sync queue refuses one that it cannot await."""
    queue = mortal(shell)
    await bury(shell, queue, "a", "b")

    async def wanted(letter: Any) -> bool:
        return bool(letter.payload == b"a")

    if shell.name == "sync":
        with pytest.raises(TypeError, match="await"):
            await Awaited(queue).redrive_dead_letters(where=wanted)
        assert shell.redis.llen(queue.key.dead_letter) == 2
    else:
        assert (await Awaited(queue).redrive_dead_letters(where=wanted)).redriven == 1
        assert await take(queue) == b"a"


async def test_a_predicate_that_raises_stops_everything(shell: Shell) -> None:
    """Its own error comes out, and no letter of that page is touched."""
    queue = mortal(shell)
    await bury(shell, queue, "a", "b")

    def broken(letter: Any) -> bool:
        if letter.payload == b"b":
            raise LookupError("mine")
        return True

    before = snapshot(shell)
    with pytest.raises(LookupError, match="mine"):
        await Awaited(queue).redrive_dead_letters(where=broken)
    assert snapshot(shell) == before


@pytest.mark.parametrize("limits", [{"max_pending_length": 3}, {"max_pending_per_tenant": 2}], ids=str)
async def test_a_full_queue_takes_none_of_the_dead(shell: Shell, limits: dict[str, int]) -> None:
    """They stay where they are, and come when there is room."""
    queue = mortal(shell, **limits)
    await bury(shell, queue, "a", "b", tenant="t")
    await queue.publish_many(["x", "y"], tenant="t")
    before = snapshot(shell)
    with pytest.raises(shell.module.QueueBackpressureError) as caught:
        await Awaited(queue).redrive_dead_letters()
    assert (caught.value.queue, caught.value.operation) == ("q", "redrive")
    assert {key: value for key, value in snapshot(shell).items() if b"reply" not in key} == {
        key: value for key, value in before.items() if b"reply" not in key
    }
    assert [await take(queue), await take(queue)] == [b"x", b"y"]
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2


@pytest.mark.parametrize("limits", [{"max_pending_length": 2}, {"max_pending_per_tenant": 2}], ids=str)
@pytest.mark.parametrize("policy", ["drop_oldest", "block"])
async def test_nobody_makes_room_for_the_dead_and_nobody_waits_for_it(
    shell: Shell, policy: str, limits: dict[str, int]
) -> None:
    """Whatever a full queue does with a publish, a redrive is refused at once, and nothing has changed."""
    events = shell.events()
    await bury(shell, mortal(shell), "dead", tenant="t")
    options = {"max_delivery_count": None, "pending_overload_policy": policy, "on_event": events.listen} | limits
    if policy == "block":
        options["pending_overload_block_timeout_seconds"] = 5 * PATIENCE_SECONDS
    queue = shell.queue(wait=0, **options)
    await queue.publish_many(["x", "y"], tenant="t")
    before = {key: value for key, value in snapshot(shell).items() if b"reply" not in key}
    started = time.monotonic()
    with pytest.raises(shell.module.QueueBackpressureError):
        await Awaited(queue).redrive_dead_letters()
    assert time.monotonic() - started < 2 * PATIENCE_SECONDS
    assert {key: value for key, value in snapshot(shell).items() if b"reply" not in key} == before
    assert events.of("dropped") == events.of("redriven") == []
    assert await take(queue) == b"x"
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 1
    assert [await take(queue) for _ in range(3)] == [b"y", b"dead", None]


async def test_a_redrive_wakes_who_sleeps(shell: Shell) -> None:
    """As a publish does, and each that has work; with a tenant and without."""
    for tenant in (None, "t"):
        queue = mortal(shell)
        await bury(shell, queue, "a", "b", tenant=tenant)
        shell.redis.delete(queue.key.bell)
        asleep = [await sleeper(shell) for _ in range(2)]
        assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
        assert sorted([await one.wakes() for one in asleep]) == [b"a", b"b"]


async def test_no_payload_is_told_of_a_redrive(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in an event nor in an error nor in a log line; only the predicate sees it."""
    secret, events, errors = "s3cret", shell.events(), []
    queue = mortal(shell, on_event=events.listen, deduplication=True, max_pending_length=3)
    with caplog.at_level(logging.DEBUG):
        await bury(shell, queue, secret, f"{secret} 2", tenant="t")
        await queue.publish_many([f"{secret} {number}" for number in range(3, 6)])
        with pytest.raises(shell.module.QueueBackpressureError) as full:
            await Awaited(queue).redrive_dead_letters()
        errors.append(full.value)
        assert await Awaited(queue).purge("pending") == 3
        summary = await Awaited(queue).redrive_dead_letters(respect_deduplication=True)
        assert (summary.redriven, summary.suppressed) == (0, 2)
        shell.redis.set(queue.key.pending, "no list")
        with pytest.raises(shell.module.LuaScriptError) as refused:
            await Awaited(queue).redrive_dead_letters()
        errors.append(refused.value)
        shell.redis.delete(queue.key.pending)
        assert (
            await Awaited(queue).redrive_dead_letters(where=lambda letter: secret.encode() in letter.payload)
        ).redriven
    assert len(events.of("redriven")) == 2
    assert len(events.of("dlq")) == 2
    assert [event for event in events.all if secret in repr(event)] == []
    assert [error for error in errors if secret in f"{error!r} {error} {error.__cause__!r}"] == []
    assert secret not in caplog.text
    assert caplog.records


async def test_deduplication_is_respected_by_choice(shell: Shell) -> None:
    """A letter whose key was published meanwhile stays dead; by default it goes back all the same."""
    queue = mortal(shell, deduplication=True, get_deduplication_key=shell.callback(lambda message: message["id"]))
    for number in (1, 2):
        await queue.publish({"id": str(number), "try": 1})
    for _ in range(2):
        await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    shell.redis.delete(*(queue.key.deduplication(key) for key in "12"))  # their windows are over
    await queue.publish({"id": "2", "try": 2})
    summary = await Awaited(queue).redrive_dead_letters(respect_deduplication=True)
    assert (summary.matched, summary.redriven, summary.suppressed) == (2, 1, 1)
    assert [json.loads(one) for one in shell.listed(queue.key.dead_letter)] == [{"id": "2", "try": 1}]
    # What went back holds its key from now on.
    assert await queue.publish({"id": "1", "try": 3}) is False
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 1
    assert (await Awaited(queue).stats()).pending == 3


async def test_letters_that_were_never_messages_go_back_as_well(shell: Shell) -> None:
    """Whatever an operator has put there becomes a payload, without lineage; also where keys are respected."""
    for options in ({}, {"deduplication": True}):
        shell.redis.flushall()
        queue = mortal(shell, **options)
        shell.redis.lpush(queue.key.dead_letter, b"by hand", b"\xff\xfe", b"")
        summary = await Awaited(queue).redrive_dead_letters(respect_deduplication=bool(options))
        assert (summary.matched, summary.redriven) == (3, 3)
        assert [await take(queue) for _ in range(4)] == [b"by hand", b"\xff\xfe", b"", None]


async def test_after_the_list_was_cut_by_hand_each_letter_goes_back_as_itself(shell: Shell) -> None:
    """With its own lineage if its record is still found, and never with another's."""
    queue = mortal(shell)
    await bury(shell, queue, *"abcdef")
    ids = {one.payload: one.id for one in await Awaited(queue).records()}
    shell.redis.lrem(queue.key.dead_letter, 0, "b")
    shell.redis.lrem(queue.key.dead_letter, 0, "e")
    assert (await Awaited(queue).redrive_dead_letters(where=lambda letter: letter.payload != b"d")).redriven == 3
    for expected in (b"a", b"c", b"f"):
        async with queue.process_message() as message:
            assert (message, queue.current_message().replay_of) == (expected, ids[expected])
    (left,) = [one for one in await Awaited(queue).records() if one.payload is not None]
    assert (left.payload, left.id) == (b"d", ids[b"d"])


async def test_a_letter_that_leaves_meanwhile_is_not_taken_for_its_twin(shell: Shell) -> None:
    """When the oldest is trimmed between the look and the step, the next one has its place, and the same words."""
    queue = mortal(shell)
    await bury(shell, queue, "same", tenant="chosen")
    await bury(shell, queue, "same", tenant="other")

    def trim_and_choose(letter: Any) -> bool:
        for key in (queue.key.dead_letter, records_key(queue, "dead_letters")):
            shell.redis.ltrim(key, 0, 0)  # what a claim does where max_dead_letter_length is reached
        return bool(letter.tenant == "chosen")

    summary = await Awaited(queue).redrive_dead_letters(where=trim_and_choose)
    assert (summary.matched, summary.redriven) == (1, 0)
    assert [(one.payload, one.tenant) for one in await Awaited(queue).records()] == [(b"same", "other")]
    assert await Awaited(queue).tenants() == {}


async def test_a_redrive_works_without_leases_and_from_a_list_of_another_name(shell: Shell) -> None:
    """It needs the list and nothing else."""
    gateway = shell.gateway(message_wait_interval_seconds=0, dead_letter_queue="the dead")
    queue = shell.queue(gateway=gateway)
    shell.redis.lpush("the dead", "a", "b")
    assert await payloads(queue, "dead_letters") == [b"b", b"a"]
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    assert [await take(queue) for _ in range(3)] == [b"a", b"b", None]


async def test_what_a_redrive_is_told_is_checked(shell: Shell) -> None:
    """A typed error names what is wrong, before anything is touched."""
    queue = mortal(shell)
    await bury(shell, queue, "a")
    before = snapshot(shell)
    for wrong in (
        *({"max_messages": value} for value in (0, -1, True, 1.5, "1")),
        *({"where": value} for value in (7, "a", [])),
        *({"dry_run": value} for value in (1, 0, "no", None)),
        *({"respect_deduplication": value} for value in (1, "yes", None)),
    ):
        for method in ("redrive_dead_letters", "redrive_failed"):
            with pytest.raises(shell.module.ConfigurationError, match=next(iter(wrong))):
                await getattr(Awaited(queue), method)(**wrong)
    assert snapshot(shell) == before


async def test_either_colour_reads_and_redrives_what_the_other_has_buried(shell: Shell) -> None:
    """Lists and records have no colour."""
    queue = mortal(shell)
    await bury(shell, queue, "a")
    client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    other = shell.other_module.RedisMessageQueue("q", client=client)
    (letter,) = await Awaited(other).records()
    assert (await Awaited(other).redrive_dead_letters()).redriven == 1
    await (client.aclose() if shell.name == "sync" else Awaited(client).close())
    async with queue.process_message():
        assert queue.current_message().replay_of == letter.id


# In steps

STEP = 1_000  # messages that one script may handle
FILLINGS = {
    "line": {"line": STEP + 1},
    "tenant": {"tenant": STEP + 1},
    "came back": {"came back": STEP + 5},
    "came back and line": {"came back": STEP, "tenant": 5},
    "delayed": {"delayed": STEP + 1},
    "orphans": {"orphans": STEP + 1},
}


def scripts(sent: Sent) -> list[str]:
    """The names of the scripts that were called, in their order."""
    from tests.faults.proxy import our_scripts

    words = [line.split(" ") for line in sent.lines]
    return [our_scripts()[word[1].strip('"')] for word in words if word[0] == "EVALSHA"]


async def fill(shell: Shell, queue: Any, **counts: int) -> None:
    """So many messages of each kind."""
    for kind, count in counts.items():
        texts = ["m"] * count
        details: dict[str, Any] = {"tenant": "t"} if kind in ("tenant", "came back") else {}
        await queue.publish_many(texts, **details | ({"delay_seconds": 1_000} if kind == "delayed" else {}))
        if kind in ("came back", "orphans"):
            options = {} if kind == "came back" else {"visibility_timeout_seconds": None}
            consumer, left = shell.queue(wait=0, **options), count
            while left:
                with contextlib.suppress(Died):
                    async with consumer.process_messages(STEP) as batch:
                        left -= len(batch)
                        raise Died
        if kind == "came back":
            shell.lapse(queue)
            await queue.publish_many(["other"] * 2, tenant="other")
            for _ in range(2):  # claims find out what has come back, a thousand at a time; one may take one of them
                assert await take(queue) is not None
            assert shell.redis.zcard(queue.key.returned("t")) >= count - 2


@pytest.mark.parametrize("counts", FILLINGS.values(), ids=FILLINGS)
async def test_a_step_of_a_purge_removes_at_most_a_thousand(shell: Shell, counts: dict[str, int]) -> None:
    """One more than that is two steps, whatever they are and wherever they wait."""
    queue = shell.queue(wait=0)
    await fill(shell, queue, **counts)
    (target,) = {one for one in counts if one in ("delayed", "orphans")} or {"pending"}
    tenant = Awaited(queue.queue.tenant("t"))
    expected = await tenant.length() or sum(counts.values())
    assert expected > STEP
    await Awaited(queue).purge("failed")  # loads the script
    with Sent(shell.server) as sent:
        whole = "line" in counts or target != "pending"
        assert await (Awaited(queue).purge(target) if whole else tenant.delete()) == expected
    assert set(scripts(sent)) == {"sweep"}
    assert scripts(sent).count("sweep") >= 2


async def test_a_step_of_a_redrive_sends_back_at_most_a_thousand(shell: Shell) -> None:
    """So do its looks, which read no more than a page at a time."""
    queue = mortal(shell)
    texts = [str(number) for number in range(STEP + 1)]
    await bury(shell, queue, *texts, "warm-up")
    await Awaited(queue).redrive_dead_letters(where=lambda letter: letter.payload == b"warm-up")
    with Sent(shell.server) as sent:
        assert (await Awaited(queue).redrive_dead_letters()).redriven == STEP + 1
    assert set(scripts(sent)) == {"redrive", "read_page"}
    assert set(sent.commands) == {"EVALSHA"}
    assert scripts(sent).count("redrive") >= 2
    assert scripts(sent).count("read_page") >= 4


def dead_by_hand(shell: Shell, queue: Any, count: int) -> None:
    """So many dead letters with records, as claims would have left them; the letter 0 is the oldest."""
    for start in range(0, count, STEP):
        letters = [str(number) for number in range(start, min(start + STEP, count))]
        notes = [
            {"bytes": len(one), "sha1": hashlib.sha1(one.encode()).hexdigest(), "id": one.zfill(32)} for one in letters
        ]
        shell.redis.lpush(queue.key.dead_letter, *letters)
        shell.redis.lpush(records_key(queue, "dead_letters"), *(json.dumps(one) for one in notes))


def calls_of(shell: Shell, *commands: str) -> int:
    """How often the server has run these, in scripts or by themselves."""
    stats = shell.redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{one}", {"calls": 0})["calls"] for one in commands)


async def test_a_redrive_deep_in_a_list_walks_there_seldom_and_takes_few_at_a_time(shell: Shell) -> None:
    """To remove something deep in a list Redis walks over all that lies before it, on the shorter side."""
    count, queue = 30 * STEP, mortal(shell)
    dead_by_hand(shell, queue, count)
    sparse, dense = range(700, count, 1_000), range(12_000, 12_300)
    await Awaited(queue).redrive_dead_letters(max_messages=1)  # loads the script
    with Sent(shell.server) as sent:
        summary = await Awaited(queue).redrive_dead_letters(where=lambda letter: int(letter.payload) in sparse)
    assert (summary.matched, summary.redriven) == (30, 30)
    assert scripts(sent).count("redrive") <= 10, "each of them walks over the list"
    before = calls_of(shell, "lset", "lindex", "lrange")
    with Sent(shell.server) as sent:
        summary = await Awaited(queue).redrive_dead_letters(
            where=lambda letter: int(letter.payload) in dense, max_messages=len(dense) - 1
        )
    assert (summary.matched, summary.redriven) == (299, 299)
    assert 6 <= scripts(sent).count("redrive") <= 12
    steps = calls_of(shell, "lset", "lindex", "lrange") - before
    assert steps <= 4 * 299 + 2 * 13_000, "a look at each letter, and four commands for each that goes back"
    gone = {0, *sparse, *dense[:-1]}
    left = [b"%d" % number for number in range(count) if number not in gone]
    assert shell.listed(queue.key.dead_letter)[::-1] == left
    notes = [json.loads(one)["id"] for one in shell.listed(records_key(queue, "dead_letters"))[::-1]]
    assert [int(one) for one in notes] == [int(one) for one in left]
    assert shell.pending(queue) == len(gone)


MEGABYTE = "x" * 1_000_000


async def test_no_look_and_no_step_carries_more_than_four_megabytes(shell: Shell) -> None:
    """Ten messages of a megabyte are three replies or more, wherever they are."""
    queue = mortal(shell, enable_failed_queue=True)
    ask = Awaited(queue)

    async def replies(work: Callable[[], Any], script: str) -> Any:
        with Sent(shell.server) as sent:
            result = await work()
        assert scripts(sent).count(script) >= 3, scripts(sent)
        return result

    for tenant in (None, *"abcd"):
        await queue.publish_many([MEGABYTE] * 2, tenant=tenant)
    await queue.publish_many([MEGABYTE] * 10, delay_seconds=1_000)
    await ask.stats()
    assert len(await replies(lambda: ask.peek(20), "read_page")) == 10
    assert len(await replies(lambda: ask.peek(20, source="delayed"), "read_page")) == 10
    async with contextlib.AsyncExitStack() as held:
        batches = [await held.enter_async_context(queue.process_messages(10)) for _ in range(4)]
        assert max(len(batch) for batch in batches) <= 4  # a claim carries no more either
        assert len(await replies(lambda: ask.peek(20, source="processing"), "read_page")) == 10
        for batch in batches:
            for message in batch:
                await batch.fail(message, ValueError("of mine"))
    assert len(await replies(lambda: ask.records("failed"), "read_page")) == 10
    assert (await replies(lambda: ask.redrive_failed(), "redrive")).redriven == 10
    assert await replies(lambda: ask.purge("pending"), "sweep") == 10
    assert await replies(lambda: ask.purge("delayed"), "sweep") == 10
    assert shell.leftovers(queue) == set()


async def test_a_look_reads_no_more_messages_than_it_shows(shell: Shell) -> None:
    """However many tenants wait, and however long their queues are."""
    queue = shell.queue()
    for number in range(40):
        await queue.publish_many(["m" * 1_000] * 40, tenant=f"tenant {number}")
    before = shell.redis.info("stats")["total_net_output_bytes"]
    shown = await Awaited(queue).peek(40)
    read = shell.redis.info("stats")["total_net_output_bytes"] - before
    assert len({one.tenant for one in shown}) == 40
    assert read < 3 * 40 * 1_000


async def test_a_step_of_stats_looks_at_a_thousand_lines_at_most(shell: Shell) -> None:
    """Each looks at the heads alone, however long the lines are; without the oldest none does, and it is one step."""
    queue, source = shell.queue(), shell.queue("source")
    await source.publish_many(["m"] * 3)
    names = [str(number) for number in range(2 * STEP + 500)]
    for some in (names[:STEP], names[STEP : 2 * STEP], names[2 * STEP :]):
        async with source.process_messages(1) as batch:
            await Awaited(batch[0]).complete(publish=[(queue.queue, "m", {"tenant": name}) for name in some])
    await queue.publish_many(["m"] * 500, tenant="0")
    await Awaited(queue).stats()  # loads the script
    with Sent(shell.server) as sent:
        before = calls_of(shell, "lindex")
        stats = await Awaited(queue).stats()
        looks = calls_of(shell, "lindex") - before
    assert (stats.tenants, stats.pending) == (len(names), len(names) + 500)
    assert set(scripts(sent)) == {"stats"}
    assert len(scripts(sent)) >= 2
    assert len(names) < looks <= len(names) + 50  # one at the line without a tenant; a scan may show a tenant twice
    with Sent(shell.server) as sent:
        before = calls_of(shell, "lindex")
        stats = await Awaited(queue).stats(oldest=False)
        assert calls_of(shell, "lindex") == before
    assert (stats.tenants, stats.pending) == (len(names), len(names) + 500)
    assert stats.oldest_pending_seconds is None
    assert scripts(sent) == ["stats"]
    with pytest.raises(shell.module.ConfigurationError, match="oldest"):
        await Awaited(queue).stats(oldest=1)


async def test_nothing_goes_through_the_keys_of_the_server(shell: Shell) -> None:
    """Neither KEYS nor SCAN, whoever publishes, counts, looks, removes, sends back or takes: others have keys, too."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True, deduplication=True)
    await bury(shell, queue, "dead")
    before = shell.redis.info("commandstats")
    await queue.publish("plain")
    await queue.publish("later", delay_seconds=1_000)
    await queue.publish_many(["a", "b", "c"], tenant="t")
    acme, ask = Awaited(queue.queue.tenant("acme")), Awaited(queue)
    await acme.publish_many(["d", "e"])
    assert (await ask.stats()).tenants == len(await ask.tenants()) == 2
    assert (await acme.length(), await acme.exists(), await acme.delete()) == (2, True, 2)
    for source in SOURCES:
        await ask.peek(source=source)
    for source in LISTS:
        await ask.records(source)
    await take(queue)
    await fail(queue, ValueError())
    async with queue.process_messages(1) as batch:
        await Awaited(batch[0]).complete(publish=[(queue.queue, "result")])
    await queue.run(lambda message: None, until_empty=True)
    assert (await ask.redrive_dead_letters()).redriven == 1
    for target in ("pending", "delayed", *LISTS, "orphans"):
        await ask.purge(target)
    await queue.drain()
    after = shell.redis.info("commandstats")
    used = {name for name in after if after[name]["calls"] > before.get(name, {"calls": 0})["calls"]}
    assert "cmdstat_evalsha" in used
    assert used & {"cmdstat_keys", "cmdstat_scan", "cmdstat_randomkey", "cmdstat_dbsize", "cmdstat_flushdb"} == set()


# Removing


async def test_each_kind_can_be_removed(shell: Shell) -> None:
    """All of it, its records and whatever it had beside it; the others stay, and the count is told."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await bury(shell, queue, "dead")
    await queue.publish_many(["done", "failing"])
    await take(queue)
    await fail(queue, ValueError())
    await queue.publish_many(["waiting"] * 3)
    await queue.publish_many(["waiting"] * 2, tenant="a")
    await queue.publish_many(["later"] * 4, delay_seconds=100)
    expected = {"pending": 5, "delayed": 4, "completed": 1, "failed": 1, "dead_letters": 1, "orphans": 0}
    for target, count in expected.items():
        before = await Awaited(queue).stats()
        assert await Awaited(queue).purge(target) == count, target
        after = await Awaited(queue).stats()
        for name in SOURCES:
            assert getattr(after, name) == (0 if name == target else getattr(before, name)), (target, name)
        assert await Awaited(queue).purge(target) == 0, target
    assert shell.leftovers(queue) == set()
    assert shell.redis.keys("*records*") == []
    assert await take(queue) is None
    await queue.publish("as ever")
    assert await take(queue) == b"as ever"


async def test_what_somebody_works_on_is_not_removed(shell: Shell) -> None:
    """'processing' is refused with a word about orphans, and no other target touches it."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish("handled", tenant="a")
    async with queue.process_message():
        with pytest.raises(shell.module.ConfigurationError, match="orphans"):
            await Awaited(queue).purge("processing")
        for target in ("pending", "delayed", "orphans"):
            assert await Awaited(queue).purge(target) == 0
    assert shell.listed(queue.key.completed) == [b"handled"]


async def test_pending_is_removed_however_many_tenants_wait(shell: Shell) -> None:
    """Thousands of messages and hundreds of lines, in steps; numbers of earlier deliveries go with them."""
    queue = shell.queue(wait=0)
    await queue.publish_many(["m"] * 2_200)
    with pytest.raises(LookupError):
        async with queue.process_messages(300):
            raise LookupError
    source = shell.queue("source")
    await source.publish("m")
    async with source.process_messages(1) as batch:
        results = [(queue.queue, "m", {"tenant": str(number)}) for number in range(600)]
        await Awaited(batch[0]).complete(publish=results)
    assert await Awaited(queue).purge("pending") == 2_800
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


async def test_a_purge_takes_hundreds_of_tenants_in_one_step(shell: Shell) -> None:
    """A round trip for each of 100,000 tenants took 21 seconds."""
    queue, source = shell.queue(), shell.queue("source")
    await source.publish("m")
    async with source.process_messages(1) as batch:
        results = [(queue.queue, "m", {"tenant": str(number)}) for number in range(900)]
        await Awaited(batch[0]).complete(publish=results)
    await Awaited(queue).purge("failed")  # loads the script
    with Sent(shell.server) as sent:
        assert await Awaited(queue).purge("pending") == 900
    assert scripts(sent).count("sweep") <= 4
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


async def test_what_is_published_after_a_purge_began_stays(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every line, also behind what the purge removes, and of a tenant that comes only then."""
    queue = shell.queue(wait=0)
    other = redis_message_queue.RedisMessageQueue("q", client=shell.redis)
    for tenant in (None, "a", "b"):
        await queue.publish_many(["old"] * 3, tenant=tenant)
    look_for_tenants = Operator._waiting_tenants

    async def publish_first(self: Operator) -> Any:
        for tenant in (None, "a", "c"):
            other.publish("new", tenant=tenant)
        return await look_for_tenants(self)

    monkeypatch.setattr(Operator, "_waiting_tenants", publish_first)
    assert await Awaited(queue).purge("pending") == 9
    stats = await Awaited(queue).stats()
    assert (stats.pending, stats.tenants) == (3, 2)
    assert [await take(queue) for _ in range(4)] == [b"new", b"new", b"new", None]
    assert shell.leftovers(queue) == set()


async def test_orphans_are_what_a_consumer_without_leases_has_left(shell: Shell) -> None:
    """stats() shows them and purge removes them, in whatever number; what has a lease is none."""
    careless = shell.queue(visibility_timeout_seconds=None)
    await careless.publish_many([str(number) for number in range(1_500)])
    with pytest.raises(Died):
        async with careless.process_messages(1_000), careless.process_messages(1_000):
            raise Died
    careful = shell.queue()
    await careful.publish("leased")
    await careful.publish("leased too", tenant="a")
    async with careful.process_message(), careful.process_message():
        assert (await Awaited(careful).stats()).processing == 1_502
        assert await Awaited(careful).purge("orphans") == 1_500
        assert (await Awaited(careful).stats()).processing == 2
    assert shell.leftovers(careful) == set()


async def test_what_a_live_consumer_without_leases_works_on_is_no_orphan(shell: Shell) -> None:
    """One message or a batch, here or in another process; when its block is left by a sudden end it is one."""
    careless = shell.queue(wait=0, visibility_timeout_seconds=None)
    await careless.publish_many(["a", "b", "c"])
    with pytest.raises(Died):
        async with careless.process_message(), careless.process_messages(2):
            assert await Awaited(shell.queue()).purge("orphans") == 0
            raise Died
    assert await Awaited(shell.queue()).purge("orphans") == 3
    assert shell.leftovers(careless) == set()
    await careless.publish("d")
    await careless.process_messages(1).__aenter__()  # a block that is never left, and nobody has what it gave
    assert await Awaited(shell.queue()).purge("orphans") == 1


@pytest.mark.parametrize(
    "whose, hours, is_orphan",
    [
        ("ours", 0, True),
        ("a live one", 9, False),
        ("a dead one", 0, True),
        ("elsewhere", 0, False),
        ("elsewhere", 25, True),
    ],
)
async def test_whether_a_holder_lives_is_asked_where_it_can_be_known(
    shell: Shell, whose: str, hours: int, is_orphan: bool
) -> None:
    """By its process number on this host; of another host a day after it was published."""
    queue = shell.queue(wait=0, visibility_timeout_seconds=None)
    await queue.publish("a")
    await claim_and_die(queue)
    ((token, stored),) = shell.redis.hgetall(queue.key.processing).items()
    dead = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220 - it ends at once
    dead.wait()
    process = {"ours": os.getpid(), "a live one": os.getppid(), "a dead one": dead.pid, "elsewhere": 1}[whose]
    host = bytes(4) if whose == "elsewhere" else token[16:20]
    shell.redis.delete(queue.key.processing)
    published = int.from_bytes(stored[17:25], "big") - hours * 3_600_000_000
    stored = stored[:17] + published.to_bytes(8, "big") + stored[25:]
    shell.redis.hset(queue.key.processing, token[:16] + host + process.to_bytes(4, "big") + token[24:], stored)
    assert await Awaited(queue).purge("orphans") == is_orphan


async def test_what_came_back_is_no_orphan(shell: Shell) -> None:
    """A message whose lease ran out waits for its next delivery, with its tenant or without."""
    queue = shell.queue(wait=0)
    await queue.publish("came back")
    await queue.publish("came back too", tenant="a")
    for _ in range(2):
        await claim_and_die(queue)
    shell.lapse(queue)
    assert await Awaited(queue).purge("orphans") == 0
    await queue.publish("other", tenant="b")
    seen = {}
    for _ in range(4):  # the first of them finds out what has come back
        async with queue.process_message() as message:
            seen[message] = message and queue.current_message().delivery_count
        assert await Awaited(queue).purge("orphans") == 0
    assert seen == {b"came back": 2, b"came back too": 2, b"other": 1, None: None}
    assert shell.leftovers(queue) == set()


@pytest.mark.parametrize("source", LISTS)
async def test_a_list_of_a_wrong_type_is_not_removed(shell: Shell, source: str) -> None:
    """Fail closed: whatever it is, it is still there, and so are the records."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    shell.redis.set(key_of(queue, source), "somebody else's")
    shell.redis.lpush(records_key(queue, source), "record")
    before = snapshot(shell)
    for work in (
        lambda: Awaited(queue).purge(source),
        lambda: Awaited(queue).peek(source=source),
        lambda: Awaited(queue).records(source),
        lambda: Awaited(queue).stats(),
    ):
        with pytest.raises(Exception, match="WRONGTYPE") as caught:
            await work()
        assert type(caught.value).__name__ in ("ResponseError", "LuaScriptError")
        assert snapshot(shell) == before


async def test_a_custom_gateway_offers_none_of_this(shell: Shell) -> None:
    """A typed error names the gateway."""
    queue = shell.queue(gateway=silent_gateway(shell))
    for work in (
        lambda: Awaited(queue).stats(),
        lambda: Awaited(queue).peek(),
        lambda: Awaited(queue).records(),
        lambda: Awaited(queue).purge("pending"),
        lambda: Awaited(queue).redrive_dead_letters(),
        lambda: Awaited(queue).redrive_failed(),
        lambda: Awaited(queue).tenants(),
    ):
        with pytest.raises(shell.module.GatewayContractError, match=r"custom gateway \(Mine\)"):
            await work()


async def test_a_drained_queue_can_still_be_looked_after(shell: Shell) -> None:
    """Draining ends publishing and claiming; what operators do goes on."""
    queue = mortal(shell)
    await bury(shell, queue, "a")
    await queue.drain()
    assert (await Awaited(queue).stats()).dead_letters == 1
    assert await payloads(queue, "dead_letters") == [b"a"]
    assert await Awaited(queue).purge("dead_letters") == 1


async def test_a_drained_queue_can_still_send_its_dead_back_to_others(shell: Shell) -> None:
    """A redrive is an operator's work and goes on; the drained object itself publishes and claims nothing."""
    queue = mortal(shell)
    await bury(shell, queue, "a", "b")
    assert await queue.drain() is True
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    with pytest.raises(shell.module.QueueDrainedError):
        await queue.publish("c")
    assert await take(queue) is None
    assert [await take(shell.queue(wait=0)) for _ in range(3)] == [b"a", b"b", None]
