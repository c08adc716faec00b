"""A pre-fork server: a master that has used its queue, and its workers, one of which is killed and replaced."""

import json
import os
import signal

import pytest

from tests.concurrency import until
from tests.forks.prefork_server import WORKERS
from tests.forks.programs import output_of, running
from tests.forks.sides import make_queue

pytestmark = pytest.mark.topic("Forks")


@pytest.mark.promise("Queues that a process creates after a fork work, whatever the start method.")
@pytest.mark.parametrize("kind", ["inherited", "fresh"])
def test_workers_share_the_messages_and_a_killed_one_is_replaced(server, truth, plain_client, kind):
    """Each message is completed once, including that of the killed worker, and all processes succeed on SIGTERM."""
    queue = make_queue(plain_client)
    messages = [f"message {number}" for number in range(60)]
    with running("prefork_server.py", server.port, kind) as master:
        until(lambda: truth.client.scard("ready") == WORKERS)
        queue.publish("wait to be killed")
        for message in messages:
            queue.publish(message)
        until(lambda: truth.client.llen("holding") == 1)
        os.kill(int(truth.client.lindex("holding", 0)), signal.SIGKILL)
        until(lambda: truth.client.scard("ready") == WORKERS + 1)
        until(lambda: len(truth.completed) == len(messages) + 2)
        master.send_signal(signal.SIGTERM)
        assert json.loads(output_of(master)) == [-signal.SIGKILL] + [0] * WORKERS
    everything = ["of the master", "wait to be killed", *messages]
    assert sorted(truth.completed) == sorted(each.encode() for each in everything)
    assert truth.is_empty
