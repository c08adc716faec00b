"""A server that cannot accept writes: transient causes are retried, others raise an error."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redis_message_queue import LuaScriptError
from tests.contract.shells import LIMIT_SECONDS, Shell, claim_and_die, fail, take, until

pytestmark = [pytest.mark.topic("Retries of Redis calls"), pytest.mark.every_server]


@pytest.fixture
def full(shell: Shell) -> Iterator[None]:
    """For the time of the test the server has less memory than it uses; switched on by the test itself."""
    before = shell.redis.config_get("maxmemory")["maxmemory"]
    yield
    shell.redis.config_set("maxmemory", before)


@pytest.fixture
def lonely(shell: Shell) -> Iterator[None]:
    """After the test the server takes writes without replicas again."""
    yield
    shell.redis.config_set("min-replicas-to-write", 0)


@pytest.mark.promise("When the server is out of memory, a publish fails immediately and changes nothing.")
@pytest.mark.promise("A refusal by a script raises `LuaScriptError` from the server's error.")
@pytest.mark.usefixtures("full")
async def test_a_full_server_refuses_a_publish_and_keeps_everything(shell: Shell) -> None:
    """At once, not after a retry budget of two minutes; and when there is room again, all is as it was."""
    events = shell.events()
    queue = shell.queue(wait=0, deduplication=True, on_event=events.listen)
    await queue.publish("a")
    shell.redis.config_set("maxmemory", 1)
    started = time.monotonic()
    with pytest.raises(LuaScriptError, match="maxmemory") as refusal:
        await queue.publish("b")
    assert time.monotonic() - started < LIMIT_SECONDS
    assert isinstance(refusal.value.__cause__, redis.exceptions.ResponseError)
    assert events.names[-1] == "publish/failure"
    shell.redis.config_set("maxmemory", 0)
    assert await queue.publish("b") is True
    assert [await take(queue), await take(queue)] == [b"a", b"b"]


@pytest.mark.promise(
    "When the server is out of memory, consumers can still claim and settle messages; only publishing fails."
)
@pytest.mark.usefixtures("full")
async def test_a_full_server_can_be_drained_by_its_consumers(shell: Shell) -> None:
    """Fresh messages, tenants' messages, one that comes back and one whose time has come: all are delivered."""
    queue = shell.queue(wait=0)
    await queue.publish("came back")
    await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("waits")
    await queue.publish("of a tenant", tenant="t")
    await queue.publish("later", delay_seconds=1000)
    shell.ripen(queue)
    shell.redis.config_set("maxmemory", 1)
    taken = [await take(queue) for _ in range(5)]
    assert sorted(filter(None, taken)) == [b"came back", b"later", b"of a tenant", b"waits"]
    assert taken[-1] is None
    with pytest.raises(LuaScriptError, match="maxmemory"):
        await queue.publish("one more")
    shell.redis.config_set("maxmemory", 0)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "When the server is out of memory, consumers can still claim and settle messages; only publishing fails."
)
@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("options", [{"journal": "payload"}, {"tenant_weights": {"acme": 3}}, {}], ids=str)
@pytest.mark.parametrize("is_new", [True, False], ids=["a queue without state", "a queue with state"])
async def test_a_consumer_can_start_on_a_full_server(shell: Shell, options: dict[str, Any], is_new: bool) -> None:
    """It writes what its queue must have; a worker that could not would crash at each start."""
    await shell.queue(**options).publish("a")
    consumer = shell.queue(wait=0, **options)
    if is_new:
        shell.redis.delete(consumer.key.meta)
    shell.redis.config_set("maxmemory", 1)
    assert [await take(consumer), await take(consumer)] == [b"a", None]
    shell.redis.config_set("maxmemory", 0)
    written = (shell.redis.hget(consumer.key.meta, "journal"), shell.redis.hgetall(consumer.key.weights))
    assert written == (b"1" if "journal" in options else None, {b"acme": b"3"} if "tenant_weights" in options else {})


