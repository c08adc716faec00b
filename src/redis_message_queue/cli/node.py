"""The one server behind a client that has a key, also where the client is of a whole cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import redis


def node_of(client: Any, key: str) -> Any:
    """A plain client of the server that has the key."""
    if not isinstance(client, redis.RedisCluster):
        return client
    cluster: Any = client  # redis-py has no types here
    return cluster.get_redis_connection(cluster.get_node_from_key(key))


def text_of(value: Any) -> str:
    """A word that a server has said, however the client reads it."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def time_at(node: Any) -> datetime:
    """What the clock of a server says."""
    seconds, microseconds = node.time()
    return datetime.fromtimestamp(seconds + microseconds / 1_000_000, UTC)
