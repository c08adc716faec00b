"""The usual claim and the usual ack have short scripts; in any other case, the same call goes to the long ones."""

from functools import partial

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.queue import ProcessMessage
from tests.protocol.port import REPLY, REQUEST, MemoryPort
from tests.protocol.setup import Setup, process_all

pytestmark = pytest.mark.topic("Leases")


def filled(setup: Setup, *payloads: str, tenant: str | None = None) -> None:
    queue = setup.queue()
    for payload in payloads:
        finish(queue.publisher.publish(payload, tenant=tenant))


def queue_on(setup: Setup, port: MemoryPort) -> QueueProtocol:
    """A queue that keeps no copy of what was handled."""
    return setup.queue(port, enable_completed_queue=False)


def test_a_claim_after_a_usual_one_takes_the_short_way():
    setup = Setup()
    filled(setup, "a", "b", "c")
    port = setup.port()
    assert process_all(queue_on(setup, port)) == [b"a", b"b", b"c"]
    assert port.verbs() == ["claim", "ack_one", "take", "ack_one", "take", "ack_one", "take"]


def test_a_claim_that_waits_asks_the_long_script_when_there_is_nothing():
    """Under the same number: only claim.lua knows until when to wait."""
    setup = Setup(message_wait_interval_seconds=5)
    filled(setup, "a", "b")
    port = setup.port()
    assert process_all(queue_on(setup, port)) == [b"a", b"b"]
    short = port.verbs().index("take", 3)
    assert port.verbs()[short + 1] == "claim"
    assert port.sent[short].given["call"] == port.sent[short + 1].given["call"]


def test_an_idle_consumer_sends_no_more_than_before():
    """One round trip for each claim, as long as nothing is there."""
    setup = Setup()
    filled(setup, "a", "b")
    port = setup.port()
    queue = queue_on(setup, port)
    process_all(queue)
    before = len(port.sent)
    for _ in range(5):
        assert process_all(queue) == []
    assert port.verbs()[before:] == ["claim"] * 5


def test_a_consumer_of_single_messages_sends_no_more_than_before():
    """A consumer that was woken usually takes the only message: its next claim will find nothing."""
    setup = Setup(message_wait_interval_seconds=5)
    port = setup.port()
    queue = queue_on(setup, port)
    for payload in "abc":
        setup.memory.at(0.01, partial(filled, setup, payload))
        with ProcessMessage(queue) as found:
            assert found == payload.encode()
    assert "take" not in port.verbs()


def test_tenants_are_claimed_in_one_round_trip_each():
    setup = Setup()
    filled(setup, "a", "b", "c", tenant="ann")
    port = setup.port()
    assert process_all(queue_on(setup, port)) == [b"a", b"b", b"c"]
    assert "take" not in port.verbs()


@pytest.mark.parametrize("part", [REQUEST, REPLY])
@pytest.mark.parametrize("nth", [3, 4], ids=["take", "ack"])
def test_what_was_lost_on_the_short_way_is_sent_again_and_counts_once(part: str, nth: int):
    setup = Setup()
    filled(setup, "a", "b", "c")
    port = setup.port(losses={nth: part})
    assert process_all(queue_on(setup, port)) == [b"a", b"b", b"c"]
    assert not setup.places
    assert not setup.memory.zsets[setup.keys.leases]


def test_a_message_that_another_consumer_has_by_now_is_not_acknowledged():
    """ack_one.lua leaves it alone, and settle.lua says that the lease is lost."""
    setup = Setup()
    filled(setup, "a")
    port = setup.port()
    queue = queue_on(setup, port)
    with ProcessMessage(queue) as payload:
        assert payload == b"a"
        setup.let_leases_run_out()
        other = ProcessMessage(setup.queue())
        assert other.__enter__() == b"a"
    assert port.verbs()[-2:] == ["ack_one", "settle"]
    assert setup.processing == [b"a"]
    other.__exit__(None, None, None)
    assert setup.completed == [b"a"]
