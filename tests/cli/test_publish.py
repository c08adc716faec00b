"""rmq publish: publishes arguments, files and pipes, each message once, and counts them."""

import json
import subprocess

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


def payloads(queue) -> list[str]:
    return [record.payload for record in queue.peek(1_000)]


@pytest.mark.promise("`rmq publish` reads arguments, files and pipes, and publishes piped lines as they arrive.")
def test_each_argument_is_a_message(rmq, queue):
    ended = rmq("publish", "orders", "one", "two words", '{"three": 3}', "--json")
    (document,) = ended.documents
    ids = document.pop("ids")
    assert document == {"queue": "orders", "published": 3, "suppressed": 0}
    assert len({one for one in ids if len(one) == 32}) == 3
    assert (ended.status, ended.err) == (ExitStatus.OK, "")
    assert payloads(queue) == ["one", "two words", '{"three": 3}']


def test_without_json_it_says_the_same_in_lines(rmq):
    assert [line.split() for line in rmq("publish", "orders", "x").out.splitlines()] == [
        ["queue", "orders"],
        ["published", "1"],
        ["suppressed", "0"],
    ]


@pytest.mark.promise("`rmq publish` reads arguments, files and pipes, and publishes piped lines as they arrive.")
def test_each_line_of_stdin_is_a_message(rmq, queue, stdin):
    """Without its end, whichever that is; empty lines are none; the last needs no end."""
    stdin("one\r\n\n äöü \nlast".encode())
    assert rmq("publish", "orders", "--json").documents[0]["published"] == 3
    assert payloads(queue) == ["one", " äöü ", "last"]


def test_more_lines_than_one_read_or_one_batch_takes_arrive_in_order(rmq, queue, tmp_path):
    lines = [f"{number} {'x' * 200}" for number in range(900)]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines) + "\n" + "y" * 200_000)
    assert (
        rmq("publish", "orders", "--file", str(path), "--batch-size", "70", "--json").documents[0]["published"] == 901
    )
    assert payloads(queue) == [*lines, "y" * 200_000]


@pytest.mark.promise("`rmq publish` reads arguments, files and pipes, and publishes piped lines as they arrive.")
def test_a_json_file_is_its_elements(rmq, queue, tmp_path):
    """Objects and texts as they are, everything else as its JSON."""
    path = tmp_path / "orders.json"
    path.write_text('[{"a": 1}, "text", 7]')
    rmq("publish", "orders", "--file", str(path))
    path.write_text('{"only": "one"}')
    rmq("publish", "orders", "-f", str(path))
    assert payloads(queue) == ['{"a": 1}', "text", "7", '{"only": "one"}']


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", b'[{"a": 1},\n oops]', "is not JSON at line 2, column 2"),
        ("x.txt", b"fine\n\xff\xfe\n", "line 2 of"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_place(rmq, queue, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    ended = rmq("publish", "orders", "--file", str(tmp_path / name))
    assert ended.status == ExitStatus.USAGE
    assert said in ended.err
    assert payloads(queue) == []


@pytest.mark.promise("`rmq publish` reads arguments, files and pipes, and publishes piped lines as they arrive.")
def test_what_a_pipe_brings_is_published_when_it_comes(start_rmq, queue):
    """Not when there is enough for a batch: a log that is followed may be silent for hours."""
    process = start_rmq("publish", "orders", "--json", stdin=subprocess.PIPE)
    process.stdin.write("first\n")
    process.stdin.flush()
    assert until(lambda: payloads(queue) == ["first"])
    out, err = process.communicate("second\n", timeout=120)
    assert (json.loads(out)["published"], err, process.returncode) == (2, "", ExitStatus.OK)


def test_tenant_and_delay_go_with_the_messages(rmq, queue):
    rmq("publish", "orders", "a", "b", "--tenant", "acme")
    rmq("publish", "orders", "c", "--delay-seconds", "600")
    rmq("publish", "orders", "d", "--at", "2099-01-01T00:00:00+00:00")
    assert queue.tenants() == {"acme": 2}
    assert [one.payload for one in queue.peek(source="delayed")] == ["c", "d"]


def test_duplicates_are_suppressed_and_counted_and_no_failure(rmq, queue, stdin):
    stdin(b"a\na\nb\n")
    document = rmq("publish", "orders", "--deduplication", "--json").documents[0]
    first, again, other = document.pop("ids")
    assert first == again != other
    assert document == {
        "queue": "orders",
        "published": 2,
        "suppressed": 1,
    }
    assert rmq("publish", "orders", "x", "--dedup-key", "k", "--json").documents[0]["published"] == 1
    again = rmq("publish", "orders", "y", "--dedup-key", "k", "--json")
    assert (again.status, again.documents[0]["suppressed"]) == (ExitStatus.OK, 1)


def test_a_field_of_the_message_can_be_its_key(rmq, queue, stdin):
    stdin(b'{"order": {"id": 1}, "try": 1}\n{"order": {"id": 1}, "try": 2}\n{"order": {"id": 2}}\n')
    counts = rmq("publish", "orders", "--dedup-key-field", "order.id", "--json").documents[0]
    assert (counts["published"], counts["suppressed"]) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "b", "--dedup-key", "k"], "works with one MESSAGE"),
        (["a", "--deduplication", "--dedup-key", "k"], "use only one"),
        (["a", "--file", "b"], "give messages or a file"),
        (["a", "--dedup-key-field", "id"], "a message is not a JSON object"),
        (['{"a": 1}', "--dedup-key-field", "id"], "a message has no text or number in this field"),
        (["a", "--at", "tomorrow"], "'tomorrow' is not a time"),
        (["a", "--tenant", ""], "tenant must have 1 to 255 bytes"),
        (["a", "--pending-overload-policy", "block"], "needs max_pending_length"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_published(rmq, queue, arguments, said):
    ended = rmq("publish", "orders", *arguments)
    assert ended.status == ExitStatus.USAGE
    assert said in ended.err
    assert queue.stats().pending == 0


@pytest.mark.promise("`rmq publish` reports how many messages it published, even if it ends early.")
def test_a_full_queue_is_a_no_that_says_how_far_it_came(rmq, queue, stdin):
    """What was published before it is on stdout, so that a script can go on from there."""
    stdin(b"".join(b"%d\n" % number for number in range(10)))
    ended = rmq("publish", "orders", "--max-pending-length", "4", "--json")
    assert ended.status == ExitStatus.FAILED
    (document,) = ended.documents
    assert len(document.pop("ids")) == 4
    assert document == {"queue": "orders", "published": 8 // 2, "suppressed": 0}
    assert "the queue is full" in ended.err
    assert queue.stats().pending == 4


@pytest.mark.promise("`rmq publish --json` prints the id of each message; for a duplicate, that of the key's message.")
def test_with_json_it_prints_ids(rmq, client):
    first = rmq("publish", "orders", "one", "--dedup-key", "k", "--json").documents[0]
    again = rmq("publish", "orders", "other", "--dedup-key", "k", "--json").documents[0]
    assert (again["published"], again["suppressed"], again["ids"]) == (0, 1, first["ids"])


def test_headers_and_a_time_to_live(rmq, client):
    rmq("publish", "orders", "one", "-H", "trace=1", "--header", "user=a=b", "--ttl-seconds", "60")
    queue = RedisMessageQueue("orders", client=client)
    with queue.process_message() as message:
        assert (message, queue.current_message().headers) == (b"one", {"trace": "1", "user": "a=b"})
    ended = rmq("publish", "orders", "one", "-H", "trace")
    assert ended.status == ExitStatus.USAGE and "NAME=VALUE" in ended.err
