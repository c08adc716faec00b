"""After any sequence of calls, every message is in one place and the state is consistent."""

import random
from collections import Counter

import pytest
import redis

from redis_message_queue.stored.envelope import Envelope
from tests.depth import often
from tests.lua.scripts_runner import HOUR_US, KEYS, Caller, Claimed, New, Taken, chunk_ids, fresh_base, new_id
from tests.lua.state import LISTS, State, faults, read

pytestmark = pytest.mark.topic("Journal")

STEPS = 70
TENANTS = [b"", b"", b"acme", b"zeta", b"b", b"B", b"r", b"d"]

# `sweep` is rare, or there would be little left to go wrong.
RARE = ("sweep",)
VERBS = (
    *("publish", "enqueue", "enqueue", "claim", "claim", "claim", "settle", "requeue", "retry_later", "renew"),
    *("hand_off", "redrive", "cancel", "pause", "repeat", "expire", "pass_delays", "weigh", "forget_keys"),
)
KINDS = {
    "plain": {},
    "without leases": {"lease_us": 0},
    "with dead letters": {"most": 2, "dlq_limit": 5, "ttl_us": HOUR_US},
    "with limits that refuse": {"limit": 12, "tenant_limit": 4},
    "with limits that drop": {"limit": 12, "tenant_limit": 4, "overload": "drop"},
    "with limits on what is in flight": {"in_flight_limit": 2, "most": 3},
    "with dead letters, without leases": {"lease_us": 0, "most": 1},
}


