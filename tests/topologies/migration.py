"""A slot that moves from one node to another while it is in use, key by key, as a resharding does it."""

from __future__ import annotations

from typing import Self

from redis.crc import key_slot

from tests.topologies.cluster import Cluster, Node
from tests.topologies.waiting import wait_until


class Migration:
    """From the owner of a key to another primary; left unfinished, it is undone and the slot is empty."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.cluster = cluster
        self.slot: int = key_slot(key.encode())
        self.source: Node = cluster.owner(key)
        self.target: Node = cluster.bystanders(key)[0]
        self.over = False

    def __enter__(self) -> Self:
        """From here on the source asks its clients to look at the target for what it does not have."""
        self.target.cluster("SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.cluster("SETSLOT", self.slot, "MIGRATING", self.target.id)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.over:
            for node in (self.source, self.target):
                node.redis.flushall()
            self.call_off()

    def call_off(self) -> None:
        """Nothing has moved, and nothing will."""
        for node in (self.source, self.target):
            node.cluster("SETSLOT", self.slot, "STABLE")
        self.over = True

    def left(self) -> list[bytes]:
        """The keys that the source still has, in an order that does not depend on chance."""
        return sorted(self.source.cluster("GETKEYSINSLOT", self.slot, 1000))

    def move(self, key: bytes) -> None:
        """One key goes; one that has expired meanwhile is no longer there to go."""
        address = (self.cluster.host, self.target.port, "", 0, 5000)
        assert self.source.redis.execute_command("MIGRATE", *address, "KEYS", key) in (True, b"OK", b"NOKEY")

    def move_all(self) -> None:
        while keys := self.left():
            for key in keys:
                self.move(key)

    def finish(self) -> None:
        """Everything is there: the slot is the target's, and everybody knows."""
        self.move_all()
        self.target.cluster("SETSLOT", self.slot, "NODE", self.target.id)
        for node in self.cluster.primaries:
            if node is not self.target:
                node.cluster("SETSLOT", self.slot, "NODE", self.target.id)
        self._wait_for_the_news()

    def _wait_for_the_news(self) -> None:
        self.over = True
        wait_until(
            lambda: all(node.owner(self.slot) == self.target.port for node in self.cluster.nodes),
            "every node knows the slot's new owner",
        )
        self.cluster.settle()


class MigrationAtOnce(Migration):
    """The server copies the slot in the background, as to a replica, and hands it over when the copy is complete."""

    def __enter__(self) -> Self:
        return self

    def left(self) -> list[bytes]:
        return []

    def finish(self) -> None:
        self.source.cluster("MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", self.target.id)
        self._wait_for_the_news()
