"""A handler gets its message twice, because its consumer was killed or its acknowledgement lost."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import ConfigurationError, ConfigurationTypeError, RedisMessageQueue, RehearsalError
from redis_message_queue.testing import deliver_twice, kill_and_redeliver, kill_here

Make = Callable[..., RedisMessageQueue]


class Book:
    """A file that both processes write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    async def write_awaited(self, line: str) -> None:
        await asyncio.sleep(0)
        self.write(line)
        await asyncio.sleep(0)

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


class CustomGateway(redis_message_queue.AbstractRedisGateway):
    """Keeps its messages nowhere."""

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("not to be called")

    publish_message = add_message = move_message = remove_message = _refuse
    renew_message_lease = wait_for_message_and_move = trim_queue = _refuse


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


def test_a_message_is_handled_twice_when_its_acknowledgement_is_lost(rmq_queue: RedisMessageQueue) -> None:
    """The second time it is acknowledged."""
    rmq_queue.publish("a")
    handled: list[Any] = []

    def handler(message: str) -> None:
        current = rmq_queue.current_message()
        assert current is not None
        handled.append((message, current.delivery_count))

    deliver_twice(rmq_queue, handler)
    assert handled == [("a", 1), ("a", 2)]
    assert rmq_queue.stats().processing == rmq_queue.stats().pending == 0


def test_the_same_with_asyncio(async_rmq_queue: redis_message_queue.asyncio.RedisMessageQueue) -> None:
    """With a handler of either colour."""

    async def main() -> None:
        handled: list[Any] = []

        async def handler(message: str) -> None:
            await asyncio.sleep(0)
            handled.append(message)

        await async_rmq_queue.publish("a")
        await deliver_twice(async_rmq_queue, handler)
        await async_rmq_queue.publish("b")
        await deliver_twice(async_rmq_queue, handled.append)
        assert handled == ["a", "a", "b", "b"]
        assert (await async_rmq_queue.stats()).processing == 0

    asyncio.run(main())


def test_an_error_of_the_handler_comes_out(make_rmq_queue: Make) -> None:
    """Of the first delivery or of the second; it takes the failure path."""
    queue = make_rmq_queue(enable_failed_queue=True)
    deliveries: list[str] = []

    def fails_the_second_time(message: str) -> None:
        deliveries.append(message)
        if len(deliveries) == 2:
            raise ZeroDivisionError

    queue.publish("a")
    with pytest.raises(ZeroDivisionError):
        deliver_twice(queue, fails_the_second_time)
    assert queue.stats().failed == 1


def test_a_handler_is_killed_where_it_says_and_gets_its_message_again(rmq_queue: RedisMessageQueue, book: Book) -> None:
    """What was done before is there, what would have come after is done the second time only."""

    def handler(message: str) -> None:
        book.write(f"{message} in {os.getpid()}")
        kill_here()
        book.write("done")

    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, handler)
    first, second, third = book.lines
    assert second == f"a in {os.getpid()}"
    assert first.startswith("a in ") and first != second
    assert third == "done"
    assert rmq_queue.stats().processing == rmq_queue.stats().pending == 0


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
    """So that one handler is tested with a death at each of them."""

    def handler(message: str) -> None:
        book.write("1")
        kill_here("one")
        book.write("2")
        kill_here("two")
        book.write("3")

    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, handler, **options)
    assert book.lines == lines


@pytest.mark.parametrize("form", ["function", "method", "name", "builtin", "thread"])
def test_a_handler_is_killed_when_a_function_has_returned(form: str, rmq_queue: RedisMessageQueue, book: Book) -> None:
    """By whatever name the handler calls it; a call that raised has not returned."""
    functions = {
        "function": Book.write,
        "method": book.write,
        "name": f"{__name__}:Book.write",
        "builtin": os.getcwd,
        "thread": book.write,
    }

    def handler(message: str) -> None:
        for number in "123":
            with pytest.raises(TypeError):
                book.write(None)  # type: ignore[arg-type]
            if form == "thread":
                worker = threading.Thread(target=book.write, args=[number])
                worker.start()
                worker.join()
            else:
                book.write(number)
            os.getcwd()

    rmq_queue.publish("a")
    if form == "name":
        sys.modules.setdefault(__name__, sys.modules[Book.__module__])
    kill_and_redeliver(rmq_queue, handler, after=functions[form], nth=2)
    assert book.lines == ["1", "2", "1", "2", "3"]


