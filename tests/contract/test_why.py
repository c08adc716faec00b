"""`why()` explains in one sentence why a message is not done, or what became of it."""

import asyncio
import re
import time
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, Explanation, RetryPolicy
from redis_message_queue.testing import fast_forward
from tests.contract.loops import Crossing, running
from tests.contract.shells import Awaited, Shell, claim_and_die
from tests.workers import connect_worker

pytestmark = pytest.mark.topic("Operator tools")

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
AGE = r"[\d.]+ (ms|s|min)"


async def succeed(message: Any) -> None:
    """Handle a message."""


async def submit(queue: Any, *arguments: Any, **options: Any) -> str:
    receipt = await Awaited(queue).submit(*arguments, **options)
    return str(receipt.id)


async def why(queue: Any, message_id: str) -> Explanation:
    found = await Awaited(queue).why(message_id)
    assert isinstance(found, Explanation)
    assert found.id == message_id
    return found


async def check(queue: Any, message_id: str, cause: str, sentence: str, **facts: Any) -> Explanation:
    found = await why(queue, message_id)
    assert re.fullmatch(sentence, found.sentence), found.sentence
    assert found.cause == cause
    assert {name: found.facts.get(name) for name in facts} == facts
    return found


@pytest.mark.promise("`why()` says in one sentence why a message is not done, or what became of it.")
@pytest.mark.both_shells
@pytest.mark.every_server
@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_message_that_waits_is_explained(shell: Shell, partitions: int) -> None:
    """What it is behind, and who could claim it."""
    queue = shell.queue(partitions=partitions)
    first, second, third = [await submit(queue, one, tenant="acme") for one in "abc"]
    behind = "it waits behind 2 messages of tenant acme"
    await check(queue, third, "no_worker", f"no worker is connected; {behind}", ahead=2, workers=0)
    await check(queue, second, "no_worker", "no worker is connected; it waits behind 1 message of tenant acme")
    await check(queue, first, "no_worker", "no worker is connected; it is the next message of tenant acme")
    connect_worker(shell.redis, queue.queue, claimed_ago=40)
    await check(queue, third, "waiting", f"{behind}; 1 worker connected, the last claim 4. s ago", workers=1)
    await Awaited(queue).pause(tenant="acme")
    await check(queue, third, "tenant_paused", f"tenant acme is paused since {TIME}, for {AGE}; {behind}")
    await Awaited(queue).pause()
    found = await check(queue, third, "paused", f"the queue is paused since {TIME}, for {AGE}; {behind}")
    assert ("partition" in found.facts) == (partitions > 1)
    await Awaited(queue).resume()
    await Awaited(queue).resume(tenant="acme")
    assert await Awaited(queue).cancel(third) == "marked"
    await check(queue, third, "cancelled", "it is cancelled: the claim that meets it drops it")


@pytest.mark.promise("`why()` says in one sentence why a message is not done, or what became of it.")
async def test_turns_of_other_tenants_are_counted(shell: Shell) -> None:
    queue = shell.queue()
    for tenant in ("one", "two", "three", "four"):
        await queue.publish("m", tenant=tenant)
    last = await submit(queue, "m", tenant="acme")
    await check(queue, last, "no_worker", ".*it is the next message of tenant acme, whose turn comes after 4 others")
    without = await submit(queue, "m")
    await check(queue, without, "no_worker", "no worker is connected; it is the next message.*")


@pytest.mark.promise("`why()` says in one sentence why a message is not done, or what became of it.")
@pytest.mark.both_shells
async def test_a_limit_names_who_holds_the_messages(shell: Shell) -> None:
    queue = shell.queue(journal=True)
    ids = [await submit(queue, one, tenant="acme") for one in "abcd"]
    crossing = Crossing(shell)
    limited = shell.queue(journal=True, max_in_flight_per_tenant=2, consumer_name="packer")
    async with running(shell, limited, crossing.handler, concurrency=3):
        await crossing.is_entered_by(2)
        for _ in range(1_000):
            if (found := await why(queue, ids[3])).cause == "tenant_limit":
                break
            await asyncio.sleep(0.01)
        held = (
            rf"acme is at its limit of 2 in flight, both held by packer@\S+, for {AGE}, the first lease ends in {AGE}"
        )
        assert re.fullmatch(held + "; it waits behind 1 message of tenant acme", found.sentence), found.sentence
        assert found.facts["in_flight"] == 2
        await check(queue, ids[0], "in_flight", rf"packer@\S+ has had it for {AGE}, its lease ends in {AGE}; .*")
        crossing.is_open.set()


