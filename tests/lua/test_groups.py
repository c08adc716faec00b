"""Scripts of consumer groups: each can be sent twice, changes all or nothing, and works for the holder only."""

import json
import os
from collections.abc import Iterator
from itertools import product

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored.envelope import TIME_AT, Envelope
from tests.depth import often
from tests.lua import group_situations as groups
from tests.lua.group_situations import EVERY, GROUP, Holder, holding, sealed
from tests.lua.scripts_runner import KEYS, Caller, Dump, Taken, dump, numbered
from tests.lua.situations import script_of, title
from tests.lua.stage import Stage
from tests.lua.state import faults, read
from tests.lua.test_full_memory import prepare, run_out_of_memory
from tests.lua.test_random_sequences import KINDS, STEPS, World
from tests.lua.test_wrong_types import fails_whole_or_does_without, keys_of
from tests.tables import row

pytestmark = pytest.mark.topic("Streaming queries in Spark")


EMPTY = b"-"  # the place of a message that was rejected
with_and_without_a_journal = pytest.mark.parametrize("journaled", [False, True], ids=["", "with a journal"])


@pytest.fixture(params=[False, True], ids=["", "with a journal"])
def caller(request: pytest.FixtureRequest, caller: Caller) -> Caller:
    """Everything is tried in a queue without a journal, and in one with: there the quick ways are closed."""
    if request.param:
        caller.open_journal()
    return caller


def without_deadline(dumped: Dump) -> Dump:
    """The same without the moment until which the group is held."""
    known = dict(dumped.get(KEYS.group(GROUP).encode(), {}))
    known.pop(b"deadline", None)
    return dumped | {KEYS.group(GROUP).encode(): known}


def counts_of(client: redis.Redis) -> tuple[int, int, int]:
    """How many messages lie in claims: by the lists, by the group's counter, by the one of all."""
    keys = client.scan_iter(f"{KEYS.group(GROUP)}::*")
    lists = sum(member != EMPTY for key in keys for member in client.lrange(key, 0, -1))
    return lists, int(client.hget(KEYS.groups, GROUP) or 0), int(client.hget(KEYS.groups, "") or 0)


@with_and_without_a_journal
def test_a_call_sent_twice_counts_once(journaled: bool, stage: Stage, subtests: pytest.Subtests):
    """The answer is the same, and so is everything that the server holds."""
    for situation in EVERY:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation, journaled=journaled)
            answer = call()
            after = without_deadline(dump(caller.client))
            repeated = caller.repeat()
            if script_of(situation) == "acquire_group":
                assert repeated[:2] == answer[:2]
            elif script_of(situation) != "release_batch":  # which says where it is, and that it is done
                assert repeated == answer
            assert without_deadline(dump(caller.client)) == after


@pytest.mark.promise("A query writes the journal of its queue in the scripts that move the messages.")
@with_and_without_a_journal
def test_a_message_is_in_one_place_counted_and_recorded(journaled: bool, stage: Stage, subtests: pytest.Subtests):
    """After the call and after its repetition; a journal tells the same, and of the repetition nothing."""
    for situation in EVERY:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation, journaled=journaled)
            for send in (call, caller.repeat):
                send()
                assert faults(caller.client) == []
                assert len(set(counts_of(caller.client))) == 1


def test_a_script_fails_whole_or_does_without_the_key(stage: Stage, subtests: pytest.Subtests):
    """In no situation is half of the work done before a key of a wrong type is found, whichever it is."""
    for situation in EVERY:
        for key in keys_of(situation, set()):
            with row(subtests, situation=title(situation), key=key):
                caller, call = stage.prepare(situation)
                # It learns whose turn it is when it has brought in what is due: that may have happened, and no more.
                is_late = script_of(situation) == "fill_batch" and key in ("tenant_pending", "expired")
                fails_whole_or_does_without(caller, call, situation, key, tidies=is_late)


OVERTAKEN = {
    # Another holder has come in between; it is the epoch that tells, not the time.
    "a later epoch": (("epoch", 2), "STALE epoch 1 of a consumer group that is at epoch 2"),
    # As on a server that was flushed, or restored from an older state: epochs are counted anew there.
    "another holder": (("holder", "b"), "STALE epoch 1 of a consumer group that is at epoch 1"),
}


