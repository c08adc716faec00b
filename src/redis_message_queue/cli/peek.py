"""rmq peek, rmq records and rmq tenants: what is in a queue, without changing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from redis_message_queue.cli.clients import node_of, time_at
from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.message_view import MessageView, Where, matches_for, search
from redis_message_queue.cli.output import Output
from redis_message_queue.protocol.operate.reader import RecordSource
from redis_message_queue.protocol.operate.record_pairs import record_of_stored
from redis_message_queue.stored.envelope import tenant_text
from redis_message_queue.values.errors import NotPermittedError

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue

_PLACES = {"processing": "in flight", "dead_letters": "in the dead letters"}
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="Show at most this many.")]


def peek(
    queue: QueueChoice,
    output: Output,
    view: MessageView,
    source: Annotated[
        Literal["pending", "processing", "delayed"], typer.Argument(metavar="SOURCE", help="Where to look.")
    ] = "pending",
    limit: Limit = 20,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only messages of this tenant.")] = None,
    where: Where = None,
) -> None:
    """Show messages that wait or are being handled, without changing anything.

    Pending messages come in the order of delivery, messages in processing by the end of their lease, and delayed ones
    by their due time. With --json, each line is a message with everything that is known of it.

    A condition is written as for `rmq redrive` and can also use due_at and consumer. It searches the first 10,000
    messages.
    """
    from redis_message_queue.protocol.operate.condition import WAITING

    if tenant is not None and source != "pending":
        raise typer.BadParameter(f"works with pending, not with {source}", param_hint="--tenant")
    matches = matches_for(where, WAITING)
    with queue.open() as opened:
        found = search(lambda count: opened.peek(count, source=source, tenant=tenant), matches, limit)
        others = "" if found or matches or tenant is not None else _others(opened, source)
    place = _PLACES.get(source, source)
    empty = f"no message is {place}{others}" if where is None else f"no matching message is {place}"
    view.show(output, found, title=f"{queue.name}: {source}", empty=empty)


def _others(queue: RedisMessageQueue, source: str) -> str:
    """Say how many messages are elsewhere in a queue that has none in the place where somebody looked."""
    try:
        stats = queue.stats(oldest=False)
    except NotPermittedError:  # a user who may look need not be allowed to count
        return ""
    counts = {name: getattr(stats, name) for name in ("pending", "processing", "delayed", "failed", "dead_letters")}
    rest = [f"{count:,} {_PLACES.get(name, name)}" for name, count in counts.items() if count and name != source]
    return f"; {', '.join(rest)}" if rest else ""


def records(
    queue: QueueChoice,
    output: Output,
    view: MessageView,
    source: Annotated[RecordSource, typer.Argument(metavar="LIST", help="Which list to show.")] = "dead_letters",
    limit: Limit = 20,
    where: Where = None,
) -> None:
    """Show messages that were handled, failed or became dead letters, the newest first.

    Each record has what is known of the message: id, tenant, deliveries, times, the reason, the error and the payload.
    If there is only one, the traceback of its handler follows. With --json, each line is a whole record.

    A condition is written as for `rmq redrive`. It searches the newest 10,000 records.
    """
    matches = matches_for(where)
    with queue.open() as opened:
        found = search(lambda count: opened.records(source, max_records=count), matches, limit)
    kind = {"dead_letters": "dead letters"}.get(source, f"{source} messages")
    empty = f"no {kind}" if where is None else f"no matching {kind}"
    view.show(output, found, title=f"{queue.name}: {kind}", empty=empty)


def tenants(queue: QueueChoice, output: Output, limit: Limit = 100) -> None:
    """Show the tenants that have pending messages, in the order of their turns.

    For each tenant: how many messages are pending, its weight (how many turns it gets in a round), how long its oldest
    message has waited, and whether the tenant is paused. Messages without a tenant are the last row. In a queue with
    partitions, these are the rows of one partition after the other. To set weights, pass `tenant_weights` to the
    consumers' queue.
    """
    with queue.open() as opened, queue.client() as client:
        rows = []
        for number in range(opened.partitions):
            part = opened.partition(number)
            mark = {"partition": number} if opened.partitions > 1 else {}
            rows += [mark | row for row in _tenant_rows(part, node_of(client, part.key.pending), limit)]
        rows = rows[:limit]
    output.table(rows, title=f"{queue.name}: tenants", empty="no tenant has pending messages")


def _tenant_rows(queue: RedisMessageQueue, node: Any, limit: int) -> Iterator[dict[str, Any]]:
    # By the bytes of their names: a name that is not UTF-8 is shown in another form.
    waiting = queue.tenants(max_tenants=limit)
    ring = {tenant_text(name): name for name in node.zrange(queue.key.tenant_ring, 0, limit) if name}
    known = {name: ring[name] for name in waiting if name in ring}
    weights = node.hmget(queue.key.weights, list(known.values())) if known else []
    paused = node.hmget(queue.key.meta, [b"paused:" + raw for raw in known.values()]) if known else []
    lines: list[str | bytes] = [queue.key.tenant_pending("").encode() + raw for raw in known.values()]
    counts: list[tuple[str | None, int]] = [(name, waiting[name]) for name in known]
    if without := node.llen(queue.key.pending):
        counts.append((None, without))
        weights.append(None)
        paused.append(None)
        lines.append(queue.key.pending)
    for (name, count), weight, since, age in zip(counts, weights, paused, _ages(node, lines), strict=True):
        yield {
            "tenant": name,
            "pending": count,
            "weight": _weight(weight),
            "oldest_pending_seconds": age,
            "paused": since is not None,
        }


def _weight(stored: bytes | None) -> int | None:
    """None for something that is not a number: another program has written it."""
    try:
        return int(stored or 1)
    except ValueError:
        return None


def _ages(node: Any, lines: list[str | bytes]) -> Iterator[float | None]:
    """How long the first message of each list has waited, by the server's clock."""
    with node.pipeline(transaction=False) as pipe:
        for line in lines:
            pipe.lindex(line, -1)
        heads = pipe.execute()
    now = time_at(node)
    for stored in heads:
        published = None if stored is None else record_of_stored(stored, decode=False).published_at
        yield None if published is None else max(0.0, (now - published).total_seconds())
