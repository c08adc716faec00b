"""The pytest plugin as users see it: pytest finds it without configuration, and unused it costs nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pytest_redis_message_queue
from tests import fork_server

pytestmark = pytest.mark.topic("Testing")


pytest_plugins = "pytester"

# Plugins of our own environment, which take seconds to load and are no part of a user's run.
OURS = ("cacheprovider", "hypothesispytest", "timeout", "valkey", "anyio", "platformdirs")
WITHOUT = [word for name in OURS for word in ("-p", f"no:{name}")]
WITHOUT_XDIST = [*WITHOUT, "-p", "no:xdist"]


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pytester's colours, which libraries read when they are imported, would make each run start an interpreter."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")
        monkeypatch.delenv("PY_COLORS")
        monkeypatch.setenv("PYTHONWARNINGS", "error")


def command(*options: str, without: Sequence[str] = WITHOUT_XDIST) -> list[str]:
    """A run with warnings as errors. It rewrites no assertions: a forked process has imported too much for that."""
    return [sys.executable, "-W", "error", "-m", "pytest", *without, "-W", "error", "--assert=plain", *options]


def run(pytester: pytest.Pytester, *options: str, without: Sequence[str] = WITHOUT_XDIST) -> pytest.RunResult:
    """A run in a process of its own."""
    ended = fork_server.run(command(*options, without=without), cwd=pytester.path)
    return pytest.RunResult(ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines(), 0)


@pytest.mark.promise("pytest finds the fixtures, sync and async, without an asyncio plugin.")
def test_the_fixtures_are_there_and_work(pytester: pytest.Pytester) -> None:
    """All of them, sync and async, without a conftest and without a plugin for asyncio."""
    pytester.makepyfile(
        """
        import asyncio
        import redis, redis.asyncio
        import redis_message_queue, redis_message_queue.asyncio

        def test_blocking(rmq_server, rmq_client, rmq_queue, make_rmq_queue, fast_forward, lose_reply, lose_request):
            assert type(rmq_queue) is redis_message_queue.RedisMessageQueue
            assert rmq_queue.key.pending == "test_blocking::pending"
            assert rmq_client.get("a") is None and rmq_server.running
            lose_reply(rmq_queue, of="publish")
            lose_request(rmq_queue, of="publish", nth=2)
            assert rmq_queue.publish("hello", delay_seconds=60)
            fast_forward(61)
            consumer = make_rmq_queue(max_delivery_count=3)
            with consumer.process_message() as message:
                assert message == "hello"
            assert make_rmq_queue("other", deduplication=True).publish("a")

        def test_awaited(async_rmq_client, async_rmq_queue, make_async_rmq_queue, fast_forward, lose_reply):
            assert type(async_rmq_queue) is redis_message_queue.asyncio.RedisMessageQueue
            async def main():
                lose_reply(async_rmq_queue, of="publish")
                assert await async_rmq_queue.publish("hello", delay_seconds=60)
                fast_forward(61)
                async with make_async_rmq_queue().process_message() as message:
                    assert message == "hello"
                assert await async_rmq_client.get("a") is None
            asyncio.run(main())
            asyncio.run(async_rmq_queue.publish("in another loop"))
        """
    )
    run(pytester).assert_outcomes(passed=2)


@pytest.mark.promise(
    "Each test starts with an empty server, each pytest-xdist worker has its own server, and it stops with the run."
)
def test_each_test_begins_with_an_empty_server(pytester: pytest.Pytester) -> None:
    """Even if the test before killed or paused it."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("treatment", ["kill", "pause", "nothing"])
        def test_one(treatment, rmq_client, rmq_queue, rmq_server):
            assert rmq_client.keys("*") == []
            rmq_queue.publish("a")
            if treatment != "nothing":
                getattr(rmq_server, treatment)()

        def test_two(rmq_client):
            assert rmq_client.keys("*") == []
        """
    )
    run(pytester).assert_outcomes(passed=4)


@pytest.mark.promise(
    "A test run without the fixtures does not import the library, and `-p no:redis_message_queue` disables them."
)
def test_a_run_that_does_not_use_it_does_not_load_the_package(pytester: pytest.Pytester) -> None:
    """Neither the package nor redis-py is imported, and no server is started."""
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "pytest_redis_message_queue" in sys.modules
            assert "redis_message_queue" not in sys.modules and "redis" not in sys.modules
        """
    )
    pytester.runpytest_subprocess(*WITHOUT_XDIST, "-W", "error").assert_outcomes(passed=1)


@pytest.mark.promise(
    "A test run without the fixtures does not import the library, and `-p no:redis_message_queue` disables them."
)
def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    """By its name, like every plugin; then its fixtures are unknown."""
    pytester.makepyfile("def test_one(rmq_queue): pass")
    result = run(pytester, "-p", "no:redis_message_queue")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'rmq_queue' not found*"])


@pytest.mark.promise("pytest finds the fixtures, sync and async, without an asyncio plugin.")
def test_the_fixtures_describe_themselves(pytester: pytest.Pytester) -> None:
    """In `pytest --fixtures`."""
    result = run(pytester, "--fixtures")
    names = ("server [[]session scope]", "client", "queue")
    result.stdout.fnmatch_lines_random([*(f"rmq_{name} -- *" for name in names), "fast_forward -- *"])
    assert "_rmq_clean_server" not in result.stdout.str()


