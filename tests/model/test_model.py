"""The in-memory implementation and a real server agree after every step, and no message is lost or duplicated."""

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
from redis_message_queue.protocol.claim import Claim, ClaimResult
from redis_message_queue.protocol.handoff import HandOff, HandOffTarget
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.sender import OutgoingMessage, chunk_ids
from redis_message_queue.protocol.settle import SettleReason, TerminalList
from tests.depth import often
from tests.model.backends import KEPT, KEPT_AT_MOST, OBJECTS, Backend, MemoryBackend, RedisBackend, Seen, State
from tests.protocol.port import Lost
from tests.protocol.setup import CLAIMANT, Listener
from tests.protocol.stored import is_message, unpacked

# No lease and no delay ends by itself during a test: the test moves their times.
LEASE = {"message_visibility_timeout_seconds": 300.0}
LONG_SLICE_US = 5000 * 1_000_000  # longer than any lease or delay: such a claim waits for the end of one
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


class MemoryAndRedis(RuleBasedStateMachine):
    """Does every step in both; their answers and their states must be the same."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client
        self.ids = count(1)
        self.scores = count(1)
        self.pushes = 0
        self.payloads: dict[bytes, bytes] = {}
        self.history: list[Claimed] = []  # all claimed messages
        self.latest: dict[bytes, Claimed] = {}  # the last claim of each message

    @initialize(queue=st.sampled_from(sorted(QUEUES)), waiting=st.lists(tenants, max_size=4))
    def make_queue(self, queue: str, waiting: list[bytes]) -> None:
        self.options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
        self.leased = self.options.message_visibility_timeout_seconds is not None
        self.limits: dict[str, int | None] = {**dict.fromkeys(KEPT, KEPT_AT_MOST)}
        self.limits["dlq"] = self.options.max_dead_letter_length
        self.memory, self.real = MemoryBackend(self.options), RedisBackend(self.options, self._client)
        for tenant in waiting:
            self._publish(0, [OutgoingMessage(b"", tenant=tenant)], None)

    def both(self, work: Callable[[Backend], Any]) -> Any:
        """Do it in both; an error counts as an answer."""
        of_memory, of_redis = (_outcome(work, backend) for backend in (self.memory, self.real))
        assert of_memory == of_redis
        return of_redis

    # -- the steps

    @rule(at=objects, marker=markers, lose=losses)
    def publish(self, at: int, marker: str | None, lose: str | None) -> None:
        """Publish one message by the fast path, if the queue allows it."""
        (message_id,), (payload,) = self._name(1)

        def work(backend: Backend) -> Any:
            backend.ports[at].lose = lose
            outgoing = OutgoingMessage(payload, marker and backend.keys.deduplication(marker))
            return finish(backend.stores[at].sender.send([message_id], [outgoing], lambda: False))

        self.both(work)

    @rule(
        at=objects,
        chunk=chunks,
        lose=losses,
    )
    def publish_many(self, at: int, chunk: list["Draft"], lose: str | None) -> None:
        """Publish tenants, delays and duplicates in any mixture."""
        self._publish(at, [one.outgoing(self.real.keys) for one in chunk], lose)

    def _publish(self, at: int, outgoing: list[OutgoingMessage], lose: str | None) -> None:
        ids = self._fill(outgoing)

        def work(backend: Backend) -> Any:
            backend.ports[at].lose = lose
            return finish(backend.stores[at].sender.send(ids, outgoing, lambda: False))

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
        """Complete a message, and publish its results to the same queue and to another one."""
        (claim,) = self._some(choice, 1)
        keys = (self.real.keys, self.real.other.store.keys)
        results = [[one.outgoing(to) for one in drafted] for drafted, to in zip((here, there), keys, strict=True)]
        ids = [self._fill(outgoing) for outgoing in results]

        def work(backend: Backend) -> Any:
            backend.ports[at].lose = lose
            queues = (backend.queues[at], backend.other)
            targets = [_target(*one) for one in zip(queues, ids, results, strict=True) if one[2]]
            return finish(HandOff(backend.queues[at]).complete(claim.opened(beside), targets, []))

        self.both(work)

    def _fill(self, outgoing: list[OutgoingMessage]) -> list[bytes]:
        """Set unique payloads, and return unique ids."""
        ids, payloads = self._name(len(outgoing))
        for one, payload in zip(outgoing, payloads, strict=True):
            one.payload = payload
        return ids

    def _name(self, number: int) -> tuple[list[bytes], list[bytes]]:
        """Return unique ids and payloads."""
        chunk = next(self.ids)
        ids = chunk_ids(chunk.to_bytes(14, "big") + b"..", number)
        payloads = [b"%d.%d" % (chunk, place) for place in range(number)]
        self.payloads.update(zip(ids, payloads, strict=True))
        return ids, payloads

    @rule(at=objects, count=counts, lose=losses, handled=st.booleans())
    def claim(self, at: int, count: int, lose: str | None, handled: bool) -> None:
        """Claim; the reply may be lost, or the consumer may be cancelled before its handler starts."""
        self._take(at, count, lose, handled)

    def _take(self, at: int, count: int, lose: str | None, handled: bool) -> Any:
        def work(backend: Backend) -> Any:
            claimer = backend.stores[at].claimer
            backend.ports[at].lose = lose
            attempt, listener = claimer.attempt(), Listener()
            try:
                result = finish(claimer.claim(attempt, listener, 0, count))
                if handled and result.claims:
                    attempt.apply("settle")
            finally:
                claimer.release(attempt, listener)
            result.dead = listener.dead
            return _claim_reply(result)

        return self._noted(self.both(work))

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, lose=losses)
    def ack_and_claim(self, at: int, choice: st.DataObject, beside: int, lose: str | None) -> None:
        """Send an ack along with a claim, as a loop does; if that gets no answer, the ack is sent alone."""
        (claim,) = self._some(choice, 1)

        def work(backend: Backend) -> Any:
            store, listener = backend.stores[at], Listener()
            ack, attempt = store.settler.attach([claim.opened(beside)], None), store.claimer.attempt()
            backend.ports[at].lose = lose
            result: ClaimResult | None = None
            try:
                result = finish(store.claimer.claim(attempt, listener, 0, 1, ack))
                if result.claims:
                    attempt.apply("settle")
            except Lost:
                pass  # the claim is unconfirmed now
            finally:
                store.claimer.release(attempt, listener)
            settled = finish(ack.send_alone([]))
            ack.close()
            if result is None:
                return settled, None
            result.dead = listener.dead
            return settled, _claim_reply(result)

        outcome = self.both(work)
        if isinstance(outcome, tuple):
            self._noted(outcome[1])

    @rule(at=objects)
    def take_everything(self, at: int) -> None:
        """Claim until the queue is empty: then it matters which consumer waits for the next message."""
        for _ in range(8):
            if not self._take(at, MOST, None, True).claims:
                return

    @precondition(lambda self: any(store.claimer.unconfirmed for store in self.real.stores))
    @rule(at=objects, lose=losses)
    def ask_an_unsure_claim(self, at: int, lose: str | None) -> None:
        def work(backend: Backend) -> Any:
            claimer = backend.stores[at].claimer
            backend.ports[at].lose = lose
            recovered = finish(claimer.recover(CLAIMANT))
            backend.ports[at].lose = None
            if recovered is None:
                return None
            attempt, result = recovered
            if result.claims:
                attempt.apply("settle")
            claimer.release(attempt, CLAIMANT)
            return _claim_reply(result)

        self._noted(self.both(work))

    @rule(
        at=objects,
        wanted=st.integers(0, MOST),
        woken=st.sampled_from([0, 1, 2]),
        slice_us=st.sampled_from([0, LONG_SLICE_US]),
    )
    def claim_as_a_waiter(self, at: int, wanted: int, woken: int, slice_us: int) -> None:
        """Claim with every combination of arguments that the script accepts."""

        def work(backend: Backend) -> Any:
            slot = backend.slots(at).acquire_slot()
            number = slot.next_call()
            call = backend.ports[at].call(slot.claim, (), (number, wanted, slice_us, woken))
            try:
                return _normal(finish(call), slot.nonce_of(number))
            finally:
                backend.slots(at).release_slot(slot)

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
        """Settle with the token of the owner, of one who lost the lease, or an invented one; once or again."""
        claimed = self._some(choice)

        def work(backend: Backend) -> Any:
            keep = None if kept is None else _keep(backend, kept, self.limits[kept])
            note = SettleReason("because", ValueError("äöü"), 0.5)
            return _settled(backend, at, lose, lambda settler: settler.settle(_opened(claimed, beside), keep, note))

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(
        at=objects,
        choice=st.data(),
        beside=beside,
        forgiven=st.booleans(),
        lose=losses,
    )
    def requeue(self, at: int, choice: st.DataObject, beside: int, forgiven: bool, lose: str | None) -> None:
        claimed = self._some(choice)

        def work(backend: Backend) -> Any:
            opened = _opened(claimed, beside)
            return _settled(backend, at, lose, lambda settler: settler.requeue(opened, forgiven=forgiven))

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside, seconds=delays, lose=losses)
    def retry_later(self, at: int, choice: st.DataObject, beside: int, seconds: int, lose: str | None) -> None:
        """Retry a message whose handler failed."""
        (claim,) = self._some(choice, 1)

        def work(backend: Backend) -> Any:
            return _settled(
                backend, at, lose, lambda settler: settler.retry_later(claim.opened(beside), seconds, ValueError())
            )

        self.both(work)

    @precondition(lambda self: self.history)
    @rule(at=objects, choice=st.data(), beside=beside)
    def renew(self, at: int, choice: st.DataObject, beside: int) -> None:
        claimed = self._some(choice)
        self.both(lambda backend: finish(backend.stores[at].settler.renew(_opened(claimed, beside), 1.0)))

    @precondition(lambda self: self.state.leased)
    @rule(choice=st.data(), taken_by=st.one_of(st.none(), objects), count=counts)
    def let_leases_run_out(self, choice: st.DataObject, taken_by: int | None, count: int) -> None:
        """Let leases expire in any order; a consumer may claim the first of them at once."""
        chosen = st.lists(st.sampled_from(self.state.leased), unique=True, min_size=1)
        ids = self._in_the_past(choice.draw(chosen | st.just(self.state.leased)))
        self.both(lambda backend: backend.let_run_out(ids))
        if taken_by is not None:
            self._take(taken_by, count, None, True)

    @precondition(lambda self: self.state["delayed"])
    @rule(choice=st.data(), taken_by=st.one_of(st.none(), objects), count=counts)
    def let_delays_end(self, choice: st.DataObject, taken_by: int | None, count: int) -> None:
        ids = self._in_the_past(choice.draw(st.lists(st.sampled_from(self.state["delayed"]), unique=True, min_size=1)))
        self.both(lambda backend: backend.let_delays_end(ids))
        if taken_by is not None:
            self._take(taken_by, count, None, True)

    def _in_the_past(self, names: list[bytes]) -> dict[bytes, int]:
        return {name: next(self.scores) for name in names}

    @precondition(lambda self: self.options.message_ttl_seconds is not None and self.payloads)
    @rule(choice=st.data())
    def let_messages_grow_old(self, choice: st.DataObject) -> None:
        """Let messages exceed their time to live, wherever they are."""
        ids = choice.draw(st.sets(st.sampled_from(sorted(self.payloads)), min_size=1, max_size=4))
        self.both(lambda backend: backend.let_grow_old(ids))

    @precondition(lambda self: self.real.calls)
    @rule(back=st.integers(0, 1000))
    def send_an_earlier_call_again(self, back: int) -> None:
        """Send a call again, at once or long after its caller has gone on."""
        number = len(self.real.calls) - 1 - back % len(self.real.calls)
        self.both(lambda backend: _normal(backend.send_again(number)))

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
        """Write foreign values into the pending list."""
        self.pushes += 1
        self.both(lambda backend: backend.push_foreign(values))

    @precondition(lambda self: self.state["wakeup"])
    @rule()
    def take_the_token(self) -> None:
        self.both(lambda backend: backend.take_token())

    # -- the invariants

    @invariant()
    def the_states_agree_and_are_sound(self) -> None:
        self.state = self.real.state()
        assert self.memory.state() == self.state
        self._check_every_accepted_message_is_in_exactly_one_place()
        self._check_that_the_keys_fit_together()
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

    def _check_that_the_keys_fit_together(self) -> None:
        """A claimed message has a lease or lost it, counts belong to messages, there is at most one wake-up token."""
        state = self.state
        in_flight = [token[:16] for token in (*state.leased, *state.expired)]
        assert sorted(in_flight) == (sorted(state["processing"]) if self.leased else [])
        assert sorted(state["delayed"]) == sorted(state["delayed_messages"])
        assert state["tenant_backlog"] == len(state.waiting) - len(state["pending"])
        in_line = {one.id for one in state.waiting if isinstance(one, Seen)}
        assert state.flagged == state["deliveries"].keys()
        assert state.flagged <= in_line | {name[:16] for name in state["processing"]} | state["delayed_messages"].keys()
        assert len(state["wakeup"]) <= 1

    def _check_who_takes_turns(self) -> None:
        """A tenant is in the ring if and only if it has messages to deliver."""
        state = self.state
        ring = {tenant for tenant, _ in state["tenant_ring"]}
        with_work = state.by_tenant("tenant_pending").keys() | state.by_tenant("expired").keys()
        assert ring - {b""} == with_work - {b""}
        assert b"" not in ring or state["pending"] or b"" in with_work
        assert b"" not in with_work or b"" in ring

    def _check_the_alarms(self) -> None:
        """An alarm may be early; if it were late or missing, messages would not be delivered in time."""
        due, delays = self.state.due, self.state.delays
        assert (due.get(b"r") == 0) == bool(self.state["tenant_ring"])
        assert not delays or due[b"d"] <= min(delays.values())

    def _check_that_records_lie_beside_their_payloads(self) -> None:
        for word in KEPT:
            recorded = [(one["bytes"], one["sha1"]) for one in self.state[f"records::{word}"]]
            assert recorded == [(len(one), hashlib.sha1(one).hexdigest()) for one in self.state[word]]

    def _accounts(self) -> tuple[set[bytes], set[bytes]]:
        """Return the ids that were accepted and those that left the queue, as the replies of the scripts say."""
        accepted: set[bytes] = set()
        gone: set[bytes] = set()
        for call, answer in self.real.executed():
            if call.verb == "publish" and answer == 1:
                accepted.add(call.given["head"][1:])
            elif call.verb == "enqueue" and answer != b"-":
                ids = chunk_ids(
                    call.given["base"], len(call.rest) // {"bare": 1, "ready": 2, "full": 3}[call.given["form"]]
                )
                accepted.update(_marked(ids, answer))
                gone.update(answer[at : at + 16] for at in range(len(ids), len(answer), 16))
            elif (call.verb, answer) == ("ack_one", b"1") or (call.verb == "ack_and_take" and answer):
                gone.add(call.given["token"][:16])
            elif call.verb == "settle" and not call.extra_keys:
                tokens = call.given["tokens"]
                gone.update(_marked([tokens[at : at + 16] for at in range(0, len(tokens), 36)], answer))
            elif call.verb == "hand_off" and answer[:1] == b"1":
                ids = _handed_off(call.rest)
                accepted.update(_marked(ids, answer[1:]))
                gone.update(_dropped_by_targets(answer[1 + len(ids) :]))
                gone.update([call.given["tokens"][:16]] if call.given["kept_limit"] == -1 else [])
        return accepted, gone

    def _noted(self, reply: Any) -> Any:
        for one in reply.claims if isinstance(reply, ClaimReply) else ():
            self.history.append(one)
            self.latest[one.id] = one
        return reply

    def _some(self, choice: st.DataObject, most: int = MOST) -> list["Claimed"]:
        """Choose messages that are claimed now, and sometimes messages that were claimed earlier."""
        claimed = [
            one for key, one in sorted(self.latest.items()) if key in {name[:16] for name in self.state["processing"]}
        ]
        of_all = st.sampled_from(claimed * 4 + self.history[-12:])
        return choice.draw(st.lists(of_all, min_size=1, max_size=most, unique_by=lambda one: one.id))


def _dropped_by_targets(reply: bytes) -> Iterator[bytes]:
    """Yield the ids of dropped messages: for each target their number in two bytes, then the ids."""
    while reply:
        end = 2 + 16 * int.from_bytes(reply[:2], "big")
        yield from (reply[at : at + 16] for at in range(2, end, 16))
        reply = reply[end:]


class Claimed:
    """A claimed message, without what depends on a clock."""

    def __init__(self, claim: Claim) -> None:
        envelope, numbers = claim.envelope, (claim.attempt, claim.delivery_count or 0, claim.failures)
        self.facts = (envelope.id, envelope.tenant, envelope.payload, *numbers, claim.reclaimed)
        self.id, self.token, self._claim = envelope.id, claim.token, claim

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claimed) and self.facts == other.facts

    def __hash__(self) -> int:
        return hash(self.facts)

    def __repr__(self) -> str:
        return f"Claimed{self.facts}"

    def opened(self, beside: int) -> Claim:
        """Return the claim as the protocol has it, with another token if ``beside`` is not 0."""
        nonce = self._claim.nonce
        return replace(self._claim, nonce=nonce[:-1] + bytes([(nonce[-1] + beside) % 256]))


class ClaimReply:
    """The reply to a claim, without what depends on a clock."""

    def __init__(self, claims: list[Claimed], dead: Any = (), again: bool = False, watches: bool = False) -> None:
        self.claims = claims
        self.rest = (dead, again, watches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClaimReply) and (self.claims, self.rest) == (other.claims, other.rest)

    def __repr__(self) -> str:
        return f"ClaimReply({self.claims}, {self.rest})"


def _claim_reply(found: ClaimResult) -> ClaimReply:
    claimed = [Claimed(claim) for claim in found.claims]
    return ClaimReply(claimed, found.dead, found.again, found.wake_after is not None)


def _normal(answer: Any, nonce: bytes = bytes(20)) -> Any:
    """Return the reply of a script in a form that both implementations share."""
    if isinstance(answer, bytes) and is_message(answer):
        return ClaimReply([Claimed(Claim(Envelope(answer), 0.0, nonce))])
    if isinstance(answer, bytes) and answer[:1] >= b"\x90":
        return ClaimReply([Claimed(Claim(Envelope(one), 0.0, nonce)) for one in unpacked(answer)])
    if not isinstance(answer, list):
        return answer
    again, wait_us, dead, notes, *parts = answer
    assert wait_us == -1 or 0 < wait_us < LONG_SLICE_US
    claimed = [_ticketed(*pair, nonce) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return ClaimReply(claimed, (dead, notes), bool(again), wait_us > 0)


def _ticketed(stored: bytes, ticket: bytes, nonce: bytes) -> Claimed:
    attempt, times, origin, failures = ticket.split(b":")
    return Claimed(Claim(Envelope(stored), 0.0, nonce, int(attempt), int(times), origin == b"lease", int(failures)))


class Draft(NamedTuple):
    """A message to publish."""

    tenant: bytes
    marker: str | None
    delay: str | None
    extras: bytes

    def outgoing(self, keys: QueueKeys) -> OutgoingMessage:
        marker = None if self.marker is None else keys.deduplication(self.marker)
        return OutgoingMessage(b"", marker, self.tenant, _due(self.delay), self.extras)


def _target(queue: QueueProtocol, ids: list[bytes], messages: list[OutgoingMessage]) -> HandOffTarget:
    target = HandOffTarget(queue, ids[0])
    target.messages = messages
    return target


def _opened(claimed: list[Claimed], beside: int) -> list[Claim]:
    return [one.opened(beside) for one in claimed]


def _due(delay: str | None) -> str:
    """Return a delay in microseconds; a time of the server's clock stays as it is."""
    return f"{delay}000000" if delay and delay.startswith("+") else delay or ""


