"""The same queue for asyncio: the same names, the same shape, awaited."""

from redis_message_queue.asyncio.abstract import AbstractRedisGateway
from redis_message_queue.asyncio.gateway import RedisGateway
from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.queue import RedisMessageQueue
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
