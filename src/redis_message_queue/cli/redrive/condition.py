"""Conditions on a record, as operators write them: `tenant == 'acme' and 'timeout' in error`.

The text is read by Python's own parser and then walked by this file, which knows what stands in the tables below and
refuses everything else. Nothing of it is ever run as Python. There are no loops, no arithmetic and no patterns, so a
condition costs no more than its length.
"""

from __future__ import annotations

import ast
import json
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.messages import MessageRecord

CAN = (
    "and, or, not, ==, !=, <, <=, >, >=, in, not in, is None, texts, numbers, lists of them, json['name'], and of "
    "texts .lower(), .startswith('...') and .endswith('...')"
)

_NUMBER, _TEXT, _TIME, _ANY, _NONE, _TRUTH, _LIST = "number", "text", "time", "any", "None", "yes or no", "list"
_TIMES = ("published_at", "claimed_at", "finished_at")
# A dead letter has no due time. `json` is the payload, parsed; nothing is known of its kinds.
_FIELDS = {field.name: _TEXT for field in fields(MessageRecord) if field.name != "due_at"} | {
    "delivery_count": _NUMBER,
    **dict.fromkeys(_TIMES, _TIME),
    "json": _ANY,
}
_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_METHODS: dict[str, int] = {"lower": 0, "startswith": 1, "endswith": 1}  # of texts, with so many texts in brackets
_MOST_PARTS = 200  # of a condition: each may be inside another, and Python's stack has an end
_LONGEST = 10_000

Read = Callable[[MessageRecord], Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """Something that has a value for each record, and its kind, which is known before."""

    kind: str
    read: Read
    said: str


def condition(text: str) -> Callable[[MessageRecord], bool]:
    """What tells for a record whether the condition holds; a condition that could not be meant is refused at once."""
    part = _part(_parsed(text))
    if part.kind != _TRUTH:
        raise _refused(f"{part.said} is no condition; compare it with something")
    return part.read


def _parsed(text: str) -> ast.expr:
    if not text.strip() or len(text) > _LONGEST:
        raise _refused(f"a condition has 1 to {_LONGEST:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in texts, for programmers
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else "it is too deep, or holds a NUL"
        raise _refused(f"it cannot be read: {what}; write it like tenant == 'acme' and 'timeout' in error") from None
    if sum(1 for _ in ast.walk(tree)) > _MOST_PARTS:
        raise _refused(f"it has more than {_MOST_PARTS} parts")
    return tree.body


def _part(node: ast.expr) -> _Part:
    said = ast.unparse(node)
    match node:
        case ast.BoolOp(op=op, values=values):
            return _Part(_TRUTH, _all_or_any(isinstance(op, ast.And), [_truth(one) for one in values]), said)
        case ast.UnaryOp(op=ast.Not(), operand=inside):
            holds = _truth(inside)
            return _Part(_TRUTH, lambda record: not holds(record), said)
        case ast.Compare():
            return _Part(_TRUTH, _comparison(node), said)
        case ast.Name(id=name):
            return _field(name)
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) | ast.List() | ast.Tuple():
            return _literal(node, said)
        case ast.Subscript(value=container, slice=ast.Constant(value=int() | str() as place)):
            return _item(_part(container), place, said)
        case ast.Call(func=ast.Attribute(value=of, attr=method), args=arguments, keywords=[]) if method in _METHODS:
            return _method(_part(of), method, [_part(one) for one in arguments], said)
    raise _refused(f"{said} is not among what a condition can have: {CAN}")


def _truth(node: ast.expr) -> Callable[[MessageRecord], bool]:
    part = _part(node)
    if part.kind != _TRUTH:
        raise _refused(f"{part.said} is no condition; compare it with something")
    return part.read


def _all_or_any(every: bool, parts: list[Callable[[MessageRecord], bool]]) -> Read:
    together = all if every else any
    return lambda record: together(part(record) for part in parts)


def _field(name: str) -> _Part:
    if name not in _FIELDS:
        raise _refused(f"a record has no {name!r}; it has {', '.join(sorted(_FIELDS))}")
    read = _json_of if name == "json" else _payload_of if name == "payload" else operator.attrgetter(name)
    return _Part(_FIELDS[name], read, name)


def _literal(node: ast.expr, said: str) -> _Part:
    value = ast.literal_eval(node) if _is_plain(node) else ...
    kinds = {str: _TEXT, int: _NUMBER, float: _NUMBER, bool: _ANY, type(None): _NONE, list: _LIST, tuple: _LIST}
    kind = kinds.get(type(value))
    if kind is None:
        raise _refused(f"{said} is no text, number, True, False, None or list of such")
    return _Part(kind, lambda record: value, said)


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_plain(one) and not isinstance(one, ast.List | ast.Tuple) for one in node.elts)
    constant = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(constant, ast.Constant) and (
        not isinstance(node, ast.UnaryOp) or type(constant.value) in (int, float)
    )


