"""How the parent and the child use a queue."""

from typing import Any

import redis

from redis_message_queue import RedisMessageQueue


def make_queue(client: redis.Redis, **options: Any) -> RedisMessageQueue:
    """A queue that keeps handled messages, does not wait, and has leases longer than any test."""
    usual = {
        "enable_completed_queue": True,
        "enable_failed_queue": True,
        "max_completed_length": None,
        "message_wait_interval_seconds": 0,
        "visibility_timeout_seconds": 300,
    }
    return RedisMessageQueue("forks", client=client, **usual | options)


def take(queue: RedisMessageQueue) -> Any:
    """Claim a message and ack it."""
    with queue.process_message() as message:
        return message


def use(queue: RedisMessageQueue) -> None:
    """Publish and claim, so that the client has open connections and the queue has callers."""
    queue.publish("before the fork")
    assert take(queue) == b"before the fork"


def serve_oneself(queue: RedisMessageQueue) -> list[Any]:
    """Publish, and consume until that message comes. Returns what was handled here."""
    assert queue.publish("of the child") is True
    handled: list[Any] = []
    while b"of the child" not in handled:
        handled.append(take(queue))
        assert handled[-1] is not None
    return handled
