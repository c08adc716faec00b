"""Codecs: what goes in as an object comes out as an equal one, and what cannot be decoded stops nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from redis_message_queue import (
    ConfigurationError,
    ConfigurationTypeError,
    GatewayContractError,
    MissingExtraError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
)
from redis_message_queue.payloads import BytesCodec, DataclassCodec, JsonCodec, MsgspecCodec, PydanticCodec
from tests.contract.shells import EVERY_WIRING, Awaited, Shell, claim_and_die, silent_gateway, take
from tests.tables import row

pytestmark = pytest.mark.topic("Payloads")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Item:
    name: str
    price: Decimal
    parts: list[Item] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    id: int
    customer: str
    items: tuple[Item, ...] = ()
    placed: datetime | None = None
    day: date = date(2026, 1, 1)
    key: UUID | None = None
    colour: Colour = Colour.RED
    level: Level = Level.HIGH
    weight: float = 0.5
    paid: bool = False
    notes: dict[str, list[str]] = field(default_factory=dict, hash=False)
    extra: Any = None


class Model(pydantic.BaseModel):
    id: int
    placed: datetime
    items: list[Item] = []
    label: str = pydantic.Field(default="", alias="Label")


class Struct(msgspec.Struct):
    id: int
    raw: bytes = b""
    tags: dict[str, int] = {}


class Reversed:
    """A codec of one's own."""

    def encode(self, message: str) -> bytes:
        return message[::-1].encode("utf-16")

    def decode(self, payload: bytes) -> str:
        return payload.decode("utf-16")[::-1]


ORDER = Order(
    7,
    "Jané",
    (Item("bolt", Decimal("0.10"), [Item("thread", Decimal("1E-3"))]),),
    datetime(2026, 3, 29, 3, 30, tzinfo=timezone(timedelta(hours=2))),
    key=UUID(int=5),
    notes={"b": ["x"], "a": []},
    extra={"deep": [1, None, {"x": 1.5}]},
)
STRUCT = Struct(1, b"\xff\x00", {"b": 1, "a": 2})
MODEL = Model(id=1, placed=datetime(2026, 1, 1, tzinfo=UTC), items=[Item("a", Decimal("1.50"))], Label="x")
CASES: dict[str, tuple[Any, Any]] = {
    "dict": (dict, {"b": 1, "a": [1.5, None, True, "ü"]}),
    "list": (JsonCodec(), [1, {"a": 2}]),
    "number": (JsonCodec(), 0),
    "text": (JsonCodec(), ""),
    "bytes": (bytes, b"\x80\xff\x00 not UTF-8"),
    "no bytes": (BytesCodec(), b""),
    "dataclass": (Order, ORDER),
    "smallest dataclass": (DataclassCodec(Order), Order(1, "")),
    "pydantic": (Model, MODEL),
    "pydantic, any type": (PydanticCodec(list[int]), [1, 2]),
    "msgspec": (Struct, STRUCT),
    "msgspec, msgpack": (MsgspecCodec(Struct, "msgpack"), STRUCT),
    "msgspec, dataclass": (MsgspecCodec(Item), Item("a", Decimal("1.5"))),
    "one's own": (Reversed(), "abc"),
}


@pytest.mark.promise("With a codec, what is published as an object is delivered as an equal object of its type.")
@every_wiring
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_an_object_comes_out_as_it_went_in(shell: Shell, case: str) -> None:
    """In all ways of publishing and consuming."""
    codec, message = CASES[case]
    queue, seen = shell.queue(wait=0, codec=codec), list[Any]()
    assert await queue.publish(message, tenant="t", headers={"a": "b"})
    assert await queue.publish_many([message, message]) == [True, True]
    assert (await Awaited(queue).submit(message)).accepted
    await Awaited(Awaited(queue)._thing.tenant("t")).publish(message)
    async with queue.process_message() as payload:
        seen.append(payload)
        assert queue.current_message().payload == message
    assert await queue.process_message_callback(shell.callback(seen.append))
    async with queue.process_messages(1) as batch:
        seen += [one.payload for one in batch]
    await queue.run(shell.callback(lambda one: seen.append(one.payload)), until_empty=True)
    assert seen == [message] * 5 and all(type(one) is type(message) for one in seen)


async def test_an_object_survives_crashes_retries_and_redrives(shell: Shell) -> None:
    queue = shell.queue(wait=0, codec=Order, max_delivery_count=1)
    await queue.publish(ORDER)
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 1
    assert await take(queue) == ORDER


