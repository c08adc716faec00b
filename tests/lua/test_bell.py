"""Whoever waits is woken when there is work, and no more often than need be."""

import pytest

from tests.lua.scripts_runner import FRESH, HOUR_US, KEYS, ON_WATCH, WOKEN, Caller, New, numbered

SECOND_US = 1_000_000
SOON_US = 900_000  # ends within a slice, and no test takes so long


def test_a_publish_rings_once(caller: Caller):
    """At most one token lies in the bell, however many messages come."""
    caller.publish(b"first")
    assert caller.rings() == 1
    caller.publish(b"second")
    assert caller.rings() == 1


def test_a_publish_of_a_duplicate_does_not_ring(caller: Caller):
    """Nobody is woken for what does not get in."""
    caller.publish(b"first", marker="a key")
    caller.claim()
    caller.hush()
    assert caller.publish(b"second", marker="a key") == 0
    assert caller.rings() == 0


def test_a_token_is_passed_on_until_the_line_is_empty(caller: Caller):
    """One publish after the other wakes one waiter after the other, though the token was taken in between."""
    caller.publish(b"first")
    caller.hush()
    caller.publish_all([b"second", b"third"])
    rung = []
    while (claimed := caller.claim(woken=WOKEN)).taken:
        rung += [(claimed.only.payload, caller.rings())]
        caller.hush()
    assert rung == [(b"first", 1), (b"second", 1), (b"third", 0)]


@pytest.mark.parametrize("woken", [FRESH, WOKEN, ON_WATCH])
def test_a_claim_takes_no_token_away(caller: Caller, woken: int):
    """Only a waiter does, and it claims next: a token too many costs one claim."""
    caller.publish(b"first")
    caller.claim(woken=woken)
    assert caller.rings() == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_waiter_that_leaves_work_behind_rings(caller: Caller, count: int):
    """The next waiter goes on where it stopped, whether it took one message or several."""
    caller.publish_all(numbered(3))
    caller.hush()
    caller.claim(count, woken=WOKEN)
    assert caller.rings() == 1


@pytest.mark.parametrize("count", [1, 2])
def test_whoever_comes_fresh_leaves_the_bell_to_the_holder_of_its_token(caller: Caller, count: int):
    """A line with messages had a token; it still lies there, or whoever took it will look here next."""
    caller.publish_all(numbered(3))
    caller.hush()
    caller.claim(count, woken=FRESH)
    assert caller.rings() == 0


@pytest.mark.parametrize("woken", [FRESH, WOKEN, ON_WATCH])
@pytest.mark.parametrize("count", [1, 2])
def test_a_claim_adds_no_second_token(caller: Caller, count: int, woken: int):
    """The one that lies there will wake somebody."""
    caller.publish_all(numbered(3))
    caller.claim(count, woken=woken)
    assert caller.rings() == 1


@pytest.mark.parametrize("woken", [FRESH, WOKEN])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_claim_that_empties_the_line_does_not_ring(caller: Caller, count: int, woken: int):
    """There is nothing to wake anybody for."""
    caller.publish_all(numbered(min(count, 3)))
    caller.hush()
    caller.claim(count, woken=woken)
    assert caller.rings() == 0


@pytest.mark.parametrize("woken", [FRESH, WOKEN])
@pytest.mark.parametrize("behind", ["expired", "waiting"])
def test_a_claim_of_an_expired_message_that_leaves_work_behind_rings(caller: Caller, behind: str, woken: int):
    """Whether the next one has expired too or waits in the line."""
    caller.hold(*numbered(2 if behind == "expired" else 1))
    if behind == "waiting":
        caller.publish(b"in the line")
    caller.expire()
    caller.hush()
    assert caller.claim(woken=woken).only.origin == "lease"
    assert caller.rings() == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_claim_of_the_last_expired_message_does_not_ring(caller: Caller, count: int):
    """There is nothing left, so nobody is woken for it."""
    caller.hold(*numbered(count))
    caller.expire()
    caller.hush()
    assert len(caller.claim(count, woken=WOKEN).taken) == count
    assert caller.rings() == 0


