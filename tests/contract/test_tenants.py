"""Tenants share a queue fairly: each has its own queue, and consumers serve them round-robin."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.shells import EVERY_WIRING, Awaited, Shell, claim_and_die, fail, silent_gateway, take, until
from tests.tables import row

pytestmark = pytest.mark.topic("Tenants")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

NAMES_TO_REFUSE = [
    ("", ValueError),
    ("x" * 256, ValueError),
    ("ż" * 128, ValueError),  # 256 bytes
    ("\ud800", ValueError),
    (b"acme", TypeError),
    (7, TypeError),
    (True, TypeError),
]
NAMES_TO_ALLOW = [
    *("x" * 255, "żółć 漢字 🐘", "::", "a::b", "{tag}", " ", "nul \x00 and\r\nline ends"),
    *("r", "d", "pending", "*", "0"),  # words that mean something elsewhere
]


def tenant(queue: Any, name: str) -> Any:
    return Awaited(queue.queue.tenant(name))


async def take_tenant(queue: Any) -> str | None:
    """Handle the next message; whose it was."""
    async with queue.process_message() as message:
        assert message is not None
        owner: str | None = queue.current_message().tenant
        return owner


async def take_many(queue: Any, count: int) -> list[str]:
    """Handle so many, one by one; what they were."""
    return [str((await take(queue)), "utf-8") for _ in range(count)]


async def take_batch(queue: Any, count: int) -> list[str]:
    """The same with one claim."""
    async with queue.process_messages(count) as batch:
        return [str(message.payload, "utf-8") for message in batch]


async def crowd(shell: Shell, queue: Any, tenants: range) -> None:
    """One message for each of these tenants, a thousand in each step."""
    source = shell.queue("source of the crowd")
    for start in range(0, len(tenants), 1_000):
        await source.publish("m")
        names = [f"tenant {number}" for number in tenants[start : start + 1_000]]
        async with source.process_messages(1) as batch:
            await Awaited(batch[0]).complete(publish=[(queue.queue, "m", {"tenant": name}) for name in names])


# Turns


@pytest.mark.promise(
    "With 100,000 pending messages of one tenant, the only message of another is served first or second."
)
async def test_a_hundred_thousand_of_one_tenant_do_not_keep_another_waiting(shell: Shell) -> None:
    """A tenant with one message has it handled next, or as the one after."""
    queue = shell.queue(wait=0)
    await queue.publish_many(("m" for _ in range(100_000)), tenant="acme")
    assert await take_tenant(queue) == "acme"
    for _ in range(3):
        await queue.publish("m", tenant="bolt")
        assert "bolt" in [await take_tenant(queue) for _ in range(2)]
    left = await tenant(queue, "acme").length()
    assert 100_000 - 7 <= left < 100_000
    assert await tenant(queue, "acme").delete() == left
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Each tenant has its own queue, and of T waiting tenants each is served within T claims, whatever the backlogs."
)
async def test_of_so_many_tenants_each_is_served_in_each_round(shell: Shell) -> None:
    """Whatever its backlog is: in any five claims in a row each of five tenants is served once."""
    queue = shell.queue()
    backlogs = {"a": 100, "b": 10, "c": 10, "d": 40, "e": 10}
    for name, count in backlogs.items():
        await queue.publish_many(["m"] * count, tenant=name)
    served = [await take_tenant(queue) for _ in range(50)]
    for start in range(45):
        assert set(served[start : start + 5]) == set(backlogs)
    # Tenants without messages are not waited for.
    assert Counter([await take_tenant(queue) for _ in range(60)]) == {"a": 30, "d": 30}


@pytest.mark.promise("A tenant that leaves and returns gains no turns, and new tenants delay nobody.")
async def test_leaving_and_coming_back_gains_nothing_and_costs_nothing(shell: Shell) -> None:
    """A tenant that has one message at a time gets every second turn beside one with a backlog, and no more."""
    queue = shell.queue()
    await queue.publish_many(["m"] * 100, tenant="patient")
    served = []
    for _ in range(40):
        if await tenant(queue, "returning").length() == 0:
            await queue.publish("m", tenant="returning")
        served.append(await take_tenant(queue))
    assert all(set(served[at : at + 2]) == {"patient", "returning"} for at in range(0, 40, 2))


@pytest.mark.promise("A tenant that leaves and returns gains no turns, and new tenants delay nobody.")
async def test_new_tenants_delay_nobody(shell: Shell) -> None:
    """A tenant that waits is served within as many claims as there are tenants, though new ones come all the time."""
    queue = shell.queue()
    await queue.publish_many(["m"] * 3, tenant="old")
    served = []
    for number in range(30):
        await queue.publish("m", tenant=f"new {number}")
        served.append(await take_tenant(queue))
    # At no time do more than three tenants wait.
    places = [-1, *(place for place, name in enumerate(served) if name == "old")]
    assert len(places) == 4
    assert all(later - earlier <= 3 for earlier, later in itertools.pairwise(places))


@pytest.mark.promise("Messages of one tenant are delivered in order.")
async def test_within_a_tenant_the_first_in_is_the_first_out(shell: Shell) -> None:
    """In single claims and in batches, which take turns the same way."""
    queue = shell.queue()
    for name in "ab":
        await queue.publish_many([f"{name}{number}" for number in range(6)], tenant=name)
    assert await take_many(queue, 4) == ["a0", "b0", "a1", "b1"]
    assert await take_batch(queue, 5) == ["a2", "b2", "a3", "b3", "a4"]
    assert await take_batch(queue, 100) == ["b4", "a5", "b5"]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Turns are proportional to weights: with 3 to 1, of any 400 claims 300 go to one tenant and 100 to the other, "
    "within one round."
)
@pytest.mark.parametrize("batch", [1, 7])
async def test_weights_give_turns_in_proportion(shell: Shell, batch: int) -> None:
    """Of any 400 claims in a row 300 are for the tenant with weight 3 and 100 for the other, within one round."""
    queue = shell.queue(tenant_weights={"heavy": 3})
    await queue.publish_many(["h"] * 500, tenant="heavy")
    await queue.publish_many(["l"] * 500, tenant="light")
    served: list[str] = []
    while len(served) < 520:
        served += await take_batch(queue, batch)
    for start in range(len(served) - 400):
        counts = Counter(served[start : start + 400])
        assert abs(counts["h"] - 300) <= 3, start


@pytest.mark.promise("A weight applies to every consumer from the next turn on; a weight of 1 removes it.")
async def test_weights_hold_for_every_consumer_and_can_be_taken_back(shell: Shell) -> None:
    """They are in Redis before their object's first claim; a weight of 1 is none."""
    weighty, other = shell.queue(tenant_weights={"a": 3}), shell.queue()
    for name in "ab":
        await other.publish_many([name] * 60, tenant=name)
    await take_many(weighty, 8)
    assert Counter(await take_many(other, 20)) == {"a": 15, "b": 5}
    even = shell.queue(tenant_weights={"a": 1})
    await take_many(even, 8)
    assert Counter(await take_many(other, 20)) == {"a": 10, "b": 10}


