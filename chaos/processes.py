"""The worker processes of a campaign: when one is killed, another starts in its place."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from chaos.scenario import WorkerSpec
from chaos.spark_driver import SparkDriver
from chaos.worker import run_worker

# Forked from a process that has imported everything: on a busy machine, thirteen imports take a minute.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["chaos.worker", "chaos.campaign", "chaos.soak"])


class WorkerProcess:
    """One process, and what it writes to stderr."""

    def __init__(self, spec: WorkerSpec, told: dict[str, Any]) -> None:
        self.spec = spec
        self._errors = Path(told["ledger"]).with_suffix(".stderr")
        given = {"spec": spec.to_dict(), "stderr": str(self._errors), **told}
        self._process = _CONTEXT.Process(target=run_worker, args=(given,), name=spec.name)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; the number of the signal, with a minus, if one ended it."""
        return self._process.exitcode

    def signal(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended in time."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def last_words(self) -> str:
        """The last lines of its stderr."""
        said = self._errors.read_text(errors="replace").strip().splitlines() if self._errors.exists() else []
        return "\n".join(said[-12:])


class Processes:
    """All workers. A worker that ends without being told to is a failure, and is replaced as well."""

    def __init__(
        self,
        specs: list[WorkerSpec],
        url: Callable[[str], str],
        directory: Path,
        seed: int,
        lease_seconds: float,
        *,
        write_ledgers: bool = True,
    ) -> None:
        self._write_ledgers = write_ledgers
        self._specs, self._url, self._directory = specs, url, directory
        self._seed, self._lease = seed, lease_seconds
        self._lock = threading.Lock()
        self._started: dict[str, int] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.failures: list[str] = []
        self.spark: SparkDriver | None = None

    def __enter__(self) -> Self:
        for spec in self._specs:
            self._start(spec)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.signal(signal.SIGKILL)
            worker.wait()
        self.workers.clear()
        if self.spark is not None:
            self.spark.kill()

    def _start(self, spec: WorkerSpec) -> None:
        incarnation = self._started[spec.name] = self._started.get(spec.name, 0) + 1
        told: dict[str, Any] = {
            "url": self._url(spec.queue.place),
            "ledger": str(self._directory / f"{spec.name}-{incarnation}.jsonl"),
            "seed": f"{self._seed} {spec.name} {incarnation}",
            "lease_seconds": self._lease,
            "writes_ledger": self._write_ledgers,
        }
        self.workers[spec.name] = WorkerProcess(spec, told)

    @property
    def started(self) -> int:
        return sum(self._started.values())

    def _chosen(self, number: int, *, consumer: bool = False) -> str:
        names = sorted(name for name, one in self.workers.items() if not consumer or one.spec.role != "producer")
        return names[number % len(names)]

    def kill(self, number: int) -> str:
        """SIGKILL one of them. Returns its name."""
        name = self._chosen(number)
        with self._lock:
            self.workers[name].signal(signal.SIGKILL)
            self.workers[name].wait()
            self._start(self.workers[name].spec)
        return name

    @contextlib.contextmanager
    def stopped(self, number: int) -> Iterator[str]:
        """Stop a consumer for a while, so that its leases run out."""
        name = self._chosen(number, consumer=True)
        self.workers[name].signal(signal.SIGSTOP)
        try:
            yield name
        finally:
            self.workers[name].signal(signal.SIGCONT)

    def kill_spark(self) -> int:
        """SIGKILL the driver and its JVM, and start another driver. Returns how many processes were killed.

        A driver that has not begun its query yet is spared: on a busy machine none would ever begin.
        """
        return 0 if self.spark is None or not self.spark.is_running else self.spark.replace()

    def look_after(self) -> None:
        """Replace workers that have ended by themselves, and keep what they said."""
        with self._lock:
            for name, worker in list(self.workers.items()):
                if worker.status is not None:
                    self.failures.append(f"{name} ended with status {worker.status}: {worker.last_words()}")
                    self._start(worker.spec)

    def is_beating(self) -> bool:
        """Whether every worker has written to its ledger, so that the campaign can begin."""
        return all(
            (path := self._directory / f"{name}-{self._started[name]}.jsonl").exists() and path.stat().st_size > 0
            for name, worker in self.workers.items()
            if worker.spec.role == "producer"
        )

    def finish(self, role: Callable[[WorkerSpec], bool], seconds: float) -> None:
        """SIGTERM those of this role, and wait until they have ended in order."""
        chosen = {name: worker for name, worker in self.workers.items() if role(worker.spec)}
        for worker in chosen.values():
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for name, worker in chosen.items():
            if not worker.wait(max(0.1, deadline - time.monotonic())):
                worker.signal(signal.SIGKILL)
                worker.wait()
                self.failures.append(f"{name} did not end within {seconds:g} s after SIGTERM: {worker.last_words()}")
            elif worker.status != 0:
                self.failures.append(f"{name} ended with status {worker.status}: {worker.last_words()}")
            del self.workers[name]
