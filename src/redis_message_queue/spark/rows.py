"""Makes Spark rows from stored messages: their columns, or the JSON in their payloads, as Arrow batches."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from redis_message_queue.spark.options import InvalidPayloads, PayloadFormat
from redis_message_queue.stored import headers
from redis_message_queue.stored.envelope import (
    HAS_ENTRY,
    HAS_EXTRAS,
    HAS_TENANT,
    HAS_TTL,
    HEADER_BYTES,
    TIME_AT,
    TTL_BYTES,
    Envelope,
    is_message,
)
from redis_message_queue.values.errors import ConfigurationError, CorruptMessageError

CORRUPT = "_corrupt_record"
CORRUPT_PAYLOAD = "corrupt_payload"  # the bytes of a payload that is no text
MESSAGE = "_message"  # a struct with what is known of the message beside its payload
_MESSAGE_FIELDS: dict[str, tuple[t.DataType, ...]] = {
    "id": (t.StringType(),),
    "tenant": (t.StringType(),),
    "published_at": (t.TimestampType(),),
    "attempt": (t.LongType(), t.IntegerType()),
    "headers": (t.MapType(t.StringType(), t.StringType()),),
}


def payload_type(payload_format: PayloadFormat) -> t.DataType:
    """Return the Spark type of a payload."""
    return t.StringType() if payload_format == "string" else t.BinaryType()


def messages_schema(payload_format: PayloadFormat = "string") -> t.StructType:
    """Return the columns of a message."""
    return (
        t.StructType()
        .add("id", t.StringType())
        .add("payload", payload_type(payload_format))
        .add("tenant", t.StringType())
        .add("published_at", t.TimestampType())
        .add("delivery_count", t.LongType())
        .add("queue", t.StringType())
        .add("headers", t.MapType(t.StringType(), t.StringType()))
    )


def stream_schema(payload_format: PayloadFormat, invalid_payloads: InvalidPayloads) -> t.StructType:
    """Return the columns of a streaming query without a schema of its own."""
    schema = messages_schema(payload_format)
    return schema.add(CORRUPT_PAYLOAD, t.BinaryType()) if invalid_payloads == "column" else schema


class ColumnEncoder:
    """Makes Arrow batches of one schema from columns of Python values, exactly as Spark expects them."""

    def __init__(self, schema: t.StructType) -> None:
        self.schema = schema

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what executors can make themselves."""
        return {name: value for name, value in vars(self).items() if name not in ("_arrow", "_read")}

    @cached_property
    def _arrow(self) -> pa.Schema:
        # This imports pandas, which takes half a second and which the driver's side of a query does not need.
        from pyspark.sql.pandas.types import to_arrow_schema

        # Spark compares the first batch with this very schema.
        return to_arrow_schema(self.schema, timezone="UTC")

    def encode(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Return a batch of these columns, in the order of the schema. Text may be bytes, and times microseconds."""
        arrays = [_array(values, one) for values, one in zip(columns, self._arrow, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _array(values: Sequence[Any], column: pa.Field) -> pa.Array:
    try:
        if pa.types.is_map(column.type):
            values = [one if one is None or isinstance(one, list) else list(one.items()) for one in values]
        return values.cast(column.type) if isinstance(values, pa.Array) else pa.array(values, column.type)
    except pa.ArrowInvalid:
        if column.name != "payload":
            raise
        raise CorruptMessageError(
            "a payload is not UTF-8. Read all payloads as bytes, .option('payloadFormat', 'binary'), or in a stream "
            "only this one, .option('invalidPayloads', 'column'), or move it to the dead letters, 'dead_letters'."
        ) from None


StoredParts = tuple[bytes | None, bytes, str | None, int | None]
"""Id, payload, tenant, and publish time in microseconds. Bytes that are not ours are a payload alone."""


def parse_stored(stored: bytes) -> StoredParts:
    """Return the parts of a stored message, in one pass: `Envelope` searches for each of them again."""
    if not is_message(stored):
        return None, stored, None, None
    flags, at, tenant = stored[0], HEADER_BYTES, None
    if flags & HAS_TENANT:
        end = at + 1 + stored[at]
        tenant, at = stored[at + 1 : end].decode(errors="replace"), end
    if flags & HAS_EXTRAS:
        at += 2 + int.from_bytes(stored[at : at + 2], "big")
    if flags & HAS_TTL:
        at += TTL_BYTES
    return stored[1:TIME_AT], stored[at:], tenant, int.from_bytes(stored[TIME_AT:HEADER_BYTES], "big")


def message_columns(stored: Sequence[bytes], delivery_counts: Sequence[int], queue: str) -> list[Sequence[Any]]:
    """Return the columns of messages, in the order of `messages_schema`."""
    if (plain := _plain_columns(stored)) is not None:
        return [*plain, delivery_counts, pa.repeat(queue, len(stored)), [None] * len(stored)]
    ids, payloads, tenants, times = zip(*map(parse_stored, stored), strict=True) if stored else ((), (), (), ())
    hexes = [None if one is None else one.hex() for one in ids]
    return [hexes, payloads, tenants, times, delivery_counts, [queue] * len(stored), [*map(headers_of, stored)]]


def headers_of(stored: bytes) -> dict[str, str] | None:
    """Return the headers of a stored message, if it has any."""
    if not is_message(stored) or not stored[0] & HAS_EXTRAS:
        return None
    return headers.decode(Envelope(stored).extras) or None


def _plain_columns(stored: Sequence[bytes]) -> list[pa.Array] | None:
    """Return the same for messages without tenant and extras, cut out by Arrow: a sixth of the time of a loop."""
    whole = pa.array(stored, pa.binary())
    shortest, longest = pc.min_max(pc.binary_length(whole)).as_py().values()
    if not stored or shortest < HEADER_BYTES:
        return None
    plain = pa.array([bytes((0x80,)), bytes((0x80 | HAS_ENTRY,))])
    if not pc.all(pc.is_in(pc.binary_slice(whole, 0, 1), plain)).as_py():
        return None
    ids, times = _cut(whole, 1, TIME_AT), _cut(whole, TIME_AT, HEADER_BYTES)
    if any(times[:: HEADER_BYTES - TIME_AT]):  # some are not ours: see `is_message`
        return None
    places = np.arange(0, 32 * len(stored) + 1, 32, dtype=np.int32)
    hexes = pa.StringArray.from_buffers(len(stored), pa.py_buffer(places), pa.py_buffer(ids.hex().encode()))
    moments = pa.array(np.frombuffer(times, ">i8").astype(np.int64))
    return [hexes, pc.binary_slice(whole, HEADER_BYTES, longest), pa.nulls(len(stored)), moments]


def _cut(whole: pa.Array, start: int, stop: int) -> bytes:
    """Return the same slice of each value, concatenated."""
    cut = pc.binary_slice(whole, start, stop)
    return bytes(cut.buffers()[2][: (stop - start) * len(cut)])


class RowEncoder(Protocol):
    """Makes an Arrow batch from stored messages. It is pickled and sent to executors."""

    schema: t.StructType

    def batch(self, stored: Sequence[bytes], delivery_counts: Sequence[int]) -> pa.RecordBatch:
        """Return one row for each message; ``delivery_counts`` has as many numbers."""


def row_encoder(
    schema: t.StructType,
    queue: str,
    payload_format: PayloadFormat = "string",
    invalid_payloads: InvalidPayloads = "fail",
) -> RowEncoder:
    """Return an encoder for this schema: the columns of a message, or else JSON payloads parsed into it.

    Call it where the schema arrives (`streamReader`), so that a schema that does not fit is an error there.
    """
    own = stream_schema(payload_format, invalid_payloads)
    return MessageRows(schema, own, queue) if schema.fieldNames() == own.fieldNames() else JsonRows(schema)


class MessageRows(ColumnEncoder):
    """Each row is a message: its payload as it is, and its other columns."""

    def __init__(self, schema: t.StructType, wanted: t.StructType, queue: str) -> None:
        for given, own in zip(schema, wanted, strict=True):
            if given.dataType != own.dataType:
                raise ConfigurationError(
                    f"column {given.name} is {given.dataType.simpleString()} in the given schema and "
                    f"{own.dataType.simpleString()} in a message; leave the schema out, or set payloadFormat"
                )
        super().__init__(wanted)
        self._queue = queue

    def batch(self, stored: Sequence[bytes], delivery_counts: Sequence[int]) -> pa.RecordBatch:
        columns = message_columns(stored, delivery_counts, self._queue)
        if CORRUPT_PAYLOAD in self.schema.fieldNames():
            columns[_PAYLOAD], corrupt = _split_by_validity(columns[_PAYLOAD])
            columns.append(corrupt)
        return self.encode(columns)


_PAYLOAD = messages_schema().fieldNames().index("payload")


def _split_by_validity(payloads: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the payloads that are text, and the others. Nearly always there are none, which Arrow tells quickly."""
    found = payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.binary())
    try:
        return found.cast(pa.string()), pa.nulls(len(found))
    except pa.ArrowInvalid:
        valid = [_is_text(one) for one in found.to_pylist()]
        return (
            [one if good else None for one, good in zip(found.to_pylist(), valid, strict=True)],
            [None if good else one for one, good in zip(found.to_pylist(), valid, strict=True)],
        )


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


