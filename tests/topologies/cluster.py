"""A real Redis Cluster on loopback: three primaries that share the slots, and optionally a replica."""

from __future__ import annotations

import contextlib
import time
from functools import cached_property
from typing import Any, Self

import redis
import redis.asyncio
from redis.crc import key_slot

from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored.keys import REGISTRY_KEY
from tests.concurrency import LIMIT_SECONDS, until
from tests.topologies.replication import await_copy

SLOTS = 16_384
PRIMARIES = 3
Layout = dict[tuple[int, int], int]
Dump = dict[int, dict[bytes, bytes]]

# The node timeout is long: on a busy machine no node must be declared dead by mistake, and a test that needs a
# failover triggers it itself. Each node announces its address, so it need not learn it from the others.
SETTINGS: dict[str, str | int] = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": 60_000,
    "cluster-announce-ip": EmbeddedRedis.host,
    "repl-diskless-sync-delay": 0,
}


class Node:
    """One server of the cluster, and a plain client of it."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.server = server
        self.redis = server.client()
        self.id: str = self.cluster("MYID").decode()

    @property
    def port(self) -> int:
        return self.server.port

    def cluster(self, *words: Any) -> Any:
        """Send a CLUSTER command. Returns the server's reply, not what redis-py makes of it."""
        return self.redis.execute_command("CLUSTER", *words)

    def layout(self) -> Layout:
        """The owners of all slots, as this node knows them."""
        return {(first, last): owner[1] for first, last, owner, *_ in self.cluster("SLOTS")}

    def owner(self, slot: int) -> int:
        """The port of the slot's owner, as this node knows it."""
        return next(port for (first, last), port in self.layout().items() if first <= slot <= last)

    def is_healthy(self, nodes: int) -> bool:
        """Whether it serves its slots and knows this many nodes, including itself."""
        info = self.cluster("INFO").decode().splitlines()
        return {"cluster_state:ok", f"cluster_known_nodes:{nodes}"} <= set(info)

    def keys(self) -> set[bytes]:
        return set(self.redis.scan_iter(count=1000))

    def dump(self) -> dict[bytes, bytes]:
        """All data of the node, apart from the remaining lifetime of keys."""
        keys = sorted(self.keys())
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                # Without ASKING it would not return keys of a slot that is being imported.
                pipe.execute_command("ASKING").execute_command("DUMP", key)
            return dict(zip(keys, pipe.execute()[1::2], strict=True))