async def test_results_that_are_handed_off_have_the_codec_of_their_queue(shell: Shell) -> None:
    orders, items = shell.queue("orders", wait=0, codec=Order), shell.queue("items", wait=0, codec=Item)
    await orders.publish(ORDER)
    async with orders.process_messages(1) as batch:
        await Awaited(batch[0]).complete(publish=[(items.queue, item) for item in batch[0].payload.items])
    assert await take(items) == ORDER.items[0]


async def test_a_schedule_publishes_objects(shell: Shell) -> None:
    queue = shell.queue(codec=Order)
    await Awaited(queue).schedule("s", every_seconds=1, message=ORDER)
    assert await take(queue) == ORDER
    assert not await Awaited(queue).schedule("s", every_seconds=1, message=dataclasses.replace(ORDER))


async def test_operators_see_the_payload(shell: Shell) -> None:
    """As it is stored: JSON that people can read."""
    queue = shell.queue(codec=Order, enable_completed_queue=True)
    await queue.publish(Order(1, "a"))
    (peeked,) = await Awaited(queue).peek()
    assert json.loads(peeked.payload)["customer"] == "a"
    async with queue.process_messages(1) as batch:
        assert batch[0].json()["id"] == 1
    assert json.loads(shell.listed(queue.key.completed)[0])["id"] == 1


# Deduplication


@pytest.mark.promise("With a codec, deduplication compares the SHA-256 of the encoded message.")
async def test_equal_objects_are_duplicates(shell: Shell, subtests: pytest.Subtests) -> None:
    for case in CASES:
        with row(subtests, case=case):
            shell.redis.flushall()
            codec, message = CASES[case]
            queue = shell.queue(codec=codec, deduplication=True)
            assert await queue.publish(message)
            (stored,) = await Awaited(queue).peek()
            payload = stored.payload if isinstance(stored.payload, bytes) else stored.payload.encode()
            assert shell.redis.exists(queue.key.deduplication(hashlib.sha256(payload).hexdigest()))
            assert await queue.publish_many([message]) == [False]


