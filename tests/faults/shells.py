"""The four ways in which a queue reaches Redis, behind one blocking interface, so that one test covers them all."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncioRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

import redis_message_queue
import redis_message_queue.asyncio
from tests.concurrency import LIMIT_SECONDS, start

# Short pauses, so that two faults take 20 ms; no wait for a message; a lease that outlasts every test.
QUICK = {
    "retry_budget_seconds": 20,
    "retry_initial_delay_seconds": 0.005,
    "retry_max_delay_seconds": 0.05,
    "message_wait_interval_seconds": 0,
    "message_visibility_timeout_seconds": 300,
}


class OrdinaryRedis(redis.Redis):
    """A subclass, so that commands are sent by redis-py itself."""


class OrdinaryAsyncioRedis(redis.asyncio.Redis):
    """The same for asyncio."""


def nothing(message: Any) -> None:
    """A handler that does nothing."""


def _idle() -> bool:
    return False


def _outcomes(futures: list[Future[Any]]) -> list[Any]:
    return [future.exception(LIMIT_SECONDS) or future.result() for future in futures]


async def _gather(work: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*work, return_exceptions=True)


class BlockingShell:
    """The sync queue."""

    queue_class: Any = redis_message_queue.RedisMessageQueue
    gateway_class: Any = redis_message_queue.RedisGateway
    retry_class: Any = Retry

    def __init__(self, port: int, client_class: Any) -> None:
        self.port = port
        self.client_class = client_class
        self.packs_by_hand = client_class is redis.Redis
        self._clients: list[Any] = []

    def client(self, **options: Any) -> Any:
        """A client that repeats nothing by itself, unless the options say so."""
        usual = {"host": "127.0.0.1", "port": self.port, "socket_timeout": 5, "retry": self.retry_class(NoBackoff(), 0)}
        if "connection_pool" in options:
            usual = {}
        client = self.client_class(**usual | options)
        self._clients.append(client)
        return client

    def queue(self, client: Any = None, gateway: dict[str, Any] | None = None, **options: Any) -> Any:
        settings = QUICK | (gateway or {})
        made = self.gateway_class(redis_client=client or self.client(), **settings)
        return self.queue_class("faults", gateway=made, **options)

    def publish(self, queue: Any, message: Any) -> bool:
        return queue.publish(message)

    def process(self, queue: Any, handler: Callable[[Any], Any] = nothing, busy: Callable[[], bool] = _idle) -> Any:
        """Handle one message, for as long as `busy` says. Returns the payload, or None."""
        with queue.process_message() as message:
            if message is not None:
                handler(message)
                deadline = time.monotonic() + LIMIT_SECONDS
                while busy():
                    assert time.monotonic() < deadline, "the handler waits for something that does not happen"
                    time.sleep(0.005)
            return message

    def publish_together(self, queue: Any, messages: list[Any]) -> list[Any]:
        """Publish all messages at the same time. Returns the results, with exceptions as values."""
        return _outcomes([start(queue.publish, message) for message in messages])

    def process_together(self, queue: Any, consumers: int) -> list[Any]:
        """Run consumers of one queue object at the same time. Returns payloads, with exceptions as values."""
        return _outcomes([start(BlockingShell.process, self, queue) for _ in range(consumers)])

    def command(self, client: Any, *words: Any) -> Any:
        """A command of the user."""
        return client.execute_command(*words)

    def close(self) -> None:
        for client in self._clients:
            client.close()
            client.connection_pool.disconnect()  # a client does not close a pool that it did not create


class AsyncioShell(BlockingShell):
    """The async queue, on an event loop that lives as long as the test."""

    queue_class = redis_message_queue.asyncio.RedisMessageQueue
    gateway_class = redis_message_queue.asyncio.RedisGateway
    retry_class = AsyncioRetry

    def __init__(self, port: int, client_class: Any) -> None:
        super().__init__(port, client_class)
        self.packs_by_hand = client_class is redis.asyncio.Redis
        self.runner = asyncio.Runner()

    def publish(self, queue: Any, message: Any) -> bool:
        return self.runner.run(queue.publish(message))

    def process(self, queue: Any, handler: Callable[[Any], Any] = nothing, busy: Callable[[], bool] = _idle) -> Any:
        return self.runner.run(self.processing(queue, handler, busy))

    async def processing(
        self, queue: Any, handler: Callable[[Any], Any] = nothing, busy: Callable[[], bool] = _idle
    ) -> Any:
        """The coroutine behind `process`, for a test that makes its own task."""
        async with queue.process_message() as message:
            if message is not None:
                handler(message)
                deadline = time.monotonic() + LIMIT_SECONDS
                while busy():
                    assert time.monotonic() < deadline, "the handler waits for something that does not happen"
                    await asyncio.sleep(0.005)
            return message

    def publish_together(self, queue: Any, messages: list[Any]) -> list[Any]:
        return self.runner.run(_gather([queue.publish(message) for message in messages]))

    def process_together(self, queue: Any, consumers: int) -> list[Any]:
        return self.runner.run(_gather([self.processing(queue) for _ in range(consumers)]))

    def command(self, client: Any, *words: Any) -> Any:
        return self.runner.run(client.execute_command(*words))

    def close(self) -> None:
        async def close_all() -> None:
            for client in self._clients:
                await client.aclose()
                await client.connection_pool.disconnect()

        with self.runner:
            self.runner.run(close_all())


WAYS: dict[str, Callable[[int], BlockingShell]] = {
    "sync-packed": lambda port: BlockingShell(port, redis.Redis),
    "sync-ordinary": lambda port: BlockingShell(port, OrdinaryRedis),
    "asyncio-packed": lambda port: AsyncioShell(port, redis.asyncio.Redis),
    "asyncio-ordinary": lambda port: AsyncioShell(port, OrdinaryAsyncioRedis),
}
