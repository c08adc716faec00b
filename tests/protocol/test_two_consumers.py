"""Several consumers, in every order of their steps: no other consumer can get, settle or renew a held message."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle, product
from typing import Any

import pytest

from redis_message_queue.asyncio.batch import ProcessMessages
from redis_message_queue.asyncio.message_queue import ProcessMessage
from redis_message_queue.protocol.consume.claim import Claimant
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.values.errors import CleanupFailedError
from redis_message_queue.values.events import EventOperation, QueueEvent
from tests.protocol.port import REPLY, REQUEST, Lost, Turn, late
from tests.protocol.schedule import Actor, every_order
from tests.protocol.setup import (
    HandlerError,
    Setup,
    check_that_slots_are_acquired_once,
    process_all,
    requeue,
)

pytestmark = pytest.mark.topic("Retries of Redis calls")

ENDS = ("ack", "fail", "renew", "requeue", "retry later")


class Play:
    """Some messages, some consumers, and what happened to them, in the order in which it did."""

    def __init__(self, messages: int, tenants: Sequence[str | None] = (None,), **settings: object) -> None:
        self.setup = Setup(**settings)
        self.log: list[tuple[str, Any]] = []
        self.seen: Counter[str | bytes] = Counter()
        self.shared: QueueProtocol
        publisher = self.setup.queue()
        for number, tenant in zip(range(messages), cycle(tenants), strict=False):
            finish(publisher.publish(str(number), tenant=tenant))

    def queue(self, who: Any, losses: Any = None, **options: Any) -> QueueProtocol:
        port = self.setup.port(losses, suspends=True, **options)
        return self.setup.queue(port, on_event=self._listener(who))

    def _listener(self, who: Any) -> Callable[[QueueEvent], None]:
        words = {
            EventOperation.ACK: "settled",
            EventOperation.NACK: "settled",
            EventOperation.STALE_LEASE_ACK: "refused",
            EventOperation.STALE_LEASE_NACK: "refused",
        }
        return lambda event: self.log.append((words[event.operation], who)) if event.operation in words else None

    async def consumer(self, who: Any, queue: QueueProtocol, *ends: str) -> None:
        """Handle one message after the other, each with an end of its own; what Redis does not answer is left."""
        for end in ends:
            with suppress(HandlerError, Lost, CleanupFailedError):
                await self._handle(who, queue, end)

    async def _handle(self, who: Any, queue: QueueProtocol, end: str) -> None:
        context = ProcessMessage(queue)
        async with context as payload:
            if payload is None:
                return
            self.log.append(("claimed", who))
            self.seen[payload] += 1
            block = context._block
            assert block is not None and block.claimed is not None
            if end == "fail":
                raise HandlerError
            if end == "renew":
                (renewed,) = await queue.store.settler.renew([block.claimed], 1.0)
                self.log.append(("renewed" if renewed else "refused", who))
            if end == "requeue":
                block.is_left_alone = True
                given = await requeue(queue, block.claimed, forgiven=False)
                self.log.append(("requeued" if given else "refused", who))
            if end == "retry later":
                block.is_left_alone = True
                retry_later = await queue.store.settler.retry_later(block.claimed, 0, ValueError())
                self.log.append(("requeued" if retry_later else "refused", who))

    async def batch_consumer(self, queue: QueueProtocol, *ends: str) -> None:
        """The same with two messages at a time."""
        for end in ends:
            with suppress(HandlerError, Lost, CleanupFailedError):
                async with ProcessMessages(queue, 2, 0) as batch:
                    self.seen.update(message.payload for message in batch)
                    if end == "requeue":
                        raise HandlerError

    async def time(self) -> None:
        """At some moment all leases run out."""
        await Turn()
        self.setup.let_leases_run_out()
        self.log.append(("run out", None))

    def check_the_fences(self) -> None:
        """Read the log of a single message: only its holder got anything done, and nobody took it from a holder."""
        holder, leased, done = None, True, False
        for what, who in self.log:
            if what == "run out":
                leased = False
            elif what == "claimed":
                assert holder is None or not leased, "it was delivered while somebody held its lease"
                assert not done, "it was delivered after it had been settled"
                holder, leased = who, True
            elif what == "refused":
                # When its lease has run out, another may have claimed the message and not begun with it.
                assert who != holder or done or not leased, "a holder was refused"
            else:
                assert who == holder and not done, f"it was {what} by one who had lost it"
                leased = leased or what == "renewed"
                done = what == "settled"
                holder = None if what == "requeued" else holder


def orders_of(
    begin: Callable[[], tuple[Play, list[Actor]]],
    check: Callable[[Play], None],
    alike: Sequence[Sequence[int]] = (),
) -> int:
    """Every order of what ``begin`` sets up, with a check after each."""

    def begin_anew() -> tuple[Any, list[Actor], Callable[[], None]]:
        play, actors = begin()
        return play.setup.memory, actors, lambda: check(play)

    return every_order(begin_anew, alike)


def check_each_is_in_one_place(play: Play, messages: int) -> None:
    assert play.setup.places == {b"%d" % number: 1 for number in range(messages)}


# Two queue objects


@pytest.mark.promise("Each message goes to exactly one of the competing consumers.")
@pytest.mark.parametrize("between", [False, True], ids=["calls", "calls-and-answers"])
def test_two_consumers_never_get_the_same_message(between):
    """Each of two messages is handled by one of them, however their claims and acks fall."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(2)
        return play, [play.consumer(who, play.queue(who, between=between), "ack") for who in "AB"]

    def check(play: Play) -> None:
        assert play.seen == {b"0": 1, b"1": 1}
        assert sorted(play.setup.completed) == [b"0", b"1"]

    assert orders_of(begin, check) >= (70 if between else 6)


