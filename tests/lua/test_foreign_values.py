"""Values that other programs put into a queue are neither delivered nor lost."""

import struct
from itertools import product

import pytest

from redis_message_queue.stored import envelope
from tests.lua.scripts_runner import KEYS, Caller, New, chunk_ids, fresh_base, numbered
from tests.lua.stage import Stage
from tests.lua.state import faults
from tests.tables import row

MARK = envelope.head(bytes(16))[:1]
MARK_WITH_TENANT = bytes([MARK[0] | envelope.HAS_TENANT])
MARK_WITH_EXTRAS = bytes([MARK[0] | envelope.HAS_EXTRAS])
NOW = struct.pack(">Q", 1_800_000_000_000_000)

FOREIGN = {
    "an empty string": b"",
    "one byte": MARK,
    "short bytes": MARK + bytes(23),
    "a word": b"hello",
    "a sentence": b"plain text that is longer than the header of a stored message",
    "JSON": b'{"order": 1, "note": "longer than the header of a stored message"}',
    "long bytes": bytes(range(64)),
    "long bytes that begin with the mark": MARK + b"\xff" * 63,
    # In UTF-8 the letters of these scripts begin with bytes above 0x80.
    "a Russian sentence": "Привет, это сообщение от другой программы".encode(),
    "an Arabic sentence": "مرحبا، هذه رسالة من برنامج آخر تماما".encode(),
    "a Chinese sentence": "你好世界这是来自另一个程序的消息".encode(),
    # The flag of a tenant without one: neither a claim nor a settlement could find the payload.
    "a message cut off before its tenant": MARK_WITH_TENANT + bytes(16) + NOW,
    "a message cut off in its tenant": MARK_WITH_TENANT + bytes(16) + NOW + b"\x09tenant",
    "a message cut off before its extras": MARK_WITH_EXTRAS + bytes(16) + NOW,
    "a message cut off in the length of its extras": MARK_WITH_EXTRAS + bytes(16) + NOW + b"\x00",
    "a message cut off in its extras": MARK_WITH_EXTRAS + bytes(16) + NOW + b"\x00\x03{}",
    "a message with flags that nobody knows": bytes([MARK[0] | 0x08]) + bytes(16) + NOW + b"payload",
}


def test_a_foreign_value_becomes_a_dead_letter_as_it_is(stage: Stage, subtests: pytest.Subtests):
    """The same claim goes on to the next message, and says what it put aside."""
    for kind, value in FOREIGN.items():
        with row(subtests, kind=kind):
            caller = stage.clear()
            caller.client.rpush(KEYS.pending, value)
            caller.client.lpush(KEYS.pending, value)
            caller.publish(b"first")
            claimed = caller.claim()
            assert claimed.payloads == [b"first"]
            assert claimed.dead == ((b"", 0, "foreign"),) * 2
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value, value]
            assert not caller.client.exists(KEYS.pending)


def test_a_foreign_value_alone_in_the_line_leaves_an_empty_answer(stage: Stage, subtests: pytest.Subtests):
    """There was nothing to deliver; the value is kept."""
    for kind, value in FOREIGN.items():
        with row(subtests, kind=kind):
            caller = stage.clear()
            caller.client.lpush(KEYS.pending, value)
            claimed = caller.claim()
            assert (claimed.taken, claimed.again) == ((), False)
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]


def test_a_foreign_value_without_leases_becomes_a_dead_letter_too(stage: Stage, subtests: pytest.Subtests):
    """Leases have nothing to do with it."""
    for kind, value in FOREIGN.items():
        with row(subtests, kind=kind):
            caller = stage.clear()
            caller.settings.lease_us = 0
            caller.client.lpush(KEYS.pending, value)
            caller.publish(b"first")
            assert caller.claim().payloads == [b"first"]
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]


