"""A block handles one message: leaving it normally acks, an exception fails, a crash does neither."""

import asyncio
import contextlib
import gc
import json
import threading
from typing import Any

import pytest

from redis_message_queue.protocol.consume.message_block import MessageBlock
from tests.contract.shells import Died, Shell, asyncio_only, claim_and_die, fail, take, until

pytestmark = [pytest.mark.topic("Processing one message"), pytest.mark.both_shells]

# What stops a program rather than a message.
SUDDEN_ENDS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Died]


@pytest.mark.promise("If there is no message, the block receives `None`.")
async def test_an_empty_queue_gives_none(shell: Shell) -> None:
    """Leaving that block has no effect, however it is left."""
    queue = shell.queue(wait=0)
    async with queue.process_message() as message:
        assert message is None
        assert queue.current_message() is None
    with pytest.raises(ValueError, match="mine"):
        async with queue.process_message():
            raise ValueError("mine")
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("Leaving the block normally acks the message and removes its state.")
async def test_a_handled_message_is_gone(shell: Shell) -> None:
    """Nothing of it is left in Redis, and what the queue remembers of its calls goes by itself."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    assert await take(queue) == b"a"
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()
    assert all(shell.redis.ttl(key) > 0 for key in shell.redis.keys("q::reply::*"))


@pytest.mark.promise("A message that is being processed is in `processing` and is not delivered to another consumer.")
async def test_while_it_is_handled_a_message_is_in_processing(shell: Shell) -> None:
    """Out of the line, under a lease, and in nobody else's hands."""
    queue, other = shell.queue(wait=0), shell.queue(wait=0)
    await queue.publish("a")
    async with queue.process_message():
        assert (shell.pending(queue), shell.processing(queue)) == (0, 1)
        assert shell.redis.zcard(queue.key.leases) == 1
        assert await take(other) is None
    assert shell.processing(queue) == 0


async def test_nothing_is_claimed_before_the_block_is_entered(shell: Shell) -> None:
    """Asking for the context is not yet asking for a message."""
    queue = shell.queue()
    await queue.publish("a")
    context = queue.process_message()
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)
    async with context as message:
        assert message == b"a"


@pytest.mark.promise("Without a retry policy, failed messages are not retried.")
@pytest.mark.promise(
    "Without a retry policy, an exception in a handler is final: the message is removed or kept in the failed list."
)
async def test_a_message_whose_handler_raised_is_removed(shell: Shell) -> None:
    """The default: an ordinary exception is no retry. It reaches the caller as the very object that was raised."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    error = ValueError("mine")
    with pytest.raises(ValueError) as raised:
        async with queue.process_message():
            raise error
    assert raised.value is error
    assert error.__cause__ is None and error.__context__ is None
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Without a retry policy, an exception in a handler is final: the message is removed or kept in the failed list."
)
async def test_a_group_of_ordinary_exceptions_is_an_ordinary_exception(shell: Shell) -> None:
    """What a task group raises takes the failure path."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    with pytest.raises(ExceptionGroup):
        async with queue.process_message():
            raise ExceptionGroup("two", [ValueError(), KeyError()])
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise(
    "A handler that ends with `KeyboardInterrupt`, `SystemExit`, `GeneratorExit` or a cancellation leaves its message "
    "to the lease."
)
@pytest.mark.parametrize("sudden", SUDDEN_ENDS)
async def test_a_sudden_end_leaves_the_message_to_its_lease(shell: Shell, sudden: type[BaseException]) -> None:
    """It stays in processing, in no list and with its lease running, and is delivered again when that is over."""
    events = shell.events()
    queue = shell.queue(wait=0, enable_completed_queue=True, enable_failed_queue=True, on_event=events.listen)
    await queue.publish("a")
    error = sudden("now")
    with pytest.raises(sudden) as raised:
        async with queue.process_message():
            raise error
    assert raised.value is error
    assert shell.leftovers(queue) == {b"q::processing", b"q::leases"}
    assert events.names == ["publish/success", "claim/success"]
    assert await take(queue) is None
    shell.lapse(queue)
    assert await take(queue) == b"a"


