"""Says that the extra [metrics] is missing, before an import deep inside says it badly."""

from __future__ import annotations

import importlib.util

from redis_message_queue.errors import MissingExtraError


def require(module: str, wanted: str) -> None:
    """Raise MissingExtraError unless the module that the extra brings is there."""
    try:
        found = importlib.util.find_spec(wanted) is not None
    except (ImportError, ValueError):  # its parent is missing, or somebody has shut it out
        found = False
    if not found:
        raise MissingExtraError(
            f"redis_message_queue.metrics.{module} needs {wanted}. Run: pip install 'redis-message-queue[metrics]'"
        )
