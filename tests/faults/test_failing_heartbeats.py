"""A failing heartbeat is reported, and a lease that it could not renew is lost."""

import pytest

from redis_message_queue import EventOperation, EventOutcome, RedisGateway, RedisMessageQueue
from tests import depth
from tests.concurrency import beside, until
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS

# The way of sending makes no difference here, and every test takes a lease.
pytestmark = [
    pytest.mark.topic("Heartbeats"),
    pytest.mark.parametrize("shell", ["sync-packed", "asyncio-ordinary"], indirect=True),
]

# The client notices a lost renewal after its timeout. Claims have the same one, and a lease that is not much longer
# would end before its handler begins where the machine is busy.
LISTENING_SECONDS, LEASE_SECONDS = 1.0, 4


class Holder:
    """A consumer whose renewals are lost, and all its events."""

    def __init__(self, shell, lease_seconds=LEASE_SECONDS, listening_seconds=LISTENING_SECONDS, **gateway):
        self.failures, self.events, self.lost_renewals = [], [], []
        self.shell = shell
        self.queue = shell.queue(
            shell.client(socket_timeout=listening_seconds),
            {"message_visibility_timeout_seconds": lease_seconds} | gateway,
            heartbeat_interval_seconds=0.1,
            on_heartbeat_failure=lambda: self.failures.append("failed"),
            on_event=self._on_event,
            enable_completed_queue=True,
            enable_failed_queue=True,
        )

    def _on_event(self, event):
        self.events.append(event.operation)
        if event.operation == EventOperation.LEASE_RENEW and event.outcome == EventOutcome.FAILURE:
            self.lost_renewals.append(event.exception_type)

    @property
    def lease_lost(self):
        return self.queue.current_message().lease_lost


def consumer(truth, wait_seconds):
    """A consumer without the proxy, with long leases."""
    gateway = RedisGateway(
        redis_client=truth.client,
        message_visibility_timeout_seconds=300,
        message_wait_interval_seconds=wait_seconds,
    )
    return RedisMessageQueue("faults", gateway=gateway, enable_completed_queue=True)


@pytest.fixture
def other(truth):
    return consumer(truth, wait_seconds=60)


@pytest.mark.promise(
    "If a heartbeat cannot renew the lease, it stops; the handler continues, and its ack reports the result."
)
@pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE], ids=str)
def test_a_lost_heartbeat_is_reported_and_the_stale_ack_refused(shell, proxy, truth, other, fault):
    """The message stays with the second consumer when the first one finishes late."""
    holder = Holder(shell)
    other.publish("message")
    proxy.always("renew", fault)
    taken_over, finished = [], []

    def take_over():
        until(lambda: truth.processing == 1)
        with other.process_message() as message:
            taken_over.append((message, other.current_message().delivery_count))
            until(lambda: finished)
            assert truth.processing == 1
            assert truth.completed == []

    def stay_until_replaced():
        return not (taken_over and holder.lease_lost and holder.failures)

    with beside(take_over):
        assert shell.process(holder.queue, busy=stay_until_replaced) == b"message"
        finished.append(True)
    assert taken_over == [(b"message", 2)]
    assert holder.failures == ["failed"]
    assert EventOperation.STALE_LEASE_ACK in holder.events
    assert EventOperation.ACK not in holder.events
    assert truth.completed == [b"message"]
    assert truth.is_empty


@pytest.mark.promise(
    "If a heartbeat cannot renew the lease, it stops; the handler continues, and its ack reports the result."
)
def test_a_stale_failure_is_refused_too(shell, proxy, truth, other):
    holder = Holder(shell)
    other.publish("message")
    proxy.always("renew", BLACK_HOLE)
    taken_over, finished = [], []

    def take_over():
        until(lambda: truth.processing == 1)
        with other.process_message() as message:
            taken_over.append(message)
            until(lambda: finished)
            assert truth.processing == 1

    def stay_until_replaced():
        if taken_over and holder.failures:
            raise ValueError("too late")
        return True

    with beside(take_over):
        with pytest.raises(ValueError, match="too late"):
            shell.process(holder.queue, busy=stay_until_replaced)
        finished.append(True)
    assert EventOperation.STALE_LEASE_NACK in holder.events
    assert truth.failed == []
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_a_refused_renewal_is_reported_at_once(shell, truth, other):
    """The renewal arrives when another consumer already has the message."""
    holder = Holder(shell)
    other.publish("message")
    taken_over, finished = [], []

    def take_over():
        until(lambda: truth.processing == 1)
        hasty = consumer(truth, wait_seconds=0)
        while not taken_over:
            # As if the lease had run out during a pause; try again if a renewal was faster.
            truth.end_leases()
            with hasty.process_message() as message:
                if message is not None:
                    taken_over.append(message)
                    until(lambda: finished)

    with beside(take_over):
        shell.process(holder.queue, busy=lambda: not holder.lease_lost or not holder.failures)
        finished.append(True)
    assert taken_over == [b"message"]
    assert holder.failures == ["failed"]
    assert EventOperation.STALE_LEASE_RENEW in holder.events
    assert EventOperation.STALE_LEASE_ACK in holder.events
    assert truth.completed == [b"message"]
    assert truth.is_empty


