"""Observe a queue: `on_event` receives everything that happens to messages, as it happens.

The callback runs in the thread that did the work (heartbeats have their own thread), so keep it short. If it raises,
the exception is logged, and the message is not affected. Events never contain payloads.
"""

import json
import os
from collections import Counter

from redis import Redis

from redis_message_queue import EventOperation, QueueEvent, RedisMessageQueue

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

events: Counter[tuple[str, str]] = Counter()
handling_seconds: list[float] = []


def observe(event: QueueEvent) -> None:
    # Operation, outcome and exception type have few values and make good labels for a metric. Ids do not.
    events[event.operation, event.outcome] += 1
    if event.operation == EventOperation.ACK and event.duration_seconds is not None:
        handling_seconds.append(event.duration_seconds)
    if event.error is not None:
        # All events of a message have the same id.
        print(f"{event.operation} of message {event.message_id}: {event.exception_type}")


def main() -> None:
    with Redis.from_url(REDIS_URL, decode_responses=True) as client:
        queue = RedisMessageQueue(
            "observability",
            client=client,
            deduplication=True,
            get_deduplication_key=lambda message: f"run-{os.getpid()}-{message['order']}",
            on_event=observe,
        )
        for order in (1, 2, 3, 3):
            queue.publish({"order": order})

        for _ in range(3):
            try:
                with queue.process_message() as message:
                    if json.loads(message)["order"] == 2:
                        raise ValueError("no such article")
            except ValueError as error:
                print(f"the handler's own exception arrives as usual: {error}")

    for (operation, outcome), count in sorted(events.items()):
        print(f"{operation:<18} {outcome:<8} {count}")
    print(f"slowest of {len(handling_seconds)} handled messages: {max(handling_seconds) * 1000:.1f} ms")


if __name__ == "__main__":
    main()
