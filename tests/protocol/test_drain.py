"""A queue object that ends gives back what it may hold, and whatever is lost meanwhile, nothing stays behind."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, count, product

import pytest

from redis_message_queue.errors import QueueDrainedError
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.queue import ProcessMessage
from tests.protocol.port import REPLY, REQUEST, Cancelled, Loss, Lost, MemoryPort, late
from tests.protocol.scene import LEASE, Scene, check_that_slots_are_lent_once, nobody_listens, process_all

leased_or_not = pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])
CLAIM = 2  # the place of the first claim among the calls of a scene's port


def left_in_doubt(
    lease: float | None,
    kind: Loss = REPLY,
    unsure: int = 1,
    *,
    count: int = 1,
    tenants: tuple[str | None, str | None] = (None, None),
) -> tuple[Scene, MemoryPort, QueueProtocol]:
    """Two messages were published by one object, and so many of its claims, each of so many messages, were lost."""
    scene = Scene(message_visibility_timeout_seconds=lease, retry_budget_seconds=0, max_delivery_count=lease and 1)
    port = scene.port(dict.fromkeys(range(CLAIM, CLAIM + unsure), kind))
    queue = scene.queue(port)
    for payload, tenant in zip("01", tenants, strict=True):
        finish(queue.publish(payload, tenant=tenant))
    claimer = queue.store.claimer
    attempts = [claimer.attempt() for _ in range(unsure)]
    for attempt in attempts:
        with pytest.raises(Lost):
            finish(claimer.claim(attempt, 0, lambda: False, nobody_listens, count))
        claimer.release(attempt)
    assert len(claimer.unsure) == unsure
    return scene, port, queue


def check_that_another_object_gets_everything(scene: Scene, queue: QueueProtocol) -> None:
    """In order, and as if it had never been delivered: the limit is one delivery."""
    assert process_all(scene.queue()) == [b"0", b"1"]
    assert scene.places == {b"0": 1, b"1": 1}
    assert not scene.dead
    check_that_slots_are_lent_once(queue)


@leased_or_not
@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
@pytest.mark.parametrize("unsure", [1, 2])
def test_a_drain_gives_unsure_claims_back_at_once_and_uncounted(lease, kind, unsure):
    scene, _, queue = left_in_doubt(lease, kind, unsure)
    assert finish(queue.drain(None)) is True
    assert len(queue.store.claimer.unsure) == 0
    assert not scene.processing
    assert Counter(scene.pending) == {b"0": 1, b"1": 1}
    if unsure == 1:
        check_that_another_object_gets_everything(scene, queue)


TENANTS = [(None, None), ("ann", "ann"), ("ann", "bob"), ("ann", None)]
of_tenants = pytest.mark.parametrize("tenants", TENANTS, ids=lambda pair: "-".join(map(str, pair)))


@leased_or_not
@of_tenants
@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
def test_a_drain_gives_an_unsure_batch_back_in_its_order_and_uncounted(lease, kind, tenants):
    scene, _, queue = left_in_doubt(lease, kind, count=2, tenants=tenants)
    assert Counter(scene.processing) == (Counter() if kind is REQUEST else {b"0": 1, b"1": 1})
    assert finish(queue.drain(None)) is True
    assert (len(queue.store.claimer.unsure), scene.processing) == (0, [])
    assert Counter(scene.waiting) == {b"0": 1, b"1": 1}
    check_that_another_object_gets_everything(scene, queue)


def losses_during(calls: int) -> Iterator[dict[int, Loss]]:
    """Up to two of the calls of a drain are lost, in any way."""
    for losses in (1, 2):
        for places in combinations(range(CLAIM + 1, CLAIM + 1 + calls), losses):
            for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=losses):
                yield dict(zip(places, ways, strict=True))


@leased_or_not
@pytest.mark.parametrize(("count", "tenants"), [(1, (None, None)), (2, (None, None)), (2, ("ann", "bob"))])
def test_a_drain_that_loses_calls_can_be_repeated_until_nothing_is_in_doubt(lease, count, tenants):
    for losses in losses_during(calls=4):
        scene, port, queue = left_in_doubt(lease, count=count, tenants=tenants)
        port.losses = losses
        for _ in range(3):
            finish(queue.drain(None))
        scene.memory.let_all_stragglers_in()
        assert len(queue.store.claimer.unsure) == 0, losses
        check_that_another_object_gets_everything(scene, queue)


@leased_or_not
@pytest.mark.parametrize("broken_by", [KeyboardInterrupt, Cancelled])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_drain_that_is_broken_off_anywhere_can_be_repeated(lease, broken_by, batch):
    for more in count():
        scene, port, queue = left_in_doubt(lease, count=batch)
        port.break_at, port.break_with = (len(port.points) + more,), broken_by
        points = len(port.points)
        with suppress(broken_by):
            finish(queue.drain(None))
        if len(port.points) <= points + more:
            assert more >= 4, "the drain was too short to prove anything"
            return
        assert finish(queue.drain(None)) is True
        check_that_another_object_gets_everything(scene, queue)


def test_a_drain_without_redis_ends_with_its_time_and_says_so():
    scene, port, queue = left_in_doubt(LEASE)
    port.losses = dict.fromkeys(range(999), REQUEST)
    started = port.now()
    assert finish(queue.drain(2.0)) is False
    assert port.now() - started <= 2.1
    assert scene.processing == [b"0"]
    port.losses.clear()
    assert finish(queue.drain(2.0)) is True
    check_that_another_object_gets_everything(scene, queue)


def test_a_drained_object_takes_nothing_more():
    scene = Scene()
    queue = scene.queue()
    finish(queue.publish("0"))
    assert finish(queue.drain(None)) is True
    with pytest.raises(QueueDrainedError):
        finish(queue.publish("1"))
    with ProcessMessage(queue) as payload:
        assert payload is None
    assert scene.pending == [b"0"]


def test_a_drain_touches_nothing_that_a_handler_has():
    """Its handler will settle it, also after the drain."""
    scene = Scene()
    queue = scene.queue()
    finish(queue.publish("0"))
    with ProcessMessage(queue) as payload:
        assert payload == b"0"
        finish(queue.drain(0.0))
        assert scene.processing == [b"0"]
    assert scene.completed == [b"0"]
