"""cli.md: every command of `rmq` with its arguments, options and exit statuses, from the program itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer.main

from docs.reference.markdown import code, page, prose, sentence, table
from redis_message_queue.cli.command import help_records
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.program import NAME, app

_ALL = {"--help", "--help-all", "--install-completion", "--show-completion"}  # described once, at the top


def cli_page() -> str:
    return page(
        "The command line",
        "`cli/`",
        prose(f"""
            Install `{NAME}` with `pip install '.[cli]'` in a clone. `python -m redis_message_queue` is the same
            program. It prints data on stdout and remarks on stderr. With `--json`, stdout has JSON and nothing else:
            one object, or one object per line. Bytes that are not text are in `<name>_base64`, and times are in ISO
            8601. Outside of a terminal, tables are plain columns. Set `NO_COLOR` to turn colours off.

            Choose the server with `--url` or `REDIS_URL`. Use the variable if the URL has a password, because every
            user of a machine can read command lines. `--help` shows what most people need of a command, and
            `--help-all` shows everything, as this page does. Run `{NAME} --install-completion` to let your shell
            complete commands and options.
        """),
        "## Exit status",
        table(("status", "meaning"), ((code(str(int(one))), sentence(one.meaning)) for one in ExitStatus)),
        *(part for path, command in commands() for part in _parts(path, command)),
    )


def commands() -> list[tuple[str, Any]]:
    """Every command with its path; the commands of a group follow the group."""
    program: Any = typer.main.get_command(app)
    context = program.context_class(program, info_name=NAME)
    return [one for name in program.list_commands(context) for one in _walk(program, context, name, NAME)]


def _walk(group: Any, context: Any, name: str, before: str) -> Iterator[tuple[str, Any]]:
    command = group.get_command(context, name)
    yield f"{before} {name}", command
    if hasattr(command, "list_commands"):
        inner = command.context_class(command, info_name=name, parent=context)
        for one in command.list_commands(inner):
            yield from _walk(command, inner, one, f"{before} {name}")


def _parts(path: str, command: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=path)
    yield f"## {path}"
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```"
    yield "\n\n".join(prose(_quoted(text)) for text in inspect.cleandoc(command.help or "").split("\n\n"))
    records = (
        (parameter, record) for parameter, record in help_records(command, context) if not _ALL & {*parameter.opts}
    )
    rows = [(code(names), meaning) for _, (names, meaning) in records]
    if rows:
        yield table(("argument or option", "meaning"), rows)


def _quoted(text: str) -> str:
    """Options as code."""
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]+)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
