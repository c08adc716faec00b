"""rmq worker: runs a function in processes that drain on a signal and are restarted after a crash."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.worker.worker_process import load_reference
from redis_message_queue.values.errors import ConfigurationError, LuaScriptError
from tests.cli.workers import finish, handled, said
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.parametrize(
    "arguments",
    [
        ["handlers:note", "orders", "--processes", "2", "--prefetch", "3"],
        ["handlers:note_later", "orders", "--concurrency", "3"],
        ["handlers:note_all", "orders", "--batch-size", "4"],
        ["handlers:note", "--queue", "queues:queue"],
        ["handlers:note_later", "--queue", "queues:awaited"],
    ],
)
def test_it_gives_every_message_to_the_function(run_worker, queue, tmp_path, arguments):
    """Plain or async, one by one or in lists, on a queue of ours or of the user's."""
    queue.publish_many(str(number) for number in range(8))
    ended = run_worker(*arguments, "--until-empty", "--json")
    assert (ended.status, ended.err) == (ExitStatus.OK, "")
    assert json.loads(ended.out) == {
        "handled": 8,
        "failed": 0,
        "requeued": 0,
        "discarded": 0,
        "retried": 0,
        "attempts": 8,
        "dead_lettered": 0,
        "refused_at_claim": 0,
        "left_behind": 0,
        "unsettled": 0,
    }
    assert handled(tmp_path) == [str(number) for number in range(8)]
    assert queue.stats().processing == 0


@pytest.mark.promise("On SIGTERM and SIGINT, `rmq worker` lets handlers finish and requeues prefetched messages.")
@pytest.mark.parametrize(
    ("handler", "how"), [("handlers:slow", signal.SIGTERM), ("handlers:slow_later", signal.SIGINT)]
)
def test_a_signal_lets_handlers_finish_and_gives_back_the_rest(worker, queue, tmp_path, handler, how):
    queue.publish_many(["a", "b", "c"])
    process = worker(handler, "orders", "--prefetch", "3", "--ready-file", "ready")
    assert until((tmp_path / "ready").exists)
    assert until((tmp_path / "began").exists)
    process.send_signal(how)
    assert until(lambda: not (tmp_path / "ready").exists())
    (tmp_path / "go").touch()
    out, err = finish(process)
    assert process.returncode == ExitStatus.OK
    assert [line.split()[0] for line in err.splitlines()] == ["rmq", "stopping"]
    assert handled(tmp_path) == ["a"]
    assert (queue.stats().pending, queue.stats().processing) == (2, 0)
    assert [line.split()[-1] for line in out.splitlines()] == ["1", "0", "2", "0", "0", "1", "0", "0", "0", "0"]


@pytest.mark.promise("`rmq worker --consumer-name` names its processes wherever consumers are shown.")
def test_its_consumers_have_the_name_that_it_is_given(worker, queue, tmp_path):
    queue.publish("a")
    process = worker("handlers:slow", "orders", "--consumer-name", "billing")
    assert until((tmp_path / "began").exists)
    (held,) = queue.peek(source="processing")
    assert held.consumer.startswith(f"billing@{socket.gethostname()}:")
    (tmp_path / "go").touch()
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.OK


@pytest.mark.promise("On SIGTERM and SIGINT, `rmq worker` lets handlers finish and requeues prefetched messages.")
def test_a_queue_object_of_the_users_is_drained_too(worker, queue, tmp_path):
    queue.publish_many(["a", "b"])
    process = worker("handlers:slow", "--queue", "queues:queue", "--prefetch", "2")
    assert until((tmp_path / "began").exists)
    process.send_signal(signal.SIGTERM)
    assert said(process, "stopping")
    (tmp_path / "go").touch()
    finish(process)
    assert process.returncode == ExitStatus.OK
    assert (queue.stats().pending, queue.stats().processing) == (1, 0)


@pytest.mark.promise("On a second signal, or after its grace period, `rmq worker` stops without waiting for handlers.")
@pytest.mark.parametrize("handler", ["handlers:slow", pytest.param("handlers:slow_later", marks=pytest.mark.in_full)])
def test_the_same_signal_again_does_not_wait(worker, queue, tmp_path, handler):
    """What is being handled is left to its lease."""
    queue.publish("a")
    process = worker(handler, "orders")
    assert until((tmp_path / "began").exists)
    process.send_signal(signal.SIGTERM)
    assert said(process, "stopping")
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.TERMINATED
    assert handled(tmp_path) == []
    assert queue.stats().processing == 1


