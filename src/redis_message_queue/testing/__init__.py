"""Tools for testing handlers: time that passes, replies that are lost, consumers that are killed.

With pytest, ``pip install 'redis-message-queue[testing]'`` brings fixtures for them. Nothing here needs pytest.
"""

from redis_message_queue.errors import RehearsalError
from redis_message_queue.testing.fast_forward import fast_forward
from redis_message_queue.testing.killing import kill_here
from redis_message_queue.testing.losses import Loss, lose_reply, lose_request
from redis_message_queue.testing.redelivery import deliver_twice, kill_and_redeliver

__all__ = [
    "Loss",
    "RehearsalError",
    "deliver_twice",
    "fast_forward",
    "kill_and_redeliver",
    "kill_here",
    "lose_reply",
    "lose_request",
]
