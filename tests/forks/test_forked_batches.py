"""Forks around batches, loops, tenants and operators: a child leaves its parent's messages alone."""

import asyncio
import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from typing import Any

import pytest

import redis_message_queue.asyncio
from redis_message_queue import ConfigurationError, QueueDrainedError, RetryPolicy
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.proxy import delayed
from tests.forks.locks import all_locks_held
from tests.forks.sides import make_queue, take, use

LETTERS = [letter.encode() for letter in "abcdef"]
BEATING: dict[str, Any] = {"heartbeat_interval_seconds": 0.02}
NOT_YOURS = "another process"  # what a refusal has to say

leased_or_not = pytest.mark.parametrize("lease", [300, None], ids=["leased", "without leases"])
alone_or_together = pytest.mark.parametrize("concurrency", [1, 3], ids=["one thread", "three threads"])


def fork_here():
    """Fork a child that continues from here, like its parent; an alarm ends it if it hangs."""
    with warnings.catch_warnings():
        # Python 3.12 warns about a fork beside threads, which is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_SECONDS // 2)
    return pid


def exit_code(pid):
    """The exit code of a child of `fork_here`, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def payloads(messages):
    return [message.payload for message in messages]


def publish_letters(queue):
    assert queue.publish_many([letter.decode() for letter in LETTERS]) == [True] * len(LETTERS)


def serve_oneself_in_batches(queue):
    """Publish many messages, and consume them as a batch and in a loop. Returns what was handled: only its own."""
    mine = [f"{os.getpid()} {number}" for number in range(30)]
    assert queue.publish_many(mine) == [True] * 30
    with queue.process_messages(10) as batch:
        handled = payloads(batch)
        assert batch.ack(batch[3]) is True
        batch[4].complete()
    summary = queue.run(lambda message: handled.append(message.payload), concurrency=2, prefetch=7, until_empty=True)
    assert sorted(handled) == sorted(text.encode() for text in mine)
    assert (summary.handled, summary.failed, summary.requeued) == (20, 0, 0)
    return len(handled)


# Handlers of a loop


class Forking:
    """A handler that forks at the first message; the child leaves it in one of several ways, and the parent checks."""

    def __init__(self, queue, client, way):
        self.queue = queue
        self.client = client
        self.way = way
        self.parent = os.getpid()
        self.handled = []
        self.status = None
        self._first = threading.Lock()

    def __call__(self, message):
        if os.getpid() != self.parent:
            self.client.rpush("handled in the child", message.payload)
            return
        if self._first.acquire(blocking=False):
            self._fork()
            if os.getpid() != self.parent:
                return
        self.handled.append((message.payload, message.delivery_count, message.lease_lost))

    def _fork(self):
        pid = fork_here()
        if pid:
            self.status = exit_code(pid)
        elif self.way == "raise":
            raise ValueError("in the child")
        elif self.way == "sys.exit":
            sys.exit(0)

    def run(self, **options):
        """Run the loop in the parent; the child ends here, if it returns at all."""
        try:
            return self.queue.run(self, **options)
        finally:
            if os.getpid() != self.parent:
                os._exit(0)


@pytest.mark.parametrize("batches", [False, True], ids=["one by one", "in batches"])
@pytest.mark.parametrize("way", ["return", "raise", "sys.exit"])
@leased_or_not
def test_a_child_that_returns_from_a_handler_ends_its_copy_of_the_loop(plain_client, truth, lease, way, batches):
    """It neither settles the message nor handles the prefetched ones: all of them belong to its parent."""
    queue = make_queue(plain_client, visibility_timeout_seconds=lease)
    use(queue)
    publish_letters(queue)
    seen = []

    class Looking(Forking):
        def _fork(self):
            super()._fork()
            if os.getpid() == self.parent:
                seen.append((truth.pending, truth.processing, truth.completed, truth.failed))

        def __call__(self, message):
            for one in message if batches else [message]:
                super().__call__(one)
                if os.getpid() != self.parent:
                    return

    forking = Looking(queue, plain_client, way)
    options = {"batch_size": 3} if batches else {"prefetch": 4}
    summary = forking.run(until_empty=True, **options)
    assert forking.status == 0
    claimed = 3 if batches else 4
    assert seen == [(len(LETTERS) - claimed, claimed, [b"before the fork"], [])]
    assert plain_client.lrange("handled in the child", 0, -1) == []
    assert forking.handled == [(letter, 1, False) for letter in LETTERS]
    assert (summary.handled, summary.failed, summary.requeued) == (len(LETTERS), 0, 0)
    assert truth.completed == [b"before the fork", *LETTERS]
    assert truth.is_empty


@pytest.mark.parametrize("way", ["return", "raise", "sys.exit"])
def test_a_child_of_one_thread_of_a_loop_ends_with_its_handler(plain_client, truth, way):
    """Another thread waits for messages and holds the turn: in the child no thread would ever release it."""
    queue = make_queue(plain_client, **BEATING)
    use(queue)
    forking = Forking(queue, plain_client, way)
    running = start(lambda: forking.run(concurrency=3, prefetch=2))
    until(lambda: any(each["cmd"] == "blpop" for each in truth.client.client_list()))
    publish_letters(queue)
    until(lambda: len(forking.handled) == len(LETTERS))
    queue.drain(0)
    truth.client.lpush(queue.key.wakeup, "1")  # so that no worker waits out the rest of its second
    summary = running.result(LIMIT_SECONDS)
    assert forking.status == 0
    assert plain_client.lrange("handled in the child", 0, -1) == []
    assert sorted(forking.handled) == [(letter, 1, False) for letter in LETTERS]
    assert (summary.handled, summary.failed, summary.requeued) == (len(LETTERS), 0, 0)
    assert sorted(truth.completed) == sorted([b"before the fork", *LETTERS])
    assert truth.failed == []
    assert truth.is_empty


@alone_or_together
def test_a_child_of_a_loops_handler_may_use_the_inherited_queue(inherited, truth, fork, concurrency):
    """In batches and in its own loop; the parent keeps its prefetched messages, and their leases are renewed."""
    queue = make_queue(inherited, **BEATING)
    use(queue)
    publish_letters(queue)
    seen, first, is_done = [], threading.Lock(), threading.Event()

    def names_and_work():
        return [thread.name for thread in threading.enumerate()], serve_oneself_in_batches(queue)

    def handle(message):
        if first.acquire(blocking=False):
            names, handled = fork(names_and_work).result()
            deadlines = truth.deadlines
            until(lambda: deadlines < truth.deadlines)
            seen.append((handled, "redis-message-queue-heartbeat" in names))
            is_done.set()
        assert is_done.wait(LIMIT_SECONDS)  # otherwise the loop would claim the child's messages
        assert not message.lease_lost

    summary = queue.run(handle, concurrency=concurrency, prefetch=len(LETTERS), until_empty=True)
    assert seen == [(30, False)]
    assert (summary.handled, summary.failed, summary.requeued) == (len(LETTERS), 0, 0)
    assert sorted(payload for payload in truth.completed if payload in LETTERS) == LETTERS
    assert len(truth.completed) == 1 + 30 + len(LETTERS)
    assert truth.is_empty


@pytest.mark.parametrize("settle", ["complete", "hand off"])
def test_a_child_of_a_loops_handler_cannot_settle_the_message(plain_client, truth, fork, settle):
    """The parent's loop acks it: a second ack would report a lost lease that is not lost."""
    queue, results = make_queue(plain_client), redis_message_queue.RedisMessageQueue("results", client=plain_client)
    use(queue)
    publish_letters(queue)
    errors = []

    def complete(message):
        with pytest.raises(ConfigurationError) as refused:
            message.complete([(results, "of the child")] if settle == "hand off" else ())
        return str(refused.value), refused.value.queue, refused.value.message_id == message.id

    def handle(message):
        if not errors:
            errors.append(fork(complete, message).result())

    summary = queue.run(handle, prefetch=2, until_empty=True)
    ((text, name, its_own),) = errors
    assert NOT_YOURS in text and (name, its_own) == ("forks", True)
    assert summary.handled == len(LETTERS)
    assert truth.completed == [b"before the fork", *LETTERS]
    assert truth.is_empty


