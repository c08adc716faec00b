"""A test with a shell runs sync and async, on a cluster unless its module has another topology."""

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
from redis._parsers.commands import AsyncCommandsParser, CommandsParser

from redis_message_queue.embedded import EmbeddedRedis, find_server
from tests import depth
from tests.contract.conftest import pytest_pyfunc_call, wiring
from tests.contract.shells import SHELLS, Shell, SubclassedAsyncRedis, SubclassedRedis, Wiring
from tests.faults.turns import is_out_of_turn
from tests.topologies.cluster import SETTINGS, Cluster
from tests.topologies.migration import Migration, MigrationAtOnce
from tests.topologies.sentinels import SentinelSet

HERE = Path(__file__).parent
__all__ = ["pytest_pyfunc_call", "wiring"]  # a test body is a coroutine here too


@pytest.fixture(scope="module", autouse=True)
def known_commands(server_setting: str) -> Iterator[None]:
    """Let redis-py's cluster clients ask only once what commands the server has.

    Each client asks when it is made and, for asyncio, whenever a node is away. To read the answer takes a tenth of a
    second, longer than all else in most of these tests. They send a PING instead, which fails as COMMAND would.
    """
    known = _commands.setdefault(server_setting, {})

    def initialize(parser: Any, client: Any) -> None:
        if known:
            client.ping()
            parser.commands = dict(known)
        else:
            ask(parser, client)
            known.update(parser.commands)

    async def initialize_async(parser: Any, node: Any = None) -> None:
        if known and node:
            parser.node = node
            await node.execute_command("PING")
            parser.commands = dict(known)
        else:
            await ask_async(parser, node)
            known.update(parser.commands)

    ask, ask_async = CommandsParser.initialize, AsyncCommandsParser.initialize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandsParser, "initialize", initialize)
        patch.setattr(AsyncCommandsParser, "initialize", initialize_async)
        yield


_commands: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="session")
def running_cluster(server_setting: str) -> Iterator[Cluster]:
    """The cluster that all tests share, because it takes seconds to form. A test that kills nodes starts its own."""
    with Cluster(server_setting) as started:
        yield started


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, emptied before each test and checked after it."""
    running_cluster.flush()
    yield running_cluster
    running_cluster.check()


@pytest.fixture(scope="session")
def cluster_with_a_replica(server_setting: str) -> Iterator[Cluster]:
    """A cluster that tests may break. Its nodes sync to disk before each reply."""
    durable = {"append_only": True, "config": SETTINGS | {"appendfsync": "always"}}
    with Cluster(server_setting, replica=True, **durable) as started:
        yield started


@pytest.fixture
def killable_cluster(cluster_with_a_replica: Cluster) -> Iterator[Cluster]:
    """The cluster with a replica, emptied before each test; nodes that the test killed are restarted."""
    cluster_with_a_replica.flush()
    yield cluster_with_a_replica
    cluster_with_a_replica.revive(*(node for node in cluster_with_a_replica.nodes if not node.server.running))
    cluster_with_a_replica.check()


@pytest.fixture
def sentinels(server_setting: str, tmp_path: Path) -> Iterator[SentinelSet]:
    """A primary, a replica and a Sentinel. A failover changes them, so each test has its own."""
    with SentinelSet(server_setting, tmp_path) as started:
        yield started


@pytest.fixture
def topology(cluster: Cluster) -> Any:
    """The servers that the shell's clients connect to."""
    return cluster


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, topology: Any, wiring: Wiring) -> Iterator[Shell]:
    """The sync and the async queue, with clients of the topology."""
    forgets = request.param == "asyncio" and isinstance(topology, Cluster)
    if forgets:
        # redis-py's asyncio cluster client leaves connections open when it reloads the slots. (pytest restores the
        # filters after the test.)
        warnings.simplefilter("ignore", ResourceWarning)
    before = set(threading.enumerate())
    opened = SHELLS[request.param](topology, topology.onlooker, wiring)
    yield opened
    opened.close()
    left = [one for one in threading.enumerate() if one.name == "redis-message-queue-heartbeat" and one not in before]
    assert not left, "a heartbeat outlived its message"
    if forgets:
        gc.collect()  # here, where the warning is expected, and not in another test


@pytest.fixture
def plain_client(shell: Shell) -> Callable[..., Any]:
    """Creates plain clients of one server, sync or async; they are closed after the test."""
    kinds: dict[str, tuple[type, type]] = {
        "sync": (redis.Redis, SubclassedRedis),
        "asyncio": (redis.asyncio.Redis, SubclassedAsyncRedis),
    }

    def make(port: int, *, subclassed: bool = False) -> Any:
        return shell.closing(kinds[shell.name][subclassed](host=EmbeddedRedis.host, port=port))

    return make


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the cases of a test take turns with the shells; `make full` tries each case with both."""
    left_out = [item for item in items if is_left_out(item)] if not depth.FULL else []
    if left_out:
        items[:] = [item for item in items if not is_left_out(item)]
        config.hook.pytest_deselected(items=left_out)


def is_left_out(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.path.parent != HERE or not hasattr(item, "callspec"):
        return False
    return "shell" in item.callspec.params and is_out_of_turn(item, "shell", tuple(SHELLS))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A slot moves key by key on any server, and at once where the server supports that."""
    if "migrate" in metafunc.fixturenames:
        ways = {"key by key": Migration}
        if can_migrate_at_once(str(metafunc.config.getoption("--server"))):
            ways["at once"] = MigrationAtOnce
        metafunc.parametrize("migrate", ways.values(), ids=ways.keys())


@functools.cache
def can_migrate_at_once(server_setting: str) -> bool:
    server = find_server(server_setting)
    return server.flavour == "valkey" and server.version >= (9, 0, 0)
