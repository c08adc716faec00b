"""The oracle: an account of every message, written from what the server executes and what clients are told.

It is checked after every step. It decides by its own account who may have which message, not by what the scripts store
for that purpose. The names of the checks are the invariants in `INVARIANTS`.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from redis_message_queue.envelope import HAS_ENTRY, Envelope
from redis_message_queue.keys import REGISTRY_KEY, QueueKeys
from redis_message_queue.partitioning import partition_of
from redis_message_queue.protocol.claim import ClaimResult, _read
from redis_message_queue.protocol.port import Call
from redis_message_queue.protocol.records import pair
from redis_message_queue.scripts import Script, argument_names
from simulator.keyspace import Hash, Keyspace, List, SortedSet, Stream
from simulator.loop import Process
from simulator.lua import as_bytes
from simulator.server import Step
from simulator.ticks import MARK, ScheduleEntry, name_of, named

INVARIANTS = {
    "one place": "After every script a message is in exactly one place, and it got there by a step that may move it.",
    "accounted for": "A confirmed publish is stored once, and never lost while the server keeps what it acknowledged.",
    "fencing": "Only the holder of the latest claim can settle, requeue, retry, hand off or renew; nobody refuses it.",
    "lease": "Nobody gets a message whose lease another consumer still has.",
    "known loss": "No handler starts for a lease that its process knows to be lost.",
    "deduplication": "Within its window, one message of a deduplication key is accepted; the others are duplicates.",
    "fairness": "While a tenant waits, every other tenant is served at most once per unit of its weight.",
    "delivery limit": "A message becomes a dead letter when its deliveries are used up or its time to live is over, "
    "neither earlier nor later.",
    "full memory": "A full server refuses a publish before anything changes, and everything that drains it works.",
    "scripts do not fail": "No script ends in an error of its own, or half done.",
    "wake-up": "No message waits beside an idle consumer: for one slice with faults or beside a streaming query, "
    "otherwise not at all.",
    "bounded wait": "A call with a time limit ends within it plus one socket timeout.",
    "state": "The keys fit together: leases, counts, ring, backlog, alarms and expiry times.",
    "batches": "A sealed batch never changes, and only the query that holds the group moves it on.",
    "left behind": "When everybody has finished, no message and no helper key is left.",
    "order": "Requeued messages return to the front of their queue, in their order.",
    "handled": "A message is acknowledged after its handler has returned, and for no other reason.",
    "drain": "After a drain that returned True, the queue object holds no message.",
    "cancelled": "A claim drops a waiting message if and only if it was cancelled, and the mark goes with it.",
    "paused": "Nobody gets a message of a tenant while it is paused, and none of those that wait is touched.",
    "in flight": "No tenant has more messages in flight than it may, and a tenant with less is not held back.",
    "schedules": "Each tick of a schedule is published once: none is lost, none early, none without its schedule.",
    "imports": "A message of an export is stored once, however often it is sent.",
    "partitions": "A message is in the partition that its key names; a client with another number changes nothing.",
    "journal": "The journal has an entry for a change if and only if the change was made.",
    "errors": "Calls end in the errors that their documentation names.",
}

WAITING, DELAYED, PROCESSING, BATCH = "waiting", "delayed", "processing", "batch"
COMPLETED, FAILED, DEAD, GONE, NOWHERE = "completed", "failed", "dead letters", "gone", "nowhere"
_TERMINAL = (COMPLETED, FAILED, DEAD)
_KINDS = {
    "pending": WAITING,
    "tenant_pending": WAITING,
    "processing": PROCESSING,
    "delayed_messages": DELAYED,
    "completed": COMPLETED,
    "failed": FAILED,
    "dlq": DEAD,
}
_ENTER = {(NOWHERE, WAITING), (NOWHERE, DELAYED)}
_TAKE = {
    *((DELAYED, WAITING), (WAITING, DEAD), (DELAYED, DEAD), (PROCESSING, DEAD), (DEAD, GONE)),
}
_DROP = {(WAITING, GONE), (DELAYED, GONE)}  # of cancelled messages
MOVES: dict[str, set[tuple[str, str]]] = {
    "publish": _ENTER,
    "enqueue": {*_ENTER, (WAITING, GONE)},
    "backfill": {(NOWHERE, WAITING)},
    "cancel": {(DELAYED, GONE)},
    "claim": {*_TAKE, *_DROP, (WAITING, PROCESSING), (DELAYED, PROCESSING)},
    "take": {(WAITING, PROCESSING)},
    "ack_one": {(PROCESSING, GONE)},
    "settle": {(PROCESSING, GONE), *((PROCESSING, kind) for kind in _TERMINAL), *((kind, GONE) for kind in _TERMINAL)},
    "requeue": {(PROCESSING, WAITING)},
    "retry_later": {(PROCESSING, DELAYED)},
    "hand_off": {*_ENTER, (PROCESSING, GONE), (PROCESSING, COMPLETED), (COMPLETED, GONE), (WAITING, GONE)},
    "redrive": {(DEAD, WAITING), (FAILED, WAITING)},
    "restore": _ENTER,
    "tick": {*_ENTER, (WAITING, GONE)},
    "append": {(NOWHERE, kind) for kind in _TERMINAL},
    "sweep": {(kind, GONE) for kind in (WAITING, DELAYED, PROCESSING, *_TERMINAL)},
    "fill_batch": {*_TAKE, *_DROP, (WAITING, BATCH), (DELAYED, BATCH), (PROCESSING, BATCH)},
    "ack_batch": {(BATCH, GONE)},
    "release_batch": {(BATCH, WAITING)},
}
_HELD = ("settle", "requeue", "retry_later", "hand_off")  # scripts that name the leases of their caller
_DRAINING = ("claim", "take", "settle", "ack_one", "requeue", "retry_later", "renew", "fill_batch", "seal_batch",
             "ack_batch", "release_batch", "acquire_group", "sweep")  # fmt: skip
_EXPIRING = ("reply", "deduplication", "tenant_deduplication", "timer_owner", "longest")
_EXPECTED_ERRORS = ("OOM ", "ERR NOSTATE", "ERR OVERTAKEN", "ERR STALE", "BUSY ", "ERR PARTITIONS ",
                    "ERR STATEVERSION partitions:")  # fmt: skip
_LATE = 0.1  # seconds that a message may wait beside an idle consumer, without faults
_SLICE = 1.0
_PARKED, _AT_LIMIT = 1 << 40, 3 << 39  # scores in the ring, see lib/places.lua


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        assert invariant in INVARIANTS
        self.invariant = invariant
        self.what = what


_JOURNALED: dict[str, tuple[tuple[str, ...], str]] = {  # where a message is before an event, and afterwards
    "published": ((NOWHERE,), WAITING),
    "redriven": ((NOWHERE,), WAITING),
    "duplicate": ((NOWHERE,), NOWHERE),
    "delayed": ((WAITING,), DELAYED),
    "claimed": ((WAITING, DELAYED), PROCESSING),
    "reclaimed": ((PROCESSING,), PROCESSING),
    "acked": ((PROCESSING, BATCH), NOWHERE),
    "handed_off": ((PROCESSING,), NOWHERE),
    "failed": ((PROCESSING,), NOWHERE),
    "dead": ((WAITING, DELAYED, PROCESSING), NOWHERE),
    "expired": ((WAITING, DELAYED, PROCESSING), NOWHERE),
    "dropped": ((WAITING, DELAYED), NOWHERE),
    "cancelled": ((WAITING, DELAYED), NOWHERE),
    "retried": ((PROCESSING,), DELAYED),
    "requeued": ((PROCESSING, BATCH), WAITING),
}


@dataclass
class JournalReader:
    """Where the messages of a queue are if one knows its journal only."""

    read_entries: int = 0
    places: dict[str, str] = field(default_factory=dict)  # by id

    def read(self, entries: list[tuple[Any, list[bytes]]]) -> list[dict[str, str]]:
        """The entries since the last call. Their numbers have no gaps."""
        new = []
        for _, fields in entries[self.read_entries :]:
            texts = [one.decode(errors="replace") for one in fields]
            entry = dict(zip(texts[::2], texts[1::2], strict=True))
            self.read_entries += 1
            if entry["n"] != str(self.read_entries):
                _fail("journal", f"entry {self.read_entries} has the number {entry['n']}")
            new.append(entry)
        return new

    def fold(self, entries: list[dict[str, str]], step: str, removed: set[str], count: int) -> None:
        """Follow the entries of one step. Those of an operator say how many messages left, and not which."""
        left = 0
        for entry in entries:
            event, identity = entry["event"], entry["id"]
            if event in ("purged", "deleted"):
                left += int(entry["count"])
                continue
            before, after = _JOURNALED[event]
            place = self.places.get(identity, NOWHERE)
            if place not in before:
                _fail("journal", f"{step} wrote {event!r} of a message that was {place}")
            if after == PROCESSING and step == "fill_batch":
                after = BATCH
            if after == NOWHERE:
                self.places.pop(identity, None)
            else:
                self.places[identity] = after
        if left != count:
            _fail("journal", f"{step} removed {count} messages, and the journal says {left}")
        for identity in removed:
            self.places.pop(identity, None)

    def compare(self, step: str, places: dict[str, str]) -> None:
        """Each message is where the journal has it. A delayed message that is due moves on without an entry."""
        for identity in sorted(self.places.keys() | places.keys()):
            said, found = self.places.get(identity, NOWHERE), places.get(identity, NOWHERE)
            if said != found and (said, found) != (DELAYED, WAITING):
                _fail("journal", f"after {step} a message is {found}, and the journal says {said}")


@dataclass(frozen=True)
class Rules:
    """What the ledger has to know about the queue."""

    lease_us: int
    max_deliveries: int
    ttl_us: int
    window_us: int  # 0 without deduplication
    weights: dict[str, int] = field(default_factory=dict)
    most_in_flight: int = 0  # of one tenant, 0 for any number
    drops: bool = False
    confirms: bool = False  # publishes wait for replicas
    fsyncs: bool = False  # publishes wait for the disk
    is_calm: bool = False  # no faults at all
    keeps_terminal: bool = True
    most_dead: int = 0  # dead letters that are kept, 0 for any number
    is_journaled: bool = False
    is_bounded: bool = False  # publishes are refused when too many messages wait
    has_queries: bool = False  # streaming queries read the queue, too


@dataclass
class Owner:
    """Who has a message: the latest claim of it."""

    token: bytes
    until_us: float
    place: int = 0


@dataclass
class Account:
    """What the server has done so far. A failover to a stale replica takes back a part of it."""

    contents: dict[bytes, Counter[bytes]] = field(default_factory=dict)  # by key
    where: dict[bytes, Counter[str]] = field(default_factory=dict)  # by payload
    stored: dict[bytes, bytes] = field(default_factory=dict)  # by payload, as it was last seen
    owners: dict[bytes, Owner] = field(default_factory=dict)
    accepted_us: dict[bytes, int] = field(default_factory=dict)
    deliveries: Counter[bytes] = field(default_factory=Counter)  # those that count
    dropped: set[bytes] = field(default_factory=set)
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
    schedules: dict[str, ScheduleEntry] = field(default_factory=dict)  # by the key of their record
    sealed: dict[tuple[str, int], tuple[bytes, ...]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)


def payload_key(payload: bytes) -> bytes:
    """The deduplication key of a simulated message, '' if it has none: queue/tenant/key/name."""
    return payload.split(b"/")[2]


class Ledger:
    """Follows the server step by step, and raises a `Violation` when something is wrong."""

    def __init__(self, rules: dict[str, Rules], keyspace: Callable[[], Keyspace]) -> None:
        self.rules = rules  # by the name of the queue
        self._keys = {name: QueueKeys.unchecked(name) for name in rules}
        self._keyspace = keyspace
        self.account = Account()
        self.confirmed: set[bytes] = set()  # publishes that returned True
        self.refused: set[bytes] = set()  # publishes of which the caller knows that they were not stored
        self._rolled_back: set[bytes] = set()  # stored once, and lost by the server
        self._called_duplicates: set[bytes] = set()  # also those that the server has forgotten since
        self._called_new: set[bytes] = set()  # messages that an import has stored, as its caller knows
        self._told_settled: set[bytes] = set()  # tokens that a client knows to be settled
        self._settled_and_lost: set[bytes] = set()  # tokens that were settled, by a server that lost it
        self._delivered: list[bytes] = []  # by the step that is being checked
        self._leases_known: dict[tuple[str, bytes], tuple[bytes, float]] = {}  # by process and payload
        self._lost: set[tuple[str, bytes]] = set()  # by process and token
        self._returned: set[tuple[str, bytes]] = set()  # by process and payload: handlers that have returned
        self._issued_to: dict[bytes, str] = {}  # the process that a token was given to
        self._waits_since: dict[str, float] = {}  # by queue
        self.steps = 0
        self.handled: Counter[bytes] = Counter()

    # -- the server

    def step(self, step: Step) -> None:
        """Check one step of the server."""
        self.steps += 1
        if step.error is not None:
            self._check_error(step)
        if step.changed:
            self._check_count(step)
        moved = self._update(step) if step.changed else {}
        for payload, (before, after) in moved.items():
            self._check_move(step, payload, before, after)
        self._delivered = []
        check = getattr(self, f"_after_{step.name}", None)
        if check is not None and step.error is None:
            check(step, moved)
        if step.changed:
            self._check_journals(step, moved)
        for payload, (before, after) in moved.items():
            if before == PROCESSING and after != PROCESSING:
                self.account.owners.pop(payload, None)
        if step.changed:
            self._check_state(step)

    def _check_error(self, step: Step) -> None:
        assert step.error is not None
        if not step.error.startswith(_EXPECTED_ERRORS):
            _fail("scripts do not fail", f"{step.name} ended in {step.error!r}")
        if step.changed:
            _fail(
                "scripts do not fail", f"{step.name} failed half done ({step.error}): it changed {_text(step.changed)}"
            )
        if step.error.startswith("OOM") and step.name in _DRAINING:
            _fail("full memory", f"a full server refused {step.name}")
        if step.error.startswith("OOM") and step.name == "cancel":
            payload = self._payload_of(as_bytes(named_arguments(step)["id"]))
            if payload is not None and self._place(payload) == DELAYED:
                _fail("full memory", f"a full server refused to cancel {payload.decode()}, which is delayed")

    def _update(self, step: Step) -> dict[bytes, tuple[str, str]]:
        """Read the keys that changed. Returns which messages moved, from where to where."""
        account, values = self.account, self._keyspace().values
        touched: dict[bytes, str] = {}
        for key in sorted(step.changed):  # a set has another order in each process
            kind = self._kind(key)
            if kind is None:
                continue
            before = account.contents.get(key, Counter())
            after = Counter(self._terminal(key) if kind in _TERMINAL else self._payloads(kind, values.get(key)))
            if after:
                account.contents[key] = after
            else:
                account.contents.pop(key, None)
                if kind == WAITING:
                    account.missed[split_key(key)[0]].pop(split_key(key)[2], None)
            for payload in sorted(before.keys() | after.keys()):
                change = after[payload] - before[payload]
                if change:
                    if change > 0 and account.home.setdefault(payload, split_key(key)[0]) != split_key(key)[0]:
                        _fail("partitions", f"{step.name} took {payload.decode()} to {key.decode()}")
                    if payload not in touched:
                        touched[payload] = self._place(payload)
                    places = account.where.setdefault(payload, Counter())
                    places[kind] += change
                    if not places[kind]:
                        del places[kind]
        moved = {}
        for payload, place in touched.items():
            now = self._place(payload)
            if now != place:
                moved[payload] = (place, now)
        return moved

    def _place(self, payload: bytes) -> str:
        places = self.account.where.get(payload)
        if not places:
            return GONE if payload in self.account.accepted_us else NOWHERE
        if places.total() > 1:
            name = payload.decode()
            _fail("one place", f"{name} is in {places.total()} places: {', '.join(sorted(places.elements()))}")
        return next(iter(places))

    def _kind(self, key: bytes) -> str | None:
        queue, word, rest = split_key(key)
        if word == "group" and "::" in rest:
            return BATCH
        return _KINDS.get(word) if queue in self.rules else None

    def _payloads(self, kind: str, value: Any) -> Iterable[bytes]:
        if value is None:
            return []
        all_stored = value.values() if isinstance(value, Hash) else value
        payloads = []
        for stored in all_stored:
            if kind == BATCH and stored[0] < 0x80:
                stored = stored.partition(b":")[2]
            payload = name_of(stored)
            self.account.stored[payload] = stored
            payloads.append(payload)
        return payloads

    def _terminal(self, key: bytes) -> list[bytes]:
        """The messages of a terminal list. Those of a schedule are told apart by their records."""
        values: dict[bytes, Any] = self._keyspace().values
        payloads = values.get(key) or []
        if not any(one.endswith(MARK) for one in payloads):
            return list(payloads)
        queue, _, word = key.rpartition(b"::")
        pairs = pair(payloads, values.get(queue + b"::records::" + word) or [], whole=True)
        return [named(one.payload, (one.record or {}).get("headers")) for one in pairs if one.payload is not None]

    def _check_move(self, step: Step, payload: bytes, before: str, after: str) -> None:
        account, name, rules = self.account, payload.decode(), self._rules_of(payload)
        if step.name in ("claim", "take", "fill_batch") and self._is_marked(payload):
            self._check_drop(step, payload, after)
        elif before != DEAD and after == GONE and self._is_cut_off(step, rules):
            # Of more dead letters than the list may have, the first have left it when the script ends.
            self._check_dead(step, payload, rules)
        elif (before, after) not in MOVES.get(step.name, ()):
            _fail("one place", f"{step.name} moved {name} from {before} to {after}")
        elif (before, after) in _DROP and step.name in ("claim", "fill_batch"):
            _fail("cancelled", f"{step.name} dropped {name}, which nobody has cancelled")
        if before == NOWHERE:
            self._accept(step, payload)
        if before == WAITING and step.name in ("claim", "take", "fill_batch"):
            self._check_paused(step, payload)
        if before == GONE:
            if step.name in ("tick", "restore"):
                _fail("schedules" if step.name == "tick" else "imports", f"{name} was stored a second time")
            _fail("accounted for", f"{step.name} brought back {name}, which was gone")
        if before == WAITING and after == GONE and step.name in ("enqueue", "hand_off", "tick"):
            if not rules.drops:
                _fail("one place", f"{step.name} dropped {name}")
            account.dropped.add(payload)
        if before == PROCESSING and step.name in ("claim", "fill_batch"):
            owner = account.owners.get(payload)
            if owner is not None and owner.until_us > step.now_us:
                _fail("lease", f"{step.name} took {name} from its holder {owner.until_us - step.now_us} us too early")
        if after == DEAD and step.name in ("claim", "fill_batch"):
            self._check_dead(step, payload, rules)

    def _check_paused(self, step: Step, payload: bytes) -> None:
        if (self._queue_of(step), _tenant(payload)) in self.account.paused:
            _fail("paused", f"{step.name} took {payload.decode()}, and its tenant is paused")

    def _is_marked(self, payload: bytes) -> bool:
        return self._identity(payload) in self.account.marked

    def _identity(self, payload: bytes) -> tuple[str, bytes]:
        """Where a message is, and its id."""
        return self.account.home[payload], self.account.stored[payload][1:17]

    def _check_drop(self, step: Step, payload: bytes, after: str) -> None:
        """A message that waited when it was cancelled is dropped by the claim that meets it, and by no other."""
        account, identity = self.account, self._identity(payload)
        if identity in account.doomed and after not in (GONE, WAITING):
            _fail("cancelled", f"{step.name} moved {payload.decode()} to {after}, and it was cancelled")
        if after == GONE:
            account.marked.discard(identity)
            account.doomed.discard(identity)

    def _is_cut_off(self, step: Step, rules: Rules) -> bool:
        """Whether the step filled the dead letters up to their limit."""
        key = f"{self._queue_of(step)}::dlq".encode() if step.name in ("claim", "fill_batch") else b""
        is_full = self.account.contents.get(key, Counter()).total() == rules.most_dead
        return bool(rules.most_dead) and key in step.changed and is_full

    def _check_dead(self, step: Step, payload: bytes, rules: Rules) -> None:
        used_up = rules.max_deliveries and self.account.deliveries[payload] >= rules.max_deliveries
        if not used_up and not self._is_too_old(payload, step.now_us, rules):
            count = self.account.deliveries[payload]
            _fail("delivery limit", f"{payload.decode()} became a dead letter after {count} deliveries, in time")

    def _is_too_old(self, payload: bytes, now_us: int, rules: Rules) -> bool:
        published_us = int.from_bytes(self.account.stored[payload][17:25], "big")
        return bool(rules.ttl_us) and published_us + rules.ttl_us <= now_us

    def _rules_of(self, payload: bytes) -> Rules:
        return self.rules[payload.split(b"/", 1)[0].decode()]

    def _accept(self, step: Step, payload: bytes) -> None:
        account, rules, name = self.account, self._rules_of(payload), payload.decode()
        if step.was_full:
            _fail("full memory", f"{step.name} stored {name} on a full server")
        if payload in self.refused:
            _fail("accounted for", f"{name} was stored after its publish had been refused")
        account.accepted_us[payload] = step.now_us
        self._check_partition(step, payload)
        key = payload_key(payload)
        if key and rules.window_us:
            whose = (self._queue_of(step), _key_owner(payload))
            last = account.last_of_key.get(whose)
            if last is not None and step.now_us < last + rules.window_us:
                _fail("deduplication", f"{name} was accepted {step.now_us - last} us after another with its key")
            account.last_of_key[whose] = step.now_us

    # -- scripts

    def _after_publish(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        given = named_arguments(step)
        if step.reply == 0:
            self._call_duplicate(step, Envelope(as_bytes(given["head"]) + bytes(8) + as_bytes(given["body"])).payload)

    def _after_enqueue(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        given = named_arguments(step)
        if given["form"] == "bare":
            return  # none of them has a deduplication key
        bodies = [as_bytes(body) for body in step.arguments[len(given) + 2 :: 3]]
        for body, mark in zip(bodies, step.reply, strict=False):  # '-' has no marks, and ids may follow them
            if mark == ord("0"):
                self._call_duplicate(step, Envelope(body[:1] + bytes(24) + body[1:]).payload)

    def _call_duplicate(self, step: Step, payload: bytes) -> None:
        """Judged when the server says so: until the client hears it, the server may have lost the other message."""
        account, rules = self.account, self._rules_of(payload)
        if payload in account.duplicates:
            return  # the same answer again, from the reply cache
        last = account.last_of_key.get((self._queue_of(step), _key_owner(payload)))
        if last is None or step.now_us > last + rules.window_us:
            _fail("deduplication", f"{payload.decode()} was called a duplicate, and there was no other in its window")
        account.duplicates.add(payload)
        self._called_duplicates.add(payload)

    def _after_claim(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        given = named_arguments(step)
        nonce = given["holder"] + int(given["call"]).to_bytes(5, "big")
        self._check_claims(step, _read(step.reply, 0.0, nonce), moved)

    def _after_take(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        if isinstance(step.reply, bytes):
            self._check_claims(step, _read(step.reply, 0.0, named_arguments(step)["nonce"]), moved)
        else:
            self._check_untouched(step, moved)

    def _check_untouched(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        """A script that says that this is not its case has changed nothing."""
        if moved or step.changed:
            _fail("one place", f"{step.name} left the call to another script, and has changed something")

    def _check_claims(self, step: Step, result: ClaimResult, moved: dict[bytes, tuple[str, str]]) -> None:
        queue = self._queue_of(step)
        rules, account = self.rules[queue], self.account
        fresh: list[bytes] = []
        for place, claim in enumerate(result.claims, 1):
            payload, token = name_of(claim.envelope.stored), claim.token
            name, owner = payload.decode(), account.owners.get(payload)
            if self._place(payload) != PROCESSING:
                _fail("one place", f"a claim returned {name}, which is {self._place(payload)}")
            if owner is None or owner.token != token:
                if owner is not None and owner.until_us > step.now_us:
                    _fail("lease", f"{name} was claimed while another had {owner.until_us - step.now_us} us left")
                account.deliveries[payload] += 1
                if rules.max_deliveries and account.deliveries[payload] > rules.max_deliveries:
                    _fail("delivery limit", f"{name} was delivered {account.deliveries[payload]} times")
                if self._is_too_old(payload, step.now_us, rules):
                    _fail("delivery limit", f"{name} was delivered after its time to live")
                self._check_paused(step, payload)
                fresh.append(payload)
            self._issued_to[token] = step.caller
            until = step.now_us + rules.lease_us + place if rules.lease_us else math.inf
            account.owners[payload] = Owner(token, until)
        for payload, (_, after) in moved.items():
            if after == PROCESSING and payload not in account.owners:
                _fail("accounted for", f"a claim took {payload.decode()} and did not return it")
        for tenant in sorted({_tenant(payload) for payload in fresh}) if rules.most_in_flight else ():
            if tenant and (found := self._in_flight(queue, tenant)) > rules.most_in_flight:
                _fail("in flight", f"tenant {tenant!r} has {found} messages in flight, and its limit is lower")
        self._delivered = fresh
        self._take_turns(queue, fresh, moved)

    def _in_flight(self, queue: str, tenant: str) -> int:
        """How many messages of a tenant are in flight, also those whose leases have ended."""
        messages = self.account.contents.get(f"{queue}::processing".encode(), Counter())
        return sum(_tenant(payload) == tenant for payload in messages)

    def _after_renew(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        given = named_arguments(step)
        self._check_holders(step, given["tokens"], step.reply, given["lease_us"])

    def _after_settle(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        given = named_arguments(step)
        tokens = given["tokens"]
        self._check_holders(step, tokens, step.reply[: len(tokens) // 36], 0)
        self._check_fence(step, tokens, moved)
        # An ack for a journal says how long the handler ran.
        if not given["note"] or ("handled" in (note := json.loads(given["note"])) and "event" not in note):
            self._check_handled(step, moved)

    def _after_ack_one(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        if not step.reply:
            self._check_untouched(step, moved)
        token = named_arguments(step)["token"]
        self._check_holders(step, token, step.reply, 0)
        self._check_fence(step, token, moved)
        self._check_handled(step, moved)

    def _check_handled(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        for payload, (before, _) in moved.items():
            if before == PROCESSING and (step.caller, payload) not in self._returned:
                _fail("handled", f"{step.caller} acknowledged {payload.decode()}, and its handler has not returned")

    def _after_requeue(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        given = named_arguments(step)
        self._check_holders(step, given["tokens"], step.reply, 0)
        self._check_fence(step, given["tokens"], moved)
        for payload, (before, _) in moved.items():
            if before == PROCESSING and given["forgiven"]:
                self.account.deliveries[payload] -= 1
        self._check_front(step, given["tokens"], moved)

    def _check_front(self, step: Step, tokens: bytes, moved: dict[bytes, tuple[str, str]]) -> None:
        """Whether they are at the right ends of their lists, the first of them outermost."""
        ids = {self.account.stored[payload][1:17]: payload for payload in moved}
        back: dict[str, list[bytes]] = {}
        for at in range(0, len(tokens), 36):
            if payload := ids.get(tokens[at : at + 16]):
                back.setdefault(_tenant(payload), []).append(payload)
        keys = self._keys[self._queue_of(step)]
        for tenant, payloads in back.items():
            key = keys.tenant_pending(tenant) if tenant else keys.pending
            elements = self._keyspace().values.get(key.encode())
            front = [name_of(one) for one in reversed(list(elements or ())[-len(payloads) :])]  # type: ignore[arg-type]
            if front != payloads:
                _fail("order", f"{step.name} did not put {payloads[0].decode()} to the front of its queue")

    def _after_retry_later(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        tokens = named_arguments(step)["tokens"]
        self._check_holders(step, tokens, step.reply, 0)
        self._check_fence(step, tokens, moved)
        for payload in moved:
            self.account.deliveries[payload] -= 1

    def _after_hand_off(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        self._check_fence(step, named_arguments(step)["tokens"], moved)

    def _check_holders(self, step: Step, tokens: bytes, marks: bytes, lease_us: int) -> None:
        """Whoever was told that it held a message did, and whoever holds one was not refused."""
        owners = {one.token: one for one in self.account.owners.values()}
        for place, mark in enumerate(marks, 1):
            owner = owners.get(tokens[36 * place - 36 : 36 * place])
            if mark == ord("0") and owner is not None:
                _fail("fencing", f"{step.name} refused the holder of a message")
            if lease_us and mark == ord("1"):
                if owner is None:
                    _fail("fencing", "a lease was renewed by a consumer that had lost it")
                owner.until_us = step.now_us + lease_us + place

    def _check_fence(self, step: Step, tokens: bytes, moved: dict[bytes, tuple[str, str]]) -> None:
        given = {tokens[at : at + 36] for at in range(0, len(tokens), 36)}
        for payload, (before, _) in moved.items():
            owner = self.account.owners.get(payload)
            if before == PROCESSING and (owner is None or owner.token not in given):
                _fail("fencing", f"{step.name} moved {payload.decode()} for a consumer that had lost it")

    def _after_redrive(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        for payload in moved:
            self.account.deliveries[payload] = 0
            key = payload_key(payload)
            if step.was_full:
                _fail("full memory", f"a full server redrove {payload.decode()}")
            if key and self._rules_of(payload).window_us and step.keys and len(step.keys) > 14:
                self.account.last_of_key[self._queue_of(step), _key_owner(payload)] = step.now_us

    def _after_cancel(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        """What was answered is where the message is. An answer from the reply cache changes nothing."""
        given, answer = as_bytes(named_arguments(step)["id"]), as_bytes(step.reply)
        payload, identity = self._payload_of(given), (self._queue_of(step), given)
        if step.changed and answer == b"marked":
            self.account.marked.add(identity)
        if not step.changed or payload is None or self.account.home[payload] != identity[0]:
            return  # a server that lost a message marks its id, too, and so does another partition
        place = self._place(payload)
        if (place == PROCESSING and bool(self._rules_of(payload).lease_us)) != (answer == b"in_flight"):
            _fail("cancelled", f"{payload.decode()} is {place}, and was called {answer.decode()}")
        if bool(moved) != (answer == b"cancelled") or (place in (WAITING, BATCH) and answer != b"marked"):
            _fail("cancelled", f"{payload.decode()} is {place}, and was called {answer.decode()}")
        if answer == b"marked" and place == WAITING:
            self.account.doomed.add(identity)
        elif answer == b"cancelled":
            self.account.marked.discard(identity)

    def _after_pause(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        """An answer from the reply cache changes nothing."""
        given, paused, queue = named_arguments(step), self.account.paused, self._queue_of(step)
        tenant, pauses = as_bytes(given["tenant"]).decode(), bool(int(given["pauses"]))
        was_paused = (queue, tenant) in paused
        if not step.changed:
            return
        if (as_bytes(step.reply) == b"1") != (was_paused != pauses):
            _fail(
                "paused",
                f"{step.name} answered {step.reply!r}, and {tenant!r} was {'' if was_paused else 'not '}paused",
            )
        if was_paused != pauses:
            self.account.missed[queue].pop(tenant, None)  # it comes back as a tenant with its first message
        (paused.add if pauses else paused.discard)((queue, tenant))

    # -- partitions

    def _check_count(self, step: Step) -> None:
        """A client that has another number of partitions than its queue changes nothing."""
        number = _partitions_of(step)
        # A request that arrives again gets its answer from before, and keeps it longer.
        if number is None or all(split_key(key)[1] == "reply" for key in step.changed):
            return
        known = self.account.partitions.setdefault(self._queue_of(step), number)
        if known != number and step.name != "grow_partition":
            _fail("partitions", f"{step.name} of a client with {number} partitions changed a queue with {known}")

    def _after_grow_partition(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        if step.changed:
            self.account.partitions[self._queue_of(step)] = int(named_arguments(step)["new"])

    def _check_partition(self, step: Step, payload: bytes) -> None:
        """Whether a message enters the partition that its key names. Without a key it can enter any of them."""
        if step.name in ("publish", "enqueue"):
            _, tenant, key, name = payload.decode().split("/")
            self._check_number(step, name.partition("~")[2] or tenant or key)

    def _check_number(self, step: Step, key: str) -> None:
        number, queue = _partitions_of(step) or 1, self._queue_of(step)
        if number > 1 and key and int(queue.partition("::partition::")[2] or 0) != partition_of(key, number):
            _fail("partitions", f"{step.name} of something with the key {key!r} went to {queue}")

    # -- schedules

    def _after_schedule(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        key, schedules = step.keys[-1], self.account.schedules
        if key.encode() not in step.changed:
            return  # it was the same, or the answer is from the reply cache
        entry, before = ScheduleEntry.of(named_arguments(step)), schedules.get(key)
        if (step.reply == b"changed") != (before is not None):
            _fail("schedules", f"{key} was called {step.reply.decode()}")
        # Its ticks stay there when the queue grows.
        self._check_number(step, _tenant(entry.payload) or split_key(key.encode())[2])
        if before is not None and before.timing == entry.timing:
            entry.done_us = before.done_us  # only the message is another one
        schedules[key] = entry

    def _after_unschedule(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        if step.keys[-1].encode() in step.changed:
            self.account.schedules.pop(step.keys[-1], None)

    def _after_tick(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        """It publishes what is due since the last tick, and nothing else."""
        key, done_us = step.keys[-1], int(named_arguments(step)["done"])
        published = {payload for payload, (before, _) in moved.items() if before == NOWHERE}
        if key.encode() not in step.changed:
            if moved:
                _fail("schedules", f"{key} was not advanced, and has published {min(moved).decode()}")
            return
        entry = self.account.schedules.get(key)
        if entry is None or not entry.done_us <= done_us <= step.now_us:
            _fail("schedules", f"{key} was advanced to {done_us}, and is not so far")
        if published != entry.ticks(done_us, step.now_us):
            _fail("schedules", f"{key} was advanced to {done_us}, and {len(published)} messages were published")
        entry.done_us = done_us

    def has_schedules(self) -> bool:
        """Whether messages will come without a producer."""
        return bool(self.account.schedules)

    # -- imports

    def imported(self, payload: bytes, is_new: bool) -> None:
        """An import said whether it has stored a message, or had done so before."""
        known = self.account.accepted_us.keys() | self._rolled_back
        if payload not in known:
            _fail("imports", f"{payload.decode()} was called {'new' if is_new else 'known'}, and was never stored")
        if is_new and payload in self._called_new and payload not in self._rolled_back:
            _fail("imports", f"{payload.decode()} was called new twice")
        if is_new:
            self._called_new.add(payload)

    def _payload_of(self, identity: bytes) -> bytes | None:
        stored = self.account.stored
        return next((payload for payload in stored if stored[payload][1:17] == identity), None)

    def ids(self, queue: str, *, waiting: bool = False) -> list[bytes]:
        """The ids of the messages that a queue has ever had, as its producers have them from their receipts."""
        start, places = queue.encode() + b"/", self.account.where
        found = [
            (payload, stored[1:17]) for payload, stored in self.account.stored.items() if payload.startswith(start)
        ]
        return [identity for payload, identity in found if not waiting or WAITING in places.get(payload, ())]

    # -- batches of streaming queries

    def _after_fill_batch(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        self._check_epoch(step, moved)
        queue, given = self._queue_of(step), named_arguments(step)
        rules = self.rules[queue]
        members = self._keyspace().values.get(f"{_group_of(step)}::{given['number']}".encode())
        added = list(members)[-step.reply[1] :] if step.reply[1] and isinstance(members, List) else []
        taken = [payload for payload in self._payloads(BATCH, added) if moved.get(payload, ("", ""))[1] == BATCH]
        self._delivered = taken
        self._take_turns(queue, taken, moved)
        for payload in taken:
            self._check_paused(step, payload)
            self.account.deliveries[payload] += 1
            if rules.max_deliveries and self.account.deliveries[payload] > rules.max_deliveries:
                _fail("delivery limit", f"{payload.decode()} was delivered too often, to a batch")
            if self._is_too_old(payload, step.now_us, rules):
                _fail("delivery limit", f"{payload.decode()} came into a batch after its time to live")

    def _after_seal_batch(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        self._check_epoch(step, moved)
        group = _group_of(step)
        for number in range(1, step.reply + 1):
            if (group, number) not in self.account.sealed:
                members = self._keyspace().values.get(f"{group}::{number}".encode())
                self.account.sealed[group, number] = tuple(members) if isinstance(members, List) else ()

    def _after_ack_batch(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        self._check_epoch(step, moved)

    def _after_release_batch(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        self._check_epoch(step, moved)

    def _after_acquire_group(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        taken, epoch, _ = step.reply
        group = _group_of(step)
        before = self.account.epochs.get(group, 0)
        if taken and epoch < before:
            _fail("batches", f"{group} went back from epoch {before} to {epoch}")
        if taken:
            self.account.epochs[group] = epoch

    def _check_epoch(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        epoch, group = int(named_arguments(step)["epoch"]), _group_of(step)
        if step.changed and epoch != self.account.epochs.get(group):
            _fail("batches", f"{step.name} worked in epoch {epoch} of {group}, which is past")

    def batch_read(self, group: str, number: int, members: list[bytes]) -> None:
        """A query has read a sealed batch."""
        known = self.account.sealed.get((group, number))
        if known is not None and tuple(members) != known:
            _fail("batches", f"batch {number} of {group} has changed since it was sealed")

    # -- turns

    def _take_turns(self, queue: str, fresh: list[bytes], moved: dict[bytes, tuple[str, str]]) -> None:
        """Count the turns of others for each tenant that waited all the time."""
        missed, rules = self.account.missed[queue], self.rules[queue]
        waiting = self._tenants_waiting(queue)
        had = {_tenant(payload) for payload, (before, _) in moved.items() if before == WAITING}
        order = [_tenant(payload) for payload in fresh]
        for tenant in list(missed):
            if tenant not in waiting and tenant not in had:
                del missed[tenant]
        for turn in order:
            missed.pop(turn, None)
            for tenant, turns in missed.items():
                turns[turn] += 1
                bound = rules.weights.get(turn, 1)  # of one round
                if turns[turn] > bound:
                    _fail("fairness", f"tenant {turn!r} was served {turns[turn]} times while {tenant!r} waited")
        for tenant in waiting:
            missed.setdefault(tenant, Counter())
        for tenant in list(missed):
            if tenant not in waiting:
                del missed[tenant]

    def _tenants_waiting(self, queue: str) -> set[str]:
        prefix, pending = f"{queue}::tenant_pending::".encode(), f"{queue}::pending".encode()
        waiting = {key[len(prefix) :].decode() for key in self.account.contents if key.startswith(prefix)}
        if pending in self.account.contents:
            waiting.add("")
        waiting = {one for one in waiting if (queue, one) not in self.account.paused}
        limit = self.rules[queue].most_in_flight
        return {one for one in waiting if not (limit and one and self._in_flight(queue, one) >= limit)}

    # -- how the keys fit together

    def _check_state(self, step: Step) -> None:
        keyspace = self._keyspace()
        for key in step.changed:
            word = split_key(key)[1]
            if word in _EXPIRING and key in keyspace.values and key not in keyspace.expires_us:
                _fail("state", f"{step.name} left {key!r} without an expiry time")
        for name in sorted({split_key(key)[0] for key in step.changed}):
            if name in self.rules:
                self._check_queue(name, keyspace)

    def _check_queue(self, name: str, keyspace: Keyspace) -> None:
        keys, rules = self._keys[name], self.rules[name]
        values: dict[bytes, Any] = keyspace.values  # each key has one type
        leases = _scores(values.get(keys.leases.encode()))
        processing = values.get(keys.processing.encode()) or Hash()
        delayed, bodies = (
            _scores(values.get(keys.delayed.encode())),
            values.get(keys.delayed_messages.encode()) or Hash(),
        )
        ring = _scores(values.get(keys.tenant_ring.encode()))
        tokens = [token for token in leases if len(token) == 36]
        with_work, backlog, expired = set(), 0, f"{name}::expired::".encode()
        prefix = f"{name}::tenant_pending::".encode()
        for key, value in values.items():
            if key.startswith(expired):
                tokens += value.scores
                with_work.add(key[len(expired) :])
            elif key.startswith(prefix):
                backlog += len(value)
                with_work.add(key[len(prefix) :])
        if rules.lease_us and sorted(token[:16] for token in tokens) != sorted(processing):
            _fail("state", f"{len(tokens)} leases do not belong to the {len(processing)} messages in flight")
        if delayed.keys() != set(bodies):
            _fail("state", "delayed ids and delayed messages differ")
        if ring.keys() - {b""} != with_work - {b""} or (b"" in with_work and b"" not in ring):
            _fail("state", f"the ring has {sorted(ring)}, and messages wait for {sorted(with_work)}")
        if b"" in ring and keys.pending.encode() not in values and b"" not in with_work:
            _fail("state", "the ring has a turn for messages without a tenant, and there are none")
        if backlog != int(values.get(keys.tenant_backlog.encode()) or 0):
            _fail("state", f"{backlog} messages of tenants wait, and the backlog says otherwise")
        if (leases.get(b"r") == 0) != bool(ring):
            _fail("state", "the alarm of the ring is wrong")
        if delayed and leases.get(b"d", math.inf) > min(delayed.values()):
            _fail("state", "the alarm of the delayed messages is late")
        if len(values.get(keys.wakeup.encode()) or ()) > 1:
            _fail("state", "there is more than one wake-up token")
        self._check_marks(name, values)
        ticks = _scores(values.get(keys.schedules.encode()))
        # A consumer that is told of a tick has a second to publish it, then another one is told.
        if ticks and leases.get(b"s", math.inf) > max(min(ticks.values()), keyspace.now_us + 1_000_000):
            _fail("state", "the alarm of the schedules is late")
        if rules.most_in_flight:
            self._check_flights(name, values, ring)
        count, paused = int(self._meta(name).get(b"paused_tenants", b"0")), self.account.paused
        if count != sum(queue == name for queue, _ in paused):
            _fail("state", f"{len(paused)} tenants are paused, and {name} says {count}")
        deliveries = values.get(keys.deliveries.encode())
        if deliveries:
            self._check_deliveries(name, deliveries)

    def _meta(self, name: str) -> Hash:
        """The state of a queue or partition, which the number of partitions names."""
        values: dict[bytes, Any] = self._keyspace().values
        counted = values.get(f"{name}::meta".encode()) or Hash()
        number = counted.get(b"partitions", b"1")
        return counted if number == b"1" else values.get(f"{name}::meta::{number.decode()}".encode()) or Hash()

    def _check_marks(self, name: str, values: dict[bytes, Any]) -> None:
        marks = _scores(values.get(self._keys[name].cancelled.encode())).keys()
        unknown = [mark for mark in marks if (name, mark) not in self.account.marked]
        if unknown:
            _fail("cancelled", f"{len(unknown)} marks belong to no message that was cancelled")
        if marks and b"cancels" not in self._meta(name):
            _fail("state", "messages are marked as cancelled, and the queue does not say so")

    def _check_flights(self, name: str, values: dict[bytes, Any], ring: dict[bytes, float]) -> None:
        """The messages in flight are counted, and a tenant is parked for its limit only while it has reached it."""
        messages = self.account.contents.get(f"{name}::processing".encode(), Counter())
        flights = {
            bytes([len(tenant)]) + tenant.encode() + self.account.stored[payload][1:17]
            for payload in messages
            if (tenant := _tenant(payload))
        }
        if flights != _scores(values.get(self._keys[name].tenant_in_flight.encode())).keys():
            _fail("state", "the count of the messages in flight of some tenant is wrong")
        limit = self.rules[name].most_in_flight
        for tenant in (one.decode() for one, score in ring.items() if _AT_LIMIT <= score < 2 * _PARKED):
            if self._in_flight(name, tenant) < limit:
                _fail("in flight", f"tenant {tenant!r} waits for its limit, and has not reached it")

    def _check_deliveries(self, name: str, deliveries: Hash) -> None:
        present = set()
        for key, payloads in self.account.contents.items():
            if split_key(key)[0] == name and self._kind(key) not in _TERMINAL:
                for payload in payloads:
                    stored = self.account.stored[payload]
                    if stored[0] & HAS_ENTRY:
                        present.add(stored[1:17])
        if deliveries.keys() - present:
            _fail("state", f"{len(deliveries.keys() - present)} delivery counts belong to no message")

    # -- the journal

    def _check_journals(self, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        """Fold the new entries, and compare where they say that messages are with where they are."""
        for name in sorted({split_key(key)[0] for key in step.changed}):
            if name in self.rules and self.rules[name].is_journaled:
                ours = {payload: move for payload, move in moved.items() if self.account.home[payload] == name}
                self._check_journal(name, step, ours)

    def _check_journal(self, name: str, step: Step, moved: dict[bytes, tuple[str, str]]) -> None:
        reader = self.account.journals.setdefault(name, JournalReader())
        stored, stream = self.account.stored, self._keyspace().values.get(self._keys[name].journal.encode())
        entries = reader.read(stream.entries if isinstance(stream, Stream) else [])
        gone = [payload for payload, (_, after) in moved.items() if after == GONE] if step.name == "sweep" else []
        reader.fold(entries, step.name, {stored[payload][1:17].hex() for payload in gone}, len(gone))
        delivered = sorted(stored[payload][1:17].hex() for payload in self._delivered)
        if delivered != sorted(entry["id"] for entry in entries if entry["event"] in ("claimed", "reclaimed")):
            _fail("journal", f"{step.name} delivered {len(delivered)} messages, and the journal has others")
        places = {
            stored[payload][1:17].hex(): kind
            for key, payloads in self.account.contents.items()
            if split_key(key)[0] == name and (kind := self._kind(key)) and kind not in _TERMINAL
            for payload in payloads
        }
        reader.compare(step.name, places)

    # -- clients

    def published(self, payload: bytes, result: bool) -> None:
        """A publish returned."""
        if result:
            if payload in self._rolled_back and payload not in self.account.accepted_us:
                return  # the server lost it while the reply was on its way
            if payload not in self.account.accepted_us:
                _fail("accounted for", f"the publish of {payload.decode()} returned True, and it was never stored")
            self.confirmed.add(payload)
            return
        if payload in self.account.accepted_us:
            _fail("accounted for", f"the publish of {payload.decode()} returned False, and it was stored")
        if payload not in self._called_duplicates:
            _fail("deduplication", f"the publish of {payload.decode()} returned False, and the server did not say so")

    def publish_refused(self, payload: bytes) -> None:
        """A publish raised an error that says that nothing was stored."""
        if payload in self.account.accepted_us:
            _fail("accounted for", f"the publish of {payload.decode()} was refused, and it was stored")
        self.refused.add(payload)

    def heard(self, process: Process, call: Call, sent_at: float, answer: Any) -> None:
        """A process got the answer to a claim, a renewal or anything else that tells it about its leases."""
        command, _, arguments = call
        name = command.script.name
        if name == "claim":
            given = _by_name(command.script, (*command.settings, *arguments))
            nonce = given["holder"] + int(given["call"]).to_bytes(5, "big")
            lease = given["lease_us"] / 1_000_000 or math.inf
            for claim in _read(answer, 0.0, nonce).claims:
                self._leases_known[process.name, name_of(claim.envelope.stored)] = (claim.token, sent_at + lease)
        elif name == "take":
            given = _by_name(command.script, (*command.settings, *arguments))
            for claim in _read(answer, 0.0, given["nonce"]).claims if isinstance(answer, bytes) else ():
                known = (claim.token, sent_at + given["lease_us"] / 1_000_000)
                self._leases_known[process.name, name_of(claim.envelope.stored)] = known
        elif name == "ack_one" and answer == b"1":
            self._told_settled.add(_by_name(command.script, (*command.settings, *arguments))["token"])
        elif name == "renew":
            given = _by_name(command.script, (*command.settings, *arguments))
            tokens = given["tokens"]
            renewed = {tokens[36 * at : 36 * at + 36]: mark == ord("1") for at, mark in enumerate(answer)}
            for (who, payload), (token, until) in list(self._leases_known.items()):
                if who == process.name and token in renewed:
                    until = max(until, sent_at + given["lease_us"] / 1_000_000)
                    if renewed[token]:
                        self._leases_known[who, payload] = (token, until)
                    else:
                        self._lost.add((who, token))
        elif name in _HELD:
            tokens = _by_name(command.script, (*command.settings, *arguments))["tokens"]
            marks = answer[: len(tokens) // 36]
            self._told_settled |= {tokens[36 * at : 36 * at + 36] for at, mark in enumerate(marks) if mark == ord("1")}

    def handler_started(self, process: Process, payload: bytes, now: float) -> None:
        """A handler got a message."""
        self.handled[payload] += 1
        known = self._leases_known.get((process.name, payload))
        if known is None:
            _fail("known loss", f"{process} handles {payload.decode()}, which it never claimed")
        token, until = known
        if (process.name, token) in self._lost:
            _fail("known loss", f"{process} started {payload.decode()} after its renewal had been refused")
        if now >= until:
            _fail("known loss", f"{process} started {payload.decode()} {now - until:.3f} s after its lease had ended")

    def handler_returned(self, process: Process, payload: bytes) -> None:
        """A handler has returned without an error."""
        self._returned.add((process.name, payload))

    def drained(self, process: Process, given_up: set[bytes]) -> None:
        """A drain returned True, and no handler of this process is at work."""
        for payload in self.held_by({process.name}, except_for=given_up):
            if payload.startswith(b"orders/"):
                _fail("drain", f"{process} was drained and still holds {payload.decode()}")

    def tokens_of(self, process: Process) -> set[bytes]:
        """The tokens of the messages that this process was told it has claimed."""
        return {token for (who, _), (token, _) in self._leases_known.items() if who == process.name}

    def held_by(self, processes: set[str], *, except_for: set[bytes]) -> list[bytes]:
        """The messages in flight that were claimed by one of these processes, and that it can know of.

        A server that lost an acknowledgement has the message in flight again, and its consumer has let go of it.
        """
        forgotten = self._told_settled & self._settled_and_lost | except_for
        owners = [(payload, owner.token) for payload, owner in self.account.owners.items()]
        return [one for one, token in owners if self._issued_to.get(token) in processes and token not in forgotten]

    def look_for_idle(self, queue: str, now: float, now_us: int, slack: float, *, is_idle: bool, is_full: bool) -> None:
        """Somebody waits for messages, or nobody does; whether messages wait beside them."""
        if not is_idle or not (self._has_ready(queue, now_us) or (not is_full and self._has_tick(queue, now_us))):
            self._waits_since.pop(queue, None)
            return
        waited = now - self._waits_since.setdefault(queue, now)
        rules = self.rules[queue]
        # A query may take the wake-up for a delayed message, which it cannot have yet, and does not pass it on.
        limit = _LATE if rules.is_calm and not rules.has_queries else _SLICE + slack
        if waited > limit:
            _fail("wake-up", f"a message has waited for {waited:.3f} s beside an idle consumer")

    def _has_ready(self, queue: str, now_us: int) -> bool:
        keys, values = self._keys[queue], self._keyspace().values
        if values.get(keys.wakeup.encode()):
            return False
        if self._tenants_waiting(queue):
            return True
        due = _scores(values.get(keys.delayed.encode())).values()
        leases = (score for member, score in _scores(values.get(keys.leases.encode())).items() if len(member) == 36)
        return any(one <= now_us for one in (*due, *leases))

    def _has_tick(self, queue: str, now_us: int) -> bool:
        """Whether a tick is due, and nothing keeps consumers from publishing it."""
        ticks = _scores(self._keyspace().values.get(self._keys[queue].schedules.encode())).values()
        return not self.rules[queue].is_bounded and any(tick <= now_us for tick in ticks)

    # -- faults and the end

    def snapshot(self) -> Account:
        """The account as it is now, for a server that may come back to this moment."""
        return copy.deepcopy(self.account)

    def roll_back(self, account: Account, *, keeps: bool) -> set[bytes]:
        """The server has lost everything since the snapshot. Returns the publishes that were lost."""
        lost = {payload for payload in self.confirmed if payload not in account.accepted_us}
        if lost and keeps:
            name = min(lost).decode()
            _fail("accounted for", f"{name} was lost, although its publish had been confirmed")
        self._rolled_back |= self.account.accepted_us.keys() - account.accepted_us.keys()
        held = {owner.token for owner in self.account.owners.values()}
        self._settled_and_lost |= {owner.token for owner in account.owners.values()} - held
        self.account = account
        self.confirmed -= lost
        return lost

    def unfinished(self) -> list[bytes]:
        """The messages that somebody still has to handle."""
        return [payload for payload, places in self.account.where.items() if places and not set(places) <= {*_TERMINAL}]

    def has_idle_marks(self) -> bool:
        """Whether an empty queue still has marks of messages that it will never meet.

        A streaming query may bring back a message that was marked in its batch, and so may a consumer without leases:
        there the marks stay, for 30 days at most.
        """
        values = self._keyspace().values
        return any(
            rules.lease_us > 0 and not rules.has_queries and self._keys[name].cancelled.encode() in values
            for name, rules in self.rules.items()
        )

    def check_the_end(self) -> None:
        """Nobody works any more: everything is accounted for, and nothing is left."""
        for payload in self.confirmed:
            if payload not in self.account.accepted_us:
                _fail("accounted for", f"{payload.decode()} was confirmed and is not there")
        allowed = set() if all(rules.lease_us for rules in self.rules.values()) else {"processing", "deliveries"}
        # Without leases, a message whose consumer died stays in flight until an operator removes it.
        allowed |= {"completed", "failed", "dlq", "records", "wakeup", "journal", "meta", "weights", "groups", "group"}
        if not self.has_idle_marks():
            allowed.add("cancelled")
        allowed.add("queues")  # the registry of the server
        for key in self._keyspace().values:
            word = split_key(key)[1]
            if word in _EXPIRING or word in allowed or key == REGISTRY_KEY.encode():
                continue
            _fail("left behind", f"{key.decode(errors='replace')} is left when everybody has finished")

    def _queue_of(self, step: Step) -> str:
        return split_key(step.keys[0].encode())[0]


@cache
def split_key(key: bytes) -> tuple[str, str, str]:
    """The queue or partition of a key, the word that tells what it holds, and what follows."""
    words = key.decode(errors="replace").split("::")
    first = 3 if words[1:2] == ["partition"] else 1
    return "::".join(words[:first]), "::".join(words[first : first + 1]), "::".join(words[first + 1 :])


def _fail(invariant: str, what: str) -> NoReturn:
    raise Violation(invariant, what)


def _key_owner(payload: bytes) -> bytes:
    """What a deduplication key belongs to: the queue, the tenant and the key."""
    return b"/".join(payload.split(b"/")[:3])


def _tenant(payload: bytes) -> str:
    return payload.split(b"/")[1].decode()


def _text(keys: Iterable[bytes]) -> str:
    return ", ".join(sorted(key.decode(errors="replace") for key in keys))


def _scores(value: Any) -> dict[bytes, float]:
    return value.scores if isinstance(value, SortedSet) else {}


def _partitions_of(step: Step) -> int | None:
    """The number of partitions that the caller of a script believes in: it names the key of the state."""
    if step.script is None or "meta" not in step.script.keys:
        return None
    number = split_key(step.keys[step.script.keys.index("meta")].encode())[2]
    return int(number or 1)


def _group_of(step: Step) -> str:
    assert step.script is not None
    return step.keys[step.script.keys.index("group")]


_names: dict[str, tuple[str, ...]] = defaultdict(tuple)


def _by_name(script: Script, values: tuple[Any, ...]) -> dict[str, Any]:
    names = _names.get(script.name)
    if names is None:
        names = _names[script.name] = argument_names(script.source)
    return dict(zip(names, values, strict=False))


def named_arguments(step: Step) -> dict[str, Any]:
    """The arguments of a script by the names of its header."""
    assert step.script is not None
    return _by_name(step.script, step.arguments)
