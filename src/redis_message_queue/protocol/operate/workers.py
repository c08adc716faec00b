"""Reads who works on a queue, from the entries that consumer loops keep."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from redis_message_queue.protocol.operate.pages import PageReader, check_count
from redis_message_queue.values.messages import ConnectedWorker, moment

_TEXTS, _NUMBERS = ("host", "version"), ("pid", "concurrency")


class WorkerReader:
    """Reads the entries of one part."""

    def __init__(self, pages: PageReader) -> None:
        self._pages = pages

    async def connected(self, max_workers: int) -> list[ConnectedWorker]:
        """Return the processes whose entries have not expired, those that have run longest first."""
        check_count("max_workers", max_workers)
        now = await self._pages.server_time()
        key = self._pages.keys.connected_workers
        (entries,) = await self._pages.send(("ZRANGE", key, f"({now}", "+inf", "BYSCORE", "LIMIT", 0, max_workers))
        return merged_workers(entries)


def merged_workers(entries: list[bytes]) -> list[ConnectedWorker]:
    """Return a worker for each process; several loops of a process count together."""
    found: dict[str, ConnectedWorker] = {}
    for process, one in filter(None, map(_worker, entries)):
        other = found.get(process, one)
        claims = [at for at in (one.last_claim, other.last_claim) if at is not None]
        found[process] = replace(
            other,
            concurrency=one.concurrency + (other.concurrency if other is not one else 0),
            since=min(one.since, other.since),
            last_claim=max(claims, default=None),
        )
    return sorted(found.values(), key=lambda one: (one.since, one.consumer))


def _worker(entry: bytes) -> tuple[str, ConnectedWorker] | None:
    """Return the process and the worker of an entry; None for one that another program wrote."""
    try:
        since, claimed, description = entry.split(b" ", 2)
        told: dict[str, Any] = json.loads(description)
        process, name = told["process"], told["name"]
        known = {word: told[word] for word in (*_TEXTS, *_NUMBERS)}
        is_ours = all(isinstance(known[word], str) for word in _TEXTS)
        is_ours = is_ours and all(isinstance(known[word], int) for word in _NUMBERS)
        if not is_ours or not isinstance(name, str | None):
            return None
        return process, ConnectedWorker(
            consumer=f"{name}@{known['host']}:{known['pid']}" if name else f"{known['host']}:{known['pid']}",
            name=name,
            **known,
            since=moment(int(since) / 1e6),
            last_claim=moment(int(claimed) / 1e6) if int(claimed) else None,
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
