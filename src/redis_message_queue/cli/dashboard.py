"""rmq dashboard: a web page that shows which queue is stuck, and why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from redis_message_queue.cli.clients import open_async_client
from redis_message_queue.cli.common_options import HashTag, KeySeparator, ServerChoice
from redis_message_queue.cli.exit_status import CommandFailedError
from redis_message_queue.cli.output import say
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.values.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from redis_message_queue.dashboard import Dashboard

_PORT = 8325
_STOP_SECONDS = 2  # how long to wait for answers that have begun
_SECURITY = "Access"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Who may use the pages, and which queues they show."""

    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="RMQ_DASHBOARD_TOKEN",
            help="What people must know to log in. Use the variable: every user of a machine can read command lines.",
            show_default=False,
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name under which browsers may reach it, besides localhost and addresses. Can be repeated.",
            show_default=False,
            rich_help_panel=_SECURITY,
        ),
    ] = None
    discover: Annotated[
        bool,
        typer.Option(help="Also show queues that were not named.", rich_help_panel=_SECURITY),
    ] = True


def dashboard(
    server: ServerChoice,
    access: AccessOptions,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE", help="Queues to show besides those in the registry of the server.", show_default=False
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen. Anything but this machine needs a token."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="The port; 0 chooses a free one.")] = _PORT,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes", help="Let people redrive, cancel, purge, pause and unschedule.", show_default=False
        ),
    ] = False,
    key_separator: KeySeparator = "::",
    hash_tag: HashTag = None,
) -> None:
    """Serve a web page that shows which queue is stuck and why, until Ctrl-C.

    It shows the state of each queue in plain words, with live counts, tenants, consumers and what they hold, and lets
    you search messages. It is read-only unless you add --allow-changes. It listens on this machine only, unless you
    choose another --host, which needs a token of 16 characters or more.
    """
    _check_access(host, access.token)
    from redis_message_queue.dashboard import Dashboard

    async def serve() -> None:
        async with open_async_client(server.url) as client:
            made = Dashboard(
                client,
                queues or (),
                allow_changes=allow_changes,
                token=access.token,
                allowed_hosts=[*(access.allowed_host or ()), host],
                discover=access.discover,
                key_separator=key_separator,
                hash_tag=hash_tag,
            )
            with _listen(host, port) as listener:
                mode = "changes allowed" if allow_changes else "read-only"
                say(f"dashboard of {server.shown_url} at {_address(host, listener)} ({mode}), Ctrl-C to stop")
                await _serve(made, listener)

    asyncio.run(serve())


def _check_access(host: str, token: str | None) -> None:
    """Raise if the dashboard cannot run here, or anybody could use it."""
    try:
        import uvicorn  # noqa: F401

        from redis_message_queue.dashboard.access import is_loopback
    except ModuleNotFoundError as missing:
        if missing.name != "uvicorn":
            raise
        raise MissingExtraError(
            "rmq dashboard needs uvicorn; run: pip install 'redis-exact-queue[dashboard]'"
        ) from None
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} can be reached from other machines, so it needs a token: set RMQ_DASHBOARD_TOKEN to a "
            'secret text, such as the output of python -c "import secrets; print(secrets.token_urlsafe())"'
        )


async def _serve(made: Dashboard, listener: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # ours are counted below

    settings = uvicorn.Config(
        made,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody can send them
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    running = Server(settings)

    def stop() -> None:
        made.stop()
        running.should_exit = True

    with StopSignals(first=stop):
        await running.serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise CommandFailedError(
            f"cannot listen on {host} port {port} ({os.strerror(error.errno or 0)}); "
            "choose another with --host and --port"
        ) from error


def _address(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"
