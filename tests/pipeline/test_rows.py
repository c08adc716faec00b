"""Messages become rows of exactly the schema that Spark wants, and JSON that cannot be parsed is kept."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.rows import messages_schema, parse_stored, row_encoder, stream_schema
from redis_message_queue.stored import envelope
from redis_message_queue.values.errors import ConfigurationError, CorruptMessageError

pytestmark = pytest.mark.topic("Streaming queries in Spark")


def stored(payload: bytes, tenant: bytes = b"", extras: bytes = b"") -> bytes:
    """As the scripts store it: the id 7 times 0x07 and so on, published in the second 1."""
    body = envelope.body(payload, tenant, extras)
    return body[:1] + b"\x07" * 16 + (1_000_000).to_bytes(8, "big") + body[1:]


def schema_of(**columns: t.DataType) -> t.StructType:
    schema = t.StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema.add("_corrupt_record", t.StringType())


def parsed(kind: t.DataType, value: object) -> object:
    """What becomes of one JSON value in a column of that type; the corrupt record if it does not fit."""
    (row,) = row_encoder(schema_of(x=kind), "q").batch([stored(json.dumps({"x": value}).encode())], [1]).to_pylist()
    return row["_corrupt_record"] or row["x"]


# Messages


def test_a_message_is_a_row():
    rows = row_encoder(messages_schema(), "orders")
    extras = b'{"replay_of":"x","headers":{"trace":"1"}}'
    batch = rows.batch([stored(b"one"), stored("zwölf".encode(), b"acme", extras)], [1, 3])
    assert batch.schema == to_arrow_schema(messages_schema(), timezone="UTC")
    assert batch.to_pylist() == [
        {
            "id": "07" * 16,
            "payload": "one",
            "tenant": None,
            "published_at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "delivery_count": 1,
            "queue": "orders",
            "headers": None,
        },
        {
            "id": "07" * 16,
            "payload": "zwölf",
            "tenant": "acme",
            "published_at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "delivery_count": 3,
            "queue": "orders",
            "headers": [("trace", "1")],
        },
    ]


def test_what_is_opened_at_once_is_what_the_envelope_says(client):
    queue = RedisMessageQueue("orders", client=client)
    queue.publish("plain")
    queue.publish("owned", tenant="acme")
    for key in (queue.key.pending, queue.key.tenant_pending("acme")):
        (whole,) = client.lrange(key, 0, -1)
        said = envelope.Envelope(whole)
        message_id, payload, tenant, at = parse_stored(whole)
        assert (message_id, payload, tenant) == (said.id, said.payload, said.tenant)
        assert at is not None and at / 1_000_000 == said.published_at


def test_messages_without_tenants_are_cut_by_arrow_as_the_envelope_says(client):
    """New ones and those that came back; one of a tenant among them changes nothing for the others."""
    queue = RedisMessageQueue("orders", client=client, visibility_timeout_seconds=300)
    queue.publish_many(["", "a", "zwölf", "x" * 5_000])
    with pytest.raises(LookupError), queue.process_messages(2):
        raise LookupError
    plain = client.lrange(queue.key.pending, 0, -1)
    assert {one[0] for one in plain} == {0x80, 0x80 | envelope.HAS_ENTRY}
    rows = row_encoder(messages_schema(), "orders")
    cut = rows.batch(plain, [1, 1, 2, 2])
    assert cut.schema == to_arrow_schema(messages_schema(), timezone="UTC")
    assert cut.to_pylist() == rows.batch([*plain, stored(b"", b"acme")], [1, 1, 2, 2, 1]).to_pylist()[:4]
    said = [envelope.Envelope(one) for one in plain]
    assert cut["id"].to_pylist() == [one.id.hex() for one in said]
    assert cut["payload"].to_pylist() == [one.payload.decode() for one in said]
    assert [one.timestamp() for one in cut["published_at"].to_pylist()] == [one.published_at for one in said]


def test_no_messages_are_an_empty_batch_of_the_same_schema():
    assert row_encoder(messages_schema(), "q").batch([], []).schema == to_arrow_schema(
        messages_schema(), timezone="UTC"
    )


def test_bytes_that_somebody_else_has_put_there_are_a_payload_without_an_id():
    (row,) = row_encoder(messages_schema(), "q").batch([b"by hand"], [1]).to_pylist()
    assert (row["id"], row["payload"], row["published_at"]) == (None, "by hand", None)


def test_a_payload_that_is_no_text_says_how_to_read_it():
    with pytest.raises(
        CorruptMessageError, match=r"not UTF-8\. .*'payloadFormat', 'binary'.*'invalidPayloads', 'column'"
    ):
        row_encoder(messages_schema(), "q").batch([stored(b"\xff\xfe")], [1])


def test_as_binary_a_payload_may_be_anything():
    (row,) = row_encoder(messages_schema("binary"), "q", "binary").batch([stored(b"\xff\xfe")], [1]).to_pylist()
    assert row["payload"] == b"\xff\xfe"


@pytest.mark.parametrize("tenant", [b"", b"acme"])
def test_a_payload_that_is_no_text_can_have_a_column_of_its_own(tenant):
    """With a tenant the columns are made in another way."""
    rows = row_encoder(stream_schema("string", "column"), "q", invalid_payloads="column")
    given = [b"fine", b"\xff\xfe", "auch gut, äöü".encode()]
    found = rows.batch([stored(one, tenant=tenant) for one in given], [1, 1, 1]).to_pylist()
    assert [(row["payload"], row["corrupt_payload"]) for row in found] == [
        ("fine", None),
        (None, b"\xff\xfe"),
        ("auch gut, äöü", None),
    ]
    assert {row["corrupt_payload"] for row in rows.batch([stored(b"fine")], [1]).to_pylist()} == {None}


def test_rows_travel_to_executors():
    rows = row_encoder(messages_schema(), "q")
    rows.batch([stored(b"x")], [1])
    assert pickle.loads(pickle.dumps(rows)).batch([stored(b"x")], [1]).num_rows == 1
    of_json = row_encoder(schema_of(x=t.LongType()), "q")
    of_json.batch([stored(b"{}")], [1])
    assert pickle.loads(pickle.dumps(of_json)).batch([stored(b'{"x":1}')], [1]).num_rows == 1


# JSON


def message_column(**fields) -> t.StructType:
    about = t.StructType([t.StructField(name, kind) for name, kind in fields.items()])
    return schema_of(x=t.LongType()).add("_message", about)


ABOUT = {
    "id": t.StringType(),
    "tenant": t.StringType(),
    "published_at": t.TimestampType(),
    "attempt": t.IntegerType(),
    "headers": t.MapType(t.StringType(), t.StringType()),
}


@pytest.mark.promise(
    "With a schema that has a column `_message`, a streaming query also gets what is known of a message."
)
def test_a_message_column_has_what_is_known_beside_the_payload(client):
    queue = RedisMessageQueue("orders", client=client, get_headers=lambda: {"trace": "7"})
    queue.publish({"x": 1, "_message": "of the payload"}, tenant="acme")
    queue.publish("not JSON")
    whole = [*client.lrange(queue.key.tenant_pending("acme"), 0, -1), *client.lrange(queue.key.pending, 0, -1)]
    first, broken, foreign = (
        row_encoder(message_column(**ABOUT), "orders").batch([*whole, b"by hand"], [1, 3, 1]).to_pylist()
    )
    said = envelope.Envelope(whole[0])
    assert (first["x"], first["_corrupt_record"]) == (1, None)
    about = first["_message"]
    assert (about["id"], about["tenant"], about["attempt"]) == (said.id.hex(), "acme", 1)
    assert (about["published_at"].timestamp(), about["headers"]) == (said.published_at, [("trace", "7")])
    assert (broken["_corrupt_record"], broken["_message"]["attempt"]) == ("not JSON", 3)
    assert foreign["_message"] == {"id": None, "tenant": None, "published_at": None, "attempt": 1, "headers": None}


def test_a_message_column_may_have_some_of_the_fields():
    schema = message_column(attempt=t.LongType(), id=t.StringType())
    (row,) = row_encoder(schema, "q").batch([stored(b"{}")], [2]).to_pylist()
    assert row["_message"]["attempt"] == 2
    assert len(row["_message"]["id"]) == 32


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (t.StringType(), "column _message of the given schema is string. It is filled with"),
        (t.StructType(), "column _message of the given schema is struct<>"),
        (t.StructType().add("id", t.LongType()), "column _message.id of the given schema is bigint, but _message has"),
        (
            t.StructType().add("name", t.StringType()),
            "column _message.name of the given schema is string, but _message",
        ),
    ],
)
def test_a_message_column_that_cannot_be_filled_is_refused(kind, says):
    with pytest.raises(ConfigurationError, match=says):
        row_encoder(schema_of(x=t.LongType()).add("_message", kind), "q")


@pytest.mark.parametrize(
    ("kind", "value", "becomes"),
    [
        (t.StringType(), "text", "text"),
        (t.StringType(), 5, "5"),
        (t.StringType(), {"a": [1]}, '{"a": [1]}'),
        (t.IntegerType(), 2**31 - 1, 2**31 - 1),
        (t.LongType(), -(2**63), -(2**63)),
        (t.DoubleType(), 1, 1.0),
        (t.BooleanType(), True, True),
        (t.DecimalType(10, 2), "1.50", Decimal("1.50")),
        (t.DecimalType(10, 2), 1.5, Decimal("1.50")),
        (t.DateType(), "2026-01-31", date(2026, 1, 31)),
        (t.TimestampType(), "2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (t.TimestampType(), "2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (t.TimestampNTZType(), "2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
        (t.BinaryType(), "AP8=", b"\x00\xff"),
        (t.ArrayType(t.IntegerType()), [1, None], [1, None]),
        (t.MapType(t.StringType(), t.IntegerType()), {"a": 1}, [("a", 1)]),
        (t.StructType().add("y", t.LongType()), {"y": 1, "z": 2}, {"y": 1}),
        (t.LongType(), None, None),
    ],
)
def test_json_is_parsed_into_the_columns(kind, value, becomes):
    assert parsed(kind, value) == becomes


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (t.IntegerType(), 2**31),
        (t.LongType(), 1.5),
        (t.LongType(), True),
        (t.LongType(), "1"),
        (t.DoubleType(), "1"),
        (t.BooleanType(), 0),
        (t.DecimalType(4, 2), "100"),
        (t.DecimalType(4, 2), "many"),
        (t.DateType(), "yesterday"),
        (t.TimestampType(), 17),
        (t.TimestampNTZType(), "2026-01-31T12:00:00Z"),
        (t.BinaryType(), "not base64!"),
        (t.ArrayType(t.IntegerType()), {"a": 1}),
        (t.ArrayType(t.IntegerType()), ["a"]),
        (t.MapType(t.StringType(), t.IntegerType()), [1]),
        (t.StructType().add("y", t.LongType()), 5),
        (t.StringType(), "\ud800"),
    ],
)
def test_a_value_that_does_not_fit_makes_the_whole_payload_corrupt(kind, value):
    assert parsed(kind, value) == json.dumps({"x": value})


@pytest.mark.parametrize("payload", [b"not json", b"[1]", b"5", b"null", b"", b'{"x":', b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_kept_whole_beside_the_rest(payload):
    rows = row_encoder(schema_of(x=t.LongType()), "q").batch([stored(b'{"x":1}'), stored(payload)], [1, 1]).to_pylist()
    assert rows == [
        {"x": 1, "_corrupt_record": None},
        {"x": None, "_corrupt_record": payload.decode(errors="replace")},
    ]


def test_the_batch_has_the_schema_that_was_given():
    schema = schema_of(
        a=t.ArrayType(t.StructType().add("b", t.TimestampType())), m=t.MapType(t.StringType(), t.DateType())
    )
    batch = row_encoder(schema, "q").batch([stored(b'{"a":[{"b":"2026-01-01"}],"m":{"k":"2026-01-01"}}')], [1])
    assert batch.schema == to_arrow_schema(schema, timezone="UTC")


# Schemas that do not fit


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (t.StructType().add("x", t.LongType()), "has no column '_corrupt_record string'.*Add it"),
        (t.StructType().add("_corrupt_record", t.LongType()), "has no column '_corrupt_record string'"),
        (schema_of(x=t.DayTimeIntervalType()), "column x of the given schema is interval .*Read it as string"),
        (
            schema_of(x=t.ArrayType(t.StructType().add("y", t.YearMonthIntervalType()))),
            r"column x\[\]\.y of the given schema is interval",
        ),
        (schema_of(x=t.MapType(t.LongType(), t.LongType())), "the keys of x must be strings"),
        (t.StructType().add("x", t.LongType(), nullable=False).add("_corrupt_record", t.StringType()), "x .* NOT NULL"),
        (schema_of(x=t.LongType()).add("x", t.LongType()), "more than one column x"),
    ],
)
def test_a_schema_that_does_not_fit_is_one_clear_error(schema, says):
    with pytest.raises(ConfigurationError, match=says):
        row_encoder(schema, "q")


def test_the_columns_of_a_message_have_their_own_types():
    with pytest.raises(
        ConfigurationError, match=r"column payload is string in the given schema and binary in a message"
    ):
        row_encoder(messages_schema("string"), "q", "binary")