@pytest.mark.promise("Messages without a tenant share one queue, which takes turns like a tenant queue.")
async def test_messages_without_a_tenant_share_one_queue(shell: Shell) -> None:
    """It takes its turns like a tenant's, and is no tenant."""
    queue = shell.queue()
    await queue.publish_many([f"n{number}" for number in range(4)])
    await queue.publish_many([f"a{number}" for number in range(4)], tenant="a")
    served = await take_many(queue, 8)
    assert [one for one in served if one[0] == "n"] == ["n0", "n1", "n2", "n3"]
    assert all({served[at][0], served[at + 1][0]} == {"n", "a"} for at in range(0, 8, 2))
    assert await queue.publish("alone")
    stats = await Awaited(queue).stats()
    assert (stats.pending, stats.tenants) == (1, 0)
    async with queue.process_message():
        assert queue.current_message().tenant is None
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "A claim costs the same with 10,000 waiting tenants as with 10, and uses neither `KEYS` nor `SCAN`."
)
async def test_ten_thousand_tenants_cost_a_claim_no_more_than_ten(shell: Shell) -> None:
    """The server executes the same commands; none of them goes through keys or through the ring."""
    queue = shell.queue()

    async def commands_of_a_claim() -> dict[str, int]:
        before = shell.redis.info("commandstats")
        async with queue.process_message() as message:
            after = shell.redis.info("commandstats")
            assert message == b"m"
        counts = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
        return {name: count for name, count in counts.items() if count and "info" not in name}

    await crowd(shell, queue, range(10))
    for _ in range(2):  # the first claim may have to load a script
        few = await commands_of_a_claim()
    await crowd(shell, queue, range(10, 10_000))
    many = await commands_of_a_claim()
    assert many == few
    assert not [name for name in many if name in ("cmdstat_keys", "cmdstat_scan")]
    # The whole view of it is there, too.
    stats = await Awaited(queue).stats()
    assert (stats.tenants, stats.pending) == (9_997, 9_997)
    assert len(await Awaited(queue).tenants(max_tenants=10_000)) == 9_997


