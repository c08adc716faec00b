"""A handler gets its message twice, because its consumer was killed or its acknowledgement was lost."""

import asyncio
import contextlib
import functools
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import (
    CleanupFailedError,
    ConfigurationError,
    ConfigurationTypeError,
    FaultInjectionError,
    ReceivedMessage,
    RedisMessageQueue,
    testing,
)
from redis_message_queue.asyncio import ReceivedMessage as AsyncReceivedMessage
from redis_message_queue.testing import deliver_twice, kill_here
from tests.concurrency import LIMIT_SECONDS

pytestmark = pytest.mark.topic("Testing")

# A child on a busy machine needs more time than users want to wait for one that hangs.
kill_and_redeliver: Any = functools.partial(testing.kill_and_redeliver, timeout_seconds=LIMIT_SECONDS)

Make = Callable[..., RedisMessageQueue[Any]]


class Book:
    """A file that both processes write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


class CustomGateway(redis_message_queue.AbstractRedisGateway):
    """A gateway that does nothing."""

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("not to be called")

    publish_message = add_message = move_message = remove_message = _refuse
    renew_message_lease = wait_for_message_and_move = trim_queue = _refuse


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


@pytest.mark.promise("`deliver_twice` gives a handler the same message again, as if its ack had been lost.")
def test_a_message_is_handled_twice_when_its_acknowledgement_is_lost(rmq_queue: RedisMessageQueue) -> None:
    """The second delivery is acknowledged."""
    rmq_queue.publish("a")
    handled: list[Any] = []

    def handler(message: ReceivedMessage[str]) -> None:
        assert message is rmq_queue.current_message()
        handled.append((message.payload, message.delivery_count))

    deliver_twice(rmq_queue, handler)
    assert handled == [("a", 1), ("a", 2)]
    assert rmq_queue.stats().processing == rmq_queue.stats().pending == 0


@pytest.mark.promise("`deliver_twice` gives a handler the same message again, as if its ack had been lost.")
def test_the_same_with_asyncio(async_rmq_queue: redis_message_queue.asyncio.RedisMessageQueue) -> None:
    """With a sync or an async handler."""

    async def main() -> None:
        handled: list[Any] = []

        async def handler(message: AsyncReceivedMessage[str]) -> None:
            await asyncio.sleep(0)
            handled.append(message.payload)

        await async_rmq_queue.publish("a")
        await deliver_twice(async_rmq_queue, handler)
        await async_rmq_queue.publish("b")
        await deliver_twice(async_rmq_queue, lambda message: handled.append(message.payload))
        assert handled == ["a", "a", "b", "b"]
        assert (await async_rmq_queue.stats()).processing == 0

    asyncio.run(main())


@dataclass
class Order:
    item: str


@pytest.mark.promise("The testing tools call a handler as `run` does: with a received message, typed and completable.")
def test_a_handler_of_run_can_be_tested(make_rmq_queue: Make, book: Book) -> None:
    """Typed, and with the reply of `complete()` lost: nothing was published then, and the message comes again."""
    orders, mails = make_rmq_queue("orders", codec=Order), make_rmq_queue("mails")

    def handle(message: ReceivedMessage[Order]) -> None:
        book.write(f"{message.payload.item} {message.attempt} {message.json()}")
        message.complete(publish=[(mails, message.payload.item)])
        book.write("completed")

    lines = ["pen 1 {'item': 'pen'}", "pen 2 {'item': 'pen'}", "completed"]
    orders.publish(Order("pen"))
    deliver_twice(orders, handle)
    assert (book.lines, mails.stats().pending, orders.stats().processing) == (lines, 1, 0)

    def stubborn(message: ReceivedMessage[Order]) -> None:
        with contextlib.suppress(CleanupFailedError):
            message.complete()

    orders.publish(Order("ink"))
    deliver_twice(orders, stubborn)
    orders.publish(Order("ink"))
    with pytest.raises(CleanupFailedError, match="of my own"):
        deliver_twice(orders, lambda message: broken())
    assert orders.stats().pending == orders.stats().processing == 0


def broken() -> None:
    raise CleanupFailedError("of my own")


@pytest.mark.promise("The testing tools call a handler as `run` does: with a received message, typed and completable.")
def test_a_message_that_was_completed_before_the_kill_does_not_come_again(
    async_rmq_queue: redis_message_queue.asyncio.RedisMessageQueue, rmq_queue: RedisMessageQueue, book: Book
) -> None:
    """As in production. A kill before that delivers it again."""

    def handle(message: ReceivedMessage[str]) -> None:
        book.write("began")
        kill_here("before")
        message.complete()
        kill_here("after")

    async def handle_async(message: AsyncReceivedMessage[str]) -> None:
        book.write("began")
        kill_here("before")
        await message.complete()
        kill_here("after")

    async def deliver(at: str) -> None:
        await async_rmq_queue.publish("a")
        await kill_and_redeliver(async_rmq_queue, handle_async, at=at)

    for at, times in (("before", 2), ("after", 1)):
        asyncio.run(deliver(at))
        rmq_queue.publish("a")
        kill_and_redeliver(rmq_queue, handle, at=at)
        assert len(book.lines) == 2 * times
        assert rmq_queue.stats().pending == rmq_queue.stats().processing == 0
        book.path.unlink()


@pytest.mark.promise("`deliver_twice` gives a handler the same message again, as if its ack had been lost.")
def test_an_error_of_the_handler_comes_out(make_rmq_queue: Make) -> None:
    """The message takes the failure path of the queue."""
    queue = make_rmq_queue(enable_failed_queue=True)
    deliveries: list[str] = []

    def fails_the_second_time(message: Any) -> None:
        deliveries.append(message.payload)
        if len(deliveries) == 2:
            raise ZeroDivisionError

    queue.publish("a")
    with pytest.raises(ZeroDivisionError):
        deliver_twice(queue, fails_the_second_time)
    assert queue.stats().failed == 1


@pytest.mark.promise(
    "`kill_and_redeliver` kills the handler in a child process where the test says, and redelivers the message."
)
def test_a_handler_is_killed_where_it_says_and_gets_its_message_again(rmq_queue: RedisMessageQueue, book: Book) -> None:
    """What it did before stays; what comes after happens in the second delivery only."""

    def handler(message: Any) -> None:
        book.write(f"{message.payload} in {os.getpid()}")
        kill_here()
        book.write("done")

    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, handler)
    first, second, third = book.lines
    assert second == f"a in {os.getpid()}"
    assert first.startswith("a in ") and first != second
    assert third == "done"
    assert rmq_queue.stats().processing == rmq_queue.stats().pending == 0


@pytest.mark.promise(
    "`kill_and_redeliver` kills the handler in a child process where the test says, and redelivers the message."
)
@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"at": "one"}, ["1", "1", "2", "3"]),
        ({"at": "two"}, ["1", "2", "1", "2", "3"]),
        ({"nth": 2}, ["1", "2", "1", "2", "3"]),
    ],
    ids=str,
)
def test_a_point_is_chosen_by_its_name_or_its_number(
    options: dict[str, Any], lines: list[str], rmq_queue: RedisMessageQueue, book: Book
) -> None:
    """So you can test one handler at each of its points."""

    def handler(message: Any) -> None:
        book.write("1")
        kill_here("one")
        book.write("2")
        kill_here("two")
        book.write("3")

    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, handler, **options)
    assert book.lines == lines


@pytest.mark.promise(
    "`kill_and_redeliver` kills the handler in a child process where the test says, and redelivers the message."
)
def test_a_handler_is_killed_in_another_thread_too(rmq_queue: RedisMessageQueue, book: Book) -> None:
    """`kill_here` kills the process, whichever thread calls it."""

    def handler(message: Any) -> None:
        book.write("handler")
        worker = threading.Thread(target=kill_here)
        worker.start()
        worker.join()
        book.write("done")

    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, handler)
    assert book.lines == ["handler", "handler", "done"]


@pytest.mark.promise(
    "`kill_and_redeliver` kills the handler in a child process where the test says, and redelivers the message."
)
def test_an_asyncio_handler_is_killed_in_a_child_of_its_own(
    async_rmq_queue: redis_message_queue.asyncio.RedisMessageQueue, make_async_rmq_queue: Any, book: Book
) -> None:
    """The child can use queues, this one and others."""
    other = make_async_rmq_queue("other")

    async def handler(message: Any) -> None:
        await other.publish(f"from {message.payload}")
        book.write(str(message.delivery_count))
        await asyncio.sleep(0)
        kill_here("middle")
        book.write("x")
        kill_here("end")

    async def main() -> None:
        await async_rmq_queue.publish("a")
        await kill_and_redeliver(async_rmq_queue, handler, at="middle")
        assert book.lines == ["1", "2", "x"]
        await async_rmq_queue.publish("b")
        await kill_and_redeliver(async_rmq_queue, handler, at="end")
        assert book.lines[3:] == ["1", "x", "2", "x"]
        assert (await other.stats()).pending == 4
        assert (await async_rmq_queue.stats()).processing == 0

    asyncio.run(main())


@pytest.mark.promise(
    "`kill_and_redeliver` kills the handler in a child process where the test says, and redelivers the message."
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # as an error it would keep a lost connection from closing
def test_an_asyncio_client_with_open_connections_is_no_obstacle(
    rmq_server: Any, rmq_client: redis.Redis, book: Book
) -> None:
    """The child opens new ones, and the replies to the parent reach the parent."""

    async def main() -> None:
        async with rmq_server.async_client(decode_responses=True) as client:
            queue = redis_message_queue.asyncio.RedisMessageQueue("orders", client=client)
            await asyncio.gather(*(client.echo("open") for _ in range(5)))
            await queue.publish("a")

            def handler(message: Any) -> None:
                book.write(message.payload)
                gc.collect()  # otherwise at a moment of chance
                kill_here()

            await kill_and_redeliver(queue, handler)
            said = [str(number) for number in range(20)]
            assert await asyncio.gather(*map(client.echo, said)) == said

    asyncio.run(main())
    assert book.lines == ["a", "a"]


@pytest.mark.promise("A child that is not killed as planned is stopped, and the error says what it did instead.")
def test_a_handler_that_never_reaches_the_point_is_reported(rmq_queue: RedisMessageQueue) -> None:
    """The error says whether it returned or raised, with the traceback."""
    rmq_queue.publish("a")
    with pytest.raises(FaultInjectionError, match=r"did not reach call 1 of kill_here\(\): it returned first"):
        kill_and_redeliver(rmq_queue, lambda message: None)
    rmq_queue.publish("b")
    with pytest.raises(FaultInjectionError, match=r"(?s)it raised first.*ZeroDivisionError"):
        kill_and_redeliver(rmq_queue, lambda message: 1 / 0)
    rmq_queue.publish("c")
    with pytest.raises(FaultInjectionError, match=r"call 3 of kill_here\(\): it returned first"):
        kill_and_redeliver(rmq_queue, lambda message: kill_here(), nth=3)
    rmq_queue.publish("d")
    with pytest.raises(FaultInjectionError, match=r"kill_here\('elsewhere'\)"):
        kill_and_redeliver(rmq_queue, lambda message: kill_here("here"), at="elsewhere")


@pytest.mark.promise("A child that is not killed as planned is stopped, and the error says what it did instead.")
def test_a_child_that_hangs_is_ended(rmq_queue: RedisMessageQueue, book: Book) -> None:
    """It does not outlive its test."""

    def handler(message: Any) -> None:
        book.write(str(os.getpid()))
        time.sleep(600)

    rmq_queue.publish("a")
    with pytest.raises(FaultInjectionError, match="within 2 seconds"):
        kill_and_redeliver(rmq_queue, handler, timeout_seconds=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(book.lines[0]), 0)


@pytest.mark.promise("A child that is not killed as planned is stopped, and the error says what it did instead.")
def test_a_process_that_the_handler_has_started_does_not_hold_up_the_test(
    rmq_queue: RedisMessageQueue, book: Book
) -> None:
    """Even though it inherits the child's files and goes on running."""

    def handler(message: Any) -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        book.write(str(pid))
        kill_here()

    rmq_queue.publish("a")
    try:
        kill_and_redeliver(rmq_queue, handler)
    finally:
        for pid in book.lines:
            os.kill(int(pid), 9)
    assert len(book.lines) == 2