@pytest.mark.promise("One query at a time owns a consumer group, and a replaced query can change nothing.")
@with_and_without_a_journal
@pytest.mark.parametrize("change, refusal", OVERTAKEN.values(), ids=OVERTAKEN)
def test_a_holder_that_was_overtaken_is_refused_and_has_changed_nothing(
    change: tuple[str, str | int], refusal: str, journaled: bool, stage: Stage, subtests: pytest.Subtests
):
    for situation in (one for one in EVERY if one not in groups.TAKE_OVERS):
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation, journaled=journaled)
            caller.client.hset(KEYS.group(GROUP), *change)
            before = dump(caller.client)
            with pytest.raises(redis.ResponseError, match=refusal):
                call()
            assert dump(caller.client) == before


@pytest.mark.parametrize("field", ["sealed", "acked", "cleared", "part", "1"])
def test_a_foreign_value_in_the_group_fails_a_gathering(field: str, caller: Caller):
    call = groups.fill_batch(caller)
    caller.client.hset(KEYS.group(GROUP), field, "something else")
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError, match="foreign value"):
        call()
    assert dump(caller.client) == before


def hold_beside_another_group(caller: Caller) -> Holder:
    caller.publish_all(numbered(3))
    caller.client.hset(KEYS.groups, "another group", 5)
    return holding(caller)


@with_and_without_a_journal
def test_a_damaged_count_of_messages_is_counted_anew(journaled: bool, stage: Stage, subtests: pytest.Subtests):
    """No message is put into a claim twice, and the claim can be acked."""
    # Of the group, and of all groups.
    for field, number in product((GROUP, ""), ("", "nonsense", "007", "1.5", "9" * 20, str(2**63 - 1))):
        with row(subtests, field=field, number=number):
            caller, holder = stage.prepare(hold_beside_another_group, journaled=journaled)
            caller.client.hset(KEYS.groups, field, number)
            assert holder.fill_batch()[1] == 3
            assert caller.client.llen(KEYS.pending) == 0
            assert len(holder.members()) == 3
            assert caller.client.hmget(KEYS.groups, GROUP, "") == [b"3", b"8"]
            holder.seal_batch()
            caller.client.hset(KEYS.groups, field, number)
            assert holder.ack_batch(1) == [1, 1]
            assert caller.client.hmget(KEYS.groups, GROUP, "") == [b"0", b"5"]


FOREIGN_MEMBERS = [b"", b"hello", b"5:hello", b"5:", b"\x81", b"\x80 too short", b"7:\x85"]


@pytest.mark.parametrize("member", FOREIGN_MEMBERS)
def test_a_foreign_value_in_a_claim_can_be_acked(member: bytes, caller: Caller):
    caller.publish_all(numbered(3))
    holder = sealed(caller)
    caller.client.lset(KEYS.members(GROUP, 1), 1, member)
    assert holder.ack_batch(1) == [1, 1]
    assert not caller.client.exists(KEYS.members(GROUP, 1))


@pytest.mark.parametrize("member", FOREIGN_MEMBERS)
def test_a_foreign_value_in_a_claim_is_set_aside_after_its_release(member: bytes, caller: Caller):
    """It goes back like the messages around it, and the next claim finds that it is none."""
    first, _, third = numbered(3)
    caller.publish_all(numbered(3))
    holder = sealed(caller)
    caller.client.lset(KEYS.members(GROUP, 1), 1, member)
    assert holder.release_batch() == [0, 0]
    claimed = caller.claim(3)
    assert claimed.payloads == [first, third]
    assert [reason for _, _, reason in claimed.dead] == ["foreign"]
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [member]


# Holding


def test_a_held_group_is_not_taken_over_before_its_time(caller: Caller):
    holding(caller)
    taken, epoch, wait_us = Holder(caller, "b").acquire_group(1)
    assert (taken, epoch) == (0, 1)
    assert 0 < wait_us <= 60_000_000


def test_a_group_whose_holder_is_silent_goes_to_the_next_in_the_next_epoch(caller: Caller):
    holding(caller).acquire_group(lease_us=0)
    assert Holder(caller, "b").acquire_group(1) == [1, 2, 0]


