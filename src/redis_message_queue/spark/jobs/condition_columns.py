"""Translates a condition to a Spark column, part by part with functions, never with SQL text.

The column is true or false and never null, as the condition is for a record. Parts that use JSON values, whose types
are not known beforehand, are evaluated row by row in Python, by the condition itself.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.operate.condition import (
    Condition,
    Constant,
    Equality,
    Expression,
    Field,
    Item,
    Kind,
    Membership,
    Method,
    Negation,
    Order,
    Together,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NATIVE = (Kind.TEXT, Kind.NUMBER, Kind.TIME, Kind.NONE)
_LARGEST = 2**63 - 1


def condition_column(chosen: Condition) -> Column:
    """Return a column that is true where the condition holds. The rows have its fields as columns."""
    return _truth(chosen.part)


def columns_of(chosen: Condition) -> set[str]:
    """Return the columns that the condition looks at."""
    return _columns(chosen.part)


def _truth(part: Expression) -> Column:
    match part:
        case Together(every=every, parts=parts):
            return functools.reduce(operator.and_ if every else operator.or_, [_truth(one) for one in parts])
        case Negation(part=inside):
            return ~_truth(inside)
        case _ if all(_is_native(one) for one in _operands(part)):
            return _native(part)
    return _by_row(part)


def _operands(part: Expression) -> tuple[Expression, ...]:
    match part:
        case Equality(left=left, right=right) | Order(left=left, right=right) | Membership(left=left, right=right):
            return left, right
        case Method(of=of, arguments=arguments):
            return of, *arguments
    raise AssertionError(f"{part!r} is neither true nor false")


def _is_native(part: Expression) -> bool:
    """Return whether Spark has a value of the same type, and so compares as Python does."""
    if part.kind is Kind.LIST and isinstance(part, Constant):
        return not any(isinstance(one, bool) for one in part.constant)  # in Python these are numbers too
    if isinstance(part, Method):
        return _is_native(part.of)
    return part.kind in _NATIVE and isinstance(part, Field | Constant)


def _native(part: Expression) -> Column:
    from pyspark.sql import functions as f

    match part:
        case Equality(left=left, right=right) if Kind.LIST not in (left.kind, right.kind):
            return _value(left).eqNullSafe(_value(right))
        case Order(left=left, sign=sign, right=right) if Kind.LIST not in (left.kind, right.kind):
            return _known(_ORDERS[sign](_value(left), _value(right)))
        case Membership(left=left, right=Constant(kind=Kind.LIST, constant=several)):
            fitting = [one for one in several if one is None or _kind_of(one) is left.kind]
            same = [_value(left).eqNullSafe(_literal(one)) for one in fitting]
            return functools.reduce(operator.or_, same, f.lit(False))
        case Membership(left=left, right=right) if Kind.LIST not in (left.kind, right.kind):
            return _known(f.contains(_value(right), _value(left)))
        case Method(name="startswith", of=of, arguments=(beginning,)):
            return _known(f.startswith(_value(of), _value(beginning)))
        case Method(name="endswith", of=of, arguments=(end,)):
            return _known(f.endswith(_value(of), _value(end)))
    return _by_row(part)


def _known(column: Column) -> Column:
    """Return false where Spark has null."""
    from pyspark.sql import functions as f

    return f.coalesce(column, f.lit(False))


def _value(part: Expression) -> Column:
    from pyspark.sql import functions as f

    match part:
        case Field(source="payload"):
            return f.try_validate_utf8(f.col("payload").cast("string"))
        case Field(source=name):
            return f.col(name)
        case Constant(constant=constant):
            return _literal(constant)
        case Method(of=of):
            return f.lower(_value(of))
    raise AssertionError(f"{part!r} has no column")


def _literal(value: Any) -> Column:
    from pyspark.sql import functions as f

    if isinstance(value, int) and abs(value) > _LARGEST:
        value = float("inf") if value > 0 else float("-inf")  # larger than any count
    return f.lit(value)


def _kind_of(value: object) -> Kind:
    return Kind.TEXT if isinstance(value, str) else Kind.NUMBER if isinstance(value, int | float) else Kind.TIME


# -- row by row


def _by_row(part: Expression) -> Column:
    from pyspark.sql import functions as f

    names = sorted(_columns(part))
    answer = f.udf(lambda row: bool(part.value(row)), "boolean")
    return answer(f.struct(*names) if names else f.struct(f.lit(True).alias("nothing")))


def _columns(part: Expression) -> set[str]:
    return {"payload" if one == "json" else one for one in _fields(part)}


def _fields(part: Expression) -> Iterator[str]:
    match part:
        case Field(source=name):
            yield name
        case Constant():
            return
        case Item(container=inside) | Negation(part=inside):
            yield from _fields(inside)
        case Together(parts=several):
            for one in several:
                yield from _fields(one)
        case _:
            for one in _operands(part):
                yield from _fields(one)
