"""A receipt has the id of a message, or of the one that it repeats; a publish can say more about its message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, GatewayContractError, PayloadTypeError, Receipt
from redis_message_queue.stored.envelope import TTL_BYTES
from tests.contract.shells import EVERY_WIRING, Awaited, Sent, Shell, silent_gateway, take
from tests.tables import row

pytestmark = [pytest.mark.topic("Receipts"), pytest.mark.every_server]

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


@pytest.mark.promise("`submit()` publishes a message and returns a `Receipt` with its id.")
@every_wiring
async def test_a_receipt_has_the_id_of_its_message(shell: Shell) -> None:
    """The same that its events, its deliveries and the journal have."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, journal=True)
    receipt = await Awaited(queue).submit("m", tenant="a")
    assert receipt == Receipt(id=events.the("publish").message_id or "", accepted=True)
    assert shell.redis.xrange(queue.key.journal)[0][1][b"id"] == receipt.id.encode()
    async with queue.process_message():
        assert queue.current_message().id == receipt.id


@pytest.mark.promise("The receipt of a duplicate names the message that holds the deduplication key.")
@pytest.mark.parametrize("tenant", [None, "a"])
async def test_the_receipt_of_a_duplicate_names_the_first(shell: Shell, tenant: str | None) -> None:
    queue = Awaited(shell.queue(deduplication=True))
    first = await queue.submit("m", tenant=tenant)
    again = await queue.submit("m", tenant=tenant)
    assert (again.accepted, again.duplicate_of) == (False, first.id) and again.id != first.id
    receipts = await queue.submit_many(["new", "m", "new"], tenant=tenant)
    assert [one.accepted for one in receipts] == [True, False, False]
    assert [one.duplicate_of for one in receipts] == [None, first.id, receipts[0].id]


async def test_a_submit_takes_one_round_trip(shell: Shell) -> None:
    """Only for a duplicate there is a second one."""
    queue = Awaited(shell.queue())
    await queue.submit("first")
    with Sent(shell.server) as sent:
        await queue.submit("m")
        await queue.submit("m", deduplication_key="k")
    assert sent.commands == ["EVALSHA", "EVALSHA"]
    with Sent(shell.server) as sent:
        assert not (await queue.submit("m", deduplication_key="k")).accepted
    assert sent.commands == ["EVALSHA", "GET"]


async def test_a_holder_that_is_gone_is_none(shell: Shell) -> None:
    """Somebody wrote another value there, or the window ended in between."""
    queue = shell.queue()
    shell.redis.set(queue.key.deduplication("k"), "foreign")
    receipt = await Awaited(queue).submit("m", deduplication_key="k")
    assert (receipt.accepted, receipt.duplicate_of) == (False, None)


@pytest.mark.promise("`publish(deduplication_key=...)` suppresses a duplicate of this key, on any queue.")
@pytest.mark.parametrize("deduplicates", [False, True])
async def test_a_key_for_one_message(shell: Shell, deduplicates: bool) -> None:
    """It replaces the key that the queue would use."""
    queue = shell.queue(wait=0, deduplication=deduplicates)
    assert await queue.publish("one", deduplication_key="k")
    assert not await queue.publish("two", deduplication_key="k")
    assert await queue.publish("two", deduplication_key="k", tenant="t")
    assert await queue.publish("one") and await queue.publish("one") is not deduplicates
    assert shell.redis.exists(queue.key.deduplication("k"), queue.key.deduplication("k", "t")) == 2


@pytest.mark.promise("`publish(headers=...)` adds headers to what `get_headers` returns.")
async def test_headers_for_one_message(shell: Shell) -> None:
    queue = shell.queue(get_headers=shell.callback(lambda: {"a": "1", "b": "1"}))
    await queue.publish("m", headers={"b": "2", "c": "2"})
    await shell.queue().publish("n", headers={"c": "3"})
    await shell.queue().publish_many(["o"], headers={"d": "4"})
    seen = []
    for _ in range(3):
        async with queue.process_message():
            seen.append(queue.current_message().headers)
    assert seen == [{"a": "1", "b": "2", "c": "2"}, {"c": "3"}, {"d": "4"}]


