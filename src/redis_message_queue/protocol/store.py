"""Where the messages of one queue object are, and the verbs that change them: ours on Redis, or a custom gateway's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from redis_message_queue.errors import PublishNotConfirmedError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Attempt, Calls
from redis_message_queue.protocol.claim import Claim, Claimer, Found, Told
from redis_message_queue.protocol.port import Port, Runtime
from redis_message_queue.protocol.publish import Published, Publisher
from redis_message_queue.protocol.settle import Keep, Settled, Settler


class Publishes(Protocol):
    """How messages get in."""

    async def publish(
        self, message_id: bytes, payload: bytes, marker: str | None, stopped: Callable[[], bool]
    ) -> Published: ...

    def repeat(
        self, error: PublishNotConfirmedError, payload: bytes
    ) -> tuple[bytes, Coroutine[Any, Any, Published]]: ...


class Doubts(Protocol):
    """The claims that nobody saw the answer of."""

    def __len__(self) -> int: ...

    def leave_to_others(self, asker: object) -> None: ...


class Claims(Protocol):
    """How a consumer gets a message."""

    @property
    def unsure(self) -> Doubts: ...

    def attempt(self) -> Attempt: ...

    def hand_over(self, attempt: Attempt) -> None: ...

    def release(self, attempt: Attempt) -> None: ...

    async def recover(
        self, asker: object, stopped: Callable[[], bool], told: Told, budget: float | None = None
    ) -> tuple[Attempt, Found] | None: ...

    async def claim(self, attempt: Attempt, wait_seconds: float, stopped: Callable[[], bool], told: Told) -> Found: ...


class Settles(Protocol):
    """How a message leaves."""

    async def settle(
        self, claim: Claim, keep: Keep | None, cancellations: list[BaseException] | None = None
    ) -> Settled: ...

    async def give_back(self, claim: Claim, *, forgiven: bool, budget: float | None = None) -> bool: ...

    async def renew(self, claim: Claim, budget: float, is_over: Callable[[], bool] = ...) -> bool: ...


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


class RedisStore(Store):
    """Messages in Redis, changed by our scripts."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions) -> None:
        calls = self.calls = Calls(port, keys, options)
        super().__init__(port, keys, options, port.decodes, Publisher(calls), Claimer(calls), Settler(calls))