@pytest.mark.promise("A lost renewal is retried within the lease without calling `on_heartbeat_failure`.")
def test_a_heartbeat_that_fails_for_less_than_a_lease_is_not_reported(shell, proxy, truth, other):
    holder = Holder(shell, lease_seconds=10)
    other.publish("message")
    proxy.meet("renew", BLACK_HOLE)
    lost = []

    def busy():
        lost.append(holder.lease_lost)
        return proxy.seen["renew"] < 6

    assert shell.process(holder.queue, busy=busy) == b"message"
    assert not any(lost)
    assert holder.failures == []
    assert holder.events.count(EventOperation.ACK) == 1
    assert truth.is_empty


@pytest.mark.promise("An ack does not wait for a running renewal, and a renewal that arrives late has no effect.")
def test_a_handler_that_ends_in_time_is_acked_in_time(shell, proxy, truth):
    """Its last renewal was lost and is still waited for: the ack does not wait until the lease is gone."""
    holder = Holder(shell)
    consumer(truth, 0).publish("message")
    proxy.always("renew", BLACK_HOLE)
    taken_over = []

    def wait_for_it():
        until(lambda: truth.processing == 1)
        with consumer(truth, wait_seconds=LEASE_SECONDS + 0.5).process_message() as message:
            taken_over.append(message)

    with beside(wait_for_it):
        assert shell.process(holder.queue, busy=lambda: proxy.seen["renew"] < 1) == b"message"
    assert taken_over == [None]
    assert EventOperation.ACK in holder.events
    assert holder.failures == []
    assert truth.completed == [b"message"]
    assert truth.is_empty


@pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE, CUT_AFTER], ids=str)
def test_without_a_budget_a_lost_renewal_does_not_end_the_heartbeat(shell, proxy, truth, fault):
    """It is reported, and the next interval renews: the consumer keeps the message for many more leases."""
    patience = 3 if fault is BLACK_HOLE else 30  # claim and ack are sent once, too, on a busy machine
    holder = Holder(shell, lease_seconds=60, listening_seconds=patience, retry_budget_seconds=0)
    consumer(truth, 0).publish("message")
    # A renewal without an answer takes three seconds: here the others show that two in a row do no harm.
    faults = [fault] if fault is BLACK_HOLE and not depth.FULL else [fault, fault, PASS, fault]
    proxy.meet("renew", PASS, *faults)
    lost = []

    def busy():
        lost.append(holder.lease_lost)
        return proxy.seen["renew"] < len(faults) + 4

    assert shell.process(holder.queue, busy=busy) == b"message"
    assert len(holder.lost_renewals) >= faults.count(fault)  # on a busy machine one more reply may be too late
    assert not any(lost)
    assert holder.failures == []
    assert holder.events.count(EventOperation.LEASE_RENEW) > len(holder.lost_renewals)
    assert holder.events.count(EventOperation.ACK) == 1
    assert truth.is_empty


def test_without_a_budget_a_heartbeat_ends_with_its_lease(shell, proxy, truth):
    """If no renewal arrives during the lease, `on_heartbeat_failure` is called once."""
    # Claim and ack are sent once, too.
    holder = Holder(shell, listening_seconds=30, retry_budget_seconds=0)
    consumer(truth, 0).publish("message")
    proxy.always("renew", CUT_BEFORE)
    assert shell.process(holder.queue, busy=lambda: not (holder.failures and holder.lease_lost)) == b"message"
    assert holder.failures == ["failed"]
    assert len(holder.lost_renewals) > 1


def test_a_budget_shorter_than_the_lease_does_not_end_the_heartbeat(shell, proxy, truth):
    holder = Holder(shell, lease_seconds=20, retry_budget_seconds=0.05)
    consumer(truth, 0).publish("message")
    proxy.always("renew", CUT_BEFORE)

    def busy():
        if len(holder.lost_renewals) == 2:
            proxy.relent()
        return holder.events.count(EventOperation.LEASE_RENEW) < 5

    assert shell.process(holder.queue, busy=busy) == b"message"
    assert set(holder.lost_renewals) == {"RetryBudgetExhaustedError"}
    assert holder.failures == []
    assert truth.is_empty