def _keep(backend: Backend, word: str, limit: int | None) -> TerminalList:
    key = backend.keys.dead_letter if word == "dlq" else getattr(backend.keys, word)
    return TerminalList(key, backend.keys.records(word), limit)


def _settled(backend: Backend, at: int, lose: str | None, work: Callable[[Any], Any]) -> Any:
    backend.ports[at].lose = lose
    return finish(work(backend.stores[at].settler))


def _settle(claim: Claim) -> Callable[[Any], Any]:
    return lambda settler: settler.settle([claim], None)


def _give_back(claims: list[Claim], *, forgiven: bool) -> Callable[[Any], Any]:
    return lambda settler: settler.requeue(claims, forgiven=forgiven)


def _outcome(work: Callable[[Backend], Any], backend: Backend) -> Any:
    try:
        return work(backend)
    except (Lost, RedisMessageQueueError) as error:
        return type(error)


def _marked(ids: Any, answer: bytes) -> list[bytes]:
    return [one for place, one in enumerate(ids) if answer[place : place + 1] == b"1"]


def _handed_off(rest: Any) -> list[bytes]:
    """The ids of all messages of all targets."""
    ids: list[bytes] = []
    while rest:
        base, _, number = rest[6:9]
        ids += chunk_ids(base, number)
        rest = rest[9 + 3 * number :]
    return ids


