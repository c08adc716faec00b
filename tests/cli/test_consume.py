"""rmq consume: prints messages, or gives them to a command whose exit status decides."""

import base64
import os
import signal

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from tests.embedded.waiting import until
from tests.faults.proxy import BLACK_HOLE, PASS, FaultyProxy

pytestmark = pytest.mark.topic("Command line")


def at_work(path) -> bool:
    return until(path.exists)


# Printing


def test_it_prints_a_payload_a_line_until_the_queue_is_empty(rmq, queue):
    queue.publish_many(["one", "two", '{"three": 3}'])
    assert rmq("consume", "orders").out == 'one\ntwo\n{"three": 3}\n'
    assert queue.stats().pending == queue.stats().processing == 0


def test_an_empty_queue_is_a_no(rmq):
    ended = rmq("consume", "orders", "--wait-seconds", "0.05")
    assert (ended.status, ended.out, ended.err) == (ExitStatus.FAILED, "", "")


def test_with_json_each_line_says_what_is_known_of_a_message(rmq, queue):
    queue.publish("hello", tenant="acme")
    (row,) = rmq("consume", "orders", "--json").documents
    assert row.pop("published_at").endswith("+00:00")
    assert len(row.pop("id")) == 32
    assert row == {"queue": "orders", "tenant": "acme", "delivery_count": 1, "payload": "hello"}


def test_bytes_that_are_no_text_are_printed_as_they_are_and_in_json_as_base64(rmq, start_rmq, queue, client):
    """No bytes are lost, whichever program wrote them."""
    for _ in range(2):
        queue.publish("0123456789")
        stored = client.lindex(queue.key.pending, 0)
        client.lset(queue.key.pending, 0, stored[:-10] + b"\xff" * 10)
    (row,) = rmq("consume", "orders", "--count", "1", "--json").documents
    assert base64.b64decode(row["payload_base64"]) == b"\xff" * 10
    read = start_rmq("consume", "orders", text=False).communicate(timeout=120)[0]
    assert read == b"\xff" * 10 + b"\n"


def test_it_takes_no_more_than_the_count(rmq, queue):
    queue.publish_many(str(number) for number in range(10))
    assert rmq("consume", "orders", "--count", "3", "--batch-size", "2").out == "0\n1\n2\n"
    assert queue.stats().pending == 7


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_whoever_follows_gets_what_comes_later_and_ends_well_by_a_signal(start_rmq, queue, how):
    process = start_rmq("consume", "orders", "--follow")
    for text in ("first", "second"):
        queue.publish(text)
        assert process.stdout.readline() == f"{text}\n"
    assert until(lambda: queue.stats().processing == 0)
    process.send_signal(how)
    assert process.wait(120) == ExitStatus.OK
    assert process.stderr.read() == ""


def test_a_wait_that_is_broken_off_has_the_status_of_its_signal(start_rmq, queue):
    process = start_rmq("consume", "orders", "--wait-seconds", "600")
    queue.publish("x")
    assert process.stdout.readline() == "x\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == ExitStatus.TERMINATED


@pytest.mark.promise("`rmq consume` requeues a message that it could not print.")
def test_what_nobody_reads_any_more_goes_back_to_the_queue(start_rmq, queue):
    """As with `| head`: no traceback, and the batch that could not be written is whole again."""
    queue.publish_many("x" * 1_000 for _ in range(300))
    process = start_rmq("consume", "orders", "--batch-size", "150")
    process.stdout.close()
    assert process.wait(120) == ExitStatus.BROKEN_PIPE
    assert process.stderr.read() == ""
    assert (queue.stats().pending, queue.stats().processing) == (300, 0)


def test_follow_and_wait_contradict_each_other(rmq):
    assert rmq("consume", "orders", "--follow", "--wait-seconds", "1").status == ExitStatus.USAGE


# Executing


