"""`run()` loses no message when a handler, a connection or the server fails."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from redis_message_queue import RetryPolicy
from tests.contract.loops import LONG, Crossing, ended, filled, look, running, side_by_side, summary_of, text, words
from tests.contract.shells import (
    LIMIT_SECONDS,
    Died,
    Shell,
    until,
)

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]


# Failing handlers


@pytest.mark.promise("A handler that raises fails its message and does not end `run()`.")
async def test_a_handler_that_raises_does_not_end_the_loop(shell: Shell) -> None:
    """Its message takes the failure path, with its record; the others are acked."""
    events = shell.events()
    queue = await filled(shell, on_event=events.listen, enable_failed_queue=True, enable_completed_queue=True)

    def handle(message: Any) -> None:
        if text(message) in "bd":
            raise ValueError(f"bad {text(message)}")

    summary = await queue.run(handle, prefetch=3, until_empty=True)
    assert summary_of(summary) == (2, 2, 0)
    assert shell.listed(queue.key.failed) == [b"d", b"b"]
    assert shell.listed(queue.key.completed) == [b"c", b"a"]
    assert [(record.error_type, record.error) for record in await queue.records("failed")] == [
        ("ValueError", "bad d"),
        ("ValueError", "bad b"),
    ]
    events_by_id = {
        event.message_id: [other.operation for other in events.all if other.message_id == event.message_id]
        for event in events.of("publish")
    }
    assert (
        list(events_by_id.values())
        == [
            ["publish", "claim", "ack", "completed"],
            ["publish", "claim", "failed", "nack"],
        ]
        * 2
    )


async def test_a_handler_may_raise_stop_iteration(shell: Shell) -> None:
    """StopIteration is an exception like any other here."""
    queue = await filled(shell, "ab", enable_failed_queue=True)

    def handle(message: Any) -> None:
        raise StopIteration

    assert summary_of(await queue.run(handle, until_empty=True)) == (0, 2, 0)
    assert len(shell.listed(queue.key.failed)) == 2


@pytest.mark.promise("`run()` applies the retry policy, for lists to each message.")
async def test_a_retry_policy_holds_in_the_loop(shell: Shell) -> None:
    """A failure is tried again later, by the same loop, until its attempts are used up."""
    events = shell.events()
    policy = RetryPolicy(max_attempts=3, initial_delay_seconds=0.05, multiplier=1, jitter=0)
    queue = await filled(shell, "ab", retry_policy=policy, on_event=events.listen)
    tried: list[str] = []

    def handle(message: Any) -> None:
        tried.append(text(message))
        if text(message) == "a":
            raise ValueError("always")

    async with running(shell, queue, handle, prefetch=5):
        assert await until(lambda: tried.count("a") == 3)
        await events.wait_for("dlq")
    assert Counter(tried) == {"a": 3, "b": 1}
    assert len(events.of("retried")) == 2
    assert shell.listed(queue.key.dead_letter) == [b"a"]


@pytest.mark.promise(
    "`run(until_empty=True)` also handles messages that its handlers publish, and leaves later retries for later."
)
async def test_a_loop_until_nothing_waits_leaves_later_attempts_for_later(shell: Shell) -> None:
    """A message that waits for its time does not wait now."""
    queue = await filled(shell, "a", retry_policy=RetryPolicy(initial_delay_seconds=60))

    def handle(message: Any) -> None:
        raise ValueError

    summary = await queue.run(handle, until_empty=True)
    assert (*summary_of(summary), summary.retried) == (0, 0, 0, 1)
    assert (await queue.stats()).delayed == 1


@pytest.mark.promise(
    "A handler that raises something other than an `Exception` ends `run()` with it, even while other workers are idle."
)
@pytest.mark.promise(
    "If a handler ends `run()`, its message stays leased, and prefetched messages are requeued in order without "
    "counting a delivery."
)
@side_by_side
async def test_a_base_exception_ends_the_loop_and_reaches_the_caller(shell: Shell, concurrency: int) -> None:
    """Its own message is left to its lease; what nobody has begun is requeued, undelivered, in its order."""
    queue = await filled(shell, words(50))
    handled: list[str] = []

    async def handle(message: Any) -> None:
        if text(message) == "0002":
            raise Died
        handled.append(text(message))
        await asyncio.sleep(0.02)

    loop = asyncio.ensure_future(queue.run(shell.handler(handle), concurrency=concurrency, prefetch=50))
    done, _ = await asyncio.wait({loop}, timeout=LIMIT_SECONDS)
    await queue.drain(timeout=0)
    assert done, "the loop does not end"
    with pytest.raises(Died):
        loop.result()
    assert shell.processing(queue) == 1
    # The other workers finish what they had begun, and begin nothing more.
    assert len(handled) <= 2 + 2 * concurrency
    left = [word for word in words(50) if word not in handled and word != "0002"]
    assert await look(shell) == [(word, 1) for word in left]


@pytest.mark.promise(
    "A handler that raises something other than an `Exception` ends `run()` with it, even while other workers are idle."
)
@side_by_side
async def test_what_is_not_an_exception_ends_a_loop_whose_other_workers_are_idle(
    shell: Shell, concurrency: int
) -> None:
    """They wait for a message, and have to be told."""
    queue = await filled(shell, "a", wait=LONG)

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.1)
        raise Died

    async with running(shell, queue, shell.handler(handle), concurrency=concurrency) as loop:
        with pytest.raises(Died):
            await ended(loop)


# Failing connections


@pytest.mark.promise("With lost requests and replies, `run()` still handles, acks and requeues each message once.")
@pytest.mark.parametrize("budget", [0, 20], ids=["given up before", "in the same call"])
async def test_a_claim_whose_answer_was_lost_is_found_again_by_the_loop(shell: Shell, budget: float) -> None:
    """Every message is handled once, in its order and in its first delivery, and claimed no more than once."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=budget, on_event=events.listen)
    await queue.run(lambda message: None, until_empty=True)  # loads the script
    await queue.publish_many(list("abcd"))
    if budget == 0:
        client.losses.reply()
        with pytest.raises(redis.exceptions.ConnectionError):
            async with queue.process_messages(3):
                pytest.fail("nobody saw the answer")
        assert shell.processing(queue) == 3
    else:
        client.losses.reply(2)
    handled: list[tuple[str, int]] = []
    summary = await queue.run(
        lambda message: handled.append((text(message), message.delivery_count)), prefetch=2, until_empty=True
    )
    assert handled == [(letter, 1) for letter in "abcd"]
    assert summary_of(summary) == (4, 0, 0)
    published = [event.message_id for event in events.of("publish")]
    assert [event.message_id for event in events.of("claim") if event.outcome == "success"] == published
    assert [event.message_id for event in events.of("ack")] == published
    assert len(events.of("claim_reclaim")) == (2 if budget == 0 else 0)  # the third went back, and came from the line
    assert len(events.of("retry_attempt")) == (0 if budget == 0 else 2)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "If a claim of `run()` runs out of retries, `run()` raises the error and the next one recovers the claim."
)
async def test_a_loop_whose_claim_ran_out_of_retries_leaves_it_to_the_next(shell: Shell) -> None:
    """The error comes out; what was done is acked; a second loop of the object finds what the first one took."""
    client, handled = shell.lossy_client(), []
    queue = await filled(shell, client=client, wait=0, retry_budget_seconds=0)

    def handle(message: Any) -> None:
        handled.append(text(message))
        if len(handled) == 2:
            client.losses.pass_on()  # the acks, which go first
            client.losses.reply()  # the claim

    with pytest.raises(redis.exceptions.ConnectionError):
        await queue.run(handle, prefetch=2, until_empty=True)
    assert handled == ["a", "b"]
    assert shell.processing(queue) == 2
    assert summary_of(await queue.run(handle, prefetch=2, until_empty=True)) == (2, 0, 0)
    assert handled == ["a", "b", "c", "d"]


