"""A message queue on Redis that does not lose messages, does not double them, and does not make people wait."""

from redis_message_queue.options.retry_policy import RetryPolicy
from redis_message_queue.process.identity import after_restore
from redis_message_queue.process.interrupt import (
    BaseGracefulInterruptHandler,
    EventDrivenInterruptHandler,
    GracefulInterruptHandler,
)
from redis_message_queue.protocol.loop.run_options import RunSummary
from redis_message_queue.sync.abstract import AbstractRedisGateway
from redis_message_queue.sync.message import ReceivedMessage
from redis_message_queue.sync.message_queue import RedisMessageQueue
from redis_message_queue.sync.redis_gateway import RedisGateway
from redis_message_queue.sync.registered_queues import open_registered, queues
from redis_message_queue.sync.several import run_queues
from redis_message_queue.values import errors
from redis_message_queue.values.errors import *  # noqa: F403  its __all__ is ours too
from redis_message_queue.values.events import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.values.messages import (
    ClaimedMessage,
    ConnectedWorker,
    Explanation,
    MessageRecord,
    QueueStats,
    Receipt,
    RedriveSummary,
    RegisteredQueue,
    Schedule,
    TraceEntry,
)
from redis_message_queue.values.outcomes import DeadLetter, Discard, HandlerOutcome, RetryLater
from redis_message_queue.version import __version__

__all__ = [
    "AbstractRedisGateway",
    "BaseGracefulInterruptHandler",
    "ClaimedMessage",
    "ConnectedWorker",
    "DeadLetter",
    "Discard",
    "EventDrivenInterruptHandler",
    "EventOperation",
    "EventOutcome",
    "Explanation",
    "GracefulInterruptHandler",
    "HandlerOutcome",
    "MessageRecord",
    "QueueEvent",
    "QueueStats",
    "Receipt",
    "ReceivedMessage",
    "RedisGateway",
    "RedisMessageQueue",
    "RedriveSummary",
    "RegisteredQueue",
    "RetryLater",
    "RetryPolicy",
    "RunSummary",
    "Schedule",
    "TraceEntry",
    "__version__",
    "after_restore",
    "open_registered",
    "queues",
    "run_queues",
]
__all__ += errors.__all__
