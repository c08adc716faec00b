"""Messages are published once and together; at a full queue, a publish waits for its time limit and no longer."""

from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.publish.sender import OutgoingMessage, chunk_ids
from redis_message_queue.values.errors import QueueBackpressureError, RetryBudgetExhaustedError
from tests.protocol.port import REPLY, REQUEST, Lost, MemoryPort, late
from tests.protocol.setup import Setup, process_all

pytestmark = pytest.mark.topic("Publishing")

MOMENT = 0.005


def full(seconds: float = 1.0, **settings: object) -> Setup:
    """One message may wait, and one does."""
    setup = Setup(
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=seconds,
        **settings,
    )
    finish(setup.queue().publish("first"))
    return setup


def publish(setup: Setup, port: MemoryPort, *, stopped=lambda: False):
    return finish(setup.store(port).senders[0].send([port.new_id()], [OutgoingMessage(b"second")], stopped))


def make_room(setup: Setup) -> None:
    assert process_all(setup.queue())


@pytest.mark.parametrize("room_after", [0.005, 0.3, 0.95])
def test_a_blocked_publish_goes_on_when_there_is_room(room_after):
    setup = full()
    port = setup.port()
    setup.memory.at(room_after, lambda: make_room(setup))
    started = port.now()
    assert publish(setup, port).accepted == [True]
    assert room_after <= port.now() - started <= room_after + 0.1 + MOMENT
    assert setup.pending == [b"second"]


@pytest.mark.parametrize("seconds", [0.004, 0.25, 1.0, 3.0])
def test_a_blocked_publish_gives_up_when_its_time_is_over(seconds):
    setup = full(seconds)
    port = setup.port()
    started = port.now()
    with pytest.raises(QueueBackpressureError, match="max_pending_length is 1"):
        publish(setup, port)
    assert seconds <= port.now() - started <= seconds + MOMENT
    assert setup.pending == [b"first"]


def test_a_blocked_publish_asks_ten_to_a_hundred_milliseconds_apart():
    setup = full(2.0)
    port = setup.port()
    with pytest.raises(QueueBackpressureError):
        publish(setup, port)
    *pauses, last = port.sleeps
    assert all(0.01 <= pause <= 0.1 for pause in pauses)
    assert all(before <= after for before, after in pairwise(pauses))
    assert last <= 0.1


def test_every_question_for_room_has_a_number_of_its_own():
    """Under one number it would be told the first answer for ever."""
    setup = full()
    port = setup.port()
    with pytest.raises(QueueBackpressureError):
        publish(setup, port)
    calls = [sent.given["call"] for sent in port.sent]
    assert len(set(calls)) == len(calls) > 10


def test_a_blocked_publish_that_is_stopped_gives_up_at_once():
    setup = full(60.0)
    port = setup.port()
    stopped_at = port.now() + 0.5
    with pytest.raises(QueueBackpressureError):
        publish(setup, port, stopped=lambda: port.now() >= stopped_at)
    assert port.now() - stopped_at <= 0.1 + MOMENT


@pytest.mark.promise("Transient errors while `block` waits are retried within its timeout and do not extend it.")
@pytest.mark.parametrize("lost_from", [0, 1, 5])
@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_transient_errors_do_not_extend_the_time_of_a_blocked_publish(lost_from, latency):
    setup = full(1.0, retry_budget_seconds=120.0)
    port = setup.port(dict.fromkeys(range(lost_from, 999), REQUEST), latency=latency)
    started = port.now()
    with pytest.raises(RetryBudgetExhaustedError):
        publish(setup, port)
    assert port.now() - started <= 1.0 + latency + MOMENT


def test_a_loss_while_a_publish_waits_neither_loses_nor_doubles_its_message():
    """Any of the first calls is lost in any way; there is room from some moment on."""
    for lost in range(12):
        for kind in (REQUEST, REPLY, late(0), late(1)):
            setup = full()
            port = setup.port({lost: kind})
            setup.memory.at(0.25, partial(make_room, setup))
            assert publish(setup, port).accepted == [True]
            setup.memory.run_all_late_requests()
            assert setup.pending == [b"second"]


