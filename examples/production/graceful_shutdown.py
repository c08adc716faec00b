"""Graceful shutdown: a deployment or Ctrl-C finishes the message in hand, and takes no other.

The first SIGINT, SIGTERM or SIGHUP only raises a flag; a consumer that waits for a message notices within a second.
The same signal once more does what it always does, for those who cannot wait.
"""

import os
import signal
import threading
import time

from redis import Redis

from redis_message_queue import EventDrivenInterruptHandler, GracefulInterruptHandler, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def stop_by_signal(client: Redis) -> None:
    """For a process that owns its signals, as most workers do."""
    interrupt = GracefulInterruptHandler()  # in the main thread, once a process
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

    interrupt.reset()  # give the signals back, if the process goes on
    print(f"stopped by a signal, {client.llen(queue.key.pending)} job left for another consumer")


def stop_by_event(client: Redis) -> None:
    """For a process whose framework owns the signals: set an event in its shutdown hook."""
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
    worker.join()  # the thread was waiting for a message, and comes back within a second
    print("stopped by an event")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        stop_by_signal(client)
        stop_by_event(client)


if __name__ == "__main__":
    main()
