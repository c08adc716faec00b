"""A consumer that survives every Ctrl-C: it catches KeyboardInterrupt around process_message() and continues.

Arguments: the server's port, the way of sending ("packed" or "ordinary"), and how many messages there are.
"""

import encodings.idna  # noqa: F401  # what a first connection imports: a Ctrl-C there is no affair of the queue
import os
import signal
import sys
import warnings

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_message_queue import RedisGateway, RedisMessageQueue


class OrdinaryRedis(redis.Redis):
    """A subclass, so that commands are sent by redis-py itself."""


class Consumer:
    """Handles messages one by one. Ctrl-C reaches it only outside of its handler, where nothing may be lost."""

    def __init__(self, port: int, way: str, wanted: int) -> None:
        client_class = redis.Redis if way == "packed" else OrdinaryRedis
        retry = Retry(NoBackoff(), 0)
        self.client = client_class(host="127.0.0.1", port=port, retry=retry, max_connections=1000)
        self.tally = redis.Redis(host="127.0.0.1", port=port)
        gateway = RedisGateway(
            redis_client=self.client, message_visibility_timeout_seconds=300, message_wait_interval_seconds=0.3
        )
        self.queue = RedisMessageQueue("faults", gateway=gateway)
        self.wanted = wanted
        self.handled = 0
        self.interrupted = 0
        self.open = False

    def on_sigint(self, signum: int, frame: object) -> None:
        """Raise KeyboardInterrupt like Python's own handler, but not while a message is handled and acknowledged."""
        # No print here: the next signal may arrive before it returns, and a nested print is an error.
        os.write(sys.stdout.fileno(), b"interrupted\n" if self.open else b"busy\n")
        if self.open:
            self.open = False
            self.interrupted += 1
            raise KeyboardInterrupt

    def run(self) -> None:
        done = False
        while not done:
            try:
                self.open = True
                while self.handled < self.wanted:
                    self.handle_one()
                self.open = False
                done = True
            except KeyboardInterrupt:
                pass
        self.tally.set("interrupted", self.interrupted)

    def handle_one(self) -> None:
        with self.queue.process_message() as message:
            self.open = False  # first statement of the handler: no call, so no signal arrives before it
            if message is not None:
                self.tally.rpush("handled", message)
                self.handled += 1
        self.open = True


if __name__ == "__main__":
    signal.alarm(110)
    # Python warns about a coroutine that was interrupted before it was awaited; nothing is lost then.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    consumer = Consumer(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    signal.signal(signal.SIGINT, consumer.on_sigint)
    print("ready", flush=True)
    consumer.run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
