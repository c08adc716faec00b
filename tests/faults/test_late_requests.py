"""A request that was delayed and arrives after its caller has continued changes nothing."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from redis_message_queue import CleanupFailedError, RedisMessageQueue
from tests.faults.proxy import ARRIVE_LATE, PASS

pytestmark = pytest.mark.topic("Retries of Redis calls")


OVERTAKEN = b"OVERTAKEN"


def fail(message):
    raise ValueError(message)


@pytest.mark.promise("A command that arrives late from a dead connection changes nothing.")
@pytest.mark.parametrize("deduplication", [False, True], ids=["plain", "deduplicated"])
def test_a_late_publish_publishes_nothing(proxy, truth, shell, deduplication):
    """Neither right after its repetition, nor after the caller's next call."""
    queue = shell.queue(deduplication=deduplication)
    proxy.meet("publish", ARRIVE_LATE, PASS, ARRIVE_LATE)
    assert shell.publish(queue, "first") is True
    assert proxy.send_late_requests() == [b":1\r\n"]
    assert truth.pending == 1
    assert shell.publish(queue, "second") is True
    assert shell.publish(queue, "third") is True
    [answer] = proxy.send_late_requests()
    assert OVERTAKEN in answer
    assert truth.pending == 3


def test_a_late_publish_that_was_given_up_counts_once(proxy, truth, shell):
    """It may still happen, once; the caller's next publish shuts it out if that comes first."""
    queue = shell.queue(gateway={"retry_budget_seconds": 0})
    proxy.meet("publish", ARRIVE_LATE, ARRIVE_LATE)
    with pytest.raises(RedisConnectionError):
        shell.publish(queue, "late, and let in")
    assert proxy.send_late_requests() == [b":1\r\n"]
    with pytest.raises(RedisConnectionError):
        shell.publish(queue, "late, and shut out")
    assert shell.publish(queue, "in time") is True
    [answer] = proxy.send_late_requests()
    assert OVERTAKEN in answer
    assert [shell.process(queue) for _ in range(3)] == [b"late, and let in", b"in time", None]


@pytest.mark.promise("A command that arrives late from a dead connection changes nothing.")
def test_a_late_claim_claims_nothing(proxy, truth, shell):
    """Neither while its repetition is being handled, nor afterwards: no consumer would handle the message."""
    queue = shell.queue()
    for message in ("first", "second"):
        shell.publish(queue, message)
    answers = []
    proxy.meet("claim", ARRIVE_LATE, PASS, ARRIVE_LATE)
    assert shell.process(queue, lambda _: answers.extend(proxy.send_late_requests())) == b"first"
    assert b"first" in answers[0]
    assert truth.pending == 1
    assert shell.process(queue) == b"second"
    shell.publish(queue, "third")
    [answer] = proxy.send_late_requests()
    assert OVERTAKEN in answer
    assert truth.pending == 1
    assert truth.processing == 0


def test_a_late_claim_that_found_nothing_claims_nothing_later(proxy, truth, shell):
    """A consumer that got "empty" does not hold a message without knowing it."""
    queue = shell.queue()
    proxy.meet("claim", ARRIVE_LATE)
    assert shell.process(queue) is None
    RedisMessageQueue("faults", client=truth.client).publish("for someone else")
    proxy.send_late_requests()
    assert truth.pending == 1
    assert truth.processing == 0


@pytest.mark.promise("A command that arrives late from a dead connection changes nothing.")
def test_a_late_ack_acks_nothing_else(proxy, truth, shell):
    queue = shell.queue(enable_completed_queue=True)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.meet("settle", ARRIVE_LATE)
    assert shell.process(queue) == b"first"
    assert shell.process(queue, lambda _: proxy.send_late_requests()) == b"second"
    assert truth.completed == [b"first", b"second"]
    assert truth.is_empty


@pytest.mark.promise("A command that arrives late from a dead connection changes nothing.")
def test_a_late_failure_fails_nothing_else(proxy, truth, shell):
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.meet("settle", ARRIVE_LATE)
    with pytest.raises(ValueError, match="first"):
        shell.process(queue, fail)
    assert shell.process(queue, lambda _: proxy.send_late_requests()) == b"second"
    assert truth.failed == [b"first"]
    assert truth.completed == [b"second"]
    assert truth.is_empty


def test_a_late_ack_of_a_lost_lease_leaves_the_message_to_its_new_holder(proxy, truth, shell):
    """An ack was given up, its lease ran out, and the message was reclaimed: now the ack arrives."""
    queue = shell.queue(gateway={"message_visibility_timeout_seconds": 0.05, "retry_budget_seconds": 0})
    other = RedisMessageQueue("faults", client=truth.client, visibility_timeout_seconds=300)
    shell.publish(queue, "message")
    proxy.meet("settle", ARRIVE_LATE)
    with pytest.raises(CleanupFailedError):
        shell.process(queue)
    with other.process_message() as message:
        assert message == b"message"
        assert other.current_message().delivery_count == 2
        proxy.send_late_requests()
        assert truth.processing == 1
    assert truth.is_empty


@pytest.mark.promise("An ack does not wait for a running renewal, and a renewal that arrives late has no effect.")
def test_a_late_renewal_restores_no_lease(proxy, truth, shell):
    """Its message was acked: no lease may exist without one."""
    queue = shell.queue(gateway={"message_visibility_timeout_seconds": 20}, heartbeat_interval_seconds=0.02)
    shell.publish(queue, "message")
    proxy.meet("renew", ARRIVE_LATE)
    assert shell.process(queue, busy=lambda: proxy.seen["renew"] < 2) == b"message"
    [answer] = proxy.send_late_requests()
    assert answer == b"$1\r\n0\r\n"
    assert truth.is_empty


@pytest.mark.promise("An ack does not wait for a running renewal, and a renewal that arrives late has no effect.")
def test_a_late_renewal_does_not_extend_the_lease_of_another_consumer(proxy, truth, shell):
    """Renewals and the ack of the first consumer arrive together, when the second one has the message."""
    queue = shell.queue(
        gateway={"message_visibility_timeout_seconds": 0.2, "retry_budget_seconds": 0},
        heartbeat_interval_seconds=0.02,
    )
    other = RedisMessageQueue("faults", client=truth.client, visibility_timeout_seconds=300)
    shell.publish(queue, "message")
    proxy.always("renew", ARRIVE_LATE)
    proxy.meet("settle", ARRIVE_LATE)
    with pytest.raises(CleanupFailedError):
        shell.process(queue, busy=lambda: proxy.seen["renew"] < 1)
    with other.process_message() as message:
        assert message == b"message"
        assert other.current_message().delivery_count == 2
        before = truth.deadlines
        # Not renewed, and not a case for the short script of an ack.
        assert proxy.send_late_requests() == [b"$1\r\n0\r\n", b"$0\r\n\r\n"]
        assert truth.deadlines == before
        assert truth.processing == 1
    assert truth.is_empty
