"""A queue takes the client that Sentinel gives for its primary, and knows how to wait for one that takes writes."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

import redis_message_queue
import redis_message_queue.asyncio
from tests.contract.shells import Shell, Wiring, take, until
from tests.topologies.sentinels import SentinelSet
from tests.topologies.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def lasting_sentinels(server_setting: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    """One set for tests that leave the roles as they were."""
    with SentinelSet(server_setting, tmp_path_factory.mktemp("sentinel")) as started:
        yield started


@pytest.fixture
def topology(lasting_sentinels: SentinelSet) -> SentinelSet:
    lasting_sentinels.primary.redis.flushall()
    lasting_sentinels.replicate()
    return lasting_sentinels


@pytest.mark.parametrize("kind", [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel])
def test_the_manager_itself_is_refused(kind: Any) -> None:
    """It sends no commands; the error says what to pass instead, in either queue and gateway."""
    manager = kind([("127.0.0.1", 1)])
    for module in (redis_message_queue, redis_message_queue.asyncio):
        with pytest.raises(module.ConfigurationError, match=r"sentinel\.master_for\(name\)"):
            module.RedisMessageQueue("orders", client=manager)
        with pytest.raises(TypeError, match=r"sentinel\.master_for\(name\)"):
            module.RedisGateway(redis_client=manager)


@pytest.mark.parametrize("wiring", [Wiring(), Wiring(decode_responses=True)], ids=str)
async def test_the_client_of_a_primary_serves_a_queue(shell: Shell, topology: SentinelSet) -> None:
    """Publish, handle, fail and wait, by the client that `master_for` gives."""
    kept = {"enable_completed_queue": True, "enable_failed_queue": True}
    queue = shell.queue("orders", wait=PATIENCE_SECONDS, deduplication=True, **kept)
    assert [await queue.publish(text) for text in ("a", "a", "b")] == [True, False, True]
    assert await take(queue) == shell.payload("a")
    with pytest.raises(ValueError, match="no"):
        async with queue.process_message() as message:
            assert message == shell.payload("b")
            raise ValueError("no")
    consumer = shell.beside(partial(take, queue))
    assert await until(lambda: int(topology.primary.redis.info("clients")["blocked_clients"]) == 1)
    await queue.publish("c")
    assert await asyncio.wait_for(consumer, PATIENCE_SECONDS) == shell.payload("c")
    assert (shell.listed(queue.key.completed), shell.listed(queue.key.failed)) == ([b"c", b"a"], [b"b"])


async def test_a_call_to_a_replica_is_repeated_until_it_takes_writes(
    shell: Shell, topology: SentinelSet, plain_client: Callable[..., Any]
) -> None:
    """READONLY is no refusal for good; what is repeated meanwhile counts once, and nothing is written by halves."""
    replica = topology.replica
    hasty = shell.queue("orders", client=plain_client(replica.port), wait=0, retry_budget_seconds=0.1)
    with pytest.raises(shell.module.RetryBudgetExhaustedError) as refusal:
        await hasty.publish("a")
    assert "read only replica" in str(refusal.value.__cause__)
    assert replica.redis.keys("*") in ([], [b"orders::meta"])
    patience = {"retry_budget_seconds": PATIENCE_SECONDS, "retry_max_delay_seconds": 0.1}
    queue = shell.queue("orders", client=plain_client(replica.port), wait=0, **patience)
    late = shell.beside(partial(queue.publish, "b"))
    await asyncio.sleep(0.1)
    try:
        replica.redis.execute_command("REPLICAOF", "NO", "ONE")
        assert await asyncio.wait_for(late, PATIENCE_SECONDS) is True
        assert [await take(queue) for _ in range(2)] == [b"b", None]
    finally:
        replica.follow(topology.primary)
