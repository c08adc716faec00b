"""Any sequence of calls does the same on the simulated server and on a real one, and breaks none of the invariants."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

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

from redis_message_queue.options.declared import GatewayOptions, QueueOptions
from redis_message_queue.protocol.consume.claim import Claim, ClaimResult, read_reply
from redis_message_queue.protocol.consume.handoff import HandOff, HandOffTarget
from redis_message_queue.protocol.consume.settle import SettleReason, TerminalKind, TerminalList
from redis_message_queue.protocol.port import Command, finish
from redis_message_queue.protocol.publish.sender import OutgoingMessage, Published, chunk_ids
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import LuaScriptError, RedisMessageQueueError
from simulator.ledger import Ledger
from simulator.oracle.account import Rules
from simulator.oracle.steps import named_arguments
from simulator.server import Step
from tests.depth import often
from tests.model.real_server import RealServer
from tests.protocol.memory import SECOND, MemoryRedis
from tests.protocol.port import REPLY, REQUEST, Loss, Lost, MemoryPort, late
from tests.protocol.setup import CLAIMANT, payload_of

NAME, OTHER = "orders", "refunds"  # a queue, and one that gets what the handlers of the first hand off
OBJECTS = 2  # queue objects
KEPT = ("completed", "failed", "dlq")
KINDS: dict[str, TerminalKind] = {"completed": "completed", "failed": "failed", "dlq": "dead_letters"}
KEPT_AT_MOST = 3
MOST = 3  # messages in one call
LEASE = {"message_visibility_timeout_seconds": 20.0}
TTL = 30.0
LONG_SLICE_US = 5000 * SECOND  # longer than any lease or delay: such a claim waits for the end of one
REMEMBERED_US = 59 * SECOND  # for so long a call can be sent again
QUEUES: dict[str, dict[str, Any]] = {
    "leased, two deliveries": LEASE | {"max_delivery_count": 2},
    "leased, any number of deliveries": LEASE,
    "leased, two dead letters": LEASE | {"max_delivery_count": 1, "max_dead_letter_length": 2},
    "leased, with weights": LEASE | {"tenant_weights": {"ann": 3, "bob": 2, "cid": 1}},
    "leased, short-lived": LEASE | {"message_ttl_seconds": TTL},
    "leased, with a journal": LEASE | {"journal": True},
    "leased, in the order of each tenant": LEASE | {"ordered_tenants": True},
    "leased, two in flight a tenant": LEASE | {"max_in_flight_per_tenant": 2},
    "at most once": {"message_visibility_timeout_seconds": None},
    "at most once, short-lived": {"message_visibility_timeout_seconds": None, "message_ttl_seconds": TTL},
    "full at three": LEASE | {"max_pending_length": 3, "max_delivery_count": 2},
    "full at five and two a tenant": LEASE | {"max_pending_length": 5, "max_pending_per_tenant": 2},
    "drops beyond three": LEASE | {"max_pending_length": 3, "pending_overload_policy": "drop_oldest"},
    "drops beyond two a tenant": LEASE | {"max_pending_per_tenant": 2, "pending_overload_policy": "drop_oldest"},
    "drops beyond four and two a tenant": LEASE
    | {"max_pending_length": 4, "max_pending_per_tenant": 2, "pending_overload_policy": "drop_oldest"},
}
OF_OTHER = GatewayOptions(retry_budget_seconds=0, max_pending_length=3)

T = TypeVar("T")

losses = st.sampled_from([None] * 8 + [REQUEST, REPLY, REPLY, late(1)])
objects = st.integers(0, OBJECTS - 1)
beside = st.sampled_from([0] * 6 + [1, -1])  # how far a token is from the one that was given
counts = st.sampled_from([1, 1, 2, MOST])
tenants = st.sampled_from(["", "", "ann", "bob", "cid"])
keys_of_messages = st.sampled_from([""] * 4 + ["red", "blue"])
delays = st.sampled_from([0, 10, 50])  # seconds: at once, before the next lease ends, or after it
sometimes_delayed = st.sampled_from([""] * 6 + ["+0", "+10000000", "+50000000", "1"])
extras = st.sampled_from([b""] * 5 + [b'{"replay_of": "00ff"}', b'{"headers":{"traceparent":"00-ab"}}'])
drafts = st.builds(lambda *parts: Draft(*parts), tenants, keys_of_messages, sometimes_delayed, extras)
results = st.lists(drafts, max_size=MOST)
chunks = results.filter(bool)


class World:
    """The queue objects of one queue on the simulated server, and a real server that repeats each step."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        client.flushall()
        self.options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
        self.is_leased = self.options.message_visibility_timeout_seconds is not None
        self.keys = QueueKeys.of(NAME)
        self.memory = MemoryRedis(self._observe)
        self.real = RealServer(client)
        self.steps: list[Step] = []
        self.error: Exception | None = None
        self.ledger: Ledger | None = None  # checks each step, if there is one
        self.ports = [MemoryPort(self.memory) for _ in range(OBJECTS)]
        self.stores = [RedisStore(port, self.keys, self.options) for port in self.ports]
        # One of them keeps completed messages.
        kept: dict[str, Any] = {"enable_completed_queue": True, "max_completed_length": KEPT_AT_MOST}
        of_objects = [QueueOptions(name=NAME, **kept), QueueOptions(name=NAME)]
        self.queues = [QueueProtocol(*one) for one in zip(of_objects, self.stores, strict=True)]
        other = RedisStore(self.ports[0], QueueKeys.of(OTHER), OF_OTHER)
        self.other = QueueProtocol(QueueOptions(name=OTHER), other)
        for store in (*self.stores, other):
            finish(store.calls.write_state())

    def _observe(self, step: Step) -> None:
        """Keep the first error: the protocol may take it for one of the server's."""
        self.steps.append(step)
        try:
            self.real.repeat(step, self.memory.keyspace)
            if self.ledger is not None:
                self.ledger.step(step)
        except Exception as error:
            self.error = self.error or error
            raise

    def send_again(self, step: Step) -> Any:
        assert step.script is not None
        return self.memory.execute((Command(step.script, step.keys), (), step.arguments))

    def publish(self, *payloads: bytes, **details: Any) -> None:
        """Publish each message with its own id."""
        for payload in payloads:
            sent = (
                self.stores[0]
                .senders[0]
                .send(chunk_ids(payload * 16, 1), [OutgoingMessage(payload, **details)], lambda: False)
            )
            assert finish(sent).accepted == [True]

    def claim(self, wanted: int, at: int = 0, slice_us: int = 0, woken: int = 0) -> ClaimResult:
        """Claim with any combination of arguments that the script accepts."""
        calls = self.stores[at].calls
        slot = calls.acquire_slot()
        number = slot.next_call()
        try:
            answer = finish(self.ports[at].call(slot.claim, (), (number, wanted, slice_us, woken)))
            return read_reply(answer, 0.0, slot.nonce_of(number), self.is_leased)
        finally:
            calls.release_slot(slot)

    def terminal(self, word: str, limit: int | None) -> TerminalList:
        return TerminalList(KINDS[word], limit)

    def waiting(self, tenant: str = "") -> list[bytes]:
        """The payloads of what waits, the next one first."""
        key = self.keys.tenant_pending(tenant) if tenant else self.keys.pending
        return [payload_of(stored) for stored in reversed(self.memory.value(key) or [])]

    def scores(self, key: str) -> dict[bytes, float]:
        value = self.memory.value(key)
        return {} if value is None else dict(value.scores)

    def let_time_pass_until(self, score: float) -> None:
        self.memory.pass_time(max(0.0, score - self.memory.clock_us) / SECOND)