@pytest.mark.promise("A message with `ttl_seconds` that is older when its turn comes goes to the dead letters.")
@pytest.mark.parametrize(
    "details", [{}, {"tenant": "a"}, {"headers": {"h": "1"}}, {"tenant": "a", "headers": {"h": "1"}}]
)
async def test_a_message_outlives_its_own_time(shell: Shell, details: dict[str, Any]) -> None:
    """Others do not; the age counts by the server's clock."""
    queue = shell.queue(wait=0)
    await queue.publish("old", ttl_seconds=60, **details)
    await queue.publish("young", ttl_seconds=60, **details)
    await queue.publish("any age", **details)
    key = queue.key.tenant_pending("a") if "tenant" in details else queue.key.pending
    stored = shell.redis.lindex(key, -1)
    assert stored.endswith((60_000_000).to_bytes(TTL_BYTES, "big") + b"old")
    shell.redis.lset(key, -1, stored[:17] + (int.from_bytes(stored[17:25]) - 60_000_000).to_bytes(8) + stored[25:])
    assert [await take(queue) for _ in range(3)] == [shell.payload("young"), shell.payload("any age"), None]
    (record,) = await queue.records("dead_letters")
    assert (record.payload, record.reason, record.tenant) == (shell.payload("old"), "expired", details.get("tenant"))


async def test_a_message_with_a_time_to_live_goes_every_way(shell: Shell) -> None:
    """Peeked at, failed, retried, batched and redriven like any other."""
    queue = shell.queue(wait=0, enable_failed_queue=True)
    assert await queue.publish_many(["a", "b"], ttl_seconds=3600, tenant="t") == [True, True]
    assert [one.payload for one in await Awaited(queue).peek()] == [shell.payload("a"), shell.payload("b")]
    async with queue.process_messages(2) as batch:
        assert [one.payload for one in batch] == [shell.payload("a"), shell.payload("b")]
        await batch.fail(batch[0], ValueError("no"))
    assert shell.listed(queue.key.failed) == [b"a"]
    assert (await Awaited(queue).redrive_failed()).redriven == 1
    assert await take(queue) == shell.payload("a")
    assert not shell.leftovers(queue)


async def test_what_makes_no_sense_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        ({"headers": "x"}, PayloadTypeError, "headers must be a mapping of str to str, not str"),
        ({"headers": {"a": 1}}, PayloadTypeError, "headers has a int for 'a'"),
        ({"deduplication_key": ""}, ConfigurationError, "deduplication_key must not be empty"),
        ({"deduplication_key": 1}, ConfigurationError, "deduplication_key must be a str"),
        ({"ttl_seconds": 0}, ConfigurationError, "ttl_seconds must be at least"),
        ({"ttl_seconds": True}, ConfigurationError, "ttl_seconds must be a number"),
        ({"ttl_seconds": 5, "delay_seconds": 5}, ConfigurationError, "not earlier than ttl_seconds=5 allows"),
    ]
    for details, error, text in cases:
        with row(subtests, details=details, error=error, text=text):
            shell.redis.flushall()
            queue = shell.queue()
            with pytest.raises(error, match=text):
                await queue.publish("m", **details)
            with pytest.raises(error, match=text):
                await Awaited(queue).submit("m", **details)
            assert shell.is_empty


async def test_a_key_and_dropping_contradict_each_other(shell: Shell) -> None:
    options = {"max_pending_length": 1, "pending_overload_policy": "drop_oldest", "max_delivery_count": None}
    with pytest.raises(ConfigurationError, match="deduplication_key cannot be combined"):
        await shell.queue(**options).publish("m", deduplication_key="k")


async def test_a_custom_gateway_gives_no_receipts(shell: Shell) -> None:
    queue = shell.queue(gateway=silent_gateway(shell))
    with pytest.raises(GatewayContractError, match=r"submit\(\) is not part"):
        await Awaited(queue).submit("m")
    with pytest.raises(GatewayContractError, match="headers"):
        await queue.publish("m", headers={"a": "b"})


@pytest.mark.both_shells  # each has its own signatures
async def test_every_way_to_publish_passes_the_details_on(shell: Shell) -> None:
    """What is stored differs by its id and its time alone."""
    queue = shell.queue()
    operator, moment = Awaited(queue), datetime(2099, 1, 1, tzinfo=UTC)
    ways = [
        (operator.publish, "m"),
        (operator.submit, "m"),
        (operator.publish_many, ["m"]),
        (operator.submit_many, ["m"]),
    ]
    for publish, message in ways:
        await publish(message, tenant="a", headers={"h": "1"}, ttl_seconds=60)
        await publish(message, at=moment)
    stored = shell.redis.lrange(queue.key.tenant_pending("a"), 0, -1)
    assert len(stored) == 4 and len({one[:1] + one[25:] for one in stored}) == 1
    assert [one.headers for one in await operator.peek()] == [{"h": "1"}] * 4
    assert [one.due_at for one in await operator.peek(source="delayed")] == [moment] * 4
