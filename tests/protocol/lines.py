"""Where messages wait in memory: in their lines, tenants in turn, or for their time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.protocol.stored import tenant_of

if TYPE_CHECKING:
    from tests.protocol.memory import MemoryRedis

NOBODY = b""  # stands in the ring for all messages without a tenant
UNIT = 27720  # of virtual time: the price of a turn without a weight, divided by every weight up to 12 without a rest


class Place(NamedTuple):
    """Where a tenant stands in the ring: virtual time, and who came first of those of one time."""

    time: int
    order: int


class Lines:
    """The waiting messages of one queue, as one script sees them.

    Lists have their left end first, as in Redis: a message enters at the left and is taken from the right.
    """

    def __init__(self, memory: "MemoryRedis", keys: Any, given: Any) -> None:
        self._memory, self._keys, self._given = memory, keys, given

    @property
    def ring(self) -> dict[bytes, Place]:
        """The tenants with work, by virtual time: whoever is lowest has the next turn."""
        return self._memory.zsets[self._keys.tenants]

    @property
    def delayed(self) -> dict[bytes, float]:
        """When those that wait for their time may be delivered; their bodies are in `later`."""
        return self._memory.zsets[self._keys.delayed]

    @property
    def later(self) -> dict[bytes, bytes]:
        return self._memory.hashes[self._keys.later]

    def line(self, tenant: bytes) -> list[bytes]:
        key = self._given.line + tenant.decode() if tenant else self._keys.pending
        return self._memory.lists[key]

    def returned(self, tenant: bytes) -> dict[bytes, float]:
        """The messages of one tenant whose lease ran out; only where tenants take turns."""
        return self._memory.zsets[self._given.returned + tenant.decode()]

    def size(self) -> int:
        """How many wait, with or without a tenant, now or later."""
        lists = self._memory.lists
        return len(self.line(NOBODY)) + size_of_lines(lists, self._given.line) + len(self.delayed)

    # -- entering and leaving

    def enter(self, tenant: bytes, messages: Sequence[bytes]) -> bool:
        """At the tail; whether nobody had waited there."""
        line = self.line(tenant)
        line[:0] = reversed(messages)
        self._join_if_waiting(tenant)
        return len(line) == len(messages)

    def come_back(self, tenant: bytes, messages: Sequence[bytes]) -> None:
        """To the head, the first of them the next to go."""
        self.line(tenant).extend(reversed(messages))
        self._join_if_waiting(tenant)

    def _join_if_waiting(self, tenant: bytes) -> None:
        # Nobody joins in a claim, and only while others take turns: a queue without tenants pays nothing.
        if tenant != NOBODY:
            self.join(tenant)

    def join(self, tenant: bytes) -> None:
        """A newcomer comes behind all who wait for their first turn of this round, and before anyone's second."""
        if tenant not in self.ring:
            self._stand_at(min(self.ring.values(), default=Place(0, 0)).time, tenant)

    def pay_for_a_turn(self, tenant: bytes) -> None:
        self._stand_at(self.ring[tenant].time, tenant)

    def _stand_at(self, now: int, tenant: bytes) -> None:
        """A turn costs one over the weight; those of one time go by when they came to it."""
        weight = self._memory.hashes[self._keys.weights].get(tenant, 1)
        self.ring[tenant] = Place(now + UNIT // weight, next(self._memory.order))

    def leave_if_done(self, tenant: bytes) -> None:
        if not self.line(tenant) and not self.returned(tenant):
            self.ring.pop(tenant, None)

    def has_weight(self, tenant: bytes) -> bool:
        """Whether somebody has given it one."""
        return tenant in self._memory.hashes[self._keys.weights]

    def forget_lease(self, stored: bytes, token: bytes) -> None:
        """A message whose lease ran out is done with: it does not wait to be delivered again."""
        tenant = tenant_of(stored)
        if self.returned(tenant).pop(token, None) is not None:
            self.leave_if_done(tenant)

    # -- waiting for a time

    def put_off(self, due: Mapping[bytes, int], bodies: Mapping[bytes, bytes]) -> bool:
        """Ids by due time, and what they are; whether one of them is the next."""
        first = min(self.delayed.values(), default=None)
        self.later.update(bodies)
        self.delayed.update(due)
        return min(self.delayed.values()) != first

    def bring_in(self, now: int, most: int) -> bool:
        """What has waited for its time enters its line, at the tail; whether there may be more of it."""
        due = [key for key in by_score(self.delayed) if self.delayed[key] <= now]
        is_more = len(due) > most
        del due[most:]
        for key in due:
            del self.delayed[key]
        for tenant, messages in by_tenant(self.later.pop(key) for key in due).items():
            self.enter(tenant, messages)
        return is_more


def alarms(ring: Mapping[bytes, Any], delayed: Mapping[bytes, float]) -> dict[bytes, float]:
    """What lies among the leases so that a claim that finds nothing due there need look nowhere else.

    'r' is due since ever while tenants take turns, and 'd' when the first delay ends. The scripts keep them; here they
    follow from what they speak of, and the model compares.
    """
    found: dict[bytes, float] = {b"r": 0} if ring else {}
    return found | ({b"d": min(delayed.values())} if delayed else {})


def size_of_lines(lists: Mapping[str, list[bytes]], line: str) -> int:
    """How many wait in the lines of tenants, whose keys begin like this; the scripts count, here they are counted."""
    return sum(len(waiting) for key, waiting in lists.items() if key.startswith(line))


def by_tenant(messages: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """In the order in which tenants, and messages of each, are met."""
    found: dict[bytes, list[bytes]] = {}
    for stored in messages:
        found.setdefault(tenant_of(stored), []).append(stored)
    return found


def by_score(members: Mapping[bytes, Any]) -> list[bytes]:
    """The order of a sorted set: by score, then by name."""
    return sorted(members, key=lambda key: (members[key], key))
