"""A program with worker processes, started in one of the ways that Python has.

Arguments: the server's port, and the way: "spawn", "fork", "forkserver" or "executor". The parent has used a queue; the
workers make their own. Prints what each of them handled, and the error of sending the parent's queue, as JSON.
"""

import json
import multiprocessing
import signal
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import redis

from redis_message_queue import RedisMessageQueue

WORKERS = 2
MESSAGES = 30
LIMIT_SECONDS = 100


def make_queue(port: int) -> tuple[redis.Redis, RedisMessageQueue]:
    client = redis.Redis(host="127.0.0.1", port=port)
    queue = RedisMessageQueue(
        "forks",
        client=client,
        enable_completed_queue=True,
        visibility_timeout_seconds=20,
        heartbeat_interval_seconds=0.05,
        message_wait_interval_seconds=0.1,
    )
    return client, queue


def work(port: int) -> list[str]:
    """A worker with its own client and queue, until everything is handled."""
    signal.alarm(LIMIT_SECONDS)
    client, queue = make_queue(port)
    handled = []
    with client:
        while client.llen(queue.key.completed) < MESSAGES + 1:
            with queue.process_message() as message:
                if message is not None:
                    handled.append(message.decode())
    return handled


def report(port: int, outcome: Any) -> None:
    outcome.put(work(port))


def accept(queue: RedisMessageQueue) -> str:
    """Must not be called with a queue that was pickled."""
    return f"it works: {queue.publish('through a copy')}"


def in_processes(way: str, port: int, queue: RedisMessageQueue) -> tuple[list[list[str]], str]:
    context: Any = multiprocessing.get_context(way)
    refusal = "not pickled"
    if way != "fork":
        try:
            context.Process(target=accept, args=(queue,)).start()
        except Exception as error:
            refusal = repr(error)
    outcome = context.Queue()
    workers = [context.Process(target=report, args=(port, outcome)) for _ in range(WORKERS)]
    for process in workers:
        process.start()
    handled = [outcome.get(timeout=LIMIT_SECONDS) for _ in workers]
    for process in workers:
        process.join(LIMIT_SECONDS)
        assert process.exitcode == 0
    return handled, refusal


def in_an_executor(port: int, queue: RedisMessageQueue) -> tuple[list[list[str]], str]:
    with ProcessPoolExecutor(WORKERS) as executor:
        refusal = executor.submit(accept, queue).exception(LIMIT_SECONDS)
        futures = [executor.submit(work, port) for _ in range(WORKERS)]
        return [future.result(LIMIT_SECONDS) for future in futures], repr(refusal)


def main(port: int, way: str) -> None:
    client, queue = make_queue(port)
    with client:
        queue.publish("of the parent")
        with queue.process_message() as message:
            assert message == b"of the parent"
        for number in range(MESSAGES):
            queue.publish(f"message {number}")
        handled, refusal = in_an_executor(port, queue) if way == "executor" else in_processes(way, port, queue)
        print(json.dumps({"handled": handled, "refusal": refusal}))


if __name__ == "__main__":
    signal.alarm(110)
    # Python 3.12 warns of a fork beside threads: an executor and a multiprocessing.Queue have some.
    warnings.simplefilter("ignore", DeprecationWarning)
    main(int(sys.argv[1]), sys.argv[2])
