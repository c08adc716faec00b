"""Settles messages of a queue with partitions, each in the partition that it came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from redis_message_queue.keys import QueueKeys
from redis_message_queue.protocol.calls import never_stop
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.lease import PartlyRenewedError
from redis_message_queue.protocol.settle import (
    Cancellations,
    PiggybackedAck,
    Settled,
    Settler,
    SettleReason,
    TerminalList,
)

Group = tuple[int, list[int], list[Claim]]
"""A partition, and the messages that came from it, with their places among all."""


def _by_partition(claims: Sequence[Claim]) -> list[Group]:
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
    on_confirmed: Callable[[PartitionedAck], Awaitable[None]] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer or an error for each."""
        return all(ack.is_answered for _, ack in self.parts)

    def next_part(self) -> PiggybackedAck | None:
        """One that was not sent yet, and can be sent with a claim of any partition."""
        return next((ack for _, ack in self.parts if not ack.is_answered), None)

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

    def __init__(self, settlers: Sequence[Settler], keys: Sequence[QueueKeys]) -> None:
        self._settlers = tuple(settlers)
        self._keys = tuple(keys)

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
        for number, places, some in _by_partition(claims):
            kept, why = self._list_in(number, terminal_list), _reason_of(reason, places)
            parts.append((places, await self._settlers[number].settle(some, kept, why, cancellations)))
        return _merge(parts)

    async def ack_plain(self, claim: Claim, cancellations: Cancellations) -> Settled:
        return await self._settlers[claim.partition].ack_plain(claim, cancellations)

    def attach(  # type: ignore[override]  # used in the same way, without being one
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> PartitionedAck:
        parts = []
        for number, places, some in _by_partition(claims):
            kept, why = self._list_in(number, terminal_list), _reason_of(reason, places)
            parts.append((places, self._settlers[number].attach(some, kept, why)))
        return PartitionedAck(claims, parts)

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
        for number, places, some in _by_partition(claims):
            settler = self._settlers[number]
            owned = await settler.requeue(some, forgiven=forgiven, cancellations=cancellations, budget=budget)
            parts.append((places, Settled(owned)))
        return _merge(parts).owned

    async def renew(
        self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = never_stop
    ) -> list[bool]:
        """Renew the leases in each partition. One whose node does not answer must not cost the others their leases.

        So each is tried once, and then those that failed for half of the time that is left.
        """
        owned: list[bool | None] = [None] * len(claims)
        left, failure = _by_partition(claims), None
        for seconds in (0.0, budget / 2):
            failed: list[Group] = []
            for number, places, some in left:
                try:
                    renewed = await self._settlers[number].renew(some, seconds, is_over)
                except Exception as error:
                    failure = error
                    failed.append((number, places, some))
                    continue
                for place, flag in zip(places, renewed, strict=True):
                    owned[place] = flag
            left = failed
            if not left or is_over():
                break
        if failure is None or not left:
            return [flag is True for flag in owned]
        if all(flag is None for flag in owned):
            raise failure
        raise PartlyRenewedError(owned, failure) from failure
