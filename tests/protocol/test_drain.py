"""A drained queue object requeues what it may hold, whatever is lost meanwhile."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, count, product

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.message_queue import ProcessMessage
from redis_message_queue.values.errors import QueueDrainedError
from tests.protocol.port import REPLY, REQUEST, Cancelled, Loss, Lost, MemoryPort, late
from tests.protocol.setup import CLAIMANT, LEASE, Setup, check_that_slots_are_acquired_once, process_all

leased_or_not = pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])
CLAIM = 2  # the place of the first claim among the calls of a scene's port


def left_unconfirmed(
    lease: float | None,
    kind: Loss = REPLY,
    unconfirmed: int = 1,
    *,
    count: int = 1,
    tenants: tuple[str | None, str | None] = (None, None),
) -> tuple[Setup, MemoryPort, QueueProtocol]:
    """Two messages were published by one object, and so many of its claims, each of so many messages, were lost."""
    setup = Setup(message_visibility_timeout_seconds=lease, retry_budget_seconds=0, max_delivery_count=lease and 1)
    port = setup.port(dict.fromkeys(range(CLAIM, CLAIM + unconfirmed), kind))
    queue = setup.queue(port)
    for payload, tenant in zip("01", tenants, strict=True):
        finish(queue.publish(payload, tenant=tenant))
    claimer = queue.store.claimer
    attempts = [claimer.attempt() for _ in range(unconfirmed)]
    for attempt in attempts:
        with pytest.raises(Lost):
            finish(claimer.claim(attempt, CLAIMANT, 0, count))
        claimer.release(attempt, CLAIMANT)
    assert len(claimer.unconfirmed) == unconfirmed
    return setup, port, queue


def check_that_another_object_gets_everything(setup: Setup, queue: QueueProtocol) -> None:
    """In order, and as if it had never been delivered: the limit is one delivery."""
    assert process_all(setup.queue()) == [b"0", b"1"]
    assert setup.places == {b"0": 1, b"1": 1}
    assert not setup.dead
    check_that_slots_are_acquired_once(queue)


@leased_or_not
@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
@pytest.mark.parametrize("unconfirmed", [1, 2])
def test_a_drain_requeues_unconfirmed_claims_at_once_and_uncounted(lease, kind, unconfirmed):
    setup, _, queue = left_unconfirmed(lease, kind, unconfirmed)
    assert finish(queue.drain(None)) is True
    assert len(queue.store.claimer.unconfirmed) == 0
    assert not setup.processing
    assert Counter(setup.pending) == {b"0": 1, b"1": 1}
    if unconfirmed == 1:
        check_that_another_object_gets_everything(setup, queue)


TENANTS = [(None, None), ("ann", "ann"), ("ann", "bob"), ("ann", None)]
of_tenants = pytest.mark.parametrize("tenants", TENANTS, ids=lambda pair: "-".join(map(str, pair)))


@leased_or_not
@of_tenants
@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
def test_a_drain_requeues_an_unconfirmed_batch_in_its_order_and_uncounted(lease, kind, tenants):
    setup, _, queue = left_unconfirmed(lease, kind, count=2, tenants=tenants)
    assert Counter(setup.processing) == (Counter() if kind is REQUEST else {b"0": 1, b"1": 1})
    assert finish(queue.drain(None)) is True
    assert (len(queue.store.claimer.unconfirmed), setup.processing) == (0, [])
    assert Counter(setup.waiting) == {b"0": 1, b"1": 1}
    check_that_another_object_gets_everything(setup, queue)


def losses_during(calls: int) -> Iterator[dict[int, Loss]]:
    """Up to two of the calls of a drain are lost, in any way."""
    for losses in (1, 2):
        for places in combinations(range(CLAIM + 1, CLAIM + 1 + calls), losses):
            for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=losses):
                yield dict(zip(places, ways, strict=True))


@leased_or_not
@pytest.mark.parametrize(("count", "tenants"), [(1, (None, None)), (2, (None, None)), (2, ("ann", "bob"))])
def test_a_drain_that_loses_calls_can_be_repeated_until_nothing_is_unconfirmed(lease, count, tenants):
    for losses in losses_during(calls=4):
        setup, port, queue = left_unconfirmed(lease, count=count, tenants=tenants)
        port.losses = losses
        for _ in range(3):
            finish(queue.drain(None))
        setup.memory.run_all_late_requests()
        assert len(queue.store.claimer.unconfirmed) == 0, losses
        check_that_another_object_gets_everything(setup, queue)


@leased_or_not
@pytest.mark.parametrize("broken_by", [KeyboardInterrupt, Cancelled])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_drain_that_is_broken_off_anywhere_can_be_repeated(lease, broken_by, batch):
    for more in count():
        setup, port, queue = left_unconfirmed(lease, count=batch)
        port.break_at, port.break_with = (len(port.points) + more,), broken_by
        points = len(port.points)
        with suppress(broken_by):
            finish(queue.drain(None))
        if len(port.points) <= points + more:
            assert more >= 4, "the drain was too short to prove anything"
            return
        assert finish(queue.drain(None)) is True
        check_that_another_object_gets_everything(setup, queue)


def test_every_attempt_of_a_drain_ends_with_its_time():
    """Asking what a claim took, and requeueing it: even if the client would wait longer for a reply."""
    _, port, queue = left_unconfirmed(LEASE)
    port.sent.clear()
    started = port.now()
    assert finish(queue.drain(7.0)) is True
    assert [(sent.verb, sent.ends_at) for sent in port.sent] == [("claim", started + 7), ("requeue", started + 7)]


def test_a_drain_without_redis_ends_with_its_time_and_says_so():
    setup, port, queue = left_unconfirmed(LEASE)
    port.losses = dict.fromkeys(range(999), REQUEST)
    started = port.now()
    assert finish(queue.drain(2.0)) is False
    assert port.now() - started <= 2.1
    assert setup.processing == [b"0"]
    port.losses.clear()
    assert finish(queue.drain(2.0)) is True
    check_that_another_object_gets_everything(setup, queue)


def test_a_drained_object_takes_nothing_more():
    setup = Setup()
    queue = setup.queue()
    finish(queue.publish("0"))
    assert finish(queue.drain(None)) is True
    with pytest.raises(QueueDrainedError):
        finish(queue.publish("1"))
    with ProcessMessage(queue) as payload:
        assert payload is None
    assert setup.pending == [b"0"]


def test_a_drain_touches_nothing_that_a_handler_has():
    """Its handler will settle it, also after the drain."""
    setup = Setup()
    queue = setup.queue()
    finish(queue.publish("0"))
    with ProcessMessage(queue) as payload:
        assert payload == b"0"
        finish(queue.drain(0.0))
        assert setup.processing == [b"0"]
    assert setup.completed == [b"0"]