def test_foreign_values_among_messages_keep_both_orders(caller: Caller):
    """Messages come out in their order, dead letters lie newest left."""
    caller.publish(b"first")
    caller.client.lpush(KEYS.pending, b"foreign 1")
    caller.publish(b"second")
    caller.client.lpush(KEYS.pending, b"foreign 2")
    caller.publish(b"third")
    assert caller.claim(3).payloads == [b"first", b"second", b"third"]
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"foreign 2", b"foreign 1"]


def test_a_foreign_value_behind_what_is_wanted_stays_where_it_is(caller: Caller):
    """A claim looks no further than it must."""
    caller.publish(b"first")
    caller.client.lpush(KEYS.pending, b"foreign")
    assert caller.claim().payloads == [b"first"]
    assert caller.client.lrange(KEYS.pending, 0, -1) == [b"foreign"]
    assert not caller.client.exists(KEYS.dead_letter)


def test_a_dropped_foreign_value_has_no_id(stage: Stage, subtests: pytest.Subtests):
    """Room is made, and only messages are named."""
    for kind, value in FOREIGN.items():
        with row(subtests, kind=kind):
            caller = stage.clear()
            caller.client.lpush(KEYS.pending, value)
            (first,) = caller.publish_all([b"first"])
            caller.settings.limit, caller.settings.overload = 1, "drop"
            assert caller.enqueue(b"second") == b"1" + first
            caller.client.lpush(KEYS.pending, value)
            assert caller.claim().payloads == [b"second"]
            assert caller.enqueue(b"third") == b"1"


def test_a_foreign_value_in_the_line_of_a_tenant_becomes_a_dead_letter_too(stage: Stage, subtests: pytest.Subtests):
    """What waits behind it is delivered by the same claim."""
    for kind, value in FOREIGN.items():
        with row(subtests, kind=kind):
            caller = stage.clear()
            caller.enqueue_for("acme", b"first")
            caller.client.rpush(KEYS.tenant_pending("acme"), value)
            caller.client.incr(KEYS.tenant_backlog)
            claimed = caller.claim()
            assert claimed.payloads == [b"first"]
            assert claimed.dead == ((b"", 0, "foreign"),)
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]
            assert not caller.client.exists(KEYS.tenant_pending("acme"), KEYS.tenant_ring, KEYS.tenant_backlog)


def test_a_payload_of_any_bytes_comes_out_whole(stage: Stage, subtests: pytest.Subtests):
    """Delivered, kept in a list or dead: the bytes are those that were published, without what stands before them."""
    for payload, extras, tenant in product(
        [b"", b"x", b"\xd0\xff\x00", "Привет".encode(), b"y" * 10_000],
        [b"", b"{}", b'{"note": "' + b"x" * 60_000 + b'"}'],
        [b"", b"acme", b"t" * 255],
    ):
        with row(subtests, payload=payload, extras=extras, tenant=tenant):
            caller = stage.clear()
            caller.settings.most = 1
            caller.enqueue(*[New(payload, tenant, extras=extras)] * 2)
            first, second = caller.claim(2).taken
            assert first.payload == second.payload == payload
            assert first.tenant == second.tenant == (tenant.decode() or None)
            caller.settle([first], kept=KEYS.completed)
            caller.expire()
            assert caller.claim().dead == ((second.id, 1, "deliveries"),)
            assert caller.client.lrange(KEYS.completed, 0, -1) == [payload]
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [payload]


# What nobody should have put there, and somebody may have

WEIGHTS = [b"", b"heavy", b"0", b"-1", b"-0.5", b"nan", b"inf", b"1e400", b"1e-400", b"0x"]


def test_a_weight_that_is_none_counts_as_one(stage: Stage, subtests: pytest.Subtests):
    """Nobody starves for it, and nobody is kept from publishing."""
    for weight in WEIGHTS:
        with row(subtests, weight=weight):
            caller = stage.clear()
            caller.client.hset(KEYS.weights, "acme", weight)
            caller.enqueue_for("acme", *numbered(3, "acme"))
            caller.enqueue_for("zeta", *numbered(3, "zeta"))
            assert {one.only.tenant for one in caller.claim_one_by_one(2)} == {"acme", "zeta"}
            assert set(caller.claim(2).tenants) == {"acme", "zeta"}
            assert set(caller.claim(2).tenants) == {"acme", "zeta"}


