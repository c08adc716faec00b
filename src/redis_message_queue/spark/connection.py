"""Connects drivers, executors and jobs to a Redis server, and reads from it with retries."""

from __future__ import annotations

import time
from typing import Any

import redis
from redis.exceptions import AskError, ClusterCrossSlotError, RedisClusterException, RedisError

from redis_message_queue import wire
from redis_message_queue.errors import ConfigurationError, PartitionCountError, RetryBudgetExhaustedError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.growth import stored_partitions
from redis_message_queue.protocol.port import Argument, finish
from redis_message_queue.sync.port import BlockingPort

_PAUSE_SECONDS = 0.2  # between two attempts to reach a cluster
_FIRST_CONTACT_SECONDS = 5.0  # how long a cluster that was never reached is waited for, as with a single server


def connect(url: str, *, cluster: bool = False) -> redis.Redis | redis.RedisCluster:
    """Return a client of the server or the cluster at this URL.

    A cluster client asks for the layout of the cluster at once, so it is retried here as other calls are later.

    Raises:
        ConfigurationError: The server is not part of a cluster.
        RetryBudgetExhaustedError: No node of the cluster could be reached.
    """
    if not cluster:
        return redis.Redis.from_url(url)
    give_up_at = time.monotonic() + _FIRST_CONTACT_SECONDS
    while True:
        try:
            return redis.RedisCluster.from_url(url)
        except (RedisClusterException, RedisError) as error:
            if "Cluster mode is not enabled" in str(error):
                raise ConfigurationError(
                    "option cluster is true, but this server is not part of a Redis Cluster. Leave the option out."
                ) from error
            if not wire.is_transient(error):
                raise
            if time.monotonic() >= give_up_at:
                where = wire.address(redis.Redis.from_url(url))
                raise RetryBudgetExhaustedError(
                    f"the Redis Cluster at {where} could not be reached in {_FIRST_CONTACT_SECONDS:g} s "
                    f"({type(error).__name__}: {error}); nothing was sent. Check the address, and that it is running."
                ) from error
            time.sleep(_PAUSE_SECONDS)


def not_a_single_server(queue: str) -> ConfigurationError:
    """Return the error for a cluster node that was addressed as a server of its own."""
    return ConfigurationError("this server is a node of a Redis Cluster. Set the option cluster to true.", queue=queue)


class RedisReader:
    """Reads with the retries of the library. Replies are bytes, numbers and lists."""

    def __init__(self, client: Any, keys: QueueKeys) -> None:
        self._client = client
        self.port = BlockingPort(client)
        self.calls = Calls(self.port, keys, GatewayOptions())
        self._keys = keys
        self._is_whole = False  # whether the queue is known to have no partitions

    def read(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Return the replies to commands that are sent together, and may be sent more than once."""
        try:
            if not self._is_whole:
                self._refuse_partitions()
            return finish(self.calls.pipeline(self._keys.pending, commands, "read")) if commands else []
        except (AskError, ClusterCrossSlotError) as error:  # a MovedError is an AskError
            raise not_a_single_server(self._keys.prefix) from error

    def _refuse_partitions(self) -> None:
        """Raise for a queue with partitions: these keys are those of the first one, which is a part of it."""
        found = finish(stored_partitions(self.calls))
        if found is not None and found > 1:
            raise PartitionCountError(
                f"this queue has {found} partitions, and Spark reads and writes queues without partitions only; use "
                "queues without partitions for it",
                queue=self._keys.prefix,
            )
        self._is_whole = True

    def refuse_cluster_node(self) -> None:
        """Raise if a node of a cluster is read as a server of its own. Call it if nothing was found: on a cluster the
        keys have other names.

        Raises:
            ConfigurationError: It is a node of a cluster.
        """
        if wire.is_cluster(self._client):
            return
        (reply,) = self.read(("HELLO",))  # every user may send it
        told = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        if told.get(b"mode") == b"cluster":
            raise not_a_single_server(self._keys.prefix)

    def read_atomically(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Return the replies to commands that run in one transaction."""
        replies: list[Any] = self.read(("MULTI",), *commands, ("EXEC",))[-1]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies
