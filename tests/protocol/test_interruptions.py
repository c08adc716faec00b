"""A consumer that is interrupted anywhere, by Ctrl-C or a cancellation, strands no message."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.publish.sender import OutgoingMessage
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.batch import ProcessMessages
from redis_message_queue.sync.message_queue import ProcessMessage
from redis_message_queue.values.events import EventOperation, QueueEvent
from tests.protocol.port import Cancelled, MemoryPort
from tests.protocol.setup import (
    DELAY,
    LATER,
    LEASE,
    HandlerError,
    Setup,
    check_that_slots_are_acquired_once,
    process_all,
)

either_way = pytest.mark.parametrize("broken_by", [KeyboardInterrupt, Cancelled])
leased_or_not = pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])


class Consumer:
    """One queue object over a port that is broken off here and there, and what its handler saw."""

    def __init__(self, setup: Setup, port: MemoryPort, **options: Any) -> None:
        self.setup = setup
        self.port = port
        self.queue: QueueProtocol = setup.queue(port, on_event=self._hear, **options)
        self.seen: Counter[str | bytes] = Counter()
        self.events: list[QueueEvent] = []

    def _hear(self, event: QueueEvent) -> None:
        self.events.append(event)

    def handle_one(self, error: Exception | None = None) -> None:
        """Handle a message as the blocking shell does, or fail it with an error."""
        with suppress(HandlerError, KeyboardInterrupt, Cancelled), ProcessMessage(self.queue) as payload:
            if payload is None:
                return
            self.seen[payload] += 1
            if error is not None:
                raise error

    def handle_batch(self, error: Exception | None = None) -> None:
        """The same with up to two messages at once."""
        with suppress(HandlerError, KeyboardInterrupt, Cancelled), ProcessMessages(self.queue, 2, 0) as batch:
            self.seen.update(message.payload for message in batch)
            if batch and error is not None:
                raise error

    def fail_one(self) -> None:
        self.handle_one(HandlerError())

    def publish_one(self) -> None:
        with suppress(KeyboardInterrupt, Cancelled):
            finish(self.queue.publish("2"))

    def publish_many(self) -> None:
        with suppress(KeyboardInterrupt, Cancelled):
            finish(self.queue.publisher.publish_many(["2", "3"], PublishOverrides(tenant="ann", delay_seconds=DELAY)))

    def handle_the_rest(self) -> None:
        """Nobody breaks off any more; the same object goes on."""
        self.port.break_at = ()
        self.seen.update(process_all(self.queue))
        check_that_slots_are_acquired_once(self.queue)


Play = Callable[[Consumer], None]


def played(
    play: Play,
    broken_by: type[BaseException],
    points: tuple[int, ...],
    setup: Setup,
    *,
    decodes: bool = False,
    **options: Any,
) -> Consumer:
    port = setup.port(break_at=points, break_with=broken_by, decodes=decodes)
    consumer = Consumer(setup, port, **options)
    play(consumer)
    return consumer


def break_everywhere(
    play: Play, check: Play, broken_by: type[BaseException], setup: Callable[[], Setup], **options: Any
) -> None:
    """Play and check, once for each point where the port can be broken off."""
    for at in count():
        consumer = played(play, broken_by, (at,), setup(), **options)
        if at == len(consumer.port.points):
            assert at >= 5, "the play was too short to prove anything"
            return
        check_at(check, consumer, at)


def check_at(check: Play, consumer: Consumer, *points: int) -> None:
    names = [consumer.port.points[at] for at in points]
    try:
        check(consumer)
    except BaseException as error:
        error.add_note(f"broken off {' and '.join(names)}")
        raise


def filled(lease: float | None = LEASE, tenants: tuple[str | None, str | None] = (None, None)) -> Setup:
    """Two messages wait."""
    setup = Setup(message_visibility_timeout_seconds=lease)
    for payload, tenant in zip("01", tenants, strict=True):
        finish(setup.queue().publish(payload, tenant=tenant))
    return setup


def check_each_was_handled_once(consumer: Consumer) -> None:
    """No lease has run out: each message was seen once, and is in one place."""
    consumer.handle_the_rest()
    assert consumer.seen == {b"0": 1, b"1": 1}
    assert consumer.setup.places == {b"0": 1, b"1": 1}
    assert len(consumer.queue.store.claimer.unconfirmed) == 0


@either_way
@leased_or_not
def test_a_claim_that_was_broken_off_anywhere_is_recovered(broken_by, lease):
    """The handler sees the message once, however far the first try had come."""
    break_everywhere(Consumer.handle_one, check_each_was_handled_once, broken_by, lambda: filled(lease))


@either_way
@leased_or_not
def test_a_failure_that_was_broken_off_anywhere_is_not_handled_again(broken_by, lease):
    """The message is in the failed list or still held; until its lease runs out nobody gets it."""
    break_everywhere(Consumer.fail_one, check_each_was_handled_once, broken_by, lambda: filled(lease))


@either_way
def test_what_was_broken_off_while_it_was_settled_comes_back_with_its_lease(broken_by):
    def check(consumer: Consumer) -> None:
        check_each_was_handled_once(consumer)
        held = Counter(consumer.setup.processing)
        consumer.setup.let_leases_run_out()
        assert Counter(process_all(consumer.queue)) == held
        assert not consumer.setup.processing

    break_everywhere(Consumer.handle_one, check, broken_by, filled)


either_line = pytest.mark.parametrize(
    "tenants", [(None, None), ("ann", "bob"), ("ann", None)], ids=["one line", "two tenants", "a tenant and nobody"]
)


@either_way
@leased_or_not
@either_line
def test_a_batch_that_was_broken_off_anywhere_is_recovered(broken_by, lease, tenants):
    """Its messages are seen once, though the next to ask wants fewer: what it does not want waits at the head again."""
    break_everywhere(Consumer.handle_batch, check_each_was_handled_once, broken_by, lambda: filled(lease, tenants))


@either_way
@either_line
def test_a_batch_that_was_broken_off_while_it_was_requeued_is_there_once(broken_by, tenants):
    """Its handler failed: each message is in its line or still held, and comes back with its lease at the latest."""

    def play(consumer: Consumer) -> None:
        consumer.handle_batch(HandlerError())

    def check(consumer: Consumer) -> None:
        assert consumer.setup.places == {b"0": 1, b"1": 1}
        consumer.handle_the_rest()
        held = Counter(consumer.setup.processing)
        consumer.setup.let_leases_run_out()
        assert Counter(process_all(consumer.queue)) == held
        assert consumer.setup.places == {b"0": 1, b"1": 1}
        assert not consumer.setup.processing

    break_everywhere(play, check, broken_by, lambda: filled(tenants=tenants))


@either_way
@leased_or_not
def test_a_retry_that_was_broken_off_anywhere_happens_once_or_is_left_to_the_lease(broken_by, lease):
    """The message waits for its next attempt or is still held: nobody gets it before its time."""

    def check(consumer: Consumer) -> None:
        assert consumer.setup.places == {b"0": 1, b"1": 1}
        consumer.handle_the_rest()
        assert consumer.seen == {b"0": 1, b"1": 1}
        retry_later = consumer.setup.delayed
        consumer.setup.let_delays_end()
        assert process_all(consumer.queue) == retry_later
        assert consumer.setup.places == {b"0": 1, b"1": 1}

    break_everywhere(Consumer.fail_one, check, broken_by, lambda: filled(lease), retry_policy=LATER)


def pairs_of_points(play: Play, broken_by: type[BaseException]) -> Iterator[tuple[int, int]]:
    for first in count():
        if first >= len(played(play, broken_by, (first,), filled()).port.points):
            return
        for second in count(first + 1):
            if second >= len(played(play, broken_by, (first, second), filled()).port.points):
                break
            yield first, second


@either_way
def test_the_question_for_a_broken_off_claim_can_be_broken_off_as_well(broken_by):
    """Two breaks at any two points of three tries, and still each message is handled once."""

    def play(consumer: Consumer) -> None:
        for _ in range(3):
            consumer.handle_one()

    for points in pairs_of_points(play, broken_by):
        consumer = played(play, broken_by, points, filled())
        check_at(check_each_was_handled_once, consumer, *points)


@either_way
def test_a_waiting_consumer_can_be_broken_off_anywhere(broken_by):
    """It was blocked on the wake-up key when the message came; the next consumer gets it."""

    def setup() -> Setup:
        fresh = Setup(message_wait_interval_seconds=3.0)
        fresh.memory.at(1.5, lambda: finish(fresh.queue().publish("0")))
        return fresh

    def check(consumer: Consumer) -> None:
        consumer.setup.memory.pass_time(3.0)
        consumer.handle_the_rest()
        assert consumer.seen == {b"0": 1}
        assert consumer.setup.places == {b"0": 1}

    break_everywhere(Consumer.handle_one, check, broken_by, setup)


@either_way
def test_a_publish_that_was_broken_off_anywhere_counts_once_or_not_at_all(broken_by):
    def play(consumer: Consumer) -> None:
        consumer.publish_one()
        consumer.publish_one()
        consumer.handle_one()

    def check(consumer: Consumer) -> None:
        consumer.handle_the_rest()
        # A break lost at most one of the two; what arrived was handled as often as it arrived.
        assert 1 <= consumer.seen[b"2"] <= 2
        assert consumer.setup.places == consumer.seen

    break_everywhere(play, check, broken_by, filled)


@either_way
def test_a_chunk_that_was_broken_off_anywhere_counts_once_or_not_at_all(broken_by):
    """All of it, or none."""

    def play(consumer: Consumer) -> None:
        consumer.publish_many()
        consumer.publish_many()
        consumer.handle_one()

    def check(consumer: Consumer) -> None:
        consumer.setup.let_delays_end()
        consumer.handle_the_rest()
        assert 1 <= consumer.seen[b"2"] == consumer.seen[b"3"] <= 2
        assert consumer.setup.places == consumer.seen

    break_everywhere(play, check, broken_by, filled)


@either_way
@leased_or_not
def test_what_cannot_be_decoded_is_dead_lettered_once_wherever_that_is_broken_off(broken_by, lease):
    """It went to no handler, so it is found again; it lies among the dead letters once, and the line moves on."""

    def setup() -> Setup:
        fresh = Setup(message_visibility_timeout_seconds=lease)
        for payload in (b"\xff", b"1"):
            sender = fresh.store().senders[0]
            finish(sender.send([fresh.port().new_id()], [OutgoingMessage(payload)], lambda: False))
        return fresh

    def check(consumer: Consumer) -> None:
        consumer.handle_the_rest()
        assert consumer.setup.dead == [b"\xff"]
        assert consumer.setup.places == {b"\xff": 1, b"1": 1}

    break_everywhere(Consumer.handle_one, check, broken_by, setup, decodes=True)


def test_a_claim_that_is_recovered_is_reported_as_such():
    """An event for the claim, and one that says that it had been made before."""
    consumer = played(Consumer.handle_one, KeyboardInterrupt, (1,), filled())
    assert consumer.port.points[1] == "after claim was executed"
    consumer.handle_one()
    assert [event.operation for event in consumer.events] == [
        EventOperation.CLAIM_RECLAIM,
        EventOperation.CLAIM,
        EventOperation.ACK,
        EventOperation.COMPLETED,
    ]
