"""`redis_message_queue.tasks` publishes calls of functions, and runs those that it knows."""

from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from redis_message_queue import ConfigurationError, ConfigurationTypeError, PayloadTypeError, RetryPolicy
from redis_message_queue.payloads import MsgspecCodec
from redis_message_queue.tasks import AsyncTasks, Tasks
from tests.contract.shells import Shell

pytestmark = [pytest.mark.topic("Tasks"), pytest.mark.both_shells]


@dataclass
class Order:
    id: int


def tasks_of(shell: Shell, queue: Any) -> Any:
    return (Tasks if shell.name == "sync" else AsyncTasks)(queue.queue)


async def published(shell: Shell, answer: Any) -> bool:
    return await answer if shell.name == "asyncio" else answer


@pytest.fixture(params=[1, 3], ids=["one part", "three parts"])
def queue(shell: Shell, request: pytest.FixtureRequest) -> Any:
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0)
    return shell.queue("tasks", partitions=request.param, retry_policy=policy)


@pytest.mark.promise(
    "A task of `redis_message_queue.tasks` is called by a worker with the arguments it was published with."
)
async def test_a_function_is_called_with_the_arguments_of_its_message(shell: Shell, queue: Any) -> None:
    """Plain or async, by position or by name, with options, and here and now without a queue."""
    tasks, calls = tasks_of(shell, queue), list[Any]()

    @tasks.task
    def send(customer: int, subject: str = "hello", *, urgent: bool = False) -> str:
        calls.append((customer, subject, urgent))
        return f"sent to {customer}"

    @tasks.task(name="charge it")
    def charge(orders: list[dict[str, Any]]) -> None:
        calls.append(orders)

    assert (send(1), send.name, charge.name, send.__name__) == ("sent to 1", "send", "charge it", "send")
    assert await published(shell, send.publish(2))
    assert await published(shell, send.publish(3, "bye", urgent=True))
    assert await published(shell, charge.publish([{"id": 4, "total": None}]))
    once = send.with_options(tenant="acme", headers={"a": "b"}).with_options(deduplication_key="5", timeout_seconds=9)
    assert [await published(shell, once.publish(5)) for _ in range(2)] == [True, False]
    assert await published(shell, send.with_options(delay_seconds=3600).publish(6))
    assert (await queue.stats()).delayed == 1
    assert (await queue.run(tasks, until_empty=True)).handled == 4
    expected = [
        (1, "hello", False),
        (2, "hello", False),
        (3, "bye", True),
        [{"id": 4, "total": None}],
        (5, "hello", False),
    ]
    assert sorted(map(str, calls)) == sorted(map(str, expected))


@pytest.mark.promise("A task that no module of the worker defines becomes a dead letter whose reason says so.")
async def test_what_is_no_call_of_a_known_task_becomes_a_dead_letter(shell: Shell, queue: Any) -> None:
    """At once, with a reason; a task that raises is retried."""
    tasks, attempts = tasks_of(shell, queue), []

    @tasks.task
    def send(customer: int) -> None:
        attempts.append(customer)
        raise TypeError("inside")

    for message in [
        "no JSON",
        "[1]",
        {"task": "gone", "args": [], "kwargs": {}},
        {"task": "os.system", "args": ["true"], "kwargs": {}},
        {"task": ["send"], "args": [1], "kwargs": {}},
        {"task": "send", "args": [1, 2], "kwargs": {}},
        {"task": "send", "args": [1]},
    ]:
        await queue.publish(message)
    await published(shell, send.publish(7))
    await queue.run(tasks, until_empty=True, wait_for_retries=True)
    reasons = sorted(str(one.reason) for one in await queue.records("dead_letters"))
    assert attempts == [7, 7]
    unknown = "no module that this worker has imported defines it"
    assert reasons == [
        "attempts used up",
        "the message does not fit task 'send': KeyError",
        "the message does not fit task 'send': too many positional arguments",
        "the message is no call of a task",
        "the message is no call of a task",
        f"unknown task 'gone': {unknown}",
        f"unknown task 'os.system': {unknown}",
        f"unknown task a list: {unknown}",
    ]


async def test_arguments_can_have_a_codec(shell: Shell, queue: Any) -> None:
    """Of one parameter; what cannot be decoded is a dead letter."""
    tasks, calls = tasks_of(shell, queue), []

    @tasks.task(codec=Order)
    def pack(order: Order) -> None:
        calls.append(order)

    await published(shell, pack.publish(Order(7)))
    await published(shell, pack.publish(order=Order(8)))
    await queue.publish({"task": "pack", "argument": '{"id": "x"}'})
    await queue.run(tasks, until_empty=True)
    assert sorted(one.id for one in calls) == [7, 8]
    (dead,) = await queue.records("dead_letters")
    assert dead.reason == "the message does not fit task 'pack': ValidationError"
    binary = tasks.task(name="binary", codec=MsgspecCodec(Order, "msgpack"))(lambda order: None)
    with pytest.raises(PayloadTypeError, match="does not write text"):
        await published(shell, binary.publish(Order(200)))


async def test_mistakes_are_told_before_anything_is_sent(shell: Shell, queue: Any) -> None:
    """What cannot be called, cannot be written, or has the name of another task."""
    tasks = tasks_of(shell, queue)

    @tasks.task
    def send(customer: Any) -> None: ...

    for arguments, error, said in [
        ((), TypeError, "missing a required argument: 'customer'"),
        ((1, 2), TypeError, "too many positional arguments"),
        (((1, 2),), PayloadTypeError, "args"),
        ((object(),), PayloadTypeError, "args"),
    ]:
        with pytest.raises(error, match=said):
            await published(shell, send.publish(*arguments))
    with pytest.raises(ConfigurationTypeError, match="has no option 'delay'"):
        send.with_options(delay=1)
    with pytest.raises(ConfigurationError, match="there is another task 'send'"):
        tasks.task(name="send")(lambda: None)
    with pytest.raises(ConfigurationError, match="must have one parameter"):
        tasks.task(name="two", codec=Order)(lambda a, b: None)
    with pytest.raises(ConfigurationTypeError, match="a task must be callable"):
        tasks.task(3)
    with pytest.raises(ConfigurationTypeError, match="queue must be a RedisMessageQueue of redis_message_queue"):
        type(tasks)("tasks")
    assert (await queue.stats()).pending == 0

    async def later() -> None: ...

    if shell.name == "sync":
        with pytest.raises(ConfigurationTypeError, match="a task is an async function"):
            tasks.task(name="later")(later)
    else:
        await published(shell, tasks.task(later).publish())
        assert (await queue.run(tasks, until_empty=True)).handled == 1


def type_checkers_see_what_a_task_takes(tasks: Tasks, later: AsyncTasks) -> None:
    """Never called: mypy reads it."""

    @tasks.task
    def send(customer: int, subject: str = "hello") -> str:
        return subject

    @later.task(name="pack it")
    async def pack(order: Order) -> None: ...

    assert_type(send(1), str)
    assert_type(send.publish(1, subject="bye"), bool)
    send.publish("1")  # type: ignore[arg-type]
    send.publish(1, topic="bye")  # type: ignore[call-arg]
    send.with_options(tenant="acme", delay_seconds=3).publish(1)
    send.with_options(delay=3)  # type: ignore[call-arg]
    pack.publish(7)  # type: ignore[arg-type, unused-coroutine]
