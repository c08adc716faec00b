"""A key of the wrong type makes a script fail before it has changed anything.

`watch` is the exception: whatever lies there may be overwritten or removed, for it only says that somebody is awake.
"""

from itertools import product

import pytest
import redis

from redis_message_queue.stored.scripts import all_names, script
from tests.lua import group_situations, situations
from tests.lua.scripts_runner import (
    KEYS,
    TARGET_WORDS,
    TIMER_OWNER,
    Caller,
    Claimed,
    Taken,
    dump,
    evaluate,
    records_beside,
)
from tests.lua.situations import EVERY, Call, Situation, script_of, title
from tests.lua.stage import Stage
from tests.lua.state import faults
from tests.tables import row

pytestmark = pytest.mark.topic("Publishing")

# For each script a call that needs all of its keys; and the keys that it does without. `line` and `returned` are keys
# of a tenant, which scripts make themselves. What a script only tidies up when its work is done may be of any type.
FULLEST: list[tuple[Situation, set[str]]] = [
    (situations.publish_with_a_key, set()),
    (situations.enqueue_everything_at_once, set()),
    (situations.backfill_behind_others, {"longest"}),
    (situations.claim_everything_at_once, {"timer_owner", "expired"}),
    (situations.take_the_usual_way, set()),
    (situations.ack_one, set()),
    (situations.ack_and_take, set()),
    (situations.settle_what_was_delivered_twice, {"pending", "tenant_ring", "expired"}),
    (situations.requeue_to_tenants, {"expired"}),
    (situations.retry_later, {"pending", "tenant_ring", "expired"}),
    (situations.hand_off_everything_at_once, {"pending"}),
    (situations.redrive_everything_at_once, set()),
    (situations.restore_everything_at_once, set()),
    (situations.append, set()),
    (situations.stats, set()),
    (situations.read_page, set()),
    (situations.sweep_a_line_of_a_tenant, {"pending", "kept", "records"}),
    (situations.sweep_a_list, {"pending", "tenant_pending", "expired"}),
    (situations.cancel_what_waits_for_its_next_attempt, set()),
    (situations.cancel_what_waits, set()),
    (situations.pause_a_tenant_no_more, {"pending"}),
    (situations.renew_what_came_back, {"pending", "tenant_ring"}),
    (situations.schedule, set()),
    (situations.unschedule, set()),
    (situations.tick_for_tenants, set()),
    (situations.read_schedules, set()),
    (situations.open_queue, {"counted"}),
    (situations.open_queue_with_partitions, set()),
    (situations.grow_partition, set()),
    (situations.read_shared_state, set()),
    (situations.share_state, set()),
    (situations.announce_worker, set()),
    (situations.notify, set()),
    (group_situations.acquire_group, set()),
    (group_situations.fill_batch_everything_at_once, {"expired"}),
    (group_situations.reject_members_what_was_delivered_twice, set()),
    (group_situations.seal_batch, set()),
    (group_situations.ack_batch_what_was_delivered_twice, set()),
    (group_situations.release_batch_to_tenants, set()),
]
OF_A_TENANT = {
    "backfill": {"tenant_pending"},
    "enqueue": {"tenant_pending"},
    "claim": {"tenant_pending", "expired"},
    "settle": {"expired"},
    "requeue": {"tenant_pending", "expired"},
    "retry_later": {"expired"},
    "hand_off": {"expired", "target tenant_pending", *(f"target {word}" for word in TARGET_WORDS)},
    "redrive": {"tenant_pending"},
    "restore": {"tenant_pending"},
    "tick": {"tenant_pending"},
    "stats": {"tenant_pending"},
    "sweep": {"tenant_pending", "expired"},
    "fill_batch": {"tenant_pending", "expired"},
    "release_batch": {"tenant_pending", "expired"},
}
ASIDE = "aside"
WRONG = {
    "string": ("SET", "something else"),
    "list": ("RPUSH", "something", "else"),
    "hash": ("HSET", "something", "else"),
    "zset": ("ZADD", 1, "something"),
}
# Puts a value where a key is, and what was there aside.
_SPOIL = """
local name, aside, command = ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', name) == 1 then
  redis.call('RENAME', name, aside)
end
redis.call(command, name, unpack(ARGV, 4))
"""
RIGHT = {
    **dict.fromkeys(("pending", "tenant_pending", "wakeup", "dlq", "kept", "records", "completed", "failed"), "list"),
    **dict.fromkeys(("members", "sources"), "list"),
    **dict.fromkeys(("processing", "deliveries", "delayed_messages", "weights", "group", "groups", "meta"), "hash"),
    "backfill": "hash",
    "schedule": "hash",
    **dict.fromkeys(("counted", "before"), "hash"),
    "journal": "stream",
    **dict.fromkeys(("reply", "ack_reply", "marker", "markers", "tenant_backlog", "longest"), "string"),
    **dict.fromkeys(("leases", "expired", "delayed", "tenant_ring", "cancelled", "schedules"), "zset"),
    "tenant_in_flight": "zset",
    "connected_workers": "zset",
}


