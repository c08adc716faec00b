"""rmq spark archive, compact, report, replay and backfill: what went through a queue, kept, told and sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from redis_message_queue.cli.frame import ExitStatus, Output, QueueChoice
from redis_message_queue.cli.spark.choices import Archive, Named, PublishChoice, SparkChoice, address_of, pair
from redis_message_queue.cli.spark.watching import watched
from redis_message_queue.cli.where import Where

if TYPE_CHECKING:
    from redis_message_queue.spark.jobs.backfill import Format


def _run(job: Callable[..., Any], options: Any, spark: SparkChoice, output: Output) -> Any:
    """One job in a session of its own, watched."""
    with watched(output, "Spark starts") as tell, spark.session(job.__name__) as session:
        return job(session, options, tell)


def archive(queue: QueueChoice, path: Archive, spark: SparkChoice, output: Output) -> None:
    """Add to an archive of Parquet files what the journal of a queue has and the archive has not.

    The queue must have been opened with [bold]journal=True[/bold], or with [bold]journal="payload"[/bold] for archives
    to replay from. Run it as often as you like: nothing is added twice, whatever moment a run dies at, and the journal
    is cut up to what is archived.
    """
    from redis_message_queue.spark.jobs.archive import ArchiveOptions
    from redis_message_queue.spark.jobs.archive import archive as run

    options = ArchiveOptions(**address_of(queue), path=path)
    output.document(_run(run, options, spark, output).as_dict())


def compact(name: Named, path: Archive, spark: SparkChoice, output: Output) -> None:
    """Put the small files of an archive together into large ones; no entry is added, changed or lost."""
    from redis_message_queue.spark.jobs.archive import CompactOptions
    from redis_message_queue.spark.jobs.archive import compact as run

    options = CompactOptions(path=path, queue=name)
    output.document(_run(run, options, spark, output).as_dict())


def report(
    name: Named,
    path: Archive,
    spark: SparkChoice,
    output: Output,
    into: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where it goes; PATH-report if you do not say."),
    ] = None,
) -> ExitStatus | None:
    """Tell from an archive what went through a queue: a page, tables in Parquet, and JSON.

    Throughput by the minute, waiting and processing times, duplicates, redeliveries, failures, dead letters, the share
    of each tenant, and whether every message that was published is accounted for. The exit status is 1 if it is not, or
    if that cannot be known because entries are missing.
    """
    from redis_message_queue.spark.jobs.report import ReportOptions
    from redis_message_queue.spark.jobs.report import report as run

    options = ReportOptions(path=path, queue=name, output=into or f"{path.rstrip('/')}-report")
    result = _run(run, options, spark, output)
    if output.json:
        output.line(result.as_dict())
    else:
        output.document({name: getattr(result, name) for name in ("queue", "entries", "verdict", "because", "page")})
    return None if result.verdict == "balanced" else ExitStatus.NO


def replay(
    queue: QueueChoice,
    spark: SparkChoice,
    publishing: PublishChoice,
    output: Output,
    where: Where = None,
    archive: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Choose among the messages of this archive; else among the dead letters."),
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Publish into another queue.", show_default=False)
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="A name for this replay, in place of its condition.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many at the most.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="So many a second.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count them and show some ids.", show_default=False)
    ] = False,
) -> None:
    """Publish dead letters or archived messages again, each once for its selection.

    A new message knows which one it repeats. What was selected stays where it is. Run the same replay again, after a
    crash or by mistake, and what was published before is suppressed.

    A condition is written as for `rmq redrive`: --where "tenant == 'acme' and 'timeout' in error". Of a message in an
    archive it can ask for state (such as 'acked' or 'dead') and failures too, and not for claimed_at.
    """
    from redis_message_queue.spark.jobs.replay import ReplayOptions
    from redis_message_queue.spark.jobs.replay import replay as run

    options = ReplayOptions(
        **address_of(queue),
        source="dead_letters" if archive is None else "archive",
        path=archive,
        where=where,
        name=selection,
        into=into,
        max_messages=limit,
        rate=rate,
        dry_run=dry_run,
        **publishing.options(),
    )
    output.document(_run(run, options, spark, output).as_dict())


def backfill(
    queue: QueueChoice,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Files, by a path or a pattern, or a table.")],
    spark: SparkChoice,
    publishing: PublishChoice,
    output: Output,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="json, csv, parquet or table; else by the name of the file."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload-column", metavar="NAME", help="The payloads; else each row is a JSON object.", show_default=False
        ),
    ] = None,
    dedup_key: Annotated[
        str | None,
        typer.Option(
            "--dedup-key-column",
            metavar="NAME",
            help="The deduplication keys; else made of file and content.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant-column", metavar="NAME", help="The tenants.", show_default=False)
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL", help='The columns as Spark writes them: "id bigint, name string".', show_default=False
        ),
    ] = None,
    reader: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="An option of Spark's reader; may be given often.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Under which progress is kept; else the source.", show_default=False
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Read files again that are done.", show_default=False)
    ] = False,
) -> None:
    """Publish the rows of files or of a table, each once, also when it has to be run again."""
    from redis_message_queue.spark.jobs.backfill import BackfillOptions
    from redis_message_queue.spark.jobs.backfill import backfill as run

    options = BackfillOptions(
        **address_of(queue),
        source=source,
        format=cast("Format", form or _format_of(source)),  # checked there
        payload_column=payload,
        dedup_key_column=dedup_key,
        tenant_column=tenant,
        schema=schema,
        reader_options=dict(pair("--option", one) for one in reader or ()),
        name=label,
        restart=restart,
        **publishing.options(),
    )
    output.document(_run(run, options, spark, output).as_dict())


_SUFFIXES = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}


def _format_of(source: str) -> str:
    """By the ending of the name, compressed or not."""
    for part in reversed(source.rstrip("/").rsplit("/", 1)[-1].lower().split(".")[1:]):
        if part in _SUFFIXES:
            return _SUFFIXES[part]
    raise typer.BadParameter(
        f"the name {source!r} does not tell: add one of json, csv, parquet or table", param_hint="--format"
    )
