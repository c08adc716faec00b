"""What can go wrong, sorted by what the caller can do about it."""

from __future__ import annotations

import redis.exceptions


class RedisMessageQueueError(Exception):
    """Everything that this library raises by itself; catch it to catch them all.

    ``queue``, ``message_id`` and ``operation`` say where it happened, as far as that is known.
    """

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
        """Fill in what was not known where it was raised."""
        self.queue = self.queue or queue
        self.operation = self.operation or operation


class ConfigurationError(RedisMessageQueueError, ValueError):
    """An option has a value that cannot work, or two options contradict each other: change the call."""


class ConfigurationTypeError(ConfigurationError, TypeError):
    """An option has a value of the wrong type: change the call."""


class GatewayContractError(RedisMessageQueueError, TypeError):
    """A custom gateway does not keep its side of the contract, or is asked for what it does not offer."""


class PayloadTypeError(RedisMessageQueueError, TypeError):
    """The message holds a value that JSON cannot carry unchanged: convert it before publishing."""


class PayloadValueError(RedisMessageQueueError, ValueError):
    """The message has the right type and no encoding: a lone surrogate, a NaN, a structure inside itself."""


class PayloadTooLargeError(RedisMessageQueueError, ValueError):
    """The encoded message is larger than ``max_payload_bytes``: shorten it, or publish a reference to it."""


class PayloadTooDeepError(RedisMessageQueueError, ValueError):
    """The message nests deeper than ``max_payload_depth``: flatten it."""


class QueueBackpressureError(RedisMessageQueueError):
    """The queue is full and nothing was published, or of `publish_many` only what ``results`` say: try again later."""


class PublishNotConfirmedError(RedisMessageQueueError):
    """Replicas or the disk did not confirm a publish in time: it may be there; repeat it with ``repeat_of``."""

    dropped: tuple[str, ...] = ()  # the ids of messages that had to leave for it
    sent: object = None  # what `publish(..., repeat_of=error)` needs to send the very same again


class QueueDrainedError(RedisMessageQueueError):
    """This queue object has been drained: publish through another one."""


class LeaseLostError(RedisMessageQueueError):
    """The message is not this handler's any more: another consumer may have it, and nothing was changed."""


class CleanupFailedError(RedisMessageQueueError):
    """The handler succeeded and the acknowledgement did not: the message may be delivered again."""


class CorruptMessageError(RedisMessageQueueError, ValueError):
    """What Redis holds is not a message of this library: it was put among the dead letters unread."""


class LuaScriptError(RedisMessageQueueError, redis.exceptions.ResponseError):
    """Redis refused a script, and nothing was changed: the text and the cause say why."""


class StateVersionError(RedisMessageQueueError, RuntimeError):
    """A newer release has written what Redis holds of this queue, and nothing was changed: upgrade this library."""


class NotPermittedError(LuaScriptError, redis.exceptions.NoPermissionError):
    """The Redis user may not run a command or access a key: the text names it and says what to grant.

    A script that met it half-way was stopped there, and what it had done before stays done.
    """


class RetryBudgetExhaustedError(RedisMessageQueueError, redis.exceptions.RedisError):
    """Redis could not be reached within the retry budget: the outcome of the call is unknown, its cause is attached."""


class EmbeddedServerError(RedisMessageQueueError, RuntimeError):
    """No embedded server could be started: the text says what was tried."""


class MissingExtraError(RedisMessageQueueError, ImportError):
    """A part of the library needs packages that are not installed: the text says which extra brings them."""


class JavaError(RedisMessageQueueError, RuntimeError):
    """Spark has no Java to run on, or one that is too old or broken: the text says what was found and what would do."""


class ConsumerGroupBusyError(RedisMessageQueueError):
    """Another streaming query holds the consumer group and goes on renewing it: stop it, or use another group."""


class ConsumerGroupLostError(RedisMessageQueueError):
    """Another streaming query has taken the consumer group over, and nothing was changed: this one must end."""


class DataLossError(RedisMessageQueueError):
    """Messages that a streaming query is to read are not there any more: the text says which, and what would do."""


class JournalError(RedisMessageQueueError):
    """A queue has no journal, or one that cannot be read: the text says what was found and what would do."""


class JobError(RedisMessageQueueError):
    """A job of the data pipeline could not do its work: the text says what was in the way."""


class ArchiveError(JobError):
    """The archive and the journal do not fit together, or the archive is not one: the text says what would do."""


class ArchiveConflictError(ArchiveError):
    """Another run has changed the archive meanwhile, and nothing was changed by this one: run it again."""


class SelectionError(JobError, ValueError):
    """A selection or a source of rows cannot be read: the text has Spark's reason and the columns there are."""


class RehearsalError(RedisMessageQueueError, AssertionError):
    """A fault that a test has planned did not happen as planned, so the test shows nothing: the text says what did."""
