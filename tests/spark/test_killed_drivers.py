"""Drivers, tasks and the server die at random moments, and every message is in the sink once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.driver import QUICK_START
from tests.depth import often
from tests.spark.streaming_query import ALWAYS, NOW, doubled, numbered, start, wait_for, written

QUEUE = "orders"

# A driver takes ten seconds to start, on a busy machine forty. For a long run: SPARK_KILLS=10 SPARK_MESSAGES=100000.
KILLS = int(os.environ.get("SPARK_KILLS", often(1, 2)))
MESSAGES = int(os.environ.get("SPARK_MESSAGES", often(400, 20_000)))
pytestmark = [pytest.mark.topic("Streaming queries in Spark"), pytest.mark.timeout(1200 + 240 * KILLS)]


@pytest.fixture
def queue(client) -> RedisMessageQueue:
    """With a journal: what it tells must be true in the end."""
    return RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300, journal=True)


def spark_home(scratch: Path) -> Path:
    """Spark's own files, as links: local-cluster writes the files of its executors beside them."""
    home = scratch / "spark"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            if entry.name != "work":
                (home / entry.name).symlink_to(entry)
    return home


class Driver:
    """A driver in a process of its own, with its JVM and its workers."""

    def __init__(self, directory: Path, trigger: dict[str, Any], master: str = "local[2]", **options: Any) -> None:
        scratch = directory / "scratch"  # a killed process does not clean up
        scratch.mkdir(exist_ok=True)
        told = {
            "master": master,
            "directory": str(directory),
            "trigger": trigger,
            "options": options,
            "conf": QUICK_START | {"spark.local.dir": str(scratch)},
        }
        program = Path(__file__).with_name("streaming_query.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(told)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(scratch), "SPARK_HOME": str(spark_home(scratch))},
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        assert first, self._process.communicate()[1]
        self._doomed: list[int] = json.loads(first)

    def kill(self) -> None:
        """The JVM first, then the driver; their workers notice."""
        for process in self._doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def wait(self) -> int:
        self._process.communicate(timeout=1100)
        return self._process.returncode


def run_and_kill(directory: Path, moment: float, **options: Any) -> None:
    """A driver that gets at least one new batch into the offset log, and a moment more."""
    offsets = directory / "checkpoint" / "offsets"
    driver = Driver(directory, ALWAYS, **options)

    def known() -> int:
        return len(list(offsets.iterdir())) if offsets.exists() else 0

    before = known()
    wait_for(lambda: known() > before)
    time.sleep(moment)
    driver.kill()
    driver.wait()


def told_of(client: Any, queue: RedisMessageQueue) -> list[tuple[str, ...]]:
    """What the journal says of each message, in its order; without a gap in the serial numbers."""
    entries = [entry for _, entry in client.xrange(queue.key.journal)]
    assert [int(entry[b"n"]) for entry in entries] == list(range(1, len(entries) + 1))
    lives: dict[bytes, tuple[str, ...]] = {}
    for entry in entries:
        lives[entry[b"id"]] = (*lives.get(entry[b"id"], ()), entry[b"event"].decode())
    return list(lives.values())


@pytest.mark.promise("With files as the sink, every message is written once, however often driver and JVM are killed.")
@pytest.mark.promise("A query writes the journal of its queue in the scripts that move the messages.")
def test_drivers_are_killed_and_every_message_arrives_once(spark, queue, server, client, tmp_path):
    """Driver and JVM by SIGKILL, on one checkpoint: between claim and offset log first, then at random moments.

    The journal tells that each message was published, claimed and acknowledged, and nothing else.
    """
    total = MESSAGES
    queue.publish_many(numbered(total))
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": often(100, 300)}
    assert Driver(tmp_path, ALWAYS, die="latestOffset 2", **options).wait() != 0
    chance = random.Random(5)
    for _ in range(KILLS - 1):
        run_and_kill(tmp_path, 2 * chance.random(), **options)
    assert len(written(tmp_path)) < total, "all was done before the last one was killed"
    start(spark, tmp_path, NOW, **options | {"maxMessagesPerTrigger": total}).awaitTermination()
    assert doubled(written(tmp_path)) == {}
    assert sorted(written(tmp_path)) == sorted(numbered(total))
    assert Counter(told_of(client, queue)) == {("published", "claimed", "acked"): total}


@pytest.mark.promise(
    "`foreachBatch` receives every message at least once, and the same messages again under the same batch id."
)
@pytest.mark.in_full  # the same deaths as above; the source does not know which sink there is
def test_a_function_for_each_batch_has_every_message_at_least_once_and_once_by_its_batch_id(
    spark, queue, server, client, tmp_path
):
    """The same with `foreachBatch`: what a replay writes under the number of its batch is the same as before."""
    total = MESSAGES
    queue.publish_many(numbered(total))
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": 500, "sink": "foreachBatch"}
    chance = random.Random(6)
    for _ in range(max(1, KILLS // 2)):
        run_and_kill(tmp_path, 2 * chance.random(), **options)
    start(spark, tmp_path, NOW, **options | {"maxMessagesPerTrigger": total}).awaitTermination()
    assert set(written(tmp_path, "log")) == set(numbered(total))
    assert doubled(written(tmp_path, "batches")) == {}
    assert sorted(written(tmp_path, "batches")) == sorted(numbered(total))
    assert Counter(told_of(client, queue)) == {("published", "claimed", "acked"): total}


@pytest.mark.in_full
@pytest.mark.promise(
    "A Delta table that keeps the batch id with each commit has every message once, whatever is killed."
)
def test_a_delta_table_has_every_message_once_however_often_its_driver_is_killed(spark, queue, server, tmp_path):
    queue.publish_many(numbered(MESSAGES))
    options = {"url": server.url, "queue": QUEUE, "maxMessagesPerTrigger": 500, "sink": "delta"}
    chance = random.Random(7)
    for _ in range(max(1, KILLS // 2)):
        run_and_kill(tmp_path, 2 * chance.random(), **options)
    start(spark, tmp_path, NOW, **options | {"maxMessagesPerTrigger": MESSAGES}).awaitTermination()
    found = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()["payload"].to_pylist()
    assert doubled(found) == {}
    assert sorted(found) == sorted(numbered(MESSAGES))


@pytest.mark.in_full
@pytest.mark.promise("A query continues after its server restarts from the append-only file.")
def test_the_server_is_killed_and_restarted_from_its_log_under_a_query(spark, start_server, tmp_path):
    """The query's calls wait for it, tasks read again, and the query goes on by itself."""
    durable = start_server(directory=tmp_path / "redis", append_only=True, config={"appendfsync": "always"})
    with durable.client() as client:
        queue = RedisMessageQueue(QUEUE, client=client, visibility_timeout_seconds=300, journal=True)
        total = often(300, 4_000)
        queue.publish_many(numbered(total))
        options = {"url": durable.url, "queue": QUEUE, "maxMessagesPerTrigger": often(100, 200)}
        query = start(spark, tmp_path, ALWAYS, **options)
        for part in range(1, often(1, 3) + 1):
            wait_for(lambda part=part: len(written(tmp_path)) >= often(100, 400) * part, query)
            durable.kill()
            back = threading.Timer(0.3, durable.restart)
            back.start()
            back.join()
        wait_for(lambda: len(written(tmp_path)) >= total, query)
        query.stop()
        start(spark, tmp_path, NOW, **options).awaitTermination()
        assert doubled(written(tmp_path)) == {}
        assert sorted(written(tmp_path)) == sorted(numbered(total))
        assert Counter(told_of(client, queue)) == {("published", "claimed", "acked"): total}


@pytest.mark.promise("A query whose executors are separate processes reads the same messages.")
@pytest.mark.in_full
def test_executors_of_their_own_read_the_same_as_one_machine(spark, queue, server, tmp_path):
    """On `local-cluster`: what driver and executors share goes through Redis and the options alone."""
    queue.publish_many(numbered(5_000))
    options = {"url": server.url, "queue": QUEUE, "minPartitions": 4}
    driver = Driver(tmp_path, NOW, master="local-cluster[2,1,1024]", **options)
    assert driver.wait() == 0
    assert sorted(written(tmp_path)) == sorted(numbered(5_000))
    assert queue.stats().processing == 0
    assert list((tmp_path / "scratch" / "spark" / "work").iterdir())  # and nothing in the installed package
