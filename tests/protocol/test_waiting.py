"""A waiting consumer sleeps, wakes up for work or a deadline, and never reports a wrong 'empty'."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from redis_message_queue.protocol.calls import never_stop
from redis_message_queue.protocol.consume.claim import ClaimResult
from redis_message_queue.protocol.consume.claim_attempt import IDLE, SENT
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.values.errors import RetryBudgetExhaustedError
from tests.protocol.port import REPLY, REQUEST, Lost, MemoryPort
from tests.protocol.setup import CLAIMANT, LEASE, Listener, Setup, process_all

pytestmark = pytest.mark.topic("Waiting for messages")

MOMENT = 0.01


def has_retried(waiter: "Waiter") -> bool:
    return bool(waiter.retries)


class Waiter(Listener):
    """One claim of one consumer, and how long it took."""

    def __init__(self, setup: Setup, port: MemoryPort | None = None) -> None:
        self.port = port or setup.port()
        super().__init__()
        self.claimer = setup.store(self.port).claimer
        self.attempt = self.claimer.attempt()
        self.retries: list[tuple[Exception, int]] = []

    def claim(self, wait_seconds: float, stopped: Callable[[], bool] = never_stop) -> ClaimResult:
        self.started = self.port.now()
        self.is_stopped = stopped  # type: ignore[method-assign]
        if self.attempt.state is not IDLE:
            self.claimer.release(self.attempt, self)
            self.attempt = self.claimer.attempt()
        return finish(self.claimer.claim(self.attempt, self, wait_seconds))

    async def on_retry(self, error: Exception, tries: int) -> None:
        self.retries.append((error, tries))

    @property
    def took(self) -> float:
        return self.port.now() - self.started

    def claims(self, name: str) -> list[Any]:
        """One argument of each claim that was sent."""
        return [sent.given[name] for sent in self.port.sent if sent.verb == "claim"]


def publish(setup: Setup, *payloads: str) -> None:
    queue = setup.queue()
    for payload in payloads:
        finish(queue.publish(payload))


# The wake-up key


def test_a_message_that_is_there_is_claimed_without_waiting():
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup)
    assert waiter.claim(5.0).claims[0].envelope.payload == b"a"
    assert (waiter.port.verbs(), waiter.port.waits) == (["claim"], [])


def test_a_waiting_consumer_is_woken_by_the_publish():
    setup = Setup()
    setup.memory.at(2.3, lambda: publish(setup, "a"))
    waiter = Waiter(setup)
    assert waiter.claim(5.0).claims[0].envelope.payload == b"a"
    assert waiter.took == pytest.approx(2.3, abs=MOMENT)


def test_every_return_from_the_wakeup_is_followed_by_a_claim():
    """By token or by timeout: two commands a second, and the last slice ends with the time to wait."""
    waiter = Waiter(Setup())
    assert not waiter.claim(3.5).claims
    assert waiter.port.waits == pytest.approx([1.0, 1.0, 1.0, 0.5], abs=0.001)
    assert waiter.port.verbs() == ["claim"] * 5
    assert waiter.took == pytest.approx(3.5, abs=MOMENT)


def test_every_claim_says_how_long_its_caller_will_sleep():
    waiter = Waiter(Setup())
    waiter.claim(1.5)
    assert waiter.claims("slice_us") == pytest.approx([1_000_000, 500_000, 0], abs=100)


@pytest.mark.parametrize(("timeout", "slice_seconds"), [(None, 1.0), (30.0, 1.0), (0.5, 0.4)])
def test_a_slice_ends_before_the_socket_stops_listening(timeout, slice_seconds):
    setup = Setup()
    waiter = Waiter(setup, setup.port(socket_timeout=timeout))
    waiter.claim(2.0)
    assert waiter.port.waits[0] == pytest.approx(slice_seconds)


def test_a_consumer_that_does_not_wait_looks_once():
    waiter = Waiter(Setup())
    assert not waiter.claim(0).claims
    assert (waiter.port.verbs(), waiter.port.waits, waiter.port.sleeps) == (["claim"], [], [])


def test_a_token_without_work_costs_one_more_claim():
    setup = Setup()
    publish(setup, "a")
    process_all(setup.queue())
    assert setup.is_notified
    waiter = Waiter(setup)
    assert not waiter.claim(1.0).claims
    assert waiter.took == pytest.approx(1.0, abs=MOMENT)


def test_where_the_wakeup_key_cannot_be_read_a_consumer_polls_without_a_storm():
    setup = Setup()
    waiter = Waiter(setup)

    async def broken(wakeup: str, seconds: float, *, punctual: bool) -> bool:
        raise Lost("no connection for the wake-up key")

    waiter.port.wait = broken  # type: ignore[method-assign, assignment]
    setup.memory.at(1.1, lambda: publish(setup, "a"))
    assert waiter.claim(5.0).claims
    assert waiter.took == pytest.approx(1.25, abs=MOMENT)
    assert len(waiter.port.sent) == 6


def test_a_wakeup_key_of_the_wrong_type_is_an_error():
    waiter = Waiter(Setup())

    async def refused(wakeup: str, seconds: float, *, punctual: bool) -> bool:
        raise ValueError("WRONGTYPE")

    waiter.port.wait = refused  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match="WRONGTYPE"):
        waiter.claim(5.0)


# Stopping


def test_a_stopped_consumer_claims_nothing():
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup)
    assert not waiter.claim(5.0, lambda: True).claims
    assert waiter.port.sent == []
    assert waiter.attempt.state is IDLE


def test_a_consumer_that_is_stopped_while_it_waits_leaves_within_a_slice():
    setup = Setup()
    waiter = Waiter(setup)
    stopped_at = waiter.port.now() + 2.5
    assert not waiter.claim(60.0, lambda: waiter.port.now() >= stopped_at).claims
    assert waiter.took <= 3.0 + MOMENT


def test_a_token_that_was_taken_and_will_not_be_used_is_passed_on():
    setup = Setup()
    waiter = Waiter(setup)
    stopped: list[bool] = []

    def publish_and_stop() -> None:
        publish(setup, "a")
        stopped.append(True)

    setup.memory.at(0.5, publish_and_stop)
    assert not waiter.claim(5.0, lambda: bool(stopped)).claims
    assert waiter.port.verbs() == ["claim", "notify"]
    assert (setup.pending, setup.is_notified) == ([b"a"], True)


def test_a_consumer_that_took_no_wakeup_notifies_nobody():
    setup = Setup()
    waiter = Waiter(setup)
    stopped: list[bool] = []
    setup.memory.at(0.5, lambda: stopped.append(True))
    waiter.claim(5.0, lambda: bool(stopped))
    assert waiter.port.verbs() == ["claim"]
    assert not setup.is_notified


def test_a_token_is_passed_on_though_the_claim_that_should_have_used_it_was_lost():
    """It was woken, its claim never arrived, and then it was stopped: the next waiter must hear of the message."""
    setup = Setup()
    waiter = Waiter(setup, setup.port({1: REQUEST}))
    setup.memory.at(0.5, lambda: publish(setup, "a"))
    assert not waiter.claim(5.0, lambda: bool(waiter.retries)).claims
    assert (setup.pending, setup.is_notified) == ([b"a"], True)


# Losses while waiting


def test_each_failed_try_of_a_claim_is_reported():
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup, setup.port({0: REQUEST, 1: REPLY}))
    assert waiter.claim(5.0).claims
    assert [(type(error), tries) for error, tries in waiter.retries] == [(Lost, 1), (Lost, 2)]


def lost_until(seconds: float, waiter: Waiter, kind: Any) -> None:
    """Every call is lost until then."""
    waiter.port.losses = dict.fromkeys(range(500), kind)
    waiter.port.memory.at(seconds, waiter.port.losses.clear)


def test_after_its_deadline_a_claim_only_asks_what_it_took_in_time():
    """It took nothing, because nothing arrived; now it must not take what its caller no longer waits for."""
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup)
    lost_until(7.0, waiter, REQUEST)
    found = waiter.claim(2.0)
    counts = [(sent.at - waiter.started < 2.0, sent.given["count"]) for sent in waiter.port.sent]
    assert set(counts) == {(True, 1), (False, 0)}
    assert (found.claims, setup.pending) == ([], [b"a"])


def test_what_a_claim_took_in_time_is_found_after_its_deadline():
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup)
    lost_until(1.99, waiter, REPLY)
    assert waiter.claim(2.0).claims[0].envelope.payload == b"a"
    assert len(set(waiter.claims("call"))) == 1


def test_only_one_attempt_follows_the_end_of_a_wait():
    """Connections that are refused take no time, and are not repeated for as long as an answer may take."""
    waiter = Waiter(Setup(retry_budget_seconds=120.0))
    lost_until(60.0, waiter, REQUEST)
    assert waiter.claim(2.0).unconfirmed
    late = [sent.at - waiter.started for sent in waiter.port.sent if sent.at - waiter.started >= 2.0]
    assert len(late) == 1
    assert waiter.took <= 2.0 + MOMENT


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 7.0), (1.5, 3.5)], ids=["no socket_timeout", "1.5 s"])
@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
def test_a_claim_ends_unconfirmed_one_answer_after_its_deadline(timeout, seconds, kind):
    """The next claim of the same object asks first what it took; nothing is lost and nothing counted twice."""
    setup = Setup(retry_budget_seconds=120.0)
    publish(setup, "a")
    waiter = Waiter(setup, setup.port(socket_timeout=timeout))
    lost_until(60.0, waiter, kind)
    found = waiter.claim(2.0)
    assert (found.claims, found.unconfirmed, waiter.attempt.state) == ([], True, SENT)
    assert waiter.took <= seconds + MOMENT
    waiter.claimer.release(waiter.attempt, waiter)
    waiter.port.losses.clear()
    _, recovered = finish(waiter.claimer.recover(waiter)) or (None, None)
    assert recovered is not None and len(recovered.claims) == (1 if kind is REPLY else 0)


def test_all_attempts_of_a_claim_but_the_first_end_at_its_limit():
    """The first begins in time and the client ends it; without this, the last would take a socket timeout more."""
    setup = Setup(retry_budget_seconds=120.0)
    waiter = Waiter(setup, setup.port(socket_timeout=1.5))
    lost_until(60.0, waiter, REQUEST)
    assert waiter.claim(2.0).unconfirmed
    first, *others = (sent.ends_at for sent in waiter.port.sent)
    assert first is None
    assert others and set(others) == {waiter.started + 3.5}


def test_a_wait_for_a_wakeup_ends_at_the_limit_of_its_claim():
    """Even if the client would go on listening."""
    setup = Setup()
    waiter = Waiter(setup, setup.port(socket_timeout=1.5))
    waiter.claim(2.0)
    assert set(waiter.port.waits_end_at) == {waiter.started + 3.5}


def test_a_claim_without_a_time_limit_uses_the_whole_budget():
    setup = Setup(retry_budget_seconds=30.0)
    waiter = Waiter(setup)
    waiter.has_time_limit = False
    lost_until(200.0, waiter, REQUEST)
    with pytest.raises(RetryBudgetExhaustedError):
        waiter.claim(2.0)
    assert waiter.took == pytest.approx(30.0, abs=6.0)


def test_claims_that_end_unconfirmed_for_the_whole_budget_are_an_error():
    setup = Setup(retry_budget_seconds=20.0)
    waiter = Waiter(setup)
    lost_until(200.0, waiter, REQUEST)
    began = waiter.port.now()
    with pytest.raises(RetryBudgetExhaustedError):
        while True:
            assert waiter.claim(2.0).unconfirmed
    assert waiter.port.now() - began == pytest.approx(20.0, abs=8.0)


def test_an_answer_begins_the_budget_of_claims_anew():
    """Two short outages are not one long one."""
    setup = Setup(retry_budget_seconds=20.0)
    waiter = Waiter(setup)
    for _ in range(4):
        lost_until(8.0, waiter, REQUEST)
        assert waiter.claim(2.0).unconfirmed
        waiter.port.memory.pass_time(7.0)
        assert not waiter.claim(1.0).unconfirmed


def test_a_consumer_whose_time_is_up_does_not_wait_for_a_wakeup_once_more():
    setup = Setup()
    waiter = Waiter(setup)
    lost_until(7.0, waiter, REQUEST)
    waiter.claim(2.0)
    assert waiter.port.waits == []


def test_a_consumer_that_looks_once_may_still_take_a_message_after_a_loss():
    """It has no deadline to miss."""
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup, setup.port(dict.fromkeys(range(3), REQUEST)))
    assert waiter.claim(0).claims
    assert set(waiter.claims("count")) == {1}


def test_a_stopped_consumer_only_asks_what_it_took_before():
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup, setup.port({0: REQUEST}))
    assert not waiter.claim(5.0, lambda: bool(waiter.retries)).claims
    assert waiter.claims("count") == [1, 0]
    assert setup.pending == [b"a"]


def test_a_consumer_that_was_stopped_during_its_claim_does_not_go_to_sleep_once_more():
    for kind in (REQUEST, REPLY):
        setup = Setup()
        waiter = Waiter(setup, setup.port({0: kind}))
        assert not waiter.claim(5.0, partial(has_retried, waiter)).claims
        assert waiter.port.waits == []


def test_a_stopped_consumer_that_cannot_ask_leaves_the_question_to_the_next():
    """Its claim was executed, its answer lost, and Redis gone when it asked: somebody must ask later."""
    setup = Setup()
    publish(setup, "a")
    waiter = Waiter(setup, setup.port({0: REPLY, 1: REQUEST}))
    assert not waiter.claim(5.0, lambda: bool(waiter.retries)).claims
    assert waiter.attempt.state is SENT
    assert setup.processing == [b"a"]


def test_a_claim_that_fails_for_good_stays_unconfirmed():
    setup = Setup(retry_budget_seconds=1.0)
    publish(setup, "a")
    waiter = Waiter(setup)
    lost_until(60.0, waiter, REPLY)
    with pytest.raises(RetryBudgetExhaustedError):
        waiter.claim(5.0)
    assert waiter.attempt.state is SENT


# Never told 'empty' while there is work


def poisoned(messages: int, steps: int) -> Setup:
    """So many messages were delivered too often, and one was not; a script may only look at a few."""
    setup = Setup(max_delivery_count=1)
    setup.memory.look_at_few(steps)
    publish(setup, *(str(number) for number in range(messages)))
    store = setup.store()
    for _ in range(messages):
        finish(store.claimer.claim(store.claimer.attempt(), CLAIMANT, 0))
    setup.let_leases_run_out()
    publish(setup, "good")
    return setup


def test_again_is_followed_at_once_until_a_message_is_found():
    setup = poisoned(25, steps=10)
    waiter = Waiter(setup)
    found = waiter.claim(5.0)
    assert found.claims[0].envelope.payload == b"good"
    assert waiter.port.verbs() == ["claim"] * 3
    assert (waiter.port.waits, waiter.port.sleeps) == ([], [])
    assert len(set(waiter.claims("call"))) == 3


def test_the_dead_of_all_rounds_are_reported():
    setup = poisoned(25, steps=10)
    waiter = Waiter(setup)
    found = waiter.claim(0)
    assert found.claims[0].envelope.payload == b"good"
    assert len(waiter.dead) == 25
    assert {dead.delivery_count for dead in waiter.dead} == {1}
    assert sorted(setup.dead, key=int) == [b"%d" % number for number in range(25)]


def test_after_the_last_round_an_empty_queue_is_empty():
    setup = poisoned(25, steps=10)
    process_all(setup.queue())
    assert not Waiter(setup).claim(0).claims


# The next deadline


@pytest.mark.promise("A waiting consumer sleeps exactly until the next lease ends or the next delayed message is due.")
def test_a_waiter_wakes_exactly_when_the_next_lease_ends():
    setup = Setup()
    publish(setup, "a")
    holder = Waiter(setup)
    holder.claim(0)
    setup.memory.pass_time(0.3)
    waiter = Waiter(setup)
    found = waiter.claim(60.0)
    (claim,) = found.claims
    assert (claim.envelope.payload, claim.reclaimed) == (b"a", True)
    assert waiter.took == pytest.approx(LEASE - 0.3, abs=MOMENT)


def test_one_waiter_at_a_time_is_awake_for_the_next_deadline():
    setup = Setup(message_visibility_timeout_seconds=0.5)
    publish(setup, "a")
    Waiter(setup).claim(0)
    wakes = []
    for _ in range(3):
        waiter = Waiter(setup, setup.port(suspends=True))
        work = waiter.claimer.claim(waiter.attempt, waiter, 5.0)
        work.send(None)
        work.send(None)
        wakes.append(waiter.port.waits[0])
        work.close()
    assert wakes == pytest.approx([0.5, 1.0, 1.0], abs=MOMENT)


def test_a_timer_owner_that_leaves_with_other_work_notifies_its_successor():
    """A message came before the deadline: the next woken consumer becomes the timer owner."""
    setup = Setup(message_visibility_timeout_seconds=0.9)
    publish(setup, "a")
    Waiter(setup).claim(0)
    watcher = Waiter(setup)
    setup.memory.at(0.3, lambda: publish(setup, "b"))
    assert watcher.claim(5.0).claims[0].envelope.payload == b"b"
    assert watcher.claims("woken")[-1] == 2
    assert setup.is_notified
    successor = Waiter(setup)
    assert successor.claim(5.0).claims[0].envelope.payload == b"a"
    assert successor.took == pytest.approx(0.6, abs=MOMENT)


def test_a_timer_owner_that_only_ends_its_wait_notifies_as_well():
    setup = Setup(message_visibility_timeout_seconds=0.9)
    publish(setup, "a")
    Waiter(setup).claim(0)
    setup.memory.take_token(setup.keys.wakeup)
    watcher = Waiter(setup)
    setup.memory.pass_time(0.4)
    assert not watcher.claim(0.3).claims
    assert setup.is_notified  # its sleep was too short to be on watch, but it may have had the wake-up of one that was
    setup.memory.take_token(setup.keys.wakeup)
    watcher = Waiter(setup)
    setup.memory.at(0.1, lambda: finish(setup.store().parts[0].claimer.notify()))
    stop_at = watcher.port.now() + 0.05
    assert not watcher.claim(0.5, lambda: watcher.port.now() > stop_at).claims
    assert setup.is_notified


# The next delay


@pytest.mark.promise(
    "An idle consumer wakes when a delay ends, even if it was waiting before the message was published."
)
@pytest.mark.promise("A waiting consumer sleeps exactly until the next lease ends or the next delayed message is due.")
@pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])
@pytest.mark.parametrize("tenant", [None, "ann"])
def test_a_waiter_wakes_exactly_when_the_next_delay_ends(lease, tenant):
    setup = Setup(message_visibility_timeout_seconds=lease)
    finish(setup.queue().publish("a", tenant=tenant, delay_seconds=3.3))
    waiter = Waiter(setup)
    assert waiter.claim(60.0).claims[0].envelope.payload == b"a"
    assert waiter.took == pytest.approx(3.3, abs=MOMENT)
    assert waiter.port.waits[1:] == pytest.approx([1.0, 1.0, 1.0, 0.3], abs=MOMENT)  # the publish had rung


def test_a_delayed_message_is_not_there_before_its_time_and_enters_at_the_tail():
    setup = Setup()
    queue = setup.queue()
    finish(queue.publish("later", delay_seconds=1.0))
    assert process_all(queue) == []
    setup.memory.pass_time(1.0)
    finish(queue.publish("before"))
    assert process_all(queue) == [b"before", b"later"]


@pytest.mark.promise("An idle consumer wakes for the next attempt of a retried message.")
def test_a_waiter_wakes_when_a_failed_message_is_to_be_tried_again():
    setup = Setup()
    publish(setup, "a")
    store = setup.store()
    (claim,) = finish(store.claimer.claim(store.claimer.attempt(), CLAIMANT, 0)).claims
    setup.memory.at(0.5, lambda: finish(store.settler.retry_later(claim, 1.7, ValueError())))
    waiter = Waiter(setup)
    (again,) = waiter.claim(60.0).claims
    assert waiter.took == pytest.approx(2.2, abs=MOMENT)
    assert (again.attempt, again.delivery_count, again.failures) == (2, 1, 1)


@pytest.mark.promise(
    "An idle consumer wakes when a delay ends, even if it was waiting before the message was published."
)
def test_a_timer_owner_hears_of_a_delay_that_ends_before_what_it_waits_for():
    setup = Setup()
    finish(setup.queue().publish("late", delay_seconds=0.9))
    setup.memory.at(0.2, lambda: finish(setup.queue().publish("early", delay_seconds=0.3)))
    waiter = Waiter(setup)
    assert waiter.claim(60.0).claims[0].envelope.payload == b"early"
    assert waiter.took == pytest.approx(0.5, abs=MOMENT)


@pytest.mark.parametrize("tenant", [None, "ann"])
def test_more_delays_than_one_script_may_end_hide_no_message(tenant):
    setup = Setup()
    setup.memory.look_at_few(10)
    messages = [str(number) for number in range(25)]
    finish(setup.queue().publisher.publish_many(messages, PublishOverrides(tenant=tenant, delay_seconds=1.0)))
    setup.memory.pass_time(1.0)
    assert sorted(process_all(setup.queue())) == sorted(message.encode() for message in messages)


@pytest.mark.promise("A claim that finds an expired message continues with the next one, in any tenant queue.")
def test_messages_that_are_too_old_hide_none_that_is_not():
    """More of them than one script may move to the dead letters: they are reported, each with its reason."""
    setup = Setup(message_ttl_seconds=10.0)
    setup.memory.look_at_few(10)
    publish(setup, *(str(number) for number in range(25)))
    setup.memory.pass_time(10.0)
    publish(setup, "good")
    waiter = Waiter(setup)
    found = waiter.claim(0)
    assert [claim.envelope.payload for claim in found.claims] == [b"good"]
    assert {(dead.reason, dead.delivery_count) for dead in waiter.dead} == {("expired", 0)}
    assert len(waiter.dead) == len(setup.dead) == 25
