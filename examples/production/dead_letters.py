"""Dead letters: a message that crashes whoever handles it is put aside, and the others go on.

An exception in a handler is not a crash: that message is removed as failed (and kept, with `enable_failed_queue`). A
crash is when the process goes and nobody settles the message. Its lease ends and it is delivered again, up to
`max_delivery_count` times; then it goes to the dead-letter list, where a person can look at it.
"""

import os
import time

from redis import Redis

from redis_message_queue import EventOperation, QueueEvent, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

LEASE_SECONDS = 0.5  # minutes, in earnest


def alert(event: QueueEvent) -> None:
    if event.operation == EventOperation.DLQ:
        print(f"alert: a message went to the dead letters after {event.delivery_count} deliveries")


def handle(message: str) -> None:
    print(f"handling: {message}")
    if message == "poison":
        raise SystemExit(1)  # the process goes down in the middle of it


def run_once(queue: RedisMessageQueue) -> None:
    """Stands for a whole process, which a supervisor starts again when it has crashed."""
    try:
        queue.process_message_callback(handle)
    except SystemExit:
        print(f"  crashed; the lease ends in {LEASE_SECONDS} s")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue(
            "dead-letters",
            client=client,
            visibility_timeout_seconds=LEASE_SECONDS,
            max_delivery_count=2,
            max_dead_letter_length=1_000,
            on_event=alert,
        )
        queue.publish("poison")
        run_once(queue)
        run_once(queue)  # waits for the lease to end, and gets the same message

        queue.publish("harmless")
        time.sleep(LEASE_SECONDS)
        run_once(queue)  # the poison has had its two chances: it is put aside on the way to the next message

        # The list holds the payloads as they were published, the newest first; beside it is what is known of them.
        for letter in queue.records("dead_letters"):
            print(f"dead letter: {letter.payload}, delivered {letter.delivery_count} times")

        # Once the bug is mended, give it another chance, with a fresh delivery budget.
        summary = queue.redrive_dead_letters(where=lambda letter: letter.payload == "poison")
        print(f"{summary.redriven} message is pending again")
        queue.purge("pending")  # this bug will not be mended: leave nothing behind


if __name__ == "__main__":
    main()
