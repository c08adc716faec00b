"""Sales go from the tills through two queues into a lake, Spark adds them up, and a report proves that none is missing.

python sales.py                     sell, check, load, add up, report
python sales.py DIRECTORY           the same, and keep the lake, the archive and the report there
"""

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from redis_message_queue import ReceivedMessage, RedisMessageQueue, RetryPolicy
from redis_message_queue.spark import session
from redis_message_queue.spark.driver import QUICK_START
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
from redis_message_queue.spark.jobs.report import ReportOptions, report

SHOPS, SALES, A_BATCH = ("berlin", "lagos", "lima"), 200, 50
PRICES = {"tea": 3, "cup": 8, "pot": 25}
SCHEMA = "number int, shop string, amount int, _corrupt_record string"


class UnknownProductError(Exception):
    """No price is known. To try again would not help."""


class Pipeline:
    """The two queues, the Spark session and the directory of the lake."""

    def __init__(self, url: str, client: Redis, directory: Path) -> None:
        self.url, self.directory = url, directory
        retry = RetryPolicy(max_attempts=3, initial_delay_seconds=0.05, give_up_on=(UnknownProductError,))
        # The journal of this queue is what the report is made of.
        self.sold = RedisMessageQueue("sales-sold", client=client, journal="payload", retry_policy=retry)
        self.checked = RedisMessageQueue("sales-checked", client=client)
        self.spark: SparkSession = session("sales", "local[2]", **QUICK_START)

    def sell(self) -> None:
        """Each shop publishes for itself; one till has a product that nobody knows."""
        for number in range(1, SALES + 1):
            product = "umbrella" if number % 67 == 0 else list(PRICES)[number % 3]
            shop = SHOPS[number % 2 + number % 10 // 9]
            self.sold.publish({"number": number, "product": product}, tenant=shop)

    def check(self, message: ReceivedMessage) -> None:
        """The handler: find the price, and pass the sale on in the same step as the acknowledgement."""
        sale = message.json()
        if sale["product"] not in PRICES:
            raise UnknownProductError(sale["product"])
        if sale["number"] % 40 == 0 and message.attempt == 1:
            raise TimeoutError("the price service does not answer")
        row = {"number": sale["number"], "shop": message.tenant, "amount": PRICES[sale["product"]]}
        message.complete(publish=[(self.checked, row)])

    def load(self, crash_at: int | None = None) -> None:
        """Read what is waiting in micro-batches, and write each of them to the lake under its number."""

        def write(batch: DataFrame, number: int) -> None:
            # Spark calls this again for a batch that it has not committed, so it replaces what it wrote before.
            batch.write.mode("overwrite").parquet(f"{self.directory}/lake/batch={number}")
            if number == crash_at:
                raise RuntimeError("the cluster is gone")

        stream = self.spark.readStream.format("redis_message_queue").schema(SCHEMA)
        source = stream.option("url", self.url).option("queue", "sales-checked").option("consumerGroup", "lake")
        rows = source.option("maxMessagesPerTrigger", A_BATCH).load()
        checkpoint = rows.writeStream.option("checkpointLocation", f"{self.directory}/checkpoint")
        checkpoint.trigger(availableNow=True).foreachBatch(write).start().awaitTermination()

    def lake(self) -> DataFrame:
        return self.spark.read.parquet(f"{self.directory}/lake")

    def report(self) -> Any:
        archive(self.spark, ArchiveOptions(url=self.url, queue="sales-sold", path=f"{self.directory}/archive"))
        options = ReportOptions(path=f"{self.directory}/archive", queue="sales-sold", output=f"{self.directory}/report")
        return report(self.spark, options)


def main(url: str, client: Redis, directory: Path) -> None:
    pipeline = Pipeline(url, client, directory)
    pipeline.sell()
    done = pipeline.sold.run(pipeline.check, concurrency=2, prefetch=20, until_empty=True, wait_for_retries=True)
    print(
        f"{SALES} sales: {done.handled} checked, {done.retried} tried again, {done.dead_lettered} in the dead letters"
    )

    pipeline.spark.sparkContext.setLogLevel("OFF")  # else Spark prints a hundred lines about the crash
    try:
        pipeline.load(crash_at=2)
    except StreamingQueryException:
        waiting = pipeline.checked.stats(oldest=False)
        print(f"the query crashed: {waiting.processing} sales are claimed and not acknowledged, {waiting.pending} wait")
    pipeline.spark.sparkContext.setLogLevel("WARN")
    pipeline.load()
    lake = pipeline.lake()
    different = lake.select("number").distinct().count()
    print(f"after its restart: {lake.count()} sales in the lake, {different} different ones")
    for row in lake.groupBy("shop").sum("amount").orderBy("shop").collect():
        print(f"  {row['shop']:8}{row['sum(amount)']:6}")

    result = pipeline.report()
    print(f"the report is in report/{Path(result.page).name}: {result.entries} journal entries, {result.verdict}")
    pipeline.sold.purge("dead_letters")
    pipeline.spark.stop()


if __name__ == "__main__":
    logging.getLogger("redis_message_queue").setLevel(logging.CRITICAL)  # the failures here are on purpose
    address = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    with tempfile.TemporaryDirectory() as nowhere, Redis.from_url(address, decode_responses=True) as redis:
        main(address, redis, Path(sys.argv[1] if sys.argv[1:] else nowhere))