@pytest.mark.promise("pytest finds the fixtures, sync and async, without an asyncio plugin.")
def test_the_page_names_every_fixture() -> None:
    """And no fixture that does not exist."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "test-your-handlers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)[^|]*\|", page.split("## The fixtures")[1].split("\n## ")[0], re.MULTILINE)
    paired = {name for row in rows for name in (row, *re.findall(rf"`{row}[^|]*`, `(\w+)", page))}
    source = Path(pytest_redis_message_queue.__file__).read_text(encoding="utf-8")
    fixtures = re.findall(r"@pytest\.fixture.*\ndef ([a-z]\w*)\(", source)
    assert paired == set(fixtures)


@pytest.mark.promise(
    "Each test starts with an empty server, each pytest-xdist worker has its own server, and it stops with the run."
)
def test_workers_of_xdist_have_a_server_each(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """So they do not empty each other's, and all servers end with the run."""
    pytester.makepyfile(
        f"""
        import json, os, pathlib, time
        import pytest

        HERE = pathlib.Path({str(tmp_path)!r})

        @pytest.mark.parametrize("number", range(2))
        def test_one(number, rmq_server, rmq_queue):
            (HERE / f"{{number}}.json").write_text(json.dumps([os.getpid(), rmq_server.pid, rmq_server.port]))
            rmq_queue.publish("mine")
            while not all((HERE / f"{{other}}.json").exists() for other in range(2)):
                time.sleep(0.01)
            assert rmq_queue.stats().pending == 1
        """
    )
    run(pytester, "-n", "2", "--dist", "load", without=WITHOUT).assert_outcomes(passed=2)
    told = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2)]
    assert all(len({values[place] for values in told}) == 2 for place in range(3))
    for _, server, _ in told:
        assert not is_alive(server)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.promise(
    "Each test starts with an empty server, each pytest-xdist worker has its own server, and it stops with the run."
)
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_the_server_ends_with_the_run_however_that_ends(how: str, pytester: pytest.Pytester, tmp_path: Path) -> None:
    """By Ctrl-C, by SIGTERM or by SIGKILL."""
    note = tmp_path / "pid"
    pytester.makepyfile(
        f"""
        import os, pathlib, time

        def test_endless(rmq_server, rmq_queue):
            part = pathlib.Path({str(note)!r} + ".part")
            part.write_text(str(rmq_server.pid))
            part.rename({str(note)!r})
            time.sleep(600)
        """
    )
    nowhere = subprocess.DEVNULL
    with fork_server.Program(command(), cwd=pytester.path, stdout=nowhere, stderr=nowhere) as running:
        try:
            while not note.exists():
                assert running.poll() is None
                time.sleep(0.01)
            running.send_signal(getattr(signal, how))
            running.wait(60)
        finally:
            running.kill()
    server = int(note.read_text())
    deadline = time.monotonic() + 120
    while is_alive(server) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(server)


@pytest.mark.promise("A loss that never happened fails its test, and afterwards the client works as before.")
def test_a_loss_that_never_happened_fails_the_test(pytester: pytest.Pytester) -> None:
    """It would prove nothing. The next test has a working connection again."""
    pytester.makepyfile(
        """
        def test_one(rmq_queue, lose_reply):
            rmq_queue.publish("a")
            lose_reply(rmq_queue, of="publish", times=None)

        def test_two(rmq_queue):
            assert rmq_queue.publish("a")
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*FaultInjectionError: lose_reply lost nothing: there was no 'publish' call*"])


@pytest.mark.promise("A server of your own must be an embedded one; if none is found, the error says what to do.")
def test_you_can_replace_the_server_with_your_own(pytester: pytest.Pytester) -> None:
    """Override the fixture to change its settings. It must be an embedded server, because tests delete its data."""
    conftest = """
        import pytest
        from redis_message_queue.embedded import EmbeddedRedis

        @pytest.fixture(scope="session")
        def rmq_server():
            {body}
        """
    pytester.makepyfile(
        "def test_one(rmq_client): assert rmq_client.config_get('maxmemory') == {'maxmemory': '1048576000'}"
    )
    pytester.makeconftest(conftest.format(body='with EmbeddedRedis(config={"maxmemory": "1000mb"}) as own: yield own'))
    run(pytester).assert_outcomes(passed=1)
    pytester.makeconftest(conftest.format(body='return "redis://example.org"'))
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ConfigurationTypeError: rmq_server must be an EmbeddedRedis, not str*"])


@pytest.mark.promise("A server of your own must be an embedded one; if none is found, the error says what to do.")
def test_without_a_server_the_error_says_what_to_do(pytester: pytest.Pytester, monkeypatch: Any) -> None:
    """Only the tests that need one fail."""
    monkeypatch.setenv("REDIS_MESSAGE_QUEUE_SERVER", "/no/such/server")
    pytester.makepyfile("def test_one(rmq_queue): pass\ndef test_two(): pass")
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*EmbeddedServerError: */no/such/server*"])
