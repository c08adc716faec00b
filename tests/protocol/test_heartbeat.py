"""A heartbeat renews a lease while its handler runs, reports its loss, and ends with the handler."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from redis_message_queue.protocol.consume.lease import Heartbeat, Lease
from redis_message_queue.protocol.consume.message_block import current_message
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.message_queue import ProcessMessage
from redis_message_queue.values.errors import RetryBudgetExhaustedError
from redis_message_queue.values.events import EventOperation, EventOutcome, QueueEvent
from tests.protocol.port import REPLY, REQUEST, Lost, MemoryPort
from tests.protocol.setup import CLAIMANT, LEASE, Setup, process_all

INTERVAL = 10.0
MOMENT = 0.01

RENEWED = (EventOperation.LEASE_RENEW, EventOutcome.SUCCESS)
GIVEN_UP = (EventOperation.LEASE_RENEW, EventOutcome.FAILURE)
ENOUGH = (EventOperation.LEASE_RENEW, EventOutcome.SKIPPED)
STALE = (EventOperation.STALE_LEASE_RENEW, EventOutcome.SKIPPED)


class Handler:
    """Somebody who works on the only message of a queue, for as long as a test says."""

    def __init__(self, port: MemoryPort | None = None, setup: Setup | None = None, **options: Any) -> None:
        self.setup = setup or Setup()
        self.port = port or self.setup.port()
        self.events: list[QueueEvent] = []
        self.failures: list[float] = []
        usual = {"heartbeat_interval_seconds": INTERVAL, "on_heartbeat_failure": self._fail}
        self.queue: QueueProtocol = self.setup.queue(self.port, on_event=self.events.append, **usual | options)
        finish(self.setup.queue().publish("a"))
        self.started = self.port.now()

    def _fail(self) -> None:
        self.failures.append(self.port.now() - self.started)

    @contextmanager
    def at_work(self):
        with ProcessMessage(self.queue) as payload:
            assert payload == b"a"
            yield self

    def work(self, seconds: float) -> None:
        self.setup.memory.pass_time(seconds)

    @property
    def lease_lost(self) -> bool:
        return current_message(self.queue).lease_lost

    @property
    def beats(self) -> list[tuple[EventOperation, EventOutcome]]:
        names = (EventOperation.LEASE_RENEW, EventOperation.STALE_LEASE_RENEW)
        return [(event.operation, event.outcome) for event in self.events if event.operation in names]

    @property
    def heartbeat_is_over(self) -> bool:
        return self.port.sidecars[0].finished


def test_a_lease_is_renewed_for_as_long_as_its_handler_works():
    handler = Handler()
    with handler.at_work():
        handler.work(305.0)
        assert not handler.lease_lost
        assert process_all(handler.setup.queue()) == []
    assert handler.beats == [RENEWED] * 30
    assert handler.setup.completed == [b"a"]
    assert handler.failures == []


def test_without_a_heartbeat_a_long_handler_loses_its_lease_and_can_see_it():
    handler = Handler(heartbeat_interval_seconds=None, on_heartbeat_failure=None)
    with handler.at_work():
        handler.work(LEASE - MOMENT)
        assert not handler.lease_lost
        handler.work(2 * MOMENT)
        assert handler.lease_lost
        assert process_all(handler.setup.queue()) == [b"a"]
    assert handler.setup.completed == [b"a"]


def test_a_heartbeat_ends_with_its_handler():
    handler = Handler()
    with handler.at_work():
        handler.work(15.0)
    handler.work(1000.0)
    assert handler.heartbeat_is_over
    assert handler.beats == [RENEWED]
    assert handler.port.verbs() == ["claim", "renew", "settle"]


def test_a_renewal_that_was_lost_is_repeated_and_nobody_hears_of_it():
    for kind in (REQUEST, REPLY):
        setup = Setup()
        handler = Handler(setup.port({1: kind, 2: kind}), setup)
        with handler.at_work():
            handler.work(15.0)
        assert handler.port.verbs() == ["claim", "renew", "renew", "renew", "settle"]
        assert handler.beats == [RENEWED]
        assert handler.failures == []


# The handler has had its time


def test_a_handler_that_exceeds_its_time_is_no_longer_renewed():
    """The last renewal is before the limit; a lease later the message is somebody else's."""
    handler = Handler(max_processing_seconds=45.0)
    with handler.at_work():
        handler.work(50.5)
        assert handler.beats == [RENEWED] * 4 + [ENOUGH]
        assert handler.heartbeat_is_over
        assert not handler.lease_lost
        handler.work(40.0 + LEASE - 50.5 - MOMENT)
        assert process_all(handler.setup.queue()) == []
        handler.work(2 * MOMENT)
        assert handler.lease_lost
        assert process_all(handler.setup.queue()) == [b"a"]
    assert handler.failures == []
    assert handler.events[-1].operation == EventOperation.STALE_LEASE_ACK


