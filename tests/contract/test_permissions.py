"""A Redis user with exactly the permissions of its role can work; if one is missing, the error names it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from redis_message_queue import CleanupFailedError, NotPermittedError, RetryPolicy
from redis_message_queue.protocol.loop.worker_entry import WorkerEntry
from redis_message_queue.stored.permissions import CONSUMER, OPERATOR, PRODUCER, Role, example
from redis_message_queue.stored.scripts import all_names, script
from tests.contract.shells import Awaited, Shell, claim_and_die, take

pytestmark = [pytest.mark.topic("Permissions"), pytest.mark.every_server]


@pytest.fixture
def user(shell: Shell) -> Iterator[Any]:
    """Makes the user of a role, without some commands; the answer is what a client needs to be it."""

    def make(role: Role, *without: str) -> dict[str, Any]:
        words = ("ACL", "SETUSER", role.name, "reset", "on", ">secret", *role.rules("q").split())
        shell.redis.execute_command(*words, *(f"-{command.lower()}" for command in without))
        return {"username": role.name, "password": "secret"}

    yield make
    for role in (PRODUCER, CONSUMER, OPERATOR):
        shell.redis.execute_command("ACL", "DELUSER", role.name)


OPTIONS = {
    "journal": "payload",
    "deduplication": True,
    "get_deduplication_key": str,
    "enable_completed_queue": True,
    "enable_failed_queue": True,
    "max_completed_length": 2,
    "max_delivery_count": 2,
    "wait": 0.02,
    "visibility_timeout_seconds": 60,
}


async def produce(shell: Shell, client: Any) -> None:
    """All ways to publish."""
    queue = shell.queue(client=client, **OPTIONS)
    ways: dict[str, dict[str, Any]] = {"a": {}, "b": {"tenant": "t"}, "c": {"delay_seconds": 60}}
    for name, details in ways.items():
        assert await queue.publish(name, **details) is True
        assert await queue.publish(name, **details) is False
    assert await queue.publish_many(["d", "e"]) == [True, True]
    plain = {"journal": "payload", "client": client}
    assert await shell.queue("q", **plain).publish("f")
    dropping = {"pending_overload_policy": "drop_oldest", "max_delivery_count": None}
    short = shell.queue("q", max_pending_length=5, **dropping, **plain)
    assert await short.publish("g")
    spread = shell.queue("q::spread", partitions=2, client=client)
    assert await spread.publish("h") and await spread.publish("i")  # one in each


async def fail(queue: Any) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with queue.process_message():
            raise ZeroDivisionError


async def consume(shell: Shell, client: Any) -> None:
    """All ways to a message, and all ways that it can go."""
    admin = shell.queue(**OPTIONS)
    queue = shell.queue(client=client, tenant_weights={"t": 2, "u": 1}, **OPTIONS)
    for number in range(4):
        await admin.publish(f"a{number}")
        await take(queue)
    await admin.publish("fails")
    await fail(queue)
    await admin.publish("again")
    await fail(shell.queue(client=client, retry_policy=RetryPolicy(max_attempts=3), **OPTIONS))
    shell.ripen(queue)
    await take(queue)
    await admin.publish_many([f"t{number}" for number in range(3)], tenant="t")
    await admin.publish_many([f"u{number}" for number in range(3)], tenant="u")
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            async with queue.process_messages(3):
                raise ZeroDivisionError
        async with queue.process_messages(2):
            pass
    await admin.publish("poison", tenant="t")
    async with queue.process_messages(10):
        pass
    await admin.publish("poison too", tenant="t")
    for _ in range(2):
        await claim_and_die(queue)
        shell.lapse(queue)
    assert await take(queue) is None
    assert b"poison too" in shell.listed(queue.key.dead_letter)
    beating = shell.queue(client=client, heartbeat_interval_seconds=0.01, **OPTIONS)
    events = shell.events()
    renewing = shell.queue(client=client, heartbeat_interval_seconds=0.01, on_event=events.listen, **OPTIONS)
    await admin.publish("long")
    async with renewing.process_message():
        await events.wait_for("lease_renew")
    scheduled = await Awaited(admin).schedule("s", every_seconds=1_000_000, message="scheduled")
    shell.redis.hset(queue.key.schedule("s"), "after", 1)  # its ticks since 1970 were missed
    shell.redis.zadd(queue.key.schedules, {"s": 1})
    shell.redis.zadd(queue.key.leases, {"s": 1})
    assert scheduled and await take(queue) == shell.payload("scheduled")
    await admin.publish("leads on")
    async with beating.process_messages(1) as batch:
        done = batch[0].complete(publish=[(queue.queue, "led to")])
        if shell.name == "asyncio":
            await done
    assert await take(queue) is not None
    assert await take(queue) is None  # it has waited for the wake-up key
    entry = WorkerEntry(queue.queue._protocol, 1, lambda: False)
    for description in (entry._description(), ""):  # as its loop does while it runs, and when it ends
        await entry._write(description)
        assert len(await Awaited(admin).workers()) == (description != "")


async def operate(shell: Shell, client: Any) -> None:
    """All that an operator may look at and do."""
    admin, queue = shell.queue(**OPTIONS), shell.queue(client=client, **OPTIONS)
    await admin.publish("a")
    await admin.publish("b", tenant="t")
    await admin.publish("c", delay_seconds=60)
    await admin.publish("dead")
    raw: Any = queue.queue

    async def call(name: str, *arguments: Any, **options: Any) -> Any:
        answer = getattr(raw, name)(*arguments, **options)
        return await answer if shell.name == "asyncio" else answer

    assert (await call("stats")).pending == 3
    async with admin.process_messages(2):
        for source in ("pending", "processing", "delayed", "completed"):
            await call("peek", 2, source=source) if source != "completed" else await call("records", source)
    shell.redis.lpush(queue.key.dead_letter, "letter")
    await call("redrive_dead_letters")
    await call("tenants")
    await call("workers")
    assert (await call("why", "ab" * 16)).cause == "unknown"
    await call("cancel", "ab" * 16)
    assert await call("schedule", "s", every_seconds=60, message="m")
    assert [one.name for one in await call("schedules")] == ["s"]
    assert await call("unschedule", "s")
    await call("pause", tenant="t")
    await call("resume", tenant="t")
    for target in ("pending", "completed", "orphans", "dead_letters", "delayed"):
        with contextlib.suppress(ValueError):
            await call("purge", target=target)


WORK = {"producer": (PRODUCER, produce), "consumer": (CONSUMER, consume), "operator": (OPERATOR, operate)}


@pytest.mark.promise("A Redis user with the documented commands and keys of a role can do what the role does.")
@pytest.mark.parametrize("name", WORK)
async def test_a_user_who_may_do_what_its_role_needs_can_do_it(shell: Shell, user: Any, name: str) -> None:
    """Exactly the commands in the documentation, and the keys of one queue."""
    role, work = WORK[name]
    await work(shell, shell.new_client(**user(role)))


@pytest.mark.promise("An error for a forbidden command names the command and what to grant.")
@pytest.mark.parametrize("name", WORK)
async def test_a_command_that_is_missing_is_named(
    shell: Shell, user: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says what to grant, or the log where the handler's own error goes on; some work needs not all."""
    role, work = WORK[name]
    missed = []
    for command in role.commands:
        shell.redis.flushdb()
        client = shell.new_client(**user(role, command))
        try:
            await work(shell, client)
        except (NotPermittedError, CleanupFailedError) as error:
            assert command in str(error)
            assert f"+{command.lower()}" in str(error)
            assert error.operation
            assert role is OPERATOR or error.queue.startswith("q")
            missed.append(command)
        except AssertionError:
            assert f"may not run {command}," in caplog.text
            missed.append(command)
        caplog.clear()
    assert len(missed) > len(role.commands) * 0.6


async def test_a_consumer_who_may_not_count_down_hears_of_it(shell: Shell, user: Any) -> None:
    """A backlog of tenants that only grows would be a wrong number, and refuse publishes at a limit one day."""
    admin = shell.queue()
    await admin.publish("a", tenant="t")
    consumer = shell.queue(client=shell.new_client(**user(CONSUMER, "DECRBY")), wait=0)
    with pytest.raises(NotPermittedError, match=r"\+decrby"):
        await take(consumer)


@pytest.mark.promise("An error for a forbidden key names the key pattern to grant.")
async def test_keys_that_are_not_permitted_are_named_by_their_pattern(shell: Shell, user: Any) -> None:
    """The queue of another user is out of reach."""
    client = shell.new_client(**user(PRODUCER))
    with pytest.raises(NotPermittedError, match=r"may not access a key.*~<queue>::\*") as refused:
        await shell.queue("other", client=client).publish("a")
    assert refused.value.queue == "other"
    assert shell.redis.keys("other*") == [b"other::meta"]  # which the test has written


@pytest.mark.promise("The commands of each script are read from its source, and you can list them for every server.")
def test_each_command_of_a_script_is_known_and_can_be_listed(client: Any) -> None:
    """The number of words is right on this server, so that a question about a permission is not refused for that."""
    commands = {command for name in all_names() for command in script(name).commands}
    for command in sorted(commands.union(PRODUCER.commands, CONSUMER.commands, OPERATOR.commands)):
        (told,) = client.execute_command("COMMAND", "INFO", command).values()
        assert abs(told["arity"]) == len(example(command, "key")), command


async def test_a_consumer_may_define_schedules_and_a_producer_may_not(shell, user):
    """Redis has no rights within the keys of a queue: a script may do what its commands may do."""
    await shell.queue().publish("the queue exists")
    queue = Awaited(shell.queue(client=shell.new_client(**user(CONSUMER))))
    assert await queue.schedule("s", every_seconds=60, message="tick")
    assert await queue.unschedule("s")
    with pytest.raises(NotPermittedError):
        await Awaited(shell.queue(client=shell.new_client(**user(PRODUCER)))).schedule(
            "s", every_seconds=60, message="tick"
        )
