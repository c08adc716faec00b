"""What the gateways of both shells share: a client, how messages are kept behind it, and the queues that use it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from redis_message_queue import options, wire
from redis_message_queue.custom_gateway import (
    PUBLISHING,
    GatewayContract,
    check_operations,
    foreign_store,
    note_queue,
    overridden,
    refuse_another_queue,
)
from redis_message_queue.errors import ConfigurationError, GatewayContractError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.options import GatewayOptions
from redis_message_queue.process_bound import ProcessBound
from redis_message_queue.protocol.foreign import ForeignPublisher, ForeignSettler, ForeignStore, not_offered
from redis_message_queue.protocol.operations import Operations
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore, Store


class ClientGateway(ProcessBound, GatewayContract):
    """A redis-py client of one colour, and the settings of what is kept behind it."""

    _asynchronous: ClassVar[bool]
    _port_class: ClassVar[Any]
    _runtime_class: ClassVar[Any]
    _contract: ClassVar[type[GatewayContract]]
    _message_class: ClassVar[type[ReceivedMessage]]

    @classmethod
    def _of_client(cls, client: Any, settings: GatewayOptions) -> Self:
        """The gateway of a queue that was given a bare client."""
        gateway = cls.__new__(cls)
        gateway._open(client, settings)
        return gateway

    def _open(self, client: Any, settings: GatewayOptions) -> None:
        wire.refuse_unusable_client(client, asynchronous=self._asynchronous)
        self._options = settings
        # With a retry budget we repeat what fails; without one that is left to the client.
        self._port: Port = self._port_class(client, client_retries=settings.retry_budget_seconds == 0)
        self._client = client
        self._stores: dict[tuple[str, str], RedisStore] = {}

    @property
    def is_redis_cluster(self) -> bool:
        """Whether the keys of a queue must share a slot."""
        return wire.is_cluster(self._client)

    @property
    def message_visibility_timeout_seconds(self) -> float | None:
        """The length of a lease; None for at-most-once."""
        return self._options.message_visibility_timeout_seconds

    @property
    def max_delivery_count(self) -> int | None:
        """How often a message is delivered before it goes to the dead letters; None for any number."""
        return self._options.max_delivery_count

    @property
    def dead_letter_queue(self) -> str | None:
        """The key of the dead-letter list, if it is not the queue's own."""
        return self._options.dead_letter_queue

    @functools.cached_property
    def _settings(self) -> GatewayOptions:
        """The options, with what a subclass says about itself in its own way."""
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

    def _store(self, name: str, separator: str, kind: type[ClientGateway]) -> Store:
        """The messages of one queue; what a subclass has overridden is called, the rest goes the short way."""
        settings = self._settings
        tagged = self.is_redis_cluster if settings.hash_tag is None else settings.hash_tag
        keys = QueueKeys.of(name, separator=separator, dead_letter=settings.dead_letter_queue, hash_tag=tagged)
        changed = overridden(self, kind)
        if not changed:
            # One for all queue objects of a name: a claim that one of them lost is found by any of them.
            return self._stores.setdefault((name, separator), RedisStore(self._port, keys, settings))
        store = RedisStore(self._port, keys, settings)
        check_operations(self, awaits=self._asynchronous)
        self._operations.know(keys)
        foreign = ForeignStore(self, self._port, keys, settings)
        store.gateway = self
        if changed & PUBLISHING:
            store.publisher = foreign.publisher
        if changed - PUBLISHING:
            store.claimer, store.settler = foreign.claimer, foreign.settler
        return store


def open_queue(given: Mapping[str, Any], kind: type[ClientGateway]) -> QueueProtocol:
    """The protocol of a queue object, from everything that its constructor was given."""
    asked = options.queue_options(given)
    client, gateway = given["client"], given["gateway"]
    if (client is None) == (gateway is None):
        raise ConfigurationError("give the queue a client or a gateway, and only one of them")
    if gateway is None:
        gateway = kind._of_client(client, options.client_options(given))
    else:
        _refuse_other_gateways(gateway, kind)
        options.refuse_beside_gateway(given)
    refuse_another_queue(gateway, asked.name)
    if isinstance(gateway, kind):
        store = gateway._store(asked.name, asked.key_separator, kind)
    else:
        runtime = kind._runtime_class()
        store = foreign_store(gateway, runtime, asked.name, asked.key_separator, awaits=kind._asynchronous)
    if asked.retry_policy is not None and isinstance(store.settler, ForeignSettler):
        raise not_offered(gateway, "retry_policy")
    if asked.get_headers is not None and isinstance(store.publisher, ForeignPublisher):
        raise not_offered(gateway, "get_headers")
    queue = QueueProtocol(asked, store, kind._message_class)
    note_queue(gateway, asked.name)
    return queue


def _refuse_other_gateways(gateway: Any, kind: type[ClientGateway]) -> None:
    contract = kind._contract
    if not isinstance(gateway, contract):
        found = type(gateway)
        raise GatewayContractError(
            f"gateway must be a {kind.__module__}.{kind.__qualname__}, or a subclass of AbstractRedisGateway from the "
            f"same package as the queue, not {found.__module__}.{found.__qualname__}"
        )
