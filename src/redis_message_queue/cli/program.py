"""The program `rmq`: finds the command, runs it, and turns every error into one line and an exit status."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer
import typer.core
import typer.main
from redis.exceptions import RedisClusterException, RedisError

from redis_message_queue.cli.command import CommandGroup, CommandLine, HelpAll
from redis_message_queue.cli.exit_status import ExitStatus, status_of
from redis_message_queue.cli.output import PrintableFormatter, say
from redis_message_queue.values.errors import RedisMessageQueueError
from redis_message_queue.values.plain_values import class_name, error_text
from redis_message_queue.version import __version__

NAME = "rmq"
# What a write to stdout can end with. A file that a command opens itself has a name in its error.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
# These do their work without stdout, which whoever starts a service may have closed.
_SERVICES = {"worker", "dashboard", "exporter", "dev"}
_COMPLETING = "_RMQ_COMPLETE"  # set by a shell that asks for completions

# In the order of `rmq --help`, with the module of each, which is imported when somebody asks for the command.
# The module has a function of the same name, or an `app` with several commands.
COMMANDS: dict[str, str] = {
    "publish": "publish",
    "consume": "consume",
    "worker": "worker.worker",
    "queues": "queues",
    "stats": "stats",
    "peek": "peek",
    "records": "peek",
    "workers": "workers",
    "why": "why",
    "trace": "trace",
    "cancel": "cancel",
    "redrive": "redrive",
    "export": "transfer",
    "import": "transfer",
    "purge": "purge",
    "pause": "pause",
    "resume": "pause",
    "schedule": "schedule",
    "tenants": "peek",
    "partitions": "partitions",
    "dashboard": "dashboard",
    "exporter": "exporter",
    "doctor": "doctor.doctor",
    "dev": "dev",
    "demo": "demo.demo",
    "spark": "spark.commands",
}


# On the second page of help: `rmq --help-all`.
RARE_COMMANDS = frozenset(
    {"workers", "trace", "cancel", "export", "import", "purge", "tenants", "partitions", "schedule", "resume"}
)


class LazyCommands(CommandGroup):
    """A group that knows the names of its commands, and imports a command when somebody asks for it."""

    rare_commands = RARE_COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.add_command(_load(cmd_name), cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}.{_did_you_mean(get_close_matches(args[0], COMMANDS))}")
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module = importlib.import_module(f"{__package__}.{COMMANDS[name]}")
    group = getattr(module, "app", None)
    if group is None:
        group = CommandLine()
        group.command()(getattr(module, name, None) or getattr(module, f"{name}_"))  # `import` is a word of Python
    command = typer.main.get_command(group)
    command.name = name
    return command


app = typer.Typer(cls=LazyCommands, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def rmq(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
    help_all: HelpAll = False,
) -> None:
    """A message queue on Redis that does not lose messages, does not double them, and does not make people wait."""
    if show_version:
        print(f"{NAME} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        if text := context.get_help():  # empty if rich has printed it
            print(text)
        raise typer.Exit(ExitStatus.USAGE)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if logging.lastResort is not None:  # shows the library's warnings where nobody has configured logging
        logging.lastResort.setFormatter(PrintableFormatter())
    program = typer.main.get_command(app)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if _COMPLETING in os.environ:
        program.main(given, prog_name=NAME)
    path = " ".join([NAME, *next(([one] for one in given if one in COMMANDS), [])])
    if not _open_streams() and not _SERVICES.intersection(path.split()):
        say(f"{path}: stdout is closed; nothing was done")
        return ExitStatus.OUTPUT
    try:
        with program.make_context(NAME, given) as context:
            status = program.invoke(context)
            sys.stdout.flush()
        return ExitStatus.OK if status is None else int(status)
    except typer.Exit as end:
        return int(end.exit_code)
    except typer.TyperException as mistake:
        where = getattr(getattr(mistake, "ctx", None), "command_path", path)
        say(f"{where}: {_one_line(_usage_error(mistake))} (see {where} --help)")
        return ExitStatus.USAGE
    except (KeyboardInterrupt, typer.Abort):
        say(f"{path}: stopped")
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # Nobody reads our output any more; Python would complain again when it flushes at exit.
        _discard_output()
        return ExitStatus.BROKEN_PIPE
    except (RedisMessageQueueError, RedisError, RedisClusterException, OSError, UnicodeError) as error:
        text, status = error_text(error) or class_name(error), status_of(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        elif isinstance(error, OSError) and error.errno in _UNWRITABLE:
            text, status = f"stdout cannot be written: {error.strerror}", ExitStatus.OUTPUT
            _discard_output()
        say(f"{path}: {_one_line(text)}")
        return status


def _open_streams() -> bool:
    """Open what the caller has closed, or the next file would get its number. Returns whether stdout was open."""
    was_open = sys.stdout is not None
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115  until the process ends
    return was_open


def _discard_output() -> None:
    """Let nobody complain again when Python flushes stdout at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _usage_error(mistake: Any) -> str:
    if hasattr(mistake, "possibilities"):  # an unknown option
        # Without the dashes, which make any two options look alike.
        names = {one.strip("-"): one for one in mistake.possibilities or ()}
        nearest = get_close_matches(mistake.option_name.strip("-"), names)
        return f"{mistake.message}.{_did_you_mean([names[one] for one in nearest])}"
    return str(mistake.format_message()).replace("Value error, ", "")  # how Typer introduces what a type check says


def _did_you_mean(similar: Sequence[str]) -> str:
    return f" Did you mean {similar[0]}?" if similar else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
