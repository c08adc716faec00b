"""Time: a delayed message waits in Redis until it is due, and one that has grown too old is not delivered."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from redis_message_queue import RetryPolicy
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.protocol import claim
from tests.contract.shells import (
    EVERY_WIRING,
    PATIENCE_SECONDS,
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


async def take_all(queue: Any, count: int) -> list[Any]:
    return [await take(queue) for _ in range(count)]


class Sleeper:
    """A consumer that sleeps until it is woken: it would look for itself long after the test has given up."""

    SLICE_SECONDS = 3 * PATIENCE_SECONDS

    def __init__(self, shell: Shell, name: str = "q", **options: Any) -> None:
        self._shell = shell
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(claim, "_SLICE_SECONDS", self.SLICE_SECONDS)
            client = shell.new_client(socket_timeout=3 * self.SLICE_SECONDS)  # it would be a limit of its sleep, too
            self.queue = shell.queue(name, client=client, **{"wait": self.SLICE_SECONDS} | options)
        assert self.queue.queue._protocol.store.claimer._slice == self.SLICE_SECONDS

    async def sleep(self, work: Callable[[Any], Coroutine[Any, Any, Any]] = take) -> None:
        """Begin, and return when Redis says that one more client is blocked."""
        before = blocked_clients(self._shell)
        self._taking = asyncio.ensure_future(self._shell.beside(lambda: work(self.queue)))
        assert await until(lambda: blocked_clients(self._shell) == before + 1), "it does not sleep"

    @property
    def is_awake(self) -> bool:
        return self._taking.done()

    async def wakes(self) -> Any:
        """What it took."""
        done, _ = await asyncio.wait({self._taking}, timeout=PATIENCE_SECONDS)
        if not done:
            self._shell.redis.lpush(self.queue.key.bell, "1")  # so that it ends with the test
            await asyncio.wait({self._taking}, timeout=PATIENCE_SECONDS)
        assert done, "nobody woke it"
        return self._taking.result()


async def sleeper(shell: Shell, name: str = "q", **options: Any) -> Sleeper:
    """Somebody who is asleep."""
    one = Sleeper(shell, name, **options)
    await one.sleep()
    return one


def blocked_clients(shell: Shell) -> int:
    return int(shell.redis.info("clients")["blocked_clients"])


# Later


@every_wiring
async def test_a_delayed_message_is_delivered_when_it_is_due(shell: Shell) -> None:
    """Not before, by the server's clock; then once, as any other, over every kind of connection."""
    queue = shell.queue(wait=0)
    published = shell.server_time
    assert await queue.publish({"n": 1}, delay_seconds=0.05) is True
    waiting = shell.queue(wait=PATIENCE_SECONDS)
    async with waiting.process_message() as message:
        arrived = shell.server_time
        received = waiting.current_message()
        assert message == shell.payload('{"n": 1}')
        assert (received.delivery_count, received.tenant) == (1, None)
        assert published <= received.published_at <= arrived - timedelta(seconds=0.05)
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


async def test_until_it_is_due_nobody_gets_it(shell: Shell) -> None:
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


async def test_no_delay_is_none(shell: Shell) -> None:
    """Zero, and less than the clock can tell, mean at once, in the order of publishing."""
    queue = shell.queue(wait=0)
    for number, delay in enumerate((None, 0, 0.0, 1e-9)):
        assert await queue.publish(str(number), delay_seconds=delay) is True
    assert await take_all(queue, 5) == [b"0", b"1", b"2", b"3", None]


async def test_the_first_to_be_due_is_the_first_to_come(shell: Shell) -> None:
    """Whenever they were published; and behind what waits in the line when their time comes."""
    queue = shell.queue(wait=0)
    for delay in (300, 100, 200):
        await queue.publish(str(delay), delay_seconds=delay)
    await queue.publish("in the line")
    assert [seen.payload for seen in await Awaited(queue).peek(source="delayed")] == [b"100", b"200", b"300"]
    shell.ripen(queue)
    assert await take_all(queue, 5) == [b"in the line", b"100", b"200", b"300", None]


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


async def test_each_is_delivered_once_among_many_consumers(shell: Shell) -> None:
    """However many are awake when it is due."""
    publisher = shell.queue()
    expected = Counter(b"%d" % number for number in range(60))

    async def consume() -> list[Any]:
        queue, taken = shell.queue(client=shell.new_client(), wait=PATIENCE_SECONDS), []
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


# Who is asleep


async def test_an_idle_consumer_wakes_when_a_delay_ends(shell: Shell) -> None:
    """Also if it went to sleep before the message was published; meanwhile it asks nothing."""
    queue, consumer = shell.queue(), Sleeper(shell)
    await queue.publish("warm-up", delay_seconds=0.001)  # loads the scripts
    assert await take(shell.queue(wait=PATIENCE_SECONDS)) == b"warm-up"
    shell.redis.delete(queue.key.bell)
    with Sent(shell.server) as sent:
        await consumer.sleep()
        await queue.publish("later", delay_seconds=0.6)
        assert await consumer.wakes() == b"later"
    talk = [one for one in sent.commands if one in ("EVALSHA", "BLPOP")]
    # Claim, sleep; publish; claim, sleep until it is due; claim, ack. A sleep may end a little early.
    assert talk[:5] == ["EVALSHA", "BLPOP", "EVALSHA", "EVALSHA", "BLPOP"]
    assert 2 <= talk.count("BLPOP") <= 4
    assert talk.count("EVALSHA") == talk.count("BLPOP") + 3


