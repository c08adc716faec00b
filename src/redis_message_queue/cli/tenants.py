"""rmq tenants: who waits in a queue, for how much and since when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.frame import CommandLine, Output, QueueChoice
from redis_message_queue.cli.node import node_of, time_at
from redis_message_queue.envelope import tenant_text
from redis_message_queue.protocol.records import record_of_stored

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue

app = CommandLine()


@app.command()
def tenants(
    queue: QueueChoice,
    output: Output,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many tenants at the most.")
    ] = 100,
) -> None:
    """Show the tenants with waiting messages, whose turn is next first.

    For each: how many messages wait, its weight (how many turns it has where others have one) and how long the first of
    its line has waited. Messages without a tenant have one line together, the last row. A weight is given to consumers,
    by their option `tenant_weights`.
    """
    with queue.open() as opened, queue.client() as client:
        rows = list(_rows(opened, node_of(client, opened.key.pending), limit))
    output.table(rows, title=f"{queue.name}: tenants", empty="nobody waits")


def _rows(queue: RedisMessageQueue, node: Any, limit: int) -> Iterator[dict[str, Any]]:
    # By their bytes: a name need not be UTF-8, and is not what is shown then.
    waiting = queue.tenants(max_tenants=limit)
    ring = {tenant_text(name): name for name in node.zrange(queue.key.tenants, 0, limit) if name}
    known = {name: ring[name] for name in waiting if name in ring}
    weights = node.hmget(queue.key.weights, list(known.values())) if known else []
    lines: list[str | bytes] = [queue.key.line("").encode() + raw for raw in known.values()]
    counts: list[tuple[str | None, int]] = [(name, waiting[name]) for name in known]
    if without := node.llen(queue.key.pending):
        counts.append((None, without))
        weights.append(None)
        lines.append(queue.key.pending)
    for (name, count), weight, age in zip(counts, weights, _ages(node, lines), strict=True):
        yield {"tenant": name, "pending": count, "weight": _weight(weight), "oldest_pending_seconds": age}


def _weight(stored: bytes | None) -> int | None:
    """None for what is no number: somebody else has written it."""
    try:
        return int(stored or 1)
    except ValueError:
        return None


def _ages(node: Any, lines: list[str | bytes]) -> Iterator[float | None]:
    """By the server's clock, how long the first message of each line has waited."""
    with node.pipeline(transaction=False) as pipe:
        for line in lines:
            pipe.lindex(line, -1)
        heads = pipe.execute()
    now = time_at(node)
    for stored in heads:
        published = None if stored is None else record_of_stored(stored, decode=False).published_at
        yield None if published is None else max(0.0, (now - published).total_seconds())
