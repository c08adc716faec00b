"""A request that was held up on the way and arrives after its caller has gone on changes nothing."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from redis_message_queue import CleanupFailedError, RedisMessageQueue
from tests.faults.proxy import PASS, STRAGGLE

OVERTAKEN = b"OVERTAKEN"


def fail(message):
    raise ValueError(message)


@pytest.mark.parametrize("deduplication", [False, True], ids=["plain", "deduplicated"])
def test_a_straggling_publish_publishes_nothing(proxy, truth, shell, deduplication):
    """Neither right after the repetition that was executed in its place, nor after the caller's next call."""
    queue = shell.queue(deduplication=deduplication)
    proxy.meet("publish", STRAGGLE, PASS, STRAGGLE)
    assert shell.publish(queue, "first") is True
    assert proxy.let_stragglers_through() == [b":1\r\n"]
    assert truth.pending == 1
    assert shell.publish(queue, "second") is True
    assert shell.publish(queue, "third") is True
    [answer] = proxy.let_stragglers_through()
    assert OVERTAKEN in answer
    assert truth.pending == 3


def test_a_straggling_publish_of_a_caller_who_gave_up_counts_once(proxy, truth, shell):
    """A publish that was given up may still happen, once; its caller's next one shuts it out if it comes first."""
    queue = shell.queue(gateway={"retry_budget_seconds": 0})
    proxy.meet("publish", STRAGGLE, STRAGGLE)
    with pytest.raises(RedisConnectionError):
        shell.publish(queue, "late, and let in")
    assert proxy.let_stragglers_through() == [b":1\r\n"]
    with pytest.raises(RedisConnectionError):
        shell.publish(queue, "late, and shut out")
    assert shell.publish(queue, "in time") is True
    [answer] = proxy.let_stragglers_through()
    assert OVERTAKEN in answer
    assert [shell.process(queue) for _ in range(3)] == [b"late, and let in", b"in time", None]


def test_a_straggling_claim_claims_nothing(proxy, truth, shell):
    """Neither while its repetition is being handled, nor when that is done: nobody would look after it."""
    queue = shell.queue()
    for message in ("first", "second"):
        shell.publish(queue, message)
    answers = []
    proxy.meet("claim", STRAGGLE, PASS, STRAGGLE)
    assert shell.process(queue, lambda _: answers.extend(proxy.let_stragglers_through())) == b"first"
    assert b"first" in answers[0]
    assert truth.pending == 1
    assert shell.process(queue) == b"second"
    shell.publish(queue, "third")
    [answer] = proxy.let_stragglers_through()
    assert OVERTAKEN in answer
    assert truth.pending == 1
    assert truth.processing == 0


def test_a_straggling_claim_that_found_nothing_claims_nothing_later(proxy, truth, shell):
    """A consumer that was told "empty" is not given a message behind its back."""
    queue = shell.queue()
    proxy.meet("claim", STRAGGLE)
    assert shell.process(queue) is None
    RedisMessageQueue("faults", client=truth.client).publish("for somebody else")
    proxy.let_stragglers_through()
    assert truth.pending == 1
    assert truth.processing == 0


def test_a_straggling_ack_acks_nothing_else(proxy, truth, shell):
    queue = shell.queue(enable_completed_queue=True)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.meet("settle", STRAGGLE)
    assert shell.process(queue) == b"first"
    assert shell.process(queue, lambda _: proxy.let_stragglers_through()) == b"second"
    assert truth.completed == [b"first", b"second"]
    assert truth.is_empty


def test_a_straggling_failure_fails_nothing_else(proxy, truth, shell):
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.meet("settle", STRAGGLE)
    with pytest.raises(ValueError, match="first"):
        shell.process(queue, fail)
    assert shell.process(queue, lambda _: proxy.let_stragglers_through()) == b"second"
    assert truth.failed == [b"first"]
    assert truth.completed == [b"second"]
    assert truth.is_empty


def test_a_straggling_ack_of_a_lost_lease_leaves_the_message_to_its_new_holder(proxy, truth, shell):
    """An ack given up, its lease run out, the message taken over: now the ack arrives."""
    queue = shell.queue(gateway={"message_visibility_timeout_seconds": 0.05, "retry_budget_seconds": 0})
    other = RedisMessageQueue("faults", client=truth.client, visibility_timeout_seconds=300)
    shell.publish(queue, "message")
    proxy.meet("settle", STRAGGLE)
    with pytest.raises(CleanupFailedError):
        shell.process(queue)
    with other.process_message() as message:
        assert message == b"message"
        assert other.current_message().delivery_count == 2
        proxy.let_stragglers_through()
        assert truth.processing == 1
    assert truth.is_empty


def test_a_straggling_renewal_revives_nothing(proxy, truth, shell):
    """Its message was acked: no lease may come back without one."""
    queue = shell.queue(gateway={"message_visibility_timeout_seconds": 20}, heartbeat_interval_seconds=0.02)
    shell.publish(queue, "message")
    proxy.meet("renew", STRAGGLE)
    assert shell.process(queue, busy=lambda: proxy.seen["renew"] < 2) == b"message"
    [answer] = proxy.let_stragglers_through()
    assert answer == b"$1\r\n0\r\n"
    assert truth.is_empty


def test_a_straggling_renewal_does_not_prolong_the_lease_of_another(proxy, truth, shell):
    """Renewals and the ack of the first holder arrive together, when the message has its second one."""
    queue = shell.queue(
        gateway={"message_visibility_timeout_seconds": 0.2, "retry_budget_seconds": 0},
        heartbeat_interval_seconds=0.02,
    )
    other = RedisMessageQueue("faults", client=truth.client, visibility_timeout_seconds=300)
    shell.publish(queue, "message")
    proxy.always("renew", STRAGGLE)
    proxy.meet("settle", STRAGGLE)
    with pytest.raises(CleanupFailedError):
        shell.process(queue, busy=lambda: proxy.seen["renew"] < 1)
    with other.process_message() as message:
        assert message == b"message"
        assert other.current_message().delivery_count == 2
        before = truth.deadlines
        assert proxy.let_stragglers_through() == [b"$1\r\n0\r\n"] * 2
        assert truth.deadlines == before
        assert truth.processing == 1
    assert truth.is_empty
