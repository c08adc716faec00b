"""The ledger: an account of every message, written from what the server executes and what clients are told.

It is checked after every step. It decides by its own account who may have which message, not by what the scripts store
for that purpose. The names of the checks are the invariants in `simulator/oracle/invariants.py`.
"""

from __future__ import annotations

import copy

from redis_message_queue.stored.keys import REGISTRY_KEY
from simulator.lua import as_bytes
from simulator.oracle.account import Account
from simulator.oracle.batches import Batches
from simulator.oracle.clients import Clients
from simulator.oracle.consuming import Consuming
from simulator.oracle.invariants import fail
from simulator.oracle.moves import Moves
from simulator.oracle.operating import Operating
from simulator.oracle.places import DELAYED, PROCESSING, TERMINAL
from simulator.oracle.state import State
from simulator.oracle.steps import EXPIRING, listed, named_arguments, queue_of, split_key
from simulator.server import Step

_DRAINING = ("claim", "take", "settle", "ack_one", "ack_and_take", "requeue", "retry_later", "renew", "fill_batch",
             "seal_batch", "ack_batch", "release_batch", "acquire_group", "sweep")  # fmt: skip
_EXPECTED_ERRORS = ("OOM ", "ERR NOSTATE", "ERR OVERTAKEN", "ERR STALE", "BUSY ", "ERR PARTITIONS ",
                    "ERR STATEVERSION partitions:")  # fmt: skip


class Ledger(Moves, Consuming, Operating, Batches, State, Clients):
    """Follows the server step by step, and raises a `Violation` when something is wrong."""

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
        self._follow_sequence(step, moved)
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
            fail("scripts do not fail", f"{step.name} ended in {step.error!r}")
        if step.changed:
            fail(
                "scripts do not fail", f"{step.name} failed half done ({step.error}): it changed {listed(step.changed)}"
            )
        if step.error.startswith("OOM") and step.name in _DRAINING:
            fail("full memory", f"a full server refused {step.name}")
        if step.error.startswith("OOM") and step.name == "cancel":
            payload = self._payload_of(as_bytes(named_arguments(step)["id"]))
            # Another partition has no memory for a mark, and the client goes on to the one that has the message.
            is_here = payload is not None and self.account.home[payload] == queue_of(step)
            if payload is not None and is_here and self._place(payload) == DELAYED:
                fail("full memory", f"a full server refused to cancel {payload.decode()}, which is delayed")

    # -- faults and the end

    def snapshot(self) -> Account:
        """The account as it is now, for a server that may come back to this moment."""
        return copy.deepcopy(self.account)

    def roll_back(self, account: Account, *, keeps: bool, names: set[str] | None = None) -> None:
        """The server has lost everything since the snapshot.

        A node of a cluster loses what belongs to the queues and partitions with these ``names``.
        """
        if names is not None:
            account = self.account.with_earlier(account, names)
        lost = {payload for payload in self.confirmed if payload not in account.accepted_us}
        if lost and keeps:
            name = min(lost).decode()
            fail("accounted for", f"{name} was lost, although its publish had been confirmed")
        self._rolled_back |= self.account.accepted_us.keys() - account.accepted_us.keys()
        held = {owner.token for owner in self.account.owners.values()}
        self._ended_and_lost |= {owner.token for owner in account.owners.values()} - held
        self.account = account
        self._told_paused.clear()
        self.confirmed -= lost

    def unfinished(self) -> list[bytes]:
        """The messages that somebody still has to handle."""
        return [payload for payload, places in self.account.where.items() if places and not set(places) <= {*TERMINAL}]

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
                fail("accounted for", f"{payload.decode()} was confirmed and is not there")
        allowed = set() if all(rules.lease_us for rules in self.rules.values()) else {"processing", "deliveries"}
        # Without leases, a message whose consumer died stays in flight until an operator removes it.
        allowed |= {"completed", "failed", "dlq", "records", "wakeup", "journal", "meta", "weights", "groups", "group"}
        if not self.has_idle_marks():
            allowed.add("cancelled")
        allowed.add("queues")  # the registry of the server
        for key in self._keyspace().values:
            word = split_key(key)[1]
            if word in EXPIRING or word in allowed or key == REGISTRY_KEY.encode():
                continue
            fail("left behind", f"{key.decode(errors='replace')} is left when everybody has finished")