def _item(container: _Part, place: int | str, said: str) -> _Part:
    if container.kind != _ANY:
        raise _refused(f"{said}: only json has parts that are asked for by name")

    def read(record: MessageRecord) -> Any:
        try:
            return container.read(record)[place]
        except (LookupError, TypeError):
            return None

    return _Part(_ANY, read, said)


def _method(of: _Part, method: str, arguments: list[_Part], said: str) -> _Part:
    if of.kind not in (_TEXT, _ANY) or any(one.kind not in (_TEXT, _ANY) for one in arguments):
        raise _refused(f"{said}: .{method}() is for texts")
    if len(arguments) != _METHODS[method]:
        raise _refused(f"{said}: .{method}() takes {_METHODS[method]} texts")

    def read(record: MessageRecord) -> Any:
        text, given = of.read(record), [one.read(record) for one in arguments]
        known = isinstance(text, str) and all(isinstance(one, str) for one in given)
        return getattr(text, method)(*given) if known else None if method == "lower" else False

    return _Part(_TEXT if method == "lower" else _TRUTH, read, said)


def _comparison(node: ast.Compare) -> Read:
    """A chain like `1 < delivery_count < 5` holds if each link does."""
    operands = [_part(one) for one in (node.left, *node.comparators)]
    links = [_link(one, left, right) for one, left, right in zip(node.ops, operands, operands[1:], strict=False)]
    return links[0] if len(links) == 1 else lambda record: all(link(record) for link in links)


def _link(op: ast.cmpop, left: _Part, right: _Part) -> Callable[[MessageRecord], bool]:
    if isinstance(op, ast.In | ast.NotIn):
        return _membership(left, right, negated=isinstance(op, ast.NotIn))
    left, right = _as_times(left, right)
    if isinstance(op, ast.Is | ast.IsNot) and right.kind != _NONE:
        raise _refused(f"`is` goes with None; write {left.said} == {right.said}")
    if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        _check_kinds(left, right, {_NONE, _ANY})
        negated = isinstance(op, ast.NotEq | ast.IsNot)
        return lambda record: bool(left.read(record) == right.read(record)) is not negated
    _check_kinds(left, right, {_ANY})
    compare = _ORDERS[type(op)]

    def ordered(record: MessageRecord) -> bool:
        try:
            return bool(compare(left.read(record), right.read(record)))
        except TypeError:  # what is not known is neither more nor less; nor is a text of JSON than a number
            return False

    return ordered


def _membership(left: _Part, right: _Part, *, negated: bool) -> Callable[[MessageRecord], bool]:
    if right.kind not in (_TEXT, _LIST, _ANY) or (right.kind == _TEXT and left.kind not in (_TEXT, _ANY)):
        raise _refused(f"{left.said} cannot be in {right.said}; a text can be in a text, and anything in a list")

    def is_in(record: MessageRecord) -> bool:
        try:
            return (left.read(record) in right.read(record)) is not negated
        except TypeError:  # in what is not known there is nothing
            return negated

    return is_in


def _check_kinds(left: _Part, right: _Part, fitting: set[str]) -> None:
    if left.kind != right.kind and not {left.kind, right.kind} & fitting:
        raise _refused(f"{left.said} is a {left.kind} and {right.said} a {right.kind}; they cannot be compared")


def _as_times(left: _Part, right: _Part) -> tuple[_Part, _Part]:
    """A text that is compared with a time is one."""
    if (left.kind, right.kind) == (_TIME, _TEXT):
        return left, _time(right)
    if (left.kind, right.kind) == (_TEXT, _TIME):
        return _time(left), right
    return left, right


def _time(part: _Part) -> _Part:
    if part.said in _FIELDS:
        raise _refused(f"{part.said} is no time")
    try:
        moment = datetime.fromisoformat(ast.literal_eval(part.said))
    except ValueError:
        raise _refused(f"{part.said} is no time; write it like '2030-01-31' or '2030-01-31T12:00:00+00:00'") from None
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return _Part(_TIME, lambda record: known, part.said)


def _payload_of(record: MessageRecord) -> str | None:
    """None where it is no text."""
    return record.payload if isinstance(record.payload, str) else None


def _json_of(record: MessageRecord) -> Any:
    try:
        return json.loads(record.payload or "")
    except (ValueError, RecursionError):
        return None


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError(f"--where: {why}")
