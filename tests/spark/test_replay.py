"""What a condition selects is published again, with its lineage, at the asked rate, and once for one selection."""

import json
from typing import Any, cast

import pytest
from pyspark.sql import functions as f

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
from redis_message_queue.spark.jobs.archive_tables import ArchiveTable
from redis_message_queue.spark.jobs.replay import ReplayOptions, replay
from redis_message_queue.values.errors import ConfigurationError, SelectionError
from tests.depth import only_in_full
from tests.pipeline.journal_samples import MINUTE, START, Events, JournalSample, write_journal
from tests.pipeline.plain_archiver import archive_plainly

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client, max_delivery_count=1)


def kill(queue: RedisMessageQueue, letters: list[tuple[str, str | None]]) -> None:
    """Real dead letters: delivered once, requeued, and then too often."""
    for message, tenant in letters:
        queue.publish(message, tenant=tenant)
    given = len(letters)
    with pytest.raises(TimeoutError), queue.process_messages(given, wait_seconds=0) as batch:
        assert len(batch) == given
        raise TimeoutError("gave up")
    with queue.process_messages(1, wait_seconds=0):
        pass
    assert queue.stats().dead_letters == given


def waiting(queue: RedisMessageQueue) -> dict[str, tuple[str | None, str | None]]:
    """What waits: payload to tenant and lineage."""
    return {cast(bytes, one.payload).decode(): (one.tenant, one.replay_of) for one in queue.peek(1_000)}


# Dead letters


@pytest.mark.promise("A replay publishes each selected message once, with its lineage.")
def test_selected_dead_letters_come_back_once_with_their_lineage(spark, server, client, queue):
    kill(queue, [("one", "acme"), ("two", "globex"), ("three", "acme"), ("four", None)])
    ids = {bytes(one.payload).decode(): one.id for one in queue.records("dead_letters")}
    given = {"url": server.url, "queue": "orders", "where": "tenant == 'acme' and reason is not None"}

    tried = replay(spark, ReplayOptions(**given, dry_run=True))
    assert (tried.matched, tried.published, sorted(tried.examples)) == (2, 0, sorted([ids["one"], ids["three"]]))
    assert waiting(queue) == {}

    heard = []
    done = replay(spark, ReplayOptions(**given), heard.append)
    assert (done.matched, done.published, done.suppressed) == (2, 2, 0)
    assert waiting(queue) == {"one": ("acme", ids["one"]), "three": ("acme", ids["three"])}
    assert [one.step for one in heard] == ["published"]
    json.dumps(done.as_dict())

    other = replay(spark, ReplayOptions(url=server.url, queue="orders", where="tenant in ['acme', 'globex']"))
    assert (other.matched, other.published, other.suppressed) == (3, 1, 2), "by message, not by condition"
    repeated = ReplayOptions(**given, again=True, name="in March")
    assert [replay(spark, repeated).published for _ in range(2)] == [2, 0], "a repetition with a name can be resumed"
    assert replay(spark, ReplayOptions(**given, again=True)).published == 2

    slow = ReplayOptions(url=server.url, queue="orders", into="second", rate=2, limit=3)
    heard = []
    assert replay(spark, slow, heard.append).published == 3
    assert [one.step for one in heard] == ["publishing", "publishing", "published"]
    assert RedisMessageQueue("second", client=client).stats().pending == 3
    assert queue.stats().dead_letters == 4, "letters stay where they are"


@pytest.mark.promise("A replay publishes each selected message once, with its lineage.")
@pytest.mark.parametrize(
    ("from_archive", "has_record"), [only_in_full(False, True), (True, True), only_in_full(True, False)]
)
def test_headers_are_replayed(spark, server, client, tmp_path, from_archive, has_record):
    """From the record of a dead letter, or from a journal with payloads, if there is no record."""
    rules: dict[str, Any] = {"journal": "payload", "get_headers": lambda: {"trace": "7"}, "max_delivery_count": 1}
    queue = RedisMessageQueue("orders", client=client, **rules)
    kill(queue, [("one", "acme")])
    if not has_record:
        queue.purge("dead_letters")
    if from_archive:
        archive(spark, ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path)))
    given = {"url": server.url, "queue": "orders", "archive": str(tmp_path) if from_archive else None}
    assert replay(spark, ReplayOptions(**given)).published == 1
    assert [one.headers for one in queue.peek()] == [{"trace": "7"}]