def test_a_handler_within_its_time_is_renewed():
    handler = Handler(max_processing_seconds=45.0)
    with handler.at_work():
        handler.work(44.0)
    assert handler.beats == [RENEWED] * 4


# The lease was lost to another consumer


def take_over(setup: Setup) -> None:
    """The lease runs out on the server, and another consumer gets the message."""
    (token,) = setup.members_of(setup.keys.leases)
    setup.memory.obey("ZADD", setup.keys.leases, 1, token)
    other = ProcessMessage(setup.queue())
    assert other.__enter__() == b"a"


def test_a_refused_renewal_is_reported_and_ends_the_heartbeat():
    handler = Handler()
    with handler.at_work():
        handler.setup.memory.at(15.0, lambda: take_over(handler.setup))
        handler.work(19.0)
        assert not handler.lease_lost
        handler.work(2.0)
        assert handler.lease_lost  # by its own clock it would last until 40 s
        handler.work(100.0)
    assert handler.beats == [RENEWED, STALE]
    assert handler.failures == pytest.approx([20.0], abs=MOMENT)
    assert handler.heartbeat_is_over
    assert handler.setup.processing == [b"a"]


def test_a_renewal_that_is_refused_because_the_message_was_settled_is_no_loss():
    """The handler has just ended: its heartbeat finds no lease, and says nothing."""
    handler = Handler()
    with handler.at_work():
        handler.work(5.0)
        background_task = handler.port.sidecars[0]
        handler.setup.memory.obey("DEL", handler.setup.keys.leases)
        stop_in_the_middle(handler.port, lambda: setattr(background_task, "_stopped", True))
        handler.work(6.0)
    assert handler.beats == []
    assert handler.failures == []


def stop_in_the_middle(port: MemoryPort, happens: Callable[[], None]) -> None:
    """Something happens while the next call is on its way."""
    call = port.call

    async def call_slowly(*arguments: Any) -> Any:
        port.call = call  # type: ignore[method-assign]
        happens()
        return await call(*arguments)

    port.call = call_slowly  # type: ignore[method-assign, assignment]


# Redis cannot be reached


@pytest.mark.parametrize("budget", [5.0, 120.0])
def test_a_heartbeat_tries_at_each_interval_until_its_lease_ends(budget):
    """At 20 s Redis goes away; the lease was renewed at 10 s, so it surely lasts until 40 s, whatever the budget is."""
    setup = Setup(retry_budget_seconds=budget)
    handler = Handler(setup.port(dict.fromkeys(range(2, 999), REQUEST)), setup)
    with pytest.raises(Exception, match="could not be acknowledged"), handler.at_work():
        handler.work(19.0)
        handler.work(100.0)
        assert handler.lease_lost
    assert handler.beats == [RENEWED, *[GIVEN_UP] * (2 if budget < 20.0 else 1)]
    assert handler.failures == pytest.approx([40.0], abs=MOMENT)
    assert handler.heartbeat_is_over


def test_without_a_budget_a_heartbeat_tries_once_at_each_interval():
    setup = Setup(retry_budget_seconds=0)
    handler = Handler(setup.port({1: REQUEST}), setup)
    with handler.at_work():
        handler.work(25.0)
        assert not handler.lease_lost
    assert handler.port.verbs() == ["claim", "renew", "renew", "settle"]
    assert handler.failures == []
    failed = next(event for event in handler.events if event.operation == EventOperation.LEASE_RENEW)
    assert (failed.outcome, failed.exception_type) == (EventOutcome.FAILURE, Lost.__name__)


