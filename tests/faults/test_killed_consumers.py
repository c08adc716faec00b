"""Consumers that are killed at any moment lose nothing: their messages are redelivered and acked once."""

import random
import time
from collections import Counter

import pytest

from redis_message_queue import RedisMessageQueue
from tests.concurrency import until
from tests.depth import often
from tests.faults.workers import Workers

pytestmark = pytest.mark.topic("Killed and interrupted consumers")


KILLS = often(6, 12)
MESSAGES = 30 * KILLS
CONSUMERS = 3


@pytest.mark.promise("With leases, a killed consumer loses no message.")
@pytest.mark.promise("The message of a killed process is delivered again after its lease ends.")
def test_killing_consumers_at_random_moments_loses_nothing(server, truth):
    """Three consumers, many kills: each message is completed once, and only those of killed consumers come twice."""
    expected = [b"message %d" % number for number in range(MESSAGES)]
    chance = random.Random(7)
    queue = RedisMessageQueue("faults", client=truth.client)
    with Workers("killed_consumer.py", *[[server.port]] * CONSUMERS) as workers:
        until(lambda: truth.client.scard("ready") >= CONSUMERS)
        for number, message in enumerate(expected):
            queue.publish(message.decode())
            if number % (MESSAGES // KILLS) == 0:
                # At any point: waiting, claiming, handling, acknowledging.
                time.sleep(chance.random() * 0.05)
                workers.kill(chance.randrange(CONSUMERS))
        until(lambda: truth.completions >= MESSAGES)
        truth.client.set("stop", 1)
        assert workers.failures() == []

    assert sorted(truth.completed) == sorted(expected)
    assert truth.is_empty
    handled = Counter(truth.client.lrange("handled", 0, -1))
    assert set(handled) == set(expected)
    # A message comes again because its consumer was killed, or was so slow that its ack was refused.
    redelivered = truth.client.lrange("redelivered", 0, -1)
    assert len(redelivered) <= KILLS + truth.client.llen("refused acks")
    assert all(handled[message] >= 1 for message in redelivered)
    assert sum(handled.values()) - MESSAGES <= len(redelivered)
    assert not truth.dead