@pytest.mark.promise("A queue without tenants has no extra cost for them.")
async def test_a_queue_without_tenants_pays_nothing(shell: Shell) -> None:
    """No key of theirs is made, and none of the commands is sent to the server that they would need."""
    queue = shell.queue()
    await take_after_publish(queue)  # loads the scripts
    before = shell.redis.info("commandstats")
    await take_after_publish(queue)
    after = shell.redis.info("commandstats")
    used = {name for name in after if after[name]["calls"] != before.get(name, {"calls": 0})["calls"]}
    assert used <= {
        *("cmdstat_evalsha", "cmdstat_info", "cmdstat_get", "cmdstat_hmget", "cmdstat_time", "cmdstat_psetex"),
        *("cmdstat_lpush", "cmdstat_llen", "cmdstat_zrangebyscore", "cmdstat_lindex", "cmdstat_rpop"),
        *("cmdstat_hset", "cmdstat_hget", "cmdstat_hdel", "cmdstat_zadd", "cmdstat_zrem"),
    }
    await queue.publish("m")
    await claim_and_die(queue)
    assert shell.leftovers(queue) == {b"q::processing", b"q::leases"}


async def take_after_publish(queue: Any) -> None:
    await queue.publish("m")
    await take(queue)


# One tenant's line


@pytest.mark.promise(
    "`queue.tenant(name)` has `publish`, `publish_many`, `length`, `exists` and `delete` for that tenant queue."
)
async def test_a_tenant_has_its_own_methods(shell: Shell) -> None:
    """publish, publish_many, length, exists and delete concern its line, and nobody else's."""
    queue = shell.queue(wait=0)
    acme, bolt = tenant(queue, "acme"), tenant(queue, "bolt")
    assert queue.queue.tenant("acme").name == "acme"
    assert (await acme.length(), await acme.exists(), await acme.delete()) == (0, False, 0)
    assert await acme.publish("a0") is True
    assert await acme.publish_many(["a1", {"a": 2}]) == [True, True]
    assert await bolt.publish("b0") is True
    assert (await acme.length(), await acme.exists(), await bolt.length()) == (3, True, 1)
    assert await Awaited(queue).tenants() == {"acme": 3, "bolt": 1}
    assert await acme.delete() == 3
    assert (await acme.length(), await acme.exists(), await bolt.length()) == (0, False, 1)
    assert await Awaited(queue).tenants() == {"bolt": 1}
    assert await take_many(queue, 1) == ["b0"]
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Deleting a tenant queue of any length leaves running and delayed messages, and the turns of other tenants, alone."
)
async def test_deleting_a_tenant_queue_leaves_running_and_delayed_messages(shell: Shell) -> None:
    """What has come back is among what waits, and goes with it."""
    queue = shell.queue(wait=0, enable_completed_queue=True)
    acme = tenant(queue, "acme")
    await acme.publish_many(["handled", "returned"])
    for _ in range(2):
        await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("m", tenant="bolt")
    assert await take(queue) == b"m"  # this claim finds out that the other two are back
    assert await acme.length() == 2
    async with queue.process_message() as message:
        assert message == b"handled"
        await acme.publish("waiting")
        await acme.publish("delayed", delay_seconds=1_000)
        assert (await acme.length(), await acme.delete(), await acme.exists()) == (2, 2, False)
    assert shell.listed(queue.key.completed) == [b"handled", b"m"]
    stats = await Awaited(queue).stats()
    assert (stats.pending, stats.tenants, stats.processing, stats.delayed) == (0, 0, 0, 1)
    assert shell.redis.exists(queue.key.deliveries) == 0


@pytest.mark.promise(
    "Deleting a tenant queue of any length leaves running and delayed messages, and the turns of other tenants, alone."
)
async def test_deleting_does_not_let_others_wait_or_go(shell: Shell) -> None:
    """A line that is deleted while consumers work leaves the ring in order, and the tenant may begin again."""
    queue = shell.queue(wait=0)
    for name in ("a", "b"):
        await queue.publish_many([f"{name}{number}" for number in range(3)], tenant=name)
    await take(queue)
    await tenant(queue, "a").delete()
    assert await take_many(queue, 3) == ["b0", "b1", "b2"]
    assert await take(queue) is None
    await queue.publish("again", tenant="a")
    assert await take(queue) == b"again"
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Deleting a tenant queue of any length leaves running and delayed messages, and the turns of other tenants, alone."
)
async def test_a_long_tenant_queue_is_deleted_in_steps(shell: Shell) -> None:
    """However long it is, with the numbers of messages that had been delivered before."""
    queue = shell.queue(wait=0)
    await queue.publish_many([str(number) for number in range(2_500)], tenant="a")
    with pytest.raises(LookupError):
        async with queue.process_messages(1_000):
            raise LookupError
    assert shell.redis.hlen(queue.key.deliveries) == 1_000
    assert await tenant(queue, "a").delete() == 2_500
    assert shell.leftovers(queue) == set()


