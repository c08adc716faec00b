"""The parameters of a command, where one that is a dataclass stands for all fields of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer


class CommandLine(typer.Typer):
    """A Typer application whose commands may share parameters: `def peek(queue: QueueChoice, output: Output)`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(add_completion=False, rich_markup_mode="rich", **settings)

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        register = super().command(*names, **settings)

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            register(unfolded(function))
            return function

        return registered


def unfolded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with the fields of its dataclass parameters as parameters of its own, as Typer wants them."""
    hints = get_type_hints(function, include_extras=True)
    asked = inspect.signature(function).parameters
    bundles = {name: kind for name in asked if is_dataclass(kind := hints[name])}
    parameters = [
        parameter
        for name, original in asked.items()
        for parameter in (_fields_of(bundles[name]) if name in bundles else [_by_name(original, hints[name])])
    ]

    @functools.wraps(function)
    def called(**given: Any) -> Any:
        folded = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})  # type: ignore[operator]
            for name, kind in bundles.items()
        }
        return function(**folded, **given)

    called.__doc__ = _flowing(function.__doc__ or "")
    # Typer looks at both.
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _fields_of(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(kind)
    ]


def _flowing(text: str) -> str:
    """Each paragraph on one line: rich breaks lines by itself, and keeps those that are there."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def _by_name(parameter: inspect.Parameter, annotation: Any) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
