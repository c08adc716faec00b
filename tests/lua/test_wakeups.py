"""Waiting consumers are woken up when there is work, and no more often than necessary."""

import pytest

from tests.lua.scripts_runner import FRESH, HOUR_US, KEYS, TIMER_OWNER, WOKEN, Caller, New, numbered

SECOND_US = 1_000_000
SOON_US = 900_000  # ends within a slice, and no test takes so long


def test_a_publish_adds_one_token(caller: Caller):
    """The wake-up key holds at most one token, however many messages come."""
    caller.publish(b"first")
    assert caller.tokens() == 1
    caller.publish(b"second")
    assert caller.tokens() == 1


def test_a_publish_of_a_duplicate_adds_no_token(caller: Caller):
    """No consumer is woken up for a message that is not stored."""
    caller.publish(b"first", marker="a key")
    caller.claim()
    caller.take_token()
    assert caller.publish(b"second", marker="a key") == 0
    assert caller.tokens() == 0


def test_wakeups_are_chained_until_the_queue_is_empty(caller: Caller):
    """Each message wakes up one consumer, even if the token was taken between two publishes."""
    caller.publish(b"first")
    caller.take_token()
    caller.publish_all([b"second", b"third"])
    tokens = []
    while (claimed := caller.claim(woken=WOKEN)).taken:
        tokens += [(claimed.only.payload, caller.tokens())]
        caller.take_token()
    assert tokens == [(b"first", 1), (b"second", 1), (b"third", 0)]


@pytest.mark.parametrize("woken", [FRESH, WOKEN, TIMER_OWNER])
def test_a_claim_takes_no_token_away(caller: Caller, woken: int):
    """Only a waiting consumer does, and it claims next: one token too many costs one claim."""
    caller.publish(b"first")
    caller.claim(woken=woken)
    assert caller.tokens() == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_woken_consumer_that_leaves_messages_behind_adds_a_token(caller: Caller, count: int):
    """The next consumer continues, whether this one took one message or several."""
    caller.publish_all(numbered(3))
    caller.take_token()
    caller.claim(count, woken=WOKEN)
    assert caller.tokens() == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_consumer_that_was_not_woken_adds_no_token(caller: Caller, count: int):
    """A queue with messages had a token: it is still there, or the consumer that took it claims next."""
    caller.publish_all(numbered(3))
    caller.take_token()
    caller.claim(count, woken=FRESH)
    assert caller.tokens() == 0


@pytest.mark.parametrize("woken", [FRESH, WOKEN, TIMER_OWNER])
@pytest.mark.parametrize("count", [1, 2])
def test_a_claim_adds_no_second_token(caller: Caller, count: int, woken: int):
    """The existing token will wake up a consumer."""
    caller.publish_all(numbered(3))
    caller.claim(count, woken=woken)
    assert caller.tokens() == 1


@pytest.mark.parametrize("woken", [FRESH, WOKEN])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_claim_that_empties_the_queue_adds_no_token(caller: Caller, count: int, woken: int):
    """There is no work for another consumer."""
    caller.publish_all(numbered(min(count, 3)))
    caller.take_token()
    caller.claim(count, woken=woken)
    assert caller.tokens() == 0


@pytest.mark.parametrize("woken", [FRESH, WOKEN])
@pytest.mark.parametrize("behind", ["expired", "waiting"])
def test_a_claim_of_an_expired_message_that_leaves_others_behind_adds_a_token(caller: Caller, behind: str, woken: int):
    """Whether the next message has expired too or is pending."""
    caller.hold(*numbered(2 if behind == "expired" else 1))
    if behind == "waiting":
        caller.publish(b"pending")
    caller.expire()
    caller.take_token()
    assert caller.claim(woken=woken).only.origin == "lease"
    assert caller.tokens() == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_claim_of_the_last_expired_message_adds_no_token(caller: Caller, count: int):
    """There is nothing left to wake up a consumer for."""
    caller.hold(*numbered(count))
    caller.expire()
    caller.take_token()
    assert len(caller.claim(count, woken=WOKEN).taken) == count
    assert caller.tokens() == 0


def test_an_empty_claim_adds_no_token(caller: Caller):
    """Otherwise two waiting consumers would wake up each other for ever."""
    for woken in (FRESH, WOKEN, TIMER_OWNER):
        caller.claim(woken=woken, slice_us=SECOND_US)
        assert caller.tokens() == 0


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_a_requeue_adds_one_token(caller: Caller, leased: bool):
    """A requeued message is work for another consumer."""
    caller.settings.lease_us *= leased
    first, second = caller.hold(b"first", b"second")
    caller.take_token()
    caller.requeue([first])
    assert caller.tokens() == 1
    caller.requeue([second])
    assert caller.tokens() == 1


def test_a_delayed_message_adds_a_token_if_it_is_the_next_to_be_due(caller: Caller):
    """A consumer that sleeps until a later time must learn of an earlier one."""
    first, second, third = caller.hold(b"first", b"second", b"third")
    tokens = []
    for one, delay_us in ((first, 2_000_000), (second, 3_000_000), (third, 1_000_000)):
        caller.take_token()
        caller.retry_later([one], delay_us)
        tokens.append(caller.tokens())
    assert tokens == [1, 0, 1]


