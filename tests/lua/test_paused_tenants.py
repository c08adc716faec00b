"""A paused tenant has no turns and keeps its messages; everybody else has theirs as ever."""

import random
from collections import Counter

import pytest
import redis

from redis_message_queue.stored.scripts import constant
from tests.lua.scripts_runner import HOUR_US, KEYS, WOKEN, Caller, New, numbered
from tests.lua.state import faults, read

pytestmark = pytest.mark.topic("Pausing")

PARKED = constant("places", "PARKED")


def turns(caller: Caller, count: int) -> list[str]:
    return [one.tenant or "" for claimed in caller.claim_one_by_one(count) for one in claimed.taken]


@pytest.mark.promise("While a tenant is paused, of the other T waiting tenants each is served within T claims.")
@pytest.mark.parametrize("weights", [{}, {"m": 3, "x": 2}], ids=["all alike", "weighted"])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_waits_longer_than_a_round_whoever_is_paused(seed: int, weights: dict[str, int], caller: Caller):
    """Between any two turns of a waiting tenant that is not paused, no other tenant has more turns than its weight."""
    chance = random.Random(seed)
    names = ["a", "b", "m", "x", "z", ""]
    if weights:
        caller.weigh(**weights)
    for name in names:
        caller.enqueue(*(New(one, name.encode()) for one in numbered(150)))
    paused: set[str] = set()
    since: dict[str, Counter[str]] = {name: Counter() for name in names}
    for _ in range(120):
        for name in chance.sample(names[:-1], chance.choice([0, 0, 1, 2])):
            if name in paused:
                caller.resume(name)
                paused.remove(name)
                since[name] = Counter()
            elif len(paused) < 4:
                caller.pause(name)
                paused.add(name)
                del since[name]
        (served,) = turns(caller, 1)
        assert served not in paused
        since[served] = Counter()
        for name, others in since.items():
            if name != served:
                others[served] += 1
                assert others[served] <= weights.get(served, 1), (name, others)
    assert faults(caller.client) == []


def test_a_claim_of_nothing_but_paused_tenants_does_not_ask_for_more(caller: Caller):
    """It would be sent again and again. Nor does a consumer that leaves only such messages wake another one."""
    caller.enqueue(New(b"first", b"acme"), New(b"second", b"zeta"))
    caller.pause("acme")
    caller.take_token()
    claimed = caller.claim(2, woken=WOKEN)
    assert claimed.payloads == [b"second"]
    assert caller.tokens() == 0
    caller.settle(claimed.taken)
    claimed = caller.claim(2, slice_us=HOUR_US)
    assert (claimed.again, claimed.taken, claimed.wait_us) == (False, (), -1)


def test_a_resumed_tenant_gains_nothing(caller: Caller):
    """It comes behind those who wait for their turn, however long it was paused."""
    for name in ("a", "b", "c"):
        caller.enqueue_for(name, *numbered(20))
    caller.pause("a")
    assert turns(caller, 6) == ["b", "c"] * 3
    caller.resume("a")
    assert sorted(turns(caller, 3)) == ["a", "b", "c"]
    assert sorted(turns(caller, 3)) == ["a", "b", "c"]


def test_messages_that_come_meanwhile_wait(caller: Caller):
    """New ones, due ones, retried ones, requeued ones, and those of a consumer that died."""
    retried, requeued, died = (caller.hold(one, tenant="acme")[0] for one in (b"retried", b"requeued", b"died"))
    caller.pause("acme")
    caller.enqueue(New(b"new", b"acme"), New(b"due", b"acme", due="+1000000000"))
    caller.retry_later([retried], 1_000)
    caller.requeue([requeued])
    caller.expire()
    caller.pass_delays()
    assert caller.claim(9).taken == ()
    assert read(caller.client).ring == {"acme": PARKED}
    assert faults(caller.client) == []
    caller.resume("acme")
    assert {one.payload for one in caller.claim_at_last(9).taken} == {b"retried", b"requeued", b"died", b"new", b"due"}
    assert caller.client.hkeys(KEYS.meta) == [b"version", b"tenants"]
    assert died.tenant == "acme"


def test_a_holder_can_still_settle_and_renew(caller: Caller):
    """Also a message whose lease ran out meanwhile."""
    first, second, third = (caller.hold(one, tenant="acme")[0] for one in (b"first", b"second", b"third"))
    caller.pause("acme")
    caller.expire()
    caller.claim()
    assert (caller.settle([first]), caller.renew([second]), caller.requeue([third])) == (b"1", b"1", b"1")
    assert faults(caller.client) == []
    assert caller.claim(9).taken == ()


def test_when_virtual_time_starts_again_a_paused_tenant_stays_paused(caller: Caller):
    for name in ("a", "b", "c"):
        caller.enqueue_for(name, *numbered(9))
    caller.pause("a")
    start = constant("places", "REBASE_AT")
    caller.client.zadd(KEYS.tenant_ring, {"b": start + 1, "c": start + 2})
    assert turns(caller, 4) == ["b", "c", "b", "c"]
    ring = read(caller.client).ring
    assert ring["a"] == PARKED and max(ring["b"], ring["c"]) < start


@pytest.mark.parametrize("score", ["inf", "1e300", "-inf", "-1"])
def test_a_damaged_score_beside_a_paused_tenant_is_repaired(caller: Caller, score: str):
    """Behind the paused one nobody would look for it."""
    caller.enqueue_for("a", *numbered(3))
    caller.enqueue_for("b", *numbered(3))
    caller.pause("a")
    caller.client.execute_command("ZADD", KEYS.tenant_ring, score, "b")
    assert turns(caller, 3) == ["b", "b", "b"]
    assert faults(caller.client) == []


@pytest.mark.parametrize("number", [b"many", b"-3", b"0", b"9" * 30])
def test_a_damaged_number_of_paused_tenants(caller: Caller, number: bytes):
    """Claims go on looking, and a tenant can be resumed and paused as ever."""
    caller.enqueue_for("a", *numbered(3))
    caller.pause("a")
    caller.client.hset(KEYS.meta, "paused_tenants", number)
    assert caller.claim().taken == ()
    assert caller.resume("a") == b"1"
    assert turns(caller, 1) == ["a"]
    assert caller.pause("a") == b"1"
    assert caller.claim().taken == ()


def test_a_paused_tenant_that_is_deleted_stays_paused(caller: Caller):
    caller.enqueue_for("a", *numbered(3))
    caller.pause("a")
    assert caller.sweep("pending", "a") == b"3 "
    assert not caller.client.exists(KEYS.tenant_ring)
    caller.enqueue_for("a", b"later")
    assert caller.claim().taken == ()
    assert faults(caller.client) == []


def test_pausing_costs_the_same_however_many_are_paused(client: redis.Redis):
    """A thousand paused tenants in the ring are not looked at."""
    caller = Caller(client)
    caller.enqueue_all(New(b"m", b"%d" % number) for number in range(1_000))
    for number in range(1_000):
        caller.pause(str(number))
    caller.enqueue_for("awake", *numbered(5))
    client.config_resetstat()
    assert turns(caller, 5) == ["awake"] * 5
    calls = client.info("commandstats")
    assert calls["cmdstat_llen"]["calls"] < 5 * 30
