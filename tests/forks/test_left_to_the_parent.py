"""What a child leaves to its parent in an inherited queue: calls under way and unconfirmed claims."""

import pytest
import redis

from redis_message_queue import QueueDrainedError
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.proxy import CUT_AFTER, delayed
from tests.forks.sides import make_queue, serve_oneself, take, use

pytestmark = pytest.mark.topic("Forks")


@pytest.mark.parametrize("timeout", [None, 0], ids=["as long as it takes", "only looking"])
def test_a_child_that_drains_does_not_wait_for_its_parents_calls(proxy, connect, truth, any_fork, timeout):
    """The parent's publish ends in the parent; in the child it would be under way forever."""
    queue = make_queue(connect())
    use(queue)
    proxy.meet("publish", delayed(0.5))
    publishing = start(queue.publish, "of the parent")
    until(lambda: truth.pending == 1)

    def drain():
        return queue.drain(timeout), queue.is_drained

    assert any_fork(drain).result() == (True, True)
    assert publishing.result(LIMIT_SECONDS) is True
    assert not queue.is_draining
    assert take(queue) == b"of the parent"


@pytest.mark.promise("After a fork, only the parent recovers its unconfirmed claims.")
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "without leases"])
def test_an_unconfirmed_claim_is_recovered_by_the_parent(proxy, connect, truth, any_fork, lease):
    """The child continues with the next message; if both recovered it, both would get the same message."""
    queue = make_queue(connect(retry=None), retry_budget_seconds=0, visibility_timeout_seconds=lease)
    use(queue)
    queue.publish("of the parent")
    proxy.meet("claim", CUT_AFTER)
    with pytest.raises(redis.ConnectionError):
        take(queue)
    assert any_fork(take, queue).result() is None
    assert any_fork(serve_oneself, queue).result() == [b"of the child"]
    with queue.process_message() as message:
        assert message == b"of the parent"
        assert queue.current_message().delivery_count == 1
    assert truth.completed == [b"before the fork", b"of the child", b"of the parent"]
    assert truth.is_empty


def test_a_child_recovers_only_its_own_unconfirmed_claim(proxy, connect, truth, any_fork):
    """Both claims are on its list, the parent's and its own."""
    queue = make_queue(connect(retry=None), retry_budget_seconds=0)
    use(queue)

    def find_it():
        with pytest.raises(redis.ConnectionError):
            take(queue)
        return take(queue), take(queue)

    queue.publish("of the parent")
    proxy.meet("claim", CUT_AFTER, CUT_AFTER)
    with pytest.raises(redis.ConnectionError):
        take(queue)
    queue.publish("of the child")
    assert any_fork(find_it).result() == (b"of the child", None)
    assert take(queue) == b"of the parent"
    assert truth.is_empty


@pytest.mark.parametrize("timeout", [None, 0], ids=["as long as it takes", "only looking"])
def test_a_child_that_drains_requeues_nothing_of_its_parent(proxy, connect, truth, any_fork, timeout):
    """The parent's unconfirmed claim does not delay the child either."""
    queue = make_queue(connect(retry=None), retry_budget_seconds=0)
    use(queue)
    queue.publish("of the parent")
    proxy.meet("claim", CUT_AFTER)
    with pytest.raises(redis.ConnectionError):
        take(queue)
    assert any_fork(queue.drain, timeout).result() is True
    assert (truth.pending, truth.processing) == (0, 1)
    assert take(queue) == b"of the parent"
    assert truth.is_empty


@pytest.mark.promise("A drain affects its own process only.")
def test_a_child_that_drains_ends_only_its_own_work(plain_client, truth, any_fork):
    """A drain applies to one object, and after a fork there are two."""
    queue = make_queue(plain_client)
    use(queue)

    def drain_and_try():
        assert queue.drain() is True
        with pytest.raises(QueueDrainedError):
            queue.publish("too late")
        return queue.is_drained

    assert any_fork(drain_and_try).result() is True
    assert not queue.is_draining
    use(queue)

    def use_and_look():
        use(queue)
        return queue.is_draining

    child = any_fork(use_and_look)
    queue.drain()
    assert child.result() is False
    assert truth.is_empty


def test_a_queue_drained_before_the_fork_is_drained_in_the_child(plain_client, truth, any_fork):
    """A drained object stays drained; another one on the same client works, in the child as in the parent."""
    queue = make_queue(plain_client)
    use(queue)
    queue.drain()

    def try_both():
        with pytest.raises(QueueDrainedError):
            queue.publish("too late")
        use(make_queue(plain_client))
        return queue.is_drained, take(queue)

    assert any_fork(try_both).result() == (True, None)
    assert try_both() == (True, None)
    assert truth.is_empty
