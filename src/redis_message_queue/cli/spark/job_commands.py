"""The commands of rmq spark that run a job, each in its own Spark session."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from redis_message_queue.cli.common_options import QueueChoice, ServerChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.message_view import Where
from redis_message_queue.cli.output import Output
from redis_message_queue.cli.spark.spark_options import (
    ArchivedQueue,
    ArchivePath,
    PublishingOptions,
    ReportingOptions,
    SessionOptions,
    StorageOptions,
    address_of,
    job_option,
    pair,
    storage_of,
)
from redis_message_queue.spark.job_options import (
    AcknowledgeOptions,
    ArchiveOptions,
    BackfillOptions,
    CompactOptions,
    FileFormat,
    OverviewOptions,
    RefreshOptions,
    ReplayOptions,
    ReportOptions,
)
from redis_message_queue.spark.options import declared_options

if TYPE_CHECKING:
    from redis_message_queue.spark.jobs.job import JobProgress, OnProgress


_MOST_QUEUES = 10_000


def _run(job: Callable[..., Any], options: Any, spark: SessionOptions, output: Output) -> Any:
    with _shown_progress(output) as on_progress, spark.session(job.__name__) as session:
        return job(session, options, on_progress)


@contextlib.contextmanager
def _shown_progress(output: Output, first: str = "Starting Spark") -> Iterator[OnProgress]:
    """Show progress on stderr: a bar on a terminal, else a line per step, and nothing with --json."""
    if output.json or not sys.stderr.isatty():
        output.say(f"{first} ...")
        yield lambda progress: output.say(f"  {progress}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)

        def show(progress: JobProgress) -> None:
            bar.update(task, description=str(progress), total=progress.total, completed=progress.done)

        yield show


def archive(
    queue: QueueChoice,
    path: ArchivePath,
    spark: SessionOptions,
    output: Output,
    storage: StorageOptions = None,
    inventory: Annotated[bool, job_option(ArchiveOptions, "inventory", None, "--inventory/--no-inventory")] = True,
) -> None:
    """Archive the journal of a queue as a Delta table.

    The queue must have been opened with `journal=True`, or with `journal="payload"` if you want
    to replay messages from the archive. Run the command as often as you like: it adds each entry once, at whatever
    moment a run dies, and the journal is trimmed up to what is archived. A few thousand entries need no Java.
    """
    options = ArchiveOptions(**address_of(queue), path=path, storage_options=storage_of(storage), inventory=inventory)
    (result,) = _archive([options], spark, output)
    output.document(result)


def archive_all(
    server: ServerChoice, path: ArchivePath, spark: SessionOptions, output: Output, storage: StorageOptions = None
) -> None:
    """Archive every queue of a server that has a journal, as `rmq spark archive` does, in one session.

    The queues are those of `rmq queues`.
    """
    from redis.cluster import RedisCluster

    from redis_message_queue import queues as registered_queues

    chosen = []
    with server.client() as client:
        cluster = isinstance(client, RedisCluster)
        for one in registered_queues(client, max_queues=_MOST_QUEUES):
            options = ArchiveOptions(
                url=server.url,
                queue=one.name,
                key_separator=one.key_separator,
                dead_letter_queue=one.dead_letter_queue,
                cluster=cluster,
                path=path,
                storage_options=storage_of(storage),
            )
            if client.hexists(options.keys.meta, "journal"):
                chosen.append(options)
    output.table(_archive(chosen, spark, output), empty="no queue of this server has a journal")


def _archive(chosen: list[ArchiveOptions], spark: SessionOptions, output: Output) -> list[dict[str, Any]]:
    """Archive queues, and start Spark only for the first that has much to archive."""
    from redis_message_queue.spark.jobs.archive import archive as run
    from redis_message_queue.spark.jobs.archive import fits_in_driver
    from redis_message_queue.spark.jobs.archive_tables import location_of

    results = []
    with contextlib.ExitStack() as stack:
        on_progress = stack.enter_context(_shown_progress(output, "Archiving"))
        session = None
        for options in chosen:
            location = location_of(options.path, options.storage_options)
            if session is None and not (spark.is_local and fits_in_driver(location, options)):
                session = stack.enter_context(spark.session("archive"))
            results.append(run(session, options, on_progress).as_dict())
    return results


def compact(
    name: ArchivedQueue,
    path: ArchivePath,
    output: Output,
    storage: StorageOptions = None,
    keep_days: Annotated[int | None, job_option(CompactOptions, "keep_days", "N", min=1)] = None,
    grace_seconds: Annotated[
        float, job_option(CompactOptions, "grace_seconds", "SECONDS", min=0, show_default=True)
    ] = CompactOptions.grace_seconds,
) -> None:
    """Merge the small files of an archive into large ones, and delete what is older than --keep-days.

    Needs no Spark. Without --keep-days no entry is changed or lost.
    """
    from redis_message_queue.spark.jobs.archive import compact as run

    options = CompactOptions(
        path=path,
        queue=name,
        storage_options=storage_of(storage),
        keep_days=keep_days,
        grace_seconds=grace_seconds,
    )
    output.document(run(options).as_dict())


def refresh(
    name: ArchivedQueue, path: ArchivePath, spark: SessionOptions, output: Output, storage: StorageOptions = None
) -> None:
    """Bring the tables `messages`, `open_messages` and counts of an archive up to its journal.

    `report`, `overview` and `replay` begin with it. Run it by itself if other programs read these tables.
    """
    from redis_message_queue.spark.jobs.refresh import refresh as run

    options = RefreshOptions(path=path, queue=name, storage_options=storage_of(storage))
    output.document(_run(run, options, spark, output).as_dict())


def acknowledge(
    name: ArchivedQueue,
    path: ArchivePath,
    spark: SessionOptions,
    output: Output,
    reason: Annotated[str, job_option(AcknowledgeOptions, "reason", "TEXT")],
    storage: StorageOptions = None,
) -> ExitStatus | None:
    """Account for what a report calls unbalanced or unknown, such as messages that a flush has lost.

    Later reports are about what happens from here on, and show the reason. The exit status is 1 if the verdict is not
    `balanced` afterwards.
    """
    from redis_message_queue.spark.jobs.report import acknowledge as run

    options = AcknowledgeOptions(path=path, queue=name, storage_options=storage_of(storage), reason=reason)
    result = _run(run, options, spark, output)
    output.document(result.as_dict())
    return None if result.verdict == "balanced" else ExitStatus.FAILED


def report(
    name: ArchivedQueue,
    path: ArchivePath,
    spark: SessionOptions,
    output: Output,
    given: ReportingOptions,
) -> ExitStatus | None:
    """Report from an archive what went through a queue: a page, and each table as Parquet and JSON.

    Throughput by the minute, waiting and handler times, duplicates, redeliveries, failures, dead letters, what each
    tenant got, and whether every published message is accounted for. The exit status is 1 if one is not, or if that
    cannot be known because entries are missing.
    """
    from redis_message_queue.spark.jobs.report import report as run

    options = ReportOptions(path=path, queue=name, **given.job_options(path))
    result = _run(run, options, spark, output)
    if output.json:
        output.line(result.as_dict())
    else:
        output.document({name: getattr(result, name) for name in ("queue", "entries", "verdict", "because", "page")})
    return None if result.verdict == "balanced" else ExitStatus.FAILED


def overview(
    path: ArchivePath,
    spark: SessionOptions,
    output: Output,
    given: ReportingOptions,
    queues: Annotated[
        list[str] | None,
        job_option(OverviewOptions, "queues", "NAME", "--queue", help="A queue; else all archived. Repeatable."),
    ] = None,
) -> ExitStatus | None:
    """Report on several queues of an archive: a page that compares them, with a link to the report of each.

    The exit status is 1 unless every message of every queue is accounted for.
    """
    from redis_message_queue.spark.jobs.report import overview as run

    options = OverviewOptions(path=path, queues=tuple(queues or ()), **given.job_options(path))
    result = _run(run, options, spark, output)
    if output.json:
        output.line(result.as_dict())
    else:
        for one in result.reports:
            output.document({name: getattr(one, name) for name in ("queue", "entries", "verdict", "because")})
        output.document({"page": result.page})
    return None if result.verdict == "balanced" else ExitStatus.FAILED


def replay(
    queue: QueueChoice,
    spark: SessionOptions,
    publishing: PublishingOptions,
    output: Output,
    where: Where = None,
    archive: Annotated[str | None, job_option(ReplayOptions, "archive", "PATH")] = None,
    storage: StorageOptions = None,
    since: Annotated[str | None, job_option(ReplayOptions, "since", "TIME")] = None,
    until: Annotated[str | None, job_option(ReplayOptions, "until", "TIME")] = None,
    into: Annotated[str | None, job_option(ReplayOptions, "into", "QUEUE")] = None,
    again: Annotated[bool, job_option(ReplayOptions, "again", None, "--again")] = False,
    repetition: Annotated[str | None, job_option(ReplayOptions, "name", "NAME", "--name")] = None,
    limit: Annotated[int | None, job_option(ReplayOptions, "limit", "N", min=1)] = None,
    rate: Annotated[float | None, job_option(ReplayOptions, "rate", "N", min=0.001)] = None,
    dry_run: Annotated[bool, job_option(ReplayOptions, "dry_run", None, "--dry-run")] = False,
) -> None:
    """Publish dead letters or archived messages again, each once.

    A new message has the id of the one it repeats, which stays where it is. If you run a replay again, after a crash,
    by mistake or with another condition, messages that were replayed before are suppressed, unless you give --again.

    Conditions are those of `rmq redrive`: --where "tenant == 'acme' and 'timeout' in error". For archived messages they
    can also use state (such as 'acked' or 'dead') and failures, but not claimed_at.
    """
    from redis_message_queue.spark.jobs.replay import replay as run

    options = ReplayOptions(
        **address_of(queue),
        **asdict(publishing),
        archive=archive,
        storage_options=storage_of(storage),
        since=since,
        until=until,
        where=where,
        again=again,
        name=repetition,
        into=into,
        limit=limit,
        rate=rate,
        dry_run=dry_run,
    )
    output.document(_run(run, options, spark, output).as_dict())


def backfill(
    queue: QueueChoice,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help=declared_options(BackfillOptions)["source"].description)
    ],
    spark: SessionOptions,
    publishing: PublishingOptions,
    output: Output,
    form: Annotated[
        str | None,
        job_option(
            BackfillOptions,
            "format",
            "FORMAT",
            "--format",
            help="json, text, csv, parquet or table. Default: by the name of the file.",
        ),
    ] = None,
    payload_column: Annotated[str | None, job_option(BackfillOptions, "payload_column", "NAME")] = None,
    dedup_key_column: Annotated[str | None, job_option(BackfillOptions, "dedup_key_column", "NAME")] = None,
    tenant_column: Annotated[str | None, job_option(BackfillOptions, "tenant_column", "NAME")] = None,
    schema: Annotated[str | None, job_option(BackfillOptions, "schema", "DDL")] = None,
    reader: Annotated[
        list[str] | None,
        job_option(
            BackfillOptions,
            "reader_options",
            "NAME=VALUE",
            "--option",
            help="An option of Spark's own reader. Can be repeated.",
        ),
    ] = None,
    label: Annotated[str | None, job_option(BackfillOptions, "name", "NAME", "--name")] = None,
    restart: Annotated[bool, job_option(BackfillOptions, "restart", None, "--restart")] = False,
) -> None:
    """Publish the rows of files or of a table, each once, also if you have to run the command again."""
    from redis_message_queue.spark.jobs.backfill import backfill as run

    options = BackfillOptions(
        **address_of(queue),
        **asdict(publishing),
        source=source,
        format=cast("FileFormat", form or _format_of(source)),  # checked there
        payload_column=payload_column,
        dedup_key_column=dedup_key_column,
        tenant_column=tenant_column,
        schema=schema,
        reader_options=dict(pair("--option", one) for one in reader or ()),
        name=label,
        restart=restart,
    )
    output.document(_run(run, options, spark, output).as_dict())


_SUFFIXES = {"json": "json", "jsonl": "json", "ndjson": "json", "txt": "text", "csv": "csv", "parquet": "parquet"}


def _format_of(source: str) -> str:
    """Return the format by the suffix of the name, compressed or not."""
    for part in reversed(source.rstrip("/").rsplit("/", 1)[-1].lower().split(".")[1:]):
        if part in _SUFFIXES:
            return _SUFFIXES[part]
    raise typer.BadParameter(
        f"the name {source!r} has no known suffix; choose json, text, csv, parquet or table", param_hint="--format"
    )