def test_an_asyncio_handler_is_killed_in_a_child_of_its_own(
    async_rmq_queue: redis_message_queue.asyncio.RedisMessageQueue, make_async_rmq_queue: Any, book: Book
) -> None:
    """A coroutine that is only suspended has not returned; queues can be used in the child, this one and others."""
    other = make_async_rmq_queue("other")

    async def handler(message: str) -> None:
        await other.publish(f"from {message}")
        current = async_rmq_queue.current_message()
        assert current is not None
        book.write(str(current.delivery_count))
        await book.write_awaited("x")
        await book.write_awaited("y")
        kill_here("end")

    async def main() -> None:
        await async_rmq_queue.publish("a")
        await kill_and_redeliver(async_rmq_queue, handler, after=Book.write_awaited)
        assert book.lines == ["1", "x", "2", "x", "y"]
        await async_rmq_queue.publish("b")
        await kill_and_redeliver(async_rmq_queue, handler, at="end")
        assert book.lines[5:] == ["1", "x", "y", "2", "x", "y"]
        assert (await other.stats()).pending == 4
        assert (await async_rmq_queue.stats()).processing == 0

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # as an error it would keep a lost connection from closing
def test_an_asyncio_client_with_open_connections_is_no_obstacle(
    rmq_server: Any, rmq_client: redis.Redis, book: Book
) -> None:
    """The child takes fresh ones, and the answers of the parent's stay the parent's."""

    async def main() -> None:
        async with rmq_server.async_client(decode_responses=True) as client:
            queue = redis_message_queue.asyncio.RedisMessageQueue("orders", client=client)
            await asyncio.gather(*(client.echo("open") for _ in range(5)))
            await queue.publish("a")

            def handler(message: str) -> None:
                book.write(message)
                gc.collect()  # otherwise at a moment of chance
                kill_here()

            await kill_and_redeliver(queue, handler)
            said = [str(number) for number in range(20)]
            assert await asyncio.gather(*map(client.echo, said)) == said

    asyncio.run(main())
    assert book.lines == ["a", "a"]


def test_a_handler_that_never_gets_there_is_told(rmq_queue: RedisMessageQueue) -> None:
    """It returned, or it raised, and then with its traceback."""
    rmq_queue.publish("a")
    with pytest.raises(RehearsalError, match=r"when call 1 of kill_here\(\), and it returned before"):
        kill_and_redeliver(rmq_queue, lambda message: None)
    rmq_queue.publish("b")
    with pytest.raises(RehearsalError, match=r"(?s)raised before that.*ZeroDivisionError"):
        kill_and_redeliver(rmq_queue, lambda message: 1 / 0)
    rmq_queue.publish("c")
    with pytest.raises(RehearsalError, match=r"call 3 of Book\.write had returned"):
        kill_and_redeliver(rmq_queue, lambda message: None, after=Book.write, nth=3)
    rmq_queue.publish("d")
    with pytest.raises(RehearsalError, match=r"kill_here\('elsewhere'\)"):
        kill_and_redeliver(rmq_queue, lambda message: kill_here("here"), at="elsewhere")


def test_a_child_that_hangs_is_ended(rmq_queue: RedisMessageQueue, book: Book) -> None:
    """With its test, and at once."""

    def handler(message: str) -> None:
        book.write(str(os.getpid()))
        time.sleep(600)

    rmq_queue.publish("a")
    with pytest.raises(RehearsalError, match="still at work after 2 seconds"):
        kill_and_redeliver(rmq_queue, handler, timeout_seconds=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(book.lines[0]), 0)


def test_a_process_that_the_handler_has_started_does_not_hold_up_the_test(
    rmq_queue: RedisMessageQueue, book: Book
) -> None:
    """Though it has inherited everything from the child, and lives on."""

    def handler(message: str) -> None:
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


