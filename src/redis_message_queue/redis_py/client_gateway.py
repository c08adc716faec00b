"""The part of the built-in gateway that the sync and the async package share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from redis_message_queue.options.declared import GatewayOptions, QueueArguments
from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.gateway.custom_gateway import override_operations
from redis_message_queue.protocol.gateway.gateway_contract import (
    PUBLISHING,
    GatewayContract,
    check_operations,
    custom_gateway_store,
    note_queue,
    overridden,
    refuse_another_queue,
)
from redis_message_queue.protocol.gateway.operations import Operations
from redis_message_queue.protocol.parts import Parts
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore, Store
from redis_message_queue.redis_py import wire
from redis_message_queue.stored.keys import QueueKeys, refuse_one_slot
from redis_message_queue.values.errors import ConfigurationError, GatewayContractError

P = ParamSpec("P")
R = TypeVar("R")


def delegated(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return a method of a gateway that does what its operation does."""

    @functools.wraps(operation)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        operations: Operations = self._operations
        return await operation(operations, *args, **kwargs)

    return call


class ClientGateway(ProcessBound, GatewayContract):
    """A redis-py client, and the settings of the queues that use it."""

    _asynchronous: ClassVar[bool]
    _port_class: ClassVar[Any]
    _runtime_class: ClassVar[Any]
    _contract: ClassVar[type[GatewayContract]]
    _message_class: ClassVar[type[ReceivedMessage[Any]]]

    @classmethod
    def _of_client(cls, client: Any, settings: GatewayOptions) -> Self:
        """Return the gateway of a queue that was given a client."""
        gateway = cls.__new__(cls)
        gateway._open(client, settings, "client")
        return gateway

    def _open(self, client: Any, settings: GatewayOptions, parameter: str = "redis_client") -> None:
        wire.refuse_unusable_client(client, asynchronous=self._asynchronous, parameter=parameter)
        self._options = settings
        # With a retry budget we repeat what fails; without one the client's own Retry does.
        self._port: Port = self._port_class(client, client_retries=settings.retry_budget_seconds == 0)
        self._client = client
        self._stores: dict[tuple[str, str, int], RedisStore] = {}

    @property
    def is_redis_cluster(self) -> bool:
        """Whether the client is a cluster client, so that the keys of a queue must share a hash slot."""
        return wire.is_cluster(self._client)

    @property
    def message_visibility_timeout_seconds(self) -> float | None:
        """The length of a lease in seconds; None for at-most-once delivery."""
        return self._options.message_visibility_timeout_seconds

    @property
    def max_delivery_count(self) -> int | None:
        """How many times a message is delivered before it becomes a dead letter; None for no limit."""
        return self._options.max_delivery_count

    @property
    def dead_letter_queue(self) -> str | None:
        """The key of the dead-letter list; None for the queue's own."""
        return self._options.dead_letter_queue

    @functools.cached_property
    def _settings(self) -> GatewayOptions:
        """The options, with the values that a subclass gives for its properties."""
        try:
            return replace(
                self._options,
                message_visibility_timeout_seconds=self.message_visibility_timeout_seconds,
                max_delivery_count=self.max_delivery_count,
                dead_letter_queue=self.dead_letter_queue,
            )
        except ConfigurationError as error:
            raise GatewayContractError(f"{type(self).__name__}: {error}") from error

    @functools.cached_property
    def _operations(self) -> Operations:
        return Operations(self._port, self._settings)

    def _keys(self, name: str, separator: str) -> QueueKeys:
        settings = self._settings
        tagged = self.is_redis_cluster if settings.hash_tag is None else settings.hash_tag
        return QueueKeys.of(name, separator=separator, dead_letter=settings.dead_letter_queue, hash_tag=tagged)

    def _refuse_partitions(self, name: str, separator: str, count: int, kind: type[ClientGateway]) -> None:
        """Raise if a queue on this gateway cannot have partitions."""
        settings = self._settings
        if overridden(self, kind):
            raise ConfigurationError(
                f"partitions={count} cannot be combined with a gateway that overrides operations "
                f"({type(self).__name__}): these know nothing of partitions; use a RedisGateway that overrides nothing"
            )
        if settings.dead_letter_queue is not None:
            raise ConfigurationError(
                f"partitions={count} cannot be combined with dead_letter_queue: each partition has its own dead "
                "letters, queue.partition(number).key.dead_letter; leave dead_letter_queue out"
            )
        if self.is_redis_cluster:
            refuse_one_slot(self._keys(name, separator).prefix)

    def _store(self, name: str, separator: str, count: int, kind: type[ClientGateway]) -> Store:
        """Return the store of one queue, which calls the operations that a subclass has overridden."""
        if count > 1:
            self._refuse_partitions(name, separator, count, kind)
        settings, keys = self._settings, self._keys(name, separator)
        changed = overridden(self, kind)
        if not changed:
            # Shared by all queue objects of a name: each of them finds a claim whose reply another one lost.
            made = RedisStore(self._port, keys, settings, Parts.of(self._port, keys, settings, count))
            return self._stores.setdefault((name, separator, count), made)
        store = RedisStore(self._port, keys, settings)
        check_operations(self, awaits=self._asynchronous)
        self._operations.register(keys)
        override_operations(store, self, publishes=bool(changed & PUBLISHING), consumes=bool(changed - PUBLISHING))
        return store


def open_queue(asked: QueueArguments, kind: type[ClientGateway]) -> QueueProtocol:
    """Return the protocol of a queue object, made from everything that its constructor was given."""
    gateway = asked.gateway
    if gateway is None:
        gateway = kind._of_client(asked.client, asked.gateway_options())
    else:
        if not isinstance(gateway, kind._contract):
            found = type(gateway)
            raise GatewayContractError(
                f"gateway must be a {kind.__module__}.{kind.__qualname__}, or a subclass of AbstractRedisGateway from "
                f"the same package as the queue, not {found.__module__}.{found.__qualname__}"
            )
        asked.refuse_beside_gateway()
    refuse_another_queue(gateway, asked.name)
    if isinstance(gateway, kind):
        store = gateway._store(asked.name, asked.key_separator, asked.partitions, kind)
    elif asked.partitions > 1:
        raise ConfigurationError(
            f"partitions={asked.partitions} cannot be combined with a custom gateway ({type(gateway).__name__}); "
            "give the queue client= or a RedisGateway that overrides nothing"
        )
    else:
        runtime = kind._runtime_class()
        store = custom_gateway_store(gateway, runtime, asked.name, asked.key_separator, awaits=kind._asynchronous)
    if asked.retry_policy is not None:
        store.capabilities.require("retries")
    if asked.codec is not None:
        store.capabilities.require("codecs")
    if asked.get_headers is not None:
        store.capabilities.require("headers")
    queue = QueueProtocol(asked, store, kind._message_class)
    note_queue(gateway, asked.name)
    return queue
