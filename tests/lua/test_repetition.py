"""A call can be sent any number of times, and counts once."""

import pytest
import redis

from tests.lua.scripts_runner import HOUR_US, KEYS, TARGET, Caller, New, dump, without_deadlines
from tests.lua.situations import BACKFILLS, CLAIMS, EVERY, NUMBERED, RENEWALS, title
from tests.lua.stage import Stage
from tests.lua.state import faults
from tests.tables import row

pytestmark = pytest.mark.topic("Journal")

# A claim and a renewal that are sent again begin the lease anew, and an empty claim may leave the watch alone.
RENEWING = (*CLAIMS, *RENEWALS)

ANSWERS = {
    "publish": 1,
    "publish_behind_others": 1,
    "publish_a_duplicate": 0,
    "backfill": b"1",
    "backfill_behind_others": b"3",
    "backfill_what_another_has_stored": b"1",
    "backfill_into_a_full_line": b"-",
    "enqueue": b"11",
    "enqueue_with_keys": b"111",
    "enqueue_duplicates": b"010",
    "enqueue_duplicates_in_full": b"010",
    "enqueue_nothing_but_duplicates": b"00",
    "enqueue_into_a_full_line": b"-",
    "enqueue_for_tenants": b"1111",
    "enqueue_into_the_full_line_of_a_tenant": b"-",
    "enqueue_for_later": b"111",
    "ack_one": b"1",
    "ack_one_in_vain": b"0",
    "settle": b"11",
    "settle_in_vain": b"00",
    "settle_partly_in_vain": b"01",
    "requeue": b"11",
    "give_back_in_vain": b"0",
    "give_back_to_tenants": b"111",
    "retry_later": b"1",
    "put_off_in_vain": b"0",
    "hand_off": b"111" + b"\0\0",
    "hand_off_in_vain": b"0",
    "hand_off_into_a_full_line": b"-1",
    "redrive": b"11",
    "redrive_duplicates": b"10",
    "redrive_into_a_full_line": b"-",
    "restore": b"11",
    "restore_again": b"00",
    "restore_everything_at_once": b"1111",
    "append": b"11",
    "append_again": b"010",
    "sweep_a_line": b"2 ",
    "sweep_a_line_of_a_tenant": b"3 ",
    "sweep_what_waits_for_its_time": b"2 ",
    "sweep_a_list": b"2 ",
    "sweep_orphans": b"2 ",
    "cancel_what_is_delayed": b"cancelled",
    "cancel_what_waits_for_its_next_attempt": b"cancelled",
    "cancel_what_waits": b"marked",
    "cancel_what_waits_of_a_tenant": b"marked",
    "cancel_again": b"marked",
    "cancel_what_is_in_flight": b"in_flight",
    "cancel_in_vain": b"unknown",
    "pause_the_queue": b"1",
    "pause_a_tenant": b"1",
    "pause_a_tenant_without_messages": b"1",
    "pause_a_tenant_again": b"0",
    "pause_no_more": b"1",
    "pause_a_tenant_no_more": b"1",
    "renew": b"11",
    "renew_in_vain": b"0",
}


def test_a_call_that_is_sent_twice_gives_the_same_answer_and_changes_nothing(stage: Stage, subtests: pytest.Subtests):
    """The second time everything stays as it is; only a claim and a renewal may begin their leases anew."""
    for situation in (*NUMBERED, *BACKFILLS, *RENEWALS):
        compared = without_deadlines if situation in RENEWING else lambda dumped: dumped
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation)
            answer = call()
            assert answer == ANSWERS.get(situation.__name__, answer)
            before = dump(caller.client)
            for _ in range(2):
                assert caller.repeat() == answer
                assert compared(dump(caller.client)) == compared(before)


@pytest.mark.promise("The journal alone tells where every message is.")
@pytest.mark.parametrize("journaled", [False, True], ids=["", "with a journal"])
def test_everything_is_in_order_after_a_call_and_after_its_repetition(
    journaled: bool, stage: Stage, subtests: pytest.Subtests
):
    """Every message in one place, tenants in the ring if and only if they wait, counts and alarms as they should be.

    A journal tells the same, and the repetition tells nothing.
    """
    for situation in EVERY:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation, journaled=journaled)
            for send in (call, caller.repeat):
                send()
                assert faults(caller.client, leased=caller.settings.lease_us > 0) == []