def test_a_holder_that_was_overtaken_cannot_renew(caller: Caller):
    first = holding(caller)
    first.acquire_group(lease_us=0)
    Holder(caller, "b").acquire_group(1)
    assert first.acquire_group(0)[:2] == [0, 2]


def test_a_take_over_that_was_on_its_way_for_long_takes_nothing(caller: Caller):
    """It comes after an epoch that is over, although nobody holds the group at the moment."""
    first = holding(caller)
    first.acquire_group(lease_us=0)
    Holder(caller, "b").acquire_group(1, lease_us=0)
    assert first.acquire_group(0)[:2] == [0, 2]


def test_a_holder_that_was_silent_for_long_and_not_missed_goes_on(caller: Caller):
    first = holding(caller)
    first.renew(lease_us=0)
    assert first.renew() == [1, 1, 0]


def test_a_holder_does_not_become_one_anew_when_it_renews(caller: Caller):
    """Its group is gone, and so are its batches: it has to hear of that."""
    first = holding(caller)
    caller.client.delete(KEYS.group(GROUP))
    assert first.renew() == [0, 0, 0]
    assert not caller.client.exists(KEYS.group(GROUP))


# Gathering


def test_messages_are_gathered_in_their_order_and_leave_the_line(caller: Caller):
    caller.publish_all(numbered(25))
    holder = holding(caller)
    assert holder.fill_batch(10) == [1, 10, 10, 0, [], b""]
    assert holder.fill_batch(10) == [2, 10, 20, 0, [], b""]
    assert [one[25:] for one in holder.members()] == numbered(25)[:20]
    assert caller.claim(10).payloads == numbered(25)[20:]


def test_a_part_that_comes_late_is_refused(caller: Caller):
    caller.publish_all(numbered(30))
    holder = holding(caller)
    for _ in range(2):
        holder.fill_batch(10)
    with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
        holder.fill_batch(10, part=1)
    holder.seal_batch(part=2)
    with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
        holder.fill_batch(10, part=3)
    assert caller.client.llen(KEYS.pending) == 10


def test_a_part_that_found_nothing_writes_nothing_and_leaves_its_number_free(caller: Caller):
    holder = holding(caller)
    before = dump(caller.client)
    assert holder.fill_batch() == [0, 0, 0, 0, [], b""]
    assert dump(caller.client) == before
    caller.publish(b"first")
    assert holder.fill_batch(part=1) == [1, 1, 1, 0, [], b""]


def test_what_came_back_is_counted_as_delivered_twice_and_nobody_else_holds_it(caller: Caller):
    held = caller.hold(b"first", b"second")
    caller.expire()
    holder = holding(caller)
    assert holder.fill_batch()[1] == 2
    assert [one[:2] for one in holder.members()] == [b"2:", b"2:"]
    assert caller.settle(held) == b"00"
    assert caller.client.hlen(KEYS.processing) == caller.client.zcard(KEYS.leases) == 0


def test_tenants_are_gathered_in_turn(caller: Caller):
    caller.enqueue_for("acme", *numbered(3, "acme"))
    caller.enqueue_for("zeta", *numbered(1, "zeta"))
    holder = holding(caller)
    holder.fill_batch()
    tails = [one.rpartition(b" ")[0][-4:] for one in holder.members()]
    assert tails == [b"acme", b"zeta", b"acme", b"acme"]
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.tenant_backlog)


def test_dead_letters_on_the_way_are_recorded_once(caller: Caller):
    call = groups.fill_batch_everything_at_once(caller)
    part, added, length, again, dead, trimming = call()
    assert (part, added, length, again) == (1, 4, 4, 0)
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"foreign", b"over the limit"]
    assert (dead[1:3], dead[3:6], dead[7:], trimming) == (
        [2, b"deliveries"],
        [b"", 0, b"foreign"],
        [0, b"cancelled"],
        b"",
    )
    assert dead[0].hex() == caller.records(KEYS.dead_letter)[1]["id"]


def test_dead_letters_are_told_again_to_a_repeated_call_and_not_to_the_next(caller: Caller):
    """Also when the part brought no message, and that the list was cut to its limit."""
    caller.settings.dlq_limit = 1
    caller.client.rpush(KEYS.pending, b"one", b"two")
    holder = holding(caller)
    told = holder.fill_batch()
    assert told[1:] == [0, 0, 0, [b"", 0, b"foreign"] * 2, b"cut 1"]
    assert holder.fill_batch(part=1) == told
    caller.publish(b"ours")
    assert holder.fill_batch()[1:] == [1, 1, 0, [], b""]
    assert holder.fill_batch(part=2)[4:] == [[], b""]


