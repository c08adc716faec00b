"""redis-py alone: LPUSH, then BLMOVE and LREM. Nothing recovers what a dead worker held."""

import json
from typing import Any

from redis import Redis

from bench import raw
from bench.league.handler import handle
from bench.league.settings import BATCH, QUEUE, URL

NEEDS_THREADS = True


def Producer() -> raw.SyncQueue:
    return raw.SyncQueue(URL, QUEUE)


def Crowd() -> raw.AsyncQueue:
    return raw.AsyncQueue(URL, QUEUE)


def work() -> None:
    client: Any = Redis.from_url(URL)
    pending, processing = f"{QUEUE}::pending", f"{QUEUE}::processing"
    while True:
        first = client.blmove(pending, processing, 1, "RIGHT", "LEFT")
        if first is None:
            continue
        taken = [first]
        if BATCH > 1:
            pipe = client.pipeline(transaction=False)
            for _ in range(BATCH - 1):
                pipe.lmove(pending, processing, "RIGHT", "LEFT")
            taken += [one for one in pipe.execute() if one is not None]
        for message in taken:
            handle(json.loads(message))
        pipe = client.pipeline(transaction=False)
        for message in taken:
            pipe.lrem(processing, 1, message)
        pipe.execute()
