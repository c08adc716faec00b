"""Use heartbeats with asyncio: the heartbeat is a task, and a handler that blocks the event loop stops it.

While `time.sleep`, a big `json.loads` or a driver that is not async runs, no heartbeat is sent, and the lease expires
in the middle of the work. Run such code in a thread.
"""

import asyncio
import os
import time

from redis.asyncio import Redis

from redis_message_queue.asyncio import RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def blocking_work() -> None:
    time.sleep(1.5)


async def handle(queue: RedisMessageQueue) -> None:
    async with queue.process_message() as message:
        received = queue.current_message()
        assert received is not None
        if message == "in a thread":
            await asyncio.to_thread(blocking_work)
        else:
            blocking_work()  # wrong: a second consumer would handle this message again
        print(f"{message}: {'the lease was lost' if received.lease_lost else 'the lease was kept'}")


async def main() -> None:
    async with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue(
            "heartbeats-asyncio",
            client=client,
            visibility_timeout_seconds=1,
            heartbeat_interval_seconds=0.3,
        )
        for job in ("in a thread", "in the event loop"):
            await queue.publish(job)
            await handle(queue)


if __name__ == "__main__":
    asyncio.run(main())
