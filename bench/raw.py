"""The yardstick: the fewest redis-py calls that publish a message, take it and take it off."""

from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from bench.payload import identity

# KEYS  marker: this message was published | pending: the list
# ARGV  message | how long the marker lives, in seconds
_PUBLISH_ONCE = """
if redis.call('SET', KEYS[1], '', 'NX', 'EX', ARGV[2]) then
  redis.call('LPUSH', KEYS[2], ARGV[1])
  return 1
end
return 0
"""
_WINDOW_SECONDS = 3600
_WAIT_SECONDS = 1


class Keys:
    """What both colours share: the names of the keys, and the script in the server."""

    def __init__(self, url: str, name: str) -> None:
        self.pending, self.processing = f"{name}::pending", f"{name}::processing"
        self.marker = f"{name}::deduplication::"
        with redis.Redis.from_url(url) as client:
            self.script = client.script_load(_PUBLISH_ONCE)


class SyncQueue:
    """A list to push to, and a list of what is in hand."""

    def __init__(self, url: str, name: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._key = Keys(url, name)

    def publish(self, message: str) -> None:
        self._client.lpush(self._key.pending, message)

    def publish_once(self, message: str) -> None:
        key = self._key
        marker = key.marker + identity(message)
        self._client.evalsha(key.script, 2, marker, key.pending, message, _WINDOW_SECONDS)

    def consume(self, _: str) -> None:
        key = self._key
        message = self._client.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        self._client.lrem(key.processing, 1, message)

    def publish_batch(self, messages: list[str]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            pipe.lpush(self._key.pending, message)
        pipe.execute()

    def consume_batch(self, messages: list[str]) -> None:
        key, pipe = self._key, self._client.pipeline(transaction=False)
        for _ in messages:
            pipe.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        taken = pipe.execute()
        for message in taken:
            pipe.lrem(key.processing, 1, message)
        pipe.execute()

    def run_1(self, messages: list[str]) -> None:
        for message in messages:
            self.consume(message)

    run_100 = run_1  # nobody prefetches by hand

    def publish_for_tenants(self, message: str) -> None:
        self.publish(message)

    def consume_of_tenants(self, message: str) -> None:
        self.consume(message)

    def listen(self, handle: Callable[[bytes], None]) -> None:
        key, message = self._key, None
        while message is None:
            message = self._client.blmove(key.pending, key.processing, _WAIT_SECONDS, "RIGHT", "LEFT")
        handle(message)
        self._client.lrem(key.processing, 1, message)


class AsyncQueue:
    """The same commands through redis.asyncio."""

    def __init__(self, url: str, name: str) -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url)
        self._key = Keys(url, name)

    async def publish(self, message: str) -> None:
        await self._client.lpush(self._key.pending, message)

    async def publish_once(self, message: str) -> None:
        key = self._key
        marker = key.marker + identity(message)
        await self._client.evalsha(key.script, 2, marker, key.pending, message, _WINDOW_SECONDS)

    async def consume(self, _: str) -> None:
        key = self._key
        message = await self._client.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        await self._client.lrem(key.processing, 1, message)

    async def publish_batch(self, messages: list[str]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            pipe.lpush(self._key.pending, message)
        await pipe.execute()

    async def consume_batch(self, messages: list[str]) -> None:
        key, pipe = self._key, self._client.pipeline(transaction=False)
        for _ in messages:
            pipe.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        taken = await pipe.execute()
        for message in taken:
            pipe.lrem(key.processing, 1, message)
        await pipe.execute()

    async def run_1(self, messages: list[str]) -> None:
        for message in messages:
            await self.consume(message)

    run_100 = run_1  # nobody prefetches by hand

    async def publish_for_tenants(self, message: str) -> None:
        await self.publish(message)

    async def consume_of_tenants(self, message: str) -> None:
        await self.consume(message)

    async def listen(self, handle: Callable[[bytes], None]) -> None:
        key, message = self._key, None
        while message is None:
            message = await self._client.blmove(key.pending, key.processing, _WAIT_SECONDS, "RIGHT", "LEFT")
        handle(message)
        await self._client.lrem(key.processing, 1, message)
