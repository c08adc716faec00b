"""A sync queue that was made and used before a fork works in the parent and its children at the same time."""

import time

import pytest
import redis

from redis_message_queue import after_restore
from tests.concurrency import LIMIT_SECONDS, start
from tests.forks.sides import make_queue, take, use

pytestmark = pytest.mark.topic("Forks")


CHILDREN = 3
EACH = 50


def publish_and_consume(side, queue, client):
    """Publish in one thread and consume in another until all sides are done. Returns what was handled here, by id."""
    publishing = start(lambda: [queue.publish(f"{side} {number}") for number in range(EACH)])
    handled = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while client.llen(queue.key.completed) < (CHILDREN + 1) * EACH + 1:
        assert time.monotonic() < deadline, f"side {side} waits for messages that do not come"
        with queue.process_message() as message:
            if message is not None:
                question = f"{side} {len(handled)}".encode()
                assert client.echo(question) == question
                handled.append((message, queue.current_message().id))
    assert publishing.result(LIMIT_SECONDS) == [True] * EACH
    return handled


@pytest.mark.promise(
    "A sync queue that was used before a fork is safe in parent and children: each process reads its own replies."
)
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "without leases"])
def test_parent_and_children_publish_and_claim_and_each_message_is_handled_once(inherited, truth, any_fork, lease):
    """Each side reads only its own replies, on the client that they share."""
    queue = make_queue(inherited, visibility_timeout_seconds=lease, message_wait_interval_seconds=0.05)
    use(queue)
    children = [any_fork(publish_and_consume, side, queue, inherited) for side in range(CHILDREN)]
    handled = publish_and_consume("parent", queue, inherited)
    for child in children:
        handled += child.result()
    sides = [*map(str, range(CHILDREN)), "parent"]
    expected = sorted(f"{side} {number}".encode() for side in sides for number in range(EACH))
    assert sorted(message for message, _ in handled) == expected
    assert len({message_id for _, message_id in handled}) == len(expected)
    assert sorted(truth.completed) == sorted([b"before the fork", *expected])
    assert truth.is_empty


def test_heartbeats_renew_the_leases_of_their_own_process(plain_client, truth, any_fork):
    """Handlers that take longer than a lease keep their messages, in the parent and in the children."""
    queue = make_queue(plain_client, visibility_timeout_seconds=2, heartbeat_interval_seconds=0.1)
    use(queue)
    for number in range(3):
        queue.publish(f"slow {number}")

    def work_slowly():
        with queue.process_message() as message:
            time.sleep(2.5)  # longer than a lease
            return message, queue.current_message().delivery_count, queue.current_message().lease_lost

    children = [any_fork(work_slowly) for _ in range(2)]
    handled = [work_slowly(), *(child.result() for child in children)]
    assert sorted(handled) == [(f"slow {number}".encode(), 1, False) for number in range(3)]
    assert len(truth.completed) == 4
    assert truth.is_empty


@pytest.mark.promise(
    "A sync queue that was used before a fork is safe in parent and children: each process reads its own replies."
)
def test_no_process_uses_the_reply_slots_of_another(inherited, truth, any_fork):
    """A call under a number that another process has used would get that reply, and do nothing."""
    queue = make_queue(inherited)
    use(queue)

    def answers():
        keys = truth.client.keys(truth.key.reply("*"))
        return dict(zip(keys, truth.client.mget(keys), strict=True)) if keys else {}

    def serve_oneself():
        assert queue.publish("one's own") is True
        assert take(queue) == b"one's own"

    of_the_parent = known = answers()
    for _ in range(3):
        any_fork(serve_oneself).result()
        after = answers()
        assert after.keys() > known.keys()
        assert {key: after[key] for key in known} == known
        known = after
    serve_oneself()
    changed = {key for key, answer in answers().items() if known.get(key) != answer}
    assert changed and changed <= of_the_parent.keys()


@pytest.mark.promise(
    "A sync queue that was used before a fork is safe in parent and children: each process reads its own replies."
)
def test_no_two_processes_create_the_same_message_id(plain_client, truth, any_fork):
    """Ids are counted up from a random start; children that continued from their parent's would collide at once."""
    queue = make_queue(plain_client)
    use(queue)

    def publish_some():
        return [queue.publish(f"message {number}") for number in range(20)]

    for _ in range(3):
        assert any_fork(publish_some).result() == [True] * 20
    publish_some()
    ids = set()
    for _ in range(80):
        with queue.process_message():
            ids.add(queue.current_message().id)
    assert len(ids) == 80
    assert truth.is_empty


def test_a_grandchild_works_too(inherited, truth, any_fork):
    """Each generation leaves the connections and the reply slots of the previous one alone."""
    queue = make_queue(inherited)
    use(queue)

    def parent_a_child(generation):
        queue.publish(f"generation {generation}")
        if generation < 3:
            any_fork(parent_a_child, generation + 1).result()
        return take(queue)

    assert parent_a_child(0) is not None
    assert sorted(truth.completed) == [b"before the fork", *(b"generation %d" % number for number in range(4))]
    assert truth.is_empty


def test_a_child_that_ends_leaves_the_connections_of_its_parent_open(inherited, truth, any_fork):
    """Even if it closes the inherited client: the parent continues on the same connection."""
    queue = make_queue(inherited)
    use(queue)
    before = inherited.client_id()

    def use_and_close():
        use(queue)
        inherited.close()
        inherited.connection_pool.disconnect()

    any_fork(use_and_close).result()
    any_fork(inherited.close).result()
    assert inherited.client_id() == before
    use(queue)
    assert truth.is_empty


@pytest.mark.promise(
    "Copies of a process restored from one snapshot reuse no ids and no call numbers after `after_restore()`."
)
@pytest.mark.parametrize("made", ["before the snapshot", "after it was restored"])
def test_restored_copies_of_a_process_reuse_no_ids_and_no_call_numbers(server, inherited, truth, restored_copy, made):
    """A copy has the memory of the original and its process id; it calls after_restore() or makes a new queue."""
    queue = make_queue(inherited)
    use(queue)

    def publish_some(side):
        if made == "before the snapshot":
            after_restore()
            return [queue.publish(f"{side} {number}") for number in range(10)]
        with redis.Redis(host="127.0.0.1", port=server.port) as client:
            return [make_queue(client).publish(f"{side} {number}") for number in range(10)]

    assert restored_copy(publish_some, "copy").result() == [True] * 10
    assert publish_some("original") == [True] * 10
    assert truth.pending == 20
    assert sorted(take(queue) for _ in range(20)) == sorted(
        f"{side} {number}".encode() for side in ("copy", "original") for number in range(10)
    )
    assert take(queue) is None
    assert truth.is_empty