def _places(state: State, message_id: bytes, payload: bytes) -> int:
    return state.places(message_id) + sum(int(state[word].count(payload)) for word in KEPT)


STEADY = settings(
    max_examples=often(50, 150),
    stateful_step_count=40,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    derandomize=os.environ.get("CI") == "true",
)


@pytest.mark.timeout(600)  # only a failure takes long: hypothesis shortens its steps
def test_memory_and_redis_agree_and_no_message_is_lost_or_duplicated(client: redis.Redis) -> None:
    """Any sequence of calls by several callers, with losses, repetitions and late calls."""
    run_state_machine_as_test(lambda: MemoryAndRedis(client), settings=STEADY)  # type: ignore[arg-type]  # any factory will do


def _worlds(client: redis.Redis, queue: str) -> tuple[MemoryBackend, RedisBackend]:
    options = GatewayOptions(retry_budget_seconds=0, **QUEUES[queue])
    backends = MemoryBackend(options), RedisBackend(options, client)
    for backend in backends:
        for at in range(OBJECTS):
            finish(backend.slots(at).write_state())
    return backends


def _publish(backend: Backend, payloads: list[bytes], **details: Any) -> None:
    """Publish each message with its own id."""
    for payload in payloads:
        ids = chunk_ids(payload * 16, 1)
        assert finish(backend.stores[0].sender.send(ids, [OutgoingMessage(payload, **details)], lambda: False)).accepted


