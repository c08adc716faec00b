"""Labels that stay few: whoever comes late is "other"."""

from __future__ import annotations

from collections.abc import Mapping

from redis_message_queue.checks import whole_number
from redis_message_queue.sync.runtime import BlockingRuntime

OTHER = "other"


class Capped:
    """The first so many names as they are, "other" for all further ones: each is a series that somebody stores."""

    def __init__(self, parameter: str, most: int) -> None:
        whole_number(parameter, most)
        self._most = most
        self._known: set[str] = set()
        self._lock = BlockingRuntime().lock()  # which a forked child finds free

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        with self._lock:
            if name not in self._known and len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name

    def summed(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The same for numbers: those without a label of their own together."""
        sums: dict[str, int] = {}
        for name, count in counts.items():
            label = self(name)
            sums[label] = sums.get(label, 0) + count
        return sums
