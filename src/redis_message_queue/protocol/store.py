"""Holds what keeps the messages of one queue: what sends, claims and settles them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.protocol.consume.claim import Claim, Claimant, ClaimResult
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt
from redis_message_queue.protocol.consume.claimer import Claimer
from redis_message_queue.protocol.consume.settle import (
    Cancellations,
    PiggybackedAck,
    Settled,
    SettleReason,
    TerminalList,
)
from redis_message_queue.protocol.parts import Part, Parts
from redis_message_queue.protocol.port import Port, Runtime
from redis_message_queue.protocol.publish.confirm import Sent
from redis_message_queue.protocol.publish.sender import OutgoingMessage, Published, Sender
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import PublishNotConfirmedError


class Sends(Protocol):
    """Sends messages: `Sender`, or a custom gateway."""

    @property
    def keys(self) -> QueueKeys: ...

    @property
    def direct(self) -> Sender | None: ...

    async def send(
        self,
        ids: Sequence[bytes],
        messages: Sequence[OutgoingMessage],
        stopped: Callable[[], bool],
        wait_seconds: float | None = None,
        limit: float | None = None,
    ) -> Published: ...

    def find_sent(self, error: PublishNotConfirmedError, payloads: list[bytes]) -> Sent: ...

    async def send_again(self, sent: Sent, limit: float | None = None) -> Published: ...


class Claims(Protocol):
    """Claims messages: `Claimer`, or a custom gateway."""

    @property
    def unconfirmed(self) -> Sequence[ClaimAttempt]: ...

    @property
    def listening_seconds(self) -> float: ...

    def leave_to_others(self, claimant: object) -> None: ...

    def is_silent(self) -> bool: ...

    def attempt(self) -> ClaimAttempt: ...

    def offer(self, attempt: ClaimAttempt) -> None: ...

    def release(self, attempt: ClaimAttempt, claimant: object) -> None: ...

    async def recover(
        self, claimant: Claimant, limit: float | None = None
    ) -> tuple[ClaimAttempt, ClaimResult] | None: ...

    def claim(
        self,
        attempt: ClaimAttempt,
        claimant: Claimant,
        wait_seconds: float,
        count: int | None = 1,
        acks: list[PiggybackedAck] | None = None,
        limit: float | None = None,
    ) -> Coroutine[Any, Any, ClaimResult]: ...


class Settles(Protocol):
    """Settles messages: `Parts`, or a custom gateway."""

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled: ...

    def attach(
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> list[PiggybackedAck]: ...

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
    senders: tuple[Sends, ...]  # one for each part
    claimer: Claims
    settler: Settles
    capabilities: Capabilities = field(default_factory=Capabilities)
    parts: Parts = field(default_factory=Parts)  # none behind a custom gateway: require a capability first

    @property
    def calls(self) -> Calls:
        """The calls of the first part."""
        return self.parts[0].calls

    def only(self, part: Part) -> Store:
        """Return the store of one of the parts."""
        return RedisStore(part.calls.port, part.keys, self.options, Parts([part]))


class RedisStore(Store):
    """Keeps messages in Redis, by our scripts, in one part or in several."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions, parts: Parts | None = None) -> None:
        parts = parts or Parts.of(port, keys, options)
        senders = tuple(part.sender for part in parts)
        super().__init__(port, parts[0].keys, options, port.decodes, senders, Claimer(parts), parts, parts=parts)
