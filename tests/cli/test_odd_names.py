"""Unusual names and data: no command fails on them, and none of them controls the terminal."""

import json
import os
import re
import sys
import unicodedata

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.output import to_json
from redis_message_queue.stored import envelope
from tests import fork_server
from tests.cli.terminal import Terminal

ODD = "\x1b[31m\x07\x7f\x9b2J\u202eevil\u2066\u200b\r\n"
QUEUE = f"jobs{ODD}"
TENANT = f"acme\0{ODD}"
FOREIGN_TENANT = b"caf\xe9\x00\x9b\xff"  # no UTF-8
ERROR = f"bad order {ODD}"
# What rich itself sends to a terminal: colours, and moves of a live display.
OF_RICH = re.compile(r"\x1b\[[0-9;]*[mKAJGH]|\x1b\[\?25[lh]")


def obeyed(shown: str) -> set[str]:
    """The characters in it that a terminal would not just show."""
    return {one for one in shown if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


@pytest.fixture
def odd(client, clean_server, monkeypatch):
    """A queue with something odd in every place."""
    monkeypatch.setenv("REDIS_URL", clean_server.url)
    options = {"client": client, "message_wait_interval_seconds": 0}
    queue = RedisMessageQueue(QUEUE, enable_failed_queue=True, enable_completed_queue=True, **options)
    limited = RedisMessageQueue(QUEUE, max_delivery_count=1, **options)

    def fail(message):
        raise ValueError(ERROR)

    queue.publish(f"failed {ODD}", tenant=TENANT)
    with pytest.raises(ValueError, match="bad order"):
        queue.process_message_callback(fail)
    queue.publish(f"completed {ODD}", tenant=TENANT)
    queue.process_message_callback(print)
    queue.publish(f"dead {ODD}", tenant=TENANT)
    foreign = as_stored(client, queue, b"dead too")
    client.lpush(queue.key.tenant_pending("").encode() + FOREIGN_TENANT, foreign)
    client.zadd(queue.key.tenant_ring, {FOREIGN_TENANT: 0})
    client.incr(queue.key.tenant_backlog)
    for _ in range(2):  # each is claimed by somebody who dies
        with pytest.raises(KeyboardInterrupt), limited.process_message():
            raise KeyboardInterrupt
    client.zadd(queue.key.leases, dict.fromkeys(client.zrange(queue.key.leases, 0, -1), 1.0))
    assert not limited.process_message_callback(print)
    for number in range(3):
        queue.publish(f"waiting {number} {ODD}", tenant=TENANT)
        queue.publish(f"waiting {number} {ODD}")
    queue.publish(f"later {ODD}", tenant=TENANT, delay_seconds=1_000)
    waiting = [as_stored(client, queue, b"waits") for _ in range(2)]
    client.lpush(queue.key.tenant_pending("").encode() + FOREIGN_TENANT, *waiting)
    client.zadd(queue.key.tenant_ring, {FOREIGN_TENANT: 0})
    client.incr(queue.key.tenant_backlog, 2)
    with pytest.raises(KeyboardInterrupt), queue.process_message():
        raise KeyboardInterrupt
    return queue


def as_stored(client, queue, payload):
    """A message as another program may have written it, for a tenant whose name is no UTF-8."""
    seconds, microseconds = client.time()
    now = (seconds * 1_000_000 + microseconds).to_bytes(8, "big")
    body = envelope.body(payload, FOREIGN_TENANT)
    return body[:1] + os.urandom(16) + now + body[1:]


LOOKS = [
    ("stats",),
    ("stats", "--count", "1"),
    ("peek",),
    ("peek", "processing"),
    ("peek", "delayed"),
    ("records",),
    ("records", "failed"),
    ("records", "completed"),
    ("tenants",),
    ("redrive", "--dry-run"),
    ("doctor",),
]
CHANGES = [
    ("redrive",),
    ("consume", "-n", "3"),
    ("purge", "pending", "--yes"),
    ("publish",),
    ("consume", "--exec", "cat >/dev/null"),
]


def words(command, *rest):
    if command == "publish":
        return ["publish", "--tenant", TENANT.replace("\0", ""), "--", QUEUE, f"m {ODD}"]
    return [command, "--", QUEUE, *rest] if not any(one.startswith("-") for one in rest) else [command, QUEUE, *rest]


@pytest.mark.parametrize("json_too", [False, True], ids=["table", "json"])
def test_every_command_that_looks_takes_odd_names_and_data(rmq, odd, json_too, subtests):
    for command in LOOKS:
        with subtests.test(" ".join(command)):
            takes_odd_names_and_data(rmq, command, json_too)


@pytest.mark.parametrize("json_too", [False, True], ids=["table", "json"])
@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_every_command_that_changes_takes_odd_names_and_data(rmq, odd, command, json_too):
    takes_odd_names_and_data(rmq, command, json_too)


def takes_odd_names_and_data(rmq, command, json_too):
    """Nothing that a terminal would obey is printed, and JSON can be read; a pipe gets payloads as they are."""
    given = words(*command)
    if json_too:
        given.insert(1, "--json")
    ended = rmq(*given)
    assert ended.status in (0, 1), ended.err
    assert "Traceback" not in ended.err
    raw = command[0] == "consume" and not json_too and "--exec" not in command
    assert obeyed(ended.err if raw else ended.out + ended.err) == set()
    if json_too and command[0] != "redrive":
        documents = ended.documents
        assert documents
        assert all(one.get("queue", QUEUE) == QUEUE for one in documents)


def test_what_json_says_is_what_was_published(rmq, odd):
    """Escapes are for terminals: a parser gets the same text."""
    found = rmq("peek", "--json", "--", QUEUE).documents
    assert {one["tenant"] for one in found} == {TENANT, None, "caf\\xe9\x00\\x9b\\xff"}
    assert f"waiting 1 {ODD}" in {one["payload"] for one in found}
    (failed,) = rmq("records", "--json", "--", QUEUE, "failed").documents
    assert (failed["tenant"], failed["error"]) == (TENANT, ERROR)
    dead = rmq("records", "--json", "--", QUEUE, "dead_letters").documents
    assert {one["tenant"] for one in dead} == {TENANT, "caf\\xe9\x00\\x9b\\xff"}
    waiting = {one["tenant"]: one for one in rmq("tenants", "--json", "--", QUEUE).documents}
    assert waiting[TENANT]["pending"] >= 2
    assert all(one["oldest_pending_seconds"] is not None for one in waiting.values())


def test_a_tenant_that_is_no_utf8_keeps_its_name_through_a_redrive(client, odd):
    """What is shown is not what it is called."""
    odd.purge("pending")
    odd.redrive_dead_letters()
    assert FOREIGN_TENANT in client.zrange(odd.key.tenant_ring, 0, -1)
    shown = odd.tenants()
    assert shown == {TENANT: 1, "caf\\xe9\x00\\x9b\\xff": 1}
    tenants = set()
    while odd.stats().pending:
        with odd.process_messages(1) as batch:
            tenants.add(batch[0].tenant)
    assert tenants == shown.keys()


@pytest.mark.parametrize(
    "command",
    [("peek", "--json"), ("peek",), ("records", "failed"), ("tenants",), ("stats", "--count", "2")],
    ids=" ".join,
)
def test_a_terminal_shows_it_and_obeys_nothing(odd, command):
    """Where rich draws: titles and cells alike."""
    with Terminal(*words(*command)) as terminal:
        assert terminal.end() == 0
    assert obeyed(OF_RICH.sub("", terminal.shown).replace("\r", "")) == set()
    assert "evil" in terminal.shown
    assert "\x1b[31m\x07" not in terminal.shown


def test_errors_are_shown_as_they_are_and_obeyed_by_nobody(rmq):
    """Names, files, options and conditions come back in errors."""
    for given in (
        ["stats", "--nonsense", QUEUE],
        ["publish", "--file", ODD, "q"],
        ["redrive", "--where", ODD, "q"],
        ["peek", "q", ODD],
        [ODD],
        ["stats", "--url", f"redis://{ODD}", "q"],
        ["worker", ODD, "q"],
        ["redrive", "--ids", ODD, "q"],
        ["stats", "\udcff"],
    ):
        ended = rmq(*given)
        assert ended.status in (1, 2, 3), (given, ended)
        assert obeyed(ended.out + ended.err) == set(), (given, ended)
        assert "Traceback" not in ended.err


def test_logs_of_a_worker_are_printable(clean_server, tmp_path, client):
    """A handler's error may quote the payload."""
    (tmp_path / "handlers.py").write_text("def fail(message):\n    raise ValueError(message.payload)\n")
    RedisMessageQueue(QUEUE, client=client).publish(f"m {ODD}")
    words = ["worker", "--until-empty", "handlers:fail", QUEUE]
    ended = fork_server.run(
        [sys.executable, "-W", "error", "-m", "redis_message_queue", *words],
        cwd=tmp_path,
        env=os.environ | {"REDIS_URL": clean_server.url, "PYTHONWARNINGS": "error"},
    )
    shown = ended.stderr + ended.stdout
    assert "ValueError" in shown
    assert obeyed(shown) == set()


@pytest.mark.parametrize(
    "text", ["\x00\x1f\x7f\x80\x9b\x9f", "\u200b\u200e\u202e\u2066\u2028\ufeff", "\U000e0001", "\ud800", ODD]
)
def test_json_is_printable_and_the_same(text):
    """Also beyond the first plane, for keys and values."""
    said = to_json({text: [text, f"grün 🐘 {text}"]})
    assert said.isprintable()
    assert "grün 🐘" in said
    assert json.loads(said) == {text: [text, f"grün 🐘 {text}"]}
