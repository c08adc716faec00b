"""Ctrl-C between the claim and the handler strands no message: the next call recovers it before its lease ends."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.concurrency import until
from tests.faults.shells import BlockingShell
from tests.faults.stepping import LIBRARY, LIBRARY_AND_REDIS_PY, CtrlC
from tests.fork_server import Program

# Python warns about a coroutine that was interrupted before it was awaited; nothing is lost then.
pytestmark = [
    pytest.mark.topic("Killed and interrupted consumers"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.fixture
def shell(server, truth):
    opened = BlockingShell(server.port, redis.Redis)
    yield opened
    opened.close()


def interrupted_claim(queue, moment, packages):
    """Whether Ctrl-C arrived before the handler, and the message that the handler received."""
    delivered = []
    with CtrlC(moment, packages) as interruption, queue.process_message() as message:
        interruption.stop()
        delivered.append(message)
    return interruption.came, delivered


def check_every_moment(shell, truth, packages, before=lambda queue, client: None):
    """Interrupt a claim at each of its moments in turn: the next claim always gets the message."""
    client = shell.client()
    moment, came, stranded = 0, True, []
    while came and not stranded:
        moment += 1
        queue = shell.queue(client)
        queue.publish(f"message {moment}")
        before(queue, client)
        came, delivered = interrupted_claim(queue, moment, packages)
        if came and shell.process(queue) != b"message %d" % moment:
            stranded.append(moment)
    assert stranded == []
    assert delivered == [b"message %d" % moment]
    assert moment > 50
    assert truth.is_empty


@pytest.mark.promise("Cancelling or interrupting a consumer during a claim loses no message.")
def test_ctrl_c_at_every_moment_of_a_claim_leaves_it_recoverable(shell, truth):
    check_every_moment(shell, truth, LIBRARY_AND_REDIS_PY)


def test_ctrl_c_at_every_moment_of_a_recovery_leaves_the_claim_recoverable(shell, truth):
    """The second Ctrl-C arrives while the queue recovers the claim that the first one interrupted."""

    def interrupt_a_claim(queue, client):
        break_off_a_claim(queue, client)
        assert truth.processing == 1
        client.ping()  # connects: a Ctrl-C while it connects has a test of its own

    check_every_moment(shell, truth, LIBRARY, interrupt_a_claim)


def break_off_a_claim(queue, client):
    """Ctrl-C after the server has replied and before the reply is read."""
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


@pytest.mark.promise("Cancelling or interrupting a consumer during a claim loses no message.")
@pytest.mark.parametrize(
    ("waiting", "way"),
    [
        pytest.param(False, "packed", id="busy-packed"),
        pytest.param(True, "ordinary", id="often waiting-ordinary"),
        pytest.param(False, "ordinary", id="busy-ordinary", marks=pytest.mark.in_full),
        pytest.param(True, "packed", id="often waiting-packed", marks=pytest.mark.in_full),
    ],
)
def test_ctrl_c_at_random_moments_loses_and_duplicates_nothing(server, truth, way, waiting):
    """A consumer that is interrupted again and again and continues handles everything once."""
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
                # A few messages at a time, so that there are enough interruptions before the end.
                for _ in range(min(len(unsent), chance.randrange(4))):
                    queue.publish(unsent.pop(0))
                time.sleep(chance.random() * 0.003)
                if interrupted < 200:
                    consumer.send_signal(signal.SIGINT)
                    # One at a time: the next one interrupts what the consumer does after this one.
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
    process = Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    with process:
        try:
            yield process
        finally:
            process.kill()
