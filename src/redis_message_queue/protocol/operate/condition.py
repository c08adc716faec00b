"""Conditions on messages, as operators write them: `tenant == 'acme' and 'timeout' in error`.

Python's parser reads the text, and `condition` turns it into the parts below; everything else is refused. The text is
never run as Python, and never passed to another language. There are no loops, no arithmetic and no patterns, so the
cost of a condition is bounded by its length.

You can apply a condition to a record, or translate it part by part, as `redis_message_queue.spark` does for columns.
"""

from __future__ import annotations

import ast
import json
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.plain_values import is_text, plain

ALLOWED = (
    "and, or, not, ==, !=, <, <=, >, >=, in, not in, is None, texts, numbers, lists of these, json['name'], "
    ".lower(), .startswith('...') and .endswith('...')"
)


class Kind(StrEnum):
    """The type of a value, as far as the text of a condition tells it."""

    NUMBER = "number"
    TEXT = "text"
    TIME = "time"
    ANY = "any"  # of JSON, or True or False
    NONE = "None"
    TRUTH = "yes or no"
    LIST = "list"


# The fields of a record of `values/messages.py`, and `json`, the parsed payload. Only a delayed message has `due_at`.
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
    "traceback": Kind.TEXT,
    "replay_of": Kind.TEXT,
    "headers": Kind.ANY,
}
WAITING: Mapping[str, Kind] = {**RECORD, "due_at": Kind.TIME, "consumer": Kind.TEXT}

