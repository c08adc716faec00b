"""Emits events to ``on_event``; a failing callback disturbs neither the work nor other callbacks."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable
from typing import Any

from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.port import Runtime
from redis_message_queue.values.checks import functions
from redis_message_queue.values.errors import NotPermittedError
from redis_message_queue.values.events import EventOperation, EventOutcome, QueueEvent
from redis_message_queue.values.plain_values import LOGGED_TRACEBACK_BYTES, class_name, described, traceback_text

# Without a handler of its own: in a program without logging set up, Python then writes warnings and errors to stderr.
log = logging.getLogger("redis_message_queue")


def _bound_traceback(record: logging.LogRecord) -> bool:
    """Give a record the text of its traceback, which formatters print below the line: bounded, without passwords."""
    if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
        record.exc_text = record.exc_text or traceback_text(record.exc_info[1], LOGGED_TRACEBACK_BYTES)
    return True


log.addFilter(_bound_traceback)


class EventEmitter:
    """Builds events and hands them to the user's callbacks, whose mistakes stay their own."""

    def __init__(self, queue: str, on_event: Any, port: Runtime, *, leased: bool = True) -> None:
        self.queue = queue
        self._leased = leased  # without leases there is none to name
        self._listeners = functions("on_event", on_event)
        self.wanted = bool(self._listeners)
        self._port = port

    async def emit(
        self,
        operation: EventOperation,
        outcome: EventOutcome = EventOutcome.SUCCESS,
        *,
        claim: Claim | None = None,
        error: BaseException | None = None,
        **details: Any,
    ) -> None:
        """Emit one event; without a listener nothing is built."""
        if not self._listeners:
            return
        if claim is not None:
            details["message_id"] = claim.message_id
            details["delivery_count"] = claim.delivery_count
            if self._leased and claim.lease_token is not None:
                details["lease_token_hash"] = token_hash(claim.lease_token)
        event = QueueEvent(
            queue=self.queue,
            operation=operation,
            outcome=outcome,
            error=error,
            exception_type=None if error is None else class_name(error),
            **details,
        )
        for listener in self._listeners:
            await self.call(listener, event, what="on_event")

    def log(
        self,
        level: int,
        claim: Claim,
        text: str,
        *arguments: Any,
        handler_error: BaseException | None = None,
        traceback: bool = False,
    ) -> None:
        """A log line about one message: it names the queue and the message, also as attributes of its record.

        ``handler_error`` is the exception of a handler, which the record has. With ``traceback``, so has the log.
        """
        extra = {"queue": self.queue, "message_id": claim.message_id, "handler_error": handler_error}
        shown = handler_error if traceback and handler_error is not None and handler_error.__traceback__ else None
        text = f"%s: message %s {text}"
        log.log(level, text, self.queue, claim.message_id, *arguments, exc_info=shown, extra=extra)

    async def call(self, function: Callable[..., Any], *arguments: Any, what: str) -> None:
        """Call a function of the user's that must not disturb the queue."""
        answer = await self._port.call_user(function, *arguments)
        if answer.error is not None:
            _report(what, answer.error)


def token_hash(lease_token: str) -> str:
    """Enough to tell two leases apart, and nothing that would settle one."""
    return hashlib.sha256(lease_token.encode()).hexdigest()[:16]


def _report(what: str, error: BaseException) -> None:
    """Say that a callback failed, in the log and as a warning, even where warnings are errors."""
    log.error("%s raised %s", what, class_name(error), exc_info=error)
    try:
        warnings.warn(f"{what} raised {described(error)}", RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        log.debug("the warning about %s was turned into an error and stops here", what)


def named(error: Exception) -> str:
    """The class of an error, for logs; what a user of Redis may not do is named too, because it has to be granted."""
    return described(error) if isinstance(error, NotPermittedError) else class_name(error)
