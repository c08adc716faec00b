"""A handler that forks keeps its message: whatever the child does with it, the parent settles."""

import asyncio
import json

import pytest

from redis_message_queue import asyncio as asyncio_queues
from tests.forks.programs import run
from tests.forks.sides import make_queue, take, use

pytestmark = pytest.mark.topic("Forks")


@pytest.mark.promise(
    "A child that is forked in a handler and exits changes nothing; the message stays with its parent."
)
@pytest.mark.parametrize("way", ["os._exit", "sys.exit", "fall through", "raise", "multiprocessing"])
def test_the_end_of_a_child_changes_nothing(server, truth, way):
    """No ack, no failure and no requeue, not even when its interpreter exits; the parent's heartbeat continues."""
    seen = json.loads(run("forking_handler.py", server.port, way))
    assert seen == {
        "status": 0,
        "during": {"pending": 0, "processing": 1, "completed": 0, "failed": 0},
        "after": {"pending": 0, "processing": 0, "completed": 1, "failed": 0},
        "events": ["ack/success", "completed/success"],
    }


@pytest.mark.promise(
    "A child that is forked in a handler and exits changes nothing; the message stays with its parent."
)
@pytest.mark.parametrize("error", [None, ValueError("in the child")], ids=["normally", "by an exception"])
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "without leases"])
def test_a_child_that_leaves_the_inherited_block_does_not_settle_the_message(plain_client, truth, fork, lease, error):
    """The parent still works on it: if the child settled it and the parent died, the message would be lost."""
    queue = make_queue(plain_client, visibility_timeout_seconds=lease)
    use(queue)
    queue.publish("message")
    delivery = queue.process_message()
    assert delivery.__enter__() == b"message"

    def leave():
        delivery.__exit__(None if error is None else type(error), error, None)

    fork(leave).result()
    assert (truth.processing, truth.completed, truth.failed) == (1, [b"before the fork"], [])
    delivery.__exit__(None, None, None)
    assert truth.completed == [b"before the fork", b"message"]
    assert truth.is_empty


def test_a_child_of_a_handler_may_use_the_inherited_queue(inherited, truth, fork):
    """Its messages are its own, and the message of the handler stays with the parent."""
    queue = make_queue(inherited, heartbeat_interval_seconds=0.02)
    use(queue)
    queue.publish("of the parent")

    def work():
        queue.publish("of the child")
        return take(queue)

    with queue.process_message() as message:
        assert fork(work).result() == b"of the child"
        assert not queue.current_message().lease_lost
    assert message == b"of the parent"
    assert truth.completed == [b"before the fork", b"of the child", b"of the parent"]
    assert truth.is_empty


def test_a_child_of_an_async_handler_that_exits_at_once_changes_nothing(server, truth, fork):
    """The parent's event loop, heartbeat and connections continue."""

    async def main():
        async with server.async_client() as client:
            queue = asyncio_queues.RedisMessageQueue(
                "forks", client=client, enable_completed_queue=True, heartbeat_interval_seconds=0.02
            )
            await queue.publish("message")
            async with queue.process_message() as message:
                fork(str, message).result()
                await asyncio.sleep(0.1)
                assert (truth.processing, truth.completed) == (1, [])
                assert not queue.current_message().lease_lost
            await queue.publish("another")
            async with queue.process_message() as message:
                assert message == b"another"

    asyncio.run(main())
    assert truth.completed == [b"message", b"another"]
    assert truth.is_empty