@pytest.mark.promise("With `rmq consume --exec` the exit status of the command decides, and failed messages are kept.")
def test_a_command_gets_the_payload_and_the_facts(rmq, queue, tmp_path):
    queue.publish("hello", tenant="acme")
    command = f"cat > {tmp_path}/payload; env | grep ^RMQ_ > {tmp_path}/facts"
    assert rmq("consume", "orders", "--exec", command).status == ExitStatus.OK
    assert (tmp_path / "payload").read_text() == "hello"
    facts = dict(line.split("=", 1) for line in (tmp_path / "facts").read_text().splitlines())
    assert (facts["RMQ_QUEUE"], facts["RMQ_TENANT"], facts["RMQ_DELIVERY_COUNT"]) == ("orders", "acme", "1")
    assert len(facts["RMQ_MESSAGE_ID"]) == 32
    assert queue.stats().processing == 0


def test_a_command_need_not_read_its_stdin(rmq, queue):
    queue.publish("x" * 1_000_000)
    assert rmq("consume", "orders", "--exec", "true").status == ExitStatus.OK


@pytest.mark.promise("With `rmq consume --exec` the exit status of the command decides, and failed messages are kept.")
def test_any_other_status_fails_the_message_and_is_kept(caplog, rmq, queue):
    """In the dead letters unless asked otherwise, because a command mistyped should not cost messages."""
    queue.publish_many(["good", "bad"])
    ended = rmq("consume", "orders", "--exec", "test $(cat) = good")
    assert ended.status == ExitStatus.FAILED
    assert "failed (CommandExitedError: exit status 1) and went to the dead letters" in caplog.text
    (record,) = queue.records("dead_letters")
    assert (record.payload, record.error) == ("bad", "exit status 1")


def test_the_exit_status_tells_of_messages_that_no_command_got(rmq, queue, client):
    """Its claim has moved the message to the dead letters; the next one is handled."""
    client.lpush(queue.key.pending, "foreign")
    queue.publish("good")
    ended = rmq("consume", "orders", "--exec", "cat")
    assert (ended.status, queue.stats().dead_letters, queue.stats().pending) == (ExitStatus.FAILED, 1, 0)


@pytest.mark.promise("With `rmq consume --exec` the exit status of the command decides, and failed messages are kept.")
def test_a_failed_message_is_tried_again_as_often_as_asked(rmq, queue, tmp_path):
    queue.publish("x")
    command = f"echo >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 3"
    options = ["--max-attempts", "3", "--initial-delay-seconds", "0", "--wait-seconds", "5", "--count", "3"]
    rmq("consume", "orders", "--exec", command, *options)
    assert (tmp_path / "tries").read_text() == "\n\n\n"
    assert queue.stats().failed == queue.stats().dead_letters == queue.stats().pending == 0


@pytest.mark.promise("With `--json`, stdout contains only JSON.")
def test_with_json_stdout_has_the_outcomes_and_nothing_of_the_command(rmq, queue):
    queue.publish_many(["a", "b"])
    ended = rmq("consume", "orders", "--json", "--exec", 'echo noise; test "$(cat)" = a')
    assert [(row["outcome"], row["exit_status"]) for row in ended.documents] == [("acked", 0), ("failed", 1)]
    assert "noise" in ended.err


@pytest.mark.promise(
    "A signal lets the command of `rmq consume --exec` finish; a second one ends it and requeues the message."
)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_command_at_hand_finish(start_rmq, queue, tmp_path, how):
    """Also Ctrl-C, which a terminal sends to all processes of the job: the command is in a group of its own."""
    queue.publish_many(["first", "second"])
    command = f"touch {tmp_path}/began; while ! test -e {tmp_path}/go; do sleep 0.05; done; cat"
    process = start_rmq("consume", "orders", "--exec", command, start_new_session=True)
    assert at_work(tmp_path / "began")
    os.killpg(process.pid, how)
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=120)
    assert out == "first"
    assert process.returncode == {signal.SIGINT: ExitStatus.INTERRUPTED, signal.SIGTERM: ExitStatus.TERMINATED}[how]
    assert (queue.stats().pending, queue.stats().processing) == (1, 0)


