"""Checks of arguments: each raises a typed error with the parameter, the value and what is allowed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar, cast

from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief, is_text, plain, typed

P = ParamSpec("P")
R = TypeVar("R")

_CENTURY = 3_155_760_000
MILLISECOND = 0.001
_LARGEST = 2**53  # Redis scripts count in floating point, which is exact up to here


def number(name: str, value: Any, *, optional: bool = False, least: float | None = None) -> None:
    """A number of seconds: positive or at least ``least``, and at most a century."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationTypeError(f"{name} must be a number, not {typed(value)}")
    value = plain(value)
    if value != value or abs(value) > _CENTURY:
        raise ConfigurationError(f"{name} must be a finite number of at most {_CENTURY:,} seconds, not {brief(value)}")
    if value < least if least is not None else value <= 0:
        bound = "positive" if least is None else f"at least {least}"
        raise ConfigurationError(f"{name} must be {bound}, not {brief(value)}")


def lease(name: str, value: Any) -> None:
    """The length of a lease, at least a millisecond, or None."""
    number(name, value, optional=True, least=MILLISECOND)


def whole_number(name: str, value: Any, *, optional: bool = False) -> None:
    """An int of 1 or more that Redis can count to."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationTypeError(f"{name} must be an int{' or None' if optional else ''}, not {typed(value)}")
    value = plain(value)
    if value < 1:
        raise ConfigurationError(f"{name} must be 1 or more{' or None' if optional else ''}, not {brief(value)}")
    if value > _LARGEST:
        raise ConfigurationError(f"{name} must be at most {_LARGEST:,}, not {brief(value)}")


def text(name: str, value: Any) -> None:
    """A str that is not empty and can be encoded as UTF-8."""
    if not is_text(value):
        raise ConfigurationTypeError(f"{name} must be a str, not {typed(value)}")
    if not plain(value).strip():
        raise ConfigurationError(f"{name} must not be empty")
    try:
        plain(value).encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name} has a lone surrogate at position {error.start}") from None


def flag(name: str, value: Any) -> None:
    """True or False, and no other value that counts as true or false."""
    if not isinstance(value, bool):
        raise ConfigurationTypeError(f"{name} must be True or False, not {typed(value)}")


def function(name: str, value: Any) -> None:
    """A callable or None."""
    if value is not None and not callable(value):
        raise ConfigurationTypeError(f"{name} must be callable or None, not {typed(value)}")


def functions(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """Return the callables that were given: one, a list or tuple of them, or None for none."""
    if value is None:
        return ()
    if callable(value):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ConfigurationTypeError(f"{name} must be callable, a list of callables or None, not {typed(value)}")
    for place, one in enumerate(value):
        required_function(f"{name}[{place}]", one)
    return tuple(value)


def required_function(name: str, value: Any) -> None:
    """A callable; None is not allowed."""
    if not callable(value):
        raise ConfigurationTypeError(f"{name} must be callable, not {typed(value)}")


def is_async_function(value: Any) -> bool:
    """Return whether calling it only makes a coroutine; an object with an async ``__call__`` counts too."""
    asked = getattr(value, "__call__", None)  # noqa: B004  what it is called with, not whether it can be called
    return inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(asked)


def plain_function(name: str, value: Any) -> None:
    """A callable that the sync queue can call: an ``async def`` would never run there."""
    if is_async_function(value):
        raise ConfigurationTypeError(
            f"{name} is an async function, which the sync queue cannot await; pass a plain function, "
            "or use redis_message_queue.asyncio"
        )


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for an option that does not exist, and name the nearest that does."""
    known = list(known)
    for name in given:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ConfigurationTypeError(f"{owner} has no option {name!r}{hint}")


def suggests_options(called: Callable[P, R]) -> Callable[P, R]:
    """Let a call with a misspelt option raise an error that names the nearest one."""
    known, owner = inspect.signature(called).parameters, called.__qualname__.removesuffix(".__init__")

    @functools.wraps(called)
    def checked(*given: P.args, **options: P.kwargs) -> R:
        refuse_unknown(owner, options, known)
        return called(*given, **options)

    @functools.wraps(called)
    async def awaited(*given: P.args, **options: P.kwargs) -> Any:
        return await cast(Awaitable[Any], checked(*given, **options))

    return cast(Callable[P, R], awaited) if inspect.iscoroutinefunction(called) else checked
