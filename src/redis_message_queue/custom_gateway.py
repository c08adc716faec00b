"""What every gateway is asked before a queue works behind it: its properties, and the shape of its operations."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from redis_message_queue.checks import flag, lease, text, whole_number
from redis_message_queue.errors import ConfigurationError, GatewayContractError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.foreign import ForeignStore
from redis_message_queue.protocol.port import Runtime
from redis_message_queue.protocol.store import Store

# How the queue calls each operation.
OPERATIONS: dict[str, tuple[int, tuple[str, ...]]] = {
    "publish_message": (3, ()),
    "add_message": (2, ()),
    "move_message": (3, ("lease_token",)),
    "remove_message": (2, ("lease_token",)),
    "renew_message_lease": (3, ("is_interrupted",)),
    "wait_for_message_and_move": (2, ()),
    "trim_queue": (2, ()),
}
PUBLISHING = frozenset({"publish_message", "add_message"})


class GatewayContract:
    """The half of the contract that has no colour: what a gateway says about itself."""

    _serves: str | None = None

    # A subclass may say it with a property, a class attribute or an attribute of the object: type checkers allow all
    # three over a property, Python over a plain value.
    if TYPE_CHECKING:

        @property
        def message_visibility_timeout_seconds(self) -> float | None:
            """The length of a lease. A gateway that leases must say so, or its tokens are not asked for."""

        @property
        def max_delivery_count(self) -> int | None:
            """How often the gateway delivers a message before it moves it to the dead letters."""

        @property
        def dead_letter_queue(self) -> str | None:
            """Where it moves them."""

        @property
        def is_redis_cluster(self) -> bool:
            """Whether the keys of a queue must share a slot."""
    else:
        message_visibility_timeout_seconds = max_delivery_count = dead_letter_queue = None
        is_redis_cluster = False


def refuse_another_queue(gateway: GatewayContract, name: str) -> None:
    """One with a delivery limit serves one queue."""
    # The dead-letter list is the gateway's: two queues behind it would mix their dead.
    if gateway.max_delivery_count is not None and gateway._serves not in (None, name):
        raise ConfigurationError(
            f"this gateway has max_delivery_count and serves the queue {gateway._serves!r} already; "
            f"make another one for {name!r}"
        )


def note_queue(gateway: GatewayContract, name: str) -> None:
    """Note whose gateway this is."""
    object.__setattr__(gateway, "_serves", name)  # also where a subclass is a frozen dataclass


def foreign_store(gateway: GatewayContract, runtime: Runtime, name: str, separator: str, *, awaits: bool) -> Store:
    """The messages of one queue behind a custom gateway, once that has shown what it says it is."""
    check_operations(gateway, awaits=awaits)
    timeout, limit = gateway.message_visibility_timeout_seconds, gateway.max_delivery_count
    dead_letter, cluster = gateway.dead_letter_queue, gateway.is_redis_cluster
    try:
        lease("message_visibility_timeout_seconds", timeout)
        whole_number("max_delivery_count", limit, optional=True)
        if dead_letter is not None:
            text("dead_letter_queue", dead_letter)
        flag("is_redis_cluster", cluster)
    except ConfigurationError as error:
        raise GatewayContractError(f"{type(gateway).__name__}: {error}") from error
    options = GatewayOptions(message_visibility_timeout_seconds=timeout)
    keys = QueueKeys.of(name, separator=separator, dead_letter=dead_letter, hash_tag=cluster)
    return ForeignStore(gateway, runtime, keys, options)


def check_operations(gateway: GatewayContract, *, awaits: bool) -> None:
    """A wrong shape should fail where the queue is made, not when its first lease must be renewed."""
    for name, (positional, keywords) in OPERATIONS.items():
        operation = getattr(gateway, name, None)
        if not callable(operation):
            raise GatewayContractError(f"{type(gateway).__name__} has no operation {name}")
        if not awaits and inspect.iscoroutinefunction(operation):
            raise GatewayContractError(
                f"{type(gateway).__name__}.{name} is an async function, which the sync queue cannot await; "
                "use redis_message_queue.asyncio"
            )
        if inspect.isgeneratorfunction(operation) or inspect.isasyncgenfunction(operation):
            raise GatewayContractError(
                f"{type(gateway).__name__}.{name} is a generator function: calling it would do nothing"
            )
        try:
            signature = inspect.signature(operation)
        except ValueError:  # a compiled function that does not tell
            continue
        try:
            signature.bind(*range(positional), **dict.fromkeys(keywords))
        except TypeError as error:
            wanted = ", ".join((f"{positional} positional arguments", *keywords))
            raise GatewayContractError(
                f"{type(gateway).__name__}.{name} cannot be called with {wanted}: {error}"
            ) from error


def overridden(gateway: Any, built_in: type) -> frozenset[str]:
    """The operations of a built-in gateway that a subclass, or the object itself, does in its own way."""
    return frozenset(
        name
        for name in OPERATIONS
        if name in vars(gateway) or getattr(type(gateway), name) is not getattr(built_in, name)
    )
