"""`rmq spark` manages consumer groups, and finds mistakes before it starts a session."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.__main__ import main
from redis_message_queue.cli.demo.demo import make_report
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.spark import spark_options as cli_options
from redis_message_queue.cli.spark.spark_options import SessionOptions
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark.consumer_group import ConsumerGroup, GroupPart
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
from redis_message_queue.spark.jobs.backfill import BackfillOptions, backfill
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from redis_message_queue.spark.jobs.report import ReportOptions, report
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.values.errors import ConfigurationError, MissingExtraError
from tests.concurrency import until

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def rmq(client: redis.Redis, server: EmbeddedRedis, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs one command in this process; its status, and what it wrote to stdout and stderr."""
    monkeypatch.setenv("REDIS_URL", server.url)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["spark", *arguments])
        return int(status), *capsys.readouterr()

    return run


@pytest.fixture
def queue(client: redis.Redis) -> RedisMessageQueue:
    """Ten orders of two tenants went through it; every fifth failed, and the last one waits."""
    queue = RedisMessageQueue("orders", client=client, journal="payload", enable_failed_queue=True)
    for order in range(10):
        queue.publish({"order": order}, tenant=("acme", "globex")[order % 2])

    def handle(message):
        if message.json()["order"] % 5 == 0:
            raise TimeoutError("too slow")

    queue.run(handle, until_empty=True)
    queue.publish("waits")
    return queue


def test_a_server_that_is_away_is_told_before_spark_is_started(rmq, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_options.SessionOptions, "session", None)
    status, _, err = rmq("archive", "orders", str(tmp_path), "--url", "redis://:secret@localhost:1/0")
    assert (status, "redis://localhost:1/0" in err, "secret" in err) == (ExitStatus.SERVER, True, False)


@pytest.mark.promise("A job on a session of Spark Connect is one clear error.")
def test_a_session_of_spark_connect_is_refused():
    class SparkSession:
        __module__ = "pyspark.sql.connect.session"

    archiving = ArchiveOptions(url="redis://localhost:1", queue="orders", path="x")
    replaying = ReplayOptions(url="redis://localhost:1", queue="orders")
    filling = BackfillOptions(url="redis://localhost:1", queue="orders", source="x", format="json")
    reporting = ReportOptions(path="x", queue="orders", output="y")
    jobs: list[tuple[Any, Any]] = [
        (archive, archiving),
        (replay, replaying),
        (backfill, filling),
        (report, reporting),
    ]
    for job, options in jobs:
        with pytest.raises(ConfigurationError, match="needs a classic Spark session, and this is one of Spark Connect"):
            job(SparkSession(), options)


@pytest.mark.promise("An operator sees what a streaming query has claimed and can requeue it.")
def test_groups_are_shown_and_released(rmq, client, queue):
    """An operator sees what a dead query has claimed, and gives it back; without a word in JSON for scripts."""
    group = GroupPart(
        client, SourceOptions(url="redis://unused", queue="orders", consumer_group="reports", lease_seconds=0.2)
    )
    group.acquire_group()
    assert group.fill_batch(10) == 1
    group.seal_batch()
    until(lambda: json.loads(rmq("groups", "orders", "--json")[1])["holder"] is None)  # its lease has ended
    status, out, _ = rmq("groups", "orders", "--json")
    shown = json.loads(out)
    assert (shown.pop("holder"), shown.pop("lease_seconds")) == (None, 0)
    assert shown.pop("oldest_seconds") >= 0
    assert (status, shown) == (0, {"group": "reports", "messages": 1, "lag": 0, "sealed": 1, "acked": 0, "epoch": 1})
    assert queue.stats().processing == 1
    assert ".option('table', 'claimed')" in rmq("groups", "orders")[2]

    status, out, err = rmq("release", "orders", "reports")
    assert (status, out, "add --yes" in err) == (ExitStatus.USAGE, "", True)  # nobody is here to be asked
    status, out, _ = rmq("release", "orders", "reports", "--yes", "--json")
    assert (status, json.loads(out)) == (0, {"queue": "orders", "group": "reports", "released": 1})
    assert (queue.stats().pending, queue.stats().processing) == (1, 0)
    assert rmq("groups", "nobody")[1:] == ("", "no streaming query has read 'nobody'\n")


