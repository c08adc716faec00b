"""Spark reads rows of files and tables that enter a queue once each, and a run that was broken off is gone on with."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.jobs import splits
from redis_message_queue.spark.jobs.backfill import BackfillOptions, FinishedFiles, backfill
from redis_message_queue.values.errors import JobError, PayloadValueError, QueueBackpressureError, SelectionError
from tests.depth import FULL

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture
def queue(client):
    return RedisMessageQueue("orders", client=client)


def payloads(queue: RedisMessageQueue) -> Counter[str]:
    return Counter(cast(bytes, one.payload).decode() for one in queue.peek(10_000))


def json_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Stopped(Exception):
    """A run that is broken off."""


@pytest.mark.promise("A backfill publishes each row once and continues where it stopped.")
def test_an_interrupted_run_is_continued_file_by_file(spark, server, client, queue, tmp_path):
    for number in range(4):
        rows = [{"order": number * 10 + place, "who": f"t{place % 2}", "note": None} for place in range(10)]
        json_lines(tmp_path / f"{number}.json", rows)
    given = {"url": server.url, "queue": "orders", "source": str(tmp_path), "format": "json", "tenant_column": "who"}
    options = BackfillOptions(**given, dedup_key_column="order", files_per_step=2)

    def stop_after_the_first_step(progress):
        if progress.step == "published":
            raise Stopped

    with pytest.raises(Stopped):
        backfill(spark, options, stop_after_the_first_step)
    assert queue.stats().pending == 20
    heard = []
    done = backfill(spark, options, heard.append)
    assert (done.files_done_before, done.files, done.published, done.suppressed) == (2, 2, 20, 0)
    assert [(one.step, one.done, one.total) for one in heard] == [("planned", 2, 4), ("published", 4, 4)]
    assert payloads(queue) == {
        json.dumps({"order": place, "who": f"t{place % 2}", "note": None}): 1 for place in range(40)
    }
    assert {one.tenant for one in queue.peek(100)} == {"t0", "t1"}
    json.dumps(done.as_dict())

    json_lines(tmp_path / "3.json", [{"order": 39, "who": "t1"}, {"order": 40, "who": "t0"}])
    os.utime(tmp_path / "3.json", (1, 1))
    changed = backfill(spark, options)
    assert (changed.files, changed.published, changed.suppressed) == (1, 1, 1), "a changed file is read again"
    again = BackfillOptions(**given, dedup_key_column="order", restart=True)
    assert backfill(spark, again).published == 0, "whatever is read again, keys suppress what is there"


@pytest.mark.in_full
@pytest.mark.promise("A backfill publishes each row once and continues where it stopped.")
def test_without_a_key_column_equal_rows_are_as_many_as_they_are(spark, server, client, queue, tmp_path):
    """And of a file that was half done the rest is published, also of one that has grown."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("text,size\nsame,1\nsame,1\nother,2\n")
    options = BackfillOptions(
        url=server.url, queue="orders", source=str(tmp_path), format="csv", payload_column="text", files_per_step=1
    )
    assert backfill(spark, options).published == 6
    assert payloads(queue) == {"same": 4, "other": 2}
    with FinishedFiles(options) as finished:
        client.hdel(finished.key, *(name for name in client.hkeys(finished.key) if name.endswith(b".csv")))
    lost = backfill(spark, options)
    assert (lost.published, lost.suppressed) == (0, 6)
    assert client.hlen(finished.key) == 4, "a field for each file and one for each of its splits, none for a row"
    assert not client.keys("*deduplication*")

    (tmp_path / "b.csv").write_text("text,size\nsame,1\nsame,1\nother,2\nmore,3\n")
    grown = backfill(spark, options)
    assert (grown.files, grown.published, grown.suppressed) == (1, 1, 3)
    (tmp_path / "b.csv").write_text("text,size\nsame,1\nchanged,1\nother,2\nmore,3\nless,4\n")
    with pytest.raises(SelectionError, match=r"b\.csv has changed: its first 4 rows are not those .* another name"):
        backfill(spark, options)
    assert payloads(queue) == {"same": 4, "other": 2, "more": 1}


