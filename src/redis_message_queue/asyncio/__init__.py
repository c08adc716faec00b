"""The same queue for asyncio: the same names, the same shape, awaited."""

from redis_message_queue.asyncio.abstract import AbstractRedisGateway
from redis_message_queue.asyncio.gateway import RedisGateway
from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.queue import RedisMessageQueue
from redis_message_queue.asyncio.registry import open_registered, queues
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
    FaultInjectionError,
    GatewayContractError,
    JavaError,
    JobError,
    JournalError,
    LeaseLostError,
    LuaScriptError,
    MissingExtraError,
    NotPermittedError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
    RedisMessageQueueError,
    RetryBudgetExhaustedError,
    SelectionError,
    StateVersionError,
)
from redis_message_queue.events import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.identity import after_restore
from redis_message_queue.interrupt import (
    BaseGracefulInterruptHandler,
    EventDrivenInterruptHandler,
    GracefulInterruptHandler,
)
from redis_message_queue.messages import ClaimedMessage, MessageRecord, QueueStats, RedriveSummary, RegisteredQueue
from redis_message_queue.outcomes import DeadLetter, Discard, HandlerOutcome, RetryLater
from redis_message_queue.protocol.run_options import RunSummary
from redis_message_queue.retry_policy import RetryPolicy
from redis_message_queue.version import __version__

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
    "DeadLetter",
    "Discard",
    "EmbeddedServerError",
    "EventDrivenInterruptHandler",
    "EventOperation",
    "EventOutcome",
    "FaultInjectionError",
    "GatewayContractError",
    "GracefulInterruptHandler",
    "HandlerOutcome",
    "JavaError",
    "JobError",
    "JournalError",
    "LeaseLostError",
    "LuaScriptError",
    "MessageRecord",
    "MissingExtraError",
    "NotPermittedError",
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
    "RegisteredQueue",
    "RetryBudgetExhaustedError",
    "RetryLater",
    "RetryPolicy",
    "RunSummary",
    "SelectionError",
    "StateVersionError",
    "__version__",
    "after_restore",
    "open_registered",
    "queues",
]
