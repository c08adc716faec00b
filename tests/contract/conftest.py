"""Every test that asks for a shell runs once for each: the body is a coroutine, and this runs it."""

import inspect
import socket
import threading
from collections.abc import Iterator

import pytest

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


@pytest.fixture
def wiring() -> Wiring:
    """How the shell's clients speak; a test that should pass for all ways parametrizes it with EVERY_WIRING."""
    return Wiring()


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, clean_server: EmbeddedRedis, wiring: Wiring) -> Iterator[Shell]:
    """The queue for threads and the queue for asyncio, each with a clean server."""
    opened = SHELLS[request.param](clean_server, wiring)
    yield opened
    opened.close()
    beating = [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]
    assert not beating, "a heartbeat outlived its message"


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port where nobody listens, and nobody can while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
