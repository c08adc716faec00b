"""A delayed message waits in Redis until it is due."""

import asyncio
import math
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from redis_message_queue import RetryPolicy
from redis_message_queue.embedded import EmbeddedRedis
from tests.contract.blocked_consumers import BlockedConsumer, blocked_clients, blocked_consumer, take_all
from tests.contract.shells import (
    EVERY_WIRING,
    LIMIT_SECONDS,
    SHELLS,
    Awaited,
    Sent,
    Shell,
    Wiring,
    claim_and_die,
    fail,
    silent_gateway,
    take,
    until,
)

pytestmark = pytest.mark.topic("Delays")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

TIMES_TO_REFUSE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"delay_seconds": -1}, ValueError, "delay_seconds"),
    ({"delay_seconds": -0.001}, ValueError, "delay_seconds"),
    ({"delay_seconds": math.nan}, ValueError, "delay_seconds"),
    ({"delay_seconds": math.inf}, ValueError, "delay_seconds"),
    ({"delay_seconds": -math.inf}, ValueError, "delay_seconds"),
    ({"delay_seconds": 10**400}, ValueError, "delay_seconds"),
    ({"delay_seconds": True}, TypeError, "delay_seconds"),
    ({"delay_seconds": "1"}, TypeError, "delay_seconds"),
    ({"delay_seconds": Decimal(1)}, TypeError, "delay_seconds"),
    ({"delay_seconds": timedelta(seconds=1)}, TypeError, "delay_seconds"),
    ({"at": datetime(2030, 1, 1)}, ValueError, "time zone"),
    ({"at": 1_900_000_000}, TypeError, "at"),
    ({"at": True}, TypeError, "at"),
    ({"at": "2030-01-01T00:00:00+00:00"}, TypeError, "at"),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC).date()}, TypeError, "at"),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay_seconds": 1}, ValueError, "only one"),
]


# Due times


@pytest.mark.promise("`delay_seconds` and `at` deliver a message when it is due by the server's clock, not earlier.")
@every_wiring
async def test_a_delayed_message_is_delivered_when_it_is_due(shell: Shell) -> None:
    """Not before, by the server's clock; then once, as any other, over every kind of connection."""
    queue = shell.queue(wait=0)
    published = shell.server_time
    assert await queue.publish({"n": 1}, delay_seconds=0.05) is True
    waiting = shell.queue(wait=LIMIT_SECONDS)
    async with waiting.process_message() as message:
        arrived = shell.server_time
        received = waiting.current_message()
        assert message == shell.payload('{"n": 1}')
        assert (received.delivery_count, received.tenant) == (1, None)
        assert published <= received.published_at <= arrived - timedelta(seconds=0.05)
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("`delay_seconds` and `at` deliver a message when it is due by the server's clock, not earlier.")
async def test_a_delayed_message_is_not_delivered_early(shell: Shell) -> None:
    """It is neither pending nor in flight; who looks sees what it is and when it comes."""
    queue = shell.queue(wait=0)
    await queue.publish("later", delay_seconds=1_000)
    before = shell.server_time
    assert await take(queue) is None
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.pending, stats.processing, stats.oldest_pending_seconds) == (1, 0, 0, None)
    (seen,) = await Awaited(queue).peek(source="delayed")
    assert seen.payload == b"later"
    assert timedelta(seconds=900) < seen.due_at - before <= timedelta(seconds=1_000)
    assert seen.published_at <= before


@pytest.mark.promise("`at` accepts any time zone; a time in the past and a delay of 0 are due immediately.")
async def test_a_time_is_a_delay_in_other_words(shell: Shell) -> None:
    """In whatever zone it is told; what is past is due at once."""
    queue = shell.queue(wait=0)
    moment = datetime.now(UTC).replace(microsecond=123_456) + timedelta(hours=1)
    zones = [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12, minutes=30))]
    for zone in zones:
        assert await queue.publish("future", at=moment.astimezone(zone)) is True
    assert [seen.due_at for seen in await Awaited(queue).peek(source="delayed")] == [moment] * 3
    for past in (moment - timedelta(hours=2), datetime(1969, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC)):
        assert await queue.publish("past", at=past) is True
        assert await take(queue) == b"past"


@pytest.mark.promise("`at` accepts any time zone; a time in the past and a delay of 0 are due immediately.")
async def test_a_delay_of_zero_is_due_immediately(shell: Shell) -> None:
    """Zero, and less than the clock can tell, mean at once, in the order of publishing."""
    queue = shell.queue(wait=0)
    for number, delay in enumerate((None, 0, 0.0, 1e-9)):
        assert await queue.publish(str(number), delay_seconds=delay) is True
    assert await take_all(queue, 5) == [b"0", b"1", b"2", b"3", None]


