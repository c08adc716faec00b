"""Runs the tests that use a shell with one of them or with both: the body is a coroutine."""

import inspect
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from tests import depth
from tests.contract.shells import SHELLS, Shell, Wiring


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    shell = pyfuncitem.funcargs["shell"]
    assert isinstance(shell, Shell)
    names = pyfuncitem._fixtureinfo.argnames
    shell.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In the contract, choose one shell by the test's name where both run the same code; `make full` tries both."""
    if "shell" not in metafunc.fixturenames or is_chosen(metafunc.definition, "shell"):
        return
    shells = sorted(SHELLS)
    in_contract = Path(__file__).parent in metafunc.definition.path.parents
    in_both = depth.FULL or metafunc.config.getoption("--both-shells")
    if in_contract and not in_both and metafunc.definition.get_closest_marker("both_shells") is None:
        shells = [shells[zlib.crc32(metafunc.function.__name__.encode()) % len(shells)]]
    metafunc.parametrize("shell", shells, indirect=True)


def is_chosen(test: pytest.Item, fixture: str) -> bool:
    """Whether the test itself says which values of a fixture it takes."""
    return any(fixture in mark.args[0] for mark in test.iter_markers("parametrize"))


@pytest.fixture
def wiring() -> Wiring:
    """How the shell's clients speak; a test that should pass for all ways parametrizes it with EVERY_WIRING."""
    return Wiring()


@pytest.fixture(scope="session")
def onlooker(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """One client for all tests to look into Redis with; a thousand connections saved are ten seconds."""
    with server.client() as client:
        yield client


@pytest.fixture
def shell(
    request: pytest.FixtureRequest, server: EmbeddedRedis, onlooker: redis.Redis, wiring: Wiring
) -> Iterator[Shell]:
    """The queue for threads and the queue for asyncio, each with a clean server."""
    onlooker.flushall()
    opened = SHELLS[request.param](server, onlooker, wiring)
    yield opened
    opened.close()
    # A heartbeat that was told to end may need a moment for it, as after a fork beside it.
    for thread in threading.enumerate():
        if thread.name == "redis-message-queue-heartbeat":
            thread.join(10)
            assert not thread.is_alive(), "a heartbeat outlived its message"


@pytest.fixture
def user_without_ltrim(shell: Shell) -> Iterator[dict[str, str]]:
    """Credentials of a user whose scripts may do everything but trim."""
    shell.redis.execute_command("ACL", "SETUSER", "untidy", "reset", "on", ">pw", "~*", "&*", "+@all", "-ltrim")
    yield {"username": "untidy", "password": "pw"}
    shell.redis.execute_command("ACL", "DELUSER", "untidy")