def test_forks_beside_a_threaded_loop_lose_and_duplicate_nothing(plain_client, truth, fork):
    """Ten children, each forked while the loop claims, handles and acks; they use another queue."""
    queue, other = make_queue(plain_client), redis_message_queue.RedisMessageQueue("other", client=plain_client)
    use(queue)
    published, handled = [], []
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # switch threads a thousand times as often as usual
    running = start(lambda: queue.run(lambda message: handled.append(message.payload), concurrency=3, prefetch=5))
    try:
        for turn in range(10):
            some = [f"{turn} {number}" for number in range(20)]
            published += [text.encode() for text in some]
            queue.publish_many(some)
            assert fork(serve_oneself_in_batches, other).result() == 30
        until(lambda: len(truth.completed) == 1 + len(published))
    finally:
        sys.setswitchinterval(usual)
        queue.drain(0)
        truth.client.lpush(queue.key.wakeup, "1")
    assert running.result(LIMIT_SECONDS).handled == len(published)
    assert sorted(handled) == sorted(published)
    assert truth.is_empty


def test_a_child_that_drains_does_not_end_the_loop_of_its_parent(plain_client, truth, fork):
    """After the fork there are two objects: the child's accepts nothing more, the parent's continues."""
    queue = make_queue(plain_client)
    use(queue)
    publish_letters(queue)

    def drain():
        assert queue.drain() is True
        with pytest.raises(QueueDrainedError):
            queue.publish_many(["too late"])
        assert queue.run(print, until_empty=True).handled == 0

    drained, first = [], threading.Lock()

    def handle(message):
        if first.acquire(blocking=False):
            drained.append(fork(drain).result())

    assert queue.run(handle, concurrency=2, prefetch=2, until_empty=True).handled == len(LETTERS)
    assert drained == [None]
    assert truth.is_empty


