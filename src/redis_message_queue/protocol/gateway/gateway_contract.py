"""Checks a custom gateway before a queue uses it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.gateway.custom_gateway import CustomGatewayStore
from redis_message_queue.protocol.port import Runtime
from redis_message_queue.protocol.store import Store
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.checks import flag, lease, text, whole_number
from redis_message_queue.values.errors import ConfigurationError, GatewayContractError

# How many positional arguments, and which keyword arguments, the queue calls each operation with.
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
    """What a gateway says about itself, in the sync and in the async package."""

    _serves: str | None = None

    # A subclass may use a property, a class attribute or an attribute of the object. Type checkers allow all three over
    # a property, Python allows them over a plain value.
    if TYPE_CHECKING:

        @property
        def message_visibility_timeout_seconds(self) -> float | None:
            """The length of a lease in seconds. Set it if the gateway leases, or its lease tokens are not used."""

        @property
        def max_delivery_count(self) -> int | None:
            """How many times the gateway delivers a message before it moves it to the dead letters."""

        @property
        def dead_letter_queue(self) -> str | None:
            """The key of the dead-letter list."""

        @property
        def is_redis_cluster(self) -> bool:
            """Whether the keys of a queue must share a hash slot."""
    else:
        message_visibility_timeout_seconds = max_delivery_count = dead_letter_queue = None
        is_redis_cluster = False


def refuse_another_queue(gateway: GatewayContract, name: str) -> None:
    """Raise if a gateway with a delivery limit serves another queue already.

    The gateway has one dead-letter list, and two queues would mix their dead letters.
    """
    if gateway.max_delivery_count is not None and gateway._serves not in (None, name):
        raise ConfigurationError(
            f"this gateway has max_delivery_count and serves the queue {gateway._serves!r} already; "
            f"make another one for {name!r}"
        )


def note_queue(gateway: GatewayContract, name: str) -> None:
    """Note which queue the gateway serves."""
    object.__setattr__(gateway, "_serves", name)  # also where a subclass is a frozen dataclass


def custom_gateway_store(
    gateway: GatewayContract, runtime: Runtime, name: str, separator: str, *, awaits: bool
) -> Store:
    """Return the store of a queue that uses a custom gateway; raise if the gateway breaks its contract."""
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
    return CustomGatewayStore(gateway, runtime, keys, options)


def check_operations(gateway: GatewayContract, *, awaits: bool) -> None:
    """Raise for a missing operation or a wrong signature, before the first call of it would fail."""
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
        except ValueError:  # a compiled function without a signature
            continue
        try:
            signature.bind(*range(positional), **dict.fromkeys(keywords))
        except TypeError as error:
            wanted = ", ".join((f"{positional} positional arguments", *keywords))
            raise GatewayContractError(
                f"{type(gateway).__name__}.{name} cannot be called with {wanted}: {error}"
            ) from error


def overridden(gateway: Any, built_in: type) -> frozenset[str]:
    """Return the operations of a built-in gateway that a subclass, or the object itself, overrides."""
    return frozenset(
        name
        for name in OPERATIONS
        if name in vars(gateway) or getattr(type(gateway), name) is not getattr(built_in, name)
    )
