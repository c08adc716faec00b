"""An archive on an object store: the tables and their files go through one set of storage options."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from redis_message_queue.spark.jobs.archive import (
    ArchiveOptions,
    CompactOptions,
    archive,
    compact,
    journal_table,
)
from redis_message_queue.spark.jobs.archive_tables import location_of
from redis_message_queue.values.errors import ArchiveConflictError, ArchiveError
from tests.concurrency import until
from tests.pipeline.journal_samples import Events, JournalSample, fill_queue, write_journal
from tests.pipeline.plain_archiver import NO_SESSION, archive_plainly
from tests.pipeline.test_archive import ODD_NAMES

pytestmark = pytest.mark.topic("Data pipeline")


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    """A bucket in a process of its own: the storage layer blocks threads of this one."""
    import boto3  # here, so that not every process of a test run imports it
    from botocore.config import Config

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_access_key_id": "testing",
        "aws_secret_access_key": "testing",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint_url"],
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}),
    )
    try:
        until(lambda: can_connect(port))
        client.create_bucket(Bucket="lake")
        yield options
    finally:
        client.close()
        server.kill()
        server.wait()


def can_connect(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture
def options(server, client, storage, request) -> ArchiveOptions:
    path = f"s3://lake/{request.node.name}"
    return ArchiveOptions(url=server.url, queue="orders", path=path, storage_options=storage, partition_rows=50)


@pytest.mark.promise("An archive may be on an object store, with one set of storage options.")
def test_an_archive_on_s3_is_made_compacted_and_read(client, options, storage):
    story = JournalSample(41).story(60)
    events = write_journal(client, options, Events(story.events[:100]))
    archive_plainly(options)
    events += write_journal(client, options, Events(story.events[100:]))
    fill_queue(client, options, story)
    archive(NO_SESSION, options)
    compact(CompactOptions(path=options.path, queue="orders", storage_options=storage))
    table = journal_table(location_of(options.path, storage))
    found = table.read_locally("orders", ("serial",), lambda _: True).sort_by("serial").to_pylist()
    assert [row["serial"] for row in found] == [event["n"] for event in events]


@pytest.mark.in_full  # the names are tested on a disk, too
def test_an_odd_name_of_a_queue_is_only_a_name_on_s3(server, client, storage, subtests):
    import polars

    for odd in ODD_NAMES:
        with subtests.test(name=odd):
            path = f"s3://lake/{odd.encode().hex()}"
            options = ArchiveOptions(url=server.url, queue=odd, path=path, storage_options=storage, partition_rows=50)
            story = JournalSample(44).story(40)
            written = []
            for part in (slice(0, 30), slice(30, 60), slice(60, None)):
                written += write_journal(client, options, Events(story.events[part]))
                archive_plainly(options)
                if part.stop == 60:
                    wanted = CompactOptions(path=path, queue=odd, storage_options=storage, grace_seconds=0)
                    assert [compact(wanted).files_removed for _ in range(2)] == [3, 0]
            table = journal_table(location_of(path, storage))
            expected = [(odd, event["n"]) for event in written]
            found = table.read_locally(odd, ("queue", "serial"), lambda _: True).sort_by("serial").to_pylist()
            assert [(row["queue"], row["serial"]) for row in found] == expected
            table.check(table.files(odd), odd)
            by_polars = polars.read_delta(f"{path}/journal", storage_options=storage).sort("serial")
            assert by_polars.select("queue", "serial").rows() == expected


@pytest.mark.in_full  # as on a disk
def test_of_two_runs_at_once_one_is_told_to_run_again(client, options):
    write_journal(client, options, JournalSample(42).story(20))
    others = []

    def another_was_faster(progress):
        if progress.step == "written" and not others:
            others.append("runs")
            archive_plainly(options)

    with pytest.raises(ArchiveConflictError):
        archive_plainly(options, another_was_faster)


def test_a_bucket_that_does_not_exist_is_one_clear_error(client, options, storage):
    write_journal(client, options, JournalSample(43).story(5))
    elsewhere = ArchiveOptions(url=options.url, queue="orders", path="s3://nowhere/x", storage_options=storage)
    with pytest.raises(ArchiveError, match="the storage at s3://nowhere/x/journal failed") as error:
        archive_plainly(elsewhere)
    assert "\n" not in str(error.value)
    assert "testing" not in str(error.value)
