"""Consume messages: the second half of the quickstart.

Run it in as many terminals as you like; each message goes to one of them.
"""

import os

from redis import Redis

from redis_message_queue import RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue("quickstart", client=client)

        while True:
            # Waits up to 5 seconds for a message, and holds a lease on it while the block runs.
            with queue.process_message() as message:
                if message is None:
                    break  # a real service would keep waiting
                print(f"processing: {message}")
            # Here the message is acknowledged. If the block raises, the message is removed as failed. If the process
            # dies, another consumer gets the message when the lease expires.

    print("nothing came for 5 seconds: done")


if __name__ == "__main__":
    main()
