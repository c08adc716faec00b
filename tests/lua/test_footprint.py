"""What a message takes in Redis, and what is left after it is gone."""

import pytest

from tests.conftest import StartServer
from tests.lua.scripts_runner import KEYS, TARGET, Caller, New, new_id, records_beside
from tests.lua.situations import NUMBERED, hold_and_let_come_back, title
from tests.lua.stage import Stage
from tests.tables import row

pytestmark = pytest.mark.topic("Cost and memory")


def left_behind(caller: Caller) -> set[str]:
    """Which keys exist, without the wake-up key, the answers of callers and the version of what is stored."""
    keys = {key.decode() for key in caller.client.scan_iter(count=1000)}
    always = {KEYS.wakeup, KEYS.meta, TARGET.meta}
    return {key for key in keys if key not in always and not key.startswith(KEYS.reply(""))}


def handled(caller: Caller) -> None:
    caller.publish(b"first")
    caller.settle(caller.claim().taken)


def handled_in_a_batch(caller: Caller) -> None:
    caller.settle(caller.hold(b"first", b"second"))


def handled_after_expiry(caller: Caller) -> None:
    caller.hold(b"first")
    caller.expire()
    caller.settle(caller.claim().taken)


def handled_after_giving_back(caller: Caller) -> None:
    caller.requeue(caller.hold(b"first"))
    caller.settle(caller.claim().taken)


def handled_after_forgiving(caller: Caller) -> None:
    caller.requeue(caller.hold(b"first"), forgiven=True)
    caller.settle(caller.claim().taken)


def asked_in_vain(caller: Caller) -> None:
    caller.claim()


def handled_in_turns(caller: Caller) -> None:
    caller.enqueue_for("acme", b"first", b"second")
    caller.enqueue_for("zeta", b"third")
    caller.publish(b"fourth")
    caller.settle(caller.claim(3).taken)
    caller.settle(caller.claim(3).taken)


def handled_at_its_time(caller: Caller) -> None:
    caller.enqueue(New(b"first", due="+1000000000"), New(b"second", b"acme", due="+1000000000"))
    caller.pass_delays()
    caller.settle(caller.claim(2).taken)


def handled_at_the_second_attempt(caller: Caller) -> None:
    for tenant in (None, "acme"):
        caller.retry_later(caller.hold(b"first", tenant=tenant))
        caller.pass_delays()
        caller.settle(caller.claim().taken)


def handled_by_a_holder_that_was_late(caller: Caller) -> None:
    for tenant in (None, "acme"):
        held = caller.hold(b"first", b"second", tenant=tenant)
        caller.enqueue_for("zeta", b"somebody else's")
        caller.expire()
        caller.settle(caller.claim().taken)
        caller.settle(held[:1])
        caller.settle(held[1:])


def handled_after_coming_back(caller: Caller) -> None:
    held = hold_and_let_come_back(caller)
    caller.settle(caller.claim(2).taken)
    caller.settle(held)
    caller.expire()
    caller.settle(caller.claim().taken)


def settled_in_vain(caller: Caller) -> None:
    caller.settle([(new_id(), 1)])
    caller.requeue([(new_id(), 1)])
    caller.retry_later([(new_id(), 1)])
    caller.renew([(new_id(), 1)])


def dropped(caller: Caller) -> None:
    caller.settings.limit, caller.settings.overload = 1, "drop"
    caller.publish_all([b"first"])
    caller.enqueue(b"second")
    caller.settle(caller.claim(2).taken)


def given_back_and_dropped(caller: Caller) -> None:
    caller.requeue(caller.hold(b"first"))
    caller.settings.limit, caller.settings.overload = 1, "drop"
    caller.enqueue(b"second")
    caller.settle(caller.claim(2).taken)


def given_back_and_dropped_of_a_tenant(caller: Caller) -> None:
    caller.requeue(caller.hold(b"first", tenant="acme"))
    caller.settings.limit, caller.settings.overload = 1, "drop"
    caller.enqueue(New(b"second", b"acme"))
    caller.settle(caller.claim(2).taken)


def refused(caller: Caller) -> None:
    caller.settings.limit, caller.settings.tenant_limit = 1, 1
    caller.enqueue(b"first", New(b"second", b"acme", marker="a key"))
    caller.enqueue(New(b"first", b"acme"), New(b"second", b"acme", marker="a key"))
    caller.enqueue(New(b"first", due="+1000000000"), New(b"second", due="+1000000000"))


LIVES = [
    handled,
    handled_in_a_batch,
    handled_after_expiry,
    handled_after_giving_back,
    handled_after_forgiving,
    handled_in_turns,
    handled_at_its_time,
    handled_at_the_second_attempt,
    handled_by_a_holder_that_was_late,
    handled_after_coming_back,
    asked_in_vain,
    settled_in_vain,
    dropped,
    given_back_and_dropped,
    given_back_and_dropped_of_a_tenant,
    refused,
]
NEED_LEASES = (handled_after_expiry, handled_by_a_holder_that_was_late, handled_after_coming_back)


