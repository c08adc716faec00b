"""Ctrl-C between the claim and the handler strands no message: the next call finds it, and not the 300 s lease."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.faults.meanwhile import until
from tests.faults.shells import BlockingShell
from tests.faults.stepping import LIBRARY, LIBRARY_AND_REDIS_PY, CtrlC

# A coroutine that was made and interrupted before it was awaited: Python says so, and nothing was lost.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.fixture
def shell(server, truth):
    opened = BlockingShell(server.port, redis.Redis)
    yield opened
    opened.close()


def interrupted_claim(queue, moment, packages):
    """Whether Ctrl-C came at that moment on the way to the handler, and what the handler was given."""
    delivered = []
    with CtrlC(moment, packages) as interruption, queue.process_message() as message:
        interruption.stop()
        delivered.append(message)
    return interruption.came, delivered


def test_ctrl_c_at_every_moment_of_a_claim_leaves_it_to_be_found(shell, truth):
    client = shell.client()
    moment, came, stranded = 0, True, []
    while came:
        moment += 1
        queue = shell.queue(client)
        queue.publish("message")
        came, delivered = interrupted_claim(queue, moment, LIBRARY_AND_REDIS_PY)
        if came and shell.process(queue) != b"message":
            stranded.append(moment)
        truth.client.flushdb()
    assert delivered == [b"message"]
    assert moment > 50
    assert stranded == []


def test_ctrl_c_at_every_moment_of_finding_a_claim_leaves_it_to_be_found(shell, truth):
    """The second Ctrl-C comes while the claim that the first one broke off is being asked for."""
    client = shell.client()
    moment, came, stranded = 0, True, []
    while came:
        moment += 1
        queue = shell.queue(client)
        queue.publish("message")
        break_off_a_claim(queue, client)
        assert truth.processing == 1
        came, delivered = interrupted_claim(queue, moment, LIBRARY)
        if came and shell.process(queue) != b"message":
            stranded.append(moment)
        truth.client.flushdb()
    assert delivered == [b"message"]
    assert moment > 50
    assert stranded == []


def break_off_a_claim(queue, client):
    """Ctrl-C when the server has answered and nobody has heard it."""
    pool = client.connection_pool
    connection = pool.get_connection()

    def interrupted(*arguments, **options):
        del connection.read_response
        connection.read_response(*arguments, **options)
        raise KeyboardInterrupt

    connection.read_response = interrupted
    pool.release(connection)
    with pytest.raises(KeyboardInterrupt), queue.process_message():
        pytest.fail("was not interrupted")


@pytest.mark.parametrize("way", ["packed", "ordinary"])
@pytest.mark.parametrize("waiting", [False, True], ids=["busy", "often waiting"])
def test_ctrl_c_at_random_moments_strands_nothing_and_doubles_nothing(server, truth, way, waiting):
    """A consumer that is interrupted again and again, catches it and goes on, handles everything once."""
    messages = [b"message %d" % number for number in range(250)]
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("interrupted_consumer.py"))]
    with running([*command, str(server.port), way, str(len(messages))]) as consumer:
        assert consumer.stdout.readline() == b"ready\n"
        publisher = BlockingShell(server.port, redis.Redis)
        with contextlib.closing(publisher):
            queue = publisher.queue()
            chance = random.Random(7)
            unsent = [message.decode() for message in messages]
            interrupted = 0
            until_done = time.monotonic() + 120
            if not waiting:
                for _ in range(50):
                    queue.publish(unsent.pop(0))
            while consumer.poll() is None and time.monotonic() < until_done:
                # A few at a time, so that there is no end before there were interruptions enough.
                for _ in range(min(len(unsent), chance.randrange(4))):
                    queue.publish(unsent.pop(0))
                time.sleep(chance.random() * 0.003)
                if interrupted < 200:
                    consumer.send_signal(signal.SIGINT)
                    # One at a time: the next one is for what the consumer does after this one.
                    assert consumer.stdout.readline() in (b"interrupted\n", b"busy\n", b"")
                    interrupted += 1
        until(lambda: consumer.poll() is not None)
        complaints = consumer.stderr.read()
    handled = truth.client.lrange("handled", 0, -1)
    assert consumer.returncode == 0, complaints.decode()
    assert sorted(handled) == sorted(messages)
    assert truth.is_empty
    assert int(truth.client.get("interrupted")) > 20


@contextlib.contextmanager
def running(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    with process:
        try:
            yield process
        finally:
            process.kill()
