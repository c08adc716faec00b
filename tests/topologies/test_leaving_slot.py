"""In a slot that is being migrated, a key that a script empties is gone for that same script.

The source node serves a script only if it has all its keys. A key whose last element the script removes counts as moved
from then on: the next command on it ends the script. So no script may use such a key again, or its earlier writes would
stay without the later ones.
"""

from functools import partial

import pytest
import redis

from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.stored.scripts import script
from tests.depth import often
from tests.lua import group_situations, scripts_runner, situations
from tests.lua.group_situations import Holder, holding, sealed
from tests.lua.scripts_runner import WOKEN, Caller, Taken, new_id
from tests.lua.situations import EVERY, Call, Situation, script_of, title
from tests.lua.stage import Stage
from tests.tables import row
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration

TAGGED = QueueKeys.of("orders", hash_tag=True)
TARGET = QueueKeys.of("{orders} invoices")  # in the same slot
FAR_AWAY = 4e15  # a deadline in the next century, in microseconds
A_MINUTE_MS = 60_000


# Situations in which a script removes the last element of a key.


def publish_and_drop_two_that_came_back(caller: Caller) -> Call:
    caller.requeue(caller.hold(b"first", b"second"))
    caller.publish(b"third")
    caller.settings.limit, caller.settings.overload = 2, "drop"
    return partial(caller.publish, b"fourth")


def claim_the_last_when_woken(caller: Caller) -> Call:
    caller.publish(b"first")
    return partial(caller.claim, woken=WOKEN)


def claim_the_last_that_came_back(caller: Caller) -> Call:
    caller.requeue(caller.hold(b"first"))
    return caller.claim


