"""`fast_forward` moves every time that a queue has stored into the past, and changes nothing else."""

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
from redis_message_queue.spark.consumer_group import GroupPart, split_members
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.stored.keys import KEY_MAP
from redis_message_queue.testing import fast_forward as fast_forward_by_client
from redis_message_queue.testing.fast_forward import AGEING

pytestmark = pytest.mark.topic("Testing")


Make = Callable[..., RedisMessageQueue]
FastForward = Callable[..., None]


class Died(BaseException):
    """Ends a consumer as a crash does."""


def claim_and_die(queue: RedisMessageQueue) -> Any:
    taken = []
    with pytest.raises(Died), queue.process_message() as message:
        taken.append(message)
        raise Died
    return taken[0]


def take(queue: RedisMessageQueue) -> Any:
    with queue.process_message() as message:
        return message


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
def test_every_key_of_the_key_map_has_a_way_to_age() -> None:
    """A new key needs an entry that says where it stores times."""
    words = {kind.word.split("::")[0] + "::" * ("::" in kind.word) for kind in KEY_MAP}
    assert set(AGEING) == words


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_a_lease_is_over_when_its_time_has_passed_and_not_before(
    rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """Two calls add up."""
    rmq_queue.publish("a")
    assert claim_and_die(rmq_queue) == "a"
    fast_forward(200)
    assert take(rmq_queue) is None
    fast_forward(101)
    assert take(rmq_queue) == "a"


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_leases_that_end_together_come_back_in_their_order(
    rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """Also if they were claimed together."""
    rmq_queue.publish_many(str(number) for number in range(50))
    with pytest.raises(Died), rmq_queue.process_messages(50):
        raise Died
    fast_forward(10 * 365 * 86_400)
    assert [take(rmq_queue) for _ in range(50)] == [str(number) for number in range(50)]


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_a_delay_is_over_when_its_time_has_passed(rmq_queue: RedisMessageQueue, fast_forward: FastForward) -> None:
    """Only the messages that are due are delivered."""
    rmq_queue.publish("tomorrow", delay_seconds=86_400)
    rmq_queue.publish("in a week", delay_seconds=7 * 86_400)
    assert take(rmq_queue) is None
    fast_forward(86_401)
    assert take(rmq_queue) == "tomorrow"
    assert take(rmq_queue) is None
    assert rmq_queue.stats().delayed == 1


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_the_pause_before_a_retry_is_over(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """The message is retried without waiting."""
    queue = make_rmq_queue(retry_policy=RetryPolicy(max_attempts=3, initial_delay_seconds=3600, jitter=0))
    queue.publish("a")
    with pytest.raises(ZeroDivisionError), queue.process_message():
        raise ZeroDivisionError
    assert take(queue) is None
    fast_forward(3601)
    assert take(queue) == "a"


@pytest.mark.promise("`fast_forward` ends deduplication windows and shortens every other TTL of the database.")
def test_a_deduplication_window_closes(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """After the window, and not before, the same message is accepted again."""
    queue = make_rmq_queue(deduplication=True)
    assert queue.publish("a")
    fast_forward(3500)
    assert not queue.publish("a")
    fast_forward(101)
    assert queue.publish("a")


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
def test_a_message_can_exceed_its_time_to_live(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """A message that waited longer than message_ttl_seconds becomes a dead letter."""
    queue = make_rmq_queue(message_ttl_seconds=600)
    queue.publish("a")
    fast_forward(601)
    assert take(queue) is None
    assert [record.reason for record in queue.records("dead_letters")] == ["expired"]


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
def test_messages_and_records_say_that_they_are_older(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """published_at, the age of the oldest message, and every time in a record; the text of an error stays as it is."""
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


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_tenants_keep_their_turns_and_their_expired_messages(
    rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """A message whose lease expired comes first in the turn of its tenant."""
    for tenant in ("a", "b"):
        rmq_queue.publish_many([f"{tenant}1", f"{tenant}2"], tenant=tenant)
    rmq_queue.publish("a3", tenant="a", delay_seconds=1000)
    assert claim_and_die(rmq_queue) == "a1"
    fast_forward(301)
    assert take(rmq_queue) == "b1"
    fast_forward(1001)
    assert [take(rmq_queue) for _ in range(4)] == ["a1", "b2", "a2", "a3"]
    assert rmq_queue.stats().pending == rmq_queue.stats().processing == rmq_queue.stats().delayed == 0


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
@pytest.mark.parametrize("where", [{}, {"tenant": "t"}, {"tenant": "t::pending"}, {"delay_seconds": 900}], ids=str)
def test_a_message_is_older_wherever_it_waits(
    where: dict[str, Any], rmq_queue: RedisMessageQueue, rmq_client: redis.Redis, fast_forward: FastForward
) -> None:
    """Pending, pending for a tenant of any name, or delayed; and it ages only once."""
    rmq_queue.publish("a", **where)
    fast_forward(1000)
    with rmq_queue.process_message():
        current = rmq_queue.current_message()
        assert current is not None and current.published_at is not None
        age = rmq_client.time()[0] - current.published_at.timestamp()
        assert 999 <= age < 1900


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
def test_deadlines_move_by_just_that_time(
    rmq_queue: RedisMessageQueue, rmq_server: EmbeddedRedis, fast_forward: FastForward
) -> None:
    """The deadlines of leases, expired messages and delays; a score of 0 stays; a waiting consumer is woken."""
    rmq_queue.publish_many(["a", "b", "c"], tenant="t")
    rmq_queue.publish("later", delay_seconds=5000)
    claim_and_die(rmq_queue)
    fast_forward(301)
    claim_and_die(rmq_queue)  # one of them had expired, and was claimed again
    claim_and_die(rmq_queue)
    fast_forward(301)
    claim_and_die(rmq_queue)
    keys = (rmq_queue.key.leases, rmq_queue.key.expired("t"), rmq_queue.key.delayed)
    reader: Any = rmq_server.client()  # whose replies have many types
    before = [dict(reader.zrange(key, 0, -1, withscores=True)) for key in keys]
    reader.delete(rmq_queue.key.wakeup)
    fast_forward(100)
    after = [dict(reader.zrange(key, 0, -1, withscores=True)) for key in keys]
    assert all(before)
    for old, new in zip(before, after, strict=True):
        assert new == {member: score and score - 100e6 for member, score in old.items()}
    assert reader.llen(rmq_queue.key.wakeup) == 1
    reader.close()


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
def test_nothing_changes_but_times(make_rmq_queue: Make, rmq_client: redis.Redis, fast_forward: FastForward) -> None:
    """Every key still has as many members; ids, payloads and foreign bytes are the same."""
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
        reader: Any = rmq_client  # whose replies have many types
        kinds = {key: reader.type(key) for key in reader.keys("*") if "wakeup" not in key and "reply" not in key}
        return {key: reader.execute_command(sizes[kind], key) for key, kind in kinds.items() if kind in sizes}

    before, peeked = shape(), [(one.id, one.payload) for one in queue.peek(3000)]
    fast_forward(1)
    assert shape() == before
    assert [(one.id, one.payload) for one in queue.peek(3000)] == peeked


@pytest.mark.promise("`fast_forward` ends deduplication windows and shortens every other TTL of the database.")
def test_other_keys_of_the_database_expire_too(rmq_client: redis.Redis, fast_forward: FastForward) -> None:
    """Your own cache expires as well; a key without a TTL stays."""
    rmq_client.set("short", "1", ex=60)
    rmq_client.set("long", "1", ex=600)
    rmq_client.set("for ever", "1")
    fast_forward(61)
    assert sorted(rmq_client.keys("*")) == ["for ever", "long"]
    assert 0 < rmq_client.ttl("long") <= 539


@pytest.mark.promise("`fast_forward` with named queues affects only these, whatever their names and separators.")
def test_only_the_named_queues_age(make_rmq_queue: Make, rmq_client: redis.Redis, fast_forward: FastForward) -> None:
    """A queue whose name begins with theirs does not age."""
    named, other = make_rmq_queue("orders"), make_rmq_queue("orders::eu")
    for queue in (named, other):
        queue.publish("a", delay_seconds=60)
    for mine in ("mine", other.key.deduplication("x")):
        rmq_client.set(mine, "1", ex=60)
    fast_forward(61, named)
    assert (take(named), take(other)) == ("a", None)
    assert rmq_client.exists("mine", other.key.deduplication("x")) == 2


@pytest.mark.promise("`fast_forward` with named queues affects only these, whatever their names and separators.")
@pytest.mark.parametrize("options", [{"key_separator": "/"}, {"hash_tag": True}, {"name": "żółć [*] 🐘"}], ids=str)
def test_a_queue_that_is_named_may_have_any_name(
    options: dict[str, Any], make_rmq_queue: Make, fast_forward: FastForward
) -> None:
    """With hash tags, other separators, and characters that are special in a pattern."""
    queue = make_rmq_queue(**options)
    queue.publish("a", tenant="t", delay_seconds=60)
    fast_forward(61, queue)
    assert take(queue) == "a"


@pytest.mark.promise("`fast_forward` wakes waiting consumers, and a handler sees that its lease is lost.")
def test_a_consumer_that_waits_wakes_up(
    make_rmq_queue: Make, rmq_queue: RedisMessageQueue, rmq_client: redis.Redis, fast_forward: FastForward
) -> None:
    """It slept until a deadline that is now in the past."""
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


@pytest.mark.promise("`fast_forward` wakes waiting consumers, and a handler sees that its lease is lost.")
def test_a_handler_notices_that_its_lease_is_lost(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """As if its process had been suspended: another consumer gets the message, and its acknowledgement is stale."""
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


@pytest.mark.promise("`fast_forward` with named queues affects only these, whatever their names and separators.")
def test_only_the_clock_of_a_named_queue_moves(make_rmq_queue: Make, fast_forward: FastForward) -> None:
    """A handler of another queue, with a client of the same server, keeps its lease."""
    named, other = make_rmq_queue("named"), make_rmq_queue("other")
    other.publish("a")
    with other.process_message():
        current = other.current_message()
        fast_forward(301, named)
        assert current is not None
        assert not current.lease_lost


@pytest.mark.promise("`fast_forward` makes messages and records older and changes nothing else.")
def test_journal_entries_keep_their_times(
    make_rmq_queue: Make, rmq_client: redis.Redis, fast_forward: FastForward
) -> None:
    """The journal is a history, and its ids are times of the server."""
    queue = make_rmq_queue(journal=True)
    queue.publish("a")
    written = rmq_client.xrange(queue.key.journal)
    fast_forward(60)
    assert written and rmq_client.xrange(queue.key.journal) == written


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_an_asyncio_queue_ages_as_well(make_async_rmq_queue: Any, fast_forward: FastForward) -> None:
    """The fixture is a plain function for both kinds of queues."""

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


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 4e8, 10**400])
def test_invalid_seconds_are_refused(seconds: float, fast_forward: FastForward) -> None:
    """Time does not go back."""
    with pytest.raises(ConfigurationError, match="seconds must be"):
        fast_forward(seconds)


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
@pytest.mark.parametrize("seconds", ["60", True, None])
def test_seconds_must_be_a_number(seconds: Any, fast_forward: FastForward) -> None:
    """Text, booleans and None are refused."""
    with pytest.raises(ConfigurationTypeError, match="seconds must be a number"):
        fast_forward(seconds)


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
def test_what_is_no_queue_is_refused(
    fast_forward: FastForward, async_rmq_client: Any, rmq_queue: RedisMessageQueue
) -> None:
    """The error says what works."""
    with pytest.raises(ConfigurationTypeError, match="must be queues, not str"):
        fast_forward(60, "orders")
    with pytest.raises(ConfigurationTypeError, match=r"sync redis\.Redis"):
        fast_forward_by_client(async_rmq_client, 60, rmq_queue)


@pytest.mark.promise("`fast_forward` ends leases, delays and retry delays, but not early.")
def test_the_claims_of_a_streaming_query_age_and_the_lease_of_the_query_ends(
    rmq_client: redis.Redis, rmq_queue: RedisMessageQueue, fast_forward: FastForward
) -> None:
    """Messages that were delivered before, and carry their count, age like the others."""
    rmq_queue.publish_many(["delivered before", "new"])
    assert claim_and_die(rmq_queue) == "delivered before"
    fast_forward(301)
    name = rmq_queue.key.pending.removesuffix("::pending")
    options = SourceOptions(url="redis://unused", queue=name, consumer_group="reports", lease_seconds=60)
    first = GroupPart(rmq_client, options)
    first.acquire_group()
    assert first.fill_batch(10) == 2
    members = first.read_batch(first.seal_batch(), 0, 2)
    fast_forward(61)
    aged = first.read_batch(1, 0, 2)
    assert [Envelope(old).published_at - Envelope(new).published_at for old, new in both(members, aged)] == [61, 61]
    second = GroupPart(rmq_client, options)
    second.acquire_group(timeout_seconds=0)
    assert second.epoch == 2


def both(members: list[bytes], aged: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Without their counts, which must be the same."""
    (stored, counts), (older, same) = split_members(members), split_members(aged)
    assert counts == same == [2, 1]
    return zip(stored, older, strict=True)
