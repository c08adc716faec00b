"""Which cases of a test run with which of its shells: in `make test` they take turns."""

import zlib
from collections.abc import Sequence
from typing import Any

import pytest


def is_out_of_turn(test: pytest.Function, fixture: str, ways: Sequence[Any]) -> bool:
    """Whether a case of a test leaves it to its other cases to use this value of a fixture.

    A test without other cases uses all of them.
    """
    chosen, places = test.callspec.params, []
    for names, cases in marked_cases(test).items():
        if names != (fixture,) and len(cases) > 1:
            places.append(cases.index(tuple(chosen[name] for name in names)))
    for name in {*chosen} - {fixture}.union(*marked_cases(test)):
        values = ways_of(test, name)
        places.append(values.index(chosen[name]) if chosen[name] in values else number_of(chosen[name]) % 2)
    # Not just in turn: lists of cases often alternate, too.
    turn = number_of(test.originalname) // 2 + sum(place + place // 2 for place in places)
    return bool(places) and chosen[fixture] != ways[turn % len(ways)]


def ways_of(test: pytest.Function, fixture: str) -> list[Any]:
    """The values that a test takes of a fixture."""
    if (fixture,) in marked_cases(test):
        return [values[0] for values in marked_cases(test)[fixture,]]
    return list(test._fixtureinfo.name2fixturedefs[fixture][-1].params or ())


def marked_cases(test: pytest.Function) -> dict[tuple[str, ...], list[tuple[Any, ...]]]:
    """The lists of cases that a test is marked with, by the names of their arguments."""
    found = {}
    for mark in test.iter_markers("parametrize"):
        names, cases = mark.args[:2]
        several = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
        given = (one.values if isinstance(one, _Marked) else one if len(several) > 1 else (one,) for one in cases)
        found[several] = [tuple(one) for one in given]
    return found


_Marked = type(pytest.param())


def number_of(value: Any) -> int:
    """A number that is the same in each run."""
    return zlib.crc32(getattr(value, "__name__", str(value)).encode())
