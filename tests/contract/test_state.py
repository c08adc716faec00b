"""The stored state of a queue: written at the first contact, rewritten after a flush, versioned."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.shells import Awaited, Shell, take

pytestmark = [pytest.mark.topic("State in Redis"), pytest.mark.every_server]


def forget(shell: Shell, queue: Any) -> Any:
    """As if nobody had ever used the queue."""
    shell.redis.delete(queue.key.meta)
    return queue


@pytest.mark.promise("The first call of any kind writes the version of the stored state.")
async def test_the_first_contact_writes_the_version(shell: Shell) -> None:
    """Whichever operation comes first; the next one finds it."""
    queue = forget(shell, shell.queue(wait=0))
    await queue.publish("a")
    assert shell.redis.hgetall(queue.key.meta) == {b"version": b"1", b"partitions": b"1"}
    assert await take(forget(shell, shell.queue(wait=0))) == b"a"
    assert shell.redis.hget(queue.key.meta, "version") == b"1"


@pytest.mark.promise("The first call of any kind writes the version of the stored state.")
@pytest.mark.parametrize("verb", ["publish_many", "claim", "run", "purge", "redrive"])
async def test_every_first_call_may_be_the_first_contact(shell: Shell, verb: str) -> None:
    """None of them fails because nobody came before."""
    queue = forget(shell, shell.queue(wait=0))
    if verb == "publish_many":
        assert await queue.publish_many(["a", "b"], tenant="t") == [True, True]
    elif verb == "claim":
        assert await take(queue) is None
    elif verb == "run":
        assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 0
    elif verb == "purge":
        assert await Awaited(queue).purge("pending") == 0
    else:
        assert (await Awaited(queue).redrive_dead_letters()).matched == 0


@pytest.mark.promise("State of a newer version raises `StateVersionError`, and nothing changes.")
async def test_a_newer_version_is_refused_and_nothing_is_changed(shell: Shell) -> None:
    """A release that does not know how things are stored touches none of them."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    shell.redis.hset(queue.key.meta, "version", 2)
    before = {key: shell.redis.dump(key) for key in shell.redis.keys("*")}
    with pytest.raises(shell.module.StateVersionError, match=r"version '2'.*upgrade"):
        await queue.publish("b")
    with pytest.raises(shell.module.StateVersionError):
        await take(queue)
    assert {key: shell.redis.dump(key) for key in shell.redis.keys("*")} == before


@pytest.mark.promise("After a flush, a running process logs it and writes version, journal settings and weights again.")
async def test_after_a_flush_journal_and_weights_are_written_again(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that goes on notices, says so, and writes what its options want to be there."""
    queue = shell.queue(wait=0, journal=True, tenant_weights={"a": 3})
    await queue.publish("before")
    assert await take(queue) == b"before"
    identity = shell.redis.hget(queue.key.meta, "journal_identity")
    shell.redis.flushall()
    await queue.publish("after", tenant="a")
    assert await take(queue) == b"after"
    told = [entry[b"event"] for _, entry in shell.redis.xrange(queue.key.journal)]
    assert told == [b"published", b"claimed", b"acked"]
    assert shell.redis.hget(queue.key.weights, "a") == b"3"
    assert shell.redis.hget(queue.key.meta, "journal_identity") not in (None, identity)
    assert "Redis lost this queue's state" in caplog.text


@pytest.mark.promise("After a flush, a running process logs it and writes version, journal settings and weights again.")
async def test_after_a_flush_journal_and_weights_are_written_again_behind_a_client_without_them(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that asks for neither finds the server empty first, and writes the state without them."""
    queue = shell.queue(wait=0, journal=True, tenant_weights={"a": 3})
    await queue.publish("before")
    assert await take(queue) == b"before"
    shell.redis.flushall()
    await shell.queue(wait=0).publish("between")
    await queue.publish("after", tenant="a")
    told = [entry[b"event"] for _, entry in shell.redis.xrange(queue.key.journal)]
    assert told == [b"published"]
    assert shell.redis.hget(queue.key.weights, "a") == b"3"
    assert "Redis lost this queue's state" in caplog.text


@pytest.mark.promise("After a flush, a running process logs it and writes version, journal settings and weights again.")
@pytest.mark.parametrize("wish", [{"journal": True}, {"tenant_weights": {"a": 3}}], ids=["journal", "weights"])
async def test_a_claim_after_a_flush_finds_what_its_options_need(shell: Shell, wish: dict[str, Any]) -> None:
    """A consumer with one of the wishes, behind a producer that has none."""
    consumer = shell.queue(wait=0, **wish)
    assert await take(consumer) is None
    shell.redis.flushall()
    await shell.queue(wait=0).publish("after", tenant="a")
    assert await take(consumer) == b"after"
    told = [entry[b"event"] for _, entry in shell.redis.xrange(consumer.key.journal)]
    assert told == ([b"claimed", b"acked"] if "journal" in wish else [])
    assert shell.redis.hgetall(consumer.key.weights) == ({b"a": b"3"} if "tenant_weights" in wish else {})


@pytest.mark.promise("State of a newer version raises `StateVersionError`, and nothing changes.")
async def test_a_newer_version_is_refused_by_a_client_that_wants_a_journal(shell: Shell) -> None:
    """Such a client writes its rules first, and must not write them into a state that it does not know."""
    queue = shell.queue(wait=0, journal=True)
    shell.redis.hset(queue.key.meta, "version", 2)
    with pytest.raises(shell.module.StateVersionError, match=r"version '2'.*upgrade"):
        await queue.publish("a")
    assert shell.redis.hgetall(queue.key.meta) == {b"version": b"2"}


@pytest.mark.promise("`message.attempt` counts every delivery of a message, retries included.")
async def test_attempts_count_every_delivery(shell: Shell) -> None:
    """Retries and deliveries after a crash; not what was requeued before a handler had it."""
    queue = shell.queue(wait=0, retry_policy=shell.module.RetryPolicy(max_attempts=9, initial_delay_seconds=1000))
    await queue.publish("a")
    seen = []
    for _ in range(3):
        async with queue.process_messages(1) as batch:
            seen.append((batch[0].attempt, batch[0].delivery_count))
            await batch.fail(batch[0], ValueError())
        shell.ripen(queue)
    assert seen == [(1, 1), (2, 1), (3, 1)]