def keys_of(situation: Situation, spared: set[str]) -> list[str]:
    """The keys of its script, without some."""
    name = script_of(situation)
    return sorted({*script(name).keys, *OF_A_TENANT.get(name, ())} - {"targets", *spared})


def spoil(caller: Caller, situation: Situation, key: str, kind: str) -> str:
    """Put a value of this type where the key is, and what was there aside."""
    name = caller.key(key)
    if key.endswith("journal"):  # it is of no interest to a queue without a journal
        rules = {"journal": 0, "journal_soft": 100, "journal_hard": 100}
        caller.client.hset(caller.key(key.replace("journal", "meta")), mapping=rules)
    if key in ("tenant_in_flight", "wakeup"):  # these are of no interest to a queue without limits
        caller.client.hset(KEYS.meta, "counts", 1)
    if key == "records" and script_of(situation) in ("settle", "hand_off", "sweep"):
        name = records_beside(caller.key("kept"))
    command, *values = WRONG[kind]
    evaluate(caller.client, _SPOIL, name, ASIDE, command, *values)
    return name


def put_right(caller: Caller, name: str) -> None:
    """Put back what was there."""
    caller.client.delete(name)
    if caller.client.exists(ASIDE):
        caller.client.rename(ASIDE, name)


def test_every_key_of_every_script_is_tried():
    """A new script needs its row in the table, and then each of its keys is tried."""
    assert sorted({script_of(situation) for situation, _ in FULLEST}) == all_names()


@pytest.mark.promise("A publish to a key of the wrong type fails and changes nothing.")
def test_a_key_of_a_wrong_type_fails_the_script_and_nothing_has_changed(stage: Stage, subtests: pytest.Subtests):
    """Each key of each script, where the script has a use for it."""
    for situation, spared in FULLEST:
        for key, kind in product(keys_of(situation, spared), ("string", "list", "zset")):
            if kind == RIGHT[key.removeprefix("target ")]:
                continue
            with row(subtests, situation=title(situation), key=key, kind=kind):
                caller, call = stage.prepare(situation)
                spoil(caller, situation, key, kind)
                before = dump(caller.client)
                with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                    call()
                assert dump(caller.client) == before


@pytest.mark.parametrize("name", sorted({script_of(situation) for situation in EVERY}))
def test_a_script_fails_whole_or_does_without_the_key(name: str, stage: Stage, subtests: pytest.Subtests):
    """In no situation is half of the work done before a key of a wrong type is found, whichever it is."""
    for situation in (one for one in EVERY if script_of(one) == name):
        for key in keys_of(situation, {"timer_owner"}):
            with row(subtests, situation=title(situation), key=key):
                caller, call = stage.prepare(situation)
                is_late = name == "claim" and key in ("tenant_pending", "expired")
                is_left_to_two_scripts = name == "ack_and_take" and situation is not situations.ack_and_take
                # It learns whose turn it is when it has brought in what is due: that may have happened, and no more.
                # The ack that it was sent with may be done.
                fails_whole_or_does_without(caller, call, situation, key, tidies=is_late or is_left_to_two_scripts)


