"""The cost of a piece of work: CPU of this process, CPU of the server, and the wall clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

_EMPTY_RUNS = 30


@dataclass(slots=True)
class Cost:
    """In seconds."""

    client: float = 0.0
    server: float = 0.0
    wall: float = 0.0

    @property
    def cpu(self) -> float:
        """Never nothing: the kernel counts in steps, and a ratio needs a divisor."""
        return max(self.client + self.server, 1e-9)


class Meter:
    """Reads the server's CPU over a connection of its own, and knows what that reading costs."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._reading = 0.0
        self._reading = median(self._empty_run() for _ in range(_EMPTY_RUNS))

    @contextlib.contextmanager
    def running(self) -> Iterator[Cost]:
        cost = Cost()
        # The clocks of this process are read inside those of the server, so that they do not see INFO.
        server, wall, client = self._server(), time.perf_counter(), time.process_time()
        yield cost
        cost.client = time.process_time() - client
        cost.wall = time.perf_counter() - wall
        cost.server = max(0.0, self._server() - server - self._reading)

    def _server(self) -> float:
        used = self._node.info("cpu")
        return float(used["used_cpu_sys"] + used["used_cpu_user"])

    def _empty_run(self) -> float:
        with self.running() as cost:
            pass
        return cost.server


@contextlib.contextmanager
def together(server: int) -> Iterator[bool]:
    """This process and the server on one CPU, where the system can do that.

    Left to the scheduler they sometimes share a CPU and sometimes wake each other across two, which changes the CPU
    time of the same command by more than half.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before = os.sched_getaffinity(0)
    try:
        for process in (0, server):
            os.sched_setaffinity(process, {max(before)})
        yield True
    finally:
        os.sched_setaffinity(0, before)
