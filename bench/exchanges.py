"""The cost of an exchange, and of a message, on a connection of the user's pool and on one of a pool of our own.

    python -m bench.exchanges

CPU time of this thread, without the server: short rounds in turn, so that a busy moment affects all. A ratio is
computed within a round; the table shows the median of the ratios and the middle half of them.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import threading
import time
from typing import Any, cast

import redis
import redis.asyncio
from redis.utils import HIREDIS_AVAILABLE

from redis_message_queue import RedisMessageQueue
from redis_message_queue.asyncio import RedisMessageQueue as AsyncQueue
from redis_message_queue.asyncio.direct_pool import DirectPool as AsyncDirectPool
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.redis_py import wire
from redis_message_queue.sync.direct_pool import DirectPool

ROUNDS, WARM_UP, EXCHANGES, MESSAGES = 80, 2, 250, 50
TODAY = "user's pool, socket"
MESSAGE = {"text": "x" * 186}
COMMAND = ("LPUSH", "bench", b"x" * 200)
PACKED = wire.pack_command(COMMAND)


class PublicPool:
    """Connections of our own, used through what redis-py documents. It is made for one thread, or for one task."""

    def __init__(self, connection: Any, looks: bool) -> None:
        self._looks = looks  # whether a connection that the server has closed is noticed before anything is sent
        self._idle = [connection]

    def exchange(self, packed: bytes, count: int, until: float, *_: Any) -> list[Any]:
        connection = self._idle.pop()
        replies: list[Any] = []
        try:
            if self._looks and connection.can_read(0):
                connection.disconnect()
            connection.send_packed_command((packed,), check_health=False)
            while len(replies) < count:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except redis.ResponseError as error:
                    replies.append(error)
            return replies
        finally:
            if len(replies) < count:
                connection.disconnect()
            self._idle.append(connection)


class PublicAsyncPool(PublicPool):
    """The same for asyncio."""

    async def exchange(self, packed: bytes, count: int, until: float, *_: Any) -> list[Any]:  # type: ignore[override]
        connection = self._idle.pop()
        replies: list[Any] = []
        try:
            if self._looks and await has_input(connection):
                await connection.disconnect(nowait=True)
            await connection.send_packed_command((packed,), check_health=False)
            while len(replies) < count:
                try:
                    replies.append(await connection.read_response(disable_decoding=True))
                except redis.ResponseError as error:
                    replies.append(error)
            return replies
        finally:
            if len(replies) < count:
                await connection.disconnect(nowait=True)
            self._idle.append(connection)


async def has_input(connection: Any) -> bool:
    """Ask a connection as its redis-py does: until version 8, by a method that may lose what it finds."""
    if hasattr(connection, "can_read"):
        return bool(await connection.can_read())
    return bool(await connection.can_read_destructive())


class OwnConnections:
    """What a direct pool uses of a redis-py pool, with connections of our own."""

    def __init__(self, connection: Any) -> None:
        self.pid = os.getpid()
        self._lock: Any = threading.Lock() if isinstance(connection, redis.Connection) else asyncio.Lock()
        self._available_connections = [connection]
        self._in_use_connections: set[Any] = set()


def measure_sync(server: EmbeddedRedis) -> dict[str, list[float]]:
    client, through_client = (cast(Any, server).client(socket_timeout=5) for _ in range(2))
    with client, through_client:
        client.ping()
        pool = client.connection_pool
        own: list[Any] = [pool.connection_class(**pool.connection_kwargs) for _ in range(3)]
        for connection in own:
            connection.connect()
        ways = {
            TODAY: DirectPool(pool).exchange,
            "own pool, socket": DirectPool(OwnConnections(own[0])).exchange,
            "own pool, public methods": PublicPool(own[1], looks=False).exchange,
            "own pool, public, and looks": PublicPool(own[2], looks=True).exchange,
            "redis-py's client": lambda *_: through_client.execute_command(*COMMAND),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + WARM_UP):
            client.delete("bench")
            for name, exchange in ways.items():
                started = time.thread_time()
                for _ in range(EXCHANGES):
                    exchange(PACKED, 1, math.inf)
                if number >= WARM_UP:
                    found[name].append(time.thread_time() - started)
        for connection in own:
            connection.disconnect()
        return found


async def measure_async(server: EmbeddedRedis) -> dict[str, list[float]]:
    client, through_client = (cast(Any, server).async_client(socket_timeout=5) for _ in range(2))
    async with client, through_client:
        await client.ping()
        pool: Any = client.connection_pool
        own = [pool.connection_class(**pool.connection_kwargs) for _ in range(3)]
        for connection in own:
            await connection.connect()
        ways: dict[str, Any] = {
            TODAY: AsyncDirectPool(pool).exchange,
            "own pool, socket": AsyncDirectPool(OwnConnections(own[0])).exchange,
            "own pool, public methods": PublicAsyncPool(own[1], looks=False).exchange,
            "own pool, public, and looks": PublicAsyncPool(own[2], looks=True).exchange,
            "redis-py's client": lambda *_: through_client.execute_command(*COMMAND),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + WARM_UP):
            await client.delete("bench")
            for name, exchange in ways.items():
                started = time.thread_time()
                for _ in range(EXCHANGES):
                    await exchange(PACKED, 1, math.inf)
                if number >= WARM_UP:
                    found[name].append(time.thread_time() - started)
        for connection in own:
            await connection.disconnect()
        return found


def use(queue: Any, pool: Any) -> Any:
    """Return the queue, whose calls go through this pool from now on."""
    queue._protocol.port._direct = pool
    return queue


def measure_messages_sync(server: EmbeddedRedis) -> dict[str, dict[str, list[float]]]:
    """Publish, and claim and ack, by queues that differ only in their pool."""
    with cast(Any, server).client(socket_timeout=5) as client:
        pool = client.connection_pool
        own: list[Any] = [pool.connection_class(**pool.connection_kwargs) for _ in range(3)]
        for connection in own:
            connection.connect()
        queues = {
            TODAY: RedisMessageQueue("today", client=client),
            "own pool, socket": use(RedisMessageQueue("own", client=client), DirectPool(OwnConnections(own[0]))),
            "own pool, public methods": use(RedisMessageQueue("public", client=client), PublicPool(own[1], False)),
            "own pool, public, and looks": use(RedisMessageQueue("looks", client=client), PublicPool(own[2], True)),
        }
        publishes, claims = ({name: cast(list[float], []) for name in queues} for _ in range(2))
        for number in range(ROUNDS + WARM_UP):
            for name, queue in queues.items():
                started = time.thread_time()
                for _ in range(MESSAGES):
                    queue.publish(MESSAGE)
                published = time.thread_time()
                for _ in range(MESSAGES):
                    with queue.process_message() as message:
                        assert message is not None
                if number >= WARM_UP:
                    publishes[name].append(published - started)
                    claims[name].append(time.thread_time() - published)
        for connection in own:
            connection.disconnect()
        return {"publish": publishes, "claim and ack": claims}


async def measure_messages_async(server: EmbeddedRedis) -> dict[str, dict[str, list[float]]]:
    """The same for asyncio."""
    async with cast(Any, server).async_client(socket_timeout=5) as client:
        pool: Any = client.connection_pool
        own = [pool.connection_class(**pool.connection_kwargs) for _ in range(3)]
        for connection in own:
            await connection.connect()
        queues = {
            TODAY: AsyncQueue("today", client=client),
            "own pool, socket": use(AsyncQueue("own", client=client), AsyncDirectPool(OwnConnections(own[0]))),
            "own pool, public methods": use(AsyncQueue("public", client=client), PublicAsyncPool(own[1], False)),
            "own pool, public, and looks": use(AsyncQueue("looks", client=client), PublicAsyncPool(own[2], True)),
        }
        publishes, claims = ({name: cast(list[float], []) for name in queues} for _ in range(2))
        for number in range(ROUNDS + WARM_UP):
            for name, queue in queues.items():
                started = time.thread_time()
                for _ in range(MESSAGES):
                    await queue.publish(MESSAGE)
                published = time.thread_time()
                for _ in range(MESSAGES):
                    async with queue.process_message() as message:
                        assert message is not None
                if number >= WARM_UP:
                    publishes[name].append(published - started)
                    claims[name].append(time.thread_time() - published)
        for connection in own:
            await connection.disconnect()
        return {"publish": publishes, "claim and ack": claims}


def show(what: str, found: dict[str, list[float]], times: int) -> None:
    for name, seconds in found.items():
        ratios = sorted(each / today for each, today in zip(seconds, found[TODAY], strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{what:22} {name:28} {statistics.median(seconds) / times * 1e6:6.1f} us"
            f"   {middle:.2f} ({low:.2f} to {high:.2f})"
        )


def main() -> None:
    print(f"redis-py {redis.__version__}, {'with' if HIREDIS_AVAILABLE else 'without'} hiredis")
    with EmbeddedRedis() as server:
        show("sync LPUSH", measure_sync(server), EXCHANGES)
        show("asyncio LPUSH", asyncio.run(measure_async(server)), EXCHANGES)
        for what, found in measure_messages_sync(server).items():
            show(f"sync {what}", found, MESSAGES)
        for what, found in asyncio.run(measure_messages_async(server)).items():
            show(f"asyncio {what}", found, MESSAGES)


if __name__ == "__main__":
    main()
