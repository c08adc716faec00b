"""An async queue belongs to the process that made it: a child gets an error that says what to do instead."""

import asyncio
import contextlib
import re

import pytest
import redis.asyncio

from redis_message_queue import ConfigurationError, after_restore
from redis_message_queue.asyncio import RedisGateway, RedisMessageQueue
from tests.concurrency import LIMIT_SECONDS

pytestmark = pytest.mark.topic("Forks")


class SubclassedRedis(redis.asyncio.Redis):
    """A subclass, so that commands are sent by redis-py itself."""


def plain(port):
    return redis.asyncio.Redis(host="127.0.0.1", port=port)


def subclassed(port):
    return SubclassedRedis(host="127.0.0.1", port=port)


def with_a_waiting_pool(port):
    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=3, timeout=10)
    return redis.asyncio.Redis.from_pool(pool)


@pytest.fixture
def parent():
    """The parent's event loop, which lives before and after the fork."""
    with asyncio.Runner() as runner:
        yield lambda work: runner.run(asyncio.wait_for(work, LIMIT_SECONDS))


@pytest.fixture(params=[plain, subclassed, with_a_waiting_pool], ids=lambda make: make.__name__)
def inherited(request, server, truth, parent):
    opened = request.param(server.port)
    yield opened
    parent(opened.aclose())


def make_queue(client, **options):
    usual = {"client": client, "message_wait_interval_seconds": 0, "enable_completed_queue": True}
    return RedisMessageQueue("forks", **usual | options)


async def use(queue, message="before the fork"):
    assert await queue.publish(message) is True
    assert await take(queue) == message.encode()


async def take(queue):
    async with queue.process_message() as message:
        return message


async def ignore(message):
    pass


def refusals(queue):
    """The errors that a child gets when it publishes and when it claims, in its own event loop."""
    calls = [
        lambda: queue.publish("of the child"),
        lambda: take(queue),
        lambda: queue.process_message_callback(ignore),
        lambda: queue.publish("of the child, again"),
    ]
    errors = []
    for call in calls:
        with pytest.raises(ConfigurationError) as refused:
            asyncio.run(asyncio.wait_for(call(), LIMIT_SECONDS / 4))
        errors.append((str(refused.value), refused.value.queue, refused.value.operation))
    return errors


def check(errors):
    """Each error says what is wrong, what to do, and which call it was."""
    for text, queue, _ in errors:
        assert "another process" in text
        assert re.search("make the client and (the )?queue", text)
        assert queue == "forks"
    assert [operation for _, _, operation in errors] == ["publish", "claim", "claim", "publish"]


@pytest.mark.promise(
    "An async queue is refused in a forked child, with an error that says to create client and queue there."
)
def test_a_child_is_refused_and_its_parent_is_not_disturbed(inherited, truth, parent, any_fork):
    """A command of the child on the parent's socket would put a reply there that the parent would read."""
    queue = make_queue(inherited)
    parent(use(queue))
    connection = parent(inherited.client_id())
    check(any_fork(refusals, queue).result())
    assert parent(inherited.client_id()) == connection
    for number in range(3):
        parent(use(queue, f"after the fork {number}"))
    assert truth.completed == [b"before the fork", *(b"after the fork %d" % number for number in range(3))]
    assert truth.is_empty


def test_a_child_is_refused_even_if_the_queue_was_never_used(inherited, truth, parent, any_fork):
    """The queue does not know what else its client was used for."""
    queue = make_queue(inherited)
    check(any_fork(refusals, queue).result())
    parent(use(queue))
    assert truth.completed == [b"before the fork"]


def test_a_child_is_refused_a_queue_with_an_inherited_gateway(inherited, truth, parent, fork):
    """The connections belong to the gateway, so a new queue does not help."""
    gateway = RedisGateway(redis_client=inherited, message_wait_interval_seconds=0)
    parent(use(RedisMessageQueue("forks", gateway=gateway)))

    def make_and_use():
        return refusals(RedisMessageQueue("forks", gateway=gateway))

    check(fork(make_and_use).result())
    parent(use(RedisMessageQueue("forks", gateway=gateway)))
    assert truth.is_empty