@pytest.mark.promise(
    "Delayed messages arrive in the order of their due times, behind messages that are already pending."
)
async def test_the_first_to_be_due_is_the_first_to_come(shell: Shell) -> None:
    """Whenever they were published; and behind what waits in the queue when their time comes."""
    queue = shell.queue(wait=0)
    for delay in (300, 100, 200):
        await queue.publish(str(delay), delay_seconds=delay)
    await queue.publish("in the line")
    assert [seen.payload for seen in await Awaited(queue).peek(source="delayed")] == [b"100", b"200", b"300"]
    shell.ripen(queue)
    assert await take_all(queue, 5) == [b"in the line", b"100", b"200", b"300", None]


@pytest.mark.promise("A due time in the far future does not break the operator tools.")
async def test_far_away_is_not_too_far(shell: Shell) -> None:
    """The latest time that there is can be given, and is what those see who look; what is sooner comes before it."""
    queue, last = shell.queue(wait=0), datetime.max.replace(tzinfo=UTC)
    for moment in (last, datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))):
        assert await queue.publish("never", at=moment) is True
    before = shell.server_time
    assert await queue.publish("soon", delay_seconds=3_000_000_000) is True
    seen = await Awaited(queue).peek(source="delayed")
    assert [one.payload for one in seen] == [b"soon", b"never", b"never"]
    assert timedelta(0) <= seen[0].due_at - before - timedelta(seconds=3_000_000_000) < timedelta(minutes=1)
    assert [one.due_at for one in seen[1:]] == [last, last]
    assert (await Awaited(queue).stats()).delayed == 3
    assert await take(queue) is None
    assert await queue.publish("now") is True
    assert await take(queue) == b"now"


@pytest.mark.promise("A delayed batch stays in order, even if thousands of messages are due at the same time.")
async def test_a_batch_is_delayed_together(shell: Shell) -> None:
    """In its order, when it is due; more than a thousand at once are no obstacle, and nobody is told empty before."""
    queue = shell.queue(wait=0)
    await queue.publish_many([str(number) for number in range(2_300)], delay_seconds=500)
    shell.ripen(queue)
    received: list[bytes] = []
    while True:
        async with queue.process_messages(1_000) as batch:
            if not batch:
                break
            received += [message.payload for message in batch]
    assert received == [b"%d" % number for number in range(2_300)]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("A delayed message is delivered once, however many consumers are waiting.")
async def test_each_is_delivered_once_among_many_consumers(shell: Shell) -> None:
    """However many are awake when it is due."""
    publisher = shell.queue()
    expected = Counter(b"%d" % number for number in range(60))

    async def consume() -> list[Any]:
        queue, taken = shell.queue(client=shell.new_client(), wait=LIMIT_SECONDS), []
        while (message := await take(queue)) not in (None, b"stop"):
            taken.append(message)
        return taken

    consumers = [shell.beside(consume) for _ in range(4)]
    for number in range(60):
        await publisher.publish(str(number), delay_seconds=0.02 + number % 5 * 0.03)
    for _ in consumers:
        await publisher.publish("stop", delay_seconds=0.5)
    taken = await asyncio.gather(*consumers)
    assert Counter(message for some in taken for message in some) == expected
    assert shell.leftovers(publisher) == set()


# Waking consumers


@pytest.mark.promise(
    "An idle consumer wakes when a delay ends, even if it was waiting before the message was published."
)
async def test_an_idle_consumer_wakes_when_a_delay_ends(shell: Shell) -> None:
    """Also if it went to sleep before the message was published; meanwhile it asks nothing."""
    queue, consumer = shell.queue(), BlockedConsumer(shell)
    await queue.publish("warm-up", delay_seconds=0.001)  # loads the scripts
    assert await take(shell.queue(wait=LIMIT_SECONDS)) == b"warm-up"
    shell.redis.delete(queue.key.wakeup)
    with Sent(shell.server) as sent:
        await consumer.sleep()
        await queue.publish("later", delay_seconds=0.6)
        assert await consumer.wakes() == b"later"
    talk = [one for one in sent.commands if one in ("EVALSHA", "BLPOP")]
    # Claim, sleep; publish; claim, sleep until it is due; claim, ack. A sleep may end a little early.
    assert talk[:5] == ["EVALSHA", "BLPOP", "EVALSHA", "EVALSHA", "BLPOP"]
    assert 2 <= talk.count("BLPOP") <= 4
    assert talk.count("EVALSHA") == talk.count("BLPOP") + 3