# Batches


@pytest.mark.parametrize(
    "error", [None, ValueError("in the child"), SystemExit(0)], ids=["normally", "by an exception", "by its exit"]
)
@leased_or_not
def test_a_child_that_leaves_an_inherited_batch_does_not_settle_it(plain_client, truth, fork, lease, error):
    """No ack, no requeue, no end of the heartbeat; afterwards the parent settles each message."""
    beating = BEATING if lease else {}
    queue = make_queue(plain_client, visibility_timeout_seconds=lease, **beating)
    use(queue)
    publish_letters(queue)
    context = queue.process_messages(4)
    batch = context.__enter__()

    def leave():
        context.__exit__(None if error is None else type(error), error, None)
        return [thread.name for thread in threading.enumerate()]

    assert "redis-message-queue-heartbeat" not in fork(leave).result()
    assert (truth.pending, truth.processing, truth.completed, truth.failed) == (2, 4, [b"before the fork"], [])
    if lease:
        deadlines = truth.deadlines
        until(lambda: deadlines < truth.deadlines)
    assert batch.ack(batch[2]) is True
    assert batch.fail(batch[0], ValueError("no")) is True
    batch[1].complete()
    assert not any(message.lease_lost for message in batch)
    context.__exit__(None, None, None)
    assert truth.completed == [b"before the fork", b"c", b"b", b"d"]
    assert truth.failed == [b"a"]
    assert [take(queue) for _ in range(3)] == [b"e", b"f", None]
    assert truth.is_empty


