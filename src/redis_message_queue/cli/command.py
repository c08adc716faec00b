"""Turns a function into a command: its parameters become arguments and options.

A command has two pages of help. `--help` shows what most people need; `--help-all` also shows the options that have a
help panel (`rich_help_panel`), under its title.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

_SHOWS_ALL = f"{__name__}.shows_all"  # in the `meta` of a context


def show_all_help(context: typer.Context, asked: bool) -> None:
    """Print all that there is to choose, and exit."""
    if asked:
        context.meta[_SHOWS_ALL] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show everything there is to choose and exit.", is_eager=True, callback=show_all_help
    ),
]


class HelpfulCommand(typer.core.TyperCommand):
    """A command with two pages of help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        hidden = write_options(self, ctx, formatter)
        if hidden:
            write_hint(formatter, f"{ctx.command_path} --help-all shows {hidden} more options")


class CommandGroup(typer.core.TyperGroup):
    """A group of commands; ``rare_commands`` are on the second page of its help."""

    rare_commands: frozenset[str] = frozenset()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(self, ctx, formatter)
        names = self.list_commands(ctx)
        shown = [name for name in names if ctx.meta.get(_SHOWS_ALL) or name not in self.rare_commands]
        loaded: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in shown]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help.partition("\n\n")[0]) for name, command in loaded])
        if len(shown) < len(names):
            write_hint(formatter, f"{ctx.command_path} --help-all shows {len(names) - len(shown)} more commands")


def write_options(command: Any, context: Any, formatter: Any) -> int:
    """Write the arguments and options of this page of help. Returns how many are on the other one."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    hidden = 0
    for parameter, record in help_records(command, context):
        panel = parameter.rich_help_panel
        if panel and not context.meta.get(_SHOWS_ALL):
            hidden += 1
        else:
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            sections.setdefault(panel or kind, []).append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
    return hidden


def help_records(command: Any, context: Any) -> Iterator[tuple[Any, tuple[str, str]]]:
    """The visible parameters of a command, each with its name and its meaning; an argument without its type."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            named = record[0] if parameter.param_type_name == "option" else record[0].partition(" <")[0]
            yield parameter, (named.strip(), record[1])


def _group(help_all: HelpAll = False) -> None:
    """Only gives a group the option --help-all."""


def write_hint(formatter: Any, text: str) -> None:
    formatter.write_paragraph()
    formatter.write_text(text)


class CommandLine(typer.Typer):
    """A Typer application whose commands may share parameters: `def peek(queue: QueueChoice, output: Output)`."""

    def __init__(self, **settings: Any) -> None:
        if "help" in settings:  # a group of commands
            settings["callback"] = _group
        super().__init__(cls=CommandGroup, add_completion=False, rich_markup_mode=None, **settings)

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        register = super().command(*names, cls=HelpfulCommand, **settings)

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

    help_all = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, annotation=HelpAll, default=False)
    parameters.append(help_all)

    @functools.wraps(function)
    def called(*, help_all: bool, **given: Any) -> Any:
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
