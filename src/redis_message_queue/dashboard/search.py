"""Finds messages for a page, in bounded steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard.sample import Sampler
from redis_message_queue.protocol.operate.condition import RECORD, WAITING, condition
from redis_message_queue.protocol.operate.operator import in_order
from redis_message_queue.protocol.operate.reader import PeekSource
from redis_message_queue.protocol.operate.record_pairs import record_of_stored
from redis_message_queue.values.messages import MessageRecord
from redis_message_queue.values.plain_values import decoded

Matcher = Callable[[MessageRecord], bool]

SOURCES: dict[str, str] = {
    "pending": "Waiting",
    "processing": "In flight",
    "delayed": "Delayed",
    "failed": "Failed",
    "dead_letters": "Dead letters",
    "completed": "Completed",
}
REDRIVEN: tuple[Literal["dead_letters", "failed"], ...] = ("dead_letters", "failed")
CANCELLED = ("pending", "delayed")  # whose messages can be cancelled
SEARCHED_MESSAGES = 10_000
_SEARCHED_BYTES = 32 * 1024 * 1024
_FIRST_STEP, _GROWTH = 50, 4


@dataclass(frozen=True, slots=True)
class Found:
    """Messages that match, and how many were searched; ``is_all`` if that was the whole list."""

    records: list[MessageRecord]
    searched: int
    is_all: bool
    partitions: Mapping[str | None, int] = field(default_factory=dict)  # of the messages, by their ids


def matcher(text: str, where: str, source: str) -> Matcher | None:
    """Return a check for messages that contain a text and fulfil a condition; None if both are empty.

    Raises:
        ConfigurationError: The condition cannot be read.
    """
    checks: list[Matcher] = []
    if text:
        checks.append(lambda record: _contains(record, text.lower()))
    if where:
        checks.append(condition(where, RECORD if source in REDRIVEN else WAITING, option="condition"))
    return (lambda record: all(check(record) for check in checks)) if checks else None


def _contains(record: MessageRecord, text: str) -> bool:
    payload = record.payload
    if isinstance(payload, bytes):
        payload = decoded(payload)
    parts = (record.id, record.tenant, record.reason, record.error_type, record.error, record.replay_of, payload)
    return any(part is not None and text in part.lower() for part in (*parts, *(record.headers or {}).values()))


async def search(
    read: Callable[[int], Awaitable[list[MessageRecord]]], matches: Matcher | None, limit: int, share: int = 1
) -> Found:
    """Return the first messages that match; ``read(n)`` returns the first n of all.

    It stops at 10,000 messages or about 32 MB, or one ``share`` of that: a page must not cost more.
    """
    depth = limit if matches is None else max(limit, _FIRST_STEP)
    while True:
        seen = await read(depth)
        found = [record for record in seen if matches is None or matches(record)][:limit]
        is_all = len(seen) < depth
        size = sum(len(record.payload or "") + 1 for record in seen)
        most_messages = _SEARCHED_BYTES // share / max(size / max(len(seen), 1), 1)
        next_depth = min(SEARCHED_MESSAGES // share, depth * _GROWTH, int(most_messages))
        if len(found) == limit or is_all or matches is None or next_depth <= depth:
            return Found(found, len(seen), is_all)
        depth = next_depth


async def messages_of(
    queues: Sequence[RedisMessageQueue], source: str, matches: Matcher | None, limit: int, tenant: str | None = None
) -> Found:
    """Return the next messages of a source that match, in a queue or in all of its partitions."""
    if len(queues) == 1:
        return await _messages_of(queues[0], source, matches, limit, tenant)
    parts = [await _messages_of(queue, source, matches, limit, tenant, len(queues)) for queue in queues]
    return Found(
        in_order([part.records for part in parts], source)[:limit],
        sum(part.searched for part in parts),
        all(part.is_all for part in parts),
        {record.id: number for number, part in enumerate(parts) for record in part.records},
    )


async def _messages_of(
    queue: RedisMessageQueue,
    source: str,
    matches: Matcher | None,
    limit: int,
    tenant: str | None = None,
    share: int = 1,
) -> Found:
    place: PeekSource = source  # type: ignore[assignment]  # peek checks it
    return await search(lambda depth: queue.peek(depth, source=place, tenant=tenant), matches, limit, share)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message is now."""

    source: str
    record: MessageRecord
    partition: int  # 0 in a queue without partitions


async def locate(samplers: Sequence[Sampler], message_id: str, likely: str) -> Place | None:
    """Return where a message is: in the likely source, or in whichever has it now.

    In flight and delayed it is found at once, else among the first 10,000.
    """
    for source in sorted(SOURCES, key=lambda one: one != likely):
        for number, sampler in enumerate(samplers):
            record = await _find(sampler, source, message_id, len(samplers))
            if record is not None:
                return Place(source, record, number)
    return None


async def _find(sampler: Sampler, source: str, message_id: str, share: int) -> MessageRecord | None:
    queue = sampler.queue
    fields = {"processing": queue.key.processing, "delayed": queue.key.delayed_messages}
    if source in fields:
        (stored,) = await sampler.pages.read_fields(fields[source], [bytes.fromhex(message_id)])
        if stored is not None:
            return record_of_stored(stored, decode=False)
    found = await _messages_of(queue, source, lambda record: record.id == message_id, 1, share=share)
    return found.records[0] if found.records else None
