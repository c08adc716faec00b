"""A producer process: publishes every order, again and again, as an upstream with retries would."""

import json
import random
import time

import redis

from redis_message_queue.cli.demo.crew import report_for_duty
from redis_message_queue.cli.demo.plan import ANSWERS, ROUNDS, Plan, open_client, open_queue


def publish_all(plan: Plan, number: int, client: redis.Redis) -> None:
    """Every order of the plan, and beside it what publish() answered."""
    queue = open_queue(client)
    chance = random.Random(f"{plan.seed} producer {number}")
    for attempt in range(1, ROUNDS + 1):
        for order in range(1, plan.orders + 1):
            message = {"order": order, "producer": number, "attempt": attempt}
            accepted = queue.publish(message, tenant=plan.customer(order))
            client.rpush(ANSWERS, json.dumps({"order": order, "accepted": accepted}))
            time.sleep(plan.seconds_a_publish * chance.uniform(0, 2))


if __name__ == "__main__":
    plan, number = report_for_duty()
    with open_client(plan) as client:
        publish_all(plan, number, client)
