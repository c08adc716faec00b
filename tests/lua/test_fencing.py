"""A consumer that has lost a message can do nothing to it."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from tests.lua.scripts_runner import HOUR_US, KEYS, Caller, Taken, dump, new_id
from tests.lua.situations import hold_and_let_come_back, title
from tests.lua.stage import Stage
from tests.lua.state import faults
from tests.tables import row

pytestmark = pytest.mark.topic("Leases")

VERBS = {
    "settle": lambda caller, held: caller.settle(held),
    "settle into a list": lambda caller, held: caller.settle(held, kept=KEYS.completed),
    "requeue": lambda caller, held: caller.requeue(held),
    "requeue, forgiven": lambda caller, held: caller.requeue(held, forgiven=True),
    "renew": lambda caller, held: caller.renew(held),
    "put off": lambda caller, held: b"".join(caller.retry_later([one]) for one in held),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def taken_over(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    caller.expire()
    other.claim()


def taken_over_twice(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    taken_over(caller, other, taken)
    taken_over(caller, other, taken)


def requeued(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    other.requeue(taken)


def given_back_and_taken(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    other.requeue(taken, forgiven=True)
    other.claim()


def retry_later(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    other.retry_later(taken)


def retry_later_and_taken(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    other.retry_later(taken, 0)
    caller.pass_delays(1_000_000)
    other.claim()


def settled(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    other.settle(taken)


def settled_by_another(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    caller.expire()
    other.settle(other.claim().taken)


def dead(caller: Caller, other: Caller, taken: tuple[Taken, ...]) -> None:
    caller.expire()
    other.settings.most = 1
    other.claim()


Loss = Callable[[Caller, Caller, tuple[Taken, ...]], None]
LOSSES: list[Loss] = [
    taken_over,
    taken_over_twice,
    requeued,
    given_back_and_taken,
    retry_later,
    retry_later_and_taken,
    settled,
    settled_by_another,
    dead,
]


def lose(caller: Caller, loss: Loss, tenant: str | None = None, lease_us: int = HOUR_US) -> tuple[Taken, ...]:
    """Hold a message, and then lose it."""
    other = Caller(caller.client, "b")
    caller.settings.lease_us = other.settings.lease_us = lease_us
    taken = caller.hold(b"first", tenant=tenant)
    loss(caller, other, taken)
    return taken


@pytest.mark.promise("A consumer that has lost its lease cannot ack, fail or renew the message.")
def test_a_holder_that_has_lost_its_message_changes_nothing(stage: Stage, subtests: pytest.Subtests):
    """Its lease number is no longer the message's, whatever has become of it."""
    for loss, tenant in product(LOSSES, (None, "acme")):
        situation = partial(lose, loss=loss, tenant=tenant)
        for verb in VERBS:
            with row(subtests, loss=title(loss), tenant=tenant, verb=verb):
                caller, taken = stage.prepare(situation)
                before = dump(caller.client)
                assert VERBS[verb](caller, taken) == b"0"
                assert dump(caller.client) == before


def test_without_leases_a_holder_is_fenced_off_just_the_same(stage: Stage, subtests: pytest.Subtests):
    """The lease number grows with or without deadlines."""
    for loss in (requeued, given_back_and_taken, retry_later, retry_later_and_taken, settled):
        situation = partial(lose, loss=loss, lease_us=0)
        for verb in VERBS:
            with row(subtests, loss=title(loss), verb=verb):
                caller, taken = stage.prepare(situation)
                before = dump(caller.client)
                assert VERBS[verb](caller, taken) == b"0"
                assert dump(caller.client) == before


@every_verb
def test_the_second_holder_is_not_disturbed(caller: Caller, other: Caller, verb):
    """When the first holder finishes late, the message is still the second one's to settle."""
    taken = caller.hold(b"first")
    caller.expire()
    second = other.claim().taken
    verb(caller, taken)
    assert other.renew(second) == b"1"
    assert other.settle(second) == b"1"


