"""A server without memory accepts no message, and can be emptied.

Redis asks for memory only at the first write of a script, so all depends on which one that is.
"""

from collections.abc import Iterator

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from tests.conftest import StartServer
from tests.lua import situations
from tests.lua.scripts_runner import FRESH, KEYS, TIMER_OWNER, WOKEN, Caller, New, dump
from tests.lua.situations import PUT_OFFS, RENEWALS, RETURNS, SETTLEMENTS, SWEEPS, Call, Situation, title
from tests.lua.stage import Stage
from tests.lua.state import faults
from tests.tables import row

pytestmark = pytest.mark.topic("Leases")

SECOND_US = 1_000_000
OUT_OF_MEMORY = r"OOM|maxmemory"

REFUSED = (
    situations.publish,
    situations.publish_with_a_key,
    situations.publish_behind_others,
    situations.backfill,
    situations.backfill_behind_others,
    situations.enqueue,
    situations.enqueue_what_is_ready,
    situations.enqueue_in_full,
    situations.enqueue_with_keys,
    situations.enqueue_behind_others,
    situations.enqueue_and_drop,
    situations.enqueue_for_tenants,
    situations.enqueue_behind_others_of_a_tenant,
    situations.enqueue_and_drop_of_a_tenant,
    situations.enqueue_for_later,
    situations.enqueue_for_later_behind_others,
    situations.enqueue_for_a_paused_tenant,
    situations.enqueue_everything_at_once,
    situations.hand_off,
    situations.hand_off_without_leases,
    situations.hand_off_what_came_back,
    situations.hand_off_everything_at_once,
    situations.redrive,
    situations.redrive_duplicates,
    situations.redrive_everything_at_once,
    situations.redrive_what_has_no_records,
    situations.restore,
    situations.restore_everything_at_once,
    situations.append,
    situations.append_again,
    situations.cancel_what_waits,
    situations.cancel_what_waits_of_a_tenant,
    situations.cancel_again,
    situations.schedule,
    situations.schedule_another_message,
    situations.tick,
    situations.tick_for_tenants,
)


FREEING = (
    situations.cancel_what_is_delayed,
    situations.cancel_what_waits_for_its_next_attempt,
    situations.cancel_what_is_in_flight,
    situations.cancel_in_vain,
    *situations.PAUSES,
)
CLAIMS = (
    situations.take_the_usual_way,
    situations.take_what_has_expired,
    situations.take_in_turns,
    situations.ack_and_take,
    situations.ack_and_take_beside_a_lease,
    situations.ack_and_take_in_vain,
    situations.ack_and_take_after_the_lease_was_lost,
    situations.ack_and_take_after_a_second_delivery,
    situations.ack_and_take_what_has_expired,
    situations.ack_and_take_in_turns,
    situations.claim_the_usual_way,
    situations.claim_the_usual_way_without_leases,
    situations.claim_when_woken,
    situations.claim_from_the_line,
    situations.claim_without_leases,
    situations.claim_again,
    situations.claim_both_kinds,
    situations.claim_past_foreign_values,
    situations.claim_nothing_but_foreign_values,
    situations.claim_past_expired_dead_letters,
    situations.claim_nothing_but_expired_dead_letters,
    situations.claim_past_returned_dead_letters,
    situations.claim_nothing_but_returned_dead_letters,
    situations.claim_past_what_is_too_old,
    situations.claim_in_turns,
    situations.claim_in_turns_without_leases,
    situations.claim_one_in_turns,
    situations.claim_one_in_turns_when_woken,
    situations.claim_the_last_of_a_tenant,
    situations.claim_in_turns_with_messages_without_a_tenant,
    situations.claim_again_in_turns,
    situations.claim_in_turns_past_dead_letters,
    situations.claim_nothing_but_dead_letters_in_turns,
    situations.claim_what_is_due,
    situations.claim_what_is_due_without_leases,
    situations.claim_what_is_due_in_turns,
    situations.take_past_a_cancelled_one,
    situations.claim_past_a_cancelled_one,
    situations.claim_past_a_cancelled_one_without_leases,
    situations.claim_nothing_but_a_cancelled_one,
    situations.claim_in_turns_past_a_cancelled_one,
    situations.claim_past_a_paused_tenant,
    situations.claim_one_past_a_paused_tenant,
    situations.claim_everything_at_once,
    situations.claim_with_a_tick_without_leases,
)


