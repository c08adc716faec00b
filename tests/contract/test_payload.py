"""A message that could not arrive unchanged is refused, with an error that says where it is wrong."""

import datetime
import decimal
import enum
import json
from collections import OrderedDict, namedtuple
from itertools import product
from typing import Any

import pytest

from tests.contract.shells import Shell, take
from tests.tables import row

pytestmark = pytest.mark.topic("Payloads")

Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


def nested(depth: int, *, lists: bool = False) -> dict[str, Any]:
    """A dict that nests exactly so deep, counting itself."""
    inner: Any = [] if lists else {}
    for level in range(depth - 2):
        inner = [inner] if lists and level % 2 else {"in": inner}
    return {"in": inner}


async def refused(shell: Shell, message: Any, **options: Any) -> Exception:
    """The error for a message that must not get in; nothing was written."""
    queue = shell.queue(**options)
    with pytest.raises(shell.module.RedisMessageQueueError) as refusal:
        await queue.publish(message)
    assert shell.is_empty
    return refusal.value


# What a message is


@pytest.mark.promise("A message is a `str` or a `dict`; anything else raises `TypeError`.")
async def test_only_text_and_dicts_are_messages(shell: Shell, subtests: pytest.Subtests) -> None:
    """Anything else is a TypeError that names its type and what would do."""
    for message in [
        None,
        True,
        1,
        1.5,
        b"bytes",
        bytearray(b"x"),
        memoryview(b"x"),
        ["list"],
        ("tuple",),
        {"set"},
        object(),
        str,
    ]:
        with row(subtests, message=message):
            shell.redis.flushall()
            error = await refused(shell, message)
            assert isinstance(error, TypeError)
            assert type(message).__name__ in str(error) and "str or a dict" in str(error)
            assert "pass codec= to the queue" in str(error)


@pytest.mark.promise("A message is a `str` or a `dict`; anything else raises `TypeError`.")
async def test_subclasses_of_str_and_dict_are_messages(shell: Shell) -> None:
    """They carry nothing that JSON or UTF-8 would lose."""

    class Text(str):
        __slots__ = ()

    queue = shell.queue()
    await queue.publish(Text("text"))
    await queue.publish(OrderedDict(a=1))
    assert await take(queue) == b"text"
    assert json.loads(await take(queue)) == {"a": 1}


@pytest.mark.promise("A dict key that is not a `str` is always refused, at any depth.")
async def test_a_key_that_is_no_text_is_refused_at_any_depth(shell: Shell, subtests: pytest.Subtests) -> None:
    """json would turn 1 into "1" on the quiet; the error says where the key is. Strict types make no difference."""
    for message, path in [
        ({1: "a"}, "message"),
        ({None: "a"}, "message"),
        ({True: "a"}, "message"),
        ({1.5: "a"}, "message"),
        ({"a": {"b": {2: "c"}}}, "message['a']['b']"),
        ({"a": [0, {"b": 1, 3: 1}]}, "message['a'][1]"),
        ({"a": [[{4: 1}]]}, "message['a'][0][0]"),
        ({("x", "y"): 1}, "message"),
        ({"a": {b"k": 1}}, "message['a']"),
    ]:
        with row(subtests, message=message, path=path):
            shell.redis.flushall()
            for strict in (False, True):
                error = await refused(shell, message, strict_payload_types=strict)
                assert isinstance(error, TypeError)
                assert f"at {path} " in str(error)


@pytest.mark.promise("Lone surrogates, NaN, infinities and circular structures raise `ValueError`.")
async def test_a_lone_surrogate_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """UTF-8 cannot encode it; the error is a ValueError."""
    for message in ["\ud800", "half \udfff", {"a": "\ud800"}, {"\ud800": "a"}, {"a": [{"b": ["\udc80"]}]}]:
        with row(subtests, message=message):
            shell.redis.flushall()
            error = await refused(shell, message)
            assert isinstance(error, ValueError)
            assert "surrogate" in str(error)


