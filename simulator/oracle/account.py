"""What the server has done so far: where each message is, who has it, and what was cancelled, paused or scheduled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from redis_message_queue.options.declared import GatewayOptions
from simulator.lua import as_bytes
from simulator.oracle.journal import JournalReader
from simulator.oracle.steps import split_key
from simulator.oracle.ticks import ScheduleEntry


@dataclass(frozen=True)
class Rules:
    """What the ledger has to know about the queue."""

    lease_us: int
    max_deliveries: int
    ttl_us: int
    window_us: int  # 0 without deduplication
    weights: dict[str, int] = field(default_factory=dict)
    most_in_flight: int = 0  # of one tenant, 0 for any number
    is_ordered: bool = False  # no message of a tenant before the earlier ones have ended
    drops: bool = False
    is_calm: bool = False  # no faults at all
    most_dead: int = 0  # dead letters that are kept, 0 for any number
    is_journaled: bool = False
    is_bounded: bool = False  # it can be full: even one that drops messages drops none that are delayed
    has_queries: bool = False  # streaming queries read the queue, too

    @classmethod
    def of(cls, options: GatewayOptions, *, has_keys: bool, **circumstances: bool) -> Rules:
        """The rules of a queue with these options, whose messages have deduplication keys or not."""
        return cls(
            lease_us=_microseconds(options.message_visibility_timeout_seconds),
            max_deliveries=options.max_delivery_count or 0,
            ttl_us=_microseconds(options.message_ttl_seconds),
            window_us=_microseconds(options.message_deduplication_log_ttl_seconds) if has_keys else 0,
            weights=dict(options.tenant_weights or {}),
            most_in_flight=1 if options.ordered_tenants else options.max_in_flight_per_tenant or 0,
            is_ordered=options.ordered_tenants,
            drops=options.pending_overload_policy == "drop_oldest",
            most_dead=options.max_dead_letter_length or 0,
            is_journaled=bool(options.journal),
            is_bounded=bool(options.max_pending_length),
            **circumstances,
        )


def _microseconds(seconds: float | None) -> int:
    return int((seconds or 0) * 1_000_000)


@dataclass
class Owner:
    """Who has a message: the latest claim of it."""

    token: bytes
    until_us: float


# With `ordered_tenants` it is the token of a message that waits for its next attempt in flight.
NOBODY = b""


@dataclass
class Account:
    """What the server has done so far. A failover to a stale replica takes back a part of it."""

    contents: dict[bytes, Counter[bytes]] = field(default_factory=dict)  # by key
    where: dict[bytes, Counter[str]] = field(default_factory=dict)  # by payload
    stored: dict[bytes, bytes] = field(default_factory=dict)  # by payload, as it was last seen
    owners: dict[bytes, Owner] = field(default_factory=dict)
    accepted_us: dict[bytes, int] = field(default_factory=dict)
    deliveries: Counter[bytes] = field(default_factory=Counter)  # those that count
    attempts: Counter[bytes] = field(default_factory=Counter)  # all deliveries, but those that were taken back
    failures: Counter[bytes] = field(default_factory=Counter)  # attempts that were retried later
    # By queue and id: what was cancelled and not dropped yet. What waited then is doomed: nobody may get it any more.
    marked: set[tuple[str, bytes]] = field(default_factory=set)
    doomed: set[tuple[str, bytes]] = field(default_factory=set)
    paused: set[tuple[str, str]] = field(default_factory=set)  # by queue and tenant
    home: dict[bytes, str] = field(default_factory=dict)  # the queue or partition that a message entered
    partitions: dict[str, int] = field(default_factory=dict)  # how many there are, as each of them was told
    last_of_key: dict[tuple[str, bytes], int] = field(default_factory=dict)  # when one of a key was accepted
    duplicates: set[bytes] = field(default_factory=set)  # payloads that the server called duplicates
    journals: dict[str, JournalReader] = field(default_factory=dict)  # by queue
    # By queue and tenant: turns of others while it waits.
    missed: dict[str, dict[str, Counter[str]]] = field(default_factory=lambda: defaultdict(dict))
    sequence: dict[bytes, int] = field(default_factory=dict)  # by payload: see Sequence
    entered: int = 0  # the last number in it
    schedules: dict[str, ScheduleEntry] = field(default_factory=dict)  # by the key of their record
    sealed: dict[tuple[str, int], tuple[int, tuple[bytes, ...]]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)

    def with_earlier(self, earlier: Account, names: set[str]) -> Account:
        """Return this account, but what it says of these queues and partitions is from an earlier one.

        Streaming queries and deduplication keys are left out: no cluster has them here.
        """
        homes = earlier.home | self.home
        rules: tuple[tuple[Callable[[Any], bool], tuple[str, ...]], ...] = (
            (lambda payload: homes[payload] in names, _BY_PAYLOAD),
            (lambda queue: queue in names, ("partitions", "journals", "missed")),
            (lambda pair: pair[0] in names, ("marked", "doomed", "paused")),
            (lambda key: split_key(as_bytes(key))[0] in names, ("contents", "schedules")),
        )
        changed: dict[str, Any] = {}
        for belongs, fields in rules:
            for name in fields:
                before, now = getattr(earlier, name), getattr(self, name)
                if isinstance(now, set):
                    changed[name] = {one for one in now if not belongs(one)} | {one for one in before if belongs(one)}
                    continue
                merged = changed[name] = now.copy()
                merged.clear()  # a Counter or defaultdict stays what it is
                merged.update({one: now[one] for one in now if not belongs(one)})
                merged.update({one: before[one] for one in before if belongs(one)})
        return replace(self, **changed)


_BY_PAYLOAD = ("where", "stored", "owners", "accepted_us", "deliveries", "attempts", "failures", "sequence", "home")
