"""Delayed messages are delivered neither early nor late, and none is lost."""

import time

import pytest
import redis

from tests.conftest import StartServer
from tests.lua.scripts_runner import HOUR_US, KEYS, Caller, New, chunk_ids, dump, fresh_base, numbered
from tests.lua.state import faults, read

pytestmark = pytest.mark.topic("Delays")

LATER = "+1000000000"
LIMIT_SECONDS = 120
with_and_without_leases = pytest.mark.parametrize("lease_us", [HOUR_US, 0], ids=["with leases", "without leases"])
with_and_without_tenant = pytest.mark.parametrize("tenant", [b"", b"acme"], ids=["no tenant", "a tenant"])


@pytest.fixture
def caller(client: redis.Redis, lease_us: int) -> Caller:
    """A caller of a queue with or without leases."""
    return Caller(client, lease_us=lease_us)


@pytest.fixture
def lease_us() -> int:
    """With leases, where a test does not say."""
    return HOUR_US


# Their time


@with_and_without_leases
@with_and_without_tenant
def test_a_message_is_not_delivered_before_its_time(caller: Caller, tenant: bytes):
    """It waits in no line, and others pass it by."""
    caller.enqueue(New(b"later", tenant, due=LATER), New(b"now", tenant))
    assert caller.claim(9).payloads == [b"now"]
    assert caller.claim(9).taken == ()
    caller.pass_delays()
    assert caller.claim(9).payloads == [b"later"]
    assert caller.claim(9).taken == ()
    assert faults(caller.client, leased=caller.settings.lease_us > 0) == []


@pytest.mark.promise("`delay_seconds` and `at` deliver a message when it is due by the server's clock, not earlier.")
@with_and_without_leases
def test_a_message_is_delivered_when_its_time_has_come(caller: Caller):
    """By the server's own clock: a claim just before finds nothing and tells when, a claim then finds it."""
    caller.enqueue(New(b"soon", due="+50000"))
    due_at = caller.client.zscore(KEYS.delayed, read(caller.client).ids[0])
    limit = time.monotonic() + LIMIT_SECONDS
    while not (taken := caller.claim(slice_us=HOUR_US).taken):
        assert time.monotonic() < limit
    assert taken[0].payload == b"soon"
    assert caller.now_us() >= due_at


@pytest.mark.promise(
    "Delayed messages arrive in the order of their due times, behind messages that are already pending."
)
@with_and_without_leases
def test_messages_come_in_the_order_of_their_times(caller: Caller):
    """Not in that in which they were published; those with the same time as in their chunk."""
    delays = [5, 3, 9, 3, 1, 7]
    caller.enqueue(*[New(b"%d" % place, due=f"+{delay}000000") for place, delay in enumerate(delays)])
    caller.pass_delays()
    assert caller.claim(9).payloads == [b"4", b"1", b"3", b"0", b"5", b"2"]


@pytest.mark.promise(
    "Delayed messages arrive in the order of their due times, behind messages that are already pending."
)
@with_and_without_leases
@with_and_without_tenant
def test_what_is_due_enters_at_the_tail(caller: Caller, tenant: bytes):
    """After messages that wait already, before those that come later."""
    caller.enqueue(New(b"delayed", tenant, due=LATER), New(b"waits", tenant))
    caller.pass_delays()
    assert caller.claim().payloads == [b"waits"]
    caller.enqueue(New(b"comes", tenant))
    assert caller.claim(9).payloads == [b"delayed", b"comes"]


@pytest.mark.promise("A delayed message enters its tenant queue when it is due.")
def test_what_is_due_belongs_to_its_tenant(caller: Caller):
    """Each enters its own line, and takes its tenant's turns."""
    caller.enqueue(*[New(b"%d" % place, b"abc"[place % 3 : place % 3 + 1], due=LATER) for place in range(9)])
    caller.enqueue_for("d", *numbered(3))
    caller.pass_delays()
    tenants = [caller.claim().only.tenant for _ in range(12)]
    for start in range(0, 12, 4):
        assert sorted(filter(None, tenants[start : start + 4])) == ["a", "b", "c", "d"]
    assert faults(caller.client) == []