@pytest.mark.promise("`why()` says in one sentence why a message is not done, or what became of it.")
@pytest.mark.both_shells
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("journal", [False, True])
async def test_a_delay_and_a_retry_are_explained(shell: Shell, partitions: int, journal: bool) -> None:
    policy = RetryPolicy(max_attempts=3, initial_delay_seconds=30, jitter=0)
    queue = shell.queue(partitions=partitions, retry_policy=policy, journal=journal)
    delayed = await submit(queue, "a", delay_seconds=100)
    await check(queue, delayed, "delayed", f"it is delayed until {TIME}, for another 1 min( [34]\\d s)?")
    assert await Awaited(queue).cancel(delayed) == "cancelled"
    sentence = f"it was cancelled at {TIME}" if journal else "no such message is in the queue, and without a journal .*"
    await check(queue, delayed, "cancelled" if journal else "unknown", sentence)

    async def fail(message: Any) -> None:
        raise TimeoutError("too slow")

    retried = await submit(queue, "b")
    after = " after TimeoutError" if journal else ""
    await queue.run(shell.handler(fail), until_empty=True)
    await check(queue, retried, "retry", f"its first retry is due in (30|2\\d) s{after}", failures=1)
    parts = [queue.queue.partition(number) for number in range(partitions)]
    fast_forward(shell.redis, 45, *parts)
    overdue = f"its first retry has been due for 1\\d s{after}, and no consumer has delivered it: .*"
    await check(queue, retried, "overdue" if journal else "no_worker", overdue)
    for _ in range(2):
        await queue.run(shell.handler(fail), until_empty=True)
        fast_forward(shell.redis, 100, *parts)
    sentence = f"it is in the dead letters since {TIME} because its attempts are used up; TimeoutError: too slow"
    await check(queue, retried, "dead_letter", sentence, error_type="TimeoutError")
    await Awaited(queue).purge("dead_letters")
    sentence = f"it went to the dead letters, and is not there any more at {TIME} because of .*"
    if journal:
        await check(queue, retried, "dead_letter", sentence)


@pytest.mark.promise("`why()` says in one sentence why a message is not done, or what became of it.")
@pytest.mark.both_shells
async def test_a_consumer_that_died_is_explained(shell: Shell) -> None:
    """First by who has it, then by its lease."""
    queue = shell.queue()
    message = await submit(queue, "a")
    await claim_and_die(queue)
    gone = rf"\S+ has it, its lease ends in {AGE}; it is not among the connected workers: if it has crashed, .*"
    await check(queue, message, "in_flight", gone)
    fast_forward(shell.redis, 310, queue.queue)
    ended = f"its lease ended {AGE} ago, and no consumer has claimed it again: no worker is connected"
    await check(queue, message, "lease_ended", ended)


@pytest.mark.promise("`why()` says in one sentence why a message is not done, or what became of it.")
@pytest.mark.both_shells
@pytest.mark.parametrize("journal", [False, True])
async def test_the_end_of_a_message_is_explained(shell: Shell, journal: bool) -> None:
    queue = shell.queue(journal=journal, enable_completed_queue=not journal, consumer_name="packer")
    done = await submit(queue, "a")
    await queue.run(shell.handler(succeed), until_empty=True)
    by = r" by packer@\S+" if journal else ".*"
    await check(queue, done, "acknowledged", f"it was acknowledged{by} at {TIME}")
    unknown = "ab" * 16
    nowhere = "no such message is in the queue, "
    sentence = f"nor in its journal, which goes back to {TIME}" if journal else "and without a journal nothing .*"
    await check(queue, unknown, "unknown", nowhere + sentence)
    with pytest.raises(ConfigurationError, match="32 hexadecimal digits"):
        await Awaited(queue).why("5d0c")


@pytest.mark.promise("`why()` counts up to 10,000 messages, and reads no more than 32 MB of them.")
async def test_a_position_is_counted_up_to_a_limit(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis_message_queue.protocol.operate import why as module

    monkeypatch.setattr(module, "MOST_MESSAGES", 20)
    queue = shell.queue(journal=True)
    await queue.publish_many(["x"] * 20)
    last = await submit(queue, "last")
    await check(queue, last, "no_worker", "it waits behind more than 20 messages; no worker is connected")
    far = await submit(queue, "far", tenant="acme")  # found by what the journal says of its tenant
    await check(queue, far, "no_worker", "no worker is connected; it is the next message of tenant acme.*")


@pytest.mark.in_full
async def test_it_answers_soon_beside_very_many_messages(shell: Shell) -> None:
    """Its scripts read pieces, so that nobody else waits for it."""
    queue = shell.queue(journal=True)
    for _ in range(20):
        await queue.publish_many(["x" * 100] * 1_000)
    last = await submit(queue, "last", tenant="acme")
    began = time.monotonic()
    await why(queue, last)
    slow = max((int(one["duration"]) for one in shell.redis.slowlog_get()), default=0)
    assert slow < 50_000, slow
    assert time.monotonic() - began < 30
