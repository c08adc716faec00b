"""What others have put into the line is neither delivered nor lost."""

import struct

import pytest

from redis_message_queue import envelope
from tests.lua.scripts_runner import KEYS, Caller, New, chunk_ids, fresh_base, numbered
from tests.lua.state import faults

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
every_kind = pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)


@every_kind
def test_a_foreign_value_becomes_a_dead_letter_as_it_is(value: bytes, caller: Caller):
    """The same claim goes on to the next message, and says what it put aside."""
    caller.client.rpush(KEYS.pending, value)
    caller.client.lpush(KEYS.pending, value)
    caller.publish(b"first")
    claimed = caller.claim()
    assert claimed.payloads == [b"first"]
    assert claimed.dead == ((b"", 0, "foreign"),) * 2
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value, value]
    assert not caller.client.exists(KEYS.pending)


@every_kind
def test_a_foreign_value_alone_in_the_line_leaves_an_empty_answer(value: bytes, caller: Caller):
    """There was nothing to deliver; the value is kept."""
    caller.client.lpush(KEYS.pending, value)
    claimed = caller.claim()
    assert (claimed.taken, claimed.again) == ((), False)
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]


@every_kind
def test_a_foreign_value_without_leases_becomes_a_dead_letter_too(value: bytes, caller: Caller):
    """Leases have nothing to do with it."""
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


@every_kind
def test_a_dropped_foreign_value_has_no_id(value: bytes, caller: Caller):
    """Room is made, and only messages are named."""
    caller.client.lpush(KEYS.pending, value)
    (first,) = caller.publish_all([b"first"])
    caller.settings.limit, caller.settings.overload = 1, "drop"
    assert caller.enqueue(b"second") == b"1" + first
    caller.client.lpush(KEYS.pending, value)
    assert caller.claim().payloads == [b"second"]
    assert caller.enqueue(b"third") == b"1"


@every_kind
def test_a_foreign_value_in_the_line_of_a_tenant_becomes_a_dead_letter_too(value: bytes, caller: Caller):
    """What waits behind it is delivered by the same claim."""
    caller.line_up("acme", b"first")
    caller.client.rpush(KEYS.line("acme"), value)
    caller.client.incr(KEYS.size)
    claimed = caller.claim()
    assert claimed.payloads == [b"first"]
    assert claimed.dead == ((b"", 0, "foreign"),)
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]
    assert not caller.client.exists(KEYS.line("acme"), KEYS.tenants, KEYS.size)


@pytest.mark.parametrize("payload", [b"", b"x", b"\xd0\xff\x00", "Привет".encode(), b"y" * 10_000])
@pytest.mark.parametrize("extras", [b"", b"{}", b'{"note": "' + b"x" * 60_000 + b'"}'], ids=["none", "short", "long"])
@pytest.mark.parametrize("tenant", [b"", b"acme", b"t" * 255], ids=["none", "short", "long"])
def test_a_payload_of_any_bytes_comes_out_whole(payload: bytes, tenant: bytes, extras: bytes, caller: Caller):
    """Delivered, kept in a list or dead: the bytes are those that were published, without what stands before them."""
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


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_weight_that_is_none_counts_as_one(weight: bytes, caller: Caller):
    """Nobody starves for it, and nobody is kept from publishing."""
    caller.client.hset(KEYS.weights, "acme", weight)
    caller.line_up("acme", *numbered(3, "acme"))
    caller.line_up("zeta", *numbered(3, "zeta"))
    assert sorted(one.only.tenant for one in caller.claim_one_by_one(2)) == ["acme", "zeta"]
    assert sorted(caller.claim(2).tenants) == ["acme", "zeta"]
    assert sorted(caller.claim(2).tenants) == ["acme", "zeta"]


@pytest.mark.parametrize("size", [b"", b"many", b"1.5"])
def test_a_size_that_is_no_number_is_counted_anew(size: bytes, caller: Caller):
    """The sum follows from the lines; nobody is kept from publishing or claiming for it."""
    caller.line_up("acme", b"first")
    caller.client.set(KEYS.size, size)
    caller.line_up("zeta", b"second")
    assert caller.client.get(KEYS.size) == b"2"
    caller.client.set(KEYS.size, size)
    assert caller.claim(2).payloads == [b"first", b"second"]
    assert faults(caller.client) == []


@every_kind
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_foreign_value_in_flight_is_set_aside_when_its_lease_ends(value: bytes, tenant: str | None, caller: Caller):
    """It cannot be given back; the claim that finds it names its id and goes on with the others."""
    first, _ = caller.hold(b"first", b"second", tenant=tenant)
    caller.client.hset(KEYS.processing, first.id, value)
    assert caller.give_back([first]) == caller.put_off([first]) == b"0"
    caller.expire()
    if tenant:
        caller.line_up("zeta", b"third")
    claimed = caller.claim(3)
    assert claimed.payloads == ([b"third", b"second"] if tenant else [b"second"])
    assert claimed.dead == ((first.id, 0, "foreign"),)
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [value]
    assert caller.records(KEYS.dead_letter)[0]["id"] == first.id.hex()
    assert faults(caller.client) == []


@every_kind
@pytest.mark.parametrize("kept", [None, KEYS.completed])
def test_a_message_that_was_damaged_in_flight_can_be_settled(value: bytes, kept: str | None, caller: Caller):
    """Its handler had it whole; what lies there now leaves in its place."""
    held = caller.hold(b"first", b"second")
    caller.client.hset(KEYS.processing, held[0].id, value)
    assert caller.settle(held[:1], kept=kept) == b"1"
    assert caller.settle(held[1:]) == b"1"
    assert caller.client.lrange(KEYS.completed, 0, -1) == ([value] if kept else [])
    assert faults(caller.client) == []


@every_kind
def test_a_foreign_value_that_waits_for_its_time_is_set_aside_when_that_comes(value: bytes, caller: Caller):
    """Messages that are due at the same time are delivered."""
    base = fresh_base()
    caller.enqueue(New(b"first", due="+1000"), New(b"second", due="+1000"), base=base)
    broken, whole = chunk_ids(base, 2)
    caller.client.hset(KEYS.later, broken, value)
    caller.pass_delays()
    claimed = caller.claim(2)
    assert [one.id for one in claimed.taken] == [whole]
    assert claimed.dead == ((broken, 0, "foreign"),)
    assert faults(caller.client) == []


@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("member", [b"somebody else's", b"x" * 16, b"y" * 100])
def test_a_foreign_member_of_the_leases_is_set_aside(member: bytes, tenant: str | None, caller: Caller):
    """It would be due for ever, and every claim would take the long way past it."""
    caller.hold(b"held", tenant=tenant)
    caller.client.zadd(KEYS.leases, {member: 1})
    caller.line_up("zeta", b"first") if tenant else caller.publish(b"first")
    claimed = caller.claim()
    assert claimed.payloads == [b"first"]
    assert claimed.dead == ((b"", 0, "foreign"),)
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [member]
    assert faults(caller.client) == []


# What is shorter or longer than a number, and sorts before or behind it.
@pytest.mark.parametrize("value", [b"", b"hello", b"5", b"12:1", b"plain text, longer than a number", b" " * 20])
def test_a_foreign_value_in_the_reply_cache_says_nothing(value: bytes, caller: Caller):
    """The caller goes on, and its next answer is stored there."""
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
