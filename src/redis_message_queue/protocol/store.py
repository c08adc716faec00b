"""Where the messages of one queue object are, and the verbs that change them: ours on Redis, or a custom gateway's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis_message_queue.errors import PublishNotConfirmedError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Attempt, Calls
from redis_message_queue.protocol.claim import Claim, Claimer, Found, News, Rider, Told
from redis_message_queue.protocol.port import Port, Runtime
from redis_message_queue.protocol.publish import Outgoing, Published, Publisher
from redis_message_queue.protocol.settle import Cancellations, Keep, Note, Riding, Settled, Settler


class Publishes(Protocol):
    """How messages get in."""

    async def publish_one(
        self, message_id: bytes, payload: bytes, marker: str | None, stopped: Callable[[], bool]
    ) -> Published: ...

    async def publish(
        self,
        ids: Sequence[bytes],
        messages: Sequence[Outgoing],
        stopped: Callable[[], bool],
        patience: float | None = None,
    ) -> Published: ...

    def repeat(
        self, error: PublishNotConfirmedError, payloads: list[bytes]
    ) -> tuple[list[bytes], Coroutine[Any, Any, Published]]: ...


class Doubts(Protocol):
    """The claims that nobody saw the answer of."""

    def __len__(self) -> int: ...

    def leave_to_others(self, asker: object) -> None: ...


class Claims(Protocol):
    """How a consumer gets a message."""

    @property
    def unsure(self) -> Doubts: ...

    def allow_batches(self) -> None:
        """Raise where messages come one at a time."""

    def attempt(self) -> Attempt: ...

    def hand_over(self, attempt: Attempt) -> None: ...

    def release(self, attempt: Attempt) -> None: ...

    def limit(self, deadline: float) -> float:
        """When a claim must be over whose wait ends at the deadline."""

    async def recover(
        self,
        asker: object,
        stopped: Callable[[], bool],
        told: Told,
        budget: float | None = None,
        limit: float | None = None,
    ) -> tuple[Attempt, Found] | None: ...

    async def claim(
        self,
        attempt: Attempt,
        wait_seconds: float,
        stopped: Callable[[], bool],
        told: Told,
        count: int = 1,
        rider: Rider | None = None,
        news: News | None = None,
    ) -> Found: ...


class Settles(Protocol):
    """How a message leaves."""

    async def settle(
        self,
        claims: Sequence[Claim],
        keep: Keep | None,
        note: Note | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled: ...

    def ride(self, claims: Sequence[Claim], keep: Keep | None, note: Note | None = None) -> Riding: ...

    async def arrive(self, riding: Riding, cancellations: Cancellations | None = None) -> Settled: ...

    def dismiss(self, riding: Riding) -> None: ...

    async def put_off(
        self, claim: Claim, delay_seconds: float, error: Exception, cancellations: Cancellations | None = None
    ) -> bool: ...

    async def give_back(
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
    """The verbs of the queue, bound to one queue's keys."""

    port: Runtime
    keys: QueueKeys
    options: GatewayOptions
    decodes: bool  # whether the user wants text instead of bytes
    publisher: Publishes
    claimer: Claims
    settler: Settles
    calls: Calls | None = None  # what operators use; a custom gateway has none
    gateway: Any = None  # the custom one, or ours if it has overridden something


class RedisStore(Store):
    """Messages in Redis, changed by our scripts."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions) -> None:
        calls = Calls(port, keys, options)
        super().__init__(port, keys, options, port.decodes, Publisher(calls), Claimer(calls), Settler(calls), calls)
