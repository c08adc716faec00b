"""What `run` is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from signal import Signals
from typing import Any, Generic, TypedDict, TypeVar

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.values.checks import flag, number, required_function, whole_number
from redis_message_queue.values.errors import ConfigurationError

_MOST_WORKERS = 10_000  # each is a thread or a task

Handler = TypeVar("Handler", bound=Callable[..., Any])

Middleware = Callable[[Any, Callable[[Any], Any]], Any]
"""Called with what the handler gets and with a function that calls the handler, or the next middleware."""


class LoopSettings(TypedDict, total=False):
    """The options of `run` and `run_queues` that do not change what a handler gets, for type checkers."""

    concurrency: int
    prefetch: int | None
    until_empty: bool
    wait_for_retries: bool
    middleware: Sequence[Middleware]
    renew_leases: bool
    signals: bool


class BatchSettings(LoopSettings, total=False):
    """The options of `run_queues`, for type checkers."""

    batch_size: int | None
    batch_seconds: float | None


@dataclass(slots=True)
class RunSummary:
    """What a loop has done, when it ends. All but ``attempts``, ``retried`` and ``stopped_by`` count messages.

    A message that has ended counts once: as ``handled``, ``discarded``, ``failed``, ``dead_lettered`` or
    ``refused_at_claim``. ``stopped_by`` is the signal that stopped the loop, if one did. A message that is
    ``left_behind`` waits behind a retry of its tenant, in a queue with ``ordered_tenants``: a loop that ends when
    nothing else waits does not handle it.
    """

    handled: int = 0
    failed: int = 0
    requeued: int = 0
    discarded: int = 0
    retried: int = 0
    attempts: int = 0
    dead_lettered: int = 0  # by the handler or the retry policy
    refused_at_claim: int = 0  # moved to the dead letters without calling the handler
    left_behind: int = 0
    unsettled: int = 0  # Redis did not confirm what became of them: their leases decide
    stopped_by: Signals | None = None


def add(earlier: RunSummary, later: RunSummary) -> RunSummary:
    """Return what two loops have done one after the other; what the first has left behind, the second has found."""
    sums = {name: count + getattr(later, name) for name, count in counts_of(earlier).items()}
    stopped_by = earlier.stopped_by or later.stopped_by
    return RunSummary(**sums | {"left_behind": later.left_behind}, stopped_by=stopped_by)


def counts_of(summary: RunSummary) -> dict[str, int]:
    """Return the numbers of a summary by their names."""
    return {each.name: getattr(summary, each.name) for each in fields(RunSummary) if each.name != "stopped_by"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Generic[Handler]):
    """How a loop works, checked when it begins."""

    handler: Handler
    concurrency: int = 1
    prefetch: int | None = None
    batch_size: int | None = None
    batch_seconds: float | None = None
    until_empty: bool = False
    wait_for_retries: bool = False
    middleware: Sequence[Middleware] = ()  # which the handler is wrapped in
    renew_leases: bool = True
    signals: bool = True

    def __post_init__(self) -> None:
        required_function("handler", self.handler)
        whole_number("concurrency", self.concurrency)
        whole_number("prefetch", self.prefetch, optional=True)
        whole_number("batch_size", self.batch_size, optional=True)
        number("batch_seconds", self.batch_seconds, optional=True, least=0)
        flag("until_empty", self.until_empty)
        for name in ("wait_for_retries", "renew_leases", "signals"):
            flag(name, getattr(self, name))
        if self.wait_for_retries and not self.until_empty:
            raise ConfigurationError("wait_for_retries needs until_empty=True: without it a loop waits for everything")
        if self.batch_seconds is not None and self.batch_size is None:
            raise ConfigurationError("batch_seconds needs batch_size: it is how long a batch may take to fill")
        most = {"prefetch": MAX_MESSAGES, "batch_size": MAX_MESSAGES, "concurrency": _MOST_WORKERS}
        for name, limit in most.items():
            if (getattr(self, name) or 0) > limit:
                raise ConfigurationError(f"{name} must be at most {limit:,}")

    def renewal_interval(self, queue: QueueOptions, lease: float | None) -> float | None:
        """Return how often to renew leases of this length, None for never; raise for what does not allow that."""
        if lease is None:
            return None
        if self.renew_leases:
            return queue.heartbeat_interval_seconds or lease / 3
        queue.check_renewal(None)
        if self.batch_seconds is not None and self.batch_seconds >= lease:
            raise ConfigurationError(
                f"batch_seconds={self.batch_seconds} must be less than the visibility timeout ({lease} s): the first "
                "messages of a batch would lose their leases while it fills; leave out renew_leases=False, or lower "
                "batch_seconds"
            )
        return None