@every_verb
def test_a_number_that_was_never_given_holds_nothing(caller: Caller, verb):
    """Neither a future lease, nor an id that nobody knows, nor a message that still waits in the line."""
    (held,) = caller.hold(b"first")
    (waiting,) = caller.publish_all([b"second"])
    before = dump(caller.client)
    nothing = [(held.id, 0), (held.id, 2), (new_id(), 1), (waiting, 0), (waiting, 1)]
    assert [verb(caller, [pair]) for pair in nothing] == [b"0"] * 5
    assert verb(caller, nothing) == b"00000"
    assert dump(caller.client) == before


@every_verb
def test_a_batch_is_judged_message_by_message(caller: Caller, other: Caller, verb):
    """What is lost does not keep the rest from its way, and the marks tell which is which."""
    lost = caller.hold(b"lost")
    caller.expire()
    other.claim()
    one, two = caller.hold(b"one", b"two")
    assert verb(caller, [one, *lost, two]) == b"101"
    assert caller.client.hexists(KEYS.processing, lost[0].id)


@every_verb
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_an_expired_lease_that_nobody_has_taken_is_still_the_holders(caller: Caller, tenant: str | None, verb):
    """Late but first: no work is done twice for it."""
    taken = caller.hold(b"first", tenant=tenant)
    caller.expire()
    assert verb(caller, taken) == b"1"


@every_verb
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_message_that_came_back_to_its_tenant_is_still_the_holders(caller: Caller, tenant: str | None, verb):
    """It waits for its tenant's turn; until then the holder may finish, and nobody gets it a second time."""
    taken = hold_and_let_come_back(caller, b"first", tenant=tenant)
    assert verb(caller, taken) == b"1"
    assert caller.repeat() == b"1"
    assert faults(caller.client) == []


def test_a_message_that_came_back_and_was_renewed_is_not_claimed(caller: Caller, other: Caller):
    """The holder works on, and its message has left the returned ones."""
    taken = hold_and_let_come_back(caller, b"first")
    assert caller.renew(taken) == b"1"
    assert other.claim(9).taken == ()
    assert caller.settle(taken) == b"1"


def test_a_renewed_lease_is_as_long_as_a_new_one(caller: Caller):
    """Its time begins at the renewal, by the server's clock."""
    held = caller.hold(b"first")
    caller.pass_time(caller.settings.lease_us - 1_000_000)
    before = caller.client.time()
    caller.renew(held)
    after = caller.client.time()
    left = caller.deadlines()[held[0].token] - caller.settings.lease_us
    assert before <= divmod(int(left) - 1, 1_000_000) <= after


def test_after_a_failover_to_a_stale_replica_two_holders_have_different_tokens(caller: Caller, other: Caller):
    """The replica had not heard of the first claim, so the message is claimed anew; the first holder is fenced off."""
    caller.publish(b"first")
    stale = {key: caller.client.dump(key) for key in caller.client.keys("*")}
    before = caller.claim().taken
    caller.client.flushall()
    for key, value in stale.items():
        caller.client.restore(key, 0, value)
    now = other.claim().taken
    assert before[0].id == now[0].id
    assert caller.renew(before) == caller.settle(before) == caller.requeue(before) == caller.retry_later(before) == b"0"
    assert caller.hand_off(before, b"result") == b"0"
    assert other.renew(now) == other.settle(now) == b"1"
    assert faults(caller.client) == []


def test_after_such_a_failover_an_ack_beside_a_claim_is_fenced_off_and_the_claim_is_made(caller: Caller, other: Caller):
    """The message looks as it did when the first holder had it; only the token tells that it is another's."""
    caller.publish_all([b"first", b"second"])
    stale = {key: caller.client.dump(key) for key in caller.client.keys("*")}
    before = caller.claim().taken
    caller.client.flushall()
    for key, value in stale.items():
        caller.client.restore(key, 0, value)
    now = other.claim().taken
    claimed = caller.ack_and_take(before)
    assert (claimed.acked, claimed.payloads) == (b"0", [b"second"])
    assert other.settle(now) == b"1"
    assert faults(caller.client) == []
