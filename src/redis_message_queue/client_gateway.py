"""What the gateways of both shells share: a client, how messages are kept behind it, and the queues that use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from redis_message_queue import options, wire
from redis_message_queue.errors import ConfigurationError, GatewayContractError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore


class ClientGateway:
    """A redis-py client of one colour, and the settings of what is kept behind it."""

    _asynchronous: ClassVar[bool]
    _port_class: ClassVar[Any]

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
        self._queue: str | None = None

    @property
    def is_redis_cluster(self) -> bool:
        """Whether the keys of a queue must share a slot."""
        return wire.is_cluster(self._client)

    def store(self, name: str, separator: str) -> RedisStore:
        """The messages of one queue."""
        self._bind(name)
        tagged = self.is_redis_cluster if self.options.hash_tag is None else self.options.hash_tag
        keys = QueueKeys.of(name, separator=separator, dead_letter=self.options.dead_letter_queue, hash_tag=tagged)
        return RedisStore(self.port, keys, self.options)

    def _bind(self, name: str) -> None:
        # The dead-letter list is the gateway's: two queues behind it would mix their dead.
        if self.options.max_delivery_count is not None and self._queue not in (None, name):
            raise ConfigurationError(
                f"this gateway has max_delivery_count and serves the queue {self._queue!r} already; "
                f"make another one for {name!r}"
            )
        self._queue = name


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
    return QueueProtocol(asked, gateway.store(asked.name, asked.key_separator))


def _refuse_other_gateways(gateway: Any, kind: type[ClientGateway]) -> None:
    if not isinstance(gateway, kind):
        found = type(gateway)
        raise GatewayContractError(
            f"gateway must be a {kind.__module__}.{kind.__qualname__}, not {found.__module__}.{found.__qualname__}"
        )
