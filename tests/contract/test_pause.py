"""A paused queue gives out nothing, whoever asks, until it is resumed; everything else goes on."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from redis_message_queue import GatewayContractError, RedisMessageQueueError
from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.shells import EVERY_WIRING, Awaited, Sent, Shell, claim_and_die, silent_gateway, take
from tests.tables import row

pytestmark = pytest.mark.topic("Pausing")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


@pytest.mark.promise("No consumer claims a message of a paused queue, and publishing goes on; `resume()` ends that.")
@every_wiring
async def test_a_paused_queue_gives_out_nothing(shell: Shell) -> None:
    """Other queue objects obey too, and it can be said twice."""
    queue = shell.queue(wait=0)
    await queue.publish("before")
    operator = Awaited(shell.queue())
    assert (await operator.is_paused(), await operator.pause(), await operator.pause()) == (False, True, False)
    assert await queue.publish("meanwhile") and await queue.publish_many(["many"], tenant="t") == [True]
    assert await take(queue) is None
    async with queue.process_messages(10) as batch:
        assert not batch
    assert (await queue.stats()).pending == 3
    assert (await operator.is_paused(), await operator.resume(), await operator.resume()) == (True, True, False)
    assert {await take(queue) for _ in range(3)} == {shell.payload(one) for one in ("before", "meanwhile", "many")}


async def test_a_consumer_in_full_swing_stops_at_once(shell: Shell) -> None:
    """Its claims have a short script by then, which knows of pauses, too."""
    queue = shell.queue(wait=0)
    await queue.publish_many(["a", "b", "c", "d"])
    assert [await take(queue) for _ in range(3)] == [shell.payload(one) for one in "abc"]
    await Awaited(shell.queue()).pause()
    assert [await take(queue) for _ in range(2)] == [None, None]
    await Awaited(shell.queue()).resume()
    assert await take(queue) == shell.payload("d")


async def test_whatever_waits_there(shell: Shell, subtests: pytest.Subtests) -> None:
    every_options: list[Any] = [
        {},
        {"visibility_timeout_seconds": None},
        {"journal": True},
        {"tenant_weights": {"t": 2}},
    ]
    every_details: list[Any] = [{}, {"tenant": "t"}, {"headers": {"a": "b"}}]
    for options, details in product(every_options, every_details):
        with row(subtests, options=options, details=details):
            shell.redis.flushall()
            queue = shell.queue(wait=0, **options)
            await queue.publish("m", **details)
            await Awaited(queue).pause()
            assert await take(queue) is None
            await Awaited(queue).resume()
            assert await take(queue) == shell.payload("m")


async def test_what_is_claimed_is_finished(shell: Shell) -> None:
    """Acks, failures, retries and heartbeats are no new work."""
    queue = shell.queue(wait=0, enable_completed_queue=True)
    await queue.publish("m")
    async with queue.process_message() as message:
        await Awaited(queue).pause()
    assert shell.listed(queue.key.completed) == [b"m"] and message == shell.payload("m")


async def test_expired_and_due_messages_wait_too(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await queue.publish("expired")
    await claim_and_die(queue)
    await queue.publish("due", delay_seconds=60)
    await Awaited(queue).pause()
    shell.lapse(queue)
    shell.ripen(queue)
    assert await take(queue) is None
    await Awaited(queue).resume()
    assert {await take(queue), await take(queue)} == {shell.payload("expired"), shell.payload("due")}


@pytest.mark.promise("`resume()` wakes a waiting consumer.")
async def test_a_waiting_consumer_is_woken(shell: Shell) -> None:
    queue = shell.queue()
    await Awaited(queue).pause()
    await queue.publish("m")
    shell.redis.delete(queue.key.wakeup)
    sleeping = await blocked_consumer(shell)
    await Awaited(queue).resume()
    assert await sleeping.wakes() == b"m"


@pytest.mark.promise("A consumer of a paused queue sends at most a few commands a second.")
async def test_a_consumer_of_a_paused_queue_is_quiet(shell: Shell) -> None:
    """Also if something is due all the time."""
    queue = shell.queue(wait=3)
    await queue.publish("m")
    await claim_and_die(queue)
    await Awaited(queue).pause()
    shell.lapse(queue)
    await queue.publish("n")
    with Sent(shell.server) as sent:
        assert await take(queue) is None
    assert len(sent.commands) <= 4 * (sent.seconds + 1)


async def test_a_repeated_claim_still_gets_what_it_took(shell: Shell) -> None:
    """Its reply was lost, and the queue was paused before it was sent again."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0)
    await queue.publish("m")
    client.losses.reply()
    message = await take(queue)
    assert message == "m"
    await queue.publish("n")
    client.losses.reply()
    quick = shell.queue(client=client, wait=0, retry_budget_seconds=0)
    with pytest.raises(Exception, match="cut after"):
        await take(quick)
    await Awaited(quick).pause()
    assert await take(quick) == "n"


async def test_a_paused_queue_is_empty_for_a_loop_that_ends_then(shell: Shell) -> None:
    queue = shell.queue()
    await queue.publish("m")
    await Awaited(queue).pause()
    assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 0


