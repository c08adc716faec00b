"""What happens when the retry budget is used up, and when the client retries by itself."""

import time

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from redis_message_queue import CleanupFailedError, RetryBudgetExhaustedError
from redis_message_queue.testing import fast_forward
from tests.concurrency import until
from tests.faults.proxy import ARRIVE_LATE, BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, delayed

pytestmark = pytest.mark.topic("Retries of Redis calls")


either_cut = pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=str)
NO_BUDGET = {"retry_budget_seconds": 0}
SMALL_BUDGET = {"retry_budget_seconds": 0.5}  # time for a second attempt on a busy machine


def fail(message):
    raise ValueError(message)


def _outcome(work):
    try:
        return work()
    except RedisConnectionError as error:
        return error


# Without a budget


@pytest.mark.promise("With a retry budget of 0 a call is attempted once, and its exception is raised unchanged.")
@either_cut
def test_without_a_budget_a_publish_raises_the_redis_error(proxy, truth, shell, cut):
    """One attempt; it is unknown whether it was executed, and another call is another message."""
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
    """The second call is suppressed if and only if the first one was executed."""
    queue = shell.queue(gateway=NO_BUDGET, deduplication=True)
    proxy.meet("publish", cut)
    with pytest.raises(RedisConnectionError):
        shell.publish(queue, "message")
    assert shell.publish(queue, "message") is (cut is CUT_BEFORE)
    assert truth.pending == 1


@either_cut
def test_without_a_budget_the_next_claim_recovers_a_lost_one(proxy, truth, shell, cut):
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


@pytest.mark.promise("With a retry budget of 0 a call is attempted once, and its exception is raised unchanged.")
@either_cut
def test_without_a_budget_a_lost_ack_raises(proxy, truth, shell, cut):
    queue = shell.queue(gateway=NO_BUDGET, enable_completed_queue=True)
    shell.publish(queue, "message")
    proxy.meet("settle", cut)
    with pytest.raises(CleanupFailedError) as raised:
        shell.process(queue)
    assert isinstance(raised.value.__cause__, RedisConnectionError)
    executed = cut is CUT_AFTER
    assert truth.processing == (0 if executed else 1)
    assert truth.completed == ([b"message"] if executed else [])


@pytest.mark.promise("With a retry budget of 0 a call is attempted once, and its exception is raised unchanged.")
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


# With a budget that is used up


@pytest.mark.promise("When the retry budget is spent, `RetryBudgetExhaustedError` is raised from the last error.")
@either_cut
def test_a_used_up_budget_names_its_cause(proxy, shell, cut):
    queue = shell.queue(gateway=SMALL_BUDGET)
    proxy.always("publish", cut)
    with pytest.raises(RetryBudgetExhaustedError) as raised:
        shell.publish(queue, "message")
    assert isinstance(raised.value, RedisError)
    assert isinstance(raised.value.__cause__, RedisConnectionError)
    assert raised.value.operation == "publish"
    assert proxy.seen["publish"] > 1


@pytest.mark.promise("Every publish call is stored once, with or without deduplication, however often it is retried.")
def test_a_publish_that_was_given_up_after_many_attempts_happened_once(proxy, truth, shell):
    queue = shell.queue(gateway=SMALL_BUDGET)
    proxy.always("publish", CUT_AFTER)
    with pytest.raises(RetryBudgetExhaustedError):
        shell.publish(queue, "message")
    assert proxy.seen["publish"] > 1
    assert truth.pending == 1


@pytest.mark.promise("The next call recovers a claim that ran out of retries, with or without leases.")
@either_cut
def test_a_claim_that_was_given_up_is_recovered(proxy, truth, shell, cut):
    """By the next process_message() of the same queue object, long before its lease of 300 s ends."""
    queue = shell.queue(gateway=SMALL_BUDGET)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.always("claim", cut)
    with pytest.raises(RetryBudgetExhaustedError):
        shell.process(queue)
    assert truth.processing == (1 if cut is CUT_AFTER else 0)
    proxy.relent()
    counts = []
    for expected in (b"first", b"second"):
        assert shell.process(queue, lambda _: counts.append(queue.current_message().delivery_count)) == expected
    assert counts == [1, 1]
    assert shell.process(queue) is None
    assert truth.is_empty


def test_a_claim_is_recovered_after_several_lost_recoveries(proxy, truth, shell):
    """The recovery itself may be lost too."""
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


def test_a_claim_that_arrives_after_it_was_given_up_is_recovered(proxy, truth, shell):
    """It was not executed when its caller gave up, and is executed before the next call."""
    queue = shell.queue(gateway=NO_BUDGET)
    shell.publish(queue, "message")
    proxy.meet("claim", ARRIVE_LATE)
    with pytest.raises(RedisConnectionError):
        shell.process(queue)
    assert truth.processing == 0
    proxy.send_late_requests()
    assert truth.processing == 1
    assert shell.process(queue) == b"message"
    assert truth.is_empty


