"""A publish that waits for replicas is there once, whatever is lost while it asks, and can be repeated without harm."""

from itertools import combinations, product

import pytest

from redis_message_queue.errors import PublishNotConfirmedError
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from tests.protocol.port import REPLY, REQUEST, Followers, MemoryPort, late
from tests.protocol.scene import Scene, check_that_slots_are_lent_once

LINES = pytest.mark.parametrize("details", [{}, {"tenant": "ann"}, {"delay_seconds": 5}], ids=str)


def confirming(replicas: int, **port: object) -> tuple[Scene, MemoryPort, QueueProtocol]:
    """So many replicas answer, and one is wanted."""
    scene = Scene(confirm_replicas=1, confirm_timeout_seconds=1.0)
    memory_port = scene.port(followers=Followers(in_step=replicas), **port)
    return scene, memory_port, scene.queue(memory_port)


@LINES
def test_a_confirmed_publish_was_sent_again_on_the_connection_that_asks(details):
    scene, port, queue = confirming(1)
    assert finish(queue.publish("a", **details)) is True
    assert port.verbs() == ["enqueue" if details else "publish", "WAIT"]
    assert scene.waiting == [b"a"]


@LINES
def test_a_confirmed_publish_is_there_once_whatever_is_lost(details):
    for number in (1, 2):
        for places in combinations(range(3), number):
            for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=number):
                lost = dict(zip(places, ways, strict=True))
                scene, _, queue = confirming(1, losses=lost)
                assert finish(queue.publish("a", **details)) is True, lost
                scene.memory.let_all_stragglers_in()
                assert scene.waiting == [b"a"], lost
                check_that_slots_are_lent_once(queue)


def test_a_publish_that_nobody_confirms_ends_in_its_time_and_says_so():
    scene, port, queue = confirming(0)
    started = port.now()
    with pytest.raises(PublishNotConfirmedError, match="0 of 1 replicas"):
        finish(queue.publish("a"))
    assert 1.0 <= port.now() - started <= 1.1
    assert scene.waiting == [b"a"]


def test_a_replica_that_comes_in_time_confirms():
    scene, port, queue = confirming(0)
    scene.memory.at(0.5, lambda: setattr(port.followers, "in_step", 1))
    started = port.now()
    assert finish(queue.publish("a")) is True
    assert port.now() - started == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("again", [REQUEST, REPLY, None], ids=str)
def test_an_unconfirmed_publish_can_be_repeated_until_it_is_confirmed_and_counts_once(again):
    """Nobody else uses its slot meanwhile: another answer there would make the repetition a new message."""
    scene, port, queue = confirming(0)
    with pytest.raises(PublishNotConfirmedError) as caught:
        finish(queue.outbox.publish_many(["a", "b"], tenant="ann"))
    for other in range(3):
        port.followers.in_step = 1
        assert finish(queue.publish(f"other {other}")) is True
    if again is not None:
        port.losses = {port.exchanges: again}
    assert finish(queue.outbox.publish_many(["a", "b"], tenant="ann", repeat_of=caught.value)) == [True, True]
    assert scene.line("ann") == [b"a", b"b"]
    assert len(scene.pending) == 3


def test_a_repetition_that_cannot_ask_can_be_repeated_once_more():
    scene, port, queue = confirming(0)
    with pytest.raises(PublishNotConfirmedError) as caught:
        finish(queue.publish("a"))
    port.losses = dict.fromkeys(range(999), REQUEST)
    with pytest.raises(PublishNotConfirmedError) as again:
        finish(queue.publish("a", repeat_of=caught.value))
    assert again.value.__cause__ is not None
    port.losses, port.followers.in_step = {}, 1
    assert finish(queue.publish("a", repeat_of=again.value)) is True
    assert scene.waiting == [b"a"]
