"""`publish_many()` keeps the order, publishes each chunk whole or not at all, and follows the rules of `publish`."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from redis_message_queue import EventDrivenInterruptHandler, RedisMessageQueueError
from tests.contract.blocked_consumers import blocked_clients, blocked_consumer
from tests.contract.custom_gateways import overriding
from tests.contract.shells import LIMIT_SECONDS, Awaited, Sent, Shell, take, until
from tests.faults.proxy import FaultyProxy
from tests.tables import row

pytestmark = pytest.mark.topic("Publishing many")

CHUNK = 1_000  # messages
CHUNK_BYTES = 4_000_000


def words(count: int, first: int = 0) -> list[str]:
    return [f"message {number}" for number in range(first, first + count)]


async def take_all(queue: Any, most: int = 1_000) -> list[str]:
    """The payloads of everything that waits, as text."""
    payloads: list[str] = []
    while True:
        async with queue.process_messages(most, wait_seconds=0) as batch:
            payloads += [message.payload.decode() for message in batch]
            if not batch:
                return payloads


# Results


@pytest.mark.promise(
    "`publish_many()` publishes any iterable of messages in order and returns `True` or `False` for each."
)
async def test_every_message_is_there_in_its_order(shell: Shell) -> None:
    """The answer has one True for each, and the line has them as they were given, behind what was there."""
    queue = shell.queue()
    await queue.publish("first")
    assert await queue.publish_many(words(50)) == [True] * 50
    await queue.publish("last")
    assert await take_all(queue) == ["first", *words(50), "last"]


@pytest.mark.promise(
    "`publish_many()` publishes any iterable of messages in order and returns `True` or `False` for each."
)
async def test_anything_that_can_be_iterated_over_will_do(shell: Shell) -> None:
    """Lists, tuples, generators; text and dicts beside each other."""
    queue = shell.queue()
    assert await queue.publish_many(()) == []
    assert await queue.publish_many(word for word in words(2)) == [True, True]
    assert await queue.publish_many(("text", {"kind": "dict"})) == [True, True]
    assert await take_all(queue) == ["message 0", "message 1", "text", '{"kind": "dict"}']


@pytest.mark.promise("`publish_many()` sends nothing for an empty iterable.")
async def test_nothing_to_publish_sends_nothing(shell: Shell) -> None:
    """No script, no event."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen)
    await queue.publish("warm")
    events.clear()
    with Sent(shell.server) as sent:
        assert await queue.publish_many([]) == []
    assert (sent.commands, events.names) == ([], [])


