"""Every queue registers itself, so that people find the queues of a server without a scan of its keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, RegisteredQueue
from redis_message_queue.stored.keys import REGISTRY_KEY
from tests.contract.shells import EVERY_WIRING, Awaited, Sent, Shell, take
from tests.tables import row

pytestmark = pytest.mark.topic("The registry of queues")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


def fresh(shell: Shell, name: str = "q", **options: Any) -> Any:
    """A queue that nobody has used before."""
    queue = shell.queue(name, **options)
    shell.redis.delete(queue.key.meta)
    return queue


async def listed(shell: Shell, **options: Any) -> list[RegisteredQueue]:
    found = shell.module.queues(shell.client, **options)
    return await found if shell.name == "asyncio" else found


@pytest.mark.promise("`queues(client)` lists the queues of a server; a queue registers itself at its first contact.")
@every_wiring
async def test_queues_are_listed_by_name(shell: Shell) -> None:
    """Whether somebody publishes or consumes first, and whatever its keys look like."""
    assert await listed(shell) == []
    await fresh(shell, "mails").publish("m")
    assert await take(fresh(shell, "{bills}", key_separator=":", wait=0)) is None
    gateway = shell.gateway(dead_letter_queue="graveyard")
    await fresh(shell, "grüße", gateway=gateway).publish("m")
    assert await listed(shell) == [
        RegisteredQueue(name="grüße", dead_letter_queue="graveyard"),
        RegisteredQueue(name="mails"),
        RegisteredQueue(name="{bills}", key_separator=":"),
    ]
    assert [one.name for one in await listed(shell, max_queues=1)] == ["grüße"]


@pytest.mark.promise("`open_registered()` opens a queue that `queues()` has returned.")
async def test_a_listed_queue_can_be_opened(shell: Shell) -> None:
    """With its own keys and its own list of dead letters, and the usual leases."""
    gateway = shell.gateway(dead_letter_queue="{orders}graveyard", hash_tag=True, message_visibility_timeout_seconds=60)
    queue = fresh(shell, "orders", gateway=gateway, key_separator=":")
    await queue.publish("m")
    (found,) = await listed(shell)
    opened = shell.module.open_registered(found, shell.client)
    assert opened.key == queue.key
    stats = await Awaited(opened).stats()
    assert stats.pending == 1
    assert await Awaited(opened).process_message_callback(shell.callback(lambda message: None))
    with pytest.raises(ConfigurationError, match="registered must be a RegisteredQueue"):
        shell.module.open_registered("orders", shell.client)


@pytest.mark.promise("A queue registers itself once, and its later calls pay nothing for it.")
async def test_only_the_first_contact_registers(shell: Shell) -> None:
    queue = fresh(shell)
    with Sent(shell.server) as sent:
        await queue.publish("first")
        await queue.publish("second")
        await shell.queue().publish("third")
    assert sent.commands.count("SADD") == 1


async def test_a_queue_that_was_deleted_is_not_listed(shell: Shell) -> None:
    """After a flush it is listed again with its next call."""
    queue = fresh(shell)
    await queue.publish("m")
    shell.redis.delete(queue.key.meta)
    assert await listed(shell) == []
    await queue.publish("m")
    assert await listed(shell) == [RegisteredQueue(name="q")]


async def test_foreign_entries_are_ignored(shell: Shell) -> None:
    await fresh(shell).publish("m")
    strange = ["", "{", "[]", "1", '"q"', '{"name":1}', '{"name":""}', '{"name":"q","key_separator":2}', "null"]
    strange += [json.dumps({"name": "q::pending"}), json.dumps({"name": "q", "dead_letter_queue": 1}), "[" * 10_000]
    shell.redis.sadd(REGISTRY_KEY, *strange, b"\xff")
    assert await listed(shell) == [RegisteredQueue(name="q")]


@pytest.mark.promise("A queue works also if it cannot register itself.")
async def test_a_registry_that_cannot_be_written_disturbs_nobody(shell: Shell) -> None:
    """A key of a wrong type, for example, or a user who may not write it."""
    shell.redis.set(REGISTRY_KEY, "something else")
    queue = fresh(shell)
    assert await queue.publish("m")
    assert await take(queue) == shell.payload("m")


async def test_many_queues_are_listed(shell: Shell) -> None:
    """In pages: more than one scan returns at once."""
    names = sorted(f"queue-{number}" for number in range(2_500))
    with shell.redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.sadd(REGISTRY_KEY, json.dumps({"name": name}))
            pipe.hset(f"{name}::meta", "version", 1)
        pipe.execute()
    assert [one.name for one in await listed(shell, max_queues=10_000)] == names
    assert len(await listed(shell)) == 1_000


async def test_a_wrong_limit_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for wrong in [0, -1, True, "many", 10**9]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            with pytest.raises(ConfigurationError, match="max_queues"):
                await listed(shell, max_queues=wrong)


async def test_the_client_of_the_other_package_is_refused(shell: Shell) -> None:
    with pytest.raises(ConfigurationError, match="client is a"):
        other = shell.other_module.queues(shell.client)
        if hasattr(other, "__await__"):
            await other
