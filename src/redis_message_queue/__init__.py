"""A message queue on Redis that does not lose messages, does not double them, and does not make people wait."""

from redis_message_queue.errors import (
    CleanupFailedError,
    ConfigurationError,
    ConfigurationTypeError,
    CorruptMessageError,
    EmbeddedServerError,
    GatewayContractError,
    LeaseLostError,
    LuaScriptError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
    RedisMessageQueueError,
    RehearsalError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.events import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.interrupt import (
    BaseGracefulInterruptHandler,
    EventDrivenInterruptHandler,
    GracefulInterruptHandler,
)
from redis_message_queue.messages import ClaimedMessage, MessageRecord, QueueStats, RedriveSummary
from redis_message_queue.protocol.feed import RunSummary
from redis_message_queue.retry_policy import RetryPolicy
from redis_message_queue.sync.abstract import AbstractRedisGateway
from redis_message_queue.sync.gateway import RedisGateway
from redis_message_queue.sync.message import ReceivedMessage
from redis_message_queue.sync.queue import RedisMessageQueue

__all__ = [
    "AbstractRedisGateway",
    "BaseGracefulInterruptHandler",
    "ClaimedMessage",
    "CleanupFailedError",
    "ConfigurationError",
    "ConfigurationTypeError",
    "CorruptMessageError",
    "EmbeddedServerError",
    "EventDrivenInterruptHandler",
    "EventOperation",
    "EventOutcome",
    "GatewayContractError",
    "GracefulInterruptHandler",
    "LeaseLostError",
    "LuaScriptError",
    "MessageRecord",
    "PayloadTooDeepError",
    "PayloadTooLargeError",
    "PayloadTypeError",
    "PayloadValueError",
    "PublishNotConfirmedError",
    "QueueBackpressureError",
    "QueueDrainedError",
    "QueueEvent",
    "QueueStats",
    "ReceivedMessage",
    "RedisGateway",
    "RedisMessageQueue",
    "RedisMessageQueueError",
    "RedriveSummary",
    "RehearsalError",
    "RetryBudgetExhaustedError",
    "RetryPolicy",
    "RunSummary",
]
