"""One message by its id: where it is now, what happened to it, and who has it."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, DeadLetter, GatewayContractError, JournalError, RetryLater
from tests.contract.shells import EVERY_WIRING, Awaited, Shell, claim_and_die, holding, silent_gateway, take
from tests.tables import row

pytestmark = pytest.mark.topic("One message by its id")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


def here() -> str:
    """This process, as consumers are called without a name."""
    return f"{socket.gethostname()}:{os.getpid()}"


@pytest.mark.promise("`get(id)` tells whether a message is pending, delayed or in processing, and with which consumer.")
@every_wiring
@pytest.mark.parametrize("tenant", [None, "t"])
async def test_a_message_is_found_wherever_it_is(shell: Shell, tenant: str | None) -> None:
    queue = shell.queue(wait=0)
    operator = Awaited(queue)
    one = await operator.submit("m", tenant=tenant, headers={"h": "1"})
    found = await operator.get(one.id)
    assert (found.id, found.state, found.payload, found.tenant) == (one.id, "pending", shell.payload("m"), tenant)
    assert (found.delivery_count, found.consumer, found.headers) == (0, None, {"h": "1"})
    async with queue.process_message():
        found = await operator.get(one.id)
        assert (found.state, found.delivery_count, found.consumer) == ("processing", 1, here())
        raise RetryLater(60)
    found = await operator.get(one.id)
    assert (found.state, found.delivery_count, found.due_at is not None) == ("delayed", 1, True)
    shell.ripen(queue)
    await take(queue)
    assert await operator.get(one.id) is None


async def test_without_leases_it_is_found_too(shell: Shell) -> None:
    queue = shell.queue(visibility_timeout_seconds=None)
    for number in range(30):
        await queue.publish(str(number))
        await claim_and_die(queue)
    one = await Awaited(queue).submit("m")
    async with holding(queue):
        found = await Awaited(queue).get(one.id)
        assert (found.state, found.payload, found.consumer) == ("processing", shell.payload("m"), here())


async def test_waiting_messages_are_searched_as_far_as_asked(shell: Shell) -> None:
    queue = Awaited(shell.queue())
    receipts = await queue.submit_many([str(number) for number in range(1_200)])
    others = await queue.submit_many([str(number) for number in range(700)], tenant="t")
    for one in (receipts[0], receipts[-1], others[-1]):
        assert (await queue.get(one.id)).id == one.id
    assert await queue.get(receipts[-1].id, max_messages=1_199) is None
    assert (await queue.get(receipts[-1].id, max_messages=1_200)).state == "pending"


async def test_foreign_bytes_do_no_harm(shell: Shell) -> None:
    queue = shell.queue()
    shell.redis.lpush(queue.key.pending, b"", b"x", b"\xff" * 30)
    shell.redis.hset(queue.key.deliveries, bytes.fromhex("ab" * 16), "damaged")
    shell.redis.hset(queue.key.processing, bytes.fromhex("ab" * 16), "foreign")
    assert (await Awaited(queue).get("ab" * 16)).state == "processing"
    assert await Awaited(queue).get("cd" * 16) is None


@pytest.mark.promise("`peek(source='processing')` names the consumer of each message: its host and process id.")
async def test_a_look_at_what_is_in_flight_names_the_consumers(shell: Shell) -> None:
    queue = shell.queue()
    await queue.publish("m")
    async with holding(queue):
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == [here()]
        token = shell.leases(queue)[0]
        shell.redis.zadd(queue.key.leases, {token[:16] + b"\x01\x02\x03\x04" + bytes([0, 0, 1, 0]) + token[24:]: 2e18})
        shell.redis.zrem(queue.key.leases, token)
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == ["host-01020304:256"]


FAR = bytes([1, 2, 3, 4, 0, 0, 1, 0])  # process 256 of another host


def move_lease(shell: Shell, queue: Any, *, ends_us: float = 2e18) -> None:
    """Let the only message in flight be held by a process of another host."""
    (token,) = shell.leases(queue)
    shell.redis.zadd(queue.key.leases, {token[:16] + FAR + token[24:]: ends_us})
    shell.redis.zrem(queue.key.leases, token)


@pytest.mark.promise(
    "With `consumer_name` every host can read the name, the host and the process id of a consumer, in `peek`, `get`, "
    "`trace` and the records."
)
@every_wiring
async def test_a_consumer_has_a_name_that_every_host_can_read(shell: Shell) -> None:
    queue = shell.queue(consumer_name="billing", journal=True, wait=0)
    reader = Awaited(shell.queue(journal=True))
    one = await reader.submit("m")
    async with holding(queue):
        name = f"billing@{here()}"
        assert [found.consumer for found in await reader.peek(source="processing")] == [name]
        assert (await reader.get(one.id)).consumer == name
        assert [entry.consumer for entry in await reader.trace(one.id)] == [None, name]
        (key,) = shell.redis.keys(f"{queue.key.consumer_name('')}*")
        assert shell.redis.get(key).decode() == name
        assert 0 < shell.redis.ttl(key) <= 86_400
        shell.redis.set(queue.key.consumer_name(FAR.hex()), "mails@far:256")
        move_lease(shell, queue)
        assert [found.consumer for found in await reader.peek(source="processing")] == ["mails@far:256"]
        assert (await reader.get(one.id)).consumer == "mails@far:256"


async def test_the_name_of_a_consumer_is_written_once(shell: Shell) -> None:
    """It costs no claim a command, and a queue without the option none at all."""
    queue = shell.queue(consumer_name="billing", wait=0)
    await queue.publish_many(["m"] * 3)
    await take(queue)
    (key,) = shell.redis.keys(f"{queue.key.consumer_name('')}*")
    shell.redis.delete(key)
    await take(queue)
    await take(queue)
    assert not shell.redis.exists(key)
    plain = shell.queue("plain", wait=0)
    await plain.publish("m")
    await take(plain)
    assert not shell.redis.keys(f"{plain.key.consumer_name('')}*")


async def test_the_name_of_a_consumer_is_written_again_after_a_flush(shell: Shell) -> None:
    queue = shell.queue(consumer_name="billing", wait=0)
    await queue.publish("m")
    await take(queue)
    shell.redis.flushdb()
    assert await take(queue) is None
    await queue.publish("m")
    async with holding(queue):
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == [f"billing@{here()}"]


async def test_a_server_that_refuses_the_name_of_a_consumer_delivers_its_messages(shell: Shell) -> None:
    """The name is for people: nothing depends on it."""
    queue = shell.queue(consumer_name="billing", wait=0)
    await queue.publish("m")
    shell.redis.config_set("maxmemory", 1)
    try:
        assert await take(queue) == shell.payload("m")
    finally:
        shell.redis.config_set("maxmemory", 0)
    assert not shell.redis.keys(f"{queue.key.consumer_name('')}*")


@pytest.mark.parametrize(
    ("stored", "shown"), [(b"\x1b[2Jme\n", r"\x1b[2Jme\n"), (b"\xff", "base64:/w=="), (b"", "host-01020304:256")]
)
async def test_a_name_that_another_program_wrote_is_shown_escaped(shell: Shell, stored: bytes, shown: str) -> None:
    queue = shell.queue()
    await queue.publish("m")
    async with holding(queue):
        move_lease(shell, queue)
        shell.redis.set(queue.key.consumer_name(FAR.hex()), stored)
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == [shown]
        shell.redis.delete(queue.key.consumer_name(FAR.hex()))
        shell.redis.lpush(queue.key.consumer_name(FAR.hex()), "a list")
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == ["host-01020304:256"]


@pytest.mark.promise("The record of a failed message or a dead letter names the consumer that had it last.")
@every_wiring
@pytest.mark.parametrize("name", [None, "billing"])
async def test_a_record_names_the_consumer(shell: Shell, name: str | None) -> None:
    queue = shell.queue(consumer_name=name, enable_failed_queue=True, enable_completed_queue=True, wait=0)
    await queue.publish_many(["a", "b", "c"])
    with pytest.raises(ValueError, match="no"):
        async with queue.process_message():
            raise ValueError("no")
    async with queue.process_message():
        raise DeadLetter("no")
    await take(queue)
    operator = Awaited(queue)
    shown = here() if name is None else f"{name}@{here()}"
    assert [one.consumer for one in await operator.records("failed")] == [shown]
    assert [one.consumer for one in await operator.records("dead_letters")] == [shown]
    assert [one.consumer for one in await operator.records("completed")] == [None]


@every_wiring
@pytest.mark.parametrize("tenant", [None, "t"])
async def test_the_record_of_a_message_whose_consumer_died_names_that_consumer(
    shell: Shell, tenant: str | None
) -> None:
    """Not the one that moved it to the dead letters."""
    queue = shell.queue(consumer_name="billing", max_delivery_count=1, wait=0)
    operator = Awaited(queue)
    await queue.publish("m", tenant=tenant)
    await claim_and_die(queue)
    move_lease(shell, queue, ends_us=1)
    assert await take(queue) is None
    assert [one.consumer for one in await operator.records("dead_letters")] == ["host-01020304:256"]
    shell.redis.set(queue.key.consumer_name(FAR.hex()), "mails@far:256")
    assert [one.consumer for one in await operator.records("dead_letters")] == ["mails@far:256"]
    (stored,) = shell.redis.lrange(queue.key.records("dlq"), 0, -1)
    for damaged in ("no process", "01", 7):
        shell.redis.lset(queue.key.records("dlq"), 0, json.dumps(json.loads(stored) | {"by": damaged}))
        assert [one.consumer for one in await operator.records("dead_letters")] == [None]


async def test_a_consumer_name_that_cannot_be_used_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for name in ["", "  ", "a\nb", "x" * 65, 7, b"billing", "\ud800"]:
        with row(subtests, name=name), pytest.raises(ConfigurationError, match="consumer_name"):
            shell.queue(consumer_name=name)


@pytest.mark.promise("`trace(id)` returns the history of a message from the journal, with who claimed it.")
@every_wiring
async def test_the_history_of_a_message(shell: Shell) -> None:
    """Also if many other things happened in between."""
    queue = shell.queue(journal=True, wait=0)
    operator = Awaited(queue)
    await queue.publish("another")
    await take(queue)
    one = await operator.submit("m", tenant="t")
    await claim_and_die(queue)
    shell.lapse(queue)
    async with queue.process_message():
        raise RetryLater(60) from ValueError("no")
    shell.ripen(queue)
    await queue.publish_many(["other"] * 600)
    async with queue.process_messages(1_000):
        pass
    entries = await operator.trace(one.id)
    assert [entry.event for entry in entries] == ["published", "claimed", "reclaimed", "retried", "claimed", "acked"]
    assert [entry.consumer for entry in entries] == [None, here(), here(), None, here(), None]
    assert all(entry.tenant == "t" for entry in entries)
    assert sorted(entry.at for entry in entries) == [entry.at for entry in entries]
    assert (entries[2].details["count"], entries[3].details["error_type"]) == ("2", "ValueError")
    assert len(await operator.trace(one.id, max_entries=700)) < 6
    assert await operator.trace("ab" * 16) == []


async def test_a_journal_with_large_payloads_is_read_in_small_steps(shell: Shell) -> None:
    queue = shell.queue(journal="payload", wait=0)
    one = await Awaited(queue).submit("m")
    await queue.publish_many(["x" * 100_000] * 200)

    def reads() -> int:
        return int(shell.redis.info("commandstats").get("cmdstat_xrevrange", {"calls": 0})["calls"])

    before = reads()
    assert [entry.event for entry in await Awaited(queue).trace(one.id)] == ["published"]
    assert reads() - before >= 4  # 50 entries, and then about 4 MB at once


async def test_without_a_journal_there_is_no_history(shell: Shell) -> None:
    queue = Awaited(shell.queue())
    one = await queue.submit("m")
    with pytest.raises(JournalError, match="journal=True"):
        await queue.trace(one.id)


async def test_what_is_no_id_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    for wrong in ["", "xyz", "ab" * 15, "ab" * 17, 1, None, b"ab" * 16, "ä" * 32]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            queue = Awaited(shell.queue())
            for method in (queue.get, queue.trace):
                with pytest.raises(ConfigurationError, match="message_id must be"):
                    await method(wrong)


async def test_a_custom_gateway_finds_nothing(shell: Shell) -> None:
    with pytest.raises(GatewayContractError):
        await Awaited(shell.queue(gateway=silent_gateway(shell))).get("ab" * 16)