def test_a_parent_requeues_its_batch_after_a_child_has_left_it(plain_client, truth, fork):
    """In order, once; what the child did with its copy of the block changes nothing."""
    queue = make_queue(plain_client)
    use(queue)
    publish_letters(queue)
    context = queue.process_messages(4)
    context.__enter__()
    fork(context.__exit__, None, None, None).result()
    error = ValueError("in the parent")
    context.__exit__(ValueError, error, None)
    assert (truth.pending, truth.completed) == (len(LETTERS), [b"before the fork"])
    assert [take(queue) for _ in range(7)] == [*LETTERS, None]
    assert truth.is_empty


@pytest.mark.parametrize("settle", ["ack", "fail", "complete", "hand off", "retry"])
@leased_or_not
def test_a_child_cannot_settle_a_message_of_its_parents_batch(plain_client, truth, fork, lease, settle):
    """The error says whose the message is; the parent still holds all of them, and settles them."""
    policy = RetryPolicy() if settle == "retry" else None
    queue = make_queue(plain_client, visibility_timeout_seconds=lease, retry_policy=policy)
    use(queue)
    publish_letters(queue)

    def try_it(batch):
        with pytest.raises(ConfigurationError) as refused:
            if settle == "ack":
                batch.ack(batch[0])
            elif settle in ("fail", "retry"):
                batch.fail(batch[0], ValueError("no"))
            else:
                batch[0].complete([(queue, "of the child")] if settle == "hand off" else ())
        return str(refused.value), refused.value.queue, refused.value.message_id == batch[0].id

    with queue.process_messages(len(LETTERS)) as batch:
        text, name, its_own = fork(try_it, batch).result()
        assert (truth.pending, truth.processing, truth.failed) == (0, len(LETTERS), [])
        assert truth.completed == [b"before the fork"]
        assert batch.ack(batch[0]) is True
    assert NOT_YOURS in text and (name, its_own) == ("forks", True)
    assert truth.completed == [b"before the fork", *LETTERS]
    assert truth.is_empty


def test_a_child_cannot_complete_the_message_of_an_inherited_block(plain_client, truth, fork):
    """The same for a single message."""
    queue = make_queue(plain_client)
    use(queue)
    queue.publish("message")

    def complete():
        with pytest.raises(ConfigurationError, match=NOT_YOURS):
            queue.current_message().complete()

    with queue.process_message():
        fork(complete).result()
        assert (truth.processing, truth.completed) == (1, [b"before the fork"])
    assert truth.completed == [b"before the fork", b"message"]
    assert truth.is_empty


def test_a_child_in_an_inherited_batch_may_use_the_queue(inherited, truth, fork):
    """Its batches and loops contain only its own messages."""
    queue = make_queue(inherited, **BEATING)
    use(queue)
    publish_letters(queue)
    with queue.process_messages(len(LETTERS)) as batch:
        assert fork(serve_oneself_in_batches, queue).result() == 30
        assert (truth.pending, truth.processing) == (0, len(LETTERS))
        assert not any(message.lease_lost for message in batch)
    assert truth.completed[-len(LETTERS) :] == LETTERS
    assert len(truth.completed) == 1 + 30 + len(LETTERS)
    assert truth.is_empty


def test_a_block_entered_after_the_fork_belongs_to_the_child(plain_client, truth, fork):
    """The process that enters the block claims and settles; when `process_messages` was called does not matter."""
    queue = make_queue(plain_client)
    use(queue)
    publish_letters(queue)
    context = queue.process_messages(3)

    def enter_and_leave():
        with context as batch:
            assert batch.ack(batch[1]) is True
            return payloads(batch)

    assert fork(enter_and_leave).result() == LETTERS[:3]
    assert truth.completed == [b"before the fork", b"b", b"a", b"c"]
    with context as batch:
        assert payloads(batch) == LETTERS[3:]
    assert truth.is_empty


# Publishing many at once


