"""The end of the demo: Spark archives the journal of what happened, and makes a report of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis_message_queue.cli.demo.plan import QUEUE
from redis_message_queue.cli.demo.screen import Screen
from redis_message_queue.errors import MissingExtraError


@dataclass(frozen=True, slots=True)
class Told:
    """What the pipeline found, and where the page is."""

    entries: int
    verdict: str
    because: str
    page: str

    def complaints(self) -> list[str]:
        """Empty if the journal accounts for every message."""
        return [] if self.verdict == "balanced" else [f"the report is {self.verdict}: {self.because}"]

    def as_dict(self) -> dict[str, Any]:
        """For a script that reads it."""
        return {"entries": self.entries, "verdict": self.verdict, "page": self.page}


def report_on(url: str, directory: Path, screen: Screen) -> Told | None:
    """The journal into Parquet, the Parquet into a page; None where Spark is not installed."""
    try:
        from redis_message_queue.spark import session
        from redis_message_queue.spark.driver import QUICK_START
        from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
        from redis_message_queue.spark.jobs.report import ReportOptions, report
    except MissingExtraError:
        screen.say("a report of all this takes Spark: pip install 'redis-message-queue[spark]'")
        return None
    parquet, pages = str(directory / "archive"), str(directory / "report")
    screen.say("the pipeline: Spark starts, in some seconds, on this machine")
    spark = session("rmq demo", "local[2]", **QUICK_START)
    try:
        screen.say("Spark archives the journal, in which the queue's own scripts wrote down each change")
        archived = archive(spark, ArchiveOptions(url=url, queue=QUEUE, path=parquet))
        screen.say(f"{archived.rows:,} entries are Parquet now; Spark computes the report from them")
        result = report(spark, ReportOptions(path=parquet, queue=QUEUE, output=pages))
    finally:
        spark.stop()
    return Told(result.entries, result.verdict, result.because, str(directory / "report" / "report.html"))