def _claimed(backend: Backend, count: int, at: int = 0) -> ClaimReply:
    slot = backend.slots(at).acquire_slot()
    number = slot.next_call()
    try:
        answer = finish(backend.ports[at].call(slot.claim, (), (number, count, 0, 0)))
        reply: ClaimReply = _normal(answer, slot.nonce_of(number))
        return reply
    finally:
        backend.slots(at).release_slot(slot)


@pytest.mark.parametrize("queue", sorted(QUEUES))
def test_memory_and_redis_set_aside_equally_many_foreign_values_in_one_call(client: redis.Redis, queue: str) -> None:
    """If there are more than one call may set aside, both ask for another call equally often."""
    results = []
    for backend in _worlds(client, queue):
        backend.push_foreign([b"by hand"] * 2500)
        results.append(([_claimed(backend, 1) for _ in range(4)], backend.state()))
    assert results[0] == results[1]
    assert [one.rest[1] for one in results[1][0]] == [True, True, False, False]


@pytest.mark.parametrize("tenant", [b"", b"ann"], ids=["in the line", "of a tenant"])
@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_messages_that_are_requeued_together_keep_their_order(client: redis.Redis, queue: str, tenant: bytes) -> None:
    """Three of four were claimed together and one was settled: the others come first again, in their order."""
    for backend in _worlds(client, queue):
        _publish(backend, [b"0", b"1", b"2", b"3"], tenant=tenant)
        claims = _opened(_claimed(backend, 3).claims, 0)
        assert _settled(backend, 0, None, _settle(claims[1])).owned == [True]
        given = _settled(backend, 0, None, _give_back(claims, forgiven=False))
        assert given == [True, False, True]
        assert [one.payload for one in backend.state().waiting] == [b"0", b"2", b"3"]


