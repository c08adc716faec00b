"""Lets a queue work through the seven operations of a custom gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.process.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.protocol.calls import never_stop
from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.protocol.consume.claim import Claim, Claimant, ClaimResult
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt
from redis_message_queue.protocol.consume.settle import (
    Cancellations,
    PiggybackedAck,
    Settled,
    SettleReason,
    TerminalList,
)
from redis_message_queue.protocol.port import Answer, Runtime
from redis_message_queue.protocol.publish.sender import OutgoingMessage, Published
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import GatewayContractError
from redis_message_queue.values.messages import ClaimedMessage


@dataclass(slots=True, eq=False)
class OverrideContext:
    """What a queue and the built-in operations tell each other across an override, besides the arguments."""

    stopped: Callable[[], bool] = never_stop  # whether the queue has been stopped meanwhile
    published: Published | None = None  # what the built-in operation has published


_current: ContextVar[OverrideContext | None] = ContextVar("redis_message_queue_override", default=None)


def override_context() -> OverrideContext:
    """Return the context of the queue that made this call, or an empty one."""
    return _current.get() or OverrideContext()


@contextmanager
def in_override(stopped: Callable[[], bool]) -> Iterator[OverrideContext]:
    """Open a context around the call of an operation that may lead to a built-in one."""
    context = OverrideContext(stopped)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


class CustomGatewayClaim(Claim):
    """A message that a gateway returned. Its id is made here, so that the events of one delivery share it."""

    __slots__ = ("_lease_token", "stored")

    def __init__(self, delivery_id: bytes, stored: str | bytes, lease_token: str | None, claimed_at: float) -> None:
        super().__init__(Envelope(envelope.head(delivery_id)), claimed_at, delivery_count=None)
        self.stored = stored
        self._lease_token = lease_token

    @property
    def lease_token(self) -> str | None:
        return self._lease_token

    def read(self, *, decode: bool) -> str | bytes:
        return self.stored


_NOWHERE: Any = None  # an attempt has no part or reply slot here: it stays idle, and nothing can be recovered later


def _lacking(capability: str) -> Callable[..., Any]:
    """Return a method that raises, because the seven operations cannot do this."""

    def refuse(self: Any, *arguments: Any, **options: Any) -> NoReturn:
        raise self._capabilities.lacks(capability)

    return refuse


class CustomGatewaySender:
    """Publishes through `publish_message` and `add_message`, which take one message without any details."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys, capabilities: Capabilities) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self.keys = keys
        self._capabilities = capabilities
        self.direct = None

    async def send(
        self,
        ids: Sequence[bytes],
        messages: Sequence[OutgoingMessage],
        stopped: Callable[[], bool],
        wait_seconds: float | None = None,
        limit: float | None = None,
    ) -> Published:
        (one,), gateway = messages, self._gateway
        if not one.is_bare:
            self._capabilities.require("chunks")
        message, accepted = one.payload.decode(), True
        with in_override(stopped) as context:
            if one.marker is None:
                answer = await self._runtime.call_user(gateway.add_message, self.keys.pending, message)
                _value(answer, gateway, "add_message")
            else:
                answer = await self._runtime.call_user(gateway.publish_message, self.keys.pending, message, one.marker)
                accepted = _true_or_false(answer, gateway, "publish_message")
        return replace(context.published or Published([]), accepted=[accepted])

    find_sent = _lacking("repeats")
    send_again = _lacking("repeats")