def test_what_is_too_old_is_not_gathered_the_quick_way_either(caller: Caller):
    caller.settings.ttl_us = 1
    caller.publish_all([b"first", b"second"])
    holder = holding(caller)
    assert holder.fill_batch()[1] == 0
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"second", b"first"]


def test_a_holder_that_leaves_work_behind_notifies(caller: Caller):
    caller.publish_all(numbered(3))
    caller.take_token()
    holding(caller).fill_batch(2)
    assert caller.tokens() == 1


def test_after_delays_and_tenants_are_gone_the_quick_way_is_open_again(caller: Caller):
    """Neither alarm stays behind."""
    groups.fill_batch_everything_at_once(caller)()
    assert caller.client.zrange(KEYS.leases, 0, -1) == []


def test_large_messages_are_gathered_in_smaller_parts(caller: Caller):
    caller.publish_all([b"x" * 3_000_000] * 5)
    assert holding(caller).fill_batch(5)[1] == 2


# Ending


def test_what_is_acknowledged_is_gone_with_its_entries(caller: Caller):
    groups.ack_batch_what_was_delivered_twice(caller)()
    assert not caller.client.exists(KEYS.deliveries, KEYS.members(GROUP, 1), KEYS.processing)
    assert counts_of(caller.client) == (0, 0, 0)


def test_many_messages_with_entries_are_acknowledged_in_bounded_steps(caller: Caller):
    caller.publish_all(numbered(1_500))
    caller.claim(1_000)
    caller.claim(500)
    caller.expire()
    holder = holding(caller)
    assert [holder.fill_batch(10_000)[1] for _ in range(2)] == [1_000, 500]
    holder.seal_batch()
    assert holder.ack_batch(1) == [1, 0]
    assert counts_of(caller.client) == (500, 500, 500)
    assert holder.ack_batch(1) == [1, 1]
    assert not caller.client.exists(KEYS.deliveries, KEYS.members(GROUP, 1))


def test_a_seal_that_arrives_late_does_not_seal_what_was_filled_since(caller: Caller):
    """It was sent when there was nothing to seal; another answer came, and the claim went on."""
    holder = holding(caller)
    assert holder.seal_batch(part=0) == 0
    caller.publish_all(numbered(2))
    holder.fill_batch(1)
    assert holder.seal_batch(part=0) == 0
    assert holder.fill_batch(1)[1] == 1
    assert holder.seal_batch() == 1
    assert len(holder.members()) == 2


def test_what_is_not_sealed_cannot_be_acknowledged(caller: Caller):
    with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
        holding(caller).ack_batch(1)


def test_lost_claims_are_not_jumped_over_while_others_lie_there(caller: Caller):
    caller.publish(b"first")
    holder = sealed(caller)
    with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
        holder.ack_batch(7, jump=1)


def test_what_is_released_stands_at_the_head_in_its_order(caller: Caller):
    caller.publish_all(numbered(5))
    holder = sealed(caller, 3)
    assert holder.release_batch(1) == [1, 1]
    assert holder.release_batch(0) == [0, 0]
    claimed = caller.claim(5)
    assert claimed.payloads == numbered(5)
    assert [one.count for one in claimed.taken] == [2, 2, 2, 1, 1]
    assert faults(caller.client) == []


def test_what_is_released_to_tenants_keeps_its_order_and_ring(caller: Caller):
    groups.release_batch_to_tenants(caller)()
    assert faults(caller.client) == []
    assert caller.tokens() == 1


def test_a_released_claim_does_not_come_back_under_its_number(caller: Caller):
    caller.publish(b"first")
    holder = sealed(caller)
    holder.release_batch()
    holder.part = 0
    with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
        holder.fill_batch()
    holder.number = 2
    assert holder.fill_batch(part=1)[1] == 1


# Full memory


@pytest.fixture(scope="module")
def limited(server_setting: str) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(binary=server_setting, config={"maxmemory-policy": "noeviction"}) as started:
        yield started


