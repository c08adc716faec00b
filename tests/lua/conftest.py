"""Callers of one queue, each with its own slot of the reply cache."""

import pytest
import redis

from tests.lua.scripts_runner import Caller


@pytest.fixture
def caller(client: redis.Redis) -> Caller:
    """A caller of a queue with leases."""
    return Caller(client)


@pytest.fixture
def other(client: redis.Redis) -> Caller:
    """A second caller of the same queue."""
    return Caller(client, "b")
