"""Schedules: the consumers of a queue publish a message at each tick, once, without a leader."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, GatewayContractError, MissingExtraError
from redis_message_queue.testing import fast_forward
from tests.contract.shells import (
    EVERY_WIRING,
    LIMIT_SECONDS,
    Awaited,
    Sent,
    Shell,
    claim_and_die,
    only_woken,
    silent_gateway,
    take,
    until,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Schedules")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)
RARELY = 1_000_000  # seconds between two ticks, so that none is due by itself while a test runs


async def schedule(queue: Any, name: str = "s", **options: Any) -> bool:
    """Define a schedule, of a message that says its name, with ticks that only `miss` makes due."""
    if "cron" not in options:
        options.setdefault("every_seconds", RARELY)
    return bool(await Awaited(queue).schedule(name, **{"message": name} | options))


def miss(shell: Shell, queue: Any, ticks: float = 1, name: str = "s", seconds: float = RARELY) -> None:
    """So many ticks have passed since the last one that was published."""
    earlier = round(ticks * seconds * 1_000_000)
    key, redis = queue.key.schedule(name), shell.redis
    redis.hset(key, "after", int(redis.hget(key, "after")) - earlier)
    redis.zadd(queue.key.schedules, {name: redis.zscore(queue.key.schedules, name) - earlier})
    redis.zadd(queue.key.leases, {"s": redis.zrange(queue.key.schedules, 0, 0, withscores=True)[0][1]})


async def take_all(queue: Any) -> list[Any]:
    """Everything that a consumer gets until there is nothing more."""
    found = []
    while (message := await take(queue)) is not None:
        found.append(message)
    return found


async def headers_of_next(queue: Any) -> dict[str, str]:
    async with queue.process_messages(1, wait_seconds=0) as batch:
        return dict(batch[0].headers)


# Ticks


@pytest.mark.promise("Each tick of a schedule is published once, by a consumer that claims.")
@every_wiring
async def test_a_tick_is_published_once(shell: Shell) -> None:
    queue, others = shell.queue(wait=0), [shell.queue(wait=0) for _ in range(3)]
    assert await schedule(queue, message={"report": 1}, headers={"a": "b"})
    assert await take_all(queue) == []
    for _ in range(3):
        miss(shell, queue)
        found = await asyncio.gather(*(take(one) for one in others))
        assert [one for one in found if one is not None] == [shell.payload('{"report": 1}')]
        assert await take_all(queue) == []


@pytest.mark.promise("The messages of a schedule have its name and the time of their tick in their headers.")
async def test_a_message_tells_its_schedule_and_its_tick(shell: Shell) -> None:
    queue = shell.queue()
    await schedule(queue, headers={"a": "b", "schedule": "mine"}, tenant="t")
    miss(shell, queue)
    async with queue.process_messages(1) as batch:
        (message,) = batch
        headers = message.headers
        assert (headers["a"], headers["schedule"], message.tenant) == ("b", "s", "t")
        tick = datetime.fromisoformat(headers["scheduled_for"])
        assert tick.timestamp() % RARELY == 0 and timedelta(0) <= message.published_at - tick < timedelta(days=12)
    (stored,) = await Awaited(queue).schedules()
    assert (stored.last_tick, stored.next_tick) == (tick, tick + timedelta(seconds=RARELY))


@pytest.mark.promise("A waiting consumer sleeps until the next tick of a schedule, and polls no more than any other.")
@pytest.mark.parametrize("options", [{}, {"visibility_timeout_seconds": None}], ids=["leases", "no leases"])
async def test_a_waiting_consumer_wakes_up_for_a_tick(shell: Shell, options: dict[str, Any]) -> None:
    """It would look for itself long after the test has given up. The schedule is defined while it sleeps already."""
    queue = only_woken(shell, **options)
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
    await schedule(shell.queue(), every_seconds=1)
    assert await asyncio.wait_for(consumer, LIMIT_SECONDS) == shell.payload("s")
    async with queue.process_messages(1) as batch:
        tick = datetime.fromisoformat(batch[0].headers["scheduled_for"])
        assert tick <= batch[0].published_at <= shell.server_time


async def test_an_idle_consumer_with_a_schedule_sends_no_more_than_without(shell: Shell) -> None:
    queue = shell.queue(wait=3 * LIMIT_SECONDS)
    await schedule(queue)
    consumer = shell.beside(lambda: take(queue))
    assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
    with Sent(shell.server) as sent:
        await asyncio.sleep(1.7)
    await queue.publish("a")
    assert await consumer == b"a"
    assert 2 <= len(sent.commands) <= 2 * sent.seconds + 2


async def test_a_queue_without_schedules_pays_nothing(shell: Shell) -> None:
    """One command for a claim, and none for a schedule that is gone."""
    queue = shell.queue(wait=0)
    await schedule(queue)
    await Awaited(queue).unschedule("s")
    with Sent(shell.server) as sent:
        assert await take(queue) is None
    assert sent.scripts in (["claim"], ["take"])
    assert shell.leftovers(queue) == set()


async def test_run_publishes_ticks(shell: Shell) -> None:
    """Of several schedules, beside other work."""
    queue, seen = shell.queue(), list[Any]()
    await queue.publish_many(["other"] * 5)
    for name in ("a", "b", "c"):
        await schedule(queue, name)
        miss(shell, queue, name=name)
    await queue.run(shell.callback(lambda message: seen.append(message.payload)), until_empty=True, concurrency=2)
    assert Counter(seen) == {shell.payload("other"): 5, **{shell.payload(one): 1 for one in "abc"}}


@pytest.mark.parametrize(
    "options",
    [{"visibility_timeout_seconds": None}, {"journal": True}, {"tenant_weights": {"t": 2}}],
    ids=["no leases", "journal", "weights"],
)
async def test_in_every_kind_of_queue(shell: Shell, options: dict[str, Any]) -> None:
    queue = shell.queue(wait=0, **options)
    await schedule(queue, tenant="t")
    await queue.publish_many(["x", "y"], tenant="u")
    miss(shell, queue)
    assert Counter(await take_all(queue)) == Counter(map(shell.payload, "xys"))


async def test_ticks_are_found_behind_expired_leases(shell: Shell) -> None:
    """However many there are: a consumer that works them off publishes the tick with its next claim."""
    queue = shell.queue(wait=0)
    await queue.publish_many(["x"] * 20)
    for _ in range(20):
        await claim_and_die(queue)
    await schedule(queue)
    miss(shell, queue)
    shell.redis.zadd(queue.key.leases, {one: 1 for one in shell.redis.zrange(queue.key.leases, 0, -1) if one != b"s"})
    await take(queue)
    assert shell.pending(queue) == 1
    assert len(await take_all(queue)) == 20


async def test_ticks_are_events_of_publishing(shell: Shell) -> None:
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen, journal=True)
    await schedule(queue)
    miss(shell, queue)
    async with queue.process_messages(1) as batch:
        assert events.the("publish").message_id == batch[0].id
        assert [one.event for one in await Awaited(queue).trace(batch[0].id)] == ["published", "claimed"]


# Missed ticks


@pytest.mark.promise("Of ticks that no consumer was there for, a schedule publishes the last one, all of them or none.")
@pytest.mark.parametrize(("missed", "found"), [("one", 1), ("all", 5), ("skip", 0)])
async def test_missed_ticks(shell: Shell, missed: str, found: int) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue, missed=missed)
    miss(shell, queue, 5)
    assert len(await take_all(queue)) == found
    assert (await Awaited(queue).schedules())[0].next_tick > shell.server_time
    miss(shell, queue, 5)
    assert len(await take_all(queue)) == found


async def test_all_missed_ticks_come_in_their_order(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue, missed="all")
    miss(shell, queue, 3)
    ticks = [datetime.fromisoformat((await headers_of_next(queue))["scheduled_for"]) for _ in range(3)]
    assert ticks == [ticks[0] + timedelta(seconds=RARELY) * number for number in range(3)]


async def test_of_many_missed_ticks_the_last_thousand_are_published(shell: Shell, caplog: Any) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue, missed="all", every_seconds=1_000)
    with caplog.at_level(logging.WARNING):
        miss(shell, queue, 3_000, seconds=1_000)
        await take(queue)
    assert shell.pending(queue) == 999
    assert "schedule s has missed 1000 ticks or more" in caplog.text


async def test_a_tick_that_is_only_a_little_late_is_not_skipped(shell: Shell) -> None:
    """As it is when the worker was busy with a handler."""
    queue = shell.queue()
    await schedule(queue, missed="skip", every_seconds=1)
    assert await take(queue) == shell.payload("s")


# Changes


@pytest.mark.promise("Defining the same schedule again changes nothing; another definition of its name replaces it.")
async def test_a_schedule_can_be_defined_again(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    assert await schedule(queue) is True
    miss(shell, queue, 0.5)
    before = await Awaited(queue).schedules()
    assert await schedule(shell.queue()) is False
    assert await Awaited(queue).schedules() == before


async def test_a_new_message_keeps_the_ticks(shell: Shell) -> None:
    """A tick that was missed while the program was replaced is published, with the new message."""
    queue = shell.queue(wait=0)
    await schedule(queue)
    miss(shell, queue)
    assert await schedule(queue, message="new") is True
    assert await take_all(queue) == [shell.payload("new")]


async def test_new_times_count_from_now(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue)
    miss(shell, queue, 3)
    assert await schedule(queue, every_seconds=RARELY + 1, missed="all") is True
    assert await take_all(queue) == []


@pytest.mark.promise("`unschedule()` ends a schedule, and tells whether there was one.")
async def test_a_schedule_can_be_removed(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue, "a")
    await schedule(queue, "b")
    miss(shell, queue, name="a")
    assert [await Awaited(queue).unschedule("a") for _ in range(2)] == [True, False]
    assert await take_all(queue) == []
    miss(shell, queue, name="b")
    assert await take_all(queue) == [shell.payload("b")]


@every_wiring
async def test_schedules_are_listed(shell: Shell) -> None:
    queue = shell.queue()
    before = shell.server_time
    await schedule(queue, "later", cron="0 3 * * *", timezone="Europe/Vienna", message="m", missed="all")
    await schedule(queue, "soon", every_seconds=60, headers={"a": "b"}, tenant="t", message={"n": 1})
    soon, later = await Awaited(queue).schedules()
    assert (soon.name, soon.every_seconds, soon.cron, soon.timezone) == ("soon", 60, None, "UTC")
    assert (soon.payload, soon.headers, soon.tenant) == (shell.payload('{"n": 1}'), {"a": "b"}, "t")
    assert (later.name, later.every_seconds, later.cron, later.timezone) == (
        "later",
        None,
        "0 3 * * *",
        "Europe/Vienna",
    )
    assert (later.payload, later.tenant, later.missed, soon.missed) == (shell.payload("m"), None, "all", "one")
    assert before <= later.created_at <= soon.created_at and (soon.last_tick, soon.error) == (None, None)
    assert soon.created_at < soon.next_tick <= soon.created_at + timedelta(seconds=60)


async def test_many_schedules_are_listed(shell: Shell) -> None:
    queue = shell.queue()
    for number in range(230):
        await schedule(queue, f"{number}")
    assert {one.name for one in await Awaited(queue).schedules()} == {f"{number}" for number in range(230)}


async def test_a_queue_has_a_thousand_schedules_at_most(shell: Shell) -> None:
    queue = shell.queue()
    shell.redis.zadd(queue.key.schedules, {f"other {number}": math.inf for number in range(999)})
    await schedule(queue)
    with pytest.raises(ConfigurationError, match="1,000 schedules"):
        await schedule(queue, "one more")
    assert await schedule(queue, message="changed") is True


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cron": None}, ValueError, "cron or every_seconds"),
    ({"cron": "* * * * *", "every_seconds": 5}, ValueError, "only one"),
    ({"cron": "61 * * * *"}, ValueError, "61 .*Bad minute"),
    ({"cron": "nonsense"}, ValueError, "nonsense"),
    ({"cron": "0 0 30 2 *"}, ValueError, "30 2"),
    ({"cron": "* * */20 * 1L"}, ValueError, "no date"),
    ({"cron": 5}, TypeError, "cron"),
    ({"cron": ""}, ValueError, "cron"),
    ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, ValueError, "Mars/Olympus"),
    ({"cron": "* * * * *", "timezone": "../etc/passwd"}, ValueError, "timezone"),
    ({"cron": "* * * * *", "timezone": UTC}, TypeError, "timezone"),
    ({"every_seconds": 60, "timezone": "Europe/Vienna"}, ValueError, "timezone"),
    ({"every_seconds": 0.5}, ValueError, "every_seconds"),
    ({"every_seconds": math.nan}, ValueError, "every_seconds"),
    ({"every_seconds": True}, TypeError, "every_seconds"),
    ({"every_seconds": "60"}, TypeError, "every_seconds"),
    ({"missed": "most"}, ValueError, "missed"),
    ({"missed": None}, ValueError, "missed"),
    ({"tenant": ""}, ValueError, "tenant"),
    ({"headers": {"a": 1}}, TypeError, "headers"),
    ({"headers": {"a": "b" * 16_340}}, ValueError, "headers"),
    ({"message": 5}, TypeError, "message"),
    ({"message": {1: 2}}, TypeError, "key"),
    ({"name": ""}, ValueError, "name"),
    ({"name": 5}, TypeError, "name"),
    ({"name": "x" * 256}, ValueError, "name"),
    ({"name": "\ud800"}, ValueError, "name"),
]


async def test_what_cannot_be_a_schedule_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for given, kind, what in REFUSED:
        with row(subtests, given=given, kind=kind, what=what):
            shell.redis.flushall()
            queue = shell.queue()
            if "cron" not in given:
                given = {"every_seconds": 60} | given
            with pytest.raises(kind, match=what):
                await Awaited(queue).schedule(**{"name": "s", "message": "m"} | given)
            assert shell.is_empty


async def test_names_of_any_kind(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    names = ["::", "schedules", "ü", "a b", "s", "d", "x" * 255]
    for name in names:
        await schedule(queue, name)
        miss(shell, queue, name=name)
    assert Counter(await take_all(queue)) == Counter(map(shell.payload, names))


async def test_a_cron_expression_needs_its_extra(shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Without it, other schedules work; a consumer says what is missing, and another one publishes the tick."""
    queue = shell.queue(wait=0)
    await schedule(queue, "by cron", cron="0 3 * * *")
    await schedule(queue, "s")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cronsim", None)
        with pytest.raises(MissingExtraError, match=r"redis-exact-queue\[schedules\]"):
            await schedule(queue, "another", cron="0 3 * * *")
        miss(shell, queue, name="by cron")
        miss(shell, queue)
        assert await take_all(queue) == [shell.payload("s")]
        assert "redis-exact-queue[schedules]" in caplog.text
        assert [bool(one.error) for one in await Awaited(queue).schedules()] == [True, False]
    shell.redis.zadd(queue.key.leases, {"s": 1})
    assert await take_all(queue) == [shell.payload("by cron")]