@pytest.mark.promise("On a second signal, or after its grace period, `rmq worker` stops without waiting for handlers.")
def test_a_stop_hurries_when_its_grace_is_over(worker, queue, tmp_path):
    queue.publish("a")
    process = worker("handlers:slow", "orders", "--grace-seconds", "0.1")
    assert until((tmp_path / "began").exists)
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.TERMINATED


@pytest.mark.promise("`rmq worker` restarts a crashed process, and no process outlives its supervisor.")
def test_a_process_that_crashed_is_started_again(worker, queue, tmp_path):
    """And the message that it held comes back when its lease ends."""
    queue.publish("a")
    process = worker("handlers:crash_once", "orders", "--visibility-timeout-seconds", "0.5")
    assert until(lambda: handled(tmp_path) == ["a"])
    assert said(process, "process 1") == "process 1 exited with status 9; restarting it in 0.5 s\n"
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == ExitStatus.OK


@pytest.mark.promise("`rmq worker` restarts a crashed process, and no process outlives its supervisor.")
def test_no_process_outlives_its_supervisor(worker, queue, tmp_path):
    """However that ends: they stop as on SIGTERM."""
    queue.publish("a")
    process = worker("handlers:note", "orders")
    assert until(lambda: handled(tmp_path) == ["a"])
    child = int((tmp_path / "handled").read_text().split()[1])
    process.kill()
    process.wait(120)
    assert until(lambda: not Path(f"/proc/{child}").exists() or is_gone(child))


def is_gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process_id}/stat").read_text().split()[2] == "Z"


@pytest.mark.promise("`rmq worker` logs each failed message once, with its traceback unless you ask for none.")
def test_a_failed_message_is_logged_once_and_tracebacks_say_where(worker, run_worker, queue):
    """The line of the queue has the type and the text of the exception."""
    queue.publish("a")
    process = worker("handlers:fail", "orders", "--until-empty")
    out, err = finish(process)
    assert process.returncode == ExitStatus.FAILED
    assert (out + err).count("(ValueError: hunter2)") == err.count("Traceback") == 1
    assert "handlers.py" in err and "handlers.py" in (queue.records()[0].traceback or "")
    queue.purge("dead_letters")
    queue.publish("a")
    quiet = run_worker("handlers:fail", "orders", "--until-empty", "--no-tracebacks")
    assert ("handlers.py" not in quiet.err, queue.records()[0].traceback) == (True, None)


