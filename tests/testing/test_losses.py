"""`lose_request` and `lose_reply` lose what the test says, sync and async, and report if nothing was lost."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import (
    ConfigurationError,
    ConfigurationTypeError,
    FaultInjectionError,
    RedisMessageQueue,
    RetryBudgetExhaustedError,
)
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.testing import Loss, lose_reply, lose_request
from redis_message_queue.testing.losses import names_in

pytestmark = pytest.mark.topic("Testing")


Make = Callable[..., RedisMessageQueue]


class SubclassedRedis(redis.Redis):
    """A client whose commands the queue does not pack by hand."""


class SubclassedAsyncRedis(redis.asyncio.Redis):
    """The same for asyncio."""


KINDS = [redis.Redis, SubclassedRedis, redis.asyncio.Redis, SubclassedAsyncRedis]


async def done(result: Any) -> Any:
    """Await the result if it needs that."""
    return await result if inspect.isawaitable(result) else result


@pytest.mark.promise(
    "A lost reply was executed and a lost request was not, for any sync or async client and below its own retries."
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__ + kind.__module__.removeprefix("redis"))
@pytest.mark.parametrize("lose", [lose_reply, lose_request])
def test_a_publish_counts_once_whatever_was_lost(
    lose: Callable[..., Loss], kind: Any, rmq_client: redis.Redis, rmq_server: EmbeddedRedis
) -> None:
    """The queue sends it again, with a sync or async client, whether it packs the command itself or not."""

    async def main() -> None:
        client = kind.from_url(rmq_server.url)
        module = redis_message_queue.asyncio if issubclass(kind, redis.asyncio.Redis) else redis_message_queue
        queue = module.RedisMessageQueue("orders", client=client)
        with lose(queue, of="publish", times=2) as loss:
            assert await done(queue.publish("a"))
        assert loss.happened == 2
        assert rmq_client.llen("orders::pending") == 1
        await done(client.aclose() if hasattr(client, "aclose") else client.close())

    asyncio.run(main())


@pytest.mark.promise(
    "A lost reply was executed and a lost request was not, for any sync or async client and below its own retries."
)
def test_a_lost_reply_was_executed_and_a_lost_request_was_not(
    rmq_client: redis.Redis, rmq_server: EmbeddedRedis
) -> None:
    """The client does not retry, so the caller gets the error."""
    with rmq_server.client(retry=None) as client:
        with lose_reply(client), pytest.raises(redis.ConnectionError, match="the reply was lost"):
            client.incr("n")
        assert rmq_client.get("n") == "1"
        with lose_request(client), pytest.raises(redis.ConnectionError, match="the request was lost"):
            client.incr("n")
        assert rmq_client.get("n") == "1"
        assert client.incr("n") == 2


@pytest.mark.promise(
    "A lost reply was executed and a lost request was not, for any sync or async client and below its own retries."
)
def test_a_client_that_tries_again_by_itself_does_it_twice(rmq_client: redis.Redis, rmq_server: EmbeddedRedis) -> None:
    """The loss happens below the retries of redis-py, as when a connection breaks; INCRBY is not idempotent."""
    with rmq_server.client() as client, lose_reply(client, of="incrby"):
        assert client.incrby("n", 1) == 2


@pytest.mark.promise("You choose by name and number what is lost: once, several times or always.")
def test_the_nth_call_is_lost_and_those_around_it_are_not(rmq_client: redis.Redis) -> None:
    """Other calls are neither counted nor lost."""
    with lose_reply(rmq_client, of="SET", nth=2) as loss:
        rmq_client.set("a", "1")
        rmq_client.get("a")
        with pytest.raises(redis.ConnectionError):
            rmq_client.set("a", "2")
        assert rmq_client.get("a") == "2"
        rmq_client.set("a", "3")
    assert loss.happened == 1


@pytest.mark.promise("You choose by name and number what is lost: once, several times or always.")
def test_losses_for_good_exhaust_the_budget(make_rmq_queue: Make, rmq_client: redis.Redis) -> None:
    """The caller cannot know it, but the message is stored once."""
    queue = make_rmq_queue(retry_budget_seconds=0.05)
    with lose_reply(queue, times=None), pytest.raises(RetryBudgetExhaustedError):
        queue.publish("a")
    assert rmq_client.llen(queue.key.pending) == 1


@pytest.mark.promise("You choose by name and number what is lost: once, several times or always.")
@pytest.mark.parametrize(
    ("of", "work"),
    [
        ("publish", lambda queue: queue.publish("b", tenant="t")),
        ("publish", lambda queue: queue.publish_many(["b", "c"])),
        ("claim", lambda queue: queue.process_message_callback(lambda message: None)),
        ("ack", lambda queue: queue.process_message_callback(lambda message: None)),
        ("ack", lambda queue: queue.run(lambda message: None, until_empty=True)),
        ("complete", lambda queue: queue.process_message_callback(lambda _: queue.current_message().complete())),
        ("settle", lambda queue: queue.process_message_callback(lambda message: None)),
        ("EVALSHA", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_queue_does_has_names(of: str, work: Any, rmq_queue: RedisMessageQueue) -> None:
    """Those of its methods, its scripts, or Redis commands; the queue does its work in spite of the loss."""
    rmq_queue.publish("a")
    if work is None:
        with pytest.raises(FaultInjectionError), lose_reply(rmq_queue, of=of):
            rmq_queue.publish("b")
        return
    with lose_reply(rmq_queue, of=of):
        work(rmq_queue)
    assert rmq_queue.stats().processing == 0


@pytest.mark.promise(
    "A lost reply was executed and a lost request was not, for any sync or async client and below its own retries."
)
def test_a_script_that_the_server_did_not_know_is_not_counted(rmq_client: redis.Redis, make_rmq_queue: Make) -> None:
    """The server executed nothing, so there is no reply to lose. The next one is lost."""
    queue = make_rmq_queue()
    queue.publish("before")
    rmq_client.delete(queue.key.pending)
    rmq_client.script_flush()
    rmq_client.config_resetstat()
    with lose_reply(queue, of="publish") as loss:
        assert queue.publish("a")
    assert loss.happened == 1
    assert rmq_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2  # unknown; then, after the loss, once more
    assert rmq_client.llen(queue.key.pending) == 1


@pytest.mark.promise("You choose by name and number what is lost: once, several times or always.")
def test_two_losses_can_be_planned_at_once(rmq_queue: RedisMessageQueue) -> None:
    """Each counts by itself."""
    with lose_reply(rmq_queue, of="publish") as reply, lose_request(rmq_queue, of="publish", nth=2) as request:
        assert rmq_queue.publish("a")
    assert (reply.happened, request.happened) == (1, 1)
    assert rmq_queue.stats().pending == 1


@pytest.mark.promise("You choose by name and number what is lost: once, several times or always.")
def test_a_new_connection_is_not_counted(rmq_client: redis.Redis) -> None:
    """The handshake of a client does not count as a call."""
    with lose_request(rmq_client), lose_reply(rmq_client, nth=2):
        for number in "12":
            with pytest.raises(redis.ConnectionError):
                rmq_client.set("a", number)
    assert rmq_client.get("a") == "2"


@pytest.mark.promise("A loss that never happened fails its test, and afterwards the client works as before.")
def test_a_loss_that_never_happened_is_reported(rmq_queue: RedisMessageQueue) -> None:
    """The error lists what was sent, so you can correct a wrong name."""
    with (
        pytest.raises(FaultInjectionError, match=r"no 'ack' call\. The client sent: publish \(1\)"),
        lose_reply(rmq_queue, of="ack"),
    ):
        rmq_queue.publish("a")
    with pytest.raises(FaultInjectionError, match="no call number 3"), lose_request(rmq_queue, nth=3):
        rmq_queue.publish("a")
    with pytest.raises(FaultInjectionError, match="The client sent: nothing"), lose_reply(rmq_queue):
        pass


@pytest.mark.promise("A loss that never happened fails its test, and afterwards the client works as before.")
def test_an_error_in_the_block_is_not_hidden(rmq_queue: RedisMessageQueue) -> None:
    """It matters more than that nothing was lost."""
    with pytest.raises(ZeroDivisionError), lose_reply(rmq_queue):
        raise ZeroDivisionError


@pytest.mark.promise("A loss that never happened fails its test, and afterwards the client works as before.")
def test_afterwards_the_client_is_as_before(rmq_client: redis.Redis) -> None:
    """Its pool and connections have their own methods again, however often you stop a loss."""
    pool: Any = rmq_client.connection_pool
    with lose_reply(rmq_client) as loss, pytest.raises(redis.ConnectionError):
        rmq_client.ping()
        assert "get_connection" in vars(pool)
        rmq_client.get("a")
    loss.stop()
    connection = pool.get_connection()
    assert "get_connection" not in vars(pool)
    assert not {"send_packed_command", "read_response"} & vars(connection).keys()
    pool.release(connection)


@pytest.mark.promise("A loss that never happened fails its test, and afterwards the client works as before.")
def test_without_a_block_a_loss_lasts_until_it_is_stopped(rmq_client: redis.Redis) -> None:
    """As the fixtures use it."""
    loss = lose_reply(rmq_client, times=None, of="get")
    with pytest.raises(redis.ConnectionError):
        rmq_client.get("a")
    loss.stop()
    assert rmq_client.get("a") is None
    loss.check()
    assert "happened" in repr(loss)


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
@pytest.mark.parametrize(
    "options", [{"nth": 0}, {"nth": -1}, {"times": 0}, {"of": ""}, {"nth": True}, {"times": 1.5}, {"of": 3}], ids=str
)
def test_invalid_options_are_refused(options: dict[str, Any], rmq_client: redis.Redis) -> None:
    """The error names the option."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        lose_reply(rmq_client, **options)
    assert rmq_client.get("a") is None


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
@pytest.mark.parametrize("thing", [None, "redis://", object()], ids=["nothing", "a url", "an object"])
def test_an_object_without_connections_is_refused(thing: Any) -> None:
    """The error says what works."""
    with pytest.raises(ConfigurationTypeError, match=r"give a redis\.Redis"):
        lose_reply(thing)


@pytest.mark.promise("You choose by name and number what is lost: once, several times or always.")
def test_commands_are_read_from_their_bytes() -> None:
    """One or several, in one piece or in many, with any bytes inside."""
    first, second = b"*2\r\n$3\r\nget\r\n$4\r\n*1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n"
    assert names_in(first + second) == ["GET", "PING"]
    assert names_in([first, memoryview(second)]) == ["GET", "PING"]
    assert names_in([b"*2\r\n$7\r\nEVALSHA\r\n$3\r\n", b"abc", b"\r\n"]) == ["EVALSHA"]
