"""A redrive publishes dead letters or failed messages again."""

import json
import logging
import time
from typing import Any

import pytest

from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.operators import make_dead_letters, mortal, payloads, records_key, snapshot
from tests.contract.shells import (
    LIMIT_SECONDS,
    Awaited,
    Shell,
    claim_and_die,
    fail,
    take,
)

pytestmark = pytest.mark.topic("Operator tools")


# Redriving


@pytest.mark.promise(
    "`redrive_dead_letters()` republishes dead letters, oldest first, with their tenant, a new id and a new delivery "
    "count."
)
@pytest.mark.promise("`replay_of` names the message that a redriven one repeats, also after several redrives.")
async def test_dead_letters_become_messages_again(shell: Shell) -> None:
    """The oldest first, each once, with a fresh id that remembers the old one, its tenant, and a fresh budget."""
    events = shell.events()
    queue = mortal(shell, on_event=events.listen)
    await make_dead_letters(shell, queue, "first", "second", tenant="ä")
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


@pytest.mark.promise(
    "`redrive_failed()` republishes the failed list as `redrive_dead_letters()` republishes dead letters."
)
async def test_failed_messages_become_messages_again(shell: Shell) -> None:
    """As dead letters do: the oldest first, with lineage and tenant; dead letters and other failures stay."""
    events = shell.events()
    queue = mortal(shell, enable_failed_queue=True, on_event=events.listen)
    await make_dead_letters(shell, queue, "dead")
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


@pytest.mark.promise("`replay_of` names the message that a redriven one repeats, also after several redrives.")
async def test_lineage_continues_over_several_redrives(shell: Shell) -> None:
    """A message that dies again remembers whom it repeated, in its record and for the next of its kind."""
    queue = mortal(shell, enable_completed_queue=True)
    await make_dead_letters(shell, queue, "m")
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


@pytest.mark.promise("`max_messages` limits a redrive, `where` selects its messages, and `dry_run` only counts them.")
async def test_so_many_and_no_more(shell: Shell) -> None:
    """max_messages takes the oldest; what is left keeps its order and its records."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, *"abcde")
    assert (await Awaited(queue).redrive_dead_letters(max_messages=2)).redriven == 2
    assert [(one.payload, bool(one.id)) for one in await Awaited(queue).records()] == [
        (b"e", True),
        (b"d", True),
        (b"c", True),
    ]
    assert [await take(queue) for _ in range(3)] == [b"a", b"b", None]
    assert (await Awaited(queue).redrive_dead_letters(max_messages=1_000)).redriven == 3
    assert (await Awaited(queue).redrive_dead_letters()).matched == 0


@pytest.mark.promise("`max_messages` limits a redrive, `where` selects its messages, and `dry_run` only counts them.")
async def test_a_dry_run_only_counts(shell: Shell) -> None:
    """It asks the predicate, and changes nothing."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, *"abcde")
    before = snapshot(shell)
    summary = await Awaited(queue).redrive_dead_letters(dry_run=True)
    assert (summary.matched, summary.redriven, summary.suppressed) == (5, 0, 0)
    some = await Awaited(queue).redrive_dead_letters(dry_run=True, where=lambda letter: letter.payload > b"b")
    assert some.matched == 3
    assert (await Awaited(queue).redrive_dead_letters(dry_run=True, max_messages=2)).matched == 2
    assert snapshot(shell) == before


@pytest.mark.promise("`max_messages` limits a redrive, `where` selects its messages, and `dry_run` only counts them.")
async def test_a_predicate_chooses_among_thousands(shell: Shell) -> None:
    """Every third of 2,500 goes back, in order; the rest stays, in order, each with its record."""
    queue = mortal(shell)
    texts = [str(number) for number in range(2_500)]
    await make_dead_letters(shell, queue, *texts)
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


@pytest.mark.promise(
    "`where` may be an `async def` function in the async queue; if it raises, its page stays untouched."
)
async def test_where_may_be_async_in_the_async_queue(shell: Shell) -> None:
    """An async function for the asyncio queue; the sync queue refuses one that it cannot await."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "a", "b")

    async def wanted(letter: Any) -> bool:
        return bool(letter.payload == b"a")

    if shell.name == "sync":
        with pytest.raises(TypeError, match="await"):
            await Awaited(queue).redrive_dead_letters(where=wanted)
        assert shell.redis.llen(queue.key.dead_letter) == 2
    else:
        assert (await Awaited(queue).redrive_dead_letters(where=wanted)).redriven == 1
        assert await take(queue) == b"a"


@pytest.mark.promise(
    "`where` may be an `async def` function in the async queue; if it raises, its page stays untouched."
)
async def test_a_predicate_that_raises_stops_everything(shell: Shell) -> None:
    """Its own error comes out, and no letter of that page is touched."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "a", "b")

    def broken(letter: Any) -> bool:
        if letter.payload == b"b":
            raise LookupError("mine")
        return True

    before = snapshot(shell)
    with pytest.raises(LookupError, match="mine"):
        await Awaited(queue).redrive_dead_letters(where=broken)
    assert snapshot(shell) == before


