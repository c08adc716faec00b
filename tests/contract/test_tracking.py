"""Completed and failed messages are kept if you enable it, as raw payloads, newest first, up to a limit."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.shells import Shell, fail, take

pytestmark = pytest.mark.topic("Tracking lists")

BOTH = {"enable_completed_queue": True, "enable_failed_queue": True}


async def complete(queue: Any) -> None:
    await take(queue)


async def break_down(queue: Any) -> None:
    await fail(queue, ValueError())


# The two lists keep the same rules: how to get a message there, the option that limits it, the key.
both_lists = pytest.mark.parametrize(
    ("end", "limit", "word"),
    [(complete, "max_completed_length", "completed"), (break_down, "max_failed_length", "failed")],
    ids=["completed", "failed"],
)
End = Callable[[Any], Any]


@pytest.mark.promise(
    "Settled messages are kept only with `enable_completed_queue` or `enable_failed_queue`, each in its own list."
)
async def test_nothing_is_kept_by_default(shell: Shell) -> None:
    """Neither list exists by default, and asking for one does not make the other."""
    for options, kept in (
        ({}, set()),
        ({"enable_completed_queue": True}, {b"q::completed"}),
        ({"enable_failed_queue": True}, {b"q::failed"}),
    ):
        shell.redis.flushall()
        queue = shell.queue(**options)
        await queue.publish("a")
        await queue.publish("b")
        await complete(queue)
        await break_down(queue)
        assert shell.leftovers(queue) == kept


@pytest.mark.promise("The completed and failed lists hold raw payload bytes, newest first.")
@both_lists
async def test_the_list_holds_raw_payloads_newest_left(shell: Shell, end: End, limit: str, word: str) -> None:
    """The bytes that were published and nothing around them; identical payloads stand side by side."""
    queue = shell.queue(**BOTH)
    for message in ("first", "żółć", {"k": "漢"}, "first"):
        await queue.publish(message)
        await end(queue)
    assert shell.redis.type(getattr(queue.key, word)) == b"list"
    assert shell.listed(getattr(queue.key, word)) == [b"first", '{"k": "漢"}'.encode(), "żółć".encode(), b"first"]


@pytest.mark.promise(
    "Settled messages are kept only with `enable_completed_queue` or `enable_failed_queue`, each in its own list."
)
async def test_success_and_failure_do_not_mix(shell: Shell) -> None:
    """Each message is in the one list that tells its end."""
    queue = shell.queue(**BOTH)
    for text in "abcd":
        await queue.publish(text)
    for end in (complete, break_down, complete, break_down):
        await end(queue)
    assert shell.listed(queue.key.completed) == [b"c", b"a"]
    assert shell.listed(queue.key.failed) == [b"d", b"b"]


@pytest.mark.promise(
    "Each tracking list keeps its newest 1,000 entries by default, the number you set, or all with `None`."
)
@both_lists
async def test_the_list_keeps_the_newest_up_to_its_limit(shell: Shell, end: End, limit: str, word: str) -> None:
    """A limit of two keeps two."""
    queue = shell.queue(**BOTH, **{limit: 2})
    for text in "abc":
        await queue.publish(text)
        await end(queue)
    assert shell.listed(getattr(queue.key, word)) == [b"c", b"b"]


@pytest.mark.promise(
    "Each tracking list keeps its newest 1,000 entries by default, the number you set, or all with `None`."
)
@both_lists
@pytest.mark.parametrize(("options", "left"), [("usual", 1_000), ("unbounded", 1_001)])
async def test_the_list_keeps_a_thousand_by_default_and_everything_with_none(
    shell: Shell, end: End, limit: str, word: str, options: str, left: int
) -> None:
    """Prefilled with a thousand, it takes one more."""
    queue = shell.queue(**BOTH, **({limit: None} if options == "unbounded" else {}))
    shell.redis.rpush(getattr(queue.key, word), *map(str, range(1_000)))
    await queue.publish("newest")
    await end(queue)
    kept = shell.listed(getattr(queue.key, word))
    assert (len(kept), kept[:2]) == (left, [b"newest", b"0"])


@pytest.mark.promise("After you lower a list's limit, the next message trims the list to it.")
@both_lists
async def test_a_lowered_limit_trims_what_is_there(shell: Shell, end: End, limit: str, word: str) -> None:
    """With the next message that enters the list."""
    queue = shell.queue(**BOTH, **{limit: 3})
    shell.redis.rpush(getattr(queue.key, word), *map(str, range(50)))
    assert len(shell.listed(getattr(queue.key, word))) == 50
    await queue.publish("newest")
    await end(queue)
    assert shell.listed(getattr(queue.key, word)) == [b"newest", b"0", b"1"]


@pytest.mark.promise("The limits of the tracking lists limit nothing else.")
async def test_a_limit_may_be_given_for_a_list_that_is_not_kept(shell: Shell) -> None:
    """It is checked and has no effect, so that a switch can be turned off without touching the rest."""
    queue = shell.queue(max_completed_length=5, max_failed_length=None)
    await queue.publish("a")
    await complete(queue)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Trimming is best effort: if it fails, the message is still settled, and the next trim catches up."
)
@pytest.mark.promise("A failed cleanup emits `cleanup_failed`, and a failed trim `trim_failed`.")
@both_lists
async def test_trimming_is_best_effort(
    shell: Shell, end: End, limit: str, word: str, user_without_ltrim: dict[str, str]
) -> None:
    """Where it fails the message is settled all the same and the list a little longer; an event tells of it, and the
    next trim that succeeds makes it good."""
    events = shell.events()
    untidy = shell.queue(client=shell.new_client(**user_without_ltrim), on_event=events.listen, **BOTH, **{limit: 1})
    for text in "abc":
        await untidy.publish(text)
        await end(untidy)
    assert shell.listed(getattr(untidy.key, word)) == [b"c", b"b", b"a"]
    assert shell.processing(untidy) == 0
    done = {"completed": ["ack/success", "completed/success"], "failed": ["failed/failure", "nack/success"]}[word]
    assert events.names[-3:] == [*done, "trim_failed/failure"]
    told = events.all[-1]
    assert told.message_id == events.of("publish")[-1].message_id
    assert isinstance(told.error, shell.module.RedisMessageQueueError)

    tidy = shell.queue(**BOTH, **{limit: 1})
    await tidy.publish("d")
    await end(tidy)
    assert shell.listed(getattr(tidy.key, word)) == [b"d"]
