"""A fork while other threads of the parent are in a call: the child works, and the parent continues."""

import sys
import threading
from typing import Any

import pytest
import redis

from tests.concurrency import LIMIT_SECONDS, start, until
from tests.depth import often
from tests.faults.proxy import CUT_AFTER, delayed
from tests.forks.locks import all_locks_held
from tests.forks.sides import make_queue, serve_oneself, take, use

pytestmark = pytest.mark.topic("Forks")


@pytest.fixture
def hasty_threads():
    """Switch threads a thousand times as often as usual, so that a fork meets them anywhere."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.promise("A fork during a call of another thread harms neither process.")
@pytest.mark.usefixtures("hasty_threads")
def test_forks_beside_publishing_and_claiming_threads_lose_nothing(inherited, truth, fork):
    """Many children, each forked during a call of another thread; nothing is lost or duplicated on either side."""
    queue = make_queue(inherited)
    use(queue)
    over = threading.Event()
    published, handled, children = [], [], often(3, 20)

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
        for _ in range(children):
            handled += fork(serve_any, queue).result()
    finally:
        over.set()
    for thread in threads:
        thread.result(LIMIT_SECONDS)
    while (message := take(queue)) is not None:
        handled.append(message)
    assert sorted(handled) == sorted([*published, *[b"of a child"] * children])
    assert truth.is_empty


def serve_any(queue):
    """Publish one message and handle the first that comes, if the others have left any."""
    assert queue.publish("of a child") is True
    message = take(queue)
    return [] if message is None else [message]


@pytest.mark.promise("A fork during a call of another thread harms neither process.")
def test_a_child_works_although_another_thread_held_every_lock(inherited, truth, any_fork):
    """That thread does not exist in the child, so no one would ever release the locks there."""
    queue = make_queue(inherited)
    use(queue)
    with all_locks_held(queue) as locks:
        assert locks > 0
        child = any_fork(serve_oneself, queue)
        assert child.result() == [b"of the child"]
    use(queue)
    assert truth.is_empty


def test_a_child_can_record_an_unconfirmed_claim_although_another_thread_held_every_lock(
    proxy, connect, truth, any_fork
):
    """The list of unconfirmed claims is behind the same locks."""
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


@pytest.mark.promise("A fork during a call of another thread harms neither process.")
def test_a_fork_while_a_reply_is_under_way_keeps_replies_apart(proxy, connect, truth, any_fork):
    """The child's calls get their own replies, and the outstanding one goes to the parent."""
    queue = make_queue(connect())
    use(queue)
    proxy.meet("publish", delayed(0.5))
    publishing = start(queue.publish, "of the parent")
    until(lambda: truth.pending == 1)
    child = any_fork(serve_oneself, queue)
    assert child.result() == [b"of the parent", b"of the child"]
    assert publishing.result(LIMIT_SECONDS) is True
    assert truth.is_empty


def test_a_fork_while_a_claim_is_under_way_keeps_messages_apart(proxy, connect, truth, any_fork):
    """The message belongs to the thread that claims; the child gets the next one."""
    queue = make_queue(connect())
    use(queue)
    queue.publish("of the parent")
    proxy.meet("claim", delayed(0.5))
    taking = start(take, queue)
    until(lambda: truth.processing == 1)
    assert any_fork(serve_oneself, queue).result() == [b"of the child"]
    assert taking.result(LIMIT_SECONDS) == b"of the parent"
    assert truth.is_empty


@pytest.mark.parametrize("pool_class", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_fork_while_a_thread_waits_for_a_wakeup_with_the_only_connection(server, truth, any_fork, pool_class):
    """The child's pool is as large as its parent's, and its publish wakes up the waiting thread."""
    pool = pool_class(host="127.0.0.1", port=server.port, max_connections=1)
    with redis.Redis.from_pool(pool) as client:
        queue = make_queue(client, message_wait_interval_seconds=LIMIT_SECONDS)
        use(queue)
        waiting = start(take, queue)
        until(lambda: any(each["cmd"] == "blpop" for each in truth.client.client_list()))
        assert any_fork(queue.publish, "of the child").result() is True
        assert waiting.result(LIMIT_SECONDS) == b"of the child"
    assert truth.is_empty


@pytest.mark.promise("A heartbeat runs only in the process of its handler.")
def test_a_fork_during_heartbeats_keeps_the_parents_lease(plain_client, truth, fork):
    """A heartbeat lives in the process of its handler: the child has none, and the parent's continues."""
    queue = make_queue(plain_client, heartbeat_interval_seconds=0.02)
    use(queue)
    queue.publish("of the parent")
    over = threading.Event()

    def hold():
        with queue.process_message() as message:
            assert over.wait(LIMIT_SECONDS)
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
    assert holding.result(LIMIT_SECONDS) == (b"of the parent", False)
    assert sorted(truth.completed) == [b"before the fork", b"of the child", b"of the parent"]
    assert truth.is_empty


@pytest.mark.promise("A fork during a call of another thread harms neither process.")
def test_a_child_begins_without_the_publishers_that_its_parent_has_in_line(plain_client, server, truth, any_fork):
    """Its own publish is sent at once, and those of the parent are stored once."""
    queue = make_queue(plain_client)
    use(queue)
    sender: Any = queue._protocol.store.parts[0].sender
    callers = sender.group._callers
    truth.client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        publishing = [start(queue.publish, "of the parent")]
        until(lambda: not callers.sender.is_over)
        publishing += [start(queue.publish, "of the parent") for _ in range(3)]
        until(lambda: len(callers.waiting) == 3)
        child = any_fork(publish_beside_others, queue)
        until(lambda: len(blocked_publishers(truth)) == 2)
    finally:
        truth.client.execute_command("CLIENT", "UNPAUSE")
    assert child.result() == [True] * 3
    assert [one.result(LIMIT_SECONDS) for one in publishing] == [True] * 4
    assert sorted(take(queue) for _ in range(7)) == [b"of the child"] * 3 + [b"of the parent"] * 4
    assert truth.is_empty


def publish_beside_others(queue):
    """Publish in three threads of the child."""
    return [one.result(LIMIT_SECONDS) for one in [start(queue.publish, "of the child") for _ in range(3)]]


def blocked_publishers(truth):
    return [one for one in truth.client.client_list() if "b" in one["flags"] and one["cmd"].startswith("evalsha")]
