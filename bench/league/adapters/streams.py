"""Redis Streams through redis-py: XADD, then XREADGROUP, XACK and XDEL, and XAUTOCLAIM once a second."""

import contextlib
import json
import os
import threading
import time
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from bench import streams
from bench.league.handler import handle
from bench.league.settings import BATCH, LEASE_SECONDS, QUEUE, URL

_KEY, _GROUP = f"{QUEUE}::pending", "group"

NEEDS_THREADS = True


def Producer() -> streams.SyncQueue:
    return streams.SyncQueue(URL, QUEUE)


def work() -> None:
    client: Any = Redis.from_url(URL, protocol=2)
    with contextlib.suppress(ResponseError):  # the group exists
        client.xgroup_create(_KEY, _GROUP, id="0", mkstream=True)
    consumer, claim_at = f"worker-{os.getpid()}-{threading.get_ident()}", 0.0
    while True:
        found = []
        if time.monotonic() > claim_at:
            claim_at = time.monotonic() + 1
            found = client.xautoclaim(_KEY, _GROUP, consumer, (LEASE_SECONDS or 60) * 1000, count=100)[1]
        for _, entries in client.xreadgroup(_GROUP, consumer, {_KEY: ">"}, count=BATCH, block=1000):
            found += entries
        if not found:
            continue
        for _, fields in found:
            handle(json.loads(fields[b"m"]))
        ids = [one for one, _ in found]
        pipe = client.pipeline(transaction=False)
        pipe.xack(_KEY, _GROUP, *ids)
        pipe.xdel(_KEY, *ids)
        pipe.execute()
