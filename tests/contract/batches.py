"""Queues with messages, and the contents of a batch."""

import contextlib
from typing import Any

from tests.contract.shells import (
    Died,
    Shell,
)


def payloads(batch: Any) -> list[str]:
    """As text, in the order of the batch."""
    return [message.payload if isinstance(message.payload, str) else message.payload.decode() for message in batch]


async def look(queue: Any, count: int = 100) -> list[tuple[str, int]]:
    """Payload and delivery count of everything that can be claimed, which stays in processing."""
    with contextlib.suppress(Died):
        async with queue.process_messages(count, wait_seconds=0) as batch:
            seen = [(message.payload.decode(), message.delivery_count) for message in batch]
            raise Died
    return seen


async def filled(shell: Shell, letters: str = "abcd", /, **options: Any) -> Any:
    """A queue with a message for each letter."""
    queue = shell.queue(**{"wait": 0} | options)
    await queue.publish_many(list(letters))
    return queue