@pytest.mark.promise("`kill_here` raises an error outside of `kill_and_redeliver`.")
def test_kill_here_outside_of_kill_and_redeliver_is_an_error(rmq_queue: RedisMessageQueue) -> None:
    """Nothing is killed, neither by `deliver_twice` nor after `kill_and_redeliver`."""
    with pytest.raises(FaultInjectionError, match="outside of kill_and_redeliver"):
        kill_here()
    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, lambda message: kill_here())
    rmq_queue.publish("b")
    with pytest.raises(FaultInjectionError, match="outside of kill_and_redeliver"):
        deliver_twice(rmq_queue, lambda message: kill_here())


@pytest.mark.promise("If the message is missing or not redelivered, the tool reports it and touches no other message.")
def test_an_empty_queue_is_reported(rmq_queue: RedisMessageQueue) -> None:
    """Both functions say what to do."""
    with pytest.raises(FaultInjectionError, match="publish one first"):
        deliver_twice(rmq_queue, print)
    with pytest.raises(FaultInjectionError, match="publish one first"):
        kill_and_redeliver(rmq_queue, print)


@pytest.mark.promise("If the message is missing or not redelivered, the tool reports it and touches no other message.")
@pytest.mark.parametrize("options", [{"max_delivery_count": 1}, {"message_ttl_seconds": 60}], ids=str)
def test_a_message_that_is_not_redelivered_is_reported(options: dict[str, Any], make_rmq_queue: Make) -> None:
    """The options of the queue make it a dead letter."""
    queue = make_rmq_queue(**options)
    queue.publish("a")
    with pytest.raises(FaultInjectionError, match=r"did not deliver message \w+ a second time") as caught:
        deliver_twice(queue, lambda message: None)
    assert caught.value.message_id
    assert queue.stats().dead_letters == 1