def test_the_repetition_of_an_older_call_is_refused(stage: Stage, subtests: pytest.Subtests):
    """A late request that a later call of its caller has overtaken changes nothing."""
    for situation in NUMBERED:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation)
            call()
            late_request = caller.last
            caller.publish(b"later")
            before = dump(caller.client)
            with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
                late_request()
            assert dump(caller.client) == before


def test_a_call_that_never_arrived_in_time_is_refused(stage: Stage, subtests: pytest.Subtests):
    """Its first arrival, after a later call of the same caller, changes nothing."""
    for situation in NUMBERED:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation)
            caller.publish(b"later", call=900)
            before = dump(caller.client)
            with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
                call(call=899)
            assert dump(caller.client) == before


def test_slots_do_not_know_each_other(caller: Caller, other: Caller):
    """Two callers use the same numbers, and both are heard."""
    assert caller.publish(b"first", call=7) == 1
    assert other.publish(b"second", call=7) == 1
    assert other.publish(b"third", call=8) == 1
    assert caller.client.llen(KEYS.pending) == 3


def test_a_higher_number_need_not_be_the_next(caller: Caller):
    """Numbers that were never used leave no gap to be filled."""
    assert [caller.publish(b"x", call=number) for number in (1, 5, 5, 900_000_000_000)] == [1, 1, 1, 1]
    assert caller.client.llen(KEYS.pending) == 3


def test_ringing_twice_leaves_one_token(caller: Caller):
    """The second answer says that a token lay there."""
    assert caller.notify() == 1
    before = dump(caller.client)
    assert caller.repeat() == 0
    assert dump(caller.client) == before


def test_dropped_messages_are_named_again(caller: Caller):
    """The repetition of a chunk that made room tells the same ids and drops no more."""
    ids = caller.publish_all([b"first", b"second", b"third"])
    caller.settings.limit, caller.settings.overload = 2, "drop"
    assert caller.enqueue(b"fourth") == b"1" + ids[0] + ids[1]
    assert caller.repeat() == b"1" + ids[0] + ids[1]
    assert caller.client.llen(KEYS.pending) == 2


def test_a_refused_hand_off_stays_refused_when_there_is_room(caller: Caller):
    """What was told "full" is not done by a repetition: its caller has gone on with the message in hand."""
    held = caller.hold(b"first")
    caller.client.lpush(TARGET.pending, b"in the way")
    assert caller.hand_off(held, b"second", limit=1) == b"-1"
    caller.client.delete(TARGET.pending)
    assert caller.repeat() == b"-1"
    assert caller.renew(held) == b"1"
    assert not caller.client.exists(TARGET.pending)


def test_a_duplicate_stays_one_when_its_window_has_ended(caller: Caller):
    """What was told "suppressed" is not let in by a repetition."""
    caller.publish(b"first", marker="a key")
    assert caller.publish(b"second", marker="a key") == 0
    caller.client.delete(KEYS.deduplication("a key"))
    assert caller.repeat() == 0
    assert caller.claim(5).payloads == [b"first"]


def test_a_refused_message_stays_out_when_there_is_room(caller: Caller, other: Caller):
    """What was told "full" is not let in by a repetition."""
    caller.publish(b"first")
    caller.settings.limit = 1
    assert caller.enqueue(b"second") == b"-"
    assert other.claim().payloads == [b"first"]
    assert caller.repeat() == b"-"
    assert caller.client.llen(KEYS.pending) == 0


# Claims that are sent again


def test_a_claim_sent_again_gives_the_message_under_the_same_lease(caller: Caller):
    """Body, lease number, count and origin are those of the first answer."""
    caller.publish(b"first")
    taken = caller.claim().only
    assert (taken.payload, taken.attempts, taken.count, taken.origin) == (b"first", 1, 1, "queue")
    assert caller.repeat().only == taken