_ORDERS: Mapping[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_METHODS: Mapping[str, int] = {
    "lower": 0,
    "startswith": 1,
    "endswith": 1,
}  # the methods of texts, and how many arguments they have
_WORDS: Mapping[type, str] = {str: "text", list: "a list", dict: "an object"}
_MAX_PARTS = 200  # parts can be nested, and Python's stack is limited
_MAX_LENGTH = 10_000


# -- the parts of a condition


@dataclass(frozen=True, slots=True)
class Expression(ABC):
    """A part of a condition: it has a kind, and a value for each record."""

    kind: Kind
    source: str  # as it was written, for errors

    @abstractmethod
    def value(self, record: Any) -> Any:
        """Return the value for this record, which has its fields as attributes."""


@dataclass(frozen=True, slots=True)
class Field(Expression):
    """A field of the record; `source` is its name."""

    def value(self, record: Any) -> Any:
        if self.source == "json":
            return _parsed_json(record.payload)
        found = getattr(record, self.source)
        return _text(found) if self.source == "payload" else found


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A text, a number, a time, True, False, None, or a list of these."""

    constant: Any

    def value(self, record: Any) -> Any:
        return self.constant


@dataclass(frozen=True, slots=True)
class Item(Expression):
    """An item of JSON, by its name or its index."""

    container: Expression
    place: int | str

    def value(self, record: Any) -> Any:
        try:
            return self.container.value(record)[self.place]
        except (LookupError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Method(Expression):
    """`.lower()`, `.startswith('...')` or `.endswith('...')` of a text."""

    name: str
    of: Expression
    arguments: tuple[Expression, ...]

    def value(self, record: Any) -> Any:
        text, given = self.of.value(record), [one.value(record) for one in self.arguments]
        if isinstance(text, str) and all(isinstance(one, str) for one in given):
            return getattr(text, self.name)(*given)
        return None if self.kind is Kind.TEXT else False


@dataclass(frozen=True, slots=True)
class Together(Expression):
    """`and` if ``every`` part must be true, else `or`."""

    every: bool
    parts: tuple[Expression, ...]

    def value(self, record: Any) -> bool:
        return (all if self.every else any)(part.value(record) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Negation(Expression):
    """`not`."""

    part: Expression

    def value(self, record: Any) -> bool:
        return not self.part.value(record)


@dataclass(frozen=True, slots=True)
class Equality(Expression):
    """`==`. None is equal only to None."""

    left: Expression
    right: Expression

    def value(self, record: Any) -> bool:
        return bool(self.left.value(record) == self.right.value(record))


@dataclass(frozen=True, slots=True)
class Order(Expression):
    """`<`, `<=`, `>` or `>=`. It is false if a value is None, or if the values of JSON cannot be compared."""

    left: Expression
    sign: str
    right: Expression

    def value(self, record: Any) -> bool:
        try:
            return bool(_COMPARE[self.sign](self.left.value(record), self.right.value(record)))
        except TypeError:
            return False

    def unlike(self, record: Any) -> tuple[str, str] | None:
        """Return the value of JSON that cannot be compared here, and what it is; None if it can, or is None."""
        left, right = self.left.value(record), self.right.value(record)
        if left is None or right is None:
            return None
        try:
            _COMPARE[self.sign](left, right)
        except TypeError:
            part, value = (self.left, left) if self.left.kind is Kind.ANY else (self.right, right)
            return part.source, _WORDS.get(type(value), "a number")
        return None


@dataclass(frozen=True, slots=True)
class Membership(Expression):
    """`in`: a text in a text, or a value in a list. It is false if the right side is None."""

    left: Expression
    right: Expression

    def value(self, record: Any) -> bool:
        try:
            return self.left.value(record) in self.right.value(record)
        except TypeError:
            return False


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: call it with a record to get True or False."""

    text: str  # normalised: two conditions with the same text select the same records
    part: Expression

    def __call__(self, record: Any) -> bool:
        return bool(self.part.value(record))

    def unlike(self, record: Any) -> tuple[str, str] | None:
        """Return the first value of JSON of a type that the condition cannot order, and its type in words."""
        return next((found for one in _orders(self.part) if (found := one.unlike(record))), None)


def _orders(part: Expression) -> Iterator[Order]:
    match part:
        case Order():
            yield part
        case Negation(part=inside):
            yield from _orders(inside)
        case Together(parts=parts):
            for one in parts:
                yield from _orders(one)


# -- parsing


def condition(text: str, fields: Mapping[str, Kind] = RECORD, *, option: str = "--where") -> Condition:
    """Parse a condition on these fields.

    Raises:
        ConfigurationError: The text is not a condition. The error begins with the name of the ``option``.
    """
    try:
        tree = _parsed(text)
        return Condition(ast.unparse(tree), _Reader(fields).truth(tree))
    except _NotACondition as error:
        raise ConfigurationError(f"{option}: {error}") from None


class _NotACondition(Exception):
    """Why a text is not a condition."""


def _parsed(text: str) -> ast.expr:
    if not is_text(text):
        raise _NotACondition(f"a condition must be a str, not {type(text).__name__}")
    text = plain(text)
    if not text.strip() or len(text) > _MAX_LENGTH:
        raise _NotACondition(f"a condition must have 1 to {_MAX_LENGTH:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in texts
            tree = ast.parse(text.replace("\n", " ").strip(), mode="eval")
            if "\n" in text:  # several lines are allowed, as in brackets
                tree = ast.parse(f"({text}\n)", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply, or contains a null character"
        raise _NotACondition(
            f"the condition cannot be parsed: {what}; write it like tenant == 'acme' and 'timeout' in error"
        ) from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_PARTS:
        raise _NotACondition(f"the condition has more than {_MAX_PARTS} parts; make it shorter")
    return tree.body


class _Reader:
    """Turns the nodes of Python's parser into parts."""

    def __init__(self, fields: Mapping[str, Kind]) -> None:
        self._fields = fields

    def truth(self, node: ast.expr) -> Expression:
        part = self.part(node)
        if part.kind is not Kind.TRUTH:
            raise _NotACondition(f"{part.source} is not a condition; compare it with a value")
        return part

    def part(self, node: ast.expr) -> Expression:
        source = ast.unparse(node)
        match node:
            case ast.BoolOp(op=op, values=values):
                return Together(Kind.TRUTH, source, isinstance(op, ast.And), tuple(self.truth(one) for one in values))
            case ast.UnaryOp(op=ast.Not(), operand=inside):
                return Negation(Kind.TRUTH, source, self.truth(inside))
            case ast.Compare():
                return self._comparison(node, source)
            case ast.Name(id=name):
                return self._field(name)
            case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) | ast.List() | ast.Tuple():
                return _constant(node, source)
            case ast.Subscript(value=container, slice=ast.Constant(value=int() | str() as place)):
                return _item(self.part(container), place, source)
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=arguments, keywords=[]) if name in _METHODS:
                return _method(self.part(of), name, tuple(self.part(one) for one in arguments), source)
        raise _NotACondition(f"{source} is not allowed in a condition; allowed are {ALLOWED}")

    def _field(self, name: str) -> Expression:
        if name not in self._fields:
            raise _NotACondition(f"a record has no field {name!r}; its fields are {', '.join(sorted(self._fields))}")
        return Field(self._fields[name], name)

    def _comparison(self, node: ast.Compare, source: str) -> Expression:
        """A chain like `1 < delivery_count < 5` is true if each comparison is."""
        operands = [self.part(one) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, operands, operands[1:], strict=False)
        comparisons = tuple(_comparison(one, left, right, source) for one, left, right in pairs)
        return comparisons[0] if len(comparisons) == 1 else Together(Kind.TRUTH, source, True, comparisons)


def _constant(node: ast.expr, source: str) -> Constant:
    value = ast.literal_eval(node) if _is_plain(node) else ...
    kinds = {str: Kind.TEXT, int: Kind.NUMBER, float: Kind.NUMBER, bool: Kind.ANY, type(None): Kind.NONE}
    if isinstance(value, list | tuple) and all(type(one) in kinds for one in value):
        kind, value = Kind.LIST, list(value)
    elif type(value) in kinds:
        kind = kinds[type(value)]
    else:
        raise _NotACondition(f"{source} is not a text, number, True, False, None, or a list of these")
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, str) and not _is_unicode(one):
            raise _NotACondition(f"{one!r} is not a valid text: it contains a lone surrogate")
    return Constant(kind, source, value)


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


