"""Messages keep their order, also when they come back, and so do their counts."""

import pytest

from tests.lua.scripts_runner import FRESH, HOUR_US, KEYS, WOKEN, Caller, New, Taken, numbered
from tests.lua.situations import age

pytestmark = pytest.mark.topic("Leases")


@pytest.mark.promise("Messages whose leases end together keep their order, however many there are.")
@pytest.mark.parametrize("woken", [FRESH, WOKEN], ids=["fresh", "woken"])
def test_quick_claims_that_all_expire_come_back_in_their_order(caller: Caller, woken: int):
    """Deadlines in microseconds tell 230 claims apart that took a few milliseconds."""
    payloads = numbered(230)
    caller.publish_all(payloads)
    assert [one.only.payload for one in caller.claim_one_by_one(230, woken)] == payloads
    caller.expire()
    assert [one.only.payload for one in caller.claim_one_by_one(230, woken)] == payloads
    caller.expire()
    assert caller.claim(230).payloads == payloads


def test_a_batch_comes_back_in_its_order(caller: Caller):
    """Messages that were claimed together have deadlines one after the other."""
    payloads = numbered(100)
    caller.hold(*payloads)
    caller.expire()
    assert caller.claim(40).payloads == payloads[:40]
    assert caller.claim(60).payloads == payloads[40:]


def test_batches_and_single_claims_come_back_in_their_order(caller: Caller):
    """The places within a batch do not reach into the time of the next claim."""
    payloads = numbered(1_230)
    caller.publish_all(payloads)
    caller.claim(1_000)
    caller.claim_one_by_one(200)
    caller.claim(30)
    caller.expire()
    assert caller.claim(1_000).payloads + caller.claim(1_000).payloads == payloads


def test_renewed_leases_keep_the_order_of_the_batch(caller: Caller):
    """A heartbeat for many does not shuffle them."""
    held = caller.hold(*numbered(50))
    assert caller.renew(held) == b"1" * 50
    caller.expire()
    assert caller.claim(50).payloads == numbered(50)


@pytest.mark.parametrize("count", [1, 5])
def test_expired_messages_come_before_the_line(caller: Caller, count: int):
    """They have waited longer than anything in it."""
    caller.hold(b"first", b"second")
    caller.publish_all([b"third", b"fourth"])
    caller.expire()
    taken = [one for _ in range(5) for one in caller.claim(count).taken]
    assert [one.payload for one in taken] == [b"first", b"second", b"third", b"fourth"]
    assert [one.origin for one in taken] == ["lease", "lease", "queue", "queue"]


def test_leases_that_run_stay_with_their_holders(caller: Caller):
    """Only what has expired is claimed again."""
    first, _ = caller.hold(b"first", b"second")
    caller.expire()
    caller.renew([first])
    assert caller.claim(5).payloads == [b"second"]


def test_a_queue_without_leases_takes_nothing_back(caller: Caller):
    """Nothing is written to the leases, so nothing expires."""
    caller.settings.lease_us = 0
    caller.hold(b"first", b"second")
    caller.publish(b"third")
    assert not caller.client.exists(KEYS.leases)
    assert caller.claim(5).payloads == [b"third"]


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_what_is_given_back_returns_to_the_head_in_its_order(caller: Caller, leased: bool):
    """The oldest is the next again."""
    caller.settings.lease_us *= leased
    caller.publish_all(numbered(5))
    taken = caller.claim(3).taken
    assert caller.requeue(taken) == b"111"
    assert caller.claim(5).payloads == numbered(5)


def test_a_part_that_is_given_back_goes_to_the_head(caller: Caller):
    """The rest of the batch stays with its holder."""
    caller.publish_all(numbered(4))
    first, second, third = caller.claim(3).taken
    assert caller.requeue([first, third]) == b"11"
    assert caller.claim(5).payloads == [b"message 0", b"message 2", b"message 3"]
    assert caller.settle([second]) == b"1"


# Lease number and delivery count


def retry_later_and_wait(caller: Caller, taken: tuple[Taken, ...]) -> None:
    caller.retry_later(taken)
    caller.pass_delays()


RETURNS = {
    "expired": (lambda caller, taken: caller.expire(), 1),
    "requeued": (lambda caller, taken: caller.requeue(taken), 1),
    "requeued, forgiven": (lambda caller, taken: caller.requeue(taken, forgiven=True), 0),
}


@pytest.mark.parametrize("comes_back, counts", RETURNS.values(), ids=RETURNS)
@pytest.mark.parametrize("tenant", [b"", b"acme"], ids=["no tenant", "a tenant"])
def test_attempts_grow_with_every_delivery_and_the_count_with_those_that_count(
    caller: Caller, comes_back, counts: int, tenant: bytes
):
    """Forgiven, a delivery is as if it had not been."""
    caller.enqueue(New(b"first", tenant))
    numbers = []
    for _ in range(5):
        taken = caller.claim().taken
        numbers += [(one.attempts, one.count) for one in taken]
        comes_back(caller, taken)
    assert numbers == [(1 + counts * nth, 1 + counts * nth) for nth in range(5)]


