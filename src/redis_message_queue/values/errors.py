"""The errors of this library, sorted by what the caller can do about them."""

from __future__ import annotations

from typing import Any

import redis.exceptions

__all__ = [
    "ArchiveConflictError",
    "ArchiveError",
    "CleanupFailedError",
    "ConfigurationError",
    "ConfigurationTypeError",
    "ConsumerGroupBusyError",
    "ConsumerGroupLostError",
    "CorruptMessageError",
    "DataLossError",
    "EmbeddedServerError",
    "FaultInjectionError",
    "GatewayContractError",
    "JavaError",
    "JobError",
    "JournalError",
    "LeaseLostError",
    "LuaScriptError",
    "MissingExtraError",
    "NotPermittedError",
    "PartitionCountError",
    "PayloadTooDeepError",
    "PayloadTooLargeError",
    "PayloadTypeError",
    "PayloadValueError",
    "PublishNotConfirmedError",
    "QueueBackpressureError",
    "QueueDrainedError",
    "RedisMessageQueueError",
    "RetryBudgetExhaustedError",
    "SelectionError",
    "StateVersionError",
]


class RedisMessageQueueError(Exception):
    """The base class of all errors of this library.

    ``queue``, ``message_id`` and ``operation`` say where it happened, if that is known.
    """

    results: list[bool]  # only of `publish_many`: what it returns for the chunks before the error

    def __init__(
        self,
        message: str = "",
        *,
        queue: str | None = None,
        message_id: str | None = None,
        operation: str | None = None,
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.message_id = message_id
        self.operation = operation

    def locate(self, queue: str, operation: str) -> None:
        """Fill in what was not known where the error was raised."""
        self.queue = self.queue or queue
        self.operation = self.operation or operation


class ConfigurationError(RedisMessageQueueError, ValueError):
    """An option or argument has a value that cannot work, or two of them contradict each other: change the call."""


class ConfigurationTypeError(ConfigurationError, TypeError):
    """An option does not exist or has a value of the wrong type: change the call."""


class GatewayContractError(RedisMessageQueueError, TypeError):
    """A custom gateway breaks its contract, or does not support what it is asked for."""


class PayloadTypeError(RedisMessageQueueError, TypeError):
    """The message has a value that JSON cannot represent unchanged: convert it before you publish."""


class PayloadValueError(RedisMessageQueueError, ValueError):
    """The message cannot be encoded: it has a lone surrogate, a NaN or a structure that contains itself."""


class PayloadTooLargeError(RedisMessageQueueError, ValueError):
    """The encoded message is larger than ``max_payload_bytes``: shorten it, or publish a reference to it."""


class PayloadTooDeepError(RedisMessageQueueError, ValueError):
    """The message nests deeper than ``max_payload_depth``: flatten it."""


class QueueBackpressureError(RedisMessageQueueError):
    """The queue is full and nothing was published (`publish_many`: only what ``results`` say): try again later."""


class PublishNotConfirmedError(RedisMessageQueueError):
    """Replicas or the disk did not confirm a publish in time: it may be stored; repeat it with ``repeat_of``."""

    dropped: tuple[str, ...] = ()  # the ids of messages that had to leave for it
    sent: object = None  # what `publish(..., repeat_of=error)` needs to send the very same again


class QueueDrainedError(RedisMessageQueueError):
    """The queue object was drained: publish through another one."""


class LeaseLostError(RedisMessageQueueError):
    """The lease of the message was lost: another consumer may have it, and nothing was changed."""


class CleanupFailedError(RedisMessageQueueError):
    """The handler succeeded, but Redis did not confirm the ack or `complete()`: the message may be delivered again."""


class CorruptMessageError(RedisMessageQueueError, ValueError):
    """A value in Redis is not a message of this library: it was moved to the dead letters unread."""


class LuaScriptError(RedisMessageQueueError, redis.exceptions.ResponseError):
    """Redis refused a script, and nothing was changed: the text says why."""


class StateVersionError(RedisMessageQueueError, RuntimeError):
    """A newer release wrote the state of this queue, and nothing was changed: upgrade this library."""


class PartitionCountError(RedisMessageQueueError, RuntimeError):
    """The queue has another number of partitions than this object, and nothing was changed: the text says which."""


class NotPermittedError(LuaScriptError, redis.exceptions.NoPermissionError):
    """The Redis user may not run a command or access a key: the text names it and says what to grant.

    A script that met it half-way was stopped there, and what it had done before stays done. ``grant`` is what to add
    with ACL SETUSER.
    """

    grant: str = ""


class RetryBudgetExhaustedError(RedisMessageQueueError, redis.exceptions.RedisError):
    """Redis could not be reached in time: the outcome of the call is unknown, unless ``was_sent`` is False.

    Its cause is attached. After ``was_sent=False`` nothing can have happened, and the call can be repeated.
    """

    def __init__(self, message: str = "", *, was_sent: bool = True, **place: Any) -> None:
        super().__init__(message, **place)
        self.was_sent = was_sent


class EmbeddedServerError(RedisMessageQueueError, RuntimeError):
    """No embedded server could be started: the text says what was tried."""


class MissingExtraError(RedisMessageQueueError, ImportError):
    """A part of the library needs packages that are not installed: the text says which extra brings them."""


class JavaError(RedisMessageQueueError, RuntimeError):
    """Spark found no Java, or one that is too old or broken: the text says what was found and what to install."""


class ConsumerGroupBusyError(RedisMessageQueueError):
    """Another streaming query holds the consumer group: stop it, or use another group."""


class ConsumerGroupLostError(RedisMessageQueueError):
    """Another streaming query has acquired the consumer group, and nothing was changed: stop this one."""


class DataLossError(RedisMessageQueueError):
    """Messages that a streaming query must read do not exist any more: the text says which, and what to do."""


class JournalError(RedisMessageQueueError):
    """A queue has no journal, or one that cannot be read: the text says what was found and what to do."""


class JobError(RedisMessageQueueError):
    """A job of the data pipeline failed: the text says why."""


class ArchiveError(JobError):
    """The archive does not match the journal, or is not an archive: the text says what to do."""


class ArchiveConflictError(ArchiveError):
    """Another run changed the same queue of the archive at the same time. Run this one again: it goes on."""


class SelectionError(JobError, ValueError):
    """A condition or a source of rows cannot be read: the text has Spark's reason and the columns that exist."""


class FaultInjectionError(RedisMessageQueueError, AssertionError):
    """A fault that a test planned did not happen, so the test proves nothing. The text says what happened instead."""
