"""Reads who works on a queue, from the entries that consumer loops keep."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from redis_message_queue.protocol.operate.pages import PageReader, check_count
from redis_message_queue.protocol.operate.record_pairs import single_record
from redis_message_queue.values.messages import ConnectedWorker, moment
from redis_message_queue.values.wording import age, count

MOST_WORKERS = 1_000
CLAIMS = ("claimed", "reclaimed")  # the events of a journal
CLAIM_SECONDS = 60.0  # if nobody has claimed for so long, and no worker is connected, nobody works
_NEWEST = 10  # entries of a journal that are asked whether somebody claims
_BUSY_SECONDS = 15.0  # without a claim: an entry may be ten seconds old
_TEXTS, _NUMBERS = ("host", "version"), ("pid", "concurrency")


class WorkerReader:
    """Reads the entries of one part."""

    def __init__(self, pages: PageReader) -> None:
        self._pages = pages

    async def connected(self, max_workers: int) -> list[ConnectedWorker]:
        """Return the processes whose entries have not expired, those that have run longest first."""
        check_count("max_workers", max_workers)
        now = await self._pages.server_time()
        return in_order(await self.by_process(now, max_workers))

    async def by_process(self, now_us: int, max_workers: int = MOST_WORKERS) -> dict[str, ConnectedWorker]:
        """Return the same workers, each by what claim tokens say of its process."""
        key = self._pages.keys.connected_workers
        (entries,) = await self._pages.send(("ZRANGE", key, f"({now_us}", "+inf", "BYSCORE", "LIMIT", 0, max_workers))
        return merged_workers(entries)

    async def saw_claim(self, at: float) -> bool:
        """Return whether the journal, or the newest record of a list, tells of a claim in the last minute."""
        keys = self._pages.keys
        lists = [records for _, records in keys.terminal_lists.values()]
        entries, *newest = await self._pages.send(
            ("XREVRANGE", keys.journal, "+", "-", "COUNT", _NEWEST), *(("LRANGE", one, 0, 0) for one in lists)
        )
        fields = [dict(zip(words[::2], words[1::2], strict=False)) for _, words in entries]
        times = [seconds_of(one.get(b"at")) for one in fields if one.get(b"event", b"").decode("latin-1") in CLAIMS]
        for record in (single_record(stored) for records in newest for stored in records):
            times += [record.claimed_at.timestamp()] if record and record.claimed_at else []
        return any(one is not None and at - one < CLAIM_SECONDS for one in times)


def seconds_of(microseconds: bytes | None) -> float | None:
    """Return a time in seconds; None without one, and for what another program wrote."""
    if not microseconds or not microseconds.isdigit() or len(microseconds) > 18:
        return None
    return int(microseconds) / 1e6


def merged_workers(entries: Iterable[bytes]) -> dict[str, ConnectedWorker]:
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
    return found


def in_order(workers: Mapping[str, ConnectedWorker]) -> list[ConnectedWorker]:
    """Return workers, those that have run longest first."""
    return sorted(workers.values(), key=lambda one: (one.since, one.consumer))


def seconds_since_claim(workers: Collection[ConnectedWorker], at: float) -> float | None:
    """Return how long ago one of them claimed; None if none has."""
    claims = [one.last_claim.timestamp() for one in workers if one.last_claim is not None]
    return max(0.0, at - max(claims)) if claims else None


def about_workers(workers: Collection[ConnectedWorker], at: float, *, busy: bool, claims_seen: bool) -> str:
    """Say who works on a queue in which messages wait: the words of `why` and of the dashboard.

    Args:
        workers: The connected workers.
        at: The time, by the server's clock.
        busy: Whether messages are in flight.
        claims_seen: Whether somebody has claimed in the last minute, connected or not.
    """
    if not workers:
        return "no registered worker, but messages are being claimed" if claims_seen else "no worker is connected"
    number = f"{count(len(workers))} worker{'' if len(workers) == 1 else 's'}"
    idle = seconds_since_claim(workers, at)
    if idle is None:
        return f"{number} connected, and none has claimed a message yet"
    if busy and idle >= _BUSY_SECONDS:
        return f"{number}, {'busy' if len(workers) == 1 else 'all busy'} for {age(idle)}"
    return f"{number} connected, the last claim {age(idle)} ago"


def _worker(entry: bytes) -> tuple[str, ConnectedWorker] | None:
    """Return the process and the worker of an entry; None for one that another program wrote."""
    try:
        since, claimed, description = entry.split(b" ", 2)
        told: dict[str, Any] = json.loads(description)
        process, name = told["process"], told["name"]
        known = {word: told[word] for word in (*_TEXTS, *_NUMBERS)}
        lease = told.get("lease_seconds")
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
            lease_seconds=lease if isinstance(lease, int | float) else None,
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