@pytest.mark.promise(
    "A redrive into a full queue moves nothing, whatever the overload policy, and the dead letters stay."
)
@pytest.mark.parametrize("limits", [{"max_pending_length": 3}, {"max_pending_per_tenant": 2}], ids=str)
async def test_a_full_queue_takes_none_of_the_dead(shell: Shell, limits: dict[str, int]) -> None:
    """They stay where they are, and come when there is room."""
    queue = mortal(shell, **limits)
    await make_dead_letters(shell, queue, "a", "b", tenant="t")
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


@pytest.mark.promise(
    "A redrive into a full queue moves nothing, whatever the overload policy, and the dead letters stay."
)
@pytest.mark.parametrize("limits", [{"max_pending_length": 2}, {"max_pending_per_tenant": 2}], ids=str)
@pytest.mark.parametrize("policy", ["drop_oldest", "block"])
async def test_a_redrive_neither_drops_messages_nor_waits_for_room(
    shell: Shell, policy: str, limits: dict[str, int]
) -> None:
    """Whatever a full queue does with a publish, a redrive is refused at once, and nothing has changed."""
    events = shell.events()
    await make_dead_letters(shell, mortal(shell), "dead", tenant="t")
    options: dict[str, Any] = {
        "max_delivery_count": None,
        "pending_overload_policy": policy,
        "on_event": events.listen,
    } | limits
    if policy == "block":
        options["pending_overload_block_timeout_seconds"] = 5 * LIMIT_SECONDS
    queue = shell.queue(wait=0, **options)
    await queue.publish_many(["x", "y"], tenant="t")
    before = {key: value for key, value in snapshot(shell).items() if b"reply" not in key}
    started = time.monotonic()
    with pytest.raises(shell.module.QueueBackpressureError):
        await Awaited(queue).redrive_dead_letters()
    assert time.monotonic() - started < 2 * LIMIT_SECONDS
    assert {key: value for key, value in snapshot(shell).items() if b"reply" not in key} == before
    assert events.of("dropped") == events.of("redriven") == []
    assert await take(queue) == b"x"
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 1
    assert [await take(queue) for _ in range(3)] == [b"y", b"dead", None]


@pytest.mark.promise("A redrive wakes a waiting consumer.")
async def test_a_redrive_wakes_who_sleeps(shell: Shell) -> None:
    """As a publish does, and each that has work; with a tenant and without."""
    for tenant in (None, "t"):
        queue = mortal(shell)
        await make_dead_letters(shell, queue, "a", "b", tenant=tenant)
        shell.redis.delete(queue.key.wakeup)
        asleep = [await blocked_consumer(shell) for _ in range(2)]
        assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
        assert sorted([await one.wakes() for one in asleep]) == [b"a", b"b"]


@pytest.mark.promise("No event, error or log line contains a payload.")
async def test_events_of_a_redrive_contain_no_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in an event nor in an error nor in a log line; only the predicate sees it."""
    secret, events, errors = "s3cret", shell.events(), []
    queue = mortal(shell, on_event=events.listen, deduplication=True, max_pending_length=3)
    with caplog.at_level(logging.DEBUG):
        await make_dead_letters(shell, queue, secret, f"{secret} 2", tenant="t")
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


@pytest.mark.promise(
    "With `respect_deduplication` a message whose key is taken stays in its list; without it, it is republished."
)
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


@pytest.mark.promise("A redrive needs only the list: payloads that you pushed by hand are republished too.")
async def test_payloads_pushed_by_hand_are_redriven_too(shell: Shell) -> None:
    """Whatever an operator has put there becomes a payload, without lineage; also where keys are respected."""
    for options in ({}, {"deduplication": True}):
        shell.redis.flushall()
        queue = mortal(shell, **options)
        shell.redis.lpush(queue.key.dead_letter, b"by hand", b"\xff\xfe", b"")
        summary = await Awaited(queue).redrive_dead_letters(respect_deduplication=bool(options))
        assert (summary.matched, summary.redriven) == (3, 3)
        assert [await take(queue) for _ in range(4)] == [b"by hand", b"\xff\xfe", b"", None]


@pytest.mark.promise("A redrive republishes each message once and unchanged, even if the list changes meanwhile.")
async def test_after_editing_the_list_by_hand_each_message_is_redriven_unchanged(shell: Shell) -> None:
    """With its own lineage if its record is still found, and never with another's."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, *"abcdef")
    ids = {one.payload: one.id for one in await Awaited(queue).records()}
    shell.redis.lrem(queue.key.dead_letter, 0, "b")
    shell.redis.lrem(queue.key.dead_letter, 0, "e")
    assert (await Awaited(queue).redrive_dead_letters(where=lambda letter: letter.payload != b"d")).redriven == 3
    for expected in (b"a", b"c", b"f"):
        async with queue.process_message() as message:
            assert (message, queue.current_message().replay_of) == (expected, ids[expected])
    (left,) = [one for one in await Awaited(queue).records() if one.payload is not None]
    assert (left.payload, left.id) == (b"d", ids[b"d"])


