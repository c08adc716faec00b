"""Who competes, and how the driver talks to them."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Many times what claiming a whole pile takes: whoever is silent for so long has lost a message.
_PATIENCE_SECONDS = 600


class ContenderFailed(Exception):
    """A contender could not do what it was asked; the text says which one and why."""


@dataclass(frozen=True)
class Contender:
    """A way of using Redis in an environment, and the raw one that it is compared with."""

    name: str
    kind: str
    python: str
    yardstick: str
    queue: str


def contenders(peer_python: str | None) -> list[Contender]:
    """A library is compared with raw redis-py on its own interpreter. All queue names are equally long."""
    ours = [
        Contender("raw", "raw", sys.executable, "raw", "queue-1"),
        Contender("library", "library", sys.executable, "raw", "queue-2"),
    ]
    if peer_python is None:
        return ours
    return [
        *ours,
        Contender("peer raw", "raw", peer_python, "peer raw", "queue-3"),
        Contender("peer", "library", peer_python, "peer raw", "queue-4"),
    ]


def _environment() -> dict[str, str]:
    """Without PYTHONPATH, which could put one library in the place of the other."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Worker:
    """A process of a contender that answers one request at a time."""

    def __init__(self, contender: Contender, url: str) -> None:
        self.contender = contender
        self.name = contender.name
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [contender.python, "-m", "bench.worker", contender.kind, url, contender.queue],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        # A pile in flight is dropped with its process, not acknowledged one by one.
        self._process.kill()
        self._process.communicate()
        self._complaints.close()

    def ask(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """Ask now, and take the answer later."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failed(self._last_words()) from None

    def answer(self) -> Any:
        assert self._process.stdout is not None
        if not select([self._process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            raise self._failed(f"no answer in {_PATIENCE_SECONDS} seconds")
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": self._last_words()}
        if "error" in reply:
            raise self._failed(reply["error"])
        return reply["answer"]

    def _failed(self, why: str) -> ContenderFailed:
        return ContenderFailed(f"{self.contender.name}: {why}")

    def _last_words(self) -> str:
        self._process.wait()
        self._complaints.seek(0)
        return (self._complaints.read().decode(errors="replace").strip().splitlines() or ["it ended"])[-1]
