"""A consumer without a message sleeps by the bell, wakes for work or its time, and is never told a wrong 'empty'."""

from collections.abc import Callable
from typing import Any

import pytest

from redis_message_queue.errors import RetryBudgetExhaustedError
from redis_message_queue.protocol.claim import Claimer, Found
from redis_message_queue.protocol.port import finish
from tests.protocol.port import REPLY, REQUEST, Lost, MemoryPort
from tests.protocol.scene import LEASE, Scene, nobody_listens, process_all

MOMENT = 0.01


class Waiter:
    """One claim of one consumer, and how long it took."""

    def __init__(self, scene: Scene, port: MemoryPort | None = None) -> None:
        self.port = port or scene.port()
        self.claimer: Claimer = scene.store(self.port).claimer
        self.attempt = self.claimer.attempt()
        self.told: list[tuple[Exception, int]] = []

    def claim(self, wait_seconds: float, stopped: Callable[[], bool] = lambda: False) -> Found:
        self.started = self.port.now()
        return finish(self.claimer.claim(self.attempt, wait_seconds, stopped, self._hear))

    async def _hear(self, error: Exception, tries: int) -> None:
        self.told.append((error, tries))

    @property
    def took(self) -> float:
        return self.port.now() - self.started

    def claims(self, name: str) -> list[Any]:
        """One argument of each claim that was sent."""
        return [sent.given[name] for sent in self.port.sent if sent.verb == "claim"]


def publish(scene: Scene, *payloads: str) -> None:
    queue = scene.queue()
    for payload in payloads:
        finish(queue.publish(payload))


# The bell


def test_a_message_that_is_there_is_claimed_without_waiting():
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene)
    assert waiter.claim(5.0).claims[0].envelope.payload == b"a"
    assert (waiter.port.verbs(), waiter.port.waits) == (["claim"], [])


def test_a_waiting_consumer_is_woken_by_the_publish():
    scene = Scene()
    scene.memory.at(2.3, lambda: publish(scene, "a"))
    waiter = Waiter(scene)
    assert waiter.claim(5.0).claims[0].envelope.payload == b"a"
    assert waiter.took == pytest.approx(2.3, abs=MOMENT)


def test_every_return_from_the_bell_is_followed_by_a_claim():
    """By token or by timeout: two commands a second, and the last slice ends with the time to wait."""
    waiter = Waiter(Scene())
    assert not waiter.claim(3.5).claims
    assert waiter.port.waits == pytest.approx([1.0, 1.0, 1.0, 0.5], abs=0.001)
    assert waiter.port.verbs() == ["claim"] * 5
    assert waiter.took == pytest.approx(3.5, abs=MOMENT)


def test_every_claim_says_how_long_its_caller_will_sleep():
    waiter = Waiter(Scene())
    waiter.claim(1.5)
    assert waiter.claims("slice_us") == pytest.approx([1_000_000, 500_000, 0], abs=100)


@pytest.mark.parametrize(("timeout", "slice_seconds"), [(None, 1.0), (30.0, 1.0), (0.5, 0.4)])
def test_a_slice_ends_before_the_socket_stops_listening(timeout, slice_seconds):
    scene = Scene()
    waiter = Waiter(scene, scene.port(socket_timeout=timeout))
    waiter.claim(2.0)
    assert waiter.port.waits[0] == pytest.approx(slice_seconds)


def test_a_consumer_that_does_not_wait_looks_once():
    waiter = Waiter(Scene())
    assert not waiter.claim(0).claims
    assert (waiter.port.verbs(), waiter.port.waits, waiter.port.sleeps) == (["claim"], [], [])


def test_a_token_without_work_costs_one_more_claim():
    scene = Scene()
    publish(scene, "a")
    process_all(scene.queue())
    assert scene.rings
    waiter = Waiter(scene)
    assert not waiter.claim(1.0).claims
    assert waiter.took == pytest.approx(1.0, abs=MOMENT)


def test_where_the_bell_cannot_be_heard_a_consumer_polls_without_a_storm():
    scene = Scene()
    waiter = Waiter(scene)

    async def broken(bell: str, seconds: float) -> bool:
        raise Lost("no connection for the bell")

    waiter.port.wait = broken
    scene.memory.at(1.1, lambda: publish(scene, "a"))
    assert waiter.claim(5.0).claims
    assert waiter.took == pytest.approx(1.25, abs=MOMENT)
    assert len(waiter.port.sent) == 6


def test_a_bell_of_the_wrong_type_is_an_error():
    waiter = Waiter(Scene())

    async def refused(bell: str, seconds: float) -> bool:
        raise ValueError("WRONGTYPE")

    waiter.port.wait = refused
    with pytest.raises(ValueError, match="WRONGTYPE"):
        waiter.claim(5.0)


# Stopping


