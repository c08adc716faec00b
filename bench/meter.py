"""Measures the cost of some work: CPU time of this process, CPU time of the server, and wall time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import redis

Cost = dict[str, float]

_EMPTY_RUNS = 50


class Meter:
    """Reads the server's CPU time over its own connection, and subtracts the cost of reading it."""

    def __init__(self, url: str) -> None:
        self._control = redis.Redis.from_url(url)
        self._reading = 0.0
        self._reading = median(self._empty_run() for _ in range(_EMPTY_RUNS))

    @contextmanager
    def running(self) -> Iterator[Cost]:
        cost: Cost = {}
        # Read the clocks of this process last and first, so that they do not include the INFO calls.
        server, wall, client = self._server(), time.perf_counter(), time.process_time()
        yield cost
        cost["client"] = time.process_time() - client
        cost["wall"] = time.perf_counter() - wall
        cost["server"] = self._server() - server - self._reading

    def _server(self) -> float:
        used = self._control.info("cpu")
        return float(used["used_cpu_sys"] + used["used_cpu_user"])

    def _empty_run(self) -> float:
        with self.running() as cost:
            pass
        return cost["server"]