def test_an_empty_claim_does_not_ring(caller: Caller):
    """Otherwise two waiters would wake each other for ever."""
    for woken in (FRESH, WOKEN, ON_WATCH):
        caller.claim(woken=woken, slice_us=SECOND_US)
        assert caller.rings() == 0


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_giving_back_rings_once(caller: Caller, leased: bool):
    """What comes back is work for somebody else."""
    caller.settings.lease_us *= leased
    first, second = caller.hold(b"first", b"second")
    caller.hush()
    caller.give_back([first])
    assert caller.rings() == 1
    caller.give_back([second])
    assert caller.rings() == 1


def test_what_waits_for_its_time_rings_if_it_is_the_next(caller: Caller):
    """Whoever sleeps until a later time must learn of an earlier one, and of no other."""
    first, second, third = caller.hold(b"first", b"second", b"third")
    rung = []
    for one, delay_us in ((first, 2_000_000), (second, 3_000_000), (third, 1_000_000)):
        caller.hush()
        caller.put_off([one], delay_us)
        rung.append(caller.rings())
    assert rung == [1, 0, 1]


def test_what_waits_for_its_time_adds_no_second_token(caller: Caller):
    """The one that lies there will wake somebody."""
    (first,) = caller.hold(b"first")
    assert caller.rings() == 1
    caller.put_off([first])
    assert caller.rings() == 1


def test_putting_off_what_is_lost_does_not_ring(caller: Caller):
    """Nothing waits."""
    stale = caller.hold(b"first")
    caller.settle(stale)
    caller.hush()
    caller.put_off(stale)
    assert caller.rings() == 0


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("behind", ["the same tenant", "another tenant", "no tenant", "a time that has come"])
def test_a_waiter_that_leaves_work_of_tenants_behind_rings(caller: Caller, behind: str, count: int):
    """Wherever it waits."""
    caller.line_up("acme", *numbered(count))
    if behind == "a time that has come":
        # More than a claim brings in: what is left is due.
        caller.enqueue_all(New(payload, b"acme", due="+1000000000") for payload in numbered(1_001))
        caller.pass_delays()
    elif behind == "no tenant":
        caller.publish_all(numbered(2))
    else:
        caller.line_up("acme" if behind == "the same tenant" else "zeta", *numbered(2))
    caller.hush()
    assert len(caller.claim_at_last(count, woken=WOKEN).taken) == count
    assert caller.rings() == 1


def test_whoever_brings_in_what_was_due_and_leaves_some_of_it_rings(caller: Caller):
    """Also if it comes fresh: nobody else knows of it."""
    caller.enqueue(*[New(payload, b"acme", due="+1000000000") for payload in numbered(2)])
    caller.pass_delays()
    caller.hush()
    assert len(caller.claim(woken=FRESH).taken) == 1
    assert caller.rings() == 1


def test_whoever_gives_expired_messages_back_to_their_tenant_rings(caller: Caller):
    """Also if it comes fresh: they had been somebody's, and nobody was woken for them."""
    caller.hold(b"expired", tenant="acme")
    caller.line_up("zeta", b"waits")
    caller.expire()
    caller.hush()
    assert caller.claim(woken=FRESH).payloads == [b"waits"]
    assert caller.rings() == 1


@pytest.mark.parametrize("woken", [FRESH, WOKEN])
@pytest.mark.parametrize("count", [1, 3])
def test_a_claim_of_the_last_message_of_all_tenants_does_not_ring(caller: Caller, count: int, woken: int):
    """There is nothing to wake anybody for."""
    caller.line_up("acme", *numbered(count))
    caller.hush()
    assert len(caller.claim(count, woken=woken).taken) == count
    assert caller.rings() == 0


def test_giving_back_what_is_lost_does_not_ring(caller: Caller):
    """Nothing has come back."""
    stale = caller.hold(b"first")
    caller.settle(stale)
    caller.hush()
    caller.give_back(stale)
    assert caller.rings() == 0


# The watch over the next deadline


@pytest.fixture
def soon(caller: Caller, other: Caller) -> Caller:
    """A caller beside a lease that ends within a slice."""
    caller.settings.lease_us = other.settings.lease_us = SOON_US
    caller.hold(b"held")
    caller.hush()
    return caller