def _item(container: Expression, place: int | str, source: str) -> Expression:
    if container.kind is not Kind.ANY or isinstance(container, Constant):
        raise _NotACondition(f"{source}: only json and headers have items")
    return Item(Kind.ANY, source, container, place)


def _method(of: Expression, name: str, arguments: tuple[Expression, ...], source: str) -> Expression:
    if any(one.kind not in (Kind.TEXT, Kind.ANY) for one in (of, *arguments)):
        raise _NotACondition(f"{source}: .{name}() works only on texts")
    if len(arguments) != _METHODS[name]:
        raise _NotACondition(f"{source}: .{name}() takes {_METHODS[name]} arguments")
    return Method(Kind.TEXT if name == "lower" else Kind.TRUTH, source, name, of, arguments)


def _comparison(op: ast.cmpop, left: Expression, right: Expression, source: str) -> Expression:
    left, right = _as_times(left, right)
    if isinstance(op, ast.In | ast.NotIn):
        return _negated_if(isinstance(op, ast.NotIn), _membership(left, right, source))
    if isinstance(op, ast.Is | ast.IsNot) and right.kind is not Kind.NONE:
        raise _NotACondition(f"`is` works only with None; write {left.source} == {right.source}")
    if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        _check_kinds(left, right, {Kind.NONE, Kind.ANY})
        return _negated_if(isinstance(op, ast.NotEq | ast.IsNot), Equality(Kind.TRUTH, source, left, right))
    _check_kinds(left, right, {Kind.ANY})
    return Order(Kind.TRUTH, source, left, _ORDERS[type(op)], right)


def _negated_if(negated: bool, part: Expression) -> Expression:
    return Negation(Kind.TRUTH, part.source, part) if negated else part


def _membership(left: Expression, right: Expression, source: str) -> Expression:
    texts = (Kind.TEXT, Kind.ANY)
    if right.kind not in (*texts, Kind.LIST) or (right.kind is Kind.TEXT and left.kind not in texts):
        raise _NotACondition(f"{left.source} cannot be in {right.source}; use a text in a text, or a value in a list")
    return Membership(Kind.TRUTH, source, left, right)


def _check_kinds(left: Expression, right: Expression, fitting: set[Kind]) -> None:
    if left.kind is not right.kind and not {left.kind, right.kind} & fitting:
        raise _NotACondition(
            f"{left.source} is a {left.kind} and {right.source} a {right.kind}; they cannot be compared"
        )


def _as_times(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Turn a text that is compared with a time into a time, and the texts of a list that may contain a time."""
    if left.kind is Kind.TIME and right.kind in (Kind.TEXT, Kind.LIST):
        return left, _time(right)
    if left.kind is Kind.TEXT and right.kind is Kind.TIME:
        return _time(left), right
    return left, right


def _time(part: Expression) -> Expression:
    if not isinstance(part, Constant):
        raise _NotACondition(f"{part.source} is not a time")
    if part.kind is Kind.LIST:
        times = [_moment(one, repr(one)) if isinstance(one, str) else one for one in part.constant]
        return Constant(Kind.LIST, part.source, times)
    return Constant(Kind.TIME, part.source, _moment(part.constant, part.source))


def _moment(text: str, source: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise _NotACondition(
            f"{source} is not a time; write it like '2030-01-31' or '2030-01-31T12:00:00+00:00'"
        ) from None


# -- payloads


def _text(payload: Any) -> str | None:
    """Return the payload as text, None if it is not text."""
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
