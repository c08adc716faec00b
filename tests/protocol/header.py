"""Maps the keys and arguments of a call to the names in the header of its script."""

from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from redis_message_queue import scripts

argument_names = cache(scripts.argument_names)


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
