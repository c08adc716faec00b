"""What is promised when patience ends, and when the client below has patience of its own."""

import time

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from redis_message_queue import CleanupFailedError, RetryBudgetExhaustedError
from tests.faults.meanwhile import until
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, STRAGGLE, delayed

either_cut = pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=str)
NO_BUDGET = {"retry_budget_seconds": 0}
SMALL_BUDGET = {"retry_budget_seconds": 0.5}  # room for a second try on a busy machine


def fail(message):
    raise ValueError(message)


def _outcome(work):
    try:
        return work()
    except RedisConnectionError as error:
        return error


# Without a budget


@either_cut
def test_without_a_budget_a_publish_raises_what_redis_py_raised(proxy, truth, shell, cut):
    """One try; whether it was executed is unknown, and another call is another message."""
    queue = shell.queue(gateway=NO_BUDGET)
    proxy.meet("publish", cut)
    with pytest.raises(RedisConnectionError) as raised:
        shell.publish(queue, "message")
    assert not isinstance(raised.value, RetryBudgetExhaustedError)
    assert proxy.seen["publish"] == 1
    executed = truth.pending
    assert executed == (1 if cut is CUT_AFTER else 0)
    assert shell.publish(queue, "message") is True
    assert truth.pending == executed + 1


@either_cut
def test_without_a_budget_a_deduplicated_publish_can_be_repeated(proxy, truth, shell, cut):
    """The caller's second call is suppressed exactly if the first one was executed."""
    queue = shell.queue(gateway=NO_BUDGET, deduplication=True)
    proxy.meet("publish", cut)
    with pytest.raises(RedisConnectionError):
        shell.publish(queue, "message")
    assert shell.publish(queue, "message") is (cut is CUT_BEFORE)
    assert truth.pending == 1


@either_cut
def test_without_a_budget_the_next_claim_finds_what_the_last_one_took(proxy, truth, shell, cut):
    queue = shell.queue(gateway=NO_BUDGET)
    shell.publish(queue, "message")
    proxy.meet("claim", cut)
    with pytest.raises(RedisConnectionError) as raised:
        shell.process(queue)
    assert not isinstance(raised.value, RetryBudgetExhaustedError)
    counts = []
    assert shell.process(queue, lambda _: counts.append(queue.current_message().delivery_count)) == b"message"
    assert counts == [1]
    assert truth.is_empty


@either_cut
def test_without_a_budget_a_lost_ack_says_so(proxy, truth, shell, cut):
    queue = shell.queue(gateway=NO_BUDGET, enable_completed_queue=True)
    shell.publish(queue, "message")
    proxy.meet("settle", cut)
    with pytest.raises(CleanupFailedError) as raised:
        shell.process(queue)
    assert isinstance(raised.value.__cause__, RedisConnectionError)
    executed = cut is CUT_AFTER
    assert truth.processing == (0 if executed else 1)
    assert truth.completed == ([b"message"] if executed else [])


@either_cut
def test_without_a_budget_the_handlers_error_comes_first(proxy, truth, shell, cut):
    queue = shell.queue(gateway=NO_BUDGET, enable_failed_queue=True)
    shell.publish(queue, "message")
    proxy.meet("settle", cut)
    with pytest.raises(ValueError, match="message"):
        shell.process(queue, fail)
    executed = cut is CUT_AFTER
    assert truth.processing == (0 if executed else 1)
    assert truth.failed == ([b"message"] if executed else [])


# With a budget that is spent


@either_cut
def test_a_spent_budget_names_its_cause(proxy, shell, cut):
    queue = shell.queue(gateway=SMALL_BUDGET)
    proxy.always("publish", cut)
    with pytest.raises(RetryBudgetExhaustedError) as raised:
        shell.publish(queue, "message")
    assert isinstance(raised.value, RedisError)
    assert isinstance(raised.value.__cause__, RedisConnectionError)
    assert raised.value.operation == "publish"
    assert proxy.seen["publish"] > 1


def test_a_publish_of_many_tries_that_was_given_up_has_happened_once(proxy, truth, shell):
    queue = shell.queue(gateway=SMALL_BUDGET)
    proxy.always("publish", CUT_AFTER)
    with pytest.raises(RetryBudgetExhaustedError):
        shell.publish(queue, "message")
    assert proxy.seen["publish"] > 1
    assert truth.pending == 1


@either_cut
def test_a_claim_that_was_given_up_is_found_again(proxy, truth, shell, cut):
    """By the next process_message() of the same queue object, and not after the 300 s of its lease."""
    queue = shell.queue(gateway=SMALL_BUDGET)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.always("claim", cut)
    with pytest.raises(RetryBudgetExhaustedError):
        shell.process(queue)
    assert truth.processing == (1 if cut is CUT_AFTER else 0)
    proxy.relent()
    counts = []
    for message in (b"first", b"second"):
        assert shell.process(queue, lambda _: counts.append(queue.current_message().delivery_count)) == message
    assert counts == [1, 1]
    assert shell.process(queue) is None
    assert truth.is_empty


def test_a_claim_given_up_again_and_again_is_still_found(proxy, truth, shell):
    """Looking for a lost claim may get lost as well."""
    queue = shell.queue(gateway=SMALL_BUDGET)
    for message in ("first", "second", "third"):
        shell.publish(queue, message)
    proxy.always("claim", CUT_AFTER)
    for _ in range(3):
        with pytest.raises(RetryBudgetExhaustedError):
            shell.process(queue)
    proxy.relent()
    assert [shell.process(queue) for _ in range(4)] == [b"first", b"second", b"third", None]
    assert truth.is_empty