@pytest.mark.promise("A cancelled task ends as cancelled, and its message stays in `processing` until the lease ends.")
@asyncio_only
async def test_a_task_that_is_cancelled_in_its_handler_leaves_the_message(shell: Shell) -> None:
    """A real cancellation, here of a callback: the task ends cancelled, and the message is in processing."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    entered = asyncio.Event()

    async def handler(message: Any) -> None:
        entered.set()
        await asyncio.sleep(60)

    task = asyncio.ensure_future(queue.process_message_callback(handler))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert shell.processing(queue) == 1


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
async def test_stop_iteration_reaches_the_caller(shell: Shell, kind: type[Exception]) -> None:
    """It is the handler's exception like any other, and takes the failure path."""
    queue = shell.queue(enable_failed_queue=True)
    await queue.publish("a")
    error = kind("mine")
    with pytest.raises(kind) as raised:
        async with queue.process_message():
            raise error
    assert raised.value is error
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise("Leaving the block normally acks the message and removes its state.")
@pytest.mark.parametrize("way", ["return", "break", "continue"])
async def test_leaving_early_is_leaving_normally(shell: Shell, way: str) -> None:
    """return, break and continue ack."""
    queue = shell.queue()
    await queue.publish("a")

    async def worker() -> None:
        for _ in range(1):
            async with queue.process_message():
                if way == "return":
                    return
                if way == "break":
                    break
                continue

    await worker()
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("Leaving the block normally acks the message and removes its state.")
async def test_an_exception_that_is_caught_inside_the_block_is_no_failure(shell: Shell) -> None:
    """The queue judges by how the block is left."""
    queue = shell.queue(enable_failed_queue=True, enable_completed_queue=True)
    await queue.publish("a")
    async with queue.process_message():
        with contextlib.suppress(ValueError):
            raise ValueError
    assert shell.listed(queue.key.completed) == [b"a"]
    assert shell.listed(queue.key.failed) == []


async def test_one_context_object_may_be_used_again_and_again(shell: Shell) -> None:
    """Each time it is entered it claims anew, whatever came of the last message."""
    queue = shell.queue(wait=0, enable_failed_queue=True)
    for text in "abc":
        await queue.publish(text)
    context = queue.process_message()
    async with context as message:
        assert message == b"a"
    with pytest.raises(ValueError):
        async with context as message:
            assert message == b"b"
            raise ValueError
    async with context as message:
        assert message == b"c"
    async with context as message:
        assert message is None
    assert shell.listed(queue.key.failed) == [b"b"]
    assert shell.processing(queue) == 0


async def test_blocks_may_be_nested(shell: Shell) -> None:
    """Each has its own message and its own end; the inner failure does not touch the outer message."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True)
    await queue.publish("outer")
    await queue.publish("inner")
    async with queue.process_message() as outer:
        with contextlib.suppress(ValueError):
            async with queue.process_message() as inner:
                assert (outer, inner) == (b"outer", b"inner")
                assert queue.current_message().payload == b"inner"
                raise ValueError
        assert queue.current_message().payload == b"outer"
        assert shell.processing(queue) == 1
    assert queue.current_message() is None
    assert shell.listed(queue.key.failed) == [b"inner"]
    assert shell.listed(queue.key.completed) == [b"outer"]


async def test_one_context_object_that_is_entered_twice_at_once_loses_no_ack(shell: Shell) -> None:
    """It either keeps both messages apart or refuses the second entry; it never forgets the first."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish("outer")
    await queue.publish("inner")
    context = queue.process_message()
    async with context as outer:
        with contextlib.suppress(RuntimeError):
            async with context as inner:
                assert (outer, inner) == (b"outer", b"inner")
    assert b"outer" in shell.listed(queue.key.completed)
    assert shell.processing(queue) == 0


