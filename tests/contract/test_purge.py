"""A purge removes all messages of one kind."""

import os
import subprocess
import sys
from typing import Any

import pytest

import redis_message_queue
from redis_message_queue.protocol.operate.purge import Purger
from tests.contract.operators import LISTS, SOURCES, key_of, make_dead_letters, mortal, records_key, snapshot
from tests.contract.shells import (
    Awaited,
    Died,
    Sent,
    Shell,
    claim_and_die,
    fail,
    take,
)

pytestmark = pytest.mark.topic("Operator tools")


@pytest.mark.promise(
    "`purge(target)` removes all messages of one kind with their records, returns the count, and leaves the rest."
)
async def test_each_kind_can_be_removed(shell: Shell) -> None:
    """All of it, its records and whatever it had beside it; the others stay, and the count is told."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await make_dead_letters(shell, queue, "dead")
    await queue.publish_many(["done", "failing"])
    await take(queue)
    await fail(queue, ValueError())
    await queue.publish_many(["waiting"] * 3)
    await queue.publish_many(["waiting"] * 2, tenant="a")
    await queue.publish_many(["later"] * 4, delay_seconds=100)
    expected = {"pending": 5, "delayed": 4, "completed": 1, "failed": 1, "dead_letters": 1, "orphans": 0}
    for target, count in expected.items():
        before = await Awaited(queue).stats()
        assert await Awaited(queue).purge(target) == count, target
        after = await Awaited(queue).stats()
        for name in SOURCES:
            assert getattr(after, name) == (0 if name == target else getattr(before, name)), (target, name)
        assert await Awaited(queue).purge(target) == 0, target
    assert shell.leftovers(queue) == set()
    assert shell.redis.keys("*records*") == []
    assert await take(queue) is None
    await queue.publish("as ever")
    assert await take(queue) == b"as ever"


@pytest.mark.promise("`purge()` refuses `processing`, and no target touches messages that are being processed.")
async def test_messages_in_processing_are_not_purged(shell: Shell) -> None:
    """'processing' is refused with a word about orphans, and no other target touches it."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish("handled", tenant="a")
    async with queue.process_message():
        with pytest.raises(shell.module.ConfigurationError, match="orphans"):
            await Awaited(queue).purge("processing")
        for target in ("pending", "delayed", "orphans"):
            assert await Awaited(queue).purge(target) == 0
    assert shell.listed(queue.key.completed) == [b"handled"]


@pytest.mark.promise(
    "`purge(target)` removes all messages of one kind with their records, returns the count, and leaves the rest."
)
async def test_pending_is_removed_however_many_tenants_wait(shell: Shell) -> None:
    """Thousands of messages and hundreds of lines, in steps; numbers of earlier deliveries go with them."""
    queue = shell.queue(wait=0)
    await queue.publish_many(["m"] * 2_200)
    with pytest.raises(LookupError):
        async with queue.process_messages(300):
            raise LookupError
    source = shell.queue("source")
    await source.publish("m")
    async with source.process_messages(1) as batch:
        results = [(queue.queue, "m", {"tenant": str(number)}) for number in range(600)]
        await Awaited(batch[0]).complete(publish=results)
    assert await Awaited(queue).purge("pending") == 2_800
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


@pytest.mark.promise("A purge removes the messages of hundreds of tenants in one step.")
async def test_a_purge_takes_hundreds_of_tenants_in_one_step(shell: Shell) -> None:
    """A round trip for each of 100,000 tenants took 21 seconds."""
    queue, source = shell.queue(), shell.queue("source")
    await source.publish("m")
    async with source.process_messages(1) as batch:
        results = [(queue.queue, "m", {"tenant": str(number)}) for number in range(900)]
        await Awaited(batch[0]).complete(publish=results)
    await Awaited(queue).purge("failed")  # loads the script
    with Sent(shell.server) as sent:
        assert await Awaited(queue).purge("pending") == 900
    assert sent.scripts.count("sweep") <= 4
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


