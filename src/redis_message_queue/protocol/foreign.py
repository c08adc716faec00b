"""How a queue works behind somebody else's gateway: through its seven operations, and nothing taken on trust."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis_message_queue.errors import GatewayContractError
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.keys import QueueKeys
from redis_message_queue.messages import ClaimedMessage
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Attempt
from redis_message_queue.protocol.claim import Claim, Found, News, Rider, Told
from redis_message_queue.protocol.errand import on_an_errand
from redis_message_queue.protocol.port import Answer, Runtime
from redis_message_queue.protocol.publish import Outgoing, Published
from redis_message_queue.protocol.settle import Cancellations, Keep, Note, Riding, Settled
from redis_message_queue.protocol.store import Store


class ForeignAttempt(Attempt):
    """A way to a message about which nothing can be asked later."""

    __slots__ = ()

    def __init__(self) -> None:
        self.unsure = False
        self.resting = None
        self.patient = False


class ForeignClaim(Claim):
    """A message as a gateway handed it over; its id is made up here, to tell the events of one delivery together."""

    __slots__ = ("_id", "_token", "stored")

    def __init__(self, delivery_id: bytes, stored: str | bytes, token: str | None, claimed_at: float) -> None:
        self.claimed_at = claimed_at
        self.attempt = 1
        self.delivery_count = None
        self.reclaimed = False
        self.failures = 0
        self.stored = stored
        self._id = delivery_id
        self._token = token

    @property
    def id(self) -> bytes:
        return self._id

    @property
    def lease_token(self) -> str | None:
        return self._token

    @property
    def token(self) -> bytes:
        return self._id

    def read(self, *, decode: bool) -> str | bytes:
        return self.stored


class _NoDoubts:
    """A foreign gateway keeps its own account of claims whose answer was lost."""

    def __len__(self) -> int:
        return 0

    def leave_to_others(self, asker: object) -> None:
        return


class ForeignPublisher:
    """Publishes through `publish_message` and `add_message`."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self._keys = keys

    async def publish_one(
        self, message_id: bytes, payload: bytes, marker: str | None, stopped: Callable[[], bool]
    ) -> Published:
        message, gateway = payload.decode(), self._gateway
        with on_an_errand(stopped) as errand:
            if marker is None:
                answer = await self._runtime.ask(gateway.add_message, self._keys.pending, message)
                _opened(answer, gateway, "add_message")
                accepted = True
            else:
                answer = await self._runtime.ask(gateway.publish_message, self._keys.pending, message, marker)
                accepted = _yes_or_no(answer, gateway, "publish_message")
        if errand.published is None:
            return Published([accepted])
        return replace(errand.published, accepted=[accepted])

    async def publish(
        self,
        ids: Sequence[bytes],
        messages: Sequence[Outgoing],
        stopped: Callable[[], bool],
        patience: float | None = None,
    ) -> Published:
        raise not_offered(self._gateway, "publishing in batches, for tenants or with a delay")

    def repeat(self, error: Any, payloads: list[bytes]) -> tuple[list[bytes], Coroutine[Any, Any, Published]]:
        raise not_offered(self._gateway, "repeat_of")


