"""Queues in the states that a person on call meets."""

import contextlib
from typing import Any

import redis

from redis_message_queue import RedisMessageQueue, RetryLater
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.testing.fast_forward import fast_forward

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202eevil{{7*7}}"
QUEUES = ["orders", "emails", "thumbnails", "payments", "reports", "invoices", "shipments", HOSTILE]


PARTITIONED = "events"
PARTITIONS = 4


class Crash(BaseException):
    """What a process dies of: the queue keeps its hands off the message."""


def open_queue(client: redis.Redis, name: str, **options: Any) -> RedisMessageQueue:
    return RedisMessageQueue(name, client=client, message_wait_interval_seconds=0, **options)


def crash_with(queue: RedisMessageQueue, messages: int) -> None:
    """Claim messages and die."""
    with contextlib.suppress(Crash), queue.process_messages(messages):
        raise Crash


def fail(queue: RedisMessageQueue, error: Exception) -> None:
    """Claim a message, and let its handler raise."""

    def handler(message: str | bytes) -> None:
        raise error

    with contextlib.suppress(type(error)):
        queue.process_message_callback(handler)


def fill(client: redis.Redis) -> None:
    """Make one queue for each state, the hostile one included."""
    orders = open_queue(client, "orders")
    orders.publish_many([{"order": number, "customer": "Ada"} for number in range(3)])
    crash_with(orders, 3)
    orders.publish_many([{"order": number} for number in range(3, 40)])
    fast_forward(client, 12 * 60, orders)

    emails = open_queue(client, "emails")
    emails.publish_many([{"to": f"user{number}@example.org"} for number in range(1_204)])
    emails.publish("tomorrow", delay_seconds=86_400)
    fast_forward(client, 4 * 60, emails)

    thumbnails = open_queue(client, "thumbnails", journal=True)
    for tenant, number in (("acme", 120), ("bolt", 30), ("café", 3)):
        thumbnails.publish_many([{"image": f"{tenant}-{place}.png"} for place in range(number)], tenant=tenant)
    for _ in range(5):
        thumbnails.process_message_callback(len)
    crash_with(thumbnails, 4)

    payments = open_queue(client, "payments", max_delivery_count=1, enable_failed_queue=True)
    payments.publish_many([{"payment": number, "amount": "12.50"} for number in range(6)])
    for _ in range(5):
        fail(payments, ValueError("no such customer"))
    fail(payments, TimeoutError("bank did not answer"))

    reports = open_queue(client, "reports")
    reports.publish_many(["a", "b", "c"])
    crash_with(reports, 1)
    key = QueueKeys.of("reports")
    client.hset(key.groups, mapping={"nightly": 300, "": 300})
    client.hset(key.group("nightly"), mapping={"epoch": 4, "sealed": 9, "acked": 7, "deadline": 1})

    reports.schedule("nightly", message={"report": "all"}, cron="0 3 29 2 *", timezone="Europe/Berlin")
    reports.schedule("pulse", message="beat", every_seconds=8_640_000, tenant="acme")

    invoices = open_queue(client, "invoices", enable_completed_queue=True)
    invoices.publish("one")
    invoices.process_message_callback(len)

    hostile = open_queue(client, HOSTILE, enable_failed_queue=True, journal=True)
    for _ in range(2):
        hostile.publish(HOSTILE, tenant=HOSTILE)
        fail(hostile, ValueError(HOSTILE))
    hostile.publish(HOSTILE, tenant=HOSTILE)
    hostile.publish({HOSTILE: HOSTILE})
    crash_with(hostile, 1)
    # Somebody else writes to the journal, too.
    for record in hostile.peek(10, source="failed"):
        client.xadd(hostile.key.journal, {"event": HOSTILE, "id": str(record.id), "of": HOSTILE, HOSTILE: HOSTILE})

    hostile.pause(tenant=HOSTILE)
    hostile.schedule(HOSTILE, message=HOSTILE, cron="0 3 29 2 *", timezone="Europe/Berlin", tenant=HOSTILE)

    shipments = open_queue(client, "shipments", journal=True, enable_failed_queue=True)
    shipments.publish({"shipment": 1, "to": "Zürich"}, tenant="acme")
    crash_with(shipments, 1)
    fast_forward(client, 301, shipments)
    with shipments.process_message():
        raise RetryLater(60) from TimeoutError("the carrier does not answer")
    fast_forward(client, 61, shipments)
    fail(shipments, ValueError("no such street"))


def fill_partitions(client: redis.Redis) -> RedisMessageQueue:
    """Make a queue with partitions: one is stuck, one has failures, one has tenants, one is empty."""
    queue = open_queue(client, PARTITIONED, partitions=PARTITIONS, journal=True, enable_failed_queue=True)
    first, second, third = (queue.partition(number) for number in range(3))
    first.publish_many([{"event": number} for number in range(40)])
    crash_with(first, 3)
    fast_forward(client, 12 * 60, first)
    second.publish_many([{"event": number} for number in range(100, 105)])
    for _ in range(2):
        fail(second, ValueError("no such event"))
    for tenant, number in (("acme", 12), ("bolt", 3)):
        third.publish_many([{"event": f"{tenant} {place}"} for place in range(number)], tenant=tenant)
    third.publish("tomorrow", delay_seconds=86_400)
    queue.schedule("nightly", message={"event": "night"}, cron="0 3 29 2 *")
    return queue