@pytest.mark.promise("With lost requests and replies, `run()` still handles, acks and requeues each message once.")
async def test_lost_requests_and_answers_are_made_good(shell: Shell) -> None:
    """Claims, acks and failures under a budget: each message once."""
    client, handled = shell.lossy_client(), []
    queue = await filled(
        shell, words(12), client=client, wait=0, enable_completed_queue=True, retry_initial_delay_seconds=0.001
    )

    def handle(message: Any) -> None:
        handled.append(text(message))
        client.losses.reply()
        client.losses.request()

    summary = await queue.run(handle, prefetch=4, until_empty=True)
    assert handled == words(12)
    assert summary_of(summary) == (12, 0, 0)
    assert [payload.decode() for payload in shell.listed(queue.key.completed)] == words(12)[::-1]


NO_SCRIPTS = ("ACL", "SETUSER", "clerk", "-evalsha")


@pytest.fixture
def clerk(shell: Shell) -> Iterator[dict[str, str]]:
    """Credentials of a user who may do everything, until somebody takes a right away."""
    shell.redis.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">pw", "~*", "&*", "+@all")
    yield {"username": "clerk", "password": "pw"}
    shell.redis.execute_command("ACL", "DELUSER", "clerk")


@pytest.mark.promise("If Redis refuses an ack, `run()` raises `CleanupFailedError` and nothing is lost.")
@side_by_side
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("SET", "q::completed", "not a list"), "LuaScriptError"),
        (NO_SCRIPTS, "NotPermittedError"),
        (("ACL", "SETUSER", "clerk", "-hmget"), "NotPermittedError"),
        (("HSET", "q::meta", "version", "2"), "StateVersionError"),
    ],
    ids=["a wrong type", "no right to run scripts", "no right in a script", "an error of the script"],
)
async def test_an_ack_that_redis_refuses_ends_the_loop_and_loses_nothing(
    shell: Shell, clerk: dict[str, str], concurrency: int, change: tuple[str, ...], cause: str
) -> None:
    """The error is a failed cleanup, with its cause; each message is told of, and what nobody began is requeued."""
    events = shell.events()
    options = {"client": shell.new_client(**clerk), "on_event": events.listen}
    queue = await filled(shell, words(6), enable_completed_queue="q::completed" in change, **options)

    def handle(message: Any) -> None:
        shell.redis.execute_command(*change)

    async with running(shell, queue, handle, prefetch=2, concurrency=concurrency) as loop:
        with pytest.raises(shell.module.CleanupFailedError) as failure:
            await ended(loop)
    assert type(failure.value.__cause__).__name__ == cause
    assert len(events.of("cleanup_failed")) >= 1
    stats = shell.pending(queue), shell.processing(queue)
    assert sum(stats) == 6


