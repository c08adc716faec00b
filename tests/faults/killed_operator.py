"""A process to be killed while it hands messages off, redrives dead letters or purges messages.

Arguments: the server's port, and "hand off", "redrive" or "purge".
"""

import os
import signal
import sys

import redis

from redis_message_queue import LeaseLostError, RedisGateway, RedisMessageQueue


def hand_off(client: redis.Redis, tally: redis.Redis) -> None:
    """Turn each message into one result, until the key "stop" exists."""
    gateway = RedisGateway(redis_client=client, message_visibility_timeout_seconds=1, message_wait_interval_seconds=0.2)
    queue = RedisMessageQueue("faults", gateway=gateway)
    results = RedisMessageQueue("results", client=client)
    while not tally.exists("stop"):
        with queue.process_messages(4) as batch:
            for message in batch:
                try:
                    message.complete(publish=[(results, message.payload.decode(), {"tenant": "t"})])
                except LeaseLostError:
                    tally.rpush("too late", message.payload)


def redrive(client: redis.Redis, tally: redis.Redis) -> None:
    """Redrive every dead letter with an even number, with one round trip per page."""
    queue = RedisMessageQueue("faults", client=client)
    queue.redrive_dead_letters(where=lambda letter: int(letter.payload or 0) % 2 == 0)


def purge(client: redis.Redis, tally: redis.Redis) -> None:
    RedisMessageQueue("faults", client=client).purge("pending")


def main(port: int, verb: str) -> None:
    with redis.Redis(host="127.0.0.1", port=port) as client, redis.Redis(host="127.0.0.1", port=port) as tally:
        tally.sadd("ready", os.getpid())
        {"hand off": hand_off, "redrive": redrive, "purge": purge}[verb](client, tally)


if __name__ == "__main__":
    signal.alarm(110)
    main(int(sys.argv[1]), sys.argv[2])
