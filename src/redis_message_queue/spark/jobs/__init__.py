"""The jobs of the data pipeline: archive a queue's journal, report on it, replay messages, backfill a queue.

from redis_message_queue.spark import session
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive

archive(session("archive"), ArchiveOptions(url="redis://localhost", queue="orders", path="archive"))

Each job is a function of a Spark session, its options, and a callback that hears of its progress; its result has
`as_dict()`.
"""

from redis_message_queue.spark.extra import require_extra

require_extra()  # before an import of a job says it badly
