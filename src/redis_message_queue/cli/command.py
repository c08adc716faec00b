"""Turns a function into a command: its parameters become arguments and options."""

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
            register(_with_flat_parameters(function))
            return function

        return registered


def _with_flat_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with the fields of its dataclass parameters as parameters of its own."""
    hints = get_type_hints(function, include_extras=True)
    declared = inspect.signature(function).parameters
    groups = {name: kind for name in declared if is_dataclass(kind := hints[name])}
    parameters = [
        parameter
        for name, original in declared.items()
        for parameter in (
            _fields_of(groups[name])
            if name in groups
            else [original.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])]
        )
    ]

    @functools.wraps(function)
    def called(**given: Any) -> Any:
        grouped = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})  # type: ignore[operator]
            for name, kind in groups.items()
        }
        return function(**grouped, **given)

    # Each paragraph on one line: rich wraps lines itself, and keeps the breaks that it finds.
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    called.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    # Typer reads both.
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
