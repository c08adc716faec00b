"""The parts of a queue in Redis. A queue without partitions has one."""

from __future__ import annotations

from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.consume.claim import Claimer
from redis_message_queue.protocol.consume.settle import Settler
from redis_message_queue.protocol.publish.sender import Sender


class Part:
    """One part of a queue in Redis: its calls, and what sends, claims and settles its messages by our scripts."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.sender = Sender(calls)
        self.claimer = Claimer(calls)
        self.settler = Settler(calls)