def test_a_delayed_message_is_new_when_it_is_delivered(caller: Caller):
    """Lease and count are those of a first delivery."""
    base = fresh_base()
    caller.enqueue(New(b"first", due=LATER), base=base)
    caller.pass_delays()
    taken = caller.claim().only
    assert (taken.id, taken.attempts, taken.count, taken.failures) == (chunk_ids(base, 1)[0], 1, 1, 0)
    assert not caller.client.exists(KEYS.deliveries)


# Many at once


@pytest.mark.promise("A delayed batch stays in order, even if thousands of messages are due at the same time.")
@with_and_without_leases
@with_and_without_tenant
def test_more_than_a_thousand_that_are_due_at_once_come_in_several_claims(caller: Caller, tenant: bytes):
    """A thousand a claim, in their order, and none is told "empty" before the last."""
    caller.enqueue_all(
        New(payload, tenant, due=f"+{1_000_000 + place}") for place, payload in enumerate(numbered(2_500))
    )
    caller.pass_delays()
    # Where tenants take turns nobody has one before all have come: whose it is cannot be told.
    assert caller.claim().payloads == ([] if tenant else numbered(1))
    assert caller.client.zcard(KEYS.delayed) == caller.client.hlen(KEYS.delayed_messages) == 1_500
    assert faults(caller.client, leased=caller.settings.lease_us > 0) == []
    if tenant:
        assert caller.claim_at_last().payloads == numbered(1)
    taken = [payload for _ in range(3) for payload in caller.claim(1_000).payloads]
    assert taken == numbered(2_500)[1:]
    emptied = (KEYS.delayed, KEYS.delayed_messages, KEYS.pending, KEYS.tenant_ring, KEYS.tenant_backlog)
    assert not caller.client.exists(*emptied)


@with_and_without_leases
def test_a_claim_never_finds_the_queue_empty_while_a_thousand_without_bodies_are_before_a_message(caller: Caller):
    """Somebody has removed what they were: "again" is said until the message behind them is found."""
    caller.enqueue_all(New(b"gone", due=f"+{place + 1}") for place in range(1_000))
    caller.client.delete(KEYS.delayed_messages)
    caller.enqueue(New(b"there", due=LATER))
    caller.pass_delays()
    claims = [caller.claim()]
    while claims[-1].again:
        assert len(claims) < 5
        claims.append(caller.claim())
    assert claims[-1].payloads == [b"there"]


def test_a_thousand_tenants_may_be_due_at_once(caller: Caller):
    """Each joins the ring."""
    caller.enqueue(*[New(b"x", b"tenant %d" % place, due=LATER) for place in range(1_000)])
    caller.pass_delays()
    caller.claim()
    assert caller.client.zcard(KEYS.tenant_ring) == 999
    assert faults(caller.client) == []


# The alarm


@with_and_without_leases
def test_the_alarm_is_that_of_the_earliest(caller: Caller):
    """Whatever comes and goes, it is never later than the first delay ends, and gone with the last."""
    for delay in (5, 9, 3, 7, 1):
        caller.enqueue(New(b"%d" % delay, due=f"+{delay}000000000"))
        assert caller.client.zscore(KEYS.leases, "d") == min(caller.due_times().values())
    for expected in (b"1", b"3", b"5", b"7", b"9"):
        caller.pass_delays(2_000_000_000)
        assert caller.claim().payloads == [expected]
        assert caller.client.zscore(KEYS.leases, "d") == min(caller.due_times().values(), default=None)
    assert caller.client.zscore(KEYS.leases, "d") is None


def test_an_alarm_that_is_early_does_no_harm(caller: Caller):
    """It costs a look, and is set right."""
    caller.enqueue(New(b"later", due=LATER))
    caller.client.zadd(KEYS.leases, {"d": 1})
    caller.publish(b"now")
    assert caller.claim(9).payloads == [b"now"]
    assert caller.client.zscore(KEYS.leases, "d") == min(caller.due_times().values())


