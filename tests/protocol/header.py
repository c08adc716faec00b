"""What a call brings, by the names that the header of its script gives to keys and arguments."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

_ARGV = re.compile(r"^-- ARGV {2}(.*?)^-- Returns", re.MULTILINE | re.DOTALL)


@cache
def argument_names(source: str) -> tuple[str, ...]:
    """The names in a header's ARGV paragraph, up to where it says "then": what follows there comes in any number."""
    paragraph = _ARGV.search(source)
    names: list[str] = []
    for row in re.split(r"\||\n--", paragraph[1]) if paragraph else ():
        if row.strip().startswith("then "):
            break
        if ":" in row:
            names.append(row.split(":")[0].strip())
    return tuple(names)


def named(names: tuple[str, ...], values: Sequence[Any]) -> Any:
    """Values by name; names at the end may be left out, and values without a name are the ``rest``."""
    given = SimpleNamespace(**dict(zip_longest(names, values[: len(names)])))
    given.rest = tuple(values[len(names) :])
    return given


def held_by(given: Any) -> list[bytes]:
    """The leases of the messages that a caller says it holds."""
    return [given.tokens[at : at + 36] for at in range(0, len(given.tokens), 36)]


def in_groups(values: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
    """So many at a time."""
    return list(zip(*[iter(values)] * size, strict=True))