@pytest.mark.promise("In `publish_many()` each message has its own id and time; a tenant or a delay applies to all.")
async def test_messages_published_together_have_ids_and_times_of_their_own(shell: Shell) -> None:
    """The id that the event has is the one that the handler sees; the server's clock says when."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen)
    await queue.publish_many(words(5))
    published = [event.message_id for event in events.of("publish")]
    async with queue.process_messages(5) as batch:
        assert [message.id for message in batch] == published
        assert all(len(message.id) == 32 for message in batch)
        seconds, micros = shell.redis.time()
        assert all(abs(m.published_at.timestamp() - seconds - micros / 1e6) < LIMIT_SECONDS for m in batch)
    assert len(set(published)) == 5


@pytest.mark.promise("In `publish_many()` each message has its own id and time; a tenant or a delay applies to all.")
async def test_a_tenant_and_a_delay_hold_for_all_of_them(shell: Shell) -> None:
    """As for single messages."""
    queue = shell.queue(wait=0)
    await queue.publish_many(words(3), tenant="acme")
    await queue.publish_many(words(2, first=3), delay_seconds=60)
    await queue.publish_many(words(2, first=5), at=datetime.now(UTC) + timedelta(hours=1))
    stats = await queue.stats()
    assert (stats.pending, stats.delayed, stats.tenants) == (3, 4, 1)
    async with queue.process_messages(10) as batch:
        assert [message.tenant for message in batch] == ["acme"] * 3
        assert [message.payload.decode() for message in batch] == words(3)


# Chunks


@pytest.mark.promise("Up to 1,000 messages and 4 MB are published as one chunk: one script and one round trip.")
@pytest.mark.parametrize(("count", "scripts"), [(1, 1), (CHUNK, 1), (CHUNK + 1, 2), (2 * CHUNK + 500, 3)])
async def test_a_chunk_is_one_script_of_up_to_a_thousand(shell: Shell, count: int, scripts: int) -> None:
    """One round trip for each chunk, and no other command."""
    queue = shell.queue()
    await queue.publish_many(words(2))  # this and the next load the scripts
    await queue.publish_many(words(1))
    await take_all(queue)
    with Sent(shell.server) as sent:
        assert await queue.publish_many(words(count)) == [True] * count
    assert sent.commands == ["EVALSHA"] * scripts
    assert await take_all(queue) == words(count)


@pytest.mark.promise("Up to 1,000 messages and 4 MB are published as one chunk: one script and one round trip.")
@pytest.mark.parametrize("options", [{}, {"deduplication": True}, {"max_pending_length": 5_000}], ids=str)
@pytest.mark.parametrize("details", [{}, {"tenant": "acme"}, {"delay_seconds": 60}], ids=str)
async def test_a_whole_chunk_fits_into_a_script_whatever_comes_with_it(
    shell: Shell, options: dict[str, Any], details: dict[str, Any]
) -> None:
    """Lua can unpack some 8,000 values: a thousand messages with markers, tenants or due times stay below that."""
    queue = shell.queue(**options)
    assert await queue.publish_many(words(CHUNK), **details) == [True] * CHUNK
    stats = await queue.stats()
    assert stats.pending + stats.delayed == CHUNK


@pytest.mark.promise("Up to 1,000 messages and 4 MB are published as one chunk: one script and one round trip.")
@pytest.mark.parametrize("delay_seconds", [None, 60], ids=["at once", "later"])
async def test_a_whole_chunk_fits_with_all_of_that_together(shell: Shell, delay_seconds: float | None) -> None:
    """Markers, a tenant, a delay and both limits: one script, in its order, and a second time all are duplicates."""
    rules = {"deduplication": True, "max_pending_length": CHUNK, "max_pending_per_tenant": CHUNK}
    queue = shell.queue(wait=0, **rules)
    await queue.publish_many(words(2, first=CHUNK), tenant="acme", delay_seconds=delay_seconds)
    await Awaited(queue).purge("delayed" if delay_seconds else "pending")  # that has loaded the script
    details = {"tenant": "acme", "delay_seconds": delay_seconds}
    with Sent(shell.server) as sent:
        assert await queue.publish_many(words(CHUNK), **details) == [True] * CHUNK
        assert await queue.publish_many(words(CHUNK), **details) == [False] * CHUNK
    assert sent.commands == ["EVALSHA"] * 2
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("one more", tenant="other", delay_seconds=5)
    stats = await queue.stats()
    assert (stats.pending, stats.delayed) == ((0, CHUNK) if delay_seconds else (CHUNK, 0))
    if delay_seconds:
        shell.ripen(queue)
    async with queue.process_messages(CHUNK) as batch:
        assert [message.payload.decode() for message in batch] == words(CHUNK)
        assert {message.tenant for message in batch} == {"acme"}
    assert shell.processing(queue) == 0


@pytest.mark.promise("Up to 1,000 messages and 4 MB are published as one chunk: one script and one round trip.")
async def test_large_messages_make_small_chunks(shell: Shell) -> None:
    """No chunk copies more than four megabytes, unless a single message is larger than that."""
    client = shell.lossy_client()
    queue = shell.queue(client=client)
    half, whole = "h" * (CHUNK_BYTES // 2), "w" * (CHUNK_BYTES + 1)
    await queue.publish_many(words(2))
    await queue.publish("warm")
    for messages, scripts in (([half, half], 1), ([half, half, "x"], 2), ([whole, "x"], 2), (["x", whole, "x"], 3)):
        shell.redis.delete(queue.key.pending)
        before = client.losses.sent
        assert await queue.publish_many(messages) == [True] * len(messages)
        assert client.losses.sent - before == scripts
        assert shell.pending(queue) == len(messages)


@pytest.mark.promise("A chunk is never larger than `max_pending_length` or `max_pending_per_tenant`.")
@pytest.mark.promise(
    "An error of `publish_many()` has the `results` of the earlier chunks, so that you know what is left."
)
async def test_a_chunk_is_never_larger_than_the_cap(shell: Shell) -> None:
    """A queue for three takes six messages in two chunks, as consumers make room."""
    queue = shell.queue(max_pending_length=3)
    with pytest.raises(shell.module.QueueBackpressureError) as full:
        await queue.publish_many(words(6))
    assert full.value.results == [True] * 3
    assert await take_all(queue) == words(3)
    assert await queue.publish_many(words(6)[len(full.value.results) :]) == [True] * 3
    assert await take_all(queue) == words(3, first=3)


@pytest.mark.promise("A chunk is never larger than `max_pending_length` or `max_pending_per_tenant`.")
async def test_a_chunk_is_never_larger_than_the_cap_of_a_tenant(shell: Shell) -> None:
    """The smaller of both limits counts."""
    queue = shell.queue(max_pending_length=50, max_pending_per_tenant=2)
    with pytest.raises(shell.module.QueueBackpressureError) as full:
        await queue.publish_many(words(5), tenant="acme")
    assert full.value.results == [True] * 2
    assert await queue.publish_many(words(2), tenant="zenith") == [True] * 2
    assert (await queue.stats()).pending == 4


@pytest.mark.promise("An error of `publish_many()` says how many messages were published before it.")
@pytest.mark.parametrize("policy", ["raise", "block"])
async def test_an_error_at_the_limit_says_how_many_were_published(shell: Shell, policy: str) -> None:
    """In words, with the results beside them; it says that nothing was published only where that is so."""
    settings = {"pending_overload_policy": policy, "pending_overload_block_timeout_seconds": 0.05}
    queue = shell.queue(max_pending_length=200, deduplication=True, **settings)
    with pytest.raises(shell.module.QueueBackpressureError) as full:
        await queue.publish_many(["message 0", *words(254)])
    assert (len(full.value.results), shell.pending(queue)) == (200, 199)
    assert "the first 200 of 255 messages were published (1 of them suppressed as duplicates)" in str(full.value)
    assert "messages[200:]" in str(full.value)
    assert "nothing was published" not in str(full.value)
    with pytest.raises(shell.module.QueueBackpressureError, match="nothing was published, try again when"):
        await queue.publish_many(["new", "newer"])


@pytest.mark.promise("An error of `publish_many()` says how many messages were published before it.")
async def test_another_error_in_the_middle_says_how_many_were_published(shell: Shell) -> None:
    """As a note: its words are somebody else's."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, retry_budget_seconds=0)
    client.losses.pass_on()
    client.losses.request()
    with pytest.raises(redis.exceptions.ConnectionError) as lost:
        await queue.publish_many(words(CHUNK + 5))
    (note,) = lost.value.__notes__
    assert f"the first {CHUNK} of {CHUNK + 5} messages were published" in note