class ForeignClaimer:
    """Claims through `wait_for_message_and_move`, which waits as long as the gateway likes."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys, *, leased: bool) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self._keys = keys
        self._leased = leased
        self.unsure = _NoDoubts()

    def allow_batches(self) -> None:
        raise not_offered(self._gateway, "taking messages in batches")

    def attempt(self) -> Attempt:
        return ForeignAttempt()

    def hand_over(self, attempt: Attempt) -> None:
        return

    def release(self, attempt: Attempt) -> None:
        return

    def limit(self, deadline: float) -> float:
        return deadline

    async def recover(
        self,
        asker: object,
        stopped: Callable[[], bool],
        told: Told,
        budget: float | None = None,
        limit: float | None = None,
    ) -> tuple[Attempt, Found] | None:
        return None

    async def claim(
        self,
        attempt: Attempt,
        wait_seconds: float,
        stopped: Callable[[], bool],
        told: Told,
        count: int = 1,
        rider: Rider | None = None,
        news: News | None = None,
    ) -> Found:
        if stopped():
            return Found()
        wait = self._gateway.wait_for_message_and_move
        # The gateway waits as long as it likes, and a drain does not wait for it.
        if attempt.resting is not None:
            attempt.resting(True)
        try:
            with on_an_errand(stopped):
                answer = await self._runtime.ask(wait, self._keys.pending, self._keys.processing)
        finally:
            if attempt.resting is not None:
                attempt.resting(False)
        handed = _opened(answer, self._gateway, "wait_for_message_and_move")
        return Found([] if handed is None else [self._checked(handed)])

    def _checked(self, handed: Any) -> Claim:
        """What the gateway handed over, if cleaning it up can be done safely."""
        stored, token = handed, None
        if isinstance(handed, ClaimedMessage):
            stored, token = handed.stored_message, handed.lease_token
        if not isinstance(stored, str | bytes):
            raise _broken(
                self._gateway, "wait_for_message_and_move must return a ClaimedMessage, str, bytes or None", stored
            )
        if self._leased and not isinstance(handed, ClaimedMessage):
            raise _broken(
                self._gateway,
                "wait_for_message_and_move must return a ClaimedMessage where message_visibility_timeout_seconds is "
                "set: without its lease token another consumer's message could be settled",
                handed,
            )
        if (self._leased or token is not None) and not (isinstance(token, str) and token):
            raise _broken(self._gateway, "the lease_token of a ClaimedMessage must be a str that is not empty", token)
        return ForeignClaim(self._runtime.fresh_id(), stored, token, self._runtime.now())


class ForeignSettler:
    """Settles through `move_message` and `remove_message`, trims through `trim_queue`, renews."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys) -> None:
        self._gateway = gateway
        self._runtime = runtime
        self._keys = keys

    async def settle(
        self,
        claims: Sequence[Claim],
        keep: Keep | None,
        note: Note | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        (claim,) = claims
        assert isinstance(claim, ForeignClaim)
        noted: list[BaseException] = [] if cancellations is None else cancellations
        gateway, processing, stored = self._gateway, self._keys.processing, claim.stored
        if keep is None:
            remove = partial(gateway.remove_message, lease_token=claim.lease_token)
            answer = await self._runtime.ask_to_the_end(noted, remove, processing, stored)
            return Settled([_yes_or_no(answer, gateway, "remove_message")])
        move = partial(gateway.move_message, lease_token=claim.lease_token)
        answer = await self._runtime.ask_to_the_end(noted, move, processing, keep.key, stored)
        if not _yes_or_no(answer, gateway, "move_message"):
            return Settled([False])
        if keep.limit is None:
            return Settled([True])
        trimmed = await self._runtime.ask_to_the_end(noted, gateway.trim_queue, keep.key, keep.limit)
        return Settled([True], trim_error=None if trimmed.error is None else repr(trimmed.error))

    def ride(self, claims: Sequence[Claim], keep: Keep | None, note: Note | None = None) -> Riding:
        raise not_offered(self._gateway, "taking messages in batches")

    async def arrive(self, riding: Riding, cancellations: Cancellations | None = None) -> Settled:
        raise not_offered(self._gateway, "taking messages in batches")

    def dismiss(self, riding: Riding) -> None:
        raise not_offered(self._gateway, "taking messages in batches")

    async def put_off(
        self, claim: Claim, delay_seconds: float, error: Exception, cancellations: Cancellations | None = None
    ) -> bool:
        raise not_offered(self._gateway, "retry_policy")

    async def give_back(
        self,
        claims: Sequence[Claim],
        *,
        forgiven: bool,
        cancellations: Cancellations | None = None,
        budget: float | None = None,
    ) -> list[bool]:
        raise not_offered(self._gateway, "giving a message back")

    async def renew(
        self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = lambda: False
    ) -> list[bool]:
        (claim,) = claims
        assert isinstance(claim, ForeignClaim)
        renew = partial(self._gateway.renew_message_lease, is_interrupted=_Observer(is_over))
        answer = await self._runtime.ask(renew, self._keys.processing, claim.stored, claim.lease_token)
        return [_yes_or_no(answer, self._gateway, "renew_message_lease")]


class _Observer(BaseGracefulInterruptHandler):
    """What a gateway's own retries look at: whether the delivery that is being renewed has ended meanwhile."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    def is_interrupted(self) -> bool:
        return self._is_over()


class ForeignStore(Store):
    """Messages behind a gateway that is not ours."""

    def __init__(self, gateway: Any, runtime: Runtime, keys: QueueKeys, options: GatewayOptions) -> None:
        leased = options.message_visibility_timeout_seconds is not None
        super().__init__(
            *(runtime, keys, options, False),
            publisher=ForeignPublisher(gateway, runtime, keys),
            claimer=ForeignClaimer(gateway, runtime, keys, leased=leased),
            settler=ForeignSettler(gateway, runtime, keys),
            gateway=gateway,
        )


def not_offered(gateway: Any, feature: str) -> GatewayContractError:
    """The refusal of what only the built-in gateway can do."""
    return GatewayContractError(
        f"{feature} is not part of the contract of a custom gateway ({type(gateway).__name__}); "
        "use client=, or a RedisGateway that overrides nothing"
    )


def _opened(answer: Answer[Any], gateway: Any, operation: str) -> Any:
    if answer.unawaited:
        raise GatewayContractError(
            f"{type(gateway).__name__}.{operation} returned an awaitable, which the sync queue cannot await"
        ) from answer.error
    return answer.unwrap()


def _yes_or_no(answer: Answer[Any], gateway: Any, operation: str) -> bool:
    value = _opened(answer, gateway, operation)
    if not isinstance(value, bool):
        raise _broken(gateway, f"{operation} must return True or False", value)
    return value


def _broken(gateway: Any, promise: str, found: Any) -> GatewayContractError:
    return GatewayContractError(f"{type(gateway).__name__}: {promise}; it was {type(found).__name__}")
