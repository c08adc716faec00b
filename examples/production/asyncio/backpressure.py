"""Apply backpressure with asyncio: while a producer waits for room, the other tasks run."""

import asyncio
import os
import time

from redis.asyncio import Redis

from redis_message_queue.asyncio import QueueBackpressureError, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
LIMIT, JOBS = 3, 6


async def produce(queue: RedisMessageQueue) -> None:
    started = time.monotonic()
    for number in range(1, JOBS + 1):
        try:
            await queue.publish(f"job {number}")  # waits while the queue is full; the consumer runs meanwhile
        except QueueBackpressureError:
            print(f"job {number}: no room for 10 seconds, are there any consumers?")
    print(f"{JOBS} jobs published, {LIMIT} at most waiting: it took {time.monotonic() - started:.1f} s")


async def consume(queue: RedisMessageQueue) -> None:
    for _ in range(JOBS):
        async with queue.process_message() as message:
            await asyncio.sleep(0.2)  # a slow consumer
            print(f"done: {message}")


async def main() -> None:
    async with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue(
            "backpressure-asyncio",
            client=client,
            max_pending_length=LIMIT,
            pending_overload_policy="block",
            pending_overload_block_timeout_seconds=10,
        )
        await asyncio.gather(produce(queue), consume(queue))


if __name__ == "__main__":
    asyncio.run(main())
