"""The error of the blocking queue for a handler that should have been awaited."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn


def refuse_awaitable(result: Any) -> NoReturn:
    """Raise for a handler that is an ``async def``; none of its code has run."""
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(
        "handler returned an awaitable, which the sync queue cannot await; "
        "use redis_message_queue.asyncio, or a plain function"
    )
