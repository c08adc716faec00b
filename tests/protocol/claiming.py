"""One claim in memory: what came back first, then the heads of the lines, tenants in turn."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.protocol.lines import NOBODY, Lines, by_score
from tests.protocol.stored import (
    HAS_TENANT,
    IN_FLIGHT,
    IN_LINE,
    PLAIN,
    Entry,
    id_of,
    is_message,
    packed,
    payload_of,
    tenant_of,
    time_of,
)

if TYPE_CHECKING:
    from tests.protocol.memory import MemoryRedis

SECOND = 1_000_000
FRESH, WOKEN, ON_WATCH = 0, 1, 2  # where a claim comes from


class Ticket(NamedTuple):
    """A message that a claim took."""

    id: bytes
    attempts: int
    times: int
    origin: str
    failures: int

    @property
    def text(self) -> bytes:
        return f"{self.attempts}:{self.times}:{self.origin}:{self.failures}".encode()


class Taken(NamedTuple):
    """What is remembered of a claim: ids and numbers, no bodies."""

    again: int
    tickets: tuple[Ticket, ...]
    dead: tuple[Any, ...]


class Claiming:
    """A claim's way, until it has what it wants or has done enough."""

    def __init__(self, memory: "MemoryRedis", keys: Any, given: Any) -> None:
        self.memory, self.keys, self.given = memory, keys, given
        self.now = memory.clock_us
        self.nonce = given.holder + int(given.call).to_bytes(5, "big")
        self.deadline = self.now + given.lease_us
        self.lines = Lines(memory, keys, given)
        self.processing = memory.hashes[keys.processing]
        self.deliveries = memory.hashes[keys.deliveries]
        self.leases = memory.zsets[keys.leases]
        self.taken: list[Ticket] = []
        self.dead: list[tuple[bytes, int, bytes]] = []
        self.steps = 0
        self.unfinished = False  # whether there was more to tidy up than one script may do
        self.had_a_turn = False  # whether messages without a tenant left their line in turn

    def usual(self) -> bytes | None:
        """The messages alone, where nothing is due and none of them was delivered before."""
        count, delayed = self.given.count, self.lines.delayed
        if self.given.lease_us:
            nothing_is_due = all(when > self.now for when in (*self.leases.values(), *delayed.values()))
        else:
            nothing_is_due = not delayed  # there are no alarms to look at
        if not count or self.given.woken == ON_WATCH or not nothing_is_due:
            return None
        if not self.lines.ring:
            head = self._take_plain(self.lines.line(NOBODY), PLAIN, count)
        else:
            head = self._take_plain_turn() if count == 1 and self.given.lease_us else []
        if not head:
            return None
        self._write_leases()
        if self.given.woken == WOKEN and (self.lines.line(NOBODY) or self.lines.ring):
            self.memory.ring(self.keys)
        return head[0] if count == 1 else packed(head)

    def _take_plain_turn(self) -> list[bytes]:
        """Nearly as usual: only tenants wait, and whose turn it is has nothing that came back."""
        tenant = by_score(self.lines.ring)[0]
        if tenant == NOBODY or self.lines.line(NOBODY) or self.lines.returned(tenant) or self.lines.has_weight(tenant):
            return []
        head = self._take_plain(self.lines.line(tenant), PLAIN | HAS_TENANT, 1)
        if head:
            self.lines.pay_for_a_turn(tenant)
            self.lines.leave_if_done(tenant)
        return head

    def _take_plain(self, line: list[bytes], flags: int, count: int) -> list[bytes]:
        """The head of a line, if all of it is as most messages are."""
        head = list(reversed(line[-count:]))
        if not all(self._is_plain(stored, flags) for stored in head):
            return []
        for _ in head:
            self._weigh_from_line(line.pop())
        return head

    def _is_plain(self, stored: bytes, flags: int) -> bool:
        if not is_message(stored) or stored[0] != flags:
            return False
        return id_of(stored) not in self.deliveries and not self._is_too_old(stored)

    def thorough(self) -> list[Any]:
        """Everything else: tidy up, take what can be taken, and see to it that somebody looks after the rest."""
        if self.given.count:
            self.unfinished = self.lines.bring_in(self.now, self.memory.STEPS)
            if self.lines.ring:
                self._return_what_ran_out()
                if not self.unfinished:  # whose turn it is may lie behind a thousand others
                    self._look_at_ring()
            else:
                self._look_at_leases()
                self._look_at_line()
        self._write_leases()
        if self.had_a_turn and list(self.lines.ring) == [NOBODY] and not self.lines.returned(NOBODY):
            # Whoever has no tenant need not take turns with himself; but first he has the one he waits for.
            self.lines.ring.clear()
        self._pass_the_baton()
        return [self.again, self._watch(), self.mourned, b"", *self.told(self.taken)]

    @property
    def again(self) -> int:
        """1 if there is more to tidy up than one script may do."""
        unfinished = self.unfinished or self.steps >= self.memory.STEPS or bool(self.lines.ring)
        return int(self.given.count > 0 and not self.taken and unfinished)

    @property
    def mourned(self) -> list[Any]:
        return [part for one in self.dead for part in one]

    def told(self, tickets: list[Ticket]) -> list[bytes]:
        return [part for one in tickets for part in (self.processing[self.field(one.id)], one.text)]

    def field(self, key: bytes) -> bytes:
        """Where a message in flight lies: without leases its field names the holder."""
        return key if self.given.lease_us else key + self.nonce

    def remembered(self) -> Taken:
        return Taken(self.again, tuple(self.taken), tuple(self.mourned))

    def replay(self, remembered: Taken) -> list[Any]:
        """The same call again: what it took and still holds is leased anew and read; the rest is left out."""
        held = [one for one in remembered.tickets if self.memory.holds(self.keys, self.given, one.id + self.nonce)]
        for place, one in enumerate(held, 1):
            if self.given.lease_us:
                self.lines.forget_lease(self.processing[one.id], one.id + self.nonce)
                self.leases[one.id + self.nonce] = self.deadline + place
        return [remembered.again, -1, list(remembered.dead), b"", *self.told(held)]

    # -- where messages are

    @property
    def _wants_more(self) -> bool:
        return len(self.taken) < self.given.count and self.steps < self.memory.STEPS

    def _due(self) -> list[bytes]:
        """Whose lease has run out, the oldest deadline first."""
        if not self.given.lease_us:
            return []
        return [key for key in by_score(self.leases) if self.leases[key] <= self.now]

    def _return_what_ran_out(self) -> None:
        """Where tenants take turns, a lease that ran out goes to its own tenant: one's crash delays no other."""
        due = self._due()
        self.unfinished |= len(due) > self.memory.STEPS
        del due[self.memory.STEPS :]
        for token in due:
            deadline, key = self.leases.pop(token), token[:16]
            if key in self.processing:
                tenant = tenant_of(self.processing[key])
                self.lines.returned(tenant)[token] = deadline
                self.lines.join(tenant)
            else:
                self._remove(key)

    def _look_at_ring(self) -> None:
        """The lowest has the turn, and pays for it unless it has nothing to deliver."""
        if self.lines.line(NOBODY):
            self.lines.join(NOBODY)
        while self.lines.ring and self._wants_more:
            tenant = by_score(self.lines.ring)[0]
            if self._take_turn(tenant):
                self.lines.pay_for_a_turn(tenant)
            self.lines.leave_if_done(tenant)

    def _take_turn(self, tenant: bytes) -> bool:
        """Take the tenant's next message, one that came back or the head of its line; whether there was any."""
        returned, line = self.lines.returned(tenant), self.lines.line(tenant)
        while (returned or line) and self.steps < self.memory.STEPS:
            self.steps += 1
            if returned:
                token = by_score(returned)[0]
                del returned[token]
                if token[:16] in self.processing and self._weigh_again(token[:16]):
                    return True
            else:
                self.had_a_turn |= tenant == NOBODY
                if self._weigh_from_line(line.pop()):
                    return True
        return False

    def _look_at_leases(self) -> None:
        """Without turns what came back is leased directly, the oldest deadline first."""
        due = self._due()
        while due and self._wants_more:
            self.steps += 1
            token = due.pop(0)
            del self.leases[token]
            if token[:16] in self.processing:
                self._weigh_again(token[:16])
            else:
                self._remove(token[:16])

    def _look_at_line(self) -> None:
        line = self.lines.line(NOBODY)
        while line and self._wants_more:
            self.steps += 1
            self._weigh_from_line(line.pop())

    # -- what becomes of each

    def _weigh_again(self, key: bytes) -> bool:
        return self._weigh(self.processing[key], self.deliveries.get(key, IN_FLIGHT), "lease")

    def _weigh_from_line(self, stored: bytes) -> bool:
        """What is not a message of ours becomes a dead letter as it is."""
        if is_message(stored):
            return self._weigh(stored, self.deliveries.get(id_of(stored), IN_LINE), "line")
        self._bury(None, stored, 0, "foreign")
        return False

    def _weigh(self, stored: bytes, entry: Entry, origin: str) -> bool:
        """Take it, or bury it; whether it was taken."""
        key, most = id_of(stored), self.given.most
        if reason := "deliveries" if most and entry.times >= most else "expired" if self._is_too_old(stored) else None:
            self._bury(stored, payload_of(stored), entry.times, reason)
            self._remove(key)
            return False
        now = Entry(entry.attempts + 1, entry.times + 1, entry.failures)
        # A message that is delivered for the first time gets no entry: there is nothing to say of it.
        if key in self.deliveries or origin == "lease":
            self.deliveries[key] = now
        self.processing.pop(key, None)
        self.processing[self.field(key)] = stored
        self.taken.append(Ticket(key, now.attempts, now.times, origin, now.failures))
        return True

    def _is_too_old(self, stored: bytes) -> bool:
        return bool(self.given.ttl_us) and time_of(stored) + self.given.ttl_us <= self.now

    def _bury(self, stored: bytes | None, payload: bytes, times: int, reason: str) -> None:
        note = self.memory.record(stored, payload, times, {"reason": reason})
        self.memory.keep(self.keys.dlq, self.keys.records, [(payload, note)], self.given.dlq_limit)
        self.dead.append((b"" if stored is None else id_of(stored), times, reason.encode()))

    def _remove(self, key: bytes) -> None:
        self.processing.pop(key, None)
        self.deliveries.pop(key, None)

    def _write_leases(self) -> None:
        """What was taken is leased; the place in the batch keeps its order when it comes back."""
        for place, ticket in enumerate(self.taken if self.given.lease_us else (), 1):
            self.leases[ticket.id + self.nonce] = self.deadline + place

    # -- who is awake for the rest

    @property
    def _next_at(self) -> float | None:
        """When the next lease ends, or the next delay."""
        leases = self.leases.values() if self.given.lease_us else ()
        return min((*leases, *self.lines.delayed.values()), default=None)

    def _pass_the_baton(self) -> None:
        """Whoever took the token, or would have, and leaves work behind rings; so does a watcher that leaves."""
        next_at, given = self._next_at, self.given
        is_due = next_at is not None and next_at <= self.now
        left_behind = bool(self.taken) and (is_due or bool(self.lines.ring) or bool(self.lines.line(NOBODY)))
        if given.woken == ON_WATCH:
            self.memory.strings.pop(self.keys.watch, None)
            is_soon = next_at is not None and next_at - self.now < SECOND
            left_behind |= is_soon and (bool(self.taken) or given.slice_us == 0)
        if left_behind:
            self.memory.ring(self.keys)

    def _watch(self) -> float:
        """One of those who find nothing stays awake for the next deadline; an earlier one needs another watcher."""
        if self.taken or self.again or self._next_at is None:
            return -1
        left = self._next_at - self.now
        watched = self.memory.get(self.keys.watch)
        if not 0 < left < self.given.slice_us or (watched is not None and watched <= self._next_at):
            return -1
        self.memory.set(self.keys.watch, self._next_at, -(-left // 1000))
        return left
