"""A writer of Parquet without Spark, and a process that archives with it and dies where it is told to."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.spark.jobs.archive import (
    ArchiveOptions,
    Archiver,
    CompactOptions,
    Compactor,
    Written,
)
from redis_message_queue.spark.jobs.files import LocalFiles
from redis_message_queue.spark.jobs.ledger import Ledger
from redis_message_queue.spark.jobs.progress import Progress
from redis_message_queue.spark.journal import SCHEMA, Journal, QueueAddress, Span


class PlainWriter:
    """One file for each piece; with ``dies_after`` it is killed in the middle of a directory."""

    def __init__(self, address: QueueAddress | None = None, dies_after: int | None = None) -> None:
        self._address, self._dies_after = address, dies_after

    def write(self, spans: Sequence[Span], directory: str) -> Written:
        assert self._address is not None
        with Journal(self._address) as journal:
            for place, span in enumerate(spans):
                self._save(pa.Table.from_batches(journal.batches(span), SCHEMA), directory, place)
        return self._look(directory)

    def merge(self, sources: Sequence[str], directory: str, files: int) -> Written:
        table = pa.concat_tables(read_plainly(one) for one in sources).sort_by("serial")
        self._save(table, directory, 0)
        return self._look(directory)

    def _save(self, table: pa.Table, directory: str, place: int) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, f"{directory}/part-{place:05}.parquet")
        if self._dies_after == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def _look(self, directory: str) -> Written:
        rows = read_plainly(directory).sort_by("serial").select(["serial", "stream_id"]).to_pylist()
        if not rows:
            return Written(0)
        serials = [row["serial"] for row in rows]
        holes = [(one + 1, then - one - 1) for one, then in itertools.pairwise(serials) if then > one + 1]
        return Written(len(rows), serials[0], serials[-1], rows[0]["stream_id"], rows[-1]["stream_id"], tuple(holes))


def read_plainly(directory: str) -> pa.Table:
    # Not as a dataset: the names of the directories above would become columns.
    return pa.concat_tables([pq.ParquetFile(one).read() for one in sorted(Path(directory).glob("*.parquet"))])


def archived(path: str, queue: str = "orders") -> list[dict]:
    """Every entry that the newest manifest names, in the order of its directories."""
    ledger = Ledger(LocalFiles(path), queue)
    here = f"{ledger.files.root}/{ledger.directory}"
    return [row for one in ledger.read().segments for row in read_plainly(f"{here}/{one.path}").to_pylist()]


def archive_plainly(options: ArchiveOptions, on_progress=lambda progress: None, dies_after: int | None = None):
    with Journal(options) as journal:
        writer = PlainWriter(options, dies_after)
        return Archiver(journal, LocalFiles(options.path), writer, options, on_progress).run()


def compact_plainly(options: CompactOptions, on_progress=lambda progress: None, dies_after: int | None = None):
    return Compactor(LocalFiles(options.path), PlainWriter(dies_after=dies_after), options, on_progress).run()


def die_at(step: str):
    def hear(progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return hear


def run_mortal(server: EmbeddedRedis, what: str, where: str, path: str, rows: int) -> None:
    """A run in a process of its own, which must have been killed where it was told to."""
    command = [sys.executable, "-m", "tests.spark.archivist", what, where, server.url, path, str(rows)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL, ended.stderr


if __name__ == "__main__":
    what, where, url, path, rows = sys.argv[1:]
    dies_after = int(where) if where.isdigit() else None
    if what == "archive":
        options = ArchiveOptions(url=url, queue="orders", path=path, segment_rows=int(rows), partition_rows=20)
        archive_plainly(options, die_at(where), dies_after)
    else:
        compact_plainly(
            CompactOptions(queue="orders", path=path, target_rows=int(rows), grace_seconds=0), die_at(where), dies_after
        )
