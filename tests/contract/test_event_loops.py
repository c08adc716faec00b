"""An async queue belongs to the event loop that it was first used on, and refuses any other."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis.asyncio

from redis_message_queue import ConfigurationError
from redis_message_queue.asyncio import RedisGateway, RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from tests.contract.shells import SubclassedAsyncRedis

pytestmark = [pytest.mark.topic("Event loops"), pytest.mark.both_shells]

Work = Callable[[Any], Coroutine[Any, Any, Any]]


async def take(queue: RedisMessageQueue) -> None:
    async with queue.process_message() as message:
        pytest.fail(f"delivered: {message!r}")


async def take_many(queue: RedisMessageQueue) -> None:
    async with queue.process_messages(5) as batch:
        pytest.fail(f"delivered: {list(batch)}")


USES: dict[str, Work] = {
    "publish": lambda queue: queue.publish("again"),
    "publish for a tenant": lambda queue: queue.publish("again", tenant="acme"),
    "publish_many": lambda queue: queue.publish_many(["again", "and again"]),
    "process_message": take,
    "process_messages": take_many,
    "run": lambda queue: queue.run(print, until_empty=True),
    "stats": lambda queue: queue.stats(),
    "purge": lambda queue: queue.purge("pending"),
}


@pytest.fixture(params=[redis.asyncio.Redis, SubclassedAsyncRedis], ids=["packed", "ordinary"])
def client(request: pytest.FixtureRequest, clean_server: EmbeddedRedis) -> Any:
    return request.param.from_url(clean_server.url)


@pytest.fixture
def first() -> Iterator[asyncio.Runner]:
    """The loop that everything is first used on; it lives until the test ends."""
    with asyncio.Runner() as runner:
        yield runner


def keys(server: EmbeddedRedis) -> dict[bytes, bytes]:
    with server.client() as onlooker:
        return {key: onlooker.dump(key) for key in onlooker.keys("*")}


@pytest.mark.promise(
    "An async queue belongs to the event loop of its first use; on another loop it sends nothing and raises an error."
)
@pytest.mark.parametrize("use", USES)
def test_a_queue_is_refused_on_a_second_loop(clean_server: EmbeddedRedis, client: Any, use: str) -> None:
    """Nothing is sent, and the first loop goes on."""
    queue = RedisMessageQueue("jobs", client=client, message_wait_interval_seconds=0)
    with asyncio.Runner() as first:
        first.run(queue.publish("a"))
        before = keys(clean_server)
        with pytest.raises(ConfigurationError, match=r"another event loop.*make the client and the queue"):
            asyncio.run(USES[use](queue))
        assert keys(clean_server) == before
        assert first.run(queue.publish("b")) is True
        first.run(client.aclose())


LEFT_OPEN = """
import asyncio, sys
import redis.asyncio
from redis_message_queue.asyncio import ConfigurationError, RedisMessageQueue

queue = RedisMessageQueue("jobs", client=redis.asyncio.Redis.from_url(sys.argv[1]))
asyncio.run(queue.publish("a"))
for _ in range(2):
    try:
        asyncio.run(queue.publish("b"))
    except ConfigurationError as error:
        print(error)
"""


@pytest.mark.promise(
    "An async queue belongs to the event loop of its first use; on another loop it sends nothing and raises an error."
)
def test_a_queue_is_refused_after_its_loop_has_ended(clean_server: EmbeddedRedis) -> None:
    """Its connections were left open, and nobody can read from them any more. In a process of its own, as they leak."""
    command = [sys.executable, "-W", "ignore", "-c", LEFT_OPEN, clean_server.url]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert len(said) == 2
    assert all("another event loop" in line and "nothing was sent" in line for line in said)
    with clean_server.client() as onlooker:
        assert onlooker.llen("jobs::pending") == 1


@pytest.mark.promise(
    "An async queue belongs to the event loop of its first use; on another loop it sends nothing and raises an error."
)
def test_a_queue_is_refused_on_the_loop_of_another_thread(
    clean_server: EmbeddedRedis, client: Any, first: asyncio.Runner
) -> None:
    """While the first loop waits for it."""
    queue = RedisMessageQueue("jobs", client=client)
    refused: list[ConfigurationError] = []

    def publish_elsewhere() -> None:
        with pytest.raises(ConfigurationError) as caught:
            asyncio.run(queue.publish("elsewhere"))
        refused.append(caught.value)

    async def publish_here() -> int:
        await queue.publish("here")
        thread = threading.Thread(target=publish_elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        stats = await queue.stats()
        await client.aclose()
        return stats.pending

    assert first.run(publish_here()) == 1
    assert refused[0].queue == "jobs"


@pytest.mark.promise(
    "An async queue belongs to the event loop of its first use; on another loop it sends nothing and raises an error."
)
def test_a_client_that_is_open_on_another_loop_is_refused(
    clean_server: EmbeddedRedis, client: Any, first: asyncio.Runner
) -> None:
    """Also where the queue is new: the connections are the client's."""
    first.run(client.ping())
    for queue in (
        RedisMessageQueue("jobs", client=client),
        RedisMessageQueue("jobs", gateway=RedisGateway(redis_client=client)),
    ):
        with pytest.raises(ConfigurationError, match="another event loop"):
            asyncio.run(queue.publish("a"))
    assert keys(clean_server) == {}
    first.run(client.aclose())


@pytest.mark.promise(
    "You can create an async queue outside of a loop, and use it on a new loop after closing its client on the old one."
)
def test_a_queue_outlives_a_loop_on_which_its_client_was_closed(clean_server: EmbeddedRedis, client: Any) -> None:
    """It may be made outside of any loop, too."""
    queue = RedisMessageQueue("jobs", client=client)

    async def work() -> int:
        await queue.publish("a")
        stats = await queue.stats()
        await client.aclose()
        return stats.pending

    assert [asyncio.run(work()) for _ in range(3)] == [1, 2, 3]
