"""rmq worker tells how it is: over HTTP, by a file, and in its log."""

import json
import os
import signal
import socket
import struct
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.page_server import MOST_CONNECTIONS
from redis_message_queue.embedded import EmbeddedRedis
from tests.cli.terminal import Terminal
from tests.cli.workers import HANDLERS, finish, handled, said
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


def page(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health_url(process: "subprocess.Popen[str]") -> str:
    return said(process, "rmq worker").partition("health at ")[2].partition(";")[0]


def stop(process: "subprocess.Popen[str]") -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    return finish(process)


@pytest.mark.promise("`rmq worker --health-port` serves /healthz, /readyz and /metrics, for all of its processes.")
@pytest.mark.parametrize("handler", ["handlers:note", "handlers:note_later"])
def test_health_and_metrics_are_served(worker, queue, tmp_path, handler):
    """Of all processes together."""
    process = worker(handler, "orders", "--processes", "2", "--health-port", "0")
    url = health_url(process)
    queue.publish_many(["a", "b", "c"])
    assert until(lambda: handled(tmp_path) == ["a", "b", "c"])
    for path in ("/healthz", "/readyz"):
        status, text = page(url, path)
        facts = json.loads(text)
        assert (status, facts["status"], len(facts["processes"])) == (200, "ok", 2), text
    assert page(url, "/nothing")[0] == 404

    def samples() -> dict[str, float]:
        families = text_string_to_metric_families(page(url, "/metrics")[1])
        return {f"{one.name} {sorted(one.labels.items())}": one.value for each in families for one in each.samples}

    done = "rmq_worker_messages_total [('outcome', 'handled'), ('queue', 'orders')]"
    assert until(lambda: samples()[done] == 3)
    found = samples()
    assert found["rmq_worker_handler_duration_seconds_count [('queue', 'orders')]"] == 3
    assert (found["rmq_worker_processes []"], found["rmq_worker_ready []"]) == (2, 1)
    stop(process)
    assert process.returncode == ExitStatus.OK


def test_hostile_clients_neither_lock_out_probes_nor_fill_the_log(worker, queue):
    """Slow ones give way to others, and one that goes away is no error."""
    process = worker("handlers:note", "orders", "--health-port", "0")
    url = health_url(process)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    slow = [socket.create_connection(address, timeout=60) for _ in range(MOST_CONNECTIONS + 8)]
    try:
        slow[-1].sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert page(url, "/healthz")[0] == 200
        slow[0].setblocking(False)  # it was closed before the probe was answered, not when its own time was up
        assert slow[0].recv(1) == b""
    finally:
        for one in slow:
            one.close()
    for _ in range(30):
        rude = socket.create_connection(address, timeout=60)
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        rude.close()
    assert page(url, "/readyz")[0] == 200
    _, err = stop(process)
    assert "Exception occurred" not in err
    assert process.returncode == ExitStatus.OK


def test_a_queue_with_partitions_becomes_ready(worker, client, tmp_path):
    """Each of its partitions has keys of its own."""
    spread = RedisMessageQueue("spread", client=client, partitions=3)
    spread.publish_many(map(str, range(9)))
    process = worker("handlers:note", "spread", "--ready-file", "ready", "--health-port", "0")
    url = health_url(process)
    assert until((tmp_path / "ready").exists)
    assert until(lambda: handled(tmp_path) == sorted(map(str, range(9))))
    assert until(lambda: 'outcome="handled"} 9' in page(url, "/metrics")[1])  # a report, after it has asked Redis
    assert (page(url, "/healthz")[0], page(url, "/readyz")[0]) == (200, 200)
    stop(process)
    assert process.returncode == ExitStatus.OK


@pytest.mark.promise("The ready file of `rmq worker` and /readyz say no while Redis cannot be reached.")
def test_nothing_is_ready_while_redis_is_gone(worker, tmp_path):
    """And all of it is ready again when Redis is back; /healthz has more patience."""
    with EmbeddedRedis(directory=str(tmp_path / "data")) as server:
        port = server.port
        arguments = ["handlers:note", "orders", "--url", server.url, "--ready-file", "ready", "--health-port", "0"]
        process = worker(*arguments, "--health-seconds", "1")
        url = health_url(process)
        assert until((tmp_path / "ready").exists)
        assert page(url, "/readyz")[0] == 200
    assert until(lambda: not (tmp_path / "ready").exists())
    assert until(lambda: page(url, "/readyz")[0] == 503)
    assert until(lambda: page(url, "/healthz")[0] == 503)
    assert "has not reached Redis" in page(url, "/healthz")[1]
    with EmbeddedRedis(directory=str(tmp_path / "data"), port=port) as server:
        assert until(lambda: page(url, "/healthz")[0] == page(url, "/readyz")[0] == 200)
        assert until((tmp_path / "ready").exists)
        stop(process)
    assert not (tmp_path / "ready").exists()


@pytest.mark.promise("The ready file of `rmq worker` is gone when its supervisor was killed.")
def test_the_ready_file_goes_with_a_killed_supervisor(worker, run_worker, queue, tmp_path):
    """Its processes remove it when they notice; a file that was left over is no readiness of the next one."""
    process = worker("handlers:note", "orders", "--ready-file", "ready")
    assert until((tmp_path / "ready").exists)
    process.kill()
    process.wait(120)
    assert until(lambda: not (tmp_path / "ready").exists())
    (tmp_path / "ready").write_text("1\n")
    ended = run_worker("nowhere:note", "orders", "--ready-file", "ready")
    assert not (tmp_path / "ready").exists(), ended.err


def test_a_process_that_hangs_is_noticed(worker, queue, tmp_path):
    """One that says nothing any more is not alive, whatever it said before."""
    process = worker("handlers:note", "orders", "--health-port", "0", "--health-seconds", "1")
    url = health_url(process)
    queue.publish("a")
    assert until(lambda: handled(tmp_path) == ["a"])
    child = int((tmp_path / "handled").read_text().split()[1])
    os.kill(child, signal.SIGSTOP)
    try:
        assert until(lambda: page(url, "/healthz")[0] == 503)
    finally:
        os.kill(child, signal.SIGCONT)
    assert until(lambda: page(url, "/healthz")[0] == 200)
    stop(process)


def test_a_port_that_is_taken_is_one_line(worker, run_worker, queue):
    """Before any process starts."""
    first = worker("handlers:note", "orders", "--health-port", "0")
    port = health_url(first).rpartition(":")[2]
    second = run_worker("handlers:note", "orders", "--health-port", port)
    assert second.status == ExitStatus.USAGE
    assert f"cannot listen at 127.0.0.1:{port}" in second.err
    assert second.err.count("\n") == 1
    stop(first)


# Logs


@pytest.mark.promise(
    "`rmq worker --log-format json` logs one JSON object a line, with the queue, the message and the address."
)
def test_json_logs_name_queue_message_and_address(worker, queue, clean_server):
    """A failure is one line, also with its traceback; what the supervisor says is JSON too."""
    queue.publish("a")
    (waiting,) = queue.peek(1)
    process = worker("handlers:fail", "orders", "--log-format", "json", "--max-attempts", "1")
    assert until(lambda: queue.stats().dead_letters == 1)
    _, err = stop(process)
    lines = [json.loads(line) for line in err.splitlines()]
    failures = [line for line in lines if line["message_id"] is not None]
    assert len(failures) == 1
    (failure,) = failures
    address = f"redis://{clean_server.host}:{clean_server.port}/0"
    assert (failure["queue"], failure["message_id"], failure["address"]) == ("orders", waiting.id, address)
    assert (failure["level"], failure["exception_type"]) == ("warning", "ValueError")
    assert "handlers.py" in failure["traceback"]
    assert all(line["address"] == address for line in lines)
    assert [line["text"].split()[0] for line in lines if line["level"] == "info"] == ["rmq", "stopping"]


@pytest.mark.promise("`rmq worker` logs each failed message once, with its traceback unless you ask for none.")
def test_a_terminal_shows_tracebacks(queue, clean_server, tmp_path, monkeypatch):
    """One log line a failure, with the traceback below it."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", clean_server.url)
    queue.publish("a")
    with Terminal("worker", "handlers:fail", "orders", "--until-empty") as terminal:
        assert terminal.end() == ExitStatus.FAILED
    assert terminal.shown.count("failed (ValueError: hunter2)") == 1
    assert terminal.shown.count("Traceback") == 1
    assert "handlers.py" in terminal.shown


# Reloading


@pytest.mark.promise("`rmq worker --reload` restarts its processes when a file of your modules changes.")
def test_changed_code_is_loaded(worker, queue, tmp_path: Path):
    """Also after a mistake in it, which does not end the worker."""
    process = worker("handlers:note", "orders", "--reload")
    said(process, "rmq worker")
    (tmp_path / "handlers.py").write_text(HANDLERS.replace("{message.payload} ", "new{message.payload} "))
    assert said(process, "handlers.py") == "handlers.py has changed; restarting\n"
    queue.publish("a")
    assert until(lambda: handled(tmp_path) == ["newa"])
    (tmp_path / "handlers.py").write_text("def note(:")
    assert "SyntaxError" in said(process, "process 1: ")
    (tmp_path / "handlers.py").write_text(HANDLERS)
    queue.publish("b")
    assert until(lambda: handled(tmp_path) == ["b", "newa"])
    stop(process)
    assert process.returncode == ExitStatus.OK


def test_an_edit_before_a_mistaken_process_has_ended_is_loaded(worker, queue, tmp_path: Path):
    process = worker("handlers:note", "orders", "--reload")
    said(process, "rmq worker")
    slow_end = (
        "import atexit, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\natexit.register(time.sleep, 2)\n"
    )
    (tmp_path / "handlers.py").write_text(slow_end + "note = None\n")
    said(process, "waiting until the file is changed")
    (tmp_path / "handlers.py").write_text(HANDLERS)
    queue.publish("a")
    assert until(lambda: handled(tmp_path) == ["a"])
    stop(process)
    assert process.returncode == ExitStatus.OK


def test_totals_are_kept_when_a_process_crashes(worker, queue, tmp_path):
    """As far as it could report them."""
    queue.publish_many(["a", "b", "c"])
    process = worker("handlers:note", "orders", "--health-port", "0")
    url = health_url(process)
    done = 'rmq_worker_messages_total{queue="orders",outcome="handled"} 3'
    assert until(lambda: done in page(url, "/metrics")[1])
    os.kill(int((tmp_path / "handled").read_text().split()[1]), signal.SIGKILL)
    assert "exited with status -9" in said(process, "process 1")
    assert done in page(url, "/metrics")[1]
    queue.publish("d")
    assert until(lambda: handled(tmp_path) == ["a", "b", "c", "d"])
    out, err = stop(process)
    assert out.split()[:2] == ["handled", "4"], out
    assert "the totals may be too small" in err