def test_a_fork_between_two_chunks_neither_loses_nor_duplicates_a_message(plain_client, truth, fork):
    """A listener forks in the middle of the call; the child publishes and consumes, and the call continues."""
    events, children = [], []

    def on_event(event):
        events.append(event)
        if len(events) in (1, 1_001, 2_001):
            children.append(fork(serve_oneself_in_batches, other).result())

    other = redis_message_queue.RedisMessageQueue("other", client=plain_client, message_wait_interval_seconds=0)
    queue = make_queue(plain_client, on_event=on_event)
    numbers = [str(number) for number in range(2_300)]
    assert queue.publish_many(numbers) == [True] * len(numbers)
    assert children == [30, 30, 30]
    assert [one.payload.decode() for one in queue.peek(3_000)] == numbers
    assert other.stats().pending == 0


def test_a_fork_while_a_chunk_is_under_way_keeps_replies_apart(proxy, connect, truth, fork):
    """The reply belongs to the parent; the child's own chunks get their own."""
    queue = make_queue(connect())
    use(queue)
    numbers = [str(number) for number in range(1_500)]
    proxy.meet("enqueue", delayed(0.5), delayed(0.5))
    publishing = start(queue.publish_many, numbers)
    until(lambda: truth.pending == 1_000)

    def publish_chunks():
        return queue.publish_many([f"child {number}" for number in range(1_200)])

    assert fork(publish_chunks).result() == [True] * 1_200
    assert publishing.result(LIMIT_SECONDS) == [True] * len(numbers)
    waiting = [one.payload.decode() for one in queue.peek(5_000)]
    assert [text for text in waiting if not text.startswith("child")] == numbers
    assert [text for text in waiting if text.startswith("child")] == [f"child {number}" for number in range(1_200)]
    assert len({one.id for one in queue.peek(5_000)}) == 2_700


# Tenants and operators


def look_after(queue):
    """Use every call of tenants and operators. Returns the results."""
    acme = queue.tenant("acme")
    assert acme.publish("1") is True
    assert acme.publish_many(["2", "3"]) == [True, True]
    assert (acme.length(), acme.exists(), queue.tenants()) == (3, True, {"acme": 3})
    assert payloads(queue.peek(10, tenant="acme")) == [b"1", b"2", b"3"]
    with queue.process_messages(1) as batch:
        batch.fail(batch[0], ValueError("no"))
    (letter,) = queue.records("dead_letters")
    assert (letter.payload, letter.error_type, letter.tenant) == (b"1", "ValueError", "acme")
    assert queue.redrive_dead_letters(where=lambda one: one.payload == b"1").redriven == 1
    assert acme.delete() == 3
    queue.publish("later", delay_seconds=1000)
    stats = queue.stats()
    assert (stats.pending, stats.processing, stats.delayed, stats.dead_letters) == (0, 0, 1, 0)
    assert [queue.purge(target) for target in ("pending", "delayed", "failed", "dead_letters")] == [0, 1, 0, 0]
    return queue.purge("completed")


def test_tenants_and_operators_work_in_parent_and_child(inherited, truth, fork):
    """With a queue that was made and used before the fork."""
    queue = make_queue(inherited, retry_policy=RetryPolicy(max_attempts=1), tenant_weights={"acme": 2})
    use(queue)
    assert look_after(queue) == 1
    assert fork(look_after, queue).result() == 0
    assert look_after(queue) == 0
    assert truth.is_empty


def test_a_tenant_handle_from_before_the_fork_works_in_the_child(plain_client, truth, fork):
    """It is the same tenant queue on both sides."""
    queue = make_queue(plain_client)
    use(queue)
    acme = queue.tenant("acme")
    acme.publish("of the parent")

    def use_it():
        assert acme.publish("of the child") is True
        return acme.length(), acme.exists()

    assert fork(use_it).result() == (2, True)
    assert fork(acme.delete).result() == 2
    assert (acme.length(), acme.exists()) == (0, False)


def test_batches_and_operators_work_in_a_child_although_another_thread_held_every_lock(inherited, truth, fork):
    """That thread does not exist in the child, so no one would ever release the locks there."""
    queue = make_queue(inherited, retry_policy=RetryPolicy(max_attempts=1))
    use(queue)

    def work():
        return serve_oneself_in_batches(queue), look_after(queue)

    with all_locks_held(queue) as locks:
        assert locks > 0
        assert fork(work).result() == (30, 31)
    use(queue)
    assert truth.is_empty


