"""rmq export and rmq import: everything that a queue has, exactly, and each message once."""

import json
import os
from datetime import UTC, datetime
from typing import Any

import pytest

from redis_message_queue import RedisMessageQueue, RetryPolicy
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.transfer import from_facts
from redis_message_queue.protocol.operate.transfer import Importer
from redis_message_queue.protocol.port import finish
from redis_message_queue.stored.envelope import HAS_ENTRY, HEADER_BYTES, TIME_AT
from redis_message_queue.testing import fast_forward
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")

BINARY = b"\xff\x00 not text"


def opened(client: Any, name: str, **options: Any) -> RedisMessageQueue:
    kept = {"enable_failed_queue": True, "enable_completed_queue": True, "message_wait_interval_seconds": 0}
    return RedisMessageQueue(name, client=client, **kept | options)


@pytest.fixture
def full(client):
    """A queue that has everything: tenants, headers, delays, times to live, attempts, and all kinds of ends."""
    queue = opened(client, "orders")
    retrying = opened(client, "orders", retry_policy=RetryPolicy(max_attempts=2, initial_delay_seconds=3600))
    queue.publish_many(["completed", "failed"], headers={"trace": "1"})
    with queue.process_message():
        pass
    with pytest.raises(KeyError), queue.process_message():
        raise KeyError("no such customer")
    queue.publish("dead")
    with queue.process_messages(1) as batch:
        (dead,) = batch
        batch.fail(dead, ValueError("never"))
    client.lpush(queue.key.dead_letter, BINARY)
    retrying.publish("retried")
    with pytest.raises(OSError, match="later"), retrying.process_message():
        raise OSError("later")
    queue.publish("in flight")
    queue.process_messages(1).__enter__()
    queue.publish("requeued")
    with pytest.raises(RuntimeError), queue.process_messages(1):
        raise RuntimeError("back to the front")
    queue.publish("with headers", headers={"name": "grüße"}, ttl_seconds=86_400)
    queue.publish_many([f"of acme {number}" for number in range(3)], tenant="acme")
    queue.publish_many([f"of zeta {number}" for number in range(1_200)], tenant="zeta")
    queue.publish("later", tenant="acme", at=datetime(2099, 1, 1, tzinfo=UTC))
    stored = bytes([0x80]) + os.urandom(16) + client.lindex(queue.key.pending, 0)[TIME_AT:HEADER_BYTES] + BINARY
    client.lpush(queue.key.pending, stored)
    return queue


def contents(client: Any, queue: RedisMessageQueue) -> dict[str, Any]:
    """Everything in the queue but leases and what scripts remember, byte for byte."""
    key = queue.key
    lists = [key.pending, key.tenant_pending("acme"), key.tenant_pending("zeta")]
    lists += [key.completed, key.failed, key.dead_letter]
    lists += [key.records(one) for one in ("completed", "failed", "dlq")]
    prefix = key.prefix
    return {
        **{one.removeprefix(prefix): client.lrange(one, 0, -1) for one in lists},
        "delayed": client.zrange(key.delayed, 0, -1, withscores=True),
        "delayed_messages": client.hgetall(key.delayed_messages),
        "deliveries": client.hgetall(key.deliveries),
    }


@pytest.mark.promise(
    "`rmq import` stores what `rmq export` has written: payloads, ids, headers, times, delays, attempts."
)
def test_everything_arrives_as_it_was(rmq, full, client, tmp_path):
    """Only a message that was in flight waits again; it keeps its attempts."""
    path = str(tmp_path / "orders.jsonl")
    before = contents(client, full)
    assert rmq("export", "orders", "--file", path).status == ExitStatus.OK
    assert contents(client, full) == before
    ended = rmq("import", "copy", path, "--json")
    assert ended.status == ExitStatus.OK, ended.err
    copy = opened(client, "copy")
    after = contents(client, copy)
    ((id, in_flight),) = client.hgetall(full.key.processing).items()
    after["::pending"].remove(bytes((in_flight[0] | HAS_ENTRY,)) + in_flight[1:])
    assert after["deliveries"].pop(id) == b"1:1"
    assert after == before
    assert ended.documents == [{"queue": "copy", "imported": 1_213, "already_there": 0}], ended.documents
    assert copy.stats().delayed == 2
    assert [one.payload for one in copy.records("dead_letters")] == [
        one.payload for one in full.records("dead_letters")
    ]


