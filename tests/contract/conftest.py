"""Runs every test that uses a shell once with each: the body is a coroutine."""

import inspect
import threading
from collections.abc import Iterator

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --one-shell tests of the queue for asyncio are left out."""
    if not config.getoption("--one-shell"):
        return
    left_out = [item for item in items if _shell_of(item) == "asyncio"]
    items[:] = [item for item in items if _shell_of(item) != "asyncio"]
    config.hook.pytest_deselected(items=left_out)


def _shell_of(item: pytest.Item) -> str | None:
    chosen = getattr(item, "callspec", None)
    return None if chosen is None else chosen.params.get("shell")


@pytest.fixture
def wiring() -> Wiring:
    """How the shell's clients speak; a test that should pass for all ways parametrizes it with EVERY_WIRING."""
    return Wiring()


@pytest.fixture(scope="session")
def onlooker(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """One client for all tests to look into Redis with; a thousand connections saved are ten seconds."""
    with server.client() as client:
        yield client


@pytest.fixture(params=SHELLS)
def shell(
    request: pytest.FixtureRequest, server: EmbeddedRedis, onlooker: redis.Redis, wiring: Wiring
) -> Iterator[Shell]:
    """The queue for threads and the queue for asyncio, each with a clean server."""
    onlooker.flushall()
    opened = SHELLS[request.param](server, onlooker, wiring)
    yield opened
    opened.close()
    beating = [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]
    assert not beating, "a heartbeat outlived its message"


@pytest.fixture
def user_without_ltrim(shell: Shell) -> Iterator[dict[str, str]]:
    """Credentials of a user whose scripts may do everything but trim."""
    shell.redis.execute_command("ACL", "SETUSER", "untidy", "reset", "on", ">pw", "~*", "&*", "+@all", "-ltrim")
    yield {"username": "untidy", "password": "pw"}
    shell.redis.execute_command("ACL", "DELUSER", "untidy")
