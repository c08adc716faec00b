"""A consumer to be killed: it handles, fails, requeues and hands off at random.

Arguments: the port to connect to, and a seed.
"""

import contextlib
import random
import sys
from typing import Any

import redis

from redis_message_queue import RedisMessageQueue, RetryPolicy

# So short that the messages of the dead come back while the test runs, and many a lease is lost to the living.
RULES: dict[str, Any] = {
    "visibility_timeout_seconds": 0.5,
    "max_delivery_count": 4,
    "enable_completed_queue": True,
    "message_wait_interval_seconds": 0.1,
}
POLICY = RetryPolicy(max_attempts=2, initial_delay_seconds=0.01, jitter=0, give_up_on=(KeyError,))


def main(port: int, seed: int) -> None:
    chance = random.Random(seed)
    client = redis.Redis(host="127.0.0.1", port=port)
    queue = RedisMessageQueue("orders", client=client, retry_policy=chance.choice((POLICY, None)), **RULES)
    results = RedisMessageQueue("results", client=client)
    while True:
        with contextlib.suppress(RuntimeError, KeyError, ValueError, redis.RedisError):
            work(queue, results, chance)


def work(queue: RedisMessageQueue, results: RedisMessageQueue, chance: random.Random) -> None:
    way = chance.random()
    if way < 0.3:
        with queue.process_message() as payload:
            if payload is not None and chance.random() < 0.5:
                raise KeyError("for good") if chance.random() < 0.3 else ValueError("once more")
        return
    with queue.process_messages(chance.randint(1, 20)) as batch:
        for place, message in enumerate(batch):
            if way < 0.5 and place % 3 == 0:
                message.complete(publish=[(results, f"of {message.id}")])
            elif way < 0.6:
                batch.fail(message, ValueError("alone"))
        if way > 0.9:
            raise RuntimeError("all of them back")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
