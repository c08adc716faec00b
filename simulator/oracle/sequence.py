"""Sequence: which messages of a tenant come before which, where `ordered_tenants` promises that."""

from __future__ import annotations

from typing import Any

from simulator.oracle.book import Book, Moved
from simulator.oracle.invariants import fail
from simulator.oracle.places import BATCH, GONE, PROCESSING, TERMINAL, WAITING
from simulator.oracle.steps import enqueued, tenant_of
from simulator.oracle.ticks import name_of
from simulator.server import Step


class Sequence(Book):
    """Numbers the messages of tenants as they begin to wait. A retried or requeued message keeps its number."""

    def _follow_sequence(self, step: Step, moved: Moved) -> None:
        """A message loses its number when it ends, and when a streaming query takes it: queries ignore the order.

        One that is delayed by its publisher begins to wait when it is due, and one that is redriven begins anew.
        """
        sequence = self.account.sequence
        for payload, (_, after) in moved.items():
            if after in (BATCH, GONE, *TERMINAL):
                sequence.pop(payload, None)
        entered = [payload for payload, (before, after) in moved.items() if self._enters(payload, before, after)]
        # What is published together has the order of its call, whatever the script made of that.
        if step.name == "enqueue":
            entered.sort(key=enqueued(step).index)
        else:
            entered.sort(key=lambda one: self._distance(one, moved[one][1]))
        for payload in entered:
            self.account.entered += 1
            sequence[payload] = self.account.entered

    def _enters(self, payload: bytes, before: str, after: str) -> bool:
        is_ordered = bool(tenant_of(payload)) and self.rules[self.account.home[payload]].is_ordered
        # One that a query gave back has no number, wherever it goes from there.
        is_new = payload not in self.account.sequence and before not in (BATCH, WAITING, PROCESSING)
        return is_ordered and is_new and after in (WAITING, PROCESSING)

    def _distance(self, payload: bytes, place: str) -> int:
        """How many messages of its tenant wait before it."""
        if place == PROCESSING:
            return -1  # it was due, and was taken at once
        key = self._keys[self.account.home[payload]].tenant_pending(tenant_of(payload)).encode()
        values: dict[bytes, Any] = self._keyspace().values  # each key has one type
        waiting = [name_of(one) for one in values[key]]
        return len(waiting) - waiting.index(payload)

    def _check_sequence(self, payload: bytes) -> None:
        """A consumer gets a message only if all earlier ones of its tenant have ended."""
        account, tenant = self.account, tenant_of(payload)
        number, home = account.sequence.get(payload, 0), account.home[payload]
        for other, earlier in account.sequence.items():
            if earlier < number and account.home[other] == home and tenant_of(other) == tenant:
                fail("tenant order", f"{payload.decode()} was delivered before {other.decode()} had ended")
