"""What a type checker must know of typed queues; `make lint` checks this file, and a wrong line fails it."""

from dataclasses import dataclass
from typing import Any, assert_type

import redis_message_queue.asyncio
from redis_message_queue import ReceivedMessage, RedisMessageQueue


@dataclass
class Order:
    id: int


def typed(queue: RedisMessageQueue[Order], orders: list[Order]) -> None:
    queue.publish(orders[0], tenant="t")
    queue.publish({"id": 1})  # type: ignore[arg-type]  # not an Order
    queue.publish_many(orders)
    queue.schedule("s", every_seconds=60, message=orders[0])
    queue.schedule("s", every_seconds=60, message="text")  # type: ignore[arg-type]  # not an Order
    queue.tenant("t").publish(orders[0])
    with queue.process_messages(10) as batch:
        assert_type(batch[0], ReceivedMessage[Order])
        assert_type([one.payload.id for one in batch], list[int])
    current = queue.current_message()
    if current is not None:
        assert_type(current.payload, Order)


async def typed_async(queue: redis_message_queue.asyncio.RedisMessageQueue[Order], order: Order) -> None:
    await queue.publish(order)
    await queue.publish("text")  # type: ignore[arg-type]  # not an Order
    async with queue.process_messages(10) as batch:
        assert_type(batch[0].payload, Order)


def untyped(client: Any, message: ReceivedMessage) -> None:
    """As it was before there were types."""
    queue = RedisMessageQueue("orders", client=client)
    queue.publish("text")
    queue.publish({"id": 1})
    with queue.process_message() as payload:
        payload.upper()
    assert_type(message.payload, Any)
