"""A sample application for type checkers: `make lint` checks this file with mypy, and `make pyright` with pyright.

A line with `type: ignore` is a mistake that a checker must see: if it does not, it reports the comment as unused.
"""

from dataclasses import dataclass
from typing import Any, assert_type

import redis

import redis_message_queue.asyncio as rmq
from redis_message_queue import ReceivedMessage, RedisMessageQueue, RunSummary, run_queues


@dataclass
class Order:
    id: int


def charge(message: ReceivedMessage[Order]) -> None:
    assert_type(message.payload, Order)


def charge_all(messages: list[ReceivedMessage[Order]]) -> int:
    return sum(message.payload.id for message in messages)


def print_text(message: ReceivedMessage) -> None:
    assert_type(message.payload, str | bytes)


def wrong_argument(message: str) -> None: ...


def no_argument() -> None: ...


async def charge_later(message: rmq.ReceivedMessage[Order]) -> int:
    await message.complete()
    return message.payload.id


async def charge_all_later(messages: list[rmq.ReceivedMessage[Order]]) -> None: ...


def producer(queue: RedisMessageQueue[Order], orders: list[Order]) -> None:
    queue.publish(orders[0], tenant="t")
    queue.publish("text")  # type: ignore[arg-type]  # not an Order
    queue.publish_many(orders)
    queue.schedule("s", every_seconds=60, message=orders[0])
    queue.schedule("s", every_seconds=60, message="text")  # type: ignore[arg-type]  # not an Order
    queue.tenant("t").publish(orders[0])


def consumer(queue: RedisMessageQueue[Order]) -> None:
    assert_type(queue.run(charge, concurrency=4, until_empty=True), RunSummary)
    queue.run(charge_all, batch_size=10, batch_seconds=1.0, prefetch=20)
    queue.run(lambda message: message.payload.id)
    queue.run(lambda messages: messages[0].payload.id, batch_size=10)
    queue.run(wrong_argument)  # type: ignore[arg-type]
    queue.run(no_argument)  # type: ignore[arg-type]
    queue.run(print_text)  # type: ignore[arg-type]  # for a queue without a codec
    queue.run(charge, batch_size=10)  # type: ignore[arg-type]  # called with a list
    queue.run(charge_all)  # type: ignore[arg-type]  # called with one message
    queue.run(charge, concurency=4)  # type: ignore[call-overload]  # misspelt
    with queue.process_message() as order:
        assert_type(order, Order | None)
    with queue.process_messages(10) as batch:
        assert_type(batch[0], ReceivedMessage[Order])
        assert_type([one.payload.id for one in batch], list[int])
    queue.process_message_callback(lambda order: order.id)
    queue.process_message_callback(wrong_argument)  # type: ignore[arg-type]
    current = queue.current_message()
    if current is not None:
        assert_type(current.payload, Order)


async def asyncio_consumer(queue: rmq.RedisMessageQueue[Order], order: Order) -> None:
    await queue.publish(order)
    await queue.publish("text")  # type: ignore[arg-type]  # not an Order
    assert_type(await queue.run(charge_later, until_empty=True), RunSummary)
    await queue.run(charge_all_later, batch_size=10)
    await queue.run(lambda message: message.payload.id)
    await queue.run(charge_later, batch_size=10)  # type: ignore[arg-type]  # called with a list
    await queue.run(wrong_argument)  # type: ignore[arg-type]
    async with queue.process_message() as received:
        assert_type(received, Order | None)
    async with queue.process_messages(10) as batch:
        assert_type(batch[0].payload, Order)


def without_codec(client: redis.Redis) -> None:
    """The payload is text or bytes, as the client decodes. Whoever knows which can say so."""
    queue = RedisMessageQueue("orders", client=client)
    queue.publish("text")
    queue.publish({"id": 1})
    queue.run(print_text)
    queue.run(lambda message: print(message.json()["id"]))
    queue.run(charge)  # type: ignore[arg-type]  # for a queue of orders
    with queue.process_message() as payload:
        assert_type(payload, str | bytes | None)
    texts = RedisMessageQueue[str]("texts", client=client)
    texts.run(lambda message: message.payload.upper())


def several(orders: RedisMessageQueue[Order], mails: RedisMessageQueue, client: Any) -> None:
    assert_type(run_queues({orders: charge, mails: (print_text, 3)}), list[RunSummary])
    bulk = RedisMessageQueue[Order]("bulk", client=client, codec=Order)
    run_queues({orders: 3, bulk: 1}, charge, concurrency=4)
    run_queues({orders: 1}, charge_all, batch_size=10)
    run_queues({orders: 1}, charge_all)  # type: ignore[arg-type]  # called with one message
    run_queues({orders: 1}, print_text)  # type: ignore[arg-type]  # for a queue without a codec


async def several_for_asyncio(orders: rmq.RedisMessageQueue[Order]) -> None:
    await rmq.run_queues({orders: 1}, charge_later)
    await rmq.run_queues({orders: charge_later}, prefetch=10)
    await rmq.run_queues({orders: 1}, charge_later, batch_size=3)  # type: ignore[arg-type]  # called with a list
