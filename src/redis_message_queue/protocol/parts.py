"""The parts of a queue in Redis. A queue without partitions has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls, never_stop
from redis_message_queue.protocol.consume.ack_group import AckGroups
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.lease import PartlyRenewedError
from redis_message_queue.protocol.consume.part_claimer import PartClaimer
from redis_message_queue.protocol.consume.settle import (
    Cancellations,
    PiggybackedAck,
    Settled,
    SettleReason,
    SettleScripts,
    TerminalList,
)
from redis_message_queue.protocol.group_commit import GroupCommit
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.publish.publish_group import PublishGroups
from redis_message_queue.protocol.publish.sender import Sender
from redis_message_queue.stored.keys import QueueKeys, partition_keys
from redis_message_queue.values.errors import RetryBudgetExhaustedError


class Part:
    """One part of a queue: its keys, its calls, and what sends, claims and settles its messages by our scripts."""

    def __init__(self, calls: Calls, number: int = 0) -> None:
        self.number = number
        self.calls = calls
        self.keys = calls.keys
        self.sender = sender = Sender(calls)
        # Without retries, whether the one request failed is the answer of one caller, and not of several.
        if sender.direct is not None and calls.plan.budget_seconds > 0:
            sender.group = GroupCommit(calls, PublishGroups(sender))
        self.claimer = PartClaimer(calls)
        self.scripts = scripts = SettleScripts(calls)
        if calls.plan.budget_seconds > 0:
            scripts.group = GroupCommit(calls, AckGroups())


class ClaimGroup(NamedTuple):
    """Messages that came from one part, with their places among all."""

    part: Part
    places: Sequence[int]
    claims: Sequence[Claim]

    def reason(self, reason: SettleReason | None) -> SettleReason | None:
        """Return the reason for these messages: it has two times for each."""
        if reason is None or not reason.handled:
            return reason
        times = [reason.handled[at] for place in self.places for at in (2 * place, 2 * place + 1)]
        return replace(reason, handled=times)


class Parts(tuple[Part, ...]):
    """All parts of a queue, or some. Settles and renews messages, each in the part that it came from."""

    @classmethod
    def of(cls, port: Port, keys: QueueKeys, options: GatewayOptions, count: int = 1) -> Parts:
        """Return the parts of a queue whose own keys are these."""
        if count == 1:
            return cls([Part(Calls(port, keys, options))])
        first = Calls(port, partition_keys(keys, 0, count), options, count)
        others = [Calls(port, partition_keys(keys, one, count), options, count, first) for one in range(1, count)]
        return cls([Part(calls, number) for number, calls in enumerate([first, *others])])

    def _part_of(self, claim: Claim) -> Part:
        return self[0] if len(self) == 1 or claim.part is None else claim.part

    def groups(self, claims: Sequence[Claim]) -> list[ClaimGroup]:
        """Group messages by the part that they came from."""
        if len(self) == 1:
            return [ClaimGroup(self[0], range(len(claims)), claims)]
        found: dict[Part, tuple[list[int], list[Claim]]] = {}
        for place, claim in enumerate(claims):
            places, some = found.setdefault(self._part_of(claim), ([], []))
            places.append(place)
            some.append(claim)
        return [ClaimGroup(part, places, some) for part, (places, some) in found.items()]

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        """Remove messages, with or without a copy in a terminal list. Cancellations are noted and do not stop it."""
        done = []
        for group in self.groups(claims):
            settle = group.part.scripts.settle
            done.append((group, await settle(group.claims, terminal_list, group.reason(reason), cancellations)))
        return _merged(done)

    def attach(
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> list[PiggybackedAck]:
        """The same for at most a thousand messages, to be sent together with a claim; an ack for each part."""
        if len(self) == 1:
            return [self[0].scripts.attach(claims, terminal_list, reason)]
        return [
            group.part.scripts.attach(group.claims, terminal_list, group.reason(reason))
            for group in self.groups(claims)
        ]

    async def retry_later(
        self,
        claim: Claim,
        delay_seconds: float,
        error: Exception,
        cancellations: Cancellations | None = None,
        handled: Sequence[int] = (),
    ) -> bool:
        """Delay the message until its next attempt. Returns whether it was still ours."""
        scripts = self._part_of(claim).scripts
        return await scripts.retry_later(claim, delay_seconds, error, cancellations, handled)

    async def requeue(
        self,
        claims: Sequence[Claim],
        *,
        forgiven: bool,
        cancellations: Cancellations | None = None,
        budget: float | None = None,
    ) -> list[bool]:
        """Return messages to the front of their queues, in order. If ``forgiven``, this delivery does not count."""
        done = []
        for group in self.groups(claims):
            owned = await group.part.scripts.requeue(group.claims, forgiven, cancellations, budget)
            done.append((group, Settled(owned)))
        return _merged(done).owned

    async def renew(
        self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = never_stop
    ) -> list[bool]:
        """Renew the leases that we still own; retry until they would expire or the delivery is over.

        Of several parts, one whose node does not answer must not cost the others their leases. So each is tried once,
        and not at all as long as a loop knows that it is away.
        """
        if len(self) == 1:
            return await self[0].scripts.renew(claims, budget, is_over)
        owned: list[bool | None] = [None] * len(claims)
        failure: Exception | None = None
        for part, places, some in self.groups(claims):
            calls = part.calls
            if calls.away is not None and calls.watchers:
                failure = calls.away
                continue
            limit = None if calls.patience is None else calls.port.now() + calls.patience
            try:
                renewed = await calls.until(limit, partial(part.scripts.renew, some, 0.0, is_over))
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


def _merged(done: Sequence[tuple[ClaimGroup, Settled]]) -> Settled:
    """Return what was settled in all parts, in the order of all messages."""
    if len(done) == 1:
        return done[0][1]
    owned = [False] * sum(len(group.places) for group, _ in done)
    for group, settled in done:
        for place, flag in zip(group.places, settled.owned, strict=True):
            owned[place] = flag
    trim_errors = (settled.trim_error for _, settled in done if settled.trim_error is not None)
    return Settled(owned, next(trim_errors, None), sum(settled.cut for _, settled in done))
