"""Where the messages of one queue object are: the Redis keys, and the calls that change them."""

from __future__ import annotations

from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.claim import Claimer
from redis_message_queue.protocol.port import Port
from redis_message_queue.protocol.publish import Publisher
from redis_message_queue.protocol.settle import Settler


class RedisStore:
    """The verbs of the queue, bound to one queue's keys."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions) -> None:
        calls = self.calls = Calls(port, keys, options)
        self.port = port
        self.keys = keys
        self.options = options
        self.publisher = Publisher(calls)
        self.claimer = Claimer(calls)
        self.settler = Settler(calls)
