"""A journal is read page by page and piece by piece, and every piece together is the whole."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from redis_message_queue.spark import journal as journal_module
from redis_message_queue.spark.connection import RedisReader
from redis_message_queue.spark.journal import (
    BEGINNING,
    SCHEMA,
    JournalReader,
    StreamId,
    StreamRange,
    decode,
    raw_pages,
    size_of,
    to_batch,
)
from redis_message_queue.spark.options import QueueAddress
from redis_message_queue.values.errors import ConfigurationError, JournalError
from tests.pipeline.journal_samples import MINUTE, START, Events, JournalSample, write_journal
from tests.pipeline.queue_scenarios import EVENTS, QueueScenario, told

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def address(server):
    return QueueAddress(url=server.url, queue="orders")


@pytest.fixture
def journal(address, client):
    with JournalReader(address) as opened:
        yield opened


def whole(journal: JournalReader) -> StreamRange:
    census = journal.snapshot()
    assert census is not None
    return StreamRange(StreamId(0, 0), census.last)


# Rows


def test_an_entry_becomes_a_row_of_the_fixed_schema():
    fields = {
        b"n": b"7",
        b"at": b"1790000000000001",
        b"event": b"retried",
        b"id": b"ab",
        b"tenant": b"",
        b"due": b"1790000001000002",
        b"failures": b"2",
        b"error_type": b"ValueError",
    }
    row = decode(b"1790000000000-3", fields, at_time)
    assert row["serial"] == 7
    assert row["at"] == datetime(2026, 9, 21, 14, 13, 20, 1, UTC)
    assert row["due"].microsecond == 2
    assert (row["tenant"], row["failures"], row["error_type"], row["payload"]) == (None, 2, "ValueError", None)
    assert row["stream_id"] == "1790000000000-3"
    assert pa.RecordBatch.from_pylist([row], schema=SCHEMA).to_pylist() == [row]


def test_a_field_that_only_a_newer_library_knows_is_kept():
    row = decode(b"1-1", {b"n": b"1", b"at": b"1", b"event": b"acked", b"colour": b"blue"}, int)
    assert row["more"] == '{"colour": "blue"}'


def test_headers_are_pairs_of_texts():
    fields = {b"n": b"1", b"at": b"1", b"event": b"published", b"headers": b'{"trace": "7", "count": 5}'}
    assert decode(b"1-1", fields, int)["headers"] == [("trace", "7")]


def test_a_payload_is_bytes_and_may_be_empty():
    fields = {b"n": b"1", b"at": b"1", b"event": b"published", b"payload": b"\xff"}
    assert decode(b"1-1", fields, int)["payload"] == b"\xff"
    assert decode(b"1-1", fields | {b"payload": b""}, int)["payload"] == b""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({b"n": b"x", b"at": b"1", b"event": b"acked"}, r"entry 1-1 of the journal has a foreign value in 'n'"),
        (
            {b"n": b"1", b"at": b"1", b"event": b"published", b"headers": b"[1]"},
            r"entry 1-1 of the journal has a foreign value in 'headers'",
        ),
        ({b"n": b"1", b"event": b"acked"}, r"entry 1-1 of the journal has no 'at': it was not written"),
    ],
)
def test_what_is_no_entry_is_named(fields, said):
    with pytest.raises(JournalError, match=said):
        decode(b"1-1", fields, int)


ENTRY = {b"n": b"1", b"at": b"1", b"event": b"acked"}


def entry(**fields: bytes) -> tuple[bytes, list[bytes]]:
    named = ENTRY | {name.encode(): value for name, value in fields.items()}
    return b"1-1", [part for pair in named.items() for part in pair if pair[1] != b"left out"]


@pytest.mark.parametrize(
    "entries",
    [
        [entry()],
        [entry(payload=b""), entry(payload=b"\xff"), entry(tenant=b"", id=b"ab")],
        [entry(event=b"published", headers=b'{"trace": "7", "count": 5}'), entry(headers=b""), entry()],
        [entry(due=b"1790000001000002", started=b"5", handled=b"17", count=b"3"), entry(first=b"9")],
        [entry(event=b"gap", at=b"left out"), entry()],
        [entry(colour=b"blue"), entry()],
        [entry(tenant="größer".encode()), entry(tenant=b"\xff no text")],
    ],
)
def test_a_batch_has_the_rows_of_its_entries(entries):
    """Whether it is made column by column, or, for what is unusual, row by row."""
    rows = [decode(one, dict(zip(fields[::2], fields[1::2], strict=True)), at_time) for one, fields in entries]
    assert to_batch(entries).schema == SCHEMA
    assert to_batch(entries).to_pylist() == pa.RecordBatch.from_pylist(rows, SCHEMA).to_pylist()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n": b"x"}, r"entry 1-1 of the journal has a foreign value in 'n'"),
        ({"at": b"9" * 30}, r"entry 1-1 of the journal has a foreign value in 'at'"),
        ({"headers": b"[1]"}, r"entry 1-1 of the journal has a foreign value in 'headers'"),
        ({"at": b"left out"}, r"entry 1-1 of the journal has no 'at'"),
        ({"event": b""}, r"entry 1-1 of the journal has no 'event'"),
    ],
)
def test_a_foreign_entry_in_a_batch_is_named(fields, said):
    with pytest.raises(JournalError, match=said):
        to_batch([entry(), entry(**fields)])


@pytest.mark.promise("The jobs read what a real queue writes: every event and every field.")
def test_a_real_queue_writes_every_event_and_nothing_that_the_reader_does_not_know(client, address, journal):
    """Everything that a queue can live through, and a cut of its journal."""
    QueueScenario(client, "payload").everything()
    rows = rows_of(journal, whole(journal))
    assert [row["serial"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["event"] for row in rows} == EVENTS - {"gap"}
    assert not any(row["more"] for row in rows)
    (batch,) = journal.batches(whole(journal))
    assert batch.to_pylist() == pa.RecordBatch.from_pylist(rows, SCHEMA).to_pylist()
    said = [{name: value for name, value in event.items() if value != ""} for event in told(client)]
    assert [
        {name: value for name, value in read.items() if value is not None and name != "stream_id"}
        for read in map(as_written, rows)
    ] == said
    journal.set_mark(StreamId(1, 0))
    QueueScenario(client, "payload", max_journal_length=20).queue.publish_many([f"{place}" for place in range(500)])
    (gap,) = [row for row in rows_of(journal, whole(journal)) if row["event"] == "gap"]
    assert (gap["at"], gap["id"], gap["first"]) == (None, None, 1)


def as_written(row):
    """A row as the stream has it."""
    times = {name: row[name] and round(row[name].timestamp() * 1_000_000) for name in ("at", "due")}
    serial = {"n": row["serial"], "payload": row["payload"] and row["payload"].decode()}
    return {name: value for name, value in row.items() if name != "serial"} | times | serial


# Pages and pieces


def test_pages_together_are_the_whole_in_its_order(client, address, journal, monkeypatch):
    written = write_journal(client, address, JournalSample(1).story(200))
    rows = rows_of(journal, whole(journal), 7)
    assert [row["serial"] for row in rows] == [event["n"] for event in written]
    assert [row["event"] for row in rows] == [event["event"] for event in written]


def test_arrow_batches_are_bounded_and_lose_nothing(client, address, journal):
    written = write_journal(client, address, JournalSample(2).story(100))
    batches = list(journal.batches(whole(journal), rows=50))
    assert all(batch.num_rows <= 50 and batch.schema == SCHEMA for batch in batches)
    assert [one for batch in batches for one in batch.column(0).to_pylist()] == [event["n"] for event in written]


LARGE = Events(
    [
        {"at": START + number, "event": "published", "id": f"{number:04}", "tenant": "", "payload": "x" * size}
        for number, size in enumerate([900] * 300 + [10] * 100 + [5_000] * 3 + [10] * 300)
    ]
)


def test_replies_are_bounded_by_their_bytes_and_lose_nothing(client, address, journal, monkeypatch):
    """A thousand entries of 800 kB in one reply would be too much for any driver."""
    monkeypatch.setattr(journal_module, "MAX_BYTES", 10_000)
    written = write_journal(client, address, Events(LARGE.events[:300]))
    first, last = str(BEGINNING), str(whole(journal).last)
    pages = list(raw_pages(RedisReader(client, address.keys), journal.key, first, last, 1_000))
    largest = max(size_of(entry) for page in pages for entry in page)
    assert max(sum(map(size_of, page)) for page in pages) <= 10_000 + largest
    assert len(pages) < 50, "and are not small either"
    assert [row["serial"] for row in rows_of(journal, whole(journal))] == [event["n"] for event in written]


def test_entries_that_become_small_are_read_in_large_pages_again(client, address, journal, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_BYTES", 100_000)
    written = write_journal(client, address, LARGE)
    pages = list(raw_pages(RedisReader(client, address.keys), journal.key, "-", "+", 200))
    assert sum(map(len, pages)) == len(written)
    assert max(map(len, pages)) <= 200
    assert len(pages[-2]) > len(pages[1]) * 5


def test_arrow_batches_are_bounded_by_their_bytes_and_lose_nothing(client, address, journal, monkeypatch):
    """More than 2 GiB of payloads do not fit into one array."""
    monkeypatch.setattr(journal_module, "BATCH_BYTES", 20_000)
    written = write_journal(client, address, LARGE)
    batches = list(journal.batches(whole(journal)))
    payloads = [batch.column("payload").to_pylist() for batch in batches]
    assert all(sum(map(len, found)) <= 20_000 for found in payloads)
    assert max(sum(map(len, found)) for found in payloads) > 10_000, "and are not small either"
    assert [one for batch in batches for one in batch.column(0).to_pylist()] == [event["n"] for event in written]


@pytest.mark.parametrize("rows", [1, 40, 333, 10_000])
def test_parts_are_of_about_the_asked_size_and_together_the_whole(client, address, journal, rows):
    written = write_journal(client, address, JournalSample(3).story(80), lost=(range(50, 90),))
    parts = journal.split(whole(journal), rows)
    read = [[row["serial"] for row in rows_of(journal, part)] for part in parts]
    assert [serial for part in read for serial in part] == [event["n"] for event in written]
    assert all(read)
    if rows >= 40:
        assert max(map(len, read)) <= rows + 5, "only entries of one millisecond stay together"


def test_a_burst_within_one_millisecond_stays_whole(client, address, journal):
    story = Events([{"at": START, "event": "acked", "id": "a", "tenant": ""} for _ in range(20)])
    write_journal(client, address, story)
    assert len(journal.split(whole(journal), 5)) == 1


def test_days_are_cut_at_midnight_and_empty_ones_left_out(client, address, journal):
    at = [START - 1_000, START, START + 3 * 1440 * MINUTE]
    write_journal(client, address, Events([{"at": one, "event": "acked", "id": "a", "tenant": ""} for one in at]))
    days = journal.days(StreamRange(StreamId(0, 1), whole(journal).last))
    read = [[row["serial"] for row in rows_of(journal, day)] for day in days if rows_of(journal, day)]
    assert read == [[1], [2], [3]]
    assert [day.last.date for day in days if rows_of(journal, day)] == ["2026-09-20", "2026-09-21", "2026-09-24"]


# State


def test_a_queue_without_a_journal_is_told_how_to_get_one(journal):
    with pytest.raises(JournalError, match=r"'orders' has no journal\. Open it once with journal=True"):
        journal.state()


def test_the_mark_is_kept_and_brings_no_journal_back(client, address, journal):
    journal.set_mark(StreamId(5, 6))
    assert not client.exists(journal.state_key)
    write_journal(client, address, JournalSample(1).story(3))
    assert journal.state().mark is None
    journal.set_mark(StreamId(5, 6))
    assert journal.state().mark == StreamId(5, 6)
    assert journal.state().has_payloads


@pytest.mark.promise("The jobs read what a real queue writes: every event and every field.")
def test_a_snapshot_has_the_end_of_the_journal_and_the_depth_of_the_queue(client, address, journal):
    """The same that `stats` says, of tenants too, and of what lies in the claims of streaming queries."""
    assert journal.snapshot() is None
    queue = QueueScenario(client).queue
    queue.publish_many([str(place) for place in range(5)])
    queue.publish_many([str(place) for place in range(5, 12)], tenant="acme")
    queue.publish("later", delay_seconds=3600)
    queue.process_messages(3).__enter__()
    client.hset(queue.key.groups, mapping={"": 4, "spark": 4})
    census, stats = journal.snapshot(), queue.stats()
    assert (census.pending, census.processing, census.delayed) == (9, 7, 1)
    assert (census.pending, census.processing, census.delayed) == (stats.pending, stats.processing, stats.delayed)
    assert census.serial == told(client)[-1]["n"]


# Addresses


def test_a_password_is_not_shown():
    assert "secret" not in repr(QueueAddress(url="redis://:secret@localhost", queue="orders"))


@pytest.mark.parametrize("given", [{"url": "http://localhost"}, {"queue": " "}, {"key_separator": ""}])
def test_an_address_that_cannot_be_is_refused(given):
    with pytest.raises(ConfigurationError):
        QueueAddress(**{"url": "redis://localhost", "queue": "orders"} | given)


def test_keys_share_a_slot_where_they_must():
    with JournalReader(QueueAddress(url="redis://localhost", queue="orders", hash_tag=True)) as journal:
        assert (journal.key, journal.state_key) == ("{orders}::journal", "{orders}::meta")


def rows_of(journal, wanted, size: int = 10_000) -> list[dict]:
    """The entries of a range, with headers as the reader decodes them."""
    return [row for batch in journal.batches(wanted, size) for row in batch.to_pylist()]


def at_time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
