"""The jobs of the data pipeline: archive a queue's journal, report on it, replay messages, backfill a queue.

from redis_message_queue.spark import session
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive

archive(session("archive"), ArchiveOptions(url="redis://localhost", queue="orders", path="archive"))

Each job is a function of a Spark session, its options, and a callback for its progress. Its result has `as_dict()`.
"""

from redis_message_queue.spark import require_extra

require_extra()  # before the import of a job fails with a worse error
