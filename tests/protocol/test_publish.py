"""A publisher at a full queue waits as long as it was told, and no longer, whatever happens meanwhile."""

from itertools import pairwise

import pytest

from redis_message_queue.errors import QueueBackpressureError, RetryBudgetExhaustedError
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish import Publisher
from tests.protocol.port import REPLY, REQUEST, MemoryPort, late
from tests.protocol.scene import Scene, process_all

MOMENT = 0.005


def full(patience: float = 1.0, **settings: object) -> Scene:
    """One message may wait, and one does."""
    scene = Scene(
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=patience,
        **settings,
    )
    finish(scene.queue().publish("first"))
    return scene


def publish(scene: Scene, port: MemoryPort, *, stopped=lambda: False):
    publisher: Publisher = scene.store(port).publisher
    return finish(publisher.publish(port.fresh_id(), b"second", None, stopped))


def make_room(scene: Scene) -> None:
    assert process_all(scene.queue())


@pytest.mark.parametrize("room_after", [0.005, 0.3, 0.95])
def test_a_blocked_publish_goes_on_when_there_is_room(room_after):
    scene = full()
    port = scene.port()
    scene.memory.at(room_after, lambda: make_room(scene))
    started = port.now()
    assert publish(scene, port).accepted
    assert room_after <= port.now() - started <= room_after + 0.1 + MOMENT
    assert scene.pending == [b"second"]


@pytest.mark.parametrize("patience", [0.004, 0.25, 1.0, 3.0])
def test_a_blocked_publish_gives_up_when_its_time_is_over(patience):
    scene = full(patience)
    port = scene.port()
    started = port.now()
    with pytest.raises(QueueBackpressureError, match="max_pending_length is 1"):
        publish(scene, port)
    assert patience <= port.now() - started <= patience + MOMENT
    assert scene.pending == [b"first"]


def test_a_blocked_publish_asks_ten_to_a_hundred_milliseconds_apart():
    scene = full(2.0)
    port = scene.port()
    with pytest.raises(QueueBackpressureError):
        publish(scene, port)
    *pauses, last = port.sleeps
    assert all(0.01 <= pause <= 0.1 for pause in pauses)
    assert all(before <= after for before, after in pairwise(pauses))
    assert last <= 0.1


def test_every_question_for_room_has_a_number_of_its_own():
    """Under one number it would be told the first answer for ever."""
    scene = full()
    port = scene.port()
    with pytest.raises(QueueBackpressureError):
        publish(scene, port)
    calls = [sent.given["call"] for sent in port.sent]
    assert len(set(calls)) == len(calls) > 10


def test_a_blocked_publish_that_is_stopped_gives_up_at_once():
    scene = full(60.0)
    port = scene.port()
    stopped_at = port.now() + 0.5
    with pytest.raises(QueueBackpressureError):
        publish(scene, port, stopped=lambda: port.now() >= stopped_at)
    assert port.now() - stopped_at <= 0.1 + MOMENT


@pytest.mark.parametrize("lost_from", [0, 1, 5])
@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_transient_errors_do_not_extend_the_time_of_a_blocked_publish(lost_from, latency):
    scene = full(1.0, retry_budget_seconds=120.0)
    port = scene.port(dict.fromkeys(range(lost_from, 999), REQUEST), latency=latency)
    started = port.now()
    with pytest.raises(RetryBudgetExhaustedError):
        publish(scene, port)
    assert port.now() - started <= 1.0 + latency + MOMENT


def test_a_loss_while_a_publish_waits_neither_loses_nor_doubles_its_message():
    """Any of the first calls is lost in any way; there is room from some moment on."""
    for lost in range(12):
        for kind in (REQUEST, REPLY, late(0), late(1)):
            scene = full()
            port = scene.port({lost: kind})
            scene.memory.at(0.25, lambda scene=scene: make_room(scene))
            assert publish(scene, port).accepted
            scene.memory.let_all_stragglers_in()
            assert scene.pending == [b"second"]


def test_a_publish_that_is_not_blocked_does_not_sleep():
    scene = Scene(max_pending_length=2, pending_overload_policy="block")
    port = scene.port()
    assert publish(scene, port).accepted
    assert (port.verbs(), port.sleeps) == (["publish"], [])


def test_a_duplicate_is_told_though_the_queue_is_full():
    """It wants no room."""
    scene = Scene(max_pending_length=1)
    queue = scene.queue(deduplication=True)
    assert finish(queue.publish("a")) is True
    assert finish(queue.publish("a")) is False
    with pytest.raises(QueueBackpressureError):
        finish(queue.publish("b"))


def test_the_oldest_are_dropped_and_named():
    scene = Scene(max_pending_length=2, pending_overload_policy="drop_oldest")
    publisher = scene.store().publisher
    ids = [bytes([number]) * 16 for number in range(4)]
    dropped = [
        finish(publisher.publish(name, b"%d" % number, None, lambda: False)).dropped for number, name in enumerate(ids)
    ]
    assert dropped == [(), (), (ids[0].hex(),), (ids[1].hex(),)]
    assert scene.pending == [b"2", b"3"]