@pytest.mark.in_full
@pytest.mark.promise("A backfill publishes the lines of JSON and text files as they are, byte by byte.")
def test_lines_are_published_as_they_are(spark, server, client, queue, tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "SPLIT_BYTES", 64)
    lines = [
        b'{"price": 1.10, "who": "acme"}',
        b' {"price":1.1e1,"who":null}',
        b"[1.0, 2]",
        '{"ä": "\\u00e4"}'.encode(),
    ]
    (tmp_path / "a.json").write_bytes(b"\n\n".join(lines[:2]) + b"\r\n" + b"\n".join(lines[2:]))
    given = {"url": server.url, "queue": "orders"}
    assert backfill(spark, BackfillOptions(**given, source=str(tmp_path), format="json")).published == 4
    assert Counter(one.payload for one in queue.peek(100)) == Counter(lines)

    (tmp_path / "text.txt").write_bytes(b"caf\xe9\n\nsecond line, \xff\n")
    queue.purge("pending")
    text = BackfillOptions(**given, source=str(tmp_path / "text.txt"), format="text")
    assert (backfill(spark, text).published, backfill(spark, text).published) == (2, 0)
    assert [one.payload for one in queue.peek(100)] == [b"caf\xe9", b"second line, \xff"]

    queue.purge("pending")
    (tmp_path / "c.json").write_bytes(b'{"price": 1.10, "who": "acme"}\n{"price": 1.1}')
    keyed: dict[str, Any] = {
        "source": str(tmp_path / "c.json"),
        "format": "json",
        "dedup_key_column": "price",
        "tenant_column": "who",
    }
    assert backfill(spark, BackfillOptions(**given, **keyed)).published == 2
    assert {(one.payload, one.tenant) for one in queue.peek(100)} == {
        (b'{"price": 1.10, "who": "acme"}', "acme"),
        (b'{"price": 1.1}', None),
    }


@pytest.mark.promise("A backfill names the file and the line that is not JSON.")
def test_a_bad_line_is_named_with_its_file(spark, server, client, queue, tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "SPLIT_BYTES", 64)
    (tmp_path / "good.json").write_text('{"n": 1}\n' * 30)
    (tmp_path / "not good.json").write_text('{"n": 1}\n' * 20 + '{"n": \n' + '{"n": 1}\n' * 9)
    options = BackfillOptions(url=server.url, queue="orders", source=str(tmp_path), format="json", batch_size=2)
    with pytest.raises(PayloadValueError, match=r"^line 21 of file:.*not%20good\.json is not JSON: Expecting value"):
        backfill(spark, options)
    (tmp_path / "not good.json").write_text('{"n": 1}\n' * 20 + '{"n": 1}\n' + '{"n": 1}\n' * 9)
    backfill(spark, options)
    assert payloads(queue) == {'{"n": 1}': 60}, "what was published before the bad line is not published again"


def test_parquet_in_directories_by_column_and_a_table_are_sources_too(spark, server, client, queue, tmp_path):
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / "p" / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "p" / f"day={day}" / "x.parquet")
    options = BackfillOptions(url=server.url, queue="orders", source=str(tmp_path / "p"), format="parquet")
    assert backfill(spark, options).published == 4
    assert {json.loads(one)["day"] for one in payloads(queue)} == {"2026-01-01", "2026-01-02"}
    spark.range(5).createOrReplaceTempView("numbers")
    table = BackfillOptions(
        url=server.url, queue="orders", source="numbers", format="table", payload_column="id", dedup_key_column="id"
    )
    assert backfill(spark, table).published == 5
    assert backfill(spark, table).suppressed == 5


def in_directories(path: Path, form: str) -> None:
    """One row for each of two tenants, which only the names of the directories say."""
    for place, tenant in enumerate(("acme", "globex")):
        (path / f"tenant={tenant}").mkdir(parents=True)
        if form == "parquet":
            pq.write_table(pa.table({"n": [place]}), path / f"tenant={tenant}" / "x.parquet")
        else:
            json_lines(path / f"tenant={tenant}" / "x.json", [{"n": place}])


SOURCES = [
    ("parquet", "data", "data/"),
    ("json", "parquet", "parquet"),
    ("parquet", "data", "da*"),
    *([("json", "data", "data/"), ("parquet", "parquet", "parquet"), ("json", "data", "da*")] if FULL else []),
]


@pytest.mark.in_full
def test_columns_in_the_names_of_directories_are_found_however_the_source_is_written(
    spark, server, client, tmp_path, subtests
):
    """With a slash at the end, under the name that its files end with, and by a pattern."""
    for place, (form, directory, source) in enumerate(SOURCES):
        with subtests.test(format=form, source=source):
            in_directories(tmp_path / str(place) / directory, form)
            given: dict[str, Any] = {"url": server.url, "queue": f"orders {place}", "format": form}
            options = BackfillOptions(**given, source=f"{tmp_path}/{place}/{source}", tenant_column="tenant")
            assert backfill(spark, options).published == 2
            queue = RedisMessageQueue(f"orders {place}", client=client)
            assert {one.tenant for one in queue.peek(10)} == {"acme", "globex"}


