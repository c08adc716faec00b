"""The events page, compared with the events that a queue really emits."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from docs.reference.events import EVENT_ROWS
from redis_message_queue import (
    CleanupFailedError,
    Discard,
    EventOperation,
    QueueBackpressureError,
    QueueEvent,
    RedisGateway,
    RedisMessageQueue,
    RetryBudgetExhaustedError,
    RetryPolicy,
)
from redis_message_queue.embedded import EmbeddedRedis

LEASE = 0.05
ALWAYS = ("queue", "operation", "outcome")

Kind = tuple[str, str, frozenset[str]]
MakeQueue = Callable[..., RedisMessageQueue]


class Recorder:
    """Receives events and records what the page says about each: operation, outcome, and which fields are set."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []

    def __call__(self, event: QueueEvent) -> None:
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        filled = frozenset(name for name, value in values.items() if value is not None and name not in ALWAYS)
        self.kinds.append((event.operation, event.outcome, filled))

    def waits_for(self, operation: EventOperation, outcome: str, seconds: float = 5) -> None:
        """A heartbeat emits its events in its own thread."""
        deadline = time.monotonic() + seconds
        while not any(kind[:2] == (operation, outcome) for kind in self.kinds):
            assert time.monotonic() < deadline, f"no {operation} event with outcome {outcome}"
            time.sleep(0.005)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def queue(client: redis.Redis, recorder: Recorder) -> MakeQueue:
    def make(name: str = "orders", client: redis.Redis = client, **options: Any) -> RedisMessageQueue:
        usual = {"visibility_timeout_seconds": 30, "message_wait_interval_seconds": 0}
        return RedisMessageQueue(name, client=client, on_event=recorder, **usual | options)

    return make


def documented(operation: EventOperation) -> set[Kind]:
    """The rows of the page for one operation."""
    return {(operation, row.outcome.value, frozenset(row.filled)) for row in EVENT_ROWS[operation]}


def take(queue: RedisMessageQueue) -> None:
    with queue.process_message():
        pass


def take_and_raise(queue: RedisMessageQueue) -> None:
    with contextlib.suppress(ValueError), queue.process_message():
        raise ValueError("the handler's own")


def take_and_die(queue: RedisMessageQueue) -> None:
    """Leaves a message unsettled, as a crash does."""
    with contextlib.suppress(SystemExit), queue.process_message():
        raise SystemExit


def test_the_page_lists_exactly_the_events_that_are_emitted(
    queue: MakeQueue, recorder: Recorder, client: redis.Redis, clean_server: EmbeddedRedis
) -> None:
    """All scenarios together emit every row of the table, and nothing else."""
    publish_and_handle(queue)
    fill_up(queue)
    crash(queue)
    find_what_cannot_be_read(queue, client, clean_server)
    come_too_late(queue)
    keep_alive(queue, client, recorder)
    fail_to_clean_up(queue, client, clean_server)
    try_again(queue)
    discard(queue)
    cancel(queue)
    requeue(queue)
    hand_on(queue)
    lose_the_server(recorder)
    for operation in EventOperation:
        emitted = {kind for kind in recorder.kinds if kind[0] == operation}
        assert emitted == documented(operation), operation


def test_the_events_of_a_handled_message_come_in_this_order(queue: MakeQueue, recorder: Recorder) -> None:
    """As the "before" and "after" of the page say."""
    kept = queue(visibility_timeout_seconds=LEASE, enable_completed_queue=True)
    kept.publish("a")
    take_and_die(kept)
    time.sleep(LEASE)
    take(kept)
    kept.publish("b")
    take_and_raise(kept)
    operations = [kind[0] for kind in recorder.kinds]
    assert operations == [
        *("publish", "claim"),
        *("claim_reclaim", "claim", "ack", "completed"),
        *("publish", "claim", "failed", "nack"),
    ]


def publish_and_handle(queue: MakeQueue) -> None:
    once = queue("once", deduplication=True, enable_completed_queue=True)
    for message in ("a", "a", "b"):
        once.publish(message)
    take(once)
    take_and_raise(once)
    take(once)  # finds nothing


def fill_up(queue: MakeQueue) -> None:
    full = queue("full", max_pending_length=1)
    full.publish("a")
    with pytest.raises(QueueBackpressureError):
        full.publish("b")
    newest = queue("newest", max_pending_length=1, pending_overload_policy="drop_oldest", max_delivery_count=None)
    newest.publish("a")
    newest.publish("b")


def crash(queue: MakeQueue) -> None:
    risky = queue("risky", visibility_timeout_seconds=LEASE, max_delivery_count=2)
    risky.publish("poison")
    for _ in range(2):
        take_and_die(risky)
        time.sleep(LEASE)
    take(risky)  # moves it to the dead letters


def find_what_cannot_be_read(queue: MakeQueue, client: redis.Redis, server: EmbeddedRedis) -> None:
    with server.client(decode_responses=True) as decoding:
        reading = queue("reading", client=decoding)
        reading.publish("x")
        stored: Any = client.lindex(reading.key.pending, 0)
        client.lset(reading.key.pending, 0, stored[:-1] + b"\xff")  # no longer text
        client.lpush(reading.key.pending, b"no message")
        take(reading)