# What happens to messages, tenant by tenant


@pytest.mark.promise(
    "A message whose lease ended returns to the front of its tenant queue, in order and for that tenant's turn."
)
async def test_a_reclaimed_message_returns_to_the_front_of_its_tenant_queue(shell: Shell) -> None:
    """In its order, before what its tenant has published since, and in its tenant's turn: the other goes on."""
    queue = shell.queue()
    await queue.publish_many([f"a{number}" for number in range(6)], tenant="a")
    for expected in (b"a0", b"a1", b"a2"):
        assert await claim_and_die(queue) == expected
    await queue.publish_many([f"b{number}" for number in range(6)], tenant="b")
    shell.lapse(queue)
    served = await take_many(queue, 12)
    assert [one for one in served if one[0] == "a"] == [f"a{number}" for number in range(6)]
    assert [one for one in served if one[0] == "b"] == [f"b{number}" for number in range(6)]
    assert all({served[at][0], served[at + 1][0]} == {"a", "b"} for at in range(0, 12, 2))
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("A crashed consumer of one tenant delays no other tenant.")
async def test_the_crash_of_one_tenants_consumer_does_not_delay_another(shell: Shell) -> None:
    """With hundreds of expired leases of one tenant the other's only message is next, or the one after."""
    queue = shell.queue()
    await queue.publish_many(["m"] * 500, tenant="crashing")
    with pytest.raises(SystemExit):
        async with queue.process_messages(500) as batch:
            assert len(batch) == 500
            raise SystemExit
    shell.lapse(queue)
    await queue.publish("m", tenant="calm")
    assert "calm" in [await take_tenant(queue) for _ in range(2)]
    async with queue.process_message():
        assert (queue.current_message().tenant, queue.current_message().delivery_count) == ("crashing", 2)


@pytest.mark.promise("A message over its delivery limit is dead-lettered with its tenant and costs no tenant a turn.")
async def test_a_message_over_its_limit_is_dead_lettered_with_its_tenant(shell: Shell) -> None:
    """The others do not notice, and its own next message is not held up."""
    queue = shell.queue(wait=0, max_delivery_count=2)
    await queue.publish("poison", tenant="a")
    for _ in range(2):
        assert await claim_and_die(queue) == b"poison"
        shell.lapse(queue)
    await queue.publish("good", tenant="a")
    await queue.publish("other", tenant="b")
    assert {await take(queue), await take(queue)} == {b"good", b"other"}
    assert await take(queue) is None
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.tenant, letter.delivery_count, letter.reason) == (b"poison", "a", 2, "deliveries")
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("A claim never returns empty while a deliverable message of any tenant is pending.")
async def test_a_claim_is_never_empty_while_a_deliverable_message_of_a_tenant_waits(shell: Shell) -> None:
    """Behind more poison than one script may clear away, in one line and in many."""
    queue = shell.queue(wait=0, max_delivery_count=1)
    await queue.publish_many(["poison"] * 1_050, tenant="bad")
    await crowd(shell, queue, range(20))
    claimed = 0
    with pytest.raises(SystemExit):
        async with queue.process_messages(1_000) as batch:
            claimed += len(batch)
            async with queue.process_messages(1_000) as rest:
                claimed += len(rest)
                raise SystemExit
    assert claimed == 1_070
    shell.lapse(queue)
    await queue.publish("good", tenant="bad")
    assert await take(queue) == b"good"
    assert await take(queue) is None
    assert shell.redis.llen(queue.key.dead_letter) == 1_070


