"""Reads a whole queue and says what is wrong with it, without asking the scripts."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import redis

from redis_message_queue.stored.envelope import HAS_ENTRY, HEADER_BYTES, ID_BYTES, TIME_AT, TOKEN_BYTES, Envelope
from tests.lua.scripts_runner import KEYS, dump, records_beside

LISTS = (KEYS.completed, KEYS.failed, KEYS.dead_letter)
_LINE, _RETURNED, _GROUP = KEYS.tenant_pending("").encode(), KEYS.expired("").encode(), KEYS.group("").encode()


@dataclass
class State:
    """A queue as it lies in Redis, without foreign values. The tenant of messages without one is ''."""

    lines: dict[str, list[bytes]] = field(default_factory=dict)
    returned: dict[str, dict[bytes, float]] = field(default_factory=dict)
    processing: dict[bytes, bytes] = field(default_factory=dict)
    leases: dict[bytes, float] = field(default_factory=dict)
    keeping_place: set[bytes] = field(default_factory=set)  # ids that wait in flight for their next attempt
    alarms: dict[bytes, float] = field(default_factory=dict)
    schedules: dict[bytes, float] = field(default_factory=dict)
    now: int = 0
    deliveries: dict[bytes, bytes] = field(default_factory=dict)
    delayed: dict[bytes, float] = field(default_factory=dict)
    later: dict[bytes, bytes] = field(default_factory=dict)
    ring: dict[str, float] = field(default_factory=dict)
    size: int | None = None
    tokens: int = 0
    claims: list[bytes] = field(default_factory=list)  # what streaming queries hold
    cancelled: set[bytes] = field(default_factory=set)  # ids that are marked
    flights: set[bytes] | None = None  # what is counted in flight; None if nobody counts
    cancels: bytes | None = None  # what the state of the queue says of marks
    lists: dict[str, tuple[list[bytes], list[bytes]]] = field(default_factory=dict)
    journal: list[dict[bytes, bytes]] = field(default_factory=list)
    serial: int | None = None  # of the journal's last entry; None without a journal

    @property
    def stored(self) -> list[bytes]:
        """Every message that is anywhere in the queue, as often as it is there."""
        waiting = [stored for line in self.lines.values() for stored in line]
        return [*waiting, *self.processing.values(), *self.later.values(), *self.claims]

    @property
    def ids(self) -> list[bytes]:
        return [Envelope(stored).id for stored in self.stored]


def read(client: redis.Redis) -> State:
    """The queue's state."""
    everything = dump(client)

    def get(key: str, otherwise: Any) -> Any:
        return everything.get(key.encode(), otherwise)

    leases = dict(get(KEYS.leases, []))
    size = get(KEYS.tenant_backlog, None)
    lines = {key[len(_LINE) :].decode(): value for key, value in everything.items() if key.startswith(_LINE)}
    lines[""] = get(KEYS.pending, [])
    returned = {
        key[len(_RETURNED) :].decode(): {token[:ID_BYTES]: score for token, score in value}
        for key, value in everything.items()
        if key.startswith(_RETURNED)
    }
    members = (value for key, value in everything.items() if key.startswith(_GROUP) and isinstance(value, list))
    return State(
        lines={tenant: [one for one in line if _is_message(one)] for tenant, line in lines.items()},
        returned=returned,
        processing={name[:ID_BYTES]: stored for name, stored in get(KEYS.processing, {}).items()},
        leases={token[:ID_BYTES]: score for token, score in leases.items() if len(token) == TOKEN_BYTES},
        keeping_place={
            token[:ID_BYTES]
            for key, value in everything.items()
            for token, _ in (value if key == KEYS.leases.encode() or key.startswith(_RETURNED) else ())
            if len(token) == TOKEN_BYTES and token.endswith(bytes(5))
        },
        alarms={name: score for name, score in leases.items() if len(name) != TOKEN_BYTES},
        deliveries=get(KEYS.deliveries, {}),
        delayed=dict(get(KEYS.delayed, [])),
        later=get(KEYS.delayed_messages, {}),
        schedules=dict(get(KEYS.schedules, [])),
        now=_now(client),
        ring={tenant.decode(): score for tenant, score in get(KEYS.tenant_ring, [])},
        size=None if size is None else int(size),
        tokens=len(get(KEYS.wakeup, [])),
        claims=[_without_count(one) for claim in members for one in claim if one != b"-"],  # an empty place
        cancelled={id for id, _ in get(KEYS.cancelled, [])},
        cancels=get(KEYS.meta, {}).get(b"cancels"),
        flights={one for one, _ in get(KEYS.tenant_in_flight, [])} if b"counts" in get(KEYS.meta, {}) else None,
        lists={kept: (get(kept, []), get(records_beside(kept), [])) for kept in LISTS},
        journal=[entry for _, entry in get(KEYS.journal, [])],
        serial=int(get(KEYS.meta, {}).get(b"journal_serial", 0)) if b"journal" in get(KEYS.meta, {}) else None,
    )