def test_a_stopped_consumer_claims_nothing():
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene)
    assert not waiter.claim(5.0, lambda: True).claims
    assert waiter.port.sent == []
    assert not waiter.attempt.unsure


def test_a_consumer_that_is_stopped_while_it_waits_leaves_within_a_slice():
    scene = Scene()
    waiter = Waiter(scene)
    stopped_at = waiter.port.now() + 2.5
    assert not waiter.claim(60.0, lambda: waiter.port.now() >= stopped_at).claims
    assert waiter.took <= 3.0 + MOMENT


def test_a_token_that_was_taken_and_will_not_be_used_is_passed_on():
    scene = Scene()
    waiter = Waiter(scene)
    stopped: list[bool] = []
    scene.memory.at(0.5, lambda: (publish(scene, "a"), stopped.append(True)))
    assert not waiter.claim(5.0, lambda: bool(stopped)).claims
    assert waiter.port.verbs() == ["claim", "ring"]
    assert (scene.pending, scene.rings) == ([b"a"], True)


def test_a_consumer_that_took_no_token_rings_for_nobody():
    scene = Scene()
    waiter = Waiter(scene)
    stopped: list[bool] = []
    scene.memory.at(0.5, lambda: stopped.append(True))
    waiter.claim(5.0, lambda: bool(stopped))
    assert waiter.port.verbs() == ["claim"]
    assert not scene.rings


def test_a_token_is_passed_on_though_the_claim_that_should_have_used_it_was_lost():
    """It was woken, its claim never arrived, and then it was stopped: the next waiter must hear of the message."""
    scene = Scene()
    waiter = Waiter(scene, scene.port({1: REQUEST}))
    scene.memory.at(0.5, lambda: publish(scene, "a"))
    assert not waiter.claim(5.0, lambda: bool(waiter.told)).claims
    assert (scene.pending, scene.rings) == ([b"a"], True)


# Losses while waiting


def test_each_failed_try_of_a_claim_is_told():
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene, scene.port({0: REQUEST, 1: REPLY}))
    assert waiter.claim(5.0).claims
    assert [(type(error), tries) for error, tries in waiter.told] == [(Lost, 1), (Lost, 2)]


def lost_until(seconds: float, waiter: Waiter, kind: Any) -> None:
    """Every call is lost until then."""
    waiter.port.losses = dict.fromkeys(range(500), kind)
    waiter.port.memory.at(seconds, waiter.port.losses.clear)


def test_after_its_deadline_a_claim_only_asks_what_it_took_in_time():
    """It took nothing, because nothing arrived; now it must not take what its caller no longer waits for."""
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene)
    lost_until(7.0, waiter, REQUEST)
    found = waiter.claim(2.0)
    counts = [(sent.at - waiter.started < 2.0, sent.given["count"]) for sent in waiter.port.sent]
    assert set(counts) == {(True, 1), (False, 0)}
    assert (found.claims, scene.pending) == ([], [b"a"])


def test_what_a_claim_took_in_time_is_found_after_its_deadline():
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene)
    lost_until(6.0, waiter, REPLY)
    assert waiter.claim(2.0).claims[0].envelope.payload == b"a"
    assert len(set(waiter.claims("call"))) == 1


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 7.0), (1.5, 3.5)], ids=["no socket_timeout", "1.5 s"])
@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
def test_a_claim_ends_in_doubt_one_answer_after_its_deadline(timeout, seconds, kind):
    """The next claim of the same object asks first what it took; nothing is lost and nothing counted twice."""
    scene = Scene(retry_budget_seconds=120.0)
    publish(scene, "a")
    waiter = Waiter(scene, scene.port(socket_timeout=timeout))
    lost_until(60.0, waiter, kind)
    found = waiter.claim(2.0)
    assert (found.claims, found.in_doubt, waiter.attempt.unsure) == ([], True, True)
    assert waiter.took <= seconds + MOMENT
    waiter.claimer.release(waiter.attempt)
    waiter.port.losses.clear()
    _, recovered = finish(waiter.claimer.recover(waiter, lambda: False, nobody_listens))
    assert len(recovered.claims) == (1 if kind is REPLY else 0)


def test_a_patient_claim_uses_the_whole_budget():
    scene = Scene(retry_budget_seconds=30.0)
    waiter = Waiter(scene)
    waiter.attempt.patient = True
    lost_until(200.0, waiter, REQUEST)
    with pytest.raises(RetryBudgetExhaustedError):
        waiter.claim(2.0)
    assert waiter.took == pytest.approx(30.0, abs=6.0)


def test_claims_that_end_in_doubt_for_the_whole_budget_are_an_error():
    scene = Scene(retry_budget_seconds=20.0)
    waiter = Waiter(scene)
    lost_until(200.0, waiter, REQUEST)
    began = waiter.port.now()
    with pytest.raises(RetryBudgetExhaustedError):
        while True:
            assert waiter.claim(2.0).in_doubt
    assert waiter.port.now() - began == pytest.approx(20.0, abs=8.0)


