"""Holds the parts that keep the messages of one queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.protocol.consume.claim import Claimer
from redis_message_queue.protocol.consume.settle import Settler
from redis_message_queue.protocol.port import Port, Runtime
from redis_message_queue.protocol.publish.sender import Sender
from redis_message_queue.stored.keys import QueueKeys


@dataclass(eq=False)
class Store:
    """What sends, claims and settles the messages of one queue, and what else can be done with them."""

    port: Runtime
    keys: QueueKeys
    options: GatewayOptions
    decodes: bool  # whether the user wants text instead of bytes
    sender: Sender
    claimer: Claimer
    settler: Settler
    capabilities: Capabilities = field(default_factory=Capabilities)
    calls: Calls = field(init=False)  # not set behind a custom gateway: require a capability before you use them


class RedisStore(Store):
    """Keeps messages in Redis, by our scripts."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions, calls: Calls | None = None) -> None:
        self.calls = calls = Calls(port, keys, options) if calls is None else calls
        super().__init__(port, keys, options, port.decodes, Sender(calls), Claimer(calls), Settler(calls))
