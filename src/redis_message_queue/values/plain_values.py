"""Shows values of callers in errors and on screens, and reduces them to plain ones, whatever their methods do.

The `repr` of somebody's object may fail, be endless, or take the place of the error that is about it. The same is true
for a subclass of str or int, and an object may only claim to be one, as a mock does.
"""

from __future__ import annotations

import base64
import re
import traceback
from types import FunctionType
from typing import Any, TypeGuard

_LONGEST = 100  # characters of a text that an error repeats
_LONGEST_ERROR = 2_000  # characters of an exception's text that a record or another error keeps
KEPT_TRACEBACK_BYTES = 4_096  # in the record of a message
LOGGED_TRACEBACK_BYTES = 32_768
_MOST_FRAMES = 100  # of each exception in a chain
# User and password of a URL, also of one that is not quoted as it should be. Bounded: a text may be full of beginnings.
_CREDENTIALS = re.compile(r"""(?<=://)(?:[^\s/:@'"]{0,200}:[^\s'"]{0,300}|[^\s/:@'"]{1,200})@""")
_CLASS_NAME: Any = type.__dict__["__name__"]
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
    return f"a {class_name(value)}"


def typed(value: Any) -> str:
    """Return the type of a value, and the value itself if it is short and plain."""
    name = class_name(value)
    return f"{name} ({brief(value)})" if type(value) in (bool, int, float, str) else name


def class_name(value: Any) -> str:
    """Return the name of a value's class, even if its metaclass has other ideas of that."""
    name: str = _CLASS_NAME.__get__(type(value))
    return name


def error_text(error: BaseException) -> str:
    """Return the text of an exception, shortened; empty if it cannot be had, because its own code raises."""
    try:
        text = str.encode(str(error)[: 2 * _LONGEST_ERROR], "utf-8", "replace").decode()
        return without_passwords(text)[:_LONGEST_ERROR]
    except Exception:
        return ""


def without_passwords(text: str) -> str:
    """Return a text with stars instead of the user and the password of each URL in it."""
    return _CREDENTIALS.sub("***@", text) if "://" in text else text


def traceback_text(error: BaseException, most_bytes: int = KEPT_TRACEBACK_BYTES) -> str | None:
    """Return the end of an exception's traceback, without values of variables and passwords in URLs.

    None if it was not raised, or if the traceback cannot be had.
    """
    try:
        if error.__traceback__ is None:
            return None
        pieces = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES, compact=True).format()
        # Passwords leave before the text is cut: the cut may be in the middle of a URL.
        text = without_passwords("".join(map(_shortened, pieces)).rstrip())
        stored = str.encode(text, "utf-8", "replace")
        return stored[-most_bytes:].decode("utf-8", "ignore")
    except Exception:
        return None


def _shortened(piece: str) -> str:
    """Return a frame, or the text of an exception, cut after a word so that the frames before it are not lost."""
    if len(piece) <= _LONGEST_ERROR:
        return piece
    return piece[:_LONGEST_ERROR].rpartition(" ")[0] + " …\n"


def described(error: BaseException) -> str:
    """Return the class and the text of an exception, or the class alone if there is no text."""
    name, text = class_name(error), error_text(error)
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
