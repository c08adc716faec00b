"""The baseline: the fewest redis-py calls that publish, claim and acknowledge a message, with `json.dumps`."""

import json
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from bench.payload import identity

# KEYS  marker: this message was published | pending: the list
# ARGV  message | lifetime of the marker in seconds
_PUBLISH_ONCE = """
if redis.call('SET', KEYS[1], '', 'NX', 'EX', ARGV[2]) then
  redis.call('LPUSH', KEYS[2], ARGV[1])
  return 1
end
return 0
"""
WINDOW_SECONDS = 3600
_WAIT_SECONDS = 1


class Keys:
    """The names of the keys, and the hash of the loaded script."""

    def __init__(self, url: str, name: str) -> None:
        self.pending, self.processing = f"{name}::pending", f"{name}::processing"
        self.marker = f"{name}::deduplication::"
        with redis.Redis.from_url(url) as client:
            self.script = client.script_load(_PUBLISH_ONCE)


class SyncQueue:
    """A list of pending messages and a list of messages in flight."""

    def __init__(self, url: str, name: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._key = Keys(url, name)

    def publish(self, message: dict[str, Any]) -> None:
        self._client.lpush(self._key.pending, json.dumps(message))

    def publish_once(self, message: dict[str, Any]) -> None:
        key = self._key
        marker = key.marker + identity(message)
        self._client.evalsha(key.script, 2, marker, key.pending, json.dumps(message), WINDOW_SECONDS)

    def consume(self, _: dict[str, Any]) -> None:
        key = self._key
        message = self._client.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        self._client.lrem(key.processing, 1, message)

    def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            pipe.lpush(self._key.pending, json.dumps(message))
        pipe.execute()

    def consume_batch(self, messages: list[dict[str, Any]]) -> None:
        key, pipe = self._key, self._client.pipeline(transaction=False)
        for _ in messages:
            pipe.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        taken = pipe.execute()
        for message in taken:
            pipe.lrem(key.processing, 1, message)
        pipe.execute()

    def run_1(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.consume(message)

    run_100 = run_1  # raw code does not prefetch

    def publish_for_tenants(self, message: dict[str, Any]) -> None:
        self.publish(message)

    def consume_of_tenants(self, message: dict[str, Any]) -> None:
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

    async def publish(self, message: dict[str, Any]) -> None:
        await self._client.lpush(self._key.pending, json.dumps(message))

    async def publish_once(self, message: dict[str, Any]) -> None:
        key = self._key
        marker = key.marker + identity(message)
        await self._client.evalsha(key.script, 2, marker, key.pending, json.dumps(message), WINDOW_SECONDS)

    async def consume(self, _: dict[str, Any]) -> None:
        key = self._key
        message = await self._client.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        await self._client.lrem(key.processing, 1, message)

    async def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            pipe.lpush(self._key.pending, json.dumps(message))
        await pipe.execute()

    async def consume_batch(self, messages: list[dict[str, Any]]) -> None:
        key, pipe = self._key, self._client.pipeline(transaction=False)
        for _ in messages:
            pipe.lmove(key.pending, key.processing, "RIGHT", "LEFT")
        taken = await pipe.execute()
        for message in taken:
            pipe.lrem(key.processing, 1, message)
        await pipe.execute()

    async def run_1(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            await self.consume(message)

    run_100 = run_1  # raw code does not prefetch

    async def publish_for_tenants(self, message: dict[str, Any]) -> None:
        await self.publish(message)

    async def consume_of_tenants(self, message: dict[str, Any]) -> None:
        await self.consume(message)

    async def listen(self, handle: Callable[[bytes], None]) -> None:
        key, message = self._key, None
        while message is None:
            message = await self._client.blmove(key.pending, key.processing, _WAIT_SECONDS, "RIGHT", "LEFT")
        handle(message)
        await self._client.lrem(key.processing, 1, message)
