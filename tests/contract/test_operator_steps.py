"""Operator tools work in bounded steps, however long the queue is."""

import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.operators import LISTS, SOURCES, make_dead_letters, mortal, records_key
from tests.contract.shells import (
    Awaited,
    Died,
    Sent,
    Shell,
    fail,
    take,
)

pytestmark = pytest.mark.topic("Operator tools")

STEP = 1_000  # messages that one script may handle

FILLINGS = {
    "line": {"line": STEP + 1},
    "tenant": {"tenant": STEP + 1},
    "came back": {"came back": STEP + 5},
    "came back and line": {"came back": STEP, "tenant": 5},
    "delayed": {"delayed": STEP + 1},
    "orphans": {"orphans": STEP + 1},
}


async def fill(shell: Shell, queue: Any, **counts: int) -> None:
    """So many messages of each kind."""
    for kind, count in counts.items():
        texts = ["m"] * count
        details: dict[str, Any] = {"tenant": "t"} if kind in ("tenant", "came back") else {}
        await queue.publish_many(texts, **details | ({"delay_seconds": 1_000} if kind == "delayed" else {}))
        if kind in ("came back", "orphans"):
            options = {} if kind == "came back" else {"visibility_timeout_seconds": None}
            consumer, left = shell.queue(wait=0, **options), count
            while left:
                with contextlib.suppress(Died):
                    async with consumer.process_messages(STEP) as batch:
                        left -= len(batch)
                        raise Died
        if kind == "came back":
            shell.lapse(queue)
            await queue.publish_many(["other"] * 2, tenant="other")
            for _ in range(2):  # claims find out what has come back, a thousand at a time; one may take one of them
                assert await take(queue) is not None
            assert shell.redis.zcard(queue.key.expired("t")) >= count - 2


@pytest.mark.promise(
    "One step of a purge or a redrive handles at most 1,000 messages; one of `stats()` at most 1,000 tenant queues."
)
@pytest.mark.parametrize("counts", FILLINGS.values(), ids=FILLINGS)
async def test_a_step_of_a_purge_removes_at_most_a_thousand(shell: Shell, counts: dict[str, int]) -> None:
    """One more than that is two steps, whatever they are and wherever they wait."""
    queue = shell.queue(wait=0)
    await fill(shell, queue, **counts)
    (target,) = {one for one in counts if one in ("delayed", "orphans")} or {"pending"}
    tenant = Awaited(queue.queue.tenant("t"))
    expected = await tenant.length() or sum(counts.values())
    assert expected > STEP
    await Awaited(queue).purge("failed")  # loads the script
    with Sent(shell.server) as sent:
        whole = "line" in counts or target != "pending"
        assert await (Awaited(queue).purge(target) if whole else tenant.delete()) == expected
    assert set(sent.scripts) == {"sweep"}
    assert sent.scripts.count("sweep") >= 2


@pytest.mark.promise(
    "One step of a purge or a redrive handles at most 1,000 messages; one of `stats()` at most 1,000 tenant queues."
)
async def test_a_step_of_a_redrive_republishes_at_most_a_thousand(shell: Shell) -> None:
    """So do its looks, which read no more than a page at a time."""
    queue = mortal(shell)
    texts = [str(number) for number in range(STEP + 1)]
    await make_dead_letters(shell, queue, *texts, "warm-up")
    await Awaited(queue).redrive_dead_letters(where=lambda letter: letter.payload == b"warm-up")
    with Sent(shell.server) as sent:
        assert (await Awaited(queue).redrive_dead_letters()).redriven == STEP + 1
    assert set(sent.scripts) == {"redrive", "read_page"}
    assert set(sent.commands) == {"EVALSHA", "HMGET"}
    assert sent.commands.count("HMGET") == 1, "a look at the number of partitions"
    assert sent.scripts.count("redrive") >= 2
    assert sent.scripts.count("read_page") >= 4


def dead_by_hand(shell: Shell, queue: Any, count: int) -> None:
    """So many dead letters with records, as claims would have left them; the letter 0 is the oldest."""
    for start in range(0, count, STEP):
        letters = [str(number) for number in range(start, min(start + STEP, count))]
        notes = [
            {"bytes": len(one), "sha1": hashlib.sha1(one.encode()).hexdigest(), "id": one.zfill(32)} for one in letters
        ]
        shell.redis.lpush(queue.key.dead_letter, *letters)
        shell.redis.lpush(records_key(queue, "dead_letters"), *(json.dumps(one) for one in notes))


