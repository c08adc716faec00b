"""A custom gateway: the rules of the queue on a store that is not Redis, here a few lists in this process.

Use it in tests that must not need a server, or as a model for a gateway to another store. It implements the whole
contract: it leases the messages it returns, and nobody can settle or renew a message after losing its lease.
"""

import itertools
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass

from redis_message_queue import (
    AbstractRedisGateway,
    BaseGracefulInterruptHandler,
    ClaimedMessage,
    RedisMessageQueue,
)


@dataclass
class Held:
    """A message that a consumer holds."""

    message: str
    queue: str  # where it came from
    deadline: float
    deliveries: int


class InMemoryGateway(AbstractRedisGateway):
    """Keeps lists, leases and dead letters in memory, for the threads of one process."""

    message_visibility_timeout_seconds: float
    max_delivery_count: int
    dead_letter_queue: str

    def __init__(self, *, lease_seconds: float = 30, most_deliveries: int = 3, wait_seconds: float = 0.1) -> None:
        self.message_visibility_timeout_seconds = lease_seconds
        self.max_delivery_count = most_deliveries
        self.dead_letter_queue = "dead letters"
        self.lists: dict[str, deque[str]] = defaultdict(deque)  # newest on the left, as in Redis
        self._wait_seconds = wait_seconds
        self._held: dict[str, Held] = {}
        self._published: set[str] = set()
        self._tokens = itertools.count(1)
        self._changed = threading.Condition()

    def publish_message(self, queue: str, message: str, dedup_key: str) -> bool:
        with self._changed:
            if dedup_key in self._published:
                return False
            self._published.add(dedup_key)
            self.add_message(queue, message)
            return True

    def add_message(self, queue: str, message: str) -> None:
        with self._changed:
            self.lists[queue].appendleft(message)
            self._changed.notify()

    def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | None:
        with self._changed:
            give_up = time.monotonic() + self._wait_seconds
            while (claimed := self._expired(from_queue) or self._next(from_queue)) is None:
                left = give_up - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return claimed

    def _expired(self, queue: str) -> ClaimedMessage | None:
        """Claim a message whose lease has expired; move those with too many deliveries to the dead letters."""
        for token, held in list(self._held.items()):
            if held.queue != queue or held.deadline > time.monotonic():
                continue
            del self._held[token]
            if held.deliveries < self.max_delivery_count:
                return self._lease(held.message, queue, held.deliveries + 1)
            self.lists[self.dead_letter_queue].appendleft(held.message)
        return None

    def _next(self, queue: str) -> ClaimedMessage | None:
        return self._lease(self.lists[queue].pop(), queue, 1) if self.lists[queue] else None

    def _lease(self, message: str, queue: str, deliveries: int) -> ClaimedMessage:
        token = f"lease {next(self._tokens)}"
        deadline = time.monotonic() + self.message_visibility_timeout_seconds
        self._held[token] = Held(message, queue, deadline, deliveries)
        return ClaimedMessage(stored_message=message, lease_token=token)

    def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> bool:
        with self._changed:
            return self._held.pop(lease_token or "", None) is not None

    def move_message(
        self, from_queue: str, to_queue: str, message: str | bytes, *, lease_token: str | None = None
    ) -> bool:
        with self._changed:
            held = self._held.pop(lease_token or "", None)
            if held is not None:
                self.lists[to_queue].appendleft(held.message)
            return held is not None

    def renew_message_lease(
        self,
        queue: str,
        message: str | bytes,
        lease_token: str,
        *,
        is_interrupted: BaseGracefulInterruptHandler | None = None,
    ) -> bool:
        with self._changed:
            held = self._held.get(lease_token)
            if held is not None:
                held.deadline = time.monotonic() + self.message_visibility_timeout_seconds
            return held is not None

    def trim_queue(self, queue: str, max_length: int) -> None:
        with self._changed:
            while len(self.lists[queue]) > max_length:
                self.lists[queue].pop()


def main() -> None:
    gateway = InMemoryGateway(lease_seconds=0.2, most_deliveries=2)
    queue = RedisMessageQueue("jobs", gateway=gateway, deduplication=True, enable_completed_queue=True)
    for job in ("job 1", "job 2", "job 1"):
        print(f"{job}: {'accepted' if queue.publish(job) else 'seen before'}")

    with queue.process_message() as message:
        print(f"handled: {message}")
    print(f"completed: {list(gateway.lists[queue.key.completed])}")

    for _ in range(2):  # the consumer dies twice: each time the lease expires, and the message comes back
        gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing)
        time.sleep(0.25)
    with queue.process_message() as message:
        print(f"after two crashes: {message}, dead letters: {list(gateway.lists['dead letters'])}")


if __name__ == "__main__":
    main()