def test_a_renewal_that_fails_while_the_handler_ends_is_reported_to_nobody():
    setup = Setup(retry_budget_seconds=0)
    handler = Handler(setup.port({1: REQUEST}), setup)
    with handler.at_work():
        background_task = handler.port.sidecars[0]
        stop_in_the_middle(handler.port, lambda: setattr(background_task, "_stopped", True))
        handler.work(11.0)
    assert handler.beats == []
    assert handler.failures == []


def test_a_callback_that_raises_disturbs_neither_heartbeat_nor_handler():
    def fail() -> None:
        raise ValueError("the callback's own mistake")

    handler = Handler(on_heartbeat_failure=fail)
    with handler.at_work():
        take_over(handler.setup)
        handler.work(15.0)
        assert handler.heartbeat_is_over
    assert handler.beats == [STALE]


# What this process knows of its lease


def test_a_lease_counts_from_before_the_claim_was_sent():
    """The server began it no earlier; by this count it is lost a little too early and never too late."""
    setup = Setup()
    handler = Handler(setup.port(latency=2.0), setup, heartbeat_interval_seconds=None, on_heartbeat_failure=None)
    with handler.at_work():
        handler.work(LEASE - 4.0 - MOMENT)
        assert not handler.lease_lost
        handler.work(2 * MOMENT)
        assert handler.lease_lost


def test_a_lease_counts_from_before_its_renewal_was_sent():
    setup = Setup()
    handler = Handler(setup.port(latency=2.0), setup, max_processing_seconds=15.0)
    with handler.at_work():
        sent_at = handler.port.now() + INTERVAL
        handler.work(INTERVAL + 5.0)
        assert handler.beats == [RENEWED]
        handler.work(sent_at + LEASE - MOMENT - handler.port.now())
        assert not handler.lease_lost
        handler.work(2 * MOMENT)
        assert handler.lease_lost


def test_a_claim_that_was_recovered_counts_its_lease_from_before_the_question():
    """The question renewed the lease; how long its answer took is lost time."""
    setup = Setup(retry_budget_seconds=0)
    handler = Handler(
        setup.port({0: REPLY}, latency=2.0), setup, heartbeat_interval_seconds=None, on_heartbeat_failure=None
    )
    with pytest.raises(Lost), handler.at_work():
        pass
    asked_at = handler.port.now()
    with handler.at_work():
        handler.work(asked_at + LEASE - MOMENT - handler.port.now())
        assert not handler.lease_lost
        handler.work(2 * MOMENT)
        assert handler.lease_lost


def test_a_message_without_a_lease_is_never_lost():
    setup = Setup(message_visibility_timeout_seconds=None)
    handler = Handler(setup=setup, heartbeat_interval_seconds=None, on_heartbeat_failure=None)
    with handler.at_work():
        handler.work(1_000_000.0)
        assert not handler.lease_lost


def test_a_renewal_that_fails_while_its_message_is_being_settled_does_not_end_the_heartbeat():
    """The ack may fail as well, and then the message is held as before."""
    handler = Handler()
    claimer = handler.queue.store.claimer
    (claim,) = finish(claimer.claim(claimer.attempt(), CLAIMANT, 0)).claims
    lease, answers = Lease(LEASE, handler.port), iter([None, [True], [False]])
    lease.add([claim])

    async def renew(claims: Any, budget: float, is_over: Callable[[], bool]) -> list[bool]:
        if (answer := next(answers)) is not None:
            return answer
        ack = lease.settling(claim)
        ack.__enter__()
        settling.append(ack)
        raise RetryBudgetExhaustedError("no answer")

    async def pause(seconds: float) -> bool:
        if seconds and settling:
            settling.pop().__exit__(Lost, Lost(), None)
        return False

    settling: list[Any] = []
    finish(Heartbeat(lease, INTERVAL, renew, handler.queue.options, handler.queue.emitter).beat(pause))
    assert handler.beats == [GIVEN_UP, RENEWED, STALE]
    assert len(handler.failures) == 1