def test_a_dropped_message_leaves_nothing_behind(client: redis.Redis) -> None:
    """It had been delivered and requeued, so it had delivery counts; they are removed with it."""
    for backend in _worlds(client, "drops beyond three"):
        _publish(backend, [b"old"])
        claims = _opened(_claimed(backend, 1).claims, 0)
        assert _settled(backend, 0, None, _give_back(claims, forgiven=True)) == [True]
        _publish(backend, [b"1", b"2", b"3"])
        state = backend.state()
        assert [one.payload for one in state.waiting] == [b"1", b"2", b"3"]
        assert state["deliveries"] == {}


def test_no_more_messages_are_dropped_than_need_be(client: redis.Redis) -> None:
    """Four messages fit, two of each tenant. Of two new ones, one tenant has no room: one message is dropped."""
    for backend in _worlds(client, "drops beyond four and two a tenant"):
        _publish(backend, [b"a"], tenant=b"ann")
        _publish(backend, [b"1", b"2"], tenant=b"bob")
        chunk = [OutgoingMessage(b"b", tenant=b"ann"), OutgoingMessage(b"3", tenant=b"bob")]
        published = finish(backend.stores[0].sender.send(chunk_ids(b"chunk" * 4, 2), chunk, lambda: False))
        assert (published.accepted, len(published.dropped)) == ([True, True], 1)
        lines = backend.state().by_tenant("tenant_pending")
        assert {tenant: [one.payload for one in line] for tenant, line in lines.items()} == {
            b"ann": [b"a", b"b"],
            b"bob": [b"2", b"3"],
        }


