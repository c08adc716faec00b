"""Adds messages to a queue in memory: all of them or none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.protocol.backlog import NO_TENANT, Backlog, by_score, by_tenant
from tests.protocol.stored import id_of, is_message

if TYPE_CHECKING:
    from tests.protocol.memory import MemoryRedis


class NewMessage(NamedTuple):
    """A message to add: when it is due, the key of its deduplication marker, its flags and body."""

    due: str
    marker: str | None
    body: bytes


class Enqueueing:
    """A plan, made by reading the queue only, which can then be carried out."""

    def __init__(self, memory: "MemoryRedis", keys: Any, given: Any, messages: Sequence[NewMessage]) -> None:
        self._memory, self._keys, self._given = memory, keys, given
        self._backlog = Backlog(memory, keys, given)
        self._markers: dict[str, bytes] = {}
        self._due: dict[bytes, int] = {}
        self._delayed: dict[bytes, bytes] = {}
        self.marks = b""
        entering = []
        for place, one in enumerate(messages, 1):
            is_new = self._is_new(one.marker)
            self.marks += b"1" if is_new else b"0"
            if is_new and one.marker is not None:
                self._markers[one.marker] = given.base + place.to_bytes(2, "big")
            if is_new:
                stored = one.body[:1] + given.base + place.to_bytes(2, "big") + memory.stamp() + one.body[1:]
                entering += self._unless_delayed(stored, one.due)
        self._entering = by_tenant(entering)
        self._leaving = self._make_room(len(entering) + len(self._delayed))
        self.has_room = self._leaving is not None

    def _is_new(self, marker: str | None) -> bool:
        if marker is None:
            return True
        return marker not in self._markers and self._memory.get(marker) is None

    def _unless_delayed(self, stored: bytes, due: str) -> list[bytes]:
        now = self._memory.clock_us
        due_us = now + int(due) if due.startswith("+") else int(due or 0)
        if due_us <= now:
            return [stored]
        self._due[id_of(stored)], self._delayed[id_of(stored)] = due_us, stored
        return []

    def _make_room(self, new: int) -> dict[bytes, int] | None:
        """How many messages to drop from which queue, as few as possible; None if that is not allowed or not enough.

        A tenant's own limit drops from that tenant's queue, the queue's limit from the longest ones; at most a thousand
        messages, so that no publish blocks the server.
        """
        given, backlog, drops = self._given, self._backlog, self._given.overload == "drop"
        leaving: dict[bytes, int] = {}
        most = self._memory.STEPS
        for tenant, messages in self._entering.items():
            bound = given.tenant_limit if tenant != NO_TENANT else 0
            over = max(len(backlog.waiting(tenant)) + len(messages) - bound, 0) if bound else 0
            if over and (not drops or len(messages) > bound):
                return None
            leaving[tenant] = min(over, most)
            most -= leaving[tenant]
        over = backlog.size() + new - sum(leaving.values()) - given.limit if given.limit and new else 0
        if over > 0 and not drops:
            return None
        for tenant in (*self._entering, NO_TENANT, *by_score(backlog.ring)):
            leaving.setdefault(tenant, 0)
        while over > 0 and most > 0:
            can_leave = [tenant for tenant in leaving if len(backlog.waiting(tenant)) > leaving[tenant]]
            if not can_leave:
                return None
            # Of queues of equal length the first: those of the new messages come first.
            leaving[max(can_leave, key=lambda tenant: self._length(tenant) - leaving[tenant])] += 1
            over, most = over - 1, most - 1
        return leaving

    def _length(self, tenant: bytes) -> int:
        """The length of a tenant's queue after the new messages were added."""
        return len(self._backlog.waiting(tenant)) + len(self._entering.get(tenant, ()))

    def carry_out(self) -> bytes:
        """Add the messages, and return the ids of those that were dropped."""
        work = [self._backlog.enter(tenant, messages) for tenant, messages in self._entering.items()]
        if self._delayed:
            work.append(self._backlog.retry_later(self._due, self._delayed))
        for marker, message_id in self._markers.items():
            self._memory.set(marker, message_id, self._given.window_ms)
        if any(work):
            self._memory.notify(self._keys)
        return b"".join(self._drop())

    def _drop(self) -> list[bytes]:
        leaving = {tenant: number for tenant, number in (self._leaving or {}).items() if number}
        dropped = [self._backlog.waiting(tenant).pop() for tenant, number in leaving.items() for _ in range(number)]
        for tenant in leaving:
            self._backlog.leave_ring_if_empty(tenant)
        ids = [id_of(stored) for stored in dropped if is_message(stored)]
        for key in ids:
            self._memory.hashes[self._keys.deliveries].pop(key, None)
        return ids
