"""One claim in memory: expired messages first, then waiting ones, tenants in turn."""

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.protocol.backlog import NO_TENANT, Backlog, by_score
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
    """The stored reply of a claim: ids and numbers, no messages."""

    again: int
    tickets: tuple[Ticket, ...]
    dead: tuple[Any, ...]
    trimming: bytes


class Claiming:
    """One claim: it ends when it has enough messages, or has done as much as one script may."""

    def __init__(self, memory: "MemoryRedis", keys: Any, given: Any) -> None:
        self.memory, self.keys, self.given = memory, keys, given
        self.now = memory.clock_us
        self.nonce = given.holder + int(given.call).to_bytes(5, "big")
        self.deadline = self.now + given.lease_us
        self.backlog = Backlog(memory, keys, given)
        self.processing = memory.hashes[keys.processing]
        self.deliveries = memory.hashes[keys.deliveries]
        self.leases = memory.zsets[keys.leases]
        self.taken: list[Ticket] = []
        self.dead: list[tuple[bytes, int, bytes]] = []
        self.cut = 0  # dead letters that were cut off to stay within the limit
        self.steps = 0
        self.unfinished = False  # whether there was more to tidy up than one script may do

    def usual(self) -> bytes | None:
        """The fast path: nothing is due, and none of the messages was delivered before."""
        count, delayed = self.given.count, self.backlog.delayed
        if self.given.lease_us:
            # One that was woken looks ahead: nobody may be awake for what ends soon.
            due_by = self.now + (SECOND if self.given.woken == WOKEN else 0)
            nothing_is_due = all(when > due_by for when in (*self.leases.values(), *delayed.values()))
        else:
            nothing_is_due = not delayed  # there are no alarms to look at
        if not count or self.given.woken == ON_WATCH or not nothing_is_due:
            return None
        if not self.backlog.ring:
            head = self._take_plain(self.backlog.waiting(NO_TENANT), PLAIN, count)
        else:
            head = self._take_plain_turn() if count == 1 and self.given.lease_us else []
        if not head:
            return None
        self._write_leases()
        if self.given.woken == WOKEN and (self.backlog.waiting(NO_TENANT) or self.backlog.ring):
            self.memory.notify(self.keys)
        return head[0] if count == 1 else packed(head)

    def _take_plain_turn(self) -> list[bytes]:
        """The fast path for tenants: only tenants wait, and the next one has no expired messages."""
        tenant = by_score(self.backlog.ring)[0]
        if tenant == NO_TENANT or self.backlog.waiting(NO_TENANT) or self.backlog.expired(tenant):
            return []
        head = self._take_plain(self.backlog.waiting(tenant), PLAIN | HAS_TENANT, 1)
        if head:
            self.backlog.charge_turn(tenant)
            self.backlog.leave_ring_if_empty(tenant)
        return head

    def _take_plain(self, waiting: list[bytes], flags: int, count: int) -> list[bytes]:
        """Take the first messages of a queue, if all of them have the usual form."""
        head = list(reversed(waiting[-count:]))
        if not all(self._is_plain(stored, flags) for stored in head):
            return []
        for _ in head:
            self._classify_waiting(waiting.pop())
        return head

    def _is_plain(self, stored: bytes, flags: int) -> bool:
        if not is_message(stored) or stored[0] != flags:
            return False
        return id_of(stored) not in self.deliveries and not self._is_too_old(stored)

    def thorough(self) -> list[Any]:
        """The full way: move due and expired messages, take what can be taken, and wake up a consumer for the rest."""
        if self.given.count:
            self.unfinished = self.backlog.enqueue_due(self.now, self.memory.STEPS)
            if self.backlog.ring or self.backlog.uses_tenants:
                self._return_what_ran_out()
                if self.unfinished:
                    pass  # whose turn it is may lie behind a thousand others
                elif self.backlog.ring:
                    self._look_at_ring()
                else:
                    self._look_at_line()
            else:
                self._look_at_leases()
                self._look_at_line()
        self._write_leases()
        if self._ends_without_tenant and list(self.backlog.ring) == [NO_TENANT] and not self.backlog.expired(NO_TENANT):
            # Messages without a tenant need no turns among themselves, but first they get the turn they wait for.
            self.backlog.ring.clear()
        self._chain_wakeup()
        return [self.again, self._watch(), self.mourned, self.trimming, *self.on_retry(self.taken)]

    @property
    def again(self) -> int:
        """1 if there is more to move than one script may do."""
        unfinished = self.unfinished or self.steps >= self.memory.STEPS or bool(self.backlog.ring)
        return int(self.given.count > 0 and not self.taken and unfinished)

    @property
    def mourned(self) -> list[Any]:
        return [part for one in self.dead for part in one]

    @property
    def trimming(self) -> bytes:
        return b"cut %d" % self.cut if self.cut else b""

    def on_retry(self, tickets: list[Ticket]) -> list[bytes]:
        return [part for one in tickets for part in (self.processing[self.field(one.id)], one.text)]

    def field(self, key: bytes) -> bytes:
        """The field of a message in `processing`: without leases it names the holder."""
        return key if self.given.lease_us else key + self.nonce

    def remembered(self) -> Taken:
        return Taken(self.again, tuple(self.taken), tuple(self.mourned), self.trimming)

    def replay(self, remembered: Taken) -> list[Any]:
        """Answer a repeated call: renew and return what it took and still holds, and leave out the rest."""
        held = [one for one in remembered.tickets if self.memory.holds(self.keys, self.given, one.id + self.nonce)]
        for place, one in enumerate(held, 1):
            if self.given.lease_us:
                self.backlog.forget_lease(self.processing[one.id], one.id + self.nonce)
                self.leases[one.id + self.nonce] = self.deadline + place
        return [remembered.again, -1, list(remembered.dead), remembered.trimming, *self.on_retry(held)]

    # -- where messages are

    @property
    def _wants_more(self) -> bool:
        return len(self.taken) < self.given.count and self.steps < self.memory.STEPS

    def _due(self) -> list[bytes]:
        """The messages whose lease has expired, the oldest deadline first."""
        if not self.given.lease_us:
            return []
        return [key for key in by_score(self.leases) if self.leases[key] <= self.now]

    def _return_what_ran_out(self) -> None:
        """While tenants take turns, move expired leases to their tenants, so that no crash delays other tenants."""
        due = self._due()
        self.unfinished |= len(due) > self.memory.STEPS
        del due[self.memory.STEPS :]
        for token in due:
            deadline, key = self.leases.pop(token), token[:16]
            if key in self.processing:
                tenant = tenant_of(self.processing[key])
                self.backlog.expired(tenant)[token] = deadline
                self.backlog.join_ring(tenant)
            else:
                self._remove(key)

    def _look_at_ring(self) -> None:
        """Serve the tenant with the lowest virtual time, and charge it unless it had nothing to deliver."""
        if self.backlog.waiting(NO_TENANT):
            self.backlog.join_ring(NO_TENANT)
        while self.backlog.ring and self._wants_more:
            tenant = by_score(self.backlog.ring)[0]
            if self._take_turn(tenant):
                self.backlog.charge_turn(tenant)
            self.backlog.leave_ring_if_empty(tenant)

    def _take_turn(self, tenant: bytes) -> bool:
        """Take the tenant's next message, expired or waiting. Returns whether there was one."""
        expired, waiting = self.backlog.expired(tenant), self.backlog.waiting(tenant)
        while (expired or waiting) and self.steps < self.memory.STEPS:
            self.steps += 1
            if expired:
                token = by_score(expired)[0]
                del expired[token]
                if token[:16] in self.processing and self._weigh_again(token):
                    return True
            else:
                if self._classify_waiting(waiting.pop()):
                    return True
        return False

    def _look_at_leases(self) -> None:
        """Without tenants, lease expired messages directly, the oldest deadline first."""
        due = self._due()
        while due and self._wants_more:
            self.steps += 1
            token = due.pop(0)
            del self.leases[token]
            if token[:16] in self.processing:
                self._weigh_again(token)
            else:
                self._remove(token[:16])

    def _look_at_line(self) -> None:
        waiting = self.backlog.waiting(NO_TENANT)
        while waiting and self._wants_more:
            self.steps += 1
            self._classify_waiting(waiting.pop())

    # -- what becomes of each

    def _weigh_again(self, token: bytes) -> bool:
        """The token names the process that held the message, for its record."""
        key = token[:16]
        return self._classify(self.processing[key], self.deliveries.get(key, IN_FLIGHT), "lease", token[16:24])

    def _classify_waiting(self, stored: bytes) -> bool:
        """Move a value that is not one of our messages to the dead letters, unchanged."""
        if is_message(stored):
            return self._classify(stored, self.deliveries.get(id_of(stored), IN_LINE), "queue")
        self._bury(None, stored, 0, "foreign")
        return False

    def _classify(self, stored: bytes, entry: Entry, origin: str, holder: bytes = b"") -> bool:
        """Take a message, or move it to the dead letters. Returns whether it was taken."""
        key, most = id_of(stored), self.given.most
        if reason := "deliveries" if most and entry.times >= most else "expired" if self._is_too_old(stored) else None:
            self._bury(stored, payload_of(stored), entry.times, reason, holder)
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

    def _bury(self, stored: bytes | None, payload: bytes, times: int, reason: str, holder: bytes = b"") -> None:
        by = {"by": holder.hex()} if holder else {}
        note = self.memory.record(stored, payload, times, {"reason": reason, **by})
        self.cut += self.memory.terminal_list(self.keys.dlq, self.keys.records, [(payload, note)], self.given.dlq_limit)
        self.dead.append((b"" if stored is None else id_of(stored), times, reason.encode()))

    def _remove(self, key: bytes) -> None:
        self.processing.pop(key, None)
        self.deliveries.pop(key, None)

    def _write_leases(self) -> None:
        """Lease what was taken; the position in the batch keeps the order if the leases expire."""
        for place, ticket in enumerate(self.taken if self.given.lease_us else (), 1):
            self.leases[ticket.id + self.nonce] = self.deadline + place

    @property
    def _ends_without_tenant(self) -> bool:
        """Whether messages without a tenant had the last turn of this claim."""
        return bool(self.taken) and tenant_of(self.processing[self.field(self.taken[-1].id)]) == NO_TENANT

    # -- who is awake for the rest

    @property
    def _next_at(self) -> float | None:
        """When the next lease ends, or the next delay."""
        leases = self.leases.values() if self.given.lease_us else ()
        return min((*leases, *self.backlog.delayed.values()), default=None)

    def _chain_wakeup(self) -> None:
        """A claim that took the token and leaves messages behind notifies, or if nobody is awake for the next ones."""
        next_at, given = self._next_at, self.given
        is_due = next_at is not None and next_at <= self.now
        left_behind = bool(self.taken) and (is_due or bool(self.backlog.ring) or bool(self.backlog.waiting(NO_TENANT)))
        if given.woken == ON_WATCH:
            self.memory.strings.pop(self.keys.timer_owner, None)
        if given.woken != FRESH and next_at is not None and next_at - self.now < SECOND:
            stays = not self.taken and given.slice_us > 0
            left_behind |= not stays and not self._is_watched(next_at)
        if left_behind:
            self.memory.notify(self.keys)

    def _watch(self) -> float:
        """One claim that found nothing becomes the timer owner; an earlier deadline needs another one."""
        if self.taken or self.again or self._next_at is None:
            return -1
        left = self._next_at - self.now
        if not 0 < left < self.given.slice_us or self._is_watched(self._next_at):
            return -1
        self.memory.set(self.keys.timer_owner, self._next_at, -(-left // 1000))
        return left

    def _is_watched(self, until: float) -> bool:
        """Whether a timer owner will be awake by then."""
        watched = self.memory.get(self.keys.timer_owner)
        return watched is not None and self.now < watched <= until
