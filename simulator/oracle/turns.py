"""Turns: who waits, and how often others were served meanwhile."""

from __future__ import annotations

from collections import Counter

from simulator.oracle.book import Book, Moved
from simulator.oracle.invariants import fail
from simulator.oracle.places import WAITING
from simulator.oracle.steps import tenant_of


class Turns(Book):
    """Counts turns, and what each tenant has in flight."""

    def _take_turns(self, queue: str, fresh: list[bytes], moved: Moved) -> None:
        """Count the turns of others for each tenant that waited all the time."""
        missed, rules = self.account.missed[queue], self.rules[queue]
        waiting = self._tenants_waiting(queue)
        had = {tenant_of(payload) for payload, (before, _) in moved.items() if before == WAITING}
        order = [tenant_of(payload) for payload in fresh]
        for tenant in list(missed):
            if tenant not in waiting and tenant not in had:
                del missed[tenant]
        for turn in order:
            missed.pop(turn, None)
            for tenant, turns in missed.items():
                turns[turn] += 1
                bound = rules.weights.get(turn, 1)  # of one round
                if turns[turn] > bound:
                    fail("fairness", f"tenant {turn!r} was served {turns[turn]} times while {tenant!r} waited")
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

    def _in_flight(self, queue: str, tenant: str) -> int:
        """How many messages of a tenant are in flight, also those whose leases have ended."""
        messages = self.account.contents.get(f"{queue}::processing".encode(), Counter())
        return sum(tenant_of(payload) == tenant for payload in messages)
