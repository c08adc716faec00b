"""Use heartbeats: a short lease for quick recovery, and handlers that may still take long.

A consumer has a lease on its message for `visibility_timeout_seconds`. When the consumer dies, the lease expires, and
another consumer gets the message, so a short lease means quick recovery. A handler that runs longer than that needs
heartbeats. They renew the lease from a separate thread as long as the process lives.
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
        heartbeat_interval_seconds=0.3,  # less than half of the lease, so that it survives one lost renewal
        max_processing_seconds=60,  # a handler that hangs does not keep its message forever
        on_heartbeat_failure=lambda: print("a lease could not be renewed"),  # for an alert; runs in another thread
    )


def handle_for_long(queue: RedisMessageQueue) -> None:
    with queue.process_message() as message:
        print(f"{message}: begun")
        received = queue.current_message()  # more about the current message: id, delivery count, lease
        assert received is not None
        for _ in range(5):
            time.sleep(0.5)
            # A long handler should check whether it still has the lease. After a pause of the whole machine, for
            # example, another consumer may have the message, and continuing would do the work twice.
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
        time.sleep(1.5)  # one and a half leases: without heartbeats, another consumer could claim the message
        in_flight, waiting = client.hlen(queue.key.processing), client.llen(queue.key.pending)
        print(f"after 1.5 s with a lease of 1 s: {in_flight} in flight, {waiting} waiting")
        worker.join()


if __name__ == "__main__":
    main()
