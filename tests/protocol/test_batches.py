"""A batch is claimed, found again, settled and given back as one, and each of its messages counts for itself."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, product

import pytest

from redis_message_queue.errors import CleanupFailedError
from redis_message_queue.events import EventOperation
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.feed import RunOptions
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.batch import ProcessMessages
from redis_message_queue.sync.loop import Loop
from tests.protocol.port import REPLY, REQUEST, Loss, Lost, MemoryPort, late
from tests.protocol.scene import (
    DELAY,
    LATER,
    LEASE,
    HandlerError,
    Scene,
    check_that_slots_are_lent_once,
    nobody_listens,
    process_all,
)

leased_or_not = pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])


def filled(messages: int = 4, tenant: str | None = None, **settings: object) -> Scene:
    """So many messages wait."""
    scene = Scene(**settings)
    finish(scene.queue().outbox.publish_many([str(number) for number in range(messages)], tenant=tenant))
    return scene


def claim(scene: Scene, port: MemoryPort, count: int) -> tuple[QueueProtocol, list[Claim]]:
    """A batch in the hands of somebody who may crash."""
    claimer = (queue := scene.queue(port)).store.claimer
    return queue, finish(claimer.claim(claimer.attempt(), 0, lambda: False, nobody_listens, count)).claims


def process_batch(queue: QueueProtocol, count: int = 4, error: Exception | None = None) -> list[bytes]:
    """Handle a batch, as the blocking shell does, or fail it."""
    payloads: list[bytes] = []
    with suppress(HandlerError), ProcessMessages(queue.batch(count, 0)) as batch:
        payloads += [message.payload for message in batch]
        if error is not None:
            raise error
    return payloads


def unsure_batch(count: int = 3, **settings: object) -> tuple[Scene, QueueProtocol]:
    """The answer to a claim of so many was lost, and its consumer was told so."""
    scene = filled(retry_budget_seconds=0, **settings)
    queue = scene.queue(scene.port({0: REPLY}))
    with pytest.raises(Lost):
        process_batch(queue, count)
    assert len(queue.store.claimer.unsure) == 1
    return scene, queue


# Found again


@pytest.mark.parametrize("tenant", [None, "ann"])
def test_a_batch_whose_reply_was_lost_is_found_again_in_its_order(tenant):
    scene = filled(tenant=tenant)
    port = scene.port({0: REPLY})
    assert process_batch(scene.queue(port), 3) == [b"0", b"1", b"2"]
    assert port.verbs() == ["claim", "claim", "settle"]
    assert len({sent.given["call"] for sent in port.sent[:2]}) == 1
    assert scene.waiting == [b"3"]


@leased_or_not
@pytest.mark.parametrize("tenant", [None, "ann"])
def test_whoever_wants_fewer_than_an_unsure_batch_has_gives_the_rest_back_in_its_order(lease, tenant):
    """The others are the next again, before what has waited all the time, and another object can have them."""
    scene, queue = unsure_batch(tenant=tenant, message_visibility_timeout_seconds=lease)
    with ProcessMessages(queue.batch(1, 0)) as batch:
        assert [message.payload for message in batch] == [b"0"]
        assert scene.waiting == [b"1", b"2", b"3"]
        assert process_all(scene.queue()) == [b"1", b"2", b"3"]
    assert len(scene.completed) == 4
    check_that_slots_are_lent_once(queue)


def test_what_is_given_back_from_an_unsure_batch_was_not_delivered():
    """One delivery is allowed, and nobody has seen these."""
    scene, queue = unsure_batch(max_delivery_count=1)
    assert process_batch(queue, 1) == [b"0"]
    assert process_all(scene.queue()) == [b"1", b"2", b"3"]
    assert scene.dead == []


def test_whoever_wants_more_than_an_unsure_batch_has_gets_the_batch():
    _, queue = unsure_batch()
    assert process_batch(queue, 4) == [b"0", b"1", b"2"]
    assert process_batch(queue, 4) == [b"3"]


@pytest.mark.parametrize("tenant", [None, "ann"])
@pytest.mark.parametrize("taken_over", [1, 2, 3])
def test_what_others_have_taken_over_is_left_out_of_a_batch_that_is_found_again(taken_over, tenant):
    """Its leases ran out while nobody knew of them; the rest is still its own, and leased anew."""
    scene, queue = unsure_batch(tenant=tenant)
    scene.let_leases_run_out()
    other, claims = claim(scene, scene.port(), taken_over)
    found = process_batch(queue, 3)
    assert found == [b"0", b"1", b"2"][taken_over:] or taken_over == 3
    assert finish(other.store.settler.settle(claims, None)).held == [True] * taken_over
    process_all(queue)
    assert not scene.processing
    assert len(scene.completed) == 4 - taken_over


@pytest.mark.parametrize("lost", [REQUEST, REPLY, late(0), late(1)], ids=str)
def test_the_giving_back_of_what_is_not_wanted_can_be_lost_as_well(lost):
    """Whoever asks next finds what is left of the batch, and nothing is there twice."""
    scene, queue = unsure_batch()
    port = queue.port
    port.losses = {2: lost}  # after the claim and the question
    with pytest.raises(Lost):
        process_batch(queue, 1)
    port.losses = {}
    scene.memory.let_all_stragglers_in()
    seen = [payload for _ in range(4) for payload in process_batch(queue, 1)]
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]
    assert scene.places == {b"%d" % number: 1 for number in range(4)}
    assert len(queue.store.claimer.unsure) == 0


# Settled


def losses(calls: int, kinds: tuple[Loss, ...] = (REQUEST, REPLY, late(0), late(1))) -> Iterator[dict[int, Loss]]:
    """Up to two of so many calls are lost, in any way."""
    for number in (1, 2):
        for places in combinations(range(calls), number):
            for ways in product(kinds, repeat=number):
                yield dict(zip(places, ways, strict=True))


def test_a_batch_is_acknowledged_once_whatever_is_lost():
    for lost in losses(calls=4):
        scene = filled()
        assert process_batch(scene.queue(scene.port(lost)), 4) == [b"0", b"1", b"2", b"3"], lost
        scene.memory.let_all_stragglers_in()
        assert scene.completed == [b"3", b"2", b"1", b"0"]
        assert not (scene.processing or scene.waiting)


@pytest.mark.parametrize("tenants", [(None, None), ("ann", "ann"), ("ann", "bob")], ids=str)
def test_a_batch_that_failed_is_given_back_once_in_its_order_whatever_is_lost(tenants):
    for lost in losses(calls=4):
        scene = Scene()
        for payload, tenant in zip("01", tenants, strict=True):
            finish(scene.queue().publish(payload, tenant=tenant))
        assert process_batch(scene.queue(scene.port(lost)), 2, HandlerError()) == [b"0", b"1"], lost
        scene.memory.let_all_stragglers_in()
        assert not scene.processing
        assert process_all(scene.queue()) == [b"0", b"1"], lost
        assert scene.places == {b"0": 1, b"1": 1}


def test_leaving_a_batch_by_an_exception_counts_as_a_delivery():
    """One of its messages may be the poison: with a limit of one they are dead now."""
    scene = filled(2, max_delivery_count=1)
    process_batch(scene.queue(), 2, HandlerError())
    assert process_all(scene.queue()) == []
    assert scene.dead == [b"1", b"0"]


def test_one_message_of_a_batch_is_acknowledged_and_another_put_off_whatever_is_lost():
    """The rest is acknowledged when the batch ends; what was put off comes again in its time, and counts as new."""
    for lost in losses(calls=6, kinds=(REQUEST, REPLY)):
        scene = filled(3, max_delivery_count=1)
        with ProcessMessages(scene.queue(scene.port(lost), retry_policy=LATER).batch(3, 0)) as batch:
            assert batch.ack(batch[1]) is True
            assert batch.fail(batch[0], HandlerError()) is True
        assert (scene.completed, scene.later) == ([b"2", b"1"], [b"0"]), lost
        scene.memory.pass_time(DELAY)
        assert process_all(scene.queue()) == [b"0"]
        assert scene.places == {b"%d" % number: 1 for number in range(3)}


def test_what_a_batch_has_lost_to_others_is_told_message_by_message():
    scene = filled(3)
    told: list[tuple[EventOperation, str]] = []
    queue = scene.queue(on_event=lambda event: told.append((event.operation, event.message_id)))
    with ProcessMessages(queue.batch(3, 0)) as batch:
        ids = [message.id for message in batch]
        scene.let_leases_run_out()
        claim(scene, scene.port(), 1)
    outcomes = [(what, ids.index(who)) for what, who in told if what != EventOperation.CLAIM]
    assert (EventOperation.STALE_LEASE_ACK, 0) in outcomes
    assert [who for what, who in outcomes if what == EventOperation.ACK] == [1, 2]
    assert scene.completed == [b"2", b"1"]


def test_what_cannot_be_decoded_leaves_its_batch_for_the_dead_letters():
    for lost in losses(calls=3, kinds=(REQUEST, REPLY)):
        scene = Scene()
        publisher = scene.store().publisher
        for payload in (b"0", b"\xff", b"2"):
            finish(publisher.publish_one(scene.port().fresh_id(), payload, None, lambda: False))
        queue = scene.queue(scene.port(lost, decodes=True))
        assert process_batch(queue, 3) == ["0", "2"], lost
        assert (scene.dead, scene.completed) == ([b"\xff"], [b"2", b"0"])
        assert not scene.processing


# Claimed ahead by a loop


def run(queue: QueueProtocol, prefetch: int, seen: list[bytes], failing: bytes | None = None) -> None:
    """Handle everything, as the blocking shell does."""

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if message.payload == failing:
            raise HandlerError

    rules = {"batch_size": None, "batch_seconds": None, "until_empty": True}
    Loop(queue, RunOptions(handler=handle, concurrency=1, prefetch=prefetch, **rules)).run()


@pytest.mark.parametrize("tenant", [None, "ann"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_loop_handles_and_acknowledges_each_message_once_whatever_is_lost(prefetch, tenant):
    """Acknowledgements travel with the next claim: a loss is the loss of both, and both are repeated."""
    for lost in losses(calls=5):
        scene, seen = filled(tenant=tenant), []
        run(scene.queue(scene.port(lost)), prefetch, seen, failing=b"2")
        scene.memory.let_all_stragglers_in()
        assert seen == [b"0", b"1", b"2", b"3"], lost
        assert (sorted(scene.completed), scene.failed) == ([b"0", b"1", b"3"], [b"2"])
        assert not (scene.processing or scene.waiting)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_loop_that_gives_up_leaves_every_message_in_one_place(prefetch):
    """What it has not begun waits again, uncounted; what it could not acknowledge comes back with its lease."""
    for lost in losses(calls=5, kinds=(REQUEST, REPLY)):
        scene, seen = filled(retry_budget_seconds=0), []
        queue = scene.queue(scene.port(lost))
        with suppress(Lost, CleanupFailedError):
            run(queue, prefetch, seen)
        assert scene.places == {b"%d" % number: 1 for number in range(4)}, lost
        queue.port.losses = {}
        run(queue, prefetch, seen)
        scene.let_leases_run_out()
        process_all(queue)
        assert sorted(scene.completed) == [b"0", b"1", b"2", b"3"], lost


def test_a_loop_that_is_stopped_acknowledges_what_is_done_and_gives_back_what_it_has_not_begun():
    """No claim follows with which an acknowledgement could travel, and what was not begun was not delivered."""
    for lost in losses(calls=4):
        scene, seen = filled(max_delivery_count=1), []
        queue = scene.queue(scene.port(lost))

        def handle(message: ReceivedMessage, queue: QueueProtocol = queue, seen: list[bytes] = seen) -> None:
            seen.append(message.payload)
            queue.gate.is_shut = message.payload == b"1"

        rules = {"batch_size": None, "batch_seconds": None, "until_empty": False}
        Loop(queue, RunOptions(handler=handle, concurrency=1, prefetch=3, **rules)).run()
        scene.memory.let_all_stragglers_in()
        assert (seen, scene.completed, scene.pending) == ([b"0", b"1"], [b"1", b"0"], [b"2", b"3"]), lost
        assert process_all(scene.queue()) == [b"2", b"3"]


# More than one script takes


def claim_everything(scene: Scene, queue: QueueProtocol) -> list[Claim]:
    claimer, claims = queue.store.claimer, []
    while scene.pending:
        claims += finish(claimer.claim(claimer.attempt(), 0, lambda: False, nobody_listens, 1000)).claims
    return claims


@pytest.mark.parametrize("messages", [1000, 1001, 2000])
def test_more_messages_than_one_script_takes_are_ended_in_pieces_and_each_is_told_of(messages):
    """Renewed and settled each has its own answer, and given back they keep their order."""
    scene = filled(messages)
    queue = scene.queue()
    settler, claims = queue.store.settler, claim_everything(scene, queue)
    assert finish(settler.renew(claims, 1.0)) == [True] * messages
    assert finish(settler.give_back(claims, forgiven=True)) == [True] * messages
    assert scene.pending == [b"%d" % number for number in range(messages)]
    again = claim_everything(scene, queue)
    assert finish(settler.settle(claims, None)).held == [False] * messages
    assert finish(settler.settle(again, None)).held == [True] * messages
