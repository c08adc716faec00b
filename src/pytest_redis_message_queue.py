"""The pytest plugin: fixtures for tests with queues, each of which imports what it needs when it is asked for.

It stands beside the package and not in it: pytest imports its plugins at every start, and would take the package and
redis-py along, 0.2 s for runs that have nothing to do with queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    import redis_message_queue
    import redis_message_queue.asyncio
    from redis_message_queue.embedded import EmbeddedRedis
    from redis_message_queue.testing import Loss

# Text instead of bytes, and no retries of redis-py's own, so that what a test loses comes out at once.
_CLIENT = {"decode_responses": True, "retry": None}
# An empty queue answers at once; the default would wait five seconds.
_IMPATIENT = {"message_wait_interval_seconds": 0}


@pytest.fixture(scope="session")
def rmq_server() -> Iterator[EmbeddedRedis]:
    """A real server on a free port: one for the whole run, or for each worker of pytest-xdist."""
    from redis_message_queue.embedded import EmbeddedRedis
    from redis_message_queue.scripts import all_names, script

    with EmbeddedRedis() as server:
        with server.client() as client:
            # So that each call of a queue is one request from the first, which lose_reply can count.
            for name in all_names():
                client.script_load(script(name).source)
        yield server


@pytest.fixture
def _rmq_clean_server(rmq_server: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    """The server without what the last test has left there, and running however that test has treated it."""
    from redis_message_queue.embedded import EmbeddedRedis
    from redis_message_queue.errors import ConfigurationTypeError

    if not isinstance(rmq_server, EmbeddedRedis):
        raise ConfigurationTypeError(
            f"rmq_server must be an EmbeddedRedis, not {type(rmq_server).__name__}: "
            "each test begins with removing all data from it"
        )
    if rmq_server.running:
        rmq_server.resume()
    else:
        rmq_server.restart()
    with rmq_server.client() as client:
        client.flushall()
    yield rmq_server
    if rmq_server.running:
        rmq_server.resume()


@pytest.fixture
def rmq_client(_rmq_clean_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """A client of the emptied server. It reads text, and does not retry by itself."""
    with _rmq_clean_server.client(**_CLIENT) as client:
        yield client


@pytest.fixture
def async_rmq_client(_rmq_clean_server: EmbeddedRedis) -> redis.asyncio.Redis:
    """The same for asyncio. It keeps no connection open, so it works in any loop and needs no closing."""
    from redis_message_queue.testing.passing_client import passing_client

    return passing_client(_rmq_clean_server, **_CLIENT)


@pytest.fixture
def make_rmq_queue(
    rmq_client: redis.Redis, request: pytest.FixtureRequest
) -> Callable[..., redis_message_queue.RedisMessageQueue]:
    """Makes queue objects with any options; without a name they are objects of one queue, named after the test."""
    from redis_message_queue import RedisMessageQueue

    return _maker(RedisMessageQueue, rmq_client, request)


@pytest.fixture
def make_async_rmq_queue(
    async_rmq_client: redis.asyncio.Redis, request: pytest.FixtureRequest
) -> Callable[..., redis_message_queue.asyncio.RedisMessageQueue]:
    """The same for asyncio."""
    from redis_message_queue.asyncio import RedisMessageQueue

    return _maker(RedisMessageQueue, async_rmq_client, request)


def _maker(kind: Any, client: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    def make(name: str | None = None, **options: Any) -> Any:
        if "gateway" not in options:
            options = {"client": client, **_IMPATIENT} | options
        return kind(request.node.name if name is None else name, **options)

    return make


@pytest.fixture
def rmq_queue(make_rmq_queue: Callable[..., Any]) -> redis_message_queue.RedisMessageQueue:
    """An empty queue with the default options, except that it does not wait for messages."""
    queue: redis_message_queue.RedisMessageQueue = make_rmq_queue()
    return queue


@pytest.fixture
def async_rmq_queue(make_async_rmq_queue: Callable[..., Any]) -> redis_message_queue.asyncio.RedisMessageQueue:
    """The same for asyncio."""
    queue: redis_message_queue.asyncio.RedisMessageQueue = make_async_rmq_queue()
    return queue


@pytest.fixture
def fast_forward(_rmq_clean_server: EmbeddedRedis) -> Iterator[Callable[..., None]]:
    """``fast_forward(seconds, *queues)`` lets time pass on the server, or for these queues alone; in both colours."""
    from redis_message_queue.testing import fast_forward

    with _rmq_clean_server.client() as client:
        yield lambda seconds, *queues: fast_forward(client, seconds, *queues)


@pytest.fixture
def lose_reply() -> Iterator[Callable[..., Loss]]:
    """``lose_reply(queue_or_client, of="publish")`` loses a reply in this test; it fails if nothing was lost."""
    from redis_message_queue.testing import lose_reply

    yield from _losing(lose_reply)


@pytest.fixture
def lose_request() -> Iterator[Callable[..., Loss]]:
    """``lose_request(queue_or_client, of="publish")``: the same with a request that never arrives."""
    from redis_message_queue.testing import lose_request

    yield from _losing(lose_request)


def _losing(lose: Callable[..., Loss]) -> Iterator[Callable[..., Loss]]:
    planned: list[Loss] = []

    def plan(*arguments: Any, **options: Any) -> Loss:
        planned.append(lose(*arguments, **options))
        return planned[-1]

    yield plan
    for loss in planned:
        loss.stop()
    for loss in planned:
        loss.check()
