"""An export service for many customers: a large customer cannot hold up a small one, and a flood is refused."""

import os

from redis import Redis

from redis_message_queue import QueueBackpressureError, ReceivedMessage, RedisMessageQueue

LIMIT = 200  # exports of one customer that may wait


class Exports:
    """The service: customers ask for exports, a worker makes them."""

    def __init__(self, client: Redis) -> None:
        self.queue = RedisMessageQueue(
            "exports",
            client=client,
            max_pending_per_tenant=LIMIT,
            tenant_weights={"premium": 3},  # pays for three turns
            heartbeat_interval_seconds=20,
            visibility_timeout_seconds=60,
            message_wait_interval_seconds=0.1,
        )
        self.made: list[str] = []

    def ask(self, customer: str, count: int) -> int:
        """Ask for exports. Returns how many were accepted."""
        for number in range(count):
            try:
                self.queue.publish({"table": f"orders {number}"}, tenant=customer)
            except QueueBackpressureError:
                return number  # a web application answers 429 here
        return count

    def make(self, message: ReceivedMessage) -> None:
        self.made.append(str(message.tenant))

    def last_of(self, customer: str) -> int:
        return len(self.made) - self.made[::-1].index(customer)


def main(client: Redis) -> None:
    service = Exports(client)
    for customer, count in {"huge": 1000, "small": 3, "premium": 9}.items():
        print(f"{customer} asks for {count} exports: {service.ask(customer, count)} accepted")
    print(f"waiting: {dict(sorted(service.queue.tenants().items()))}")

    gone = service.queue.tenant("huge").delete()
    print(f"huge cancels, {gone} exports are removed, and asks for {service.ask('huge', 50)} others")
    summary = service.queue.run(service.make, until_empty=True)
    print(f"{summary.handled} exports made, {summary.dead_lettered} in the dead letters")
    for customer in ("small", "premium", "huge"):
        print(f"{customer}: its last export was number {service.last_of(customer)}")


if __name__ == "__main__":
    with Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), decode_responses=True) as redis:
        main(redis)
