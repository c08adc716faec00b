"""Time passes without anybody waiting: everything that a queue remembers gets older, and nothing else changes."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

import redis_message_queue.asyncio
from redis_message_queue import ConfigurationError, ConfigurationTypeError, RedisMessageQueue, RetryPolicy
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.envelope import Envelope
from redis_message_queue.keys import KEY_MAP
from redis_message_queue.spark.groups import Groups
from redis_message_queue.spark.source import opened
from redis_message_queue.testing import fast_forward as fast_forward_by_client
from redis_message_queue.testing.fast_forward import AGEING

Make = Callable[..., RedisMessageQueue]
FastForward = Callable[..., None]


class Died(BaseException):
    """A consumer's sudden end."""


def claim_and_die(queue: RedisMessageQueue) -> Any:
    taken = []
    with pytest.raises(Died), queue.process_message() as message:
        taken.append(message)
        raise Died
    return taken[0]


def take(queue: RedisMessageQueue) -> Any:
    with queue.process_message() as message:
        return message


def test_every_key_of_the_key_map_has_a_way_to_age() -> None:
    """Whoever adds a kind of key says whether there is a time in it."""
    words = {kind.word.split("::")[0] + "::" * ("::" in kind.word) for kind in KEY_MAP}
    assert set(AGEING) == words


