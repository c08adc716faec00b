"""A queue takes the client that Sentinel returns for its primary, and retries until the primary accepts writes."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

import redis_message_queue
import redis_message_queue.asyncio
from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Shell, Wiring, take, until
from tests.topologies.sentinels import SentinelSet

pytestmark = pytest.mark.topic("Connections and clients")


@pytest.fixture(scope="module")
def lasting_sentinels(server_setting: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    """One deployment for tests that do not change the roles."""
    with SentinelSet(server_setting, tmp_path_factory.mktemp("sentinel")) as started:
        yield started


@pytest.fixture
def topology(lasting_sentinels: SentinelSet) -> SentinelSet:
    lasting_sentinels.primary.redis.flushall()
    lasting_sentinels.replicate()
    return lasting_sentinels


@pytest.mark.promise("A Sentinel manager is refused; the client from its `master_for` works.")
@pytest.mark.parametrize("kind", [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel])
def test_a_sentinel_manager_is_refused(kind: Any) -> None:
    """It sends no commands; the error says what to pass instead, for queue and gateway, sync and async."""
    manager = kind([("127.0.0.1", 1)])
    for module in (redis_message_queue, redis_message_queue.asyncio):
        with pytest.raises(module.ConfigurationError, match=r"sentinel\.master_for\(name\)"):
            module.RedisMessageQueue("orders", client=manager)
        with pytest.raises(TypeError, match=r"sentinel\.master_for\(name\)"):
            module.RedisGateway(redis_client=manager)


@pytest.mark.promise("A Sentinel manager is refused; the client from its `master_for` works.")
@pytest.mark.parametrize("wiring", [Wiring(), Wiring(decode_responses=True)], ids=str)
async def test_the_client_of_a_primary_serves_a_queue(shell: Shell, topology: SentinelSet) -> None:
    """Publish, handle, fail and wait, with the client of `master_for`."""
    kept = {"enable_completed_queue": True, "enable_failed_queue": True}
    queue = shell.queue("orders", wait=LIMIT_SECONDS, deduplication=True, **kept)
    assert [await queue.publish(text) for text in ("a", "a", "b")] == [True, False, True]
    assert await take(queue) == shell.payload("a")
    with pytest.raises(ValueError, match="no"):
        async with queue.process_message() as message:
            assert message == shell.payload("b")
            raise ValueError("no")
    consumer = shell.beside(partial(take, queue))
    assert await until(lambda: int(topology.primary.redis.info("clients")["blocked_clients"]) == 1)
    await queue.publish("c")
    assert await asyncio.wait_for(consumer, LIMIT_SECONDS) == shell.payload("c")
    assert (shell.listed(queue.key.completed), shell.listed(queue.key.failed)) == ([b"c", b"a"], [b"b"])


@pytest.mark.promise("The queue survives a Sentinel failover, even with a connection to the demoted primary.")
async def test_a_call_to_a_replica_is_repeated_until_it_accepts_writes(
    shell: Shell, topology: SentinelSet, plain_client: Callable[..., Any]
) -> None:
    """READONLY is transient; the repeated call counts once, and nothing is written partially."""
    replica = topology.replica
    hasty = shell.queue("orders", client=plain_client(replica.port), wait=0, retry_budget_seconds=0.1)
    with pytest.raises(shell.module.RetryBudgetExhaustedError) as refusal:
        await hasty.publish("a")
    assert "read only replica" in str(refusal.value.__cause__)
    assert {*replica.redis.keys("*")} <= {b"orders::meta", b"redis_message_queue::queues"}
    long_budget = {"retry_budget_seconds": LIMIT_SECONDS, "retry_max_delay_seconds": 0.1}
    queue = shell.queue("orders", client=plain_client(replica.port), wait=0, **long_budget)
    late = shell.beside(partial(queue.publish, "b"))
    await asyncio.sleep(0.1)
    try:
        replica.redis.execute_command("REPLICAOF", "NO", "ONE")
        assert await asyncio.wait_for(late, LIMIT_SECONDS) is True
        assert [await take(queue) for _ in range(2)] == [b"b", None]
    finally:
        replica.follow(topology.primary)
