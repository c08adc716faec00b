"""Each tick is published once, by whichever worker is there, however many of them race and are killed."""

import random
import time
from collections import Counter
from datetime import datetime, timedelta

import pytest

from redis_message_queue import RedisMessageQueue
from tests.concurrency import LIMIT_SECONDS
from tests.depth import often
from tests.faults.workers import Workers

pytestmark = pytest.mark.topic("Schedules")

TICKS = often(3, 6)  # of each schedule


@pytest.mark.promise("Workers that race for a tick publish one message, also if they are killed with SIGKILL.")
def test_killed_workers_publish_each_tick_once(server, truth):
    """Every second there is a tick of each schedule, and at any moment a worker is killed, also right at the tick."""
    chance, kills = random.Random(11), 0
    queue = RedisMessageQueue("ticks", client=truth.client)
    with Workers("scheduled_runner.py", *([server.port, shell] for shell in ("sync", "asyncio", "sync"))) as workers:
        deadline = time.monotonic() + LIMIT_SECONDS
        be_ready(truth, workers.members, deadline)
        for name in ("a", "b"):
            queue.schedule(name, every_seconds=1, message=name, missed="all")
        while min(ticks_of(truth, name) for name in ("a", "b")) < TICKS:
            assert time.monotonic() < deadline, f"{truth.client.hgetall('handled')}"
            time.sleep(chance.random() * 0.4)
            place = chance.randrange(3)
            if truth.client.sismember("ready", workers.members[place].pid):
                workers.kill(place)
                kills += 1
        queue.unschedule("a")
        queue.unschedule("b")
        while any((queue.stats().pending, queue.stats().processing)):
            assert time.monotonic() < deadline, "messages are left"
            time.sleep(0.02)
        be_ready(truth, workers.members, deadline)
        for member in workers.members:
            member.terminate()
        assert workers.failures() == []
    assert kills > 2
    handled = [field.decode().split() for field in truth.client.hkeys("handled")]
    for name in ("a", "b"):
        ticks = sorted(datetime.fromisoformat(tick) for schedule, tick, _ in handled if schedule == name)
        assert max(Counter(ticks).values()) == 1, "a tick has two messages"
        assert ticks == [ticks[0] + timedelta(seconds=number) for number in range(len(ticks))], "a tick has none"


def be_ready(truth, members, deadline):
    """Wait until all of them run and handle signals."""
    while not all(truth.client.sismember("ready", member.pid) for member in members):
        assert time.monotonic() < deadline, "the workers do not start"
        time.sleep(0.01)


def ticks_of(truth, name):
    return sum(field.startswith(name.encode()) for field in truth.client.hkeys("handled"))
