"""rmq redrive: dead letters, or failed messages, become messages again."""

from typing import Annotated, Literal

import typer

from redis_message_queue.cli.frame import CommandLine, ExitStatus, Output, QueueChoice, say
from redis_message_queue.cli.message_view import MessageView
from redis_message_queue.cli.where import Where

app = CommandLine()


@app.command()
def redrive(
    queue: QueueChoice,
    output: Output,
    view: MessageView,
    source: Annotated[
        Literal["dead_letters", "failed"],
        typer.Option("--from", help="The list whose messages go back.", show_default=True),
    ] = "dead_letters",
    where: Where = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--ids", metavar="ID,...", help="Only these, by their ids; may be given again.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="How many at the most, the oldest first.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which would go, and change nothing.", show_default=False)
    ] = False,
    respect_deduplication: Annotated[
        bool,
        typer.Option(
            "--respect-deduplication",
            help="Leave those whose content was published again meanwhile, in a queue that deduplicates by content.",
            show_default=False,
        ),
    ] = False,
) -> ExitStatus | None:
    """Make dead letters messages again, with a fresh id and a fresh delivery budget.

    With --from failed the messages of the failed list go back instead.

    A condition speaks of payload, id, tenant, delivery_count, published_at, claimed_at, finished_at, reason,
    error_type, error, replay_of, headers, and of json, which is the payload parsed:

    --where "tenant == 'acme' and 'timeout' in error"

    --where "json['customer']['country'] in ['AT', 'DE'] and finished_at >= '2030-01-31T12:00'"

    It can have and, or, not, comparisons, in, is None, lists, and .lower(), .startswith() and .endswith() of texts.
    What is not known of a letter is None, which is equal to None alone and neither more nor less than anything. Times
    without a zone are UTC. It is never run as Python.

    The exit status is 1 if one of the --ids is not in that list.
    """
    from redis_message_queue.cli.redrive.selection import Selection, checked_ids

    wanted = checked_ids(ids)
    chosen = Selection(where, wanted, output, view, show=dry_run)
    options = {"deduplication": True} if respect_deduplication else {}
    with queue.open(text=True, **options) as opened:
        redrive_list = opened.redrive_failed if source == "failed" else opened.redrive_dead_letters
        summary = redrive_list(
            max_messages=len(wanted) if limit is None and wanted else limit,
            where=chosen,
            dry_run=dry_run,
            respect_deduplication=respect_deduplication,
        )
    chosen.finish(summary)
    if missing := chosen.missing if limit is None else ():
        messages = "failed messages" if source == "failed" else "dead letters"
        say(f"rmq redrive: not among the {messages}, or ruled out by --where: {', '.join(missing)}")
        return ExitStatus.NO
    return None