@pytest.mark.promise("Records of completed and failed messages name their tenant.")
async def test_a_failed_or_completed_message_remembers_its_tenant(shell: Shell) -> None:
    """In the record beside its list."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    for name in ("a", "b"):
        await queue.publish(name, tenant=name)
    await take(queue)
    await fail(queue, ValueError())
    records = [*await Awaited(queue).records("completed"), *await Awaited(queue).records("failed")]
    assert [(one.payload, one.tenant) for one in records] == [(b"a", "a"), (b"b", "b")]


@pytest.mark.promise("A delayed message enters its tenant queue when it is due.")
async def test_a_delayed_message_enters_its_tenant_queue(shell: Shell) -> None:
    """At the tail, when it is due; until then it is not in the line."""
    queue = shell.queue()
    acme = tenant(queue, "acme")
    await acme.publish("later", delay_seconds=0.05)
    assert (await acme.length(), (await Awaited(queue).stats()).delayed) == (0, 1)
    await acme.publish("sooner")
    await queue.publish_many(["b0", "b1"], tenant="bolt")
    assert await until(lambda: shell.redis.zcount(queue.key.delayed, "-inf", now_us(shell)))
    served = await take_many(queue, 4)
    assert [one for one in served if one[0] != "b"] == ["sooner", "later"]
    assert shell.leftovers(queue) == set()


def now_us(shell: Shell) -> int:
    seconds, microseconds = shell.redis.time()
    return int(seconds) * 1_000_000 + int(microseconds)


@pytest.mark.promise("A requeued batch returns to the front of each tenant queue.")
async def test_a_requeued_batch_returns_to_the_front_of_each_tenant_queue(shell: Shell) -> None:
    """Each message to its own tenant's, in its order; the next round is as if nothing had happened."""
    queue = shell.queue()
    for name in "abc":
        await queue.publish_many([f"{name}{number}" for number in range(3)], tenant=name)
    with pytest.raises(LookupError):
        async with queue.process_messages(5):
            raise LookupError
    assert await Awaited(queue).tenants() == {"a": 3, "b": 3, "c": 3}
    served = await take_many(queue, 9)
    for name in "abc":
        assert [one for one in served if one[0] == name] == [f"{name}0", f"{name}1", f"{name}2"]


@pytest.mark.promise("A drain returns an unconfirmed claim to the front of its tenant queue.")
async def test_a_drain_returns_an_unconfirmed_claim_to_its_tenant(shell: Shell) -> None:
    """The message is first in its line again, and the delivery is forgiven."""
    client = shell.lossy_client()
    queue, other = shell.queue(client=client, retry_budget_seconds=0), shell.queue()
    await other.publish_many(["a0", "a1"], tenant="a")
    client.losses.reply()
    with pytest.raises(Exception, match="cut after"):
        await take(queue)
    assert await tenant(other, "a").length() == 1
    assert await queue.drain() is True
    assert await tenant(other, "a").length() == 2
    async with other.process_message() as message:
        assert (message, other.current_message().delivery_count) == (b"a0", 1)


@pytest.mark.promise("A waiting consumer receives a message of any tenant, even a new one.")
async def test_a_waiting_consumer_is_woken_by_any_tenant(shell: Shell) -> None:
    """By one that nobody has seen before, by one that was served already, and by many in one call."""
    queue = shell.queue()
    for name in ("new", "new", "other", None):
        waiting = await blocked_consumer(shell)
        await queue.publish(f"for {name}", tenant=name)
        assert await waiting.wakes() == f"for {name}".encode()
    asleep = [await blocked_consumer(shell) for _ in range(2)]
    await queue.publish_many(["a", "b"], tenant="newer")
    assert sorted([await one.wakes() for one in asleep]) == [b"a", b"b"]


@pytest.mark.promise("Batches and `run()` serve tenants round-robin as single claims do.")
async def test_the_loop_serves_tenants_in_turn(shell: Shell) -> None:
    """run() takes what claims give."""
    queue = shell.queue()
    for name in "ab":
        await queue.publish_many([f"{name}{number}" for number in range(5)], tenant=name)
    handled: list[str] = []
    summary = await queue.run(lambda message: handled.append(message.tenant), prefetch=3, until_empty=True)
    assert summary.handled == 10
    assert all({handled[at], handled[at + 1]} == {"a", "b"} for at in range(0, 10, 2))


# Limits


@pytest.mark.promise(
    "`max_pending_length` counts all tenant queues and delayed messages; `max_pending_per_tenant` counts one tenant "
    "queue."
)
async def test_the_limit_of_the_queue_counts_all_tenants_and_delayed_messages(shell: Shell) -> None:
    """A publish at the limit is refused, whichever tenant queue is the longest."""
    queue = shell.queue(max_pending_length=4)
    await queue.publish("m", tenant="a")
    await queue.publish("m", tenant="b")
    await queue.publish("m")
    await queue.publish("m", tenant="a", delay_seconds=1_000)
    for details in ({"tenant": "a"}, {"tenant": "c"}, {}, {"delay_seconds": 5}):
        with pytest.raises(shell.module.QueueBackpressureError, match="max_pending_length"):
            await queue.publish("m", **details)
    await take(queue)
    assert await queue.publish("m", tenant="c") is True
    assert (await Awaited(queue).stats()).pending == 3