# Full and paused queues, duplicates


@pytest.mark.promise("A tick of a full queue waits until there is room, and counts as missed meanwhile.")
async def test_a_full_queue_gets_its_tick_later(shell: Shell, caplog: Any) -> None:
    queue = shell.queue(wait=0, max_pending_length=2)
    await queue.publish_many(["x", "y"])
    await schedule(queue)
    miss(shell, queue, 2)
    await Awaited(queue).pause()  # so that a claim takes nothing
    assert await take(queue) is None
    assert "the queue is full" in caplog.text and shell.pending(queue) == 2
    await Awaited(queue).resume()
    assert await take_all(queue) == [shell.payload("x"), shell.payload("y")]
    shell.redis.zadd(queue.key.leases, {"s": 1})
    assert await take_all(queue) == [shell.payload("s")]


async def test_a_full_queue_may_drop_the_oldest_for_a_tick(shell: Shell) -> None:
    events = shell.events()
    options = {"max_pending_length": 2, "pending_overload_policy": "drop_oldest", "max_delivery_count": None}
    queue = shell.queue(wait=0, on_event=events.listen, **options)
    await queue.publish_many(["x", "y"])
    await schedule(queue)
    miss(shell, queue)
    await Awaited(queue).pause()
    assert await take(queue) is None
    await Awaited(queue).resume()
    assert await take_all(queue) == [shell.payload("y"), shell.payload("s")]
    assert len(events.of("dropped")) == 1


