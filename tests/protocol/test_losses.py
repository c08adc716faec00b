"""Whatever is lost between a queue object and Redis, no message is lost, duplicated or handled twice."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

import pytest

from redis_message_queue.protocol.port import attempt_ends_at, finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.publish.sender import OutgoingMessage, chunk_ids
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.batch import ProcessMessages
from redis_message_queue.sync.message_queue import ProcessMessage
from redis_message_queue.values.errors import CleanupFailedError, QueueBackpressureError, RetryBudgetExhaustedError
from tests.depth import often
from tests.protocol.port import REPLY, REQUEST, Loss, Lost, late
from tests.protocol.setup import (
    CLAIMANT,
    DELAY,
    LATER,
    LEASE,
    HandlerError,
    Setup,
    check_that_slots_are_acquired_once,
    process_all,
    requeue,
)

RETRIES = {"retry_budget_seconds": 10.0}
NO_RETRIES = {"retry_budget_seconds": 0.0}  # every lost call is reported at once, and its outcome is unknown


class FailsForNow(Exception):
    """What a handler raises when another attempt may help."""


ONLY_FOR_NOW = dataclasses.replace(LATER, retry_on=(FailsForNow,))
PUBLISHING: dict[str, dict[str, Any]] = {
    "p": {},
    "t": {"tenant": "ann"},
    "d": {"delay_seconds": DELAY},
    "m": {"number": 3},
    "n": {"number": 3, "tenant": "bob"},
}


class Scenario:
    """What one queue object is asked to do, letter by letter, over a port that loses some of its calls.

    p publishes a message, t one of a tenant, d one for later, m several at once, n several of a tenant at once;
    a handles a message and acks it, f fails it, y fails it for now, r renews its lease and then acks it, b gives it
    back; c handles a batch, e requeues one because its handler fails.
    """

    def __init__(self, letters: str, losses: dict[int, Loss], **settings: object) -> None:
        self.letters = letters
        self.settings = settings
        self.setup = Setup(**settings)
        self.port = self.setup.port(losses)
        self.queue: QueueProtocol = self.setup.queue(self.port, retry_policy=ONLY_FOR_NOW)
        self.accepted: set[bytes] = set()
        self.unconfirmed: set[bytes] = set()
        self.seen: Counter[str | bytes] = Counter()
        self.requeued: Counter[str | bytes] = Counter()
        self.errors: list[Exception] = []
        for letter in letters:
            self._do(letter)
        self.setup.memory.run_all_late_requests()

    def _do(self, letter: str) -> None:
        try:
            if letter in PUBLISHING:
                self._publish(**PUBLISHING[letter])
            elif letter in "ce":
                self._process_batch(letter)
            else:
                self._process(letter)
        except (HandlerError, FailsForNow):
            pass
        except (RetryBudgetExhaustedError, CleanupFailedError, Lost) as error:
            self.errors.append(error)

    def _publish(self, number: int = 1, **details: Any) -> None:
        first = len(self.accepted) + len(self.unconfirmed)
        payloads = {b"%d" % place for place in range(first, first + number)}
        self.unconfirmed |= payloads
        messages = sorted(payload.decode() for payload in payloads)
        if number == 1:
            assert finish(self.queue.publish(messages[0], **details))
        else:
            assert finish(self.queue.publisher.publish_many(messages, PublishOverrides(**details))) == [True] * number
        self.unconfirmed -= payloads
        self.accepted |= payloads

    def _process(self, letter: str) -> None:
        context = ProcessMessage(self.queue)
        with context as payload:
            if payload is None:
                return
            self.seen[payload] += 1
            block = context._block
            assert block is not None and block.claimed is not None
            if letter == "f":
                raise HandlerError
            if letter == "y":
                self.requeued[payload] += 1
                raise FailsForNow
            if letter == "r":
                assert finish(self.queue.store.settler.renew([block.claimed], 10.0)) == [True]
            if letter == "b":
                block.is_left_alone = True
                self.requeued[payload] += 1  # also if unconfirmed: then it may be seen again, and need not be
                assert finish(requeue(self.queue, block.claimed, forgiven=True))

    def _process_batch(self, letter: str) -> None:
        with ProcessMessages(self.queue, 2, 0) as batch:
            payloads = [message.payload for message in batch]
            self.seen.update(payloads)
            if letter == "e":
                self.requeued.update(payloads)
                raise HandlerError

    def handle_the_rest(self) -> None:
        """The losses are over; the same object goes on, until nothing waits any more."""
        self.port.losses.clear()
        self.seen.update(process_all(self.queue))
        self.setup.let_delays_end()
        self.seen.update(process_all(self.queue))

    def check_that_nothing_is_lost_or_doubled(self) -> None:
        places = self.setup.places
        for payload in self.accepted:
            assert places[payload] == 1, f"{payload!r} is in {places[payload]} places"
        for payload in self.unconfirmed:
            assert places[payload] <= 1, f"{payload!r} is in {places[payload]} places"
        check_that_slots_are_acquired_once(self.queue)


def scenarios(letters: str, length: int) -> list[str]:
    """Every sequence that begins with a publish."""
    return ["p" + "".join(rest) for rest in product(letters, repeat=length - 1)]


def losses_of(undisturbed: "Scenario", most: int, kinds: tuple[Loss, ...]) -> Iterator[dict[int, Loss]]:
    """Every choice of up to ``most`` of the scenario's calls, repetitions included, and every way of losing each."""
    calls = len(Scenario(undisturbed.letters, {}, **undisturbed.settings).port.sent)
    for count in range(1, most + 1):
        for places in combinations(range(calls + count - 1), count):
            for ways in product(kinds, repeat=count):
                yield dict(zip(places, ways, strict=True))


