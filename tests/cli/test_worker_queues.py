"""rmq worker on several queues: shares by weight, and totals of each queue and in all."""

import json
import re
import signal
from collections import Counter

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from tests.cli.workers import finish, handled, said
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture
def mails(text_client):
    return RedisMessageQueue("mails", client=text_client, message_wait_interval_seconds=0)


@pytest.mark.promise("`rmq worker module:handler q1 q2=3` serves several queues in proportion to their weights.")
@pytest.mark.parametrize("handler", ["handlers:note_queue", "handlers:note_queue_later"])
def test_queues_are_served_by_weight(run_worker, queue, mails, tmp_path, handler):
    """And the totals say what became of the messages of each."""
    queue.publish_many(map(str, range(40)))
    mails.publish_many(map(str, range(40)))
    arguments = [handler, "orders", "mails=3", "--prefetch", "5", "--until-empty", "--json"]
    ended = run_worker(*arguments)
    assert (ended.status, ended.err) == (ExitStatus.OK, "")
    order = [line.split()[0] for line in (tmp_path / "handled").read_text().splitlines()]
    assert abs(Counter(order[:40])["mails"] - 30) <= 2
    totals = json.loads(ended.out)
    assert (totals["handled"], totals["attempts"]) == (80, 80)
    assert {name: one["handled"] for name, one in totals["queues"].items()} == {"orders": 40, "mails": 40}


@pytest.mark.promise("`rmq worker q1=module:a q2=module:b=3` serves each queue with its own handler, by weight.")
@pytest.mark.parametrize("kind", ["", "_later"])
def test_each_queue_may_have_its_own_handler(run_worker, queue, mails, tmp_path, kind):
    """Plain or async."""
    queue.publish_many(map(str, range(12)))
    mails.publish_many(["m"] * 12)
    arguments = [f"orders=handlers:note{kind}", f"mails=handlers:note_queue{kind}=3", "--until-empty", "--json"]
    ended = run_worker(*arguments)
    assert (ended.status, ended.err) == (ExitStatus.OK, "")
    order = handled(tmp_path)
    assert Counter(order) == Counter([*map(str, range(12)), *["mails"] * 12])
    first = [line.split()[0] for line in (tmp_path / "handled").read_text().splitlines()][:12]
    assert abs(first.count("mails") - 9) <= 2
    assert {name: one["handled"] for name, one in json.loads(ended.out)["queues"].items()} == {
        "orders": 12,
        "mails": 12,
    }


@pytest.mark.promise("`rmq worker module:tasks` runs the tasks of a `Tasks` object on the queue of that object.")
@pytest.mark.parametrize("tasks", ["queues:tasks", "queues:later"])
def test_tasks_are_run_on_their_own_queue(run_worker, queue, tmp_path, tasks):
    """Those that it does not know become dead letters."""
    for name in ("note", "gone"):
        queue.publish({"task": name, "args": ["a"], "kwargs": {}})
    ended = run_worker(tasks, "--until-empty", "--json")
    assert ended.status == ExitStatus.FAILED, ended.err
    assert handled(tmp_path) == ["a"]
    assert queue.records("dead_letters")[0].reason.startswith("unknown task 'gone'")


def test_a_table_has_each_queue_and_the_sum(run_worker, queue, mails):
    """One row each."""
    queue.publish_many(["a", "b"])
    mails.publish("c")
    ended = run_worker("handlers:fail", "orders", "mails", "--until-empty", "--processes", "2")
    assert ended.status == ExitStatus.FAILED
    heading, *rows = ended.out.splitlines()
    column = re.split(r"\s{2,}", heading).index("dead lettered")
    counts = [re.split(r"\s{2,}", row) for row in rows]
    assert [(row[0], row[column]) for row in counts] == [("orders", "2"), ("mails", "1"), ("in all", "3")]


def test_a_signal_stops_all_queues(worker, queue, mails, tmp_path):
    """Handlers finish, the rest goes back."""
    queue.publish_many(["a", "b", "c"])
    mails.publish_many(["d", "e", "f"])
    process = worker("handlers:slow", "orders", "mails", "--concurrency", "2", "--prefetch", "2")
    assert until((tmp_path / "began").exists)
    process.send_signal(signal.SIGTERM)
    said(process, "stopping")
    (tmp_path / "go").touch()
    out, _ = finish(process)
    assert process.returncode == ExitStatus.OK
    done = len(handled(tmp_path))
    assert 1 <= done <= 2
    assert queue.stats().pending + mails.stats().pending == 6 - done
    assert out.splitlines()[-1].split()[2] == str(done)


def test_the_banner_says_what_runs(worker, queue, tmp_path):
    """When all processes are ready."""
    process = worker("handlers:note", "orders=2", "mails", "--processes", "2", "--concurrency", "3")
    banner = said(process, "rmq worker")
    assert "handlers:note serves orders=2, mails at redis://" in banner
    assert "in 2 processes with 3 handlers each" in banner
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.OK
    process = worker("orders=handlers:note=2", "mails=handlers:slow")
    assert "serving orders=handlers:note=2, mails=handlers:slow at redis://" in said(process, "rmq worker")
    process.send_signal(signal.SIGTERM)
    finish(process)
