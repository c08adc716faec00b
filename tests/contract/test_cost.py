"""The cost of an operation does not grow with the number of messages."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract.shells import Shell, claim_and_die, fail, take

pytestmark = [pytest.mark.topic("Cost and memory"), pytest.mark.every_server]

FEW, MANY = 10, 2_000
FULL = 100
FULL_LISTS = {
    "enable_completed_queue": True,
    "max_completed_length": FULL,
    "enable_failed_queue": True,
    "max_failed_length": FULL,
}
# What takes time with the size of a key, whatever it is asked for.
LINEAR = {
    *("lrem", "linsert", "lpos", "hgetall", "hkeys", "hvals", "smembers", "sort", "del"),
    *("keys", "scan", "hscan", "sscan", "zscan", "zrank", "zcount"),
}


def commands(shell: Shell) -> dict[str, int]:
    """How often the server has run each command, inside scripts as well."""
    stats = shell.redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()}


async def cost(shell: Shell, work: Callable[..., Awaitable[Any]]) -> dict[str, int]:
    before = commands(shell)
    await work()
    after = commands(shell)
    spent = {name: calls - before.get(name, 0) for name, calls in after.items()}
    return {name: calls for name, calls in spent.items() if calls and name not in ("info", "evalsha", "eval")}


async def fill(shell: Shell, queue: Any, count: int) -> None:
    """So many messages in flight, twice as many in the line, and lists that are full."""
    for number in range(3):
        await queue.publish(str(number))
    await claim_and_die(queue)
    ((held, stored),) = shell.redis.hgetall(queue.key.processing).items()
    waiting = shell.redis.lindex(queue.key.pending, 0)
    with shell.redis.pipeline(transaction=False) as pipeline:
        for number in range(count):
            twin = number.to_bytes(16, "big")
            pipeline.hset(queue.key.processing, twin, stored.replace(held, twin))
            pipeline.zadd(queue.key.leases, {twin: 1e17 + number})
            for place in (2 * number, 2 * number + 1):
                twin = (1 << 64 | place).to_bytes(16, "big")
                pipeline.lpush(queue.key.pending, waiting[:1] + twin + waiting[17:])
        for word in ("completed", "failed"):
            pipeline.lpush(getattr(queue.key, word), *["old"] * FULL)
            pipeline.lpush(queue.key.records(word), *["{}"] * FULL)
        pipeline.execute()


OPERATIONS: dict[str, Callable[[Shell, Any], Awaitable[Any]]] = {
    "publish": lambda shell, queue: queue.publish("new"),
    "claim and ack": lambda shell, queue: take(queue),
    "claim and fail": lambda shell, queue: fail(queue, ValueError()),
    "claim and die": lambda shell, queue: claim_and_die(queue),
}


@pytest.mark.promise("Claim, ack, nack, renewal and reclaim cost the same with many messages as with few.")
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_takes_the_same_steps_beside_many_as_beside_few(shell: Shell, operation: str) -> None:
    """The same commands, as often; and none of them walks through a whole key."""
    spent = []
    for count in (FEW, MANY):
        shell.redis.flushall()
        queue = shell.queue(wait=0, **FULL_LISTS)
        await fill(shell, queue, count)
        spent.append(await cost(shell, lambda queue=queue: OPERATIONS[operation](shell, queue)))
    assert spent[0] == spent[1]
    assert spent[0].keys() & LINEAR == set()
    assert sum(spent[0].values()) < 30


@pytest.mark.promise("Claim, ack, nack, renewal and reclaim cost the same with many messages as with few.")
async def test_taking_over_an_expired_message_takes_the_same_steps_beside_many_as_beside_few(shell: Shell) -> None:
    """One lease has run out among thousands that run."""
    spent = []
    for count in (FEW, MANY):
        shell.redis.flushall()
        queue = shell.queue(wait=0)
        await fill(shell, queue, count)
        ((oldest, _),) = shell.redis.zrange(queue.key.leases, 0, 0, withscores=True)
        shell.redis.zadd(queue.key.leases, {oldest: 1.0})
        spent.append(await cost(shell, lambda queue=queue: take(queue)))
    assert spent[0] == spent[1]
    assert spent[0].keys() & LINEAR == set()


@pytest.mark.promise("Claim, ack, nack, renewal and reclaim cost the same with many messages as with few.")
async def test_a_renewal_takes_the_same_steps_beside_many_as_beside_few(shell: Shell) -> None:
    """A heartbeat touches the lease of its own message."""
    for count in (FEW, MANY):
        shell.redis.flushall()
        events = shell.events()
        queue = shell.queue(
            wait=0, visibility_timeout_seconds=60, heartbeat_interval_seconds=0.05, on_event=events.listen
        )
        await fill(shell, queue, count)
        async with queue.process_message():
            before, told = commands(shell), len(events.of("lease_renew"))
            await events.wait_for("lease_renew", told + 3)
            renewals = commands(shell).get("evalsha", 0) - before.get("evalsha", 0)
            spent = {name: calls - before.get(name, 0) for name, calls in commands(shell).items()}
        assert spent["zadd"] <= renewals + 1
        assert sum(spent.get(name, 0) for name in LINEAR) == 0