# The last ones are digits, and still no number that Redis adds to.
SIZES = [b"", b"many", b"1.5", b"-1", b"007", b"9" * 23, b"%d" % (2**63 - 1)]


def test_a_size_that_is_no_number_is_counted_anew(stage: Stage, subtests: pytest.Subtests):
    """The sum follows from the lines; nobody is kept from publishing or claiming for it."""
    for size in SIZES:
        with row(subtests, size=size):
            caller = stage.clear()
            caller.enqueue_for("acme", b"first")
            caller.client.set(KEYS.tenant_backlog, size)
            caller.enqueue_for("zeta", b"second")
            assert caller.client.get(KEYS.tenant_backlog) == b"2"
            caller.client.set(KEYS.tenant_backlog, size)
            assert caller.claim(2).payloads == [b"first", b"second"]
            assert faults(caller.client) == []


def test_a_size_that_is_no_number_counts_as_none_in_the_stats(stage: Stage, subtests: pytest.Subtests):
    for size in [b"many", b"9" * 23, b"inf", b"0x10", b"-1"]:
        with row(subtests, size=size):
            caller = stage.clear()
            caller.publish(b"first")
            caller.client.set(KEYS.tenant_backlog, size)
            caller.client.hset(KEYS.groups, "", size)
            assert caller.stats()[:2] == [1, 0]