async def test_the_order_of_keys_does_not_matter(shell: Shell) -> None:
    queue = shell.queue(codec=dict, deduplication=True)
    assert await queue.publish_many([{"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}]) == [True, False]
    typed = shell.queue("typed", codec=Order, deduplication=True)
    both = [Order(1, "a", notes={"x": [], "y": []}), Order(1, "a", notes={"y": [], "x": []})]
    assert await typed.publish_many(both) == [True, False]


async def test_a_key_function_gets_the_object(shell: Shell) -> None:
    key = shell.callback(lambda order: str(order.id))
    queue = shell.queue(wait=0, codec=Order, deduplication=True, get_deduplication_key=key, max_delivery_count=1)
    assert await queue.publish_many([Order(1, "a"), Order(1, "b"), Order(2, "c")]) == [True, False, True]
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    assert (await Awaited(queue).redrive_dead_letters(respect_deduplication=True)).suppressed == 1


# What cannot be encoded


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (dict, {1: 2}, PayloadTypeError, "key"),
    (dict, {"a": (1, 2)}, PayloadTypeError, "tuple"),
    (dict, {"a": float("nan")}, PayloadValueError, "JSON"),
    (dict, {"a": "\ud800"}, PayloadValueError, "surrogate"),
    (dict, None, PayloadTypeError, "None"),
    (dict, {"a": {1, 2}}, PayloadTypeError, "set"),
    (bytes, "text", PayloadTypeError, "bytes"),
    (Order, {"id": 1}, PayloadTypeError, "Order, not dict"),
    (Order, Item("a", Decimal(1)), PayloadTypeError, "Order, not Item"),
    (Order, Order("1", "a"), PayloadTypeError, r"Expected `int`, got `str` - at `\$\.id`"),  # type: ignore[arg-type]
    (Order, Order(True, "a"), PayloadTypeError, r"Expected `int`, got `bool` - at `\$\.id`"),
    (Order, Order(1, "a", [Item("a", Decimal(1))]), PayloadTypeError, "an equal Order"),  # type: ignore[arg-type]
    (Order, Order(1, "a", (Item("a", "much"),)), PayloadTypeError, "Invalid decimal string"),  # type: ignore[arg-type]
    (Order, Order(1, "a", extra={1}), PayloadTypeError, "an equal Order"),
    (Order, Order(1, "a", notes={1: []}), PayloadTypeError, "an equal Order"),  # type: ignore[dict-item]
    (Model, {"id": 1}, PayloadTypeError, "Model, not dict"),
    (Struct, {"id": 1}, PayloadTypeError, "Struct, not dict"),
    (Reversed(), 5, PayloadTypeError, "cannot be encoded by Reversed"),
]


async def test_what_cannot_be_encoded_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for codec, message, kind, what in BAD:
        with row(subtests, codec=codec, message=message, kind=kind, what=what):
            shell.redis.flushall()
            queue = shell.queue(codec=codec)
            with pytest.raises(kind, match=what):
                await queue.publish(message)
            with pytest.raises(kind, match=what):
                await queue.publish_many([message])
            assert shell.is_empty


async def test_a_codec_that_returns_no_bytes_is_refused(shell: Shell) -> None:
    class Wrong(Reversed):
        def encode(self, message: str) -> bytes:
            return message  # type: ignore[return-value]

    with pytest.raises(PayloadTypeError, match=r"Wrong\.encode must return bytes, not str"):
        await shell.queue(codec=Wrong()).publish("a")


async def test_the_limit_of_bytes_holds_for_codecs(shell: Shell) -> None:
    queue = shell.queue(codec=bytes, max_payload_bytes=3)
    assert await queue.publish(b"123")
    with pytest.raises(PayloadTooLargeError):
        await queue.publish(b"1234")


@dataclass
class Unknown:
    values: str | datetime


@dataclass
class Undefined:
    values: NowhereDefined  # type: ignore[name-defined]  # noqa: F821


class Typed(TypedDict):
    a: int


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"codec": 5}, ConfigurationTypeError, "codec must be a codec or the type"),
    ({"codec": "json"}, ConfigurationTypeError, "not str"),
    ({"codec": json}, ConfigurationTypeError, "encode.*decode"),
    ({"codec": str}, ConfigurationTypeError, "codec=str"),
    ({"codec": object}, ConfigurationTypeError, "codec=object"),
    ({"codec": Typed}, ConfigurationTypeError, "codec=Typed"),
    ({"codec": Unknown}, ConfigurationTypeError, "Unknown have types that cannot be decoded"),
    ({"codec": Undefined}, ConfigurationTypeError, "NowhereDefined"),
    ({"codec": dict, "strict_payload_types": True}, ConfigurationError, "strict_payload_types"),
    ({"codec": dict, "max_payload_depth": 3}, ConfigurationError, "max_payload_depth"),
]


async def test_what_is_no_codec_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for options, kind, what in REFUSED:
        with row(subtests, options=options, kind=kind, what=what), pytest.raises(kind, match=what):
            shell.queue(**options)


async def test_a_custom_gateway_has_no_codec(shell: Shell) -> None:
    with pytest.raises(GatewayContractError, match="codec"):
        shell.queue(gateway=silent_gateway(shell), codec=dict)


async def test_a_library_that_is_missing_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, codec in (("pydantic", Model), ("msgspec", Struct)):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(MissingExtraError, match=name):
                shell.queue(codec=codec)
    for name in ("pydantic", "msgspec"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"dataclass Order needs msgspec or pydantic; run: pip .*\[types\]"):
        shell.queue(codec=Order)


