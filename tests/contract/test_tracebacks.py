"""Where a handler raised: in the log of a loop, and in the record of a message that failed for good."""

import json
import logging
from typing import Any

import pytest

from redis_message_queue import DeadLetter, Discard, RetryLater, RetryPolicy
from redis_message_queue.values.plain_values import KEPT_TRACEBACK_BYTES
from tests.contract.operators import records_key
from tests.contract.shells import Awaited, Shell
from tests.contract.test_run_queues import run_queues
from tests.tables import row

pytestmark = pytest.mark.topic("What a handler decides")

WAYS = ("run", "run_queues", "batch", "callback", "fail")
URL = "redis://shop:hunter2@db:6379/0"


class Broken(Exception):
    """Its text has a password, in a URL."""

    def __str__(self) -> str:
        return f"cannot reach {URL}"


class Unprintable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise SystemError


def charge_customer(error: Exception) -> None:
    local_value = "4111-" * 3  # no record has it
    assert local_value
    try:
        raise LookupError("first cause")
    except LookupError as cause:
        cause.__cause__ = error.__cause__
        raise error from cause


async def fail_all(shell: Shell, queue: Any, way: str, error: Exception, **options: Any) -> None:
    """Let a handler raise for each message of the queue."""

    def handle(_: Any) -> None:
        charge_customer(error)

    if way in ("run", "batch"):
        size = 2 if way == "batch" else None
        await queue.run(shell.callback(handle), batch_size=size, until_empty=True, **options)
    elif way == "run_queues":
        await run_queues(shell, {queue: 1}, shell.callback(handle), until_empty=True, **options)
    elif way == "callback":
        with pytest.raises(type(error)):
            await queue.process_message_callback(shell.callback(handle))
    else:
        async with queue.process_messages(10) as batch:
            for message in batch:
                try:
                    handle(message)
                except Exception as caught:
                    await batch.fail(message, caught)


def logged(caplog: Any) -> list[str | None]:
    """The traceback of each log line about a message that failed; the lines are taken."""
    lines = [one for one in caplog.records if getattr(one, "handler_error", None) is not None]
    caplog.clear()
    return [one.exc_text if one.exc_info else None for one in lines]


@pytest.mark.promise("A message that fails for good in a loop is logged with the traceback of its handler, once.")
@pytest.mark.promise(
    "The record of a message that failed for good keeps the end of its traceback, without local values."
)
async def test_a_final_failure_tells_where_the_handler_raised(
    shell: Shell, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever calls the handler, and wherever the message goes. A caller that gets the exception needs no log of it."""
    lists: dict[str, dict[str, Any]] = {
        "dead_letters": {"retry_policy": RetryPolicy(max_attempts=1)},
        "failed": {"enable_failed_queue": True},
    }
    for way in WAYS:
        for source, options in lists.items():
            if way == "batch" and source == "failed":
                continue  # the whole list is requeued
            with row(subtests, way=way, source=source):
                queue = shell.queue(f"{way}-{source}", partitions=3 if way == "run" else 1, **options)
                await queue.publish("a", tenant="acme")
                await fail_all(shell, queue, way, Broken())
                (record,) = await Awaited(queue).records(source)
                kept = record.traceback
                assert kept is not None and "in charge_customer\n" in kept and "LookupError: first cause" in kept
                assert kept.endswith("Broken: cannot reach redis://***@db:6379/0") and record.error in kept
                assert "4111-" not in kept.replace('"4111-" * 3', "")
                assert logged(caplog) == [None if way == "callback" else kept]


@pytest.mark.promise("A message that fails for good in a loop is logged with the traceback of its handler, once.")
async def test_attempts_that_are_retried_and_what_a_handler_decides_are_one_line(
    shell: Shell, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry is no failure yet. A dead letter that the handler asked for still says where."""
    caplog.set_level(logging.INFO)
    retried = {"retry_policy": RetryPolicy(initial_delay_seconds=0, max_delay_seconds=0, max_attempts=2)}
    cases: list[tuple[Exception, dict[str, Any], list[bool], bool]] = [
        (ValueError("no"), retried, [False, True], True),
        (RetryLater(0), retried, [False, True], True),
        (DeadLetter("hopeless"), {}, [], True),
        (Discard("unwanted"), {"enable_completed_queue": True}, [], False),
    ]
    for error, options, lines, keeps in cases:
        with row(subtests, error=error):
            queue = shell.queue(type(error).__name__, **options)
            await queue.publish("a")
            await fail_all(shell, queue, "run", error, wait_for_retries=True)
            assert [one is not None for one in logged(caplog)] == lines
            (record,) = await queue.records("dead_letters" if keeps else "completed")
            assert ("in charge_customer" in (record.traceback or "")) == keeps


@pytest.mark.promise("`keep_tracebacks=False` keeps tracebacks out of records and logs.")
async def test_tracebacks_can_be_switched_off(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    queue = shell.queue(keep_tracebacks=False)
    await queue.publish("a")
    await fail_all(shell, queue, "run", ValueError("no"))
    (record,) = await queue.records()
    assert (record.traceback, record.error, logged(caplog)) == (None, "no", [None])


@pytest.mark.promise(
    "The record of a message that failed for good keeps the end of its traceback, without local values."
)
async def test_a_traceback_is_bounded_and_cannot_disturb(
    shell: Shell, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    """Long texts, endless causes and exceptions that cannot be printed: the message ends all the same."""
    chained: Exception = ValueError("the last")
    for number in range(2_000):
        cause, chained = chained, KeyError(f"cause {number} {'x' * 500}")
        chained.__cause__ = cause
    errors = (ValueError(f"{'long ' * 100_000}"), ValueError("\ud800\0 é" * 5_000), chained, Unprintable())
    for error in errors:
        with row(subtests, error=type(error).__name__):
            queue = shell.queue(f"q{errors.index(error)}")
            await queue.publish("a")
            await fail_all(shell, queue, "run", error)
            (record,) = await queue.records()
            assert record.traceback is not None and type(error).__name__ in record.traceback
            assert len(record.traceback.encode()) <= KEPT_TRACEBACK_BYTES
            assert max(map(len, shell.redis.lrange(records_key(queue, "dead_letters"), 0, -1))) < 30_000
            ((line,),) = [logged(caplog)]
            assert line is not None and len(line) <= 32_768


async def test_a_record_without_a_traceback_is_read(shell: Shell) -> None:
    """An older client wrote it, or another program something else in its place."""
    queue = shell.queue()
    await queue.publish("a")
    await fail_all(shell, queue, "run", ValueError("no"))
    key = records_key(queue, "dead_letters")
    stored = json.loads(shell.redis.lindex(key, 0))
    for value in ({}, {"traceback": 7}, {"traceback": None}):
        shell.redis.lset(key, 0, json.dumps({**{k: v for k, v in stored.items() if k != "traceback"}, **value}))
        (record,) = await queue.records()
        assert (record.traceback, record.error) == (None, "no")
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 1