@pytest.mark.promise(
    "A signal lets the command of `rmq consume --exec` finish; a second one ends it and requeues the message."
)
def test_the_same_signal_again_ends_the_command_and_gives_the_message_back(start_rmq, queue, tmp_path):
    queue.publish("x")
    process = start_rmq("consume", "orders", "--follow", "--exec", f"touch {tmp_path}/began; sleep 600")
    assert at_work(tmp_path / "began")
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline().startswith("stopping when the running command has finished")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == ExitStatus.TERMINATED
    assert (queue.stats().pending, queue.stats().processing) == (1, 0)
    assert "its message is requeued" in process.stderr.read()


def test_a_lease_is_renewed_while_a_command_works(rmq, text_client, queue):
    """By default every third of its length, so that a slow command does not work twice."""
    queue.publish("x")
    assert rmq("consume", "orders", "--visibility-timeout-seconds", "1", "--exec", "sleep 1.5").status == ExitStatus.OK
    assert (queue.stats().pending, queue.stats().processing) == (0, 0)


def test_the_options_of_delivery_are_those_of_the_queue(rmq):
    ended = rmq("consume", "orders", "--visibility-timeout-seconds", "1", "--heartbeat-interval-seconds", "1")
    assert ended.status == ExitStatus.USAGE
    assert "must be less than half of the visibility timeout" in ended.err
    ended = rmq("consume", "orders", "--visibility-timeout-seconds", "0", "--max-delivery-count", "3")
    assert "max_delivery_count=3 needs a visibility timeout" in ended.err


def test_what_was_handled_can_be_kept(rmq, queue):
    queue.publish("x")
    rmq("consume", "orders", "--enable-completed-queue")
    assert queue.stats().completed == 1


@pytest.mark.parametrize(
    ("options", "failed", "dead"),
    [
        ([], 1_000, 1_003),
        (["--enable-failed-queue"], 1_000, 1_000),
        (["--enable-failed-queue", "--max-failed-length", "1001"], 1_001, 1_000),
        (["--enable-failed-queue", "--max-failed-length", "0"], 1_003, 1_000),
    ],
    ids=str,
)
def test_no_failure_is_deleted_unless_asked(rmq, queue, client, options, failed, dead):
    """The dead letters are as long as they must be; a failed list that you enable has the limit of the library."""
    for kept in (queue.key.failed, queue.key.dead_letter):
        client.lpush(kept, *["earlier"] * 1_000)
    queue.publish_many(["a", "b", "c"])
    assert rmq("consume", "orders", "--exec", "no-such-command", *options).status == ExitStatus.FAILED
    assert (queue.stats().failed, queue.stats().dead_letters) == (failed, dead)


def test_a_command_that_a_signal_ended_has_the_status_that_a_shell_gives_it(rmq, queue):
    queue.publish("x")
    ended = rmq("consume", "orders", "--json", "--exec", "kill -KILL $$")
    assert [(row["outcome"], row["exit_status"]) for row in ended.documents] == [("failed", 128 + signal.SIGKILL)]


def test_a_server_that_is_silent_for_a_while_is_not_taken_for_an_empty_queue(rmq, queue, clean_server):
    """A claim ends with its time; what it may have taken is asked for by the next one."""
    queue.publish_many(["one", "two"])
    with FaultyProxy(clean_server.port) as proxy:
        for name in ("claim", "take"):
            proxy.meet(name, PASS, BLACK_HOLE, BLACK_HOLE)
        url = f"redis://127.0.0.1:{proxy.port}?socket_timeout=4"
        ended = rmq("consume", "orders", "--batch-size", "1", "--url", url)
    assert (ended.status, ended.out) == (ExitStatus.OK, "one\ntwo\n"), ended.err
