"""`rmq purge` asks before it removes anything, and `rmq tenants` shows the waiting tenants."""

import subprocess
import sys

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from tests.cli.terminal import Terminal
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture
def queue(text_client) -> RedisMessageQueue:
    made = RedisMessageQueue("orders", client=text_client)
    made.publish_many(["one", "two"])
    made.publish("for acme", tenant="acme")
    made.publish("later", delay_seconds=3600)
    return made


@pytest.mark.parametrize(("target", "count"), [("pending", 3), ("delayed", 1), ("dead_letters", 0), ("orphans", 0)])
def test_with_yes_it_removes_without_a_question(rmq, queue, target, count):
    ended = rmq("purge", "orders", target, "--yes", "--json")
    assert ended.status == ExitStatus.OK
    assert ended.documents == [{"queue": "orders", "target": target, "tenant": None, "removed": count}]
    left = queue.stats()
    assert left.pending + left.delayed == 4 - count


def test_the_line_of_one_tenant_can_be_removed_alone(rmq, queue):
    ended = rmq("purge", "orders", "pending", "--tenant", "acme", "--yes")
    assert ended.err == "1 removed\n"
    assert queue.stats().pending == 2


def test_what_a_consumer_without_leases_left_behind_are_orphans(rmq, text_client, client):
    careless = RedisMessageQueue("orders", client=text_client, visibility_timeout_seconds=None)
    careless.publish("one")
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    careless.process_message().__enter__()
    assert rmq("purge", "orders", "orphans", "--yes").err == "0 removed\n"  # this process lives
    ((token, stored),) = client.hgetall(careless.key.processing).items()
    client.delete(careless.key.processing)
    crashed = token[:20] + int(dead.stdout).to_bytes(4, "big") + token[24:]
    client.hset(careless.key.processing, crashed, stored)
    assert rmq("purge", "orders", "orphans", "--yes").err == "1 removed\n"
    assert careless.stats().processing == 0


@pytest.mark.promise("`rmq purge` shows the count and asks for confirmation; without a terminal it requires `--yes`.")
def test_where_nobody_can_be_asked_it_refuses(start_rmq, clean_server, queue):
    process = start_rmq("purge", "orders", "pending")
    out, complaints = process.communicate(timeout=120)
    assert process.returncode == ExitStatus.USAGE
    assert out == ""
    assert "--yes" in complaints
    assert complaints.count("\n") == 1
    assert queue.stats().pending == 3


@pytest.mark.promise("`rmq purge` shows the count and asks for confirmation; without a terminal it requires `--yes`.")
@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 3), ("", 1, 3), ("y", 0, 0)])
def test_at_a_terminal_it_says_how_many_and_asks(clean_server, queue, answer, status, left):
    with Terminal("purge", "orders", "pending", "--url", clean_server.url) as terminal:
        terminal.wait_for("Remove 3 pending messages from orders for good? [y/N]")
        terminal.type(f"{answer}\n")
        assert terminal.end() == status
        assert ("nothing was removed" in terminal.shown) == bool(left)
    assert queue.stats().pending == left


def test_ctrl_c_at_the_question_removes_nothing(clean_server, queue):
    with Terminal("purge", "orders", "orphans", "--url", clean_server.url) as terminal:
        terminal.wait_for("Remove those of 0 messages in processing that have no lease from orders for good?")
        assert terminal.interrupt() == ExitStatus.INTERRUPTED
        assert "Traceback" not in terminal.shown
    assert queue.stats().pending == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["purge", "orders", "processing", "--yes"], "'pending', 'delayed', 'completed'"),
        (["purge", "orders", "--yes"], "Missing argument"),
        (["purge", "orders", "delayed", "--tenant", "acme", "--yes"], "--tenant"),
    ],
)
def test_what_cannot_be_removed_is_refused(rmq, queue, words, told):
    ended = rmq(*words)
    assert ended.status == ExitStatus.USAGE
    assert told in ended.err
    assert queue.stats().pending == 3


@pytest.mark.promise("`rmq tenants` shows the backlog, the weight and the oldest message of each tenant.")
def test_tenants_have_a_row_each_and_messages_without_one_have_the_last(rmq, queue, text_client):
    heavy = RedisMessageQueue("orders", client=text_client, tenant_weights={"bolt": 3})
    heavy.publish_many(["one", "two", "three"], tenant="bolt")
    with heavy.process_message():
        pass
    rows = rmq("tenants", "orders", "--json").documents
    assert rows[-1]["tenant"] is None
    assert rows[-1]["pending"] == 2
    found = {row["tenant"]: (row["pending"], row["weight"]) for row in rows[:-1]}
    assert sum(pending for pending, _ in found.values()) == 3
    assert found["bolt"][1] == 3
    assert all(row["oldest_pending_seconds"] >= 0 for row in rows)


@pytest.mark.promise("`rmq tenants` shows the backlog, the weight and the oldest message of each tenant.")
def test_an_age_is_that_of_the_first_in_line(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    queue.publish("old", tenant="acme")
    assert until(lambda: rmq("tenants", "orders", "--json").documents[0]["oldest_pending_seconds"] > 0.05)
    queue.publish("new", tenant="acme")
    assert rmq("tenants", "orders", "--json").documents[0]["oldest_pending_seconds"] > 0.05


def test_a_queue_where_nobody_waits_is_told_on_stderr(rmq):
    ended = rmq("tenants", "orders")
    assert (ended.status, ended.out, ended.err) == (ExitStatus.OK, "", "no tenant has pending messages\n")


def test_the_number_of_rows_is_bounded(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    for number in range(5):
        queue.publish("one", tenant=f"tenant {number}")
    assert len(rmq("tenants", "orders", "--limit", "2", "--json").documents) == 2
