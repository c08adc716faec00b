"""Shut down gracefully: on a deployment or Ctrl-C, finish the current message and claim no other.

The first SIGINT, SIGTERM or SIGHUP only sets a flag; a consumer that waits for a message notices within a second. The
same signal a second time has its usual effect, if you cannot wait.
"""

import os
import signal
import threading
import time

from redis import Redis

from redis_message_queue import EventDrivenInterruptHandler, GracefulInterruptHandler, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def stop_by_signal(client: Redis) -> None:
    """Stop a process that owns its signals, as most workers do."""
    interrupt = GracefulInterruptHandler()  # in the main thread, once per process
    queue = RedisMessageQueue("shutdown", client=client, interrupt=interrupt)
    for number in range(1, 4):
        queue.publish(f"job {number}")

    while not interrupt.is_interrupted():
        with queue.process_message() as message:
            if message is None:
                continue
            print(f"begin: {message}")
            if message == "job 2":
                os.kill(os.getpid(), signal.SIGTERM)  # what your orchestrator would send
            time.sleep(0.2)
            print(f"done: {message}")

    interrupt.reset()  # restore the signals, if the process continues
    print(f"stopped by a signal, {client.llen(queue.key.pending)} job left for another consumer")


def stop_by_event(client: Redis) -> None:
    """Stop a process whose framework owns the signals: set an event in its shutdown hook."""
    stopping = threading.Event()
    queue = RedisMessageQueue("shutdown", client=client, interrupt=EventDrivenInterruptHandler(stopping))

    def work() -> None:
        while not stopping.is_set():
            with queue.process_message() as message:
                if message is not None:
                    print(f"thread did: {message}")

    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.5)  # your service runs
    stopping.set()
    worker.join()  # the thread was waiting for a message, and ends within a second
    print("stopped by an event")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        stop_by_signal(client)
        stop_by_event(client)


if __name__ == "__main__":
    main()