@pytest.mark.parametrize("queue", ["leased, any number of deliveries", "at most once"])
def test_a_delay_that_ends_earlier_than_others_has_a_consumer_that_waits_for_it(
    client: redis.Redis, queue: str
) -> None:
    """One consumer waits for the first delay; another one waits for a delay that ends earlier."""
    for backend in _worlds(client, queue):
        slot = backend.slots(0).acquire_slot()
        watches = []
        for due in ("+1000000000", "+2000000000", "+100000000"):
            _publish(backend, [due.encode()], due=due)
            question = (slot.next_call(), 1, LONG_SLICE_US, 1)
            watches.append(_normal(finish(backend.ports[0].call(slot.claim, (), question))).rest[2])
        assert watches == [True, False, True]


VERBS: dict[str, Callable[[Backend, Claim, int], Any]] = {
    "settled": lambda backend, claim, _: finish(backend.stores[0].settler.settle([claim], None)),
    "kept": lambda backend, claim, _: finish(backend.stores[0].settler.settle([claim], _keep(backend, "failed", 3))),
    "handed off": lambda backend, claim, _: finish(HandOff(backend.queues[0]).complete(claim, [], [])),
    "requeued": lambda backend, claim, _: finish(backend.stores[0].settler.requeue([claim], forgiven=False)),
    "put off": lambda backend, claim, _: finish(backend.stores[0].settler.retry_later(claim, 100, ValueError())),
    "renewed": lambda backend, claim, _: finish(backend.stores[0].settler.renew([claim], 1.0)),
    "found again": lambda backend, _, call: _normal(backend.send_again(call)),
    "taken over": lambda backend, *_: _claimed(backend, 1),
}


