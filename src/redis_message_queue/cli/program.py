"""The program `rmq`: from its arguments to its exit status, whatever happens on the way."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
import typer.main
from redis.exceptions import RedisClusterException, RedisError

from redis_message_queue.cli.exit_status import ExitStatus, status_of
from redis_message_queue.cli.output import PrintableFormatter, say
from redis_message_queue.cli.registry import COMMANDS, Registry
from redis_message_queue.errors import RedisMessageQueueError

NAME = "rmq"
_COMPLETING = "_RMQ_COMPLETE"  # set by the shell that asks for completions

app = typer.Typer(cls=Registry, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def rmq(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """A message queue on Redis that does not lose messages, does not double them, and does not make people wait."""
    if show_version:
        print(f"{NAME} {version('redis-message-queue')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        if text := context.get_help():  # rich has printed it by itself
            print(text)
        raise typer.Exit(ExitStatus.USAGE)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    if logging.lastResort is not None:  # what shows warnings of the library, where nobody has set up logging
        logging.lastResort.setFormatter(PrintableFormatter())
    program = typer.main.get_command(app)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if _COMPLETING in os.environ:
        program.main(given, prog_name=NAME)
    path = " ".join([NAME, *next(([one] for one in given if one in COMMANDS), [])])
    try:
        return _follow(program, given)
    except typer.Exit as end:
        return int(end.exit_code)
    except typer.TyperException as mistake:
        context = getattr(mistake, "ctx", None)
        where = path if context is None else context.command_path
        say(f"{where}: {_one_line(mistake.format_message())} (see {where} --help)")
        return ExitStatus.USAGE
    except (KeyboardInterrupt, typer.Abort):
        say(f"{path}: stopped")
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; Python would complain again when it flushes at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.BROKEN_PIPE
    except (RedisMessageQueueError, RedisError, RedisClusterException, OSError, UnicodeError) as error:
        say(f"{path}: {_one_line(_told(error))}")
        return status_of(error)


def _follow(program: Any, arguments: list[str]) -> int:
    """What Typer's own `main` does, less its ways to report errors."""
    with program.make_context(NAME, arguments) as context:
        status = program.invoke(context)
        sys.stdout.flush()
    return ExitStatus.OK if status is None else int(status)


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())
