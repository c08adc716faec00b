"""Exceptions that a handler raises to decide what becomes of its message."""

from __future__ import annotations

from redis_message_queue.values.checks import number, text
from redis_message_queue.values.plain_values import plain

LONGEST_REASON = 200  # characters that records and journals keep


class HandlerOutcome(Exception):
    """The base class of what a handler can raise to decide what becomes of its message.

    None of them is a failure of the handler: the block around the handler ends normally, and a loop continues. If Redis
    did not confirm the outcome, the exception leaves the block after all.
    """


class RetryLater(HandlerOutcome):
    """Raise it in a handler to have the message delivered again after a delay.

    It counts as an attempt. At the last attempt, the message goes to the dead letters instead: ``max_attempts`` of the
    queue's `RetryPolicy` is the limit, or ``max_delivery_count`` without a policy. ``raise RetryLater(...) from error``
    records the error.

    Args:
        delay_seconds: Do not deliver it again before this many seconds have passed.

    Raises:
        ConfigurationError: ``delay_seconds`` is not a number of seconds, or negative.
    """

    def __init__(self, delay_seconds: float) -> None:
        number("delay_seconds", delay_seconds, least=0)
        self.delay_seconds = float(plain(delay_seconds))
        super().__init__(f"retry in {self.delay_seconds:g} s")


class _OutcomeWithReason(HandlerOutcome):
    def __init__(self, reason: str) -> None:
        text("reason", reason)
        self.reason: str = plain(reason)[:LONGEST_REASON]
        super().__init__(self.reason)


class Discard(_OutcomeWithReason):
    """Raise it in a handler to remove the message, which then counts as neither handled nor failed.

    A queue with a completed list keeps the payload there, with the reason in its record.

    Args:
        reason: Why, for the log, the record and the journal. At most 200 characters are kept.

    Raises:
        ConfigurationError: ``reason`` is not a text.
    """


class DeadLetter(_OutcomeWithReason):
    """Raise it in a handler to move the message to the dead letters at once, without further attempts.

    Args:
        reason: Why, for the log, the record and the journal. At most 200 characters are kept.

    Raises:
        ConfigurationError: ``reason`` is not a text.
    """