def test_nothing_is_left_of_a_message_that_has_gone(stage: Stage, subtests: pytest.Subtests):
    """Besides a token in the wake-up key and the answers of its callers, which end by themselves."""
    for life in LIVES:
        with row(subtests, life=title(life)):
            caller = stage.clear()
            life(caller)
            assert left_behind(caller) == set()


def test_nothing_is_left_without_leases(stage: Stage, subtests: pytest.Subtests):
    """The same in a queue whose messages are held for good."""
    for life in (life for life in LIVES if life not in NEED_LEASES):
        with row(subtests, life=title(life)):
            caller = stage.clear(lease_us=0)
            life(caller)
            assert left_behind(caller) == set()


@pytest.mark.parametrize("kept", [KEYS.completed, KEYS.failed, KEYS.dead_letter])
def test_only_the_list_and_its_records_are_left_where_something_is_kept(kept: str, caller: Caller):
    """And in the list the payload alone."""
    caller.hold(b"first")
    caller.expire()
    caller.settle(caller.claim().taken, kept=kept)
    assert left_behind(caller) == {kept, records_beside(kept)}
    assert caller.client.lrange(kept, 0, -1) == [b"first"]


@pytest.mark.parametrize("how", ["expired", "requeued"])
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_only_the_dead_letter_is_left_of_a_message_that_was_delivered_too_often(
    tenant: str | None, how: str, caller: Caller
):
    """Its numbers go with it."""
    caller.settings.most = 1
    taken = caller.hold(b"first", tenant=tenant)
    caller.expire() if how == "expired" else caller.requeue(taken)
    caller.claim()
    assert left_behind(caller) == {KEYS.dead_letter, KEYS.records("dlq")}


def test_a_message_that_is_delivered_once_has_no_entry_in_the_deliveries(caller: Caller):
    """Most are, and none of them pays for it."""
    caller.hold(b"first", b"second")
    caller.publish(b"third")
    caller.claim()
    assert not caller.client.exists(KEYS.deliveries)


@pytest.mark.promise("Cached replies expire.")
def test_every_answer_ends_by_itself(stage: Stage, subtests: pytest.Subtests):
    """The key of a caller that has gone is forgotten when its time is over."""
    for situation in NUMBERED:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation)
            call()
            for key in caller.client.scan_iter(match=KEYS.reply("*")):
                assert 0 < caller.client.pttl(key) <= caller.settings.keep_ms
            for key in (KEYS.timer_owner, KEYS.deduplication("a key")):
                assert caller.client.pttl(key) != -1


def test_a_queue_without_tenants_and_delays_has_no_keys_for_them(caller: Caller):
    """It pays for neither."""
    caller.publish_all([b"first", b"second", b"third"])
    caller.requeue(caller.claim(2).taken)
    caller.claim()
    caller.expire()
    caller.claim()
    expected = {KEYS.pending, KEYS.processing, KEYS.leases, KEYS.deliveries}
    assert left_behind(caller) == expected


def test_ten_thousand_messages_fit(start_server: StartServer):
    """A 198-byte message costs less than 240 bytes while it waits and less than 450 while it is held."""
    with start_server().client() as client:
        caller = Caller(client)
        # Scripts and connections are paid for before the first look.
        caller.settle(caller.hold(b"first"))
        empty = client.info("memory")["used_memory"]

        caller.publish_all([b"x" * 198] * 10_000)
        waiting = client.info("memory")["used_memory"] - empty
        assert client.memory_usage(KEYS.pending, samples=0) < 240 * 10_000
        assert waiting < 240 * 10_000

        for _ in range(10):
            assert len(caller.claim(1_000).taken) == 1_000
        held = client.info("memory")["used_memory"] - empty
        assert sum(client.memory_usage(key, samples=0) for key in (KEYS.processing, KEYS.leases)) < 450 * 10_000
        assert held < 450 * 10_000


def test_without_leases_only_an_answer_that_holds_a_message_is_kept_for_long(caller: Caller):
    """Nothing else would bring the message back; an empty answer is needed only while its call may be sent again."""
    caller.settings.lease_us, caller.settings.hold_ms = 0, 86_400_000
    caller.claim()
    assert 0 < caller.client.pttl(caller.reply) <= caller.settings.keep_ms
    caller.hold(b"first")
    assert caller.client.pttl(caller.reply) > caller.settings.keep_ms
    caller.publish(b"second")
    assert caller.client.pttl(caller.reply) <= caller.settings.keep_ms
