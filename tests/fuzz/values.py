"""Values that nobody should pass, and somebody will."""

import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st


class HostileObjectError(Exception):
    """What the methods of a hostile object raise: it must never reach the caller of the library."""


def _raise(*_: Any, **__: Any) -> Any:
    raise HostileObjectError


class Reported:
    """An object that only a failure report of Hypothesis can show."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{type(self).__name__}(...)")


class Hostile(Reported):
    """An object that can neither be shown, compared, hashed nor tested."""

    __repr__ = __str__ = __eq__ = __ne__ = __bool__ = __hash__ = __len__ = __lt__ = __gt__ = __le__ = __ge__ = _raise
    __format__ = __contains__ = __int__ = __float__ = __index__ = _raise


class UnshownText(Reported, str):
    """A text that cannot be shown."""

    __slots__ = ()
    __repr__ = __str__ = __format__ = _raise


class LyingText(str):
    """A text whose methods say something else than its characters."""

    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"\r\n*1\r\n$8\r\nFLUSHALL\r\n"

    def strip(self, *_: Any) -> str:
        return "something"

    def __str__(self) -> str:
        return "another text"

    def __len__(self) -> int:
        return 1


class UnshownNumber(Reported, int):
    """A whole number that cannot be shown."""

    __repr__ = __str__ = __format__ = _raise


class UnshownFloat(Reported, float):
    """A number that cannot be shown."""

    __repr__ = __str__ = __format__ = _raise


class Impostor:
    """An object that says it is a text, as a mock with a spec does."""

    __class__ = str  # type: ignore[assignment]  # that is the lie


class NoOffset(tzinfo):
    """A time zone that does not know its offset."""

    dst = tzname = _raise

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None


class BrokenZone(tzinfo):
    """A time zone that fails."""

    utcoffset = dst = tzname = _raise


def _function(*_: Any, **__: Any) -> None:
    return None


async def _async_function(*_: Any, **__: Any) -> None:
    return None


EDGES = [0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, -(10**400), 10**4000]
TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\r\n",
    "\ud800",
    "a\udfffb",
    "\x1b[31mred",
    "\u202eevil",
    "\x9b2J",
    "{",
    "}",
    "{}",
    "{a}{b}",
    "::",
    "a::pending",
    "::dlq::",
    "%s%n%d",
    "x" * 2_000,
    "\N{SNOWMAN}" * 300,
]
TIMES = [
    datetime.min,
    datetime.max,
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
    datetime(2030, 1, 1, tzinfo=NoOffset()),
    datetime(2030, 1, 1, tzinfo=BrokenZone()),
]

texts = st.one_of(
    st.sampled_from(TEXTS),
    st.text(max_size=20),
    st.text(st.characters(), max_size=10),  # with lone surrogates
    st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=5),
)
numbers = st.one_of(
    st.booleans(),
    st.sampled_from(EDGES),
    st.integers(-5, 5),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 5e-324, -0.0, 3_155_760_001.0]),
    st.sampled_from([Decimal("NaN"), Decimal(1), Fraction(1, 3), 1j]),
)
hostile = st.one_of(
    st.builds(Hostile),
    st.builds(UnshownText, st.sampled_from(TEXTS)),
    st.builds(LyingText, st.sampled_from(TEXTS)),
    st.builds(UnshownNumber, st.sampled_from(EDGES)),
    st.builds(UnshownFloat, st.floats()),
    st.builds(Impostor),
)
scalars = st.one_of(
    st.none(),
    numbers,
    texts,
    st.binary(max_size=20),
    st.builds(bytearray, st.binary(max_size=5)),
    st.integers(0, len(TIMES) - 1).map(TIMES.__getitem__),  # not sampled: some cannot be hashed
    hostile,
    st.sampled_from([_function, _async_function, int, str, Exception, Hostile, object(), ..., NotImplemented]),
)
anything: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.one_of(texts, st.integers(-2, 2), st.none(), st.booleans()), inner, max_size=3),
    ),
    max_leaves=5,
)


def contains_itself() -> dict[str, Any]:
    """A structure without an end."""
    endless: dict[str, Any] = {}
    endless["self"] = [endless]
    return endless


def nested(depth: int) -> dict[str, Any]:
    """A structure of so many levels."""
    outer: dict[str, Any] = {}
    for _ in range(depth):
        outer = {"in": outer}
    return outer


payloads = st.one_of(
    anything,
    texts,
    st.dictionaries(texts, anything, max_size=3),
    st.builds(contains_itself),
    st.builds(nested, st.just(300)),
)


def shown(value: Any) -> str:
    """What it is, for a failure report; a hostile object cannot be asked."""
    kind = type(value).__name__
    try:
        return f"{kind} {value!r}"[:300]
    except (HostileObjectError, ValueError, RecursionError):
        return kind