@pytest.mark.promise("If the message is missing or not redelivered, the tool reports it and touches no other message.")
def test_another_message_that_comes_first_is_left_alone(rmq_queue: RedisMessageQueue) -> None:
    """With tenants, the turn may belong to another tenant."""
    rmq_queue.publish("a", tenant="a")
    rmq_queue.publish("b", tenant="b")
    handled: list[Any] = []
    with pytest.raises(FaultInjectionError, match="another message"):
        deliver_twice(rmq_queue, lambda message: handled.append(message.payload))
    assert handled == ["a"]
    assert rmq_queue.stats().pending + rmq_queue.stats().processing == 2


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
@pytest.mark.parametrize("deliver", [deliver_twice, kill_and_redeliver])
def test_a_queue_or_handler_that_cannot_be_redelivered_is_refused(
    deliver: Any, make_rmq_queue: Make, rmq_queue: RedisMessageQueue
) -> None:
    """Before a message is claimed, with an error that says what works."""
    with pytest.raises(ConfigurationError, match="at most once"):
        deliver(make_rmq_queue(visibility_timeout_seconds=None), print)
    with pytest.raises(ConfigurationTypeError, match="queue must be a RedisMessageQueue"):
        deliver("orders", print)
    with pytest.raises(ConfigurationTypeError, match="handler must be callable"):
        deliver(rmq_queue, "print")
    with pytest.raises(ConfigurationTypeError, match="custom gateway"):
        deliver(make_rmq_queue(gateway=CustomGateway()), print)


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
def test_an_async_handler_needs_an_asyncio_queue(rmq_queue: RedisMessageQueue) -> None:
    """A sync queue cannot await it."""

    async def handler(message: Any) -> None: ...

    rmq_queue.publish("a")
    with pytest.raises(ConfigurationError, match=r"redis_message_queue\.asyncio"):
        deliver_twice(rmq_queue, handler)
    assert rmq_queue.stats().pending == 1
    with pytest.raises(TypeError, match=r"redis_message_queue\.asyncio"):
        deliver_twice(rmq_queue, lambda message: handler(message))


@pytest.mark.promise("Wrong use of the testing tools is refused before anything is done.")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nth": 0}, "nth"),
        ({"at": ""}, "at"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str, rmq_queue: RedisMessageQueue) -> None:
    """Before a message is claimed."""
    rmq_queue.publish("a")
    with pytest.raises(ConfigurationError, match=said):
        kill_and_redeliver(rmq_queue, print, **options)
    assert rmq_queue.stats().pending == 1


@pytest.mark.promise("The testing tools work without pytest.")
def test_the_tools_need_no_pytest() -> None:
    """You can import them where it is not installed, and the package does not load them."""
    program = """
import sys
sys.modules["pytest"] = None
import redis_message_queue
assert not any(name.startswith("redis_message_queue.testing") for name in sys.modules)
import redis_message_queue.testing
"""
    subprocess.run([sys.executable, "-c", program], check=True)