@pytest.mark.promise(
    "`max_pending_length` counts all tenant queues and delayed messages; `max_pending_per_tenant` counts one tenant "
    "queue."
)
async def test_the_limit_of_a_tenant_counts_its_own_queue(shell: Shell) -> None:
    """The others, and messages without a tenant, do not feel it; a batch is refused as a whole."""
    queue = shell.queue(max_pending_per_tenant=2)
    await queue.publish_many(["m", "m"], tenant="a")
    with pytest.raises(shell.module.QueueBackpressureError, match="max_pending_per_tenant") as caught:
        await queue.publish("m", tenant="a")
    assert (caught.value.queue, caught.value.operation) == ("q", "publish")
    await queue.publish("m", tenant="b")
    with pytest.raises(shell.module.QueueBackpressureError) as caught:
        await queue.publish_many(["m", "m", "m"], tenant="b")
    assert caught.value.results == []
    await queue.publish_many(["m"] * 5)
    assert await Awaited(queue).tenants() == {"a": 2, "b": 1}


@pytest.mark.promise("The limit of a tenant ignores delayed and redelivered messages, and a requeue is never refused.")
async def test_the_limit_of_a_tenant_does_not_count_what_is_delayed(shell: Shell) -> None:
    """Neither when it is published nor when it is due: then it enters, and the line may be longer than the limit."""
    queue = shell.queue(wait=0, max_pending_per_tenant=1)
    acme = tenant(queue, "acme")
    for number in range(3):
        await acme.publish(f"later {number}", delay_seconds=100)
    await acme.publish("now")
    await acme.publish("later 3", delay_seconds=100)
    with pytest.raises(shell.module.QueueBackpressureError, match="max_pending_per_tenant"):
        await acme.publish("refused")
    shell.ripen(queue)
    assert await take_many(queue, 1) == ["now"]
    assert await acme.length() == 4
    with pytest.raises(shell.module.QueueBackpressureError, match="max_pending_per_tenant"):
        await acme.publish("refused")
    assert await take_many(queue, 4) == [f"later {number}" for number in range(4)]
    assert await acme.publish("again") is True


@pytest.mark.promise("The limit of a tenant ignores delayed and redelivered messages, and a requeue is never refused.")
async def test_the_limit_of_a_tenant_does_not_count_what_came_back(shell: Shell) -> None:
    """A message whose lease ran out was accepted before; it takes no room from a new one, but length() counts it."""
    queue = shell.queue(wait=0, max_pending_per_tenant=1)
    acme = tenant(queue, "acme")
    await acme.publish("came back")
    await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("m", tenant="other")
    assert await take_many(queue, 1) == ["m"]  # this claim finds out that the other one is back
    assert await acme.length() == 1
    assert await acme.publish("new") is True
    assert await acme.length() == 2
    with pytest.raises(shell.module.QueueBackpressureError, match="max_pending_per_tenant"):
        await acme.publish("refused")
    assert await take_many(queue, 2) == ["came back", "new"]


@pytest.mark.promise("The limit of a tenant ignores delayed and redelivered messages, and a requeue is never refused.")
async def test_a_requeued_message_counts_and_is_never_refused(shell: Shell) -> None:
    """It is in its line again, which may be longer than the limit then; the next publish has to wait for room."""
    queue = shell.queue(wait=0, max_pending_per_tenant=1)
    acme = tenant(queue, "acme")
    await acme.publish("first")
    with pytest.raises(LookupError):
        async with queue.process_messages(1):
            await acme.publish("second")
            raise LookupError
    assert await acme.length() == 2
    await take(queue)
    with pytest.raises(shell.module.QueueBackpressureError, match="max_pending_per_tenant"):
        await acme.publish("refused")
    assert await take_many(queue, 1) == ["second"]


@pytest.mark.promise("A blocked publish waits for room in its own tenant queue.")
async def test_a_blocked_publish_waits_for_its_own_tenant(shell: Shell) -> None:
    """Room in another one does not help it; room in its own does."""
    options = {"max_pending_per_tenant": 1, "pending_overload_policy": "block"}
    queue = shell.queue(pending_overload_block_timeout_seconds=20, **options)
    for name in "ab":
        await queue.publish(f"{name}0", tenant=name)
    publisher = shell.queue(client=shell.new_client(), pending_overload_block_timeout_seconds=20, **options)
    publishing = asyncio.ensure_future(shell.beside(lambda: publisher.publish("a1", tenant="a")))
    await tenant(queue, "b").delete()
    await asyncio.sleep(0.1)
    assert not publishing.done()
    assert await take(queue) == b"a0"
    assert await publishing is True
    assert await take(queue) == b"a1"
    impatient = shell.queue(pending_overload_block_timeout_seconds=0.05, **options)
    await impatient.publish("b1", tenant="b")
    with pytest.raises(shell.module.QueueBackpressureError):
        await impatient.publish("b2", tenant="b")