def test_a_publish_that_is_not_blocked_does_not_sleep():
    setup = Setup(max_pending_length=2, pending_overload_policy="block")
    port = setup.port()
    assert publish(setup, port).accepted == [True]
    assert (port.verbs(), port.sleeps) == (["enqueue"], [])


def test_a_duplicate_is_told_though_the_queue_is_full():
    """It wants no room."""
    setup = Setup(max_pending_length=1)
    queue = setup.queue(deduplication=True)
    assert finish(queue.publish("a")) is True
    assert finish(queue.publish("a")) is False
    with pytest.raises(QueueBackpressureError):
        finish(queue.publish("b"))


def test_the_oldest_are_dropped_and_named():
    setup = Setup(max_pending_length=2, pending_overload_policy="drop_oldest")
    sender = setup.store().senders[0]
    ids = [chunk_ids(bytes([number]) * 16, 1)[0] for number in range(4)]
    dropped = [
        finish(sender.send([name], [OutgoingMessage(b"%d" % number)], lambda: False)).dropped
        for number, name in enumerate(ids)
    ]
    assert dropped == [(), (), (ids[0].hex(),), (ids[1].hex(),)]
    assert setup.pending == [b"2", b"3"]


# Several at once


def publish_many(setup: Setup, port: MemoryPort, messages: int, **details: Any) -> list[bool]:
    return finish(
        setup.queue(port).publisher.publish_many(
            [str(number) for number in range(messages)], PublishOverrides(**details)
        )
    )


def test_many_messages_go_in_chunks_of_a_thousand_and_keep_their_order():
    setup = Setup()
    port = setup.port()
    assert publish_many(setup, port, 2500) == [True] * 2500
    assert port.verbs() == ["enqueue"] * 3
    assert setup.pending == [b"%d" % number for number in range(2500)]


@pytest.mark.parametrize("kind", [REQUEST, REPLY], ids=str)
def test_an_error_has_the_results_of_the_chunks_before_it(kind):
    """A caller that continues after them publishes nothing twice, except what was unconfirmed."""
    setup = Setup(retry_budget_seconds=0)
    port = setup.port({2: kind})
    with pytest.raises(Lost) as caught:
        publish_many(setup, port, 2500, tenant="ann")
    assert caught.value.results == [True] * 2000  # type: ignore[attr-defined]  # set by publish_many
    assert len(setup.tenant_queue("ann")) == (2000 if kind is REQUEST else 2500)


def test_a_chunk_is_refused_as_a_whole_and_never_larger_than_the_limit():
    """There is room for three of five, and a chunk is two: the first two are there, and nothing else."""
    setup = Setup(max_pending_length=4, max_pending_per_tenant=2)
    port = setup.port()
    finish(setup.queue().publish("0", tenant="bob"))
    with pytest.raises(QueueBackpressureError) as caught:
        publish_many(setup, port, 5)
    assert caught.value.results == [True, True]
    assert setup.pending == [b"0", b"1"]
    assert port.verbs() == ["enqueue"] * 2


def test_all_chunks_of_a_blocked_publish_share_one_time_to_wait():
    """There is room for the second chunk after 0.6 s; the third one has only what is left of the second."""
    setup = Setup(max_pending_length=1, pending_overload_policy="block", pending_overload_block_timeout_seconds=1.0)
    port = setup.port()
    setup.memory.at(0.6, lambda: make_room(setup))
    started = port.now()
    with pytest.raises(QueueBackpressureError) as caught:
        publish_many(setup, port, 3)
    assert caught.value.results == [True, True]
    assert 1.0 <= port.now() - started <= 1.0 + MOMENT


