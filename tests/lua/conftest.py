"""Callers of one queue, each with its own slot of the reply cache."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from tests import depth
from tests.conftest import every_server
from tests.lua.scripts_runner import Caller
from tests.lua.stage import Stage

HERE = Path(__file__).parent
# What the server decides: how it encodes values, how it refuses to write, and what its commands say of wrong types. All
# servers run these. The other cases are decided by the library's own Lua, and each server runs its share of them.
ON_EVERY_SERVER = (
    "test_footprint",
    "test_full_memory",
    "test_foreign_values",
    "test_wakeups",
    "test_publish",
    "test_group_commit",
)


@pytest.fixture(scope="session")
def connected(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """One connection for a thousand small tests: to open one costs as much as a test.

    Without a pool, which would look at the connection before and after each of their hundred thousand commands.
    """
    with server.client(single_connection_client=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def stage(connected: redis.Redis) -> Stage:
    """The server, for tables of situations."""
    return Stage(connected)


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Share out the cases among the servers, unless everything is to be tried."""
    left_out = [] if depth.FULL else [item for item in items if _is_for_another_server(item, every_server(config))]
    if left_out:
        unwanted = set(left_out)
        items[:] = [item for item in items if item not in unwanted]
        config.hook.pytest_deselected(items=left_out)


def _is_for_another_server(item: pytest.Item, settings: list[str]) -> bool:
    if item.path.parent != HERE or item.path.stem in ON_EVERY_SERVER:
        return False
    setting = item.callspec.params.get("server_setting") if hasattr(item, "callspec") else None
    if setting is None:
        return False
    case = item.nodeid.replace(setting, "", 1).partition("/lua/")[2]
    return bool(settings[zlib.crc32(case.encode()) % len(settings)] != setting)
