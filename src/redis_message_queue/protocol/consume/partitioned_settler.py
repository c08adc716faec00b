"""Settles messages of a queue with partitions, each in the partition that it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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


class PartitionedSettler:
    """Settles and renews what a consumer of several partitions holds, with the settler of each partition."""

    def __init__(self, settlers: Sequence[Settler], calls: Sequence[Calls]) -> None:
        self._settlers = tuple(settlers)
        self._calls_of = tuple(calls)

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        parts = []
        for number, places, some in by_partition(claims):
            why = _reason_of(reason, places)
            parts.append((places, await self._settlers[number].settle(some, terminal_list, why, cancellations)))
        return _merge(parts)

    async def ack_plain(self, claim: Claim, cancellations: Cancellations) -> Settled:
        return await self._settlers[claim.partition].ack_plain(claim, cancellations)

    def attach(
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> list[PiggybackedAck]:
        return [
            ack
            for number, places, some in by_partition(claims)
            for ack in self._settlers[number].attach(some, terminal_list, _reason_of(reason, places))
        ]

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
