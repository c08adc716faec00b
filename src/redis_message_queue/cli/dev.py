"""rmq dev: a server for development that ends with the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from redis_message_queue.cli.exit_status import CommandFailedError, ExitStatus, ServerUnusableError
from redis_message_queue.cli.output import Output
from redis_message_queue.process.interrupt import DEFAULT_SIGNALS
from redis_message_queue.values.errors import EmbeddedServerError

if TYPE_CHECKING:
    from redis_message_queue.embedded import EmbeddedRedis

_CHECK_SECONDS = 0.1


def dev(
    output: Output,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND [ARGS]...]",
            help="Run this command with REDIS_URL set, and stop the server when it ends.",
        ),
    ] = None,
    persist: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the data in this directory.")] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_535, help="The port on localhost; 0 chooses a free one.")
    ] = 0,
    password: Annotated[
        bool, typer.Option(help="Require the password in the URL, to keep other users of this machine out.")
    ] = True,
) -> int:
    """Start a real server for development, print its URL, and stop it when the command ends.

    The first line of stdout is the URL, with a random password, which --persist keeps. Ctrl-C or SIGTERM stops the
    server.

    A command after `--` runs with REDIS_URL set and receives the signals. Its exit status becomes that of `rmq dev`
    (128 plus the number, if a signal ended it).
    """
    from redis_message_queue.embedded import EmbeddedRedis

    server = EmbeddedRedis(directory=persist, append_only=persist is not None, port=port, password=password)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(server)
        except EmbeddedServerError as error:
            if port and "already in use" in str(error):
                raise ServerUnusableError(f"port {port} is already in use; choose another with --port") from error
            raise
        return _run(command, server) if command else _serve(server, output)


def _serve(server: EmbeddedRedis, output: Output) -> int:
    from redis_message_queue.cli.stop_signals import StopSignals

    with StopSignals() as stop:  # before the URL is printed: a script that reads it may stop us at once
        version = f"{server.flavour} {'.'.join(map(str, server.version))}"
        if output.json:
            output.line({"url": server.url, "port": server.port, "server": version})
        else:
            print(server.url, flush=True)
            output.say(f"export REDIS_URL={server.url}")
            output.say(f"{version} is running; press Ctrl-C to stop it")
        while not stop.is_interrupted():
            if not server.running:
                raise CommandFailedError("the server has ended unexpectedly")
            time.sleep(_CHECK_SECONDS)
    return ExitStatus.OK


def _run(command: Sequence[str], server: EmbeddedRedis) -> int:
    """Run a command and return its exit status as a shell does. Signals to us are passed on to it, except for Ctrl-C
    in a terminal, which the command receives anyway.
    """
    with subprocess.Popen(command, env=os.environ | {"REDIS_URL": server.url}) as process:

        def pass_on(number: int, frame: FrameType | None) -> None:
            if number != signal.SIGINT or not sys.stdin.isatty():
                process.send_signal(number)

        try:
            former = {one: signal.getsignal(one) for one in DEFAULT_SIGNALS}
            for one in [one for one, handler in former.items() if handler != signal.SIG_IGN]:
                signal.signal(one, pass_on)
            process.wait()
        finally:
            process.kill()
            for one, handler in former.items():
                signal.signal(one, handler)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
