"""rmq among other programs: pipes, full disks, narrow terminals, time zones, and servers that want something else."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.embedded import EmbeddedRedis
from tests.cli.terminal import Terminal
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")

RMQ = f"{sys.executable} -W error -m redis_message_queue"


def shell(line: str, server: EmbeddedRedis, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a line as in a shell; `rmq` is this one."""
    environment = os.environ | {"REDIS_URL": server.url} | more
    line = line.replace("rmq ", f"{RMQ} ")
    command = ["bash", "-c", f"set -o pipefail; {line}"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


# Pipes


@pytest.mark.promise("`-` is stdin for `rmq publish`.")
@pytest.mark.parametrize("how", ["rmq publish orders -", "rmq publish orders", "rmq publish orders --file -"])
def test_a_dash_is_stdin(clean_server, queue, how):
    ended = shell(f"printf 'a\\nb\\n' | {how} --json", clean_server)
    assert ended.returncode == ExitStatus.OK, ended.stderr
    assert [one.payload for one in queue.peek(5)] == ["a", "b"]


@pytest.mark.promise("`rmq consume` into a pipe acknowledges a message when the other program has read it.")
@pytest.mark.parametrize("options", ["", "--json"])
def test_head_takes_one_message(clean_server, queue, options):
    """And the next one is still there, delivered to nobody."""
    queue.publish_many(map(str, range(20)))
    for taken in range(1, 4):
        ended = shell(f"rmq consume orders {options} | head -1", clean_server)
        assert (ended.returncode, ended.stderr, ended.stdout.count("\n")) == (ExitStatus.BROKEN_PIPE, "", 1)
        assert str(taken - 1) in ended.stdout
        stats = queue.stats()
        assert (stats.pending, stats.processing) == (20 - taken, 0)


def test_a_message_that_nobody_reads_goes_back_at_a_signal(start_rmq, queue):
    """It waits for a slow reader, and holds one message only."""
    queue.publish_many(["a", "b", "c"])
    process = start_rmq("consume", "orders")
    assert until(lambda: queue.stats().processing == 1)
    assert queue.stats().pending == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == ExitStatus.TERMINATED
    assert (queue.stats().pending, queue.stats().processing) == (3, 0)


@pytest.mark.promise("A stdout that is closed or full is one line on stderr, and exit status 74.")
@pytest.mark.parametrize(
    "arguments", ["stats orders", "stats orders --json", "consume orders", "publish orders x", "--help"]
)
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_a_stdout_that_cannot_be_written(clean_server, queue, arguments, where):
    """Nothing is taken out of the queue for it."""
    if where == ">&-" and arguments == "--help":
        arguments = "queues"
    queue.publish("a")
    ended = shell(f"rmq {arguments} {where}", clean_server)
    assert (ended.returncode, ended.stderr.count("\n")) == (ExitStatus.OUTPUT, 1), ended.stderr
    assert "stdout" in ended.stderr
    assert queue.stats().pending - (arguments.startswith("publish") and where != ">&-") == 1


def test_a_closed_stderr_does_not_mix_remarks_into_the_data(clean_server, queue):
    """A remark goes nowhere then."""
    ended = shell("rmq peek orders 2>&-", clean_server)
    assert (ended.returncode, ended.stdout) == (ExitStatus.OK, "")


# Terminals and times


@pytest.mark.promise("In a narrow terminal, tables become one line for each field.")
def test_a_narrow_terminal_gets_lines(queue, clean_server, monkeypatch):
    """No word is broken into letters."""
    monkeypatch.setenv("REDIS_URL", clean_server.url)
    queue.publish_many(["a", "b"])
    with Terminal("peek", "orders", columns=40) as narrow:
        assert narrow.end() == ExitStatus.OK
    lines = narrow.shown.splitlines()
    assert ["payload", "a"] in [line.split() for line in lines]
    assert "" in lines
    with Terminal("stats", "orders", columns=40) as narrow:
        assert narrow.end() == ExitStatus.OK
    assert ["pending", "2"] in [line.split() for line in narrow.shown.splitlines()]
    with Terminal("peek", "orders", columns=120) as wide:
        assert wide.end() == ExitStatus.OK
    assert "│" in wide.shown


@pytest.mark.promise("A time without a zone is UTC in every command, wherever the machine is.")
def test_a_time_without_a_zone_is_utc(clean_server, queue):
    ended = shell("rmq publish orders a --at 2099-01-01T08:00:00", clean_server, TZ="Asia/Tokyo")
    assert ended.returncode == ExitStatus.OK, ended.stderr
    (delayed,) = queue.peek(1, source="delayed")
    assert delayed.due_at == datetime(2099, 1, 1, 8, tzinfo=UTC)


# Servers that want something else


@pytest.mark.promise("A missing or wrong password, and TLS on the wrong port, are one line that says what to do.")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:{port}/0", "the server wants a password"),
        ("redis://:hunter2@127.0.0.1:{port}/0", "does not accept this user and password"),
        ("redis://someone:hunter2@127.0.0.1:{port}/0", "does not accept this user and password"),
        ("rediss://:{password}@127.0.0.1:{port}/0", "does not speak TLS at this port; use redis://"),
    ],
)
def test_a_server_that_wants_something_else(url, said):
    with EmbeddedRedis() as server:
        password = server.url.partition("://:")[2].partition("@")[0]
        ended = shell("rmq stats orders", server, REDIS_URL=url.format(port=server.port, password=password))
    assert (ended.returncode, ended.stderr.count("\n")) == (ExitStatus.SERVER, 1)
    assert said in ended.stderr
    assert "hunter2" not in ended.stderr


def test_a_port_with_tls_is_recognised(clean_server, tmp_path: Path):
    """By a handshake, which sends nothing of ours."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def answer() -> None:
            listening.settimeout(0.1)
            while not over.is_set():
                try:
                    raw, _ = listening.accept()
                except TimeoutError:
                    continue
                with raw:
                    raw.settimeout(60)
                    try:
                        context.wrap_socket(raw, server_side=True).close()
                    except OSError:  # what a client without TLS says
                        continue

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            port = listening.getsockname()[1]
            ended = shell("rmq stats orders", clean_server, REDIS_URL=f"redis://127.0.0.1:{port}/0")
        finally:
            over.set()
            thread.join()
    assert (ended.returncode, ended.stderr.count("\n")) == (ExitStatus.SERVER, 1)
    assert "speaks TLS at this port; use rediss://" in ended.stderr


def test_the_reference_has_no_markup_of_the_terminal():
    """`[bold]` is for rich alone."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
    assert "[/" not in page.read_text(encoding="utf-8")
