"""A small campaign in which every promise was kept, told by ledger and journal, for tests to break."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.checker import Rules, Verdict, check
from chaos.evidence import Evidence, JournalEntry, QueueEvidence
from chaos.scenario import QueuePlace

WINDOW = 20.0
LEASE = 30.0


@dataclass
class Scenario:
    """What happened to the messages of one queue. Each method adds what ledger and journal say about it."""

    place: QueuePlace = field(default_factory=lambda: QueuePlace("orders", "durable"))
    losses: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        self.ledger: list[dict[str, Any]] = []
        self.queue = QueueEvidence(self.place)
        self.evidence = Evidence([self.queue])
        self.time = 0.0
        self._calls = 0
        self._attempts: Counter[str] = Counter()

    def say(self, who: str, do: str, **details: Any) -> None:
        self.time += 1
        self.ledger.append({"who": who, "do": do, "t": self.time, **details})

    def record(self, event: str, message: str, tenant: str = "", **details: Any) -> None:
        self.time += 0.1
        before = [one for one in self.queue.journal if one.partition == details.get("partition", 0)]
        entry = JournalEntry(len(before) + 1, self.time, event, f"id-{message}", tenant, **details)
        self.queue.journal.append(entry)

    def publish(self, message: str, tenant: str = "", d: str | None = None, outcome: str = "confirmed") -> None:
        """A publish that is stored, unless its outcome is `suppressed`."""
        self.intend(message, d)
        if outcome == "suppressed":
            first = next(one for one in self.queue.journal if one.deduplication == d)
            self.record("duplicate", message, tenant, of=first.id)
        else:
            self.record("published", message, tenant, key=message, deduplication=d)
        self.confirm(outcome)

    def intend(self, message: str, d: str | None = None, partition_key: str | None = None) -> None:
        self._calls += 1
        details = {"queue": self.place.name, "keys": [message], "d": d, "partition_key": partition_key}
        self.say("producer", "intent", call=self._calls, **details)

    def confirm(self, outcome: str = "confirmed") -> None:
        if outcome in ("refused", "unknown"):
            self.say("producer", outcome, call=self._calls)
        elif outcome != "none":
            self.say("producer", "confirmed", call=self._calls, results=[outcome == "confirmed"])

    def claim(self, message: str, who: str = "consumer", tenant: str = "", event: str = "claimed") -> str:
        """A delivery that begins. Returns its lease."""
        self._attempts[message] += 1
        lease = f"lease-{message}-{self._attempts[message]}"
        self.record(event, message, tenant)
        self.say(who, "claimed", **self.seen(message, lease))
        self.say(who, "handling", key=message, **self.seen(message, lease))
        return lease

    def seen(self, message: str, lease: str) -> dict[str, Any]:
        attempt = int(lease.rpartition("-")[2])
        return {"queue": self.place.name, "id": f"id-{message}", "lease": lease, "attempt": attempt}

    def settle(self, message: str, lease: str, who: str = "consumer", how: str = "acked", tenant: str = "") -> None:
        """A handler that ends and acknowledges its message."""
        self.say(who, "handled", **self.seen(message, lease))
        self.record(how, message, tenant)
        self.queue.completed[message] += 1
        self.settled(message, lease, who, how)

    def settled(self, message: str, lease: str, who: str = "consumer", how: str = "acked") -> None:
        details = {"queue": self.place.name, "id": f"id-{message}", "lease": lease, "how": how}
        self.say(who, "settled", **details)

    def handle(self, message: str, tenant: str = "") -> None:
        self.settle(message, self.claim(message, tenant=tenant), tenant=tenant)

    def verdict(self) -> Verdict:
        return check(self.ledger, self.evidence, Rules(WINDOW, self.losses, LEASE))

    def broken(self) -> set[str]:
        """The rules that are broken."""
        return {violation.rule for violation in self.verdict().violations}