@pytest.mark.promise(
    "An idle consumer wakes when a delay ends, even if it was waiting before the message was published."
)
async def test_what_is_due_sooner_wakes_who_waits_for_what_is_later(shell: Shell) -> None:
    """The earliest decides; the consumer is not bound to the delay that it knew of."""
    queue = shell.queue()
    # One far away, and one that the consumer is the timer owner for: its wait would end when that is due.
    for text, delay in (("tomorrow", 86_400), ("in a while", BlockedConsumer.SLICE_SECONDS - 5)):
        await queue.publish(text, delay_seconds=delay)
        shell.redis.delete(queue.key.wakeup)
        consumer = await blocked_consumer(shell)
        assert shell.redis.exists(queue.key.timer_owner) == (text == "in a while")
        await queue.publish("soon", delay_seconds=0.05)
        assert await consumer.wakes() == b"soon"
    assert (await Awaited(queue).stats()).delayed == 2


async def test_a_new_earliest_due_time_wakes_a_consumer(shell: Shell) -> None:
    """So that nobody sleeps past it; a later one disturbs nobody."""
    queue = shell.queue()
    for delay, tokens in ((100, 1), (200, 0), (50, 1), (60, 0), (40, 1)):
        await queue.publish("m", delay_seconds=delay)
        assert shell.redis.llen(queue.key.wakeup) == tokens, delay
        shell.redis.delete(queue.key.wakeup)


@pytest.mark.promise("A queue that is never empty still delivers due messages.")
async def test_a_queue_that_is_never_empty_still_delivers_due_messages(shell: Shell) -> None:
    """The first claim after its time lets it in, behind those who wait."""
    queue = shell.queue(wait=0)
    await queue.publish("due", delay_seconds=0.02)
    await queue.publish_many(["m"] * 5)
    await asyncio.sleep(0.05)
    assert await take(queue) == b"m"
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.pending) == (0, 5)
    assert (await take_all(queue, 5))[-1] == b"due"


@pytest.mark.promise("Messages that are due at the same time wake as many consumers.")
async def test_of_many_sleepers_each_gets_one(shell: Shell) -> None:
    """Wake-ups are chained: two messages that are due together wake two consumers, and the others sleep on."""
    queue = shell.queue()
    asleep = [await blocked_consumer(shell) for _ in range(4)]
    await queue.publish_many(["a", "b"], delay_seconds=0.1)
    woken = await until(lambda: sum(one.is_awake for one in asleep) == 2)
    assert woken, f"{sum(one.is_awake for one in asleep)} are awake"
    assert await until(lambda: blocked_clients(shell) == 2)
    await queue.publish_many(["c", "d"], delay_seconds=0.1)
    assert sorted([await one.wakes() for one in asleep]) == [b"a", b"b", b"c", b"d"]


# Storage


@pytest.mark.promise("A delayed message is stored in Redis and survives a server crash with an append-only file.")
async def test_it_waits_in_redis_and_not_with_its_publisher(shell: Shell) -> None:
    """Who published it may be gone; sync and async queues deliver what the other has delayed."""
    other_client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    publisher = shell.other_module.RedisMessageQueue("q", client=other_client)
    assert await Awaited(publisher).publish("left behind", delay_seconds=0.05) is True
    assert await Awaited(publisher).drain() is True
    await (other_client.aclose() if shell.name == "sync" else Awaited(other_client).close())
    assert await take(shell.queue(wait=LIMIT_SECONDS)) == b"left behind"


@pytest.mark.promise("A delayed message is stored in Redis and survives a server crash with an append-only file.")
@pytest.mark.parametrize("shell_name", SHELLS)
def test_a_delayed_message_survives_a_server_crash(shell_name: str, start_server: Any) -> None:
    """With an append-only file what waited for its time or its next attempt before a crash comes after it, once, in its
    order, and with as many attempts as it had left."""
    server: EmbeddedRedis = start_server(append_only=True, config={"appendfsync": "always"})
    with server.client() as onlooker:
        shell = SHELLS[shell_name](server, onlooker, Wiring())

        async def scenario() -> None:
            policy = RetryPolicy(max_attempts=2, initial_delay_seconds=200, jitter=0)
            queue = shell.queue(wait=0, retry_policy=policy)
            await queue.publish("failing")
            await queue.publish("waiting")
            await queue.publish("last", delay_seconds=300)
            await queue.publish("first", delay_seconds=100)
            assert await fail(queue, ValueError("first attempt")) == b"failing"
            server.kill()
            server.restart()
            assert await until(onlooker.ping)
            seen = await Awaited(queue).peek(source="delayed")
            assert [one.payload for one in seen] == [b"first", b"failing", b"last"]
            assert await take_all(queue, 2) == [b"waiting", None]
            shell.ripen(queue)
            assert await take(queue) == b"first"
            assert await fail(queue, ValueError("second attempt")) == b"failing"
            assert await take_all(queue, 2) == [b"last", None]
            (letter,) = await Awaited(queue).records("dead_letters")
            assert (letter.payload, letter.error) == (b"failing", "second attempt")
            await queue.publish_many(["x", "y"], delay_seconds=100, tenant="a")
            server.kill()
            server.restart()
            assert await until(onlooker.ping)
            shell.ripen(queue)
            assert await take_all(queue, 3) == [b"x", b"y", None]

        try:
            shell.run(scenario())
        finally:
            shell.close()


