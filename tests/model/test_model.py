"""The memory of the protocol's tests and a real server agree, step by step; no step loses or doubles a message."""

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redis_message_queue.envelope import Envelope
from redis_message_queue.errors import RedisMessageQueueError
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.claim import Claim, Found
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.settle import Keep
from tests.model.worlds import OBJECTS, MemoryWorld, RealWorld, State, World
from tests.protocol.memory import is_message
from tests.protocol.port import Lost
from tests.protocol.scene import nobody_listens

# No lease runs out by itself while a test is running: they are made to, by moving their deadlines.
LEASE = {"message_visibility_timeout_seconds": 300.0}
A_LONG_SLICE_US = 1000 * 1_000_000  # longer than a lease: such a claim looks out for the end of one
QUEUES: dict[str, dict[str, Any]] = {
    "leased, two deliveries": LEASE | {"max_delivery_count": 2},
    "leased, any number of deliveries": LEASE,
    "leased, two dead letters": LEASE | {"max_delivery_count": 1, "max_dead_letter_length": 2},
    "at most once": {"message_visibility_timeout_seconds": None},
    "full at three": LEASE | {"max_pending_length": 3, "max_delivery_count": 2},
    "drops beyond three": LEASE | {"max_pending_length": 3, "pending_overload_policy": "drop_oldest"},
}
KEPT_AT_MOST = 3

losses = st.sampled_from([None] * 6 + ["request", "reply"])
objects = st.integers(0, OBJECTS - 1)
beside = st.sampled_from([0] * 6 + [1, -1])  # how far a lease number is from the one that was given


def never() -> bool:
    return False


async def unheard(error: Exception, tries: int) -> None:
    """Nobody listens to retries here."""