class CustomGatewayClaimer:
    """Claims through `wait_for_message_and_move`, which waits as long as the gateway likes."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys, *, leased: bool) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self._keys = keys
        self._leased = leased
        self.unconfirmed: Sequence[ClaimAttempt] = ()  # the gateway itself recovers claims whose reply was lost
        self.listening_seconds = 0.0

    def is_silent(self) -> bool:
        return False

    def attempt(self) -> ClaimAttempt:
        return ClaimAttempt(_NOWHERE, _NOWHERE)

    def offer(self, attempt: ClaimAttempt) -> None:
        return

    def release(self, attempt: ClaimAttempt, claimant: object) -> None:
        return

    def leave_to_others(self, claimant: object) -> None:
        return

    async def recover(self, claimant: Claimant, limit: float | None = None) -> None:
        return None

    async def claim(
        self,
        attempt: ClaimAttempt,
        claimant: Claimant,
        wait_seconds: float,
        count: int | None = 1,
        acks: list[PiggybackedAck] | None = None,
        limit: float | None = None,
    ) -> ClaimResult:
        if claimant.is_stopped():
            return ClaimResult()
        wait = self._gateway.wait_for_message_and_move
        # The gateway waits as long as it likes, and a drain does not wait for it.
        claimant.on_wait(True)
        try:
            with in_override(claimant.is_stopped):
                answer = await self._runtime.call_user(wait, self._keys.pending, self._keys.processing)
        finally:
            claimant.on_wait(False)
        returned = _value(answer, self._gateway, "wait_for_message_and_move")
        return ClaimResult([] if returned is None else [self._checked(returned)])

    def _checked(self, returned: Any) -> Claim:
        """Return what the gateway returned as a claim, if it can be settled safely later; else raise."""
        stored, token = returned, None
        if isinstance(returned, ClaimedMessage):
            stored, token = returned.stored_message, returned.lease_token
        if not isinstance(stored, str | bytes):
            raise _broken(
                self._gateway, "wait_for_message_and_move must return a ClaimedMessage, str, bytes or None", stored
            )
        if self._leased and not isinstance(returned, ClaimedMessage):
            raise _broken(
                self._gateway,
                "wait_for_message_and_move must return a ClaimedMessage where message_visibility_timeout_seconds is "
                "set: without its lease token another consumer's message could be settled",
                returned,
            )
        if (self._leased or token is not None) and not (isinstance(token, str) and token):
            raise _broken(self._gateway, "the lease_token of a ClaimedMessage must be a str that is not empty", token)
        return CustomGatewayClaim(self._runtime.new_id(), stored, token, self._runtime.now())


class CustomGatewaySettler:
    """Settles through `move_message`, `remove_message` and `trim_queue`; renews through `renew_message_lease`."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys, capabilities: Capabilities) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self._keys = keys
        self._capabilities = capabilities

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        (claim,) = claims
        assert isinstance(claim, CustomGatewayClaim)
        noted: list[BaseException] = [] if cancellations is None else cancellations
        gateway, processing, stored = self._gateway, self._keys.processing, claim.stored
        if terminal_list is None:
            remove = partial(gateway.remove_message, lease_token=claim.lease_token)
            answer = await self._runtime.call_user_shielded(noted, remove, processing, stored)
            return Settled([_true_or_false(answer, gateway, "remove_message")])
        move = partial(gateway.move_message, lease_token=claim.lease_token)
        key, _ = self._keys.terminal_lists[terminal_list.kind]
        answer = await self._runtime.call_user_shielded(noted, move, processing, key, stored)
        if not _true_or_false(answer, gateway, "move_message"):
            return Settled([False])
        if terminal_list.limit is None:
            return Settled([True])
        trimmed = await self._runtime.call_user_shielded(noted, gateway.trim_queue, key, terminal_list.limit)
        return Settled([True], trim_error=None if trimmed.error is None else repr(trimmed.error))

    async def renew(
        self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = never_stop
    ) -> list[bool]:
        (claim,) = claims
        assert isinstance(claim, CustomGatewayClaim)
        renew = partial(self._gateway.renew_message_lease, is_interrupted=_DeliveryEnd(is_over))
        answer = await self._runtime.call_user(renew, self._keys.processing, claim.stored, claim.lease_token)
        return [_true_or_false(answer, self._gateway, "renew_message_lease")]

    attach = _lacking("batches")
    retry_later = _lacking("retries")
    requeue = _lacking("batches")


class _DeliveryEnd(BaseGracefulInterruptHandler):
    """Tells a gateway's own retries whether the delivery that they renew has ended meanwhile."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    def is_interrupted(self) -> bool:
        return self._is_over()


class CustomGatewayStore(Store):
    """Stores messages through a custom gateway."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys, options: GatewayOptions) -> None:
        leased = options.message_visibility_timeout_seconds is not None
        capabilities = Capabilities.of_custom(gateway, publishes=True, consumes=True, has_client=False)
        super().__init__(
            *(runtime, keys, options, False),
            senders=(CustomGatewaySender(gateway, runtime, keys, capabilities),),
            claimer=CustomGatewayClaimer(gateway, runtime, keys, leased=leased),
            settler=CustomGatewaySettler(gateway, runtime, keys, capabilities),
            capabilities=capabilities,
        )


def override_operations(store: Store, gateway: Any, *, publishes: bool, consumes: bool) -> None:
    """Make a store in Redis call the operations that a subclass of our gateway has overridden."""
    custom = CustomGatewayStore(gateway, store.port, store.keys, store.options)
    store.capabilities = Capabilities.of_custom(gateway, publishes=publishes, consumes=consumes, has_client=True)
    if publishes:
        store.senders = custom.senders
    if consumes:
        store.claimer, store.settler = custom.claimer, custom.settler


def _value(answer: Answer[Any], gateway: Any, operation: str) -> Any:
    if answer.unawaited:
        raise GatewayContractError(
            f"{type(gateway).__name__}.{operation} returned an awaitable, which the sync queue cannot await"
        ) from answer.error
    return answer.unwrap()


def _true_or_false(answer: Answer[Any], gateway: Any, operation: str) -> bool:
    value = _value(answer, gateway, operation)
    if not isinstance(value, bool):
        raise _broken(gateway, f"{operation} must return True or False", value)
    return value


def _broken(gateway: Any, rule: str, found: Any) -> GatewayContractError:
    return GatewayContractError(f"{type(gateway).__name__}: {rule}; it was {type(found).__name__}")
