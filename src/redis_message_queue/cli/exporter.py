"""rmq exporter: shows Prometheus what is in the queues of a server."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from redis_message_queue.cli.clients import open_async_client
from redis_message_queue.cli.common_options import HashTag, KeySeparator, ServerChoice
from redis_message_queue.cli.exit_status import CommandFailedError
from redis_message_queue.cli.output import say
from redis_message_queue.cli.page_server import METRICS_TYPE, Page, PageServer
from redis_message_queue.cli.stop_signals import StopSignals

_PORT = 8326
_RETRY_BUDGET_SECONDS = 1.0  # a scrape has little time
_ANSWER_SECONDS = 30.0


def exporter(
    server: ServerChoice,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE", help="Queues to show besides those in the registry of the server.", show_default=False
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is every address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="The port; 0 chooses a free one.")] = _PORT,
    discover: Annotated[bool, typer.Option(help="Also show queues that were not named.")] = True,
    max_tenants: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Show the backlog of this many tenants by their names.", show_default="of none"
        ),
    ] = None,
    key_separator: KeySeparator = "::",
    hash_tag: HashTag = None,
) -> None:
    """Serve /metrics with the counts of all queues of a server, until Ctrl-C.

    For each queue: how many messages wait, are in flight, delayed, failed or dead letters, how old the oldest one is,
    how many workers are connected, and whether it is paused. Each scrape reads each queue once, within 8 seconds in
    all. One exporter for each server is enough. What workers do is shown by `rmq worker --health-port`.
    """
    from redis_message_queue.metrics.exporter import MetricsExporter
    from redis_message_queue.metrics.server_queues import ServerQueues

    async def serve() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        async with open_async_client(server.url) as client:
            known = ServerQueues(
                client,
                queues or (),
                discover=discover,
                retry_budget_seconds=_RETRY_BUDGET_SECONDS,
                key_separator=key_separator,
                hash_tag=hash_tag,
            )
            made = MetricsExporter(known, max_tenants=max_tenants)

            def metrics() -> tuple[bool, str, str]:
                scraped = asyncio.run_coroutine_threadsafe(made.scrape(), loop)
                return True, METRICS_TYPE, scraped.result(_ANSWER_SECONDS).decode()

            with StopSignals(first=lambda: loop.call_soon_threadsafe(stopped.set)):
                pages = _listen(host, port, metrics)
                say(f"metrics of {server.shown_url} at {pages.url}/metrics, Ctrl-C to stop")
                await stopped.wait()
                await asyncio.to_thread(pages.close)

    asyncio.run(serve())


def _listen(host: str, port: int, metrics: Page) -> PageServer:
    try:
        return PageServer(host, port, {"/metrics": metrics}, name="rmq-exporter")
    except OSError as error:
        raise CommandFailedError(
            f"cannot listen on {host} port {port} ({os.strerror(error.errno or 0)}); "
            "choose another with --host and --port"
        ) from error