async def test_a_queue_that_was_never_used_can_be_paused(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    shell.redis.delete(queue.key.meta)
    await Awaited(queue).pause()
    assert await queue.publish("m")
    assert await take(queue) is None


async def test_a_custom_gateway_cannot_be_paused(shell: Shell) -> None:
    with pytest.raises(GatewayContractError):
        await Awaited(shell.queue(gateway=silent_gateway(shell))).pause()


@pytest.mark.promise("No consumer claims a message of a paused tenant; other tenants and publishing go on.")
@every_wiring
async def test_a_paused_tenant_gives_out_nothing(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    operator = Awaited(shell.queue())
    await queue.publish_many(["a1", "a2"], tenant="a")
    await queue.publish_many(["b1", "b2"], tenant="b")
    await queue.publish("nobody's")
    assert (await operator.pause(tenant="a"), await operator.pause(tenant="a")) == (True, False)
    assert await queue.publish("a3", tenant="a")
    assert {await take(queue) for _ in range(4)} == {shell.payload(one) for one in ("b1", "b2", "nobody's")} | {None}
    stats = await queue.stats()
    assert (stats.pending, stats.paused, stats.paused_tenants) == (3, False, 1)
    assert await operator.tenants() == {"a": 3}
    assert list(await operator.paused_tenants()) == ["a"]
    assert (await operator.is_paused(tenant="a"), await operator.is_paused(tenant="b")) == (True, False)
    assert not await operator.is_paused()
    assert (await operator.resume(tenant="a"), await operator.resume(tenant="a")) == (True, False)
    assert [await take(queue) for _ in range(4)] == [*(shell.payload(one) for one in ("a1", "a2", "a3")), None]
    assert (await queue.stats()).paused_tenants == 0 and not await operator.paused_tenants()


@pytest.mark.parametrize("options", [{}, {"visibility_timeout_seconds": None}, {"journal": True}], ids=str)
async def test_one_tenant_is_paused_by_its_own_queue(shell: Shell, options: dict[str, Any]) -> None:
    """As `queue.tenant(name)`. A batch has the others."""
    queue = shell.queue(wait=0, **options)
    await queue.publish_many(["a"] * 5, tenant="a")
    await queue.publish_many(["b"] * 5, tenant="b")
    tenant = Awaited(queue.queue.tenant("a"))
    assert (await tenant.pause(), await tenant.is_paused()) == (True, True)
    async with queue.process_messages(10) as batch:
        assert [message.tenant for message in batch] == ["b"] * 5
    async with queue.process_messages(10) as batch:
        assert not batch
    assert (await tenant.resume(), await tenant.is_paused()) == (True, False)
    async with queue.process_messages(10) as batch:
        assert len(batch) == 5


async def test_a_queue_and_its_tenants_are_paused_apart(shell: Shell) -> None:
    queue, operator = shell.queue(wait=0), Awaited(shell.queue())
    await queue.publish("m", tenant="a")
    await operator.pause(tenant="a")
    await operator.pause()
    stats = await queue.stats()
    assert (stats.paused, stats.paused_tenants) == (True, 1)
    await operator.resume()
    assert await take(queue) is None
    await operator.resume(tenant="a")
    assert await take(queue) == shell.payload("m")


async def test_a_waiting_consumer_is_woken_when_its_tenant_is_resumed(shell: Shell) -> None:
    queue = shell.queue()
    await Awaited(queue).pause(tenant="a")
    await queue.publish("m", tenant="a")
    shell.redis.delete(queue.key.wakeup)
    sleeping = await blocked_consumer(shell)
    await Awaited(queue).resume(tenant="a")
    assert await sleeping.wakes() == b"m"


async def test_a_consumer_beside_a_paused_tenant_is_quiet(shell: Shell) -> None:
    """Also if something of it is due all the time."""
    queue = shell.queue(wait=3)
    await queue.publish("m", tenant="a")
    await claim_and_die(queue)
    await Awaited(queue).pause(tenant="a")
    shell.lapse(queue)
    await queue.publish("n", tenant="a")
    with Sent(shell.server) as sent:
        assert await take(queue) is None
    assert len(sent.commands) <= 4 * (sent.seconds + 1)


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_the_answer_to_a_pause_can_be_lost(shell: Shell, lost: str) -> None:
    client = shell.lossy_client()
    operator = Awaited(shell.queue(client=client))
    for tenant in (None, "a"):
        for method in (operator.pause, operator.resume):
            getattr(client.losses, lost)()
            assert await method(tenant=tenant)
            assert not await method(tenant=tenant)


async def test_what_is_no_tenant_is_not_paused(shell: Shell, subtests: pytest.Subtests) -> None:
    for wrong in ["", 1, b"a", "x" * 256]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            operator = Awaited(shell.queue())
            for method in (operator.pause, operator.resume, operator.is_paused):
                with pytest.raises(RedisMessageQueueError, match="tenant"):
                    await method(tenant=wrong)
