"""Callers of one queue, each with its own slot of the reply cache."""

from collections.abc import Iterator

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from tests.lua.scripts_runner import Caller


@pytest.fixture(scope="session")
def connected(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """One connection for a thousand small tests: to open one costs as much as a test."""
    with server.client() as opened:
        yield opened


@pytest.fixture
def client(connected: redis.Redis) -> redis.Redis:
    """A client that reads bytes, of an empty server."""
    connected.flushall()
    return connected


@pytest.fixture
def caller(client: redis.Redis) -> Caller:
    """A caller of a queue with leases."""
    return Caller(client)


@pytest.fixture
def other(client: redis.Redis) -> Caller:
    """A second caller of the same queue."""
    return Caller(client, "b")