@pytest.mark.parametrize("tenant", [b"ann", b""], ids=["of a tenant", "of nobody"])
@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("more", [0, 1])
def test_an_expired_message_that_is_settled_gives_up_its_tenants_turn(
    client: redis.Redis, verb: str, tenant: bytes, more: int
) -> None:
    """It waits for the turn of its tenant, and its owner settles it late but in time."""
    results = []
    for backend in _worlds(client, "leased, any number of deliveries"):
        _publish(backend, [b"0"], tenant=tenant)
        (claimed,) = _claimed(backend, 1, at=1).claims
        call = len(backend.calls) - 1
        _publish(backend, [b"x", b"y", b"z"], tenant=b"bob")
        _publish(backend, [b"1"] * more, tenant=tenant)
        backend.let_run_out({claimed.token: 1})
        assert _claimed(backend, 1).claims[0].facts[1] == "bob"
        assert backend.state().expired == [claimed.token]
        answer = VERBS[verb](backend, claimed.opened(0), call)
        results.append((answer, backend.state()))
    assert results[0] == results[1]
    state = results[1][1]
    assert state.expired == []
    waits = {one for one, _ in state["tenant_ring"]}
    assert waits - {b""} == {b"bob"} | ({tenant} if more or verb == "requeued" else set()) - {b""}


