"""A small pre-fork server: a master that has used its queue forks workers, replaces one that dies, and stops them.

Arguments: the server's port, and what a worker uses: "inherited", the objects of the master, or "fresh", its own queue
and interrupt handler on the master's client. On SIGTERM the master stops its workers and prints how all of them ended,
as JSON.
"""

import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import redis

from redis_message_queue import GracefulInterruptHandler, RedisMessageQueue

WORKERS = 3


class Server:
    """The master, and after a fork a worker: both have the same object, as after a preload."""

    def __init__(self, port: int, kind: str) -> None:
        self.kind = kind
        self.client = redis.Redis(host="127.0.0.1", port=port)
        self.interrupt = GracefulInterruptHandler()
        self.queue = self.make_queue(self.interrupt)
        self.workers: set[int] = set()
        self.ended: list[int] = []

    def make_queue(self, interrupt: GracefulInterruptHandler) -> RedisMessageQueue:
        return RedisMessageQueue(
            "forks",
            client=self.client,
            interrupt=interrupt,
            enable_completed_queue=True,
            visibility_timeout_seconds=1,
            heartbeat_interval_seconds=0.2,
            message_wait_interval_seconds=0.2,
        )

    # The master

    def run(self) -> None:
        self.queue.publish("of the master")
        with self.queue.process_message() as message:
            assert message == b"of the master"
        while not self.interrupt.is_interrupted():
            while len(self.workers) < WORKERS:
                self.hire()
            self.reap(os.WNOHANG)
            time.sleep(0.02)
        for worker in self.workers:
            os.kill(worker, signal.SIGTERM)
        while self.workers:
            self.reap(0)
        print(json.dumps(sorted(self.ended)))

    def hire(self) -> None:
        pid = os.fork()
        if pid == 0:
            signal.alarm(110)
            self.work()
            sys.exit(0)
        self.workers.add(pid)

    def reap(self, options: int) -> None:
        pid, status = os.waitpid(-1, options)
        if pid:
            self.workers.remove(pid)
            self.ended.append(os.waitstatus_to_exitcode(status))

    # A worker

    def work(self) -> None:
        interrupt, queue = self.interrupt, self.queue
        if self.kind == "fresh":
            interrupt = self.take_over_signals()
            queue = self.make_queue(interrupt)
        self.client.sadd("ready", os.getpid())
        while not interrupt.is_interrupted():
            with queue.process_message() as message:
                if message is not None:
                    self.handle(message, queue)

    def take_over_signals(self) -> GracefulInterruptHandler:
        try:
            GracefulInterruptHandler()
        except ValueError as refusal:
            assert "reset()" in str(refusal)
        else:
            raise AssertionError("the signals are the inherited handler's")
        self.interrupt.reset()
        self.interrupt.reset()
        return GracefulInterruptHandler()

    def handle(self, message: Any, queue: RedisMessageQueue) -> None:
        received = queue.current_message()
        assert received is not None
        if message == b"wait to be killed" and received.delivery_count == 1:
            self.client.rpush("holding", os.getpid())
            time.sleep(110)


if __name__ == "__main__":
    signal.alarm(110)
    # A worker that exits closes none of the sockets that it inherited.
    warnings.simplefilter("ignore", ResourceWarning)
    # A runner in the background ignores SIGINT, which children inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    Server(int(sys.argv[1]), sys.argv[2]).run()
