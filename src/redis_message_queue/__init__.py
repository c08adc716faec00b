"""A message queue on Redis that does not lose messages, does not double them, and does not make people wait."""

from redis_message_queue.errors import (
    ArchiveConflictError,
    ArchiveError,
    CleanupFailedError,
    ConfigurationError,
    ConfigurationTypeError,
    ConsumerGroupBusyError,
    ConsumerGroupLostError,
    CorruptMessageError,
    DataLossError,
    EmbeddedServerError,
    GatewayContractError,
    JavaError,
    JobError,
    JournalError,
    LeaseLostError,
    LuaScriptError,
    MissingExtraError,
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
    SelectionError,
)
from redis_message_queue.events import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.identity import after_restore
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
    "ArchiveConflictError",
    "ArchiveError",
    "BaseGracefulInterruptHandler",
    "ClaimedMessage",
    "CleanupFailedError",
    "ConfigurationError",
    "ConfigurationTypeError",
    "ConsumerGroupBusyError",
    "ConsumerGroupLostError",
    "CorruptMessageError",
    "DataLossError",
    "EmbeddedServerError",
    "EventDrivenInterruptHandler",
    "EventOperation",
    "EventOutcome",
    "GatewayContractError",
    "GracefulInterruptHandler",
    "JavaError",
    "JobError",
    "JournalError",
    "LeaseLostError",
    "LuaScriptError",
    "MessageRecord",
    "MissingExtraError",
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
    "SelectionError",
    "after_restore",
]
