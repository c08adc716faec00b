"""Publish messages: the first half of the quickstart.

Run it once, or in several terminals at the same time. Then run receive_messages.py.
"""

import os

from redis import Redis

from redis_message_queue import RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        # With deduplication, the same content is accepted once an hour, however often anybody publishes it.
        queue = RedisMessageQueue("quickstart", client=client, deduplication=True)

        for number in range(1, 6):
            accepted = queue.publish(f"order {number}")
            print(f"order {number}: {'accepted' if accepted else 'seen before, suppressed'}")

        # A retry after a timeout, a double click, a job that runs twice: publish returns False and stores nothing.
        print(f"order 1 again: {'accepted' if queue.publish('order 1') else 'seen before, suppressed'}")

        # A dict is stored as JSON.
        queue.publish({"order": 6, "items": ["tea", "cups"]})
        print("order 6: published as a dict")


if __name__ == "__main__":
    main()
