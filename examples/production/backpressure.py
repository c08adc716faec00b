"""Apply backpressure: refuse messages before Redis is full.

A producer that is faster than its consumers fills the memory of Redis. `max_pending_length` limits how many messages
may wait, and `pending_overload_policy` says what a publish does when the queue is full:

    "raise"        raises immediately, and the caller decides
    "block"        waits for room, and raises when the time is up
    "drop_oldest"  drops the oldest message; for data of which only the newest matters
"""

import os
import threading
import time

from redis import Redis

from redis_message_queue import QueueBackpressureError, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
LIMIT = 3


def refuse(client: Redis) -> None:
    """Refuse. Redis checks the limit, so any number of producers together cannot exceed it."""
    queue = RedisMessageQueue("backpressure-raise", client=client, max_pending_length=LIMIT)
    for number in range(1, LIMIT + 2):
        try:
            queue.publish(f"job {number}")
            print(f"job {number}: accepted")
        except QueueBackpressureError:
            # Nothing was published. Answer 503, slow down, or write the job elsewhere.
            print(f"job {number}: refused, {LIMIT} jobs are waiting")


def wait_for_room(client: Redis) -> None:
    """Slow the producer down to the speed of its consumers."""
    queue = RedisMessageQueue(
        "backpressure-block",
        client=client,
        max_pending_length=LIMIT,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=10,
    )
    consumer = threading.Thread(target=consume, args=(queue, 2 * LIMIT))
    consumer.start()
    started = time.monotonic()
    for _ in range(2 * LIMIT):
        queue.publish("job")
    print(f"{2 * LIMIT} jobs published, {LIMIT} at most waiting: it took {time.monotonic() - started:.1f} s")
    consumer.join()


def consume(queue: RedisMessageQueue, count: int) -> None:
    for _ in range(count):
        with queue.process_message():
            time.sleep(0.2)  # a slow consumer


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        refuse(client)
        wait_for_room(client)
        client.delete(RedisMessageQueue("backpressure-raise", client=client).key.pending)  # leave nothing behind


if __name__ == "__main__":
    main()
