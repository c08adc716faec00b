"""Runs `rmq dashboard` as a process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

MOST_SECONDS = 120.0
_ADDRESS = re.compile(r"http://\S+:(?P<port>\d+)/")


@dataclass
class Running:
    """A dashboard that answers."""

    process: "subprocess.Popen[str]"
    url: str

    def browser(self, **options: Any) -> httpx.Client:
        """Return a client that keeps cookies and follows nothing by itself."""
        return httpx.Client(base_url=self.url, timeout=MOST_SECONDS, trust_env=False, **options)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it, and return its exit status and what else it said."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=MOST_SECONDS)
        return self.process.returncode, errors


@contextlib.contextmanager
def dashboard(*arguments: str, url: str, **variables: str) -> Iterator[Running]:
    """Start `rmq dashboard` on a free port; warnings are errors there too. ``variables`` are for its environment."""
    with subprocess.Popen(
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