@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("expired", [False, True], ids=["before its end", "after its end"])
def test_a_claim_sent_again_renews_the_lease_in_full(caller: Caller, expired: bool, tenant: str | None):
    """The caller learns of its messages only now, so their time begins now; and they stay in their order."""
    held = caller.hold(b"first", b"second", b"third", tenant=tenant)
    in_full = caller.deadlines()
    caller.pass_time(2 * HOUR_US if expired else HOUR_US // 2)
    assert caller.repeat().taken == held
    renewed = caller.deadlines()
    assert list(renewed) == [one.token for one in held]
    assert all(renewed[id] >= in_full[id] for id in in_full)


@pytest.mark.parametrize(
    "leave",
    [
        lambda other, taken: other.settle(taken),
        lambda other, taken: other.settle(taken, kept=KEYS.completed),
        lambda other, taken: other.requeue(taken),
        lambda other, taken: other.retry_later(taken),
    ],
    ids=["acknowledged", "kept in a list", "requeued", "retried later"],
)
def test_a_claim_sent_again_leaves_out_what_has_left(caller: Caller, other: Caller, leave):
    """What was settled or requeued meanwhile is not handed out a second time."""
    first, second = caller.hold(b"first", b"second")
    leave(other, [first])
    before = without_deadlines(dump(caller.client))
    assert caller.repeat().taken == (second,)
    assert without_deadlines(dump(caller.client)) == before


@pytest.mark.parametrize("how", ["expired", "requeued"])
def test_a_claim_sent_again_leaves_out_what_another_holds(caller: Caller, other: Caller, how: str):
    """The new holder's lease is neither shared nor touched."""
    taken = caller.hold(b"first")
    caller.expire() if how == "expired" else other.requeue(taken)
    assert other.claim().only.attempts == 2
    before = dump(caller.client)
    assert caller.repeat().taken == ()
    assert dump(caller.client) == before


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_claim_sent_again_gives_what_came_back_to_its_tenant(caller: Caller, other: Caller, tenant: str | None):
    """Nobody has taken it since: it is leased anew, and does not wait for its tenant's turn any more."""
    held = caller.hold(b"first", b"second", tenant=tenant)
    ask_again = caller.last
    other.enqueue_for("zeta", b"somebody else's")
    caller.expire()
    assert other.claim().payloads == [b"somebody else's"]
    assert ask_again().taken == held
    assert list(caller.deadlines())[-2:] == [one.token for one in held]
    assert faults(caller.client) == []
    assert other.claim(9).taken == ()


def test_a_batch_sent_again_returns_the_numbers_of_each_message(caller: Caller):
    """Lease, count, failures, origin and tenant: of one that is new, one that failed, and one that expired."""
    caller.retry_later(caller.hold(b"failed", tenant="acme"))
    caller.hold(b"expired")
    caller.expire()
    caller.pass_delays()
    caller.enqueue(New(b"new", b"zeta"))
    claimed = caller.claim(9)
    numbers = {one.payload: (one.attempts, one.count, one.failures, one.origin, one.tenant) for one in claimed.taken}
    assert numbers == {
        b"failed": (2, 1, 1, "queue", "acme"),
        b"expired": (2, 2, 0, "lease", None),
        b"new": (1, 1, 0, "queue", "zeta"),
    }
    assert caller.repeat() == claimed


def test_a_claim_sent_again_takes_nothing_new(caller: Caller):
    """Empty at first, it stays empty, though there is work by now; a new call takes it."""
    assert caller.claim().taken == ()
    empty = caller.last
    Caller(caller.client, "b").publish(b"first")
    assert empty().taken == ()
    assert caller.claim().payloads == [b"first"]


def test_asking_with_count_0_repeats_the_answer(caller: Caller):
    """After its deadline a caller asks what its claim took in time, and holds it."""
    held = caller.hold(b"first", b"second")
    Caller(caller.client, "b").publish(b"third")
    assert caller.claim(0, call=caller.number).taken == held


def test_asking_with_count_0_shuts_out_a_claim_that_never_arrived(caller: Caller, other: Caller):
    """It answers nothing, and so does the claim itself when it arrives at last."""
    other.publish_all([b"first", b"second"])
    before = dump(caller.client)
    assert caller.claim(0, call=5).taken == ()
    assert caller.claim(1, call=5).taken == ()
    after = dump(caller.client)
    del after[caller.reply.encode()]
    assert after == before
    assert other.claim(2).payloads == [b"first", b"second"]
