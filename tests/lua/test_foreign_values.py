"""What others have put into the line is neither delivered nor lost."""

import struct

import pytest

from redis_message_queue import envelope
from tests.lua.scripts_runner import KEYS, Caller

MARK = envelope.head(bytes(16))[:1]
MARK_WITH_TENANT = bytes([MARK[0] | envelope.HAS_TENANT])
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
    assert claimed.dead == ((b"", 0), (b"", 0))
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
    assert caller.publish(b"second") == b"d" + first
    caller.client.lpush(KEYS.pending, value)
    assert caller.claim().payloads == [b"second"]
    assert caller.publish(b"third") == b"d"


@pytest.mark.parametrize("payload", [b"", b"x", b"\xd0\xff\x00", "Привет".encode(), b"y" * 10_000])
@pytest.mark.parametrize("tenant", [None, b"", b"acme", b"t" * 255], ids=["none", "empty", "short", "long"])
def test_a_payload_of_any_bytes_comes_out_whole(payload: bytes, tenant: bytes | None, caller: Caller):
    """Delivered, kept in a list or dead: the bytes are those that were published, without header and tenant."""
    caller.settings.most = 1
    for _ in range(2):
        caller.publish(payload, tenant=tenant)
    first, second = caller.claim(2).taken
    assert first.payload == second.payload == payload
    caller.settle([first], kept=KEYS.completed)
    caller.expire()
    assert caller.claim().dead == ((second.id, 1),)
    assert caller.client.lrange(KEYS.completed, 0, -1) == [payload]
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [payload]