class Twins(RuleBasedStateMachine):
    """Whatever is done is done to both; their answers and their states must be the same."""

    claims = Bundle("claims")

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client
        self.ids = count(1)
        self.scores = count(1)
        self.pushes = 0
        self.payloads: dict[bytes, bytes] = {}

    @initialize(queue=st.sampled_from(sorted(QUEUES)), waiting=st.integers(0, 3))
    def open_the_queue(self, queue: str, waiting: int) -> None:
        options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
        self.leased = options.message_visibility_timeout_seconds is not None
        self.dead_limit = options.max_dead_letter_length
        self.memory, self.real = MemoryWorld(options), RealWorld(options, self._client)
        for _ in range(waiting):
            self._publish(0, None, None)

    def both(self, work: Callable[[World], Any]) -> Any:
        """Do it in both worlds; errors are answers too."""
        of_memory, of_redis = (_outcome(work, world) for world in (self.memory, self.real))
        assert of_memory == of_redis
        return of_redis

    # -- what can be done

    @rule(at=objects, keys=st.lists(st.sampled_from([None, None, "red", "blue"]), min_size=1, max_size=3), lose=losses)
    def publish(self, at: int, keys: list[str | None], lose: str | None) -> None:
        for key in keys:
            self._publish(at, key, lose)

    def _publish(self, at: int, key: str | None, lose: str | None) -> None:
        number = next(self.ids)
        message_id, payload = number.to_bytes(16, "big"), b"%d" % number
        self.payloads[message_id] = payload

        def work(world: World) -> Any:
            world.ports[at].lose = lose
            marker = None if key is None else world.keys.deduplication(key)
            return finish(world.stores[at].publisher.publish(message_id, payload, marker, lambda: False))

        self.both(work)

    @rule(target=claims, at=objects, lose=losses, handled=st.booleans())
    def claim(self, at: int, lose: str | None, handled: bool) -> Any:
        """Its answer may be lost, or arrive at a consumer that is broken off before its handler has it."""
        return self._claim(at, lose, handled)

    def _claim(self, at: int, lose: str | None, handled: bool) -> Any:
        def work(world: World) -> Any:
            claimer = world.stores[at].claimer
            world.ports[at].lose = lose
            attempt = claimer.attempt()
            try:
                found = finish(claimer.claim(attempt, 0, lambda: False, nobody_listens))
                attempt.unsure = not handled and found.claim is not None
            finally:
                claimer.release(attempt)
            return _told(found)

        return self._bundled(self.both(work))

    @precondition(lambda self: any(store.claimer.unsure for store in self.real.stores))
    @rule(target=claims, at=objects, lose=losses)
    def ask_an_unsure_claim(self, at: int, lose: str | None) -> Any:
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

        return self._bundled(self.both(work))

    @rule(
        target=claims,
        at=objects,
        wanted=st.integers(0, 3),
        woken=st.sampled_from([0, 1, 2]),
        slice_us=st.sampled_from([0, A_LONG_SLICE_US]),
    )
    def claim_as_a_waiter(self, at: int, wanted: int, woken: int, slice_us: int) -> Any:
        """Several at once, woken or on watch, going to sleep or not: whatever the script can be asked."""

        def work(world: World) -> Any:
            slot = world.stores[at].calls.borrow()
            call = world.ports[at].call(slot.claim, (), (slot.next_call(), wanted, slice_us, woken))
            try:
                return _normal(finish(call))
            finally:
                world.stores[at].calls.give_back(slot)

        return self._bundled(self.both(work))

    @rule(at=objects, claim=claims, beside=beside, kept=st.sampled_from([None, "completed", "failed"]), lose=losses)
    def settle(self, at: int, claim: "Held", beside: int, kept: str | None, lose: str | None) -> None:
        """By its holder, by one who lost it, or by one who made a number up; once or again."""

        def work(world: World) -> Any:
            keep = None if kept is None else Keep(getattr(world.keys, kept), KEPT_AT_MOST)
            return _settled(world, at, lose, lambda settler: settler.settle(claim.opened(beside), keep))

        self.both(work)

    @rule(at=objects, claim=claims, beside=beside, forgiven=st.booleans(), lose=losses)
    def give_back(self, at: int, claim: "Held", beside: int, forgiven: bool, lose: str | None) -> None:
        def work(world: World) -> Any:
            return _settled(world, at, lose, lambda settler: settler.give_back(claim.opened(beside), forgiven=forgiven))

        self.both(work)

    @rule(at=objects, claim=claims, beside=beside)
    def renew(self, at: int, claim: "Held", beside: int) -> None:
        self.both(lambda world: finish(world.stores[at].settler.renew(claim.opened(beside), 1.0)))

    @rule(at=objects, held=st.lists(claims, min_size=2, max_size=4, unique_by=lambda one: one.id), back=st.booleans())
    def end_several_at_once(self, at: int, held: list["Held"], back: bool) -> None:
        """One call for many messages, of which some may be lost by now: given back in their order, or settled."""
        pairs = [part for one in held for part in (one.id, one.lease)]

        def work(world: World) -> Any:
            slot = world.stores[at].calls.borrow()
            try:
                command = slot.give_back if back else slot.settle
                return finish(world.ports[at].call(command, (), (0, slot.next_call(), *pairs)))
            finally:
                world.stores[at].calls.give_back(slot)

        self.both(work)

    @precondition(lambda self: self.state.leases)
    @rule(target=claims, choice=st.data(), taken_by=st.one_of(st.none(), objects))
    def let_leases_run_out(self, choice: st.DataObject, taken_by: int | None) -> Any:
        """Any of them, in any order; somebody may take the first of them over at once."""
        chosen = choice.draw(st.lists(st.sampled_from(self.state.leases), unique=True, min_size=1))
        ids = {name: next(self.scores) for name in chosen}
        self.both(lambda world: world.let_run_out(ids))
        return multiple() if taken_by is None else self._claim(taken_by, None, True)

    @precondition(lambda self: self.real.calls)
    @rule(back=st.integers(0, 1000))
    def send_an_earlier_call_again(self, back: int) -> None:
        """A repetition, or a straggler that arrives long after its caller has gone on."""
        number = len(self.real.calls) - 1 - back % len(self.real.calls)
        self.both(lambda world: _normal(world.send_again(number)))

    @precondition(lambda self: self.pushes < 2)
    @rule(
        values=st.lists(
            st.sampled_from([b"", b"by hand", b"\x80short", b"\x80" + bytes(15), b"\x80" + b"long" * 9]),
            min_size=1,
            max_size=2,
        )
    )
    def push_by_hand(self, values: list[bytes]) -> None:
        """Somebody else writes into the line."""
        self.pushes += 1
        self.both(lambda world: world.push_foreign(values))

    @precondition(lambda self: self.state.bell)
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

    def _check_every_accepted_message_is_in_exactly_one_place(self) -> None:
        accepted, gone = self._accounts()
        for message_id in accepted:
            places = _places(self.state, message_id, self.payloads[message_id]) + (message_id in gone)
            may_be_trimmed = len(self.state.dead) == self.dead_limit or any(
                len(one) == KEPT_AT_MOST for one in (self.state.completed, self.state.failed)
            )
            assert places == 1 or (places == 0 and may_be_trimmed), f"{message_id!r} is in {places} places"
        for message_id in self.payloads.keys() - accepted:
            assert _places(self.state, message_id, self.payloads[message_id]) == 0

    def _check_the_books_are_in_order(self) -> None:
        """What is in flight has a lease, what has numbers says so, and the bell has one token at most."""
        state = self.state
        assert set(state.leases) == (set(state.processing) if self.leased else set())
        in_line = {one[0] for one in state.pending if isinstance(one, tuple)}
        assert state.flagged == state.deliveries.keys() & (in_line | state.processing.keys())
        assert state.bell <= 1

    def _accounts(self) -> tuple[set[bytes], set[bytes]]:
        """What entered, and what left for good, by the answers that the scripts gave."""
        accepted, gone = set(), set()
        for call, answer in self.real.executed():
            if call.verb == "publish" and (answer == 1 or isinstance(answer, bytes)):
                accepted.add(call.given["head"][1:])
                gone.update(_dropped(answer))
            if call.verb == "settle" and not call.open_keys:
                ids = call.arguments[2::2]
                gone.update(one for place, one in enumerate(ids) if answer[place : place + 1] == b"1")
        return accepted, gone

    def _bundled(self, told: Any) -> Any:
        return multiple(*told.claims) if isinstance(told, Told) else multiple()


