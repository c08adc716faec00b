"""Publish messages with asyncio.

Sync and async queues share one format: ../receive_messages.py can consume what you publish here, and vice versa.
"""

import asyncio
import os

from redis.asyncio import Redis

from redis_message_queue.asyncio import RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def main() -> None:
    async with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue("quickstart", client=client, deduplication=True)

        # Any number of tasks can share one queue object.
        orders = [f"order {number}" for number in range(1, 6)]
        for order, accepted in zip(orders, await asyncio.gather(*map(queue.publish, orders)), strict=True):
            print(f"{order}: {'accepted' if accepted else 'seen before, suppressed'}")

        print(f"order 1 again: {'accepted' if await queue.publish('order 1') else 'seen before, suppressed'}")


if __name__ == "__main__":
    asyncio.run(main())
