"""A hand-off happens once or not at all."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations, count, product
from types import SimpleNamespace
from typing import Any

import pytest

from redis_message_queue.options.declared import GatewayOptions, QueueOptions
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.sync.message_queue import ProcessMessage
from redis_message_queue.values.errors import CleanupFailedError, LeaseLostError, QueueBackpressureError
from tests.protocol.port import REPLY, REQUEST, Cancelled, Loss, Lost, MemoryPort, late
from tests.protocol.setup import LEASE, Setup, check_that_slots_are_acquired_once, payload_of, process_all

pytestmark = pytest.mark.topic("Hand-off")

leased_or_not = pytest.mark.parametrize("lease", [LEASE, None], ids=["leased", "at-most-once"])
RESULTS = [("refunds", "1", {}), ("refunds", "2", {"tenant": "ann"}), ("orders", "3", {"delay_seconds": 500})]


class Handing:
    """A queue of one message, whose handler hands three results off, to another queue and to its own."""

    def __init__(
        self, port: Callable[..., MemoryPort] = Setup.port, refunds: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.setup = Setup(**settings)
        finish(self.setup.queue().publish("0", tenant="bob"))
        self.port = port(self.setup)
        self.queue = self.setup.queue(self.port)
        self.keys = QueueKeys.of("refunds")
        store = RedisStore(self.setup.port(), self.keys, GatewayOptions(**refunds or {}))
        self.refunds = QueueProtocol(QueueOptions(name="refunds"), store)

    def handle(self, *, before: Callable[[], Any] = lambda: None) -> list[bytes]:
        """Take the message, hand its results off, and leave; what was taken."""
        queues = {"orders": SimpleNamespace(_protocol=self.queue), "refunds": SimpleNamespace(_protocol=self.refunds)}
        context = ProcessMessage[bytes](self.queue)
        with context as payload:
            if payload is None:
                return []
            before()
            block = context._block
            assert block is not None and block.claimed is not None
            results = [(queues[name], message, details) for name, message, details in RESULTS]
            finish(block.consumer.complete(block.claimed, results))
        assert payload is not None
        return [payload]

    @property
    def results(self) -> list[bytes]:
        list_of = self.setup.list_of
        away = [*list_of(self.keys.pending), *list_of(self.keys.tenant_pending("ann"))]
        return [*(payload_of(stored) for stored in away), *self.setup.delayed]

    def check_done(self) -> None:
        assert self.results == [b"1", b"2", b"3"]
        assert self.setup.completed == [b"0"]
        assert not self.setup.processing

    def check_all_or_nothing(self) -> None:
        """Also where the handler's failure took the message to the failed list."""
        if self.results:
            self.check_done()
        else:
            assert self.setup.completed == []
            assert self.setup.places == {b"0": 1}


def losses(calls: int) -> Iterator[dict[int, Loss]]:
    for number in (1, 2):
        for places in combinations(range(calls), number):
            for ways in product((REQUEST, REPLY, late(0), late(1)), repeat=number):
                yield dict(zip(places, ways, strict=True))


@leased_or_not
def test_a_hand_off_happens_once_whatever_is_lost(lease):
    for lost in losses(calls=4):
        one = Handing(lambda setup, lost=lost: setup.port(lost), message_visibility_timeout_seconds=lease)
        assert one.handle() == [b"0"], lost
        one.setup.memory.run_all_late_requests()
        one.check_done()
        check_that_slots_are_acquired_once(one.queue)


@pytest.mark.promise(
    "If Redis is unreachable, a hand-off happened whole or not at all, and repeating one that arrived is refused."
)
@leased_or_not
def test_after_an_unknown_outcome_a_hand_off_has_happened_or_not_and_never_half(lease):
    settings = {"message_visibility_timeout_seconds": lease, "retry_budget_seconds": 0}
    for lost in losses(calls=4):
        one = Handing(lambda setup, lost=lost: setup.port(lost), **settings)
        with suppress(Lost, CleanupFailedError):
            one.handle()
        one.port.losses = {}
        one.check_all_or_nothing()
        one.setup.memory.run_all_late_requests()
        one.check_all_or_nothing()


@leased_or_not
@pytest.mark.parametrize("broken_by", [KeyboardInterrupt, Cancelled])
def test_a_hand_off_that_is_broken_off_anywhere_has_happened_or_not(lease, broken_by):
    for at in count():
        one = Handing(
            lambda setup, at=at: setup.port(break_at=(at,), break_with=broken_by),
            message_visibility_timeout_seconds=lease,
        )
        with suppress(broken_by):
            one.handle()
        if at >= len(one.port.points):
            assert at >= 4, "the hand-off was too short to prove anything"
            return
        one.check_all_or_nothing()
        if lease is not None:
            one.setup.let_leases_run_out()
            while one.handle():
                pass
            assert sorted(set(one.results)) == [b"1", b"2", b"3"]
            assert len(one.results) == 3


@pytest.mark.promise(
    "A full target refuses the whole hand-off immediately, whatever its overload policy; the message stays leased."
)
def test_a_hand_off_to_a_full_queue_changes_nothing_and_leaves_the_message_in_hand():
    one = Handing(refunds={"max_pending_length": 1})
    with pytest.raises(QueueBackpressureError, match="'refunds' is full"):
        one.handle()
    assert (one.results, one.setup.failed) == ([], [b"0"])


@pytest.mark.promise("A hand-off without a valid lease publishes nothing and raises `LeaseLostError`.")
def test_whoever_has_lost_the_lease_hands_nothing_off():
    one = Handing()

    def lose_it() -> None:
        one.setup.let_leases_run_out()
        assert process_all(one.setup.queue()) == [b"0"]

    with pytest.raises(LeaseLostError):
        one.handle(before=lose_it)
    assert (one.results, one.setup.completed) == ([], [b"0"])


@pytest.mark.promise("A lease that ran out stays valid until another consumer claims the message.")
def test_a_lease_that_ran_out_is_no_loss_while_nobody_else_has_the_message():
    """Another message of another tenant was claimed meanwhile, so this one waits for its tenant's next turn."""
    one = Handing()

    def let_it_run_out() -> None:
        one.setup.let_leases_run_out()
        for tenant in ("ann", "cid"):
            finish(one.setup.queue().publish(tenant, tenant=tenant))
        with ProcessMessage(one.setup.queue()) as payload:
            assert payload == b"ann"

    one.handle(before=let_it_run_out)
    assert one.results == [b"1", b"2", b"3"]
    assert sorted(one.setup.completed) == [b"0", b"ann"]
    assert process_all(one.setup.queue()) == [b"cid"]
    assert not one.setup.members_of(one.setup.keys.tenant_ring)
