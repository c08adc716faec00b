"""Archives without Spark, also in a process that dies where it is told to."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive, archive_journals, journal_table
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.spark.jobs.job import JobProgress
from redis_message_queue.spark.jobs.lake import Lake
from redis_message_queue.spark.journal import StreamRange

T = TypeVar("T")
# Forks the processes that die: it has imported this module, which takes a second.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])
# For jobs on little data: the driver does that itself, and there is nothing here that could be asked for a task.
NO_SESSION: Any = None


class PlainRunner:
    """Runs the work of tasks one after the other; with ``dies_after`` it is killed after such a file of the journal."""

    def __init__(self, dies_after: int | None = None) -> None:
        self._dies_after = dies_after

    def __call__(self, slices: Sequence[T], work: Callable[[T], str | None]) -> list[str]:
        found = []
        for place, one in enumerate(slices):
            result = work(one)
            if result is not None:
                found.append(result)
            if self._dies_after == place and isinstance(one, StreamRange):
                os.kill(os.getpid(), signal.SIGKILL)
        return found


def archived(path: str, queue: str = "orders") -> list[dict]:
    """Every entry of the archive, in the order of serials."""
    table = journal_table(location_of(path))
    return table.read_locally(queue, table.schema.names, lambda _: True).sort_by("serial").to_pylist()


def archive_plainly(options: ArchiveOptions, on_progress=lambda progress: None, dies_after: int | None = None):
    location = location_of(options.path, options.storage_options)
    return archive_journals(location, PlainRunner(dies_after), options, on_progress)


def die_at(step: str):
    def hear(progress: JobProgress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return hear


def run_mortal(server: EmbeddedRedis, where: str, path: str, rows: int) -> None:
    """A run in a process of its own, which must have been killed where it was told to."""
    options = ArchiveOptions(url=server.url, queue="orders", path=path, segment_rows=rows, partition_rows=20)
    process = _FORKS.Process(target=_archive_and_die, args=(where, options))
    process.start()
    process.join(1100)
    assert process.exitcode == -signal.SIGKILL


def _archive_and_die(where: str, options: ArchiveOptions) -> None:
    archive_plainly(options, die_at(where), int(where) if where.isdigit() else None)


def archive_at_once(server: EmbeddedRedis, path: str, queues: Sequence[str], runs: int) -> list[int | None]:
    """A process for each queue, which publishes a message and archives it, and the exit status of each."""
    processes = [_FORKS.Process(target=_archive_often, args=(server.url, path, one, runs)) for one in queues]
    for process in processes:
        process.start()
    for process in processes:
        process.join(1100)
    return [process.exitcode for process in processes]


def _archive_often(url: str, path: str, queue: str, runs: int) -> None:
    publisher = RedisMessageQueue(queue, client=redis.Redis.from_url(url), journal=True)
    for number in range(runs):
        publisher.publish(f"message {number}")
        archive(NO_SESSION, ArchiveOptions(url=url, queue=queue, path=path))
        lake = Lake(location_of(path), queue)
        for table in (lake.messages, lake.minutes, lake.open_messages):  # as a refresh commits them
            files = lake.write_rows(table, "2026-09-21", [{table.file_schema.names[0]: None}])
            lake.commit(table, files, number + 1, replace=table.name == "open_messages")