class World:
    """A queue with three callers, and what should have become of each message."""

    def __init__(self, client: redis.Redis, seed: int, settings: dict[str, int | str]) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.callers = [Caller(client, slot, **settings) for slot in "abc"]
        self.leased = self.callers[0].settings.lease_us > 0
        if seed % 2:
            self.callers[0].open_journal()
        self.alive: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.paused: set[bytes] = set()  # tenants
        self.held: dict[bytes, Taken] = {}  # by the consumer that claimed it last
        self.ever_taken: list[Taken] = []
        self.plain_order: dict[bytes, int] = {}  # messages that went straight into their line, as they came
        self.last_plain: dict[str | None, int] = {}

    # What may happen

    def publish(self, caller: Caller) -> None:
        id = new_id()
        marker = self.chance.choice([None, None, "a", "b"])
        entered = caller.publish(b"payload", id=id, marker=marker) == 1
        if entered:
            self._enters(id)

    def enqueue(self, caller: Caller) -> None:
        base = fresh_base()
        news = [
            New(
                b"x" * self.chance.randint(0, 9),
                self.chance.choice(TENANTS),
                due=self.chance.choice(["", "", "", "+0", "1", "+1000000000", "+3000000000"]),
                marker=self.chance.choice([None, None, None, "a", "b", "c"]),
                extras=self.chance.choice([b"", b"", b'{"replay_of": "x"}']),
            )
            for _ in range(self.chance.randint(1, 4))
        ]
        answer = caller.enqueue(*news, base=base)
        assert caller.repeat() == answer
        if answer == b"-":
            return
        marks, dropped = answer[: len(news)], answer[len(news) :]
        for id, mark, new in zip(chunk_ids(base, len(news)), marks.decode(), news, strict=True):
            if mark == "1":
                self._enters(id, plain=new.due in ("", "+0", "1"))
        for at in range(0, len(dropped), 16):
            self._leaves(dropped[at : at + 16])

    def claim(self, caller: Caller) -> None:
        count = self.chance.choice([1, 1, 1, 2, 3, 7, 0])
        due_by_now = self._deliverable() if count else 0
        claimed = caller.claim(count, slice_us=self.chance.choice([0, 1_000_000]), woken=self.chance.choice([0, 1, 2]))
        for id, _, _ in claimed.dead:
            self._leaves(id)
        assert len(claimed.taken) <= count
        for one in claimed.taken:
            self._is_taken(one)
        assert claimed.taken or claimed.again or not due_by_now, "told empty while there was work"
        if self.chance.random() < 0.5:
            self._same(claimed, caller.repeat())

    def settle(self, caller: Caller) -> None:
        held = self._some_held()
        kept = self.chance.choice([None, *LISTS])
        marks = caller.settle(held, kept=kept, limit=5, note={"reason": "done"})[: len(held)]
        for one in self._judged(held, marks):
            self._leaves(one.id)

    def requeue(self, caller: Caller) -> None:
        held = self._some_held()
        marks = caller.requeue(held, forgiven=self.chance.random() < 0.5)
        for one in self._judged(held, marks):
            del self.held[one.id]

    def retry_later(self, caller: Caller) -> None:
        for one in self._some_held()[:1]:
            mark = caller.retry_later([one], self.chance.choice([0, 1_000_000_000]))
            for ours in self._judged([one], mark):
                del self.held[ours.id]

    def hand_off(self, caller: Caller) -> None:
        for one in self._some_held()[:1]:
            mark = caller.hand_off([one], b"x", New(b"y", b"acme"), keeps=self.chance.random() < 0.5)[:1]
            for ours in self._judged([one], mark) if mark != b"-" else ():
                self._leaves(ours.id)

    def redrive(self, caller: Caller) -> None:
        base, tenant = fresh_base(), self.chance.choice(TENANTS)
        marks = caller.redrive(self.chance.randint(0, 2), tenant=tenant, base=base)
        assert caller.repeat() == marks
        for id, mark in zip(chunk_ids(base, len(marks)), marks.decode(), strict=True):
            if mark == "1":
                self._enters(id)

    def sweep(self, caller: Caller) -> None:
        state, tenant = read(self.client), self.chance.choice(TENANTS).decode()
        waiting = [Envelope(stored).id for stored in state.lines.get(tenant, [])]
        came_back = list(state.returned.get(tenant, ()))
        assert caller.sweep("pending", tenant) == b"%d " % (len(waiting) + len(came_back))
        for id in (*waiting, *came_back):
            self._leaves(id)

    def cancel(self, caller: Caller) -> None:
        """Some message, wherever it is, or one that is gone."""
        state = read(self.client)
        id = self.chance.choice(sorted(self.alive | self.gone) or [new_id()])
        outcome = caller.cancel(id)
        assert caller.repeat() == outcome
        waits = any(state.lines.values()) or state.ring or state.claims or (not self.leased and state.processing)
        in_flight = self.leased and id in state.processing
        expected = b"cancelled" if id in state.later else b"in_flight" if in_flight else b"marked"
        assert outcome == (expected if waits or expected != b"marked" else b"unknown")
        if outcome == b"cancelled":
            self._leaves(id)

    def pause(self, caller: Caller) -> None:
        """Pause a tenant, or resume it, which is done more often."""
        tenant = self.chance.choice(TENANTS) or b"acme"
        pauses = self.chance.random() < 0.4
        call = caller.pause if pauses else caller.resume
        assert call(tenant) == b"01"[(tenant in self.paused) != pauses :][:1]
        (self.paused.add if pauses else self.paused.discard)(tenant)

    def renew(self, caller: Caller) -> None:
        if self.leased:
            held = self._some_held()
            self._judged(held, caller.renew(held))

    def repeat(self, caller: Caller) -> None:
        """Some call is sent once more; it may say what it has said, and do nothing."""
        before = read(self.client)
        caller.repeat()
        after = read(self.client)
        assert after.lists == before.lists
        assert sorted(after.ids) == sorted(before.ids)

    def expire(self, caller: Caller) -> None:
        deadlines = {id: due for id, due in caller.deadlines().items() if self.chance.random() < 0.6}
        if deadlines:
            self.client.zadd(KEYS.leases, {id: due - 2 * HOUR_US for id, due in deadlines.items()})

    def pass_delays(self, caller: Caller) -> None:
        caller.pass_delays(2_000_000_000)

    def weigh(self, caller: Caller) -> None:
        tenant = self.chance.choice(TENANTS) or b"acme"
        self.client.hset(KEYS.weights, tenant, self.chance.randint(1, 3))

    def forget_keys(self, caller: Caller) -> None:
        self.client.delete(*[KEYS.deduplication(key) for key in "abc"])

    def step(self) -> str:
        name = self.chance.choice(RARE if self.chance.random() < 0.02 else VERBS)
        getattr(self, name)(self.chance.choice(self.callers))
        return name

    # What follows from it

    def check(self) -> None:
        assert faults(self.client, leased=self.leased) == []
        ids = read(self.client).ids
        assert set(ids) == self.alive
        assert len(ids) == len(self.alive)

    def _enters(self, id: bytes, *, plain: bool = True) -> None:
        assert id not in self.alive | self.gone
        self.alive.add(id)
        if plain:
            self.plain_order[id] = len(self.plain_order)

    def _leaves(self, id: bytes) -> None:
        self.alive.remove(id)
        self.gone.add(id)
        self.held.pop(id, None)

    def _is_taken(self, one: Taken) -> None:
        assert one.id in self.alive
        assert (one.tenant or "").encode() not in self.paused
        limit = self.callers[0].settings.in_flight_limit
        if limit and one.tenant and one.origin == "queue":
            flying = [
                stored for stored in read(self.client).processing.values() if Envelope(stored).tenant == one.tenant
            ]
            assert len(flying) <= limit
        before = [taken for taken in self.ever_taken if taken.id == one.id]
        assert one.token not in {taken.token for taken in before}
        assert one.count <= one.attempts <= len(before) + 1
        if not before and one.id in self.plain_order:
            place = self.plain_order[one.id]
            assert place > self.last_plain.get(one.tenant, -1), "out of order"
            self.last_plain[one.tenant] = place
        self.held[one.id] = one
        self.ever_taken.append(one)

    def _some_held(self) -> list[Taken]:
        """Of what is held and what was held once, now and then both in one call."""
        known = [*self.held.values(), *self.ever_taken[-5:]]
        some = self.chance.sample(known, min(len(known), self.chance.randint(1, 3)))
        return list({one.id: one for one in some}.values()) or [Taken(new_id(), b"", 1, 1, "queue")]

    def _judged(self, held: list[Taken], marks: bytes) -> list[Taken]:
        """Exactly what is still held under its number was found to be."""
        ours = [one for one in held if self.held.get(one.id) == one]
        assert marks.decode() == "".join("1" if one in ours else "0" for one in held)
        return ours

    def _same(self, first: Claimed, second: Claimed) -> None:
        assert (second.again, second.dead, second.taken) == (first.again, first.dead, first.taken)

    def _deliverable(self) -> int:
        """How many could be delivered now, but for those that are over a limit."""
        state, now = read(self.client), self.callers[0].now_us()
        expired = [id for id, due in state.leases.items() if due <= now] if self.leased else []
        due = [id for id, due in state.delayed.items() if due <= now]
        came_back = [id for ids in state.returned.values() for id in ids]
        waiting = [Envelope(stored).id for line in state.lines.values() for stored in line]
        found = {*expired, *due, *came_back, *waiting} - state.cancelled
        found -= self._at_their_limit(state, now)
        found -= {Envelope(one).id for one in state.stored if (Envelope(one).tenant or "").encode() in self.paused}
        most = self.callers[0].settings.most
        if most:
            found = {id for id in found if int(state.deliveries.get(id, b"0:0").split(b":")[1]) < most}
            found -= {id for id in (*expired, *came_back) if id not in state.deliveries and most <= 1}
        return len(found)

    def _at_their_limit(self, state: State, now: int) -> set[bytes]:
        """The waiting messages of tenants that may have no more in flight."""
        limit, found = self.callers[0].settings.in_flight_limit, set()
        flying = Counter(Envelope(stored).tenant for stored in state.processing.values())
        for stored in state.stored if limit else ():
            one = Envelope(stored)
            if one.tenant and flying[one.tenant] >= limit and one.id not in state.processing:
                found.add(one.id)
        return found


