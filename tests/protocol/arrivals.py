"""Messages on their way into the lines of a queue in memory: all of them or none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.protocol.lines import NOBODY, Lines, by_score, by_tenant
from tests.protocol.stored import id_of, is_message

if TYPE_CHECKING:
    from tests.protocol.memory import MemoryRedis


class Arrival(NamedTuple):
    """When a message is due, as the scripts are told; the key that suppresses its repetition; flags and body."""

    due: str
    marker: str | None
    body: bytes


class Arrivals:
    """First a plan, for which the queue is only looked at; then it can be carried out."""

    def __init__(self, memory: "MemoryRedis", keys: Any, given: Any, arrivals: Sequence[Arrival]) -> None:
        self._memory, self._keys, self._given = memory, keys, given
        self._lines = Lines(memory, keys, given)
        self._markers: dict[str, bytes] = {}
        self._due: dict[bytes, int] = {}
        self._later: dict[bytes, bytes] = {}
        self.marks = b""
        entering = []
        for place, one in enumerate(arrivals, 1):
            is_new = self._is_new(one.marker)
            self.marks += b"1" if is_new else b"0"
            if is_new and one.marker is not None:
                self._markers[one.marker] = given.base + place.to_bytes(2, "big")
            if is_new:
                stored = one.body[:1] + given.base + place.to_bytes(2, "big") + memory.stamp() + one.body[1:]
                entering += self._unless_later(stored, one.due)
        self._entering = by_tenant(entering)
        self._leaving = self._make_room(len(entering) + len(self._later))
        self.has_room = self._leaving is not None

    def _is_new(self, marker: str | None) -> bool:
        if marker is None:
            return True
        return marker not in self._markers and self._memory.get(marker) is None

    def _unless_later(self, stored: bytes, due: str) -> list[bytes]:
        now = self._memory.clock_us
        due_us = now + int(due) if due.startswith("+") else int(due or 0)
        if due_us <= now:
            return [stored]
        self._due[id_of(stored)], self._later[id_of(stored)] = due_us, stored
        return []

    def _make_room(self, new: int) -> dict[bytes, int] | None:
        """How many must leave which line, as few as will do; None if that is not allowed or not enough.

        What a tenant's own limit wants leaves its own line, the rest the longest lines; at most a thousand messages,
        so that no publish blocks the server.
        """
        given, lines, drops = self._given, self._lines, self._given.overload == "drop"
        leaving: dict[bytes, int] = {}
        most = self._memory.STEPS
        for tenant, messages in self._entering.items():
            bound = given.tenant_limit if tenant != NOBODY else 0
            over = max(len(lines.line(tenant)) + len(messages) - bound, 0) if bound else 0
            if over and (not drops or len(messages) > bound):
                return None
            leaving[tenant] = min(over, most)
            most -= leaving[tenant]
        over = lines.size() + new - sum(leaving.values()) - given.limit if given.limit and new else 0
        if over > 0 and not drops:
            return None
        for tenant in (*self._entering, NOBODY, *by_score(lines.ring)):
            leaving.setdefault(tenant, 0)
        while over > 0 and most > 0:
            can_leave = [tenant for tenant in leaving if len(lines.line(tenant)) > leaving[tenant]]
            if not can_leave:
                return None
            # Of equal ones the first: those of the arrivals are before others.
            leaving[max(can_leave, key=lambda tenant: self._length(tenant) - leaving[tenant])] += 1
            over, most = over - 1, most - 1
        return leaving

    def _length(self, tenant: bytes) -> int:
        """Of its line, when everybody has entered."""
        return len(self._lines.line(tenant)) + len(self._entering.get(tenant, ()))

    def carry_out(self) -> bytes:
        """Everybody enters, and the ids of those who had to leave are told."""
        work = [self._lines.enter(tenant, messages) for tenant, messages in self._entering.items()]
        if self._later:
            work.append(self._lines.put_off(self._due, self._later))
        for marker, message_id in self._markers.items():
            self._memory.set(marker, message_id, self._given.window_ms)
        if any(work):
            self._memory.ring(self._keys)
        return b"".join(self._drop())

    def _drop(self) -> list[bytes]:
        leaving = {tenant: number for tenant, number in (self._leaving or {}).items() if number}
        dropped = [self._lines.line(tenant).pop() for tenant, number in leaving.items() for _ in range(number)]
        for tenant in leaving:
            self._lines.leave_if_done(tenant)
        ids = [id_of(stored) for stored in dropped if is_message(stored)]
        for key in ids:
            self._memory.hashes[self._keys.deliveries].pop(key, None)
        return ids