def calls_of(shell: Shell, *commands: str) -> int:
    """How often the server has run these, in scripts or by themselves."""
    stats = shell.redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{one}", {"calls": 0})["calls"] for one in commands)


@pytest.mark.in_full
@pytest.mark.promise(
    "A redrive deep in a long list takes few messages at a time from the nearer end, to limit list traversal."
)
async def test_a_redrive_deep_in_a_list_walks_there_seldom_and_takes_few_at_a_time(shell: Shell) -> None:
    """To remove something deep in a list Redis walks over all that lies before it, on the shorter side."""
    count, queue = 30 * STEP, mortal(shell)
    dead_by_hand(shell, queue, count)
    sparse, dense = range(700, count, 1_000), range(12_000, 12_300)
    await Awaited(queue).redrive_dead_letters(max_messages=1)  # loads the script
    with Sent(shell.server) as sent:
        summary = await Awaited(queue).redrive_dead_letters(where=lambda letter: int(letter.payload) in sparse)
    assert (summary.matched, summary.redriven) == (30, 30)
    assert sent.scripts.count("redrive") <= 10, "each of them walks over the list"
    before = calls_of(shell, "lset", "lindex", "lrange")
    with Sent(shell.server) as sent:
        summary = await Awaited(queue).redrive_dead_letters(
            where=lambda letter: int(letter.payload) in dense, max_messages=len(dense) - 1
        )
    assert (summary.matched, summary.redriven) == (299, 299)
    assert 6 <= sent.scripts.count("redrive") <= 12
    steps = calls_of(shell, "lset", "lindex", "lrange") - before
    assert steps <= 4 * 299 + 2 * 13_000, "a look at each letter, and four commands for each that goes back"
    gone = {0, *sparse, *dense[:-1]}
    left = [b"%d" % number for number in range(count) if number not in gone]
    assert shell.listed(queue.key.dead_letter)[::-1] == left
    notes = [json.loads(one)["id"] for one in shell.listed(records_key(queue, "dead_letters"))[::-1]]
    assert [int(one) for one in notes] == [int(one) for one in left]
    assert shell.pending(queue) == len(gone)


MEGABYTE = "x" * 1_000_000


@pytest.mark.promise("Operator tools read or remove at most 4 MB, or one message, in one script or reply.")
async def test_no_look_and_no_step_carries_more_than_four_megabytes(shell: Shell) -> None:
    """Ten messages of a megabyte are three replies or more, wherever they are."""
    queue = mortal(shell, enable_failed_queue=True)
    ask = Awaited(queue)

    async def replies(work: Callable[[], Any], script: str) -> Any:
        with Sent(shell.server) as sent:
            result = await work()
        assert sent.scripts.count(script) >= 3, sent.scripts
        return result

    for tenant in (None, *"abcd"):
        await queue.publish_many([MEGABYTE] * 2, tenant=tenant)
    await queue.publish_many([MEGABYTE] * 10, delay_seconds=1_000)
    await ask.stats()
    assert len(await replies(lambda: ask.peek(20), "read_page")) == 10
    assert len(await replies(lambda: ask.peek(20, source="delayed"), "read_page")) == 10
    async with contextlib.AsyncExitStack() as held:
        batches = [await held.enter_async_context(queue.process_messages(10)) for _ in range(4)]
        assert max(len(batch) for batch in batches) <= 4  # a claim carries no more either
        assert len(await replies(lambda: ask.peek(20, source="processing"), "read_page")) == 10
        for batch in batches:
            for message in batch:
                await batch.fail(message, ValueError("of mine"))
    assert len(await replies(lambda: ask.records("failed"), "read_page")) == 10
    assert (await replies(lambda: ask.redrive_failed(), "redrive")).redriven == 10
    assert await replies(lambda: ask.purge("pending"), "sweep") == 10
    assert await replies(lambda: ask.purge("delayed"), "sweep") == 10
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("`peek()` reads no more messages than it shows, however many tenants wait.")
async def test_a_look_reads_no_more_messages_than_it_shows(shell: Shell) -> None:
    """However many tenants wait, and however long their queues are."""
    queue = shell.queue()
    for number in range(40):
        await queue.publish_many(["m" * 1_000] * 40, tenant=f"tenant {number}")
    before = shell.redis.info("stats")["total_net_output_bytes"]
    shown = await Awaited(queue).peek(40)
    read = shell.redis.info("stats")["total_net_output_bytes"] - before
    assert len({one.tenant for one in shown}) == 40
    assert read < 3 * 40 * 1_000


