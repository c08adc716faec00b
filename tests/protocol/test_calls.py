"""Each concurrent call has a slot of its own, each use of it a higher number, and each process its own slots."""

import pytest

from redis_message_queue.protocol.calls import Attempt, Calls, Slot
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.queue import ProcessMessage
from tests.protocol.port import REPLY, Lost, MemoryPort
from tests.protocol.scene import Scene, check_that_slots_are_lent_once, nobody_listens, process_all


def calls_of(scene: Scene, port: MemoryPort | None = None) -> Calls:
    return Calls(port or scene.port(), scene.keys, scene.settings)


def numbers(port: MemoryPort) -> list[int]:
    return [int(sent.given["call"]) for sent in port.sent]


def test_a_slot_that_was_given_back_is_used_again():
    calls = calls_of(Scene())
    slot = calls.borrow()
    calls.give_back(slot)
    assert calls.borrow() is slot


def test_two_calls_at_once_have_two_slots():
    calls = calls_of(Scene())
    first, second = calls.borrow(), calls.borrow()
    assert first.key != second.key


def test_there_are_never_more_slots_than_there_were_calls_at_once():
    calls = calls_of(Scene())
    keys = set()
    for _ in range(100):
        borrowed = [calls.borrow() for _ in range(3)]
        keys.update(slot.key for slot in borrowed)
        for slot in borrowed:
            calls.give_back(slot)
    assert len(keys) == 3


def test_every_use_of_a_slot_has_a_higher_number():
    scene = Scene()
    port = scene.port()
    queue = scene.queue(port)
    for payload in "abc":
        finish(queue.publish(payload))
    process_all(queue)
    assert numbers(port) == list(range(1, 11))


def test_the_reply_cache_of_a_serial_caller_is_one_key():
    scene = Scene()
    queue = scene.queue()
    for payload in "abc":
        finish(queue.publish(payload))
    process_all(queue)
    assert len([key for key in scene.memory.strings if "reply" in key]) == 1


def test_a_publish_gives_its_slot_back_though_it_failed():
    """A higher number on the same slot shuts its straggler out."""
    scene = Scene(retry_budget_seconds=0)
    port = scene.port({0: REPLY})
    queue = scene.queue(port)
    with pytest.raises(Lost):
        finish(queue.publish("a"))
    finish(queue.publish("b"))
    assert numbers(port) == [1, 2]
    assert port.sent[0].keys[-1] == port.sent[1].keys[-1]


def test_an_unsure_claim_keeps_its_slot_until_it_is_sure():
    """Another call under its slot would overwrite the only answer that tells what it took."""
    scene = Scene(retry_budget_seconds=0)
    port = scene.port({1: REPLY})
    queue = scene.queue(port)
    finish(queue.publish("a"))
    with pytest.raises(Lost):
        process_all(queue)
    finish(queue.publish("b"))
    assert port.sent[2].keys[-1] != port.sent[1].keys[-1]
    assert process_all(queue) == [b"a", b"b"]


# Slots of claims


def test_the_slot_of_a_claim_is_free_once_its_handler_has_the_message():
    """Until then it holds the only answer that tells what the claim took."""
    calls = calls_of(Scene())
    attempt = Attempt(calls.borrow(), unsure=True)
    calls.give_back_when_sure(attempt)
    other = calls.borrow()
    assert other is not attempt.slot
    attempt.unsure = False
    assert calls.borrow() is attempt.slot


def test_the_slot_of_a_claim_that_was_broken_off_at_the_last_moment_is_not_lent_out():
    """It was about to be handed over, and is asked what it took instead."""
    scene = Scene()
    port = scene.port()
    queue = scene.queue(port)
    finish(queue.publish("a"))
    claimer = queue.store.claimer
    attempt = claimer.attempt()
    assert finish(claimer.claim(attempt, 0, lambda: False, nobody_listens)).claims
    claimer.hand_over(attempt)
    claimer.release(attempt)
    assert len(claimer.unsure) == 1
    attempt.unsure = False  # the shell's own last step can no longer free it
    check_that_slots_are_lent_once(queue)
    assert attempt.slot.key not in {queue.store.calls.borrow().key for _ in range(6)}
    assert process_all(queue) == [b"a"]


# Processes


def test_two_objects_never_have_the_same_slot():
    scene = Scene()
    assert calls_of(scene).borrow().key != calls_of(scene).borrow().key


