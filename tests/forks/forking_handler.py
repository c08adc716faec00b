"""A program whose handler forks under a heartbeat; its child ends in one of several ways, and its parent continues.

Arguments: the server's port, and how the child ends. Prints the state in Redis after the child's end and after the
parent's, as JSON.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings

import redis

from redis_message_queue import QueueEvent, RedisMessageQueue


class ForkingHandler:
    """One message, and its state while a child lives and dies."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.parent = os.getpid()
        self.events: list[str] = []
        self.queue = RedisMessageQueue(
            "forks",
            client=redis.Redis(host="127.0.0.1", port=port),
            enable_completed_queue=True,
            enable_failed_queue=True,
            visibility_timeout_seconds=30,
            heartbeat_interval_seconds=0.02,
            on_event=self.on_event,
        )

    def on_event(self, event: QueueEvent) -> None:
        self.events.append(f"{event.operation}/{event.outcome}")

    def run(self, way: str) -> None:
        self.queue.publish("message")
        try:
            with self.queue.process_message():
                self.wait_for_a_renewal()
                if way == "multiprocessing":
                    status = self.start_a_process()
                else:
                    status = self.fork(way)
                    if os.getpid() != self.parent:
                        return  # leaves the block and ends the program, like the parent
                self.wait_for_a_renewal()
                during = self.look()
        except ValueError:
            if os.getpid() == self.parent:
                raise
            return
        endings = [each for each in self.events if not each.startswith(("publish", "claim", "lease_renew"))]
        print(json.dumps({"status": status, "during": during, "after": self.look(), "events": endings}))

    def fork(self, way: str) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(60)
        if way == "os._exit":
            os._exit(0)
        if way == "sys.exit":
            sys.exit(0)
        if way == "raise":
            raise ValueError("in the child")
        assert way == "fall through"
        return 0

    def start_a_process(self) -> int:
        process = multiprocessing.get_context("fork").Process(target=self.use_a_client_of_its_own)
        process.start()
        process.join(100)
        return -1 if process.exitcode is None else process.exitcode

    def use_a_client_of_its_own(self) -> None:
        with redis.Redis(host="127.0.0.1", port=self.port) as client:
            other = RedisMessageQueue("another", client=client, message_wait_interval_seconds=0)
            other.publish("message of the child")
            with other.process_message() as message:
                assert message == b"message of the child"

    def wait_for_a_renewal(self) -> None:
        """Wait for a renewal that started after now: when the second one comes, at least one is complete."""
        enough = self.events.count("lease_renew/success") + 2
        deadline = time.monotonic() + 100
        while self.events.count("lease_renew/success") < enough:
            assert time.monotonic() < deadline, f"the heartbeat has stopped: {self.events}"
            time.sleep(0.005)

    def look(self) -> dict[str, int]:
        with redis.Redis(host="127.0.0.1", port=self.port) as client:
            return {
                "pending": client.llen(self.queue.key.pending),
                "processing": client.hlen(self.queue.key.processing),
                "completed": client.llen(self.queue.key.completed),
                "failed": client.llen(self.queue.key.failed),
            }


if __name__ == "__main__":
    signal.alarm(110)
    # Python 3.12 warns about a fork beside threads such as the heartbeat's, which is what is tested here.
    warnings.simplefilter("ignore", DeprecationWarning)
    # A child that exits closes none of the sockets that it inherited.
    warnings.simplefilter("ignore", ResourceWarning)
    ForkingHandler(int(sys.argv[1])).run(sys.argv[2])
