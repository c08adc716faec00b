"""Redis Streams with a consumer group through redis-py: as a reference, not as a baseline."""

import json
from typing import Any

import redis

_GROUP, _CONSUMER = "group", "consumer"


class SyncQueue:
    """A stream, and one consumer of one group."""

    def __init__(self, url: str, name: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._key = f"{name}::pending"

    def publish(self, message: dict[str, Any]) -> None:
        self._client.xadd(self._key, {"m": json.dumps(message)})

    def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            pipe.xadd(self._key, {"m": json.dumps(message)})
        pipe.execute()

    def open_group(self, _: object) -> None:
        """Make the group: every slice begins with an empty server."""
        self._client.xgroup_create(self._key, _GROUP, id="0", mkstream=True)

    def consume(self, _: dict[str, Any]) -> None:
        self.consume_batch([_])

    def consume_batch(self, messages: list[dict[str, Any]]) -> None:
        reply = self._client.xreadgroup(_GROUP, _CONSUMER, {self._key: ">"}, count=len(messages))
        found = next(iter(reply.values()))[0] if isinstance(reply, dict) else reply[0][1]
        if len(found) < len(messages):
            raise RuntimeError("the pre-filled stream ran empty")
        ids = [one for one, _ in found]
        pipe = self._client.pipeline(transaction=False)
        pipe.xack(self._key, _GROUP, *ids)
        pipe.xdel(self._key, *ids)
        pipe.execute()


class AsyncQueue:
    """Not measured."""

    def __init__(self, url: str, name: str) -> None:
        pass