async def test_missed_ticks_that_exceed_the_limit_come_in_parts(shell: Shell) -> None:
    queue = shell.queue(wait=0, max_pending_length=2)
    await schedule(queue, missed="all")
    miss(shell, queue, 5)
    found = 0
    for _ in range(3):
        shell.redis.zadd(queue.key.leases, {"s": 1})
        found += len(await take_all(queue))
    assert found == 5


@pytest.mark.promise("A paused queue gets its ticks, and delivers them when it is resumed.")
async def test_a_paused_queue_gets_its_ticks(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue)
    await Awaited(queue).pause()
    for number in range(1, 4):
        miss(shell, queue)
        assert await take(queue) is None
        assert shell.pending(queue) == number
    await Awaited(queue).resume()
    assert len(await take_all(queue)) == 3


@pytest.mark.promise("Deduplication does not suppress the ticks of a schedule.")
async def test_ticks_are_no_duplicates(shell: Shell) -> None:
    queue = shell.queue(wait=0, deduplication=True)
    await queue.publish("s")
    await schedule(queue)
    for _ in range(2):
        miss(shell, queue)
        await take(queue)
    assert shell.pending(queue) == 1


# Crashes, lost replies, foreign bytes


@pytest.mark.promise("Each tick of a schedule is published once, whatever requests and replies are lost.")
@pytest.mark.parametrize("kind", ["request", "reply"])
async def test_a_lost_request_or_reply_doubles_no_tick(shell: Shell, kind: str, subtests: pytest.Subtests) -> None:
    """Any of the calls around a definition and three ticks."""
    for lost in range(12):
        with row(subtests, lost=lost):
            shell.redis.flushall()
            client = shell.lossy_client()
            queue = shell.queue(client=client, wait=0)
            client.losses.pass_on(lost)
            getattr(client.losses, kind)(2)
            assert await schedule(queue) is True
            found = []
            for _ in range(3):
                miss(shell, queue)
                found += await take_all(queue)
                shell.redis.zadd(queue.key.leases, {"s": 1})  # a second has passed
                found += await take_all(queue)
            assert found == ["s"] * 3
            assert await Awaited(queue).unschedule("s") is True


