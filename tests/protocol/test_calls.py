"""Each concurrent call has its own slot, each use of it a higher number, and each process its own slots."""

import pytest

from redis_message_queue.protocol.calls import Calls, ReplySlot
from redis_message_queue.protocol.consume.claim_attempt import HANDED_OVER, OFFERED, ClaimAttempt
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.message_queue import ProcessMessage
from tests.protocol.port import REPLY, Lost, MemoryPort
from tests.protocol.setup import CLAIMANT, Setup, check_that_slots_are_acquired_once, process_all

pytestmark = pytest.mark.topic("Retries of Redis calls")


def calls_of(setup: Setup, port: MemoryPort | None = None) -> Calls:
    return Calls(port or setup.port(), setup.keys, setup.settings)


def numbers(port: MemoryPort) -> list[int]:
    return [int(sent.given["call"]) for sent in port.sent]


def test_a_slot_that_was_released_is_used_again():
    calls = calls_of(Setup())
    slot = calls.acquire_slot()
    calls.release_slot(slot)
    assert calls.acquire_slot() is slot


def test_two_calls_at_once_have_two_slots():
    calls = calls_of(Setup())
    first, second = calls.acquire_slot(), calls.acquire_slot()
    assert first.key != second.key


@pytest.mark.promise("The reply cache is one small key per concurrent caller, and it expires.")
def test_there_are_never_more_slots_than_there_were_calls_at_once():
    calls = calls_of(Setup())
    keys = set()
    for _ in range(100):
        acquired = [calls.acquire_slot() for _ in range(3)]
        keys.update(slot.key for slot in acquired)
        for slot in acquired:
            calls.release_slot(slot)
    assert len(keys) == 3


def test_every_use_of_a_slot_has_a_higher_number():
    setup = Setup()
    port = setup.port()
    queue = setup.queue(port)
    for payload in "abc":
        finish(queue.publish(payload))
    process_all(queue)
    assert numbers(port) == list(range(1, 11))


@pytest.mark.promise("The reply cache is one small key per concurrent caller, and it expires.")
def test_the_reply_cache_of_a_serial_caller_is_one_key():
    setup = Setup()
    queue = setup.queue()
    for payload in "abc":
        finish(queue.publish(payload))
    process_all(queue)
    assert len(setup.memory.keys("::reply::")) == 1


def test_a_publish_releases_its_slot_though_it_failed():
    """A higher number on the same slot shuts its late request out."""
    setup = Setup(retry_budget_seconds=0)
    port = setup.port({0: REPLY})
    queue = setup.queue(port)
    with pytest.raises(Lost):
        finish(queue.publish("a"))
    finish(queue.publish("b"))
    assert numbers(port) == [1, 2]
    assert port.sent[0].keys[-1] == port.sent[1].keys[-1]


def test_an_unconfirmed_claim_keeps_its_slot_until_it_is_confirmed():
    """Another call under its slot would overwrite the only answer that tells what it took."""
    setup = Setup(retry_budget_seconds=0)
    port = setup.port({1: REPLY})
    queue = setup.queue(port)
    finish(queue.publish("a"))
    with pytest.raises(Lost):
        process_all(queue)
    finish(queue.publish("b"))
    assert port.sent[2].keys[-1] != port.sent[1].keys[-1]
    assert process_all(queue) == [b"a", b"b"]


# Slots of claims


def test_the_slot_of_a_claim_is_free_once_its_handler_has_the_message():
    """Until then it holds the only answer that tells what the claim took."""
    (part,) = Setup().store().parts
    calls = part.calls
    attempt = ClaimAttempt(part, calls.acquire_slot(), state=OFFERED)
    calls.release_slot_when_handed_over(attempt)
    other = calls.acquire_slot()
    assert other is not attempt.slot
    attempt.state = HANDED_OVER
    assert calls.acquire_slot() is attempt.slot


def test_the_slot_of_a_claim_that_was_broken_off_at_the_last_moment_is_not_acquired_by_others():
    """It was about to be handed over, and is asked what it took instead."""
    setup = Setup()
    port = setup.port()
    queue = setup.queue(port)
    finish(queue.publish("a"))
    claimer = queue.store.claimer
    attempt = claimer.attempt()
    assert finish(claimer.claim(attempt, CLAIMANT, 0)).claims
    claimer.offer(attempt)
    claimer.release(attempt, CLAIMANT)
    assert len(claimer.unconfirmed) == 1
    check_that_slots_are_acquired_once(queue)
    assert attempt.slot.key not in {queue.store.calls.acquire_slot().key for _ in range(6)}
    assert process_all(queue) == [b"a"]