def test_a_delayed_message_adds_no_second_token(caller: Caller):
    """The existing token will wake up a consumer."""
    (first,) = caller.hold(b"first")
    assert caller.tokens() == 1
    caller.retry_later([first])
    assert caller.tokens() == 1


def test_retrying_a_lost_message_later_adds_no_token(caller: Caller):
    """Nothing was delayed."""
    stale = caller.hold(b"first")
    caller.settle(stale)
    caller.take_token()
    caller.retry_later(stale)
    assert caller.tokens() == 0


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("behind", ["the same tenant", "another tenant", "no tenant", "a delayed message that is due"])
def test_a_woken_consumer_that_leaves_messages_of_tenants_behind_adds_a_token(caller: Caller, behind: str, count: int):
    """In the same queue, in another one, or delayed and due."""
    caller.enqueue_for("acme", *numbered(count))
    if behind == "a delayed message that is due":
        # More than one claim enqueues: the rest is due.
        caller.enqueue_all(New(payload, b"acme", due="+1000000000") for payload in numbered(1_001))
        caller.pass_delays()
    elif behind == "no tenant":
        caller.publish_all(numbered(2))
    else:
        caller.enqueue_for("acme" if behind == "the same tenant" else "zeta", *numbered(2))
    caller.take_token()
    assert len(caller.claim_at_last(count, woken=WOKEN).taken) == count
    assert caller.tokens() == 1


def test_a_claim_that_enqueues_due_messages_and_leaves_some_adds_a_token(caller: Caller):
    """Even if it was not woken up: no other consumer knows of them."""
    caller.enqueue(*[New(payload, b"acme", due="+1000000000") for payload in numbered(2)])
    caller.pass_delays()
    caller.take_token()
    assert len(caller.claim(woken=FRESH).taken) == 1
    assert caller.tokens() == 1


def test_a_claim_that_returns_expired_messages_to_their_tenant_adds_a_token(caller: Caller):
    """Even if it was not woken up: no consumer was woken up for them."""
    caller.hold(b"expired", tenant="acme")
    caller.enqueue_for("zeta", b"waits")
    caller.expire()
    caller.take_token()
    assert caller.claim(woken=FRESH).payloads == [b"waits"]
    assert caller.tokens() == 1


@pytest.mark.parametrize("woken", [FRESH, WOKEN])
@pytest.mark.parametrize("count", [1, 3])
def test_a_claim_of_the_last_message_of_all_tenants_adds_no_token(caller: Caller, count: int, woken: int):
    """There is no work for another consumer."""
    caller.enqueue_for("acme", *numbered(count))
    caller.take_token()
    assert len(caller.claim(count, woken=woken).taken) == count
    assert caller.tokens() == 0


def test_requeueing_a_lost_message_adds_no_token(caller: Caller):
    """Nothing was requeued."""
    stale = caller.hold(b"first")
    caller.settle(stale)
    caller.take_token()
    caller.requeue(stale)
    assert caller.tokens() == 0


# The timer owner, which sleeps until the next deadline


@pytest.fixture
def soon(caller: Caller, other: Caller) -> Caller:
    """A caller beside a lease that ends within a slice."""
    caller.settings.lease_us = other.settings.lease_us = SOON_US
    caller.hold(b"held")
    caller.take_token()
    return caller


def test_one_of_two_waiting_consumers_owns_the_timer(soon: Caller, other: Caller):
    """The first gets the time until the deadline, the second sleeps for its slice."""
    assert 0 < soon.claim(slice_us=SECOND_US).wait_us <= SOON_US
    assert other.claim(slice_us=SECOND_US).wait_us == -1


def test_the_timer_ends_with_the_deadline(soon: Caller):
    """It expires by itself, even if its owner dies."""
    soon.claim(slice_us=SECOND_US)
    assert 0 < soon.client.pttl(KEYS.timer_owner) <= SOON_US / 1000


def test_a_deadline_after_the_slice_needs_no_timer(soon: Caller):
    """The caller claims again before it."""
    assert soon.claim(slice_us=10_000).wait_us == -1
    assert not soon.client.exists(KEYS.timer_owner)


def test_a_caller_that_does_not_wait_does_not_own_the_timer(soon: Caller):
    """With a slice of 0 it does not come back."""
    assert soon.claim(slice_us=0).wait_us == -1
    assert not soon.client.exists(KEYS.timer_owner)


def test_without_leases_there_is_no_timer(soon: Caller):
    """A consumer without leases does not reclaim messages."""
    soon.settings.lease_us = 0
    assert soon.claim(slice_us=SECOND_US).wait_us == -1


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_a_delay_that_ends_soon_has_a_timer_like_a_lease(caller: Caller, other: Caller, leased: bool):
    """One consumer gets the time until then, the others sleep for their slice."""
    caller.settings.lease_us = other.settings.lease_us = HOUR_US * leased
    caller.enqueue(New(b"later", due=f"+{SOON_US}"))
    assert 0 < caller.claim(slice_us=SECOND_US).wait_us <= SOON_US
    assert other.claim(slice_us=SECOND_US).wait_us == -1


