"""`stats()` counts messages and `peek()` shows them; neither changes anything."""

import asyncio
from typing import Any

import pytest

from tests.contract.operators import SOURCES, make_dead_letters, mortal, payloads, snapshot
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

pytestmark = pytest.mark.topic("Operator tools")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

NO_COUNTS = [0, -1, True, 1.0, "1", None, 10_001]


# stats()


@pytest.mark.promise(
    "`stats()` counts pending, processing, delayed, completed, failed, dead letters and tenants, and changes nothing."
)
@every_wiring
async def test_stats_count_what_is_where(shell: Shell) -> None:
    """Over every kind of connection."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await make_dead_letters(shell, queue, "dead 1", "dead 2")
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


@pytest.mark.promise("An invalid weight of a tenant in Redis counts as 1.")
async def test_a_damaged_weight_does_not_stop_a_look(shell: Shell) -> None:
    """It counts as one, as in a claim."""
    queue = shell.queue()
    for name in "ab":
        await queue.publish_many(["m"] * 2, tenant=name)
    shell.redis.hset(queue.key.weights, "a", "heavy")
    assert [one.tenant for one in await Awaited(queue).peek(4)] == ["a", "b", "a", "b"]


@pytest.mark.promise(
    "`stats()` counts pending, processing, delayed, completed, failed, dead letters and tenants, and changes nothing."
)
async def test_stats_of_nothing_are_zeros(shell: Shell) -> None:
    """And leave nothing behind."""
    stats = await Awaited(shell.queue()).stats()
    assert stats.oldest_pending_seconds is None
    assert {getattr(stats, name) for name in (*SOURCES, "tenants")} == {0}
    assert shell.is_empty


@pytest.mark.promise("`stats()` reports the age of the oldest pending message of any tenant.")
async def test_the_oldest_message_can_be_of_any_tenant(shell: Shell) -> None:
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


# peek()


@pytest.mark.promise("`peek()` shows the messages of any source with their details and changes nothing.")
@every_wiring
async def test_a_look_shows_each_source_and_touches_nothing(shell: Shell) -> None:
    """Payloads as the client decodes, with what is known of each."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await make_dead_letters(shell, queue, "dead")
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


@pytest.mark.promise("`peek()` shows pending messages in the order of delivery, or those of one tenant.")
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


@pytest.mark.promise("`peek()` shows pending messages in the order of delivery, or those of one tenant.")
async def test_peek_shows_the_messages_of_one_tenant(shell: Shell) -> None:
    """Its next messages, and nobody else's; other sources know no tenant."""
    queue = shell.queue()
    await queue.publish_many(["a0", "a1", "a2"], tenant="a")
    await queue.publish("b0", tenant="b")
    assert [one.payload for one in await Awaited(queue).peek(2, tenant="a")] == [b"a0", b"a1"]
    assert await Awaited(queue).peek(tenant="nobody") == []
    with pytest.raises(shell.module.ConfigurationError, match="tenant"):
        await Awaited(queue).peek(source="failed", tenant="a")


@pytest.mark.promise("`peek()` shows messages in processing by the end of their lease, and all that `stats()` counts.")
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


@pytest.mark.promise("`peek()` shows messages in processing by the end of their lease, and all that `stats()` counts.")
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


@pytest.mark.promise("An invalid source, target or count is refused with the values that are allowed.")
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


@pytest.mark.promise("An invalid source, target or count is refused with the values that are allowed.")
@pytest.mark.parametrize("count", NO_COUNTS)
async def test_an_invalid_count_is_refused(shell: Shell, count: Any) -> None:
    """From 1 to 10,000, by every method that takes one."""
    queue = shell.queue()
    for work, word in (
        (lambda: Awaited(queue).peek(count), "count"),
        (lambda: Awaited(queue).records(max_records=count), "max_records"),
        (lambda: Awaited(queue).tenants(max_tenants=count), "max_tenants"),
    ):
        with pytest.raises(shell.module.ConfigurationError, match=word):
            await work()


# Custom gateways and drained queues


@pytest.mark.promise("A queue with a custom gateway refuses the operator tools.")
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


@pytest.mark.promise("A drained queue can still be inspected, purged and redriven for other consumers.")
async def test_a_drained_queue_can_still_be_looked_after(shell: Shell) -> None:
    """Draining ends publishing and claiming; what operators do goes on."""
    queue = mortal(shell)
    await make_dead_letters(shell, queue, "a")
    await queue.drain()
    assert (await Awaited(queue).stats()).dead_letters == 1
    assert await payloads(queue, "dead_letters") == [b"a"]
    assert await Awaited(queue).purge("dead_letters") == 1
