"""A worker to be killed or interrupted: it runs the loop under leases of a second until SIGTERM stops it.

Arguments: the server's port, "sync" or "asyncio", and the options of the loop as JSON.
"""

import asyncio
import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import EventOperation, GracefulInterruptHandler, QueueEvent

# More than interruptions can leave half open.
MANY_CONNECTIONS = 5_000
OPTIONS: dict[str, Any] = {
    "visibility_timeout_seconds": 1,
    "enable_completed_queue": True,
    "max_completed_length": None,
    "max_delivery_count": None,
}


class Runner:
    """Survives every Ctrl-C: it catches KeyboardInterrupt around the loop and runs it again."""

    def __init__(self, port: int, shell_name: str, options: dict[str, Any]) -> None:
        self.port = port
        self.run_once = self.run_sync if shell_name == "sync" else self.run_asyncio
        self.options = options
        self.tally = redis.Redis(host="127.0.0.1", port=port)
        self.stopped = GracefulInterruptHandler([signal.SIGTERM])
        self.settings = OPTIONS | {"interrupt": self.stopped, "on_event": self.on_event}
        self.interruptible = False

    def on_event(self, event: QueueEvent) -> None:
        if event.operation is EventOperation.STALE_LEASE_ACK:
            self.tally.rpush("refused acks", str(event.message_id))

    def handle(self, given: Any) -> None:
        messages = given if isinstance(given, list) else [given]
        for message in messages:
            if message.delivery_count > 1:
                self.tally.rpush("redelivered", message.payload)
        time.sleep(0.003)
        self.tally.rpush("handled", *(message.payload for message in messages))

    async def handle_awaited(self, given: Any) -> None:
        await asyncio.sleep(0.001)
        self.handle(given)

    def run_sync(self) -> None:
        with redis.Redis(host="127.0.0.1", port=self.port, max_connections=MANY_CONNECTIONS) as client:
            queue = redis_message_queue.RedisMessageQueue("faults", client=client, **self.settings)
            queue.run(self.handle, **self.options)

    def run_asyncio(self) -> None:
        async def run() -> None:
            async with redis.asyncio.Redis(host="127.0.0.1", port=self.port) as client:
                queue = redis_message_queue.asyncio.RedisMessageQueue("faults", client=client, **self.settings)
                await queue.run(self.handle_awaited, **self.options)

        asyncio.run(run())

    def on_sigint(self, signum: int, frame: object) -> None:
        """Raise KeyboardInterrupt like Python's own handler, but only while the loop runs."""
        if self.interruptible:
            self.interruptible = False
            raise KeyboardInterrupt

    def on_unraisable(self, unraisable: Any) -> None:
        """Python swallows a Ctrl-C in a destructor; the next one counts instead."""
        if unraisable.exc_type is KeyboardInterrupt:
            self.interruptible = True
        else:
            sys.__unraisablehook__(unraisable)

    def run(self) -> None:
        self.tally.sadd("ready", os.getpid())
        while not self.stopped.is_interrupted():
            try:
                self.interruptible = True
                self.run_once()
                self.interruptible = False
            except KeyboardInterrupt:
                self.tally.incr("interrupted")


if __name__ == "__main__":
    signal.alarm(110)
    # Python warns about a coroutine that was interrupted before it was awaited, and about a socket of redis-py that was
    # interrupted while it opened; nothing is lost then.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
    runner = Runner(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
    signal.signal(signal.SIGINT, runner.on_sigint)
    sys.unraisablehook = runner.on_unraisable
    runner.run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