async def test_what_is_due_sooner_wakes_who_waits_for_what_is_later(shell: Shell) -> None:
    """The earliest decides; the consumer is not bound to the delay that it knew of."""
    queue = shell.queue()
    # One that nobody waits for yet, and one that the sleeper is on watch for: its wait would end when that is due.
    for text, delay in (("tomorrow", 86_400), ("in a while", Sleeper.SLICE_SECONDS - 5)):
        await queue.publish(text, delay_seconds=delay)
        shell.redis.delete(queue.key.bell)
        consumer = await sleeper(shell)
        assert shell.redis.exists(queue.key.watch) == (text == "in a while")
        await queue.publish("soon", delay_seconds=0.05)
        assert await consumer.wakes() == b"soon"
    assert (await Awaited(queue).stats()).delayed == 2


async def test_whatever_becomes_the_next_rings(shell: Shell) -> None:
    """So that nobody sleeps past it; a later one disturbs nobody."""
    queue = shell.queue()
    for delay, rings in ((100, 1), (200, 0), (50, 1), (60, 0), (40, 1)):
        await queue.publish("m", delay_seconds=delay)
        assert shell.redis.llen(queue.key.bell) == rings, delay
        shell.redis.delete(queue.key.bell)


async def test_a_line_that_is_never_empty_does_not_keep_out_what_is_due(shell: Shell) -> None:
    """The first claim after its time lets it in, behind those who wait."""
    queue = shell.queue(wait=0)
    await queue.publish("due", delay_seconds=0.02)
    await queue.publish_many(["m"] * 5)
    await asyncio.sleep(0.05)
    assert await take(queue) == b"m"
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.pending) == (0, 5)
    assert (await take_all(queue, 5))[-1] == b"due"


async def test_of_many_sleepers_each_gets_one(shell: Shell) -> None:
    """Whoever wakes passes the work on: two that are due together wake two, and the others sleep until theirs."""
    queue = shell.queue()
    asleep = [await sleeper(shell) for _ in range(4)]
    await queue.publish_many(["a", "b"], delay_seconds=0.1)
    woken = await until(lambda: sum(one.is_awake for one in asleep) == 2)
    assert woken, f"{sum(one.is_awake for one in asleep)} are awake"
    assert await until(lambda: blocked_clients(shell) == 2)
    await queue.publish_many(["c", "d"], delay_seconds=0.1)
    assert sorted([await one.wakes() for one in asleep]) == [b"a", b"b", b"c", b"d"]


# Where it waits


async def test_it_waits_in_redis_and_not_with_its_publisher(shell: Shell) -> None:
    """Who published it may be gone; either colour delivers what the other one has delayed."""
    other_client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    publisher = shell.other_module.RedisMessageQueue("q", client=other_client)
    assert await Awaited(publisher).publish("left behind", delay_seconds=0.05) is True
    assert await Awaited(publisher).drain() is True
    await (other_client.aclose() if shell.name == "sync" else Awaited(other_client).close())
    assert await take(shell.queue(wait=PATIENCE_SECONDS)) == b"left behind"


@pytest.mark.parametrize("shell_name", SHELLS)
def test_it_survives_the_death_of_the_server(shell_name: str, start_server: Any) -> None:
    """With an append-only file what waited for its time or its next attempt before a crash comes after it, once, in its
    order, and with as many attempts as it had left."""
    server: EmbeddedRedis = start_server(append_only=True, config={"appendfsync": "always"})
    with server.client() as onlooker:
        shell = SHELLS[shell_name](server, onlooker, Wiring())

        async def story() -> None:
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
            shell.run(story())
        finally:
            shell.close()


# Together with the rest


async def test_without_leases_delays_work_as_well(shell: Shell) -> None:
    """A queue with at-most-once delivery wakes for them, too."""
    queue = shell.queue(visibility_timeout_seconds=None)
    await queue.publish("sooner", delay_seconds=0.05)
    await queue.publish("later", delay_seconds=0.1)
    assert await take_all(queue, 2) == [b"sooner", b"later"]
    assert shell.redis.hlen(queue.key.processing) == 0


async def test_a_duplicate_of_a_delayed_message_is_one(shell: Shell) -> None:
    """The window begins when it is published, and the duplicate may be delayed or not."""
    queue = shell.queue(wait=0, deduplication=True)
    assert await queue.publish("once", delay_seconds=100) is True
    assert await queue.publish("once") is False
    assert await queue.publish("once", delay_seconds=1) is False
    assert await queue.publish_many(["once", "twice", "twice"], delay_seconds=50) == [False, True, False]
    assert (await Awaited(queue).stats()).delayed == 2


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


