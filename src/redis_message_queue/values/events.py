"""The events that ``on_event`` receives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EventOperation(StrEnum):
    """The operation that an event reports. Metrics and logs show the value."""

    PUBLISH = "publish"
    PUBLISH_DEDUP_HIT = "publish_dedup_hit"
    DROPPED = "dropped"
    CLAIM = "claim"
    CLAIM_EMPTY = "claim_empty"
    CLAIM_RECLAIM = "claim_reclaim"
    ACK = "ack"
    NACK = "nack"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRIED = "retried"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    REDRIVEN = "redriven"
    HANDED_OFF = "handed_off"
    DLQ = "dlq"
    LEASE_RENEW = "lease_renew"
    STALE_LEASE_ACK = "stale_lease_ack"
    STALE_LEASE_NACK = "stale_lease_nack"
    STALE_LEASE_RENEW = "stale_lease_renew"
    CLEANUP_FAILED = "cleanup_failed"
    TRIM_FAILED = "trim_failed"
    RETRY_ATTEMPT = "retry_attempt"
    RETRY_EXHAUSTED = "retry_exhausted"


class EventOutcome(StrEnum):
    """How it ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """One thing that happened to a message. It never contains a payload, and a lease token only as a hash."""

    queue: str
    operation: EventOperation
    outcome: EventOutcome
    message_id: str | None = None
    lease_token_hash: str | None = None
    delivery_count: int | None = None
    attempt: int | None = None
    duration_seconds: float | None = None
    error: BaseException | None = None
    exception_type: str | None = None  # the class name of ``error``; safe as a metric label, unlike its text