def test_three_consumers_share_four_messages_without_doubling_one():
    def begin() -> tuple[Play, list[Actor]]:
        play = Play(4)
        shares = {"A": ["ack", "ack"], "B": ["fail"], "C": ["ack"]}
        return play, [play.consumer(who, play.queue(who), *ends) for who, ends in shares.items()]

    def check(play: Play) -> None:
        assert play.seen == {b"%d" % number: 1 for number in range(4)}
        check_each_is_in_one_place(play, 4)

    assert orders_of(begin, check) == 420


@pytest.mark.parametrize("tenant", [None, "ann"], ids=["in line", "of a tenant"])
@pytest.mark.parametrize(("first", "second"), list(product(ENDS, ENDS)))
def test_only_the_owner_can_ack_fail_renew_requeue_or_retry_later(first, second, tenant):
    """The lease expires at any moment; the consumer that lost it is refused, and the other keeps the message."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(1, [tenant])
        consumers = [play.consumer(who, play.queue(who), end) for who, end in (("A", first), ("B", second))]
        return play, [*consumers, play.time()]

    def check(play: Play) -> None:
        play.check_the_fences()
        check_each_is_in_one_place(play, 1)

    assert orders_of(begin, check) >= 10


def test_the_lease_runs_out_twice_and_three_holders_follow_each_other():
    """The lease number grows with each of them, so the first cannot settle what the third holds."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(1)
        return play, [*(play.consumer(who, play.queue(who), "ack") for who in "ABC"), play.time(), play.time()]

    def check(play: Play) -> None:
        play.check_the_fences()
        check_each_is_in_one_place(play, 1)

    assert orders_of(begin, check, alike=[(0, 1, 2), (3, 4)]) >= 250


@pytest.mark.parametrize("lost", [REQUEST, REPLY, late(1)], ids=str)
@pytest.mark.parametrize("place", range(4))
def test_a_loss_between_two_consumers_gives_neither_the_others_message(place, lost):
    """One of them repeats its lost call, before, between and after the calls of the other."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(2)
        lossy, sound = play.queue("A", {place: lost}), play.queue("B")
        return play, [play.consumer("A", lossy, "ack", "ack"), play.consumer("B", sound, "ack")]

    def check(play: Play) -> None:
        play.setup.memory.run_all_late_requests()
        assert play.seen == {b"0": 1, b"1": 1}
        assert sorted(play.setup.completed) == [b"0", b"1"]

    assert orders_of(begin, check) >= 10


@pytest.mark.parametrize("tenants", [[None], ["ann"], ["ann", "bob"], ["ann", None]], ids=str)
@pytest.mark.parametrize("lost", [None, REQUEST, REPLY], ids=str)
def test_two_consumers_of_batches_never_get_the_same_message(tenants, lost):
    """One of them may lose the answer to its claim and ask again; each of three messages is handled once."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(3, tenants)
        queues = [play.queue("A", {} if lost is None else {0: lost}), play.queue("B")]
        return play, [play.batch_consumer(queue, "ack") for queue in queues]

    def check(play: Play) -> None:
        assert play.seen == {b"0": 1, b"1": 1, b"2": 1}
        assert sorted(play.setup.completed) == [b"0", b"1", b"2"]

    assert orders_of(begin, check) >= 6


