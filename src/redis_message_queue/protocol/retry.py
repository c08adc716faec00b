"""When to try again: the decision alone, without clocks or sleeping."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """Exponential backoff with jitter inside a budget of monotonic seconds."""

    budget_seconds: float
    initial_delay_seconds: float
    max_delay_seconds: float

    def pause(self, attempt: int, elapsed: float, random: float, budget: float | None = None) -> float | None:
        """How long to sleep after the failed ``attempt`` (1, 2, ...), or None when the budget is spent.

        Half of each pause is fixed and half is random: callers that failed together come back apart.
        """
        left = (self.budget_seconds if budget is None else min(budget, self.budget_seconds)) - elapsed
        if left <= 0:
            return None
        longest = min(self.max_delay_seconds, self.initial_delay_seconds * 2.0 ** min(attempt - 1, 60))
        return min(left, longest * (0.5 + 0.5 * random))