@pytest.mark.promise("Importing an export twice stores no message twice.")
def test_an_import_can_be_repeated(rmq, full, client, tmp_path):
    """Also if its messages were handled in between."""
    path = str(tmp_path / "orders.jsonl")
    rmq("export", "orders", "--file", path)
    rmq("import", "copy", path)
    copy = opened(client, "copy")
    before = contents(client, copy)
    again = rmq("import", "copy", path, "--json")
    assert again.documents == [{"queue": "copy", "imported": 0, "already_there": 1_213}]
    assert contents(client, copy) == before
    with copy.process_messages(5):
        pass
    assert rmq("import", "copy", path, "--json").documents[0]["imported"] == 0


def test_partitions_keep_their_messages(rmq, client, tmp_path):
    """An export of a queue with partitions goes into one with as many."""
    path = str(tmp_path / "orders.jsonl")
    spread = opened(client, "orders", partitions=3)
    for number in range(30):
        spread.publish(str(number))
    rmq("export", "orders", "--file", path)
    refused = rmq("import", "copy", path)
    assert refused.status == ExitStatus.USAGE
    assert "pass --partitions 3" in refused.err
    assert rmq("import", "copy", path, "--partitions", "3", "--json").documents[0]["imported"] == 30
    copy = opened(client, "copy", partitions=3)
    for number in range(3):
        here, there = (one.partition(number).peek(100) for one in (spread, copy))
        assert [one.id for one in here] == [one.id for one in there] != []


def test_what_was_imported_is_delivered(rmq, full, client, tmp_path):
    """With its id, its tenant, its headers and its attempts."""
    path = str(tmp_path / "orders.jsonl")
    rmq("export", "orders", "--file", path, "--source", "pending")
    rmq("import", "copy", path)
    copy, seen = opened(client, "copy"), {}
    copy.run(lambda message: seen.update({message.payload: message}), until_empty=True, prefetch=100)
    assert len(seen) == 1_206
    assert seen[b"requeued"].attempt == 2
    assert seen[b"with headers"].headers == {"name": "grüße"}
    assert seen[b"of acme 1"].tenant == "acme"
    assert BINARY in seen
    assert copy.stats().pending == 0


def test_a_delivery_under_way_counts(rmq, queue, client, tmp_path):
    """A message that crashes its consumers gets no fresh start with an import."""
    path = str(tmp_path / "orders.jsonl")
    queue.publish("poison")
    held = queue.process_message()
    assert held.__enter__() is not None
    rmq("export", "orders", "--file", path)
    rmq("import", "copy", path)
    held.__exit__(None, None, None)
    attempts = []
    opened(client, "copy").run(lambda message: attempts.append(message.attempt), until_empty=True)
    assert attempts == [2]


def test_a_pipe_moves_a_queue(start_rmq, rmq, full, client):
    """`rmq export a | rmq import b`."""
    source = start_rmq("export", "orders")
    target = start_rmq("import", "copy", "-", "--json", stdin=source.stdout)
    source.stdout.close()
    out, err = target.communicate(timeout=120)
    assert (source.wait(120), target.returncode) == (ExitStatus.OK, ExitStatus.OK), err
    assert json.loads(out)["imported"] == 1_213
    assert "exported 1,213 messages" in source.stderr.read()


def test_an_import_that_was_killed_is_finished_by_the_next(start_rmq, rmq, full, client, tmp_path):
    """Nothing is there twice."""
    path = str(tmp_path / "orders.jsonl")
    rmq("export", "orders", "--file", path)
    with open(path, "rb") as file:
        lines = file.readlines()
    process = start_rmq("import", "copy", "-", stdin=-1)
    process.stdin.buffer.write(b"".join(lines[:800]))
    process.stdin.flush()
    copy = opened(client, "copy")
    assert until(lambda: copy.stats().pending > 0)
    process.kill()
    process.communicate()
    assert rmq("import", "copy", path).status == ExitStatus.OK
    assert copy.stats().pending == full.stats().pending + 1


