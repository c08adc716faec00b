"""What each process says that it did: one append-only file for each, written around every call."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Ledger:
    """The file of one process. A line is one write, so a process that is killed leaves whole lines behind."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._calls = 0

    def intend(self, queue: str, keys: list[str], **details: Any) -> int:
        """Note a publish before it is sent. Returns its number in this file."""
        self._calls += 1
        self.write("intent", call=self._calls, queue=queue, keys=keys, **details)
        return self._calls

    def write(self, do: str, *, durable: bool = True, **details: Any) -> None:
        """Add a line. ``durable`` waits until it is on the disk: the next call must not be sent before that."""
        line = json.dumps({"do": do, "t": round(time.monotonic(), 4), **details}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())
        if durable:
            os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class NoLedger(Ledger):
    """For a process of which nobody asks what it did."""

    def __init__(self) -> None:
        self._calls = 0

    def write(self, do: str, *, durable: bool = True, **details: Any) -> None:
        return

    def close(self) -> None:
        return


def read_ledgers(directory: Path) -> list[Entry]:
    """All lines of all processes, in the order of their times; `who` is the name of the file."""
    entries = [entry for path in sorted(directory.glob("*.jsonl")) for entry in _read(path)]
    return sorted(entries, key=lambda entry: float(entry["t"]))


def _read(path: Path) -> Iterator[Entry]:
    lines = path.read_bytes().split(b"\n")
    if lines.pop():
        raise ValueError(f"{path}: the last line is torn; a ledger that lost a line cannot prove anything")
    for line in lines:
        yield {"who": path.stem, **json.loads(line)}
