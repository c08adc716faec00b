"""What the gateways of both shells share: a client, how messages are kept behind it, and the queues that use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from redis_message_queue import options, wire
from redis_message_queue.custom_gateway import PUBLISHING, GatewayContract, check_operations, foreign_store, overridden
from redis_message_queue.errors import ConfigurationError, GatewayContractError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.process_bound import ProcessBound
from redis_message_queue.protocol.foreign import ForeignStore
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

    @classmethod
    def of_client(cls, client: Any, settings: GatewayOptions) -> Self:
        """The gateway of a queue that was given a bare client."""
        gateway = cls.__new__(cls)
        gateway._open(client, settings)
        return gateway

    def _open(self, client: Any, settings: GatewayOptions) -> None:
        wire.refuse_unusable_client(client, asynchronous=self._asynchronous)
        self.options = settings
        self.port: Port = self._port_class(client)
        self._client = client
        self._operations = Operations(self.port, settings)

    @property
    def is_redis_cluster(self) -> bool:
        """Whether the keys of a queue must share a slot."""
        return wire.is_cluster(self._client)

    @property
    def message_visibility_timeout_seconds(self) -> float | None:
        """The length of a lease; None for at-most-once."""
        return self.options.message_visibility_timeout_seconds

    @property
    def max_delivery_count(self) -> int | None:
        """How often a message is delivered before it goes to the dead letters; None for any number."""
        return self.options.max_delivery_count

    @property
    def dead_letter_queue(self) -> str | None:
        """The key of the dead-letter list, if it is not the queue's own."""
        return self.options.dead_letter_queue

    def store(self, name: str, separator: str, kind: type[ClientGateway]) -> Store:
        """The messages of one queue; what a subclass has overridden is called, the rest goes the short way."""
        tagged = self.is_redis_cluster if self.options.hash_tag is None else self.options.hash_tag
        keys = QueueKeys.of(name, separator=separator, dead_letter=self.options.dead_letter_queue, hash_tag=tagged)
        store = RedisStore(self.port, keys, self.options)
        changed = overridden(self, kind)
        if changed:
            check_operations(self, awaits=self._asynchronous)
            foreign = ForeignStore(self, self.port, keys, self.options)
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
        gateway = kind.of_client(client, options.client_options(given))
    else:
        _refuse_other_gateways(gateway, kind)
        options.refuse_beside_gateway(given)
    gateway.serve(asked.name)
    if isinstance(gateway, kind):
        return QueueProtocol(asked, gateway.store(asked.name, asked.key_separator, kind))
    runtime = kind._runtime_class()
    store = foreign_store(gateway, runtime, asked.name, asked.key_separator, awaits=kind._asynchronous)
    return QueueProtocol(asked, store)


def _refuse_other_gateways(gateway: Any, kind: type[ClientGateway]) -> None:
    contract = kind._contract
    if not isinstance(gateway, contract):
        found = type(gateway)
        raise GatewayContractError(
            f"gateway must be a {kind.__module__}.{kind.__qualname__}, or a subclass of AbstractRedisGateway from the "
            f"same package as the queue, not {found.__module__}.{found.__qualname__}"
        )
