"""A message that is older than its TTL is not delivered."""

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

from redis_message_queue import RetryPolicy
from tests.contract.blocked_consumers import take_all
from tests.contract.shells import (
    Awaited,
    Shell,
    claim_and_die,
    fail,
    take,
)
from tests.tables import row

pytestmark = [pytest.mark.topic("Message TTL"), pytest.mark.every_server]


def age(shell: Shell, queue: Any, tenant: str = "") -> None:
    """Everything that waits, is delayed or is in flight was published an hour earlier than it was."""

    def aged(stored: bytes) -> bytes:
        published = int.from_bytes(stored[17:25], "big") - 3_600_000_000
        return stored[:17] + published.to_bytes(8, "big") + stored[25:]

    for key in (queue.key.pending, queue.key.tenant_pending(tenant)):
        for place, stored in enumerate(shell.redis.lrange(key, 0, -1)):
            shell.redis.lset(key, place, aged(stored))
    for key in (queue.key.processing, queue.key.delayed_messages):
        for message_id, stored in shell.redis.hgetall(key).items():
            shell.redis.hset(key, message_id, aged(stored))


@pytest.mark.promise(
    "A message older than `message_ttl_seconds` is dead-lettered with that reason, its id and its tenant instead of "
    "being delivered."
)
@pytest.mark.promise("A claim that finds an expired message continues with the next one, in any tenant queue.")
async def test_a_message_that_is_too_old_is_not_delivered(shell: Shell) -> None:
    """It goes to the dead letters with that reason, its id and its tenant; the claim goes on to a younger one."""
    queue = shell.queue(wait=0, message_ttl_seconds=1_800)
    await queue.publish("old")
    await queue.publish("old too", tenant="a")
    age(shell, queue, "a")
    await queue.publish("young")
    assert await take_all(queue, 2) == [b"young", None]
    letters = {letter.payload: letter for letter in await Awaited(queue).records("dead_letters")}
    assert letters.keys() == {b"old", b"old too"}
    assert {letter.reason for letter in letters.values()} == {"expired"}
    assert (letters[b"old too"].tenant, letters[b"old"].tenant) == ("a", None)
    assert all(letter.delivery_count == 0 and letter.id for letter in letters.values())
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("The TTL of the claiming queue object applies.")
async def test_the_claim_of_a_queue_decides_what_is_too_old(shell: Shell) -> None:
    """A queue object without a limit, or with a longer one, still delivers it."""
    for number in range(3):
        await shell.queue(str(number)).publish("m")
        age(shell, shell.queue(str(number)))
    assert await take(shell.queue("0", wait=0, message_ttl_seconds=7_200)) == b"m"
    assert await take(shell.queue("1", wait=0)) == b"m"
    assert await take(shell.queue("2", wait=0, message_ttl_seconds=1_800)) is None


@pytest.mark.promise(
    "The age of a message counts from its publishing by the server's clock, in fractions of a second, whatever "
    "happened since."
)
async def test_the_age_is_measured_in_parts_of_a_second(shell: Shell) -> None:
    """By the server's clock, without anybody's help."""
    queue = shell.queue(wait=0, message_ttl_seconds=0.05)
    await queue.publish("old")
    await asyncio.sleep(0.1)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"old"]


@pytest.mark.promise("Each expired message emits the `dlq` event.")
async def test_each_expired_message_has_an_event(shell: Shell) -> None:
    """As every dead letter has, and a batch has none of them."""
    events = shell.events()
    queue = shell.queue(wait=0, message_ttl_seconds=1_800, on_event=events.listen)
    await queue.publish_many(["a", "b", "c"])
    ids = [event.message_id for event in events.of("publish")]
    age(shell, queue)
    async with queue.process_messages(10) as batch:
        assert list(batch) == []
    assert [event.message_id for event in events.of("dlq")] == ids
    assert shell.listed(queue.key.dead_letter) == [b"c", b"b", b"a"]
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("A message TTL needs neither a delivery limit nor leases.")
@pytest.mark.parametrize("options", [{"max_delivery_count": None}, {"visibility_timeout_seconds": None}], ids=str)
async def test_age_needs_neither_a_delivery_limit_nor_leases(shell: Shell, options: dict[str, Any]) -> None:
    """The dead letters are there for it in any case."""
    queue = shell.queue(wait=0, message_ttl_seconds=1_800, **options)
    await queue.publish("old")
    age(shell, queue)
    assert await take(queue) is None
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.reason) == (b"old", "expired")


@pytest.mark.promise(
    "The age of a message counts from its publishing by the server's clock, in fractions of a second, whatever "
    "happened since."
)
async def test_a_message_that_comes_back_too_old_is_not_delivered_again(shell: Shell) -> None:
    """Its age counts from its publishing, whatever has happened since; its holder may still settle it until then."""
    queue = shell.queue(wait=0, message_ttl_seconds=1_800, enable_completed_queue=True)
    await queue.publish_many(["slow", "lost"])
    async with queue.process_message() as message:
        assert (message, await claim_and_die(queue)) == (b"slow", b"lost")
        age(shell, queue)
    assert shell.listed(queue.key.completed) == [b"slow"]
    shell.lapse(queue)
    assert await take(queue) is None
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.reason, letter.delivery_count) == (b"lost", "expired", 1)
    assert shell.leftovers(queue) == {b"q::completed", b"q::dlq"}


