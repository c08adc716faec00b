"""Shows values of callers in errors and reduces them to plain ones, without running a method of theirs.

The `repr` of somebody's object may fail, be endless, or take the place of the error that is about it. The same is true
for a subclass of str or int, and an object may only claim to be one, as a mock does.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeGuard

_LONGEST = 100  # characters of a text that an error repeats
_CONVERTERS: tuple[tuple[type, Any], ...] = ((str, str.__str__), (int, int.__int__), (float, float.__float__))


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether it is a str, and does not only claim to be one."""
    return issubclass(type(value), str)


def plain(value: Any) -> Any:
    """Return the str, int or float that a value of a subclass stands for, such as a member of an enum.

    Everything else is returned as it is.
    """
    kind = type(value)
    for base, convert in _CONVERTERS:
        if kind is base or kind is bool:
            return value
        if issubclass(kind, base):
            return convert(value)
    return value


def brief(value: Any) -> str:
    """Return a short plain value, a function or a class as Python writes it, and the type of anything else."""
    kind: Any = type(value)
    if value is None or kind in (bool, float):
        return repr(value)
    if kind is int:
        return repr(value) if value.bit_length() <= 64 else "an int of that size"
    if (kind is str and len(value) <= _LONGEST) or kind in (type, FunctionType) or kind.__repr__ is object.__repr__:
        return repr(value)
    return f"a {kind.__name__}"


def typed(value: Any) -> str:
    """Return the type of a value, and the value itself if it is short and plain."""
    name = type(value).__name__
    return f"{name} ({brief(value)})" if type(value) in (bool, int, float, str) else name
