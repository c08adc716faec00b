"""rmq queues: the queues of a server, with how many messages each has where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.common_options import ServerChoice
from redis_message_queue.cli.output import Output, to_dict

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue


def _row(name: str, queue: RedisMessageQueue) -> dict[str, Any]:
    counts = to_dict(queue.stats(oldest=False))
    del counts["oldest_pending_seconds"]
    return {"queue": name, "partitions": queue.partitions} | counts


def queues(
    server: ServerChoice,
    output: Output,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="How many queues to show at most.")
    ] = 1_000,
) -> None:
    """List the queues of a server, with how many messages each of them has where.

    A queue registers itself at its first contact with the server, as far as its Redis user may do that, so a queue can
    be missing here that exists. `rmq stats` shows more about a queue, such as the age of its oldest message.
    """
    from redis_message_queue import open_registered
    from redis_message_queue import queues as registered_queues

    with server.client() as client:
        found = registered_queues(client, max_queues=limit)
        rows = [_row(one.name, open_registered(one, client)) for one in found]
    output.table(rows, empty="no queue is registered on this server")