@pytest.mark.parametrize("tenants", [[None], ["ann", "bob"]], ids=str)
def test_a_batch_that_comes_back_while_others_take_theirs_is_neither_lost_nor_doubled(tenants):
    """Requeued by a failing handler, or because its lease ran out at any moment."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(3, tenants)
        actors = [play.batch_consumer(play.queue("A"), "requeue"), play.batch_consumer(play.queue("B"), "ack")]
        return play, [*actors, play.time()]

    def check(play: Play) -> None:
        check_each_is_in_one_place(play, 3)
        play.setup.let_leases_run_out()
        process_all(play.setup.queue())
        assert sorted(play.setup.completed) == [b"0", b"1", b"2"]

    assert orders_of(begin, check) >= 20


# Two consumers of one queue object


@pytest.mark.promise("A lost claim is recovered by exactly one consumer.")
@pytest.mark.parametrize("lost", [REQUEST, REPLY], ids=str)
@pytest.mark.parametrize("place", range(5))
def test_an_unconfirmed_claim_of_one_object_is_recovered_by_one_of_its_consumers(place, lost):
    """They share the list of unconfirmed claims, and no two of them recover the same one."""

    def begin() -> tuple[Play, list[Actor]]:
        play = Play(2, retry_budget_seconds=0)
        play.shared = play.queue("shared", {place: lost})
        return play, [play.consumer(who, play.shared, "ack", "ack") for who in "AB"]

    def check(play: Play) -> None:
        check_that_slots_are_acquired_once(play.shared)
        play.seen.update(process_all(play.setup.queue()))
        assert max(play.seen.values()) == 1
        check_each_is_in_one_place(play, 2)

    assert orders_of(begin, check) >= 20


# The wake-up key


class Hall:
    """Consumers of every kind around one line: some wait, some only look in, one is told to stop."""

    WAIT = 0.9  # less than a slice: a consumer that wakes later was not woken up

    def __init__(self) -> None:
        self.play = Play(0)
        self.setup = self.play.setup
        self.started = self.setup.port().now()
        self.stopped = False
        self.delays: dict[bytes, float] = {}
        self.left_empty_handed: list[str] = []

    async def waiter(self, *, stops: bool = False) -> None:
        await self._claim("waiter", self.WAIT, lambda: stops and self.stopped)

    async def passer_by(self) -> None:
        await self._claim("passer-by", 0, lambda: False)

    async def _claim(self, kind: str, wait_seconds: float, stopped: Callable[[], bool]) -> None:
        port = self.setup.port(suspends=True)
        claimer = self.setup.store(port).claimer
        found = await claimer.claim(claimer.attempt(), Claimant("orders", stopped), wait_seconds)
        if found.claims:
            payload = found.claims[0].envelope.payload
            self.play.seen[payload] += 1
            late = port.now() - self.started - self.delays.get(payload, 0.0)
            assert late < 0.1, "a message lay there while somebody slept beside it"
        elif not stopped():
            self.left_empty_handed.append(kind)

    async def publisher(self, messages: int) -> None:
        queue = self.play.queue("publisher")
        for number in range(messages):
            await queue.publish(str(number))

    async def publisher_of_delayed(self, *delays: float) -> None:
        queue = self.play.queue("publisher")
        for number, delay in enumerate(delays):
            self.delays[b"%d" % number] = delay
            await queue.publish(str(number), delay_seconds=delay)

    async def stop(self) -> None:
        await Turn()
        self.stopped = True

    def check(self) -> None:
        assert all(times == 1 for times in self.play.seen.values())
        assert not (self.setup.pending and "waiter" in self.left_empty_handed)


@pytest.mark.parametrize(("waiters", "messages"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)])
def test_a_wakeup_wakes_a_waiter_for_every_message(waiters, messages):
    """No message lies in the line while somebody sleeps through a slice beside it."""

    def begin() -> tuple[Any, list[Actor], Callable[[], None]]:
        hall = Hall()
        return hall.setup.memory, [*(hall.waiter() for _ in range(waiters)), hall.publisher(messages)], hall.check

    assert every_order(begin, alike=[range(waiters)]) >= 2


@pytest.mark.parametrize(("waiters", "messages"), [(1, 1), (1, 2), (2, 2)])
def test_who_only_looks_in_takes_no_waiters_turn_away(waiters, messages):
    """A claim that never waited passes no wake-up on, because it took none."""

    def begin() -> tuple[Any, list[Actor], Callable[[], None]]:
        hall = Hall()
        actors = [*(hall.waiter() for _ in range(waiters)), hall.passer_by(), hall.publisher(messages)]
        return hall.setup.memory, actors, hall.check

    assert every_order(begin, alike=[range(waiters)]) >= 8


@pytest.mark.parametrize(
    ("waiters", "delays"), [(1, (0.4,)), (3, (0.4,)), (2, (0.3, 0.6)), (2, (0.6, 0.3)), (2, (0.3, 0.3))], ids=str
)
def test_a_delayed_message_is_taken_when_its_time_comes_while_somebody_waits(waiters, delays):
    """Also if it is published after one that is due later, and another consumer is the timer owner."""

    def begin() -> tuple[Any, list[Actor], Callable[[], None]]:
        hall = Hall()
        actors = [*(hall.waiter() for _ in range(waiters)), hall.publisher_of_delayed(*delays)]
        return hall.setup.memory, actors, lambda: check(hall)

    def check(hall: Hall) -> None:
        hall.check()
        assert sum(hall.play.seen.values()) == len(delays)

    assert every_order(begin, alike=[range(waiters)]) >= 2


@pytest.mark.parametrize("messages", [1, 2])
def test_a_waiter_that_is_stopped_passes_its_token_on(messages):
    """It was woken for a message that it will not take: the next one is woken instead."""

    def begin() -> tuple[Any, list[Actor], Callable[[], None]]:
        hall = Hall()
        actors = [hall.waiter(stops=True), hall.waiter(), hall.stop(), hall.publisher(messages)]
        return hall.setup.memory, actors, hall.check

    assert every_order(begin) >= 30
