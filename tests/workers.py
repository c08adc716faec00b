"""Entries of workers, as consumer loops keep them."""

import json
from typing import Any


def connect_worker(client: Any, queue: Any, *, claimed_ago: float | None = None) -> None:
    """Write the entry of a worker that has run for five minutes, and claimed so many seconds ago."""
    seconds, microseconds = client.time()
    now = seconds * 1_000_000 + microseconds
    told = {"process": "ab" * 8, "name": None, "host": "host7", "pid": 4711, "version": "0.1.0", "concurrency": 1}
    claimed = 0 if claimed_ago is None else now - int(claimed_ago * 1e6)
    key = queue.partition(0).key.connected_workers
    client.zadd(key, {f"{now - 300_000_000} {claimed} {json.dumps(told)}": now + 30_000_000})