@pytest.mark.promise("A chunk is published whole or not at all, with no other message inside it.")
async def test_a_chunk_without_room_for_all_of_it_leaves_all_of_it_out(shell: Shell) -> None:
    """Two would have fitted. The line is as it was, and so are the deduplication keys."""
    queue = shell.queue(max_pending_length=4, deduplication=True)
    await queue.publish_many(words(2))
    before = shell.listed(queue.key.pending)
    with pytest.raises(shell.module.QueueBackpressureError) as full:
        await queue.publish_many(words(3, first=10))
    assert full.value.results == []
    assert shell.listed(queue.key.pending) == before
    assert await queue.publish_many(words(2, first=10)) == [True, True]


@pytest.mark.promise("A full queue still recognizes the duplicates in a chunk; only new messages need room.")
async def test_duplicates_take_no_room(shell: Shell) -> None:
    """A chunk of known messages is answered in a full queue, and beside them counts only what is new."""
    queue = shell.queue(max_pending_length=4, deduplication=True)
    await queue.publish_many(words(3))
    assert await queue.publish_many(words(4)) == [False, False, False, True]
    assert await queue.publish_many(words(4)) == [False] * 4


@pytest.mark.promise("A chunk is published whole or not at all, with no other message inside it.")
async def test_a_chunk_that_the_server_refuses_changes_nothing(shell: Shell) -> None:
    """The second one meets a key of a wrong type: the first is there, of the second nothing, and the error says so."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: message)
    shell.redis.lpush(queue.key.deduplication("message 1500"), "not a string")
    with pytest.raises(shell.module.LuaScriptError) as refusal:
        await queue.publish_many(words(2 * CHUNK + 1))
    assert refusal.value.results == [True] * CHUNK
    assert (refusal.value.queue, refusal.value.operation) == ("q", "enqueue")
    assert await take_all(queue) == words(CHUNK)
    assert shell.redis.exists(queue.key.deduplication("message 1000")) == 0
    assert shell.redis.exists(queue.key.deduplication("message 2000")) == 0


# Deduplication


@pytest.mark.promise(
    "Deduplication applies within a chunk, between chunks, and between `publish()` and `publish_many()`."
)
async def test_a_duplicate_inside_a_chunk_is_one(shell: Shell) -> None:
    """The first of them enters, wherever the others stand."""
    queue = shell.queue(deduplication=True)
    assert await queue.publish_many(["a", "b", "a", "c", "b"]) == [True, True, False, True, False]
    assert await take_all(queue) == ["a", "b", "c"]


@pytest.mark.promise(
    "Deduplication applies within a chunk, between chunks, and between `publish()` and `publish_many()`."
)
async def test_a_duplicate_in_a_later_chunk_or_call_is_one(shell: Shell) -> None:
    """Chunks know what those before them brought, and so does a single publish."""
    queue = shell.queue(deduplication=True)
    await queue.publish("message 7")
    expected = [number != 7 for number in range(CHUNK)]
    assert await queue.publish_many(words(CHUNK) + words(2)) == [*expected, False, False]
    assert await queue.publish("message 3") is False
    assert shell.pending(queue) == CHUNK


@pytest.mark.promise("`publish_many()` calls the deduplication function for every message before it writes anything.")
async def test_the_key_function_is_called_for_every_message_before_anything_is_written(shell: Shell) -> None:
    """One bad answer, even for the last of two chunks, and nothing is published."""
    asked: list[Any] = []

    def key_of(message: Any) -> Any:
        asked.append(message)
        return None if message == "message 1000" else message

    queue = shell.queue(deduplication=True, get_deduplication_key=shell.callback(key_of))
    with pytest.raises(shell.module.ConfigurationError):
        await queue.publish_many(words(CHUNK + 1))
    assert asked == words(CHUNK + 1)
    assert shell.leftovers(queue) == set()
    assert await queue.publish_many(words(CHUNK)) == [True] * CHUNK


# Limits: what a full queue does


def blocking(shell: Shell, seconds: float, limit: int = 2, **options: Any) -> Any:
    return shell.queue(
        max_pending_length=limit,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=seconds,
        **options,
    )


@pytest.mark.promise("In `publish_many()`, `block` waits for room chunk by chunk, with one timeout for the whole call.")
async def test_chunks_wait_for_room_one_after_the_other(shell: Shell) -> None:
    """Five chunks of two through a queue for two, while somebody consumes: never more than two wait."""
    queue = blocking(shell, 5 * LIMIT_SECONDS, wait=LIMIT_SECONDS)
    publishing = shell.beside(lambda: queue.publish_many(words(10)))
    longest, payloads = 0, []
    for _ in range(10):
        longest = max(longest, shell.pending(queue))
        payloads.append((await take(queue)).decode())
    assert await publishing == [True] * 10
    assert payloads == words(10)
    assert longest <= 2


@pytest.mark.promise("In `publish_many()`, `block` waits for room chunk by chunk, with one timeout for the whole call.")
async def test_one_block_timeout_is_for_the_whole_call(shell: Shell) -> None:
    """Room opens for the second chunk when half of the time is over: the third has the other half, and no more."""
    queue = blocking(shell, 2.0)
    for _ in range(10):
        started = time.monotonic()

        async def publish(started: float = started) -> tuple[list[bool], float]:
            with pytest.raises(shell.module.QueueBackpressureError) as full:
                await queue.publish_many(words(6))
            return full.value.results, time.monotonic() - started

        publishing = shell.beside(publish)
        assert await until(lambda started=started: time.monotonic() - started > 1.0)
        async with queue.process_messages(2, wait_seconds=0) as batch:
            assert [message.payload.decode() for message in batch] == words(2)
        results, waited = await publishing
        assert waited >= 2.0
        await take_all(queue)
        # With a timeout for each chunk it would be three seconds, always: one before the room, two after it. A busy
        # machine may be late, and then it is tried again.
        if results == [True] * 4 and waited < 3.0:
            return
    pytest.fail("the third chunk had a time of its own")


@pytest.mark.promise("An interrupt or a drain ends a blocked `publish_many()`; chunks already published stay.")
async def test_an_interrupt_ends_the_wait_of_a_chunk(shell: Shell) -> None:
    """The first chunk found room and stays."""
    stop = threading.Event()
    queue = blocking(shell, 5 * LIMIT_SECONDS, interrupt=EventDrivenInterruptHandler(stop))
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    started = time.monotonic()
    with pytest.raises(shell.module.QueueBackpressureError) as full:
        await queue.publish_many(words(4))
    timer.join()
    assert time.monotonic() - started < LIMIT_SECONDS
    assert full.value.results == [True, True]
    assert shell.pending(queue) == 2


@pytest.mark.promise(
    "`drop_oldest` makes room for a chunk, even one larger than the limit, and emits an event per dropped message."
)
async def test_the_oldest_make_room_for_a_chunk(shell: Shell) -> None:
    """All are accepted, the newest are left, and each that went has an event of its own."""
    events = shell.events()
    queue = shell.queue(
        max_pending_length=4, pending_overload_policy="drop_oldest", max_delivery_count=None, on_event=events.listen
    )
    assert await queue.publish_many(words(3)) == [True] * 3
    first = [event.message_id for event in events.of("publish")]
    assert await queue.publish_many(words(3, first=3)) == [True] * 3
    assert [event.message_id for event in events.of("dropped")] == first[:2]
    assert await take_all(queue) == words(4, first=2)


@pytest.mark.promise(
    "`drop_oldest` makes room for a chunk, even one larger than the limit, and emits an event per dropped message."
)
async def test_more_than_a_dropping_queue_can_hold_is_accepted_in_chunks(shell: Shell) -> None:
    """What is left is the end of what was published."""
    queue = shell.queue(max_pending_length=4, pending_overload_policy="drop_oldest", max_delivery_count=None)
    assert await queue.publish_many(words(10)) == [True] * 10
    assert await take_all(queue) == words(4, first=6)


# Events


@pytest.mark.promise(
    "`publish_many()` emits an event for each message of a chunk, even of a failed one, but none for later chunks."
)
async def test_every_message_of_publish_many_emits_an_event(shell: Shell) -> None:
    """A success for what entered, a hit for what was a duplicate, in the order of the messages."""
    events = shell.events()
    queue = shell.queue(deduplication=True, on_event=events.listen)
    await queue.publish_many(["a", "a", "b"])
    assert events.names == ["publish/success", "publish_dedup_hit/skipped", "publish/success"]
    assert len({event.message_id for event in events.all}) == 3
    assert all((event.duration_seconds or 0) > 0 for event in events.all)


@pytest.mark.promise(
    "`publish_many()` emits an event for each message of a chunk, even of a failed one, but none for later chunks."
)
async def test_a_failed_chunk_emits_an_event_for_each_message(shell: Shell) -> None:
    """Those before it succeeded, those after it were never tried and are not told of."""
    events = shell.events()
    queue = shell.queue(max_pending_length=2, on_event=events.listen)
    with pytest.raises(shell.module.QueueBackpressureError) as full:
        await queue.publish_many(words(6))
    assert events.names == ["publish/success"] * 2 + ["publish/failure"] * 2
    assert {event.error for event in events.all[2:]} == {full.value}
    assert full.value.message_id == events.all[2].message_id
    assert (full.value.queue, full.value.operation) == ("q", "publish")


# Errors


def broken_generator() -> Iterator[str]:
    yield "a"
    raise LookupError("mine")


@pytest.mark.promise("If one message cannot be published, or the iterable raises, `publish_many()` publishes nothing.")
async def test_an_iterable_that_raises_publishes_nothing(shell: Shell) -> None:
    """Its own error comes out."""
    queue = shell.queue()
    with pytest.raises(LookupError, match="mine"):
        await queue.publish_many(broken_generator())
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("If one message cannot be published, or the iterable raises, `publish_many()` publishes nothing.")
async def test_one_bad_message_and_nothing_is_published(shell: Shell, subtests: pytest.Subtests) -> None:
    """Not even the chunk before it: everything is looked at before anything is sent."""
    for wrong in [7, b"bytes", ["nested"], None, {1: "key"}, "\ud800", float("nan")]:
        with row(subtests, wrong=wrong):
            shell.redis.flushall()
            queue = shell.queue()
            with pytest.raises(RedisMessageQueueError) as refusal:
                await queue.publish_many([*words(CHUNK), wrong])
            assert isinstance(refusal.value, TypeError | ValueError)
            assert (refusal.value.queue, refusal.value.operation) == ("q", "publish")
            assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "`publish_many()` refuses a single message, a non-iterable and wrong details with an error that names them."
)
@pytest.mark.parametrize("wrong", ["text", b"bytes", {"a": "dict"}], ids=repr)
async def test_one_message_is_not_an_iterable_of_messages(shell: Shell, wrong: Any) -> None:
    """A str would be published letter by letter; the error says what to use instead."""
    queue = shell.queue()
    with pytest.raises(shell.module.PayloadTypeError, match=r"use publish$"):
        await queue.publish_many(wrong)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "`publish_many()` refuses a single message, a non-iterable and wrong details with an error that names them."
)
@pytest.mark.parametrize("wrong", [None, 7], ids=repr)
async def test_what_cannot_be_iterated_over_is_refused(shell: Shell, wrong: Any) -> None:
    """With an error of ours that names what is wanted."""
    queue = shell.queue()
    with pytest.raises(TypeError, match="messages") as refusal:
        await queue.publish_many(wrong)
    assert isinstance(refusal.value, RedisMessageQueueError)


@pytest.mark.promise(
    "An error of `publish_many()` has the `results` of the earlier chunks, so that you know what is left."
)
async def test_every_error_of_the_call_says_where_it_happened_and_what_was_done_before(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """`messages[len(error.results):]` is what is left, also where nothing has been sent at all."""
    for messages in ["text", None, ["a", 7], ["a", "\ud800"]]:
        with row(subtests, messages=messages):
            shell.redis.flushall()
            queue = shell.queue()
            with pytest.raises(RedisMessageQueueError) as refusal:
                await queue.publish_many(messages)
            assert (refusal.value.queue, refusal.value.operation) == ("q", "publish")
            assert refusal.value.results == []


@pytest.mark.promise(
    "`publish_many()` refuses a single message, a non-iterable and wrong details with an error that names them."
)
async def test_bad_details_are_refused_before_anything_is_written(shell: Shell, subtests: pytest.Subtests) -> None:
    """By name."""
    cases: list[Any] = [
        ({"tenant": ""}, "tenant"),
        ({"tenant": 7}, "tenant"),
        ({"tenant": "ä" * 128}, "tenant"),
        ({"delay_seconds": -1}, "delay_seconds"),
        ({"delay_seconds": True}, "delay_seconds"),
        ({"delay_seconds": float("inf")}, "delay_seconds"),
        ({"at": "tomorrow"}, "at"),
        ({"repeat_of": ValueError()}, "repeat_of"),
    ]
    for details, named in cases:
        with row(subtests, details=details, named=named):
            shell.redis.flushall()
            queue = shell.queue()
            with pytest.raises(RedisMessageQueueError, match=named):
                await queue.publish_many(words(2), **details)
            assert shell.leftovers(queue) == set()


@pytest.mark.promise("A drained queue refuses `publish_many()` as it refuses `publish()`.")
async def test_a_drained_queue_refuses_many_as_it_refuses_one(shell: Shell) -> None:
    """Nothing is written."""
    queue = shell.queue()
    await queue.drain()
    with pytest.raises(shell.module.QueueDrainedError) as refusal:
        await queue.publish_many(words(2))
    assert (refusal.value.queue, refusal.value.operation) == ("q", "publish")
    assert shell.pending(queue) == 0


@pytest.mark.promise("A drain waits for the running chunk of `publish_many()` and returns whether it ended in time.")
async def test_a_drain_waits_for_the_chunk_under_way_and_says_whether_it_came_to_an_end(
    shell: Shell, start_server: Any
) -> None:
    """The request has left and the server has not answered: False where there is no time to wait, else True."""
    server = start_server()
    with FaultyProxy(server.port) as proxy, server.client() as onlooker:
        queue = shell.queue(client=shell.closing(shell._connect_anywhere(host="127.0.0.1", port=proxy.port)))
        await queue.publish_many(["message 0", "message 1"])
        sent = proxy.seen["enqueue"]
        server.pause()
        try:
            publishing = asyncio.ensure_future(shell.beside(lambda: queue.publish_many(words(2, first=2))))
            assert await until(lambda: proxy.seen["enqueue"] == sent + 1)
            assert await queue.drain(timeout=0) is False
            assert await queue.drain(timeout=0.1) is False
            assert (queue.queue.is_drained, publishing.done()) == (False, False)
        finally:
            server.resume()
        assert await queue.drain(timeout=LIMIT_SECONDS) is True
        assert onlooker.llen(queue.key.pending) == 4
        assert queue.queue.is_drained is True
        assert await publishing == [True, True]


@pytest.mark.promise("An interrupt or a drain ends a blocked `publish_many()`; chunks already published stay.")
async def test_a_drain_releases_a_publisher_that_waits_for_room(shell: Shell) -> None:
    """Its error says what was published before; afterwards nothing is under way."""
    queue = blocking(shell, 5 * LIMIT_SECONDS)

    async def publish() -> list[bool]:
        with pytest.raises(shell.module.QueueBackpressureError) as full:
            await queue.publish_many(words(4))
        results: list[bool] = full.value.results
        return results

    publishing = shell.beside(publish)
    assert await until(lambda: shell.pending(queue) == 2)
    assert await queue.drain(timeout=LIMIT_SECONDS) is True
    assert await publishing == [True, True]


@pytest.mark.promise("`publish_many()` is refused with a custom gateway, which has no operation for it.")
async def test_a_custom_gateway_refuses_many(shell: Shell) -> None:
    """It has an operation for one message, and none for a chunk."""
    queue = shell.queue(gateway=overriding(shell, "add_message"))
    with pytest.raises(shell.module.GatewayContractError, match="batches") as refusal:
        await queue.publish_many(words(2))
    assert refusal.value.results == []
    assert shell.leftovers(queue) == set()


# Losses and confirmations


@pytest.mark.promise("A chunk that is retried after a lost reply is stored once and returns its first results.")
async def test_a_chunk_whose_answer_was_lost_is_one_chunk(shell: Shell) -> None:
    """Sent as often as need be, with its first answer: also without deduplication, and with."""
    for options in ({}, {"deduplication": True}, {"max_pending_length": 3}):
        shell.redis.flushall()
        client = shell.lossy_client()
        queue = shell.queue(client=client, wait=0, **options)
        client.losses.reply(2)
        client.losses.request()
        assert await queue.publish_many(words(3)) == [True] * 3
        assert shell.pending(queue) == 3


@pytest.mark.promise(
    "An error of `publish_many()` has the `results` of the earlier chunks, so that you know what is left."
)
async def test_an_unreachable_server_leaves_the_results_of_the_chunks_before(shell: Shell) -> None:
    """The first chunk has its answer; what is left can be published later, and nothing doubles with deduplication."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0, deduplication=True)
    await queue.publish_many(words(1))
    client.losses.pass_on()
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError) as lost:
        await queue.publish_many(words(CHUNK + 5))
    results = vars(lost.value)["results"]  # of a class that is not ours
    assert results == [False, *[True] * (CHUNK - 1)]
    left = words(CHUNK + 5)[len(results) :]
    assert await queue.publish_many(left) == [False] * 5
    assert shell.pending(queue) == CHUNK + 5


