"""A worker that a test stops, or that a message crashes: it runs the loop and records in Redis what it starts.

Arguments: the server's port, "sync" or "asyncio", the options of the queue and of the loop as JSON.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio

POISON = b"poison"
HOLD = b"hold"  # its handler waits until the key "go" exists


def begin(tally: redis.Redis, message: Any) -> bool:
    """Whether the handler has to wait."""
    tally.rpush("begun", message.payload)
    if message.payload == POISON:
        os._exit(9)
    return bool(message.payload == HOLD)


def main(port: int, shell_name: str, queue_options: dict[str, Any], loop_options: dict[str, Any]) -> None:
    tally = redis.Redis(host="127.0.0.1", port=port)

    def handle(message: Any) -> None:
        if begin(tally, message):
            while not tally.exists("go"):
                time.sleep(0.02)

    async def handle_awaited(message: Any) -> None:
        if begin(tally, message):
            while not tally.exists("go"):  # noqa: ASYNC110  the test cannot set an event of this process
                await asyncio.sleep(0.02)

    async def run_asyncio() -> None:
        async with redis.asyncio.Redis(host="127.0.0.1", port=port) as client:
            queue = redis_message_queue.asyncio.RedisMessageQueue("faults", client=client, **queue_options)
            await queue.run(handle_awaited, **loop_options)

    if shell_name == "asyncio":
        asyncio.run(run_asyncio())
    else:
        with redis.Redis(host="127.0.0.1", port=port) as client:
            redis_message_queue.RedisMessageQueue("faults", client=client, **queue_options).run(handle, **loop_options)
    tally.close()


if __name__ == "__main__":
    signal.alarm(110)
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
