"""Tools to test your handlers: let time pass, lose requests and replies, kill consumers.

With pytest, ``pip install 'redis-exact-queue[testing]'`` adds fixtures for them; without pytest they work as well.
"""

from redis_message_queue.testing.fast_forward import fast_forward
from redis_message_queue.testing.killing import kill_here
from redis_message_queue.testing.losses import Loss, lose_reply, lose_request
from redis_message_queue.testing.redelivery import deliver_twice, kill_and_redeliver
from redis_message_queue.values.errors import FaultInjectionError

__all__ = [
    "FaultInjectionError",
    "Loss",
    "deliver_twice",
    "fast_forward",
    "kill_and_redeliver",
    "kill_here",
    "lose_reply",
    "lose_request",
]
