"""Loops in processes that are stopped for a while, or crashed by one of their messages."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from redis_message_queue import RedisMessageQueue
from tests.concurrency import LIMIT_SECONDS, until
from tests.fork_server import Program

pytestmark = pytest.mark.topic("The consumer loop")


sync_and_async = pytest.mark.parametrize("shell_name", ["sync", "asyncio"])


@contextlib.contextmanager
def consumer(server, shell_name, queue_options, loop_options):
    """A process that runs the loop."""
    program = str(Path(__file__).with_name("looping_consumer.py"))
    settings = [str(server.port), shell_name, json.dumps(queue_options), json.dumps(loop_options)]
    with Program([sys.executable, "-W", "error", program, *settings], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(truth):
    return truth.client.lrange("begun", 0, -1)


@pytest.mark.promise("`run()` starts no message whose lease is lost or about to end.")
@sync_and_async
@pytest.mark.parametrize("heartbeat", [None, 0.3], ids=["without heartbeats", "with heartbeats"])
def test_a_loop_stopped_for_longer_than_a_lease_starts_no_lost_message(server, truth, shell_name, heartbeat):
    """SIGSTOP, and another consumer completes everything: the loop checks its clock before it continues."""
    queue = RedisMessageQueue("faults", client=truth.client)
    queue.publish_many(["hold", *map(str, range(20))])
    options = {"visibility_timeout_seconds": 1.5, "heartbeat_interval_seconds": heartbeat}
    with consumer(server, shell_name, options, {"prefetch": 40, "until_empty": True}) as process:
        until(lambda: begun(truth) == [b"hold"])
        os.kill(process.pid, signal.SIGSTOP)
        taken = 0
        while taken < 20 or truth.deadlines:  # the messages of the loop come when their leases have ended
            with queue.process_messages(40, wait_seconds=0.1) as batch:
                taken += len(batch)
        truth.client.set("go", "1")
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGCONT)
        _, complaints = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, complaints
    assert begun(truth) == [b"hold"]
    assert truth.is_empty
    if heartbeat is not None:
        assert complaints.count("was not started: its lease had ended") == 20


@pytest.mark.promise("`run()` holds a redelivered message alone, so that a crash cannot take other messages with it.")
@pytest.mark.parametrize(
    ("shell_name", "concurrency"),
    [
        ("sync", 4),
        ("asyncio", 1),
        pytest.param("sync", 1, marks=pytest.mark.in_full),
        pytest.param("asyncio", 4, marks=pytest.mark.in_full),
    ],
)
def test_only_the_message_that_crashes_its_process_becomes_a_dead_letter(server, truth, shell_name, concurrency):
    """The messages claimed with it are handled, though the process dies until the poison message is dead-lettered."""
    limit, others = 3, [b"%d" % number for number in range(30)]
    queue = RedisMessageQueue("faults", client=truth.client)
    queue.publish_many([word.decode() for word in (*others[:7], b"poison", *others[7:])])
    options = {"max_delivery_count": limit, "enable_completed_queue": True}
    loop = {"prefetch": 100, "concurrency": concurrency, "until_empty": True}
    crashes = 0
    while crashes <= limit:
        with consumer(server, shell_name, options, loop) as process:
            _, complaints = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode == 0:
            break
        assert process.returncode == 9, complaints
        crashes += 1
        # As if the leases had run out.
        held = [member for member in truth.client.zrange(truth.key.leases, 0, -1) if len(member) >= 16]
        truth.client.zadd(truth.key.leases, {member: place + 1.0 for place, member in enumerate(held)})
    assert crashes == limit
    assert truth.dead == [b"poison"]
    assert sorted(truth.completed, key=int) == others
    assert truth.is_empty
    tries = Counter(begun(truth))
    assert tries.pop(b"poison") == limit
    # A few are handled again: they were started beside the poison, or not yet acked when the process died.
    assert max(tries.values()) <= limit