@pytest.mark.promise(
    "One step of a purge or a redrive handles at most 1,000 messages; one of `stats()` at most 1,000 tenant queues."
)
async def test_a_step_of_stats_reads_at_most_a_thousand_tenants(shell: Shell) -> None:
    """Each looks at the heads alone, however long the lines are; without the oldest none does, and it is one step."""
    queue, source = shell.queue(), shell.queue("source")
    await source.publish_many(["m"] * 3)
    names = [str(number) for number in range(2 * STEP + 500)]
    for some in (names[:STEP], names[STEP : 2 * STEP], names[2 * STEP :]):
        async with source.process_messages(1) as batch:
            await Awaited(batch[0]).complete(publish=[(queue.queue, "m", {"tenant": name}) for name in some])
    await queue.publish_many(["m"] * 500, tenant="0")
    await Awaited(queue).stats()  # loads the script
    with Sent(shell.server) as sent:
        before = calls_of(shell, "lindex")
        stats = await Awaited(queue).stats()
        looks = calls_of(shell, "lindex") - before
    assert (stats.tenants, stats.pending) == (len(names), len(names) + 500)
    assert set(sent.scripts) == {"stats"}
    assert len(sent.scripts) >= 2
    assert len(names) < looks <= len(names) + 50  # one at the line without a tenant; a scan may show a tenant twice
    with Sent(shell.server) as sent:
        before = calls_of(shell, "lindex")
        stats = await Awaited(queue).stats(oldest=False)
        assert calls_of(shell, "lindex") == before
    assert (stats.tenants, stats.pending) == (len(names), len(names) + 500)
    assert stats.oldest_pending_seconds is None
    assert sent.scripts == ["stats"]
    with pytest.raises(shell.module.ConfigurationError, match="oldest"):
        await Awaited(queue).stats(oldest=1)


@pytest.mark.promise("No operation sends `KEYS` or `SCAN`.")
async def test_nothing_goes_through_the_keys_of_the_server(shell: Shell) -> None:
    """No operation uses KEYS or SCAN: other programs have keys in the database, too."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True, deduplication=True)
    await make_dead_letters(shell, queue, "dead")
    before = shell.redis.info("commandstats")
    await queue.publish("plain")
    await queue.publish("later", delay_seconds=1_000)
    await queue.publish_many(["a", "b", "c"], tenant="t")
    acme, ask = Awaited(queue.queue.tenant("acme")), Awaited(queue)
    await acme.publish_many(["d", "e"])
    assert (await ask.stats()).tenants == len(await ask.tenants()) == 2
    assert (await acme.length(), await acme.exists(), await acme.delete()) == (2, True, 2)
    for source in SOURCES:
        await ask.peek(source=source)
    for source in LISTS:
        await ask.records(source)
    await take(queue)
    await fail(queue, ValueError())
    async with queue.process_messages(1) as batch:
        await Awaited(batch[0]).complete(publish=[(queue.queue, "result")])
    await queue.run(lambda message: None, until_empty=True)
    assert (await ask.redrive_dead_letters()).redriven == 1
    for target in ("pending", "delayed", *LISTS, "orphans"):
        await ask.purge(target)
    await queue.drain()
    after = shell.redis.info("commandstats")
    used = {name for name in after if after[name]["calls"] > before.get(name, {"calls": 0})["calls"]}
    assert "cmdstat_evalsha" in used
    assert used & {"cmdstat_keys", "cmdstat_scan", "cmdstat_randomkey", "cmdstat_dbsize", "cmdstat_flushdb"} == set()
