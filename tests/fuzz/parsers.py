"""The parsers of what others may have written, each with what must hold for any bytes.

Hypothesis runs them in `make test`, and atheris, which is guided by coverage, in `make fuzz`. So this module imports
only the library itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import ResponseError

from redis_message_queue.protocol.operate.condition import RECORD, WAITING, condition
from redis_message_queue.protocol.operate.record_pairs import pair, record_of, record_of_stored, tenant_bytes
from redis_message_queue.redis_py import wire
from redis_message_queue.redis_py.simple_reply import INCOMPLETE, NOT_SIMPLE, read_simple
from redis_message_queue.stored import envelope, headers
from redis_message_queue.stored.keys import QueueKeys, siblings
from redis_message_queue.stored.scripts import all_names
from redis_message_queue.values.errors import ConfigurationError, RedisMessageQueueError
from redis_message_queue.values.messages import MessageRecord

NOW = (1_800_000_000_000_000).to_bytes(8, "big")


def stored_message(data: bytes) -> None:
    """A stored message: any bytes have a record, and a message is taken apart without a rest."""
    for decode in (False, True):
        check_record(record_of_stored(data, decode=decode, due_us=float(len(data))))
    if not envelope.is_message(data):
        return
    message = envelope.Envelope(data)
    assert isinstance(message.extras, dict)
    assert data.endswith(message.payload)
    assert len(message.id) == envelope.ID_BYTES
    assert message.tenant is None or isinstance(message.tenant, str)
    headers.decode(message.extras)


def round_trip(data: bytes) -> None:
    """What is stored comes out as it went in, whatever the bytes are."""
    tenant, _, payload = data.partition(b"\x00")
    tenant = tenant[: envelope.MAX_TENANT_BYTES]
    extras = payload[:5]
    body = envelope.body(payload, tenant, extras)
    stored = body[:1] + bytes(16) + NOW + body[1:]
    assert envelope.is_message(stored)
    assert envelope.Envelope(stored).payload == payload


def record(data: bytes) -> None:
    """The lists of payloads and records: whatever somebody put there can be shown, and nothing is shown twice."""
    halves = data.split(b"\xff")
    payloads, records = halves[::2], halves[1::2]
    pairs = list(pair(payloads, records, whole=True))
    assert [one.payload for one in pairs if one.payload is not None] == payloads
    assert sorted(one.record_place for one in pairs if one.record_place >= 0) == sorted(
        {one.record_place for one in pairs if one.record_place >= 0}
    )
    for one in pairs:
        check_record(record_of(one, decode=True))
        if one.record is not None:
            tenant_bytes(one.record)
            assert len(headers.for_redrive(one.record)) <= envelope.MAX_EXTRAS_BYTES


def check_record(found: MessageRecord) -> None:
    """A record has the types that it promises, and all of its text can be written."""
    texts = (found.id, found.tenant, found.reason, found.error_type, found.error, found.replay_of)
    for one in texts:
        assert one is None or isinstance(one, str), found
        (one or "").encode()
    for time in (found.published_at, found.claimed_at, found.finished_at, found.due_at):
        assert time is None or isinstance(time, datetime), found
    assert found.delivery_count is None or type(found.delivery_count) is int, found
    assert found.headers is None or all(isinstance(one, str) for pair in found.headers.items() for one in pair)


SAMPLES = [
    MessageRecord(),
    MessageRecord(payload='{"a": [1, "x", null, {"b": 2}]}', id="00ff", tenant="acme", delivery_count=3),
    MessageRecord(payload=b"\xff", error="timeout", published_at=datetime(2030, 1, 1, tzinfo=UTC), headers={"a": "b"}),
    MessageRecord(payload="9" * 5_000, due_at=datetime.max.replace(tzinfo=UTC), reason="foreign"),
    MessageRecord(payload="[" * 100_000, error_type="ValueError"),
]


def where(data: bytes) -> None:
    """A condition: it is refused with one typed error, or true or false for every record, and never runs anything."""
    text = data.decode("utf-8", "surrogateescape")
    for fields in (RECORD, WAITING):
        try:
            parsed = condition(text, fields)
        except ConfigurationError as error:
            assert str(error).startswith("--where"), error
            continue
        for one in SAMPLES:
            assert parsed(one) in (True, False)
        assert condition(parsed.text, fields).text == parsed.text


def name(data: bytes) -> None:
    """The name of a queue and of its dead letters: refused, or its keys are apart from those of every other queue."""
    text = data.decode("utf-8", "replace")
    first, _, second = text.partition("\n")
    with contextlib.suppress(RedisMessageQueueError):
        keys = QueueKeys.of(first or "x", dead_letter=second or None, hash_tag=len(text) % 2 == 1)
        own = [getattr(keys, one) for one in keys.__slots__ if one not in ("prefix", "separator")]
        assert len(set(own)) == len(own), own
    siblings(text)


def extras(data: bytes) -> None:
    """What travels with a payload."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
        headers.decode(found)
        if isinstance(found, dict):
            headers.for_redrive(found)


