"""The processes of the demo: started, killed, restarted, and never left behind."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Literal, Self

from redis_message_queue.cli.demo.plan import Plan

_PLAN = "REDIS_MESSAGE_QUEUE_DEMO"

Role = Literal["producer", "consumer"]


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """One process and its name; a restarted worker is a new one under the same name."""

    role: Role
    number: int
    process: subprocess.Popen[bytes]
    complaints: IO[bytes]

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}"

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def bury(self) -> None:
        """Wait for its end and let go of what it held."""
        with self.process, self.complaints:
            pass


class Crew:
    """All workers of one demo; leaving its `with` ends those that still run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._working: dict[tuple[Role, int], Worker] = {}
        self._gone: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._working.values():
            worker.process.kill()
        for worker in (*self._gone, *self._working.values()):
            worker.bury()

    def start(self, role: Role, number: int) -> None:
        """A fresh interpreter, which inherits no sockets, in a session that no Ctrl-C of the terminal reaches."""
        complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed when its worker has gone
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{role}", str(number)],
            env=os.environ | {_PLAN: self._plan.to_json()},  # arguments would show the password to every user
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )
        self._working[role, number] = Worker(role, number, process, complaints)

    def kill(self, role: Role, number: int) -> None:
        """SIGKILL, as the kernel sends it to whoever takes too much memory."""
        if worker := self._working.get((role, number)):
            worker.process.kill()

    def works(self, role: Role) -> bool:
        """Whether any worker of this role has not been seen to go."""
        return any(worker.role == role for worker in self._working.values())

    def gone(self) -> list[Worker]:
        """Those that ended since the last look."""
        ended = [worker for worker in self._working.values() if worker.process.poll() is not None]
        for worker in ended:
            self._gone.append(self._working.pop((worker.role, worker.number)))
        return ended

    def dismiss(self, patience_seconds: float) -> int:
        """SIGTERM to all; returns how many left by themselves and in time."""
        deadline = time.monotonic() + patience_seconds
        workers = list(self._working.values())
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        return sum(worker.process.poll() == 0 for worker in workers)


def report_for_duty() -> tuple[Plan, int]:
    """In the worker: what to play, and as whom. From here on it ends when the demo ends, however that ends."""
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    return Plan.from_json(os.environ[_PLAN]), int(sys.argv[1])


def _end_with_the_demo() -> None:
    """Only the demo holds the other end of our stdin: the read returns when that process is gone."""
    with contextlib.suppress(OSError):
        os.read(sys.stdin.fileno(), 1)
    os._exit(0)
