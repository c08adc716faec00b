"""Runs `rmq` in this process, or as a separate process."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.__main__ import main
from redis_message_queue.embedded import EmbeddedRedis
from tests.cli.workers import HANDLERS, QUEUES
from tests.fork_server import Program


@dataclass
class Ended:
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def documents(self) -> list[Any]:
        """Its output, if that is JSON and nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def rmq(clean_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Callable[..., Ended]:
    """Runs a command in this process, on the shared server."""
    monkeypatch.setenv("REDIS_URL", clean_server.url)

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        status = main(list(arguments))
        said = capfd.readouterr()
        return Ended(status, said.out, said.err)

    return run


@pytest.fixture
def start_rmq(clean_server: EmbeddedRedis, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a command in a process of its own, in an empty directory; warnings are errors there too.

    With `forked=False` an interpreter starts, as for the users.
    """
    with contextlib.ExitStack() as started:

        def start(*arguments: str, forked: bool = True, **options: Any) -> "subprocess.Popen[str]":
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            settings = pipes | {"text": True} | options
            environment = os.environ | {"REDIS_URL": clean_server.url, "PYTHONWARNINGS": "error"}
            process = started.enter_context(
                (Program if forked else subprocess.Popen)(
                    [sys.executable, "-m", "redis_message_queue", *arguments],
                    cwd=tmp_path,
                    env=environment,
                    **settings,
                )
            )
            started.callback(process.kill)
            return process

        yield start


@pytest.fixture
def queue(text_client: Any) -> RedisMessageQueue:
    """The queue that the commands of these tests work on."""
    return RedisMessageQueue("orders", client=text_client, message_wait_interval_seconds=0)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Gives a command that runs in this process something to read."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A directory with the modules of a worker."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "queues.py").write_text(QUEUES)
    return tmp_path


@pytest.fixture
def run_worker(rmq: Callable[..., Ended], modules: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs a worker that ends by itself: the supervisor in this process, and the handlers in processes of their own."""
    monkeypatch.setattr(subprocess, "Popen", Program)
    monkeypatch.chdir(modules)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    return lambda *arguments: rmq("worker", *arguments)


@pytest.fixture
def worker(start_rmq: Callable[..., "subprocess.Popen[str]"], modules: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts a worker that a test sends signals to, in a directory with these modules."""

    def start(*arguments: str, forked: bool = True) -> "subprocess.Popen[str]":
        return start_rmq("worker", *arguments, forked=forked)

    return start