@pytest.fixture(scope="module")
def limited_stage(limited: EmbeddedRedis) -> Iterator[Stage]:
    with limited.client() as client:
        yield Stage(client)


def test_a_server_without_memory_can_be_drained_by_a_query(limited_stage: Stage, subtests: pytest.Subtests):
    """What it gathers is what it would gather elsewhere."""
    for situation in groups.GATHERINGS:
        with row(subtests, situation=title(situation)):
            _, call = prepare(limited_stage, situation)
            expected = call()
            caller, call = prepare(limited_stage, situation)
            run_out_of_memory(caller.client)
            assert call() == expected
            assert faults(caller.client) == []


def test_a_server_without_memory_can_be_emptied(limited_stage: Stage, subtests: pytest.Subtests):
    """Everything succeeds as ever."""
    for situation in (*groups.TAKE_OVERS, groups.fill_batch_in_vain, *groups.ENDS):
        with row(subtests, situation=title(situation)):
            _, call = prepare(limited_stage, situation)
            expected = call()
            caller, call = prepare(limited_stage, situation)
            run_out_of_memory(caller.client)
            assert call()[:2] == expected[:2] if isinstance(expected, list) else call() == expected


# Beside consumers


class WorldWithAQuery(World):
    """A queue that callers and a streaming query work on at once."""

    def __init__(self, client: redis.Redis, seed: int, settings: dict[str, int | str]) -> None:
        super().__init__(client, seed, settings)
        self.holder = holding(Caller(client, "query", **settings))

    def fill_batch(self) -> None:
        before = len(self.holder.members(self.holder.number))
        part, added, length, *_ = self.holder.fill_batch(self.chance.choice([1, 2, 5]))
        self.holder.part = part
        state = read(self.client)
        for id in self.alive - set(state.ids):
            self._leaves(id)  # delivered too often or too late
        entered = [Envelope(stored) for stored in state.claims[before:]]
        assert (added, length) == (len(entered), len(state.claims))
        for one in entered:
            lease, count = state.deliveries.get(one.id, b"1:1").split(b":")[:2]
            self._is_taken(Taken(one.id, one.payload, int(lease), int(count), "queue", 0, one.tenant, os.urandom(20)))
            del self.held[one.id]  # no caller holds it

    def ack_batch(self) -> None:
        if self._seals():
            claims = read(self.client).claims
            self.holder.ack_batch(self.holder.number)
            for stored in claims:
                self._leaves(Envelope(stored).id)
            self._goes_on()

    def release_batch(self) -> None:
        if self._seals():
            assert self.holder.release_batch() == [0, 0]
            self._goes_on()

    def _seals(self) -> bool:
        return self.holder.seal_batch() == self.holder.number

    def _goes_on(self) -> None:
        self.holder.number, self.holder.part = self.holder.number + 1, 0

    def step(self) -> str:
        if self.chance.random() < 0.7:
            return super().step()
        name = self.chance.choice(["fill_batch", "fill_batch", "ack_batch", "release_batch"])
        getattr(self, name)()
        return name


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(often(1, 2)))
def test_a_query_beside_consumers_loses_doubles_and_forgets_nothing(
    seed: int, kind: dict[str, int | str], client: redis.Redis
):
    """After each of many steps of many kinds; every second queue has a journal."""
    world = WorldWithAQuery(client, seed, kind)
    steps = []
    for _ in range(STEPS):
        steps.append(world.step())
        try:
            world.check()
            assert len(set(counts_of(client))) == 1
        except AssertionError as error:
            error.add_note(f"after {' '.join(steps)}")
            raise


# Messages that a query cannot read


def test_rejected_messages_are_dead_letters_and_the_others_stay_in_the_claim(caller: Caller):
    caller.publish_all(numbered(4))
    holder = holding(caller)
    holder.fill_batch()
    first, second, third, fourth = holder.members()
    assert holder.reject_members(*holder.places(1, 3)) == [2, b""]
    assert holder.members() == [first, EMPTY, third, EMPTY]
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [numbered(4)[3], numbered(4)[1]]
    assert caller.client.hmget(KEYS.groups, GROUP, "") == [b"2", b"2"]
    records = [json.loads(one) for one in caller.client.lrange(KEYS.records("dlq"), 0, -1)]
    assert [(one["id"], one["reason"], one["deliveries"]) for one in records] == [
        (one[1:TIME_AT].hex(), "no text", 1) for one in (fourth, second)
    ]
    assert holder.seal_batch() == 1
    assert holder.ack_batch(1) == [1, 1]
    assert caller.client.hmget(KEYS.groups, GROUP, "") == [b"0", b"0"]