@pytest.mark.promise("At the limit of a tenant, `drop_oldest` drops from that tenant queue only.")
async def test_at_its_own_limit_a_tenant_drops_its_own_messages(shell: Shell) -> None:
    """Never from a neighbour's, and with an event for each."""
    events = shell.events()
    queue = shell.queue(
        max_pending_per_tenant=3,
        max_pending_length=100,
        pending_overload_policy="drop_oldest",
        max_delivery_count=None,
        on_event=events.listen,
    )
    await queue.publish_many(["a0", "a1", "a2"], tenant="a")
    first = events.of("publish")[0].message_id
    await queue.publish_many(["b0", "b1"], tenant="b")
    await queue.publish("a3", tenant="a")
    assert [event.message_id for event in events.of("dropped")] == [first]
    assert await Awaited(queue).tenants() == {"a": 3, "b": 2}
    assert sorted(await take_many(queue, 5)) == ["a1", "a2", "a3", "b0", "b1"]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "In a full queue, `drop_oldest` drops the oldest message of the longest tenant queue, so that no tenant locks out "
    "others."
)
async def test_a_full_queue_drops_the_oldest_of_the_longest_tenant_queue(shell: Shell) -> None:
    """A tenant that fills the queue locks nobody out: not other tenants, not messages without one."""
    events = shell.events()
    queue = shell.queue(
        max_pending_length=6, pending_overload_policy="drop_oldest", max_delivery_count=None, on_event=events.listen
    )
    await queue.publish_many([f"hog {number}" for number in range(6)], tenant="hog")
    ids = [event.message_id for event in events.of("publish")]
    for tenant in ("small", "other", None):
        assert await queue.publish(f"of {tenant}", tenant=tenant) is True
    assert [event.message_id for event in events.of("dropped")] == ids[:3]
    assert await queue.publish("hog 6", tenant="hog") is True
    assert [event.message_id for event in events.of("dropped")] == ids[:4]
    taken = await take_many(queue, 6)
    assert [text for text in taken if text.startswith("hog")] == ["hog 4", "hog 5", "hog 6"]
    assert sorted(text for text in taken if text.startswith("of")) == ["of None", "of other", "of small"]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "In a full queue, `drop_oldest` drops the oldest message of the longest tenant queue, so that no tenant locks out "
    "others."
)
async def test_more_tenants_than_may_wait_take_each_others_places(shell: Shell) -> None:
    """Every publish is accepted, and who has lost the last message is out of the turns."""
    queue = shell.queue(max_pending_length=3, pending_overload_policy="drop_oldest", max_delivery_count=None)
    for number in range(10):
        assert await queue.publish("m", tenant=str(number)) is True
        stats = await Awaited(queue).stats()
        assert stats.pending == stats.tenants == min(number + 1, 3)
    assert len(await take_many(queue, 3)) == 3
    assert shell.leftovers(queue) == set()


# Names


@pytest.mark.promise("A tenant name is a string of 1 to 255 bytes; any other is refused before anything is written.")
@pytest.mark.parametrize(("name", "kind"), NAMES_TO_REFUSE, ids=[repr(name)[:12] for name, _ in NAMES_TO_REFUSE])
async def test_a_name_that_cannot_be_one_is_refused(shell: Shell, name: Any, kind: type[Exception]) -> None:
    """Everywhere, with a typed error that names the parameter, before anything is written."""
    queue = shell.queue()
    refused = pytest.raises(shell.module.RedisMessageQueueError, match="tenant")
    for work in (
        lambda: queue.publish("m", tenant=name),
        lambda: queue.publish_many(["m"], tenant=name),
        lambda: Awaited(queue).peek(tenant=name),
    ):
        with refused as caught:
            await work()
        assert isinstance(caught.value, kind)
    with refused as caught:
        queue.queue.tenant(name)
    assert isinstance(caught.value, kind)
    with pytest.raises(shell.module.ConfigurationError, match="tenant"):
        shell.queue(tenant_weights={name: 2})
    assert shell.is_empty


@pytest.mark.promise("A tenant name is a string of 1 to 255 bytes; any other is refused before anything is written.")
async def test_an_invalid_tenant_name_is_refused(shell: Shell) -> None:
    """publish takes None for no tenant; a line of nobody cannot be asked for."""
    queue = shell.queue()
    assert await queue.publish("m", tenant=None) is True
    with pytest.raises(shell.module.RedisMessageQueueError, match="tenant"):
        queue.queue.tenant(None)
    assert shell.pending(queue) == 1


