"""Forks children, makes clients for them to inherit, and gives direct access to Redis."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored.keys import QueueKeys
from tests.contract.conftest import onlooker, pytest_generate_tests, pytest_pyfunc_call, shell, wiring
from tests.faults.conftest import Truth
from tests.faults.proxy import FaultyProxy
from tests.forks.children import Child, Family
from tests.forks.unhooked import unhooked_fork

__all__ = ["onlooker", "pytest_generate_tests", "pytest_pyfunc_call", "shell", "wiring"]  # found by name

Fork = Callable[..., Child]


class SubclassedRedis(redis.Redis):
    """A subclass, so that commands are sent by redis-py itself."""


def plain(port: int) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=port)


def subclassed(port: int) -> redis.Redis:
    return SubclassedRedis(host="127.0.0.1", port=port)


def with_a_waiting_pool(port: int) -> redis.Redis:
    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=3, timeout=10)
    return redis.Redis.from_pool(pool)


@pytest.fixture
def fork() -> Iterator[Fork]:
    """Runs a function in a forked child; no child outlives its test."""
    family = Family()
    yield family.fork
    family.end()


# In a pool with other tests, threads that they left may hold a lock of the interpreter during a fork without hooks, and
# the child hangs. `make full` runs few other tests beside these; test_prefork_server.py forks without hooks in both.
@pytest.fixture(
    params=[
        pytest.param(os.fork, id="hooked"),
        pytest.param(unhooked_fork, id="unhooked", marks=pytest.mark.in_full),
    ]
)
def any_fork(request: pytest.FixtureRequest) -> Iterator[Fork]:
    """The same, and also with a fork in C that runs none of Python's fork hooks."""
    family = Family(request.param)
    yield family.fork
    family.end()


@pytest.fixture
def restored_copy() -> Iterator[Fork]:
    """Runs a function in a copy of this process, as from a snapshot, with the same memory and the same process id."""
    family, pid = Family(unhooked_fork), os.getpid()

    def copy(work: Callable[..., Any], *arguments: Any) -> Child:
        def go_on() -> Any:
            os.getpid = lambda: pid
            return work(*arguments)

        return family.fork(go_on)

    yield copy
    family.end()


@pytest.fixture
def truth(client: redis.Redis) -> Truth:
    """The queue "forks" as it is in Redis."""
    return Truth(client, QueueKeys.of("forks"))


@pytest.fixture(params=[plain, subclassed, with_a_waiting_pool], ids=lambda make: make.__name__)
def inherited(request: pytest.FixtureRequest, server: EmbeddedRedis, truth: Truth) -> Iterator[redis.Redis]:
    """A client that was made before the fork, of each kind that redis-py resets by itself."""
    with request.param(server.port) as opened:
        yield opened


@pytest.fixture
def plain_client(server: EmbeddedRedis, truth: Truth) -> Iterator[redis.Redis]:
    """A client that was made before the fork, where its kind makes no difference."""
    with plain(server.port) as opened:
        yield opened


@pytest.fixture
def connect(proxy: FaultyProxy) -> Iterator[Callable[..., redis.Redis]]:
    """Makes clients that connect through the proxy."""
    with contextlib.ExitStack() as clients:
        yield lambda **options: clients.enter_context(redis.Redis(host="127.0.0.1", port=proxy.port, **options))


@pytest.fixture
def proxy(server: EmbeddedRedis, truth: Truth) -> Iterator[FaultyProxy]:
    """The faulty proxy between the queue and the shared server."""
    with FaultyProxy(server.port) as opened:
        yield opened
