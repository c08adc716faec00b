"""What all parts of the oracle share: the account, and how they look something up in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redis_message_queue.protocol.operate.record_pairs import pair
from redis_message_queue.stored.keys import QueueKeys
from simulator.keyspace import Hash, Keyspace
from simulator.oracle.account import Account, Rules
from simulator.oracle.invariants import fail
from simulator.oracle.places import BATCH, COMPLETED, DEAD, DELAYED, FAILED, GONE, NOWHERE, PROCESSING, WAITING
from simulator.oracle.steps import key_owner, queue_of, split_key, tenant_of
from simulator.oracle.ticks import MARK, name_of, named
from simulator.server import Step

Moved = dict[bytes, tuple[str, str]]  # where each message was before a step, and where it is afterwards
_KINDS = {
    "pending": WAITING,
    "tenant_pending": WAITING,
    "processing": PROCESSING,
    "delayed_messages": DELAYED,
    "completed": COMPLETED,
    "failed": FAILED,
    "dlq": DEAD,
}


class Book:
    """The account of one schedule."""

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
        self._told_ended: set[bytes] = set()  # tokens that a client knows to be settled, or to belong to nobody
        self._told_settled: set[bytes] = set()  # ids of messages that a client knows to be settled
        self._ended_and_lost: set[bytes] = set()  # tokens whose lease had ended, on a server that lost that
        self._delivered: list[bytes] = []  # by the step that is being checked
        self._leases_known: dict[tuple[str, bytes], tuple[bytes, float]] = {}  # by process and payload
        self._lost: set[tuple[str, bytes]] = set()  # by process and token
        self._returned: set[tuple[str, bytes]] = set()  # by process and payload: handlers that have returned
        self._issued_to: dict[bytes, str] = {}  # the process that a token was given to
        self._waits_since: dict[str, float] = {}  # by queue
        self._told_paused: set[str] = set()  # tenants that are paused, as the operator knows
        self.steps = 0

    def _place(self, payload: bytes) -> str:
        places = self.account.where.get(payload)
        if not places:
            return GONE if payload in self.account.accepted_us else NOWHERE
        if places.total() > 1:
            name = payload.decode()
            fail("one place", f"{name} is in {places.total()} places: {', '.join(sorted(places.elements()))}")
        return next(iter(places))

    def _call_duplicate(self, step: Step, payload: bytes) -> None:
        """Judged when the server says so: until the client hears it, the server may have lost the other message."""
        account, rules = self.account, self._rules_of(payload)
        if payload in account.duplicates:
            return  # the same answer again, from the reply cache
        last = account.last_of_key.get((queue_of(step), key_owner(payload)))
        if last is None or step.now_us > last + rules.window_us:
            fail("deduplication", f"{payload.decode()} was called a duplicate, and there was no other in its window")
        account.duplicates.add(payload)
        self._called_duplicates.add(payload)

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

    def _rules_of(self, payload: bytes) -> Rules:
        return self.rules[payload.split(b"/", 1)[0].decode()]

    def _identity(self, payload: bytes) -> tuple[str, bytes]:
        """Where a message is, and its id."""
        return self.account.home[payload], self.account.stored[payload][1:17]

    def _is_marked(self, payload: bytes) -> bool:
        return self._identity(payload) in self.account.marked

    def _is_too_old(self, payload: bytes, now_us: int, rules: Rules) -> bool:
        published_us = int.from_bytes(self.account.stored[payload][17:25], "big")
        return bool(rules.ttl_us) and published_us + rules.ttl_us <= now_us

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

    def _meta(self, name: str) -> Hash:
        """The state of a queue or partition, which the number of partitions names."""
        values: dict[bytes, Any] = self._keyspace().values
        counted = values.get(f"{name}::meta".encode()) or Hash()
        number = counted.get(b"partitions", b"1")
        return counted if number == b"1" else values.get(f"{name}::meta::{number.decode()}".encode()) or Hash()

    def _check_paused(self, step: Step, payload: bytes) -> None:
        if (queue_of(step), tenant_of(payload)) in self.account.paused:
            fail("paused", f"{step.name} took {payload.decode()}, and its tenant is paused")
        if tenant_of(payload) in self._told_paused:
            fail("paused", f"{step.name} took {payload.decode()}, and an operator was told that its tenant is paused")