@pytest.mark.promise("Lone surrogates, NaN, infinities and circular structures raise `ValueError`.")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_numbers_that_json_does_not_know_are_refused(shell: Shell, number: float) -> None:
    """At the top and inside, with or without strict types."""
    for message in ({"a": number}, {"a": [{"b": number}]}):
        assert isinstance(await refused(shell, message), ValueError)
        assert isinstance(await refused(shell, message, strict_payload_types=True), ValueError)


@pytest.mark.promise("Lone surrogates, NaN, infinities and circular structures raise `ValueError`.")
async def test_a_structure_inside_itself_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """It would never end."""
    every_options: list[Any] = [{}, {"strict_payload_types": True}, {"max_payload_depth": 20}]
    every_through_list: list[Any] = [False, True]
    for options, through_list in product(every_options, every_through_list):
        with row(subtests, options=options, through_list=through_list):
            shell.redis.flushall()
            message: dict[str, Any] = {"a": 1}
            message["me"] = [message] if through_list else message
            assert isinstance(await refused(shell, message, **options), ValueError)


@pytest.mark.promise("Lone surrogates, NaN, infinities and circular structures raise `ValueError`.")
@pytest.mark.parametrize("options", [{}, {"strict_payload_types": True}, {"deduplication": True}], ids=str)
async def test_hostile_nesting_is_published_or_refused_but_nothing_worse(shell: Shell, options: dict[str, Any]) -> None:
    """Where Python cannot encode it, the error is PayloadTooDeepError: never a RecursionError, never a crash."""
    queue = shell.queue(**options)
    for depth in (100, 300, 500, 700, 900, 1_500, 3_000, 9_000, 50_000):
        shell.redis.flushall()
        try:
            assert await queue.publish(nested(depth)) is True
        except shell.module.PayloadTooDeepError:
            assert depth > 100, "a hundred levels are no attack"
            assert shell.is_empty


@pytest.mark.promise(
    "Payload checks are off by default: tuples become lists, and values that JSON cannot encode raise `TypeError`."
)
async def test_a_value_that_json_cannot_write_is_a_type_error(shell: Shell, subtests: pytest.Subtests) -> None:
    """Also without strict types."""
    for value in [{1, 2}, frozenset(), b"bytes", datetime.datetime(2024, 1, 1), object(), 1j]:
        with row(subtests, value=value):
            shell.redis.flushall()
            assert isinstance(await refused(shell, {"a": [value]}), TypeError)


@pytest.mark.promise(
    "Payload checks are off by default: tuples become lists, and values that JSON cannot encode raise `TypeError`."
)
async def test_without_strict_types_a_tuple_becomes_a_list(shell: Shell) -> None:
    """What json.dumps does; keys inside it are looked at all the same."""
    assert "at message['a'][0] " in str(await refused(shell, {"a": ({4: 1},)}))
    queue = shell.queue()
    await queue.publish({"a": (1, 2)})
    assert json.loads(await take(queue)) == {"a": [1, 2]}


# strict_payload_types


