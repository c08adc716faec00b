"""Runs the dashboard: as the program `rmq dashboard`, or in a thread of the test."""

import asyncio
import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from redis_message_queue.cli.clients import open_async_client
from redis_message_queue.dashboard import Dashboard
from tests.concurrency import beside
from tests.dashboard.pages import MOST_SECONDS
from tests.fork_server import Program

# Without TLS nothing is verified, and to load all certificates takes most of the time of a request.
BROWSER: dict[str, Any] = {"timeout": MOST_SECONDS, "trust_env": False, "verify": False}
_ADDRESS = re.compile(r"http://\S+:(?P<port>\d+)/")


@dataclass
class Running:
    """A dashboard that answers."""

    process: "subprocess.Popen[str]"
    url: str

    def browser(self, **options: Any) -> httpx.Client:
        """Return a client that keeps cookies and follows nothing by itself."""
        return httpx.Client(base_url=self.url, **BROWSER | options)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it, and return its exit status and what else it said."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=MOST_SECONDS)
        return self.process.returncode, errors


@contextlib.contextmanager
def served(url: str, *queues: str, **options: Any) -> Iterator[httpx.Client]:
    """Serve a dashboard from a thread, and open a browser of it: to start the program takes most of a second."""

    async def serve(listener: socket.socket) -> None:
        async with open_async_client(url) as client:
            made = Dashboard(client, queues, **options)
            running = uvicorn.Server(uvicorn.Config(made, log_config=None, access_log=False, lifespan="off", ws="none"))

            def stop() -> None:
                made.stop()
                running.should_exit = True

            stopping.set_result(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, stop))
            await running.serve(sockets=[listener])

    stopping: Future[Callable[[], object]] = Future()
    with socket.create_server(("127.0.0.1", 0)) as listener, beside(lambda: asyncio.run(serve(listener))) as outcome:
        outcome.add_done_callback(lambda _: stopping.done() or stopping.cancel())
        stop = stopping.result(MOST_SECONDS)
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=address, **BROWSER) as browser:
                yield browser
        finally:
            stop()


@contextlib.contextmanager
def dashboard(*arguments: str, url: str, **variables: str) -> Iterator[Running]:
    """Start `rmq dashboard` on a free port; warnings are errors there too. ``variables`` are for its environment."""
    with Program(
        [sys.executable, "-m", "redis_message_queue", "dashboard", "--port", "0", *arguments],
        env=os.environ | {"REDIS_URL": url, "PYTHONWARNINGS": "error"} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = _ADDRESS.search(said)
            assert found, said + process.stderr.read()
            yield Running(process, f"http://127.0.0.1:{found['port']}")
        finally:
            process.kill()