def fails_whole_or_does_without(caller: Caller, call: Call, situation: Situation, key: str, *, tidies: bool) -> None:
    """Make a call with a key of a wrong type; one that `tidies` may have done so before it failed."""
    name = spoil(caller, situation, key, "list" if RIGHT[key.removeprefix("target ")] == "string" else "string")
    before = dump(caller.client)
    try:
        call()
    except redis.ResponseError:
        if tidies:
            put_right(caller, name)
            assert faults(caller.client, leased=caller.settings.lease_us > 0) == []
        else:
            assert dump(caller.client) == before
    else:
        assert dump(caller.client)[name.encode()] == before[name.encode()]


@pytest.mark.parametrize("kind", WRONG)
def test_a_watch_of_any_type_does_not_keep_a_claim_from_its_work(kind: str, caller: Caller):
    """The watch may hold anything: a claim works, and a watcher that leaves removes it."""
    caller.publish(b"first")
    command, *values = WRONG[kind]
    caller.client.execute_command(command, KEYS.timer_owner, *values)
    assert caller.claim(woken=TIMER_OWNER).payloads == [b"first"]
    assert not caller.client.exists(KEYS.timer_owner)


@pytest.mark.parametrize("answer", [b"", b"garbage", b"1", b"\x81", b"\xc0"])
def test_an_answer_of_another_kind_under_the_number_of_a_claim_fails_it(answer: bytes, caller: Caller):
    """A claim that cannot read what it took before takes nothing."""
    caller.publish(b"first", call=5)
    caller.client.set(caller.reply, caller.client.get(caller.reply)[:-1] + answer)
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError):
        caller.claim(call=5)
    assert dump(caller.client) == before


ENTRIES = [b"", b"nonsense", b"2", b":2", b"2:2:2:2", b"2:2\n", b"2:2:x", b"2::1"]


def held_with_entries(caller: Caller) -> tuple[Taken, ...]:
    """Two messages that were delivered twice."""
    caller.hold(b"first", b"second")
    caller.expire()
    return caller.claim(2).taken


ACTS = {
    "settle": lambda caller, held: caller.settle(held),
    "settle into a list": lambda caller, held: caller.settle(held, kept=KEYS.completed),
    "requeue": lambda caller, held: caller.requeue(held),
    "claim sent again": lambda caller, held: caller.claim(0, call=caller.number),
}


def test_a_damaged_entry_in_the_deliveries_does_not_stop_the_holder(stage: Stage, subtests: pytest.Subtests):
    """Who holds a message is told by the lease; the entry only counts."""
    for act, entry in product(ACTS, ENTRIES):
        with row(subtests, act=act, entry=entry):
            caller, held = stage.prepare(held_with_entries)
            caller.client.hset(KEYS.deliveries, held[1].id, entry)
            told = ACTS[act](caller, held)
            assert told.taken == held if isinstance(told, Claimed) else told == b"11"
            assert faults(caller.client) == []


def test_a_damaged_entry_in_the_deliveries_does_not_matter_for_renewing(stage: Stage, subtests: pytest.Subtests):
    """Nobody looks at it."""
    for entry in ENTRIES:
        with row(subtests, entry=entry):
            caller, held = stage.prepare(held_with_entries)
            caller.client.hset(KEYS.deliveries, held[1].id, entry)
            assert caller.renew(held) == b"11"


def test_a_message_with_a_damaged_entry_is_set_aside_with_its_reason(stage: Stage, subtests: pytest.Subtests):
    """How often it was delivered is not known: it becomes a dead letter, and the others go on."""
    for place, entry in product(("in the line", "with an expired lease"), ENTRIES):
        with row(subtests, place=place, entry=entry):
            caller, held = stage.prepare(held_with_entries)
            caller.requeue(held) if place == "in the line" else caller.expire()
            caller.client.hset(KEYS.deliveries, held[1].id, entry)
            claimed = caller.claim(2)
            assert [one.id for one in claimed.taken] == [held[0].id]
            assert [(id, reason) for id, _, reason in claimed.dead] == [(held[1].id, "damaged")]
            (record,) = caller.records(KEYS.dead_letter)
            assert (record["id"], record["reason"]) == (held[1].id.hex(), "damaged")
            assert faults(caller.client) == []
