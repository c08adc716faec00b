"""A real Redis Cluster on loopback: three primaries that share the slots, and a replica if one is asked for."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any, Self

import redis
import redis.asyncio
from redis.crc import key_slot

from redis_message_queue.embedded import EmbeddedRedis
from tests.topologies.replication import await_copy
from tests.topologies.waiting import wait_until

SLOTS = 16_384
PRIMARIES = 3
Layout = dict[tuple[int, int], int]
Dump = dict[int, dict[bytes, bytes]]

# The timeout is far away: on a busy machine a node must not be called dead by mistake, and a test that wants
# a replica promoted says so itself. An address that is announced need not be learned from the others.
SETTINGS: dict[str, str | int] = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": 60_000,
    "cluster-announce-ip": EmbeddedRedis.host,
    "repl-diskless-sync-delay": 0,
}


class Node:
    """One server of the cluster, and a plain client to look into it."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.server = server
        self.redis = server.client()
        self.id: str = self.cluster("MYID").decode()

    @property
    def port(self) -> int:
        return self.server.port

    def cluster(self, *words: Any) -> Any:
        """A CLUSTER command; the answer is as the server gave it, whatever redis-py would make of it."""
        return self.redis.execute_command("CLUSTER", *words)

    def layout(self) -> Layout:
        """Who owns which slots, as far as this node knows."""
        return {(first, last): owner[1] for first, last, owner, *_ in self.cluster("SLOTS")}

    def owner(self, slot: int) -> int:
        """The port of the slot's owner, as far as this node knows."""
        return next(port for (first, last), port in self.layout().items() if first <= slot <= last)

    def is_content(self, nodes: int) -> bool:
        """Whether it serves its slots and knows so many nodes, itself included."""
        told = self.cluster("INFO").decode().splitlines()
        return {"cluster_state:ok", f"cluster_known_nodes:{nodes}"} <= set(told)

    def keys(self) -> set[bytes]:
        return set(self.redis.scan_iter(count=1000))

    def dump(self) -> dict[bytes, bytes]:
        """Everything that it holds, apart from the time that keys have left."""
        keys = sorted(self.keys())
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                # Without ASKING it would speak of no key of a slot that is still arriving.
                pipe.execute_command("ASKING").execute_command("DUMP", key)
            return dict(zip(keys, pipe.execute()[1::2], strict=True))


class Cluster:
    """Made of real servers; it offers clients as `EmbeddedRedis` does, so that the shells can use it in its place."""

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

    # What tests need of it

    def client(self, **options: Any) -> redis.RedisCluster:
        return redis.RedisCluster(host=self.host, port=self._first_living.port, **options)

    def async_client(self, **options: Any) -> redis.asyncio.RedisCluster:
        return redis.asyncio.RedisCluster(host=self.host, port=self._first_living.port, **options)

    @cached_property
    def onlooker(self) -> redis.RedisCluster:
        """One client for all tests to look with: to open one takes 50 ms, most of them for COMMAND."""
        return self._open.enter_context(self.client())

    @property
    def replica(self) -> Node:
        """Whoever owns no slots."""
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
        """Who owns which slots, in the eyes of the first node that lives."""
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
        """The keys on all primaries, besides the queue's bell, its reply cache, and records of lists that are there."""
        prefix = f"{queue.key.prefix}{queue.key.separator}"
        keys = set(self.every_key())
        records = {queue.key.records(key.decode()).encode() for key in keys}
        words = ("bell", "meta", f"reply{queue.key.separator}")
        spared = tuple(f"{prefix}{word}".encode() for word in words)
        return {key for key in keys if not key.startswith(spared)} - records

    def dump(self) -> Dump:
        """Everything that is in the cluster, by the port where it is."""
        return {node.port: node.dump() for node in self.primaries}

    def blocked(self) -> int:
        """How many connections lie in a blocking read, wherever."""
        return sum(int(node.redis.info("clients")["blocked_clients"]) for node in self.primaries)

    def connections_received(self) -> int:
        """How many connections were ever opened to the primaries."""
        return sum(int(node.redis.info("stats")["total_connections_received"]) for node in self.primaries)

    def agrees(self) -> bool:
        """Whether every node is content and says the same about who owns what."""
        content = all(node.is_content(len(self.nodes)) for node in self.nodes)
        return content and all(node.layout() == self.nodes[0].layout() for node in self.nodes)

    def settle(self) -> None:
        """Wait until all agree."""
        wait_until(self.agrees, "every node of the cluster agrees")

    def check(self) -> None:
        """Whatever a test did, the next one finds every slot served and none on its way."""
        assert self.agrees(), [node.cluster("INFO") for node in self.nodes]
        assert sum(last - first + 1 for first, last in self.layout()) == SLOTS

    # What can happen to it

    def promote(self, replica: Node) -> None:
        """At once, without a vote: how long nodes need to call another one dead is not what is tested."""
        replica.cluster("FAILOVER", "TAKEOVER")
        living = [node for node in self.nodes if node.server.running]
        wait_until(
            lambda: all(replica.port in node.layout().values() for node in living),
            "everybody knows the new primary",
        )

    def revive(self, *dead: Node) -> None:
        """They come back with what they had written down; one that was replaced becomes a replica."""
        for node in dead:
            node.server.restart()
        self.settle()
        if self._wants_replica:
            await_copy(self.replica.redis)

    # How it is made

    def _start_node(self) -> Node:
        options = {"binary": self._binary, "config": SETTINGS, "password": False} | self._options
        node = Node(self._open.enter_context(EmbeddedRedis(**options)))
        self._open.callback(node.redis.close)
        return node

    def _share_the_slots(self) -> None:
        """ADDSLOTS and not ADDSLOTSRANGE, which Redis 6.2 does not know."""
        for place, node in enumerate(self.nodes):
            # Epochs that differ from the start spare the nodes a dispute about them.
            node.cluster("SET-CONFIG-EPOCH", place + 1)
            if place < PRIMARIES:
                first, beyond = SLOTS * place // PRIMARIES, SLOTS * (place + 1) // PRIMARIES
                node.cluster("ADDSLOTS", *range(first, beyond))

    def _introduce(self) -> None:
        for node in self.nodes[1:]:
            node.cluster("MEET", self.host, self.nodes[0].port)
        self.settle()

    def _attach_the_replica(self) -> None:
        """To the first primary."""
        self.nodes[-1].cluster("REPLICATE", self.nodes[0].id)
        await_copy(self.nodes[-1].redis)
        self.settle()

    @property
    def _first_living(self) -> Node:
        return next(node for node in self.nodes if node.server.running)
