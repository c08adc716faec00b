"""`max_in_flight_per_tenant`: one tenant cannot keep all consumers busy, and others are not held up."""

from __future__ import annotations

from typing import Any

import pytest

from redis_message_queue import ConfigurationError, RetryLater
from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.shells import EVERY_WIRING, Sent, Shell, claim_and_die, holding, take
from tests.tables import row

pytestmark = pytest.mark.topic("Tenants")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


def limited(shell: Shell, limit: int = 1, **options: Any) -> Any:
    return shell.queue(max_in_flight_per_tenant=limit, **{"wait": 0} | options)


@pytest.mark.promise("With `max_in_flight_per_tenant=N` no more than N messages of a tenant are in flight at a time.")
@every_wiring
async def test_a_tenant_at_its_limit_is_passed_over(shell: Shell) -> None:
    """Whoever has its messages; the next one comes when that one is settled."""
    queue, other = limited(shell), limited(shell)
    await queue.publish_many(["a1", "a2"], tenant="a")
    await queue.publish("b1", tenant="b")
    async with queue.process_message() as first:
        assert (first, await take(other), await take(other)) == (shell.payload("a1"), shell.payload("b1"), None)
    assert (await take(other), await take(other)) == (shell.payload("a2"), None)
    assert not shell.leftovers(queue)


@pytest.mark.parametrize("options", [{}, {"journal": True}, {"enable_completed_queue": True}], ids=str)
async def test_a_batch_has_no_more_than_that(shell: Shell, options: dict[str, Any]) -> None:
    """Messages without a tenant are not limited."""
    queue = limited(shell, 2, **options)
    await queue.publish_many(["a"] * 5, tenant="a")
    await queue.publish_many(["b"] * 5, tenant="b")
    await queue.publish_many(["-"] * 5)
    async with queue.process_messages(100) as batch:
        assert sorted(message.tenant or "" for message in batch) == [""] * 5 + ["a"] * 2 + ["b"] * 2
        async with queue.process_messages(100) as nothing:
            assert not nothing
        await batch.ack(next(message for message in batch if message.tenant == "a"))
        async with queue.process_messages(100) as one:
            assert [message.tenant for message in one] == ["a"]
    async with queue.process_messages(100) as batch:
        assert sorted(message.tenant for message in batch) == ["a", "a", "b", "b"]


async def test_a_loop_handles_everything_within_the_limit(shell: Shell) -> None:
    queue, running, most = limited(shell, 1), {"a": 0, "b": 0}, {"a": 0, "b": 0}
    await queue.publish_many(["m"] * 20, tenant="a")
    await queue.publish_many(["m"] * 20, tenant="b")

    async def work(message: Any) -> None:
        running[message.tenant] += 1
        most[message.tenant] = max(most[message.tenant], running[message.tenant])
        running[message.tenant] -= 1

    summary = await queue.run(shell.handler(work), concurrency=4, prefetch=4, until_empty=True)
    assert (summary.handled, most) == (40, {"a": 1, "b": 1})


async def test_a_retried_message_is_not_in_flight(shell: Shell) -> None:
    queue = limited(shell)
    await queue.publish_many(["a1", "a2"], tenant="a")
    async with queue.process_message():
        assert await take(queue) is None
        raise RetryLater(60)
    assert await take(queue) == shell.payload("a2")
    shell.ripen(queue)
    assert await take(queue) == shell.payload("a1")


async def test_a_crash_frees_its_place_when_the_lease_ends(shell: Shell) -> None:
    queue = limited(shell)
    await queue.publish_many(["a1", "a2"], tenant="a")
    await claim_and_die(queue)
    assert await take(queue) is None
    shell.lapse(queue)
    assert [await take(queue) for _ in range(3)] == [shell.payload("a1"), shell.payload("a2"), None]


async def test_a_waiting_consumer_is_woken_when_there_is_room(shell: Shell) -> None:
    queue = limited(shell)
    await queue.publish_many(["a1", "a2"], tenant="a")
    async with queue.process_message():
        assert await take(queue) is None
        shell.redis.delete(queue.key.wakeup)
        sleeping = await blocked_consumer(shell)
    assert await sleeping.wakes() == b"a2"


async def test_a_consumer_beside_a_tenant_at_its_limit_is_quiet(shell: Shell) -> None:
    queue = limited(shell, wait=3)
    await queue.publish_many(["a1", "a2"], tenant="a")
    async with holding(limited(shell)):
        with Sent(shell.server) as sent:
            assert await take(queue) is None
    assert len(sent.commands) <= 4 * (sent.seconds + 1)


async def test_what_is_no_limit_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [0, -1, True, 1.5, "2"]
    for wrong in cases:
        with row(subtests, wrong=wrong), pytest.raises(ConfigurationError, match="max_in_flight_per_tenant"):
            limited(shell, wrong)


async def test_a_queue_without_leases_cannot_have_a_limit(shell: Shell) -> None:
    with pytest.raises(ConfigurationError, match=r"max_in_flight_per_tenant=1 needs a visibility timeout"):
        limited(shell, visibility_timeout_seconds=None)


@pytest.mark.promise("A tenant that is parked because of its limit or its order is invisible to all consumers.")
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("limit", [{"ordered_tenants": True}, {"max_in_flight_per_tenant": 1}], ids=["order", "limit"])
async def test_a_parked_tenant_is_invisible_to_consumers_without_a_limit(
    shell: Shell, limit: dict[str, Any], partitions: int
) -> None:
    """Others are served, and it comes back as soon as its message has ended."""
    careful = shell.queue(wait=0, partitions=partitions, **limit)
    careless = shell.queue(wait=0, partitions=partitions)
    await careful.publish_many(["first", "second"], tenant="acme")
    async with careful.process_message() as message:
        assert message == shell.payload("first")
        assert await take(careful) is None  # parks the tenant, if the claim has not done so
        assert await take(careless) is None
        await careful.publish("other", tenant="zeta")
        assert await take(careless) == shell.payload("other")
    assert await take(careless) == shell.payload("second")