@pytest.mark.promise("You can repeat an unconfirmed chunk with `repeat_of`, and it is stored once.")
async def test_a_chunk_that_was_not_confirmed_can_be_repeated_and_counts_once(shell: Shell, start_server: Any) -> None:
    """While the replica is silent the chunks behind it wait; when it speaks again all are there, once, in order."""
    primary, replica = (start_server(config={"repl-diskless-sync-delay": 0, "hz": 100}) for _ in range(2))
    client = shell.closing(primary.client() if shell.name == "sync" else primary.async_client())
    with primary.client() as onlooker, replica.client() as copy:
        copy.execute_command("REPLICAOF", primary.host, primary.port)
        onlooker.set("one", "write")
        assert await until(lambda: onlooker.execute_command("WAIT", 1, 100) == 1)
        queue = shell.queue(client=client, confirm_replicas=1, confirm_timeout_seconds=0.2)
        left, results, error = words(CHUNK + 5), [], None
        replica.pause()
        try:
            for _ in range(3):
                with pytest.raises(shell.module.PublishNotConfirmedError) as doubt:
                    await queue.publish_many(left, repeat_of=error)
                error = doubt.value
                assert error.results == []
                assert onlooker.llen(queue.key.pending) == CHUNK
        finally:
            replica.resume()
        deadline = time.monotonic() + LIMIT_SECONDS
        while left:
            try:
                results += await queue.publish_many(left, repeat_of=error)
                break
            except shell.module.PublishNotConfirmedError as again:  # a busy machine
                assert time.monotonic() < deadline
                results, left, error = results + again.results, left[len(again.results) :], again
        assert results == [True] * (CHUNK + 5)
        assert copy.llen(queue.key.pending) == CHUNK + 5
        assert await take_all(shell.queue(client=client)) == words(CHUNK + 5)


