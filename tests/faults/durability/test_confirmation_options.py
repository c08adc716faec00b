"""Confirmations work with limits, drains and gateways."""

from typing import Any

import pytest

from redis_message_queue import (
    ConfigurationError,
    EventOperation,
    EventOutcome,
    GatewayContractError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
)
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.durability.replicas import HASTY, KEY, PATIENT, done, drain, payloads, publish, repeat, unconfirmed

pytestmark = pytest.mark.topic("Durability")


def full(**policy: Any) -> dict[str, Any]:
    return {"max_pending_length": 1, **policy}


# Limits and drains


def test_a_full_queue_refuses_before_any_confirmation(family, shell):
    queue = shell.queue(gateway=PATIENT | full())
    impatient = {"pending_overload_policy": "block", "pending_overload_block_timeout_seconds": 0.05}
    blocking = shell.queue(gateway=PATIENT | full(**impatient))
    assert publish(shell, queue) is True
    asked = family.asked()
    for refusing in (queue, blocking):
        with pytest.raises(QueueBackpressureError):
            publish(shell, refusing, "too much")
    assert family.asked() == asked
    assert payloads(family.primary) == [b"message"]


def test_a_publish_that_waited_for_room_is_confirmed(family, shell):
    limit = {"pending_overload_policy": "block", "pending_overload_block_timeout_seconds": LIMIT_SECONDS}
    queue = shell.queue(gateway=PATIENT | full(**limit))
    assert publish(shell, queue, "first") is True
    asked = family.asked()
    second = start(publish, shell, queue, "second")
    assert shell.process(queue) == b"first"
    assert second.result(LIMIT_SECONDS) is True
    assert family.asked() > asked
    assert [b"second"] in (payloads(family.careful), payloads(family.careless))


def test_a_message_that_took_the_place_of_another_is_confirmed(family, shell):
    """On the replica too the oldest is gone; the event of the one that was dropped comes once."""
    events: list[Any] = []
    hasty = shell.queue(gateway=HASTY | full(pending_overload_policy="drop_oldest"), on_event=events.append)
    assert repeat(shell, hasty, None, "first") is True
    with family.stopped():
        error = unconfirmed(shell, hasty, "second")
    assert repeat(shell, hasty, error, "second") is True
    assert [b"second"] in (payloads(family.careful), payloads(family.careless))
    assert payloads(family.primary) == [b"second"]
    first = next(event.message_id for event in events)
    assert [event.message_id for event in events if event.operation == EventOperation.DROPPED] == [first]


def test_a_drain_waits_for_a_publish_that_is_being_confirmed(family, shell):
    """It is under way until a replica has it; the drain says so, and waits if it may."""
    queue = shell.queue(gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: family.blocked() == 1)
        assert drain(shell, queue, 0.02) is False
        draining = start(drain, shell, queue)
        until(lambda: queue.is_draining)
        assert not publishing.done()
        assert not draining.done()
    assert publishing.result(LIMIT_SECONDS) is True
    assert draining.result(LIMIT_SECONDS) is True
    assert payloads(family.primary) == [b"message"]


def test_a_drained_queue_repeats_nothing(family, shell):
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
        assert drain(shell, queue, LIMIT_SECONDS) is True
        with pytest.raises(QueueDrainedError):
            publish(shell, queue, repeat_of=error)
    assert payloads(family.primary) == [b"message"]


def test_events_say_what_was_not_confirmed_and_what_was(family, shell):
    """Under one id; the failure carries the error, and a duplicate that is confirmed is told as one."""
    events: list[Any] = []
    queue = shell.queue(gateway=HASTY, on_event=events.append, deduplication=True)
    with family.stopped():
        error = unconfirmed(shell, queue)
    assert repeat(shell, queue, error) is True
    assert repeat(shell, queue, None) is False
    failed = [event for event in events if event.outcome == EventOutcome.FAILURE]
    assert failed[0].error is error
    assert {event.exception_type for event in failed} == {"PublishNotConfirmedError"}
    published, suppressed = (event for event in events if event.outcome != EventOutcome.FAILURE)
    assert (published.operation, published.outcome) == (EventOperation.PUBLISH, EventOutcome.SUCCESS)
    assert (suppressed.operation, suppressed.outcome) == (EventOperation.PUBLISH_DEDUP_HIT, EventOutcome.SKIPPED)
    assert failed[0].message_id == published.message_id == error.message_id
    assert suppressed.message_id != error.message_id


# Gateways


def test_the_operations_of_a_gateway_are_confirmed_too(family, shell):
    """Also where a subclass calls them; what it raised cannot be repeated by a queue that does not know its call."""

    class Own(shell.gateway_class):  # type: ignore[name-defined,misc]  # known at run time only
        def add_message(self, queue, message):
            return super().add_message(queue, message)

    gateway = Own(redis_client=shell.client(), **HASTY)
    queue = shell.queue_class("faults", gateway=gateway)
    with family.stopped():
        with pytest.raises(PublishNotConfirmedError):
            done(shell, gateway.add_message(KEY.pending, "first"))
        error = unconfirmed(shell, queue, "second")
        assert (error.queue, error.operation) == ("faults", "publish")
        with pytest.raises(GatewayContractError, match="repeat_of"):
            publish(shell, queue, "second", error)
    assert payloads(family.primary) == [b"first", b"second"]


@pytest.mark.parametrize(
    "option", [{"confirm_replicas": 1}, {"confirm_fsync": True}, {"confirm_timeout_seconds": 2}], ids=str
)
def test_gateway_options_are_refused_with_a_gateway(shell, option):
    """And taken where the queue has a bare client."""
    (name,) = option
    gateway = shell.gateway_class(redis_client=shell.client())
    with pytest.raises(ConfigurationError, match=rf"{name}.*RedisGateway\({name}="):
        shell.queue_class("faults", gateway=gateway, **option)
    shell.queue_class("faults", client=shell.client(), **option)


def test_a_queue_with_a_bare_client_is_confirmed(family, shell):
    hasty = shell.queue_class("faults", client=shell.client(), **HASTY)
    with family.stopped():
        error = unconfirmed(shell, hasty)
    assert repeat(shell, hasty, error) is True
    assert payloads(family.primary) == [b"message"]