async def test_a_delayed_message_that_comes_back_is_ordinary(shell: Shell) -> None:
    """Once delivered it is leased, reclaimed and buried as any other."""
    queue = shell.queue(wait=0, max_delivery_count=2)
    await queue.publish("poison", delay_seconds=100)
    shell.ripen(queue)
    for _ in range(2):
        assert await claim_and_die(queue) == b"poison"
        shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"poison"]
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.parametrize(("details", "kind", "word"), TIMES_TO_REFUSE, ids=str)
async def test_a_time_that_is_none_is_refused(
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
        assert isinstance(caught.value, kind)
        assert (caught.value.queue, caught.value.operation) == ("q", "publish")
    assert shell.is_empty


async def test_a_custom_gateway_cannot_delay(shell: Shell) -> None:
    """It says so, and is not asked."""
    queue = shell.queue(gateway=silent_gateway(shell))
    for details in ({"delay_seconds": 1}, {"at": datetime.now(UTC)}):
        with pytest.raises(shell.module.GatewayContractError, match=r"custom gateway \(Mine\)"):
            await queue.publish("m", **details)


# Too late


def age(shell: Shell, queue: Any, tenant: str = "") -> None:
    """Everything that waits, is delayed or is in flight was published an hour earlier than it was."""

    def aged(stored: bytes) -> bytes:
        published = int.from_bytes(stored[17:25], "big") - 3_600_000_000
        return stored[:17] + published.to_bytes(8, "big") + stored[25:]

    for key in (queue.key.pending, queue.key.line(tenant)):
        for place, stored in enumerate(shell.redis.lrange(key, 0, -1)):
            shell.redis.lset(key, place, aged(stored))
    for key in (queue.key.processing, queue.key.later):
        for message_id, stored in shell.redis.hgetall(key).items():
            shell.redis.hset(key, message_id, aged(stored))


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


async def test_the_claim_of_a_queue_decides_what_is_too_old(shell: Shell) -> None:
    """A queue object without a limit, or with a longer one, still delivers it."""
    for number in range(3):
        await shell.queue(str(number)).publish("m")
        age(shell, shell.queue(str(number)))
    assert await take(shell.queue("0", wait=0, message_ttl_seconds=7_200)) == b"m"
    assert await take(shell.queue("1", wait=0)) == b"m"
    assert await take(shell.queue("2", wait=0, message_ttl_seconds=1_800)) is None


async def test_the_age_is_measured_in_parts_of_a_second(shell: Shell) -> None:
    """By the server's clock, without anybody's help."""
    queue = shell.queue(wait=0, message_ttl_seconds=0.05)
    await queue.publish("old")
    await asyncio.sleep(0.1)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"old"]


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


@pytest.mark.parametrize("options", [{"max_delivery_count": None}, {"visibility_timeout_seconds": None}], ids=str)
async def test_age_needs_neither_a_delivery_limit_nor_leases(shell: Shell, options: dict[str, Any]) -> None:
    """The dead letters are there for it in any case."""
    queue = shell.queue(wait=0, message_ttl_seconds=1_800, **options)
    await queue.publish("old")
    age(shell, queue)
    assert await take(queue) is None
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.reason) == (b"old", "expired")


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
    assert (summary.handled, summary.failed, summary.given_back) == (2, 0, 0)
    assert handled == [b"young", b"younger"]
    assert len(events.of("dlq")) == 3
    assert sorted(shell.listed(queue.key.dead_letter)) == [b"old", b"old too", b"older"]


@pytest.mark.parametrize("way", ["publish", "publish_many", "tenant", "complete"])
async def test_a_delay_beyond_the_life_of_a_message_is_refused(shell: Shell, way: str) -> None:
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


async def test_a_first_retry_beyond_the_life_of_a_message_is_refused(shell: Shell) -> None:
    """As short as chance may make it. Later pauses may be longer: then its age ends the attempts."""
    for policy in (RetryPolicy(initial_delay_seconds=60, jitter=0), RetryPolicy(initial_delay_seconds=200, jitter=0.5)):
        with pytest.raises(shell.module.ConfigurationError, match="retry_policy waits at least"):
            shell.queue(message_ttl_seconds=60, retry_policy=policy)
        gateway = shell.gateway(message_ttl_seconds=60)
        with pytest.raises(shell.module.ConfigurationError, match="message_ttl_seconds"):
            shell.queue(gateway=gateway, retry_policy=policy)
    shell.queue(message_ttl_seconds=60, retry_policy=RetryPolicy(initial_delay_seconds=59, jitter=0))
    shell.queue(message_ttl_seconds=60, retry_policy=RetryPolicy(initial_delay_seconds=100, jitter=0.5))


@pytest.mark.parametrize("life", [0, -1, 0.0001, math.nan, math.inf, True, "1"])
async def test_a_life_that_is_none_is_refused(shell: Shell, life: Any) -> None:
    """A number of seconds, and a millisecond at least."""
    with pytest.raises(shell.module.ConfigurationError, match="message_ttl_seconds"):
        shell.queue(message_ttl_seconds=life)
