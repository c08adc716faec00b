"""Transient errors are retried with growing pauses within a budget, and other errors are not."""

from itertools import accumulate, product

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.retry import RetryPlan
from redis_message_queue.values.errors import RetryBudgetExhaustedError
from tests.protocol.port import REPLY, REQUEST, Lost, MemoryPort
from tests.protocol.setup import Setup

pytestmark = pytest.mark.topic("Retries of Redis calls")

PLAN = RetryPlan(budget_seconds=120.0, initial_delay_seconds=0.01, max_delay_seconds=5.0)


# The decision


@pytest.mark.promise("Transient errors are retried within `retry_budget_seconds`, with exponential backoff and jitter.")
@pytest.mark.parametrize(
    ("attempt", "elapsed", "random", "budget", "pause"),
    [
        pytest.param(1, 0, 0.0, None, 0.005, id="the first pause is half the initial delay at least"),
        pytest.param(1, 0, 1.0, None, 0.010, id="and all of it at most"),
        pytest.param(2, 0, 1.0, None, 0.020, id="the second may be twice as long"),
        pytest.param(3, 0, 0.5, None, 0.030, id="half of a pause is chance"),
        pytest.param(10, 0, 1.0, None, 5.0, id="no pause is longer than the longest"),
        pytest.param(5000, 0, 0.0, None, 2.5, id="not even after thousands of attempts"),
        pytest.param(10, 118, 1.0, None, 2.0, id="the last pause ends with the budget"),
        pytest.param(1, 120, 0.5, None, None, id="a spent budget gives no pause"),
        pytest.param(1, 500, 0.5, None, None, id="nor does an overdrawn one"),
        pytest.param(10, 1, 1.0, 3.0, 2.0, id="a smaller budget of the call counts"),
        pytest.param(10, 119, 1.0, 900.0, 1.0, id="a larger one does not"),
        pytest.param(1, 0, 0.5, 0.0, None, id="a call without time is tried once"),
    ],
)
def test_the_pause_after_a_failed_attempt(attempt, elapsed, random, budget, pause):
    assert PLAN.pause(attempt, elapsed, random, budget) == (None if pause is None else pytest.approx(pause))


GRID = list(
    product(
        (0.0, 0.3, 7.0, 120.0),  # budgets of the plan
        (None, 0.0, 0.1, 50.0),  # budgets of the call
        (1, 2, 9, 64, 2000),  # attempts
        (0.0, 0.05, 6.9, 119.999, 4000.0),  # seconds gone by
        (0.0, 0.37, 0.999),  # chances
    )
)


@pytest.mark.promise("Backoff starts at `retry_initial_delay_seconds` and never exceeds `retry_max_delay_seconds`.")
def test_a_pause_is_positive_within_its_bounds_and_never_ends_beyond_the_budget():
    for budget, of_call, attempt, elapsed, random in GRID:
        plan = RetryPlan(budget, 0.01, 5.0)
        pause = plan.pause(attempt, elapsed, random, of_call)
        left = min(budget, budget if of_call is None else of_call) - elapsed
        if pause is None:
            assert left <= 0
        else:
            longest = min(5.0, 0.01 * 2.0 ** min(attempt - 1, 60))
            assert 0 < pause <= left
            assert min(left, longest / 2) <= pause <= longest


def test_more_budget_never_means_less_patience():
    for budget, of_call, attempt, elapsed, random in GRID:
        less = RetryPlan(budget, 0.01, 5.0).pause(attempt, elapsed, random, of_call) or 0
        more = RetryPlan(budget + 1, 0.01, 5.0).pause(attempt, elapsed, random, of_call) or 0
        assert more >= less


def test_later_attempts_never_pause_for_less_while_the_budget_lasts():
    pauses = [PLAN.pause(attempt, 0, 0.5) or 0.0 for attempt in range(1, 40)]
    assert pauses == sorted(pauses)


@pytest.mark.promise("Transient errors are retried within `retry_budget_seconds`, with exponential backoff and jitter.")
def test_callers_that_failed_together_come_back_apart():
    assert len({PLAN.pause(5, 0, random / 100) for random in range(100)}) == 100


# The loop around it


class Broken(MemoryPort):
    """A port whose every call fails, in a moment."""

    async def call(self, command, extra_keys, arguments):
        self.memory.pass_time(0.001)
        self.losses[self.exchanges] = REQUEST
        return await super().call(command, extra_keys, arguments)


def broken(**settings: float) -> tuple[Setup, Broken]:
    setup = Setup(**settings)
    return setup, Broken(setup.memory)


@pytest.mark.promise("Transient errors are retried within `retry_budget_seconds`, with exponential backoff and jitter.")
@pytest.mark.parametrize("budget", [0.2, 3.0, 47.0])
@pytest.mark.parametrize("luck", [0.0, 0.5, 0.999])
def test_a_call_is_repeated_until_its_budget_is_spent_and_not_longer(budget, luck):
    setup, port = broken(retry_budget_seconds=budget)
    port.luck = luck
    started = port.now()
    with pytest.raises(RetryBudgetExhaustedError) as caught:
        finish(setup.queue(port).publish("a"))
    assert isinstance(caught.value.__cause__, Lost)
    assert caught.value.operation == "publish"
    assert budget <= port.now() - started <= budget + 0.002  # the last attempt is made when the budget ends
    assert {sent.given["call"] for sent in port.sent} == {port.sent[0].given["call"]}
    assert [sent.at for sent in port.sent] == pytest.approx(
        [started + 0.001 * (at + 1) + slept for at, slept in enumerate(accumulate(port.sleeps, initial=0))]
    )


def test_without_a_budget_the_original_error_comes_through_after_one_attempt():
    setup, port = broken(retry_budget_seconds=0)
    with pytest.raises(Lost) as caught:
        finish(setup.queue(port).publish("a"))
    assert caught.value.__cause__ is None
    assert port.verbs() == ["publish"]
    assert port.sleeps == []


def test_an_error_that_would_come_again_is_not_repeated():
    setup = Setup()
    port = setup.port()

    called = []

    async def refuse(*arguments):
        called.append(arguments)
        raise ValueError("a wrong type of key")

    port.call = refuse  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a wrong type of key"):
        finish(setup.queue(port).publish("a"))
    assert len(called) == 1
    assert port.sleeps == []


def test_an_interrupt_is_not_an_error_to_be_repeated():
    setup = Setup()
    port = setup.port(break_at=(1,))
    with pytest.raises(KeyboardInterrupt):
        finish(setup.queue(port).publish("a"))
    assert port.verbs() == ["publish"]


def test_a_call_that_succeeds_at_last_has_slept_a_little_longer_each_time():
    setup = Setup()
    port = setup.port({0: REQUEST, 1: REPLY, 2: REPLY})
    assert finish(setup.queue(port).publish("a"))
    assert port.sleeps == pytest.approx([0.0075, 0.015, 0.03])
    assert setup.pending == [b"a"]