async def test_dataclasses_need_only_pydantic(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer with msgspec and a consumer without it understand each other, and a wrong field is refused."""
    await shell.queue(codec=Order).publish(ORDER)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    queue = shell.queue(codec=Order, wait=0)
    assert await take(queue) == ORDER
    with pytest.raises(PayloadTypeError, match=r"no valid Order: (.|\n)*id"):
        await queue.publish(Order("1", "a"))  # type: ignore[arg-type]  # wrong on purpose
    await shell.queue(codec=dict).publish({"id": 1, "customer": "a", "unknown": 2, "items": []})
    assert await take(queue) == Order(1, "a")
    await shell.queue(codec=dict).publish({"id": "1", "customer": "a"})
    assert await take(queue) is None and len(await Awaited(queue).records()) == 1


@dataclass(eq=False)
class Uncompared:
    a: set[int]
    b: timedelta | None = None
    c: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.c = len(self.a)


async def test_a_dataclass_need_not_compare_its_fields(shell: Shell) -> None:
    """It is delivered nevertheless, with fields that `__post_init__` sets."""
    queue = shell.queue(codec=Uncompared)
    await queue.publish(Uncompared({1, 2}, timedelta(days=1)))
    found = await take(queue)
    assert (found.a, found.b, found.c) == ({1, 2}, timedelta(days=1), 2)


# What cannot be decoded


UNDECODABLE: list[tuple[Any, bytes, str]] = [
    (dict, b"{", "JSONDecodeError"),
    (dict, b"\xff", "UnicodeDecodeError"),
    (JsonCodec(), b"null", "None"),
    (Order, b"[]", "Expected `object`, got `array`"),
    (Order, b"{}", "missing required field `id`"),
    (Order, b'{"id": "x", "customer": "a"}', "Expected `int`, got `str`"),
    (Order, b'{"id": 1, "customer": "a", "day": "soon"}', "date - at `$.day`"),
    (Order, b'{"id": 1, "customer": "a", "colour": "blue"}', "at `$.colour`"),
    (Order, b'{"id": 1, "customer": "a", "items": [{"name": 1}]}', "at `$.items[0].name`"),
    (Model, b"{}", "ValidationError"),
    (Struct, b'{"id": "x"}', "ValidationError"),
    (MsgspecCodec(Struct, "msgpack"), b"{}", "ValidationError"),
    (Reversed(), b"abc", "UnicodeDecodeError"),
    (DataclassCodec(Order), b'{"extra":' + b"[" * 100_000, "RecursionError"),
    (dict, b"[1]", "list where a dict should be"),
    (dict, b"5", "int where a dict should be"),
    (dict, b"null", "NoneType where a dict should be"),
]


def good_for(codec: Any) -> Any:
    """A message that the codec can encode."""
    is_type = isinstance(codec, type)
    return next(one for kind, one in CASES.values() if kind is codec or (not is_type and type(kind) is type(codec)))


@pytest.mark.promise("A payload that its codec cannot decode goes to the dead letters with that reason.")
@pytest.mark.parametrize(("codec", "payload", "what"), UNDECODABLE, ids=lambda one: str(one)[:30])
async def test_what_cannot_be_decoded_becomes_a_dead_letter(
    shell: Shell, codec: Any, payload: bytes, what: str, caplog: Any
) -> None:
    """With an event, a log line and a record. The messages around it are delivered."""
    events, good = shell.events(), good_for(codec)
    queue, seen = shell.queue(wait=0, codec=codec, on_event=events.listen), list[Any]()
    await queue.publish(good)
    await shell.queue(codec=bytes).publish(payload)
    await queue.publish(good)
    with caplog.at_level(logging.WARNING):
        summary = await queue.run(shell.callback(lambda one: seen.append(one.payload)), until_empty=True)
    assert seen == [good, good] and (summary.handled, summary.refused_at_claim) == (2, 1)
    (record,) = await queue.records()
    assert shell.listed(queue.key.dead_letter) == [payload]
    assert (record.reason, record.error_type) == ("undecodable", "CorruptMessageError") and what in record.error
    assert events.the("dlq").message_id == record.id
    assert record.id in caplog.text and what in caplog.text


@pytest.mark.parametrize("way", ["one", "callback", "batch"])
async def test_what_cannot_be_decoded_stops_no_way_of_consuming(shell: Shell, way: str) -> None:
    queue, seen = shell.queue(wait=0, codec=Order), list[Any]()
    for payload in (b"x", b"y"):
        await shell.queue(codec=bytes).publish(payload)
    await queue.publish(ORDER)
    if way == "one":
        seen.append(await take(queue))
    elif way == "callback":
        assert await queue.process_message_callback(shell.callback(seen.append))
    else:
        async with queue.process_messages(5) as batch:
            seen += [one.payload for one in batch]
    assert seen == [ORDER] and len(await queue.records()) == 2


async def test_a_field_that_a_class_does_not_have_is_ignored(shell: Shell) -> None:
    """A newer producer may have it."""
    queue = shell.queue(codec=Item)
    await shell.queue(codec=dict).publish({"name": "a", "price": "1", "colour": "red"})
    assert await take(queue) == Item("a", Decimal(1))


async def test_without_a_codec_nothing_changes(shell: Shell) -> None:
    queue = shell.queue(codec=None)
    with pytest.raises(PayloadTypeError, match="str or a dict"):
        await queue.publish(ORDER)
    await queue.publish({"a": 1})
    assert await take(queue) == shell.payload('{"a": 1}')
