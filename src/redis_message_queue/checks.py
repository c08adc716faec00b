"""The checks at the door: each raises a typed error that names the parameter, what was given and what would do."""

from __future__ import annotations

import inspect
from typing import Any

from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError

_CENTURY = 3_155_760_000
MILLISECOND = 0.001


def number(name: str, value: Any, *, optional: bool = False, least: float | None = None) -> None:
    """A number of seconds: positive or at least ``least``, and no more than Redis can count."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationTypeError(f"{name} must be a number, not {_shown(value)}")
    if value != value or abs(value) > _CENTURY:
        shown = value if isinstance(value, float) else "a number of that size"
        raise ConfigurationError(f"{name} must be a finite number of at most {_CENTURY:,} seconds, not {shown}")
    if value < least if least is not None else value <= 0:
        bound = "positive" if least is None else f"at least {least}"
        raise ConfigurationError(f"{name} must be {bound}, not {value!r}")


def lease(name: str, value: Any) -> None:
    """The length of a lease, long enough to be one, or None for none."""
    number(name, value, optional=True, least=MILLISECOND)


def whole_number(name: str, value: Any, *, optional: bool = False) -> None:
    """An int of 1 or more."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationTypeError(f"{name} must be an int{' or None' if optional else ''}, not {_shown(value)}")
    if value < 1:
        raise ConfigurationError(f"{name} must be 1 or more{' or None' if optional else ''}, not {value!r}")


def text(name: str, value: Any) -> None:
    """A str that is not empty and that UTF-8 can carry."""
    if not isinstance(value, str):
        raise ConfigurationTypeError(f"{name} must be a str, not {_shown(value)}")
    if not value.strip():
        raise ConfigurationError(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name} has a lone surrogate at position {error.start}") from None


def flag(name: str, value: Any) -> None:
    """True or False, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ConfigurationTypeError(f"{name} must be True or False, not {_shown(value)}")


def function(name: str, value: Any) -> None:
    """A callable or None."""
    if value is not None and not callable(value):
        raise ConfigurationTypeError(f"{name} must be callable or None, not {_shown(value)}")


def required_function(name: str, value: Any) -> None:
    """A callable, and nothing else."""
    if not callable(value):
        raise ConfigurationTypeError(f"{name} must be callable, not {_shown(value)}")


def plain_function(name: str, value: Any) -> None:
    """A callable that the sync queue can call: an ``async def`` would never run there."""
    asked = getattr(value, "__call__", None)  # noqa: B004  an object with an async __call__ counts too
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(asked):
        raise ConfigurationTypeError(
            f"{name} is an async function, which the sync queue cannot await; pass a plain function, "
            "or use redis_message_queue.asyncio"
        )


def _shown(value: Any) -> str:
    return (
        f"{type(value).__name__} ({value!r})" if isinstance(value, bool | int | float | str) else type(value).__name__
    )