def test_kill_here_outside_of_a_rehearsal_is_an_error(rmq_queue: RedisMessageQueue) -> None:
    """Nobody dies; also when the handler is only delivered twice, and after a rehearsal."""
    with pytest.raises(RehearsalError, match="outside of kill_and_redeliver"):
        kill_here()
    rmq_queue.publish("a")
    kill_and_redeliver(rmq_queue, lambda message: kill_here())
    rmq_queue.publish("b")
    with pytest.raises(RehearsalError, match="outside of kill_and_redeliver"):
        deliver_twice(rmq_queue, lambda message: kill_here())


def test_an_empty_queue_is_told(rmq_queue: RedisMessageQueue) -> None:
    """By both, with what to do."""
    with pytest.raises(RehearsalError, match="publish one first"):
        deliver_twice(rmq_queue, print)
    with pytest.raises(RehearsalError, match="publish one first"):
        kill_and_redeliver(rmq_queue, print)


@pytest.mark.parametrize("options", [{"max_delivery_count": 1}, {"message_ttl_seconds": 60}], ids=str)
def test_a_message_that_does_not_come_again_is_told(options: dict[str, Any], make_rmq_queue: Make) -> None:
    """It is among the dead letters, which the options of the queue want so."""
    queue = make_rmq_queue(**options)
    queue.publish("a")
    with pytest.raises(RehearsalError, match="not delivered a second time") as caught:
        deliver_twice(queue, lambda message: None)
    assert caught.value.message_id
    assert queue.stats().dead_letters == 1


def test_another_message_that_comes_first_is_left_alone(rmq_queue: RedisMessageQueue) -> None:
    """With tenants the turn may be another one's."""
    rmq_queue.publish("a", tenant="a")
    rmq_queue.publish("b", tenant="b")
    handled: list[Any] = []
    with pytest.raises(RehearsalError, match="another message"):
        deliver_twice(rmq_queue, handled.append)
    assert handled == ["a"]
    assert rmq_queue.stats().pending + rmq_queue.stats().processing == 2


@pytest.mark.parametrize("deliver", [deliver_twice, kill_and_redeliver])
def test_what_cannot_be_rehearsed_is_refused(deliver: Any, make_rmq_queue: Make, rmq_queue: RedisMessageQueue) -> None:
    """Before anything is claimed, with an error that says what would do."""
    with pytest.raises(ConfigurationError, match="at most once"):
        deliver(make_rmq_queue(visibility_timeout_seconds=None), print)
    with pytest.raises(ConfigurationTypeError, match="queue must be a RedisMessageQueue"):
        deliver("orders", print)
    with pytest.raises(ConfigurationTypeError, match="handler must be callable"):
        deliver(rmq_queue, "print")
    with pytest.raises(ConfigurationTypeError, match="custom gateway"):
        deliver(make_rmq_queue(gateway=CustomGateway()), print)


def test_an_async_handler_needs_an_asyncio_queue(rmq_queue: RedisMessageQueue) -> None:
    """In a queue for threads nobody would await it."""

    async def handler(message: str) -> None: ...

    rmq_queue.publish("a")
    with pytest.raises(ConfigurationError, match=r"redis_message_queue\.asyncio"):
        deliver_twice(rmq_queue, handler)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"after": "no.such.module"}, "package.module:function"),
        ({"after": "os:no_such_name"}, "package.module:function"),
        ({"after": "os:sep"}, "must be a function"),
        ({"after": 3}, "must be a function"),
        ({"after": "os:getcwd", "at": "here"}, "not both"),
        ({"nth": 0}, "nth"),
        ({"at": ""}, "at"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
    ],
    ids=str,
)
def test_a_death_that_makes_no_sense_is_refused(
    options: dict[str, Any], said: str, rmq_queue: RedisMessageQueue
) -> None:
    """Before anybody is born for it."""
    rmq_queue.publish("a")
    with pytest.raises(ConfigurationError, match=said):
        kill_and_redeliver(rmq_queue, print, **options)
    assert rmq_queue.stats().pending == 1


def test_the_tools_need_no_pytest() -> None:
    """They can be imported where it is not installed, and the package does not even load them."""
    program = """
import sys
sys.modules["pytest"] = None
import redis_message_queue
assert not any(name.startswith("redis_message_queue.testing") for name in sys.modules)
import redis_message_queue.testing
"""
    subprocess.run([sys.executable, "-c", program], check=True)
