"""Heartbeats: a short lease for quick recovery, and handlers that may take long all the same.

A message is leased to its consumer for `visibility_timeout_seconds`. When the consumer dies, the lease ends and another
gets the message: so a short lease means quick recovery. A handler that works longer than that needs heartbeats, which
renew the lease from a thread of their own for as long as the process lives.
"""

import os
import threading
import time

from redis import Redis

from redis_message_queue import RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def make_queue(client: Redis) -> RedisMessageQueue:
    return RedisMessageQueue(
        "heartbeats",
        client=client,
        visibility_timeout_seconds=1,
        heartbeat_interval_seconds=0.3,  # less than half, so that one lost renewal is survived
        max_processing_seconds=60,  # a handler that hangs for ever does not keep its message for ever
        on_heartbeat_failure=lambda: print("a lease could not be renewed"),  # for an alert, from another thread
    )


def handle_for_long(queue: RedisMessageQueue) -> None:
    with queue.process_message() as message:
        print(f"{message}: begun")
        received = queue.current_message()  # more about the message in hand: id, delivery count, lease
        assert received is not None
        for _ in range(5):
            time.sleep(0.5)
            # A long handler asks now and then whether the message is still its own: after a pause of the whole
            # machine, say, somebody else may have it, and to go on would do the work twice.
            if received.lease_lost:
                print(f"{message}: lost, giving up")
                return
        print(f"{message}: done after 2.5 s, at delivery {received.delivery_count}")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = make_queue(client)
        queue.publish("a long job")
        worker = threading.Thread(target=handle_for_long, args=(queue,))
        worker.start()
        time.sleep(1.5)  # one lease and a half: without heartbeats the message would be up for grabs
        in_flight, waiting = client.hlen(queue.key.processing), client.llen(queue.key.pending)
        print(f"after 1.5 s with a lease of 1 s: {in_flight} in flight, {waiting} waiting")
        worker.join()


if __name__ == "__main__":
    main()
