"""A data source around the stream reader that can be made to die, and a program that runs it into Parquet.

Run as a program it is a driver of its own, to be killed: see test_source.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FORMAT = "queue_under_test"


def source_class() -> type:
    """Made inside a function, so that it travels to the workers as it is: these need not find the tests."""
    import os
    import signal
    from types import SimpleNamespace

    import pyarrow as pa
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.pandas.types import to_arrow_schema

    from redis_message_queue.envelope import Envelope
    from redis_message_queue.spark.source import QueueStreamReader

    class Rows:
        def __init__(self, schema: Any, queue: str) -> None:
            self.schema, self.queue = schema, queue

        def batch(self, stored: Any, delivery_counts: Any) -> Any:
            messages = [Envelope(one) for one in stored]
            columns = (
                [one.id.hex() for one in messages],
                [one.payload for one in messages],
                [one.tenant for one in messages],
                [int(one.published_at * 1_000_000) for one in messages],
                delivery_counts,
                [self.queue] * len(messages),
            )
            schema = to_arrow_schema(self.schema, timezone="UTC")
            arrays = [pa.array(values, one.type) for values, one in zip(columns, schema, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

    class MortalReader(QueueStreamReader):
        """Dies at a place such as `partitions 2`: in this method, when the offset is number 2.

        Those who die with it are the processes named in `kill`; without any it is the reader's process alone.
        """

        def __init__(self, options: Any, rows: Any) -> None:
            super().__init__(options, rows)
            self.die, self.kill = options.die, options.kill

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
                    self.die_at("read", {"number": partition.number})
                yield batch

        def die_at(self, place: str, offset: Any) -> None:
            if self.die != f"{place} {offset['number']}":
                return
            if place == "read":
                from pyspark import TaskContext

                if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr] # it is a task
                    raise OSError("this attempt fails")
                return
            for process in self.kill or [os.getpid()]:
                os.kill(process, signal.SIGKILL)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "queue_under_test"

        def schema(self) -> str:
            return (
                "id string, payload string, tenant string, published_at timestamp, delivery_count bigint, queue string"
            )

        def streamReader(self, schema: Any) -> Any:
            told = self.options
            options = SimpleNamespace(
                url=told["url"],
                queue=told["queue"],
                consumer_group=told.get("consumerGroup", "reports"),
                max_messages_per_trigger=int(told.get("maxMessagesPerTrigger", 100_000)),
                min_partitions=int(told["minPartitions"]) if "minPartitions" in told else None,
                lease_seconds=float(told.get("leaseSeconds", 1)),
                fail_on_data_loss=told.get("failOnDataLoss", "true") == "true",
                die=told.get("die"),
                kill=[int(one) for one in told.get("kill", "").split()],
            )
            return MortalReader(options, Rows(schema, options.queue))

    return Source


def start(spark: Any, directory: Path, trigger: dict[str, Any], **options: Any) -> Any:
    """A query from the queue into Parquet; its checkpoint is beside it."""
    spark.dataSource.register(source_class())
    stream = spark.readStream.format(FORMAT).options(**{name: str(value) for name, value in options.items()}).load()
    writer = stream.writeStream.format("parquet").option("path", str(directory / "rows"))
    return writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(**trigger).start()


def main(told: str) -> None:
    """A driver of its own, which tells its own process id and that of its JVM when the query runs."""
    import os

    from redis_message_queue.spark import session

    given = json.loads(told)
    spark = session("a query to be killed", "local[2]", **given["conf"])
    spark.sparkContext.setLogLevel("OFF")
    doomed = [spark._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()]
    options = given["options"] | {"kill": " ".join(map(str, doomed))}
    query = start(spark, Path(given["directory"]), given["trigger"], **options)
    print(json.dumps(doomed), flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
