"""Observe a queue with asyncio: the callback may be an `async def`, and runs in the task that did the work.

So it sees the context variables of that task, such as a request id.
"""

import asyncio
import contextvars
import os

from redis.asyncio import Redis

from redis_message_queue.asyncio import EventOperation, QueueEvent, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

worker_name = contextvars.ContextVar("worker_name", default="main")


async def consume(queue: RedisMessageQueue, name: str) -> None:
    worker_name.set(name)
    async with queue.process_message():
        await asyncio.sleep(0.05)


async def main() -> None:
    exported: asyncio.Queue[str] = asyncio.Queue()

    async def observe(event: QueueEvent) -> None:
        if event.operation in (EventOperation.PUBLISH, EventOperation.CLAIM, EventOperation.ACK):
            # Store it and return: the message waits for this callback. Send it out in a task of your own.
            await exported.put(f"{worker_name.get()}: {event.operation} {event.outcome}")

    async with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue("observability-asyncio", client=client, on_event=observe)
        await queue.publish("job 1")
        await queue.publish("job 2")
        await asyncio.gather(consume(queue, "worker 1"), consume(queue, "worker 2"))

    while not exported.empty():
        print(exported.get_nowait())


if __name__ == "__main__":
    asyncio.run(main())
