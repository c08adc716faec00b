"""Use dead letters: set aside a message that crashes every consumer, and continue with the others.

An exception in a handler is not a crash: that message is removed as failed (and kept, with `enable_failed_queue`). In a
crash, the process dies and nobody settles the message. Its lease expires, and it is delivered again, up to
`max_delivery_count` times. Then it goes to the dead letters, where you can look at it.
"""

import os
import time

from redis import Redis

from redis_message_queue import EventOperation, QueueEvent, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

LEASE_SECONDS = 0.5  # in production, use minutes


def alert(event: QueueEvent) -> None:
    if event.operation == EventOperation.DLQ:
        print(f"alert: a message went to the dead letters after {event.delivery_count} deliveries")


def handle(message: str) -> None:
    print(f"handling: {message}")
    if message == "poison":
        raise SystemExit(1)  # the process dies in the middle of its work


def run_once(queue: RedisMessageQueue) -> None:
    """Stand in for a process that a supervisor restarts after a crash."""
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
        run_once(queue)  # waits until the lease expires, and gets the same message

        queue.publish("harmless")
        time.sleep(LEASE_SECONDS)
        run_once(queue)  # the poison was delivered twice: the claim moves it to the dead letters

        # The list holds the payloads as they were published, the newest first. Each has a record beside it.
        for letter in queue.records("dead_letters"):
            print(f"dead letter: {letter.payload}, delivered {letter.delivery_count} times")

        # After you have fixed the bug, redrive the message. It starts with a fresh delivery count.
        summary = queue.redrive_dead_letters(where=lambda letter: letter.payload == "poison")
        print(f"{summary.redriven} message is pending again")
        queue.purge("pending")  # nobody fixes this bug: leave nothing behind


if __name__ == "__main__":
    main()
