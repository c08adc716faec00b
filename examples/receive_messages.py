"""Process messages: the second half of the quickstart.

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
            # Waits for a message, up to 5 seconds, and holds it under a lease while the block runs.
            with queue.process_message() as message:
                if message is None:
                    break  # a service would go on waiting; an example should end
                print(f"processing: {message}")
            # Here the message is acknowledged. Had the block raised, it would have been removed as failed;
            # had the process died, another consumer would get it when the lease ends.

    print("nothing came for 5 seconds: done")


if __name__ == "__main__":
    main()