# Processes


def test_two_objects_never_have_the_same_slot():
    setup = Setup()
    assert calls_of(setup).acquire_slot().key != calls_of(setup).acquire_slot().key


def test_after_a_fork_the_child_has_slots_of_its_own():
    setup = Setup()
    port = setup.port()
    calls = calls_of(setup, port)
    parents = [calls.acquire_slot() for _ in range(3)]
    for slot in parents[1:]:
        calls.release_slot(slot)
    port.pid = 2
    childs = [calls.acquire_slot() for _ in range(3)]
    assert not {slot.key for slot in parents} & {slot.key for slot in childs}


def test_a_slot_that_was_acquired_before_a_fork_is_not_reused_in_the_child():
    """The parent goes on with its numbers; a child that used them too would be given the parent's answers."""
    setup = Setup()
    port = setup.port()
    calls = calls_of(setup, port)
    parents = calls.acquire_slot()
    port.pid = 2
    calls.release_slot(calls.acquire_slot())
    calls.release_slot(parents)
    assert parents.key not in {calls.acquire_slot().key, calls.acquire_slot().key}


def test_a_child_that_is_forked_by_a_handler_shares_no_numbers_with_its_parent():
    setup = Setup()
    port = setup.port()
    queue = setup.queue(port)
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


@pytest.mark.promise("After a fork, only the parent recovers its unconfirmed claims.")
def test_a_child_does_not_follow_the_unconfirmed_claims_of_its_parent():
    """Both would be given the same message, while its lease lasts."""
    setup = Setup(retry_budget_seconds=0)
    port = setup.port({1: REPLY})
    queue = setup.queue(port)
    finish(queue.publish("a"))
    with pytest.raises(Lost):
        process_all(queue)
    assert len(queue.store.claimer.unconfirmed) == 1
    port.pid = 2
    assert process_all(queue) == []


class Hurried(Calls):
    """While one thread is in the middle of taking a slot, another one takes a slot as well."""

    of_the_other: ReplySlot | None = None
    interrupts = False

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.interrupts:
            Calls.__setattr__(self, "interrupts", False)
            Calls.__setattr__(self, "of_the_other", self.acquire_slot())


def test_two_threads_that_begin_together_have_two_slots():
    setup = Setup()
    calls = Hurried(setup.port(), setup.keys, setup.settings)
    Calls.__setattr__(calls, "interrupts", True)
    mine = calls.acquire_slot()
    assert calls.of_the_other is not None
    assert mine.key != calls.of_the_other.key


def test_two_threads_of_a_forked_child_take_no_slot_of_the_parent():
    setup = Setup()
    port = setup.port()
    calls = Hurried(port, setup.keys, setup.settings)
    parents = calls.acquire_slot()
    calls.release_slot(parents)
    port.pid = 2
    Calls.__setattr__(calls, "interrupts", True)
    mine = calls.acquire_slot()
    assert calls.of_the_other is not None
    assert len({parents.key, mine.key, calls.of_the_other.key}) == 3


# How long an answer is kept


@pytest.mark.promise(
    "Redis remembers the reply of a call for longer than the call can be retried, whatever the budget."
)
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
    setup = Setup(message_visibility_timeout_seconds=lease, retry_budget_seconds=120.0)
    port = setup.port()
    port.retry_window = 7.0
    queue = setup.queue(port)
    finish(queue.publish("a"))
    process_all(queue)
    sent = next(sent for sent in port.sent if sent.verb == verb)
    assert sent.given.get("hold_ms", sent.given["keep_ms"]) == seconds * 1000


def test_the_keep_time_of_an_unconfirmed_claim_without_leases_is_a_day():
    setup = Setup(message_visibility_timeout_seconds=None, retry_budget_seconds=0)
    port = setup.port({1: REPLY})
    queue = setup.queue(port)
    finish(queue.publish("a"))
    with pytest.raises(Lost):
        process_all(queue)
    setup.memory.pass_time(86_000)
    assert process_all(queue) == [b"a"]