@pytest.mark.parametrize("tenant", [b"ann", b""], ids=["of a tenant", "of nobody"])
def test_foreign_values_do_not_hide_a_message(client: redis.Redis, tenant: bytes) -> None:
    """Foreign bytes in front of a message, some of which begin like one, become dead letters."""
    foreign = [b"", b"by hand", b"\x81" + bytes(24), b"\x81" + bytes(24) + b"\xff", b"\x80" + bytes(15)]
    for backend in _worlds(client, "leased, any number of deliveries"):
        _publish(backend, [b"good"], tenant=tenant)
        backend.put_in_front(backend.keys.tenant_pending(tenant.decode()) if tenant else backend.keys.pending, foreign)
        assert [one.facts[2] for one in _claimed(backend, 1).claims] == [b"good"]
        assert backend.state()["dlq"] == foreign


@pytest.mark.parametrize("tenant", [b"ann", b"cid", b"dan"], ids=["weight 3", "weight 1", "no weight"])
def test_one_message_of_a_tenant_is_claimed_in_the_short_way_whatever_its_weight(
    client: redis.Redis, tenant: bytes
) -> None:
    """The answer of the short way has no list of dead letters, so the two worlds must choose alike."""
    both = MemoryAndRedis(client)
    try:
        both.make_queue(queue="leased, with weights", waiting=[])
        both.publish_many(at=0, chunk=[Draft(tenant, None, None, b"")], lose=None)
        both.claim_as_a_waiter(at=0, slice_us=0, wanted=1, woken=0)
    finally:
        both.teardown()