@pytest.fixture(scope="module")
def limited(server_setting: str) -> Iterator[EmbeddedRedis]:
    """A server that will be made to run out of memory."""
    with EmbeddedRedis(binary=server_setting, config={"maxmemory-policy": "noeviction"}) as started:
        yield started


@pytest.fixture
def caller(limited: EmbeddedRedis) -> Iterator[Caller]:
    """A caller whose server has memory until the test takes it away."""
    with limited.client() as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        yield Caller(client)


@pytest.fixture
def other_slot(caller: Caller) -> Caller:
    """A second caller of the same queue."""
    return Caller(caller.client, "b")


@pytest.fixture(scope="module")
def limited_stage(limited: EmbeddedRedis) -> Iterator[Stage]:
    """The same server, for tables of situations."""
    with limited.client() as client:
        yield Stage(client)


def prepare(stage: Stage, situation: Situation) -> tuple[Caller, Call]:
    """With memory until the test takes it away."""
    stage.client.config_set("maxmemory", 0)
    return stage.prepare(situation)


def run_out_of_memory(client: redis.Redis) -> None:
    """From now on the server holds more than it may."""
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.OutOfMemoryError):
        client.set("one more", "value")


@pytest.mark.promise("When the server is out of memory, a publish fails immediately and changes nothing.")
def test_what_brings_something_in_is_refused_and_has_changed_nothing(limited_stage: Stage, subtests: pytest.Subtests):
    """A publish, and what publishes: a hand-off and a redrive."""
    for situation in REFUSED:
        with row(subtests, situation=title(situation)):
            caller, call = prepare(limited_stage, situation)
            before = dump(caller.client)
            run_out_of_memory(caller.client)
            with pytest.raises(redis.ResponseError, match=OUT_OF_MEMORY):
                call()
            assert dump(caller.client) == before


def test_what_waits_can_be_claimed(limited_stage: Stage, subtests: pytest.Subtests):
    """A queue that has filled its server is drained by its consumers: the same messages as ever, in the same order."""
    for situation in CLAIMS:
        with row(subtests, situation=title(situation)):
            _, call = prepare(limited_stage, situation)
            expected = call()
            caller, call = prepare(limited_stage, situation)
            run_out_of_memory(caller.client)
            claimed = call()
            assert (claimed.payloads, claimed.again) == (expected.payloads, expected.again)
            assert claimed.acked == expected.acked
            assert [(count, reason) for _, count, reason in claimed.dead] == [
                (count, reason) for _, count, reason in expected.dead
            ]
            assert caller.repeat().taken == claimed.taken
            assert faults(caller.client, leased=caller.settings.lease_us > 0) == []


@pytest.mark.promise("Scripts write before they remove, so a server that runs out of memory loses no message.")
def test_what_a_holder_does_succeeds(limited_stage: Stage, subtests: pytest.Subtests):
    """It settles, into a list too, requeues, retries later and renews, with the same outcome as ever."""
    for situation in (*SETTLEMENTS, *RETURNS, *PUT_OFFS, *RENEWALS, *SWEEPS, *FREEING):
        with row(subtests, situation=title(situation)):
            _, call = prepare(limited_stage, situation)
            expected = call()
            caller, call = prepare(limited_stage, situation)
            run_out_of_memory(caller.client)
            assert call() == expected
            assert caller.repeat() == expected
            assert faults(caller.client, leased=caller.settings.lease_us > 0) == []