# Processes, and objects that cannot be sent to them


@pytest.mark.parametrize("place", ["loop", "batch", "publish_many"])
def test_a_process_started_by_fork_may_use_the_inherited_queue(plain_client, truth, place):
    """From a handler of a loop, from the block of a batch, and while a generator yields messages to publish."""
    queue = make_queue(plain_client, **BEATING)
    other = redis_message_queue.RedisMessageQueue("other", client=plain_client, message_wait_interval_seconds=0)
    use(queue)
    codes = []

    def start_a_process():
        process = multiprocessing.get_context("fork").Process(target=serve_oneself_in_batches, args=(other,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        process.join(LIMIT_SECONDS)
        codes.append(process.exitcode)

    def messages():
        for letter in LETTERS:
            if place == "publish_many" and letter == b"c":
                start_a_process()
            yield letter.decode()

    assert queue.publish_many(messages()) == [True] * len(LETTERS)
    if place == "loop":
        queue.run(lambda message: message.payload == b"b" and start_a_process(), prefetch=4, until_empty=True)
    else:
        with queue.process_messages(len(LETTERS)) as batch:
            if place == "batch":
                start_a_process()
            assert payloads(batch) == LETTERS
    assert codes == [0]
    assert truth.completed == [b"before the fork", *LETTERS]
    assert truth.is_empty and other.stats().pending == 0


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy, copy.copy], ids=lambda way: way.__name__)
def test_objects_of_a_queue_are_neither_pickled_nor_copied(plain_client, truth, duplicate):
    """A message, a batch, its block and a tenant queue hold connections, and are refused like the queue itself."""
    queue = make_queue(plain_client)
    publish_letters(queue)
    refused_by = []
    with queue.process_messages(2) as batch:
        things = [queue.tenant("acme"), queue.process_messages(2), batch, batch[0], queue.process_message()]
        refused_by += [refusal_of(duplicate, thing) for thing in things]
    with queue.process_message():
        refused_by.append(refusal_of(duplicate, queue.current_message()))
    queue.run(lambda message: refused_by.append(refusal_of(duplicate, message)), until_empty=True)
    assert refused_by == [True] * 9


def test_objects_of_an_async_queue_are_neither_pickled_nor_copied(server, truth):
    """The same for async."""

    async def main():
        async with server.async_client() as client:
            queue = redis_message_queue.asyncio.RedisMessageQueue("forks", client=client)
            await queue.publish("message")
            async with queue.process_messages(1) as batch:
                things = [queue.tenant("acme"), queue.process_messages(2), batch, batch[0], queue.process_message()]
                return [refusal_of(way, thing) for way in (pickle.dumps, copy.deepcopy) for thing in things]

    assert asyncio.run(main()) == [True] * 10


def refusal_of(duplicate, thing):
    """Whether pickling and copying are refused with the text of the queue; callers of pickle expect a TypeError."""
    try:
        duplicate(thing)
    except Exception as error:
        said = f"a {type(thing).__name__} cannot be pickled or copied" in str(error)
        return (said and isinstance(error, ConfigurationError) and isinstance(error, TypeError)) or repr(error)
    return f"a {type(thing).__name__} was duplicated"


def test_results_of_a_queue_can_be_pickled(plain_client, truth):
    """Records, counts, summaries and policies are values."""
    queue = make_queue(plain_client)
    publish_letters(queue)
    summary = queue.run(lambda message: None, until_empty=True)
    values = [summary, queue.stats(), queue.records("completed"), RetryPolicy(), queue.redrive_dead_letters()]
    assert pickle.loads(pickle.dumps(values)) == copy.deepcopy(values) == values


# Async


async def handle_nothing(message):
    pass


