"""`python -m bench.growth.waiters URL NAME COUNT`: many consumers of one queue that wait for messages."""

import asyncio
import sys

import redis.asyncio

from redis_message_queue.asyncio import RedisMessageQueue

# A busy machine cannot open hundreds of connections at once within the time of a first contact.
_APART_SECONDS = 0.01


def _ignore(_: object) -> None:
    """A handler that costs nothing."""


async def main(url: str, name: str, count: int) -> None:
    client = redis.asyncio.Redis.from_url(url, max_connections=2 * count + 10)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(RedisMessageQueue(name, client=client).run(_ignore))
            await asyncio.sleep(_APART_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
