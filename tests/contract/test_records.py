"""`records()` shows what happened to settled messages."""

from typing import Any

import pytest

from tests.contract.operators import LISTS, key_of, make_dead_letters, mortal, payloads, records_key
from tests.contract.shells import (
    Awaited,
    Shell,
    claim_and_die,
    fail,
    take,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Operator tools")


@pytest.mark.promise(
    "`records()` returns id, tenant, delivery count, error, and the times of publishing, claiming and settling, "
    "newest first."
)
async def test_a_record_has_every_detail(shell: Shell) -> None:
    """Who, how often, when and why, by the server's clock; the newest first."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    start = shell.server_time
    await queue.publish("done", tenant="a")
    await claim_and_die(queue)
    shell.lapse(queue)
    async with queue.process_message():
        done = queue.current_message()
    (record,) = await Awaited(queue).records("completed")
    assert (record.payload, record.id, record.tenant, record.delivery_count) == (b"done", done.id, "a", 2)
    assert (record.reason, record.error_type, record.error, record.replay_of) == ("completed", None, None, None)
    assert start <= record.published_at == done.published_at <= record.claimed_at
    assert record.claimed_at <= record.finished_at <= shell.server_time
    await queue.publish_many(["one", "two"])
    await fail(queue, ValueError("first"))
    await fail(queue, OSError("second"))
    failures = await Awaited(queue).records("failed")
    assert [(one.payload, one.error_type, one.error) for one in failures] == [
        (b"two", "OSError", "second"),
        (b"one", "ValueError", "first"),
    ]
    assert [one.payload for one in await Awaited(queue).records("failed", max_records=1)] == [b"two"]


@pytest.mark.promise(
    "`records()` returns id, tenant, delivery count, error, and the times of publishing, claiming and settling, "
    "newest first."
)
async def test_records_of_a_batch_and_of_the_loop_are_alike(shell: Shell) -> None:
    """Each message has its own."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish_many(["a", "b", "c"])
    async with queue.process_messages(3):
        pass
    await queue.publish_many(["d", "e"], tenant="t")
    await queue.run(lambda message: None, prefetch=5, until_empty=True)
    records = await Awaited(queue).records("completed")
    assert [one.payload for one in records] == [b"e", b"d", b"c", b"b", b"a"]
    assert len({one.id for one in records}) == 5
    assert [one.tenant for one in records] == ["t", "t", None, None, None]
    assert all(one.published_at <= one.claimed_at <= one.finished_at for one in records)


@pytest.mark.promise("The limit of a list also limits its records.")
async def test_lists_and_records_are_trimmed_together(shell: Shell) -> None:
    """A limit of the list is one of its records."""
    queue = shell.queue(enable_completed_queue=True, max_completed_length=3)
    await queue.publish_many([str(number) for number in range(10)])
    async with queue.process_messages(8):
        pass
    await take(queue)
    assert await payloads(queue, "completed") == [b"8", b"7", b"6"]
    assert shell.redis.llen(records_key(queue, "completed")) == 3
    assert all(one.id for one in await Awaited(queue).records("completed"))


@pytest.mark.promise("If you edit a list by hand, the list is right, and the next write repairs its records.")
async def test_a_list_that_was_edited_by_hand_is_right(shell: Shell, subtests: pytest.Subtests) -> None:
    """What is there is shown with its own record or with none, what is gone without payload; the next write heals."""
    cases: list[Any] = [
        (("ltrim", 0, 2), ["e", "d", "c"]),
        (("ltrim", 3, -1), ["b", "a"]),
        (("lrem", 0, "c"), ["e", "d", "b", "a"]),
        (("lpop",), ["d", "c", "b", "a"]),
        (("rpop",), ["e", "d", "c", "b"]),
        (("lset", 1, "changed"), ["e", "changed", "c", "b", "a"]),
        (("lpush", "new"), ["new", "e", "d", "c", "b", "a"]),
        (("linsert", "BEFORE", "c", "new"), ["e", "d", "new", "c", "b", "a"]),
    ]
    for cut, left in cases:
        with row(subtests, cut=cut, left=left):
            shell.redis.flushall()
            queue = shell.queue(enable_failed_queue=True)
            for text in "abcde":
                await queue.publish(text)
                await fail(queue, ValueError(f"of {text}"))
            command, *arguments = cut
            getattr(shell.redis, command)(queue.key.failed, *arguments)
            for text in ("", "f", "g"):
                if text:
                    await queue.publish(text)
                    await fail(queue, ValueError(f"of {text}"))
                    left = [text, *left]
                records = await Awaited(queue).records("failed")
                shown = [one for one in records if one.payload is not None]
                assert [one.payload.decode() for one in shown] == left
                assert all(one.error in (None, f"of {one.payload.decode()}") for one in shown)
                assert shown[0].error is not None or left[0] == "new"
            assert shell.redis.llen(records_key(queue, "failed")) <= len(left)


@pytest.mark.promise("If you edit a list by hand, the list is right, and the next write repairs its records.")
async def test_records_without_a_list_are_shown_without_payload(shell: Shell) -> None:
    """And a list without records with payloads alone; only what has a payload can be sent back."""
    queue = mortal(shell, enable_completed_queue=True, enable_failed_queue=True)
    await make_dead_letters(shell, queue, "a")
    await queue.publish_many(["a", "a"])
    await take(queue)
    await fail(queue, ValueError("of a"))
    ids = {source: (await Awaited(queue).records(source))[0].id for source in LISTS}
    assert len(set(ids.values())) == 3
    reasons = {"completed": "completed", "failed": "failed", "dead_letters": "deliveries"}
    for source in LISTS:
        shell.redis.delete(key_of(queue, source))
        (lonely,) = await Awaited(queue).records(source)
        assert (lonely.payload, lonely.id, lonely.reason) == (None, ids[source], reasons[source])
    summary = await Awaited(queue).redrive_dead_letters()
    assert (summary.matched, summary.redriven, summary.suppressed) == (0, 0, 0)
    assert await take(queue) is None
    for source in LISTS:
        shell.redis.delete(records_key(queue, source))
        shell.redis.lpush(key_of(queue, source), "x", "y")
        records = await Awaited(queue).records(source)
        assert [(one.payload, one.id, one.reason) for one in records] == [(b"y", None, None), (b"x", None, None)]
    assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
    assert [await take(queue) for _ in range(3)] == [b"x", b"y", None]


@pytest.mark.promise(
    "A payload is shown with its own record or with none, even next to equal payloads and records of others."
)
async def test_identical_payloads_keep_their_own_records(shell: Shell) -> None:
    """In their order."""
    queue = shell.queue(enable_failed_queue=True)
    for number in range(4):
        await queue.publish("same")
        await fail(queue, ValueError(f"number {number}"))
    records = await Awaited(queue).records("failed")
    assert [one.error for one in records] == [f"number {number}" for number in (3, 2, 1, 0)]


@pytest.mark.promise(
    "A payload is shown with its own record or with none, even next to equal payloads and records of others."
)
async def test_a_payload_does_not_take_the_record_of_an_equal_one_that_was_removed(shell: Shell) -> None:
    """Records that were passed over stay with what is gone."""
    queue = shell.queue(enable_failed_queue=True)
    for number, text in enumerate(("same", "other", "same")):
        await queue.publish(text)
        await fail(queue, ValueError(f"number {number}"))
    shell.redis.lpop(queue.key.failed)
    records = await Awaited(queue).records("failed")
    assert [(one.payload, one.error) for one in records] == [
        (None, "number 2"),
        (b"other", "number 1"),
        (b"same", "number 0"),
    ]


@pytest.mark.promise(
    "A payload is shown with its own record or with none, even next to equal payloads and records of others."
)
async def test_records_of_other_programs_are_ignored(shell: Shell, subtests: pytest.Subtests) -> None:
    """Whatever lies in their list, payloads are shown, and the others with their records."""
    for foreign in [
        b"not json",
        b"[]",
        b"7",
        b"null",
        b"\xff\xfe",
        b'{"bytes": 1}',
        b'{"finished": "soon", "deliveries": []}',
    ]:
        with row(subtests, foreign=foreign):
            shell.redis.flushall()
            queue = mortal(shell)
            await make_dead_letters(shell, queue, "a", "b")
            shell.redis.lpush(records_key(queue, "dead_letters"), foreign)
            records = await Awaited(queue).records("dead_letters")
            assert [(one.payload, one.reason) for one in records if one.payload] == [
                (b"b", "deliveries"),
                (b"a", "deliveries"),
            ]
            assert (await Awaited(queue).redrive_dead_letters()).redriven == 2
            assert sorted([await take(queue), await take(queue)]) == [b"a", b"b"]


@pytest.mark.promise("`peek()` shows the messages of any source with their details and changes nothing.")
async def test_what_cannot_be_decoded_is_shown_as_it_is(shell: Shell) -> None:
    """A client that decodes sees bytes where there is no text."""
    queue = shell.queue(client=shell.new_client(decode_responses=True), wait=0)
    shell.redis.lpush(queue.key.dead_letter, b"\xff\xfe", "text")
    shell.redis.lpush(queue.key.pending, b"foreign \xff")
    assert await payloads(queue, "dead_letters") == ["text", b"\xff\xfe"]
    (seen,) = await Awaited(queue).peek()
    assert (seen.payload, seen.reason) == (b"foreign \xff", "foreign")
    assert await take(queue) is None
    (letter, *_) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.reason, letter.id) == (b"foreign \xff", "foreign", None)