class Sequences(RuleBasedStateMachine):
    """Does any steps in any order. The ledger of the simulator checks each of them."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client
        self.names = count(1)
        self.history: list[Claim] = []  # all claimed messages
        self.latest: dict[bytes, Claim] = {}  # the last claim of each message

    @initialize(queue=st.sampled_from(sorted(QUEUES)), waiting=st.lists(tenants, max_size=4))
    def make_queue(self, queue: str, waiting: list[str]) -> None:
        self.world = World(self._client, queue)
        rules = {NAME: Rules.of(self.world.options, has_keys=True), OTHER: Rules.of(OF_OTHER, has_keys=True)}
        self.ledger = self.world.ledger = Ledger(rules, lambda: self.world.memory.keyspace)
        self.limits: dict[str, int | None] = {**dict.fromkeys(KEPT, KEPT_AT_MOST)}
        self.limits["dlq"] = self.world.options.max_dead_letter_length
        for tenant in waiting:
            self.publish_many(0, [Draft(tenant)], None)

    @invariant()
    def nothing_is_wrong(self) -> None:
        if self.world.error is not None:
            raise self.world.error
        for word in KEPT:
            kept = self.world.terminal(word, None)
            key, records_key = self.world.keys.terminal_lists[kept.kind]
            records = [json.loads(one) for one in self.world.memory.value(records_key) or ()]
            payloads = self.world.memory.value(key) or ()
            assert [(one["bytes"], one["sha1"]) for one in records] == [
                (len(one), hashlib.sha1(one).hexdigest()) for one in payloads
            ]

    def attempt(self, at: int, loss: Loss | None, work: Callable[[], T]) -> T | None:
        """Do something whose next request or reply may be lost. Errors of the library are results, too."""
        port = self.world.ports[at]
        port.losses = {} if loss is None else {port.exchanges: loss}
        try:
            return work()
        except (Lost, RedisMessageQueueError):
            return None
        finally:
            port.losses = {}

    # -- the steps

    @rule(at=objects, key=keys_of_messages, loss=losses)
    def publish(self, at: int, key: str, loss: Loss | None) -> None:
        """Publish one message by the fast path, if the queue allows it."""
        self.publish_many(at, [Draft("", key)], loss)

    @rule(at=objects, chunk=chunks, loss=losses)
    def publish_many(self, at: int, chunk: list["Draft"], loss: Loss | None) -> None:
        """Publish tenants, delays and duplicates in any mixture."""
        ids, outgoing = self._named(NAME, chunk)
        sender = self.world.stores[at].senders[0]
        self._compare(outgoing, self.attempt(at, loss, lambda: finish(sender.send(ids, outgoing, lambda: False))))

    def _compare(self, outgoing: list[OutgoingMessage], published: Published | None) -> None:
        for one, accepted in zip(outgoing, published.accepted if published else (), strict=False):
            self.ledger.published(one.payload, accepted)

    def _named(self, queue: str, chunk: list["Draft"]) -> tuple[list[bytes], list[OutgoingMessage]]:
        """Unique ids, and messages with unique payloads, as the ledger reads them."""
        keys, outgoing = QueueKeys.of(queue), []
        for one in chunk:
            payload = f"{queue}/{one.tenant}/{one.key}/producer-{next(self.names)}".encode()
            marker = keys.deduplication(one.key, one.tenant or None) if one.key else None
            outgoing.append(OutgoingMessage(payload, marker, one.tenant.encode(), one.due, one.extras))
            # The ledger wants to know whose handlers have returned: all may be acknowledged here.
            self.ledger.handler_returned(SimpleNamespace(name=""), payload)  # type: ignore[arg-type]  # only its name
        return chunk_ids(next(self.names).to_bytes(14, "big") + b"..", len(chunk)), outgoing

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, here=results, there=results, loss=losses)
    def hand_off(
        self,
        at: int,
        choice: st.DataObject,
        beside: int,
        here: list["Draft"],
        there: list["Draft"],
        loss: Loss | None,
    ) -> None:
        """Complete a message, and publish its results to the same queue and to another one."""
        (claim,) = self._some(choice, beside, 1)
        queue, targets = self.world.queues[at], []
        for to, chunk in ((queue, here), (self.world.other, there)):
            ids, outgoing = self._named(to.options.name, chunk)
            if outgoing:
                targets.append(HandOffTarget(to, ids[0]))
                targets[-1].messages = outgoing
        done = self.attempt(at, loss, lambda: finish(HandOff(queue, claim).complete(claim, targets, [])))
        for target, published in zip(targets, done[0] if done else (), strict=False):
            self._compare(target.messages, published)

    @rule(at=objects, count=counts, loss=losses, handled=st.booleans())
    def claim(self, at: int, count: int, loss: Loss | None, handled: bool) -> None:
        """Claim; the reply may be lost, or the consumer may be cancelled before its handler starts."""
        self._claim(at, count, loss, handled)

    def _claim(self, at: int, count: int, loss: Loss | None = None, handled: bool = True) -> bool:
        """Whether there was anything to claim."""
        claimer = self.world.stores[at].claimer

        def work() -> ClaimResult:
            attempt = claimer.attempt()
            try:
                result = finish(claimer.claim(attempt, CLAIMANT, 0, count))
                if handled and result.claims:
                    attempt.apply("settle")
                return result
            finally:
                claimer.release(attempt, CLAIMANT)

        return self._note(self.attempt(at, loss, work))

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, loss=losses)
    def ack_and_claim(self, at: int, choice: st.DataObject, beside: int, loss: Loss | None) -> None:
        """Send an ack along with a claim, as a loop does; if that gets no answer, the ack is sent alone."""
        claims = self._some(choice, beside, 1)
        store = self.world.stores[at]
        (ack,), attempt = store.settler.attach(claims, None), store.claimer.attempt()

        def work() -> ClaimResult:
            try:
                result = finish(store.claimer.claim(attempt, CLAIMANT, 0, 1, [ack]))
                if result.claims:
                    attempt.apply("settle")
                return result
            finally:
                store.claimer.release(attempt, CLAIMANT)

        self._note(self.attempt(at, loss, work))
        self.attempt(at, None, lambda: finish(ack.send_alone([])))
        ack.close()

    @rule(at=objects)
    def take_everything(self, at: int) -> None:
        """Claim until the queue is empty: then it matters which consumer waits for the next message."""
        for _ in range(8):
            if not self._claim(at, MOST):
                return

    @precondition(lambda self: any(store.claimer.unconfirmed for store in self.world.stores))
    @rule(at=objects, loss=losses)
    def ask_an_unsure_claim(self, at: int, loss: Loss | None) -> None:
        claimer = self.world.stores[at].claimer

        def work() -> ClaimResult | None:
            recovered = finish(claimer.recover(CLAIMANT))
            if recovered is None:
                return None
            attempt, result = recovered
            if result.claims:
                attempt.apply("settle")
            claimer.release(attempt, CLAIMANT)
            return result

        self._note(self.attempt(at, loss, work))

    @rule(
        at=objects,
        wanted=st.integers(0, MOST),
        woken=st.sampled_from([0, 1, 2]),
        slice_us=st.sampled_from([0, LONG_SLICE_US]),
    )
    def claim_as_a_waiter(self, at: int, wanted: int, woken: int, slice_us: int) -> None:
        self._note(self.attempt(at, None, lambda: self.world.claim(wanted, at, slice_us, woken)))

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, kept=st.sampled_from([None, *KEPT]), loss=losses)
    def settle(self, at: int, choice: st.DataObject, beside: int, kept: str | None, loss: Loss | None) -> None:
        """Settle with the token of the owner, of one who lost the lease, or an invented one; once or again."""
        claims, settler = self._some(choice, beside), self.world.stores[at].settler
        keep = None if kept is None else self.world.terminal(kept, self.limits[kept])
        reason = SettleReason("because", ValueError("äöü"), 0.5)
        self.attempt(at, loss, lambda: finish(settler.settle(claims, keep, reason)))

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, forgiven=st.booleans(), loss=losses)
    def requeue(self, at: int, choice: st.DataObject, beside: int, forgiven: bool, loss: Loss | None) -> None:
        claims, settler = self._some(choice, beside), self.world.stores[at].settler
        self.attempt(at, loss, lambda: finish(settler.requeue(claims, forgiven=forgiven)))

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, seconds=delays, loss=losses)
    def retry_later(self, at: int, choice: st.DataObject, beside: int, seconds: int, loss: Loss | None) -> None:
        """Retry a message whose handler failed."""
        (claim,), settler = self._some(choice, beside, 1), self.world.stores[at].settler
        self.attempt(at, loss, lambda: finish(settler.retry_later(claim, seconds, ValueError())))

    @precondition(lambda self: self.history and self.world.is_leased)
    @rule(at=objects, choice=st.data(), beside=beside)
    def renew(self, at: int, choice: st.DataObject, beside: int) -> None:
        claims, settler = self._some(choice, beside), self.world.stores[at].settler
        self.attempt(at, None, lambda: finish(settler.renew(claims, 1.0)))

    @precondition(lambda self: self.world.scores(self.world.keys.leases) or self.world.scores(self.world.keys.delayed))
    @rule(choice=st.data(), taken_by=st.one_of(st.none(), objects), count=counts)
    def let_a_lease_or_a_delay_end(self, choice: st.DataObject, taken_by: int | None, count: int) -> None:
        """A consumer may claim what is due at once."""
        world = self.world
        times = {*world.scores(world.keys.leases).values(), *world.scores(world.keys.delayed).values()}
        world.memory.run_all_late_requests()
        world.let_time_pass_until(choice.draw(st.sampled_from(sorted(times))))
        if taken_by is not None:
            self._claim(taken_by, count)

    @precondition(lambda self: self.world.options.message_ttl_seconds is not None)
    @rule()
    def let_messages_grow_old(self) -> None:
        """All that are there exceed their time to live."""
        self.world.memory.run_all_late_requests()
        self.world.memory.pass_time(TTL)

    @precondition(lambda self: self.world.steps)
    @rule(back=st.integers(0, 1000))
    def send_an_earlier_call_again(self, back: int) -> None:
        """Send a call again, at once or long after its caller has gone on."""
        oldest = self.world.memory.clock_us - REMEMBERED_US
        steps = [one for one in self.world.steps if one.script is not None and one.now_us > oldest]
        if not steps:
            return
        step = steps[-1 - back % len(steps)]
        if self._is_overtaken(step):
            with pytest.raises(LuaScriptError, match="OVERTAKEN"):
                self.world.send_again(step)
        else:
            self.attempt(0, None, lambda: self.world.send_again(step))

    def _is_overtaken(self, step: Step) -> bool:
        """Whether a later call of the same caller has an answer in the reply cache."""
        assert step.script is not None
        if "reply" not in step.script.keys:
            return False
        last = self.world.memory.value(step.keys[step.script.keys.index("reply")])
        return last is not None and last[:12] > named_arguments(step)["call"]

    @rule()
    def take_the_token(self) -> None:
        self.world.memory.take_token(self.world.keys.wakeup)

    def _note(self, result: ClaimResult | None) -> bool:
        """Whether it has claimed anything."""
        for one in result.claims if result else ():
            self.history.append(one)
            self.latest[one.id] = one
        return bool(result and result.claims)

    def _some(self, choice: st.DataObject, beside: int, most: int = MOST) -> list[Claim]:
        """Messages that are claimed now, and sometimes earlier ones, or with an invented token."""
        held = {name[:16] for name in self.world.memory.value(self.world.keys.processing) or ()}
        claimed = [one for key, one in sorted(self.latest.items()) if key in held]
        of_all = st.sampled_from(claimed * 4 + self.history[-12:])
        chosen = choice.draw(st.lists(of_all, min_size=1, max_size=most, unique_by=lambda one: one.id))
        # No call has the number 0: with that, a message waits for its retry that nobody holds.
        return [replace(one, nonce=one.nonce[:-1] + bytes([(one.nonce[-1] + beside) % 256 or 255])) for one in chosen]


class Draft(NamedTuple):
    """A message to publish."""

    tenant: str = ""
    key: str = ""  # of its deduplication
    due: str = ""
    extras: bytes = b""


STEADY = settings(
    max_examples=often(25, 400),
    stateful_step_count=40,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    derandomize=os.environ.get("CI") == "true",
)


@pytest.mark.timeout(600)  # only a failure takes long: hypothesis shortens its steps
def test_any_sequence_of_calls_is_the_same_on_a_real_server_and_breaks_no_invariant(client: redis.Redis) -> None:
    """Several callers, with losses, repetitions and late calls."""
    run_state_machine_as_test(lambda: Sequences(client), settings=STEADY)  # type: ignore[arg-type]  # any factory will do


@pytest.mark.parametrize("queue", ["at most once", "leased, any number of deliveries", "leased, two dead letters"])
def test_foreign_values_are_set_aside_a_thousand_in_one_call(client: redis.Redis, queue: str) -> None:
    """If there are more than one call may set aside, it asks for another call."""
    world = World(client, queue)
    world.memory.obey("LPUSH", world.keys.pending, *[b"by hand"] * 2500)
    assert [world.claim(1).again for _ in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("tenant", ["", "ann"], ids=["in the line", "of a tenant"])
@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_messages_that_are_requeued_together_keep_their_order(client: redis.Redis, queue: str, tenant: str) -> None:
    """Three of four were claimed together and one was settled: the others come first again, in their order."""
    world = World(client, queue)
    world.publish(b"0", b"1", b"2", b"3", tenant=tenant.encode())
    claims, settler = world.claim(3).claims, world.stores[0].settler
    assert finish(settler.settle([claims[1]], None)).owned == [True]
    assert finish(settler.requeue(claims, forgiven=False)) == [True, False, True]
    assert world.waiting(tenant) == [b"0", b"2", b"3"]


def test_a_dropped_message_leaves_nothing_behind(client: redis.Redis) -> None:
    """It had been delivered and requeued, so it had delivery counts; they are removed with it."""
    world = World(client, "drops beyond three")
    world.publish(b"old")
    assert finish(world.stores[0].settler.requeue(world.claim(1).claims, forgiven=True)) == [True]
    world.publish(b"1", b"2", b"3")
    assert world.waiting() == [b"1", b"2", b"3"]
    assert world.memory.value(world.keys.deliveries) is None


def test_no_more_messages_are_dropped_than_need_be(client: redis.Redis) -> None:
    """Four messages fit, two of each tenant. Of two new ones, one tenant has no room: one message is dropped."""
    world = World(client, "drops beyond four and two a tenant")
    world.publish(b"a", tenant=b"ann")
    world.publish(b"1", b"2", tenant=b"bob")
    chunk = [OutgoingMessage(b"b", tenant=b"ann"), OutgoingMessage(b"3", tenant=b"bob")]
    published = finish(world.stores[0].senders[0].send(chunk_ids(b"chunk" * 4, 2), chunk, lambda: False))
    assert (published.accepted, len(published.dropped)) == ([True, True], 1)
    assert (world.waiting("ann"), world.waiting("bob")) == ([b"a", b"b"], [b"2", b"3"])


@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_a_delay_that_ends_earlier_than_others_has_a_consumer_that_waits_for_it(
    client: redis.Redis, queue: str
) -> None:
    """One consumer waits for the first delay; another one waits for a delay that ends earlier."""
    world, waits = World(client, queue), []
    for due in ("+1000000000", "+2000000000", "+100000000"):
        world.publish(due.encode(), due=due)
        waits.append(world.claim(1, slice_us=LONG_SLICE_US, woken=1).wake_after is not None)
    assert waits == [True, False, True]


VERBS: dict[str, Callable[[World, Claim, Step], Any]] = {
    "settled": lambda world, claim, _: finish(world.stores[0].settler.settle([claim], None)),
    "kept": lambda world, claim, _: finish(world.stores[0].settler.settle([claim], world.terminal("failed", 3))),
    "handed off": lambda world, claim, _: finish(HandOff(world.queues[0], claim).complete(claim, [], [])),
    "requeued": lambda world, claim, _: finish(world.stores[0].settler.requeue([claim], forgiven=False)),
    "put off": lambda world, claim, _: finish(world.stores[0].settler.retry_later(claim, 100, ValueError())),
    "renewed": lambda world, claim, _: finish(world.stores[0].settler.renew([claim], 1.0)),
    "found again": lambda world, _, step: world.send_again(step),
    "taken over": lambda world, *_: world.claim(1),
}


@pytest.mark.parametrize("tenant", ["ann", ""], ids=["of a tenant", "of nobody"])
@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("more", [0, 1])
def test_an_expired_message_that_is_settled_gives_up_its_tenants_turn(
    client: redis.Redis, verb: str, tenant: str, more: int
) -> None:
    """It waits for the turn of its tenant, and its owner settles it late but in time."""
    world = World(client, "leased, any number of deliveries")
    world.publish(b"0", tenant=tenant.encode())
    (claim,) = world.claim(1, at=1).claims
    step = world.steps[-1]
    world.publish(b"x", b"y", b"z", tenant=b"bob")
    world.publish(*[b"1"] * more, tenant=tenant.encode())
    world.memory.obey("ZADD", world.keys.leases, 1, claim.token)
    assert world.claim(1).claims[0].envelope.tenant == "bob"
    assert world.scores(world.keys.expired(tenant)).keys() == {claim.token}
    VERBS[verb](world, claim, step)
    assert world.scores(world.keys.expired(tenant)) == {}
    turns = world.scores(world.keys.tenant_ring).keys()
    assert turns - {b""} == {b"bob"} | ({tenant.encode()} if more or verb == "requeued" else set()) - {b""}


@pytest.mark.parametrize("tenant", ["ann", ""], ids=["of a tenant", "of nobody"])
def test_foreign_values_do_not_hide_a_message(client: redis.Redis, tenant: str) -> None:
    """Foreign bytes in front of a message, some of which begin like one, become dead letters."""
    foreign: Sequence[bytes] = (
        *(b"", b"by hand", b"\x80short", b"\x81" + bytes(24), b"\x81" + bytes(24) + b"\xff", b"\x80" + bytes(15)),
        *(b"\x80" + b"long" * 9, b"\x87" + bytes(26)),
    )
    world = World(client, "leased, any number of deliveries")
    world.publish(b"good", tenant=tenant.encode())
    world.memory.obey("RPUSH", world.keys.tenant_pending(tenant) if tenant else world.keys.pending, *foreign)
    assert [one.envelope.payload for one in world.claim(1).claims] == [b"good"]
    assert world.memory.value(world.keys.dead_letter) == list(foreign)