class Cluster:
    """A cluster of real servers. It offers clients as `EmbeddedRedis` does, so that the shells can use it instead."""

    host = EmbeddedRedis.host

    def __init__(self, binary: str, *, replica: bool = False, **server_options: Any) -> None:
        self._binary = binary
        self._wants_replica = replica
        self._options = server_options
        self._open = contextlib.ExitStack()
        self.nodes: list[Node] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(PRIMARIES + self._wants_replica):
                self.nodes.append(self._start_node())
            self._share_the_slots()
            self._introduce()
            if self._wants_replica:
                self._attach_the_replica()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # For tests

    def client(self, **options: Any) -> redis.RedisCluster:
        return redis.RedisCluster(host=self.host, port=self._first_living.port, **options)

    def async_client(self, **options: Any) -> redis.asyncio.RedisCluster:
        return redis.asyncio.RedisCluster(host=self.host, port=self._first_living.port, **options)

    @cached_property
    def onlooker(self) -> redis.RedisCluster:
        """One client that all tests share for reading: opening one takes 50 ms, mostly for COMMAND."""
        return self._open.enter_context(self.client())

    @property
    def replica(self) -> Node:
        """The nodes that own no slots."""
        return next(node for node in self.nodes if node not in self.primaries)

    def flush(self) -> None:
        """Empty every primary."""
        for node in self.primaries:
            node.redis.flushall()

    @property
    def primaries(self) -> list[Node]:
        owners = set(self.layout().values())
        return [node for node in self.nodes if node.port in owners]

    def layout(self) -> Layout:
        """The owners of all slots, as the first live node knows them."""
        return self._first_living.layout()

    def owner(self, key: str) -> Node:
        """The primary that serves this key."""
        port = self._first_living.owner(key_slot(key.encode()))
        return next(node for node in self.nodes if node.port == port)

    def bystanders(self, key: str) -> list[Node]:
        """The primaries that do not serve this key."""
        return [node for node in self.primaries if node is not self.owner(key)]

    def every_key(self) -> set[bytes]:
        """All keys on all primaries."""
        return set().union(*(node.keys() for node in self.primaries))

    def leftovers(self, queue: Any) -> set[bytes]:
        """The keys on all primaries, without the wake-up key, the reply cache and the records of existing lists."""
        prefix = f"{queue.key.prefix}{queue.key.separator}"
        keys = set(self.every_key())
        records = {queue.key.records(key.decode()).encode() for key in keys}
        words = ("wakeup", "meta", f"reply{queue.key.separator}")
        spared = tuple(f"{prefix}{word}".encode() for word in words)
        return {key for key in keys if not key.startswith(spared)} - records - {REGISTRY_KEY.encode()}

    def dump(self) -> Dump:
        """All data in the cluster, by port."""
        return {node.port: node.dump() for node in self.primaries}

    def blocked(self) -> int:
        """How many connections to any node are in a blocking read."""
        return sum(int(node.redis.info("clients")["blocked_clients"]) for node in self.primaries)

    def connections_received(self) -> int:
        """How many connections to the primaries were ever opened."""
        return sum(int(node.redis.info("stats")["total_connections_received"]) for node in self.primaries)

    def agrees(self) -> bool:
        """Whether all nodes are healthy and agree on the owners of the slots."""
        healthy = all(node.is_healthy(len(self.nodes)) for node in self.nodes)
        if not healthy:
            return False
        first, *others = (node.layout() for node in self.nodes)
        return all(other == first for other in others)

    def settle(self) -> None:
        """Wait until all nodes agree. A node that restarts takes two seconds, and asking it all the time is work."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self.agrees():
            assert time.monotonic() < deadline, "the nodes of the cluster do not agree"
            time.sleep(0.05)

    def check(self) -> None:
        """After every test: check that all slots are served and none is being moved."""
        assert self.agrees(), [node.cluster("INFO") for node in self.nodes]
        assert sum(last - first + 1 for first, last in self.layout()) == SLOTS

    # Faults

    def promote(self, replica: Node) -> None:
        """Promote the replica at once, without a vote: how long nodes take to detect a failure is not tested here."""
        replica.cluster("FAILOVER", "TAKEOVER")
        living = [node for node in self.nodes if node.server.running]
        until(
            lambda: all(replica.port in node.layout().values() for node in living),
            "every node knows the new primary",
        )

    def revive(self, *dead: Node) -> None:
        """Restart the nodes with their data; a node that was replaced becomes a replica."""
        for node in dead:
            node.server.restart()
        self.settle()
        if self._wants_replica:
            await_copy(self.replica.redis)

    # Setup

    def _start_node(self) -> Node:
        options: dict[str, Any] = {"binary": self._binary, "config": SETTINGS, "password": False} | self._options
        node = Node(self._open.enter_context(EmbeddedRedis(**options)))
        self._open.callback(node.redis.close)
        return node

    def _share_the_slots(self) -> None:
        """ADDSLOTS and not ADDSLOTSRANGE, which Redis 6.2 does not have."""
        for place, node in enumerate(self.nodes):
            # Different epochs from the start avoid a conflict between the nodes.
            node.cluster("SET-CONFIG-EPOCH", place + 1)
            if place < PRIMARIES:
                first, beyond = SLOTS * place // PRIMARIES, SLOTS * (place + 1) // PRIMARIES
                node.cluster("ADDSLOTS", *range(first, beyond))

    def _introduce(self) -> None:
        for node in self.nodes[1:]:
            node.cluster("MEET", self.host, self.nodes[0].port)
        self.settle()

    def _attach_the_replica(self) -> None:
        """Make the replica follow the first primary."""
        self.nodes[-1].cluster("REPLICATE", self.nodes[0].id)
        await_copy(self.nodes[-1].redis)
        self.settle()

    @property
    def _first_living(self) -> Node:
        return next(node for node in self.nodes if node.server.running)