class JsonRows(ColumnEncoder):
    """Each row is the parsed JSON of a payload. A payload that does not parse is in `_corrupt_record`.

    If the schema has a column `_message`, it has what is known of the message itself.
    """

    def __init__(self, schema: t.StructType) -> None:
        _check_schema(schema)
        super().__init__(schema)

    @cached_property
    def _read(self) -> Callable[[Any], Any]:
        fields = [one for one in self.schema if one.name not in (CORRUPT, MESSAGE)]
        return _reader_of(t.StructType(fields))

    def batch(self, stored: Sequence[bytes], delivery_counts: Sequence[int]) -> pa.RecordBatch:
        parts = [parse_stored(one) for one in stored]
        rows = [self._row(payload) for _, payload, _, _ in parts]
        if MESSAGE in self.schema.fieldNames():
            names = self.schema[MESSAGE].dataType.fieldNames()  # type: ignore[attr-defined]  # it was checked
            for row, one, whole, count in zip(rows, parts, stored, delivery_counts, strict=True):
                row[MESSAGE] = _about(names, one, whole, count)
        return self.encode([[row.get(name) for row in rows] for name in self.schema.fieldNames()])

    def _row(self, payload: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] | None = self._read(json.loads(payload))
        except (ValueError, ArithmeticError, RecursionError):
            row = None
        return {CORRUPT: payload.decode(errors="replace")} if row is None else row


