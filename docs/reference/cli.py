"""cli.md: every command of `rmq` with its arguments, options and exit statuses, from the program itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer.main

from docs.reference.markdown import code, page, prose, sentence, table
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.program import NAME, app

_ALL = {"--help", "--install-completion", "--show-completion"}  # said once, at the top


def cli_page() -> str:
    return page(
        "The command line",
        "`cli/`",
        prose(f"""
            `{NAME}` comes with `pip install 'redis-message-queue[cli]'`; `python -m redis_message_queue` is the same
            program. Data goes to stdout, words about it to stderr. With `--json` stdout has JSON and nothing else: one
            object, or one a line. Bytes that are no text stand in it under `<name>_base64`, times in ISO 8601. Outside
            of a terminal tables are plain columns; `NO_COLOR` takes the colours from a terminal.

            The server is `--url` or `REDIS_URL`; prefer the variable for a URL with a password, because everybody on a
            machine may read command lines. `--help` after a command explains it; `{NAME} --install-completion` teaches
            your shell to complete commands and options.
        """),
        "## Exit status",
        table(("status", "meaning"), ((code(str(int(one))), sentence(one.meaning)) for one in ExitStatus)),
        *(part for path, command in commands() for part in _parts(path, command)),
    )


def commands() -> list[tuple[str, Any]]:
    """Every command with the words that call it, those of groups after their group."""
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
    rows = [(code(names), meaning) for names, meaning in _records(command, context)]
    if rows:
        yield table(("argument or option", "meaning"), rows)


def _records(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = None if _ALL & {*parameter.opts} else parameter.get_help_record(context)
        if record is not None:
            names = record[0] if parameter.opts[0].startswith("-") else record[0].partition(" <")[0]
            yield names.strip(), record[1]


def _quoted(text: str) -> str:
    """Options as code."""
    return re.sub(r"(?<![`\w-])(--[a-z][a-z-]+)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
