"""A consumer to be killed: it handles messages under leases of a second until the key "stop" exists.

Argument: the server's port.
"""

import os
import signal
import sys
import time

import redis

from redis_message_queue import EventOperation, QueueEvent, RedisGateway, RedisMessageQueue


def main(port: int) -> None:
    with redis.Redis(host="127.0.0.1", port=port) as client, redis.Redis(host="127.0.0.1", port=port) as tally:
        consume(client, tally)


def consume(client: redis.Redis, tally: redis.Redis) -> None:
    def on_event(event: QueueEvent) -> None:
        if event.operation is EventOperation.STALE_LEASE_ACK:
            tally.rpush("refused acks", str(event.message_id))

    gateway = RedisGateway(redis_client=client, message_visibility_timeout_seconds=1, message_wait_interval_seconds=0.5)
    queue = RedisMessageQueue(
        "faults", gateway=gateway, enable_completed_queue=True, max_completed_length=None, on_event=on_event
    )
    tally.sadd("ready", os.getpid())
    while not tally.exists("stop"):
        with queue.process_message() as message:
            received = queue.current_message()
            if message is not None and received is not None:
                if received.delivery_count > 1:
                    tally.rpush("redelivered", message)
                time.sleep(0.004)
                tally.rpush("handled", message)


if __name__ == "__main__":
    signal.alarm(110)
    main(int(sys.argv[1]))
