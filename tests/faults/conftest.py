"""The faulty proxy, the four kinds of queue that use it, and direct access to Redis."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored import scripts
from redis_message_queue.stored.envelope import TOKEN_BYTES
from redis_message_queue.stored.keys import QueueKeys
from tests import depth
from tests.faults.proxy import FaultyProxy
from tests.faults.shells import WAYS, BlockingShell
from tests.faults.turns import is_out_of_turn, number_of, ways_of

HERE = Path(__file__).parent
PAIRS = (("sync-packed", "asyncio-ordinary"), ("sync-ordinary", "asyncio-packed"))
# The fixtures whose values take turns in the cases of a test.
TURNING = ("shell", "async_shell", "way", "straight", "packed", "tasks")


@dataclass
class Truth:
    """The queue "faults" as it is in Redis, seen without the proxy."""

    client: redis.Redis
    key: QueueKeys

    @property
    def pending(self) -> int:
        return self.client.llen(self.key.pending)

    @property
    def processing(self) -> int:
        return self.client.hlen(self.key.processing)

    @property
    def completed(self) -> list[Any]:
        """Payloads, oldest first."""
        return self.client.lrange(self.key.completed, 0, -1)[::-1]

    @property
    def completions(self) -> int:
        """How many were completed, for a test that waits for the last one."""
        return self.client.llen(self.key.completed)

    @property
    def failed(self) -> list[Any]:
        return self.client.lrange(self.key.failed, 0, -1)[::-1]

    @property
    def dead(self) -> list[Any]:
        return self.client.lrange(self.key.dead_letter, 0, -1)[::-1]

    @property
    def deadlines(self) -> list[float]:
        leases: Any = self.client.zrange(self.key.leases, 0, -1, withscores=True)
        return [deadline for _, deadline in leases]

    def end_leases(self) -> None:
        """Let every lease run out now."""
        leases: Any = self.client.zrange(self.key.leases, 0, -1)
        held = [one for one in leases if len(one) == TOKEN_BYTES]
        if held:
            self.client.zadd(self.key.leases, dict.fromkeys(held, 1), xx=True)

    def clear(self) -> None:
        """Delete everything but the version of the queues, so that the next call is not a first contact again."""
        keys: list[Any] = self.client.keys("*")
        if left := [key for key in keys if not key.endswith(b"::meta")]:
            self.client.delete(*left)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, nothing is in flight, and nothing was left behind."""
        leftovers = (self.key.pending, self.key.processing, self.key.leases, self.key.deliveries)
        return not self.client.exists(*leftovers)


def load_scripts(client: redis.Redis) -> None:
    """Let each call be one request; what the test before has left there is not sent again, which takes longest."""
    every = [scripts.script(name) for name in scripts.all_names()]
    for one, is_there in zip(every, client.script_exists(*(one.sha for one in every)), strict=True):
        if not is_there:
            client.script_load(one.source)


@pytest.fixture(scope="session")
def onlooker(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """One client for all tests to look into Redis with: opening one takes as long as many of the tests."""
    with server.client() as opened:
        yield opened


@pytest.fixture
def client(onlooker: redis.Redis) -> redis.Redis:
    """The client that all tests share, on an empty server."""
    onlooker.flushall()
    return onlooker


@pytest.fixture
def truth(client: redis.Redis) -> Truth:
    load_scripts(client)
    # Mark the queues as used before; the first contact has its own tests.
    for name in ("faults", "results"):
        client.hset(QueueKeys.of(name).meta, "version", 1)
    return Truth(client, QueueKeys.of("faults"))


@pytest.fixture
def proxy(server: EmbeddedRedis, truth: Truth) -> Iterator[FaultyProxy]:
    """The proxy between the queue under test and the shared server."""
    with FaultyProxy(server.port) as opened:
        yield opened


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose a sync and an async way by the test's name, or one of them for each of its cases in turn.

    `make full` tries all four with each case.
    """
    left_out = [item for item in items if is_left_out(item)] if not depth.FULL else []
    if left_out:
        items[:] = [item for item in items if not is_left_out(item)]
        config.hook.pytest_deselected(items=left_out)


def is_left_out(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or HERE not in item.path.parents or not hasattr(item, "callspec"):
        return False
    for name in TURNING:
        ways = ways_of(item, name) if name in item.callspec.params else []
        # Of the other shells, each has code of its own.
        if ways and (name != "shell" or {*ways} <= {*WAYS}):
            pair = PAIRS[number_of(item.originalname) % len(PAIRS)] if {*ways} == {*WAYS} else ways
            return item.callspec.params[name] not in pair or is_out_of_turn(item, name, pair)
    return False


@pytest.fixture(params=WAYS)
def shell(request: pytest.FixtureRequest, proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """Sync and async, each with both ways of sending commands, all through the proxy."""
    opened = WAYS[request.param](proxy.port)
    yield opened
    opened.close()


@pytest.fixture(params=["asyncio-packed", "asyncio-ordinary"])
def async_shell(request: pytest.FixtureRequest, proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """Only async, with both ways of sending commands, through the proxy."""
    opened = WAYS[request.param](proxy.port)
    yield opened
    opened.close()
