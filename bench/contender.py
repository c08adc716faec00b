"""The contenders of the benchmark, and the processes that run them."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from select import select
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
# Many times longer than the longest request: a worker that takes so long has lost a message.
_REPLY_TIMEOUT_SECONDS = 600


class ContenderFailed(Exception):
    """A request to a contender failed. The text says which contender and why."""


@dataclass(frozen=True)
class Contender:
    """A way of using Redis on one interpreter, and the contender that it is compared with.

    A reference is measured in these workloads only, and beside no other measure.
    """

    name: str
    kind: str
    python: str
    baseline: str
    queue: str
    workloads: frozenset[str] | None = None

    def does(self, shell: str, workload: str) -> bool:
        return self.workloads is None or (shell == "sync" and workload in self.workloads)


_STREAMS = frozenset({"publish", "consume", "publish_batch", "consume_batch"})
_SOCKET = frozenset({"publish", "dedup", "consume", "publish_batch"})


def contenders(hiredis: str, plain: str, peer: str | None) -> list[Contender]:
    """All contenders, given the interpreters of their environments.

    A library is compared with raw redis-py on the same interpreter. All queue names have the same length, so that none
    has longer keys.
    """
    ours = [
        Contender("raw", "raw", hiredis, "raw", "queue-1"),
        Contender("library", "library", hiredis, "raw", "queue-2"),
        Contender("raw, plain", "raw", plain, "raw, plain", "queue-3"),
        Contender("library, plain", "library", plain, "raw, plain", "queue-4"),
        Contender("streams", "streams", hiredis, "raw", "queue-5", _STREAMS),
        Contender("socket", "bare_socket", hiredis, "raw", "queue-6", _SOCKET),
    ]
    if peer is None:
        return ours
    return [
        *ours,
        Contender("peer raw", "raw", peer, "peer raw", "queue-7"),
        Contender("peer", "library", peer, "peer raw", "queue-8"),
    ]


def _environment() -> dict[str, str]:
    """The environment without PYTHONPATH, which could replace one library with the other."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class RequestProcess:
    """A process that handles one request at a time: a line of JSON in, a line of JSON out."""

    def __init__(self, name: str, start: "Callable[..., subprocess.Popen[str]]") -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = start(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Messages in flight are dropped with the process, not acknowledged one by one.
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def request(self, do: str, **arguments: Any) -> Any:
        """Send a request and wait for its reply."""
        self.send(do, **arguments)
        return self.receive()

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request. Call `receive` for the reply."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._failed(self._last_error()) from None

    def receive(self) -> Any:
        assert self._process.stdout is not None
        if not select([self._process.stdout], [], [], _REPLY_TIMEOUT_SECONDS)[0]:
            raise self._failed(f"no reply within {_REPLY_TIMEOUT_SECONDS} seconds")
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": self._last_error()}
        if "error" in reply:
            raise self._failed(reply["error"])
        return reply["result"]

    def _failed(self, why: str) -> ContenderFailed:
        return ContenderFailed(f"{self.name}: {why}")

    def _last_error(self) -> str:
        self._process.wait()
        self._stderr.seek(0)
        return (self._stderr.read().decode(errors="replace").strip().splitlines() or ["the process ended"])[-1]


class Worker(RequestProcess):
    """A process of a contender."""

    def __init__(self, contender: Contender, url: str) -> None:
        self.contender = contender
        command = [contender.python, "-m", "bench.worker", contender.kind, url, contender.queue]
        super().__init__(contender.name, partial(subprocess.Popen, command, cwd=ROOT, env=_environment(), text=True))
