"""events.md: when each event is told and what it holds; a test compares the table with what is really told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from docs.reference.markdown import code, in_step, page, prose, sentence, table
from redis_message_queue import EventOperation, EventOutcome, QueueEvent

FIELD_SENTENCES = {
    "queue": "the name of the queue",
    "operation": "what was done",
    "outcome": "how it ended",
    "message_id": "which message: 32 hexadecimal digits, the same in all its events",
    "lease_token_hash": "which lease of it: two deliveries of one message differ here; none in a queue without leases",
    "delivery_count": "how often the message has been delivered, this time included",
    "attempt": "which failed attempt of this call it was: 1, 2, …",
    "duration_seconds": "how long it took: the publish, the wait for a message, or the time since it was claimed",
    "error": "the exception itself; its text may hold what should not be in a metric",
    "exception_type": "the name of its class, which is fit for a label",
}
_LEASE = ("message_id", "lease_token_hash", "delivery_count")
_TIMED = (*_LEASE, "duration_seconds")
_ERROR = ("error", "exception_type")


class Telling(NamedTuple):
    """One way in which an operation is told: when, how it ended, and what is filled beside that."""

    when: str
    outcome: EventOutcome
    filled: tuple[str, ...]


_SUCCESS, _FAILURE, _SKIPPED = EventOutcome.SUCCESS, EventOutcome.FAILURE, EventOutcome.SKIPPED
TELLINGS: dict[EventOperation, tuple[Telling, ...]] = {
    EventOperation.PUBLISH: (
        Telling("a message is in the line", _SUCCESS, ("message_id", "duration_seconds")),
        Telling(
            "a publish raised: the queue is full, or Redis refused it or could not be reached. A message that is "
            "refused for its type or size was never sent and is not told",
            _FAILURE,
            ("message_id", *_ERROR),
        ),
    ),
    EventOperation.PUBLISH_DEDUP_HIT: (
        Telling("a publish was suppressed as a duplicate", _SKIPPED, ("message_id", "duration_seconds")),
    ),
    EventOperation.DROPPED: (
        Telling("`drop_oldest` removed this message, unhandled, to make room for another", _SUCCESS, ("message_id",)),
    ),
    EventOperation.CLAIM: (
        Telling("a handler is about to get a message", _SUCCESS, _TIMED),
        Telling("Redis refused a claim or could not be reached", _FAILURE, _ERROR),
    ),
    EventOperation.CLAIM_EMPTY: (
        Telling("no message came while it waited: once a call, not once a look", _SKIPPED, ("duration_seconds",)),
    ),
    EventOperation.CLAIM_RECLAIM: (
        Telling(
            "just before `claim`: this message was in flight already. Its lease had run out, or the answer to the "
            "claim that took it was never seen",
            _SUCCESS,
            _LEASE,
        ),
    ),
    EventOperation.ACK: (Telling("the handler returned, and its message has left the queue", _SUCCESS, _TIMED),),
    EventOperation.COMPLETED: (Telling("just after `ack`: its payload is in the completed list", _SUCCESS, _TIMED),),
    EventOperation.FAILED: (
        Telling("the handler raised; told before the message is touched", _FAILURE, (*_TIMED, *_ERROR)),
    ),
    EventOperation.NACK: (
        Telling(
            "after `failed`: the message has left the queue, into the failed list if there is one", _SUCCESS, _TIMED
        ),
    ),
    EventOperation.DLQ: (
        Telling(
            "a claim met a message that had been delivered `max_delivery_count` times, and put it among the dead "
            "letters",
            _SUCCESS,
            ("message_id", "delivery_count"),
        ),
        Telling(
            "after `nack`: a retry policy has given the message up, or its attempts are used up",
            _SUCCESS,
            (*_TIMED, *_ERROR),
        ),
        Telling(
            "the same for a payload that is not UTF-8 where the client decodes; the error is a `CorruptMessageError`",
            _SUCCESS,
            (*_LEASE, *_ERROR),
        ),
        Telling(
            "the same for bytes in the line that are no message of this library; the count is 0",
            _SUCCESS,
            ("delivery_count",),
        ),
    ),
    EventOperation.RETRIED: (
        Telling("after `failed`: a retry policy lets the message wait for its next attempt", _SUCCESS, _TIMED),
    ),
    EventOperation.GIVEN_BACK: (
        Telling("a loop ends and returns what it had not begun to the head of its line", _SUCCESS, _TIMED),
        Telling("a batch was left by an exception, and this message was not settled yet", _SUCCESS, (*_TIMED, *_ERROR)),
    ),
    EventOperation.REDRIVEN: (
        Telling("a dead letter is a message again; the id is its new one", _SUCCESS, ("message_id",)),
    ),
    EventOperation.HANDED_OFF: (
        Telling("after `ack`: `complete()` has published what the message led to, in the same step", _SUCCESS, _TIMED),
    ),
    EventOperation.LEASE_RENEW: (
        Telling("a heartbeat renewed the lease", _SUCCESS, _LEASE),
        Telling("the handler has had its `max_processing_seconds`: the heartbeat ends", _SKIPPED, _LEASE),
        Telling(
            "a renewal did not get through: it is tried again at the next interval while the lease lasts",
            _FAILURE,
            (*_LEASE, *_ERROR),
        ),
    ),
    EventOperation.STALE_LEASE_ACK: (
        Telling("the handler returned after its lease was lost; nothing was changed", _SKIPPED, _TIMED),
    ),
    EventOperation.STALE_LEASE_NACK: (
        Telling("the handler raised after its lease was lost; nothing was changed", _SKIPPED, _TIMED),
    ),
    EventOperation.STALE_LEASE_RENEW: (
        Telling("a heartbeat was told that another consumer has the message: it ends", _SKIPPED, _LEASE),
    ),
    EventOperation.CLEANUP_FAILED: (
        Telling(
            "the handler is done and its message could not be removed; with a lease it will come again",
            _FAILURE,
            (*_TIMED, *_ERROR),
        ),
    ),
    EventOperation.TRIM_FAILED: (
        Telling("the completed or failed list could not be cut to its length", _FAILURE, (*_LEASE, *_ERROR)),
        Telling("the dead letters could not be cut to their length", _FAILURE, _ERROR),
    ),
    EventOperation.RETRY_ATTEMPT: (
        Telling("a claim met a transient error and will be repeated", _FAILURE, ("attempt", *_ERROR)),
    ),
    EventOperation.RETRY_EXHAUSTED: (
        Telling("just before `claim` with `failure`: the retry budget of a claim is spent", _FAILURE, _ERROR),
    ),
}


def events_page() -> str:
    in_step("fields of an event", FIELD_SENTENCES, (field.name for field in fields(QueueEvent)))
    in_step("operations", TELLINGS, EventOperation)
    return page(
        "Events",
        "`events.py` and the tables of the generator, which a test compares with what is really told",
        prose("""
            `on_event` is called with a `QueueEvent` for everything that happens to messages: in the thread or task that
            did the work, and in the heartbeat's own for its renewals. What it raises is logged and given as a
            `RuntimeWarning`; the work goes on. No event holds a payload.
        """),
        "## What an event holds",
        table(("field", "type", "what it is"), _field_rows()),
        f"`EventOutcome` is one of {', '.join(code(one) for one in EventOutcome)}.",
        "## What is told, and when",
        prose("""
            `operation` is an `EventOperation`; the text is its value. `queue`, `operation` and `outcome` are always
            filled, the others as the last column says.
        """),
        table(("operation", "told when", "outcome", "filled"), _telling_rows()),
    )


def _field_rows() -> Iterator[tuple[str, str, str]]:
    for field in fields(QueueEvent):
        kind = " or ".join(code(word) for word in str(field.type).split(" | "))
        yield code(field.name), kind, sentence(FIELD_SENTENCES[field.name])


def _telling_rows() -> Iterator[tuple[str, str, str, str]]:
    for operation in EventOperation:
        for telling in TELLINGS[operation]:
            filled = ", ".join(code(name) for name in FIELD_SENTENCES if name in telling.filled)
            yield code(operation), sentence(telling.when), code(telling.outcome), filled
