"""Where the messages of a queue are if one knows its journal only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.oracle.invariants import fail
from simulator.oracle.places import BATCH, DELAYED, NOWHERE, PROCESSING, WAITING

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
                fail("journal", f"entry {self.read_entries} has the number {entry['n']}")
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
                fail("journal", f"{step} wrote {event!r} of a message that was {place}")
            if after == PROCESSING and step == "fill_batch":
                after = BATCH
            if after == NOWHERE:
                self.places.pop(identity, None)
            else:
                self.places[identity] = after
        if left != count:
            fail("journal", f"{step} removed {count} messages, and the journal says {left}")
        for identity in removed:
            self.places.pop(identity, None)

    def compare(self, step: str, places: dict[str, str]) -> None:
        """Each message is where the journal has it. A delayed message that is due moves on without an entry."""
        for identity in sorted(self.places.keys() | places.keys()):
            said, found = self.places.get(identity, NOWHERE), places.get(identity, NOWHERE)
            if said != found and (said, found) != (DELAYED, WAITING):
                fail("journal", f"after {step} a message is {found}, and the journal says {said}")