def claim_the_last_lease(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.expire()
    return caller.claim


def renew_the_last_lease(caller: Caller) -> Call:
    return partial(caller.renew, caller.hold(b"first"))


def hold_what_came_back(caller: Caller) -> tuple[Taken, ...]:
    """A lease of acme and one without a tenant have run out and wait for their turn; more of both are pending."""
    held = caller.hold(b"first", tenant="acme") + caller.hold(b"second")
    caller.expire()
    caller.enqueue_for("zeta", b"third")
    assert caller.claim().only.payload in (b"first", b"second", b"third")
    caller.enqueue_for("acme", b"fourth")
    caller.publish(b"fifth")
    return held


def claim_the_last_of_everybody(caller: Caller) -> Call:
    hold_what_came_back(caller)
    return partial(caller.claim, 10)


def settle_the_last_that_came_back(caller: Caller) -> Call:
    return partial(caller.settle, hold_what_came_back(caller))


def requeue_the_last_that_came_back(caller: Caller) -> Call:
    return partial(caller.requeue, hold_what_came_back(caller))


def renew_the_last_that_came_back(caller: Caller) -> Call:
    return partial(caller.renew, hold_what_came_back(caller))


def sweep_the_last_of_a_tenant(caller: Caller) -> Call:
    hold_what_came_back(caller)
    return partial(caller.sweep, "pending", "acme")


def sweep_the_last_orphan_before_one_that_is_gone(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    gone, orphan = caller.hold(b"first", b"second", tenant="acme")
    caller.settle((gone,))
    caller.enqueue_for("acme", b"third")
    caller.publish(b"fourth")
    return partial(caller.sweep, "orphans", orphan.token + gone.token)


def gathering(caller: Caller) -> Holder:
    """A holder whose open claim has messages of acme and of no tenant."""
    caller.enqueue_for("acme", b"before")
    caller.publish(b"before too")
    holder = holding(caller)
    assert holder.fill_batch()[1] == 2
    return holder


def fill_batch_with_the_last_of_everybody(caller: Caller) -> Call:
    holder = gathering(caller)
    hold_what_came_back(caller)
    return holder.fill_batch


def ack_batch_of_the_last_that_came_back(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return partial(sealed(caller).ack_batch, 1)


def release_batch_of_the_last_beside_others(caller: Caller) -> Call:
    holder = gathering(caller)
    holder.seal_batch()
    hold_what_came_back(caller)
    return holder.release_batch


# Situations in which the last message that counts for a limit leaves, beside one that does not count.


def hold_one_that_counts(caller: Caller) -> tuple[Taken, ...]:
    """That of acme counts. That of zeta was claimed before anybody had a limit. More of everybody are pending."""
    uncounted = caller.hold(b"first", tenant="zeta") + caller.hold(b"second")
    caller.settings.in_flight_limit = 5
    counted = caller.hold(b"third", tenant="acme")
    caller.enqueue_for("zeta", b"fourth")
    caller.enqueue_for("acme", b"fifth")
    caller.publish(b"sixth")
    return counted + uncounted


def hold_one_that_counts_and_came_back(caller: Caller) -> tuple[Taken, ...]:
    """As above, and all leases have run out and wait for their turn."""
    held = hold_one_that_counts(caller)
    for one in held:
        token = one.id + one.nonce
        caller.client.zadd(TAGGED.expired(one.tenant or ""), {token: 1})
        caller.client.zrem(TAGGED.leases, token)
    return held


def settle_the_last_that_counts(caller: Caller) -> Call:
    return partial(caller.settle, hold_one_that_counts(caller))


def requeue_the_last_that_counts(caller: Caller) -> Call:
    return partial(caller.requeue, hold_one_that_counts_and_came_back(caller))


def sweep_the_last_that_counts(caller: Caller) -> Call:
    hold_one_that_counts_and_came_back(caller)
    return partial(caller.sweep, "pending", "acme", "zeta")


def claim_the_last_of_everybody_past_one_that_counts(caller: Caller) -> Call:
    """What came back was delivered too often, and the ring is empty when it leaves."""
    hold_one_that_counts_and_came_back(caller)
    caller.settings.most = 1
    return partial(caller.claim, 10)


def fill_batch_with_the_last_that_counts(caller: Caller) -> Call:
    holder = gathering(caller)
    hold_one_that_counts_and_came_back(caller)
    return holder.fill_batch


# These find all their keys and succeed; without them this test would prove nothing.
SERVED: tuple[Situation, ...] = (
    claim_the_last_of_everybody,
    settle_the_last_that_came_back,
    requeue_the_last_that_came_back,
    renew_the_last_that_came_back,
    sweep_the_last_of_a_tenant,
    sweep_the_last_orphan_before_one_that_is_gone,
    publish_and_drop_two_that_came_back,
    fill_batch_with_the_last_of_everybody,
    ack_batch_of_the_last_that_came_back,
    release_batch_of_the_last_beside_others,
    settle_the_last_that_counts,
    requeue_the_last_that_counts,
    sweep_the_last_that_counts,
    claim_the_last_of_everybody_past_one_that_counts,
    fill_batch_with_the_last_that_counts,
)
LAST: tuple[Situation, ...] = (
    *SERVED,
    claim_the_last_when_woken,
    claim_the_last_that_came_back,
    claim_the_last_lease,
    renew_the_last_lease,
)


@pytest.fixture
def stage(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The owner of the slot, whose callers connect to it like a cluster client."""
    for module in (scripts_runner, situations, group_situations):
        monkeypatch.setattr(module, "KEYS", TAGGED)
    monkeypatch.setattr(scripts_runner, "TARGET", TARGET)
    owner = cluster.owner(TAGGED.pending).redis
    return Stage(owner, tenant_pending=TAGGED.tenant_pending(""), expired=TAGGED.expired(""))


def fill_the_gaps(caller: Caller, name: str) -> None:
    """Fill each missing key of the script that does not matter to it, so that the node serves the call.

    An empty tenant queue and a new deduplication key stay empty: filled, they would be another situation.
    """
    client, later = caller.client, new_id()
    fillers = {
        "processing": lambda key: client.hset(key, new_id(), b"another's"),
        "leases": lambda key: client.zadd(key, {new_id() + bytes(20): FAR_AWAY}),
        "deliveries": lambda key: client.hset(key, new_id(), b"1:1"),
        "wakeup": lambda key: client.lpush(key, b"1"),
        "timer_owner": lambda key: client.set(key, b"someone", px=A_MINUTE_MS),
        "dlq": lambda key: client.lpush(key, b"another's"),
        "kept": lambda key: client.lpush(key, b"another's"),
        "records": lambda key: client.lpush(key, b"{}"),
        "weights": lambda key: client.hset(key, "zeta", 2),
        "delayed": lambda key: client.zadd(key, {later: FAR_AWAY}),
        "delayed_messages": lambda key: client.hset(key, later, b"another's"),
        "cancelled": lambda key: client.zadd(key, {new_id(): FAR_AWAY}),
        "tenant_in_flight": lambda key: client.zadd(key, {b"\x05other" + new_id(): 0}),
        "journal": lambda key: client.xadd(key, {"event": "before"}),
        "reply": lambda key: client.set(key, b"%012d" % caller.number, px=A_MINUTE_MS),
    }
    words = [word for word in script(name).keys if word in fillers]
    with client.pipeline(transaction=False) as pipe:
        for word in words:
            pipe.exists(caller.key(word))
        found = pipe.execute()
    for word, is_there in zip(words, found, strict=True):
        if not is_there:
            fillers[word](caller.key(word))


@pytest.mark.parametrize("again", [False, True], ids=["sent", "sent again"])
@pytest.mark.parametrize(
    "chosen",
    [(*EVERY, *group_situations.EVERY), LAST, SERVED],
    ids=["every situation", "the last of something", "with a journal"],
)
def test_a_script_in_a_migrating_slot_is_executed_completely_or_refused(
    chosen: tuple[Situation, ...], again: bool, cluster: Cluster, stage: Stage, subtests: pytest.Subtests
) -> None:
    """A refused call has changed nothing; if the migration is cancelled, the same call succeeds."""
    migration = Migration(cluster, TAGGED.pending)
    # Every script remembers its replies in the same way.
    for situation in chosen[:: often(6, 1)] if again and EVERY[0] in chosen else chosen:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation, journaled=chosen is SERVED)
            if again:
                call()
                call = caller.repeat
            fill_the_gaps(caller, script_of(situation))
            with migration:
                before = migration.source.dump()
                try:
                    call()
                except redis.ResponseError:
                    assert again or situation not in SERVED
                    assert migration.source.dump() == before
                    migration.call_off()
                    caller.repeat()