@pytest.mark.promise("A weight is an int from 1 to 1,000.")
async def test_weights_that_cannot_be_weights_are_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """Whole numbers from 1 to 1,000, by tenant."""
    for weights in [7, ["a"], {"a": 0}, {"a": -1}, {"a": 1.5}, {"a": True}, {"a": "3"}, {"a": None}, {"a": 1_001}]:
        with row(subtests, weights=weights), pytest.raises(shell.module.ConfigurationError, match="tenant_weights"):
            shell.queue(tenant_weights=weights)


@pytest.mark.promise("A tenant name is a string of 1 to 255 bytes; any other is refused before anything is written.")
@every_wiring
async def test_any_other_name_is_a_name(shell: Shell) -> None:
    """Over every kind of connection it is told as it was given, and each has a line of its own."""
    queue = shell.queue(tenant_weights=dict.fromkeys(NAMES_TO_ALLOW, 2))
    for name in NAMES_TO_ALLOW:
        assert await queue.publish(f"for {name}", tenant=name) is True
    assert await Awaited(queue).tenants() == dict.fromkeys(NAMES_TO_ALLOW, 1)
    assert [one.tenant for one in await Awaited(queue).peek(1, tenant=NAMES_TO_ALLOW[1])] == [NAMES_TO_ALLOW[1]]
    seen = {}
    for _ in NAMES_TO_ALLOW:
        async with queue.process_message() as message:
            seen[queue.current_message().tenant] = message
    assert seen == {name: shell.payload(f"for {name}") for name in NAMES_TO_ALLOW}
    assert shell.leftovers(queue) == {b"q::weights"}


# Around


@pytest.mark.promise("Sync and async queues share tenant queues.")
async def test_sync_and_async_queues_share_tenants(shell: Shell) -> None:
    """What one publishes for a tenant the other takes in turn, and the other way round."""
    queue = shell.queue()
    await queue.publish_many(["a0", "a1"], tenant="a")
    client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    other = shell.other_module.RedisMessageQueue("q", client=client)
    await Awaited(other.tenant("b")).publish_many(["b0", "b1"])
    assert await Awaited(other).tenants() == {"a": 2, "b": 2}
    assert await take_many(queue, 4) == ["a0", "b0", "a1", "b1"]
    await (client.aclose() if shell.name == "sync" else Awaited(client).close())


@pytest.mark.promise("Tenants are refused with a custom gateway.")
async def test_a_custom_gateway_has_no_tenants(shell: Shell) -> None:
    """It says so with a typed error that names the gateway."""
    queue = shell.queue(gateway=silent_gateway(shell))
    for work in (
        lambda: queue.publish("m", tenant="a"),
        lambda: tenant(queue, "a").publish("m"),
        lambda: tenant(queue, "a").length(),
        lambda: tenant(queue, "a").delete(),
        lambda: Awaited(queue).tenants(),
    ):
        with pytest.raises(shell.module.GatewayContractError, match=r"custom gateway \(Mine\)"):
            await work()
    assert shell.is_empty


@pytest.mark.promise(
    "With crashes and failing messages, every tenant's work is still done once, and messages over their limit are "
    "dead-lettered."
)
async def test_tenants_under_crashes_and_failures_are_served_once(shell: Shell) -> None:
    """Clients do not block each other, put and get in batches; a crash repeats, poison dies, success counts once."""
    queue = shell.queue(wait=0, max_delivery_count=2, enable_completed_queue=True)
    one, other = tenant(queue, "client"), tenant(queue, "client2")
    await one.publish_many(["1", "2"])
    await other.publish_many(["3", "4", "0"])
    assert (await one.length(), await other.exists()) == (2, True)
    for _ in range(2):
        with pytest.raises(SystemExit):
            async with queue.process_messages(10) as batch:
                for message in batch:
                    if message.payload != b"0":
                        await batch.ack(message)
                raise SystemExit
        shell.lapse(queue)
    assert await take(queue) is None
    assert sorted(shell.listed(queue.key.completed)) == [b"1", b"2", b"3", b"4"]
    assert shell.listed(queue.key.dead_letter) == [b"0"]
    assert (await one.exists(), await other.length()) == (False, 0)


async def test_messages_without_a_tenant_are_no_tenant(shell: Shell) -> None:
    """Not even while they wait for their turn among the tenants, because their consumer has died."""
    queue = shell.queue()
    await queue.publish_many(["m0", "m1", "m2"])
    for _ in range(3):
        await claim_and_die(queue)
    await queue.publish_many(["a0", "a1", "a2"], tenant="a")
    shell.lapse(queue)
    await take_many(queue, 2)
    assert shell.redis.zscore(queue.key.tenant_ring, "") is not None
    assert (await Awaited(queue).stats()).tenants == 1