def test_ways_of_coming_back_may_mix(caller: Caller):
    """Each claim raises both numbers, and forgiveness lowers both."""
    caller.publish(b"first")
    numbers = []
    for how in ("expired", "requeued, forgiven", "requeued", "expired", "requeued, forgiven", "expired"):
        taken = caller.claim().taken
        numbers += [(one.attempts, one.count) for one in taken]
        RETURNS[how][0](caller, taken)
    assert numbers == [(1, 1), (2, 2), (2, 2), (3, 3), (4, 4), (4, 4)]


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("how", ["expired", "requeued"])
def test_a_message_over_its_limit_becomes_a_dead_letter(caller: Caller, how: str, most: int):
    """It is delivered as often as it may be, and then no more; the answer tells id and count."""
    caller.settings.most = most
    (id,) = caller.publish_all([b"poison"])
    for count in range(1, most + 1):
        taken = caller.claim().taken
        assert [one.count for one in taken] == [count]
        RETURNS[how][0](caller, taken)
    claimed = caller.claim()
    assert (claimed.taken, claimed.dead, claimed.notes) == ((), ((id, most, "deliveries"),), b"")
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"poison"]
    assert not caller.client.exists(KEYS.pending, KEYS.processing, KEYS.leases, KEYS.deliveries)


def test_a_forgiven_message_never_becomes_a_dead_letter(caller: Caller):
    """With a limit of one it is delivered as often as it is requeued untouched."""
    caller.settings.most = 1
    caller.publish(b"first")
    for _ in range(5):
        assert caller.requeue(caller.claim().taken, forgiven=True) == b"1"
    assert caller.claim().payloads == [b"first"]


def test_failures_are_counted_by_themselves(caller: Caller):
    """With a limit of one delivery it is tried as often as it is put off, and the next attempt knows how often."""
    caller.settings.most = 1
    caller.publish(b"first")
    for failures in range(5):
        taken = caller.claim().taken
        assert [(one.attempts, one.count, one.failures) for one in taken] == [(failures + 1, 1, failures)]
        retry_later_and_wait(caller, taken)
    caller.expire()
    caller.claim()
    caller.expire()
    assert caller.claim().dead[0][1:] == (1, "deliveries")


@pytest.mark.parametrize("how", ["expired", "requeued", "requeued, forgiven"])
def test_failures_are_not_forgotten_when_a_message_comes_back_in_another_way(caller: Caller, how: str):
    """Neither an expiry nor giving back makes an attempt undone."""
    caller.publish(b"first")
    retry_later_and_wait(caller, caller.claim().taken)
    RETURNS[how][0](caller, caller.claim().taken)
    assert caller.claim().only.failures == 1


def test_without_a_limit_no_message_becomes_a_dead_letter(caller: Caller):
    """However often it comes back."""
    caller.publish(b"first")
    for _ in range(20):
        assert caller.claim().payloads == [b"first"]
        caller.expire()
    assert not caller.client.exists(KEYS.dead_letter)


# Age


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
@pytest.mark.parametrize("tenant", [b"", b"acme"], ids=["no tenant", "a tenant"])
def test_a_message_that_is_too_old_becomes_a_dead_letter(caller: Caller, count: int, leased: bool, tenant: bytes):
    """The same claim goes on to what is young enough, and says what it put aside and why."""
    caller.settings.ttl_us, caller.settings.lease_us = HOUR_US, HOUR_US * leased
    ids = caller.enqueue_all([New(b"too old", tenant), New(b"too old as well", tenant)])
    age(caller, KEYS.tenant_pending(tenant.decode()) if tenant else KEYS.pending)
    caller.enqueue(New(b"young", tenant))
    claimed = caller.claim(count)
    assert claimed.payloads == [b"young"]
    assert claimed.dead == tuple((id, 0, "expired") for id in ids)
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"too old as well", b"too old"]


def test_a_message_that_grew_too_old_in_flight_becomes_a_dead_letter(caller: Caller):
    """When its lease runs out it is not delivered again."""
    caller.settings.ttl_us = HOUR_US
    caller.publish(b"first")
    age(caller, KEYS.pending, HOUR_US - 60_000_000)
    (held,) = caller.claim().taken
    caller.settings.ttl_us = 1
    caller.expire()
    assert caller.claim().dead == ((held.id, 1, "expired"),)


# Lists that are kept, newest left


@pytest.mark.parametrize("how", ["expired", "requeued"])
def test_dead_letters_lie_newest_left_and_no_more_than_allowed(caller: Caller, how: str):
    """Those that were pushed first are cut off first."""
    caller.settings.most, caller.settings.dlq_limit = 1, 3
    caller.client.lpush(KEYS.dead_letter, b"older", b"old")
    RETURNS[how][0](caller, caller.hold(b"first", b"second"))
    caller.claim()
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"second", b"first", b"old"]


@pytest.mark.parametrize("kept", [KEYS.completed, KEYS.failed, KEYS.dead_letter])
@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_settled_messages_lie_newest_left_and_no_more_than_allowed(caller: Caller, kept: str, leased: bool):
    """Payloads alone, as they were published."""
    caller.settings.lease_us *= leased
    caller.client.lpush(kept, b"older", b"old")
    assert caller.settle(caller.hold(b"first", b"second"), kept=kept, limit=3) == b"11"
    assert caller.client.lrange(kept, 0, -1) == [b"second", b"first", b"old"]


def test_a_list_without_a_limit_keeps_everything(caller: Caller):
    """A limit of 0 is none."""
    caller.settings.most = 1
    caller.settle(caller.hold(*numbered(10)), kept=KEYS.completed)
    caller.hold(*numbered(10))
    caller.expire()
    caller.claim()
    assert caller.client.llen(KEYS.completed) == caller.client.llen(KEYS.dead_letter) == 10


def test_a_lease_without_a_body_is_tidied_away(caller: Caller):
    """Nobody can be given a message that is not there; the next one is delivered."""
    held = caller.hold(b"first", b"second")
    caller.client.hdel(KEYS.processing, held[0].id)
    caller.expire()
    assert caller.claim(5).payloads == [b"second"]
    assert [token[:16] for token in caller.deadlines()] == [held[1].id]