@pytest.mark.promise("The journal alone tells where every message is.")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(often(1, 2)))
def test_nothing_is_lost_doubled_or_forgotten(seed: int, kind: dict[str, int | str], client: redis.Redis):
    """After each of many steps of many kinds, by three callers."""
    world = World(client, seed, kind)
    steps = []
    for _ in range(STEPS):
        steps.append(world.step())
        try:
            world.check()
        except AssertionError as error:
            error.add_note(f"after {' '.join(steps)}")
            raise


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_queue_that_is_worked_off_leaves_nothing_behind(kind: dict[str, int | str], client: redis.Redis):
    """However wild its life was, after its last message only lists, weights, answers and a token are left."""
    world = World(client, 99, kind)
    for _ in range(STEPS):
        world.step()
    caller = Caller(client, "last", **kind)
    for one in world.held.values():
        caller.settle([one])
    for tenant in world.paused:
        caller.resume(tenant)
    for _ in range(200):
        caller.pass_delays(HOUR_US)
        taken = caller.claim(9).taken
        if taken:
            caller.settle(taken)
        elif not read(client).ids:
            break
    expected = {*LISTS, *(KEYS.records(word) for word in ("completed", "failed", "dlq")), KEYS.weights, KEYS.wakeup}
    expected |= {KEYS.journal, KEYS.meta}
    left = {key.decode() for key in client.scan_iter(match=f"{KEYS.prefix}*", count=1_000)} - expected
    expiring = (KEYS.reply(""), KEYS.deduplication(""), KEYS.timer_owner)
    assert {key for key in left if not key.startswith(expiring)} == set()