def test_a_late_claim_is_refused_after_its_recovery(proxy, truth, shell):
    queue = shell.queue(gateway=NO_BUDGET)
    shell.publish(queue, "message")
    proxy.meet("claim", ARRIVE_LATE)
    with pytest.raises(RedisConnectionError):
        shell.process(queue)
    assert shell.process(queue) == b"message"
    shell.publish(queue, "another message")
    proxy.send_late_requests()
    assert truth.pending == 1
    assert truth.processing == 0


def test_concurrent_claims_that_were_given_up_are_all_recovered(proxy, truth, shell):
    """Even if some of the recoveries are lost."""
    queue = shell.queue(gateway=NO_BUDGET)
    for message in ("first", "second", "third"):
        shell.publish(queue, message)
    proxy.always("claim", delayed(0.3, CUT_AFTER))  # long enough for all three to be under way
    outcomes = shell.process_together(queue, 3)
    assert [type(outcome) for outcome in outcomes] == [RedisConnectionError] * 3
    assert truth.processing == 3
    proxy.relent()
    proxy.meet("claim", PASS, CUT_AFTER, CUT_BEFORE)
    found = [_outcome(lambda: shell.process(queue)) for _ in range(6)]
    assert sorted(payload for payload in found if isinstance(payload, bytes)) == [b"first", b"second", b"third"]
    assert truth.is_empty


def test_concurrent_callers_keep_separate_replies_after_giving_up(proxy, truth, shell):
    """Two claims never arrived; the recovery of the first succeeds, that of the second fails.

    The callers of this queue object then work at the same time, and none makes another one's call a late request.
    """
    queue = shell.queue(gateway={"retry_budget_seconds": 3})  # time for each publish below on a busy machine
    proxy.always("claim", delayed(1.5, CUT_BEFORE))
    assert [type(outcome) for outcome in shell.process_together(queue, 2)] == [RetryBudgetExhaustedError] * 2
    proxy.meet("claim", PASS)
    with pytest.raises(RetryBudgetExhaustedError):
        shell.process(queue)
    proxy.relent()
    proxy.meet("publish", CUT_AFTER, CUT_AFTER, CUT_AFTER)
    assert shell.publish_together(queue, ["first", "second", "third"]) == [True, True, True]
    assert truth.pending == 3


def test_an_unreadable_message_is_dead_lettered_once_after_a_lost_reply(proxy, truth, shell):
    """The queue object continues to work, whether or not the dead-lettering arrived."""
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


# With a client that retries by itself


@pytest.mark.promise("The retries of redis-py below ours duplicate nothing.")
@pytest.mark.promise("Every publish call is stored once, with or without deduplication, however often it is retried.")
def test_retries_of_redis_py_duplicate_nothing(proxy, truth, shell):
    """Both the client and the library repeat: one message, handled and acked once."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 3))
    waits = {"message_wait_interval_seconds": 60}
    queue = shell.queue(client, waits, enable_completed_queue=True, deduplication=True)
    for verb in ("publish", "claim", "settle"):
        proxy.meet(verb, *[CUT_AFTER, CUT_BEFORE] * 3)
    assert shell.publish(queue, "message") is True
    assert truth.pending == 1
    assert shell.process(queue) == b"message"
    assert truth.completed == [b"message"]
    assert truth.is_empty
    assert proxy.seen["publish"] == proxy.seen["claim"] == proxy.seen["settle"] == 7


@pytest.mark.promise("The retries of redis-py below ours duplicate nothing.")
def test_retries_of_redis_py_after_a_timeout_duplicate_nothing(proxy, truth, shell):
    """The reply is slower than the client's timeout: the repetition overlaps with the first attempt."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 2), socket_timeout=0.1)
    queue = shell.queue(client, enable_completed_queue=True)
    for verb in ("publish", "claim", "settle"):
        proxy.meet(verb, delayed(0.25), BLACK_HOLE)
    assert shell.publish(queue, "message") is True
    # A claim that does not wait ends after the time of one reply; the next claim recovers its message.
    until(lambda: shell.process(queue) == b"message")
    assert shell.process(queue) is None
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_a_lost_reply_is_given_up_in_time_after_fast_forward(proxy, truth, shell):
    """It moves the clock of the queues, and not that of their sockets."""
    queue = shell.queue(shell.client(socket_timeout=0.1))
    shell.publish(queue, "message")
    fast_forward(truth.client, 86_400)
    proxy.meet("claim", BLACK_HOLE)
    until(lambda: shell.process(queue) == b"message")
    assert truth.is_empty


@pytest.mark.promise("The next call recovers a claim that ran out of retries, with or without leases.")
def test_a_recovered_claim_starts_a_full_lease(proxy, truth, shell):
    """A message that was claimed long ago is not handled on the short rest of its lease."""
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
