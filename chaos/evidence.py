"""What is in Redis when a campaign ends: journals, messages, lists and every key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import redis

from chaos.scenario import QueuePlace
from chaos.world import World
from redis_message_queue import RedisMessageQueue

_PAGE = 5_000
_FILE = "evidence.json"
_MOST = 10_000  # that `peek` reads; a queue that is drained has none


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One state change of one message."""

    n: int
    at: float  # the server's clock
    event: str
    id: str
    tenant: str
    key: str | None = None  # of the payload, where a message is published
    deduplication: str | None = None
    of: str | None = None  # the first message with the same deduplication key
    partition: int = 0
    tick: str | None = None  # the time that a schedule published it for


@dataclass
class QueueEvidence:
    """One queue: its journal, where messages are, and the payloads of its lists."""

    place: QueuePlace
    journal: list[JournalEntry] = field(default_factory=list)  # of one partition after the other
    waiting: list[str] = field(default_factory=list)  # ids
    processing: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    completed: Counter[str] = field(default_factory=Counter)  # keys of payloads
    dead_letters: Counter[str] = field(default_factory=Counter)

    @property
    def journals(self) -> list[list[JournalEntry]]:
        """The journal of each partition."""
        numbers = range(self.place.partitions)
        return [[entry for entry in self.journal if entry.partition == number] for number in numbers]


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that exists at the end. ``size`` is its number of elements; ``ttl`` is None if it never expires."""

    name: str
    type: str
    ttl: float | None
    size: int


@dataclass
class Evidence:
    """Everything that Redis and the sink have at the end."""

    queues: list[QueueEvidence] = field(default_factory=list)
    keys: list[StoredKey] = field(default_factory=list)
    sink: dict[str, Counter[str]] = field(default_factory=dict)  # queue to the keys that its Spark query has written


def collect(world: World) -> Evidence:
    """Read all servers. Nothing may run any more."""
    evidence = Evidence()
    for place in world.queues:
        with world.queue(place) as (client, queue):
            evidence.queues.append(_queue_evidence(place, client, queue))
    for place_name in sorted(world.places):
        for node in world.clients(place_name):
            with node:
                evidence.keys += list(_stored_keys(node))
    return evidence


def _queue_evidence(place: QueuePlace, client: Any, queue: RedisMessageQueue) -> QueueEvidence:
    def ids(source: Any) -> list[str]:
        return [str(record.id) for record in queue.peek(_MOST, source=source)]

    parts = [queue.partition(number).key for number in range(place.partitions)]
    return QueueEvidence(
        place,
        journal=[entry for number, keys in enumerate(parts) for entry in read_journal(client, keys.journal, number)],
        waiting=ids("pending"),
        processing=ids("processing"),
        delayed=ids("delayed"),
        completed=_payload_keys(client, [keys.completed for keys in parts]),
        dead_letters=_payload_keys(client, [keys.dead_letter for keys in parts]),
    )


def read_journal(client: Any, key: str, partition: int = 0) -> Iterator[JournalEntry]:
    """All entries, page by page."""
    start = "-"
    while page := client.xrange(key, start, "+", count=_PAGE):
        for _, entry in page:
            yield _journal_entry({name.decode(): value.decode() for name, value in entry.items()}, partition)
        start = f"({page[-1][0].decode()}"


def _journal_entry(told: dict[str, str], partition: int) -> JournalEntry:
    payload = json.loads(told["payload"]) if "payload" in told else {}
    return JournalEntry(
        n=int(told["n"]),
        at=int(told.get("at", 0)) / 1e6,
        event=told["event"],
        id=told.get("id", ""),
        tenant=told.get("tenant", ""),
        key=payload.get("key"),
        deduplication=payload.get("d"),
        of=told.get("of"),
        partition=partition,
        tick=json.loads(told.get("headers", "{}")).get("scheduled_for"),
    )


def _payload_keys(client: Any, list_keys: Iterable[str]) -> Counter[str]:
    keys: Counter[str] = Counter()
    for list_key in list_keys:
        for start in range(0, client.llen(list_key), _PAGE):
            payloads = client.lrange(list_key, start, start + _PAGE - 1)
            keys.update(str(json.loads(payload)["key"]) for payload in payloads)
    return keys


_SIZES = {"list": "LLEN", "hash": "HLEN", "zset": "ZCARD", "stream": "XLEN", "string": "STRLEN", "set": "SCARD"}


def _stored_keys(client: redis.Redis) -> Iterator[StoredKey]:
    for name in client.scan_iter(count=1_000):
        kind = _text(client.type(name))
        size = 0
        if kind in _SIZES:
            size = int(client.execute_command(_SIZES[kind], name))  # type: ignore[no-untyped-call] # redis-py's
        # Last, because it says whether the key has expired meanwhile.
        found = stored_key(_text(name), kind, size, client.pttl(name))
        if found is not None:
            yield found


def stored_key(name: str, kind: str, size: int, pttl: int) -> StoredKey | None:
    """A key as the server describes it. PTTL is -1 for one that never expires, and -2 for one that is gone: None."""
    return None if pttl == -2 else StoredKey(name, kind, None if pttl == -1 else pttl / 1000, size)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def save(evidence: Evidence, directory: Path) -> None:
    """Write everything to a file, for whoever looks for the cause of a violation."""
    (directory / _FILE).write_text(json.dumps(evidence, default=_fields))


def _fields(one: Any) -> dict[str, Any]:
    """Not `asdict`: it breaks a Counter."""
    return {field.name: getattr(one, field.name) for field in fields(one)}


def load(directory: Path) -> Evidence:
    """What `save` has written."""
    found = json.loads((directory / _FILE).read_text())
    queues = [
        QueueEvidence(
            place=QueuePlace(**queue["place"]),
            journal=[JournalEntry(**entry) for entry in queue["journal"]],
            waiting=queue["waiting"],
            processing=queue["processing"],
            delayed=queue["delayed"],
            completed=Counter(queue["completed"]),
            dead_letters=Counter(queue["dead_letters"]),
        )
        for queue in found["queues"]
    ]
    sink = {name: Counter(written) for name, written in found["sink"].items()}
    return Evidence(queues, [StoredKey(**key) for key in found["keys"]], sink)
