"""Old and new releases work on one queue at the same time, as the page about upgrades says.

The old one is an earlier state of this repository, in processes of its own. It needs the history: `make full` runs it.
"""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from redis_message_queue import RedisMessageQueue
from tests.docs.pages import ROOT

pytestmark = [pytest.mark.in_full, pytest.mark.timeout(600)]

# The last commit before partitions, schedules, cancelled messages and paused tenants.
OLD = "b2adff3"
OPEN = """
import os, sys
from redis import Redis
from redis_message_queue import RedisMessageQueue
assert os.environ["OLD"] in sys.modules["redis_message_queue"].__file__
client = Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
queue = RedisMessageQueue("orders", client=client, message_wait_interval_seconds=0.2, visibility_timeout_seconds=2)
"""
PUBLISH = (
    OPEN
    + """
for number in range(200):
    assert queue.publish(f"old {number}", tenant="acme" if number % 2 else None)
"""
)
CONSUME = (
    OPEN
    + """
summary = queue.run(lambda message: print(message.payload, flush=True), concurrency=2, prefetch=5, until_empty=True)
"""
)
TAKE = (
    OPEN
    + """
taken = None
while taken is None:
    with queue.process_message() as taken:
        if taken is not None:
            print(taken, queue.current_message().attempt)
"""
)
DIE = OPEN + "with queue.process_message(): os.kill(os.getpid(), 9)"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = subprocess.run(["git", "archive", OLD, "src"], cwd=ROOT, capture_output=True)
    assert archive.returncode == 0, f"this test needs the history of the repository: {archive.stderr.decode()}"
    directory = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory / "src"


def start(old: Path, code: str, url: str) -> "subprocess.Popen[str]":
    variables = os.environ | {"REDIS_URL": url, "PYTHONPATH": str(old), "OLD": str(old)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: "subprocess.Popen[str]", status: int = 0) -> list[str]:
    said, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    return said.splitlines()


def test_old_and_new_producers_and_consumers_share_a_queue(old, clean_server, text_client):
    """Each message is handled once, whoever published it and whoever handles it."""
    queue = RedisMessageQueue[str]("orders", client=text_client, message_wait_interval_seconds=0.2)
    producer = start(old, PUBLISH, clean_server.url)
    queue.publish_many([f"new {number}" for number in range(200)])
    ended(producer)
    consumers = [start(old, CONSUME, clean_server.url) for _ in range(2)]
    handled: list[str] = []
    queue.run(lambda message: handled.append(message.payload), concurrency=2, prefetch=5, until_empty=True)
    for consumer in consumers:
        handled += ended(consumer)
    assert sorted(handled) == sorted(f"{who} {number}" for who in ("old", "new") for number in range(200))
    assert queue.stats().processing == 0


def test_a_message_of_a_killed_old_process_is_taken_over_by_a_new_one(old, clean_server, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    queue.publish("one")
    ended(start(old, DIE, clean_server.url), status=-9)
    with queue.process_message() as message:  # which waits for the end of the lease
        assert message == "one"
        assert queue.current_message().attempt == 2


def test_a_message_of_a_killed_new_process_is_taken_over_by_an_old_one(old, clean_server, text_client):
    queue = RedisMessageQueue("orders", client=text_client, visibility_timeout_seconds=2)
    queue.publish("one")

    class Crash(BaseException):
        pass

    with pytest.raises(Crash), queue.process_message():
        raise Crash
    assert ended(start(old, TAKE, clean_server.url)) == ["one 2"]
    assert queue.stats().processing == 0
