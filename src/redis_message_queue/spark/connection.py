"""From the address of a server or a cluster to a client, for drivers, executors and jobs."""

import time

import redis
from redis.exceptions import RedisClusterException, RedisError

from redis_message_queue import wire
from redis_message_queue.errors import ConfigurationError, RetryBudgetExhaustedError
from redis_message_queue.options import GatewayOptions


def connected(url: str, *, cluster: bool = False) -> redis.Redis | redis.RedisCluster:
    """A client of the server or the cluster at this address; one that is no address is told without its secrets."""
    if cluster:
        return _connected_to_cluster(url)
    try:
        return redis.Redis.from_url(url)
    except ValueError:
        scheme = url.partition("://")[0] if "://" in url else ""
        raise ConfigurationError(
            f"url (scheme {scheme!r}) is no address of a Redis server; "
            "write it as redis://host:port/0, rediss://host:port/0 or unix:///path"
        ) from None


def _connected_to_cluster(url: str) -> redis.RedisCluster:
    """A client that asks for the cluster's layout at once: so it has the patience here that other calls have later."""
    give_up_at = time.monotonic() + GatewayOptions().retry_budget_seconds
    while True:
        try:
            return redis.RedisCluster.from_url(url)
        except (RedisClusterException, RedisError) as error:
            if "Cluster mode is not enabled" in str(error):
                raise ConfigurationError(
                    "option cluster is true, and this server is none of a Redis Cluster; leave it out"
                ) from error
            if not wire.is_transient(error):
                raise
            if time.monotonic() >= give_up_at:
                raise RetryBudgetExhaustedError(
                    "the cluster could not be reached within the retry budget; see to its nodes, or to the url"
                ) from error
            time.sleep(0.2)
