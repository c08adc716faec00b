"""Settles messages of a queue with partitions, each in the partition that it came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from redis_message_queue.protocol.calls import Calls, never_stop
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.lease import PartlyRenewedError
from redis_message_queue.protocol.consume.settle import (
    Cancellations,
    PiggybackedAck,
    Settled,
    Settler,
    SettleReason,
    TerminalList,
)
from redis_message_queue.values.errors import RetryBudgetExhaustedError

Group = tuple[int, list[int], list[Claim]]
"""A partition, and the messages that came from it, with their places among all."""


def by_partition(claims: Sequence[Claim]) -> list[Group]:
    """Group messages by the partition that they came from."""
    groups: dict[int, tuple[list[int], list[Claim]]] = {}
    for place, claim in enumerate(claims):
        places, some = groups.setdefault(claim.partition, ([], []))
        places.append(place)
        some.append(claim)
    return [(number, *group) for number, group in groups.items()]


def _merge(parts: Sequence[tuple[Sequence[int], Settled]]) -> Settled:
    """What was settled in several partitions, in the order of all messages."""
    owned = [False] * sum(len(places) for places, _ in parts)
    for places, settled in parts:
        for place, flag in zip(places, settled.owned, strict=True):
            owned[place] = flag
    trim_errors = (settled.trim_error for _, settled in parts if settled.trim_error is not None)
    return Settled(owned, next(trim_errors, None), sum(settled.cut for _, settled in parts))


def _reason_of(reason: SettleReason | None, places: Sequence[int]) -> SettleReason | None:
    """The reason for some of the messages: it has two times for each."""
    if reason is None or not reason.handled:
        return reason
    return replace(reason, handled=[reason.handled[at] for place in places for at in (2 * place, 2 * place + 1)])


@dataclass(slots=True, eq=False)
class PartitionedAck:
    """Acknowledgements for messages of several partitions: an ordinary one for each. Used as a `PiggybackedAck` is."""

    claims: Sequence[Claim]
    parts: Sequence[tuple[Sequence[int], PiggybackedAck]]
    shares_server: bool  # whether all partitions are on one server
    on_confirmed: Callable[[PartitionedAck], Awaitable[None]] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer or an error for each."""
        return all(ack.is_answered for _, ack in self.parts)

    def split(self) -> Sequence[PiggybackedAck]:
        """The ack of each partition."""
        return [ack for _, ack in self.parts]

    def part_for(self, partition: int) -> PiggybackedAck | None:
        """An ack that was not sent yet, to go with a claim of this partition: its own, which that claim must see.

        On one server it may also be another one's. On a cluster the claim must not wait for another node.
        """
        left = [ack for _, ack in self.parts if not ack.is_answered]
        own = (ack for ack in left if ack.partition == partition)
        return next(own, left[0] if left and self.shares_server else None)

    async def confirmed(self) -> None:
        """Pass the answers to the consumer that made it, once."""
        on_confirmed, self.on_confirmed = self.on_confirmed, None
        if on_confirmed is not None:
            await on_confirmed(self)

    async def send_alone(self, cancellations: Cancellations) -> Settled:
        """Send those that were not answered together with a claim."""
        return _merge([(places, await ack.send_alone(cancellations)) for places, ack in self.parts])

    def close(self) -> None:
        """Release the slots: they are not sent again."""
        for _, ack in self.parts:
            ack.close()


class PartitionedSettler(Settler):
    """Settles and renews what a consumer of several partitions holds, with the settler of each partition."""

    def __init__(self, settlers: Sequence[Settler], calls: Sequence[Calls]) -> None:
        self._settlers = tuple(settlers)
        self._calls_of = tuple(calls)
        self._keys = tuple(one.keys for one in calls)

    def _list_in(self, number: int, terminal_list: TerminalList | None) -> TerminalList | None:
        """The list of the same kind in another partition than the first."""
        if terminal_list is None or number == 0:
            return terminal_list
        first, own = self._keys[0], self._keys[number]
        key = {first.completed: own.completed, first.failed: own.failed, first.dead_letter: own.dead_letter}[
            terminal_list.key
        ]
        return replace(terminal_list, key=key, records=own.records(key))

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        parts = []
        for number, places, some in by_partition(claims):
            kept, why = self._list_in(number, terminal_list), _reason_of(reason, places)
            parts.append((places, await self._settlers[number].settle(some, kept, why, cancellations)))
        return _merge(parts)

    async def ack_plain(self, claim: Claim, cancellations: Cancellations) -> Settled:
        return await self._settlers[claim.partition].ack_plain(claim, cancellations)

    def attach(  # type: ignore[override]  # used in the same way, without being one
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> PartitionedAck:
        parts = []
        for number, places, some in by_partition(claims):
            kept, why = self._list_in(number, terminal_list), _reason_of(reason, places)
            parts.append((places, self._settlers[number].attach(some, kept, why)))
        return PartitionedAck(claims, parts, not self._calls_of[0].port.is_cluster)

    async def retry_later(
        self,
        claim: Claim,
        delay_seconds: float,
        error: Exception,
        cancellations: Cancellations | None = None,
        handled: Sequence[int] = (),
    ) -> bool:
        settler = self._settlers[claim.partition]
        return await settler.retry_later(claim, delay_seconds, error, cancellations, handled)

    async def requeue(
        self,
        claims: Sequence[Claim],
        *,
        forgiven: bool,
        cancellations: Cancellations | None = None,
        budget: float | None = None,
    ) -> list[bool]:
        parts = []
        for number, places, some in by_partition(claims):
            settler = self._settlers[number]
            owned = await settler.requeue(some, forgiven=forgiven, cancellations=cancellations, budget=budget)
            parts.append((places, Settled(owned)))
        return _merge(parts).owned

    async def renew(
        self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = never_stop
    ) -> list[bool]:
        """Renew the leases in each partition. One whose node does not answer must not cost the others their leases.

        So each is tried once, and not at all as long as a loop knows that it is away.
        """
        owned: list[bool | None] = [None] * len(claims)
        failure: Exception | None = None
        for number, places, some in by_partition(claims):
            calls = self._calls_of[number]
            if calls.away is not None and calls.watchers:
                failure = calls.away
                continue
            limit = None if calls.patience is None else calls.port.now() + calls.patience
            try:
                renewed = await calls.until(limit, partial(self._settlers[number].renew, some, 0.0, is_over))
            except Exception as error:
                failure = error
                if calls.port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError):
                    calls.has_failed(error)
                elif len(some) == len(claims):
                    raise
                continue
            for place, flag in zip(places, renewed, strict=True):
                owned[place] = flag
        if failure is None:
            return [flag is True for flag in owned]
        raise PartlyRenewedError(owned, failure) from failure