def test_a_claim_of_which_all_messages_are_rejected_can_be_filled_and_sealed(caller: Caller):
    groups.reject_members_what_was_delivered_twice(caller)()
    assert caller.client.hgetall(KEYS.deliveries) == {}
    holder = Holder(caller)
    holder.epoch, holder.part = 1, 1
    assert holder.members() == [EMPTY, EMPTY]
    caller.publish(b"third")
    assert holder.fill_batch()[1:3] == [1, 1]
    assert holder.seal_batch() == 1
    assert caller.client.hget(KEYS.group(GROUP), 1).split(b":")[:3] == [b"1", b"2", b"1"]


@pytest.mark.promise(
    "A replay of a micro-batch reads the same rows in the same tasks, whatever the options are by then."
)
def test_a_sealed_claim_keeps_its_places_and_its_slices(caller: Caller):
    """Whatever is rejected later, and however often a late repetition seals it."""
    caller.publish_all(numbered(4))
    holder = holding(caller)
    holder.fill_batch()
    before = holder.members()
    assert holder.seal_batch(slices=3) == 1
    assert holder.seal_batch(slices=2) == 1
    holder.reject_members(*holder.places(1))
    assert holder.members() == [before[0], EMPTY, *before[2:]]
    assert caller.client.hget(KEYS.group(GROUP), 1).split(b":")[:3] == [b"3", b"1", b"3"]


def test_empty_places_are_not_released(caller: Caller):
    """In whatever pieces: the last two places first."""
    caller.publish_all(numbered(5))
    holder = sealed(caller)
    holder.reject_members(*holder.places(0, 3))
    assert holder.release_batch(3) == [1, 3]
    assert counts_of(caller.client) == (2, 2, 2)
    assert holder.release_batch(0) == [0, 0]
    assert counts_of(caller.client) == (0, 0, 0)
    assert caller.claim(5).payloads == [numbered(5)[place] for place in (1, 2, 4)]
    assert faults(caller.client) == []


def test_empty_places_are_cleared_in_bounded_steps(caller: Caller):
    caller.publish_all(numbered(1_500))
    caller.claim(1_000)
    caller.claim(500)
    caller.expire()
    holder = holding(caller)
    while holder.fill_batch(1_000)[1]:
        pass
    holder.part -= 1
    assert holder.seal_batch() == 1
    holder.reject_members(*holder.places(*range(0, 1_500, 3)))
    assert holder.ack_batch(1) == [1, 0]
    assert len(set(counts_of(caller.client))) == 1
    assert holder.ack_batch(1) == [1, 1]
    assert counts_of(caller.client) == (0, 0, 0)
    assert not caller.client.exists(KEYS.deliveries, KEYS.members(GROUP, 1))


def test_a_message_that_is_not_where_it_should_be_is_left_alone(caller: Caller):
    caller.publish_all(numbered(2))
    holder = holding(caller)
    holder.fill_batch()
    before = dump(caller.client)
    for places in ((0, b"x" * 16), (7, b"x" * 16), (0, holder.places(1)[1])):
        assert holder.reject_members(*places) == [2, b""]
    assert dump(caller.client) == before
    holder.seal_batch()
    holder.ack_batch(1)
    for number in (1, 3):
        holder.number = number
        with pytest.raises(redis.ResponseError, match="OVERTAKEN"):
            holder.reject_members(0, b"x" * 16)


def test_a_sealed_claim_of_which_all_messages_are_rejected_stays_known(caller: Caller):
    caller.publish_all(numbered(2))
    holder = sealed(caller)
    assert holder.reject_members(*holder.places(1, 0)) == [0, b""]
    assert holder.members() == [EMPTY, EMPTY]
    assert counts_of(caller.client) == (0, 0, 0)
    assert holder.ack_batch(1) == [1, 1]
    assert caller.client.hget(KEYS.group(GROUP), 1) is None
