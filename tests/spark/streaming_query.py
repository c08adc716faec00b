"""A data source around the stream reader that can be made to die, and queries that run it into a sink.

Run as a program it is a driver of its own, to be killed: see test_killed_drivers.py.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

FORMAT = "queue_under_test"
NOW = {"availableNow": True}
ALWAYS = {"processingTime": "0 seconds"}


def source_class() -> type:
    """Made inside a function, so that it travels to the workers as it is: these need not find the tests."""
    import os
    import signal

    from pyspark.sql.datasource import DataSource

    from redis_message_queue.spark.options import SourceOptions
    from redis_message_queue.spark.rows import messages_schema, row_encoder
    from redis_message_queue.spark.source import QueueStreamReader, batches_of

    class MortalReader(QueueStreamReader):
        """Dies at a place such as `partitions 2`: in this method, when the offset is number 2. With partitions that
        is the sum of their numbers.

        Those who die with it are the processes named in `kill`; without any it is the reader's process alone.
        """

        def __init__(self, options: Any, rows: Any, die: str | None, kill: list[int]) -> None:
            super().__init__(options, rows)
            self.die, self.kill = die, kill

        def latestOffset(self, start: Any, limit: Any) -> Any:
            end = super().latestOffset(start, limit)
            self.die_at("latestOffset", end)
            return end

        def partitions(self, start: Any, end: Any) -> Any:
            parts = super().partitions(start, end)
            self.die_at("partitions", end)
            return parts

        def commit(self, end: Any) -> None:
            self.die_at("before commit", end)
            super().commit(end)
            self.die_at("commit", end)

        def read(self, partition: Any) -> Any:
            for nth, batch in enumerate(super().read(partition)):
                if nth == 1:
                    self.die_at("read", {"batch": partition.batch})
                yield batch

        def die_at(self, place: str, offset: Any) -> None:
            if self.die != f"{place} {sum(batches_of(offset))}":
                return
            if place == "read":
                from pyspark import TaskContext

                if TaskContext.get().attemptNumber() == 0:  # it is a task
                    raise OSError("this attempt fails")
                return
            for process in self.kill or [os.getpid()]:
                os.kill(process, signal.SIGKILL)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "queue_under_test"

        def schema(self) -> Any:
            return messages_schema()

        def streamReader(self, schema: Any) -> Any:
            told = {"consumergroup": "reports", "leaseseconds": "1"} | dict(self.options)
            die, kill = told.pop("die", None), [int(one) for one in told.pop("kill", "").split()]
            options = SourceOptions.from_spark(told)
            return MortalReader(options, row_encoder(schema, options.queue), die, kill)

    return Source


def start(spark: Any, directory: Path, trigger: dict[str, Any], *, sink: str = "parquet", **options: Any) -> Any:
    """A query from the queue into a sink, with its checkpoint beside it.

    The sink is Parquet, or a function for each batch. That one adds to the directory `log`, and writes the directory
    of its batch anew; or, with `delta`, it adds to a Delta table, once for each number of a batch.
    """
    spark.dataSource.register(source_class())
    stream = spark.readStream.format(FORMAT).options(**{name: str(value) for name, value in options.items()}).load()
    if sink == "parquet":
        writer = stream.writeStream.format("parquet").option("path", str(directory / "rows"))
    else:
        write = write_delta if sink == "delta" else write_batch
        writer = stream.writeStream.foreachBatch(lambda rows, batch: write(rows, batch, directory))
    return begun(writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(**trigger))


def begun(writer: Any) -> Any:
    """A query that has got beyond its first step.

    The source's process has ten seconds to connect, and Spark no option for more. On a busy machine that may take
    more attempts; nothing has happened before it.
    """
    give_up = time.monotonic() + 400
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        if "failed to connect back" not in str(query.exception()) or time.monotonic() > give_up:
            return query


def write_batch(rows: Any, batch: int, directory: Path) -> None:
    rows.write.mode("overwrite").parquet(str(directory / "batches" / f"batch={batch}"))
    rows.write.mode("append").parquet(str(directory / "log"))


def write_delta(rows: Any, batch: int, directory: Path) -> None:
    """Delta keeps the number of the last batch in the commit that has its rows, so a replay finds that it is there."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    path = str(directory / "delta")
    last = DeltaTable(path).transaction_version("orders") if DeltaTable.is_deltatable(path) else None
    if last is not None and last >= batch:
        return
    numbered_commit = CommitProperties(app_transactions=[Transaction("orders", batch)])
    write_deltalake(path, rows.select("payload").toArrow(), mode="append", commit_properties=numbered_commit)


# What the tests look at


def written(directory: Path, part: str = "rows") -> list[str]:
    """What the sink says that it has: files of batches that were not committed do not count.

    Without a job of Spark: a test that waits asks again and again.
    """
    import pyarrow.dataset as ds

    place = directory / part
    if part == "rows":
        files: Any = sorted({name for log in (place / "_spark_metadata").glob("[0-9]*") for name in added(log)})
    else:  # Arrow leaves out what begins with an underscore or a dot, as Spark does
        files = place if place.exists() else []
    return ds.dataset(files, format="parquet").to_table(["payload"])["payload"].to_pylist() if files else []


def added(log: Path) -> list[str]:
    """The files that an entry of the sink's own log names, after the line with its version."""
    entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert all(one["action"] == "add" for one in entries)
    return [unquote(urlsplit(one["path"]).path) for one in entries]


def doubled(payloads: list[str]) -> dict[str, int]:
    return {payload: times for payload, times in Counter(payloads).items() if times > 1}


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"message {place}" for place in range(first, first + count)]


def wait_for(condition: Callable[..., Any], query: Any = None) -> None:
    """Until it holds. A query that fails meanwhile is the reason why it will not."""
    give_up = time.monotonic() + 500
    while not condition():
        assert time.monotonic() < give_up
        if query is not None and not query.isActive:
            query.awaitTermination()
            assert condition()
        time.sleep(0.05)


def main(told: str) -> None:
    """A driver of its own, which tells its own process id and that of its JVM when the query runs."""
    import os

    from redis_message_queue.spark import session

    given = json.loads(told)
    spark = session("a query to be killed", given["master"], **given["conf"])
    spark.sparkContext.setLogLevel("OFF")
    doomed = [spark._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()]
    options = given["options"] | {"kill": " ".join(map(str, doomed))}
    query = start(spark, Path(given["directory"]), given["trigger"], **options)
    print(json.dumps(doomed), flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
