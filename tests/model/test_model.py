"""The memory of the protocol's tests and a real server agree, step by step; no step loses or doubles a message."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redis_message_queue.envelope import Envelope
from redis_message_queue.errors import RedisMessageQueueError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.claim import Claim, Found
from redis_message_queue.protocol.handoff import Target
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish import Outgoing, chunk_ids
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.settle import Keep, Note
from tests.depth import often
from tests.model.worlds import KEPT, KEPT_AT_MOST, OBJECTS, MemoryWorld, RealWorld, Seen, State, World
from tests.protocol.port import Lost
from tests.protocol.scene import nobody_listens
from tests.protocol.stored import is_message, unpacked

# No lease and no delay ends by itself while a test is running: they are made to, by moving their times.
LEASE = {"message_visibility_timeout_seconds": 300.0}
LONG_SLICE_US = 5000 * 1_000_000  # longer than any lease or delay: such a claim looks out for the end of one
QUEUES: dict[str, dict[str, Any]] = {
    "leased, two deliveries": LEASE | {"max_delivery_count": 2},
    "leased, any number of deliveries": LEASE,
    "leased, two dead letters": LEASE | {"max_delivery_count": 1, "max_dead_letter_length": 2},
    "leased, with weights": LEASE | {"tenant_weights": {"ann": 3, "bob": 2, "cid": 1}},
    "leased, short-lived": LEASE | {"message_ttl_seconds": 3600.0},
    "at most once": {"message_visibility_timeout_seconds": None},
    "at most once, short-lived": {"message_visibility_timeout_seconds": None, "message_ttl_seconds": 3600.0},
    "full at three": LEASE | {"max_pending_length": 3, "max_delivery_count": 2},
    "full at five and two a tenant": LEASE | {"max_pending_length": 5, "max_pending_per_tenant": 2},
    "drops beyond three": LEASE | {"max_pending_length": 3, "pending_overload_policy": "drop_oldest"},
    "drops beyond two a tenant": LEASE | {"max_pending_per_tenant": 2, "pending_overload_policy": "drop_oldest"},
    "drops beyond four and two a tenant": LEASE
    | {"max_pending_length": 4, "max_pending_per_tenant": 2, "pending_overload_policy": "drop_oldest"},
}
MOST = 3  # messages in one call

losses = st.sampled_from([None] * 6 + ["request", "reply"])
objects = st.integers(0, OBJECTS - 1)
beside = st.sampled_from([0] * 6 + [1, -1])  # how far a token is from the one that was given
counts = st.sampled_from([1, 1, 2, MOST])
tenants = st.sampled_from([b"", b"", b"ann", b"bob", b"cid"])
markers = st.sampled_from([None] * 4 + ["red", "blue"])
delays = st.sampled_from([0, 100, 1000])  # seconds: at once, before the next lease ends, or after it
sometimes_delayed = st.sampled_from([None] * 6 + ["+0", "+100", "+1000", "1"])
extras = st.sampled_from([b""] * 5 + [b'{"replay_of": "00ff"}', b'{"headers":{"traceparent":"00-ab"}}'])
drafts = st.lists(st.builds(lambda *parts: Draft(*parts), tenants, markers, sometimes_delayed, extras), max_size=MOST)
chunks = drafts.filter(bool)


def never() -> bool:
    return False


async def unheard(error: Exception, tries: int) -> None:
    """Nobody listens to retries here."""


class Twins(RuleBasedStateMachine):
    """Whatever is done is done to both; their answers and their states must be the same."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client
        self.ids = count(1)
        self.scores = count(1)
        self.pushes = 0
        self.payloads: dict[bytes, bytes] = {}
        self.history: list[Held] = []  # everything that any claim brought
        self.latest: dict[bytes, Held] = {}  # as it was taken last

    @initialize(queue=st.sampled_from(sorted(QUEUES)), waiting=st.lists(tenants, max_size=4))
    def open_the_queue(self, queue: str, waiting: list[bytes]) -> None:
        self.options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
        self.leased = self.options.message_visibility_timeout_seconds is not None
        self.limits = dict.fromkeys(KEPT, KEPT_AT_MOST) | {"dlq": self.options.max_dead_letter_length}
        self.memory, self.real = MemoryWorld(self.options), RealWorld(self.options, self._client)
        for tenant in waiting:
            self._publish(0, [Outgoing(b"", tenant=tenant)], None)

    def both(self, work: Callable[[World], Any]) -> Any:
        """Do it in both worlds; errors are answers too."""
        of_memory, of_redis = (_outcome(work, world) for world in (self.memory, self.real))
        assert of_memory == of_redis
        return of_redis

    # -- what can be done

    @rule(at=objects, marker=markers, lose=losses)
    def publish(self, at: int, marker: str | None, lose: str | None) -> None:
        """By the shortest way that the queue allows."""
        (message_id,), (payload,) = self._name(1)

        def work(world: World) -> Any:
            world.ports[at].lose = lose
            publisher, key = world.stores[at].publisher, marker and world.keys.deduplication(marker)
            return finish(publisher.publish_one(message_id, payload, key, lambda: False))

        self.both(work)

    @rule(
        at=objects,
        chunk=chunks,
        lose=losses,
    )
    def publish_many(self, at: int, chunk: list["Draft"], lose: str | None) -> None:
        """Tenants, delays and duplicates in any mixture."""
        self._publish(at, [one.outgoing(self.real.keys) for one in chunk], lose)

    def _publish(self, at: int, outgoing: list[Outgoing], lose: str | None) -> None:
        ids = self._fill(outgoing)

        def work(world: World) -> Any:
            world.ports[at].lose = lose
            return finish(world.stores[at].publisher.publish(ids, outgoing, lambda: False))

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, here=drafts, there=drafts, lose=losses)
    def hand_off(
        self,
        at: int,
        choice: st.DataObject,
        beside: int,
        here: list["Draft"],
        there: list["Draft"],
        lose: str | None,
    ) -> None:
        """Its handler is done, and what came of it enters the same queue and another one."""
        (claim,) = self._some(choice, 1)
        keys = (self.real.keys, self.real.other.store.keys)
        results = [[one.outgoing(to) for one in drafted] for drafted, to in zip((here, there), keys, strict=True)]
        ids = [self._fill(outgoing) for outgoing in results]

        def work(world: World) -> Any:
            world.ports[at].lose = lose
            queues = (world.queues[at], world.other)
            targets = [_target(*one) for one in zip(queues, ids, results, strict=True) if one[2]]
            return finish(world.queues[at].hand_off.complete(claim.opened(beside), targets, []))

        self.both(work)

    def _fill(self, outgoing: list[Outgoing]) -> list[bytes]:
        """Payloads and ids that nobody else has."""
        ids, payloads = self._name(len(outgoing))
        for one, payload in zip(outgoing, payloads, strict=True):
            one.payload = payload
        return ids

    def _name(self, number: int) -> tuple[list[bytes], list[bytes]]:
        """Ids and payloads that nobody else has."""
        chunk = next(self.ids)
        ids = chunk_ids(chunk.to_bytes(14, "big") + b"..", number)
        payloads = [b"%d.%d" % (chunk, place) for place in range(number)]
        self.payloads.update(zip(ids, payloads, strict=True))
        return ids, payloads

    @rule(at=objects, count=counts, lose=losses, handled=st.booleans())
    def claim(self, at: int, count: int, lose: str | None, handled: bool) -> None:
        """Its answer may be lost, or arrive at a consumer that is broken off before its handler has it."""
        self._take(at, count, lose, handled)

    def _take(self, at: int, count: int, lose: str | None, handled: bool) -> Any:
        def work(world: World) -> Any:
            claimer = world.stores[at].claimer
            world.ports[at].lose = lose
            attempt = claimer.attempt()
            try:
                found = finish(claimer.claim(attempt, 0, lambda: False, nobody_listens, count))
                attempt.unsure = not handled and bool(found.claims)
            finally:
                claimer.release(attempt)
            return _told(found)

        return self._noted(self.both(work))

    @rule(at=objects)
    def take_everything(self, at: int) -> None:
        """Until nothing is left to be had: then it matters who is awake for what comes next."""
        for _ in range(8):
            if not self._take(at, MOST, None, True).claims:
                return

    @precondition(lambda self: any(store.claimer.unsure for store in self.real.stores))
    @rule(at=objects, lose=losses)
    def ask_an_unsure_claim(self, at: int, lose: str | None) -> None:
        def work(world: World) -> Any:
            claimer = world.stores[at].claimer
            world.ports[at].lose = lose
            recovered = finish(claimer.recover(self, never, unheard))
            world.ports[at].lose = None
            if recovered is None:
                return None
            attempt, found = recovered
            attempt.unsure = False
            claimer.release(attempt)
            return _told(found)

        self._noted(self.both(work))

    @rule(
        at=objects,
        wanted=st.integers(0, MOST),
        woken=st.sampled_from([0, 1, 2]),
        slice_us=st.sampled_from([0, LONG_SLICE_US]),
    )
    def claim_as_a_waiter(self, at: int, wanted: int, woken: int, slice_us: int) -> None:
        """Woken or on watch, going to sleep or not: whatever the script can be asked."""

        def work(world: World) -> Any:
            slot = world.stores[at].calls.borrow()
            number = slot.next_call()
            call = world.ports[at].call(slot.claim, (), (number, wanted, slice_us, woken))
            try:
                return _normal(finish(call), slot.nonce_of(number))
            finally:
                world.stores[at].calls.give_back(slot)

        self._noted(self.both(work))

    @precondition(lambda self: self.history)
    @rule(
        at=objects,
        choice=st.data(),
        beside=beside,
        kept=st.sampled_from([None, *KEPT]),
        lose=losses,
    )
    def settle(self, at: int, choice: st.DataObject, beside: int, kept: str | None, lose: str | None) -> None:
        """By their holder, by one who lost them, or by one who made a number up; once or again."""
        held = self._some(choice)

        def work(world: World) -> Any:
            keep = None if kept is None else _keep(world, kept, self.limits[kept])
            note = Note("because", ValueError("äöü"), 0.5)
            return _settled(world, at, lose, lambda settler: settler.settle(_opened(held, beside), keep, note))

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(
        at=objects,
        choice=st.data(),
        beside=beside,
        forgiven=st.booleans(),
        lose=losses,
    )
    def give_back(self, at: int, choice: st.DataObject, beside: int, forgiven: bool, lose: str | None) -> None:
        held = self._some(choice)

        def work(world: World) -> Any:
            opened = _opened(held, beside)
            return _settled(world, at, lose, lambda settler: settler.give_back(opened, forgiven=forgiven))

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, seconds=delays, lose=losses)
    def put_off(self, at: int, choice: st.DataObject, beside: int, seconds: int, lose: str | None) -> None:
        """Its handler failed, and it is to be tried again."""
        (claim,) = self._some(choice, 1)

        def work(world: World) -> Any:
            return _settled(
                world, at, lose, lambda settler: settler.put_off(claim.opened(beside), seconds, ValueError())
            )

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside)
    def renew(self, at: int, choice: st.DataObject, beside: int) -> None:
        held = self._some(choice)
        self.both(lambda world: finish(world.stores[at].settler.renew(_opened(held, beside), 1.0)))

    @precondition(lambda self: self.state.leased)
    @rule(choice=st.data(), taken_by=st.one_of(st.none(), objects), count=counts)
    def let_leases_run_out(self, choice: st.DataObject, taken_by: int | None, count: int) -> None:
        """Any of them, in any order; somebody may take the first of them over at once."""
        chosen = st.lists(st.sampled_from(self.state.leased), unique=True, min_size=1)
        ids = self._in_the_past(choice.draw(chosen | st.just(self.state.leased)))
        self.both(lambda world: world.let_run_out(ids))
        if taken_by is not None:
            self._take(taken_by, count, None, True)

    @precondition(lambda self: self.state["delayed"])
    @rule(choice=st.data(), taken_by=st.one_of(st.none(), objects), count=counts)
    def let_delays_end(self, choice: st.DataObject, taken_by: int | None, count: int) -> None:
        ids = self._in_the_past(choice.draw(st.lists(st.sampled_from(self.state["delayed"]), unique=True, min_size=1)))
        self.both(lambda world: world.let_delays_end(ids))
        if taken_by is not None:
            self._take(taken_by, count, None, True)

    def _in_the_past(self, names: list[bytes]) -> dict[bytes, int]:
        return {name: next(self.scores) for name in names}

    @precondition(lambda self: self.options.message_ttl_seconds is not None and self.payloads)
    @rule(choice=st.data())
    def let_messages_grow_old(self, choice: st.DataObject) -> None:
        """Wherever they are, they are delivered no more."""
        ids = choice.draw(st.sets(st.sampled_from(sorted(self.payloads)), min_size=1, max_size=4))
        self.both(lambda world: world.let_grow_old(ids))

    @precondition(lambda self: self.real.calls)
    @rule(back=st.integers(0, 1000))
    def send_an_earlier_call_again(self, back: int) -> None:
        """A repetition, or a straggler that arrives long after its caller has gone on."""
        number = len(self.real.calls) - 1 - back % len(self.real.calls)
        self.both(lambda world: _normal(world.send_again(number)))

    @precondition(lambda self: self.pushes < 2)
    @rule(
        values=st.lists(
            st.sampled_from(
                [b"", b"by hand", b"\x80short", b"\x80" + bytes(15), b"\x80" + b"long" * 9, b"\x87" + bytes(26)]
            ),
            min_size=1,
            max_size=2,
        )
    )
    def push_by_hand(self, values: list[bytes]) -> None:
        """Somebody else writes into the line."""
        self.pushes += 1
        self.both(lambda world: world.push_foreign(values))

    @precondition(lambda self: self.state["bell"])
    @rule()
    def take_the_token(self) -> None:
        self.both(lambda world: world.take_token())

    # -- what must hold after each step

    @invariant()
    def the_states_agree_and_are_sound(self) -> None:
        self.state = self.real.state()
        assert self.memory.state() == self.state
        self._check_every_accepted_message_is_in_exactly_one_place()
        self._check_the_books_are_in_order()
        self._check_who_takes_turns()
        self._check_the_alarms()
        self._check_that_records_lie_beside_their_payloads()

    def _check_every_accepted_message_is_in_exactly_one_place(self) -> None:
        accepted, gone = self._accounts()
        state = self.state
        may_be_trimmed = any(len(state[word]) == limit for word, limit in self.limits.items())
        for message_id in accepted:
            places = _places(state, message_id, self.payloads[message_id]) + (message_id in gone)
            assert places == 1 or (places == 0 and may_be_trimmed), f"{message_id!r} is in {places} places"
        for message_id in self.payloads.keys() - accepted:
            assert _places(state, message_id, self.payloads[message_id]) == 0

    def _check_the_books_are_in_order(self) -> None:
        """What is in flight has a lease or lost it, what has numbers says so, and the bell has one token at most."""
        state = self.state
        in_flight = [token[:16] for token in (*state.leased, *state.returned)]
        assert sorted(in_flight) == (sorted(state["processing"]) if self.leased else [])
        assert sorted(state["delayed"]) == sorted(state["later"])
        assert state["size"] == len(state.waiting) - len(state["pending"])
        in_line = {one.id for one in state.waiting if isinstance(one, Seen)}
        assert state.flagged == state["deliveries"].keys()
        assert state.flagged <= in_line | {name[:16] for name in state["processing"]} | state["later"].keys()
        assert len(state["bell"]) <= 1

    def _check_who_takes_turns(self) -> None:
        """A tenant is in the ring if and only if something of it waits; messages without one join only others."""
        state = self.state
        ring = {tenant for tenant, _ in state["tenants"]}
        with_work = state.by_tenant("line").keys() | state.by_tenant("returned").keys()
        assert ring - {b""} == with_work - {b""}
        assert b"" not in ring or state["pending"] or b"" in with_work
        assert b"" not in with_work or b"" in ring

    def _check_the_alarms(self) -> None:
        """Early does no harm; late, or missing, would leave work to lie."""
        due, delays = self.state.due, self.state.delays
        assert (due.get(b"r") == 0) == bool(self.state["tenants"])
        assert not delays or due[b"d"] <= min(delays.values())

    def _check_that_records_lie_beside_their_payloads(self) -> None:
        for word in KEPT:
            told = [(one["bytes"], one["sha1"]) for one in self.state[f"records::{word}"]]
            assert told == [(len(one), hashlib.sha1(one).hexdigest()) for one in self.state[word]]

    def _accounts(self) -> tuple[set[bytes], set[bytes]]:
        """What entered, and what left for good, by the answers that the scripts gave."""
        accepted, gone = set(), set()
        for call, answer in self.real.executed():
            if call.verb == "publish" and answer == 1:
                accepted.add(call.given["head"][1:])
            elif call.verb == "enqueue" and answer != b"-":
                ids = chunk_ids(call.given["base"], len(call.rest) // (1 if call.given["form"] == "bare" else 3))
                accepted.update(_marked(ids, answer))
                gone.update(answer[at : at + 16] for at in range(len(ids), len(answer), 16))
            elif call.verb == "settle" and not call.open_keys:
                tokens = call.given["tokens"]
                gone.update(_marked([tokens[at : at + 16] for at in range(0, len(tokens), 36)], answer))
            elif call.verb == "hand_off" and answer[:1] == b"1":
                ids = _handed_off(call.rest)
                accepted.update(_marked(ids, answer[1:]))
                gone.update(_dropped_by_targets(answer[1 + len(ids) :]))
                gone.update([call.given["tokens"][:16]] if call.given["kept_limit"] == -1 else [])
        return accepted, gone

    def _noted(self, told: Any) -> Any:
        for one in told.claims if isinstance(told, Told) else ():
            self.history.append(one)
            self.latest[one.id] = one
        return told

    def _some(self, choice: st.DataObject, most: int = MOST) -> list["Held"]:
        """Mostly what somebody holds, and now and then what somebody held."""
        held = [
            one for key, one in sorted(self.latest.items()) if key in {name[:16] for name in self.state["processing"]}
        ]
        of_all = st.sampled_from(held * 4 + self.history[-12:])
        return choice.draw(st.lists(of_all, min_size=1, max_size=most, unique_by=lambda one: one.id))


def _dropped_by_targets(told: bytes) -> Iterator[bytes]:
    """For each target in two bytes how many had to make room, and their ids."""
    while told:
        end = 2 + 16 * int.from_bytes(told[:2], "big")
        yield from (told[at : at + 16] for at in range(2, end, 16))
        told = told[end:]


class Held:
    """A message that a claim brought, as both worlds tell it."""

    def __init__(self, claim: Claim) -> None:
        envelope, numbers = claim.envelope, (claim.attempt, claim.delivery_count or 0, claim.failures)
        self.facts = (envelope.id, envelope.tenant, envelope.payload, *numbers, claim.reclaimed)
        self.id, self.token, self._claim = envelope.id, claim.token, claim

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.facts == other.facts

    def __hash__(self) -> int:
        return hash(self.facts)

    def __repr__(self) -> str:
        return f"Held{self.facts}"

    def opened(self, beside: int) -> Claim:
        """As the protocol holds it."""
        nonce = self._claim.nonce
        return replace(self._claim, nonce=nonce[:-1] + bytes([(nonce[-1] + beside) % 256]))


class Told:
    """What a claim brought, without what only a clock could tell."""

    def __init__(self, claims: list[Held], dead: Any = (), again: bool = False, watches: bool = False) -> None:
        self.claims = claims
        self.rest = (dead, again, watches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and (self.claims, self.rest) == (other.claims, other.rest)

    def __repr__(self) -> str:
        return f"Told({self.claims}, {self.rest})"


def _told(found: Found) -> Told:
    held = [Held(claim) for claim in found.claims]
    return Told(held, found.dead, found.again, found.wake_after is not None)


def _normal(answer: Any, nonce: bytes = bytes(20)) -> Any:
    """A script's answer, in the same words from both worlds."""
    if isinstance(answer, bytes) and is_message(answer):
        return Told([Held(Claim(Envelope(answer), 0.0, nonce))])
    if isinstance(answer, bytes) and answer[:1] >= b"\x90":
        return Told([Held(Claim(Envelope(one), 0.0, nonce)) for one in unpacked(answer)])
    if not isinstance(answer, list):
        return answer
    again, wait_us, dead, notes, *parts = answer
    assert wait_us == -1 or 0 < wait_us < LONG_SLICE_US
    held = [_ticketed(*pair, nonce) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return Told(held, (dead, notes), bool(again), wait_us > 0)


def _ticketed(stored: bytes, ticket: bytes, nonce: bytes) -> Held:
    attempt, times, origin, failures = ticket.split(b":")
    return Held(Claim(Envelope(stored), 0.0, nonce, int(attempt), int(times), origin == b"lease", int(failures)))


class Draft(NamedTuple):
    """A message that is to be published."""

    tenant: bytes
    marker: str | None
    delay: str | None
    extras: bytes

    def outgoing(self, keys: QueueKeys) -> Outgoing:
        marker = None if self.marker is None else keys.deduplication(self.marker)
        return Outgoing(b"", marker, self.tenant, _due(self.delay), self.extras)


def _target(queue: QueueProtocol, ids: list[bytes], messages: list[Outgoing]) -> Target:
    target = Target(queue, ids[0])
    target.messages = messages
    return target


def _opened(held: list[Held], beside: int) -> list[Claim]:
    return [one.opened(beside) for one in held]


def _due(delay: str | None) -> str:
    """Seconds from now in microseconds; a time of the server's clock, or none at all, as it is."""
    return f"{delay}000000" if delay and delay.startswith("+") else delay or ""


def _keep(world: World, word: str, limit: int | None) -> Keep:
    key = world.keys.dead_letter if word == "dlq" else getattr(world.keys, word)
    return Keep(key, world.keys.records(word), limit)


def _settled(world: World, at: int, lose: str | None, work: Callable[[Any], Any]) -> Any:
    world.ports[at].lose = lose
    return finish(work(world.stores[at].settler))


def _outcome(work: Callable[[World], Any], world: World) -> Any:
    try:
        return work(world)
    except (Lost, RedisMessageQueueError) as error:
        return type(error)


def _marked(ids: Any, answer: bytes) -> list[bytes]:
    return [one for place, one in enumerate(ids) if answer[place : place + 1] == b"1"]


def _handed_off(rest: Any) -> list[bytes]:
    """The ids of all messages of all targets."""
    ids: list[bytes] = []
    while rest:
        base, number = rest[6:8]
        ids += chunk_ids(base, number)
        rest = rest[8 + 3 * number :]
    return ids


def _places(state: State, message_id: bytes, payload: bytes) -> int:
    return state.places(message_id) + sum(state[word].count(payload) for word in KEPT)


STEADY = settings(
    max_examples=often(50, 150),
    stateful_step_count=40,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    derandomize=os.environ.get("CI") == "true",
)


@pytest.mark.timeout(600)  # only a failure takes long: it is told again and again until its story is short
def test_memory_and_redis_agree_and_no_message_is_lost_or_doubled(client):
    """Any sequence of verbs, by several callers, with losses, repetitions and stragglers."""
    run_state_machine_as_test(lambda: Twins(client), settings=STEADY)


def _worlds(client: redis.Redis, queue: str) -> tuple[MemoryWorld, RealWorld]:
    options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
    worlds = MemoryWorld(options), RealWorld(options, client)
    for world in worlds:
        for store in world.stores:
            finish(store.calls._write_state())
    return worlds


def _publish(world: World, payloads: list[bytes], **details: Any) -> None:
    """Each by itself, with an id of its own."""
    for payload in payloads:
        ids = chunk_ids(payload * 16, 1)
        assert finish(world.stores[0].publisher.publish(ids, [Outgoing(payload, **details)], lambda: False)).accepted


def _claimed(world: World, count: int, at: int = 0) -> Told:
    slot = world.stores[at].calls.borrow()
    number = slot.next_call()
    try:
        return _normal(finish(world.ports[at].call(slot.claim, (), (number, count, 0, 0))), slot.nonce_of(number))
    finally:
        world.stores[at].calls.give_back(slot)


@pytest.mark.parametrize("queue", sorted(QUEUES))
def test_memory_and_redis_agree_on_when_to_stop_tidying_up(client, queue):
    """More foreign values than one script may bury: both say 'again', as often, and then deliver."""
    told = []
    for world in _worlds(client, queue):
        world.push_foreign([b"by hand"] * 2500)
        told.append([_claimed(world, 1) for _ in range(4)])
        told[-1].append(world.state())
    assert told[0] == told[1]
    assert [one.rest[1] for one in told[1][:4]] == [True, True, False, False]


@pytest.mark.parametrize("tenant", [b"", b"ann"], ids=["in the line", "of a tenant"])
@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_messages_that_are_given_back_together_keep_their_order(client, queue, tenant):
    """Three of four were taken at once, and one of them was settled: the others are the next again, as they were."""
    for world in _worlds(client, queue):
        _publish(world, [b"0", b"1", b"2", b"3"], tenant=tenant)
        claims = _opened(_claimed(world, 3).claims, 0)
        assert _settled(world, 0, None, lambda settler, one=claims[1]: settler.settle([one], None)).held == [True]
        given = _settled(world, 0, None, lambda settler, all=claims: settler.give_back(all, forgiven=False))
        assert given == [True, False, True]
        assert [one.payload for one in world.state().waiting] == [b"0", b"2", b"3"]


def test_a_dropped_message_leaves_nothing_behind(client):
    """It had been delivered and given back, so it had numbers of its own; they go with it."""
    for world in _worlds(client, "drops beyond three"):
        _publish(world, [b"old"])
        claims = _opened(_claimed(world, 1).claims, 0)
        assert _settled(world, 0, None, lambda settler, all=claims: settler.give_back(all, forgiven=True)) == [True]
        _publish(world, [b"1", b"2", b"3"])
        state = world.state()
        assert [one.payload for one in state.waiting] == [b"1", b"2", b"3"]
        assert state["deliveries"] == {}


def test_no_more_messages_are_dropped_than_need_be(client):
    """Four may wait, two of each tenant. Of a chunk for two tenants one finds its own line full: one has to leave."""
    for world in _worlds(client, "drops beyond four and two a tenant"):
        _publish(world, [b"a"], tenant=b"ann")
        _publish(world, [b"1", b"2"], tenant=b"bob")
        chunk = [Outgoing(b"b", tenant=b"ann"), Outgoing(b"3", tenant=b"bob")]
        published = finish(world.stores[0].publisher.publish(chunk_ids(b"chunk" * 4, 2), chunk, lambda: False))
        assert (published.accepted, len(published.dropped)) == ([True, True], 1)
        lines = world.state().by_tenant("line")
        assert {tenant: [one.payload for one in line] for tenant, line in lines.items()} == {
            b"ann": [b"a", b"b"],
            b"bob": [b"2", b"3"],
        }


@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_a_delay_that_ends_before_what_somebody_watches_for_finds_a_watcher(client, queue):
    """One waiter is awake for the first delay; the one that hears of an earlier delay stays awake for that."""
    for world in _worlds(client, queue):
        slot = world.stores[0].calls.borrow()
        watches = []
        for due in ("+1000000000", "+2000000000", "+100000000"):
            _publish(world, [due.encode()], due=due)
            question = (slot.next_call(), 1, LONG_SLICE_US, 1)
            watches.append(_normal(finish(world.ports[0].call(slot.claim, (), question))).rest[2])
        assert watches == [True, False, True]


VERBS: dict[str, Callable[[World, Claim, int], Any]] = {
    "settled": lambda world, claim, _: finish(world.stores[0].settler.settle([claim], None)),
    "kept": lambda world, claim, _: finish(world.stores[0].settler.settle([claim], _keep(world, "failed", 3))),
    "handed off": lambda world, claim, _: finish(world.queues[0].hand_off.complete(claim, [], [])),
    "given back": lambda world, claim, _: finish(world.stores[0].settler.give_back([claim], forgiven=False)),
    "put off": lambda world, claim, _: finish(world.stores[0].settler.put_off(claim, 100, ValueError())),
    "renewed": lambda world, claim, _: finish(world.stores[0].settler.renew([claim], 1.0)),
    "found again": lambda world, _, call: _normal(world.send_again(call)),
    "taken over": lambda world, *_: _claimed(world, 1),
}


@pytest.mark.parametrize("tenant", [b"ann", b""], ids=["of a tenant", "of nobody"])
@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("more", [0, 1])
def test_a_message_whose_lease_ran_out_leaves_its_tenants_turn_with_it(client, verb, tenant, more):
    """It waits for its tenant's turn, and its holder comes late and not too late; others of its tenant may wait."""
    told = []
    for world in _worlds(client, "leased, any number of deliveries"):
        _publish(world, [b"0"], tenant=tenant)
        (held,) = _claimed(world, 1, at=1).claims
        call = len(world.calls) - 1
        _publish(world, [b"x", b"y", b"z"], tenant=b"bob")
        _publish(world, [b"1"] * more, tenant=tenant)
        world.let_run_out({held.token: 1})
        assert _claimed(world, 1).claims[0].facts[1] == "bob"
        assert world.state().returned == [held.token]
        answer = VERBS[verb](world, held.opened(0), call)
        told.append((answer, world.state()))
    assert told[0] == told[1]
    state = told[1][1]
    assert state.returned == []
    waits = {one for one, _ in state["tenants"]}
    assert waits - {b""} == {b"bob"} | ({tenant} if more or verb == "given back" else set()) - {b""}


@pytest.mark.parametrize("tenant", [b"ann", b""], ids=["of a tenant", "of nobody"])
def test_foreign_values_in_a_line_hide_no_message(client, tenant):
    """Somebody pushed bytes in front of a message, some that begin as a message does: they are dead letters now."""
    foreign = [b"", b"by hand", b"\x81" + bytes(24), b"\x81" + bytes(24) + b"\xff", b"\x80" + bytes(15)]
    for world in _worlds(client, "leased, any number of deliveries"):
        _publish(world, [b"good"], tenant=tenant)
        world.put_in_front(world.keys.line(tenant.decode()) if tenant else world.keys.pending, foreign)
        assert [one.facts[2] for one in _claimed(world, 1).claims] == [b"good"]
        assert world.state()["dlq"] == foreign
