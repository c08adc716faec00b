"""The servers of a campaign, with append-only files, and the proxies in front of them."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import redis

from chaos.faketime import MISSING, FakeClock, find_library
from chaos.scenario import PARCELS, QUEUES, TRANSFERS, QueuePlace
from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from tests.concurrency import until
from tests.faults.proxy import FaultyProxy
from tests.topologies.cluster import SETTINGS, Cluster
from tests.topologies.migration import Migration
from tests.topologies.replication import await_copy, await_replication

# `always`: with `everysec` a server may reply before it has written, and a killed one would lose that.
# A script that runs for 200 ms is reported as busy; 5 s, the default, would hide it behind the timeouts.
CONFIG: dict[str, str | int] = {"appendfsync": "always", "lua-time-limit": 200, "repl-diskless-sync-delay": 0}


class World:
    """One server alone, a primary with a replica, and a cluster. Each server writes an append-only file."""

    def __init__(self, directory: Path, binary: str, places: frozenset[str]) -> None:
        self._directory = directory
        self._binary = binary
        self.places = places
        self._open = contextlib.ExitStack()
        self.clock: FakeClock | None = None
        self.left_out: dict[str, str] = {}
        self.losses: list[tuple[float, float]] = []  # when confirmed writes to the replicated server may be lost
        self.versions = ""
        self._moving = itertools.cycle([TRANSFERS.name, *PARCELS.key_prefixes])

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            self._open = opening
            if "durable" in self.places:
                self._start_durable()
            if "replicated" in self.places:
                self._start_replicated()
            if "cluster" in self.places:
                self.cluster = opening.enter_context(
                    Cluster(self._binary, append_only=True, config=SETTINGS | CONFIG, startup_timeout_seconds=60)
                )
                self.versions = _version(self.cluster.nodes[0].server)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _start_durable(self) -> None:
        library = find_library()
        if library is None:
            self.left_out["clock"] = MISSING
        else:
            self.clock = FakeClock(self._directory, library, self._binary)
        self.durable = self._start(self.clock.program if self.clock else self._binary)
        self.durable_proxy = self._open.enter_context(FaultyProxy(self.durable.port))
        self.versions = _version(self.durable)

    def _start_replicated(self) -> None:
        self.primary, self.replica = self._start(self._binary), self._start(self._binary)
        self.follow()
        self.replicated_proxy = self._open.enter_context(FaultyProxy(self.primary.port))
        self.versions = _version(self.primary)

    def _start(self, binary: Path | str) -> EmbeddedRedis:
        options: dict[str, Any] = {"binary": binary, "append_only": True, "config": CONFIG, "password": False}
        return self._open.enter_context(EmbeddedRedis(**options, startup_timeout_seconds=60))

    # For workers and for the checker

    def url(self, place: str) -> str:
        """Where a worker connects to: a proxy, or a node of the cluster."""
        ports = {
            "durable": lambda: self.durable_proxy.port,
            "replicated": lambda: self.replicated_proxy.port,
            "cluster": lambda: self.cluster.nodes[0].port,
        }
        return f"redis://{EmbeddedRedis.host}:{ports[place]()}/0"

    def clients(self, place: str) -> list[redis.Redis]:
        """A plain client of each server that has data; the caller closes it."""
        servers = {
            "durable": lambda: [self.durable],
            "replicated": lambda: [self.primary],
            "cluster": lambda: [node.server for node in self.cluster.primaries],
        }
        return [server.client() for server in servers[place]()]

    @property
    def queues(self) -> list[QueuePlace]:
        return [queue for queue in QUEUES if queue.place in self.places]

    @contextlib.contextmanager
    def queue(self, place: QueuePlace) -> Iterator[tuple[Any, RedisMessageQueue]]:
        """A client and a queue for looking at it, without a proxy."""
        client: Any = self.cluster.client() if place.place == "cluster" else self.clients(place.place)[0]
        with contextlib.closing(client):
            queue = RedisMessageQueue(place.name, client=client, partitions=place.partitions, retry_budget_seconds=60)
            yield client, queue

    def servers(self) -> list[EmbeddedRedis]:
        """All servers, replicas included."""
        found: list[EmbeddedRedis] = []
        if "durable" in self.places:
            found.append(self.durable)
        if "replicated" in self.places:
            found += [self.primary, self.replica]
        if "cluster" in self.places:
            found += [node.server for node in self.cluster.nodes]
        return found

    def proxies(self) -> list[FaultyProxy]:
        found = [self.durable_proxy] if "durable" in self.places else []
        return [*found, self.replicated_proxy] if "replicated" in self.places else found

    # Faults

    def follow(self) -> None:
        """The replica copies its primary and follows it."""
        with self.replica.client() as replica:
            replica.execute_command("REPLICAOF", self.primary.host, self.primary.port)
            await_copy(replica)

    def replicate(self) -> None:
        with self.primary.client() as primary:
            await_replication(primary, "a free key")

    def fail_over(self, lag_seconds: float) -> None:
        """Kill the primary and promote its replica. With a lag, the replica loses its link first, and misses writes.

        Clients keep their address, as they do behind a name or a virtual address: the proxy leads to the new primary.
        """
        self.replicate()
        began = time.monotonic()
        with self.replica.client() as replica:
            if lag_seconds:
                # To itself, where nothing answers as a primary: it keeps its data and refuses writes.
                replica.execute_command("REPLICAOF", self.replica.host, self.replica.port)
                time.sleep(lag_seconds)
            self.primary.kill()
            replica.execute_command("REPLICAOF", "NO", "ONE")
        self.losses.append((began, time.monotonic()))
        self.primary, self.replica = self.replica, self.primary
        self.replicated_proxy.redirect(self.primary.port)
        self.replicated_proxy.cut_all()
        self.replica.restart()
        self.follow()

    def block(self, seconds: float) -> None:
        """Keep the server busy with a script that would never end."""
        with self.durable.client(socket_timeout=60) as blocked, self.durable.client() as killer:
            loop = threading.Thread(target=_run_for_ever, args=(blocked,), name="busy")
            loop.start()
            time.sleep(seconds)
            until(lambda: _is_killed(killer) or not loop.is_alive(), "the script was killed")
            loop.join()

    def move_slot(self) -> str:
        """Move the slot of a queue or of a partition to another node. Returns whose it was."""
        name = next(self._moving)
        migration = Migration(self.cluster, name)
        migration.__enter__()
        while keys := migration.left():
            for key in keys:
                migration.move(key)
        migration.finish()
        return name


def _run_for_ever(client: redis.Redis) -> None:
    with contextlib.suppress(redis.RedisError):  # it is killed
        client.eval("while true do end", 0)


def _is_killed(killer: redis.Redis) -> bool:
    try:
        return bool(killer.script_kill())
    except redis.RedisError:  # it has not begun yet
        return False


def _version(server: EmbeddedRedis) -> str:
    return f"{server.flavour} {'.'.join(map(str, server.version))}"
