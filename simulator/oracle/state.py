"""State: how the keys of a queue fit together, and what its journal says of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from redis_message_queue.stored.envelope import HAS_ENTRY
from simulator.keyspace import Hash, Keyspace, Stream
from simulator.oracle.account import NOBODY
from simulator.oracle.book import Moved
from simulator.oracle.invariants import fail
from simulator.oracle.journal import JournalReader
from simulator.oracle.places import DELAYED, GONE, PROCESSING, TERMINAL
from simulator.oracle.steps import EXPIRING, scores, split_key, tenant_of
from simulator.oracle.turns import Turns
from simulator.server import Step

_PARKED, _AT_LIMIT = 1 << 40, 3 << 39  # scores in the ring, see lib/places.lua


class State(Turns):
    """Compares the keys with each other and with the account."""

    def _check_state(self, step: Step) -> None:
        keyspace = self._keyspace()
        for key in step.changed:
            word = split_key(key)[1]
            if word in EXPIRING and key in keyspace.values and key not in keyspace.expires_us:
                fail("state", f"{step.name} left {key!r} without an expiry time")
        for name in sorted({split_key(key)[0] for key in step.changed}):
            if name in self.rules:
                self._check_queue(name, keyspace)

    def _check_queue(self, name: str, keyspace: Keyspace) -> None:
        keys, rules = self._keys[name], self.rules[name]
        values: dict[bytes, Any] = keyspace.values  # each key has one type
        leases = scores(values.get(keys.leases.encode()))
        processing = values.get(keys.processing.encode()) or Hash()
        delayed, bodies = (
            scores(values.get(keys.delayed.encode())),
            values.get(keys.delayed_messages.encode()) or Hash(),
        )
        ring = scores(values.get(keys.tenant_ring.encode()))
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
            fail("state", f"{len(tokens)} leases do not belong to the {len(processing)} messages in flight")
        if delayed.keys() != set(bodies):
            fail("state", "delayed ids and delayed messages differ")
        if ring.keys() - {b""} != with_work - {b""} or (b"" in with_work and b"" not in ring):
            fail("state", f"the ring has {sorted(ring)}, and messages wait for {sorted(with_work)}")
        if b"" in ring and keys.pending.encode() not in values and b"" not in with_work:
            fail("state", "the ring has a turn for messages without a tenant, and there are none")
        if backlog != int(values.get(keys.tenant_backlog.encode()) or 0):
            fail("state", f"{backlog} messages of tenants wait, and the backlog says otherwise")
        if (leases.get(b"r") == 0) != bool(ring):
            fail("state", "the alarm of the ring is wrong")
        if delayed and leases.get(b"d", math.inf) > min(delayed.values()):
            fail("state", "the alarm of the delayed messages is late")
        if len(values.get(keys.wakeup.encode()) or ()) > 1:
            fail("state", "there is more than one wake-up token")
        self._check_marks(name, values)
        ticks = scores(values.get(keys.schedules.encode()))
        # A consumer that is told of a tick has a second to publish it, then another one is told.
        if ticks and leases.get(b"s", math.inf) > max(min(ticks.values()), keyspace.now_us + 1_000_000):
            fail("state", "the alarm of the schedules is late")
        if rules.most_in_flight:
            self._check_flights(name, values, ring)
        count, paused = int(self._meta(name).get(b"paused_tenants", b"0")), self.account.paused
        if count != sum(queue == name for queue, _ in paused):
            fail("state", f"{len(paused)} tenants are paused, and {name} says {count}")
        self._check_deliveries(name, values.get(keys.deliveries.encode()) or Hash())

    def _check_marks(self, name: str, values: dict[bytes, Any]) -> None:
        marks = scores(values.get(self._keys[name].cancelled.encode())).keys()
        unknown = [mark for mark in marks if (name, mark) not in self.account.marked]
        if unknown:
            fail("cancelled", f"{len(unknown)} marks belong to no message that was cancelled")
        if marks and b"cancels" not in self._meta(name):
            fail("state", "messages are marked as cancelled, and the queue does not say so")

    def _check_flights(self, name: str, values: dict[bytes, Any], ring: dict[bytes, float]) -> None:
        """The messages in flight are counted, and a tenant is parked for its limit only while it has reached it."""
        messages = self.account.contents.get(f"{name}::processing".encode(), Counter())
        flights = {
            bytes([len(tenant)]) + tenant.encode() + self.account.stored[payload][1:17]
            for payload in messages
            if (tenant := tenant_of(payload))
        }
        if flights != scores(values.get(self._keys[name].tenant_in_flight.encode())).keys():
            fail("state", "the count of the messages in flight of some tenant is wrong")
        limit = self.rules[name].most_in_flight
        for tenant in (one.decode() for one, score in ring.items() if _AT_LIMIT <= score < 2 * _PARKED):
            if self._in_flight(name, tenant) < limit:
                fail("in flight", f"tenant {tenant!r} waits for its limit, and has not reached it")

    def _check_deliveries(self, name: str, deliveries: Hash) -> None:
        present = set()
        for key, payloads in self.account.contents.items():
            if split_key(key)[0] == name and self._kind(key) not in TERMINAL:
                for payload in payloads:
                    stored = self.account.stored[payload]
                    if stored[0] & HAS_ENTRY:
                        present.add(stored[1:17])
        if deliveries.keys() != present:
            fail("state", f"{len(deliveries.keys() ^ present)} delivery counts or their messages are missing")

    # -- the journal

    def _check_journals(self, step: Step, moved: Moved) -> None:
        """Fold the new entries, and compare where they say that messages are with where they are."""
        for name in sorted({split_key(key)[0] for key in step.changed}):
            if name in self.rules and self.rules[name].is_journaled:
                ours = {payload: move for payload, move in moved.items() if self.account.home[payload] == name}
                self._check_journal(name, step, ours)

    def _check_journal(self, name: str, step: Step, moved: Moved) -> None:
        reader = self.account.journals.setdefault(name, JournalReader())
        stored, stream = self.account.stored, self._keyspace().values.get(self._keys[name].journal.encode())
        entries = reader.read(stream.entries if isinstance(stream, Stream) else [])
        gone = [payload for payload, (_, after) in moved.items() if after == GONE] if step.name == "sweep" else []
        reader.fold(entries, step.name, {stored[payload][1:17].hex() for payload in gone}, len(gone))
        delivered = sorted(stored[payload][1:17].hex() for payload in self._delivered)
        if delivered != sorted(entry["id"] for entry in entries if entry["event"] in ("claimed", "reclaimed")):
            fail("journal", f"{step.name} delivered {len(delivered)} messages, and the journal has others")
        # With `ordered_tenants`, a message that waits for its next attempt stays in flight.
        retried = {payload for payload, owner in self.account.owners.items() if owner.token == NOBODY}
        places = {
            stored[payload][1:17].hex(): DELAYED if kind == PROCESSING and payload in retried else kind
            for key, payloads in self.account.contents.items()
            if split_key(key)[0] == name and (kind := self._kind(key)) and kind not in TERMINAL
            for payload in payloads
        }
        reader.compare(step.name, places)