def test_an_alarm_is_no_lease(caller: Caller):
    """It is neither claimed nor tidied away as one, with tenants waiting and without."""
    caller.enqueue(New(b"later", due=LATER))
    caller.client.zadd(KEYS.leases, {"d": 1})
    caller.enqueue_for("acme", b"first")
    for _ in range(3):
        caller.claim(9)
    assert read(caller.client).alarms.keys() == {b"d"}
    assert read(caller.client).leases.keys() == read(caller.client).processing.keys()


# Attempts that failed


@with_and_without_leases
@with_and_without_tenant
def test_a_message_that_is_put_off_waits_as_long_as_it_should(caller: Caller, tenant: bytes):
    """By the server's clock, and with all that it is."""
    caller.enqueue(New(b"first", tenant, extras=b'{"note": 1}'))
    (held,) = caller.claim().taken
    before = caller.now_us()
    assert caller.retry_later([held], 5_000_000) == b"1"
    (due_at,) = caller.due_times().values()
    assert before + 5_000_000 <= due_at <= caller.now_us() + 5_000_000
    assert not caller.client.exists(KEYS.processing)
    assert caller.deadlines() == {}
    caller.pass_delays()
    again = caller.claim().only
    assert (again.payload, again.tenant) == (b"first", tenant.decode() or None)
    assert (again.attempts, again.count, again.failures, again.origin) == (2, 1, 1, "queue")
    assert faults(caller.client, leased=caller.settings.lease_us > 0) == []


@with_and_without_leases
def test_a_message_that_is_put_off_for_no_time_is_due_at_once(caller: Caller):
    """At the end: messages that wait already go first."""
    held = caller.hold(b"failed")
    caller.publish(b"waits")
    caller.retry_later(held, 0)
    assert caller.claim(9).payloads == [b"waits", b"failed"]


@with_and_without_leases
@pytest.mark.parametrize("times", [1, 2, 3])
def test_deliveries_that_count_and_failures_keep_apart(caller: Caller, times: int):
    """Giving back counts as a delivery, putting off as a failure, in whatever order."""
    caller.publish(b"first")
    for _ in range(times):
        caller.requeue(caller.claim().taken)
        caller.retry_later(caller.claim().taken)
        caller.pass_delays()
    taken = caller.claim().only
    assert (taken.attempts, taken.count, taken.failures) == (2 * times + 1, times + 1, times)


def test_what_waits_for_its_next_attempt_is_dropped_by_nobody(caller: Caller):
    """It takes room, and the line makes it."""
    caller.retry_later(caller.hold(b"failed"))
    (first,) = caller.publish_all([b"first"])
    caller.settings.limit, caller.settings.overload = 2, "drop"
    assert caller.enqueue(b"second") == b"1" + first
    caller.pass_delays()
    assert caller.claim(9).payloads == [b"second", b"failed"]


# Failures of the server


@pytest.mark.parametrize("broken", ["delayed", "delayed_messages", "leases"])
def test_what_waits_is_not_lost_by_a_key_of_a_wrong_type(caller: Caller, broken: str):
    """The claim fails, nothing has changed; put right, it goes on."""
    caller.enqueue(New(b"first", b"acme", due=LATER), New(b"second", due=LATER))
    caller.pass_delays()
    key = caller.key(broken)
    caller.client.rename(key, "aside")
    caller.client.set(key, "something else")
    before = dump(caller.client)
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            caller.claim(9)
        assert dump(caller.client) == before
    caller.client.delete(key)
    caller.client.rename("aside", key)
    assert sorted(caller.claim(9).payloads) == [b"first", b"second"]


@pytest.mark.promise("A delayed message is stored in Redis and survives a server crash with an append-only file.")
def test_what_waits_survives_a_restart(start_server: StartServer, tmp_path):
    """Its time goes on while the server is away, and the alarm with it."""
    server = start_server(directory=tmp_path, append_only=True)
    with server.client() as client:
        caller = Caller(client)
        caller.enqueue(New(b"soon", b"acme", due="+1"), New(b"later", due=LATER))
        caller.retry_later(caller.hold(b"failed"), 1)
    server.stop()
    server.start()
    with server.client() as client:
        caller = Caller(client, "b")
        assert sorted(caller.claim(9).payloads) == [b"failed", b"soon"]
        assert faults(client) == []
        assert len(caller.due_times()) == 1