def _now(client: redis.Redis) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def _without_count(member: bytes) -> bytes:
    """Behind its delivery count, if that is not 1: see lua/lib/batch.lua."""
    return member if member[0] >= 0x80 else member.partition(b":")[2]


def _is_message(stored: bytes) -> bool:
    return len(stored) >= HEADER_BYTES and stored[0] >> 3 == 0x10 and stored[TIME_AT] == 0


def faults(client: redis.Redis, *, leased: bool = True) -> list[str]:
    """Sentences about everything that should not be so; none, if all is well."""
    state = read(client)
    return [
        *_in_one_place(state),
        *_held_once(state, leased),
        *_in_the_right_line(state),
        *_in_the_ring(state),
        *_counted(state),
        *_remembered(state),
        *_alarmed(state),
        *_recorded(state),
        *_told(state),
        *_marked(state, leased),
        *_flying(state),
    ]


def _in_one_place(state: State) -> list[str]:
    wrong = [f"{id.hex()} is in {times} places" for id, times in Counter(state.ids).items() if times > 1]
    for name, bodies in (("processing", state.processing), ("later", state.later)):
        wrong += [f"{id.hex()} in {name} is another message" for id in bodies if Envelope(bodies[id]).id != id]
    if state.later.keys() != state.delayed.keys():
        wrong.append("delayed and later hold different messages")
    return wrong


def _held_once(state: State, leased: bool) -> list[str]:
    if not leased:
        return ["a lease in a queue without leases"] if state.leases or state.returned else []
    hold = Counter([*state.leases, *(id for ids in state.returned.values() for id in ids)])
    wrong = [f"{id.hex()} is held {hold[id]} times" for id in state.processing if hold[id] != 1]
    return wrong + [f"{id.hex()} is held and not there" for id in hold if id not in state.processing]


def _in_the_right_line(state: State) -> list[str]:
    wrong = [
        f"{tenant!r} has a message of {Envelope(stored).tenant!r} in its line"
        for tenant, line in state.lines.items()
        for stored in line
        if (Envelope(stored).tenant or "") != tenant
    ]
    for tenant, ids in state.returned.items():
        there = [Envelope(state.processing[id]).tenant or "" for id in ids if id in state.processing]
        wrong += [f"a message of {other!r} has come back to {tenant!r}" for other in there if other != tenant]
    return wrong


def _in_the_ring(state: State) -> list[str]:
    waiting = {tenant for tenant, line in state.lines.items() if line} | state.returned.keys()
    wrong = [f"{tenant!r} waits and is not in the ring" for tenant in waiting - state.ring.keys() if tenant]
    if "" in state.returned and "" not in state.ring:
        wrong.append("messages without a tenant have come back and are not in the ring")
    wrong += [f"{tenant!r} is in the ring and has nothing" for tenant in state.ring.keys() - waiting]
    return wrong


def _counted(state: State) -> list[str]:
    waiting = sum(len(line) for tenant, line in state.lines.items() if tenant)
    wrong = [] if state.size == (waiting or None) else [f"size is {state.size}, and {waiting} wait"]
    return wrong + ([f"{state.tokens} tokens lie in the wake-up key"] if state.tokens > 1 else [])


def _remembered(state: State) -> list[str]:
    flagged = {Envelope(stored).id for stored in state.stored if stored[0] & HAS_ENTRY}
    wrong = [f"{id.hex()} has an entry that nobody looks at" for id in state.deliveries.keys() - flagged]
    return wrong + [f"{id.hex()} has lost its entry" for id in flagged - state.deliveries.keys()]