@pytest.mark.promise("A chunk is published whole or not at all, with no other message inside it.")
async def test_publishers_side_by_side_keep_their_chunks_together(shell: Shell) -> None:
    """Each chunk is one atomic step: nobody else's message stands inside it."""
    queue = shell.queue()

    async def publish(publisher: int) -> None:
        for chunk in range(5):
            await queue.publish_many([f"{publisher} {chunk}"] * 20)

    for publishing in [shell.beside(lambda publisher=publisher: publish(publisher)) for publisher in range(4)]:
        await publishing
    payloads = await take_all(queue)
    runs = [payloads[at : at + 20] for at in range(0, len(payloads), 20)]
    assert len(runs) == 20
    assert all(len(set(run)) == 1 for run in runs)


@pytest.mark.promise("A chunk wakes as many waiting consumers as it has messages for.")
async def test_a_chunk_wakes_as_many_consumers_as_it_has_work_for(shell: Shell) -> None:
    """One token for all of it: a consumer that leaves messages behind wakes up the next, and the others sleep on."""
    queue = shell.queue()
    for _ in range(2):
        asleep = [await blocked_consumer(shell) for _ in range(4)]
        await queue.publish_many(words(3))
        assert await until(lambda: sum(one.is_awake for one in asleep) == 3)  # noqa: B023  # it is awaited here
        assert await until(lambda: blocked_clients(shell) == 1)
        await queue.publish("message 3")
        assert sorted([(await one.wakes()).decode() for one in asleep]) == words(4)
