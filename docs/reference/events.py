"""events.md: when each event is emitted and what it contains. A test compares the table with real events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from docs.reference.markdown import check_complete, code, page, prose, sentence, table
from redis_message_queue import EventOperation, EventOutcome, QueueEvent

FIELD_SENTENCES = {
    "queue": "the name of the queue",
    "operation": "what happened",
    "outcome": "how it ended",
    "message_id": "the id of the message: 32 hexadecimal digits, the same in all its events",
    "lease_token_hash": "identifies the lease: each delivery of a message has a different one; `None` without leases",
    "delivery_count": "how often the message has been delivered, including this time",
    "attempt": "the number of the failed attempt within this call: 1, 2, …",
    "duration_seconds": "how long the publish took, how long the consumer waited, or the time since the claim",
    "error": "the exception itself; do not use its text as a metric label, it may contain private data",
    "exception_type": "the class name of the exception; safe as a metric label",
}
_LEASE = ("message_id", "lease_token_hash", "delivery_count")
_TIMED = (*_LEASE, "duration_seconds")
_ERROR = ("error", "exception_type")


class EventRow(NamedTuple):
    """One row of the table: when an event is emitted, its outcome, and which of the optional fields are set."""

    when: str
    outcome: EventOutcome
    filled: tuple[str, ...]


_SUCCESS, _FAILURE, _SKIPPED = EventOutcome.SUCCESS, EventOutcome.FAILURE, EventOutcome.SKIPPED
EVENT_ROWS: dict[EventOperation, tuple[EventRow, ...]] = {
    EventOperation.PUBLISH: (
        EventRow("a message was stored", _SUCCESS, ("message_id", "duration_seconds")),
        EventRow(
            "a publish raised: the queue is full, Redis refused the message, or Redis could not be reached. A message "
            "with a wrong type or size is never sent and causes no event",
            _FAILURE,
            ("message_id", *_ERROR),
        ),
    ),
    EventOperation.PUBLISH_DEDUP_HIT: (
        EventRow("a publish was suppressed as a duplicate", _SKIPPED, ("message_id", "duration_seconds")),
    ),
    EventOperation.DROPPED: (
        EventRow("`drop_oldest` removed this message unhandled, to make room for a new one", _SUCCESS, ("message_id",)),
    ),
    EventOperation.CLAIM: (
        EventRow("a message is about to be handed to the handler", _SUCCESS, _TIMED),
        EventRow("a claim failed: Redis refused it or could not be reached", _FAILURE, _ERROR),
    ),
    EventOperation.CLAIM_EMPTY: (
        EventRow("a call waited and got no message; emitted once per call", _SKIPPED, ("duration_seconds",)),
    ),
    EventOperation.CLAIM_RECLAIM: (
        EventRow(
            "just before `claim`: the message was already in flight. Its lease ran out, or the reply to an earlier "
            "claim was lost",
            _SUCCESS,
            _LEASE,
        ),
    ),
    EventOperation.ACK: (
        EventRow("the handler returned, and the message was removed from the queue", _SUCCESS, _TIMED),
    ),
    EventOperation.COMPLETED: (
        EventRow("just after `ack`: the payload was added to the completed list", _SUCCESS, _TIMED),
    ),
    EventOperation.FAILED: (
        EventRow("the handler raised; emitted before the message changes in Redis", _FAILURE, (*_TIMED, *_ERROR)),
    ),
    EventOperation.NACK: (
        EventRow(
            "after `failed`: the message was removed from the queue and, if enabled, added to the failed list",
            _SUCCESS,
            _TIMED,
        ),
    ),
    EventOperation.DLQ: (
        EventRow(
            "a claim found a message that had been delivered `max_delivery_count` times, and moved it to the dead "
            "letters",
            _SUCCESS,
            ("message_id", "delivery_count"),
        ),
        EventRow(
            "after `nack`: the retry policy gave the message up, its attempts are used up, or the handler raised "
            "`DeadLetter`",
            _SUCCESS,
            (*_TIMED, *_ERROR),
        ),
        EventRow(
            "a claim found a payload that is not UTF-8 although the client decodes responses, and moved it to the dead "
            "letters; the error is a `CorruptMessageError`",
            _SUCCESS,
            (*_LEASE, *_ERROR),
        ),
        EventRow(
            "a claim found bytes that are not a message of this library, and moved them to the dead letters; the count "
            "is 0",
            _SUCCESS,
            ("delivery_count",),
        ),
    ),
    EventOperation.RETRIED: (
        EventRow(
            "after `failed`: the retry policy scheduled the next attempt; or the handler raised `RetryLater`",
            _SUCCESS,
            _TIMED,
        ),
    ),
    EventOperation.DISCARDED: (
        EventRow("the handler raised `Discard`, and the message was removed", _SUCCESS, (*_TIMED, *_ERROR)),
    ),
    EventOperation.CANCELLED: (
        EventRow("`cancel()` removed a delayed message", _SUCCESS, ("message_id",)),
        EventRow(
            "a claim met a message that `cancel()` has marked, and dropped it",
            _SUCCESS,
            ("message_id", "delivery_count"),
        ),
    ),
    EventOperation.REQUEUED: (
        EventRow(
            "a loop ended and returned a message that it had not started to the front of its queue", _SUCCESS, _TIMED
        ),
        EventRow("an exception ended a batch before this message was settled", _SUCCESS, (*_TIMED, *_ERROR)),
    ),
    EventOperation.REDRIVEN: (
        EventRow("a dead letter was published again; `message_id` is the new id", _SUCCESS, ("message_id",)),
    ),
    EventOperation.HANDED_OFF: (
        EventRow("after `ack`: `complete()` published the follow-up messages in the same step", _SUCCESS, _TIMED),
    ),
    EventOperation.LEASE_RENEW: (
        EventRow("a heartbeat renewed the lease", _SUCCESS, _LEASE),
        EventRow("the handler has run for `max_processing_seconds`, and the heartbeat stopped", _SKIPPED, _LEASE),
        EventRow(
            "a renewal failed; the heartbeat tries again at the next interval while the lease lasts",
            _FAILURE,
            (*_LEASE, *_ERROR),
        ),
    ),
    EventOperation.STALE_LEASE_ACK: (
        EventRow("the handler returned after its lease was lost; nothing changed in Redis", _SKIPPED, _TIMED),
    ),
    EventOperation.STALE_LEASE_NACK: (
        EventRow("the handler raised after its lease was lost; nothing changed in Redis", _SKIPPED, _TIMED),
    ),
    EventOperation.STALE_LEASE_RENEW: (
        EventRow("the lease is lost, for example to another consumer, and the heartbeat stopped", _SKIPPED, _LEASE),
    ),
    EventOperation.CLEANUP_FAILED: (
        EventRow(
            "the handler finished, but its message could not be removed; with a lease it will be delivered again",
            _FAILURE,
            (*_TIMED, *_ERROR),
        ),
    ),
    EventOperation.TRIM_FAILED: (
        EventRow("the completed or failed list could not be trimmed", _FAILURE, (*_LEASE, *_ERROR)),
        EventRow("the dead-letter list could not be trimmed", _FAILURE, _ERROR),
    ),
    EventOperation.RETRY_ATTEMPT: (
        EventRow("a claim got a transient error and will be repeated", _FAILURE, ("attempt", *_ERROR)),
    ),
    EventOperation.RETRY_EXHAUSTED: (
        EventRow("just before `claim` with `failure`: the retry budget of a claim is spent", _FAILURE, _ERROR),
    ),
}


def events_page() -> str:
    check_complete("fields of an event", FIELD_SENTENCES, (field.name for field in fields(QueueEvent)))
    check_complete("operations", EVENT_ROWS, EventOperation)
    return page(
        "Events",
        "`values/events.py` and the tables of the generator, which a test compares with real events",
        prose("""
            The queue calls `on_event` with a `QueueEvent` for everything that happens to a message. The call runs in
            the thread or task that did the work; for lease renewals that is the heartbeat's own. If `on_event` raises,
            the exception is logged and reported as a `RuntimeWarning`, and the work continues. No event contains a
            payload.
        """),
        "## What an event contains",
        table(("field", "type", "meaning"), _field_rows()),
        f"`EventOutcome` is one of {', '.join(code(one) for one in EventOutcome)}.",
        "## When each event is emitted",
        prose("""
            `operation` is an `EventOperation`; the table shows its value. `queue`, `operation` and `outcome` are always
            set. The last column lists the other fields that are set.
        """),
        table(("operation", "emitted when", "outcome", "also set"), _rows()),
    )


def _field_rows() -> Iterator[tuple[str, str, str]]:
    for field in fields(QueueEvent):
        kind = " or ".join(code(word) for word in str(field.type).split(" | "))
        yield code(field.name), kind, sentence(FIELD_SENTENCES[field.name])


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for operation in EventOperation:
        for row in EVENT_ROWS[operation]:
            filled = ", ".join(code(name) for name in FIELD_SENTENCES if name in row.filled)
            yield code(operation), sentence(row.when), code(row.outcome), filled