def test_one_of_two_waiters_watches_the_next_deadline(soon: Caller, other: Caller):
    """The first is told when it will be, the second sleeps its slice."""
    assert 0 < soon.claim(slice_us=SECOND_US).wait_us <= SOON_US
    assert other.claim(slice_us=SECOND_US).wait_us == -1


def test_the_watch_ends_with_the_deadline(soon: Caller):
    """Nobody can forget to give it up."""
    soon.claim(slice_us=SECOND_US)
    assert 0 < soon.client.pttl(KEYS.watch) <= SOON_US / 1000


def test_a_deadline_beyond_the_slice_is_not_watched(soon: Caller):
    """The caller will ask again before it."""
    assert soon.claim(slice_us=10_000).wait_us == -1
    assert not soon.client.exists(KEYS.watch)


def test_a_caller_that_does_not_wait_does_not_watch(soon: Caller):
    """A slice of 0: it will be gone."""
    assert soon.claim(slice_us=0).wait_us == -1
    assert not soon.client.exists(KEYS.watch)


def test_without_leases_there_is_nothing_to_watch(soon: Caller):
    """The deadlines of others are none of its business."""
    soon.settings.lease_us = 0
    assert soon.claim(slice_us=SECOND_US).wait_us == -1


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_a_delay_that_ends_soon_is_watched_like_a_lease(caller: Caller, other: Caller, leased: bool):
    """One waiter is told when it will be, the others sleep their slice."""
    caller.settings.lease_us = other.settings.lease_us = HOUR_US * leased
    caller.enqueue(New(b"later", due=f"+{SOON_US}"))
    assert 0 < caller.claim(slice_us=SECOND_US).wait_us <= SOON_US
    assert other.claim(slice_us=SECOND_US).wait_us == -1


def test_the_earlier_of_a_delay_and_a_lease_is_watched(soon: Caller):
    """Whichever comes first."""
    soon.enqueue(New(b"sooner", due=f"+{SOON_US // 2}"), New(b"later", due=f"+{HOUR_US}"))
    assert 0 < soon.claim(slice_us=SECOND_US).wait_us <= SOON_US // 2


def test_a_ring_of_tenants_does_not_hide_the_next_deadline(soon: Caller, other: Caller):
    """The alarm that tenants wait is not mistaken for a time; here one's only message has turned out to be none."""
    soon.line_up("acme", b"first")
    soon.client.delete(KEYS.line("acme"))
    claimed = soon.claim(slice_us=SECOND_US)
    assert (claimed.taken, claimed.again) == ((), False)
    assert 0 < claimed.wait_us <= SOON_US


def test_a_watcher_that_finds_nothing_keeps_the_watch(soon: Caller, other: Caller):
    """Woken too early, it goes on watching."""
    soon.claim(slice_us=SECOND_US)
    assert soon.claim(slice_us=SECOND_US, woken=ON_WATCH).wait_us > 0
    assert other.claim(slice_us=SECOND_US).wait_us == -1


def test_the_watch_is_passed_on_when_the_watcher_claims(soon: Caller, other: Caller):
    """It rings for its successor, who takes the watch."""
    soon.claim(slice_us=SECOND_US)
    other.publish(b"in the line")
    soon.hush()
    assert soon.claim(slice_us=SECOND_US, woken=ON_WATCH).payloads == [b"in the line"]
    assert soon.rings() == 1
    assert other.claim(slice_us=SECOND_US, woken=WOKEN).wait_us > 0


@pytest.mark.parametrize("count", [1, 0], ids=["asking once more", "asking only what it took"])
def test_the_watch_is_passed_on_when_the_watcher_stops(soon: Caller, other: Caller, count: int):
    """With its last claim, which has no slice to sleep, it rings for its successor."""
    soon.claim(slice_us=SECOND_US)
    assert soon.claim(count, slice_us=0, woken=ON_WATCH).taken == ()
    assert soon.rings() == 1
    assert other.claim(slice_us=SECOND_US, woken=WOKEN).wait_us > 0


def test_a_watcher_that_leaves_nothing_to_watch_does_not_ring(caller: Caller):
    """A deadline far away needs nobody awake."""
    caller.hold(b"held for an hour")
    caller.hush()
    caller.claim(slice_us=0, woken=ON_WATCH)
    assert caller.rings() == 0