@pytest.mark.promise("When the server is out of memory, a publish fails immediately and changes nothing.")
@pytest.mark.usefixtures("full")
async def test_a_publish_to_a_new_queue_on_a_full_server_writes_nothing(shell: Shell) -> None:
    """Not even the version of the queue."""
    with_journal, queue = shell.queue(journal=True), shell.queue()
    shell.redis.flushall()
    shell.redis.config_set("maxmemory", 1)
    with pytest.raises(LuaScriptError, match="maxmemory"):
        await with_journal.publish("a")
    with pytest.raises(LuaScriptError, match="maxmemory"):
        await queue.publish("a", tenant="t")
    assert shell.is_empty


@pytest.mark.promise("Scripts write before they remove, so a server that runs out of memory loses no message.")
@pytest.mark.usefixtures("full")
async def test_a_full_server_can_be_emptied(shell: Shell) -> None:
    """Who holds a message settles it, into its list too, and keeps its lease meanwhile."""
    events = shell.events()
    queue = shell.queue(
        wait=0,
        enable_completed_queue=True,
        enable_failed_queue=True,
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.03,
        on_event=events.listen,
    )
    await queue.publish("good")
    await queue.publish("bad")
    async with queue.process_message():
        with pytest.raises(ValueError):
            async with queue.process_message():
                shell.redis.config_set("maxmemory", 1)
                told = len(events.of("lease_renew"))
                await events.wait_for("lease_renew", told + 4)
                raise ValueError
    assert {event.outcome for event in events.of("lease_renew")} == {"success"}
    shell.redis.config_set("maxmemory", 0)
    assert shell.listed(queue.key.completed) == [b"good"]
    assert shell.listed(queue.key.failed) == [b"bad"]


@pytest.mark.promise("A temporary refusal by the server, such as loading its data, is retried.")
@pytest.mark.usefixtures("lonely")
async def test_a_refusal_that_passes_is_waited_for(shell: Shell) -> None:
    """A server that misses its replicas takes nothing; everybody tries again until it does, and it counts once."""
    events = shell.events()
    queue = shell.queue(
        wait=0,
        enable_failed_queue=True,
        on_event=events.listen,
        retry_initial_delay_seconds=0.01,
        retry_max_delay_seconds=0.05,
    )
    await queue.publish("a")
    shell.redis.config_set("min-replicas-to-write", 1)
    publisher = shell.beside(lambda: queue.publish("b"))
    consumer = shell.beside(lambda: fail(queue, ValueError()))
    await events.wait_for("retry_attempt", 3)
    assert not publisher.done() and not consumer.done()
    shell.redis.config_set("min-replicas-to-write", 0)
    assert await publisher is True
    assert await consumer == b"a"
    assert shell.listed(queue.key.failed) == [b"a"]
    assert await take(queue) == b"b"
    assert "claim/failure" not in events.names


@pytest.mark.promise("A temporary refusal by the server, such as loading its data, is retried.")
@pytest.mark.usefixtures("lonely")
async def test_an_ack_waits_for_a_refusal_that_passes(shell: Shell) -> None:
    """The handler is done; its message leaves when the server takes writes again."""
    queue = shell.queue(wait=0, retry_initial_delay_seconds=0.01, retry_max_delay_seconds=0.05)
    await queue.publish("a")

    async def consumer() -> None:
        async with queue.process_message():
            shell.redis.config_set("min-replicas-to-write", 1)

    def refused() -> int:
        # 6.2 counts what a script was refused with the script itself, later ones by the word.
        stats = shell.redis.info("errorstats")
        return sum(int(count["count"]) for word, count in stats.items() if word.split("_")[1] in ("NOREPLICAS", "ERR"))

    before = refused()
    working = shell.beside(consumer)
    assert await until(lambda: refused() > before + 2)
    assert shell.processing(queue) == 1
    shell.redis.config_set("min-replicas-to-write", 0)
    await working
    assert shell.leftovers(queue) == set()