@pytest.mark.promise("An operator sees what a streaming query has claimed and can requeue it.")
def test_the_holder_of_a_group_is_shown_with_its_lease(rmq, client, queue):
    group = GroupPart(
        client, SourceOptions(url="redis://unused", queue="orders", consumer_group="reports", lease_seconds=3_600)
    )
    group.acquire_group()
    shown = json.loads(rmq("groups", "orders", "--json")[1])
    assert shown["holder"] == client.hget("orders::group::reports", "holder").decode()
    assert 0 < shown["lease_seconds"] <= 3_600


@pytest.mark.promise("An operator sees what a streaming query has claimed and can requeue it.")
def test_groups_of_a_queue_with_partitions_have_a_row_for_each(rmq, clean_server, client):
    queue = RedisMessageQueue("split", client=client, partitions=2)
    for number, count in enumerate((3, 2)):
        queue.partition(number).publish_many(["message"] * count)
    options = SourceOptions(url=clean_server.url, queue="split", consumer_group="reports", lease_seconds=0.2)
    group = ConsumerGroup.open(client, options)
    group.acquire_group()
    assert group.fill_batches(4) == 4
    group.seal_batches()
    shown = [json.loads(line) for line in rmq("groups", "split", "--json")[1].splitlines()]
    told = [(one["group"], one["partition"], one["messages"], one["lag"], one["sealed"]) for one in shown]
    assert told == [("reports", 0, 2, 1, 1), ("reports", 1, 2, 0, 1)]
    status, out, _ = rmq("release", "split", "reports", "--yes", "--json")
    assert (status, json.loads(out)) == (0, {"queue": "split", "group": "reports", "released": 4})
    assert (queue.stats().pending, queue.stats().processing) == (5, 0)
    assert rmq("groups", "split", "--partitions", "3")[0] == ExitStatus.FAILED


@pytest.mark.promise("An operator sees what a streaming query has claimed and can requeue it.")
def test_a_release_asks_first_and_a_no_changes_nothing(rmq, client, queue, monkeypatch):
    group = GroupPart(
        client, SourceOptions(url="redis://unused", queue="orders", consumer_group="reports", lease_seconds=0.2)
    )
    group.acquire_group()
    group.fill_batch(10)
    group.seal_batch()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: not re.search("Return 1 messages", question))
    assert rmq("release", "orders", "reports")[0] == ExitStatus.FAILED
    assert queue.stats().processing == 1


def test_without_spark_the_demo_says_how_to_have_a_report(monkeypatch, capsys, tmp_path):
    def require_extra() -> None:
        raise MissingExtraError("redis_message_queue.spark needs pyspark")

    monkeypatch.setattr("redis_message_queue.spark.require_extra", require_extra)
    assert make_report("redis://localhost", tmp_path, print) is None
    assert "pip install 'redis-exact-queue[spark]'" in capsys.readouterr().out


@pytest.mark.promise("Archiving a few entries starts no Java, of one queue or of all queues of a server.")
def test_few_entries_are_archived_without_java(rmq, queue, client, tmp_path, monkeypatch):
    """A queue without a journal is left out."""
    monkeypatch.setattr(SessionOptions, "session", None)
    RedisMessageQueue("invoices", client=client, journal=True).publish("one")
    RedisMessageQueue("plain", client=client).publish("one")
    path = str(tmp_path / "archive")
    status, out, _ = rmq("archive", "invoices", path, "--json")
    assert (status, json.loads(out)["rows"]) == (0, 1)
    status, out, _ = rmq("archive-all", path, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert (status, [(one["queue"], one["rows"]) for one in found]) == (0, [("invoices", 0), ("orders", 31)])