def test_the_timer_ends_with_the_earlier_of_a_delay_and_a_lease(soon: Caller):
    """Whichever comes first."""
    soon.enqueue(New(b"sooner", due=f"+{SOON_US // 2}"), New(b"later", due=f"+{HOUR_US}"))
    assert 0 < soon.claim(slice_us=SECOND_US).wait_us <= SOON_US // 2


def test_a_ring_of_tenants_does_not_hide_the_next_deadline(soon: Caller, other: Caller):
    """The alarm for tenants is not taken for a time. Here the only message of the tenant is gone."""
    soon.enqueue_for("acme", b"first")
    soon.client.delete(KEYS.tenant_pending("acme"))
    claimed = soon.claim(slice_us=SECOND_US)
    assert (claimed.taken, claimed.again) == ((), False)
    assert 0 < claimed.wait_us <= SOON_US


def test_a_timer_owner_that_finds_nothing_stays_timer_owner(soon: Caller, other: Caller):
    """It was woken up too early, and keeps the timer."""
    soon.claim(slice_us=SECOND_US)
    assert soon.claim(slice_us=SECOND_US, woken=TIMER_OWNER).wait_us > 0
    assert other.claim(slice_us=SECOND_US).wait_us == -1


def test_the_timer_is_passed_on_when_its_owner_claims(soon: Caller, other: Caller):
    """It adds a token, and the next consumer takes the timer."""
    soon.claim(slice_us=SECOND_US)
    other.publish(b"pending")
    soon.take_token()
    assert soon.claim(slice_us=SECOND_US, woken=TIMER_OWNER).payloads == [b"pending"]
    assert soon.tokens() == 1
    assert other.claim(slice_us=SECOND_US, woken=WOKEN).wait_us > 0


@pytest.mark.parametrize("count", [1, 0], ids=["asking once more", "asking only what it took"])
def test_the_timer_is_passed_on_when_its_owner_stops(soon: Caller, other: Caller, count: int):
    """With its last claim, which has a slice of 0, it adds a token for the next consumer."""
    soon.claim(slice_us=SECOND_US)
    assert soon.claim(count, slice_us=0, woken=TIMER_OWNER).taken == ()
    assert soon.tokens() == 1
    assert other.claim(slice_us=SECOND_US, woken=WOKEN).wait_us > 0


@pytest.mark.parametrize("count", [1, 0], ids=["asking once more", "asking only what it took"])
def test_a_woken_consumer_that_stops_before_a_deadline_passes_the_wake_up_on(soon: Caller, other: Caller, count: int):
    """It may have the wake-up of a timer owner that left, and is too short to become one."""
    assert soon.claim(slice_us=10_000, woken=WOKEN).wait_us == -1
    assert soon.tokens() == 0
    soon.claim(count, slice_us=0, woken=WOKEN)
    assert soon.tokens() == 1
    soon.take_token()
    assert other.claim(slice_us=SECOND_US, woken=WOKEN).wait_us > 0
    soon.claim(count, slice_us=0, woken=WOKEN)
    assert soon.tokens() == 0


def test_a_timer_owner_that_stops_adds_no_token_if_the_deadline_is_far(caller: Caller):
    """A deadline far away needs no timer owner."""
    caller.hold(b"held for an hour")
    caller.take_token()
    caller.claim(slice_us=0, woken=TIMER_OWNER)
    assert caller.tokens() == 0


@pytest.mark.parametrize("tenant", [b"", b"acme"], ids=["no tenant", "a tenant"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_woken_consumer_that_claims_passes_the_timer_on(caller: Caller, other: Caller, tenant: bytes, count: int):
    """It has the wake-up of a timer owner that left, and takes the last message: a third one must be awake soon."""
    caller.enqueue(New(b"later", due=f"+{SOON_US}"))
    caller.take_token()
    assert caller.claim(slice_us=SECOND_US).wait_us > 0
    other.enqueue(New(b"first", tenant), New(b"second", tenant))
    caller.take_token()
    assert caller.claim(slice_us=SECOND_US, woken=TIMER_OWNER).payloads == [b"first"]
    assert caller.tokens() == 1
    caller.take_token()
    assert other.claim(count, slice_us=SECOND_US, woken=WOKEN).payloads == [b"second"]
    assert caller.tokens() == 1
    assert Caller(caller.client, "c").claim(slice_us=SECOND_US, woken=WOKEN).wait_us > 0


def test_a_woken_consumer_adds_no_token_beside_a_timer_owner(soon: Caller, other: Caller):
    """Somebody is awake already."""
    assert soon.claim(slice_us=SECOND_US).wait_us > 0
    other.publish(b"pending")
    other.take_token()
    assert other.claim(slice_us=SECOND_US, woken=WOKEN).payloads == [b"pending"]
    assert soon.tokens() == 0