# With other features


@pytest.mark.promise("Delays work without leases.")
async def test_without_leases_delays_work_as_well(shell: Shell) -> None:
    """A queue with at-most-once delivery wakes for them, too."""
    queue = shell.queue(visibility_timeout_seconds=None)
    await queue.publish("sooner", delay_seconds=0.05)
    await queue.publish("later", delay_seconds=0.1)
    assert await take_all(queue, 2) == [b"sooner", b"later"]
    assert shell.redis.hlen(queue.key.processing) == 0


@pytest.mark.promise("The deduplication window of a delayed message starts when it is published.")
async def test_a_duplicate_of_a_delayed_message_is_one(shell: Shell) -> None:
    """The window begins when it is published, and the duplicate may be delayed or not."""
    queue = shell.queue(wait=0, deduplication=True)
    assert await queue.publish("once", delay_seconds=100) is True
    assert await queue.publish("once") is False
    assert await queue.publish("once", delay_seconds=1) is False
    assert await queue.publish_many(["once", "twice", "twice"], delay_seconds=50) == [False, True, False]
    assert (await Awaited(queue).stats()).delayed == 2


@pytest.mark.promise("A delayed publish that is retried after a lost reply stores one message.")
async def test_a_lost_answer_delays_one_message(shell: Shell) -> None:
    """However often the call is sent."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0)
    await queue.publish("warm-up", delay_seconds=1_000)
    client.losses.reply(2)
    client.losses.request()
    assert await queue.publish("once", delay_seconds=500) is True
    client.losses.reply()
    assert await queue.publish_many(["a", "b"], delay_seconds=600) == [True, True]
    assert (await Awaited(queue).stats()).delayed == 4


@pytest.mark.promise("A delayed message that is due is leased, redelivered and dead-lettered like any other.")
async def test_a_delayed_message_that_comes_back_is_ordinary(shell: Shell) -> None:
    """Once delivered it is leased, reclaimed and dead-lettered as any other."""
    queue = shell.queue(wait=0, max_delivery_count=2)
    await queue.publish("poison", delay_seconds=100)
    shell.ripen(queue)
    for _ in range(2):
        assert await claim_and_die(queue) == b"poison"
        shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"poison"]
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("An invalid delay or time is refused by name before anything is written.")
@pytest.mark.parametrize(("details", "kind", "word"), TIMES_TO_REFUSE, ids=str)
async def test_an_invalid_time_is_refused(
    shell: Shell, details: dict[str, Any], kind: type[Exception], word: str
) -> None:
    """By every call that takes one, with a typed error that names it, before anything is written."""
    queue = shell.queue(deduplication=True)
    for work in (
        lambda: queue.publish("m", **details),
        lambda: queue.publish_many(["m"], **details),
        lambda: Awaited(queue.queue.tenant("a")).publish("m", **details),
        lambda: Awaited(queue.queue.tenant("a")).publish_many(["m"], **details),
    ):
        with pytest.raises(shell.module.ConfigurationError, match=word) as caught:
            await work()
        assert (caught.value.queue, caught.value.operation) == ("q", "publish")
        assert isinstance(caught.value, kind)
    assert shell.is_empty


@pytest.mark.promise("Delays are refused with a custom gateway before it is called.")
async def test_a_custom_gateway_cannot_delay(shell: Shell) -> None:
    """It says so, and is not asked."""
    queue = shell.queue(gateway=silent_gateway(shell))
    for details in ({"delay_seconds": 1}, {"at": datetime.now(UTC)}):
        with pytest.raises(shell.module.GatewayContractError, match=r"custom gateway \(Mine\)"):
            await queue.publish("m", **details)
