"""A claim attempt follows its table of states, and an interruption at any point leaves it recoverable."""

from contextlib import nullcontext
from itertools import product
from typing import get_args

import pytest

from redis_message_queue.protocol.consume.claim_attempt import (
    ABANDONED,
    CLOSED,
    HANDED_OVER,
    IDLE,
    OFFERED,
    RECEIVED,
    RECOVERED,
    RECOVERING,
    SENT,
    TRANSITIONS,
    UNCONFIRMED,
    ClaimAttempt,
    IllegalTransitionError,
    State,
    Transition,
    UnconfirmedClaims,
)
from tests.protocol.setup import Setup

LEGAL = {(state, name): after for name, steps in TRANSITIONS.items() for state, after in steps.items()}
EVERY_STEP = list(product(State, get_args(Transition)))


def attempt_in(state: State) -> ClaimAttempt:
    (part,) = Setup().store().parts
    return ClaimAttempt(part, part.calls.acquire_slot(), b"000000000001", state)


class Unconfirmed(UnconfirmedClaims):
    """The list of one process, which `fork` leaves."""

    def __init__(self) -> None:
        self.is_parent = True
        super().__init__(lambda slot: self.is_parent, nullcontext())

    def holding(self, state: State = UNCONFIRMED) -> ClaimAttempt:
        """An attempt on the list, after it was released in a state."""
        attempt = attempt_in(SENT)
        self.release(attempt, "another consumer")
        (listed,) = self.attempts
        if state is not UNCONFIRMED:
            assert self.recover_next("a consumer") is listed
            listed.state = state
        return listed


# The table


def test_every_transition_has_a_row_in_the_table():
    assert set(TRANSITIONS) == set(get_args(Transition))


@pytest.mark.parametrize(("state", "transition"), EVERY_STEP, ids=str)
def test_an_attempt_takes_the_steps_of_the_table_and_no_others(state, transition):
    attempt = attempt_in(state)
    if (state, transition) in LEGAL:
        attempt.apply(transition)
        assert attempt.state is LEGAL[state, transition]
    else:
        with pytest.raises(IllegalTransitionError, match=f"is {state} cannot {transition}"):
            attempt.apply(transition)
        assert attempt.state is state


def test_every_state_can_be_reached():
    reached = {IDLE, UNCONFIRMED}  # the two in which an attempt can begin
    for _ in State:
        reached |= {after for (state, _), after in LEGAL.items() if state in reached}
    assert reached == set(State)


@pytest.mark.parametrize("state", [HANDED_OVER, ABANDONED, CLOSED])
def test_the_last_states_have_no_way_out(state):
    assert not [step for step in LEGAL if step[0] is state]


@pytest.mark.parametrize("state", [SENT, RECEIVED, OFFERED, RECOVERING, RECOVERED])
def test_from_every_state_that_may_hold_messages_a_way_leads_to_those_who_recover_them(state):
    assert (state, "abandon") in LEGAL or LEGAL.get((state, "leave")) is UNCONFIRMED


# Releasing


@pytest.mark.parametrize("state", [SENT, RECEIVED, OFFERED])
def test_what_may_hold_messages_is_left_to_others_under_its_slot_and_number(state):
    unconfirmed, attempt = Unconfirmed(), attempt_in(state)
    assert unconfirmed.release(attempt, "consumer") is False
    assert attempt.state is ABANDONED
    found = unconfirmed.recover_next("another")
    assert (found.slot, found.call, found.state) == (attempt.slot, attempt.call, RECOVERING)
    assert found is not attempt  # it may still wait to be handed over, and that must not free the slot


@pytest.mark.parametrize("state", State)
def test_releasing_twice_is_releasing_once(state):
    unconfirmed, attempt = Unconfirmed(), attempt_in(state)
    assert unconfirmed.release(attempt, "consumer") is (state is IDLE)
    before = (len(unconfirmed.ours()), attempt.state)
    assert unconfirmed.release(attempt, "consumer") is False
    assert (len(unconfirmed.ours()), attempt.state) == before


def test_an_idle_attempt_frees_its_slot_once():
    unconfirmed, attempt = Unconfirmed(), attempt_in(IDLE)
    assert [unconfirmed.release(attempt, "consumer") for _ in range(3)] == [True, False, False]
    assert (attempt.state, len(unconfirmed.ours())) == (CLOSED, 0)


# Recovering


def test_an_attempt_is_recovered_by_one_consumer_at_a_time():
    unconfirmed = Unconfirmed()
    attempt = unconfirmed.holding()
    assert unconfirmed.recover_next("first") is attempt
    assert unconfirmed.recover_next("second") is None
    unconfirmed.leave_to_others("second")
    assert unconfirmed.recover_next("second") is None
    unconfirmed.leave_to_others("first")
    assert unconfirmed.recover_next("second") is attempt


@pytest.mark.parametrize("state", [RECOVERING, RECOVERED, IDLE])
def test_a_recovery_that_is_broken_off_leaves_the_attempt_to_the_next(state):
    unconfirmed = Unconfirmed()
    attempt = unconfirmed.holding(state)
    assert len(unconfirmed.ours()) == 1
    unconfirmed.leave_to_others("a consumer")
    assert unconfirmed.recover_next("another") is attempt


def test_a_release_of_what_others_recover_by_now_takes_nothing_from_them():
    unconfirmed = Unconfirmed()
    attempt = unconfirmed.holding(RECOVERING)
    unconfirmed.release(attempt, "a consumer")
    assert unconfirmed.recover_next("another") is attempt
    unconfirmed.release(attempt, "a consumer")
    assert (attempt.state, attempt.recovered_by) == (RECOVERING, "another")


def test_an_attempt_that_was_offered_and_is_still_on_the_list_is_there_once():
    """Broken off between the two steps of offering what was recovered."""
    unconfirmed = Unconfirmed()
    attempt = unconfirmed.holding(RECOVERED)
    attempt.apply("offer")
    unconfirmed.release(attempt, "a consumer")
    assert len(unconfirmed.ours()) == 1
    assert unconfirmed.recover_next("another").slot is attempt.slot


def test_what_holds_nothing_leaves_the_list():
    unconfirmed = Unconfirmed()
    attempt = unconfirmed.holding(IDLE)
    assert unconfirmed.release(attempt, "a consumer") is True
    assert (len(unconfirmed.ours()), attempt.state) == (0, CLOSED)


def test_a_forked_child_recovers_nothing_of_its_parent():
    unconfirmed = Unconfirmed()
    unconfirmed.holding()
    unconfirmed.is_parent = False
    assert len(unconfirmed.ours()) == 0
    assert unconfirmed.recover_next("child") is None
