"""What the tests of hand-offs share."""

from typing import Any

from tests.contract.shells import Awaited, Shell


def complete(message: Any, *results: tuple[Any, ...]) -> Any:
    """Hand a message off to queues of these tests."""
    return Awaited(message).complete(publish=[(target.queue, *rest) for target, *rest in results])


async def hand_off(queue: Any, *results: tuple[Any, ...]) -> None:
    """Take the next message and turn it into these."""
    async with queue.process_messages(1) as batch:
        await complete(batch[0], *results)


def everything(shell: Shell) -> dict[bytes, bytes]:
    """What is in Redis, but for answers to calls."""
    return {key: shell.redis.dump(key) for key in shell.redis.keys("*") if b"::reply::" not in key}


async def waiting(queue: Any) -> list[Any]:
    return [one.payload for one in await Awaited(queue).peek(100)]
