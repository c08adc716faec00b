"""A message that failed for good is in some list, or the log says that it is not and what to change."""

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from tests.contract.shells import Shell, claim_and_die, fail, take

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]

WAYS = ["run", "process_messages"]
every_limit = pytest.mark.parametrize(
    "limits", [{}, {"max_delivery_count": None}, {"visibility_timeout_seconds": None}], ids=str
)


async def fail_all(queue: Any, way: str, count: int) -> None:
    """Every message fails, in a loop or one by one out of batches."""

    def refuse(message: Any) -> None:
        raise ValueError("no")

    if way == "run":
        summary = await queue.run(refuse, prefetch=50, until_empty=True)
        assert summary.failed + summary.dead_lettered == count
        return
    failed = 0
    while failed < count:
        async with queue.process_messages(50) as batch:
            for message in batch:
                assert await batch.fail(message, ValueError("no"))
            failed += len(batch)


@pytest.mark.promise(
    "A message that finally fails in `run()` or `process_messages()` is dead-lettered unless the queue has a failed "
    "list."
)
@every_limit
@pytest.mark.parametrize("way", WAYS)
async def test_what_fails_in_a_loop_or_a_batch_goes_to_the_dead_letters(
    shell: Shell, way: str, limits: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also without a delivery limit and without leases: with its record, its events and a line in the log."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen, **limits)
    await queue.publish_many(list("abc"))
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        await fail_all(queue, way, 3)
    assert shell.listed(queue.key.dead_letter) == [b"c", b"b", b"a"]
    assert shell.leftovers(queue) == {b"q::dlq"}
    letters = await queue.records("dead_letters")
    assert {(letter.reason, letter.error_type, letter.error) for letter in letters} == {("failed", "ValueError", "no")}
    assert [event.message_id for event in events.of("dlq")] == [letter.id for letter in reversed(letters)]
    assert all(str(letter.id) in caplog.text for letter in letters)


@pytest.mark.promise(
    "A message that finally fails in `run()` or `process_messages()` is dead-lettered unless the queue has a failed "
    "list."
)
@pytest.mark.parametrize("way", WAYS)
async def test_a_failed_list_takes_what_fails_in_a_loop_or_a_batch(shell: Shell, way: str) -> None:
    """The queue has one because somebody asked for it, so nothing goes to the dead letters."""
    queue = shell.queue(wait=0, enable_failed_queue=True)
    await queue.publish_many(list("abc"))
    await fail_all(queue, way, 3)
    assert shell.leftovers(queue) == {b"q::failed"}


@pytest.mark.promise(
    "A message that finally fails in `run()` or `process_messages()` is dead-lettered unless the queue has a failed "
    "list."
)
async def test_no_failure_of_a_loop_is_deleted(shell: Shell) -> None:
    """The cap is that of a list which the user has enabled; the dead letters have none by themselves."""
    queue = shell.queue(wait=0)
    await queue.publish_many(str(number) for number in range(1_200))
    await fail_all(queue, "run", 1_200)
    assert shell.redis.llen(queue.key.dead_letter) == 1_200


@pytest.mark.promise(
    "When `process_message()` removes a failed message, it logs its id, the exception and the option that would keep "
    "it."
)
async def test_a_single_failure_that_is_kept_nowhere_is_an_error_in_the_log(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """With the message id, the exception, and what would keep such messages."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen)
    await queue.publish("a")
    with caplog.at_level(logging.ERROR, "redis_message_queue"):
        await fail(queue, ValueError("no such order"))
    assert shell.leftovers(queue) == set()
    (line,) = [record.getMessage() for record in caplog.records]
    for word in (events.the("publish").message_id, "ValueError: no such order", "enable_failed_queue=True", "q: "):
        assert str(word) in line


@pytest.mark.promise(
    "When `process_message()` removes a failed message, it logs its id, the exception and the option that would keep "
    "it."
)
@pytest.mark.parametrize("kept", [{"enable_failed_queue": True}, {"retry_policy": None}], ids=str)
async def test_a_single_failure_that_is_kept_is_no_error(
    shell: Shell, kept: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the failed list, or waits for its next attempt."""
    if "retry_policy" in kept:
        kept = {"retry_policy": shell.module.RetryPolicy()}
    queue = shell.queue(wait=0, **kept)
    await queue.publish("a")
    with caplog.at_level(logging.ERROR, "redis_message_queue"):
        await fail(queue, ValueError("no"))
    assert caplog.records == []
    assert shell.leftovers(queue)


@pytest.mark.promise("Failures that a full failed or dead-letter list drops are logged.")
@pytest.mark.parametrize("way", [*WAYS, "process_message"])
async def test_failures_that_a_full_list_deletes_are_logged(
    shell: Shell, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """How many, and which option keeps more; what is handled is trimmed without a word."""
    limits: dict[str, Any] = {"max_failed_length": 2, "enable_completed_queue": True, "max_completed_length": 1}
    queue = shell.queue(wait=0, enable_failed_queue=True, **limits)
    await queue.publish_many(list("abcd"))
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        if way == "process_message":
            for _ in range(4):
                await fail(queue, ValueError("no"))
        else:
            await fail_all(queue, way, 4)
        full = [record.getMessage() for record in caplog.records if "is full" in record.getMessage()]
        assert len(full) == 2
        assert all("1 oldest" in line and "max_failed_length" in line for line in full)
        caplog.clear()
        await queue.publish_many(list("xyz"))
        await queue.run(lambda message: None, until_empty=True)
        assert caplog.records == []
    assert shell.listed(queue.key.failed) == [b"d", b"c"]
    assert shell.listed(queue.key.completed) == [b"z"]


@pytest.mark.promise("Failures that a full failed or dead-letter list drops are logged.")
async def test_trimmed_dead_letters_are_logged_too(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Where failures go there and the user has set a limit."""
    queue = shell.queue(wait=0, max_dead_letter_length=1)
    await queue.publish_many(list("ab"))
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        await fail_all(queue, "run", 2)
    assert "max_dead_letter_length" in caplog.text
    assert shell.listed(queue.key.dead_letter) == [b"b"]


@pytest.mark.promise("Failures that a full failed or dead-letter list drops are logged.")
@pytest.mark.parametrize("lost_replies", [0, 1])
async def test_dead_letters_that_a_claim_deletes_are_logged(
    shell: Shell, lost_replies: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that were delivered too often push out older ones; a lost reply does not hide that."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, max_delivery_count=1, max_dead_letter_length=1)
    await queue.publish_many(list("abc"))
    for _ in range(3):
        await claim_and_die(queue)
    shell.lapse(queue)
    client.losses.reply(lost_replies)
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        assert await take(queue) is None
    (full,) = [record.getMessage() for record in caplog.records if "is full" in record.getMessage()]
    assert full.startswith("q: the dead-letter list is full, so its 2 oldest messages were deleted")
    assert "max_dead_letter_length" in full
    assert shell.listed(queue.key.dead_letter) == [b"c"]


@pytest.mark.promise("Failures that a full failed or dead-letter list drops are logged.")
async def test_dead_letters_that_an_undecodable_message_pushes_out_are_logged(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """The claim that cannot read a message moves it to the dead letters, whose oldest has to leave."""
    raw = shell.queue(wait=0, max_dead_letter_length=1)
    for text in "ab":
        await raw.publish(text)
        stored = shell.redis.rpop(raw.key.pending)
        shell.redis.rpush(raw.key.pending, stored[:-1] + b"\xff")
        client = shell.new_client(decode_responses=True)
        with caplog.at_level(logging.WARNING, "redis_message_queue"):
            assert await take(shell.queue(client=client, wait=0, max_dead_letter_length=1)) is None
    assert caplog.text.count("the dead-letter list is full, so its 1 oldest messages were deleted") == 1
    assert shell.listed(raw.key.dead_letter) == [b"\xff"]


PROGRAM = """
import asyncio, contextlib, sys
import redis, redis.asyncio
import redis_message_queue, redis_message_queue.asyncio

def refuse(message):
    raise ValueError("no such order")

def blocking(url):
    with redis.Redis.from_url(url) as client:
        queue = redis_message_queue.RedisMessageQueue("q", client=client, message_wait_interval_seconds=0)
        queue.publish_many(["a", "b"])
        with contextlib.suppress(ValueError), queue.process_message():
            raise ValueError("no such order")
        queue.run(refuse, until_empty=True)

async def awaiting(url):
    async with redis.asyncio.Redis.from_url(url) as client:
        queue = redis_message_queue.asyncio.RedisMessageQueue("q", client=client, message_wait_interval_seconds=0)
        await queue.publish_many(["a", "b"])
        with contextlib.suppress(ValueError):
            async with queue.process_message():
                raise ValueError("no such order")
        await queue.run(refuse, until_empty=True)

blocking(sys.argv[1]) if sys.argv[2] == "sync" else asyncio.run(awaiting(sys.argv[1]))
"""


@pytest.mark.promise("Without logging configured, warnings and errors appear on stderr.")
async def test_a_program_without_logging_set_up_sees_its_failures_on_stderr(shell: Shell) -> None:
    """Python's own last resort writes them: nothing of the library's stands in its way."""
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, shell.server.url, shell.name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    (letter,) = await shell.queue().records("dead_letters")
    assert "was removed because its handler raised ValueError: no such order" in ended.stderr
    failed = f"q: message {letter.id} failed (ValueError: no such order) and went to the dead letters (failed)"
    assert failed in ended.stderr