def _about(names: Sequence[str], parts: StoredParts, stored: bytes, attempt: int) -> dict[str, Any]:
    """Return the fields of `_message` that are wanted. Only the id of bytes that are not ours is not known."""
    message_id, _, tenant, published_at = parts
    known: dict[str, Any] = {
        "id": None if message_id is None else message_id.hex(),
        "tenant": tenant,
        "published_at": published_at,
        "attempt": attempt,
    }
    if "headers" in names:
        found = headers_of(stored)
        known["headers"] = None if found is None else list(found.items())
    return {name: known[name] for name in names}


def _check_message_column(kind: t.DataType) -> None:
    wanted = "struct<id string, tenant string, published_at timestamp, attempt bigint, headers map<string, string>>"
    if not isinstance(kind, t.StructType) or not kind.fields:
        raise ConfigurationError(
            f"column {MESSAGE} of the given schema is {kind.simpleString()}. It is filled with what is known of the "
            f"message, so make it some of {wanted}, or rename it."
        )
    for one in kind:
        if not any(one.dataType == fitting for fitting in _MESSAGE_FIELDS.get(one.name, ())):
            raise ConfigurationError(
                f"column {MESSAGE}.{one.name} of the given schema is {one.dataType.simpleString()}, but {MESSAGE} has "
                f"some of {wanted}"
            )


def _check_schema(schema: t.StructType) -> None:
    """Raise for a schema into which JSON cannot be parsed without loss."""
    if CORRUPT not in schema.fieldNames() or schema[CORRUPT].dataType != t.StringType():
        raise ConfigurationError(
            f"the given schema has no column '{CORRUPT} string' for payloads that do not parse into it. Add it, "
            "or leave the schema out to get the payloads as they are."
        )
    names = schema.fieldNames()
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"the given schema has more than one column {twice[0]}; rename one")
    for one in schema:
        if not one.nullable:
            raise ConfigurationError(
                f"column {one.name} of the given schema is NOT NULL, but a payload may lack it. Make it nullable."
            )
        if one.name == MESSAGE:
            _check_message_column(one.dataType)
        else:
            _check_type(one.dataType, one.name)