@pytest.mark.promise("Messages can complete in a different order than they were published.")
async def test_blocks_may_end_in_any_order(shell: Shell) -> None:
    """Two messages in one pair of hands, the older one finished first."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish("a")
    await queue.publish("b")
    first, second = queue.process_message(), queue.process_message()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert queue.current_message().payload == b"b"
    assert shell.listed(queue.key.completed) == [b"a"]
    await second.__aexit__(None, None, None)
    assert queue.current_message() is None
    assert shell.processing(queue) == 0


def deliveries() -> int:
    """How many deliveries this process keeps in memory."""
    gc.collect()
    return sum(isinstance(each, MessageBlock) for each in gc.get_objects())


async def test_a_block_left_in_another_thread_or_task_is_freed(shell: Shell) -> None:
    """Each block has its own context; nested blocks may end in any order."""
    queue = shell.queue(heartbeat_interval_seconds=60)
    before = deliveries()
    await queue.publish_many([str(number) for number in range(40)])

    async def leave_elsewhere(context: Any) -> None:
        await shell.beside(lambda: context.__aexit__(None, None, None))

    for _ in range(10):
        context = queue.process_message()
        await context.__aenter__()
        assert queue.current_message() is not None
        await leave_elsewhere(context)
        assert queue.current_message() is None
    outer = queue.process_message()
    await outer.__aenter__()
    for number in range(11, 40):
        inner = queue.process_message()
        await inner.__aenter__()
        await leave_elsewhere(outer)
        assert queue.current_message().payload == str(number).encode()
        outer = inner
    await leave_elsewhere(outer)
    del context, inner, outer
    assert deliveries() == before
    assert shell.processing(queue) == 0


async def test_a_block_that_another_thread_or_task_has_entered_is_freed(shell: Shell) -> None:
    """Also while that task goes on, and for those that it has started inside the block."""
    queue, ended = shell.queue(), threading.Event()
    before = deliveries()
    await queue.publish_many([str(number) for number in range(20)])
    contexts: list[Any] = []

    async def enter() -> None:
        context = queue.process_message()
        await context.__aenter__()
        contexts.append(context)
        del context
        await until(ended.is_set)

    entered = [shell.beside(enter) for _ in range(20)]
    assert await until(lambda: len(contexts) == 20)
    while contexts:
        await contexts.pop().__aexit__(None, None, None)
    assert deliveries() == before
    assert shell.processing(queue) == 0
    ended.set()
    await asyncio.gather(*entered)


async def test_a_handler_may_publish_and_claim_from_other_queues(shell: Shell) -> None:
    """Also into the queue that it works for."""
    inbox, outbox = shell.queue("in"), shell.queue("out")
    await inbox.publish("a")
    async with inbox.process_message() as message:
        await outbox.publish(message.decode() * 2)
        await inbox.publish("b")
        async with outbox.process_message() as other:
            assert other == b"aa"
            assert inbox.current_message().payload == b"a"
            assert outbox.current_message().payload == b"aa"
    assert await take(inbox) == b"b"


@pytest.mark.promise("Many producers and consumers can share a queue through any number of queue objects.")
@pytest.mark.promise("Messages can complete in a different order than they were published.")
@pytest.mark.promise("Each message goes to exactly one of the competing consumers.")
async def test_many_consumers_share_the_work_and_none_is_done_twice(shell: Shell) -> None:
    """Sixty messages, four consumers of one queue object and two of another."""
    one, other = shell.queue(wait=0), shell.queue(wait=0)
    for number in range(60):
        await one.publish(str(number))

    async def consumer_of(queue: Any) -> list[int]:
        got = []
        while (message := await take(queue)) is not None:
            got.append(int(message))
            await asyncio.sleep(0)
        return got

    consumers = [shell.beside(lambda queue=queue: consumer_of(queue)) for queue in (one, one, one, one, other, other)]
    done = await asyncio.gather(*consumers)
    assert sorted(number for part in done for number in part) == list(range(60))
    assert all(part == sorted(part) for part in done)
    assert shell.leftovers(one) == set()


# current_message()


@pytest.mark.promise("`current_message()` gives a handler its id, delivery count, publishing time and lease.")
async def test_current_message_describes_the_message_of_the_handler(shell: Shell) -> None:
    """Payload, id, tenant, delivery count, time of publishing, and whether the lease still holds."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen)
    await queue.publish({"a": [1]})
    async with queue.process_message() as message:
        received = queue.current_message()
        assert isinstance(received, shell.module.ReceivedMessage)
        assert received.payload == message
        assert received.json() == json.loads(message) == {"a": [1]}
        assert received.id == events.the("publish").message_id
        assert received.tenant is None
        assert received.delivery_count == 1
        assert received.lease_lost is False
        assert queue.current_message() is received


@pytest.mark.promise("`current_message()` gives a handler its id, delivery count, publishing time and lease.")
async def test_outside_a_handler_there_is_no_current_message(shell: Shell) -> None:
    """Before, after success, after failure, after a sudden end, and for another queue object."""
    queue, other = shell.queue(), shell.queue()
    assert queue.current_message() is None
    for text in "abc":
        await queue.publish(text)
    async with queue.process_message():
        assert queue.current_message() is not None
        assert other.current_message() is None
    assert queue.current_message() is None
    await fail(queue, ValueError())
    assert queue.current_message() is None
    await claim_and_die(queue)
    assert queue.current_message() is None


@pytest.mark.promise("`current_message()` gives a handler its id, delivery count, publishing time and lease.")
async def test_each_consumer_sees_its_own_current_message(shell: Shell) -> None:
    """Consumers of one queue object, side by side in threads or tasks."""
    queue = shell.queue()
    for number in range(4):
        await queue.publish(str(number))
    everybody_in: set[str] = set()

    async def consumer() -> bool:
        async with queue.process_message() as message:
            everybody_in.add(queue.current_message().id)
            assert await until(lambda: len(everybody_in) == 4)
            return bool(queue.current_message().payload == message)

    assert await asyncio.gather(*[shell.beside(consumer) for _ in range(4)]) == [True] * 4


