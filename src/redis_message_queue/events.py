"""What can happen to a message, as ``on_event`` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EventOperation(StrEnum):
    """What was done; the value is what metrics and logs show."""

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
    GIVEN_BACK = "given_back"
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
    """One thing that happened. Payloads are never part of it, and a lease token only as a hash."""

    queue: str
    operation: EventOperation
    outcome: EventOutcome
    message_id: str | None = None
    lease_token_hash: str | None = None
    delivery_count: int | None = None
    attempt: int | None = None
    duration_seconds: float | None = None
    error: BaseException | None = None
    exception_type: str | None = None  # the class name of ``error``: fit for a label, where its text is not
