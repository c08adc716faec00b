"""Label values that stay few: the first names keep their own, all further ones become "other"."""

from __future__ import annotations

from collections.abc import Mapping

from redis_message_queue.sync.runtime import BlockingRuntime
from redis_message_queue.values.checks import whole_number

OTHER = "other"


class BoundedLabels:
    """Maps names to at most ``limit`` label values and "other", because each value is a time series to store."""

    def __init__(self, parameter: str, limit: int) -> None:
        whole_number(parameter, limit)
        self._limit = limit
        self._names: set[str] = set()
        self._lock = BlockingRuntime().lock()  # a fork releases it in the child

    def __call__(self, name: str) -> str:
        if name in self._names:
            return name
        with self._lock:
            if name not in self._names and len(self._names) >= self._limit:
                return OTHER
            self._names.add(name)
        return name

    def sum_by_label(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Add up the counts of all names that share a label."""
        sums: dict[str, int] = {}
        for name, count in counts.items():
            label = self(name)
            sums[label] = sums.get(label, 0) + count
        return sums