# What is in the way


@pytest.mark.promise("A claim that finds a key of the wrong type fails and loses nothing.")
async def test_a_wrong_typed_processing_key_fails_the_claim_and_loses_nothing(shell: Shell) -> None:
    """Fail closed: the message is still in the queue when the key is repaired."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    shell.redis.set(queue.key.processing, "not a hash")
    with pytest.raises(shell.module.LuaScriptError):
        await take(queue)
    assert shell.pending(queue) == 1
    shell.redis.delete(queue.key.processing)
    assert await take(queue) == b"a"


@pytest.mark.promise("A tracking list of the wrong type makes the cleanup fail with an event; no message is lost.")
@pytest.mark.promise("A failed cleanup emits `cleanup_failed`, and a failed trim `trim_failed`.")
@pytest.mark.promise("`CleanupFailedError` means that the handler succeeded and its ack failed.")
async def test_an_ack_that_redis_refuses_is_not_hidden(shell: Shell) -> None:
    """The handler succeeded, so the error is CleanupFailedError, with its cause; the message is still there."""
    events = shell.events()
    queue = shell.queue(wait=0, enable_completed_queue=True, on_event=events.listen)
    await queue.publish("a")
    shell.redis.set(queue.key.completed, "not a list")
    with pytest.raises(shell.module.CleanupFailedError) as failure:
        await take(queue)
    assert isinstance(failure.value.__cause__, shell.module.LuaScriptError)
    assert (failure.value.queue, failure.value.operation) == ("q", "ack")
    assert failure.value.message_id == events.the("publish").message_id
    assert events.names[-1] == "cleanup_failed/failure"
    assert events.all[-1].error is failure.value.__cause__
    assert shell.processing(queue) == 1
    shell.redis.delete(queue.key.completed)
    shell.lapse(queue)
    assert await take(queue) == b"a"


@pytest.mark.promise("A tracking list of the wrong type makes the cleanup fail with an event; no message is lost.")
@pytest.mark.promise("The caller sees the handler's error, whatever else fails.")
async def test_the_handlers_error_is_what_the_caller_sees_even_if_cleaning_up_fails_too(shell: Shell) -> None:
    """The trouble is told as an event; the message is still there."""
    events = shell.events()
    queue = shell.queue(enable_failed_queue=True, on_event=events.listen)
    await queue.publish("a")
    shell.redis.set(queue.key.failed, "not a list")
    error = ValueError("mine")
    with pytest.raises(ValueError) as raised:
        async with queue.process_message():
            raise error
    assert raised.value is error
    assert events.names[-2:] == ["failed/failure", "cleanup_failed/failure"]
    assert isinstance(events.all[-1].error, shell.module.LuaScriptError)
    assert shell.processing(queue) == 1


@pytest.mark.promise(
    "Stored bytes that are not a valid message are dead-lettered unchanged, and consumers continue with the next "
    "message."
)
async def test_bytes_that_are_no_message_do_not_stop_the_queue(shell: Shell) -> None:
    """They go to the dead letters as they are, with an event, and the message behind them is delivered."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen)
    shell.redis.lpush(queue.key.pending, "pushed by hand", "", b"\xd0short", b"\xff" * 40)
    await queue.publish("a")
    assert await take(queue) == b"a"
    assert sorted(shell.listed(queue.key.dead_letter)) == sorted([b"pushed by hand", b"", b"\xd0short", b"\xff" * 40])
    assert [event.message_id for event in events.of("dlq")] == [None] * 4
    assert await take(queue) is None
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise(
    "A payload that the client cannot decode is dead-lettered, and consumers continue with the next message."
)
async def test_a_payload_that_the_client_cannot_decode_goes_to_the_dead_letters(shell: Shell) -> None:
    """Only where the client decodes; the reason is told, and the next message is delivered."""
    events = shell.events()
    queue = shell.queue(wait=0, client=shell.new_client(decode_responses=True), on_event=events.listen)
    await queue.publish("broken")
    stored = shell.redis.lindex(queue.key.pending, 0)
    shell.redis.lset(queue.key.pending, 0, stored.replace(b"broken", b"br\xffken"))
    await queue.publish("a")
    assert await take(queue) == "a"
    assert shell.listed(queue.key.dead_letter) == [b"br\xffken"]
    told = events.the("dlq")
    assert told.message_id == events.of("publish")[0].message_id
    assert isinstance(told.error, shell.module.CorruptMessageError)
    assert shell.leftovers(queue) == {b"q::dlq"}