class Held:
    """A message that a claim brought, as both worlds tell it."""

    def __init__(self, stored: bytes, lease: int, delivery_count: int, origin: bytes) -> None:
        envelope = Envelope(stored)
        self.facts = (envelope.id, envelope.payload, lease, delivery_count, origin)
        self.id, self.lease, self.delivery_count = envelope.id, lease, delivery_count
        self.stored = stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.facts == other.facts

    def __hash__(self) -> int:
        return hash(self.facts)

    def __repr__(self) -> str:
        return f"Held{self.facts}"

    def opened(self, beside: int) -> Claim:
        """As the protocol holds it."""
        return Claim(Envelope(self.stored), 0.0, self.lease + beside, self.delivery_count)


class Told:
    """What a claim brought, without what only a clock could tell."""

    def __init__(self, claims: list[Held], dead: Any, again: bool, watches: bool) -> None:
        self.claims = claims
        self.rest = (dead, again, watches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and (self.claims, self.rest) == (other.claims, other.rest)

    def __repr__(self) -> str:
        return f"Told({self.claims}, {self.rest})"


def _told(found: Found) -> Told:
    held = []
    if (claim := found.claim) is not None:
        origin = b"lease" if claim.reclaimed else b"line"
        held.append(Held(claim.envelope.stored, claim.lease, claim.delivery_count, origin))
    return Told(held, found.dead, found.again, found.wake_after is not None)


def _normal(answer: Any) -> Any:
    """A script's answer, in the same words from both worlds."""
    if isinstance(answer, bytes) and is_message(answer):
        return Told([Held(answer, 1, 1, b"line")], [], False, False)
    if not isinstance(answer, list):
        return answer
    again, wait_us, dead, notes, *parts = answer
    assert wait_us == -1 or 0 < wait_us < A_LONG_SLICE_US
    held = [_ticketed(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return Told(held, (dead, notes), bool(again), wait_us > 0)


def _ticketed(stored: bytes, ticket: bytes) -> Held:
    lease, times, origin = ticket.split(b":")
    return Held(stored, int(lease), int(times), origin)


def _settled(world: World, at: int, lose: str | None, work: Callable[[Any], Any]) -> Any:
    world.ports[at].lose = lose
    return finish(work(world.stores[at].settler))


def _outcome(work: Callable[[World], Any], world: World) -> Any:
    try:
        return work(world)
    except (Lost, RedisMessageQueueError) as error:
        return type(error)


def _dropped(answer: Any) -> list[bytes]:
    ids = answer[1:] if isinstance(answer, bytes) else b""
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]


def _places(state: State, message_id: bytes, payload: bytes) -> int:
    in_line = state.pending.count((message_id, payload))
    return in_line + (message_id in state.processing) + sum(one.count(payload) for one in state.lists())


STEADY = settings(
    max_examples=150,
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


@pytest.mark.parametrize("queue", sorted(QUEUES))
def test_memory_and_redis_agree_on_when_to_stop_tidying_up(client, queue):
    """More foreign values than one script may bury: both say 'again', as often, and then deliver."""
    options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
    told = []
    for world in (MemoryWorld(options), RealWorld(options, client)):
        world.push_foreign([b"by hand"] * 2500)
        port, slot = world.ports[0], world.stores[0].calls.borrow()
        told.append([_normal(finish(port.call(slot.claim, (), (slot.next_call(), 1, 0, 0)))) for _ in range(4)])
        told[-1].append(world.state())
    assert told[0] == told[1]
    assert [one.rest[1] for one in told[1][:4]] == [True, True, False, False]


@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_messages_that_are_given_back_together_keep_their_order(client, queue):
    """Three of four were taken at once, and one of them was settled: the others are the next again, as they were."""
    options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
    for world in (MemoryWorld(options), RealWorld(options, client)):
        store, port, slot = world.stores[0], world.ports[0], world.stores[0].calls.borrow()
        for number in range(4):
            finish(store.publisher.publish(b"%d" % number * 16, b"%d" % number, None, lambda: False))
        told = _normal(finish(port.call(slot.claim, (), (slot.next_call(), 3, 0, 0))))
        assert _settled(world, 0, None, lambda settler, one=told.claims[1]: settler.settle(one.opened(0), None)).held
        pairs = [part for one in told.claims for part in (one.id, one.lease)]
        assert finish(port.call(slot.give_back, (), (0, slot.next_call(), *pairs))) == b"101"
        assert [payload for _, payload in world.state().pending] == [b"0", b"2", b"3"]


def test_a_dropped_message_leaves_nothing_behind(client):
    """It had been delivered and given back, so it had numbers of its own; they go with it."""
    options = GatewayOptions(retry_budget_seconds=0, **QUEUES["drops beyond three"])
    world = RealWorld(options, client)
    store = world.stores[0]
    publish = store.publisher.publish
    finish(publish(b"1" * 16, b"old", None, lambda: False))
    found = finish(store.claimer.claim(store.claimer.attempt(), 0, lambda: False, nobody_listens))
    assert _settled(world, 0, None, lambda settler: settler.give_back(found.claim, forgiven=True))
    for number in range(2, 5):
        finish(publish(b"%d" % number * 16, b"new", None, lambda: False))
    state = world.state()
    assert [payload for _, payload in state.pending] == [b"new"] * 3
    assert state.deliveries == {}
