"""A test that asks for a shell runs once for each colour, on a cluster unless its module brings another topology."""

import functools
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_message_queue.embedded import EmbeddedRedis, find_server
from tests.contract.conftest import pytest_pyfunc_call, wiring
from tests.contract.shells import SHELLS, Shell, SubclassedAsyncRedis, SubclassedRedis, Wiring
from tests.topologies.cluster import Cluster
from tests.topologies.migration import Migration, MigrationAtOnce
from tests.topologies.sentinels import SentinelSet

__all__ = ["pytest_pyfunc_call", "wiring"]  # a body is a coroutine here too


@pytest.fixture(scope="session")
def running_cluster(server_setting: str) -> Iterator[Cluster]:
    """The cluster that all tests share, because it takes seconds to form; what kills nodes takes its own."""
    with Cluster(server_setting) as started:
        yield started


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, emptied before each test and whole after it."""
    running_cluster.flush()
    yield running_cluster
    running_cluster.check()


@pytest.fixture
def sentinels(server_setting: str, tmp_path: Path) -> Iterator[SentinelSet]:
    """A primary, a replica and a Sentinel; a failover changes them, so each test has its own."""
    with SentinelSet(server_setting, tmp_path) as started:
        yield started


@pytest.fixture
def topology(cluster: Cluster) -> Any:
    """Where the shell's clients lead."""
    return cluster


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, topology: Any, wiring: Wiring) -> Iterator[Shell]:
    """The queue for threads and the queue for asyncio, with clients of the topology."""
    forgets = request.param == "asyncio" and isinstance(topology, Cluster)
    if forgets:
        # redis-py's asyncio cluster client leaves connections open when it finds out anew who owns what. (pytest puts
        # the filters back when the test is over.)
        warnings.simplefilter("ignore", ResourceWarning)
    opened = SHELLS[request.param](topology, topology.onlooker, wiring)
    yield opened
    opened.close()
    beating = [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]
    assert not beating, "a heartbeat outlived its message"
    if forgets:
        gc.collect()  # now, where it is expected, and not in somebody else's test


@pytest.fixture
def plain_client(shell: Shell) -> Callable[..., Any]:
    """Makes plain clients of one server, in the shell's colour; they are closed after the test."""
    kinds: dict[str, tuple[type, type]] = {
        "sync": (redis.Redis, SubclassedRedis),
        "asyncio": (redis.asyncio.Redis, SubclassedAsyncRedis),
    }

    def make(port: int, *, subclassed: bool = False) -> Any:
        return shell.closing(kinds[shell.name][subclassed](host=EmbeddedRedis.host, port=port))

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A slot moves key by key on any server, and at once where the server can do that."""
    if "migrate" in metafunc.fixturenames:
        ways = {"key by key": Migration}
        if can_migrate_at_once(str(metafunc.config.getoption("--server"))):
            ways["at once"] = MigrationAtOnce
        metafunc.parametrize("migrate", ways.values(), ids=ways.keys())


@functools.cache
def can_migrate_at_once(server_setting: str) -> bool:
    server = find_server(server_setting)
    return server.flavour == "valkey" and server.version >= (9, 0, 0)