def calls_of(queue, tenant, batch):
    """Every new call of an async queue, as a coroutine that has not started."""

    async def enter():
        async with queue.process_messages(2):
            pass

    return {
        "publish_many": lambda: queue.publish_many(["of the child"]),
        "process_messages": enter,
        "run": lambda: queue.run(handle_nothing, until_empty=True),
        "run side by side": lambda: queue.run(handle_nothing, concurrency=2, until_empty=True),
        "stats": queue.stats,
        "peek": queue.peek,
        "records": queue.records,
        "purge": lambda: queue.purge("pending"),
        "redrive": queue.redrive_dead_letters,
        "tenants": queue.tenants,
        "tenant.publish": lambda: tenant.publish("of the child"),
        "tenant.publish_many": lambda: tenant.publish_many(["of the child"]),
        "tenant.length": tenant.length,
        "tenant.delete": tenant.delete,
        "ack": lambda: batch.ack(batch[0]),
        "fail": lambda: batch.fail(batch[1], ValueError("no")),
        "complete": batch[2].complete,
        "hand off": lambda: batch[3].complete([(queue, "of the child")]),
    }


def test_a_child_is_refused_every_call_of_an_async_queue(server, truth, fork):
    """The parent's batch, connections and event loop continue."""

    def refusals(queue, tenant, batch):
        errors = {}
        for name, call in calls_of(queue, tenant, batch).items():
            with pytest.raises(ConfigurationError) as refused:
                asyncio.run(asyncio.wait_for(call(), LIMIT_SECONDS / 4))
            errors[name] = str(refused.value)
        return errors

    async def main():
        async with server.async_client() as client:
            queue = redis_message_queue.asyncio.RedisMessageQueue("forks", client=client, enable_completed_queue=True)
            await queue.publish_many([letter.decode() for letter in LETTERS])
            connection = await client.client_id()
            context = queue.process_messages(len(LETTERS))
            batch = await context.__aenter__()
            errors = await asyncio.to_thread(fork(refusals, queue, queue.tenant("acme"), batch).result)
            await asyncio.to_thread(fork(leave, context).result)
            assert (truth.pending, truth.processing, truth.completed) == (0, len(LETTERS), [])
            assert not any(message.lease_lost for message in batch)
            assert await batch.ack(batch[0]) is True
            await context.__aexit__(None, None, None)
            assert await client.client_id() == connection
            return errors, await queue.stats()

    def leave(context):
        asyncio.run(context.__aexit__(None, None, None))

    errors, stats = asyncio.run(main())
    assert {name: NOT_YOURS in text for name, text in errors.items()} == dict.fromkeys(calls_of_names(), True), errors
    assert (stats.pending, stats.processing, stats.completed) == (0, 0, len(LETTERS))
    assert truth.completed == LETTERS
    assert truth.is_empty


def calls_of_names():
    """The names of all these calls."""

    class Anything:
        def __getattr__(self, name):
            return self

        __getitem__ = __getattr__

    return calls_of(Anything(), Anything(), Anything())


@alone_or_together
def test_a_child_of_an_async_loops_handler_that_exits_at_once_changes_nothing(server, truth, fork, concurrency):
    """The loop, its heartbeat and its prefetched messages stay with the parent."""
    handled = []

    async def handle(message):
        if not handled:
            fork(str, message.payload).result()
            deadlines = truth.deadlines
            await asyncio.to_thread(until, lambda: deadlines < truth.deadlines)
        assert not message.lease_lost
        handled.append(message.payload)

    async def main():
        async with server.async_client() as client:
            queue = redis_message_queue.asyncio.RedisMessageQueue(
                "forks", client=client, enable_completed_queue=True, **BEATING
            )
            await queue.publish_many([letter.decode() for letter in LETTERS])
            loop = queue.run(handle, concurrency=concurrency, prefetch=4, until_empty=True)
            return await asyncio.wait_for(loop, LIMIT_SECONDS)

    assert asyncio.run(main()).handled == len(LETTERS)
    assert sorted(handled) == sorted(truth.completed) == LETTERS
    assert truth.is_empty
