"""Conditions on a message, as operators write them: `tenant == 'acme' and 'timeout' in error`.

The text is read by Python's own parser and turned into the parts below, of which a condition can have no others:
everything else is refused. Nothing of it is ever run as Python, and nothing of it reaches another language as text.
There are no loops, no arithmetic and no patterns, so a condition costs no more than its length.

A condition can be asked about a record, or be translated part by part, as `redis_message_queue.spark` does for columns.
"""

from __future__ import annotations

import ast
import json
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from redis_message_queue.errors import ConfigurationError

CAN = (
    "and, or, not, ==, !=, <, <=, >, >=, in, not in, is None, texts, numbers, lists of them, json['name'], and of "
    "texts .lower(), .startswith('...') and .endswith('...')"
)


class Kind(StrEnum):
    """What is known of a value before there is one."""

    NUMBER = "number"
    TEXT = "text"
    TIME = "time"
    ANY = "any"  # of JSON, and True and False
    NONE = "None"
    TRUTH = "yes or no"
    LIST = "list"


# What a record of `redis_message_queue.messages` has, and `json`, which is its payload parsed. Only what is delayed is
# due at a time.
RECORD: Mapping[str, Kind] = {
    "payload": Kind.TEXT,
    "json": Kind.ANY,
    "id": Kind.TEXT,
    "tenant": Kind.TEXT,
    "delivery_count": Kind.NUMBER,
    "published_at": Kind.TIME,
    "claimed_at": Kind.TIME,
    "finished_at": Kind.TIME,
    "reason": Kind.TEXT,
    "error_type": Kind.TEXT,
    "error": Kind.TEXT,
    "replay_of": Kind.TEXT,
    "headers": Kind.ANY,
}
WAITING: Mapping[str, Kind] = {**RECORD, "due_at": Kind.TIME}