@pytest.mark.promise(
    "`strict_payload_types` refuses every value that JSON would not return unchanged and names its path and type."
)
async def test_strict_types_name_the_place_and_the_kind_of_what_would_be_lost(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """Values that JSON cannot represent exactly, at any depth."""
    for value, kind in [
        ((1, 2), "tuple"),
        (Point(1, 2), "Point"),
        ({1}, "set"),
        (frozenset({1}), "frozenset"),
        (b"x", "bytes"),
        (bytearray(b"x"), "bytearray"),
        (datetime.datetime(2024, 1, 1), "datetime"),
        (datetime.date(2024, 1, 1), "date"),
        (decimal.Decimal(1), "Decimal"),
        (Colour.RED, "Colour"),
        (object(), "object"),
    ]:
        with row(subtests, value=value, kind=kind):
            shell.redis.flushall()
            for message, path in (
                ({"a": value}, "message['a']"),
                ({"items": [value]}, "message['items'][0]"),
                ({"a": [{"b": [0, value]}]}, "message['a'][0]['b'][1]"),
            ):
                error = await refused(shell, message, strict_payload_types=True)
                assert isinstance(error, TypeError)
                assert f"value at {path} is a {kind}" in str(error)


@pytest.mark.promise(
    "`strict_payload_types` accepts `None`, `bool`, `int`, `float`, `str`, and lists and dicts of them."
)
async def test_strict_types_let_pass_what_json_knows(shell: Shell) -> None:
    """None, bool, int, float, str, and lists and dicts of them; a text is no business of theirs."""
    message = {"a": [None, True, 1, 1.5, "x", [], {}, {"b": [[{}]]}]}
    queue = shell.queue(strict_payload_types=True)
    await queue.publish(message)
    await queue.publish("(1, 2)")
    assert json.loads(await take(queue)) == message
    assert await take(queue) == b"(1, 2)"


# max_payload_bytes


@pytest.mark.promise(
    "`max_payload_bytes` limits the UTF-8 size of a string or of a dict's JSON; exceeding it raises "
    "`PayloadTooLargeError`."
)
@pytest.mark.parametrize(
    ("message", "size"),
    [("x" * 10, 10), ("漢" * 4, 12), ({"a": "b"}, 10), ({"a": "漢"}, 12)],
    ids=["text", "wide text", "dict", "wide dict"],
)
async def test_a_payload_may_be_as_large_as_the_limit_and_no_larger(shell: Shell, message: Any, size: int) -> None:
    """Measured in bytes of UTF-8, of a dict those of its JSON."""
    error = await refused(shell, message, max_payload_bytes=size - 1)
    assert type(error) is shell.module.PayloadTooLargeError
    assert isinstance(error, ValueError)
    assert str(size) in str(error) and "max_payload_bytes" in str(error)
    queue = shell.queue(max_payload_bytes=size)
    assert await queue.publish(message) is True
    assert len(await take(queue)) == size


# max_payload_depth


@pytest.mark.promise(
    "`max_payload_depth` limits how deep dicts and lists are nested; exceeding it raises `PayloadTooDeepError`."
)
@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("depth", [2, 5, 20])
async def test_a_dict_may_nest_as_deep_as_the_limit_and_no_deeper(shell: Shell, depth: int, lists: bool) -> None:
    """Dicts and lists both count, and the message itself is the first level."""
    error = await refused(shell, nested(depth, lists=lists), max_payload_depth=depth - 1)
    assert type(error) is shell.module.PayloadTooDeepError
    assert isinstance(error, ValueError)
    assert await shell.queue(max_payload_depth=depth).publish(nested(depth, lists=lists)) is True


@pytest.mark.promise(
    "`max_payload_depth` limits how deep dicts and lists are nested; exceeding it raises `PayloadTooDeepError`."
)
async def test_a_depth_of_one_allows_a_flat_dict(shell: Shell) -> None:
    """And nothing inside it."""
    assert await shell.queue(max_payload_depth=1).publish({"a": 1, "b": "x"}) is True
    for inner in ({}, [], ()):
        shell.redis.flushall()
        assert isinstance(await refused(shell, {"a": inner}, max_payload_depth=1), shell.module.PayloadTooDeepError)


@pytest.mark.promise(
    "`max_payload_depth` limits how deep dicts and lists are nested; exceeding it raises `PayloadTooDeepError`."
)
async def test_depth_is_no_matter_of_texts(shell: Shell) -> None:
    """A text is not parsed, whatever it looks like."""
    assert await shell.queue(max_payload_depth=1).publish("[" * 100) is True


@pytest.mark.promise(
    "`max_payload_depth` limits how deep dicts and lists are nested; exceeding it raises `PayloadTooDeepError`."
)
async def test_a_hostile_depth_is_refused_before_it_is_walked_to_its_end(shell: Shell) -> None:
    """A hundred thousand levels are answered like twenty-one."""
    error = await refused(shell, nested(100_000), max_payload_depth=20)
    assert type(error) is shell.module.PayloadTooDeepError


@pytest.mark.promise("A bad payload is refused before Redis or the deduplication function is called.")
async def test_the_guards_work_together(shell: Shell) -> None:
    """A message that keeps all the rules gets in; breaking any one keeps it out."""
    rules = {"strict_payload_types": True, "max_payload_bytes": 40, "max_payload_depth": 2}
    assert await shell.queue(**rules).publish({"a": [1, 2], "b": None}) is True
    shell.redis.flushall()
    assert isinstance(await refused(shell, {"a": (1,)}, **rules), TypeError)
    assert isinstance(await refused(shell, {"a": [[1]]}, **rules), shell.module.PayloadTooDeepError)
    assert isinstance(await refused(shell, {"a": "x" * 50}, **rules), shell.module.PayloadTooLargeError)


@pytest.mark.promise("No error message quotes a payload.")
async def test_a_refused_message_is_not_quoted(shell: Shell) -> None:
    """Error texts end up in logs, where payloads have no business; keys may name the place, values may not."""
    for message in ("secret" * 10, {"a": "secret" * 10}):
        assert "secret" not in str(await refused(shell, message, max_payload_bytes=20))
    assert "secret" not in str(await refused(shell, {"a": ("secret",)}, strict_payload_types=True))
    assert "secret" not in str(await refused(shell, {"a": b"secret"}))
    assert "secret" not in str(await refused(shell, "secret \ud800"))
    assert "secret" not in str(await refused(shell, b"secret"))


@pytest.mark.promise("A bad payload is refused before Redis or the deduplication function is called.")
async def test_a_refused_message_calls_neither_redis_nor_the_key_function(shell: Shell, dead_port: int) -> None:
    """It is turned away at the door, also where nobody listens at the other end; and nothing is told of it."""
    events = shell.events()
    queue = shell.queue(
        client=shell.dead_client(dead_port),
        strict_payload_types=True,
        max_payload_bytes=20,
        max_payload_depth=1,
        deduplication=True,
        get_deduplication_key=pytest.fail,
        on_event=events.listen,
    )
    for message in (b"bytes", {"a": (1,)}, {"a": {}}, "x" * 21, "\ud800", {1: 1}):
        with pytest.raises(shell.module.RedisMessageQueueError):
            await queue.publish(message)
    assert events.names == []


# The text


class TextKey(str):
    """A key that is a str, and says so to isinstance only."""

    __slots__ = ()


@pytest.mark.promise(
    "A dict is stored as the JSON of Python's standard library, with non-ASCII characters as they are."
)
async def test_a_dict_is_stored_as_the_standard_library_writes_it(shell: Shell, subtests: pytest.Subtests) -> None:
    for message in [
        {},
        {"a": {}, "b": [], "c": ()},
        {"text": 'é \u2028 \x00 " \\ / 😀', "é": "key"},
        {"numbers": [0, -1, 10**30, 1.5, -0.0, 1e16, 1e-7, 1.7976931348623157e308], "constants": [None, True, False]},
        {"deep": [[{"a": [{"b": ({"c": 1},)}]}]]},
        {TextKey("key"): Colour.RED, "ordered": OrderedDict(b=1, a=2), "point": Point(1, 2)},
    ]:
        with row(subtests, message=message):
            shell.redis.flushall()
            queue = shell.queue()
            assert await queue.publish(message)
            assert await take(queue) == json.dumps(message, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.promise("A dict that contains itself, or nests too deep, raises a typed error.")
async def test_a_dict_that_contains_itself_is_told_from_one_that_is_deep(shell: Shell) -> None:
    around: dict[str, Any] = {"in": []}
    around["in"].append(around)
    error = await refused(shell, around)
    assert "Circular" in str(error)
    shared = {"a": 1}
    assert await shell.queue().publish({"one": shared, "two": [shared, shared]})
