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
