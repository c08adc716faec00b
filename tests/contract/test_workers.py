"""`workers()` shows who runs a consumer loop on a queue."""

import asyncio
import os
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from redis_message_queue import ConnectedWorker, __version__
from redis_message_queue.protocol.loop import worker_entry
from redis_message_queue.stored.permissions import CONSUMER, OPERATOR
from redis_message_queue.testing import fast_forward
from tests.contract.loops import running
from tests.contract.shells import Awaited, Shell, until
from tests.contract.test_run_queues import serving

pytestmark = pytest.mark.topic("Operator tools")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are written a hundred times as often."""
    monkeypatch.setattr(worker_entry, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(worker_entry, "_INTERVAL_SECONDS", 0.1)


async def connected(queue: Any, count: int = 1, *, has_claimed: bool = False) -> list[ConnectedWorker]:
    """The workers of a queue, as soon as there are so many."""
    found: list[ConnectedWorker] = []
    for _ in range(1_000):
        found = await Awaited(queue).workers()
        if len(found) == count and (not has_claimed or found[0].last_claim is not None):
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(found)


@pytest.mark.promise("`workers()` shows each process that runs a consumer loop, also while there is nothing to do.")
@pytest.mark.both_shells
@pytest.mark.every_server
@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_worker_is_there_as_long_as_its_loop_runs(shell: Shell, partitions: int) -> None:
    queue, handled = shell.queue(partitions=partitions, consumer_name="packer"), []
    before = datetime.now(UTC)
    assert await Awaited(queue).workers() == []
    async with running(
        shell, shell.queue(partitions=partitions, consumer_name="packer"), handled.append, concurrency=4
    ):
        (worker,) = await connected(queue)
        host, pid = socket.gethostname(), os.getpid()
        assert (worker.name, worker.host, worker.pid) == ("packer", host, pid)
        assert worker.consumer == f"packer@{host}:{pid}"
        assert (worker.concurrency, worker.version) == (4, __version__)
        assert abs((worker.since - before).total_seconds()) < 60
        assert worker.last_claim is None
        await queue.publish("a")
        assert await until(lambda: handled)
        await connected(queue, has_claimed=True)
        keys = shell.redis.keys("*connected_workers*")
        assert keys == [queue.queue.partition(0).key.connected_workers.encode()]
        assert 0 < shell.redis.pttl(keys[0]) <= 30_000
    await connected(queue, 0)


@pytest.mark.promise("`workers()` shows each process that runs a consumer loop, also while there is nothing to do.")
async def test_each_queue_of_run_queues_has_the_worker(shell: Shell) -> None:
    first, second = shell.queue("first"), shell.queue("second")
    async with serving(shell, {shell.queue("first"): 1, shell.queue("second"): 2}, lambda message: None):
        ((one,), (other,)) = (await connected(first), await connected(second))
        assert one.consumer == other.consumer == f"{socket.gethostname()}:{os.getpid()}"


@pytest.mark.promise("`workers()` shows each process that runs a consumer loop, also while there is nothing to do.")
async def test_an_entry_that_is_not_renewed_expires_and_a_flushed_one_comes_back(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process has at most thirty seconds to be shown."""
    queue = shell.queue()
    async with running(shell, shell.queue(), lambda message: None):
        await connected(queue)
        shell.redis.flushall()
        await connected(queue)
        monkeypatch.setattr(worker_entry, "_INTERVAL_SECONDS", 600.0)  # as if it were killed after its next entry
        await asyncio.sleep(0.3)
        fast_forward(shell.redis, 29)
        await connected(queue)
        fast_forward(shell.redis, 2)
        assert await Awaited(queue).workers() == []


@pytest.mark.promise("A server that refuses the entry of a worker does not disturb its loop.")
@pytest.mark.every_server
async def test_a_loop_goes_on_where_its_entry_is_refused(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """By a key of another type. A full server takes the entry."""
    queue, handled = shell.queue(), []
    shell.redis.set(queue.key.connected_workers, "something else")
    async with running(shell, shell.queue(), handled.append):
        assert await until(lambda: "Redis refused the entry of this worker" in caplog.text)
        await queue.publish("a")
        assert await until(lambda: handled)
        shell.redis.delete(queue.key.connected_workers)
        shell.redis.config_set("maxmemory", 1)
        try:
            await connected(queue)
        finally:
            shell.redis.config_set("maxmemory", 0)
    assert caplog.text.count("Redis refused the entry of this worker") == 1


async def test_what_it_takes_is_in_the_rules_of_each_role(shell: Shell) -> None:
    """A worker needs no command that it did not need before."""
    assert "announce_worker" in CONSUMER.scripts
    assert {"ZRANGE", "TIME"} <= set(OPERATOR.commands)
