"""`rmq stats` counts messages, once or repeatedly, for people and for scripts."""

import itertools
import json
import signal

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.stats import QueueCounts, StatsWatch, sparkline
from redis_message_queue.cli.stop_signals import StopSignals
from tests.cli.terminal import Terminal
from tests.workers import connect_worker

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture
def queue(text_client) -> RedisMessageQueue:
    made = RedisMessageQueue("orders", client=text_client)
    made.publish_many(["one", "two", "three"])
    made.publish("tomorrow", delay_seconds=86_400)
    return made


def test_it_counts_each_place(rmq, queue):
    (row,) = rmq("stats", "orders", "--json").documents
    assert (row["queue"], row["pending"], row["delayed"], row["dead_letters"]) == ("orders", 3, 1, 0)
    assert row["oldest_pending_seconds"] >= 0


@pytest.mark.promise("`rmq stats` says how many workers are connected, and when they last claimed.")
def test_it_says_who_works_on_the_queue(rmq, queue, text_client):
    assert "orders: no worker is connected" in rmq("stats", "orders").err
    assert queue.process_message_callback(len)  # which knows of no claim without a journal
    connect_worker(text_client, queue, claimed_ago=200)
    ended = rmq("stats", "orders")
    assert "orders: 1 worker connected, the last claim 3 min ago" in ended.err
    (row,) = rmq("stats", "orders", "--json").documents
    assert row["workers"] == 1
    message = queue.process_messages(1)
    with message:
        assert "orders: 1 worker, busy for 3 min" in rmq("stats", "orders").err
    text_client.delete(queue.key.connected_workers)
    journaled = RedisMessageQueue("journaled", client=text_client, journal=True)
    journaled.publish("m")
    assert journaled.process_message_callback(len)
    assert "no registered worker, but messages are being claimed" in rmq("stats", "journaled").err


def test_the_age_of_the_oldest_can_be_left_out(rmq, queue):
    (row,) = rmq("stats", "orders", "--no-oldest", "--json").documents
    assert (row["pending"], row["oldest_pending_seconds"]) == (3, None)
    rows = rmq("stats", "orders", "--no-oldest", "--every", "0.1", "--count", "2").documents
    assert [row["oldest_pending_seconds"] for row in rows] == [None, None]


@pytest.mark.promise("`rmq stats` of a queue that does not exist says so and ends with exit status 1.")
def test_a_queue_that_does_not_exist_is_no_row_of_zeros(rmq, queue, text_client):
    """Whatever is asked for. The others are shown; one that is empty exists, and so does one with a worker."""
    for form in ((), ("--json",)):
        ended = rmq("stats", "orders", "nosuch", *form)
        assert (ended.status, ended.err.count("nosuch: no queue of this name here")) == (ExitStatus.FAILED, 1)
        assert "orders" in ended.out and "nosuch" not in ended.out
        assert rmq("stats", "nosuch", *form).out == ""
    queue.purge("pending")
    RedisMessageQueue("idle", client=text_client, message_wait_interval_seconds=0).run(print, until_empty=True)
    text_client.zadd(RedisMessageQueue("served", client=text_client).key.connected_workers, {"worker": 1})
    assert rmq("stats", "orders", "idle", "served", "--json").status == ExitStatus.OK


@pytest.mark.promise("`rmq stats --watch` waits for a queue that does not exist yet.")
def test_a_watch_waits_for_its_queue(start_rmq, text_client, queue):
    process = start_rmq("stats", "orders", "later", "--every", "0.1", "--count", "2", "--json")
    assert process.stderr is not None
    assert process.stderr.readline() == "later: no queue of this name here yet; waiting for it\n"
    RedisMessageQueue("later", client=text_client).publish("a")
    out, _ = process.communicate(timeout=30)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["queue"], row["pending"]) for row in rows] == [("orders", 3), ("later", 1)] * 2


def test_several_queues_are_rows_of_one_table(rmq, queue, text_client):
    RedisMessageQueue("mails", client=text_client).publish("to", delay_seconds=60)
    ended = rmq("stats", "orders", "mails", "orders")
    head, first, second = ended.out.splitlines()
    assert ended.status == ExitStatus.OK
    assert head.split()[:3] == ["queue", "pending", "processing"]
    assert first.split()[:2] == ["orders", "3"]
    assert second.split()[:2] == ["mails", "0"]


@pytest.mark.promise(
    "`rmq stats --watch` shows counts, rates and ages on a terminal, and writes one JSON line per sample elsewhere."
)
def test_without_a_terminal_each_look_of_a_watch_is_a_line_of_json(rmq, queue):
    rows = rmq("stats", "orders", "--every", "0.1", "--count", "3").documents
    assert [row["pending"] for row in rows] == [3, 3, 3]
    assert rows[0]["per_second"] is None
    assert rows[2]["per_second"]["pending"] == 0
    assert rows[0]["at"] < rows[1]["at"] < rows[2]["at"]


@pytest.mark.promise(
    "`rmq stats --watch` shows counts, rates and ages on a terminal, and writes one JSON line per sample elsewhere."
)
def test_rates_are_the_changes_between_two_looks(queue):
    poller = StatsWatch({"orders": queue}, 0.001, 2, StopSignals())
    samples = poller.poll()
    first: QueueCounts = next(samples)
    queue.publish_many(["four", "five"])
    second: QueueCounts = next(samples)
    changes = poller.changes("orders")
    assert changes is not None
    assert changes["pending"] == pytest.approx(2 / (second.clock - first.clock))
    assert poller.history("orders", "pending") == [3, 5]


def test_a_watch_goes_on_until_ctrl_c_which_is_its_usual_end(start_rmq, clean_server, queue):
    process = start_rmq("stats", "orders", "--every", "0.1", "--json")
    assert process.stdout is not None
    seen = [line for line, _ in zip(process.stdout, range(2), strict=False)]
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=120)
    assert process.returncode == ExitStatus.OK
    assert len(seen) == 2
    assert complaints == ""


def test_a_watch_of_so_many_looks_that_is_broken_off_says_so_by_its_status(start_rmq, clean_server, queue):
    process = start_rmq("stats", "orders", "--every", "0.1", "-n", "100000")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == ExitStatus.TERMINATED


@pytest.mark.promise(
    "`rmq stats --watch` shows counts, rates and ages on a terminal, and writes one JSON line per sample elsewhere."
)
def test_at_a_terminal_the_table_lives_and_the_cursor_comes_back(clean_server, queue):
    with Terminal("stats", "orders", "--every", "0.1", "--url", clean_server.url) as terminal:
        terminal.wait_for("+0.0")
        terminal.type("\x03")
        assert terminal.end() == ExitStatus.OK
        assert "▁" in terminal.shown or "█" in terminal.shown
        assert "delayed" in terminal.shown
        assert "dead letters" not in terminal.shown, "a place that is empty takes no room"
        assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_a_key_of_dead_letters_belongs_to_one_queue(rmq):
    ended = rmq("stats", "orders", "mails", "--dead-letter-queue", "morgue")
    assert ended.status == ExitStatus.USAGE
    assert "--dead-letter-queue" in ended.err


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_a_pause_that_cannot_be_is_refused(rmq, seconds):
    ended = rmq("stats", "orders", "--every", seconds)
    assert ended.status == ExitStatus.USAGE
    assert "--every" in ended.err


def test_a_curve_has_its_highest_bar_for_the_most_and_its_lowest_for_nothing():
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    bars = [sparkline([value, 7]) for value in range(8)]
    assert bars == sorted(bars)
    assert len(set(itertools.chain(*bars))) == 8