def reply(data: bytes) -> None:
    """Replies that are read from the socket directly: each is read whole, left to redis-py, or refused."""
    at = 0
    while at < len(data):
        try:
            value, behind = read_simple(data, at)
        except ValueError:  # the connection is given up
            return
        if value is NOT_SIMPLE:
            assert behind == at
            return
        if value is INCOMPLETE:
            assert behind > len(data)
            return
        assert at < behind <= len(data)
        assert value is None or type(value) in (int, bytes)
        if isinstance(value, bytes):
            assert data[behind - 2 - len(value) : behind - 2] == value
        at = behind


def error_reply(data: bytes) -> None:
    """What the server says when it refuses a script: one error whose text can be written."""
    said = data.decode("utf-8", "replace")
    for script in all_names():
        error = wire.translated(ResponseError(said), script)
        assert isinstance(error, Exception)
        str(error).encode()
        assert wire.is_transient(error) in (True, False)


PARSERS: dict[str, Callable[[bytes], Any]] = {
    one.__name__: one for one in (stored_message, round_trip, record, where, name, extras, reply, error_reply)
}

# Where a search begins: something that each parser accepts.
SEEDS: dict[str, list[bytes]] = {
    "stored_message": [
        b"\x80" + bytes(16) + NOW + b"payload",
        b"\x85" + bytes(16) + NOW + b"\x04acme\x00\x02{}payload",
    ],
    "round_trip": [b"acme\x00payload"],
    "record": [
        b'payload\xff{"id": "00", "bytes": 7, "sha1": "f07e5a815613c5abeddc4b682247a4c42d8a95df", "tenant": "a"}',
        b'x\xff{"id": 5, "bytes": 1, "sha1": "11f6ad8ec52a2984abaafd7c3b516503785c2072",'
        b' "headers": {"\\ud800": "\\udfff"}, "deliveries": "many"}',
    ],
    "where": [b"tenant == 'acme' and not 'timeout' in error", b"json['a'][0] >= 0x1f or headers is None"],
    "name": [b"orders\norders::dead", b"{a}::b"],
    "extras": [b'{"replay_of": "00ff", "headers": {"traceparent": "x"}}'],
    "reply": [b":17\r\n", b"$5\r\nhello\r\n$-1\r\n_\r\n:-3\r\n", b"$0\r\n\r\n*2\r\n:1\r\n:2\r\n", b"-ERR no\r\n"],
    "error_reply": [
        b"ERR user_script:17: Script attempted to access nonexistent global variable",
        b"NOPERM User u has no permissions to run the 'zadd' command",
        b"ERR Error running script (call to f_0123456789012345678901234567890123456789): @user_script: 12: x",
        b"STATEVERSION 2 in q::meta",
        b"NOSTATE 0123456789012345678901234567890123456789",
    ],
}
