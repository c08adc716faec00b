"""Shows values of callers in errors and on screens, and reduces them to plain ones, whatever their methods do.

The `repr` of somebody's object may fail, be endless, or take the place of the error that is about it. The same is true
for a subclass of str or int, and an object may only claim to be one, as a mock does.
"""

from __future__ import annotations

import base64
from types import FunctionType
from typing import Any, TypeGuard

_LONGEST = 100  # characters of a text that an error repeats
_LONGEST_ERROR = 2_000  # characters of an exception's text that a record or another error keeps
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


def error_text(error: BaseException) -> str:
    """Return the text of an exception, shortened; empty if it cannot be had, because its own code raises."""
    try:
        return str.encode(str(error), "utf-8", "replace").decode()[:_LONGEST_ERROR]
    except Exception:
        return ""


def described(error: BaseException) -> str:
    """Return the class and the text of an exception, or the class alone if there is no text."""
    name, text = type(error).__name__, error_text(error)
    return f"{name}: {text}" if text else name


def decoded(value: bytes) -> str | None:
    """Return bytes as text, or None if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def printable(text: str | bytes, *, keep: str = "") -> str:
    """Return text that cannot control a terminal or hide what it says; bytes that are not UTF-8 become base64.

    Characters that cannot be seen are written as escapes, except those in ``keep``.
    """
    if isinstance(text, bytes):
        found = decoded(text)
        if found is None:
            return "base64:" + base64.b64encode(text).decode()
        text = found
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)