def test_a_consumer_whose_time_is_up_does_not_wait_by_the_bell_once_more():
    scene = Scene()
    waiter = Waiter(scene)
    lost_until(7.0, waiter, REQUEST)
    waiter.claim(2.0)
    assert waiter.port.waits == []


def test_a_consumer_that_looks_once_may_still_take_a_message_after_a_loss():
    """It has no deadline to miss."""
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene)
    lost_until(3.0, waiter, REQUEST)
    assert waiter.claim(0).claims
    assert set(waiter.claims("count")) == {1}


def test_a_stopped_consumer_only_asks_what_it_took_before():
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene, scene.port({0: REQUEST}))
    assert not waiter.claim(5.0, lambda: bool(waiter.told)).claims
    assert waiter.claims("count") == [1, 0]
    assert scene.pending == [b"a"]


def test_a_consumer_that_was_stopped_during_its_claim_does_not_go_to_sleep_once_more():
    for kind in (REQUEST, REPLY):
        scene = Scene()
        waiter = Waiter(scene, scene.port({0: kind}))
        assert not waiter.claim(5.0, lambda waiter=waiter: bool(waiter.told)).claims
        assert waiter.port.waits == []


def test_a_stopped_consumer_that_cannot_ask_leaves_the_question_to_the_next():
    """Its claim was executed, its answer lost, and Redis gone when it asked: somebody must ask later."""
    scene = Scene()
    publish(scene, "a")
    waiter = Waiter(scene, scene.port({0: REPLY, 1: REQUEST}))
    assert not waiter.claim(5.0, lambda: bool(waiter.told)).claims
    assert waiter.attempt.unsure
    assert scene.processing == [b"a"]


def test_a_claim_that_fails_for_good_stays_unsure():
    scene = Scene(retry_budget_seconds=1.0)
    publish(scene, "a")
    waiter = Waiter(scene)
    lost_until(60.0, waiter, REPLY)
    with pytest.raises(RetryBudgetExhaustedError):
        waiter.claim(5.0)
    assert waiter.attempt.unsure


# Never told 'empty' while there is work


def poisoned(messages: int, steps: int) -> Scene:
    """So many messages were delivered too often, and one was not; a script may only look at a few."""
    scene = Scene(max_delivery_count=1)
    scene.memory.STEPS = steps
    publish(scene, *(str(number) for number in range(messages)))
    store = scene.store()
    for _ in range(messages):
        finish(store.claimer.claim(store.claimer.attempt(), 0, lambda: False, nobody_listens))
    scene.let_leases_run_out()
    publish(scene, "good")
    return scene


def test_again_is_followed_at_once_until_a_message_is_found():
    scene = poisoned(25, steps=10)
    waiter = Waiter(scene)
    found = waiter.claim(5.0)
    assert found.claims[0].envelope.payload == b"good"
    assert waiter.port.verbs() == ["claim"] * 3
    assert (waiter.port.waits, waiter.port.sleeps) == ([], [])
    assert len(set(waiter.claims("call"))) == 3


def test_the_dead_of_all_rounds_are_told():
    scene = poisoned(25, steps=10)
    found = Waiter(scene).claim(0)
    assert found.claims[0].envelope.payload == b"good"
    assert len(found.dead) == 25
    assert {dead.delivery_count for dead in found.dead} == {1}
    assert sorted(scene.dead, key=int) == [b"%d" % number for number in range(25)]


def test_after_the_last_round_an_empty_queue_is_empty():
    scene = poisoned(25, steps=10)
    process_all(scene.queue())
    assert not Waiter(scene).claim(0).claims


# The next deadline


def test_a_waiter_wakes_exactly_when_the_next_lease_ends():
    scene = Scene()
    publish(scene, "a")
    holder = Waiter(scene)
    holder.claim(0)
    scene.memory.pass_time(0.3)
    waiter = Waiter(scene)
    found = waiter.claim(60.0)
    (claim,) = found.claims
    assert (claim.envelope.payload, claim.reclaimed) == (b"a", True)
    assert waiter.took == pytest.approx(LEASE - 0.3, abs=MOMENT)


def test_one_waiter_at_a_time_is_awake_for_the_next_deadline():
    scene = Scene(message_visibility_timeout_seconds=0.5)
    publish(scene, "a")
    Waiter(scene).claim(0)
    wakes = []
    for _ in range(3):
        waiter = Waiter(scene, scene.port(suspends=True))
        work = waiter.claimer.claim(waiter.attempt, 5.0, lambda: False, waiter._hear)
        work.send(None)
        work.send(None)
        wakes.append(waiter.port.waits[0])
        work.close()
    assert wakes == pytest.approx([0.5, 1.0, 1.0], abs=MOMENT)