def come_too_late(queue: MakeQueue) -> None:
    for end in (take, take_and_raise):
        slow, quick = (queue("late", visibility_timeout_seconds=LEASE) for _ in range(2))
        slow.publish("a")
        with contextlib.suppress(ValueError), slow.process_message():
            time.sleep(LEASE)
            take(quick)
            if end is take_and_raise:
                raise ValueError("too late as well")


def keep_alive(queue: MakeQueue, client: redis.Redis, recorder: Recorder) -> None:
    options = {"visibility_timeout_seconds": 10, "heartbeat_interval_seconds": 0.02}
    with handling(queue("beating", **options)):
        recorder.waits_for(EventOperation.LEASE_RENEW, "success")
    with handling(queue("tired", max_processing_seconds=0.01, **options)):
        recorder.waits_for(EventOperation.LEASE_RENEW, "skipped")
    robbed = queue("robbed", **options)
    with handling(robbed):
        client.zrem(robbed.key.leases, *client.zrange(robbed.key.leases, 0, -1))
        recorder.waits_for(EventOperation.STALE_LEASE_RENEW, "skipped")
    broken = queue("broken", **options)
    with handling(broken):
        client.rename(broken.key.leases, "aside")
        client.set(broken.key.leases, "not a sorted set")
        recorder.waits_for(EventOperation.LEASE_RENEW, "failure")
        client.rename("aside", broken.key.leases)


@contextlib.contextmanager
def handling(queue: RedisMessageQueue) -> Iterator[None]:
    queue.publish("a")
    with queue.process_message():
        yield


def fail_to_clean_up(queue: MakeQueue, client: redis.Redis, server: EmbeddedRedis) -> None:
    stuck = queue("stuck", enable_completed_queue=True)
    client.set(stuck.key.completed, "not a list")
    stuck.publish("a")
    with pytest.raises(CleanupFailedError):
        take(stuck)
    client.acl_setuser("no-scissors", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-ltrim"])
    with server.client(username="no-scissors", password="any") as blunt:
        growing = {"max_delivery_count": 1, "max_dead_letter_length": 1, "visibility_timeout_seconds": LEASE}
        crowded = queue("crowded", client=blunt, enable_completed_queue=True, max_completed_length=1, **growing)
        for _ in range(2):
            crowded.publish("a")
            take(crowded)
        for _ in range(2):
            crowded.publish("b")
            take_and_die(crowded)
            time.sleep(LEASE)
            take(crowded)
    client.acl_deluser("no-scissors")


def try_again(queue: MakeQueue) -> None:
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0)
    stubborn = queue("stubborn", retry_policy=policy)
    stubborn.publish("a")
    take_and_raise(stubborn)
    take_and_raise(stubborn)
    stubborn.redrive_dead_letters()


def discard(queue: MakeQueue) -> None:
    discarding = queue("discarded")
    discarding.publish("a")
    with discarding.process_message():
        raise Discard("not wanted")


def cancel(queue: MakeQueue) -> None:
    cancelling = queue("cancelled")
    cancelling.cancel(cancelling.submit("a", delay_seconds=60).id)
    cancelling.cancel(cancelling.submit("b").id)
    take(cancelling)


def requeue(queue: MakeQueue) -> None:
    many = queue("many")
    many.publish_many(["a", "b"])
    with contextlib.suppress(ValueError), many.process_messages(2):
        raise ValueError("not now")
    with contextlib.suppress(SystemExit):
        many.run(leave, prefetch=2)


def leave(message: object) -> None:
    raise SystemExit


def hand_on(queue: MakeQueue) -> None:
    first, second = queue("first"), queue("second")
    first.publish("a")
    with first.process_message():
        first.current_message().complete(publish=[(second, "b")])


def lose_the_server(recorder: Recorder) -> None:
    with redis.Redis(port=1, retry=Retry(NoBackoff(), 0)) as unreachable:
        gateway = RedisGateway(redis_client=unreachable, retry_budget_seconds=0.03)
        with pytest.raises(RetryBudgetExhaustedError):
            take(RedisMessageQueue("lost", gateway=gateway, on_event=recorder))


def test_heartbeat_events_come_from_the_heartbeat_thread(client: redis.Redis) -> None:
    """All other events come from the thread that does the work."""
    threads: dict[str, str] = {}

    def on_event(event: QueueEvent) -> None:
        threads[event.operation] = threading.current_thread().name

    queue = RedisMessageQueue(
        "orders", client=client, heartbeat_interval_seconds=0.02, visibility_timeout_seconds=10, on_event=on_event
    )
    queue.publish("a")
    with queue.process_message():
        while "lease_renew" not in threads:
            time.sleep(0.005)
    here = threading.current_thread().name
    assert threads.pop("lease_renew") != here
    assert set(threads.values()) == {here}