def test_a_lease_is_over_when_its_time_has_passed_and_not_before(
    rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """Two steps add up."""
    rmq_queue.publish("a")
    assert claim_and_die(rmq_queue) == "a"
    fast_forward(200)
    assert take(rmq_queue) is None
    fast_forward(101)
    assert take(rmq_queue) == "a"


def test_leases_that_end_together_come_back_in_their_order(
    rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """Claims of one moment too."""
    rmq_queue.publish_many(str(number) for number in range(50))
    with pytest.raises(Died), rmq_queue.process_messages(50):
        raise Died
    fast_forward(10 * 365 * 86_400)
    assert [take(rmq_queue) for _ in range(50)] == [str(number) for number in range(50)]


def test_a_delay_is_over_when_its_time_has_passed(rmq_queue: RedisMessageQueue, fast_forward: FastForward) -> None:
    """Those that are due are delivered, the others wait on."""
    rmq_queue.publish("tomorrow", delay_seconds=86_400)
    rmq_queue.publish("in a week", delay_seconds=7 * 86_400)
    assert take(rmq_queue) is None
    fast_forward(86_401)
    assert take(rmq_queue) == "tomorrow"
    assert take(rmq_queue) is None
    assert rmq_queue.stats().delayed == 1


def test_the_pause_before_a_retry_is_over(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """A handler that failed is tried again without waiting."""
    queue = make_rmq_queue(retry_policy=RetryPolicy(max_attempts=3, initial_delay_seconds=3600, jitter=0))
    queue.publish("a")
    with pytest.raises(ZeroDivisionError), queue.process_message():
        raise ZeroDivisionError
    assert take(queue) is None
    fast_forward(3601)
    assert take(queue) == "a"


def test_a_deduplication_window_closes(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """The same message may come again when the window is over, and not before."""
    queue = make_rmq_queue(deduplication=True)
    assert queue.publish("a")
    fast_forward(3500)
    assert not queue.publish("a")
    fast_forward(101)
    assert queue.publish("a")


def test_a_message_can_get_too_old(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """What has waited longer than message_ttl_seconds is a dead letter."""
    queue = make_rmq_queue(message_ttl_seconds=600)
    queue.publish("a")
    fast_forward(601)
    assert take(queue) is None
    assert [record.reason for record in queue.records("dead_letters")] == ["expired"]


def test_messages_and_records_say_that_they_are_older(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """published_at, the age of the oldest, and every time in a record; a time that only looks like one stays."""
    queue = make_rmq_queue(enable_failed_queue=True)
    queue.publish("first")
    with pytest.raises(ValueError), queue.process_message():
        raise ValueError('"finished":"1700000000000000"')
    queue.publish("second")
    (record,) = queue.records("failed")
    fast_forward(1000)
    (older,) = queue.records("failed")
    for moment in ("published_at", "claimed_at", "finished_at"):
        assert getattr(record, moment) - getattr(older, moment) == timedelta(seconds=1000)
    assert older.error == record.error
    assert 1000 <= (queue.stats().oldest_pending_seconds or 0) < 1900
    with queue.process_message() as message:
        current = queue.current_message()
        assert message == "second"
        assert current is not None
        assert current.published_at is not None and record.published_at is not None
        assert record.published_at - current.published_at > timedelta(seconds=900)


def test_tenants_keep_their_turns_and_their_returned_messages(
    rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """A lease that ran out goes first in the turn of its tenant, whatever else has aged."""
    for tenant in ("a", "b"):
        rmq_queue.publish_many([f"{tenant}1", f"{tenant}2"], tenant=tenant)
    rmq_queue.publish("a3", tenant="a", delay_seconds=1000)
    assert claim_and_die(rmq_queue) == "a1"
    fast_forward(301)
    assert take(rmq_queue) == "b1"
    fast_forward(1001)
    assert [take(rmq_queue) for _ in range(4)] == ["a1", "b2", "a2", "a3"]
    assert rmq_queue.stats().pending == rmq_queue.stats().processing == rmq_queue.stats().delayed == 0


@pytest.mark.parametrize("where", [{}, {"tenant": "t"}, {"tenant": "t::pending"}, {"delay_seconds": 900}], ids=str)
def test_a_message_is_older_wherever_it_waits(
    where: dict[str, Any], rmq_queue: RedisMessageQueue, rmq_client: redis.Redis, fast_forward: FastForward
) -> None:
    """In the line, in that of a tenant, whatever the tenant is called, or until its time has come; and only once."""
    rmq_queue.publish("a", **where)
    fast_forward(1000)
    with rmq_queue.process_message():
        current = rmq_queue.current_message()
        assert current is not None and current.published_at is not None
        age = rmq_client.time()[0] - current.published_at.timestamp()
        assert 999 <= age < 1900


def test_deadlines_move_by_just_that_time(
    rmq_queue: RedisMessageQueue, rmq_server: EmbeddedRedis, fast_forward: FastForward
) -> None:
    """Those of leases, of what came back and of delays; alarms that ring since ever stay; whoever waits is rung for."""
    rmq_queue.publish_many(["a", "b", "c"], tenant="t")
    rmq_queue.publish("later", delay_seconds=5000)
    claim_and_die(rmq_queue)
    fast_forward(301)
    claim_and_die(rmq_queue)  # one of them is now among the returned, and was taken from there
    claim_and_die(rmq_queue)
    fast_forward(301)
    claim_and_die(rmq_queue)
    keys = (rmq_queue.key.leases, rmq_queue.key.returned("t"), rmq_queue.key.delayed)
    reader = rmq_server.client()
    before = [dict(reader.zrange(key, 0, -1, withscores=True)) for key in keys]
    reader.delete(rmq_queue.key.bell)
    fast_forward(100)
    after = [dict(reader.zrange(key, 0, -1, withscores=True)) for key in keys]
    assert all(before)
    for old, new in zip(before, after, strict=True):
        assert new == {member: score and score - 100e6 for member, score in old.items()}
    assert reader.llen(rmq_queue.key.bell) == 1
    reader.close()


def test_nothing_changes_but_times(make_rmq_queue: Make, rmq_client: redis.Redis, fast_forward: FastForward) -> None:
    """Every key is there afterwards with as many members; ids, payloads and foreign bytes are as they were."""
    queue = make_rmq_queue(enable_completed_queue=True, journal=True)
    queue.publish_many([f"m{number}" for number in range(2500)])
    queue.publish_many(["t1", "t2"], tenant="t")
    queue.publish("later", delay_seconds=5000)
    rmq_client.rpush(queue.key.pending, "foreign")
    with pytest.raises(Died), queue.process_messages(7):
        raise Died
    take(queue)

    def shape() -> dict[str, int]:
        sizes = {"list": "LLEN", "hash": "HLEN", "zset": "ZCARD", "stream": "XLEN"}
        kinds = {key: rmq_client.type(key) for key in rmq_client.keys("*") if "bell" not in key and "reply" not in key}
        return {key: rmq_client.execute_command(sizes[kind], key) for key, kind in kinds.items() if kind in sizes}

    before, peeked = shape(), [(one.id, one.payload) for one in queue.peek(3000)]
    fast_forward(1)
    assert shape() == before
    assert [(one.id, one.payload) for one in queue.peek(3000)] == peeked


def test_other_keys_of_the_database_expire_too(rmq_client: redis.Redis, fast_forward: FastForward) -> None:
    """A cache of one's own is part of the world; what has no TTL stays."""
    rmq_client.set("short", "1", ex=60)
    rmq_client.set("long", "1", ex=600)
    rmq_client.set("for ever", "1")
    fast_forward(61)
    assert sorted(rmq_client.keys("*")) == ["for ever", "long"]
    assert 0 < rmq_client.ttl("long") <= 539


def test_only_the_named_queues_age(make_rmq_queue: Make, rmq_client: redis.Redis, fast_forward: FastForward) -> None:
    """A queue whose name begins with theirs is another one."""
    named, other = make_rmq_queue("orders"), make_rmq_queue("orders::eu")
    for queue in (named, other):
        queue.publish("a", delay_seconds=60)
    for mine in ("mine", other.key.deduplication("x")):
        rmq_client.set(mine, "1", ex=60)
    fast_forward(61, named)
    assert (take(named), take(other)) == ("a", None)
    assert rmq_client.exists("mine", other.key.deduplication("x")) == 2


@pytest.mark.parametrize("options", [{"key_separator": "/"}, {"hash_tag": True}, {"name": "żółć [*] 🐘"}], ids=str)
def test_a_queue_that_is_named_may_have_any_name(
    options: dict[str, Any], make_rmq_queue: Make, fast_forward: FastForward
) -> None:
    """Tags, separators and signs that a pattern would stumble over."""
    queue = make_rmq_queue(**options)
    queue.publish("a", tenant="t", delay_seconds=60)
    fast_forward(61, queue)
    assert take(queue) == "a"


def test_a_consumer_that_waits_wakes_up(
    make_rmq_queue: Make, rmq_queue: RedisMessageQueue, rmq_client: redis.Redis, fast_forward: FastForward
) -> None:
    """It had gone to sleep until a deadline that is now in the past."""
    waiting = make_rmq_queue(message_wait_interval_seconds=3600)
    rmq_queue.publish("a", delay_seconds=3000)
    got: list[Any] = []
    consumer = threading.Thread(target=lambda: got.append(take(waiting)), daemon=True)
    consumer.start()
    while not rmq_client.info("clients")["blocked_clients"]:
        time.sleep(0.005)
    fast_forward(3001)
    consumer.join(30)
    assert got == ["a"]


def test_a_handler_notices_that_its_lease_is_lost(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """As if its process had been suspended: another consumer gets the message, and its own acknowledgement is stale."""
    events: list[str] = []
    mine = make_rmq_queue(on_event=lambda event: events.append(event.operation), heartbeat_interval_seconds=60)
    other = make_rmq_queue()
    mine.publish("a")
    with mine.process_message():
        current = mine.current_message()
        assert current is not None
        assert not current.lease_lost
        fast_forward(301)
        assert current.lease_lost
        assert take(other) == "a"
    assert "stale_lease_ack" in events


def test_only_the_clock_of_a_named_queue_moves(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """A handler of another queue, with a client of the same server, keeps its lease."""
    named, other = make_rmq_queue("named"), make_rmq_queue("other")
    other.publish("a")
    with other.process_message():
        current = other.current_message()
        fast_forward(301, named)
        assert current is not None
        assert not current.lease_lost


def test_what_is_written_in_a_journal_stays(
    make_rmq_queue: Make, rmq_client: redis.Redis, fast_forward: FastForward
) -> None:
    """It is a history, and its ids are the times of the server."""
    queue = make_rmq_queue(journal=True)
    queue.publish("a")
    written = rmq_client.xrange(queue.key.journal)
    fast_forward(60)
    assert written and rmq_client.xrange(queue.key.journal) == written


def test_an_asyncio_queue_ages_as_well(make_async_rmq_queue: Any, fast_forward: FastForward) -> None:
    """The fixture blocks for a moment, in either colour; the queue may be named."""

    async def main() -> None:
        queue = make_async_rmq_queue()
        assert isinstance(queue, redis_message_queue.asyncio.RedisMessageQueue)
        await queue.publish("a", delay_seconds=60)
        await queue.publish("b", delay_seconds=120)
        got: list[Any] = []
        fast_forward(61, queue)
        assert await queue.process_message_callback(got.append)
        fast_forward(60)
        assert await queue.process_message_callback(got.append)
        assert got == ["a", "b"]

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 4e8, 10**400])
def test_a_span_that_is_none_is_refused(seconds: float, fast_forward: FastForward) -> None:
    """Time does not go back."""
    with pytest.raises(ConfigurationError, match="seconds must be"):
        fast_forward(seconds)


@pytest.mark.parametrize("seconds", ["60", True, None])
def test_a_span_is_a_number(seconds: Any, fast_forward: FastForward) -> None:
    """Of seconds."""
    with pytest.raises(ConfigurationTypeError, match="seconds must be a number"):
        fast_forward(seconds)


def test_what_is_no_queue_is_refused(
    fast_forward: FastForward, async_rmq_client: Any, rmq_queue: RedisMessageQueue
) -> None:
    """The error says what would do."""
    with pytest.raises(ConfigurationTypeError, match="must be queues, not str"):
        fast_forward(60, "orders")
    with pytest.raises(ConfigurationTypeError, match=r"blocking redis\.Redis"):
        fast_forward_by_client(async_rmq_client, 60, rmq_queue)


def test_the_claims_of_a_streaming_query_age_and_the_lease_of_the_query_ends(
    rmq_client: redis.Redis, rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """The messages that were delivered before, and carry their count, as well as the others."""
    rmq_queue.publish_many(["delivered before", "new"])
    assert claim_and_die(rmq_queue) == "delivered before"
    fast_forward(301)
    name = rmq_queue.key.pending.removesuffix("::pending")
    first = Groups(rmq_client, name, "reports", lease_seconds=60)
    first.take_over()
    assert first.gather(10) == 2
    members = first.read(first.seal(), 0, 2)
    fast_forward(61)
    aged = first.read(1, 0, 2)
    assert [Envelope(old).published_at - Envelope(new).published_at for old, new in both(members, aged)] == [61, 61]
    second = Groups(rmq_client, name, "reports")
    second.take_over(patience_seconds=0)
    assert second.epoch == 2


def both(members: list[bytes], aged: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Without their counts, which must be the same."""
    (stored, counts), (older, same) = opened(members), opened(aged)
    assert counts == same == [2, 1]
    return zip(stored, older, strict=True)
