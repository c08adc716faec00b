"""A query reads all partitions of a queue, and every message once, whatever crashes between two steps."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from redis_message_queue import PartitionCountError, RedisMessageQueue
from redis_message_queue.spark import consumer_group
from redis_message_queue.spark.connection import Partition, RedisReader
from redis_message_queue.spark.consumer_group import GroupPart
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.spark.source import BatchSlice, QueueStreamReader
from redis_message_queue.values.errors import ConfigurationError, ConsumerGroupBusyError, DataLossError
from tests.concurrency import beside, until
from tests.pipeline.test_source import GROUP, QUEUE, Readers, reader, rows

pytestmark = pytest.mark.topic("Streaming queries in Spark")

__all__ = ["reader"]  # a fixture

TEN, ALL = ReadMaxRows(10), ReadAllAvailable()


@pytest.fixture
def queue(client: redis.Redis) -> RedisMessageQueue:
    return RedisMessageQueue(QUEUE, client=client, partitions=3, visibility_timeout_seconds=300)


def publish(queue: RedisMessageQueue, *counts: int) -> None:
    """So many messages into each partition."""
    for number, count in enumerate(counts):
        queue.partition(number).publish_many([f"{number}.{place}" for place in range(count)])


# The reader without Spark: the calls that Spark makes, in its order


@pytest.mark.promise("A query reads all partitions of a queue, each with a task of its own, and acks what it has read.")
def test_a_micro_batch_has_a_batch_of_each_partition_and_a_task_for_each(queue, reader):
    publish(queue, 4, 5, 0)
    one = reader()
    assert one.initialOffset() == {"batches": [0, 0, 0]}
    end = one.latestOffset({"batches": [0, 0, 0]}, ALL)
    assert end == {"batches": [1, 1, 0]}
    parts = one.partitions({"batches": [0, 0, 0]}, end)
    assert parts == [BatchSlice(1, 0, 4, Partition(0, 3)), BatchSlice(1, 0, 5, Partition(1, 3))]
    assert Counter(rows(one, {"batches": [0, 0, 0]}, end)) == Counter(
        [*(f"0.{place}" for place in range(4)), *(f"1.{place}" for place in range(5))]
    )
    assert queue.stats().processing == 9
    one.commit(end)
    one.commit(end)
    assert queue.stats().processing == 0
    publish(queue, 0, 0, 2)
    assert one.latestOffset(end, TEN) == {"batches": [1, 1, 1]}


def test_without_anything_new_the_offset_stays_as_spark_knows_it(queue, reader):
    """Another text would be new data to Spark: an empty batch, again and again."""
    publish(queue, 1, 1, 1)
    one = reader()
    end = one.latestOffset({"batches": [0, 0, 0]}, TEN)
    assert one.latestOffset(end, TEN) is end


@pytest.mark.promise("A small micro-batch takes from each partition in turn.")
def test_a_small_batch_takes_from_each_partition_in_turn_and_a_large_one_what_there_is(queue, reader):
    publish(queue, 30, 2, 30)
    one, end = reader(), {"batches": [0, 0, 0]}
    for taken in ([0, 1, 0], [0, 1, 1], [1, 1, 1]):
        end = one.latestOffset(end, ReadMaxRows(1))
        assert end["batches"] == taken
    end = one.latestOffset(end, ReadMaxRows(41))
    assert [part.stop - part.start for part in one.partitions({"batches": [1, 1, 1]}, end)] == [20, 1, 20]


def test_what_is_published_after_the_start_of_a_query_for_what_there_is_now_waits(queue, reader):
    publish(queue, 3, 0, 1)
    one, end, found = reader(), {"batches": [0, 0, 0]}, []
    one.prepareForTriggerAvailableNow()
    publish(queue, 5, 5, 5)
    while (following := one.latestOffset(end, ReadMaxRows(2))) != end:
        found += rows(one, end, following)
        end = following
    assert Counter(found) == Counter(["0.0", "0.1", "0.2", "2.0"])
    assert queue.stats().pending == 15


def test_a_publish_into_any_partition_wakes_a_query_that_waits(queue, reader, client, monkeypatch):
    monkeypatch.setattr(consumer_group, "_WAIT_SECONDS", 60.0)
    one = reader(partitions=3)
    one.initialOffset()
    with beside(one.latestOffset, {"batches": [0, 0, 0]}, TEN) as found:
        until(lambda: int(client.info("clients")["blocked_clients"]) == 1)
        publish(queue, 0, 0, 1)
    assert found.result() == {"batches": [0, 0, 1]}
    assert client.llen(queue.partition(2).key.wakeup) == 0, "the wake-up was taken"


def test_the_progress_is_that_of_all_partitions(queue, reader):
    publish(queue, 4, 3, 0)
    one = reader()
    end = one.latestOffset({"batches": [0, 0, 0]}, ReadMaxRows(6))
    one.partitions({"batches": [0, 0, 0]}, end)
    one.commit(end)
    told = one.reportLatestOffset()
    assert told is not None
    assert told.pop("oldest_seconds") >= 0
    expected = {"batch": 2, "queue": QUEUE, "consumer_group": GROUP, "replayed": 0, "claimed": 6, "acked": 6}
    assert told == expected | {"rejected": 0, "released": 0, "lag": 1}


# How many partitions there are


@pytest.mark.promise("Spark finds the number of partitions by itself, and refuses another one.")
def test_another_number_of_partitions_is_refused_and_changes_nothing(queue, reader, client):
    publish(queue, 1, 1, 1)
    before = {key: client.dump(key) for key in client.keys("*")}
    with pytest.raises(PartitionCountError, match="has partitions=3 in Redis, and the options say partitions=2"):
        reader(partitions=2).initialOffset()
    with pytest.raises(ConfigurationError, match=r"has partitions, and each has its own dead letters\. Leave the"):
        reader(dead_letter_queue="poison").initialOffset()
    with pytest.raises(ConfigurationError, match=r"has partitions, and each has its own dead letters"):
        reader(dead_letter_queue="poison", partitions=2)
    assert {key: client.dump(key) for key in client.keys("*")} == before
    assert reader(partitions=3).latestOffset({"batches": [0, 0, 0]}, TEN) == {"batches": [1, 1, 1]}


def test_the_option_counts_for_a_queue_that_nobody_has_used(reader, client):
    assert reader(partitions=2).latestOffset({"batches": [0, 0]}, TEN) == {"batches": [0, 0]}
    with pytest.raises(PartitionCountError, match="2 partitions"):
        RedisMessageQueue(QUEUE, client=client).publish("one")


@pytest.mark.promise("A checkpoint of a queue without partitions can be continued after the queue has grown.")
def test_a_query_continues_with_its_checkpoint_after_the_queue_has_grown(client, reader):
    """Also with a batch that was sealed before: it is in the first partition, under the same number."""
    single = RedisMessageQueue(QUEUE, client=client)
    single.publish_many(["a", "b"])
    one = reader()
    first = one.latestOffset({"batch": 0}, ReadMaxRows(1))
    second = one.latestOffset(first, ReadMaxRows(1))
    assert (first, second) == ({"batch": 1}, {"batch": 2})
    reader.crash()
    assert single.grow_partitions(3) == 1
    publish(RedisMessageQueue(QUEUE, client=client, partitions=3), 1, 1, 1)
    one = reader()
    assert rows(one, first, second) == ["b"]
    third = one.latestOffset(second, TEN)
    assert third == {"batches": [3, 1, 1]}
    assert sorted(rows(one, second, third)) == ["0.0", "1.0", "2.0"]
    one.commit(third)
    assert RedisMessageQueue(QUEUE, client=client, partitions=3).stats().processing == 0


def test_a_query_that_runs_while_the_queue_grows_is_refused_and_goes_on_after_a_restart(queue, reader):
    publish(queue, 2, 2, 2)
    one = reader()
    end = one.latestOffset({"batches": [0, 0, 0]}, ReadMaxRows(3))
    (first, *_) = one.partitions({"batches": [0, 0, 0]}, end)
    queue.grow_partitions(4)
    with pytest.raises(PartitionCountError, match="4"):
        list(one.read(first))
    with pytest.raises(PartitionCountError, match="4"):
        one.latestOffset(end, TEN)
    reader.crash()
    again = reader()
    following = again.latestOffset(end, TEN)
    assert following == {"batches": [2, 2, 2, 0]}
    assert sorted(rows(again, end, following)) == ["0.1", "1.1", "2.1"]


# The lease


@pytest.mark.promise("One query at a time holds a consumer group, in all partitions or in none.")
def test_a_query_that_cannot_have_all_partitions_holds_none(queue, reader, client):
    publish(queue, 1, 1, 1)
    options = SourceOptions(url="redis://unused", queue=QUEUE, consumer_group=GROUP, lease_seconds=3_600)
    parts = [GroupPart(client, options, RedisReader(client, options.keys, Partition(n, 3))) for n in range(3)]
    parts[1].acquire_group()
    one = reader(lease_seconds=60)
    for part in one._group.parts:  # else it would wait for the whole hour
        part.acquire_group = lambda acquire=part.acquire_group: acquire(timeout_seconds=0)
    with pytest.raises(ConsumerGroupBusyError, match="another running query holds consumer group 'reports'"):
        one.initialOffset()
    assert [part.holder().holder is not None for part in parts] == [False, True, False]
    parts[1].release_lease()
    assert one.latestOffset({"batches": [0, 0, 0]}, TEN) == {"batches": [1, 1, 1]}
    assert all(part.holder().holder for part in parts)
    assert len({part.holder().holder for part in parts}) == 1, "the query has one name in all partitions"


# Crashes


class Crash(BaseException):
    """The process is gone."""


# A crash after a script leaves what one before the next script leaves, so each test has one of them.
BEFORE, AFTER = (pytest.param(runs, marks=pytest.mark.in_full) for runs in (False, True))


class CheckpointedQuery:
    """What Spark keeps of a query: the log of offsets, the log of commits, and what was read for each batch."""

    def __init__(self) -> None:
        self.initial: Any = None
        self.offsets: list[Any] = []
        self.done = 0
        self.read: dict[int, list[str]] = {}

    def run(self, reader: QueueStreamReader, limit: Any) -> None:
        """As Spark does it, until there is nothing new."""
        if not self.offsets:
            self.initial = reader.initialOffset()
        while True:
            if self.done == len(self.offsets):
                before = self._end(self.done)
                end = reader.latestOffset(before, limit)
                if end == before:
                    return
                self.offsets.append(end)
                if self.done:
                    reader.commit(before)
            found = rows(reader, self._end(self.done), self.offsets[self.done])
            assert self.read.setdefault(self.done, found) == found, "a replay has other messages"
            self.done += 1

    def _end(self, batches: int) -> Any:
        return self.offsets[batches - 1] if batches else self.initial


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None, bool], list[str]]]:
    """Makes the script with this number the last one of the process: before it is sent, or before its reply is read.

    Returns the names of the scripts that were sent since.
    """
    sent: list[str] = []
    plan: list[tuple[int | None, bool]] = [(None, False)]
    send = GroupPart._send

    def mortal(self: GroupPart, command: Any, *arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return send(self, command, *arguments, **more)
        last, runs = plan[0]
        sent.append(command.script.name)
        if len(sent) - 1 == last:
            if runs:
                send(self, command, *arguments, **more)
            raise Crash
        return send(self, command, *arguments, **more)

    monkeypatch.setattr(GroupPart, "_send", mortal)

    def at(last: int | None, runs: bool) -> list[str]:
        plan[0] = (last, runs)
        sent.clear()
        return sent

    yield at
    plan[0] = (None, False)


@pytest.mark.promise("With partitions too, a replay after a crash between any two steps reads the same messages.")
@pytest.mark.parametrize("runs", [BEFORE, True])
def test_a_crash_before_or_after_any_script_costs_no_message(
    client: redis.Redis, clean_server: Any, reader: Readers, crash_at: Callable[..., list[str]], runs: bool
):
    """Seal, ack and clear in one partition and not in the next, and everything between."""
    last = 0
    while True:
        client.flushall()
        queue = RedisMessageQueue(QUEUE, client=client, partitions=2)
        publish(queue, 5, 3)
        query = CheckpointedQuery()
        sent = crash_at(last, runs)
        try:
            query.run(reader(lease_seconds=0.02), ReadMaxRows(4))
        except Crash:
            reader.crash()
        else:
            assert {"fill_batch", "seal_batch", "ack_batch"} <= set(sent)
            assert last > 15, "it went through all its scripts, and through none but these"
            return
        crash_at(None, False)
        again = reader(lease_seconds=0.02)
        query.run(again, ReadMaxRows(4))
        read = [payload for found in query.read.values() for payload in found]
        assert sorted(read) == ["0.0", "0.1", "0.2", "0.3", "0.4", "1.0", "1.1", "1.2"], sent
        again.commit(query.offsets[-1])
        assert (queue.stats().pending, queue.stats().processing) == (0, 0)
        again.stop()
        last += 1


@pytest.mark.promise("With `invalidPayloads=dead_letters`, a payload that is not UTF-8 becomes a dead letter.")
@pytest.mark.parametrize("runs", [False, AFTER])
def test_a_crash_around_a_rejection_makes_one_dead_letter_of_each_and_reads_the_others(
    client: redis.Redis, clean_server: Any, reader: Readers, crash_at: Callable[..., list[str]], runs: bool
):
    options: dict[str, Any] = {"lease_seconds": 0.02, "invalid_payloads": "dead_letters"}
    last = 0
    while True:
        client.flushall()
        queue = RedisMessageQueue(QUEUE, client=client, partitions=2, codec=bytes)
        for number in range(2):
            queue.partition(number).publish_many([b"\xff", b"%d.0" % number, b"\xfe", b"%d.1" % number])
        query = CheckpointedQuery()
        sent = crash_at(last, runs)
        try:
            query.run(reader(**options), ReadMaxRows(6))
        except Crash:
            reader.crash()
        else:
            assert "reject_members" in sent
            return
        crash_at(None, False)
        again = reader(**options)
        query.run(again, ReadMaxRows(6))
        assert sorted(payload for found in query.read.values() for payload in found) == ["0.0", "0.1", "1.0", "1.1"]
        again.commit(query.offsets[-1])
        stats = queue.stats()
        assert (stats.pending, stats.processing, stats.dead_letters) == (0, 0, 4), sent
        again.stop()
        last += 1


@pytest.mark.promise("Missing messages of a batch raise `DataLossError`, or are skipped with `failOnDataLoss=false`.")
def test_lost_data_names_the_partition_and_can_be_given_up(queue, reader, client):
    publish(queue, 1, 1, 1)
    one = reader()
    end = one.latestOffset({"batches": [0, 0, 0]}, TEN)
    one.stop()
    client.flushall()
    with pytest.raises(DataLossError, match="batch 1 of partition 0 is in the checkpoint but not in Redis"):
        reader().partitions({"batches": [0, 0, 0]}, end)
    reader.crash()
    lenient = reader(fail_on_data_loss=False)
    assert lenient.partitions({"batches": [0, 0, 0]}, end) == []
    lenient.commit(end)
    publish(queue, 0, 1, 0)  # the queue still has three partitions, which nobody but the checkpoint knew
    following = lenient.latestOffset(end, TEN)
    assert following == {"batches": [1, 2, 1]}
    assert rows(lenient, end, following) == ["1.0"]


def test_a_checkpoint_of_more_partitions_than_there_are_is_lost_data(queue, reader):
    publish(queue, 1, 1, 1)
    with pytest.raises(DataLossError, match="has batches of 4 partitions, and the queue has 3"):
        reader().latestOffset({"batches": [0, 0, 0, 7]}, TEN)


# In Spark