@pytest.mark.in_full
def test_the_headers_of_a_record_select_a_message_that_has_none_in_the_journal(spark, server, client, tmp_path):
    """A journal without payloads has no headers either."""
    rules: dict[str, Any] = {"get_headers": lambda: {"trace": "7"}, "max_delivery_count": 1}
    kill(RedisMessageQueue("orders", client=client, journal=True, **rules), [("one", None)])
    RedisMessageQueue("orders", client=client, journal="payload", **rules).publish("two")
    archive(spark, ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path)))
    where = f.col("headers")["trace"] == "7"
    given = {"url": server.url, "queue": "orders", "archive": str(tmp_path), "where": where}
    found = replay(spark, ReplayOptions(**given, dry_run=True))
    assert (found.matched, found.without_payload) == (2, 1)


def test_a_column_of_the_callers_selects_too_and_one_that_fits_nothing_is_one_clear_error(spark, server, client, queue):
    kill(queue, [("one", "acme"), ("two", None)])
    given = {"url": server.url, "queue": "orders"}
    assert replay(spark, ReplayOptions(**given, where=f.col("tenant").isNull())).published == 1
    assert set(waiting(queue)) == {"two"}
    with pytest.raises(SelectionError, match=r"where does not fit .*Columns: id, payload, tenant"):
        replay(spark, ReplayOptions(**given, where=f.col("colour").isNull()))


# The archive


@pytest.mark.in_full
@pytest.mark.promise("A replay publishes each selected message once, with its lineage.")
def test_archived_messages_are_replayed_from_their_payloads(spark, server, client, tmp_path):
    events = write_journal(client, address_of(server), JournalSample(31, payloads=True).story(300))
    archive_plainly(ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path)))
    last = {event["id"]: event for event in events if event["id"]}
    dead = {message for message, event in last.items() if event["event"] == "dead"}
    where = "state == 'dead' and json['order'] >= 0 and failures is not None"
    options = ReplayOptions(url=server.url, queue="orders", archive=str(tmp_path), where=where, into="again")
    done = replay(spark, options)
    assert dead
    assert done.published == len(dead)
    again = RedisMessageQueue("again", client=client)
    assert {one.replay_of for one in again.peek(1_000)} == dead
    assert {one.tenant or "" for one in again.peek(1_000)} == {last[one]["tenant"] for one in dead}
    assert all(json.loads(one.payload or "{}")["order"] >= 0 for one in again.peek(1_000))
    assert replay(spark, options).suppressed == len(dead)


def test_a_redriven_message_has_the_payload_of_the_one_that_it_repeats(spark, server, client, queue, tmp_path):
    first, second = "a" * 32, "b" * 32
    story = [
        {"at": START, "event": "published", "id": first, "tenant": "", "payload": "one"},
        {"at": START + 1, "event": "dead", "id": first, "tenant": ""},
        {"at": START + 2, "event": "redriven", "id": second, "tenant": "", "replay_of": first},
    ]
    write_journal(client, address_of(server), Events(story))
    archive_plainly(ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path)))
    given = {"url": server.url, "queue": "orders", "archive": str(tmp_path), "where": "replay_of is not None"}
    assert replay(spark, ReplayOptions(**given)).published == 1
    assert waiting(queue) == {"one": (None, second)}


@pytest.mark.in_full
def test_the_time_of_their_end_selects_archived_messages(spark, server, client, queue, tmp_path, monkeypatch):
    """What ended before is not read."""
    lives = []
    for day in range(3):
        at = START + day * 1440 * MINUTE
        common = {"id": f"{day:032x}", "tenant": ""}
        lives += [
            {"at": at, "event": "published", "payload": str(day), **common},
            {"at": at + 1, "event": "acked", **common},
        ]
    write_journal(client, address_of(server), Events(lives))
    archive_plainly(ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path)))
    given = {"url": server.url, "queue": "orders", "archive": str(tmp_path)}
    assert replay(spark, ReplayOptions(**given, dry_run=True)).matched == 3
    read: list[str] = []
    check = ArchiveTable.check

    def note(self, files, name):
        read.extend(one.date for one in files if self.name == "messages")
        check(self, files, name)

    monkeypatch.setattr(ArchiveTable, "check", note)
    assert replay(spark, ReplayOptions(**given, since="2026-09-22", until="2026-09-22T00:00:01")).published == 1
    assert set(waiting(queue)) == {"1"}
    assert set(read) == {"2026-09-22"}
    with pytest.raises(ConfigurationError, match="since and until are for archived messages"):
        ReplayOptions(url=server.url, queue="orders", since="today")


def address_of(server):
    return ArchiveOptions(url=server.url, queue="orders", path="unused")


def test_without_payloads_in_the_archive_it_says_how_to_keep_them(spark, server, client, tmp_path):
    write_journal(client, address_of(server), JournalSample(32).story(30))
    archive_plainly(ArchiveOptions(url=server.url, queue="orders", path=str(tmp_path)))
    with pytest.raises(SelectionError, match=r'none of the \d+ selected .* journal="payload"'):
        replay(spark, ReplayOptions(url=server.url, queue="orders", archive=str(tmp_path)))


# Publishing, without Spark
