"""One message by its id: where it is now, what happened to it, and who has it."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, GatewayContractError, JournalError, RetryLater
from tests.contract.shells import EVERY_WIRING, Awaited, Shell, claim_and_die, holding, silent_gateway, take

pytestmark = pytest.mark.topic("One message by its id")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)
HERE = f"{socket.gethostname()}:{os.getpid()}"


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
        assert (found.state, found.delivery_count, found.consumer) == ("processing", 1, HERE)
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
        assert (found.state, found.payload, found.consumer) == ("processing", shell.payload("m"), HERE)


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
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == [HERE]
        token = shell.leases(queue)[0]
        shell.redis.zadd(queue.key.leases, {token[:16] + b"\x01\x02\x03\x04" + bytes([0, 0, 1, 0]) + token[24:]: 2e18})
        shell.redis.zrem(queue.key.leases, token)
        assert [one.consumer for one in await Awaited(queue).peek(source="processing")] == ["host-01020304:256"]


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
    assert [entry.consumer for entry in entries] == [None, HERE, HERE, None, HERE, None]
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


@pytest.mark.parametrize("wrong", ["", "xyz", "ab" * 15, "ab" * 17, 1, None, b"ab" * 16, "ä" * 32])
async def test_what_is_no_id_is_refused(shell: Shell, wrong: Any) -> None:
    queue = Awaited(shell.queue())
    for method in (queue.get, queue.trace):
        with pytest.raises(ConfigurationError, match="message_id must be"):
            await method(wrong)


async def test_a_custom_gateway_finds_nothing(shell: Shell) -> None:
    with pytest.raises(GatewayContractError):
        await Awaited(shell.queue(gateway=silent_gateway(shell))).get("ab" * 16)
