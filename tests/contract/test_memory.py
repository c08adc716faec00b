"""What a queue uses in Redis is bounded: its messages, a small key for each caller, and keys that expire."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redis_message_queue.options import declared as options
from redis_message_queue.stored.keys import KEY_MAP
from tests.contract.shells import (
    LIMIT_SECONDS,
    Losses,
    Shell,
    asyncio_only,
    claim_and_die,
    fail,
    take,
    until,
    with_unconfirmed_claim,
)
from tests.depth import often
from tests.fork_server import Program

pytestmark = [pytest.mark.topic("Cost and memory"), pytest.mark.every_server]

# How many publishes the first test makes; a million takes some minutes for each shell.
COUNT = int(os.environ.get("RMQ_PUBLISHES", often(1_000, 10_000)))
PUBLISHERS = 8
WINDOW_SECONDS = 1.0

QUICK = {"retry_initial_delay_seconds": 0.0001, "retry_max_delay_seconds": 0.001}

# An answer is kept for the retry budget, the retries of the client itself and a minute; these clients have no retries.
LONGEST_REPLY_MS = (options.DEFAULT_RETRY_BUDGET_SECONDS + 60 + 10) * 1000
DAY_MS = 86_400_000


class ByChance(Losses):
    """One request in twenty never arrives, and one answer in twenty never comes back."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.lost = 0

    def before(self, command: str, *arguments: Any) -> None:
        self._maybe(command, "cut before the request")

    def after(self, command: str, *arguments: Any) -> None:
        self._maybe(command, "cut after the execution")

    def _maybe(self, command: str, what: str) -> None:
        if command in ("EVALSHA", "EVAL") and self._chance.random() < 0.05:
            self.lost += 1
            raise redis.exceptions.ConnectionError(what)


def unlucky_client(shell: Shell, seed: int = 7) -> Any:
    client = shell.lossy_client()
    client.losses = ByChance(seed)
    return client


def keys_of(shell: Shell, word: str) -> list[bytes]:
    """The keys of the queue "q" that remember something, without their common beginning."""
    prefix = f"q::{word}::".encode()
    return [key.removeprefix(prefix) for key in shell.redis.keys("*") if key.startswith(prefix)]


def replies(shell: Shell) -> list[bytes]:
    return keys_of(shell, "reply")


def time_left(shell: Shell, word: str) -> Iterator[int]:
    """Milliseconds that each of these keys still has; -1 would be for ever."""
    for name in keys_of(shell, word):
        yield shell.redis.pttl(f"q::{word}::".encode() + name)


def let_time_pass(shell: Shell) -> None:
    """Every key that has a time to live reaches its end; what has none is there for good."""
    for key in shell.redis.keys("*"):
        if shell.redis.pttl(key) >= 0:
            shell.redis.pexpire(key, 0)


# Publishing


