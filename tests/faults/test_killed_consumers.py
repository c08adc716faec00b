"""Consumers that are killed at any moment lose nothing: what they held is delivered again, and acked once."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from redis_message_queue import RedisMessageQueue
from tests.faults.meanwhile import PATIENCE_SECONDS, until

MESSAGES = 360
CONSUMERS = 3
KILLS = 12


class Crew:
    """So many consumers at any time: where one is killed, another begins."""

    def __init__(self, port):
        self._command = [sys.executable, "-W", "error", str(Path(__file__).with_name("mortal_consumer.py")), str(port)]
        self.members = []

    def __enter__(self):
        for _ in range(CONSUMERS):
            self.members.append(self._hire())
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.kill()
            member.communicate()

    def _hire(self):
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def replace(self, place):
        """SIGKILL: no clean-up, no last word."""
        self.members[place].send_signal(signal.SIGKILL)
        self.members[place].communicate()
        self.members[place] = self._hire()

    def go_home(self):
        """Everybody ends by themselves; what they complained of."""
        return [member.communicate(timeout=PATIENCE_SECONDS) for member in self.members]


def test_killing_consumers_at_random_moments_loses_nothing(server, truth):
    """Three consumers, a dozen kills: each message is completed, once, and only what a victim held comes twice."""
    expected = [b"message %d" % number for number in range(MESSAGES)]
    chance = random.Random(7)
    queue = RedisMessageQueue("faults", client=truth.client)
    with Crew(server.port) as crew:
        until(lambda: truth.client.scard("ready") >= CONSUMERS)
        for number, message in enumerate(expected):
            queue.publish(message.decode())
            if number % (MESSAGES // KILLS) == 0:
                # Wherever they are then: waiting, claiming, handling, acknowledging.
                time.sleep(chance.random() * 0.05)
                crew.replace(chance.randrange(CONSUMERS))
        until(lambda: len(truth.completed) >= MESSAGES)
        truth.client.set("go home", 1)
        complaints = crew.go_home()
        statuses = [member.returncode for member in crew.members]

    assert (statuses, complaints) == ([0] * CONSUMERS, [(b"", b"")] * CONSUMERS)
    assert sorted(truth.completed) == sorted(expected)
    assert truth.is_empty
    handled = Counter(truth.client.lrange("handled", 0, -1))
    assert set(handled) == set(expected)
    # A message comes again because its holder was killed, or because it was so slow that its ack was refused.
    redelivered = truth.client.lrange("redelivered", 0, -1)
    assert len(redelivered) <= KILLS + truth.client.llen("refused acks")
    assert all(handled[message] >= 1 for message in redelivered)
    assert sum(handled.values()) - MESSAGES <= len(redelivered)
    assert not truth.dead
