"""What the demo plays, as every process of it knows it."""

import json
import random
from dataclasses import asdict, dataclass
from typing import Any, Self

import redis

from redis_message_queue import RedisMessageQueue

PRODUCERS = 2
ROUNDS = 2  # every producer publishes every order this often
CONSUMERS = 3

LEASE_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.5
MAX_DELIVERIES = 3
SLOW_SECONDS = 1.5 * LEASE_SECONDS

QUEUE = "orders"
CUSTOMERS = ("north", "south", "west")  # whose orders take turns

# Beside the queue, so that the balance need not believe the queue: what publish() answered the producers, and
# what the handlers began and finished.
ANSWERS = "demo::answers"
DIARY = "demo::diary"


@dataclass(frozen=True, slots=True)
class Plan:
    """The orders 1 to `orders`, three of which make trouble."""

    url: str
    orders: int
    seed: int
    poison: int  # crashes every process that handles it
    doomed: int  # the first consumer that handles it is killed in the middle of it
    slow: int  # takes longer than its lease

    @classmethod
    def draw(cls, url: str, orders: int, seed: int) -> Self:
        """The same seed draws the same trouble, and early enough to leave time to recover from it."""
        early = range(1, max(3, orders * 2 // 3) + 1)
        return cls(url, orders, seed, *sorted(random.Random(seed).sample(early, 3)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def customer(self, order: int) -> str:
        """Half of the orders are of one, so that taking turns shows."""
        return CUSTOMERS[0] if order % 2 else CUSTOMERS[1 + order // 2 % 2]

    @property
    def seconds_an_order(self) -> float:
        """On average, so that the consumers are busy for about ten seconds in all."""
        return min(0.1, 10 * CONSUMERS / self.orders)

    @property
    def seconds_a_publish(self) -> float:
        """On average, so that a producer takes about five seconds."""
        return min(0.02, 5 / (ROUNDS * self.orders))


def open_client(plan: Plan) -> redis.Redis:
    """A client of the demo's server."""
    return redis.Redis.from_url(plan.url, decode_responses=True)


def open_queue(client: redis.Redis, **more: Any) -> RedisMessageQueue:
    """The queue as all of them open it: an order is known by its number, whoever sends it."""
    return RedisMessageQueue(
        QUEUE,
        client=client,
        deduplication=True,
        get_deduplication_key=lambda message: f"order-{message['order']}",
        visibility_timeout_seconds=LEASE_SECONDS,
        heartbeat_interval_seconds=HEARTBEAT_SECONDS,
        max_delivery_count=MAX_DELIVERIES,
        enable_completed_queue=True,
        max_completed_length=None,  # the balance counts all of them
        enable_failed_queue=True,
        max_failed_length=None,
        journal=True,
        **more,
    )