async def test_a_consumer_that_dies_when_it_is_told_costs_a_second(shell: Shell) -> None:
    """It has the tick and does not publish it: the alarm tells the next one a second later."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0)
    await schedule(queue)
    miss(shell, queue)
    client.losses.pass_on()
    client.losses.request()
    assert await take(queue) is None
    assert shell.pending(queue) == 0
    assert shell.redis.zscore(queue.key.leases, "s") / 1e6 > (shell.server_time - timedelta(seconds=60)).timestamp()
    assert await asyncio.wait_for(take(shell.queue(wait=LIMIT_SECONDS)), LIMIT_SECONDS) == shell.payload("s")


async def test_racing_consumers_publish_one_message_a_tick(shell: Shell) -> None:
    """All of them are told at the same time."""
    queues = [shell.queue(client=shell.new_client(), wait=0) for _ in range(6)]
    await schedule(queues[0])
    for tick in range(1, 6):
        miss(shell, queues[0])
        await asyncio.gather(*(shell.beside(lambda queue=queue: publish_due(queue)) for queue in queues))
        assert shell.pending(queues[0]) == tick


async def publish_due(queue: Any) -> None:
    """What a consumer does that was told."""
    await queue.queue._protocol.scheduler.publish_due(None)


DAMAGES: dict[str, dict[str, Any]] = {
    "no record": {},
    "no timing": {"timing": ""},
    "timing": {"timing": "{"},
    "list": {"timing": "[]"},
    "number": {"timing": '{"cron":5,"every_us":null,"timezone":"UTC"}'},
    "zero": {"timing": '{"cron":null,"every_us":0,"timezone":"UTC"}'},
    "zone": {"timing": '{"cron":"* * * * *","every_us":null,"timezone":"Mars"}'},
    "cron": {"timing": '{"cron":"x","every_us":null,"timezone":"UTC"}'},
    "after": {"after": "soon"},
    "definition": {"definition": "\\xff"},
    "definition is none": {"definition": "null"},
    "headers": {"definition": '{"tenant":null,"headers":{"a":1},"missed":"one"}'},
    "tenant": {"definition": '{"tenant":5,"headers":{},"missed":"one"}'},
    "missed": {"definition": '{"tenant":null,"headers":{},"missed":"some"}'},
}


@pytest.mark.promise("A damaged schedule is logged once, and disturbs neither the queue nor other schedules.")
async def test_a_damaged_schedule_does_no_harm(shell: Shell, caplog: Any, subtests: pytest.Subtests) -> None:
    for damage in DAMAGES:
        with row(subtests, damage=damage):
            shell.redis.flushall()
            caplog.clear()
            queue = shell.queue(wait=0)
            for name in ("bad", "s"):
                await schedule(queue, name)
                miss(shell, queue, name=name)
            record = queue.key.schedule("bad")
            for field, value in DAMAGES[damage].items():
                shell.redis.hset(record, field, value)
            if not DAMAGES[damage]:
                shell.redis.delete(record)
            await queue.publish("m")
            assert Counter(await take_all(queue)) == Counter(map(shell.payload, ("m", "s")))
            assert "schedule 'bad'" in caplog.text
            assert len(await Awaited(queue).schedules()) == 2
            caplog.clear()
            shell.redis.zadd(queue.key.leases, {"s": 1})
            assert await take_all(queue) == []
            assert not caplog.records
            assert await Awaited(queue).unschedule("bad") is True


async def test_a_record_of_another_type_does_no_harm(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue)
    shell.redis.zadd(queue.key.schedules, {"bad": 1, b"\xff": 1})
    shell.redis.set(queue.key.schedule("bad"), "x")
    miss(shell, queue)
    assert await take_all(queue) == [shell.payload("s")]
    assert [bool(one.error) for one in await Awaited(queue).schedules()] == [True, True, False]


async def test_a_custom_gateway_has_no_schedules(shell: Shell) -> None:
    queue = Awaited(shell.queue(gateway=silent_gateway(shell)))
    with pytest.raises(GatewayContractError):
        await queue.schedule("s", every_seconds=60, message="m")
    with pytest.raises(GatewayContractError):
        await queue.schedules()
    with pytest.raises(GatewayContractError):
        await queue.unschedule("s")


async def test_a_drained_consumer_publishes_no_tick(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue)
    miss(shell, queue)
    await queue.drain()
    await publish_due(queue)
    assert shell.pending(queue) == 0


@pytest.mark.promise("`fast_forward()` makes the ticks of the time due that it lets pass.")
async def test_time_can_pass_in_tests(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue, cron="0 3 * * *", missed="all")
    fast_forward(shell.redis, 3 * 86_400, queue.queue)
    assert await take_all(queue) == [shell.payload("s")] * 3


async def test_an_alarm_that_is_early_does_no_harm(shell: Shell) -> None:
    queue = shell.queue(wait=0)
    await schedule(queue)
    (before,) = await Awaited(queue).schedules()
    shell.redis.zadd(queue.key.schedules, {"s": 1})
    shell.redis.zadd(queue.key.leases, {"s": 1})
    assert await take_all(queue) == []
    assert await Awaited(queue).schedules() == [before]
