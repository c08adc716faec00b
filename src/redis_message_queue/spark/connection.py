"""Connects drivers, executors and jobs to a Redis server, and reads from it with retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    InvalidResponse,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.operate.growth import check_partition_count, stored_partitions
from redis_message_queue.protocol.port import Argument, Port, finish
from redis_message_queue.redis_py import wire
from redis_message_queue.stored.keys import QueueKeys, partition_keys, refuse_one_slot
from redis_message_queue.sync.redis_port import BlockingPort
from redis_message_queue.values.errors import ConfigurationError, PartitionCountError, RetryBudgetExhaustedError
from redis_message_queue.values.plain_values import described

if TYPE_CHECKING:
    from redis_message_queue.spark.options import QueueAddress

_PAUSE_SECONDS = 0.2  # between two attempts to reach a cluster
_FIRST_CONTACT_SECONDS = 5.0  # how long a cluster that was never reached is waited for, as with a single server


def connect(url: str, *, cluster: bool = False) -> redis.Redis | redis.RedisCluster:
    """Return a client of the server or the cluster at this URL.

    A cluster client asks for the layout of the cluster at once, so it is retried here as other calls are later.

    Raises:
        ConfigurationError: The server is not part of a cluster, or does not let this user in.
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
            if isinstance(error.__cause__, AuthenticationError):  # which the cluster client wraps
                refuse_unusable(redis.Redis.from_url(url), error.__cause__)
            if not wire.is_transient(error):
                raise
            if time.monotonic() >= give_up_at:
                where = wire.address(redis.Redis.from_url(url))
                raise RetryBudgetExhaustedError(
                    f"the Redis Cluster at {where} could not be reached in {_FIRST_CONTACT_SECONDS:g} s "
                    f"({described(error)}); nothing was sent. Check the address, and that it is running."
                ) from error
            time.sleep(_PAUSE_SECONDS)


def not_a_single_server(queue: str) -> ConfigurationError:
    """Return the error for a cluster node that was addressed as a server of its own."""
    return ConfigurationError("this server is a node of a Redis Cluster. Set the option cluster to true.", queue=queue)


def refuse_unusable(client: Any, error: Exception) -> None:
    """Raise if an error of redis-py says that the URL cannot be right, and say what is wrong with it.

    Raises:
        ConfigurationError: The server does not let this user in, or has no such database, or is none of Redis.
    """
    if isinstance(error, AuthenticationError):
        if wire.connection_settings(client).get("password") is None:
            said = "wants a password. Write it into the url: redis://user:password@host:6379/0."
        else:
            said = "does not accept this user and password. Check them in the url."
    elif isinstance(error, InvalidResponse):
        said = "is not a Redis server, or speaks another protocol. Check host and port in the url."
    elif isinstance(error, ResponseError) and "DB index" in str(error):
        database = wire.connection_settings(client).get("db")
        said = f"does not have the database {database}. Check the number at the end of the url."
    else:
        return
    # What a server of another kind says may repeat what was sent to it: the password.
    cause = None if isinstance(error, InvalidResponse) else error
    raise ConfigurationError(f"the server at {wire.address(client)} {said}") from cause


@dataclass(frozen=True)
class Partition:
    """One partition of a queue: its number, and how many the queue has."""

    number: int = 0
    count: int = 1


WHOLE = Partition()  # a queue without partitions


class RedisReader:
    """Reads one partition of a queue with the retries of the library. Replies are bytes, numbers and lists."""

    def __init__(
        self, client: Any, keys: QueueKeys, partition: Partition = WHOLE, port: BlockingPort | None = None
    ) -> None:
        """Take the keys of the whole queue: those of its partition are ``self.keys``."""
        self._client = client
        self.port = port or BlockingPort(client)
        self.partition = partition
        self.calls = _calls(self.port, keys, partition)
        self.keys = self.calls.keys
        self._is_checked = False  # whether the queue is known to have as many partitions

    def read(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Return the replies to commands that are sent together, and may be sent more than once."""
        with self._clear_errors():
            if not self._is_checked:
                self._check_count()
            return finish(self.calls.pipeline(self.keys.pending, commands, "read")) if commands else []

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Raise an error that says what to change, if the server can never be used with these options."""
        try:
            yield
        except (AskError, ClusterCrossSlotError) as error:  # a MovedError is an AskError
            raise not_a_single_server(self.keys.prefix) from error
        except RedisError as error:
            refuse_unusable(self._client, error)
            raise

    def _check_count(self) -> None:
        """Raise if the queue has another number of partitions: who reads with an old number would miss some."""
        try:
            finish(check_partition_count(self.calls, self.partition.count))
        except PartitionCountError as error:
            raise PartitionCountError(str(error), queue=self.keys.prefix) from None
        self._is_checked = True

    def stored_count(self) -> int | None:
        """Return how many partitions the queue has in Redis; None if there is no such queue."""
        with self._clear_errors():
            found = finish(stored_partitions(self.calls))
        self._is_checked = found == self.partition.count
        return found

    def refuse_cluster_node(self) -> None:
        """Raise if a node of a cluster is read as a server of its own. Call it if nothing was found: on a cluster the
        keys have other names.

        Raises:
            ConfigurationError: It is a node of a cluster.
        """
        if wire.is_cluster(self._client):
            return
        (reply,) = finish(self.calls.pipeline(self.keys.pending, (("HELLO",),), "read"))  # every user may send it
        told = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        if told.get(b"mode") == b"cluster":
            raise not_a_single_server(self.keys.prefix)

    def read_atomically(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Return the replies to commands that run in one transaction."""
        replies: list[Any] = self.read(("MULTI",), *commands, ("EXEC",))[-1]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


def _calls(port: Port, keys: QueueKeys, partition: Partition) -> Calls:
    options, number, count = GatewayOptions(), partition.number, partition.count
    if count == 1:
        return Calls(port, keys, options)
    first = Calls(port, partition_keys(keys, 0, count), options, count)
    return Calls(port, partition_keys(keys, number, count), options, count, first) if number else first


def open_partitions(client: Any, address: QueueAddress, usual: int = 1) -> list[RedisReader]:
    """Return a reader of each partition of a queue.

    Redis knows how many there are. A queue that does not exist yet has as many as the options say, or else the
    ``usual`` number.

    Raises:
        PartitionCountError: The queue has another number of partitions than the options say.
        ConfigurationError: The queue has partitions, and the options have a dead-letter list of its own; or it is on
            a cluster, and the options do not say so; or the server cannot be used with the user, the password or the
            database of the URL.
    """
    whole = RedisReader(client, address.keys)
    found, given = whole.stored_count(), address.partitions
    if found is None:
        whole.refuse_cluster_node()
    elif given is not None and given != found:
        raise PartitionCountError(
            f"the queue {address.queue!r} has partitions={found} in Redis, and the options say partitions={given}; "
            "nothing was read or changed. Leave the option out.",
            queue=address.queue,
        )
    count = found or given or usual
    if count == 1:
        return [whole]
    refuse_with_partitions(address)
    return [RedisReader(client, address.keys, Partition(number, count), whole.port) for number in range(count)]


def refuse_with_partitions(address: QueueAddress) -> None:
    """Raise for options that a queue with partitions cannot have."""
    if address.dead_letter_queue is not None:
        raise ConfigurationError(
            f"the queue {address.queue!r} has partitions, and each has its own dead letters. Leave the option "
            "deadLetterQueue out.",
            queue=address.queue,
        )
    if address.cluster:
        refuse_one_slot(address.keys.prefix)
