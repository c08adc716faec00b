"""Messages enter once and together; at a full queue a publisher waits as long as it was told, and no longer."""

from itertools import pairwise, product

import pytest

from redis_message_queue.errors import QueueBackpressureError, RetryBudgetExhaustedError
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish import Outgoing, Publisher, chunk_ids
from tests.protocol.port import REPLY, REQUEST, Lost, MemoryPort, late
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
    return finish(publisher.publish_one(port.fresh_id(), b"second", None, stopped))


def make_room(scene: Scene) -> None:
    assert process_all(scene.queue())


@pytest.mark.parametrize("room_after", [0.005, 0.3, 0.95])
def test_a_blocked_publish_goes_on_when_there_is_room(room_after):
    scene = full()
    port = scene.port()
    scene.memory.at(room_after, lambda: make_room(scene))
    started = port.now()
    assert publish(scene, port).accepted == [True]
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
            assert publish(scene, port).accepted == [True]
            scene.memory.let_all_stragglers_in()
            assert scene.pending == [b"second"]


def test_a_publish_that_is_not_blocked_does_not_sleep():
    scene = Scene(max_pending_length=2, pending_overload_policy="block")
    port = scene.port()
    assert publish(scene, port).accepted == [True]
    assert (port.verbs(), port.sleeps) == (["enqueue"], [])


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
    ids = [chunk_ids(bytes([number]) * 16, 1)[0] for number in range(4)]
    dropped = [
        finish(publisher.publish_one(name, b"%d" % number, None, lambda: False)).dropped
        for number, name in enumerate(ids)
    ]
    assert dropped == [(), (), (ids[0].hex(),), (ids[1].hex(),)]
    assert scene.pending == [b"2", b"3"]


# Several at once


def publish_many(scene: Scene, port: MemoryPort, messages: int, **details: object) -> list[bool]:
    return finish(scene.queue(port).outbox.publish_many([str(number) for number in range(messages)], **details))


def test_many_messages_go_in_chunks_of_a_thousand_and_keep_their_order():
    scene = Scene()
    port = scene.port()
    assert publish_many(scene, port, 2500) == [True] * 2500
    assert port.verbs() == ["enqueue"] * 3
    assert scene.pending == [b"%d" % number for number in range(2500)]


@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
def test_an_error_has_the_results_of_the_chunks_before_it(kind):
    """Whoever goes on behind them publishes nothing twice, or what was in doubt."""
    scene = Scene(retry_budget_seconds=0)
    port = scene.port({2: kind})
    with pytest.raises(Lost) as caught:
        publish_many(scene, port, 2500, tenant="ann")
    assert caught.value.results == [True] * 2000
    assert len(scene.line("ann")) == (2000 if kind is REQUEST else 2500)


def test_a_chunk_is_refused_as_a_whole_and_never_larger_than_the_limit():
    """There is room for three of five, and a chunk is two: the first two are there, and nothing else."""
    scene = Scene(max_pending_length=4, max_pending_per_tenant=2)
    port = scene.port()
    finish(scene.queue().publish("0", tenant="bob"))
    with pytest.raises(QueueBackpressureError) as caught:
        publish_many(scene, port, 5)
    assert caught.value.results == [True, True]
    assert scene.pending == [b"0", b"1"]
    assert port.verbs() == ["enqueue"] * 2


def test_all_chunks_of_a_blocked_publish_share_one_time_to_wait():
    """There is room for the second chunk after 0.6 s; the third one has only what is left of the second."""
    scene = Scene(max_pending_length=1, pending_overload_policy="block", pending_overload_block_timeout_seconds=1.0)
    port = scene.port()
    scene.memory.at(0.6, lambda: make_room(scene))
    started = port.now()
    with pytest.raises(QueueBackpressureError) as caught:
        publish_many(scene, port, 3)
    assert caught.value.results == [True, True]
    assert 1.0 <= port.now() - started <= 1.0 + MOMENT


def test_a_chunk_is_there_once_whatever_is_lost():
    """Tenants, duplicates and delays in one chunk; every answer is the one that was given first."""
    for lost in product(range(4), range(4)):
        for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=2):
            scene = Scene()
            publisher = scene.store(scene.port(dict(zip(lost, ways, strict=True)))).publisher
            marker = scene.keys.deduplication("red")
            chunk = [
                Outgoing(b"0", tenant=b"ann"),
                Outgoing(b"1", marker=marker),
                Outgoing(b"2", marker=marker),
                Outgoing(b"3", tenant=b"bob", due="+1000000"),
            ]
            published = finish(publisher.publish(chunk_ids(b"1" * 16, 4), chunk, lambda: False))
            scene.memory.let_all_stragglers_in()
            assert published.accepted == [True, True, False, True]
            assert (scene.pending, scene.line("ann"), scene.later) == ([b"1"], [b"0"], [b"3"])


# At the limit of a tenant


def test_a_tenant_that_is_full_keeps_no_other_from_publishing():
    scene = Scene(max_pending_per_tenant=2)
    queue = scene.queue()
    finish(queue.outbox.publish_many(["0", "1"], tenant="ann"))
    with pytest.raises(QueueBackpressureError, match="max_pending_per_tenant is 2"):
        finish(queue.publish("2", tenant="ann"))
    assert finish(queue.publish("3", tenant="bob")) is True
    assert finish(queue.publish("4")) is True


def test_the_oldest_of_one_line_are_dropped_and_no_more_than_need_be():
    """Both limits are reached by one message, and one has to leave for it."""
    scene = Scene(max_pending_length=4, max_pending_per_tenant=2, pending_overload_policy="drop_oldest")
    queue = scene.queue()
    for tenant in ("ann", "bob"):
        finish(queue.outbox.publish_many([f"{tenant}0", f"{tenant}1"], tenant=tenant))
    assert finish(queue.publish("ann2", tenant="ann")) is True
    assert (scene.line("ann"), scene.line("bob")) == ([b"ann1", b"ann2"], [b"bob0", b"bob1"])


def test_the_longest_line_makes_room_for_a_newcomer():
    """One tenant that fills the queue does not lock others out; of equal lines the publisher's own gives way."""
    scene = Scene(max_pending_length=3, pending_overload_policy="drop_oldest")
    queue = scene.queue()
    finish(queue.outbox.publish_many(["0", "1", "2"], tenant="ann"))
    assert finish(queue.publish("3", tenant="bob")) is True
    assert (scene.line("ann"), scene.line("bob")) == ([b"1", b"2"], [b"3"])
    assert finish(queue.publish("4", tenant="bob")) is True
    assert (scene.line("ann"), scene.line("bob")) == ([b"1", b"2"], [b"4"])
    for number in range(5, 8):
        assert finish(queue.publish(str(number), tenant=f"newcomer {number}")) is True
    assert len(scene.waiting) == 3