@pytest.mark.promise("`rmq` never prints a password in a URL or passes it on a command line.")
def test_the_url_does_not_stand_on_a_command_line(run_worker, queue, tmp_path, clean_server):
    """Where everybody on the machine could read it."""
    queue.publish("a")
    assert run_worker("handlers:note_command_line", "orders", "--until-empty").status == ExitStatus.OK
    words = json.loads((tmp_path / "command").read_text())
    assert "redis_message_queue" in " ".join(words)
    assert str(clean_server.port) not in " ".join(words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["handlers", "orders", "--processes", "2"], "HANDLER must be package.module:attribute"),
        (["nowhere:note", "orders"], "there is no module nowhere"),
        (["handlers:nothing", "orders"], "handlers has no nothing"),
        (["handlers:os", "orders"], "cannot be called"),
        (["handlers:takes_two", "orders"], "handlers:takes_two(message, other) cannot be called with one message"),
        (["handlers:takes_none", "orders", "--batch-size", "2"], "cannot be called with a list of messages"),
        (["handlers:yields", "orders"], "handlers:yields has a yield, so that calling it does nothing"),
        (["handlers:note_later", "--queue", "queues:queue"], "is async and queues:queue is a sync queue"),
        (["handlers:note", "--queue", "handlers:note"], "cannot be called without arguments"),
        (["handlers:note", "--queue", "queues:url"], "it must be a RedisMessageQueue"),
        (["handlers:note"], "pass a QUEUE or --queue: handlers:note is no Tasks object"),
        (["queues:tasks", "--batch-size", "2"], "queues:tasks takes one message at a time"),
        (
            ["orders=handlers:note", "mails=handlers:note_later"],
            "handlers:note_later is async and other handlers are not",
        ),
    ],
)
def test_a_mistake_that_a_process_finds_ends_all_of_them_with_one_line(run_worker, arguments, said):
    ended = run_worker(*arguments)
    assert (ended.status, ended.out) == (ExitStatus.USAGE, "")
    assert ended.err.startswith("rmq worker: ")
    assert said in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["handlers:note", "orders", "--queue", "queues:queue"], ExitStatus.USAGE),
        (["handlers:note", "--queue", "queues:queue", "--max-attempts", "3"], ExitStatus.USAGE),
        (["handlers:note", "orders", "--heartbeat-interval-seconds", "900"], ExitStatus.USAGE),
        (["handlers:note", "orders", "--url", "redis://localhost:1", "--no-wait"], ExitStatus.SERVER),
        (["handlers:note", "orders=handlers:note"], ExitStatus.USAGE),
        (["orders=handlers:note", "mails"], ExitStatus.USAGE),
        (["orders=handlers:note=0"], ExitStatus.USAGE),
        (["orders=handlers:note", "orders=handlers:slow"], ExitStatus.USAGE),
        (["orders=handlers:note", "--queue", "queues:queue"], ExitStatus.USAGE),
        (["handlers:note", "orders", "mails=0"], ExitStatus.USAGE),
        (["handlers:note", "orders", "mails=1001"], ExitStatus.USAGE),
        (["handlers:note", "orders", "orders=2"], ExitStatus.USAGE),
        (["handlers:note", "orders", "mails", "--dead-letter-queue", "dead"], ExitStatus.USAGE),
        (["handlers:note", "orders", "--reload", "--until-empty"], ExitStatus.USAGE),
        (["handlers:note", "orders", "--health-port", "0", "--health-host", "192.0.2.1"], ExitStatus.USAGE),
        (["handlers:note", "orders", "--log-format", "xml"], ExitStatus.USAGE),
    ],
)
def test_what_can_be_seen_before_is_refused_before_a_process_starts(rmq, arguments, status):
    ended = rmq("worker", *arguments)
    assert ended.status == status
    assert ended.err.count("\n") == 1


