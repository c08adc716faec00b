"""A real Sentinel that monitors a real primary and its replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from redis_message_queue.embedded import EmbeddedRedis, find_server
from tests.concurrency import until
from tests.topologies.replication import await_copy, await_replication

SERVICE = "orders"
# Long enough that a busy machine is not declared dead, short enough for a test to wait.
DOWN_AFTER_MS = 1_500
FAILOVER_TIMEOUT_MS = 6_000
_NEVER_DOWN_MS = 3_600_000


class PrimaryClient(redis.Redis):
    """The client of `master_for`. Closing it also closes the connections of its manager, which redis-py leaves open."""

    manager: Any

    def close(self) -> None:
        super().close()
        for sentinel in self.manager.sentinels:
            sentinel.close()


class AsyncPrimaryClient(redis.asyncio.Redis):
    """The same for asyncio."""

    manager: Any

    async def aclose(self, *arguments: Any) -> None:
        await super().aclose(*arguments)
        for sentinel in self.manager.sentinels:
            await sentinel.aclose()


class Watched:
    """One of the two servers, and a plain client of it."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.server = server
        self.redis = server.client()

    @property
    def port(self) -> int:
        return self.server.port

    def is_primary(self) -> bool:
        return bool(self.redis.info("replication")["role"] == "master")

    def follow(self, primary: Watched) -> None:
        """Make the server a replica, and wait for the copy."""
        self.redis.execute_command("REPLICAOF", primary.server.host, primary.port)
        await_copy(self.redis)


class SentinelSet:
    """Offers clients as `EmbeddedRedis` does, so that the shells can use it instead."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self.primary = self._start()
            self.replica = self._start()
            self.replica.follow(self.primary)
            # Sentinel asks the primary for its replicas at once, and then every ten seconds.
            self.sentinel = Watched(self._open.enter_context(EmbeddedRedis(**self._as_sentinel())))
            self._open.callback(self.sentinel.redis.close)
            until(self._knows_a_good_replica, "Sentinel knows a replica that it would promote")
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # For tests

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(EmbeddedRedis.host, self.sentinel.port)]

    def client(self, **options: Any) -> redis.Redis:
        return self._client(redis.sentinel.Sentinel, PrimaryClient, options)

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        return self._client(redis.asyncio.sentinel.Sentinel, AsyncPrimaryClient, options)

    def _client(self, manager_class: Any, client_class: Any, options: dict[str, Any]) -> Any:
        manager = manager_class(self.addresses)
        client = manager.master_for(SERVICE, redis_class=client_class, **options)
        client.manager = manager
        return client

    @cached_property
    def onlooker(self) -> redis.Redis:
        """A client of the current primary."""
        return self._open.enter_context(self.client())

    def replicate(self) -> None:
        """Return when the replica has everything written so far."""
        await_replication(self.primary.redis, "a free key")

    def lose_the_primary(self) -> None:
        """SIGKILL."""
        self.primary.server.kill()

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Let Sentinel replace no lost primary within the block."""
        self._set_down_after(_NEVER_DOWN_MS)
        try:
            yield
        finally:
            self._set_down_after(DOWN_AFTER_MS)

    def await_promotion(self) -> None:
        """Wait until Sentinel names the other server and it accepts writes; then swap the roles."""
        until(self._names_the_replica, "Sentinel has promoted the replica")
        until(self.replica.is_primary, "the replica takes writes")
        self.primary, self.replica = self.replica, self.primary

    def switch_over(self) -> None:
        """Promote the replica while its primary is alive, and demote that one; its connections stay open."""
        self.sentinel.redis.execute_command("SENTINEL", "FAILOVER", SERVICE)
        self.await_promotion()
        self.replica.follow(self.primary)

    def bring_back_the_lost_one(self) -> None:
        """Restart it as a replica at once: Sentinel itself would take up to 20 seconds."""
        self.replica.server.restart()
        self.replica.follow(self.primary)

    # Setup

    def _start(self) -> Watched:
        config = {"repl-diskless-sync-delay": 0}
        watched = Watched(self._open.enter_context(EmbeddedRedis(binary=self._binary, config=config, password=False)))
        self._open.callback(watched.redis.close)
        return watched

    def _as_sentinel(self) -> dict[str, Any]:
        """The server binary is a Sentinel when it is started under this name."""
        program = self._directory / "redis-sentinel"
        program.symlink_to(find_server(self._binary).path)
        watching = {
            "sentinel monitor": f"{SERVICE} {EmbeddedRedis.host} {self.primary.port} 1",
            "sentinel down-after-milliseconds": f"{SERVICE} {DOWN_AFTER_MS}",
            "sentinel failover-timeout": f"{SERVICE} {FAILOVER_TIMEOUT_MS}",
        }
        return {"binary": program, "config": watching, "password": False}

    def _knows_a_good_replica(self) -> bool:
        """Whether Sentinel is connected to the replica, and the replica reports that it is in sync."""
        replicas = self.sentinel.redis.sentinel_slaves(SERVICE)
        return any(one["flags"] == "slave" and one["master-link-status"] == "ok" for one in replicas)

    def _set_down_after(self, milliseconds: int) -> None:
        self.sentinel.redis.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", milliseconds)

    def _names_the_replica(self) -> bool:
        address = self.sentinel.redis.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return address is not None and int(address[1]) == self.replica.port
