"""The waiting messages of a queue in memory: pending, of each tenant, delayed and expired."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.protocol.stored import tenant_of

if TYPE_CHECKING:
    from tests.protocol.memory import MemoryRedis

NO_TENANT = b""  # the member of the tenant ring for all messages without a tenant
UNIT = 27720  # the virtual time of a turn with weight 1; every weight up to 12 divides it


class Place(NamedTuple):
    """The position of a tenant in the ring: by virtual time, then by the order of arrival."""

    time: int
    order: int


class Backlog:
    """The waiting messages of one queue, as one script sees them.

    Lists have their left end first, as in Redis: a message enters at the left and is taken from the right.
    """

    def __init__(self, memory: "MemoryRedis", keys: Any, given: Any) -> None:
        self._memory, self._keys, self._given = memory, keys, given

    @property
    def ring(self) -> dict[bytes, Place]:
        """The tenants with work, by virtual time: the lowest has the next turn."""
        return self._memory.zsets[self._keys.tenant_ring]

    @property
    def uses_tenants(self) -> bool:
        """Whether a message of a tenant ever waited."""
        return b"tenants" in self._memory.hashes[self._keys.meta]

    def _remember_tenants(self) -> None:
        self._memory.hashes[self._keys.meta][b"tenants"] = 1

    @property
    def delayed(self) -> dict[bytes, float]:
        """The ids of delayed messages, by due time; the messages are in `delayed_messages`."""
        return self._memory.zsets[self._keys.delayed]

    @property
    def delayed_messages(self) -> dict[bytes, bytes]:
        return self._memory.hashes[self._keys.delayed_messages]

    def waiting(self, tenant: bytes) -> list[bytes]:
        key = self._given.tenant_pending + tenant.decode() if tenant else self._keys.pending
        return self._memory.lists[key]

    def expired(self, tenant: bytes) -> dict[bytes, float]:
        """The tokens of a tenant's messages whose lease has expired; used only while tenants take turns."""
        return self._memory.zsets[self._given.expired + tenant.decode()]

    def size(self) -> int:
        """How many messages wait, with or without a tenant, delayed ones included."""
        lists = self._memory.lists
        return len(self.waiting(NO_TENANT)) + tenant_backlog(lists, self._given.tenant_pending) + len(self.delayed)

    # -- entering and leaving

    def enter(self, tenant: bytes, messages: Sequence[bytes]) -> bool:
        """Add messages at the end. Returns whether the queue was empty before."""
        waiting = self.waiting(tenant)
        waiting[:0] = reversed(messages)
        self._join_ring(tenant)
        return len(waiting) == len(messages)

    def return_to_front(self, tenant: bytes, messages: Sequence[bytes]) -> None:
        """Add messages at the front, in their order."""
        self.waiting(tenant).extend(reversed(messages))
        self._join_ring(tenant)

    def _join_ring(self, tenant: bytes) -> None:
        # Messages without a tenant join an existing ring in a claim: without tenants the ring costs nothing.
        if tenant != NO_TENANT:
            self.join_ring(tenant)

    def join_ring(self, tenant: bytes) -> None:
        """A new tenant comes after those that wait for their first turn of this round, and before any second turn."""
        if tenant != NO_TENANT:
            self._remember_tenants()
        if tenant not in self.ring:
            self._place(min(self.ring.values(), default=Place(0, 0)).time, tenant)

    def charge_turn(self, tenant: bytes) -> None:
        self._place(self.ring[tenant].time, tenant)

    def _place(self, now: int, tenant: bytes) -> None:
        """A turn adds one divided by the weight; ties go by the order of arrival."""
        weight = self._memory.hashes[self._keys.weights].get(tenant, 1)
        self.ring[tenant] = Place(now + UNIT // weight, next(self._memory.order))

    def leave_ring_if_empty(self, tenant: bytes) -> None:
        if not self.waiting(tenant) and not self.expired(tenant):
            self.ring.pop(tenant, None)

    def forget_lease(self, stored: bytes, token: bytes) -> None:
        """Remove an expired lease, so that its message is not delivered again."""
        tenant = tenant_of(stored)
        if self.expired(tenant).pop(token, None) is not None:
            self.leave_ring_if_empty(tenant)

    # -- delayed messages

    def retry_later(self, due: Mapping[bytes, int], bodies: Mapping[bytes, bytes]) -> bool:
        """Delay messages, given by id. Returns whether one of them is the next to be due."""
        first = min(self.delayed.values(), default=None)
        self.delayed_messages.update(bodies)
        self.delayed.update(due)
        if any(tenant_of(stored) != NO_TENANT for stored in bodies.values()):
            self._remember_tenants()
        return min(self.delayed.values()) != first

    def enqueue_due(self, now: int, most: int) -> bool:
        """Move messages that are due to the end of their queues. Returns whether there may be more."""
        due = [key for key in by_score(self.delayed) if self.delayed[key] <= now]
        is_more = len(due) > most
        del due[most:]
        for key in due:
            del self.delayed[key]
        for tenant, messages in by_tenant(self.delayed_messages.pop(key) for key in due).items():
            self.enter(tenant, messages)
        return is_more


def alarms(ring: Mapping[bytes, Any], delayed: Mapping[bytes, float]) -> dict[bytes, float]:
    """The alarms among the leases: a claim that finds nothing due there need not look anywhere else.

    'r' is always due while tenants take turns, and 'd' when the first delay ends. The scripts store them; here they are
    derived, and the model compares the two.
    """
    found: dict[bytes, float] = {b"r": 0} if ring else {}
    return found | ({b"d": min(delayed.values())} if delayed else {})


def tenant_backlog(lists: Mapping[str, list[bytes]], prefix: str) -> int:
    """How many messages of tenants wait, in lists whose keys have this prefix. The scripts store this number."""
    return sum(len(waiting) for key, waiting in lists.items() if key.startswith(prefix))


def by_tenant(messages: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """Group messages by tenant, in order."""
    found: dict[bytes, list[bytes]] = {}
    for stored in messages:
        found.setdefault(tenant_of(stored), []).append(stored)
    return found


def by_score(members: Mapping[bytes, Any]) -> list[bytes]:
    """The order of a sorted set: by score, then by name."""
    return sorted(members, key=lambda key: (members[key], key))
