"""The Spark query of a campaign: reads a queue into Parquet until it is killed, or until the queue is empty.

python -m chaos.spark_query '{"url": …, "queue": …, "directory": …, "trigger": …}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from chaos.scenario import GROUP

# The holder of a consumer group that was killed blocks the next one for this long.
LEASE_SECONDS = 5


def main(told: dict[str, Any]) -> None:
    from redis_message_queue.spark import session
    from redis_message_queue.spark.driver import QUICK_START
    from tests.spark.streaming_query import begun

    # Two cores, and four attempts of each task: without that number Spark retries none on one machine.
    spark = session("chaos", "local[2,4]", **QUICK_START)
    spark.sparkContext.setLogLevel("OFF")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr] # it runs
    directory = Path(told["directory"])
    options = {"url": told["url"], "queue": told["queue"], "consumerGroup": GROUP, "leaseSeconds": str(LEASE_SECONDS)}
    stream = spark.readStream.format("redis_message_queue").options(**options).load()
    writer = stream.writeStream.format("parquet").option("path", str(directory / "rows"))
    query = begun(writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(**told["trigger"]))
    print(json.dumps([java, os.getpid()]), flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
