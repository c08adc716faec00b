"""Real web servers that import the application, including its queue, before they fork their workers."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.concurrency import until
from tests.forks.sides import make_queue, take

pytestmark = pytest.mark.topic("Forks")


HERE = Path(__file__).parent
# uWSGI forks in C and by default runs none of Python's fork hooks.
SERVERS = {
    "uwsgi": ("uwsgi", "--http-socket", "{address}", "--module", "wsgi_app", "--master", "--processes", "2"),
    "uwsgi with threads": (
        *("uwsgi", "--http-socket", "{address}", "--module", "wsgi_app"),
        *("--master", "--processes", "2", "--threads", "2"),
    ),
    "gunicorn": ("gunicorn", "--bind", "unix:{address}", "--preload", "--workers", "2", "wsgi_app:application"),
}
MESSAGES = 40


class Connection(http.client.HTTPConnection):
    """HTTP over a socket in the test's directory, so that no port can be taken."""

    def __init__(self, address):
        super().__init__("localhost", timeout=30)
        self._address = str(address)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._address)


class WebServer:
    """A running server with two workers."""

    def __init__(self, address):
        self._address = address

    def request(self, method, path="/"):
        with contextlib.closing(Connection(self._address)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        assert response.status == 200, body
        return json.loads(body)

    def answers(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET")["answer"] is None
        return False


@pytest.fixture(
    params=[
        pytest.param("uwsgi", marks=pytest.mark.in_full),
        "uwsgi with threads",
        "gunicorn",
    ]
)
def web_server(request, server, truth, tmp_path):
    address = tmp_path / "s"  # the path of a socket must be short
    name, *arguments = SERVERS[request.param]
    program = Path(sys.executable).with_name(name)
    assert program.exists(), f"{program} is missing; install the dependency group `test`"
    command = [str(program), *(argument.format(address=address) for argument in arguments)]
    environment = os.environ | {
        "RMQ_TEST_PORT": str(server.port),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
    }
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        running = WebServer(address)
        until(running.answers)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        print(log.read_text(errors="replace"))  # pytest shows it if the test fails


@pytest.mark.promise(
    "Workers of a server that forks without Python's fork hooks, such as uWSGI, lose and duplicate nothing."
)
def test_workers_forked_after_loading_the_queue_lose_and_duplicate_nothing(web_server, truth, plain_client):
    """Each publish that returned True is stored, and each message is handled by one worker."""
    messages = [f"message-{number}" for number in range(MESSAGES)]
    with ThreadPoolExecutor(4) as pool:
        published = list(pool.map(lambda message: web_server.request("POST", f"/{message}"), messages))
    assert [answer["answer"] for answer in published] == [True] * MESSAGES
    assert len({answer["worker"] for answer in published}) == 2
    assert truth.pending == MESSAGES
    with ThreadPoolExecutor(4) as pool:
        handled = list(pool.map(lambda _: web_server.request("GET"), messages))
    assert len({answer["worker"] for answer in handled}) == 2
    assert sorted(answer["answer"] for answer in handled) == sorted(messages)
    completed = [message.decode() for message in truth.completed]
    assert sorted(completed) == sorted([*messages, *(f"of the master {number}" for number in range(3))])
    assert take(make_queue(plain_client)) is None
    assert truth.is_empty