@pytest.mark.promise(
    "If Redis refuses to settle a failed message, `run()` raises `CleanupFailedError` and nothing is lost."
)
@pytest.mark.parametrize(
    ("options", "run", "change"),
    [
        ({}, {"concurrency": 4}, ("SET", "q::dlq", "not a list")),
        ({"retry_policy": RetryPolicy()}, {}, NO_SCRIPTS),
        ({}, {"batch_size": 3}, NO_SCRIPTS),
    ],
    ids=["fails", "is retried", "is requeued with its batch"],
)
async def test_a_failure_that_redis_refuses_ends_the_loop_and_loses_nothing(
    shell: Shell, clerk: dict[str, str], options: dict[str, Any], run: dict[str, Any], change: tuple[str, ...]
) -> None:
    """A loop that goes on would get the message again at the end of each lease."""
    queue = await filled(shell, words(3), client=shell.new_client(**clerk), **options)

    def handle(given: Any) -> None:
        shell.redis.execute_command(*change)
        raise ValueError("bad")

    async with running(shell, queue, handle, **run) as loop:
        with pytest.raises(shell.module.CleanupFailedError, match="could not be settled") as failure:
            await ended(loop)
    cause = "NotPermittedError" if change is NO_SCRIPTS else "LuaScriptError"
    assert type(failure.value.__cause__).__name__ == cause
    assert (failure.value.queue, failure.value.operation) == ("q", "settle")
    assert shell.pending(queue) + shell.processing(queue) == 3


@pytest.mark.promise(
    "If Redis refuses to settle a failed message, `run()` raises `CleanupFailedError` and nothing is lost."
)
async def test_a_refused_settlement_ends_the_loop_also_after_a_refused_claim(shell: Shell) -> None:
    """Another worker claims while the handler works, and meets the wrong type before the settlement does."""
    queue = await filled(shell, words(1))

    async def work(message: Any) -> None:
        shell.redis.config_resetstat()
        shell.redis.set("q::dlq", "not a list")
        assert await until(lambda: shell.redis.info("errorstats"))
        raise ValueError("bad")

    async with running(shell, queue, shell.handler(work), concurrency=2) as loop:
        with pytest.raises(shell.module.CleanupFailedError, match="could not be settled"):
            await ended(loop)


@pytest.mark.promise("`run()` raises the error when Redis stays unreachable for the retry budget.")
async def test_a_server_that_cannot_be_reached_ends_the_loop_with_the_error(shell: Shell, dead_port: int) -> None:
    """When the budget is spent; nobody loops silently around a dead server."""
    queue = shell.queue(client=shell.dead_client(dead_port), retry_budget_seconds=0.1)
    with pytest.raises(shell.module.RetryBudgetExhaustedError):
        await asyncio.wait_for(queue.run(lambda message: None, concurrency=2), LIMIT_SECONDS)


@pytest.mark.promise("`run()` works without leases and requeues prefetched messages when it stops.")
async def test_at_most_once_runs_too(shell: Shell) -> None:
    """Without leases: handled, acked, and requeued where nobody has begun."""
    queue, crossing = await filled(shell, visibility_timeout_seconds=None), Crossing(shell)
    async with running(shell, queue, crossing.handler, prefetch=4) as loop:
        await crossing.is_entered_by(1)
        await queue.drain()
        crossing.is_open.set()
        assert summary_of(await ended(loop)) == (1, 0, 3)
    assert await look(shell) == [("b", 1), ("c", 1), ("d", 1)]
    assert shell.processing(queue) == 0
