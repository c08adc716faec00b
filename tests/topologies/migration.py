"""Moves a slot to another node while it is in use, key by key, as a resharding does."""

from __future__ import annotations

from typing import Self

from redis.crc import key_slot

from tests.concurrency import until
from tests.topologies.cluster import Cluster, Node


class Migration:
    """From the owner of a key to another primary. If left unfinished, it is undone and the slot is emptied."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.cluster = cluster
        self.slot: int = key_slot(key.encode())
        self.source: Node = cluster.owner(key)
        self.target: Node = cluster.bystanders(key)[0]
        self.over = False

    def __enter__(self) -> Self:
        """From here on the source redirects its clients to the target for keys that it does not have."""
        self.over = False
        self.target.cluster("SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.cluster("SETSLOT", self.slot, "MIGRATING", self.target.id)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.over:
            for node in (self.source, self.target):
                node.redis.flushall()
            self.call_off()

    def call_off(self) -> None:
        """Cancel: nothing has moved."""
        for node in (self.source, self.target):
            node.cluster("SETSLOT", self.slot, "STABLE")
        self.over = True

    def left(self) -> list[bytes]:
        """The keys that the source still has, sorted."""
        return sorted(self.source.cluster("GETKEYSINSLOT", self.slot, 1000))

    def move(self, key: bytes) -> None:
        """Move one key; one that has expired in the meantime is skipped."""
        address = (self.cluster.host, self.target.port, "", 0, 5000)
        assert self.source.redis.execute_command("MIGRATE", *address, "KEYS", key) in (True, b"OK", b"NOKEY")

    def move_all(self) -> None:
        while keys := self.left():
            for key in keys:
                self.move(key)

    def finish(self) -> None:
        """Finish: the slot belongs to the target, and all nodes know."""
        self.move_all()
        self.target.cluster("SETSLOT", self.slot, "NODE", self.target.id)
        for node in self.cluster.primaries:
            if node is not self.target:
                node.cluster("SETSLOT", self.slot, "NODE", self.target.id)
        self._wait_for_the_news()

    def _wait_for_the_news(self) -> None:
        self.over = True
        until(
            lambda: all(node.owner(self.slot) == self.target.port for node in self.cluster.nodes),
            "every node knows the slot's new owner",
        )
        self.cluster.settle()


class MigrationAtOnce(Migration):
    """The server copies the slot in the background and hands it over when the copy is complete."""

    def __enter__(self) -> Self:
        return self

    def left(self) -> list[bytes]:
        return []

    def finish(self) -> None:
        self.source.cluster("MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", self.target.id)
        self._wait_for_the_news()
