"""rmq cancel: cancels messages by their ids."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.protocol.operate.trace import check_id


def cancel(
    queue: QueueChoice,
    output: Output,
    message_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="The ids of the messages: 32 hexadecimal digits.", show_default=False),
    ],
) -> ExitStatus | None:
    """Cancel messages by their ids, and say what became of each.

    A delayed message is gone at once (`cancelled`). A message that waits is marked (`marked`), and the claim that meets
    it drops it. A message that a consumer has is left alone (`in_flight`). An id is `unknown` if nothing waits in the
    queue; while other messages wait, it is marked, because no list is searched.

    The exit status is 1 if a message was in flight or unknown.
    """
    for one in message_ids:
        check_id(one)  # all of them before the first is cancelled
    with queue.open() as opened:
        rows = [{"id": one, "outcome": opened.cancel(one)} for one in message_ids]
    output.table(rows)
    return None if all(row["outcome"] in ("cancelled", "marked") for row in rows) else ExitStatus.FAILED
