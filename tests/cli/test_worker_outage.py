"""rmq worker goes on after an outage of its server, and keeps what it has handled."""

import json
import signal

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from tests.cli.workers import finish, handled
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture
def clean_server(start_server):
    """A server of its own, which loses nothing when it is killed."""
    return start_server(append_only=True, config={"appendfsync": "always"})


def read_until(process, text):
    """Read stderr up to the line that has this text."""
    assert any(text in line for line in process.stderr), f"it never said {text!r}"


@pytest.mark.promise(
    "`rmq worker` outlives an outage, and acknowledges what its handlers have done once Redis answers."
)
@pytest.mark.parametrize("handler", ["handlers:slow", "handlers:slow_later"])
def test_a_worker_acknowledges_its_message_when_its_server_is_back(worker, queue, clean_server, tmp_path, handler):
    """And handles the next ones, with the same process."""
    queue.publish("a")
    process = worker(handler, "orders", "--json")
    assert until((tmp_path / "began").exists)
    clean_server.kill()
    (tmp_path / "go").touch()
    read_until(process, "failed (ConnectionError")
    clean_server.restart()
    queue.publish("b")
    assert until(lambda: handled(tmp_path) == ["a", "b"])
    process.send_signal(signal.SIGTERM)
    out, _ = finish(process)
    assert process.returncode == ExitStatus.OK
    summary = json.loads(out)
    assert (summary["handled"], summary["unsettled"], summary["attempts"]) == (2, 0, 2)
    assert (queue.stats().pending, queue.stats().processing) == (0, 0)


@pytest.mark.promise(
    "`rmq worker` outlives an outage, and acknowledges what its handlers have done once Redis answers."
)
@pytest.mark.parametrize("handler", ["handlers:slow", "handlers:slow_later"])
def test_a_worker_that_is_stopped_waits_for_its_server(worker, queue, clean_server, tmp_path, handler):
    queue.publish("a")
    process = worker(handler, "orders", "--json")
    assert until((tmp_path / "began").exists)
    clean_server.kill()
    process.send_signal(signal.SIGTERM)
    read_until(process, "stopping")
    (tmp_path / "go").touch()
    read_until(process, "failed (ConnectionError")
    clean_server.restart()
    out, _ = finish(process)
    assert process.returncode == ExitStatus.OK
    assert (json.loads(out)["handled"], queue.stats().processing) == (1, 0)


@pytest.mark.parametrize("handler", ["handlers:slow", "handlers:slow_later"])
def test_a_worker_that_has_to_stop_now_leaves_its_message_to_the_lease(worker, queue, clean_server, tmp_path, handler):
    queue.publish("a")
    process = worker(handler, "orders", "--visibility-timeout-seconds", "0.5")
    assert until((tmp_path / "began").exists)
    clean_server.kill()
    (tmp_path / "go").touch()
    read_until(process, "failed (ConnectionError")
    process.send_signal(signal.SIGTERM)
    read_until(process, "stopping")
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.TERMINATED
    clean_server.restart()
    process = worker(handler, "orders")
    assert until(lambda: handled(tmp_path) == ["a", "a"])
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.OK
    assert queue.stats().processing == 0


@pytest.mark.promise("`rmq worker` waits for a server that cannot be reached at its start, with a log line each time.")
@pytest.mark.parametrize("arguments", [["handlers:note", "orders"], ["handlers:note", "--queue", "queues:queue"]])
def test_a_worker_waits_for_its_server_at_its_start(worker, queue, clean_server, tmp_path, arguments):
    """Until it is there; `--no-wait` ends at once."""
    queue.publish("a")
    clean_server.kill()
    ended = worker(*arguments, "--no-wait")
    assert finish(ended)[1].count("\n") == 1
    assert ended.returncode == ExitStatus.SERVER
    process = worker(*arguments)
    read_until(process, "trying again in 1 s" if "orders" in arguments else "restarting it in 0.5 s")
    clean_server.restart()
    assert until(lambda: handled(tmp_path) == ["a"])
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.OK


def test_a_signal_ends_the_wait_for_a_server(worker, clean_server):
    """Nothing was done, and nothing is left to do."""
    clean_server.kill()
    process = worker("handlers:note", "orders")
    read_until(process, "trying again in 1 s")
    process.send_signal(signal.SIGTERM)
    assert finish(process) == ("", "")
    assert process.returncode == ExitStatus.OK


@pytest.mark.promise("`rmq worker` ends at once if the server refuses its password.")
@pytest.mark.parametrize("arguments", [["handlers:note", "orders"], ["handlers:note", "--queue", "queues:queue"]])
def test_a_wrong_password_ends_a_worker_at_its_start(worker, clean_server, arguments):
    """No further attempt can succeed."""
    with clean_server.client() as client:
        client.config_set("requirepass", "swordfish")
    process = worker(*arguments)
    _, err = finish(process)
    assert (process.returncode, err.count("\n")) == (ExitStatus.SERVER, 1), err
    assert "password" in err