def test_columns_are_found_from_the_directory_that_the_reader_options_say(spark, server, client, queue, tmp_path):
    in_directories(tmp_path / "data", "parquet")
    options = BackfillOptions(
        url=server.url,
        queue="orders",
        source=str(tmp_path / "data" / "tenant=acme"),
        format="parquet",
        tenant_column="tenant",
        reader_options={"basePath": str(tmp_path / "data")},
    )
    assert backfill(spark, options).published == 1
    assert [one.tenant for one in queue.peek(10)] == ["acme"]


@pytest.mark.in_full
def test_a_name_may_have_characters_that_mean_something_in_a_url_or_a_pattern(spark, server, client, queue, tmp_path):
    """Such files are read, noted as finished and not read again, and of one that has grown the rest is published."""
    names = ["a b", "c%20d", "e#f", "g?h", "i*j", "k[l]", "m{n}", "ü", "o+p", "plain"]
    directory = tmp_path / "a dir # 100%"
    directory.mkdir()
    for name in names:
        (directory / f"{name}.txt").write_text(f"{name}\n")
    given: dict[str, Any] = {"url": server.url, "queue": "orders", "format": "text"}
    options = BackfillOptions(**given, source=str(directory), files_per_step=4)
    assert backfill(spark, options).published == len(names)
    assert payloads(queue) == dict.fromkeys(names, 1)
    again = backfill(spark, options)
    assert (again.files_done_before, again.files) == (len(names), 0)

    with (directory / "c%20d.txt").open("a") as file:
        file.write("more\n")
    grown = backfill(spark, options)
    assert (grown.files, grown.published, grown.suppressed) == (1, 1, 1)
    single = BackfillOptions(**given, source=str(directory / "a b.txt"))
    assert backfill(spark, single).published == 1


def test_a_full_queue_is_waited_for_and_then_named(spark, server, client, queue):
    spark.range(0, 30, 1, 1).createOrReplaceTempView("many")
    options = BackfillOptions(
        url=server.url,
        queue="orders",
        source="many",
        format="table",
        payload_column="id",
        dedup_key_column="id",
        max_pending_length=10,
        pending_overload_block_timeout_seconds=0.1,
    )
    with pytest.raises(QueueBackpressureError, match=r"the queue is full for 0\.1 s: max_pending_length is 10"):
        backfill(spark, options)
    assert queue.stats().pending == 10


# Bad input


@pytest.mark.in_full
def test_bad_rows_and_sources_are_one_clear_error_each(spark, server, client, tmp_path):
    given = {"url": server.url, "queue": "orders", "format": "json"}
    with pytest.raises(SelectionError, match=r"the source '.*nowhere' cannot be read: \[PATH_NOT_FOUND\]"):
        backfill(spark, BackfillOptions(**given, source=str(tmp_path / "nowhere")))
    json_lines(tmp_path / "one.json", [{"k": "a"}, {"k": None}])
    source = str(tmp_path / "one.json")
    with pytest.raises(SelectionError, match=r"dedup_key_column 'key' is not a column of the source: k"):
        backfill(spark, BackfillOptions(**given, source=source, dedup_key_column="key"))
    with pytest.raises(PayloadValueError, match="a row has no deduplication key"):
        backfill(spark, BackfillOptions(**given, source=source, dedup_key_column="k"))
    with pytest.raises(
        SelectionError, match=r"S3AFileSystem is not there\. Add its jar, .*org.apache.hadoop:hadoop-aws"
    ):
        backfill(spark, BackfillOptions(**given, source="s3a://bucket/x.json"))
    (tmp_path / "bad.parquet").write_text("not Parquet")
    no_parquet = given | {"format": "parquet", "source": str(tmp_path / "bad.parquet")}
    with pytest.raises(
        SelectionError, match=r"bad\.parquet' cannot be read: \[FAILED_READ_FILE\.CANNOT_READ_FILE_FOOTER"
    ):
        backfill(spark, BackfillOptions(**no_parquet))
    (tmp_path / "bad.json").write_text('{"k": "a"}\n{"k": ')
    with pytest.raises(JobError, match=r"the backfill failed: \[FAILED_READ_FILE.*bad\.json.* \[MALFORMED_RECORD"):
        backfill(spark, BackfillOptions(**given, source=str(tmp_path / "bad.json"), schema="k string"))