@pytest.mark.promise(
    "Publishing leaves at most one key per concurrent caller and open deduplication window, whatever gets lost."
)
@pytest.mark.timeout(600 + COUNT // 100)
async def test_publishes_leave_a_key_for_each_caller_and_each_live_window(shell: Shell) -> None:
    """At every moment of thousands of publishes that lose requests and replies; each of them counts once."""
    client = unlucky_client(shell)
    window = {"deduplication": True, "get_deduplication_key": str, "window": WINDOW_SECONDS}
    plain, marked = shell.queue(client=client, **QUICK), shell.queue(client=client, **window, **QUICK)
    share = COUNT // PUBLISHERS
    ended: dict[bytes, float] = {}  # when a publish of this key was last known to be over

    def publisher(number: int) -> Any:
        async def publish() -> int:
            accepted = 0
            for at in range(share):
                if number % 2:
                    accepted += await plain.publish("m")
                else:
                    # Every third comes twice.
                    key = f"{number}-{at - (at % 3 == 2)}"
                    ended[key.encode()] = float("inf")
                    accepted += await marked.publish(key)
                    ended[key.encode()] = time.monotonic()
                if at % 16 == 0:
                    await asyncio.sleep(0)
            return accepted

        return publish

    def look() -> int:
        """How many keys there are, none of them one too many."""
        now = time.monotonic()
        keys = set(shell.redis.keys("*"))
        callers = {key for key in keys if key.startswith(b"q::reply::")}
        markers = {key for key in keys if key.startswith(b"q::deduplication::")}
        assert len(callers) <= PUBLISHERS
        # A tenth of a second for clocks that do not run alike.
        oldest = now - WINDOW_SECONDS - 0.1
        overdue = [key for key in markers if ended[key.removeprefix(b"q::deduplication::")] < oldest]
        assert overdue == []
        assert keys - callers - markers <= {b"q::pending", b"q::wakeup", b"q::meta"}
        assert all(0 < left <= LONGEST_REPLY_MS for left in time_left(shell, "reply"))
        return len(keys)

    publishers = asyncio.gather(*[shell.beside(publisher(number)) for number in range(PUBLISHERS)])
    counts = [look()]
    while not publishers.done():
        await asyncio.sleep(0.1)
        counts.append(look())
    accepted = sum(await publishers)
    print(f"{COUNT} publishes, {client.losses.lost} losses, at most {max(counts)} keys, {accepted} messages")
    assert client.losses.lost > COUNT / 20
    assert shell.pending(plain) == accepted
    assert 0 < len(replies(shell)) <= PUBLISHERS
    # The server's own housekeeping takes away what has run out, whether or not anybody asks for it.
    assert await until(lambda: shell.redis.dbsize() <= PUBLISHERS + 3), "windows that are over still take memory"
    assert shell.leftovers(plain) == {b"q::pending"}


@pytest.mark.promise(
    "Publishing leaves at most one key per concurrent caller and open deduplication window, whatever gets lost."
)
async def test_a_publisher_that_gives_up_leaves_its_key_to_the_next(shell: Shell) -> None:
    """Two hundred calls of unknown outcome, one after the other, share one key."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, retry_budget_seconds=0)
    for _ in range(200):
        client.losses.reply()
        with pytest.raises(redis.exceptions.ConnectionError):
            await queue.publish("a")
    assert len(replies(shell)) == 1


@pytest.mark.promise(
    "Publishing leaves at most one key per concurrent caller and open deduplication window, whatever gets lost."
)
async def test_refused_and_suppressed_publishes_leave_no_more_than_others(shell: Shell) -> None:
    """A full line and a duplicate are answers too, and the next one takes their place."""
    queue = shell.queue(deduplication=True, max_pending_length=2)
    for number in range(100):
        with contextlib.suppress(shell.module.QueueBackpressureError):
            await queue.publish(str(number // 2))
    assert len(replies(shell)) == 1
    assert len(keys_of(shell, "deduplication")) == 2, "what was refused has no window"


@pytest.mark.promise("Cached replies expire.")
async def test_every_queue_object_has_a_key_of_its_own_that_ends_by_itself(shell: Shell) -> None:
    """So make one and keep it: an object for each publish leaves a key each, for some minutes."""
    for _ in range(50):
        await shell.queue().publish("a")
    assert len(replies(shell)) == 50
    assert all(left > 0 for left in time_left(shell, "reply"))


@pytest.mark.promise("Each deduplication key is one Redis string of less than 200 bytes that expires with the window.")
@pytest.mark.promise("The reply cache is one small key per concurrent caller, and it expires.")
@pytest.mark.parametrize("key", [None, lambda message: message[:8]], ids=["content", "short"])
async def test_what_is_remembered_is_small(shell: Shell, key: Any) -> None:
    """However long the message is, an answer and a window take at most 220 bytes each, as the server counts."""
    queue = shell.queue(deduplication=True, get_deduplication_key=key)
    await queue.publish("order-12" + "x" * 10_000)
    sizes = {name: shell.redis.memory_usage(name) for name in shell.redis.keys("*::*::*")}
    assert len(sizes) == 2
    assert max(sizes.values()) <= 220, sizes
    async with queue.process_message():
        assert max(map(shell.redis.memory_usage, shell.redis.keys("q::reply::*"))) <= 220


# Consuming


@pytest.mark.promise("Consuming leaves at most one key per concurrent call.")
async def test_consumers_leave_a_key_for_each_claim_and_each_settling_at_a_time(shell: Shell) -> None:
    """However many messages they handle and however many answers are lost; each message is handled once."""
    client, consumers, count = unlucky_client(shell), 4, 400
    queue = shell.queue(client=client, wait=0, **QUICK)
    for number in range(count):
        await queue.publish(str(number))
    handled: list[str] = []

    async def consume() -> None:
        while (message := await take(queue)) is not None:
            handled.append(message)
            assert len(replies(shell)) <= 2 * consumers

    await asyncio.gather(*[shell.beside(consume) for _ in range(consumers)])
    assert sorted(handled, key=int) == [str(number) for number in range(count)]
    assert client.losses.lost > count / 20
    assert shell.leftovers(queue) == set()
    assert all(0 < left <= LONGEST_REPLY_MS for left in time_left(shell, "reply"))


@pytest.mark.promise("Consuming leaves at most one key per concurrent call.")
@pytest.mark.parametrize("timeout", [300, None], ids=["leased", "unleased"])
async def test_a_consumer_that_gives_up_does_not_pile_up_unconfirmed_claims(
    shell: Shell, timeout: float | None
) -> None:
    """It asks the last one before it makes another, so hundreds of lost answers hold two keys and one message."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0, visibility_timeout_seconds=timeout)
    await queue.publish("a")
    await queue.publish("b")
    for _ in range(200):
        client.losses.reply()
        with pytest.raises(redis.exceptions.ConnectionError):
            await take(queue)
        assert shell.processing(queue) == 1
    assert len(replies(shell)) <= 2
    assert all(0 < left <= DAY_MS for left in time_left(shell, "reply"))
    assert [await take(queue), await take(queue), await take(queue)] == ["a", "b", None]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("Consuming leaves at most one key per concurrent call.")
@asyncio_only
async def test_cancelled_tasks_do_not_pile_up_keys(shell: Shell) -> None:
    """Wherever a cancellation meets them: publishing, claiming, waiting or acknowledging."""
    queue, tasks, chance = shell.queue(wait=0.02), 10, random.Random(3)

    async def work() -> None:
        await queue.publish("m")
        await take(queue)
        await take(queue)

    async def wave() -> None:
        running = [asyncio.create_task(work()) for _ in range(tasks)]
        for task in running:
            await asyncio.sleep(chance.random() * 0.001)
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    for _ in range(20):
        await wave()
        assert len(replies(shell)) <= 2 * tasks, "one for a running call, one for an unconfirmed claim"
    assert await queue.drain(LIMIT_SECONDS) is True


# What is left when everything is done


def in_the_key_map(shell: Shell, key: bytes) -> bool:
    """Whether the reference names this key, with this type, and with a time to live exactly where it has one."""
    word, *more = key.removeprefix(b"q::").decode().split("::")
    named = [kind for kind in KEY_MAP if kind.word.split("::")[0] == word]
    (kind,) = [kind for kind in named if len(named) == 1 or ("::" in kind.word) == bool(more)]
    found, left = shell.redis.pipeline().type(key).pttl(key).execute()
    if found == b"none":  # its time was over just now
        return True
    expected, _, ends = kind.type.partition(", ")
    return (found.decode().upper(), left >= 0) == (expected, ends == "TTL")


@pytest.mark.promise("The library writes only the keys that the key map names.")
async def test_nothing_is_ever_written_but_what_the_key_map_names(shell: Shell) -> None:
    """After each step of full lives: suppressed, held, renewed, acked, failed, reclaimed, dead-lettered, drained."""
    events = shell.events()
    rules = {"deduplication": True, "enable_completed_queue": True, "enable_failed_queue": True}
    queue = shell.queue(wait=0, heartbeat_interval_seconds=0.02, max_delivery_count=1, on_event=events.listen, **rules)
    waiting = shell.queue(wait=LIMIT_SECONDS, visibility_timeout_seconds=1, max_delivery_count=None, **rules)
    seen: set[bytes] = set()

    def look() -> None:
        keys = set(shell.redis.keys("*"))
        assert [key for key in keys if not in_the_key_map(shell, key)] == []
        seen.update(key.split(b"::")[1] for key in keys)

    for text in ("acked", "failed", "reclaimed", "reclaimed"):
        await queue.publish(text)
        look()
    async with queue.process_message():
        await events.wait_for("lease_renew", 2)
        look()
    await fail(queue, ValueError())
    look()
    await claim_and_die(queue)
    shell.lapse(queue)
    await claim_and_die(waiting)
    look()
    # That lease ends in a second, and a consumer is awake for it.
    woken = shell.beside(lambda: take(waiting))
    await until(lambda: shell.redis.exists(queue.key.timer_owner) or not shell.processing(queue))
    look()
    assert await woken == b"reclaimed"
    await queue.publish("dead")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    look()
    await queue.drain()
    look()
    words = b"pending processing leases deliveries completed failed dlq deduplication reply wakeup"
    assert seen >= set(words.split())


@pytest.mark.promise("Cached replies expire.")
@pytest.mark.parametrize("timeout", [300, None], ids=["leased", "unleased"])
async def test_an_emptied_queue_leaves_nothing_for_good(shell: Shell, timeout: float | None) -> None:
    """Only answers, which end by themselves, and a token that a consumer who waits takes away."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, visibility_timeout_seconds=timeout, deduplication=True, **QUICK)
    for number in range(20):
        await queue.publish(str(number))
    client.losses.reply(3)
    for _ in range(10):
        await take(queue)
        assert all(0 < left <= DAY_MS for left in time_left(shell, "reply"))
        await fail(queue, ValueError())
    assert await take(queue) is None
    shell.redis.delete(*[b"q::deduplication::" + key for key in keys_of(shell, "deduplication")])
    assert shell.leftovers(queue) == set()
    assert shell.redis.llen(queue.key.wakeup) <= 1

    waiting = shell.queue(wait=0.05, visibility_timeout_seconds=timeout)
    for _ in range(100):  # on a busy machine a wait may be over before it has begun
        assert await take(waiting) is None
        if not shell.redis.exists(queue.key.wakeup):
            break
    assert set(shell.redis.keys("*")) == {b"q::meta", *(b"q::reply::" + name for name in replies(shell))}
    let_time_pass(shell)
    assert shell.is_empty


@pytest.mark.promise("Cached replies expire.")
async def test_a_drained_queue_leaves_nothing_for_good(shell: Shell) -> None:
    """An unconfirmed claim is requeued, and when its message is handled elsewhere the note of it goes too."""
    queue = await with_unconfirmed_claim(shell)
    assert await queue.drain() is True
    other = shell.queue(wait=0.05)
    assert [await take(other), await take(other)] == [b"a", None]
    let_time_pass(shell)
    assert shell.is_empty


# A consumer that is killed

IN_THREADS = """
import sys, redis
from redis_message_queue import RedisMessageQueue
queue = RedisMessageQueue("q", client=redis.Redis(port=int(sys.argv[1])), visibility_timeout_seconds=None)
with queue.process_message() as message:
    print(message.decode(), flush=True)
    sys.stdin.read()
"""
IN_TASKS = """
import asyncio, sys, redis.asyncio
from redis_message_queue.asyncio import RedisMessageQueue
async def main():
    client = redis.asyncio.Redis(port=int(sys.argv[1]))
    queue = RedisMessageQueue("q", client=client, visibility_timeout_seconds=None)
    async with queue.process_message() as message:
        print(message.decode(), flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


def kill_in_its_handler(shell: Shell) -> None:
    """A process of its own claims a message, says which, and is killed."""
    program = IN_THREADS if shell.name == "sync" else IN_TASKS
    command = [sys.executable, "-W", "error", "-c", program, str(shell.server.port)]
    with Program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "a\n"
        finally:
            victim.kill()


@pytest.mark.promise(
    "With `visibility_timeout_seconds=None` a message is delivered at most once and stays in `processing` after a "
    "crash."
)
async def test_a_killed_consumer_without_a_timeout_leaves_its_message_and_nothing_else(shell: Shell) -> None:
    """SIGKILL in the handler: the message is in processing, whole, and no note of the claim stays beside it."""
    queue = shell.queue(wait=0.05, visibility_timeout_seconds=None)
    await queue.publish("a")
    kill_in_its_handler(shell)
    assert await take(queue) is None
    assert shell.leftovers(queue) == {b"q::processing"}
    assert all(0 < left <= DAY_MS for left in time_left(shell, "reply"))
    let_time_pass(shell)
    assert sorted(shell.redis.keys("*")) == [b"q::meta", b"q::processing"]
    ((_, stored),) = shell.redis.hgetall(queue.key.processing).items()
    assert stored.endswith(b"a")