def test_a_watcher_that_leaves_with_other_work_rings_for_its_successor():
    """A message came before the deadline: whoever hears the bell takes over the watch."""
    scene = Scene(message_visibility_timeout_seconds=0.9)
    publish(scene, "a")
    Waiter(scene).claim(0)
    watcher = Waiter(scene)
    scene.memory.at(0.3, lambda: publish(scene, "b"))
    assert watcher.claim(5.0).claims[0].envelope.payload == b"b"
    assert watcher.claims("woken")[-1] == 2
    assert scene.rings
    successor = Waiter(scene)
    assert successor.claim(5.0).claims[0].envelope.payload == b"a"
    assert successor.took == pytest.approx(0.6, abs=MOMENT)


def test_a_watcher_that_only_ends_its_wait_rings_as_well():
    scene = Scene(message_visibility_timeout_seconds=0.9)
    publish(scene, "a")
    Waiter(scene).claim(0)
    scene.memory.lists[scene.keys.bell].clear()
    watcher = Waiter(scene)
    scene.memory.pass_time(0.4)
    assert not watcher.claim(0.3).claims
    assert not scene.rings  # its sleep was shorter than the lease: it was never on watch
    watcher = Waiter(scene)
    scene.memory.at(0.1, lambda: finish(scene.store().claimer.ring()))
    stop_at = watcher.port.now() + 0.05
    assert not watcher.claim(0.5, lambda: watcher.port.now() > stop_at).claims
    assert scene.rings


# The next delay


@pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])
@pytest.mark.parametrize("tenant", [None, "ann"])
def test_a_waiter_wakes_exactly_when_the_next_delay_ends(lease, tenant):
    scene = Scene(message_visibility_timeout_seconds=lease)
    finish(scene.queue().publish("a", tenant=tenant, delay_seconds=3.3))
    waiter = Waiter(scene)
    assert waiter.claim(60.0).claims[0].envelope.payload == b"a"
    assert waiter.took == pytest.approx(3.3, abs=MOMENT)
    assert waiter.port.waits[1:] == pytest.approx([1.0, 1.0, 1.0, 0.3], abs=MOMENT)  # the publish had rung


def test_a_delayed_message_is_not_there_before_its_time_and_enters_at_the_tail():
    scene = Scene()
    queue = scene.queue()
    finish(queue.publish("later", delay_seconds=1.0))
    assert process_all(queue) == []
    scene.memory.pass_time(1.0)
    finish(queue.publish("before"))
    assert process_all(queue) == [b"before", b"later"]


def test_a_waiter_wakes_when_a_failed_message_is_to_be_tried_again():
    scene = Scene()
    publish(scene, "a")
    store = scene.store()
    (claim,) = finish(store.claimer.claim(store.claimer.attempt(), 0, lambda: False, nobody_listens)).claims
    scene.memory.at(0.5, lambda: finish(store.settler.put_off(claim, 1.7, ValueError())))
    waiter = Waiter(scene)
    (again,) = waiter.claim(60.0).claims
    assert waiter.took == pytest.approx(2.2, abs=MOMENT)
    assert (again.attempt, again.delivery_count, again.failures) == (2, 1, 1)


def test_a_watcher_hears_of_a_delay_that_ends_before_what_it_waits_for():
    scene = Scene()
    finish(scene.queue().publish("late", delay_seconds=0.9))
    scene.memory.at(0.2, lambda: finish(scene.queue().publish("early", delay_seconds=0.3)))
    waiter = Waiter(scene)
    assert waiter.claim(60.0).claims[0].envelope.payload == b"early"
    assert waiter.took == pytest.approx(0.5, abs=MOMENT)


@pytest.mark.parametrize("tenant", [None, "ann"])
def test_more_delays_than_one_script_may_end_hide_no_message(tenant):
    scene = Scene()
    scene.memory.STEPS = 10
    messages = [str(number) for number in range(25)]
    finish(scene.queue().outbox.publish_many(messages, tenant=tenant, delay_seconds=1.0))
    scene.memory.pass_time(1.0)
    assert sorted(process_all(scene.queue())) == sorted(message.encode() for message in messages)


def test_messages_that_are_too_old_hide_none_that_is_not():
    """More of them than one script may bury: they are told as dead, each with its reason."""
    scene = Scene(message_ttl_seconds=10.0)
    scene.memory.STEPS = 10
    publish(scene, *(str(number) for number in range(25)))
    scene.memory.pass_time(10.0)
    publish(scene, "good")
    found = Waiter(scene).claim(0)
    assert [claim.envelope.payload for claim in found.claims] == [b"good"]
    assert {(dead.reason, dead.delivery_count) for dead in found.dead} == {("expired", 0)}
    assert len(found.dead) == len(scene.dead) == 25