def _check_type(kind: t.DataType, path: str) -> None:
    if isinstance(kind, t.StructType):
        for one in kind:
            _check_type(one.dataType, f"{path}.{one.name}")
    elif isinstance(kind, t.ArrayType):
        _check_type(kind.elementType, f"{path}[]")
    elif isinstance(kind, t.MapType):
        if kind.keyType != t.StringType():
            raise ConfigurationError(f"the keys of {path} must be strings, as they are in JSON")
        _check_type(kind.valueType, f"{path}{{}}")
    elif not isinstance(kind, tuple(_READERS)):
        raise ConfigurationError(
            f"column {path} of the given schema is {kind.simpleString()}, which JSON cannot be parsed into. "
            "Read it as string and cast it."
        )


def _fitting(value: Any, *kinds: type) -> Any:
    """Return the value, if JSON has one of these types there."""
    if type(value) not in kinds:
        raise ValueError("the value does not have the type of its column")
    return value


def _whole(most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not -most - 1 <= value <= most:
            raise ValueError("not a whole number of this size")
        return value

    return read


def _text(value: Any) -> str:
    """Show other values as JSON, as Spark's own reader does."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text.encode()  # a lone surrogate is an UnicodeEncodeError, which is a ValueError
    return text


def _decimal(kind: t.DecimalType) -> Callable[[Any], Decimal]:
    step, bound = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def read(value: Any) -> Decimal:
        exact = Decimal(str(_fitting(value, int, float, str))).quantize(step)
        if abs(exact) >= bound:
            raise ValueError("the number has too many digits")
        return exact

    return read


def _moment(value: Any) -> datetime:
    """Read ISO 8601; without an offset it is UTC."""
    moment = datetime.fromisoformat(_fitting(value, str))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _moment_without_zone(value: Any) -> datetime:
    moment = datetime.fromisoformat(_fitting(value, str))
    if moment.tzinfo is not None:
        raise ValueError("the time has an offset")
    return moment


# For each Spark type a function that makes the reader of its values.
_READERS: dict[type[t.DataType], Callable[[Any], Callable[[Any], Any]]] = {
    t.StringType: lambda kind: _text,
    t.BooleanType: lambda kind: lambda value: _fitting(value, bool),
    t.ByteType: lambda kind: _whole(2**7 - 1),
    t.ShortType: lambda kind: _whole(2**15 - 1),
    t.IntegerType: lambda kind: _whole(2**31 - 1),
    t.LongType: lambda kind: _whole(2**63 - 1),
    t.FloatType: lambda kind: lambda value: float(_fitting(value, int, float)),
    t.DoubleType: lambda kind: lambda value: float(_fitting(value, int, float)),
    t.DecimalType: _decimal,
    t.DateType: lambda kind: lambda value: date.fromisoformat(_fitting(value, str)),
    t.TimestampType: lambda kind: _moment,
    t.TimestampNTZType: lambda kind: _moment_without_zone,
    t.BinaryType: lambda kind: lambda value: base64.b64decode(_fitting(value, str), validate=True),
}


def _reader_of(kind: t.DataType) -> Callable[[Any], Any]:
    """Return a function from a parsed value to the one for Arrow; it raises for a misfit. Null fits everywhere."""
    read: Callable[[Any], Any]
    if isinstance(kind, t.StructType):
        readers = {one.name: _reader_of(one.dataType) for one in kind}

        def read(value: Any) -> dict[str, Any]:
            _fitting(value, dict)
            return {name: inner(value.get(name)) for name, inner in readers.items()}

    elif isinstance(kind, t.ArrayType):
        element = _reader_of(kind.elementType)

        def read(value: Any) -> list[Any]:
            return [element(one) for one in _fitting(value, list)]

    elif isinstance(kind, t.MapType):
        item = _reader_of(kind.valueType)

        def read(value: Any) -> list[tuple[str, Any]]:
            return [(name, item(one)) for name, one in _fitting(value, dict).items()]

    else:
        read = next(make for each, make in _READERS.items() if isinstance(kind, each))(kind)
    return lambda value: None if value is None else read(value)
