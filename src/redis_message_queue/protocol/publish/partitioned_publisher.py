"""Publishes the messages of a queue with partitions: chooses a partition for each, and leaves the rest to that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from redis_message_queue.protocol.publish.confirm import Sent
from redis_message_queue.protocol.publish.message_builder import Message, MessageBuilder, PerCall, RoutedMessage
from redis_message_queue.protocol.publish.publisher import Publisher, listed
from redis_message_queue.protocol.publish.sender import Published
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.values.checks import text
from redis_message_queue.values.errors import PublishNotConfirmedError
from redis_message_queue.values.messages import Receipt
from redis_message_queue.values.plain_values import plain

T = TypeVar("T", bool, Receipt)

_AT_ONCE = 1_000  # messages without a key that go to the same partition, and messages that are grouped by their keys


class Share(NamedTuple):
    """Messages of one call that go to the same partition, by their places in the call."""

    number: int
    places: Sequence[int]
    done_before: int  # how many messages of the call are certainly published if this part fails


class PartitionedPublisher:
    """Publishes to one partition or another.

    The partition key decides; else the tenant, else the deduplication key; messages without any take turns.
    """

    def __init__(
        self, publishers: Sequence[Publisher], stores: Sequence[Store], builder: MessageBuilder, *, deduplicates: bool
    ) -> None:
        self._publishers = tuple(publishers)
        self._owners = [store.calls for store in stores]
        self._options = stores[0].options
        self._port = stores[0].port
        self._builder = builder
        self._deduplicates = deduplicates
        self._turn = int(self._port.random() * len(publishers))

    def _next(self) -> int:
        self._turn = turn = (self._turn + 1) % len(self._publishers)
        return turn

    def _of_call(self, tenant: str | None, given: PerCall | None) -> int | None:
        """Return the partition that the arguments decide on; None if each message decides for itself."""
        count = len(self._publishers)
        if given is not None and given.partition_key is not None:
            text("partition_key", given.partition_key)
            return partition_of(plain(given.partition_key), count)
        if tenant is not None:
            return partition_of(tenant_name(tenant).decode(), count)
        if given is not None and given.deduplication_key is not None:
            text("deduplication_key", given.deduplication_key)
            return partition_of(plain(given.deduplication_key), count)
        return None

    def _of_repeat(self, repeat_of: Any) -> tuple[int, int]:
        """Return the partition of an earlier publish, and how many messages it had."""
        sent = getattr(repeat_of, "sent", None)
        if isinstance(sent, Sent):
            for number, owner in enumerate(self._owners):
                if sent.owner is owner:
                    return number, len(sent.payloads)
        return 0, 1  # the publisher there refuses it

    async def publish(
        self,
        message: Message,
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
    ) -> bool:
        number = self._of_call(tenant, given)
        if repeat_of is not None:
            number, _ = self._of_repeat(repeat_of)
        elif number is None and self._deduplicates:
            routed = await self._builder.route([message])
            number = partition_of(routed[0].key, len(self._publishers))
            given = replace(given or PerCall(), routed=routed)
        publisher = self._publishers[self._next() if number is None else number]
        return await publisher.publish(
            message, tenant=tenant, delay_seconds=delay_seconds, at=at, repeat_of=repeat_of, given=given
        )

    async def publish_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
        deadline: float | None = None,
    ) -> list[bool]:
        def publish(number: int, some: Sequence[Message], **details: Any) -> Awaitable[list[bool]]:
            publisher = self._publishers[number]
            return publisher.publish_many(some, tenant=tenant, delay_seconds=delay_seconds, at=at, **details)

        return await self._spread(publish, "results", listed(messages), tenant, repeat_of, given)

    async def submit_many(
        self,
        messages: Iterable[Message],
        *,
        tenant: str | None = None,
        delay_seconds: float | None = None,
        at: datetime | None = None,
        repeat_of: PublishNotConfirmedError | None = None,
        given: PerCall | None = None,
        deadline: float | None = None,
    ) -> list[Receipt]:
        def submit(number: int, some: Sequence[Message], **details: Any) -> Awaitable[list[Receipt]]:
            publisher = self._publishers[number]
            return publisher.submit_many(some, tenant=tenant, delay_seconds=delay_seconds, at=at, **details)

        return await self._spread(submit, "receipts", listed(messages), tenant, repeat_of, given)

    async def emit_published(self, ids: Sequence[bytes], published: Published, started: float) -> None:
        """Emit an event for each message of a chunk: the partitions have one emitter."""
        await self._publishers[0].emit_published(ids, published, started)

    async def _spread(
        self,
        send: Callable[..., Awaitable[list[T]]],
        attribute: str,
        messages: Sequence[Message],
        tenant: str | None,
        repeat_of: PublishNotConfirmedError | None,
        given: PerCall | None,
    ) -> list[T]:
        """Send each part to its partition. Returns the results in the order of the messages."""
        number, routed = self._of_call(tenant, given), None
        if number is None and self._deduplicates:
            routed = await self._builder.route(messages)
        found: dict[int, T] = {}
        deadline = self._port.now() + self._options.pending_overload_block_timeout_seconds
        for part in self._parts(len(messages), number, routed, repeat_of):
            own = given
            if routed is not None:
                own = replace(given or PerCall(), routed=[routed[place] for place in part.places])
            some = [messages[place] for place in part.places]
            try:
                results = await send(part.number, some, repeat_of=repeat_of, given=own, deadline=deadline)
            except Exception as error:
                self._note(error, attribute, part, found, len(messages))
                raise
            repeat_of = None
            found.update(zip(part.places, results, strict=True))
        return [found[place] for place in range(len(messages))]

    def _parts(
        self,
        count: int,
        number: int | None,
        routed: Sequence[RoutedMessage] | None,
        repeat_of: PublishNotConfirmedError | None,
    ) -> Iterable[Share]:
        first = 0
        if repeat_of is not None:
            there, first = self._of_repeat(repeat_of)
            yield Share(there, range(min(first, count)), 0)
        if number is not None:
            if first < count or count == 0:
                yield Share(number, range(first, count), first)
            return
        for start in range(first, count, _AT_ONCE):
            places = range(start, min(start + _AT_ONCE, count))
            yield from [Share(self._next(), places, start)] if routed is None else self._grouped(places, routed)

    def _grouped(self, places: range, routed: Sequence[RoutedMessage]) -> Iterable[Share]:
        """Group messages by the partitions of their keys.

        If a later group fails, the earlier ones are published again as duplicates. Only a publish that must be
        confirmed cannot be repeated so: then a part is a run of neighbours.
        """
        numbers = [partition_of(routed[place].key, len(self._publishers)) for place in places]
        if self._options.confirm_replicas is not None or self._options.confirm_fsync:
            start = 0
            for at in range(1, len(places) + 1):
                if at == len(places) or numbers[at] != numbers[start]:
                    yield Share(numbers[start], places[start:at], places[start])
                    start = at
            return
        groups: dict[int, list[int]] = {}
        for place, number in zip(places, numbers, strict=True):
            groups.setdefault(number, []).append(place)
        for number, some in groups.items():
            yield Share(number, some, places[0])

    @staticmethod
    def _note(error: Exception, attribute: str, part: Share, found: dict[int, T], total: int) -> None:
        """Let an error say which messages need not be published again: the first ones, without a gap."""
        results = [found[place] for place in range(part.done_before)]
        if list(part.places) == list(range(part.done_before, part.done_before + len(part.places))):
            results += getattr(error, attribute, [])
        if part.done_before:
            error.add_note(f"Of all {total} messages, the first {len(results)} were published before this error.")
        with suppress(AttributeError):
            setattr(error, attribute, results)