def test_after_a_fork_the_child_has_slots_of_its_own():
    scene = Scene()
    port = scene.port()
    calls = calls_of(scene, port)
    parents = [calls.borrow() for _ in range(3)]
    for slot in parents[1:]:
        calls.give_back(slot)
    port.pid = 2
    childs = [calls.borrow() for _ in range(3)]
    assert not {slot.key for slot in parents} & {slot.key for slot in childs}


def test_a_slot_that_was_borrowed_before_a_fork_is_not_lent_out_in_the_child():
    """The parent goes on with its numbers; a child that used them too would be given the parent's answers."""
    scene = Scene()
    port = scene.port()
    calls = calls_of(scene, port)
    parents = calls.borrow()
    port.pid = 2
    calls.give_back(calls.borrow())
    calls.give_back(parents)
    assert parents.key not in {calls.borrow().key, calls.borrow().key}


def test_a_child_that_is_forked_by_a_handler_shares_no_numbers_with_its_parent():
    scene = Scene()
    port = scene.port()
    queue = scene.queue(port)
    finish(queue.publish("a"))
    with ProcessMessage(queue):
        of_the_parent = {sent.keys[-1] for sent in port.sent}
        port.pid, sent_before = 2, len(port.sent)
        finish(queue.publish("b"))
        assert process_all(queue) == [b"b"]
        of_the_child = {sent.keys[-1] for sent in port.sent[sent_before:]}
        port.pid = 1
    assert all("reply" in key for key in of_the_parent | of_the_child)
    assert not of_the_parent & of_the_child


def test_a_child_does_not_follow_the_unsure_claims_of_its_parent():
    """Both would be given the same message, while its lease lasts."""
    scene = Scene(retry_budget_seconds=0)
    port = scene.port({1: REPLY})
    queue = scene.queue(port)
    finish(queue.publish("a"))
    with pytest.raises(Lost):
        process_all(queue)
    assert len(queue.store.claimer.unsure) == 1
    port.pid = 2
    assert process_all(queue) == []


class Hurried(Calls):
    """While one thread is in the middle of taking a slot, another one takes a slot as well."""

    of_the_other: Slot | None = None
    interrupts = False

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.interrupts:
            Calls.__setattr__(self, "interrupts", False)
            Calls.__setattr__(self, "of_the_other", self.borrow())


def test_two_threads_that_begin_together_have_two_slots():
    scene = Scene()
    calls = Hurried(scene.port(), scene.keys, scene.settings)
    Calls.__setattr__(calls, "interrupts", True)
    mine = calls.borrow()
    assert calls.of_the_other is not None
    assert mine.key != calls.of_the_other.key


def test_two_threads_of_a_forked_child_take_no_slot_of_the_parent():
    scene = Scene()
    port = scene.port()
    calls = Hurried(port, scene.keys, scene.settings)
    parents = calls.borrow()
    calls.give_back(parents)
    port.pid = 2
    Calls.__setattr__(calls, "interrupts", True)
    mine = calls.borrow()
    assert calls.of_the_other is not None
    assert len({parents.key, mine.key, calls.of_the_other.key}) == 3


# How long an answer is kept


@pytest.mark.parametrize(
    ("verb", "lease", "seconds"),
    [
        pytest.param("publish", 30.0, 120 + 7 + 60, id="the budget, the client's own window, and a minute"),
        pytest.param("claim", 30.0, 120 + 7 + 60, id="a claim under a lease likewise"),
        pytest.param("claim", None, 86_400, id="a claim without a lease for a day: nothing else brings it back"),
        pytest.param("settle", 30.0, 120 + 7 + 60, id="a settlement likewise"),
        pytest.param("settle", None, 120 + 7 + 60, id="with a lease or without"),
    ],
)
def test_an_answer_is_kept_for_longer_than_its_call_can_be_repeated(verb, lease, seconds):
    scene = Scene(message_visibility_timeout_seconds=lease, retry_budget_seconds=120.0)
    port = scene.port()
    port.retry_window = 7.0
    queue = scene.queue(port)
    finish(queue.publish("a"))
    process_all(queue)
    sent = next(sent for sent in port.sent if sent.verb == verb)
    assert sent.given.get("hold_ms", sent.given["keep_ms"]) == seconds * 1000


def test_the_keep_time_of_an_unsure_claim_without_leases_is_a_day():
    scene = Scene(message_visibility_timeout_seconds=None, retry_budget_seconds=0)
    port = scene.port({1: REPLY})
    queue = scene.queue(port)
    finish(queue.publish("a"))
    with pytest.raises(Lost):
        process_all(queue)
    scene.memory.pass_time(86_000)
    assert process_all(queue) == [b"a"]
