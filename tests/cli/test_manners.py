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
from typing import Any

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.embedded import EmbeddedRedis
from tests import fork_server
from tests.cli.terminal import Terminal
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")

RMQ = [sys.executable, "-W", "error", "-m", "redis_message_queue"]


def shell(line: str, server: EmbeddedRedis) -> "subprocess.CompletedProcess[str]":
    """Run a line as in a shell; `rmq` is this one, in an interpreter, which the shell can start without a stdout."""
    line = line.replace("rmq ", f"{' '.join(RMQ)} ")
    command = ["bash", "-c", f"set -o pipefail; {line}"]
    return fork_server.run(command, env=os.environ | {"REDIS_URL": server.url})


def rmq_at(url: str, words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the program alone. An option in capitals is a variable of its environment."""
    variables = {name: options.pop(name) for name in list(options) if name.isupper()}
    return fork_server.run([*RMQ, *words.split()], env=os.environ | {"REDIS_URL": url} | variables, **options)


# Pipes


@pytest.mark.promise("`-` is stdin for `rmq publish`.")
@pytest.mark.parametrize("how", ["publish orders -", "publish orders", "publish orders --file -"])
def test_a_dash_is_stdin(clean_server, queue, how, tmp_path):
    (tmp_path / "lines").write_text("a\nb\n")
    with (tmp_path / "lines").open() as lines:
        ended = rmq_at(clean_server.url, f"{how} --json", stdin=lines)
    assert ended.returncode == ExitStatus.OK, ended.stderr
    assert [one.payload for one in queue.peek(5)] == ["a", "b"]


@pytest.mark.promise("`rmq consume` into a pipe acknowledges a message when the other program has read it.")
@pytest.mark.parametrize("options", ["", "--json"])
def test_head_takes_one_message(clean_server, queue, options):
    """And the next one is still there, delivered to nobody."""
    queue.publish_many(map(str, range(20)))
    for taken in range(1, 3):
        with subprocess.Popen(["head", "-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
            ended = rmq_at(clean_server.url, f"consume orders {options}", stdout=head.stdin)
            out, _ = head.communicate()
        assert (ended.returncode, ended.stderr, out.count("\n")) == (ExitStatus.BROKEN_PIPE, "", 1)
        assert str(taken - 1) in out
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
def test_a_stdout_that_is_full(clean_server, queue, arguments):
    """Nothing is taken out of the queue for it."""
    queue.publish("a")
    with open("/dev/full", "w") as full:
        ended = rmq_at(clean_server.url, arguments, stdout=full)
    assert (ended.returncode, ended.stderr.count("\n")) == (ExitStatus.OUTPUT, 1), ended.stderr
    assert "stdout" in ended.stderr
    assert queue.stats().pending - arguments.startswith("publish") == 1


@pytest.mark.promise("A stdout that is closed or full is one line on stderr, and exit status 74.")
@pytest.mark.parametrize(
    "arguments",
    [
        "consume orders",
        *(
            pytest.param(one, marks=pytest.mark.in_full)
            for one in ("publish orders x", "stats orders", "stats orders --json", "queues")
        ),
    ],
)
def test_a_stdout_that_is_closed(clean_server, queue, arguments):
    """The queue stays as it is. All commands check this in one place, before they begin."""
    queue.publish("a")
    ended = shell(f"rmq {arguments} >&-", clean_server)
    assert (ended.returncode, ended.stderr.count("\n")) == (ExitStatus.OUTPUT, 1), ended.stderr
    assert "stdout" in ended.stderr
    assert queue.stats().pending == 1


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
    ended = rmq_at(clean_server.url, "publish orders a --at 2099-01-01T08:00:00", TZ="Asia/Tokyo")
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
        ended = rmq_at(url.format(port=server.port, password=password), "stats orders")
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
            ended = rmq_at(f"redis://127.0.0.1:{port}/0", "stats orders")
        finally:
            over.set()
            thread.join()
    assert (ended.returncode, ended.stderr.count("\n")) == (ExitStatus.SERVER, 1)
    assert "speaks TLS at this port; use rediss://" in ended.stderr


def test_the_reference_has_no_markup_of_the_terminal():
    """`[bold]` is for rich alone."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
    assert "[/" not in page.read_text(encoding="utf-8")