def test_a_module_that_raises_is_told_with_the_place(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("x = 1\nraise KeyError('y')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"importing broken_module raised KeyError: 'y' \(.*, line 2\)"):
        load_reference("the handler", "broken_module:x")


@pytest.mark.parametrize("how", [["orders"], ["--queue", "queues:queue"]], ids=str)
def test_no_failure_is_deleted(run_worker, queue, client, how):
    """They are in the dead letters, which have no limit."""
    client.lpush(queue.key.dead_letter, *["earlier"] * 1_000)
    queue.publish_many(["a", "b", "c"])
    ended = run_worker("handlers:fail", *how, "--until-empty")
    stats = queue.stats()
    assert (stats.failed, stats.dead_letters) == (0, 1_003), ended.err


@pytest.mark.promise("`rmq worker --until-empty` ends with exit status 1 if a message failed or became a dead letter.")
@pytest.mark.parametrize(
    ("arguments", "dead_lettered", "refused"),
    [
        (["handlers:fail", "orders"], 3, 1),
        (["handlers:fail", "orders", "--batch-size", "2", "--max-delivery-count", "2"], 0, 4),
        # Its process is restarted after half a second, and finds the message with an expired lease.
        (["handlers:crash", "orders", "--max-delivery-count", "1", "--visibility-timeout-seconds", "0.1"], 0, 4),
        (["handlers:note", "orders"], 0, 1),
    ],
    ids=["a failure", "a batch that fails", "a crash", "foreign bytes"],
)
def test_the_exit_status_tells_of_dead_letters(run_worker, queue, client, arguments, dead_lettered, refused):
    """Of those as well that a claim found, and not a handler."""
    queue.publish_many(["a", "b", "c"])
    client.lpush(queue.key.pending, "foreign")
    ended = run_worker(*arguments, "--until-empty", "--json")
    assert ended.status == ExitStatus.FAILED
    assert queue.stats().dead_letters == dead_lettered + refused, ended.err
    totals = json.loads(ended.out)
    assert (totals["failed"], totals["dead_lettered"]) == (0, dead_lettered)
    assert 1 <= totals["refused_at_claim"] <= refused  # a crash takes its process's sum with it


@pytest.mark.promise(
    "`rmq worker --until-empty` ends with exit status 1 if a handler ended its process, by `sys.exit` for example."
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["handlers:leave"],
        pytest.param(["handlers:leave", "--concurrency", "2"], marks=pytest.mark.in_full),
        ["handlers:leave_later"],
        ["handlers:leave_all", "--batch-size", "1"],
        pytest.param(["handlers:interrupt"], marks=pytest.mark.in_full),
        ["handlers:interrupt", "--concurrency", "2"],
        pytest.param(["handlers:interrupt_later"], marks=pytest.mark.in_full),
        ["handlers:crash_once"],
    ],
    ids=str,
)
def test_the_exit_status_tells_of_a_handler_that_ended_its_process(run_worker, queue, tmp_path, arguments):
    """The message is still in flight, and the process that is started instead of it finds nothing."""
    queue.publish_many(["a"] if arguments == ["handlers:crash_once"] else ["a", "b"])
    ended = run_worker(*arguments, "orders", "--until-empty", "--json")
    assert ended.status == ExitStatus.FAILED, ended.err
    assert "process 1 exited with status" in ended.err
    assert "come again when their leases end" in ended.err
    assert queue.stats().pending == 0
    assert queue.stats().processing == 1


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
def test_a_server_without_scripts_is_not_taken_for_an_empty_queue(run_worker, queue, client, tmp_path):
    """A server that was restarted, or has failed over, has none in its cache."""
    queue.publish_many([str(number) for number in range(50)], tenant="acme")
    client.script_flush()
    ended = run_worker("handlers:note", "orders", "--ordered-tenants", "--until-empty", "--json")
    assert (ended.status, ended.err) == (ExitStatus.OK, "")
    assert json.loads(ended.out)["handled"] == 50
    assert len(handled(tmp_path)) == 50


@pytest.mark.promise(
    "With `ordered_tenants`, `RunSummary.left_behind` counts what `run(until_empty=True)` leaves behind a retry."
)
def test_the_totals_count_once_what_waits_behind_a_retry(run_worker, queue):
    """However many processes have found it there."""
    queue.publish_many(["a", "b", "c"], tenant="acme")
    arguments = ["handlers:postpone", "orders", "--ordered-tenants", "--processes", "2", "--until-empty", "--json"]
    ended = run_worker(*arguments)
    totals = json.loads(ended.out)
    assert (ended.status, totals["retried"], totals["left_behind"]) == (ExitStatus.OK, 1, 2)


@pytest.mark.promise("`rmq worker` drains a server that its own queue has filled; no process crashes there.")
@pytest.mark.parametrize(
    ("handler", "options", "status"),
    [
        ("handlers:note", ["--prefetch", "10"], ExitStatus.OK),
        pytest.param("handlers:note_all", ["--batch-size", "20"], ExitStatus.OK, marks=pytest.mark.in_full),
        ("handlers:fail", [], ExitStatus.FAILED),
    ],
)
def test_a_full_server_is_drained(run_worker, queue, client, tmp_path, handler, options, status):
    """Where nothing can be published any more."""
    queue.publish_many(f"{number} {'x' * 1000}" for number in range(300))
    queue.publish_many([f"{number} of acme" for number in range(300, 350)], tenant="acme")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(LuaScriptError, match="maxmemory"):
            queue.publish("one more")
        ended = run_worker(handler, "orders", *options, "--until-empty")
        assert (ended.status, "exited with status" in ended.err) == (status, False), ended.err
        stats = queue.stats()
    finally:
        client.config_set("maxmemory", 0)
    assert (stats.pending, stats.processing) == (0, 0)
    if status is ExitStatus.OK:
        assert handled(tmp_path) == sorted(map(str, range(350)))
    else:
        assert stats.dead_letters == 350
