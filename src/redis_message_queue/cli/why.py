"""rmq why: why a message is not done, or what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.values.plain_values import printable


def why(
    queue: QueueChoice,
    output: Output,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the message: 32 hexadecimal digits.", show_default=False)
    ],
) -> ExitStatus | None:
    """Explain in one sentence why a message is not done, or what became of it.

    It says what the message waits for: others before it, a limit, a pause, a delay, a retry, a worker; who has it; or
    how it ended. Below are the facts. With a journal it knows more. The exit status is 1 if nothing is known of the
    message.
    """
    with queue.open() as opened:
        found = opened.why(message_id)
    if output.json:
        output.line(found)
    else:
        print(printable(found.sentence[0].upper() + found.sentence[1:] + "."))
        output.document({name: value for name, value in found.facts.items() if value is not None})
    return ExitStatus.FAILED if found.cause == "unknown" else None