def test_a_child_is_refused_every_operation_of_an_inherited_gateway(inherited, truth, parent, fork):
    """They go to Redis without a queue, and some of them on their own paths."""
    gateway = RedisGateway(redis_client=inherited, message_visibility_timeout_seconds=30)
    parent(gateway.add_message(truth.key.pending, "message"))
    held = parent(gateway.wait_for_message_and_move(truth.key.pending, truth.key.processing))
    stored, token = held.stored_message, held.lease_token
    operations = [
        lambda: gateway.add_message(truth.key.pending, "of the child"),
        lambda: gateway.publish_message(truth.key.pending, "of the child", "key"),
        lambda: gateway.wait_for_message_and_move(truth.key.pending, truth.key.processing),
        lambda: gateway.renew_message_lease(truth.key.processing, stored, token),
        lambda: gateway.move_message(truth.key.processing, truth.key.failed, stored, lease_token=token),
        lambda: gateway.remove_message(truth.key.processing, stored, lease_token=token),
        lambda: gateway.trim_queue(truth.key.completed, 1),
    ]

    def try_all():
        for operation in operations:
            with pytest.raises(ConfigurationError, match="another process"):
                asyncio.run(asyncio.wait_for(operation(), LIMIT_SECONDS / 8))

    fork(try_all).result()
    assert (truth.processing, truth.pending) == (1, 0)
    assert parent(gateway.remove_message(truth.key.processing, stored, lease_token=token)) is True
    assert truth.is_empty


def test_a_child_of_a_running_loop_is_refused_while_the_loop_continues(inherited, truth, parent, fork):
    """A handler that forks keeps its message, its heartbeat and its connections."""
    queue = make_queue(inherited, visibility_timeout_seconds=30, heartbeat_interval_seconds=0.02)

    async def handle():
        await queue.publish("message")
        async with queue.process_message() as message:
            errors = await asyncio.to_thread(fork(refusals, queue).result)
            assert not queue.current_message().lease_lost
            assert (truth.processing, truth.completed) == (1, [])
        return message, errors

    message, errors = parent(handle())
    check(errors)
    assert message == b"message"
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_a_child_that_drains_does_not_affect_its_parent(inherited, truth, parent, fork):
    """The child has no work of its own, so the drain returns at once."""
    queue = make_queue(inherited)
    parent(use(queue))

    def drain():
        return asyncio.run(asyncio.wait_for(queue.drain(), LIMIT_SECONDS / 2))

    assert fork(drain).result() is True
    assert not queue.is_draining
    parent(use(queue, "after the fork"))
    assert truth.is_empty


@pytest.mark.promise(
    "An async queue is refused in a forked child, with an error that says to create client and queue there."
)
def test_children_with_their_own_client_and_queue_work(server, inherited, truth, parent, fork):
    """As the error says."""
    queue = make_queue(inherited)
    parent(use(queue))

    async def serve_oneself(name):
        async with contextlib.aclosing(redis.asyncio.Redis(host="127.0.0.1", port=server.port)) as client:
            own = make_queue(client)
            for number in range(20):
                await own.publish(f"{name} {number}")
            return [await take(own) for _ in range(20)]

    children = [fork(lambda name=name: asyncio.run(serve_oneself(name))) for name in ("first", "second")]
    handled = parent(serve_oneself("parent"))
    for child in children:
        handled += child.result()
    names = ("first", "parent", "second")
    assert sorted(handled) == sorted(f"{name} {number}".encode() for name in names for number in range(20))
    assert truth.is_empty


@pytest.mark.promise(
    "Copies of a process restored from one snapshot reuse no ids and no call numbers after `after_restore()`."
)
def test_a_queue_from_before_a_restored_snapshot_is_refused(inherited, truth, parent, restored_copy):
    """All copies share its sockets; a new client has its own."""
    queue = make_queue(inherited)
    parent(use(queue))

    def say_so_and_try():
        after_restore()
        return refusals(queue)

    check(restored_copy(say_so_and_try).result())
    parent(use(queue, "in the original"))
    assert truth.is_empty
