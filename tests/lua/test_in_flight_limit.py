"""A tenant with as many messages in flight as it may have is passed over, until one of them is settled."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.lua.scripts_runner import HOUR_US, KEYS, WOKEN, Caller, New, Taken, numbered
from tests.lua.state import faults

pytestmark = pytest.mark.topic("Tenants")


@pytest.fixture
def limited(client: object) -> Caller:
    return Caller(client, in_flight_limit=2)


def tenants(claimed: object) -> list[str | None]:
    return [one.tenant for one in claimed.taken]  # type: ignore[attr-defined]


def test_a_tenant_gets_no_more_than_its_limit(limited: Caller):
    """In one claim or in several; messages without a tenant have no limit."""
    limited.enqueue(*(New(one, b"a") for one in numbered(9)), *(New(one, b"b") for one in numbered(1)))
    limited.publish_all(numbered(5))
    assert Counter(tenants(limited.claim(20))) == {"a": 2, "b": 1, None: 5}
    for count in (1, 5):
        claimed = limited.claim(count, slice_us=HOUR_US)
        assert (claimed.taken, claimed.again) == ((), False)
    assert faults(limited.client) == []


ENDS: dict[str, Callable[[Caller, Taken], object]] = {
    "acked": lambda caller, one: caller.ack_one([one]),
    "settled": lambda caller, one: caller.settle([one], kept=KEYS.failed),
    "retried later": lambda caller, one: caller.retry_later([one]),
    "handed off": lambda caller, one: caller.hand_off([one], b"result"),
    "requeued": lambda caller, one: caller.requeue([one]),
}


@pytest.mark.promise("A tenant at `max_in_flight_per_tenant` is passed over until one of its messages is settled.")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_its_turn_comes_as_soon_as_one_is_settled(limited: Caller, end: Callable[[Caller, Taken], object]):
    """And a waiting consumer is woken for it."""
    limited.enqueue(*(New(one, b"a") for one in numbered(9)))
    first, _ = limited.claim(9).taken
    assert limited.claim(9).taken == ()
    limited.client.delete(KEYS.wakeup)
    end(limited, first)
    assert limited.tokens() == 1
    limited.take_token()
    claimed = limited.claim(9, woken=WOKEN)
    assert len(claimed.taken) == 1
    assert limited.tokens() == 0  # nobody is woken for what waits behind the limit
    assert faults(limited.client) == []


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_message_that_comes_meanwhile_keeps_nobody_asleep(limited: Caller, end: Callable[[Caller, Taken], object]):
    """It brings its tenant back into the ring, where it is not parked any more when one is settled."""
    limited.enqueue(*(New(one, b"a") for one in numbered(9)))
    first, _ = limited.claim(9).taken
    assert limited.claim(9).taken == ()
    limited.enqueue_for("a", b"next")
    limited.client.delete(KEYS.wakeup)
    end(limited, first)
    assert limited.tokens() == 1


@pytest.mark.promise("If a consumer crashes, its place within `max_in_flight_per_tenant` is free when its lease ends.")
def test_what_has_expired_is_claimed_again_in_its_place(limited: Caller):
    """It comes before the others, and does not count twice."""
    limited.enqueue(*(New(one, b"a") for one in numbered(9)))
    held = limited.claim(9).taken
    assert limited.claim().taken == ()
    limited.expire()
    again = limited.claim(9).taken
    assert {one.id for one in again} == {one.id for one in held}
    assert limited.claim(9).taken == ()
    assert limited.settle(again) == b"11"
    assert len(limited.claim(9).taken) == 2
    assert faults(limited.client) == []


def test_in_order_a_retry_keeps_the_place_of_its_message(client: object):
    """Nobody owns it meanwhile; then it comes first, as a message that was not lost."""
    caller = Caller(client, in_flight_limit=1, ordered=1)
    caller.enqueue(*(New(one, b"a") for one in numbered(3)), New(b"other", b"b"))
    (first,) = caller.claim().taken
    caller.take_token()
    assert caller.retry_later([first]) == b"1"
    assert caller.tokens() == 1  # somebody must know when it is due
    for lost in (caller.retry_later, caller.requeue, caller.settle, caller.renew):
        assert lost([first]) == b"0"
    assert caller.claim(9).payloads == [b"other"]
    assert caller.claim(9).taken == ()
    caller.expire()
    (again,) = [one for one in caller.claim(9).taken if one.tenant == "a"]
    assert (again.id, again.attempts, again.count, again.origin, again.failures) == (first.id, 2, 1, "queue", 1)
    assert faults(caller.client) == []
    caller.settle([again])
    assert [one.tenant for one in caller.claim(9).taken] == ["a"]


def test_what_dies_leaves_its_place(limited: Caller):
    limited.settings.most = 1
    limited.enqueue(*(New(one, b"a") for one in numbered(9)))
    limited.claim(9)
    limited.expire()
    claims = [limited.claim(9), limited.claim(9)]
    assert [len(claimed.dead) for claimed in claims] == [2, 0]
    assert sum(len(claimed.taken) for claimed in claims) == 2
    assert faults(limited.client) == []


def test_a_consumer_without_a_limit_counts_too(limited: Caller):
    """What it claims is in flight, and what it settles leaves."""
    other = Caller(limited.client, "b")
    limited.enqueue(*(New(one, b"a") for one in numbered(9)))
    first = limited.claim().taken
    second = other.claim(2).taken
    assert len(second) == 2 and limited.claim().taken == ()
    assert other.settle([*first, *second]) == b"111"
    assert len(limited.claim(9).taken) == 2
    assert faults(limited.client) == []


def test_messages_that_were_claimed_before_there_was_a_limit(limited: Caller):
    """They do not count, and nothing happens when they leave."""
    before = Caller(limited.client, "b").hold(*numbered(3), tenant="a")
    limited.enqueue(*(New(one, b"a") for one in numbered(9)))
    assert len(limited.claim(9).taken) == 2
    assert limited.settle(before) == b"111"
    assert limited.claim(9).taken == ()


@pytest.mark.promise("Beside tenants at their limit, of T others that wait each is served within T claims.")
@pytest.mark.parametrize("weights", [{}, {"m": 3, "x": 2}], ids=["all alike", "weighted"])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_waits_longer_than_a_round_whoever_is_at_its_limit(seed: int, weights: dict[str, int], limited: Caller):
    """Between two turns of a tenant below its limit, no other has more turns than its weight."""
    chance = random.Random(seed)
    names = ["a", "b", "m", "x", "z"]
    if weights:
        limited.weigh(**weights)
    for name in names:
        limited.enqueue(*(New(one, name.encode()) for one in numbered(200)))
    held: dict[str, list[Taken]] = {name: [] for name in names}
    since: dict[str, Counter[str]] = {name: Counter() for name in names}
    for _ in range(150):
        for name in chance.sample(names, chance.randint(0, 3)):
            if held[name]:
                if len(held[name]) == 2:
                    since[name] = Counter()
                limited.settle([held[name].pop(chance.randrange(len(held[name])))])
        claimed = limited.claim()
        assert bool(claimed.taken) == (min(map(len, held.values())) < 2)
        for one in claimed.taken:
            served = str(one.tenant)
            held[served].append(one)
            assert len(held[served]) <= 2
            since[served] = Counter()
            for name, others in since.items():
                if name != served and len(held[name]) < 2:
                    others[served] += 1
                    assert others[served] <= weights.get(served, 1) + 1, (name, others)
    assert faults(limited.client) == []


def test_many_tenants_at_their_limit_cost_nothing(limited: Caller):
    """They are not looked at again and again."""
    limited.enqueue_all(New(b"m", b"%d" % number) for number in range(500) for _ in range(3))
    while limited.claim(100).taken:
        pass
    limited.enqueue_for("free", *numbered(2))
    limited.client.config_resetstat()
    assert tenants(limited.claim(2)) == ["free", "free"]
    assert limited.client.info("commandstats")["cmdstat_zlexcount"]["calls"] <= 3


def test_an_empty_queue_forgets_that_it_counts(limited: Caller):
    limited.enqueue_for("a", b"first")
    limited.settle(limited.claim().taken)
    assert limited.client.hexists(KEYS.meta, "counts")
    limited.claim()
    assert not limited.client.hexists(KEYS.meta, "counts") and not limited.client.exists(KEYS.tenant_in_flight)


def test_a_paused_tenant_at_its_limit(limited: Caller):
    limited.enqueue_for("a", *numbered(9))
    held = limited.claim(9).taken
    limited.claim()
    limited.pause("a")
    limited.settle(held)
    assert limited.claim(9).taken == ()
    limited.resume("a")
    assert len(limited.claim(9).taken) == 2


def test_a_tenant_with_places_that_nobody_holds_gets_on_with_its_next_message(limited: Caller):
    """Somebody removed the messages in flight by hand; the next message makes the claims look again."""
    limited.enqueue_for("a", *numbered(3))
    limited.claim(9)
    limited.claim()
    limited.client.delete(KEYS.processing, KEYS.leases, KEYS.tenant_in_flight)
    limited.enqueue_for("a", b"next")
    assert len(limited.claim(9).taken) == 2