def test_a_claim_given_up_that_straggles_is_found_too(proxy, truth, shell):
    """It was not executed when its caller gave up, and is executed before the next call."""
    queue = shell.queue(gateway=NO_BUDGET)
    shell.publish(queue, "message")
    proxy.meet("claim", STRAGGLE)
    with pytest.raises(RedisConnectionError):
        shell.process(queue)
    assert truth.processing == 0
    proxy.let_stragglers_through()
    assert truth.processing == 1
    assert shell.process(queue) == b"message"
    assert truth.is_empty


def test_a_claim_given_up_is_shut_out_once_it_has_been_asked_for(proxy, truth, shell):
    queue = shell.queue(gateway=NO_BUDGET)
    shell.publish(queue, "message")
    proxy.meet("claim", STRAGGLE)
    with pytest.raises(RedisConnectionError):
        shell.process(queue)
    assert shell.process(queue) == b"message"
    shell.publish(queue, "another message")
    proxy.let_stragglers_through()
    assert truth.pending == 1
    assert truth.processing == 0


def test_claims_given_up_together_are_all_found_again(proxy, truth, shell):
    """Also where looking for them gets lost half-way."""
    queue = shell.queue(gateway=NO_BUDGET)
    for message in ("first", "second", "third"):
        shell.publish(queue, message)
    proxy.always("claim", delayed(0.3, CUT_AFTER))  # long enough for all three to be on their way
    outcomes = shell.process_together(queue, 3)
    assert [type(outcome) for outcome in outcomes] == [RedisConnectionError] * 3
    assert truth.processing == 3
    proxy.relent()
    proxy.meet("claim", PASS, CUT_AFTER, CUT_BEFORE)
    found = [_outcome(lambda: shell.process(queue)) for _ in range(6)]
    assert sorted(payload for payload in found if isinstance(payload, bytes)) == [b"first", b"second", b"third"]
    assert truth.is_empty


def test_callers_stay_apart_after_claims_were_given_up_together(proxy, truth, shell):
    """Two claims never arrived; looking for the first goes well, for the second it does not.

    Whatever the callers of this queue object do then at the same time, none overtakes another.
    """
    queue = shell.queue(gateway={"retry_budget_seconds": 0.3})
    proxy.always("claim", delayed(0.15, CUT_BEFORE))
    assert [type(outcome) for outcome in shell.process_together(queue, 2)] == [RetryBudgetExhaustedError] * 2
    proxy.meet("claim", PASS)
    with pytest.raises(RetryBudgetExhaustedError):
        shell.process(queue)
    proxy.relent()
    proxy.meet("publish", CUT_AFTER, CUT_AFTER, CUT_AFTER)
    assert shell.publish_together(queue, ["first", "second", "third"]) == [True, True, True]
    assert truth.pending == 3


def test_a_message_that_cannot_be_read_is_buried_once_although_the_burial_was_given_up(proxy, truth, shell):
    """The queue object goes on to serve, whatever became of the burial."""
    for cut in (CUT_BEFORE, CUT_AFTER):
        queue = shell.queue(shell.client(decode_responses=True), gateway=NO_BUDGET)
        shell.publish(queue, "unreadable")
        [stored] = truth.client.lrange(truth.key.pending, 0, -1)
        truth.client.lset(truth.key.pending, 0, stored.replace(b"unreadable", b"\xff\xfe"))
        proxy.meet("settle", cut)
        with pytest.raises(RedisConnectionError):
            shell.process(queue)
        assert shell.process(queue) is None
        assert truth.dead == [b"\xff\xfe"]
        assert truth.is_empty
        shell.publish(queue, "readable")
        assert shell.process(queue) == "readable"
        truth.client.delete(truth.key.dead_letter)


# With a client that repeats by itself


def test_the_retries_of_redis_py_double_nothing(proxy, truth, shell):
    """Both repeat, the client below and the library above: one message, handled and acked once."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 3))
    queue = shell.queue(client, enable_completed_queue=True, deduplication=True)
    for verb in ("publish", "claim", "settle"):
        proxy.meet(verb, *[CUT_AFTER, CUT_BEFORE] * 3)
    assert shell.publish(queue, "message") is True
    assert truth.pending == 1
    assert shell.process(queue) == b"message"
    assert truth.completed == [b"message"]
    assert truth.is_empty
    assert proxy.seen["publish"] == proxy.seen["claim"] == proxy.seen["settle"] == 7


def test_the_retries_of_redis_py_after_a_timeout_double_nothing(proxy, truth, shell):
    """The answer is slower than the client: its repetition overlaps with the first try."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 2), socket_timeout=0.1)
    queue = shell.queue(client, enable_completed_queue=True)
    for verb in ("publish", "claim", "settle"):
        proxy.meet(verb, delayed(0.25), BLACK_HOLE)
    assert shell.publish(queue, "message") is True
    # A claim that does not wait ends with the time of one answer: what it took is found by the next.
    until(lambda: shell.process(queue) == b"message")
    assert shell.process(queue) is None
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_a_claim_found_again_begins_a_full_lease(proxy, truth, shell):
    """What was claimed long ago is not handled on the rest of a lease that has nearly run out."""
    queue = shell.queue(gateway=NO_BUDGET | {"message_visibility_timeout_seconds": 2})
    shell.publish(queue, "message")
    proxy.meet("claim", CUT_AFTER)
    with pytest.raises(RedisConnectionError):
        shell.process(queue)
    [before] = truth.deadlines
    time.sleep(0.2)
    left = []
    shell.process(queue, lambda _: left.extend(truth.deadlines))
    assert left[0] - before >= 200_000