def _alarmed(state: State) -> list[str]:
    wrong = []
    if state.alarms.get(b"r") != (0 if state.ring else None):
        wrong.append(f"the alarm of the ring is {state.alarms.get(b'r')}, and {len(state.ring)} tenants are in it")
    first = min(state.delayed.values(), default=None)
    alarm = state.alarms.get(b"d")
    # Early does no harm, not even when there is no delay any more.
    if first is not None and (alarm is None or alarm > first):
        wrong.append(f"the alarm of the delays is {alarm}, and the first is due at {first}")
    first_tick = min(state.schedules.values(), default=math.inf)
    # A claim that tells of a tick puts the alarm off by a second; the first tick is due then.
    alarm = state.alarms.get(b"s")
    if (alarm is None) != (first_tick == math.inf) or (alarm is not None and alarm > first_tick > state.now):
        wrong.append(f"the alarm of the schedules is {alarm}, and the first tick is due at {first_tick}")
    return wrong + [f"a stranger among the leases: {alarm!r}" for alarm in state.alarms.keys() - {b"r", b"d", b"s"}]


def _marked(state: State, leased: bool) -> list[str]:
    wrong = ["messages are marked, and claims do not look for marks"] if state.cancelled and not state.cancels else []
    # Without leases, or in the claim of a streaming query, a message can be marked in flight: it may come back.
    known = state.processing.keys() | state.later.keys() if leased and not state.claims else set()
    return wrong + [f"{id.hex()} is marked, and does not wait" for id in state.cancelled & known]


def _flying(state: State) -> list[str]:
    if state.flights is None:
        return []
    messages = [Envelope(stored) for stored in state.processing.values()]
    names = {bytes([len(one.tenant.encode())]) + one.tenant.encode() + one.id for one in messages if one.tenant}
    return [] if state.flights == names else [f"{state.flights - names} and {names - state.flights} are miscounted"]


def _recorded(state: State) -> list[str]:
    wrong = []
    for kept, (payloads, records) in state.lists.items():
        if len(payloads) != len(records):
            wrong.append(f"{kept} has {len(payloads)} payloads and {len(records)} records")
        for payload, record in zip(payloads, records, strict=False):
            known = json.loads(record)
            if (known["bytes"], known["sha1"]) != (len(payload), hashlib.sha1(payload).hexdigest()):
                wrong.append(f"a record in {kept} belongs to another payload")
    return wrong


# What each event says of where its message is from then on; the others have no message of their own.
_AFTER = {
    **dict.fromkeys((b"published", b"redriven", b"requeued"), "queue"),
    **dict.fromkeys((b"delayed", b"retried"), "later"),
    **dict.fromkeys((b"claimed", b"reclaimed"), "processing"),
    **dict.fromkeys((b"acked", b"failed", b"dead", b"expired", b"dropped", b"handed_off", b"cancelled"), None),
}


def _told(state: State) -> list[str]:
    """The journal alone says where every message is."""
    if state.serial is None:
        return []
    serials = [int(entry[b"n"]) for entry in state.journal]
    wrong = (
        [] if serials == list(range(1, state.serial + 1)) else [f"serial numbers {serials}, and {state.serial} at last"]
    )
    told: dict[bytes, str] = {}
    removed = 0
    for entry in state.journal:
        id, event = bytes.fromhex(entry.get(b"id", b"").decode()), entry[b"event"]
        if event in (b"purged", b"deleted"):
            removed += int(entry[b"count"]) if entry[b"target"] in (b"pending", b"delayed", b"orphans") else 0
        elif id and event != b"duplicate":
            place = _AFTER[event]
            told.pop(id, None) if place is None else told.update({id: place})
    actual = {Envelope(stored).id: "queue" for line in state.lines.values() for stored in line}
    held = [*state.processing, *(Envelope(stored).id for stored in state.claims)]
    actual |= dict.fromkeys(held, "processing") | dict.fromkeys([*state.later, *state.keeping_place], "later")
    wrong += [f"the journal does not know of {id.hex()}" for id in actual.keys() - told.keys()]
    for id, place in actual.items():
        # That a message is due is no event: it enters its line with the next claim.
        if id in told and told[id] != place and (told[id], place) != ("later", "queue"):
            wrong.append(f"{id.hex()} is in {place}, and told to be in {told[id]}")
    missing = len(told.keys() - actual.keys())
    return wrong + ([f"{missing} are told and not there, {removed} were removed"] if missing != removed else [])
