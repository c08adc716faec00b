"""Holds what keeps the messages of one queue: what sends, claims and settles them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.protocol.consume.claim import Claim, Claimant, Claimer, ClaimResult
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt, Unconfirmed
from redis_message_queue.protocol.consume.settle import (
    Acks,
    Cancellations,
    PiggybackedAck,
    Settled,
    Settler,
    SettleReason,
    TerminalList,
)
from redis_message_queue.protocol.port import Port, Runtime
from redis_message_queue.protocol.publish.confirm import Sent
from redis_message_queue.protocol.publish.group_commit import GroupCommit
from redis_message_queue.protocol.publish.sender import OutgoingMessage, Published, Sender
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import PublishNotConfirmedError


class Sends(Protocol):
    """Sends messages: `Sender`, or a custom gateway."""

    @property
    def direct(self) -> Sender | None: ...

    async def send(
        self,
        ids: Sequence[bytes],
        messages: Sequence[OutgoingMessage],
        stopped: Callable[[], bool],
        wait_seconds: float | None = None,
    ) -> Published: ...

    def find_sent(self, error: PublishNotConfirmedError, payloads: list[bytes]) -> Sent: ...

    async def send_again(self, sent: Sent) -> Published: ...


class Claims(Protocol):
    """Claims messages: `Claimer`, the claimer of several parts, or a custom gateway."""

    @property
    def unconfirmed(self) -> Unconfirmed: ...

    def is_silent(self) -> bool: ...

    def attempt(self) -> ClaimAttempt: ...

    def offer(self, attempt: ClaimAttempt) -> None: ...

    def release(self, attempt: ClaimAttempt, claimant: object) -> None: ...

    def limit(self, deadline: float) -> float: ...

    async def recover(
        self, claimant: Claimant, limit: float | None = None
    ) -> tuple[ClaimAttempt, ClaimResult] | None: ...

    async def claim(
        self,
        attempt: ClaimAttempt,
        claimant: Claimant,
        wait_seconds: float,
        count: int = 1,
        acks: Acks | None = None,
        limit: float | None = None,
    ) -> ClaimResult: ...


class Settles(Protocol):
    """Settles messages: `Settler`, the settler of several parts, or a custom gateway."""

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled: ...

    async def ack_plain(self, claim: Claim, cancellations: Cancellations) -> Settled: ...

    def attach(
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> Sequence[PiggybackedAck]: ...

    async def retry_later(
        self,
        claim: Claim,
        delay_seconds: float,
        error: Exception,
        cancellations: Cancellations | None = None,
        handled: Sequence[int] = (),
    ) -> bool: ...

    async def requeue(
        self,
        claims: Sequence[Claim],
        *,
        forgiven: bool,
        cancellations: Cancellations | None = None,
        budget: float | None = None,
    ) -> list[bool]: ...

    async def renew(self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = ...) -> list[bool]: ...


@dataclass(eq=False)
class Store:
    """What sends, claims and settles the messages of one queue, and what else can be done with them."""

    port: Runtime
    keys: QueueKeys
    options: GatewayOptions
    decodes: bool  # whether the user wants text instead of bytes
    sender: Sends
    claimer: Claims
    settler: Settles
    capabilities: Capabilities = field(default_factory=Capabilities)
    calls: Calls = field(init=False)  # not set behind a custom gateway: require a capability before you use them


class Part:
    """One part of a queue in Redis: its calls, and what sends, claims and settles its messages by our scripts."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.sender = sender = Sender(calls)
        # Without retries, whether the one request failed is the answer of one caller, and not of several.
        if sender.direct is not None and calls.plan.budget_seconds > 0:
            sender.group = GroupCommit(calls)
        self.claimer = Claimer(calls)
        self.settler = Settler(calls)


class RedisStore(Store):
    """Keeps messages in Redis, by our scripts."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions, calls: Calls | None = None) -> None:
        self.calls = Calls(port, keys, options) if calls is None else calls
        self.part = part = Part(self.calls)
        super().__init__(port, keys, options, port.decodes, part.sender, part.claimer, part.settler)
