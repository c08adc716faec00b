"""Shut down gracefully with asyncio: consumers finish their messages before the event loop ends.

Two things differ from threads. `asyncio.run` takes over SIGINT, so create the handler before you call it. And
cancelling a task is not a graceful stop: a cancelled handler leaves its message to the lease, and the message comes
back when that expires.
"""

import asyncio
import os
import signal

from redis.asyncio import Redis

from redis_message_queue.asyncio import GracefulInterruptHandler, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def consume(queue: RedisMessageQueue, interrupt: GracefulInterruptHandler, name: str) -> None:
    while not interrupt.is_interrupted():
        async with queue.process_message() as message:
            if message is None:
                continue
            print(f"{name} begins: {message}")
            if message == "job 2":
                os.kill(os.getpid(), signal.SIGTERM)  # what your orchestrator would send
            await asyncio.sleep(0.2)
            print(f"{name} is done: {message}")


async def main(interrupt: GracefulInterruptHandler) -> None:
    async with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue("shutdown-asyncio", client=client, interrupt=interrupt)
        for number in range(1, 4):
            await queue.publish(f"job {number}")
        # A TaskGroup waits for its tasks, so you need not cancel any.
        async with asyncio.TaskGroup() as consumers:
            for name in ("consumer 1", "consumer 2"):
                consumers.create_task(consume(queue, interrupt, name))
        print(f"stopped; jobs left for another process: {await client.llen(queue.key.pending)}")
        await client.delete(queue.key.pending)  # there is no other process here: leave nothing behind


if __name__ == "__main__":
    asyncio.run(main(GracefulInterruptHandler()))
