"""Batches survive a crash between any two scripts, belong to one query at a time, and lose or double nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark import consumer_group as module
from redis_message_queue.spark.consumer_group import GroupPart, LeaseRenewal, split_members
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConsumerGroupBusyError,
    ConsumerGroupLostError,
    DataLossError,
)

pytestmark = pytest.mark.topic("Streaming queries in Spark")


QUEUE, GROUP = "orders", "reports"
SOON = 0.2  # the lease of a query, in tests that wait for its end


@pytest.fixture
def queue(client: redis.Redis) -> RedisMessageQueue:
    return RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300)


def options(group: str = GROUP, lease_seconds: float = 10, **more: Any) -> SourceOptions:
    return SourceOptions(url="redis://unused", queue=QUEUE, consumer_group=group, lease_seconds=lease_seconds, **more)


def holding(client: redis.Redis, lease_seconds: float = 60, **rules: Any) -> GroupPart:
    """A query that has acquired its group and recovered what there was."""
    groups = GroupPart(client, options(lease_seconds=lease_seconds, **{"max_delivery_count": None} | rules))
    groups.acquire_group()
    groups.recover()
    groups.seal_batch()
    return groups


def payloads(groups: GroupPart, number: int) -> list[str]:
    """Of one batch, in their order."""
    stored, _ = split_members(groups.read_batch(number, 0, groups.batch_size(number) or 0))
    return [Envelope(one).payload.decode() for one in stored]


def delivery_counts(groups: GroupPart, number: int) -> list[int]:
    return split_members(groups.read_batch(number, 0, groups.batch_size(number) or 0))[1]


def numbered(count: int, word: str = "message") -> list[str]:
    return [f"{word} {place}" for place in range(count)]


def drained(queue: RedisMessageQueue, count: int = 1_000) -> list[str]:
    """What a consumer of the queue gets now."""
    with queue.process_messages(count, wait_seconds=0) as batch:
        return [one.payload.decode() for one in batch]


# A batch


def test_large_messages_are_read_in_small_pages(queue, client):
    """A page of thousands of them would block the server and fill the memory of the executor."""
    sizes = [100] * 200 + [1_000_000] * 20
    queue.publish_many(["x" * size for size in sizes])
    groups = holding(client)
    assert groups.fill_batch(1_000) == len(sizes)
    number = groups.seal_batch()
    pages = list(groups.read_pages(number, 2, len(sizes) - 1))
    stored, _ = split_members([one for page in pages for one in page])
    assert [len(Envelope(one).payload) for one in stored] == sizes[2:-1]
    assert max(sum(map(len, page)) for page in pages) <= 4_000_000


@pytest.mark.promise("A streaming query logs each message that becomes a dead letter, as a consumer does.")
def test_dead_letters_of_a_batch_are_logged(queue, client, caplog):
    queue.publish("old")
    client.rpush(queue.key.pending, b"foreign", b"foreign too")
    groups = holding(client, message_ttl_seconds=0.000_001, max_dead_letter_length=2)
    assert groups.fill_batch(10) == 0
    (letter,) = [one for one in queue.records("dead_letters") if one.id]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "orders: message (foreign) went to the dead letters (foreign)",
        "orders: message (foreign) went to the dead letters (foreign)",
        f"orders: message {letter.id} went to the dead letters (expired)",
        "orders: the dead-letter list is full, so its 1 oldest messages were deleted; max_dead_letter_length sets how "
        "many it keeps, None for all",
    ]


def test_a_batch_is_filled_sealed_read_and_acked(queue, client):
    queue.publish_many(numbered(30))
    groups = holding(client)
    assert groups.fill_batch(20) == 20
    assert groups.seal_batch() == 1
    assert payloads(groups, 1) == payloads(groups, 1) == numbered(30)[:20]
    assert (queue.stats().pending, queue.stats().processing) == (10, 20)
    groups.ack_batch(1)
    assert groups.batch_size(1) is None
    assert (queue.stats().pending, queue.stats().processing) == (10, 0)


def test_an_empty_batch_is_not_sealed(queue, client):
    groups = holding(client)
    assert groups.fill_batch(20) == 0
    assert groups.seal_batch() == 0


@pytest.mark.promise("A streaming query claims nothing from a paused queue, and goes on when it is resumed.")
def test_a_paused_queue_gives_a_query_nothing(queue, client):
    groups = holding(client)
    queue.publish_many(numbered(3))
    queue.pause()
    assert groups.fill_batch(10) == 0
    queue.resume()
    assert groups.fill_batch(10) == 3


def test_a_request_that_arrives_twice_does_not_keep_its_batch_open(queue, client):
    """The first one found nothing; the second one filled the batch when its answer was no longer awaited."""
    groups = holding(client)
    assert groups.fill_batch(3) == 0
    queue.publish_many(numbered(3))
    groups._send(groups._fill, groups.epoch, groups.sealed + 1, 1, 3, batch=groups.sealed + 1)
    assert (groups.fill_batch(3), groups.seal_batch()) == (3, 1)
    assert payloads(groups, 1) == numbered(3)


def test_numbers_go_on_after_everything_is_gone(queue, client):
    groups = holding(client)
    for number in (1, 2, 3):
        queue.publish("message")
        groups.fill_batch(10)
        assert groups.seal_batch() == number
        groups.ack_batch(number)
    assert groups.state()[1:4] == (3, 3, 3)


def test_several_batches_are_acked_at_once(queue, client):
    groups = holding(client)
    for _ in range(3):
        queue.publish_many(numbered(5))
        groups.fill_batch(10)
        groups.seal_batch()
    groups.ack_batch(2)
    assert [groups.batch_size(number) for number in (1, 2, 3)] == [None, None, 5]
    assert queue.stats().processing == 5


def test_a_hundred_thousand_messages_are_moved_in_bounded_scripts(client):
    """No script runs longer than a tenth of all of them together: the server answers others in between."""
    queue = RedisMessageQueue(QUEUE, client=client)
    queue.publish_many(numbered(100_000))
    groups = holding(client)
    client.config_resetstat()
    assert groups.fill_batch(100_000) == 100_000
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] >= 100_000 // module.MESSAGES_A_SCRIPT
    groups.seal_batch()
    assert payloads(groups, 1) == numbered(100_000)
    groups.ack_batch(1)
    assert queue.stats().processing == 0
    assert not client.exists(queue.key.members(GROUP, 1))


def test_messages_that_were_delivered_before_are_filled_in_and_acked_a_thousand_at_a_time(queue, client):
    queue.publish_many(numbered(2_500))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), queue.process_messages(1_000, wait_seconds=0):
            raise ZeroDivisionError
    groups = holding(client)
    assert groups.fill_batch(2_500) == 2_500
    groups.seal_batch()
    assert payloads(groups, 1) == numbered(2_500)
    assert delivery_counts(groups, 1) == [4] * 1_000 + [1] * 1_500
    groups.ack_batch(1)
    assert not client.exists(queue.key.deliveries, queue.key.members(GROUP, 1))


# Crashes: every call can be the last one of its query, with its answer or without


class Crash(Exception):
    """The query is gone."""


class Mortal(GroupPart):
    """Dies at its n-th script: before it is sent, or before the answer arrives."""

    left = 10**9
    answered = False

    def _send(self, command: Any, *arguments: Any, **batch: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.answered:
            raise Crash
        answer = super()._send(command, *arguments, **batch)
        if self.left == 0:
            raise Crash
        return answer


class Log:
    """What Spark has on its disk: the last offset that it has written down, and the last batch that is done."""

    def __init__(self) -> None:
        self.offset = self.done = 0
        self.sink: dict[int, list[str]] = {}

    def write(self, batch: int, rows: list[str]) -> None:
        assert self.sink.setdefault(batch, rows) == rows, "a replay differs from the batch before"


def run(groups: GroupPart, spark: Log, limit: int) -> None:
    """A query as Spark runs it, until there is nothing left: see `source.py` for the calls."""
    groups.acquire_group()
    groups.recover()
    groups.seal_batch()
    while True:
        if spark.offset > spark.done:
            groups.ack_batch(spark.done)
            spark.write(spark.offset, payloads(groups, spark.offset))
            spark.done = spark.offset
        groups.ack_batch(spark.done)
        if groups.sealed == spark.done:
            groups.fill_batch(limit)
            if groups.seal_batch() == spark.done:
                return
        spark.offset = spark.done + 1


def prepare_plain(queue: RedisMessageQueue, client: redis.Redis) -> list[str]:
    queue.publish_many(numbered(25))
    return numbered(25)


def prepare_all_kinds(queue: RedisMessageQueue, client: redis.Redis) -> list[str]:
    """Tenants, what is due, what came back."""
    queue.publish_many(numbered(3, "requeued"))
    with pytest.raises(ZeroDivisionError), queue.process_messages(3, wait_seconds=0):
        raise ZeroDivisionError
    queue.publish_many(numbered(6, "acme"), tenant="acme")
    queue.publish_many(numbered(6, "zeta"), tenant="zeta")
    queue.publish_many(numbered(6, "plain"))
    queue.publish("due", delay_seconds=0.001)
    return [*numbered(3, "requeued"), *numbered(6, "acme"), *numbered(6, "zeta"), *numbered(6, "plain"), "due"]


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "reply lost"])
@pytest.mark.parametrize("prepare", [prepare_plain, prepare_all_kinds])
def test_a_crash_at_any_script_loses_and_doubles_nothing(prepare: Callable[..., list[str]], answered, client):
    """Each run is killed one script later than the one before, until one comes through."""
    for steps in itertools.count(1):
        client.flushall()
        queue = RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300)
        expected = sorted(prepare(queue, client))
        spark, whole = Log(), False
        for _ in range(2):
            groups = Mortal(client, options(lease_seconds=0.001))
            groups.left, groups.answered = steps, answered
            try:
                run(groups, spark, 10)
                whole = True
            except Crash:
                continue
        run(GroupPart(client, options(lease_seconds=0.001)), spark, 10)
        assert sorted(itertools.chain(*spark.sink.values())) == expected
        assert queue.stats().processing == queue.stats().pending == 0
        assert not client.exists(queue.key.deliveries)
        if whole:
            return


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "reply lost"])
def test_a_release_that_was_interrupted_is_finished_by_the_next_query(answered, client):
    for steps in itertools.count(1):
        client.flushall()
        queue = RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300)
        queue.publish_many(numbered(2_600))
        groups = Mortal(client, options(lease_seconds=0.001))
        groups.acquire_group()
        for _ in range(2):
            groups.fill_batch(1_300)
            groups.seal_batch()
        groups.left, groups.answered = steps, answered
        begun = True
        try:
            groups.release_batches()
            whole = True
        except Crash:
            whole, begun = False, bool(groups.state().releasing)
        after = holding(client, 0.001)
        if not begun and not whole and after.state().acked == 0:
            after.release_batches()
        assert queue.stats().processing == 0
        assert list(itertools.chain(*(drained(queue) for _ in range(3)))) == numbered(2_600)
        if whole:
            return


def test_a_script_whose_reply_was_lost_is_sent_again_and_counts_once(queue, client):
    """Every call is sent twice here, as a client does that hears nothing."""

    class Twice(GroupPart):
        def _send(self, command: Any, *arguments: Any, **batch: Any) -> Any:
            super()._send(command, *arguments, **batch)
            return super()._send(command, *arguments, **batch)

    expected = prepare_all_kinds(queue, client)
    spark = Log()
    run(Twice(client, options(lease_seconds=0.001)), spark, 7)
    assert sorted(itertools.chain(*spark.sink.values())) == sorted(expected)


@pytest.mark.promise("The next run adopts a claim that never reached Spark's offset log.")
def test_a_batch_that_was_filled_but_not_sealed_is_sealed_by_the_next_query(queue, client):
    queue.publish_many(numbered(10))
    holding(client, 0.001).fill_batch(5)
    groups = holding(client)
    assert groups.sealed == 1
    assert payloads(groups, 1) == numbered(10)[:5]


def test_a_server_that_is_killed_and_restarted_from_its_log_goes_on_where_it_was(start_server, tmp_path):
    """Between any two steps of a query, and while it calls: the calls wait and are sent again."""
    durable = start_server(directory=tmp_path, append_only=True, config={"appendfsync": "always"})
    with durable.client() as client:
        queue = RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300)
        queue.publish_many(numbered(50))
        groups, seen = holding(client), []
        for number in range(1, 6):
            durable.kill()
            back = threading.Timer(0.2, durable.restart)
            back.start()
            groups.fill_batch(10)
            back.join()
            durable.restart()
            assert groups.seal_batch() == number
            durable.restart()
            seen += payloads(groups, number)
            groups.ack_batch(number)
        assert seen == numbered(50)
        assert queue.stats().processing == 0


def test_a_query_and_consumers_share_a_queue_and_each_message_goes_to_one(queue, client, server):
    queue.publish_many(numbered(3_000))
    queue.publish_many(numbered(500, "acme"), tenant="acme")
    handled: list[str] = []

    def consume() -> None:
        with server.client() as own:
            mine = RedisMessageQueue(QUEUE, client=own, visibility_timeout_seconds=300)
            while batch := drained(mine, 20):
                handled.extend(batch)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    spark = Log()
    run(GroupPart(client, options()), spark, 100)
    for consumer in consumers:
        consumer.join()
    assert handled, "the query took everything"
    assert sorted([*handled, *itertools.chain(*spark.sink.values())]) == sorted(
        [*numbered(3_000), *numbered(500, "acme")]
    )


# Leases


@pytest.mark.promise("One query at a time owns a consumer group, and a replaced query can change nothing.")
def test_a_query_that_lost_its_group_can_do_nothing_any_more(queue, client):
    queue.publish_many(numbered(10))
    old = holding(client, 0.001)
    old.fill_batch(5)
    new = holding(client)
    acts: list[Callable[[], Any]] = [
        lambda: old.fill_batch(9),
        old.seal_batch,
        lambda: old.ack_batch(1),
        old.release_batches,
        old.renew_lease,
    ]
    for act in acts:
        with pytest.raises(
            ConsumerGroupLostError, match=r"another query has acquired consumer group 'reports' of queue"
        ):
            act()
    assert payloads(new, 1) == numbered(10)[:5]
    assert queue.stats().pending == 5


def test_a_start_waits_for_the_end_of_the_lease_of_a_query_that_died(queue, client):
    holding(client, SOON)
    assert holding(client, SOON).epoch == 2


def test_a_start_waits_for_the_end_of_a_longer_lease_too(queue, client):
    holding(client, 10 * SOON)
    assert holding(client, 0.001).epoch == 2


def test_a_start_beside_a_running_query_is_an_error(queue, client):
    first = holding(client, 3)  # long enough for a renewal that a busy machine delays
    renewal = LeaseRenewal(first)
    try:
        with pytest.raises(ConsumerGroupBusyError, match="another running query holds consumer group"):
            GroupPart(client, options()).acquire_group(timeout_seconds=4)
        assert renewal.lost is None
        first.fill_batch(1)
    finally:
        renewal.stop()


def test_the_next_query_does_not_wait_for_a_released_lease(queue, client):
    holding(client, 3_600).release_lease()
    assert holding(client).epoch == 2


def test_the_renewal_notices_when_the_group_is_lost(queue, client):
    old = holding(client, SOON)
    client.hset(queue.key.group(GROUP), mapping={"epoch": 7, "holder": "another"})
    renewal = LeaseRenewal(old)
    renewal._thread.join(timeout=120)
    assert isinstance(renewal.lost, ConsumerGroupLostError)


@pytest.mark.promise("A query whose consumer group is gone from Redis says that data is lost.")
def test_a_renewal_does_not_hide_that_the_group_is_gone(queue, client):
    """Not even in the first epoch, where the group looks as if nobody had held it yet."""
    old = holding(client)
    client.flushall()
    for act in (old.renew_lease, lambda: old.fill_batch(1), old.seal_batch, lambda: old.ack_batch(1)):
        with pytest.raises(DataLossError, match="is gone from Redis"):
            act()
    assert not client.exists(queue.key.group(GROUP))


@pytest.mark.promise("One query at a time owns a consumer group, and a replaced query can change nothing.")
def test_a_query_from_before_a_flush_does_not_touch_the_batch_of_the_next_one(queue, client):
    """Both are in the first epoch, and both have a first batch."""
    queue.publish_many(numbered(3))
    old = holding(client)
    old.fill_batch(3)
    old.seal_batch()
    client.flushall()
    queue.publish_many(numbered(5))
    new = holding(client)
    new.fill_batch(5)
    new.seal_batch()
    for act in (lambda: old.ack_batch(1), old.release_batches, old.renew_lease, lambda: old.fill_batch(1)):
        with pytest.raises(DataLossError, match="is gone from Redis"):
            act()
    assert (new.epoch, payloads(new, 1)) == (1, numbered(5))
    new.ack_batch(1)


@pytest.mark.promise("One query at a time owns a consumer group, and a replaced query can change nothing.")
def test_of_many_queries_at_once_one_holds_the_group(queue, client, server):
    """The others say so, and epochs are given once."""
    queue.publish_many(numbered(1_000))
    epochs: list[int] = []
    busy: list[Exception] = []

    def start() -> None:
        with server.client() as own:
            groups = GroupPart(own, options(lease_seconds=3_600))
            try:
                groups.acquire_group(timeout_seconds=0)
                epochs.append(groups.epoch)
            except ConsumerGroupBusyError as error:
                busy.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (epochs, len(busy)) == ([1], 7)


def test_two_groups_share_the_messages(queue, client):
    queue.publish_many(numbered(10))
    one, other = holding(client), GroupPart(client, options("others"))
    other.acquire_group()
    one.fill_batch(4)
    other.fill_batch(100)
    assert (one.seal_batch(), other.seal_batch()) == (1, 1)
    assert payloads(one, 1) + payloads(other, 1) == numbered(10)
    assert queue.stats().processing == 10
    one.ack_batch(1)
    assert queue.stats().processing == 6


# Tenants, delays, TTL, dead letters


def test_tenants_take_turns_and_keep_their_order(queue, client):
    queue.publish_many(numbered(50, "acme"), tenant="acme")
    queue.publish_many(numbered(3, "zeta"), tenant="zeta")
    groups = holding(client)
    groups.fill_batch(6)
    groups.seal_batch()
    assert sorted(payloads(groups, 1)) == sorted([*numbered(3, "acme"), *numbered(3, "zeta")])
    assert queue.stats().pending == 47


def test_what_is_not_due_is_left_alone(queue, client):
    queue.publish("later", delay_seconds=3_600)
    queue.publish("now")
    groups = holding(client)
    assert (groups.depth(), groups.fill_batch(10)) == (1, 1)
    assert queue.stats().delayed == 1


def test_what_is_too_old_goes_to_the_dead_letters(queue, client):
    queue.publish_many(numbered(1_200))
    groups = holding(client, message_ttl_seconds=0.000001)
    assert groups.fill_batch(10) == 0
    assert queue.stats().dead_letters == 1_200


def test_what_was_delivered_too_often_goes_to_the_dead_letters_on_the_way(queue, client):
    queue.publish("poison")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), queue.process_messages(1, wait_seconds=0):
            raise ZeroDivisionError
    queue.publish("good")
    groups = holding(client, max_delivery_count=2)
    groups.fill_batch(10)
    groups.seal_batch()
    assert payloads(groups, 1) == ["good"]
    assert queue.stats().dead_letters == 1


def test_a_message_of_a_consumer_that_died_keeps_its_count_and_is_delivered_to_nobody_else(client):
    short = RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=0.05)
    short.publish("held by one who died")
    consumer = short.process_messages(1, wait_seconds=0)
    consumer.__enter__()
    client.zadd(short.key.leases, {client.zrange(short.key.leases, 0, 0)[0]: 1})
    groups = holding(client)
    assert groups.depth() == 1
    groups.fill_batch(10)
    groups.seal_batch()
    assert delivery_counts(groups, 1) == [2]
    assert short.stats().processing == 1
    assert drained(short) == []
    consumer.__exit__(None, None, None)
    assert payloads(groups, 1) == ["held by one who died"]


def test_the_delivery_count_is_the_same_in_every_replay(queue, client):
    prepare_all_kinds(queue, client)
    first = holding(client, 0.001)
    first.fill_batch(100)
    first.seal_batch()
    before = (payloads(first, 1), delivery_counts(first, 1))
    after = holding(client)
    assert (payloads(after, 1), delivery_counts(after, 1)) == before
    assert sorted(set(before[1])) == [1, 2]


# Release


def test_what_is_released_is_delivered_first_and_in_its_order(queue, client):
    queue.publish_many(numbered(2_500))
    groups = holding(client)
    groups.fill_batch(1_200)
    groups.seal_batch()
    groups.fill_batch(900)
    assert groups.release_batches() == 2_100
    assert list(itertools.chain(*(drained(queue) for _ in range(3)))) == numbered(2_500)
    assert queue.stats().processing == 0


def test_what_is_handled_is_not_released(queue, client):
    queue.publish_many(numbered(10))
    groups = holding(client)
    groups.fill_batch(5)
    groups.seal_batch()
    groups.ack_batch(1)
    groups.fill_batch(5)
    assert groups.release_batches() == 5
    assert groups.release_batches() == 0
    assert drained(queue) == numbered(10)[5:]


def test_a_group_goes_on_after_a_release(queue, client):
    queue.publish_many(numbered(4))
    groups = holding(client)
    groups.fill_batch(2)
    groups.release_batches()
    groups.fill_batch(10)
    assert groups.seal_batch() == 2
    assert payloads(groups, 2) == numbered(4)
    assert delivery_counts(groups, 2) == [2, 2, 1, 1]


# Lost batches


def test_batches_that_redis_has_lost_are_skipped_and_nothing_else_is(queue, client):
    queue.publish_many(numbered(4))
    groups = holding(client)
    groups.fill_batch(2)
    groups.skip_to(7)
    groups.fill_batch(10)
    assert groups.seal_batch() == 8
    assert payloads(groups, 8) == numbered(4)


# Full memory


@pytest.fixture
def full(server_setting) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(binary=server_setting, config={"maxmemory-policy": "noeviction"}) as started:
        yield started


def test_a_server_without_memory_is_drained_by_a_query(full):
    """It goes on claiming and acknowledging, also after another one has taken the group over."""
    with full.client() as client:
        queue = RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300)
        queue.publish_many(numbered(10))
        groups = holding(client, 0.001)
        groups.fill_batch(5)
        client.config_set("maxmemory", 1)
        assert groups.fill_batch(7) == 7
        after = holding(client)
        assert payloads(after, 1) == numbered(10)[:7]
        after.ack_batch(1)
        assert after.fill_batch(10) == 3
        assert after.seal_batch() == 2
        assert payloads(after, 2) == numbered(10)[7:]
        after.ack_batch(2)
        client.config_set("maxmemory", 0)


# What is wrong


@pytest.mark.parametrize("name", ["", "a::b"])
def test_a_name_that_would_make_two_groups_one_is_refused(name):
    with pytest.raises(ConfigurationError, match="must not"):
        options(name)
