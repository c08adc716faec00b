"""The pytest plugin: fixtures for tests that use queues.

It is a module of its own, and each fixture imports what it needs when a test asks for it: pytest loads its plugins at
every start, and importing the package with redis-py would cost every test run 0.2 s.
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

# Replies as text, and no retries in redis-py, so that a lost reply fails at once.
_CLIENT_OPTIONS = {"decode_responses": True, "retry": None}
# An empty queue returns at once; by default it waits five seconds.
_QUEUE_OPTIONS = {"message_wait_interval_seconds": 0}


@pytest.fixture(scope="session")
def rmq_server() -> Iterator[EmbeddedRedis]:
    """A real Redis or Valkey server on a free port: one for the whole run, or one for each pytest-xdist worker."""
    from redis_message_queue.embedded import EmbeddedRedis
    from redis_message_queue.stored.scripts import all_scripts

    with EmbeddedRedis() as server:
        with server.client() as client:
            # With its script loaded, each call of a queue is one request, which lose_reply can count.
            for script in all_scripts():
                client.script_load(script.source)
        yield server


@pytest.fixture
def _rmq_clean_server(rmq_server: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    """The server, empty and running, whatever the last test did to it."""
    from redis_message_queue.embedded import EmbeddedRedis
    from redis_message_queue.values.errors import ConfigurationTypeError

    if not isinstance(rmq_server, EmbeddedRedis):
        raise ConfigurationTypeError(
            f"rmq_server must be an EmbeddedRedis, not {type(rmq_server).__name__}, "
            "because each test deletes all data in it first"
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
    """A sync client of the empty server. It returns text and does not retry."""
    with _rmq_clean_server.client(**_CLIENT_OPTIONS) as client:
        yield client


@pytest.fixture
def async_rmq_client(_rmq_clean_server: EmbeddedRedis) -> redis.asyncio.Redis:
    """An asyncio client of the empty server. It works in any event loop, and you do not have to close it."""
    from redis_message_queue.testing.short_lived_client import short_lived_client

    return short_lived_client(_rmq_clean_server, **_CLIENT_OPTIONS)


@pytest.fixture
def make_rmq_queue(
    rmq_client: redis.Redis, request: pytest.FixtureRequest
) -> Callable[..., redis_message_queue.RedisMessageQueue[Any]]:
    """``make_rmq_queue(name, **options)`` makes a queue object; without a name it is that of the test."""
    from redis_message_queue import RedisMessageQueue

    return _maker(RedisMessageQueue, rmq_client, request)


@pytest.fixture
def make_async_rmq_queue(
    async_rmq_client: redis.asyncio.Redis, request: pytest.FixtureRequest
) -> Callable[..., redis_message_queue.asyncio.RedisMessageQueue[Any]]:
    """``make_async_rmq_queue(name, **options)`` makes an asyncio queue; without a name it is that of the test."""
    from redis_message_queue.asyncio import RedisMessageQueue

    return _maker(RedisMessageQueue, async_rmq_client, request)


def _maker(kind: Any, client: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    def make(name: str | None = None, **options: Any) -> Any:
        if "gateway" not in options:
            options = {"client": client, **_QUEUE_OPTIONS} | options
        return kind(request.node.name if name is None else name, **options)

    return make


@pytest.fixture
def rmq_queue(make_rmq_queue: Callable[..., Any]) -> redis_message_queue.RedisMessageQueue[str]:
    """An empty queue, named after the test. It has the default options, but does not wait for messages."""
    queue: redis_message_queue.RedisMessageQueue[str] = make_rmq_queue()
    return queue


@pytest.fixture
def async_rmq_queue(make_async_rmq_queue: Callable[..., Any]) -> redis_message_queue.asyncio.RedisMessageQueue[str]:
    """An empty asyncio queue, named after the test. It has the default options, but does not wait for messages."""
    queue: redis_message_queue.asyncio.RedisMessageQueue[str] = make_async_rmq_queue()
    return queue


@pytest.fixture
def fast_forward(_rmq_clean_server: EmbeddedRedis) -> Iterator[Callable[..., None]]:
    """``fast_forward(seconds, *queues)`` lets time pass on the server, or for these sync or async queues only."""
    from redis_message_queue.testing import fast_forward

    with _rmq_clean_server.client() as client:
        yield lambda seconds, *queues: fast_forward(client, seconds, *queues)


@pytest.fixture
def lose_reply() -> Iterator[Callable[..., Loss]]:
    """``lose_reply(queue_or_client, of="publish")`` loses a reply. The test fails if nothing was lost."""
    from redis_message_queue.testing import lose_reply

    yield from _losing(lose_reply)


@pytest.fixture
def lose_request() -> Iterator[Callable[..., Loss]]:
    """``lose_request(queue_or_client, of="publish")`` loses a request. The test fails if nothing was lost."""
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