@contextmanager
def shown(losses: dict[int, Loss]) -> Iterator[None]:
    """Say with a failure what had been lost."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with these calls lost: {losses}")
        raise


def played(scenario: str, losses: dict[int, Loss], **settings: object) -> Scenario:
    """Return the scenario after it has run and the remaining messages were handled; nothing is pending any more."""
    one = Scenario(scenario, losses, **settings)
    one.handle_the_rest()
    one.check_that_nothing_is_lost_or_doubled()
    assert not one.setup.waiting
    return one


def ids(settings: list[dict[str, float | None]]) -> list[str]:
    return ["leased" if one["message_visibility_timeout_seconds"] else "at-most-once" for one in settings]


LEASED, AT_MOST_ONCE = ({"message_visibility_timeout_seconds": lease} for lease in (30.0, None))
in_full = pytest.mark.in_full
leased_or_not = pytest.mark.parametrize("lease", [LEASED, AT_MOST_ONCE], ids=ids([LEASED, AT_MOST_ONCE]))


TENANTS_AND_DELAYS = ["tpa", "tba", "tfa", "da", "dya", "tya", "ptya"]
BATCHES = ["mc", "nc", "mec", "tpc", "tpec", "mba", "my"]


# With retries: each call is repeated under its number, and gets the same reply again


def check_as_if_nothing_had_happened(scenario: str, losses: dict[int, Loss], undisturbed: Scenario) -> None:
    disturbed = played(scenario, losses, **undisturbed.settings)
    assert (disturbed.errors, disturbed.unconfirmed) == ([], set())
    assert disturbed.seen == undisturbed.seen
    assert disturbed.setup.completed == undisturbed.setup.completed
    assert disturbed.setup.failed == undisturbed.setup.failed
    assert not disturbed.setup.processing


@pytest.mark.parametrize("scenario", [*scenarios("pafrb", 3)[:: often(5, 1)], "ppafa", *TENANTS_AND_DELAYS, *BATCHES])
def test_two_losses_anywhere_are_as_if_nothing_had_happened(scenario):
    undisturbed = played(scenario, {}, **RETRIES | LEASED)
    for losses in losses_of(undisturbed, 2, (REQUEST, REPLY)):
        with shown(losses):
            check_as_if_nothing_had_happened(scenario, losses, undisturbed)


@pytest.mark.parametrize("scenario", ["pa", "pf", "pba", "ppa", "tda", "mc", "nec", "tya"])
def test_two_losses_without_leases_are_as_if_nothing_had_happened(scenario):
    undisturbed = played(scenario, {}, **RETRIES | AT_MOST_ONCE)
    for losses in losses_of(undisturbed, 2, (REQUEST, REPLY)):
        with shown(losses):
            check_as_if_nothing_had_happened(scenario, losses, undisturbed)


@pytest.mark.parametrize("scenario", ["pa", "pf", "pr", "pb", pytest.param("pba", marks=in_full), "py", "nc"])
def test_three_losses_in_a_row_or_apart_are_as_if_nothing_had_happened(scenario):
    undisturbed = played(scenario, {}, **RETRIES | LEASED)
    for losses in losses_of(undisturbed, 3, (REQUEST, REPLY)):
        with shown(losses):
            check_as_if_nothing_had_happened(scenario, losses, undisturbed)


@pytest.mark.parametrize(
    ("scenario", "lease"),
    [("ppaa", LEASED), ("papa", AT_MOST_ONCE), ("mcd", LEASED), ("mcd", AT_MOST_ONCE)]
    + [pytest.param(*one, marks=in_full) for one in (("ppaa", AT_MOST_ONCE), ("papa", LEASED))]
    + [pytest.param(one, lease, marks=in_full) for one in ("pbfa", "tpy") for lease in (LEASED, AT_MOST_ONCE)],
    ids=lambda value: value if isinstance(value, str) else ids([value])[0],
)
def test_a_late_request_that_arrives_after_its_repetition_changes_nothing(scenario, lease):
    """Its number has been answered, or is lower than one that has."""
    undisturbed = played(scenario, {}, **RETRIES | lease)
    for losses in losses_of(undisturbed, 2, (late(0), late(2), REPLY)):
        with shown(losses):
            check_as_if_nothing_had_happened(scenario, losses, undisturbed)


# Without retries: a lost call is reported, its outcome is unknown, and the same object continues


@leased_or_not
@pytest.mark.parametrize(
    "scenario", [*scenarios("pab", 3)[:: often(2, 1)], "pfa", "ppf", "tba", "tpa", "dya", "tya", "mc", "nec"]
)
def test_after_an_unknown_outcome_every_message_is_in_one_place_and_seen_once(scenario, lease):
    """A claim whose reply was lost is recovered; what was unconfirmed is there once, or not at all."""
    for losses in losses_of(played(scenario, {}, **NO_RETRIES | lease), 2, (REQUEST, REPLY, late(1))):
        with shown(losses):
            one = played(scenario, losses, **NO_RETRIES | lease)
            for payload in one.accepted:
                assert 1 <= one.seen[payload] <= 1 + one.requeued[payload]
            for payload in one.unconfirmed:
                assert one.seen[payload] <= 1 + one.requeued[payload]


@pytest.mark.parametrize(
    ("scenario", "most"),
    [("pa", 3), ("pr", 3), ("pfa", 2), ("pba", 2), ("ppaa", 2), ("py", 2), ("tpa", 2), ("mca", 2), ("nec", 2)],
)
def test_what_could_not_be_settled_comes_back_when_its_lease_runs_out(scenario, most):
    """Then, and only then, a handler sees a message a second time."""
    for losses in losses_of(played(scenario, {}, **NO_RETRIES | LEASED), most, (REQUEST, REPLY)):
        with shown(losses):
            one = played(scenario, losses, **NO_RETRIES | LEASED)
            held = Counter(one.setup.processing)
            assert held <= one.seen
            one.setup.let_leases_run_out()
            assert Counter(process_all(one.queue)) == held
            one.check_that_nothing_is_lost_or_doubled()
            assert not one.setup.processing


# One loss, told in full


def test_a_claim_whose_reply_was_lost_is_repeated_under_its_number_and_recovered():
    one = Scenario("pa", {1: REPLY}, **RETRIES | LEASED)
    assert one.port.verbs() == ["publish", "claim", "claim", "settle"]
    _, first, second, _ = one.port.sent
    assert first.given["call"] == second.given["call"]
    assert one.seen == {b"0": 1}


def test_after_an_exhausted_budget_the_next_claim_recovers_the_unconfirmed_one_first():
    """The message that nobody saw goes first, before anything that still waits in the line."""
    one = Scenario("ppa", {2: REPLY}, **NO_RETRIES | LEASED)
    assert one.setup.processing == [b"0"]
    assert len(one.queue.store.claimer.unconfirmed) == 1
    one.handle_the_rest()
    lost, asked = one.port.sent[2], one.port.sent[3]
    assert (asked.given["call"], asked.given["count"]) == (lost.given["call"], 0)
    assert list(one.seen) == [b"0", b"1"]
    assert len(one.queue.store.claimer.unconfirmed) == 0


def test_a_claim_whose_answer_comes_after_its_lease_asks_again_before_the_handler_starts():
    """The message is still ours: the question renews its lease, and it is not delivered twice for that."""
    setup = Setup(message_wait_interval_seconds=200)
    finish(setup.queue().publish("a"))
    port = setup.port(latency=0.6 * LEASE)
    setup.memory.at(1.1 * LEASE, lambda: setattr(port, "latency", 0.0))
    with ProcessMessage(setup.queue(port)) as payload:
        assert payload == b"a"
        first, second = port.sent
    assert (second.given["call"], second.given["count"]) == (first.given["call"], 0)
    assert process_all(setup.queue()) == []


def test_a_claim_whose_answer_comes_after_another_consumer_took_over_starts_no_handler():
    """Another consumer has handled the message by then."""
    setup = Setup()
    finish(setup.queue().publish("a"))
    port, seen = setup.port(latency=0.5 * LEASE), []
    setup.memory.at(0.4 * LEASE, lambda: setattr(port, "latency", 1.5 * LEASE))  # of the way back
    setup.memory.at(1.6 * LEASE, lambda: seen.extend(process_all(setup.queue())))
    setup.memory.at(1.7 * LEASE, lambda: setattr(port, "latency", 0.0))
    with ProcessMessage(setup.queue(port)) as payload:
        assert payload is None
    assert seen == [b"a"]
    assert setup.completed == [b"a"]


def test_the_second_request_of_a_claim_ends_at_the_limit_of_its_first(monkeypatch: pytest.MonkeyPatch):
    """The short script meets another case after a long way: what is sent then has less time left."""
    setup = Setup(message_wait_interval_seconds=0, **RETRIES)
    port, ends = setup.port(), []
    queue = setup.queue(port)
    finish(queue.publish("plain"))
    with ProcessMessage(queue) as payload:
        assert payload == b"plain"
    finish(queue.publish("of a tenant", tenant="ann"))
    port.socket_timeout, port.latency, at = 1.0, 0.4, len(port.sent)
    call, limit = port.call, port.now() + queue.store.calls.listening_seconds

    async def noted_call(*request: Any) -> Any:
        ends.append(attempt_ends_at())
        return await call(*request)

    monkeypatch.setattr(port, "call", noted_call)
    with ProcessMessage(queue):
        assert [one.verb for one in port.sent[at:]] == ["take", "claim"]
    assert ends[0] is None and ends[1] == pytest.approx(limit, abs=0.01)


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_passing_on_a_wakeup_ends_at_the_limit_of_its_claim(seconds: float):
    """A claim with a time limit must be over then; a lost wake-up costs the others a slice."""
    setup = Setup(retry_budget_seconds=10.0)
    port = setup.port(dict.fromkeys(range(500), REQUEST))
    claimer, started = setup.store(port).parts[0].claimer, port.now()
    finish(claimer.notify(started + seconds))
    assert port.now() - started <= seconds + 0.01


def test_an_unconfirmed_claim_that_never_arrived_never_will():
    """The recovery uses up the number: the late request finds a reply, and claims nothing any more."""
    one = Scenario("pa", {1: late(1)}, **NO_RETRIES | LEASED)
    one.handle_the_rest()
    one.setup.memory.run_all_late_requests()
    assert one.seen == {b"0": 1}
    assert not one.setup.processing


def test_the_question_after_an_unconfirmed_claim_can_be_lost_as_well():
    one = Scenario("paaa", {1: REPLY, 2: REPLY, 3: REQUEST}, **NO_RETRIES | LEASED)
    assert len(one.errors) == 3
    one.handle_the_rest()
    assert one.seen == {b"0": 1}


def test_several_unconfirmed_claims_are_all_recovered():
    """Two consumers of one object lost their replies: both messages are found, each once."""
    one = Scenario("pp", {}, **NO_RETRIES | LEASED)
    claimer = one.queue.store.claimer
    one.port.losses = {2: REPLY, 3: REPLY}
    attempts = [claimer.attempt(), claimer.attempt()]
    for attempt in attempts:
        with pytest.raises(Lost):
            finish(claimer.claim(attempt, CLAIMANT, 0))
    for attempt in attempts:
        claimer.release(attempt, CLAIMANT)
    assert len(claimer.unconfirmed) == 2
    one.handle_the_rest()
    assert one.seen == {b"0": 1, b"1": 1}


def test_a_question_that_is_lost_after_another_was_answered_costs_no_slot():
    """One unconfirmed claim turns out empty, and its slot is free; the next question fails, and frees nothing twice."""
    one = Scenario("p", {}, **NO_RETRIES | LEASED)
    claimer = one.queue.store.claimer
    one.port.losses = {1: REQUEST, 2: REPLY, 4: REQUEST}
    attempts = [claimer.attempt(), claimer.attempt()]
    for attempt in attempts:
        with pytest.raises(Lost):
            finish(claimer.claim(attempt, CLAIMANT, 0))
        claimer.release(attempt, CLAIMANT)
    with pytest.raises(Lost):
        process_all(one.queue)
    check_that_slots_are_acquired_once(one.queue)
    one.handle_the_rest()
    assert one.seen == {b"0": 1}


def test_a_deduplicated_publish_whose_reply_was_lost_is_not_its_own_duplicate():
    setup = Setup(**RETRIES)
    queue = setup.queue(setup.port({0: REPLY}), deduplication=True)
    assert finish(queue.publish("order")) is True
    assert finish(queue.publish("order")) is False
    assert setup.pending == [b"order"]


def test_a_dropped_message_is_reported_though_the_reply_was_lost():
    setup = Setup(max_pending_length=1, pending_overload_policy="drop_oldest", **RETRIES)
    sender = setup.store(setup.port({1: REPLY})).senders[0]
    first, second = chunk_ids(b"1" * 16, 1), chunk_ids(b"2" * 16, 1)
    finish(sender.send(first, [OutgoingMessage(b"a")], lambda: False))
    published = finish(sender.send(second, [OutgoingMessage(b"b")], lambda: False))
    assert (published.accepted, published.dropped) == ([True], (first[0].hex(),))
    assert setup.pending == [b"b"]


def test_a_refused_publish_is_refused_again_when_its_reply_was_lost():
    """There is room by then; but this call was told no, and the caller hears the same."""
    setup = Setup(max_pending_length=1, **RETRIES)
    queue = setup.queue(setup.port({1: REPLY}))
    finish(queue.publish("a"))
    setup.memory.at(0, lambda: setup.memory.obey("DEL", setup.keys.pending))
    with pytest.raises(QueueBackpressureError):
        finish(queue.publish("b"))
    assert setup.places == {}
