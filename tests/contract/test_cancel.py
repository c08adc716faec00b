"""A message that is cancelled by its id is not delivered, whichever way it would have been claimed."""

from __future__ import annotations

import contextlib
import logging
from itertools import product
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, GatewayContractError, LuaScriptError, RetryLater
from tests.contract.shells import (
    EVERY_WIRING,
    Awaited,
    Shell,
    claim_and_die,
    fail,
    holding,
    silent_gateway,
    take,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Cancelling a message")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


@pytest.mark.promise("`cancel(id)` removes a delayed message at once, with an event, a log line and a journal entry.")
@every_wiring
async def test_a_delayed_message_is_gone(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redis_message_queue")
    events = shell.events()
    queue = shell.queue(wait=0, journal=True, on_event=events.listen)
    operator = Awaited(queue)
    one = await operator.submit("m", delay_seconds=60, tenant="t")
    assert await operator.cancel(one.id) == "cancelled"
    assert [event.message_id for event in events.of("cancelled")] == [one.id]
    assert f"q: message {one.id} was cancelled, and nobody has handled it" in caplog.messages
    assert [entry.event for entry in await operator.trace(one.id)] == ["published", "delayed", "cancelled"]
    assert (await operator.trace(one.id))[-1].tenant == "t"
    assert await take(queue) is None
    assert await operator.cancel(one.id) == "unknown"
    assert not shell.leftovers(queue) - {queue.key.journal.encode()}


async def test_the_next_attempt_is_cancelled_too(shell: Shell) -> None:
    """Its delivery count goes with it, and other delayed messages stay."""
    queue = shell.queue(wait=0)
    operator = Awaited(queue)
    one = await operator.submit("m")
    other = await operator.submit("other", delay_seconds=60)
    async with queue.process_message():
        raise RetryLater(60)
    assert await operator.cancel(one.id) == "cancelled"
    assert not shell.redis.exists(queue.key.deliveries)
    shell.ripen(queue)
    assert (await take(queue), await take(queue)) == (shell.payload("other"), None)
    assert await operator.cancel(other.id) == "unknown"


@pytest.mark.promise(
    "`cancel(id)` marks a waiting message without a search; the claim that meets it drops it, with event, log and "
    "journal entry."
)
@every_wiring
@pytest.mark.parametrize("tenant", [None, "t"])
async def test_a_waiting_message_is_dropped_when_it_is_met(
    shell: Shell, tenant: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redis_message_queue")
    events = shell.events()
    queue = shell.queue(wait=0, journal=True, on_event=events.listen)
    operator = Awaited(queue)
    first, second, third = await operator.submit_many(["first", "second", "third"], tenant=tenant)
    assert await operator.cancel(second.id) == "marked" == await operator.cancel(second.id)
    found = await operator.get(second.id)
    assert (found.state, found.cancelled, (await operator.get(third.id)).cancelled) == ("pending", True, False)
    assert [one.cancelled for one in await operator.peek()] == [False, True, False]
    assert [one.cancelled for one in await operator.peek(tenant=tenant)] == [False, True, False]
    assert not events.of("cancelled")
    assert [await take(queue) for _ in range(3)] == [shell.payload("first"), shell.payload("third"), None]
    assert [(event.message_id, event.delivery_count) for event in events.of("cancelled")] == [(second.id, 0)]
    assert not events.of("dlq")
    assert f"q: message {second.id} was cancelled, and nobody has handled it" in caplog.messages
    assert [entry.event for entry in await operator.trace(second.id)] == ["published", "cancelled"]
    assert not shell.leftovers(queue) - {queue.key.journal.encode()}
    assert first.accepted


async def test_whatever_kind_of_queue_it_is(shell: Shell, subtests: pytest.Subtests) -> None:
    """The claims of a consumer in full swing have a short script, which knows of marks, too."""
    every_options: list[Any] = [
        {},
        {"visibility_timeout_seconds": None, "max_delivery_count": None},
        {"message_ttl_seconds": 60},
        {"enable_failed_queue": True, "max_delivery_count": 1},
        {"tenant_weights": {"t": 3}},
    ]
    every_details: list[Any] = [{}, {"tenant": "t"}, {"headers": {"a": "b"}}]
    for options, details in product(every_options, every_details):
        with row(subtests, options=options, details=details):
            shell.redis.flushall()
            queue = shell.queue(wait=0, **options)
            receipts = await Awaited(queue).submit_many(list("abcdef"), **details)
            assert [await take(queue) for _ in range(3)] == [shell.payload(one) for one in "abc"]
            assert await Awaited(shell.queue(**options)).cancel(receipts[4].id) == "marked"
            assert [await take(queue) for _ in range(3)] == [shell.payload("d"), shell.payload("f"), None]
            assert not shell.redis.exists(queue.key.cancelled)
            assert not shell.redis.hexists(queue.key.meta, "cancels")


@every_wiring
async def test_a_batch_is_without_it(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    receipts = await Awaited(queue).submit_many([str(number) for number in range(100)])
    for one in receipts[::2]:
        await Awaited(queue).cancel(one.id)
    async with queue.process_messages(100) as batch:
        assert [message.id for message in batch] == [one.id for one in receipts[1::2]]


async def test_a_loop_does_not_see_it(shell: Shell) -> None:
    events, seen = shell.events(), []
    queue = shell.queue(wait=0, on_event=events.listen)
    receipts = await Awaited(queue).submit_many(["a", "b", "c"])
    await Awaited(queue).cancel(receipts[1].id)
    handler = shell.callback(lambda message: seen.append(message.id))
    summary = await queue.run(handler, until_empty=True, prefetch=3)
    assert seen == [receipts[0].id, receipts[2].id]
    assert (summary.handled, summary.refused_at_claim) == (2, 0)
    assert len(events.of("cancelled")) == 1


@pytest.mark.promise("A message that a consumer has is `in_flight`: `cancel(id)` changes nothing.")
@every_wiring
async def test_a_message_in_flight_is_left_alone(shell: Shell) -> None:
    """Its handler may be at it, or its lease may have run out: then the next consumer gets it as ever."""
    queue = shell.queue(wait=0, enable_failed_queue=True)
    one = await Awaited(queue).submit("m")
    async with holding(queue):
        assert await Awaited(queue).cancel(one.id) == "in_flight"
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await Awaited(queue).cancel(one.id) == "in_flight"
    assert await fail(queue, ValueError()) == shell.payload("m")
    assert await Awaited(queue).cancel(one.id) == "unknown"


async def test_without_leases_a_message_in_flight_is_cancelled_if_it_comes_back(shell: Shell) -> None:
    """Nobody can tell its id from its claim."""
    queue = shell.queue(wait=0, visibility_timeout_seconds=None)
    one = await Awaited(queue).submit("m")
    try:
        async with queue.process_messages(1):
            assert await Awaited(queue).cancel(one.id) == "marked"
            raise LookupError
    except LookupError:
        assert await take(queue) is None
    assert not shell.leftovers(queue)


@pytest.mark.promise("`cancel(id)` can be sent as often as needed: a repetition answers what the first call did.")
@pytest.mark.parametrize("delay", [None, 60], ids=["waiting", "delayed"])
@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_a_lost_answer(shell: Shell, lost: str, delay: float | None) -> None:
    client = shell.lossy_client()
    events = shell.events()
    queue = shell.queue(client=client, wait=0, on_event=events.listen)
    one = await Awaited(queue).submit("m", delay_seconds=delay)
    getattr(client.losses, lost)()
    assert await Awaited(queue).cancel(one.id) == ("marked" if delay is None else "cancelled")
    assert await take(queue) is None
    assert [event.message_id for event in events.of("cancelled")] == [one.id]


async def test_the_answer_of_a_claim_that_dropped_it_can_be_lost(shell: Shell) -> None:
    """It tells of the message when it is asked again."""
    client = shell.lossy_client()
    events = shell.events()
    queue = shell.queue(client=client, wait=0, on_event=events.listen)
    receipts = await Awaited(queue).submit_many(["a", "b"])
    await Awaited(queue).cancel(receipts[0].id)
    client.losses.reply()
    assert await take(queue) == "b"
    assert [event.message_id for event in events.of("cancelled")] == [receipts[0].id]


@pytest.mark.promise("No mark stays behind: it goes with its message, with the last message, or after 30 days.")
async def test_a_mark_of_nobody_goes_with_the_last_message(shell: Shell) -> None:
    """Of an id that does not exist, or of a message that was purged."""
    queue = shell.queue(wait=0)
    operator = Awaited(queue)
    await operator.submit("m")
    assert await operator.cancel("ab" * 16) == "marked"
    assert await take(queue) == shell.payload("m")
    assert await take(queue) is None
    assert not shell.leftovers(queue)
    one = await operator.submit("n")
    assert await operator.cancel(one.id) == "marked"
    assert await operator.purge("pending") == 1
    assert await take(queue) is None
    assert not shell.leftovers(queue)
    assert not shell.redis.hexists(queue.key.meta, "cancels")


async def test_old_marks_of_a_queue_that_is_never_empty(shell: Shell) -> None:
    """They go with the next mark, and all of them at last by themselves."""
    queue = shell.queue(wait=0)
    operator = Awaited(queue)
    await operator.submit("m")
    old = {bytes([number]) * 16: 1.0 for number in range(20)}
    shell.redis.zadd(queue.key.cancelled, old)
    assert await operator.cancel("ab" * 16) == "marked"
    assert shell.redis.zrange(queue.key.cancelled, 0, -1) == [bytes.fromhex("ab" * 16)]
    assert 0 < shell.redis.ttl(queue.key.cancelled) <= 30 * 86_400
    shell.redis.delete(queue.key.cancelled)  # as if that time were over
    assert await take(queue) == shell.payload("m")
    assert not shell.redis.hexists(queue.key.meta, "cancels")


@pytest.mark.promise("On a server without memory a mark is refused, and a delayed message can be cancelled.")
async def test_a_server_without_memory(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    operator = Awaited(queue)
    waiting, delayed = await operator.submit("w"), await operator.submit("d", delay_seconds=60)
    shell.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(LuaScriptError, match=r"(?s)maxmemory"):
            await operator.cancel(waiting.id)
        assert await operator.cancel(delayed.id) == "cancelled"
    finally:
        shell.redis.config_set("maxmemory", 0)
    assert not shell.redis.exists(queue.key.cancelled)
    assert await take(queue) == shell.payload("w")


async def test_a_redriven_message_is_another_one(shell: Shell) -> None:
    queue = shell.queue(wait=0, enable_failed_queue=True)
    one = await Awaited(queue).submit("m")
    await fail(queue, ValueError())
    await Awaited(queue).redrive_failed()
    assert await Awaited(queue).cancel(one.id) == "marked"  # nobody can tell that it is not there
    assert await take(queue) == shell.payload("m")


async def test_what_is_no_id_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for wrong in ["", "xyz", "ab" * 15, 1, None]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            with pytest.raises(ConfigurationError, match="message_id must be"):
                await Awaited(shell.queue()).cancel(wrong)


async def test_a_custom_gateway_cannot_cancel(shell: Shell) -> None:
    with pytest.raises(GatewayContractError):
        await Awaited(shell.queue(gateway=silent_gateway(shell))).cancel("ab" * 16)


@pytest.mark.promise("`cancel(id)` that finds the message in one partition leaves no mark in another.")
@pytest.mark.parametrize("outcome", ["in_flight", "cancelled"])
async def test_a_message_of_another_partition_leaves_no_mark(shell: Shell, outcome: str) -> None:
    """Messages wait in all others, where a mark would keep claims from their fast path for weeks."""
    queue = shell.queue(wait=0, partitions=3)
    operator, last = Awaited(queue), queue.queue.partition(2)
    one = await Awaited(last).submit("m", **({"delay_seconds": 60} if outcome == "cancelled" else {}))
    async with contextlib.AsyncExitStack() as stack:
        if outcome == "in_flight":
            await stack.enter_async_context(queue.process_message())
        for number in range(3):
            await Awaited(queue.queue.partition(number)).publish(str(number))
        waits = await Awaited(queue.queue.partition(0)).submit("waits")
        assert await operator.cancel(one.id) == outcome
        for number in range(3):
            keys = queue.queue.partition(number).key
            assert not shell.redis.exists(keys.cancelled)
            assert not shell.redis.hexists(keys.meta, "cancels"), "claims are on their fast path"
        # Where another message is marked, that mark stays.
        assert await operator.cancel(waits.id) == "marked"
        assert await operator.cancel(one.id) == ("in_flight" if outcome == "in_flight" else "marked")
        marks = shell.redis.zrange(queue.queue.partition(0).key.cancelled, 0, -1)
        assert bytes.fromhex(waits.id) in marks
        if outcome == "in_flight":
            assert marks == [bytes.fromhex(waits.id)]
    assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 3


async def test_marks_are_withdrawn_if_a_reply_is_lost(shell: Shell) -> None:
    """Each request and each reply of the call is lost once; redis-py's or our own retry sends it again."""
    for cut in range(1, 6):
        shell.redis.flushall()
        client = shell.lossy_client()
        queue = shell.queue(wait=0, partitions=3, client=client)
        one = await Awaited(queue.queue.partition(2)).submit("m")
        async with queue.process_message():
            for number in range(3):
                await Awaited(queue.queue.partition(number)).publish(str(number))
            client.losses.pass_on(cut - 1)
            client.losses.reply() if cut % 2 else client.losses.request()
            assert await Awaited(queue).cancel(one.id) == "in_flight"
            client.losses.heal()
            assert not any(shell.redis.exists(queue.queue.partition(number).key.cancelled) for number in range(3))
