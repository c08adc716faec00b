"""Runs the Spark query of a campaign as a process that can be killed, and reads what it has written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = {"processingTime": "2 seconds"}
NOW = {"availableNow": True}
_ATTEMPTS = 3
_LONGEST_RUN_SECONDS = 900  # a driver takes ten seconds to start, on a very busy machine minutes


class SparkDriver:
    """The query. When its process ends, `replace` starts another one on the same checkpoint."""

    def __init__(self, url: str, queue: str, directory: Path) -> None:
        self._told = {"url": url, "queue": queue, "directory": str(directory)}
        self._directory = directory
        (directory / "scratch").mkdir(parents=True, exist_ok=True)
        self.started = 0
        self.failures: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._pids: list[int] = []
        self.start()

    def start(self, trigger: dict[str, Any] = ALWAYS) -> None:
        self.started += 1
        self._pids = []
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.spark_query", json.dumps({**self._told, "trigger": trigger})],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self._directory / "scratch")},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # so that its JVM and its workers can be killed with it
        )
        threading.Thread(target=self._learn_pids, args=(self._process,), name="spark-pids", daemon=True).start()

    def _learn_pids(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line and process is self._process:
            self._pids = json.loads(line)

    @property
    def is_running(self) -> bool:
        """Whether the query has begun."""
        return bool(self._pids) and self._process is not None and self._process.poll() is None

    def kill(self) -> int:
        """SIGKILL the whole session: driver, JVM and Python workers. Returns how many were known."""
        process, self._process = self._process, None
        if process is None:
            return 0
        known = len(self._pids) or 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()
        return known

    def replace(self) -> int:
        killed = self.kill()
        self.start()
        return killed

    def look_after(self) -> None:
        """Start a new driver if the query failed, as whoever operates it would."""
        if self._process is not None and self._process.poll() is not None:
            self._keep_error()
            self.replace()

    def _keep_error(self) -> None:
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        self.failures.append(said[-1][:300] if said else "the driver ended without a word")

    def finish(self) -> None:
        """Kill the query, and read what is left with one that ends by itself."""
        self.kill()
        for _ in range(_ATTEMPTS):
            self.start(NOW)
            assert self._process is not None
            try:
                status = self._process.wait(_LONGEST_RUN_SECONDS)
            except subprocess.TimeoutExpired:
                status = -1
            if status == 0:
                self.kill()
                return
            self._keep_error()
            self.kill()
        raise RuntimeError(f"the last Spark query failed {_ATTEMPTS} times: {self.failures[-1]}")

    def written(self) -> Counter[str]:
        """The keys of the messages in the Parquet files that the sink has committed."""
        import pyarrow.parquet

        keys: Counter[str] = Counter()
        for path in sorted(_committed(self._directory / "rows")):
            table = pyarrow.parquet.read_table(path, columns=["payload"])
            keys.update(str(json.loads(payload)["key"]) for payload in table["payload"].to_pylist())
        return keys


def _committed(rows: Path) -> set[Path]:
    return {rows / name for log in sorted((rows / "_spark_metadata").glob("[0-9]*")) for name in _files(log)}


def _files(log: Path) -> Iterator[str]:
    """A log of the sink: a version, and a line for each file."""
    for line in log.read_text().splitlines()[1:]:
        entry = json.loads(line)
        if entry["action"] == "add":
            yield Path(entry["path"]).name
