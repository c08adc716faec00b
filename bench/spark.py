"""`python -m bench spark`: measures the Spark sink, source and jobs, as ratios within the same run.

Sink and source are compared with raw redis-py, the jobs with a plain Spark job over the same rows.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

import redis
from rich.console import Console

from bench.payload import text
from bench.report import spark_table
from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.process.identity import new_id
from redis_message_queue.protocol.calls import ReplySlot
from redis_message_queue.protocol.shared_state import STATE_VERSION
from redis_message_queue.stored.envelope import BASE_BYTES, preamble
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.stored.scripts import script

QUEUE = "orders"
_OTHER = "replayed"
BATCH = 1_000
_FORMAT = "redis_message_queue"
_KEEP_MS = 60_000
_FIRST_DAY, _DAY = 1_790_035_200_000_000, 86_400_000_000  # microseconds
_TRIGGER = 500_000  # large, since each micro-batch costs Spark another half second


def main(arguments: list[str]) -> int:
    given = _arguments(arguments)
    stderr = Console(stderr=True)
    sizes = [given.messages // 4, given.messages // 2, given.messages]
    with EmbeddedRedis() as server:
        from redis_message_queue.spark import session
        from redis_message_queue.spark.driver import QUICK_START

        # The lake as `rmq spark refresh` and `rmq spark report` have it, which start without Java's second compiler.
        spark = session("bench", "local[2]", **QUICK_START if given.only == "lake" else {})
        try:
            bench = SparkBench(spark, server, stderr.print)
            results: dict[str, Any] = {}
            if given.only in (None, "sink"):
                results["sink"] = bench.sink(given.rows, given.rounds)
            if given.only in (None, "source"):
                results["source"] = bench.source(sizes)
            if given.only in (None, "jobs"):
                results["jobs"] = bench.jobs(given.rows)
            if given.only in (None, "lake"):
                results["lake"] = LakeBench(spark, stderr.print).measure(given.entries, given.days)
        finally:
            spark.stop()
    print(json.dumps(results, indent=2)) if given.json else Console(width=120).print(spark_table(results))
    return 0


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench spark", description=__doc__)
    parser.add_argument("--only", choices=("sink", "source", "jobs", "lake"), help="measure only one of them")
    parser.add_argument("--rows", type=int, default=200_000, help="rows that the sink publishes, and the jobs handle")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the sink")
    parser.add_argument("--messages", type=int, default=1_000_000, help="the largest queue that the source reads")
    parser.add_argument("--entries", type=int, default=1_000_000, help="journal entries of a day in the lake")
    parser.add_argument("--days", type=int, default=30, help="days of history in the lake")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(arguments)


def _rate(count: int, work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


class SparkBench:
    """The measurements with one Spark session and one server."""

    def __init__(self, spark: Any, server: EmbeddedRedis, log: Callable[[str], None]) -> None:
        self._spark, self._server, self._log = spark, server, log
        self._client = redis.Redis.from_url(server.url)

    # -- the sink

    def sink(self, count: int, rounds: int) -> dict[str, Any]:
        """Compare the sink with raw redis-py and with one call per row.

        Each publishes to an empty server in each round; ratios are computed within a round.
        """
        messages = [text(number) for number in range(count)]
        rows = self._rows(messages)
        few = max(1, count // 20)  # one call per row would take minutes
        some = self._rows(messages[:few])
        runs: dict[str, list[float]] = {"raw": [], "sink": [], "naive": []}
        self._publish(some)  # starts the Python workers
        for number in range(1, rounds + 1):
            for name, size, work in (
                ("raw", count, lambda: publish_raw(self._client, messages)),
                ("sink", count, lambda: self._publish(rows)),
                ("naive", few, lambda: self._publish_naively(some)),
            ):
                self._client.flushall()
                runs[name].append(_rate(size, work))
                assert self._client.llen(QueueKeys.of(QUEUE).pending) == size, name
            self._log(f"sink, round {number}: " + ", ".join(f"{name} {runs[name][-1]:,.0f}/s" for name in runs))
        pairs = list(zip(runs["raw"], runs["sink"], runs["naive"], strict=True))
        return {
            "rows": count,
            "rates": {name: median(rates) for name, rates in runs.items()},
            "to_raw": median(sink / raw for raw, sink, _ in pairs),
            "to_naive": median(sink / naive for _, sink, naive in pairs),
        }

    def _rows(self, messages: list[str]) -> Any:
        rows = self._spark.createDataFrame(list(enumerate(messages)), "order_id bigint, payload string")
        rows = rows.repartition(2).persist()
        rows.count()
        return rows

    def _publish(self, rows: Any) -> None:
        writer = rows.write.format(_FORMAT).option("url", self._server.url).option("queue", QUEUE).mode("append")
        writer.option("dedupKeyColumn", "order_id").save()

    def _publish_naively(self, rows: Any) -> None:
        url = self._server.url

        def each(partition: Iterator[Any]) -> None:
            # A lambda, because executors cannot import a function of this module.
            queue = RedisMessageQueue(
                QUEUE,
                client=redis.Redis.from_url(url),
                deduplication=True,
                get_deduplication_key=lambda message: message[8:26],
            )
            for row in partition:
                queue.publish(row.payload)

        rows.foreachPartition(each)

    # -- the source

    def source(self, sizes: list[int]) -> list[dict[str, Any]]:
        """Compare a query that reads a whole queue with LRANGE in pages of a thousand, for each size."""
        self._fill(sizes[0] // 10)
        self._drain(sizes[0] // 10)  # starts the Python workers
        found = []
        for size in sizes:
            self._fill(size)
            raw = _rate(size, lambda: read_raw(self._client))
            source = _rate(size, partial(self._drain, size))
            found.append({"messages": size, "raw": raw, "source": source, "to_raw": source / raw})
            self._log(f"source, {size:,} messages: raw {raw:,.0f}/s, source {source:,.0f}/s")
        return found

    def _fill(self, size: int) -> None:
        self._client.flushall()
        publish_raw(self._client, (text(number) for number in range(size)), deduplicated=False)

    def _drain(self, size: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            stream = self._spark.readStream.format(_FORMAT).option("url", self._server.url).option("queue", QUEUE)
            query = (
                stream.option("maxMessagesPerTrigger", _TRIGGER)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", place)
            )
            running = query.trigger(availableNow=True).start()
            running.awaitTermination()
            read = sum(one["numInputRows"] for one in running.recentProgress)
        assert read == size, f"{read} of {size} messages were read"

    # -- the jobs

    def jobs(self, count: int) -> list[dict[str, Any]]:
        """Compare archive, report, replay and backfill with a plain job that copies the archived rows.

        Each message has three entries in the journal: it was published, claimed and acked. What is replayed or
        backfilled into the same queue gets an entry with its payload; the other queue has no journal.
        """
        from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive, read_archive
        from redis_message_queue.spark.jobs.backfill import BackfillOptions, backfill
        from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
        from redis_message_queue.spark.jobs.report import ReportOptions, report

        self._client.flushall()
        self._handle(count)
        spark, entries = self._spark, 3 * count
        # Starts the Python workers, and Java compiles its first query.
        spark.range(2).repartition(2).mapInArrow(lambda batches: batches, "id bigint").collect()
        here: dict[str, Any] = {"url": self._server.url, "queue": QUEUE}
        with tempfile.TemporaryDirectory() as place:
            reported = ReportOptions(path=f"{place}/archive", queue=QUEUE, output=f"{place}/report")
            replayed = ReplayOptions(**here, archive=f"{place}/archive")
            lines = f"{place}/lines.json"
            with open(lines, "w", encoding="utf-8") as file:
                file.writelines(f"{text(number)}\n" for number in range(count))
            work: dict[str, tuple[int, Callable[[], Any]]] = {
                "archive": (entries, lambda: archive(spark, ArchiveOptions(**here, path=f"{place}/archive"))),
                "report": (entries, lambda: report(spark, reported)),
                "replay": (count, lambda: replay(spark, replayed)),
                "replay, no journal": (count, lambda: replay(spark, dataclasses.replace(replayed, into=_OTHER))),
                "backfill": (count, lambda: backfill(spark, BackfillOptions(**here, source=lines, format="json"))),
            }
            rates = {name: _rate(size, run) for name, (size, run) in work.items()}
            assert self._client.llen(QueueKeys.of(QUEUE).pending) == 2 * count, "replay and backfill"
            assert self._client.llen(QueueKeys.of(_OTHER).pending) == count, "replay into another queue"
            archived = read_archive(spark, f"{place}/archive", QUEUE)
            plain = _rate(entries, lambda: archived.write.parquet(f"{place}/copy"))
        self._log(f"jobs, {count:,} messages: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items()))
        return [{"job": name, "plain": plain, "rate": rate, "to_plain": rate / plain} for name, rate in rates.items()]

    def _handle(self, count: int) -> None:
        """Publish and handle messages of a queue with a journal."""
        # All entries have to be there until they are archived: three of each message, and some to spare.
        queue = RedisMessageQueue(QUEUE, client=self._client, journal="payload", max_journal_length=4 * count)
        for start in range(0, count, 10_000):
            queue.publish_many(text(number) for number in range(start, min(start + 10_000, count)))
            handled = 1
            while handled:
                with queue.process_messages(1_000, wait_seconds=0) as batch:
                    handled = len(batch)


class LakeBench:
    """What a day of journal entries costs the tables of messages and counts, with and without history."""

    def __init__(self, spark: Any, log: Callable[[str], None]) -> None:
        self._spark, self._log = spark, log

    def measure(self, entries: int, days: int) -> dict[str, Any]:
        """Compare a refresh with copying the same entries, and one after days of history with one without.

        In processor time, so that other work on the machine does not count. A copy goes before and after the refresh.
        """
        from redis_message_queue.spark.jobs.archive import read_archive
        from redis_message_queue.spark.jobs.refresh import RefreshOptions, refresh
        from redis_message_queue.spark.jobs.report import ReportOptions, report

        found: dict[str, Any] = {"entries": entries, "days": days}
        with tempfile.TemporaryDirectory() as place:
            for name, history in (("warm-up", 0), ("alone", 0), ("with history", days)):
                path = f"{place}/{name}"
                archived = _Archived(path, max(3, entries // 10) if name == "warm-up" else entries)
                for day in range(history):
                    archived.add_day(day)
                options = RefreshOptions(path=path, queue=QUEUE)
                if history:
                    self._log(f"lake, {history} days of history: {_cost(refresh, self._spark, options):.1f} s of CPU")
                archived.add_day(history)
                copy = read_archive(self._spark, path, QUEUE).write.mode("overwrite")
                copied = 0.0 if history else _cost(copy.parquet, f"{place}/copy")
                found[name] = _cost(refresh, self._spark, options)
                if not history:
                    found["copy"] = (copied + _cost(copy.parquet, f"{place}/copy")) / 2
                reported = ReportOptions(path=path, queue=QUEUE, output=f"{path}-report")
                report(self._spark, reported)
                unchanged = found[f"report, {name}"] = _cost(report, self._spark, reported)
                self._log(f"lake, {name}: refresh {found[name]:.1f} s, unchanged report {unchanged:.1f} s of CPU")
        found["to_copy"] = found["alone"] / found["copy"]
        found["to_alone"] = found["with history"] / found["alone"]
        return found


def _cost(work: Callable[..., Any], *arguments: Any) -> float:
    """Return the processor time that some work takes in this process and all that it has started."""
    begun = _cpu_seconds()
    work(*arguments)
    return _cpu_seconds() - begun


def _cpu_seconds() -> float:
    """Return the processor time of this process and all that it has started."""
    import psutil

    here = psutil.Process()
    times = [one.cpu_times() for one in (here, *here.children(recursive=True))]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


class _Archived:
    """An archive whose entries are made up: three of each message, over a day."""

    def __init__(self, path: str, entries: int) -> None:
        from redis_message_queue.spark.jobs.archive import application_of, journal_table
        from redis_message_queue.spark.jobs.archive_tables import location_of

        self._table, self._messages, self._serial = journal_table(location_of(path)), entries // 3, 0
        self._application = application_of(QUEUE, "bench")

    def add_day(self, day: int) -> None:
        import numpy as np
        import pyarrow as pa

        count, chance = self._messages, np.random.default_rng(day)
        start = _FIRST_DAY + day * _DAY
        published = start + np.sort(chance.integers(0, _DAY - 1_000_000, count))
        claimed = published + chance.exponential(50_000, count).astype("i8") % 400_000
        acked = claimed + chance.exponential(20_000, count).astype("i8") % 400_000
        at = np.concatenate([published, claimed, acked])
        order = np.argsort(at, kind="stable")
        ids = np.tile(np.array([f"{day:08x}{number:024x}" for number in range(count)]), 3)
        columns = {
            "serial": pa.array(np.arange(self._serial + 1, self._serial + len(at) + 1)),
            "at": pa.array(at[order], pa.timestamp("us", tz="UTC")),
            "event": np.repeat(["published", "claimed", "acked"], count)[order],
            "id": ids[order],
            "tenant": np.tile(np.array([f"t{one}" for one in chance.integers(0, 50, count)]), 3)[order],
            "count": pa.array(np.repeat([0, 1, 0], count)[order], mask=np.repeat([True, False, True], count)[order]),
            "by": pa.array(
                np.repeat(["", "host:1", ""], count)[order], mask=np.repeat([True, False, True], count)[order]
            ),
            "journal": np.repeat("bench", len(at)),
        }
        schema = self._table.file_schema
        rows = pa.table({one.name: columns.get(one.name, pa.nulls(len(at), one.type)) for one in schema}).cast(schema)
        date = time.strftime("%Y-%m-%d", time.gmtime(start // 1_000_000))
        parts = (rows.slice(place, 100_000).to_batches() for place in range(0, len(at), 100_000))
        files = [file for one in parts if (file := self._table.write_file(QUEUE, date, one)) is not None]
        self._table.commit(files, QUEUE, self._application, self._serial or None, self._serial + len(at))
        self._serial += len(at)


def publish_raw(client: Any, messages: Any, deduplicated: bool = True) -> None:
    """Call the library's own script with batches of the same size, by redis-py, in one process."""
    keys = QueueKeys.of(QUEUE)
    client.hset(keys.meta, "version", STATE_VERSION)  # without it, scripts refuse a queue that nobody has opened
    enqueue = ReplySlot(b"bench", 0, keys, GatewayOptions(), _KEEP_MS).enqueue
    sha = client.script_load(script("enqueue").source)
    numbered, call = iter(enumerate(messages)), 0
    while batch := list(islice(numbered, BATCH)):
        call += 1
        markers = [keys.deduplication(str(number)) for number, _ in batch] if deduplicated else []
        details = [part for _, message in batch for part in (preamble(), message.encode())]
        names = (*enqueue.keys, *markers)
        head = (*enqueue.settings, b"%012d" % call, new_id()[:BASE_BYTES], "ready")
        client.execute_command("EVALSHA", sha, len(names), *names, *head, *details)


def read_raw(client: Any) -> None:
    """Read every waiting message without removing it."""
    key, start = QueueKeys.of(QUEUE).pending, 0
    while page := client.lrange(key, start, start + BATCH - 1):
        start += len(page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
