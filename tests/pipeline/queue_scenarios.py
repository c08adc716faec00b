"""Queues with a journal that live through everything which a journal tells of."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import redis

from redis_message_queue import RedisMessageQueue, RetryPolicy

Event = dict[str, Any]
NUMBERS = ("n", "at", "count", "due", "failures", "results", "first")
EVENTS = frozenset(
    [
        "published",
        "duplicate",
        "delayed",
        "claimed",
        "reclaimed",
        "acked",
        "handed_off",
        "failed",
        "dead",
        "expired",
        "retried",
        "requeued",
        "dropped",
        "redriven",
        "purged",
        "deleted",
        "gap",
    ]
)
LEASE = 0.2  # seconds, for a message whose holder is dead


def told(client: "redis.Redis", queue: str = "orders") -> list[Event]:
    """The journal as the queue wrote it, numbers as numbers; what an entry leaves out is left out."""
    entries = client.xrange(f"{queue}::journal")
    texts = [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]
    return [{name: int(value) if name in NUMBERS else value for name, value in one.items()} for one in texts]


class QueueScenario:
    """One queue under all the rules that its participants may have, each with an object of its own."""

    def __init__(self, client: "redis.Redis", journal: Any = True, queue: str = "orders", **more: Any) -> None:
        self._client, self._journal, self._queue, self._more = client, journal, queue, more
        self.queue = self.under(deduplication=True, enable_completed_queue=True)

    def under(self, **rules: Any) -> RedisMessageQueue:
        usual = {"message_wait_interval_seconds": 10, "journal": self._journal}
        return RedisMessageQueue(self._queue, client=self._client, **usual | self._more | rules)

    def everything(self) -> RedisMessageQueue:
        """Each event at least once, and at the end one message waiting, one delayed and one in flight."""
        for step in (self.handle, self.fail, self.retry, self.requeue, self.lose_leases, self.die_and_return):
            step()
        for step in (self.expire, self.drop, self.hand_off, self.purge, self.leave_some):
            step()
        return self.queue

    # -- steps; each leaves nothing that waits or is in flight

    def take(self, queue: RedisMessageQueue, count: int = 100, act: Callable[[Any], Any] = lambda batch: None) -> int:
        """How many were there within two leases."""
        with queue.process_messages(count, wait_seconds=2 * LEASE) as batch:
            act(batch)
            return len(batch)

    def handle(self) -> None:
        self.queue.publish("one")
        self.queue.publish("one")  # a duplicate
        self.queue.publish_many(["two", "three", "two"], tenant="acme")
        self.queue.publish("later", tenant="globex", delay_seconds=0.05)
        taken = 0
        while taken < 4:
            taken += self.take(self.queue)

    def fail(self) -> None:
        for kept in (True, False):
            queue = self.under(enable_failed_queue=kept)
            queue.publish("bad", tenant="acme")
            with contextlib.suppress(KeyError), queue.process_message():
                raise KeyError("secret")

    def retry(self) -> None:
        queue = self.under(retry_policy=RetryPolicy(max_attempts=3, initial_delay_seconds=0.01, jitter=0))
        queue.publish("third time lucky")
        for error in (ValueError, TimeoutError):
            with contextlib.suppress(error), queue.process_message():
                raise error("secret")
        self.take(queue)
        queue.publish("hopeless", tenant="globex")
        for _ in range(3):
            with contextlib.suppress(ValueError), queue.process_message():
                raise ValueError("secret")

    def requeue(self) -> None:
        self.queue.publish_many(["back 1", "back 2"])
        with contextlib.suppress(RuntimeError), self.queue.process_messages(2):
            raise RuntimeError("not now")
        assert self.take(self.queue) == 2

    def abandon(self, *messages: str, tenant: str | None = None, **rules: Any) -> RedisMessageQueue:
        """Somebody took these messages and is gone, and his lease runs out."""
        queue = self.under(visibility_timeout_seconds=LEASE, **rules)
        queue.publish_many(messages, tenant=tenant)
        queue.process_messages(len(messages)).__enter__()
        return queue

    def lose_leases(self) -> None:
        queue = self.abandon("lost 1", "lost 2")
        taken = 0
        while taken < 2:
            taken += self.take(queue)
        assert self.take(self.abandon("lost 3", tenant="acme")) == 1

    def die_and_return(self) -> None:
        """Too many deliveries; then an operator sends what is dead back, and it is handled."""
        queue = self.abandon("poison", max_delivery_count=1)
        queue.publish("cure")
        while queue.stats().processing or queue.stats().pending:
            self.take(queue)
        dead = queue.stats().dead_letters
        assert queue.redrive_dead_letters().redriven == dead
        handled = 0
        while handled < dead:
            handled += self.take(queue)

    def expire(self) -> None:
        queue = self.under(message_ttl_seconds=0.001)
        queue.publish("stale", tenant="acme")
        time.sleep(0.002)
        while queue.stats().pending:
            self.take(queue)

    def drop(self) -> None:
        queue = self.under(max_pending_length=2, pending_overload_policy="drop_oldest", max_delivery_count=None)
        queue.publish_many(["old", "new"])
        queue.publish("newest")
        assert self.take(queue) == 2

    def hand_off(self) -> None:
        self.queue.publish("raw")
        results = RedisMessageQueue("results", client=self._client, journal=self._journal)
        self.take(self.queue, 1, lambda batch: batch[0].complete(publish=[(results, "a"), (results, "b")]))

    def purge(self) -> None:
        self.queue.publish_many(["p1", "p2"])
        self.queue.publish_many(["p3"], tenant="acme")
        self.queue.purge("pending")
        self.queue.publish_many(["p4", "p5"], tenant="globex")
        self.queue.tenant("globex").delete()
        self.queue.publish("p6", delay_seconds=3600)
        self.queue.purge("delayed")
        lasting = self.under(visibility_timeout_seconds=None)
        lasting.publish("p7")
        lasting.process_messages(1).__enter__()
        self.queue.purge("orphans")
        for target in ("completed", "failed", "dead_letters"):
            self.under(enable_failed_queue=True).purge(target)

    def leave_some(self) -> None:
        self.queue.publish("in flight", tenant="acme")
        self.under(visibility_timeout_seconds=3600).process_messages(1).__enter__()
        self.queue.publish("waiting")
        self.queue.publish("much later", delay_seconds=3600)