def test_a_consumer_can_open_its_queue_and_a_producer_cannot(caller: Caller):
    """A worker that starts on a full server writes what its queue must have; a publish is refused before that."""
    call = situations.open_queue(caller)
    before = dump(caller.client)
    run_out_of_memory(caller.client)
    with pytest.raises(redis.ResponseError, match=OUT_OF_MEMORY):
        caller.open_queue(drains=0)
    assert dump(caller.client) == before
    assert call() == 1
    assert caller.client.hmget(KEYS.meta, "version", "journal") == [b"1", b"1"]
    assert caller.client.hgetall(KEYS.weights) == {b"acme": b"2"}


def test_a_wakeup_can_be_passed_on(caller: Caller):
    """A consumer that took a wake-up and does not use it leaves it for the next one."""
    run_out_of_memory(caller.client)
    assert situations.notify(caller)() == 1
    assert caller.client.llen(KEYS.wakeup) == 1


@pytest.mark.parametrize("woken", [FRESH, WOKEN, TIMER_OWNER])
@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_an_empty_claim_answers_that_it_is_empty(caller: Caller, leased: bool, woken: int):
    """Waiting is not refused, also beside a lease that will end soon."""
    caller.settings.lease_us = 900_000 * leased
    caller.hold(b"held")
    run_out_of_memory(caller.client)
    claimed = caller.claim(slice_us=SECOND_US, woken=woken)
    assert (claimed.taken, claimed.dead, claimed.again) == ((), (), False)


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_a_claim_sent_again_finds_what_it_took(caller: Caller, leased: bool):
    """A message that is held already needs no memory; to drain a full server begins with this question."""
    caller.settings.lease_us *= leased
    held = caller.hold(b"first", b"second")
    run_out_of_memory(caller.client)
    assert caller.claim(0, call=caller.number).taken == held


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_claim_sent_again_finds_what_came_back_to_its_tenant(caller: Caller, other_slot: Caller, tenant: str | None):
    """To lease it anew needs no memory."""
    caller.hold(b"first", b"second", tenant=tenant)
    ask, held = caller.last, caller.repeat().taken
    other_slot.enqueue_for("zeta", b"somebody else's")
    caller.expire()
    assert other_slot.claim().payloads == [b"somebody else's"]
    run_out_of_memory(caller.client)
    assert ask().taken == held
    assert faults(caller.client) == []


@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_an_empty_claim_beside_a_delay_answers_that_it_is_empty(caller: Caller, leased: bool):
    """It need not write the alarm anew: the existing one is early enough."""
    caller.settings.lease_us *= leased
    caller.enqueue(New(b"later", due="+900000"), New(b"much later", due="+9000000000"))
    run_out_of_memory(caller.client)
    claimed = caller.claim(slice_us=SECOND_US)
    assert (claimed.taken, claimed.dead, claimed.again) == ((), (), False)
    assert faults(caller.client, leased=leased) == []


def test_asking_with_count_0_shuts_out_a_claim_that_never_arrived(caller: Caller):
    """It was told "nothing", so the claim must find nothing when it arrives, though there is memory again."""
    caller.publish(b"first")
    run_out_of_memory(caller.client)
    assert caller.claim(0, call=caller.number + 1).taken == ()
    caller.client.config_set("maxmemory", 0)
    assert caller.claim(1, call=caller.number + 1).taken == ()


@pytest.mark.promise("Scripts write before they remove, so a server that runs out of memory loses no message.")
def test_a_server_that_is_filled_to_the_brim_can_be_emptied(start_server: StartServer):
    """Publishers fill it until they are refused; what consumers hold goes out, and the rest follows."""
    server = start_server(config={"maxmemory": "4mb", "maxmemory-policy": "noeviction"})
    with server.client() as client:
        caller = Caller(client)
        held = caller.hold(*[b"x" * 20_000] * 20)
        published = 20
        with pytest.raises(redis.ResponseError, match=OUT_OF_MEMORY):
            while True:
                caller.publish(b"x" * 20_000)
                published += 1
        assert caller.settle(held) == b"1" * 20
        settled = 20
        while taken := caller.claim().taken:
            assert caller.settle(taken) == b"1"
            settled += 1
        assert settled == published > 20
        assert caller.publish(b"there is room again") == 1
