"""Consume messages with asyncio: three consumers in one process."""

import asyncio
import os

from redis.asyncio import Redis

from redis_message_queue.asyncio import RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def consume(queue: RedisMessageQueue, name: str) -> None:
    while True:
        async with queue.process_message() as message:
            if message is None:
                break  # nothing came for 5 seconds; a real service would keep waiting
            print(f"{name} is processing: {message}")
            await asyncio.sleep(0.05)  # your work; the other consumers run in the meantime


async def main() -> None:
    async with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue("quickstart", client=client)
        await asyncio.gather(*(consume(queue, f"consumer {number}") for number in (1, 2, 3)))
    print("nothing came for 5 seconds: done")


if __name__ == "__main__":
    asyncio.run(main())