@pytest.mark.promise("Messages of any tenant published after a purge began stay.")
async def test_what_is_published_after_a_purge_began_stays(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every line, also behind what the purge removes, and of a tenant that comes only then."""
    queue = shell.queue(wait=0)
    other = redis_message_queue.RedisMessageQueue("q", client=shell.redis)
    for tenant in (None, "a", "b"):
        await queue.publish_many(["old"] * 3, tenant=tenant)
    look_for_tenants = Purger._waiting_tenants

    async def publish_first(self: Purger) -> Any:
        for tenant in (None, "a", "c"):
            other.publish("new", tenant=tenant)
        return await look_for_tenants(self)

    monkeypatch.setattr(Purger, "_waiting_tenants", publish_first)
    assert await Awaited(queue).purge("pending") == 9
    stats = await Awaited(queue).stats()
    assert (stats.pending, stats.tenants) == (3, 2)
    assert [await take(queue) for _ in range(4)] == [b"new", b"new", b"new", None]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "`orphans` are messages left by consumers without leases; leased and redelivered messages are not orphans."
)
async def test_orphans_are_what_a_consumer_without_leases_has_left(shell: Shell) -> None:
    """stats() shows them and purge removes them, in whatever number; what has a lease is none."""
    careless = shell.queue(visibility_timeout_seconds=None)
    await careless.publish_many([str(number) for number in range(1_500)])
    with pytest.raises(Died):
        async with careless.process_messages(1_000), careless.process_messages(1_000):
            raise Died
    careful = shell.queue()
    await careful.publish("leased")
    await careful.publish("leased too", tenant="a")
    async with careful.process_message(), careful.process_message():
        assert (await Awaited(careful).stats()).processing == 1_502
        assert await Awaited(careful).purge("orphans") == 1_500
        assert (await Awaited(careful).stats()).processing == 2
    assert shell.leftovers(careful) == set()


@pytest.mark.promise(
    "`orphans` are messages left by consumers without leases; leased and redelivered messages are not orphans."
)
async def test_what_a_live_consumer_without_leases_works_on_is_no_orphan(shell: Shell) -> None:
    """One message or a batch, here or in another process; when its block is left by a sudden end it is one."""
    careless = shell.queue(wait=0, visibility_timeout_seconds=None)
    await careless.publish_many(["a", "b", "c"])
    with pytest.raises(Died):
        async with careless.process_message(), careless.process_messages(2):
            assert await Awaited(shell.queue()).purge("orphans") == 0
            raise Died
    assert await Awaited(shell.queue()).purge("orphans") == 3
    assert shell.leftovers(careless) == set()
    await careless.publish("d")
    await careless.process_messages(1).__aenter__()  # a block that is never left, and nobody has what it gave
    assert await Awaited(shell.queue()).purge("orphans") == 1


@pytest.mark.promise(
    "`orphans` are messages left by consumers without leases; leased and redelivered messages are not orphans."
)
async def test_a_block_that_has_ended_holds_nothing_even_if_somebody_keeps_it(shell: Shell) -> None:
    """A program may still refer to the batch or the block whose end left its messages behind."""
    careless = shell.queue(wait=0, visibility_timeout_seconds=None)
    await careless.publish_many(["a", "b"])
    blocks = [careless.process_messages(1), careless.process_message()]
    for block in blocks:
        with pytest.raises(Died):
            async with block:
                raise Died
        assert await Awaited(shell.queue()).purge("orphans") == 1


@pytest.mark.promise(
    "`orphans` are messages left by consumers without leases; leased and redelivered messages are not orphans."
)
@pytest.mark.parametrize(
    "whose, hours, is_orphan",
    [
        ("ours", 0, True),
        ("a live one", 9, False),
        ("a dead one", 0, True),
        ("elsewhere", 0, False),
        ("elsewhere", 25, True),
    ],
)
async def test_an_orphan_belongs_to_a_dead_process_or_is_a_day_old(
    shell: Shell, whose: str, hours: int, is_orphan: bool
) -> None:
    """By its process number on this host; of another host a day after it was published."""
    queue = shell.queue(wait=0, visibility_timeout_seconds=None)
    await queue.publish("a")
    await claim_and_die(queue)
    ((token, stored),) = shell.redis.hgetall(queue.key.processing).items()
    dead = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220 - it ends at once
    dead.wait()
    process = {"ours": os.getpid(), "a live one": os.getppid(), "a dead one": dead.pid, "elsewhere": 1}[whose]
    host = bytes(4) if whose == "elsewhere" else token[16:20]
    shell.redis.delete(queue.key.processing)
    published = int.from_bytes(stored[17:25], "big") - hours * 3_600_000_000
    stored = stored[:17] + published.to_bytes(8, "big") + stored[25:]
    shell.redis.hset(queue.key.processing, token[:16] + host + process.to_bytes(4, "big") + token[24:], stored)
    assert await Awaited(queue).purge("orphans") == is_orphan


@pytest.mark.promise(
    "`orphans` are messages left by consumers without leases; leased and redelivered messages are not orphans."
)
async def test_what_came_back_is_no_orphan(shell: Shell) -> None:
    """A message whose lease ran out waits for its next delivery, with its tenant or without."""
    queue = shell.queue(wait=0)
    await queue.publish("came back")
    await queue.publish("came back too", tenant="a")
    for _ in range(2):
        await claim_and_die(queue)
    shell.lapse(queue)
    assert await Awaited(queue).purge("orphans") == 0
    await queue.publish("other", tenant="b")
    seen = {}
    for _ in range(4):  # the first of them finds out what has come back
        async with queue.process_message() as message:
            seen[message] = message and queue.current_message().delivery_count
        assert await Awaited(queue).purge("orphans") == 0
    assert seen == {b"came back": 2, b"came back too": 2, b"other": 1, None: None}
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("A list of the wrong type is neither shown nor removed.")
@pytest.mark.parametrize("source", LISTS)
async def test_a_list_of_a_wrong_type_is_not_removed(shell: Shell, source: str) -> None:
    """Fail closed: whatever it is, it is still there, and so are the records."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    shell.redis.set(key_of(queue, source), "somebody else's")
    shell.redis.lpush(records_key(queue, source), "record")
    before = snapshot(shell)
    for work in (
        lambda: Awaited(queue).purge(source),
        lambda: Awaited(queue).peek(source=source),
        lambda: Awaited(queue).records(source),
        lambda: Awaited(queue).stats(),
    ):
        with pytest.raises(Exception, match="WRONGTYPE") as caught:
            await work()
        assert type(caught.value).__name__ in ("ResponseError", "LuaScriptError")
        assert snapshot(shell) == before
