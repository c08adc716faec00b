"""A consumer process: handles orders until SIGTERM, and keeps a diary beside the queue."""

import json
import os
import random
import signal
import time

import redis

from redis_message_queue import GracefulInterruptHandler
from redis_message_queue.cli.demo.crew import report_for_duty
from redis_message_queue.cli.demo.plan import DIARY, SLOW_SECONDS, Plan, open_client, open_queue

# How long a handler waits for the SIGKILL that the story has for it; far more than the story needs.
_PATIENCE_SECONDS = 30.0


class Consumer:
    """Handles one order after the other."""

    def __init__(self, plan: Plan, number: int, client: redis.Redis) -> None:
        self._plan, self._number, self._client = plan, number, client
        self._interrupt = GracefulInterruptHandler([signal.SIGTERM])  # what the crew sends
        self._queue = open_queue(client, interrupt=self._interrupt)
        self._chance = random.Random(f"{plan.seed} consumer {number}")

    def run(self) -> None:
        """Until SIGTERM; the order in hand is finished first."""
        while not self._interrupt.is_interrupted():
            self._queue.process_message_callback(self.handle)

    def handle(self, payload: str) -> None:
        """One order, and what a diary needs to prove it."""
        message = self._queue.current_message()
        assert message is not None
        order = json.loads(payload)["order"]
        self._write("began", order, message.delivery_count)
        self._work(order, message.delivery_count)
        if message.lease_lost:  # somebody else has it by now, and will finish it
            return
        self._write("finished", order, message.delivery_count)

    def _work(self, order: int, delivery: int) -> None:
        if order == self._plan.poison:
            os._exit(1)  # no exception that could be caught, as a fault in a C extension would do it
        if order == self._plan.doomed and delivery == 1:
            time.sleep(_PATIENCE_SECONDS)
        elif order == self._plan.slow:
            time.sleep(SLOW_SECONDS)
        else:
            time.sleep(self._plan.seconds_an_order * self._chance.uniform(0.5, 1.5))

    def _write(self, event: str, order: int, delivery: int) -> None:
        entry = {"event": event, "order": order, "delivery": delivery, "consumer": self._number}
        self._client.rpush(DIARY, json.dumps(entry))


if __name__ == "__main__":
    plan, number = report_for_duty()
    with open_client(plan) as client:
        Consumer(plan, number, client).run()