_ORDERS: Mapping[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_METHODS: Mapping[str, int] = {"lower": 0, "startswith": 1, "endswith": 1}  # of texts, with so many texts in brackets
_MOST_PARTS = 200  # of a condition: each may be inside another, and Python's stack has an end
_LONGEST = 10_000


# -- what a condition is made of


@dataclass(frozen=True, slots=True)
class Part:
    """Something that has a value for each record, and its kind, which is known before."""

    kind: Kind
    said: str  # as it was written, for errors

    def value(self, record: Any) -> Any:
        """What it is for a record, which has its fields as attributes."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Field(Part):
    """What a record says of itself; `said` is its name."""

    def value(self, record: Any) -> Any:
        if self.said == "json":
            return _parsed_json(record.payload)
        found = getattr(record, self.said)
        return _text(found) if self.said == "payload" else found


@dataclass(frozen=True, slots=True)
class Constant(Part):
    """A text, a number, a time, True, False, None or a list of such."""

    constant: Any

    def value(self, record: Any) -> Any:
        return self.constant


@dataclass(frozen=True, slots=True)
class Item(Part):
    """A part of JSON, by its name or its place."""

    container: Part
    place: int | str

    def value(self, record: Any) -> Any:
        try:
            return self.container.value(record)[self.place]
        except (LookupError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Method(Part):
    """`.lower()`, `.startswith('...')` or `.endswith('...')` of a text."""

    name: str
    of: Part
    arguments: tuple[Part, ...]

    def value(self, record: Any) -> Any:
        text, given = self.of.value(record), [one.value(record) for one in self.arguments]
        if isinstance(text, str) and all(isinstance(one, str) for one in given):
            return getattr(text, self.name)(*given)
        return None if self.kind is Kind.TEXT else False


@dataclass(frozen=True, slots=True)
class Together(Part):
    """`and` if every part must hold, else `or`."""

    every: bool
    parts: tuple[Part, ...]

    def value(self, record: Any) -> bool:
        return (all if self.every else any)(part.value(record) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Negation(Part):
    """`not`."""

    part: Part

    def value(self, record: Any) -> bool:
        return not self.part.value(record)


@dataclass(frozen=True, slots=True)
class Equality(Part):
    """Whether two values are the same; None is equal to None alone."""

    left: Part
    right: Part

    def value(self, record: Any) -> bool:
        return bool(self.left.value(record) == self.right.value(record))


@dataclass(frozen=True, slots=True)
class Order(Part):
    """`<`, `<=`, `>` or `>=`. What is not known is neither more nor less; nor is a text of JSON than a number."""

    left: Part
    sign: str
    right: Part

    def value(self, record: Any) -> bool:
        try:
            return bool(_COMPARE[self.sign](self.left.value(record), self.right.value(record)))
        except TypeError:
            return False


@dataclass(frozen=True, slots=True)
class Membership(Part):
    """Whether a text is in a text, or anything in a list. In what is not known there is nothing."""

    left: Part
    right: Part

    def value(self, record: Any) -> bool:
        try:
            return self.left.value(record) in self.right.value(record)
        except TypeError:
            return False


@dataclass(frozen=True, slots=True)
class Condition:
    """Says for a record whether it holds."""

    text: str  # as Python would write it: two conditions of one text choose the same
    part: Part

    def __call__(self, record: Any) -> bool:
        return bool(self.part.value(record))


# -- reading one


def condition(text: str, fields: Mapping[str, Kind] = RECORD, *, option: str = "--where") -> Condition:
    """What the text says about these fields; what could not be meant is refused at once, under the option's name."""
    try:
        tree = _parsed(text)
        return Condition(ast.unparse(tree), _Reader(fields).truth(tree))
    except _RefusedError as refused:
        raise ConfigurationError(f"{option}: {refused}") from None


class _RefusedError(Exception):
    """Why a text is no condition."""


def _parsed(text: str) -> ast.expr:
    if not text.strip() or len(text) > _LONGEST:
        raise _RefusedError(f"a condition has 1 to {_LONGEST:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in texts, for programmers
            tree = ast.parse(text.replace("\n", " ").strip(), mode="eval")
            if "\n" in text:  # it may go over several lines, as it may in brackets
                tree = ast.parse(f"({text}\n)", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else "it is too deep, or is no plain text"
        raise _RefusedError(
            f"it cannot be read: {what}; write it like tenant == 'acme' and 'timeout' in error"
        ) from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_PARTS:
        raise _RefusedError(f"it has more than {_MOST_PARTS} parts")
    return tree.body


class _Reader:
    """Makes parts of what Python's parser has found, as far as a condition can have it."""

    def __init__(self, fields: Mapping[str, Kind]) -> None:
        self._fields = fields

    def truth(self, node: ast.expr) -> Part:
        part = self.part(node)
        if part.kind is not Kind.TRUTH:
            raise _RefusedError(f"{part.said} is no condition; compare it with something")
        return part

    def part(self, node: ast.expr) -> Part:
        said = ast.unparse(node)
        match node:
            case ast.BoolOp(op=op, values=values):
                return Together(Kind.TRUTH, said, isinstance(op, ast.And), tuple(self.truth(one) for one in values))
            case ast.UnaryOp(op=ast.Not(), operand=inside):
                return Negation(Kind.TRUTH, said, self.truth(inside))
            case ast.Compare():
                return self._comparison(node, said)
            case ast.Name(id=name):
                return self._field(name)
            case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) | ast.List() | ast.Tuple():
                return _constant(node, said)
            case ast.Subscript(value=container, slice=ast.Constant(value=int() | str() as place)):
                return _item(self.part(container), place, said)
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=arguments, keywords=[]) if name in _METHODS:
                return _method(self.part(of), name, tuple(self.part(one) for one in arguments), said)
        raise _RefusedError(f"{said} is not among what a condition can have: {CAN}")

    def _field(self, name: str) -> Part:
        if name not in self._fields:
            raise _RefusedError(f"a record has no {name!r}; it has {', '.join(sorted(self._fields))}")
        return Field(self._fields[name], name)

    def _comparison(self, node: ast.Compare, said: str) -> Part:
        """A chain like `1 < delivery_count < 5` holds if each link does."""
        operands = [self.part(one) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, operands, operands[1:], strict=False)
        links = tuple(_link(one, left, right, said) for one, left, right in pairs)
        return links[0] if len(links) == 1 else Together(Kind.TRUTH, said, True, links)


def _constant(node: ast.expr, said: str) -> Constant:
    value = ast.literal_eval(node) if _is_plain(node) else ...
    kinds = {str: Kind.TEXT, int: Kind.NUMBER, float: Kind.NUMBER, bool: Kind.ANY, type(None): Kind.NONE}
    if isinstance(value, list | tuple) and all(type(one) in kinds for one in value):
        kind, value = Kind.LIST, list(value)
    elif type(value) in kinds:
        kind = kinds[type(value)]
    else:
        raise _RefusedError(f"{said} is no text, number, True, False, None or list of such")
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, str) and not _is_unicode(one):
            raise _RefusedError(f"{one!r} is no text: half of a character")
    return Constant(kind, said, value)


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_plain(one) and not isinstance(one, ast.List | ast.Tuple) for one in node.elts)
    constant = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(constant, ast.Constant) and (
        not isinstance(node, ast.UnaryOp) or type(constant.value) in (int, float)
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _item(container: Part, place: int | str, said: str) -> Part:
    if container.kind is not Kind.ANY or isinstance(container, Constant):
        raise _RefusedError(f"{said}: only json has parts that are asked for by name")
    return Item(Kind.ANY, said, container, place)


def _method(of: Part, name: str, arguments: tuple[Part, ...], said: str) -> Part:
    if any(one.kind not in (Kind.TEXT, Kind.ANY) for one in (of, *arguments)):
        raise _RefusedError(f"{said}: .{name}() is for texts")
    if len(arguments) != _METHODS[name]:
        raise _RefusedError(f"{said}: .{name}() takes {_METHODS[name]} texts")
    return Method(Kind.TEXT if name == "lower" else Kind.TRUTH, said, name, of, arguments)


def _link(op: ast.cmpop, left: Part, right: Part, said: str) -> Part:
    left, right = _as_times(left, right)
    if isinstance(op, ast.In | ast.NotIn):
        return _negated_if(isinstance(op, ast.NotIn), _membership(left, right, said))
    if isinstance(op, ast.Is | ast.IsNot) and right.kind is not Kind.NONE:
        raise _RefusedError(f"`is` goes with None; write {left.said} == {right.said}")
    if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        _check_kinds(left, right, {Kind.NONE, Kind.ANY})
        return _negated_if(isinstance(op, ast.NotEq | ast.IsNot), Equality(Kind.TRUTH, said, left, right))
    _check_kinds(left, right, {Kind.ANY})
    return Order(Kind.TRUTH, said, left, _ORDERS[type(op)], right)


def _negated_if(negated: bool, part: Part) -> Part:
    return Negation(Kind.TRUTH, part.said, part) if negated else part


def _membership(left: Part, right: Part, said: str) -> Part:
    texts = (Kind.TEXT, Kind.ANY)
    if right.kind not in (*texts, Kind.LIST) or (right.kind is Kind.TEXT and left.kind not in texts):
        raise _RefusedError(f"{left.said} cannot be in {right.said}; a text can be in a text, and anything in a list")
    return Membership(Kind.TRUTH, said, left, right)


def _check_kinds(left: Part, right: Part, fitting: set[Kind]) -> None:
    if left.kind is not right.kind and not {left.kind, right.kind} & fitting:
        raise _RefusedError(f"{left.said} is a {left.kind} and {right.said} a {right.kind}; they cannot be compared")


def _as_times(left: Part, right: Part) -> tuple[Part, Part]:
    """A text that is compared with a time is one, and so are those of a list in which a time is looked for."""
    if left.kind is Kind.TIME and right.kind in (Kind.TEXT, Kind.LIST):
        return left, _time(right)
    if left.kind is Kind.TEXT and right.kind is Kind.TIME:
        return _time(left), right
    return left, right


def _time(part: Part) -> Part:
    if not isinstance(part, Constant):
        raise _RefusedError(f"{part.said} is no time")
    if part.kind is Kind.LIST:
        times = [_moment(one, repr(one)) if isinstance(one, str) else one for one in part.constant]
        return Constant(Kind.LIST, part.said, times)
    return Constant(Kind.TIME, part.said, _moment(part.constant, part.said))


def _moment(text: str, said: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise _RefusedError(f"{said} is no time; write it like '2030-01-31' or '2030-01-31T12:00:00+00:00'") from None


# -- what a payload says


def _text(payload: Any) -> str | None:
    """None where it is no text."""
    if isinstance(payload, bytes | bytearray):
        try:
            return payload.decode()
        except UnicodeDecodeError:
            return None
    return payload if isinstance(payload, str) else None


def _parsed_json(payload: Any) -> Any:
    try:
        return json.loads(_text(payload) or "")
    except (ValueError, RecursionError):
        return None
