"""The two ways to carry a message: the fewest redis-py calls that would do, and this library with its defaults."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import CommandFailedError

_LINE = '{"sku": "A-1000000", "quantity": 2, "price": 1999}'
_TEXT = f'{{"id": "%018d", "kind": "order", "customer": "c-000001", "paid": true, "lines": [{_LINE}, {_LINE}]}}'
PAYLOAD_BYTES = len(_TEXT % 0)
BATCH = 100


class Contender(Protocol):
    """Each verb gets the messages of a slice, and does all of them."""

    def publish(self, messages: list[str]) -> None: ...

    def consume(self, messages: list[str]) -> None: ...

    def publish_batch(self, messages: list[str]) -> None: ...

    def consume_batch(self, messages: list[str]) -> None: ...

    def run(self, messages: list[str]) -> None: ...


class Payloads:
    """Messages of 198 bytes, no two of them alike."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def take(self, count: int) -> list[str]:
        return [_TEXT % number for number in itertools.islice(self._numbers, count)]


class Raw:
    """A list to push to and a list of what is in hand: no leases, no fencing, nothing found again after a crash."""

    def __init__(self, node: Any, pending: str, processing: str) -> None:
        self._redis, self._pending, self._processing = node, pending, processing

    def publish(self, messages: list[str]) -> None:
        for message in messages:
            self._redis.lpush(self._pending, message)

    def consume(self, messages: list[str]) -> None:
        for _ in messages:
            taken = self._redis.lmove(self._pending, self._processing, "RIGHT", "LEFT")
            self._redis.lrem(self._processing, 1, taken)

    run = consume  # nobody prefetches by hand

    def publish_batch(self, messages: list[str]) -> None:
        for some in _pieces(messages):
            pipe = self._redis.pipeline(transaction=False)
            for message in some:
                pipe.lpush(self._pending, message)
            pipe.execute()

    def consume_batch(self, messages: list[str]) -> None:
        for some in _pieces(messages):
            pipe = self._redis.pipeline(transaction=False)
            for _ in some:
                pipe.lmove(self._pending, self._processing, "RIGHT", "LEFT")
            for message in pipe.execute():
                pipe.lrem(self._processing, 1, message)
            pipe.execute()


class Library:
    """The public API, with its defaults."""

    def __init__(self, queue: RedisMessageQueue) -> None:
        self._queue = queue

    def publish(self, messages: list[str]) -> None:
        for message in messages:
            self._queue.publish(message)

    def consume(self, messages: list[str]) -> None:
        for _ in messages:
            with self._queue.process_message() as message:
                _expect(message is not None)

    def publish_batch(self, messages: list[str]) -> None:
        for some in _pieces(messages):
            self._queue.publish_many(some)

    def consume_batch(self, messages: list[str]) -> None:
        for some in _pieces(messages):
            with self._queue.process_messages(len(some)) as batch:
                _expect(len(batch) == len(some))

    def run(self, messages: list[str]) -> None:
        summary = self._queue.run(lambda message: None, prefetch=BATCH, until_empty=True)
        _expect(summary.handled == len(messages))


def _pieces(messages: list[str]) -> Iterator[list[str]]:
    return (messages[at : at + BATCH] for at in range(0, len(messages), BATCH))


def _expect(fulfilled: bool) -> None:
    if not fulfilled:
        raise CommandFailedError("the queue of the benchmark ran empty: is somebody else at its messages?")
