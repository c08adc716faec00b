"""A reply is remembered for longer than any client may repeat its call."""

from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import AbstractBackoff, ConstantBackoff, ExponentialBackoff, NoBackoff

from redis_message_queue.protocol.port import finish
from redis_message_queue.redis_py import wire

HOUR = 3600.0


class OwnRetry(redis.retry.Retry):
    """A retry class that is not redis-py's."""

    def call_with_retry(self, do: Any, fail: Any, *arguments: Any, **options: Any) -> Any:
        return super().call_with_retry(do, fail, *arguments, **options)


class OwnBackoff(AbstractBackoff):
    """A backoff with pauses of any length."""

    def compute(self, failures: int) -> float:
        return 10.0**failures


@pytest.mark.parametrize("library", [redis, redis.asyncio], ids=["sync", "asyncio"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"socket_timeout": None, "retry": None}, id="no socket_timeout"),
        pytest.param({"socket_timeout": 0, "retry": None}, id="no sensible socket_timeout"),
        pytest.param({"socket_timeout": 5, "retry": (NoBackoff(), -1)}, id="endless retries"),
        pytest.param({"socket_timeout": 5, "retry": (OwnBackoff(), 3)}, id="a backoff of the user's own"),
        pytest.param({"socket_timeout": 1000, "retry": (NoBackoff(), 30)}, id="more than an hour"),
    ],
)
def test_a_client_whose_retries_have_no_known_end_counts_as_an_hour(library: Any, options: dict[str, Any]) -> None:
    given = options.get("retry")
    retry = given and (redis.retry if library is redis else redis.asyncio.retry).Retry(*given)
    assert wire.retry_window(library.Redis(**options | {"retry": retry})) == HOUR


def test_a_retry_class_of_the_users_own_counts_as_an_hour() -> None:
    client = redis.Redis(socket_timeout=5, retry=OwnRetry(NoBackoff(), 1))
    assert wire.retry_window(client) == HOUR


@pytest.mark.parametrize(
    ("options", "least"),
    [
        pytest.param({"socket_timeout": 5, "retry": None}, 5, id="no retries"),
        pytest.param({"socket_timeout": 5, "retry": None, "retry_on_error": [redis.TimeoutError]}, 10, id="one retry"),
        pytest.param({"socket_timeout": 5, "retry": redis.retry.Retry(ConstantBackoff(7), 2)}, 36, id="constant"),
        pytest.param({"socket_timeout": 5, "retry": redis.retry.Retry(ExponentialBackoff(cap=9), 2)}, 42, id="growing"),
    ],
)
def test_a_client_that_gives_up_counts_for_as_long_as_its_retries_take(options: dict[str, Any], least: float) -> None:
    assert least <= wire.retry_window(redis.Redis(**options)) < HOUR


def test_a_client_from_a_url_has_the_timeout_of_its_connections() -> None:
    """The default of redis-py: none before redis-py 8."""
    for client in (redis.Redis.from_url("redis://localhost"), redis.asyncio.Redis.from_url("redis://localhost")):
        made = client.connection_pool.make_connection()
        assert wire.socket_timeout(client) == made.socket_timeout


@pytest.mark.parametrize("retries", [0, -1], ids=["once", "for ever"])
def test_a_reply_outlives_a_client_without_a_timeout(truth: Any, shell: Any, retries: int) -> None:
    """In Redis itself: the reply of a publish is there for more than an hour."""
    client = shell.client(socket_timeout=None, retry=shell.retry_class(NoBackoff(), retries))
    shell.publish(shell.queue(client), "message")
    [reply] = truth.client.scan_iter("faults::reply*")
    assert truth.client.pttl(reply) > HOUR * 1000


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 4e-7, 0.0009, 0.001])
def test_a_very_short_wait_ends(shell: Any, truth: Any, seconds: float) -> None:
    """BLPOP with a timeout written as 0 would block forever; here that would be a TimeoutError."""
    waiting = shell.queue(shell.client(socket_timeout=10))._protocol.port.wait(truth.key.wakeup, seconds)
    assert (shell.runner.run if hasattr(shell, "runner") else finish)(waiting) is False