def test_a_damaged_place_in_the_ring_stops_nobody(stage: Stage, subtests: pytest.Subtests):
    """Every message is delivered, and a tenant that got in front does not stay there."""
    for score, damaged, count in product(
        ["inf", "-inf", "1e300", "-5"], ["acme", "zeta", "", "a tenant that has no messages"], [1, 3]
    ):
        with row(subtests, score=score, damaged=damaged, count=count):
            caller = stage.clear()
            for tenant in ("acme", "zeta"):
                caller.enqueue_for(tenant, *numbered(6, tenant))
            caller.client.execute_command("ZADD", KEYS.tenant_ring, score, damaged)
            caller.enqueue_for("other", b"other")
            claimed = [one for _ in range(13 // count + 2) for one in caller.claim(count).taken]
            assert sorted(one.payload for one in claimed) == sorted(
                [*numbered(6, "acme"), *numbered(6, "zeta"), b"other"]
            )
            assert {one.tenant for one in claimed[-4:]} >= {"acme", "zeta"} or score in ("inf", "1e300")
            assert faults(caller.client) == []


def test_a_tenant_whose_place_in_the_ring_was_damaged_gets_a_new_one_with_its_next_message(caller: Caller):
    """Nobody starves because of a score that no turn reaches."""
    for tenant in ("acme", "zeta"):
        caller.enqueue_for(tenant, *numbered(10, tenant))
    caller.client.execute_command("ZADD", KEYS.tenant_ring, "inf", "acme")
    caller.enqueue_for("acme", b"one more")
    assert "acme" in [caller.claim().only.tenant for _ in range(2)]


@pytest.mark.parametrize("score", ["0", "-1", "-inf"])
def test_a_lease_with_a_damaged_end_has_ended(score: str, caller: Caller):
    """Its message comes back although other tenants always have messages waiting."""
    (held,) = caller.hold(b"held", tenant="acme")
    caller.client.execute_command("ZADD", KEYS.leases, score, held.token)
    caller.enqueue_for("zeta", *numbered(5))
    assert b"held" in [payload for _ in range(2) for payload in caller.claim().payloads]


@pytest.mark.parametrize("value", ["nonsense", "5", "nan", "1e300"])
def test_a_foreign_value_does_not_keep_a_consumer_from_waking_up_in_time(value: str, caller: Caller):
    """It has no time to live, as the value of a timer owner has, and would stay for ever."""
    caller.settings.lease_us = 500_000
    caller.hold(b"first")
    caller.client.set(KEYS.timer_owner, value)
    assert 0 < caller.claim(slice_us=1_000_000).wait_us <= 500_000


def test_a_foreign_value_in_flight_is_set_aside_when_its_lease_ends(stage: Stage, subtests: pytest.Subtests):
    """It cannot be requeued; the claim that finds it names its id and goes on with the others."""
    for (kind, value), tenant in product(FOREIGN.items(), [None, "acme"]):
        with row(subtests, kind=kind, tenant=tenant):
            caller = stage.clear()
            first, _ = caller.hold(b"first", b"second", tenant=tenant)
            caller.client.hset(KEYS.processing, first.id, value)
            assert caller.requeue([first]) == caller.retry_later([first]) == b"0"
            caller.expire()
            if tenant:
                caller.enqueue_for("zeta", b"third")
            claimed = caller.claim(3)
            assert claimed.payloads == ([b"third", b"second"] if tenant else [b"second"])
            assert claimed.dead == ((first.id, 0, "foreign"),)
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]
            assert caller.records(KEYS.dead_letter)[0]["id"] == first.id.hex()
            assert faults(caller.client) == []


def test_a_message_that_was_damaged_in_flight_can_be_settled(stage: Stage, subtests: pytest.Subtests):
    """Its handler had it whole; what lies there now leaves in its place."""
    for (kind, value), kept in product(FOREIGN.items(), [None, KEYS.completed]):
        with row(subtests, kind=kind, kept=kept):
            caller = stage.clear()
            held = caller.hold(b"first", b"second")
            caller.client.hset(KEYS.processing, held[0].id, value)
            assert caller.settle(held[:1], kept=kept) == b"1"
            assert caller.settle(held[1:]) == b"1"
            assert caller.client.lrange(KEYS.completed, 0, -1) == ([value] if kept else [])
            assert faults(caller.client) == []


def test_a_foreign_value_that_waits_for_its_time_is_set_aside_when_that_comes(stage: Stage, subtests: pytest.Subtests):
    """Messages that are due at the same time are delivered."""
    for kind, value in FOREIGN.items():
        with row(subtests, kind=kind):
            caller = stage.clear()
            base = fresh_base()
            caller.enqueue(New(b"first", due="+1000"), New(b"second", due="+1000"), base=base)
            broken, whole = chunk_ids(base, 2)
            caller.client.hset(KEYS.delayed_messages, broken, value)
            caller.pass_delays()
            claimed = caller.claim(2)
            assert [one.id for one in claimed.taken] == [whole]
            assert claimed.dead == ((broken, 0, "foreign"),)
            assert faults(caller.client) == []


def test_a_foreign_member_of_the_leases_is_set_aside(stage: Stage, subtests: pytest.Subtests):
    """It would be due for ever, and every claim would take the long way past it."""
    for tenant, member in product([None, "acme"], [b"somebody else's", b"x" * 16, b"y" * 100]):
        with row(subtests, tenant=tenant, member=member):
            caller = stage.clear()
            caller.hold(b"held", tenant=tenant)
            caller.client.zadd(KEYS.leases, {member: 1})
            caller.enqueue_for("zeta", b"first") if tenant else caller.publish(b"first")
            claimed = caller.claim()
            assert claimed.payloads == [b"first"]
            assert claimed.dead == ((b"", 0, "foreign"),)
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [member]
            assert faults(caller.client) == []


# What is shorter or longer than a number, and sorts before or behind it.
def test_a_foreign_value_in_the_reply_cache_says_nothing(stage: Stage, subtests: pytest.Subtests):
    """The caller goes on, and its next answer is stored there."""
    for value in [b"", b"hello", b"5", b"12:1", b"plain text, longer than a number", b" " * 20]:
        with row(subtests, value=value):
            caller = stage.clear()
            caller.client.set(caller.reply, value)
            assert caller.publish(b"first") == 1
            assert caller.repeat() == 1
            assert caller.claim().payloads == [b"first"]


@pytest.mark.parametrize("field", ["journal_serial", "journal_soft", "journal_hard", "journal_mark"])
def test_a_damaged_number_of_the_journal_stops_nobody(field: str, caller: Caller):
    """Its serial goes on from the last entry, and limits that are none are the usual ones."""
    caller.open_journal()
    caller.publish_all([b"x"] * 99)
    caller.client.hset(KEYS.meta, field, "nonsense")
    caller.publish(b"first")
    caller.settle(caller.claim().taken)
    assert [int(entry["n"]) for entry in caller.journal()] == list(range(1, 103))


@pytest.mark.parametrize("score", ["-inf", "-1e300"])
def test_a_negative_turn_is_no_privilege(score: str, caller: Caller):
    """Somebody wrote a time into the ring that turns never change: it counts as 0, and the next turn moves it on."""
    caller.enqueue_for("acme", *numbered(6, "acme"))
    caller.enqueue_for("zeta", *numbered(6, "zeta"))
    caller.client.execute_command("ZADD", KEYS.tenant_ring, score, "acme")
    served = [one.only.tenant for one in caller.claim_one_by_one(6)]
    assert served.count("zeta") >= 2


@pytest.mark.parametrize("score", ["inf", "1e300", "-inf"])
def test_a_ring_of_impossible_times_is_served(score: str, caller: Caller):
    """Also when it is all there is, so that the times are brought back to 0."""
    caller.enqueue_for("acme", *numbered(3, "acme"))
    caller.enqueue_for("zeta", *numbered(3, "zeta"))
    for tenant in ("acme", "zeta"):
        caller.client.execute_command("ZADD", KEYS.tenant_ring, score, tenant)
    taken = [*caller.claim(3).taken, *(one.only for one in caller.claim_one_by_one(3))]
    assert len({one.payload for one in taken}) == 6


@pytest.mark.parametrize("size", [b"9" * 19, b"9" * 40])
def test_a_backlog_that_is_too_large_to_count_is_counted_again(size: bytes, caller: Caller):
    """A publish for a tenant must not fail half-way because of it."""
    caller.enqueue_for("acme", b"first")
    caller.client.set(KEYS.tenant_backlog, size)
    caller.enqueue_for("acme", b"second")
    assert caller.client.get(KEYS.tenant_backlog) == b"2"


def test_the_backlog_of_a_deleted_list_is_forgotten(caller: Caller):
    """Somebody deleted the list of a tenant by hand: the next claim that finds nothing corrects the number."""
    caller.enqueue_for("acme", b"first", b"second")
    caller.client.delete(KEYS.tenant_pending("acme"))
    assert caller.claim().taken == ()
    assert caller.claim().taken == ()
    assert not caller.client.exists(KEYS.tenant_backlog, KEYS.tenant_ring)


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_foreign_entry_of_the_journal_stops_nobody(place: str, caller: Caller):
    """It has no serial number where the journal is cut off, and the message is published once."""
    caller.open_journal()
    if place == "first":
        caller.client.xadd(KEYS.journal, {"foreign": "entry"})
    caller.publish_all([b"x"] * 95)
    caller.client.hset(KEYS.meta, mapping={"journal_soft": 1, "journal_hard": 2, "journal_mark": "0-1"})
    if place == "last":
        caller.publish_all([b"x"] * 2)
        caller.client.xadd(KEYS.journal, {"foreign": "entry"})
    for _ in range(5):
        assert caller.publish(b"y") == 1
        assert caller.repeat() == 1
    assert caller.client.llen(KEYS.pending) == 95 + 5 + (2 if place == "last" else 0)
