"""A fork while other threads of the parent are in the middle of a call: the child works, and the parent goes on."""

import sys
import threading

import pytest
import redis

from tests.faults.meanwhile import start, until
from tests.faults.proxy import CUT_AFTER, delayed
from tests.forks.children import PATIENCE_SECONDS
from tests.forks.locks import all_locks_held
from tests.forks.sides import make_queue, serve_oneself, take, use


@pytest.fixture
def hasty_threads():
    """Threads take turns a thousand times as often as usual, so that a fork meets them anywhere."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty_threads")
def test_forks_beside_publishing_and_claiming_threads(inherited, truth, fork):
    """Twenty children, each forked at some point of somebody's call; nothing is lost or doubled on any side."""
    queue = make_queue(inherited)
    use(queue)
    over = threading.Event()
    published, handled = [], []

    def publish():
        while not over.is_set() and len(published) < 3000:
            name = f"parent {len(published)}"
            assert queue.publish(name) is True
            published.append(name.encode())

    def consume():
        while not over.is_set():
            message = take(queue)
            if message is not None:
                handled.append(message)

    threads = [start(publish), start(consume)]
    try:
        for _ in range(20):
            handled += fork(serve_any, queue).result()
    finally:
        over.set()
    for thread in threads:
        thread.result(PATIENCE_SECONDS)
    while (message := take(queue)) is not None:
        handled.append(message)
    assert sorted(handled) == sorted([*published, *[b"of a child"] * 20])
    assert truth.is_empty


def serve_any(queue):
    """Publish one message and handle whichever comes first, if a brother or the parent has left any."""
    assert queue.publish("of a child") is True
    message = take(queue)
    return [] if message is None else [message]


def test_a_child_works_although_another_thread_held_every_lock_of_the_client_and_the_queue(inherited, truth, any_fork):
    """That thread does not exist in the child, so nobody there would ever release them."""
    queue = make_queue(inherited)
    use(queue)
    with all_locks_held(queue) as locks:
        assert locks > 0
        child = any_fork(serve_oneself, queue)
        assert child.result() == [b"of the child"]
    use(queue)
    assert truth.is_empty


def test_a_child_may_leave_doubtful_claims_although_another_thread_held_every_lock(proxy, connect, truth, any_fork):
    """Its own claim whose answer is lost goes to the list of those, behind the same locks."""
    queue = make_queue(connect(retry=None), retry_budget_seconds=0)
    use(queue)

    def lose_an_answer_and_find_it():
        queue.publish("of the child")
        with pytest.raises(redis.ConnectionError):
            take(queue)
        return take(queue)

    with all_locks_held(queue):
        proxy.meet("claim", CUT_AFTER)
        assert any_fork(lose_an_answer_and_find_it).result() == b"of the child"
    assert truth.is_empty


def test_a_fork_while_an_answer_is_on_its_way(proxy, connect, truth, any_fork):
    """The child's calls have answers of their own, and the one that was waited for goes to the parent."""
    queue = make_queue(connect())
    use(queue)
    proxy.meet("publish", delayed(0.5))
    publishing = start(queue.publish, "of the parent")
    until(lambda: truth.pending == 1)
    child = any_fork(serve_oneself, queue)
    assert child.result() == [b"of the parent", b"of the child"]
    assert publishing.result(PATIENCE_SECONDS) is True
    assert truth.is_empty


def test_a_fork_while_a_claim_is_on_its_way(proxy, connect, truth, any_fork):
    """The message belongs to the thread that asked for it; the child gets the next one."""
    queue = make_queue(connect())
    use(queue)
    queue.publish("of the parent")
    proxy.meet("claim", delayed(0.5))
    taking = start(take, queue)
    until(lambda: truth.processing == 1)
    assert any_fork(serve_oneself, queue).result() == [b"of the child"]
    assert taking.result(PATIENCE_SECONDS) == b"of the parent"
    assert truth.is_empty


@pytest.mark.parametrize("pool_class", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_fork_while_a_thread_waits_at_the_bell_with_the_only_connection(server, truth, any_fork, pool_class):
    """The child's pool is as large as its parent's was, and what it publishes wakes the waiting thread."""
    pool = pool_class(host="127.0.0.1", port=server.port, max_connections=1)
    with redis.Redis.from_pool(pool) as client:
        queue = make_queue(client, message_wait_interval_seconds=PATIENCE_SECONDS)
        use(queue)
        waiting = start(take, queue)
        until(lambda: any(each["cmd"] == "blpop" for each in truth.client.client_list()))
        assert any_fork(queue.publish, "of the child").result() is True
        assert waiting.result(PATIENCE_SECONDS) == b"of the child"
    assert truth.is_empty


def test_a_fork_while_heartbeats_beat(plain_client, truth, fork):
    """A heartbeat lives in the process of its handler: the child has none, and the parent's lease is renewed on."""
    queue = make_queue(plain_client, heartbeat_interval_seconds=0.02)
    use(queue)
    queue.publish("of the parent")
    over = threading.Event()

    def hold():
        with queue.process_message() as message:
            assert over.wait(PATIENCE_SECONDS)
            return message, queue.current_message().lease_lost

    def serve():
        names = [thread.name for thread in threading.enumerate()]
        return names, serve_oneself(queue)

    holding = start(hold)
    until(lambda: truth.processing == 1)
    names, handled = fork(serve).result()
    assert "redis-message-queue-heartbeat" not in names
    assert handled == [b"of the child"]
    (deadline,) = truth.deadlines
    until(lambda: truth.deadlines > [deadline])
    over.set()
    assert holding.result(PATIENCE_SECONDS) == (b"of the parent", False)
    assert sorted(truth.completed) == [b"before the fork", b"of the child", b"of the parent"]
    assert truth.is_empty