HEAD = '{"rmq_export": 1, "export_id": "x"}\n'


def line(**changed: object) -> str:
    """An export of one message, with something wrong."""
    facts = {"state": "pending", "number": 1, "id": "ab" * 16, "payload": "a"}
    return HEAD + json.dumps(facts | changed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "line 1 of stdin is not of an export"),
        ('{"state": "pending"}', "an export begins with a line that has rmq_export"),
        ('{"rmq_export": 2, "export_id": "x"}', "its format is 2, and this release knows 1"),
        ('{"rmq_export": 1, "export_id": "x"}\n{"state": "lost", "number": 1}', "line 2 of stdin"),
        (
            '{"rmq_export": 1, "export_id": "x"}\n{"state": "pending", "number": 1, "id": "ab", "payload": "a"}',
            "32 hex",
        ),
        ('{"rmq_export": 1, "export_id": "x"}\n{"state": "failed", "number": 1, "payload": 3}', "line 2 of stdin"),
        (line(deliveries=5), "line 2 of stdin is not of an export: its deliveries are not a text"),
        (line(partition=0.0), "line 2 of stdin is not of an export: there is no partition 0.0"),
        (HEAD + '{"a":' * 100_000, "line 2 of stdin is not of an export: maximum recursion depth"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_line_that_is_not_of_an_export_is_named(rmq, stdin, text, said):
    stdin(text.encode())
    ended = rmq("import", "copy", "-")
    assert (ended.status, ended.err.count("\n")) == (ExitStatus.USAGE, 1)
    assert said in ended.err


def test_an_export_that_was_cut_off_is_noticed(rmq, stdin, queue):
    """What it has is imported; the exit status says that there was more."""
    queue.publish_many(["a", "b"])
    out = rmq("export", "orders").out
    stdin("".join(out.splitlines(keepends=True)[:2]).encode())
    ended = rmq("import", "copy", "-", "--json")
    assert ended.status == ExitStatus.FAILED
    assert json.loads(ended.out)["imported"] == 1
    assert "stdin ends before its export was complete" in ended.err


def test_the_last_of_several_exports_must_be_complete_too(rmq, stdin, queue):
    """`cat a.jsonl b.jsonl | rmq import`, and the disk was full when b.jsonl was copied."""
    queue.publish_many(["a", "b"])
    first, second = rmq("export", "orders").out, rmq("export", "orders").out
    stdin((first + "".join(second.splitlines(keepends=True)[:2])).encode())
    ended = rmq("import", "copy", "-")
    assert ended.status == ExitStatus.FAILED
    assert "stdin ends before its export was complete" in ended.err


def test_an_unknown_source_and_a_missing_file_are_refused(rmq):
    assert "is not one of processing" in rmq("export", "orders", "--source", "nowhere").err
    assert rmq("import", "orders", "/nowhere.jsonl").status == ExitStatus.USAGE


def moved(rmq: Any, tmp_path: Any, source: str, target: str, *options: str) -> str:
    """Export one queue and import it into another one."""
    path = str(tmp_path / f"{source}.jsonl")
    ended = rmq("export", source, "--file", path, *options)
    assert ended.status == ExitStatus.OK, ended.err
    ended = rmq("import", target, path, *options)
    assert ended.status == ExitStatus.OK, ended.err
    return path


@pytest.mark.promise("A message that is cancelled in an exported queue is cancelled after the import.")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_cancelled_message_is_dropped_after_the_import(rmq, client, tmp_path, partitions):
    """With and without a tenant; a repeated import marks nothing again."""
    queue = opened(client, "orders", partitions=partitions)
    queue.publish_many(["a", "b"])
    marked = [queue.submit("cancelled").id, queue.submit("cancelled too", tenant="acme").id]
    queue.publish("c", tenant="acme")
    assert [queue.cancel(one) for one in marked] == ["marked", "marked"]
    seen, events = [], []
    options = () if partitions == 1 else ("--partitions", "3")
    path = moved(rmq, tmp_path, "orders", "moved", *options)
    target = opened(client, "moved", partitions=partitions, on_event=events.append)
    target.run(lambda message: seen.append(message.payload), until_empty=True)
    assert sorted(seen) == [b"a", b"b", b"c"]
    assert sorted(one.message_id for one in events if one.operation == "cancelled") == sorted(marked)
    assert json.loads(rmq("import", "moved", path, *options, "--json").out)["imported"] == 0
    parts = [target.partition(number) for number in range(partitions)] if partitions > 1 else [target]
    assert not any(client.exists(one.key.cancelled) for one in parts)
    assert not any(client.hexists(one.key.meta, "cancels") for one in parts), "claims are on their fast path"


def ordered(client: Any, name: str, partitions: int, **options: Any) -> RedisMessageQueue:
    policy = RetryPolicy(max_attempts=5, initial_delay_seconds=3600, jitter=0)
    return opened(client, name, partitions=partitions, ordered_tenants=True, retry_policy=policy, **options)


@pytest.mark.promise("With `ordered_tenants`, a message that waits for its next attempt keeps its place in an import.")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_message_that_waits_for_its_next_attempt_keeps_its_place(rmq, client, tmp_path, partitions):
    queue = ordered(client, "ledger", partitions)
    queue.publish_many(["open", "pay", "close"], tenant="acme")
    queue.publish_many(["1", "2"], tenant="zeta")
    due = {}
    for _ in range(2):
        with pytest.raises(OSError, match="later"), queue.process_message():
            due[queue.current_message().payload] = queue.current_message().id
            raise OSError("later")
    assert set(due) == {b"open", b"1"}
    options = () if partitions == 1 else ("--partitions", "3")
    path = moved(rmq, tmp_path, "ledger", "moved", *options)
    assert json.loads(rmq("import", "moved", path, *options, "--json").out)["imported"] == 0
    target = ordered(client, "moved", partitions)
    with target.process_message() as message:
        assert message is None, "nobody comes before it, and it waits"
    assert target.stats().processing == 2
    fast_forward(client, 3_601, target)
    seen = []
    target.run(lambda message: seen.append((message.tenant, message.payload, message.attempt)), until_empty=True)
    assert [one[1:] for one in seen if one[0] == "acme"] == [(b"open", 2), (b"pay", 1), (b"close", 1)]
    assert [one[1:] for one in seen if one[0] == "zeta"] == [(b"1", 2), (b"2", 1)]
    assert target.stats().processing == 0
    left = [key for key in client.keys("moved*") if b"tenant_in_flight" in key or b"leases" in key]
    assert left == []


def test_what_is_in_flight_comes_first_again(rmq, client, tmp_path):
    """In the order of its publication, before what waited behind it, also for a queue that is in use meanwhile."""
    queue = opened(client, "orders")
    payloads = [f"{number:04}" for number in range(1_300)]
    queue.publish_many(payloads[:700], tenant="acme")
    queue.publish_many(payloads[700:], tenant="acme")
    queue.process_messages(650).__enter__()
    moved(rmq, tmp_path, "orders", "moved")
    seen = []
    opened(client, "moved").run(lambda message: seen.append(message.payload.decode()), until_empty=True)
    assert seen == payloads


def test_a_place_is_no_place_without_leases(rmq, client, tmp_path):
    """There nobody looks for leases that have ended: the message is delayed until its next attempt instead."""
    queue = ordered(client, "ledger", 1)
    queue.publish_many(["open", "pay"], tenant="acme")
    with pytest.raises(OSError, match="later"), queue.process_message():
        raise OSError("later")
    path = str(tmp_path / "ledger.jsonl")
    rmq("export", "ledger", "--file", path)
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    messages = [from_facts(facts) for line in lines if "state" in (facts := json.loads(line))]
    target = opened(client, "moved", visibility_timeout_seconds=None)
    assert finish(Importer(target._protocol.store.calls).store(messages)) == [True, True]
    assert target.stats().delayed == 1 and target.stats().processing == 0