@pytest.mark.promise(
    "The age of a message counts from its publishing by the server's clock, in fractions of a second, whatever "
    "happened since."
)
async def test_the_age_of_a_delayed_message_counts_from_its_publishing(shell: Shell) -> None:
    """While it is delayed it stays, whatever its age; when it is due it is delivered if it is young enough."""
    queue = shell.queue(wait=0, message_ttl_seconds=1_800)
    await queue.publish("old", delay_seconds=100)
    await queue.publish("old too", delay_seconds=100, tenant="a")
    age(shell, queue, "a")
    await queue.publish("young", delay_seconds=200)
    assert await take(queue) is None
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.dead_letters) == (3, 0)
    shell.ripen(queue)
    assert await take_all(queue, 2) == [b"young", None]
    letters = await Awaited(queue).records("dead_letters")
    assert {(one.payload, one.tenant, one.reason) for one in letters} == {
        (b"old", None, "expired"),
        (b"old too", "a", "expired"),
    }
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise(
    "The age of a message counts from its publishing by the server's clock, in fractions of a second, whatever "
    "happened since."
)
async def test_a_message_that_grows_too_old_between_two_attempts_has_no_other(shell: Shell) -> None:
    """Its pause does not stop its age; the record says that it expired, and how often it was delivered."""
    policy = RetryPolicy(initial_delay_seconds=100, jitter=0)
    queue = shell.queue(wait=0, message_ttl_seconds=1_800, retry_policy=policy)
    await queue.publish("old")
    assert await fail(queue, ValueError()) == b"old"
    age(shell, queue)
    await queue.publish("young")
    assert await fail(queue, ValueError()) == b"young"
    assert (await Awaited(queue).stats()).delayed == 2
    shell.ripen(queue)
    assert await take_all(queue, 2) == [b"young", None]
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.reason, letter.error) == (b"old", "expired", None)
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("`run()` handles no message that is older than the TTL.")
@pytest.mark.parametrize("options", [{}, {"prefetch": 10}, {"batch_size": 10}], ids=str)
async def test_the_loop_handles_nothing_that_is_too_old(shell: Shell, options: dict[str, Any]) -> None:
    """However it claims; what has expired is told of, and not counted as handled or failed."""
    events, handled = shell.events(), []
    queue = shell.queue(message_ttl_seconds=1_800, on_event=events.listen)
    await queue.publish_many(["old", "older"])
    await queue.publish("old too", tenant="a")
    age(shell, queue, "a")
    await queue.publish_many(["young", "younger"])

    def handle(given: Any) -> None:
        handled.extend(one.payload for one in (given if isinstance(given, list) else [given]))

    summary = await queue.run(handle, until_empty=True, **options)
    assert (summary.handled, summary.failed, summary.requeued) == (2, 0, 0)
    assert handled == [b"young", b"younger"]
    assert len(events.of("dlq")) == 3
    assert sorted(shell.listed(queue.key.dead_letter)) == [b"old", b"old too", b"older"]


@pytest.mark.promise("A delay or a first retry delay that exceeds the message TTL is refused.")
@pytest.mark.parametrize("way", ["publish", "publish_many", "tenant", "complete"])
async def test_a_delay_longer_than_the_message_ttl_is_refused(shell: Shell, way: str) -> None:
    """It could never be delivered; nothing is published, and a shorter delay is fine. `at` is a delay as well."""
    source, queue = shell.queue("source"), shell.queue(message_ttl_seconds=60, deduplication=True)
    await source.publish("m")

    async def publish(**when: Any) -> Any:
        if way == "publish":
            return await queue.publish("a", **when)
        if way == "publish_many":
            return await queue.publish_many(["a", "b"], **when)
        if way == "tenant":
            return await Awaited(queue.queue.tenant("acme")).publish("a", **when)
        async with source.process_messages(1) as batch:
            return await Awaited(batch[0]).complete(publish=[(queue.queue, "a", when)])

    now = shell.server_time
    for when in ({"delay_seconds": 60}, {"delay_seconds": 86_400}, {"at": now + timedelta(seconds=3_600)}):
        with pytest.raises(shell.module.ConfigurationError, match="message_ttl_seconds=60") as refused:
            await publish(**when)
        assert next(iter(when)) in str(refused.value)
        assert refused.value.queue == "q"
    assert shell.redis.keys("q::*") == [b"q::meta"]
    await publish(**({"at": now + timedelta(seconds=30)} if way == "publish" else {"delay_seconds": 30}))
    assert (await Awaited(queue).stats()).delayed >= 1


@pytest.mark.promise("A delay or a first retry delay that exceeds the message TTL is refused.")
async def test_a_first_retry_delay_longer_than_the_message_ttl_is_refused(shell: Shell) -> None:
    """As short as chance may make it. Later pauses may be longer: then its age ends the attempts."""
    for policy in (RetryPolicy(initial_delay_seconds=60, jitter=0), RetryPolicy(initial_delay_seconds=200, jitter=0.5)):
        with pytest.raises(shell.module.ConfigurationError, match="retry_policy waits at least"):
            shell.queue(message_ttl_seconds=60, retry_policy=policy)
        gateway = shell.gateway(message_ttl_seconds=60)
        with pytest.raises(shell.module.ConfigurationError, match="message_ttl_seconds"):
            shell.queue(gateway=gateway, retry_policy=policy)
    shell.queue(message_ttl_seconds=60, retry_policy=RetryPolicy(initial_delay_seconds=59, jitter=0))
    shell.queue(message_ttl_seconds=60, retry_policy=RetryPolicy(initial_delay_seconds=100, jitter=0.5))


@pytest.mark.promise("A message TTL is a number of seconds, at least one millisecond.")
async def test_an_invalid_message_ttl_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """A number of seconds, and a millisecond at least."""
    for life in [0, -1, 0.0001, math.nan, math.inf, True, "1"]:
        with row(subtests, life=life), pytest.raises(shell.module.ConfigurationError, match="message_ttl_seconds"):
            shell.queue(message_ttl_seconds=life)
