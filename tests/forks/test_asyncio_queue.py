"""An asyncio queue belongs to the process that made it: a child is refused, in words that say what to do instead."""

import asyncio
import contextlib
import re

import pytest
import redis.asyncio

from redis_message_queue import ConfigurationError, after_restore
from redis_message_queue.asyncio import RedisGateway, RedisMessageQueue
from tests.forks.children import PATIENCE_SECONDS


class SubclassedRedis(redis.asyncio.Redis):
    """No plain client any more, so that commands take redis-py's own way."""


def plain(port):
    return redis.asyncio.Redis(host="127.0.0.1", port=port)


def subclassed(port):
    return SubclassedRedis(host="127.0.0.1", port=port)


def with_a_waiting_pool(port):
    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=3, timeout=10)
    return redis.asyncio.Redis.from_pool(pool)


@pytest.fixture
def parent():
    """The loop of the parent, which lives before and after the fork."""
    with asyncio.Runner() as runner:
        yield lambda work: runner.run(asyncio.wait_for(work, PATIENCE_SECONDS))


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
    """In a child, with a loop of its own: what it is told when it publishes and when it asks for a message."""
    calls = [
        lambda: queue.publish("of the child"),
        lambda: take(queue),
        lambda: queue.process_message_callback(ignore),
        lambda: queue.publish("of the child, again"),
    ]
    told = []
    for call in calls:
        with pytest.raises(ConfigurationError) as refused:
            asyncio.run(asyncio.wait_for(call(), PATIENCE_SECONDS / 4))
        told.append((str(refused.value), refused.value.queue, refused.value.operation))
    return told


def check(told):
    """Each refusal says where the fault lies, what to do, and what was being done."""
    for text, queue, _ in told:
        assert "another process" in text
        assert re.search("make the client and (the )?queue", text)
        assert queue == "forks"
    assert [operation for _, _, operation in told] == ["publish", "claim", "claim", "publish"]


def test_a_child_is_refused_and_its_parent_notices_nothing(inherited, truth, parent, any_fork):
    """A command of the child on the parent's socket would be answered there, and the parent would read that answer."""
    queue = make_queue(inherited)
    parent(use(queue))
    connection = parent(inherited.client_id())
    check(any_fork(refusals, queue).result())
    assert parent(inherited.client_id()) == connection
    for number in range(3):
        parent(use(queue, f"after the fork {number}"))
    assert truth.completed == [b"before the fork", *(b"after the fork %d" % number for number in range(3))]
    assert truth.is_empty


def test_a_child_is_refused_although_nobody_has_used_the_queue_yet(inherited, truth, parent, any_fork):
    """The queue cannot know what else its client was used for."""
    queue = make_queue(inherited)
    check(any_fork(refusals, queue).result())
    parent(use(queue))
    assert truth.completed == [b"before the fork"]


def test_a_child_is_refused_a_queue_on_a_gateway_of_its_parent(inherited, truth, parent, fork):
    """The connections are the gateway's, so it does not help to make the queue anew."""
    gateway = RedisGateway(redis_client=inherited, message_wait_interval_seconds=0)
    parent(use(RedisMessageQueue("forks", gateway=gateway)))

    def make_and_use():
        return refusals(RedisMessageQueue("forks", gateway=gateway))

    check(fork(make_and_use).result())
    parent(use(RedisMessageQueue("forks", gateway=gateway)))
    assert truth.is_empty


def test_a_child_is_refused_every_operation_of_a_gateway_of_its_parent(inherited, truth, parent, fork):
    """They go to Redis without a queue, and some of them by ways of their own."""
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
                asyncio.run(asyncio.wait_for(operation(), PATIENCE_SECONDS / 8))

    fork(try_all).result()
    assert (truth.processing, truth.pending) == (1, 0)
    assert parent(gateway.remove_message(truth.key.processing, stored, lease_token=token)) is True
    assert truth.is_empty


def test_a_child_of_a_running_loop_is_refused_while_the_loop_goes_on(inherited, truth, parent, fork):
    """A handler that forks keeps its message, its heartbeat and its connections."""
    queue = make_queue(inherited, visibility_timeout_seconds=30, heartbeat_interval_seconds=0.02)

    async def handle():
        await queue.publish("message")
        async with queue.process_message() as message:
            told = await asyncio.to_thread(fork(refusals, queue).result)
            assert not queue.current_message().lease_lost
            assert (truth.processing, truth.completed) == (1, [])
        return message, told

    message, told = parent(handle())
    check(told)
    assert message == b"message"
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_a_child_that_drains_ends_nothing_of_its_parent(inherited, truth, parent, fork):
    """There is nothing of its own to end, so it is drained at once."""
    queue = make_queue(inherited)
    parent(use(queue))

    def drain():
        return asyncio.run(asyncio.wait_for(queue.drain(), PATIENCE_SECONDS / 2))

    assert fork(drain).result() is True
    assert not queue.is_draining
    parent(use(queue, "after the fork"))
    assert truth.is_empty


def test_children_that_make_client_and_queue_themselves_are_served(server, inherited, truth, parent, fork):
    """That is what the refusal tells them to do."""
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


def test_a_queue_from_before_a_restored_snapshot_is_refused(inherited, truth, parent, restored_copy):
    """Its sockets are those of all copies; what is made anew has its own."""
    queue = make_queue(inherited)
    parent(use(queue))

    def say_so_and_try():
        after_restore()
        return refusals(queue)

    check(restored_copy(say_so_and_try).result())
    parent(use(queue, "in the original"))
    assert truth.is_empty
