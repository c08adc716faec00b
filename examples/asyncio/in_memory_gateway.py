"""A custom async gateway: the rules of the queue on a store that is not Redis, here a few lists in this process.

It has no leases, and says so by not setting ``message_visibility_timeout_seconds``. It returns plain messages, and a
message that a cancelled consumer held is lost with the process. For a gateway with leases, see the sync example
../in_memory_gateway.py; the contract is the same.
"""

import asyncio
from collections import defaultdict, deque

from redis_message_queue.asyncio import (
    AbstractRedisGateway,
    BaseGracefulInterruptHandler,
    RedisMessageQueue,
)


class InMemoryGateway(AbstractRedisGateway):
    """Keeps lists in memory, for the tasks of one event loop."""

    def __init__(self, *, wait_seconds: float = 0.1) -> None:
        self.lists: dict[str, deque[str | bytes]] = defaultdict(deque)  # newest on the left, as in Redis
        self._wait_seconds = wait_seconds
        self._published: set[str] = set()
        self._arrived = asyncio.Event()

    async def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        if dedup_key in self._published:
            return False
        self._published.add(dedup_key)
        await self.add_message(queue, message)
        return True

    async def add_message(self, queue: str, message: str) -> None:
        self.lists[queue].appendleft(message)
        self._arrived.set()

    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> str | bytes | None:
        if not self.lists[from_queue]:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), self._wait_seconds)
            except TimeoutError:
                return None
        if not self.lists[from_queue]:  # another task was quicker
            return None
        message = self.lists[from_queue].pop()
        self.lists[to_queue].appendleft(message)
        return message

    async def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> bool:
        if message not in self.lists[queue]:
            return False
        self.lists[queue].remove(message)
        return True

    async def move_message(
        self, from_queue: str, to_queue: str, message: str | bytes, *, lease_token: str | None = None
    ) -> bool:
        moved = await self.remove_message(from_queue, message)
        if moved:
            self.lists[to_queue].appendleft(message)
        return moved

    async def renew_message_lease(
        self,
        queue: str,
        message: str | bytes,
        lease_token: str,
        *,
        is_interrupted: BaseGracefulInterruptHandler | None = None,
    ) -> bool:
        return False  # there is no lease to renew: the queue refuses heartbeats for this gateway

    async def trim_queue(self, queue: str, max_length: int) -> None:
        while len(self.lists[queue]) > max_length:
            self.lists[queue].pop()


async def main() -> None:
    gateway = InMemoryGateway()
    queue = RedisMessageQueue("jobs", gateway=gateway, deduplication=True, enable_failed_queue=True)
    for job in ("job 1", "job 2", "job 1"):
        print(f"{job}: {'accepted' if await queue.publish(job) else 'seen before'}")

    async with queue.process_message() as message:
        print(f"handled: {message}")
    try:
        async with queue.process_message() as message:
            raise RuntimeError("the handler broke")
    except RuntimeError as error:
        print(f"{error}, failed: {list(gateway.lists[queue.key.failed])}")
    async with queue.process_message() as message:
        print(f"nothing left: {message}")


if __name__ == "__main__":
    asyncio.run(main())