@pytest.mark.promise("A redrive republishes each message once and unchanged, even if the list changes meanwhile.")
async def test_a_message_that_leaves_during_a_redrive_is_not_confused_with_an_equal_one(shell: Shell) -> None:
    """When the oldest is trimmed between the look and the step, the next one has its place, and the same words."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "same", tenant="chosen")
    await make_dead_letters(shell, queue, "same", tenant="other")

    def trim_and_choose(letter: Any) -> bool:
        for key in (queue.key.dead_letter, records_key(queue, "dead_letters")):
            shell.redis.ltrim(key, 0, 0)  # what a claim does where max_dead_letter_length is reached
        return bool(letter.tenant == "chosen")

    summary = await Awaited(queue).redrive_dead_letters(where=trim_and_choose)
    assert (summary.matched, summary.redriven) == (1, 0)
    assert [(one.payload, one.tenant) for one in await Awaited(queue).records()] == [(b"same", "other")]
    assert await Awaited(queue).tenants() == {}


@pytest.mark.promise("A redrive needs only the list: payloads that you pushed by hand are republished too.")
async def test_a_redrive_works_without_leases_and_from_a_list_of_another_name(shell: Shell) -> None:
    """It needs the list and nothing else."""
    gateway = shell.gateway(message_wait_interval_seconds=0, dead_letter_queue="the dead")
    queue = shell.queue(gateway=gateway)
    shell.redis.lpush("the dead", "a", "b")
    assert await payloads(queue, "dead_letters") == [b"b", b"a"]
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    assert [await take(queue) for _ in range(3)] == [b"a", b"b", None]


@pytest.mark.promise("The arguments of a redrive are validated before anything changes.")
async def test_the_arguments_of_a_redrive_are_validated(shell: Shell) -> None:
    """A typed error names what is wrong, before anything is touched."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "a")
    before = snapshot(shell)
    mistakes: tuple[dict[str, Any], ...] = (
        *({"max_messages": value} for value in (0, -1, True, 1.5, "1")),
        *({"where": value} for value in (7, "a", [])),
        *({"dry_run": value} for value in (1, 0, "no", None)),
        *({"respect_deduplication": value} for value in (1, "yes", None)),
    )
    for wrong in mistakes:
        for method in ("redrive_dead_letters", "redrive_failed"):
            with pytest.raises(shell.module.ConfigurationError, match=next(iter(wrong))):
                await getattr(Awaited(queue), method)(**wrong)
    assert snapshot(shell) == before


@pytest.mark.promise("The sync queue reads and redrives what the async queue dead-lettered, and the reverse.")
async def test_a_sync_queue_redrives_dead_letters_of_an_async_one_and_the_reverse(shell: Shell) -> None:
    """Lists and records are the same for sync and async queues."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "a")
    client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    other = shell.other_module.RedisMessageQueue("q", client=client)
    (letter,) = await Awaited(other).records()
    assert (await Awaited(other).redrive_dead_letters()).redriven == 1
    await (client.aclose() if shell.name == "sync" else Awaited(client).close())
    async with queue.process_message():
        assert queue.current_message().replay_of == letter.id


# Drained queues


@pytest.mark.promise("A drained queue can still be inspected, purged and redriven for other consumers.")
async def test_a_drained_queue_can_still_redrive_for_others(shell: Shell) -> None:
    """A redrive is an operator's work and goes on; the drained object itself publishes and claims nothing."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "a", "b")
    assert await queue.drain() is True
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    with pytest.raises(shell.module.QueueDrainedError):
        await queue.publish("c")
    assert await take(queue) is None
    assert [await take(shell.queue(wait=0)) for _ in range(3)] == [b"a", b"b", None]
