"""rmq dev: a server for development that lives as long as the command."""

from __future__ import annotations

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

from redis_message_queue.cli.frame import CommandFailedError, CommandLine, ExitStatus, Output
from redis_message_queue.interrupt import DEFAULT_SIGNALS

if TYPE_CHECKING:
    from redis_message_queue.embedded import EmbeddedRedis

app = CommandLine()

_LOOK_SECONDS = 0.1


@app.command()
def dev(
    output: Output,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND [ARGS]...]", help="Run this with REDIS_URL set, and end with it.", show_default=False
        ),
    ] = None,
    persist: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep what the server holds in this directory.", show_default=False),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_535, help="Where it listens, on this machine alone; 0: any free.")
    ] = 0,
    password: Annotated[
        bool, typer.Option(help="Ask clients for the password in the URL, so that other users of the machine stay out.")
    ] = True,
) -> int:
    """Start a real server for development, print its URL, and end it with this command.

    The first line of stdout is the URL, with a random password, which --persist keeps; Ctrl-C or SIGTERM ends the
    server. After `--` comes a command: it runs with REDIS_URL set, gets the signals, and the exit status is its own
    (128 and more for a signal).
    """
    from redis_message_queue.embedded import EmbeddedRedis

    with EmbeddedRedis(directory=persist, append_only=persist is not None, port=port, password=password) as server:
        if command:
            return _accompany(command, server)
        return _keep(server, output)


def _introduce(server: EmbeddedRedis, output: Output) -> None:
    version = ".".join(map(str, server.version))
    if output.json:
        output.line({"url": server.url, "port": server.port, "server": f"{server.flavour} {version}"})
        return
    print(server.url, flush=True)
    output.say(f"export REDIS_URL={server.url}")
    output.say(f"{server.flavour} {version}; Ctrl-C ends it")


def _keep(server: EmbeddedRedis, output: Output) -> int:
    from redis_message_queue.cli.stopping import StopSignals

    with StopSignals() as stop:
        _introduce(server, output)  # whoever reads the URL may stop us at once
        while not stop.is_interrupted():
            if not server.running:
                raise CommandFailedError("the server has ended by itself; its log may say why")
            time.sleep(_LOOK_SECONDS)
    return ExitStatus.OK


def _accompany(command: Sequence[str], server: EmbeddedRedis) -> int:
    """Its exit status as a shell would say it. What is sent to us is passed on, except for a terminal's own Ctrl-C,
    which reaches the command without us.
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
