"""A shop on three queues: orders are checked, paid and confirmed by mail, and a killed worker charges nobody twice.

python shop.py                      place orders, start a worker for each queue, kill one of them, and count
python shop.py orders               one worker, until SIGTERM: orders, payments or mails
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any

from redis import Redis

from redis_message_queue import GracefulInterruptHandler, ReceivedMessage, RedisMessageQueue, RetryPolicy

ORDERS, TWICE, PRICE = 20, (3, 4), 10
# The card is declined; the bank does not answer twice; the worker dies.
DECLINED, SLOW_BANK, CRASH = 13, 5, 7
NAMES = ("orders", "payments", "mails")
# What the bank and the mail server know: requests and charges by order, mails by order.
ASKED, CHARGED, SENT = "shop:asked", "shop:charged", "shop:sent"


class CardDeclinedError(Exception):
    """The bank said no. To ask again would not help."""


class Shop:
    """The three queues, as every process of the shop opens them."""

    def __init__(self, client: Redis, **options: Any) -> None:
        policy = RetryPolicy(max_attempts=4, initial_delay_seconds=0.1, give_up_on=(CardDeclinedError,))
        # A short lease, so that you do not wait long for the killed worker. Heartbeats renew it.
        common = {
            "visibility_timeout_seconds": 1.5,
            "heartbeat_interval_seconds": 0.5,
            "retry_policy": policy,
        } | options
        self.client = client
        self.orders = RedisMessageQueue(
            "shop-orders",
            client=client,
            deduplication=True,
            get_deduplication_key=lambda order: str(order["id"]),
            **common,
        )
        self.payments = RedisMessageQueue("shop-payments", client=client, **common)
        self.mails = RedisMessageQueue("shop-mails", client=client, **common)

    def check(self, message: ReceivedMessage) -> None:
        """The handler of orders. The acknowledgement and the next message are one step, so none can be lost."""
        order = message.json()
        message.complete(publish=[(self.payments, {**order, "price": PRICE})])

    def charge(self, message: ReceivedMessage) -> None:
        """The handler of payments. It may run twice for an order, so the bank gets the order as an idempotency key."""
        order = message.json()
        if order["id"] == DECLINED:
            raise CardDeclinedError("card declined")
        if order["id"] == SLOW_BANK and message.attempt < 3:
            raise TimeoutError("the bank does not answer")
        asked = self.client.hincrby(ASKED, order["id"])
        self.client.hsetnx(CHARGED, order["id"], order["price"])  # the bank charges once for a key
        if order["id"] == CRASH and asked == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # after the charge, before the queue knows
        message.complete(publish=[(self.mails, {"to": order["customer"], "order": order["id"]})])

    def send(self, message: ReceivedMessage) -> None:
        """The handler of mails."""
        self.client.hincrby(SENT, message.json()["order"])

    def work(self, name: str) -> None:
        handler = {"orders": self.check, "payments": self.charge, "mails": self.send}[name]
        getattr(self, name).run(handler, concurrency=2, prefetch=4)

    def is_idle(self) -> bool:
        found = [getattr(self, name).stats(oldest=False) for name in NAMES]
        return not any(one.pending or one.processing or one.delayed for one in found)


def start(name: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, name], stderr=subprocess.DEVNULL)


def main(client: Redis) -> None:
    client.delete(ASKED, CHARGED, SENT)
    shop = Shop(client)
    numbers = [*range(1, ORDERS + 1), *TWICE]
    accepted = [shop.orders.publish({"id": number, "customer": f"customer {number}"}) for number in numbers]
    print(
        f"{len(numbers)} orders placed: {accepted.count(True)} accepted, {accepted.count(False)} suppressed as repeated"
    )

    workers = {name: start(name) for name in NAMES}
    workers["payments"].wait()
    print(
        f"the payments worker was killed (signal {-workers['payments'].returncode}) after it had charged order {CRASH}"
    )
    workers["payments"] = start("payments")
    while not shop.is_idle():
        time.sleep(0.05)
    for worker in workers.values():
        worker.terminate()
    print(f"all queues are empty; the workers stopped with status {[worker.wait() for worker in workers.values()]}")

    charged, sent = client.hgetall(CHARGED), client.hgetall(SENT)
    print(f"order {CRASH} was sent to the bank {client.hget(ASKED, CRASH)} times, with one idempotency key")
    print(f"{len(charged)} orders charged, {sum(map(int, charged.values()))} in all; {len(sent)} mails sent")
    for letter in shop.payments.records("dead_letters"):
        print(f"in the dead letters: {letter.payload} ({letter.error_type}: {letter.error})")
    shop.payments.purge("dead_letters")
    client.delete(ASKED, CHARGED, SENT, *(f"shop-orders::deduplication::{number}" for number in range(ORDERS + 1)))


if __name__ == "__main__":
    with Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), decode_responses=True) as redis:
        if sys.argv[1:]:
            Shop(redis, interrupt=GracefulInterruptHandler()).work(sys.argv[1])
        else:
            main(redis)