def test_a_chunk_is_there_once_whatever_is_lost():
    """Tenants, duplicates and delays in one chunk; every answer is the one that was given first."""
    for lost in product(range(4), range(4)):
        for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=2):
            setup = Setup()
            sender = setup.store(setup.port(dict(zip(lost, ways, strict=True)))).senders[0]
            marker = setup.keys.deduplication("red")
            chunk = [
                OutgoingMessage(b"0", tenant=b"ann"),
                OutgoingMessage(b"1", marker=marker),
                OutgoingMessage(b"2", marker=marker),
                OutgoingMessage(b"3", tenant=b"bob", due="+1000000"),
            ]
            published = finish(sender.send(chunk_ids(b"1" * 16, 4), chunk, lambda: False))
            setup.memory.run_all_late_requests()
            assert published.accepted == [True, True, False, True]
            assert (setup.pending, setup.tenant_queue("ann"), setup.delayed) == ([b"1"], [b"0"], [b"3"])


# At the limit of a tenant


def test_a_tenant_that_is_full_keeps_no_other_from_publishing():
    setup = Setup(max_pending_per_tenant=2)
    queue = setup.queue()
    finish(queue.publisher.publish_many(["0", "1"], PublishOverrides(tenant="ann")))
    with pytest.raises(QueueBackpressureError, match="max_pending_per_tenant is 2"):
        finish(queue.publish("2", tenant="ann"))
    assert finish(queue.publish("3", tenant="bob")) is True
    assert finish(queue.publish("4")) is True


def test_the_oldest_of_one_line_are_dropped_and_no_more_than_need_be():
    """Both limits are reached by one message, and one has to leave for it."""
    setup = Setup(max_pending_length=4, max_pending_per_tenant=2, pending_overload_policy="drop_oldest")
    queue = setup.queue()
    for tenant in ("ann", "bob"):
        finish(queue.publisher.publish_many([f"{tenant}0", f"{tenant}1"], PublishOverrides(tenant=tenant)))
    assert finish(queue.publish("ann2", tenant="ann")) is True
    assert (setup.tenant_queue("ann"), setup.tenant_queue("bob")) == ([b"ann1", b"ann2"], [b"bob0", b"bob1"])


def test_the_longest_line_makes_room_for_a_newcomer():
    """One tenant that fills the queue does not lock others out; of equal lines the publisher's own gives way."""
    setup = Setup(max_pending_length=3, pending_overload_policy="drop_oldest")
    queue = setup.queue()
    finish(queue.publisher.publish_many(["0", "1", "2"], PublishOverrides(tenant="ann")))
    assert finish(queue.publish("3", tenant="bob")) is True
    assert (setup.tenant_queue("ann"), setup.tenant_queue("bob")) == ([b"1", b"2"], [b"3"])
    assert finish(queue.publish("4", tenant="bob")) is True
    assert (setup.tenant_queue("ann"), setup.tenant_queue("bob")) == ([b"1", b"2"], [b"4"])
    for number in range(5, 8):
        assert finish(queue.publish(str(number), tenant=f"newcomer {number}")) is True
    assert len(setup.waiting) == 3


# Chunks of any mixture


@pytest.mark.parametrize("kinds", list(product(("bare", "key", "tenant", "late"), repeat=2)), ids="-".join)
def test_each_message_of_a_chunk_keeps_what_it_has(kinds: tuple[str, str]):
    """A key, a tenant, a delay or nothing, whatever the other one has. A key belongs to its own message."""
    setup = Setup()
    store, port = setup.store(), setup.port()
    details: dict[str, dict[str, Any]] = {"bare": {}, "tenant": {"tenant": b"acme"}, "late": {"due": "+1000000"}}
    news = [
        OutgoingMessage(
            f"{place} {kind}".encode(),
            **details.get(kind, {"marker": store.keys.deduplication(str(place))}),
        )
        for place, kind in enumerate(kinds)
    ]
    ids = chunk_ids(port.new_id(), 2)
    assert finish(store.senders[0].send(ids, news, lambda: False)).accepted == [True, True]
    found = {"bare": setup.pending, "key": setup.pending, "tenant": setup.in_tenant_queues, "late": setup.delayed}
    assert all(one.payload in found[kind] for one, kind in zip(news, kinds, strict=True))
    assert len(setup.waiting) == 2
    for one, id in zip(news, ids, strict=True):
        assert one.marker is None or setup.memory.value(one.marker) == id
