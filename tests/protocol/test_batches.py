"""A batch is claimed, recovered, settled and requeued together, and each message is counted separately."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, product
from typing import Any, cast

import pytest

from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.loop.run_options import RunOptions
from redis_message_queue.protocol.loop.worker_loop import Loop
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.publish.sender import OutgoingMessage
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.batch import ProcessMessages
from redis_message_queue.sync.handlers import THREADS
from redis_message_queue.values.errors import CleanupFailedError
from redis_message_queue.values.events import EventOperation
from tests.protocol.port import REPLY, REQUEST, Loss, Lost, MemoryPort, late
from tests.protocol.setup import (
    CLAIMANT,
    DELAY,
    LATER,
    LEASE,
    HandlerError,
    Setup,
    check_that_slots_are_acquired_once,
    process_all,
)

pytestmark = pytest.mark.topic("Batches")

leased_or_not = pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])


def filled(messages: int = 4, tenant: str | None = None, **settings: Any) -> Setup:
    """So many messages wait."""
    setup = Setup(**settings)
    finish(
        setup.queue().publisher.publish_many(
            [str(number) for number in range(messages)], PublishOverrides(tenant=tenant)
        )
    )
    return setup


def claim(setup: Setup, port: MemoryPort, count: int) -> tuple[QueueProtocol, list[Claim]]:
    """A batch in the hands of somebody who may crash."""
    claimer = (queue := setup.queue(port)).store.claimer
    return queue, finish(claimer.claim(claimer.attempt(), CLAIMANT, 0, count)).claims


def process_batch(queue: QueueProtocol, count: int = 4, error: Exception | None = None) -> list[str | bytes]:
    """Handle a batch, as the blocking shell does, or fail it."""
    payloads: list[str | bytes] = []
    with suppress(HandlerError), ProcessMessages(queue, count, 0) as batch:
        payloads += [message.payload for message in batch]
        if error is not None:
            raise error
    return payloads


def unconfirmed_batch(count: int = 3, **settings: Any) -> tuple[Setup, QueueProtocol]:
    """The answer to a claim of so many was lost, and its consumer was told so."""
    setup = filled(retry_budget_seconds=0, **settings)
    queue = setup.queue(setup.port({0: REPLY}))
    with pytest.raises(Lost):
        process_batch(queue, count)
    assert len(queue.store.claimer.unconfirmed) == 1
    return setup, queue


# Found again


@pytest.mark.parametrize("tenant", [None, "ann"])
def test_a_batch_whose_reply_was_lost_is_recovered_in_its_order(tenant):
    setup = filled(tenant=tenant)
    port = setup.port({0: REPLY})
    assert process_batch(setup.queue(port), 3) == [b"0", b"1", b"2"]
    assert port.verbs() == ["claim", "claim", "settle"]
    assert len({sent.given["call"] for sent in port.sent[:2]}) == 1
    assert setup.waiting == [b"3"]


@leased_or_not
@pytest.mark.parametrize("tenant", [None, "ann"])
def test_whoever_wants_fewer_than_an_unconfirmed_batch_has_requeues_the_rest_in_its_order(lease, tenant):
    """The others are the next again, before what has waited all the time, and another object can have them."""
    setup, queue = unconfirmed_batch(tenant=tenant, message_visibility_timeout_seconds=lease)
    with ProcessMessages(queue, 1, 0) as batch:
        assert [message.payload for message in batch] == [b"0"]
        assert setup.waiting == [b"1", b"2", b"3"]
        assert process_all(setup.queue()) == [b"1", b"2", b"3"]
    assert len(setup.completed) == 4
    check_that_slots_are_acquired_once(queue)


def test_what_is_requeued_from_an_unconfirmed_batch_was_not_delivered():
    """One delivery is allowed, and nobody has seen these."""
    setup, queue = unconfirmed_batch(max_delivery_count=1)
    assert process_batch(queue, 1) == [b"0"]
    assert process_all(setup.queue()) == [b"1", b"2", b"3"]
    assert setup.dead == []


def test_whoever_wants_more_than_an_unconfirmed_batch_has_gets_the_batch():
    _, queue = unconfirmed_batch()
    assert process_batch(queue, 4) == [b"0", b"1", b"2"]
    assert process_batch(queue, 4) == [b"3"]


@pytest.mark.parametrize("tenant", [None, "ann"])
@pytest.mark.parametrize("taken_over", [1, 2, 3])
def test_what_others_have_taken_over_is_left_out_of_a_batch_that_is_recovered(taken_over, tenant):
    """Its leases ran out while nobody knew of them; the rest is still its own, and leased anew."""
    setup, queue = unconfirmed_batch(tenant=tenant)
    setup.let_leases_run_out()
    other, claims = claim(setup, setup.port(), taken_over)
    found = process_batch(queue, 3)
    assert found == [b"0", b"1", b"2"][taken_over:] or taken_over == 3
    assert finish(other.store.settler.settle(claims, None)).owned == [True] * taken_over
    process_all(queue)
    assert not setup.processing
    assert len(setup.completed) == 4 - taken_over


@pytest.mark.parametrize("lost", [REQUEST, REPLY, late(0), late(1)], ids=str)
def test_the_giving_back_of_what_is_not_wanted_can_be_lost_as_well(lost):
    """The next claim finds what is left of the batch, and nothing is there twice."""
    setup, queue = unconfirmed_batch()
    port: Any = queue.port
    port.losses = {2: lost}  # after the claim and the question
    with pytest.raises(Lost):
        process_batch(queue, 1)
    port.losses = {}
    setup.memory.run_all_late_requests()
    seen = [payload for _ in range(4) for payload in process_batch(queue, 1)]
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]
    assert setup.places == {b"%d" % number: 1 for number in range(4)}
    assert len(queue.store.claimer.unconfirmed) == 0


# Settled


def losses(calls: int, kinds: tuple[Loss, ...] = (REQUEST, REPLY, late(0), late(1))) -> Iterator[dict[int, Loss]]:
    """Up to two of so many calls are lost, in any way."""
    for number in (1, 2):
        for places in combinations(range(calls), number):
            for ways in product(kinds, repeat=number):
                yield dict(zip(places, ways, strict=True))


def test_a_batch_is_acknowledged_once_whatever_is_lost():
    for lost in losses(calls=4):
        setup = filled()
        assert process_batch(setup.queue(setup.port(lost)), 4) == [b"0", b"1", b"2", b"3"], lost
        setup.memory.run_all_late_requests()
        assert setup.completed == [b"3", b"2", b"1", b"0"]
        assert not (setup.processing or setup.waiting)


@pytest.mark.parametrize("tenants", [(None, None), ("ann", "ann"), ("ann", "bob")], ids=str)
def test_a_batch_that_failed_is_requeued_once_in_its_order_whatever_is_lost(tenants):
    for lost in losses(calls=4):
        setup = Setup()
        for payload, tenant in zip("01", tenants, strict=True):
            finish(setup.queue().publish(payload, tenant=tenant))
        assert process_batch(setup.queue(setup.port(lost)), 2, HandlerError()) == [b"0", b"1"], lost
        setup.memory.run_all_late_requests()
        assert not setup.processing
        assert process_all(setup.queue()) == [b"0", b"1"], lost
        assert setup.places == {b"0": 1, b"1": 1}


@pytest.mark.promise(
    "A batch that raises counts as a delivery, so one that always raises ends in the dead-letter queue."
)
def test_leaving_a_batch_by_an_exception_counts_as_a_delivery():
    """One of its messages may be the poison: with a limit of one they are dead now."""
    setup = filled(2, max_delivery_count=1)
    process_batch(setup.queue(), 2, HandlerError())
    assert process_all(setup.queue()) == []
    assert setup.dead == [b"1", b"0"]


@pytest.mark.promise("A failure that is retried after a lost reply counts as one attempt.")
def test_one_message_of_a_batch_is_acknowledged_and_another_retried_later_whatever_is_lost():
    """The rest is acknowledged when the batch ends; what is retried later comes in its time, and counts as new."""
    for lost in losses(calls=6, kinds=(REQUEST, REPLY)):
        setup = filled(3, max_delivery_count=1)
        with ProcessMessages(setup.queue(setup.port(lost), retry_policy=LATER), 3, 0) as batch:
            assert batch.ack(batch[1]) is True
            assert batch.fail(batch[0], HandlerError()) is True
        assert (setup.completed, setup.delayed) == ([b"2", b"1"], [b"0"]), lost
        setup.memory.pass_time(DELAY)
        assert process_all(setup.queue()) == [b"0"]
        assert setup.places == {b"%d" % number: 1 for number in range(3)}


def test_what_a_batch_has_lost_to_others_is_reported_message_by_message():
    setup = filled(3)
    on_retry: list[tuple[EventOperation, str]] = []
    queue = setup.queue(on_event=lambda event: on_retry.append((event.operation, event.message_id)))
    with ProcessMessages(queue, 3, 0) as batch:
        ids = [message.id for message in batch]
        setup.let_leases_run_out()
        claim(setup, setup.port(), 1)
    outcomes = [(what, ids.index(who)) for what, who in on_retry if what != EventOperation.CLAIM]
    assert (EventOperation.STALE_LEASE_ACK, 0) in outcomes
    assert [who for what, who in outcomes if what == EventOperation.ACK] == [1, 2]
    assert setup.completed == [b"2", b"1"]


def test_what_cannot_be_decoded_leaves_its_batch_for_the_dead_letters():
    for lost in losses(calls=3, kinds=(REQUEST, REPLY)):
        setup = Setup()
        sender = setup.store().senders[0]
        for payload in (b"0", b"\xff", b"2"):
            finish(sender.send([setup.port().new_id()], [OutgoingMessage(payload)], lambda: False))
        queue = setup.queue(setup.port(lost, decodes=True))
        assert process_batch(queue, 3) == ["0", "2"], lost
        assert (setup.dead, setup.completed) == ([b"\xff"], [b"2", b"0"])
        assert not setup.processing


# Claimed ahead by a loop


def run(queue: QueueProtocol, prefetch: int, seen: list[str | bytes], failing: bytes | None = None) -> None:
    """Handle everything, as the blocking shell does."""

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if message.payload == failing:
            raise HandlerError

    rules: dict[str, Any] = {"batch_size": None, "batch_seconds": None, "until_empty": True}
    finish(Loop(queue, RunOptions(handler=handle, concurrency=1, prefetch=prefetch, **rules), THREADS).run())


@pytest.mark.parametrize(
    ("prefetch", "tenant"),
    [(1, None), (3, "ann"), *(pytest.param(*one, marks=pytest.mark.in_full) for one in ((1, "ann"), (3, None)))],
)
def test_a_loop_handles_and_acknowledges_each_message_once_whatever_is_lost(prefetch, tenant):
    """Acknowledgements travel with the next claim: a loss is the loss of both, and both are repeated."""
    for lost in losses(calls=5):
        setup, seen = filled(tenant=tenant), []
        run(setup.queue(setup.port(lost)), prefetch, seen, failing=b"2")
        setup.memory.run_all_late_requests()
        assert seen == [b"0", b"1", b"2", b"3"], lost
        assert (sorted(setup.completed), setup.failed) == ([b"0", b"1", b"3"], [b"2"])
        assert not (setup.processing or setup.waiting)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_loop_that_gives_up_leaves_every_message_in_one_place(prefetch):
    """What it has not begun waits again, uncounted; what it could not acknowledge comes back with its lease."""
    for lost in losses(calls=5, kinds=(REQUEST, REPLY)):
        setup, seen = filled(retry_budget_seconds=0), []
        queue = setup.queue(setup.port(lost))
        with suppress(Lost, CleanupFailedError):
            run(queue, prefetch, seen)
        assert setup.places == {b"%d" % number: 1 for number in range(4)}, lost
        cast(MemoryPort, queue.port).losses = {}
        run(queue, prefetch, seen)
        setup.let_leases_run_out()
        process_all(queue)
        assert sorted(setup.completed) == [b"0", b"1", b"2", b"3"], lost


@pytest.mark.promise(
    "An interrupt or a drain ends `run()` gracefully: handlers that have started finish and their messages are acked."
)
def test_a_loop_that_is_stopped_acknowledges_what_is_done_and_requeues_what_it_has_not_begun():
    """No claim follows with which an acknowledgement could travel, and what was not begun was not delivered."""
    for lost in losses(calls=4):
        setup, seen = filled(max_delivery_count=1), []
        queue = setup.queue(setup.port(lost))

        def handle(message: ReceivedMessage, queue: QueueProtocol = queue, seen: list[str | bytes] = seen) -> None:
            seen.append(message.payload)
            queue.gate.is_shut = message.payload == b"1"

        rules: dict[str, Any] = {"batch_size": None, "batch_seconds": None, "until_empty": False}
        finish(Loop(queue, RunOptions(handler=handle, concurrency=1, prefetch=3, **rules), THREADS).run())
        setup.memory.run_all_late_requests()
        assert (seen, setup.completed, setup.pending) == ([b"0", b"1"], [b"1", b"0"], [b"2", b"3"]), lost
        assert process_all(setup.queue()) == [b"2", b"3"]


class OverrunPort(MemoryPort):
    """Its first wait takes two seconds, whatever was asked for: the reply was lost."""

    is_overrun = False

    async def wait(self, wakeup: str, seconds: float, *, punctual: bool = False) -> bool:
        if self.is_overrun:
            return await super().wait(wakeup, seconds, punctual=punctual)
        self.is_overrun = True
        self.memory.pass_time(2.0)
        return False


def test_a_batch_that_filled_for_too_long_starts_with_no_message_whose_lease_has_ended():
    """Both leases end; one message comes again and has a new lease, the other one is requeued as if never claimed."""
    setup, calls = filled(2, message_visibility_timeout_seconds=1.0, max_delivery_count=2), []
    rules: dict[str, Any] = {"batch_size": 3, "batch_seconds": 0.5, "until_empty": True, "renew_leases": False}

    def handle(messages: list[ReceivedMessage]) -> None:
        calls.append([message.payload for message in messages])

    options = RunOptions(handler=handle, concurrency=1, prefetch=1, **rules)
    finish(Loop(setup.queue(OverrunPort(setup.memory)), options, THREADS).run())
    assert calls == [[b"0"], [b"1"]]
    assert not (setup.processing or setup.waiting)


# More than one script takes


def claim_everything(setup: Setup, queue: QueueProtocol) -> list[Claim]:
    claimer, claims = queue.store.claimer, []
    while setup.pending:
        claims += finish(claimer.claim(claimer.attempt(), CLAIMANT, 0, 1000)).claims
    return claims


@pytest.mark.parametrize("messages", [1000, 1001, 2000])
def test_more_messages_than_one_script_takes_are_ended_in_pieces_and_each_is_reported(messages):
    """Renewed and settled each has its own answer, and requeued they keep their order."""
    setup = filled(messages)
    queue = setup.queue()
    settler, claims = queue.store.settler, claim_everything(setup, queue)
    assert finish(settler.renew(claims, 1.0)) == [True] * messages
    assert finish(settler.requeue(claims, forgiven=True)) == [True] * messages
    assert setup.pending == [b"%d" % number for number in range(messages)]
    again = claim_everything(setup, queue)
    assert finish(settler.settle(claims, None)).owned == [False] * messages
    assert finish(settler.settle(again, None)).owned == [True] * messages
