"""The usual claim and the usual ack have short scripts; in any other case, the same call goes to the long ones."""

from functools import partial
from typing import Any

import pytest

from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.loop.run_options import RunOptions, RunSummary
from redis_message_queue.protocol.loop.worker_loop import Loop
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.handlers import THREADS
from redis_message_queue.sync.message_queue import ProcessMessage
from redis_message_queue.values.events import EventOperation, QueueEvent
from tests.protocol.port import REPLY, REQUEST, Loss, MemoryPort, late
from tests.protocol.setup import Setup, process_all

pytestmark = pytest.mark.topic("Leases")


def filled(setup: Setup, *payloads: str, tenant: str | None = None) -> None:
    queue = setup.queue()
    for payload in payloads:
        finish(queue.publisher.publish(payload, PublishOverrides(tenant=tenant)))


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
    assert not setup.members_of(setup.keys.leases)


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


# A loop, which acknowledges and claims in one script

ONE_AT_A_TIME: dict[str, Any] = {
    "concurrency": 1,
    "prefetch": 1,
    "batch_size": None,
    "batch_seconds": None,
    "until_empty": True,
}


def run(queue: QueueProtocol, seen: list[Any], **options: Any) -> RunSummary:
    """Handle everything one message at a time, as the blocking shell does."""

    def handle(message: ReceivedMessage[Any]) -> None:
        seen.append(message.payload)

    return finish(Loop(queue, RunOptions(handler=handle, **ONE_AT_A_TIME | options), THREADS).run())


def test_a_loop_acknowledges_and_claims_in_one_script():
    """When nothing is left, both calls go to the long scripts under their numbers."""
    setup, seen = Setup(), []
    filled(setup, "a", "b", "c")
    port = setup.port()
    assert run(queue_on(setup, port), seen).handled == 3
    assert seen == [b"a", b"b", b"c"]
    assert port.verbs() == ["claim", "ack_and_take", "ack_and_take", "ack_and_take", "settle", "claim"]
    assert port.exchanges == 5
    short, settle, claim = port.sent[-3:]
    assert (short.given["ack_call"], short.given["token"]) == (settle.given["call"], settle.given["tokens"])
    assert short.given["call"] == claim.given["call"]
    assert not setup.members_of(setup.keys.leases)


@pytest.mark.parametrize("how", ["a copy is kept", "several at once", "tenants"])
def test_a_loop_in_another_case_sends_two_scripts_as_before(how: str):
    setup, seen = Setup(), []
    filled(setup, "a", "b", "c", tenant="ann" if how == "tenants" else None)
    port = setup.port()
    queue = setup.queue(port) if how == "a copy is kept" else queue_on(setup, port)
    run(queue, seen, prefetch=2 if how == "several at once" else 1)
    assert seen == [b"a", b"b", b"c"]
    assert "ack_and_take" not in port.verbs()
    assert "settle" in port.verbs()


@pytest.mark.parametrize("loss", [REQUEST, REPLY, late(1), late(2), late(4)], ids=repr)
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_both_halves_count_once_whatever_is_lost(loss: Loss, nth: int):
    """Each half has its number: what was executed is found there, also by the long scripts."""
    setup, seen, events = Setup(), [], list[QueueEvent]()
    filled(setup, "a", "b", "c", "d")
    queue = setup.queue(setup.port(losses={nth: loss}), enable_completed_queue=False, on_event=events.append)
    assert run(queue, seen).handled == 4
    setup.memory.run_all_late_requests()
    assert seen == [b"a", b"b", b"c", b"d"]
    assert not setup.places
    assert not setup.members_of(setup.keys.leases)
    operations = [event.operation for event in events]
    assert operations.count(EventOperation.ACK) == 4
    assert EventOperation.STALE_LEASE_ACK not in operations


def test_a_loop_that_lost_a_message_does_not_acknowledge_it():
    """Another consumer has it by now: ack_and_take.lua leaves both halves to scripts that know what to do."""
    setup, events, others = Setup(), list[QueueEvent](), []
    filled(setup, "a", "b", "c")
    queue = setup.queue(enable_completed_queue=False, on_event=events.append)

    def handle(message: ReceivedMessage[Any]) -> None:
        if message.payload == b"b" and not others:
            setup.let_leases_run_out()
            others.append(ProcessMessage(setup.queue()))
            assert others[0].__enter__() == b"b"

    options = RunOptions(handler=handle, renew_leases=False, **ONE_AT_A_TIME)
    assert finish(Loop(queue, options, THREADS).run()).handled == 2
    assert [event.operation for event in events].count(EventOperation.STALE_LEASE_ACK) == 1
    assert setup.processing == [b"b"]
    others[0].__exit__(None, None, None)
    assert setup.completed == [b"b"]


def test_a_loop_that_gives_up_does_not_lose_the_ack_that_it_sent():
    """The reply is lost and there are no retries: the ack is asked for by its number, and the claim by the next one."""
    setup, seen = Setup(retry_budget_seconds=0), []
    filled(setup, "a", "b", "c")
    queue = queue_on(setup, setup.port(losses={1: REPLY}))
    with pytest.raises(ConnectionError):
        run(queue, seen)
    assert (seen, setup.processing, setup.pending) == ([b"a"], [b"b"], [b"c"])
    assert run(queue, seen).handled == 2
    assert seen == [b"a", b"b", b"c"]
    assert not setup.places
