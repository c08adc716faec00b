"""An object of the user's by its name: `package.module:attribute`."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
from typing import Any

from redis_message_queue.errors import ConfigurationError


def check(name: str, reference: str) -> None:
    """Whether it has the form of a reference."""
    module, colon, path = reference.partition(":")
    parts = [*module.split("."), *path.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ConfigurationError(f"{name} must be package.module:attribute, such as shop.mails:send, not {reference!r}")


def load(name: str, reference: str) -> Any:
    """Import it, from where we were started too."""
    check(name, reference)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, path = reference.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _not_importable(name, module, error) from error
        raise ConfigurationError(
            f"{name}: there is no module {error.name}; modules are looked for in this directory and in PYTHONPATH"
        ) from error
    except Exception as error:
        raise _not_importable(name, module, error) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{name}: {module} has no {path}")
        found = getattr(found, part)
    return found


def _not_importable(name: str, module: str, error: Exception) -> ConfigurationError:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}, line {last.lineno}"
    return ConfigurationError(f"{name}: importing {module} raised {type(error).__name__}: {error} ({place})")


def is_async(function: Any) -> bool:
    """Whether calling it gives something to await."""
    while isinstance(function, functools.partial):
        function = function.func
    asked = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ counts too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(asked)
