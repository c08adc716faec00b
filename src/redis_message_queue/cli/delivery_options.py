"""The options of commands that take messages: leases, retries, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from redis_message_queue.options import (
    DEFAULT_MAX_DELIVERY_COUNT,
    DEFAULT_RETRY_BUDGET_SECONDS,
    DEFAULT_TRACKING_LENGTH,
    DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
)
from redis_message_queue.retry_policy import RetryPolicy

_DELIVERY, _FAILURE = "Delivery", "Failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """How messages are leased, and what becomes of those that fail."""

    visibility_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Length of a lease: after a crash the message is delivered again then. 0 for at most once.",
            rich_help_panel=_DELIVERY,
        ),
    ] = DEFAULT_VISIBILITY_TIMEOUT_SECONDS
    heartbeat: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How often a lease is renewed while its message is worked on. 0 for never.",
            show_default="a third of the lease",
            rich_help_panel=_DELIVERY,
        ),
    ] = None
    max_processing: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Renew no longer than so: a message whose handler hangs goes to somebody else.",
            show_default="no limit",
            rich_help_panel=_DELIVERY,
        ),
    ] = None
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="How often a message is delivered before it is a dead letter. 0 for any number.",
            show_default=str(DEFAULT_MAX_DELIVERY_COUNT),
            rich_help_panel=_FAILURE,
        ),
    ] = None
    max_attempts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="How often a message may fail before that is final: then it is kept as failed, or as a dead letter.",
            rich_help_panel=_FAILURE,
        ),
    ] = 1
    retry_delay: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="The pause after the first failure; each further one is twice as long.",
            rich_help_panel=_FAILURE,
        ),
    ] = 1.0
    max_retry_delay: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The longest of these pauses.", rich_help_panel=_FAILURE)
    ] = 3600.0
    keep_failed: Annotated[
        bool,
        typer.Option(
            help="Keep what failed for good in the failed list, or else in the dead letters.", rich_help_panel=_FAILURE
        ),
    ] = True
    keep_completed: Annotated[
        bool, typer.Option(help="Keep what was handled in the completed list.", rich_help_panel=_FAILURE)
    ] = False
    max_kept: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="How many of each are kept, the newest. 0 for all.",
            show_default="all that failed, 1,000 that were handled",
            rich_help_panel=_FAILURE,
        ),
    ] = None
    max_dead_letters: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="How many dead letters are kept. 0 for all.", rich_help_panel=_FAILURE),
    ] = 0

    def queue_options(self) -> dict[str, Any]:
        """As options of a queue, which checks them."""
        lease = self.visibility_timeout or None
        # The failed list is there without anybody having asked for it, so it deletes nothing unless it is told to.
        most_failed = self.max_kept or None
        most_completed = DEFAULT_TRACKING_LENGTH if self.max_kept is None else self.max_kept or None
        options: dict[str, Any] = {
            "visibility_timeout_seconds": lease,
            "heartbeat_interval_seconds": self._heartbeat(lease),
            "max_processing_seconds": self.max_processing,
            "enable_failed_queue": self.keep_failed,
            "enable_completed_queue": self.keep_completed,
            "max_failed_length": most_failed,
            "max_completed_length": most_completed,
            "max_dead_letter_length": self.max_dead_letters or None,
            "retry_policy": self._retry_policy(),
            # Whoever works for long may wait for a server that comes back.
            "retry_budget_seconds": DEFAULT_RETRY_BUDGET_SECONDS,
        }
        if self.max_deliveries is not None:
            options["max_delivery_count"] = self.max_deliveries or None
        return options

    def _heartbeat(self, lease: float | None) -> float | None:
        if self.heartbeat is None:
            return None if lease is None else lease / 3
        return self.heartbeat or None

    def _retry_policy(self) -> RetryPolicy | None:
        if self.max_attempts == 1:
            return None
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_delay_seconds=self.retry_delay,
            max_delay_seconds=max(self.retry_delay, self.max_retry_delay),
        )
