"""A publish that waits for replicas is stored once, whatever is lost, and can be repeated safely."""

from itertools import combinations, product

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.values.errors import PublishNotConfirmedError
from tests.protocol.port import REPLY, REQUEST, Followers, MemoryPort, late
from tests.protocol.setup import Setup, check_that_slots_are_acquired_once

pytestmark = pytest.mark.topic("Publishing many")

LINES = pytest.mark.parametrize("details", [{}, {"tenant": "ann"}, {"delay_seconds": 5}], ids=str)


def confirming(replicas: int, **port: object) -> tuple[Setup, MemoryPort, QueueProtocol]:
    """So many replicas answer, and one is wanted."""
    setup = Setup(confirm_replicas=1, confirm_timeout_seconds=1.0)
    memory_port = setup.port(followers=Followers(in_step=replicas), **port)
    return setup, memory_port, setup.queue(memory_port)


@LINES
def test_a_confirmed_publish_was_sent_again_on_the_connection_that_asks(details):
    setup, port, queue = confirming(1)
    assert finish(queue.publish("a", **details)) is True
    assert port.verbs() == ["enqueue" if details else "publish", "WAIT"]
    assert setup.waiting == [b"a"]


@LINES
def test_a_confirmed_publish_is_there_once_whatever_is_lost(details):
    for number in (1, 2):
        for places in combinations(range(3), number):
            for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=number):
                lost = dict(zip(places, ways, strict=True))
                setup, _, queue = confirming(1, losses=lost)
                assert finish(queue.publish("a", **details)) is True, lost
                setup.memory.run_all_late_requests()
                assert setup.waiting == [b"a"], lost
                check_that_slots_are_acquired_once(queue)


def test_a_publish_that_nobody_confirms_ends_in_its_time_and_says_so():
    setup, port, queue = confirming(0)
    started = port.now()
    with pytest.raises(PublishNotConfirmedError, match="0 of 1 replicas"):
        finish(queue.publish("a"))
    assert 1.0 <= port.now() - started <= 1.1
    assert setup.waiting == [b"a"]


def test_a_replica_that_comes_in_time_confirms():
    setup, port, queue = confirming(0)
    setup.memory.at(0.5, lambda: setattr(port.followers, "in_step", 1))
    started = port.now()
    assert finish(queue.publish("a")) is True
    assert port.now() - started == pytest.approx(0.5, abs=0.01)


@pytest.mark.promise("You can repeat an unconfirmed chunk with `repeat_of`, and it is stored once.")
@pytest.mark.parametrize("again", [REQUEST, REPLY, None], ids=str)
def test_an_unconfirmed_publish_can_be_repeated_until_it_is_confirmed_and_counts_once(again):
    """Nobody else uses its slot meanwhile: another answer there would make the repetition a new message."""
    setup, port, queue = confirming(0)
    with pytest.raises(PublishNotConfirmedError) as caught:
        finish(queue.publisher.publish_many(["a", "b"], PublishOverrides(tenant="ann")))
    for other in range(3):
        port.followers.in_step = 1
        assert finish(queue.publish(f"other {other}")) is True
    if again is not None:
        port.losses = {port.exchanges: again}
    assert finish(queue.publisher.publish_many(["a", "b"], PublishOverrides(tenant="ann", repeat_of=caught.value))) == [
        True,
        True,
    ]
    assert setup.tenant_queue("ann") == [b"a", b"b"]
    assert len(setup.pending) == 3


def test_a_repetition_that_cannot_ask_can_be_repeated_once_more():
    setup, port, queue = confirming(0)
    with pytest.raises(PublishNotConfirmedError) as caught:
        finish(queue.publish("a"))
    port.losses = dict.fromkeys(range(999), REQUEST)
    with pytest.raises(PublishNotConfirmedError) as again:
        finish(queue.publish("a", repeat_of=caught.value))
    assert again.value.__cause__ is not None
    port.losses, port.followers.in_step = {}, 1
    assert finish(queue.publish("a", repeat_of=again.value)) is True
    assert setup.waiting == [b"a"]
