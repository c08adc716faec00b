"""`rmq stats` counts messages, once or repeatedly, for people and for scripts."""

import itertools
import signal

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.stats import QueueCounts, StatsWatch, sparkline
from redis_message_queue.cli.stop_signals import StopSignals
from tests.cli.terminal import Terminal

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


def test_the_age_of_the_oldest_can_be_left_out(rmq, queue):
    (row,) = rmq("stats", "orders", "--no-oldest", "--json").documents
    assert (row["pending"], row["oldest_pending_seconds"]) == (3, None)
    rows = rmq("stats", "orders", "--no-oldest", "--every", "0.1", "--count", "2").documents
    assert [row["oldest_pending_seconds"] for row in rows] == [None, None]


def test_several_queues_are_rows_of_one_table(rmq, queue):
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
