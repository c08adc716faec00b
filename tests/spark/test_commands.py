"""`rmq spark` runs the jobs, and reports an error in one line."""

import json
import os
import re
import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.embedded.server_binary import SETTING
from tests.pipeline.test_commands import queue, rmq

pytestmark = pytest.mark.topic("Data pipeline")


__all__ = ["queue", "rmq"]  # fixtures


@pytest.mark.promise("You can run each job from the shell, with one line and an exit status for each mistake.")
def test_an_archive_is_made_reported_on_and_replayed_from(rmq, queue, tmp_path, spark: SparkSession):
    """The same story as in the documentation, each command as its user would write it."""
    path = str(tmp_path / "archive")
    status, out, err = rmq("archive", "orders", path)
    assert (status, re.findall(r"rows +(\d+)", out)[0]) == (0, "31")  # 11 published, 10 claimed, 8 acked, 2 failed
    assert "planned 0 of 31" in err

    status, out, err = rmq("archive", "orders", path, "--json")
    assert (status, json.loads(out)["rows"], err) == (0, 0, "")
    assert rmq("compact", "orders", path, "--json")[0] == 0

    status, out, err = rmq("report", "orders", path, "--json")
    told, page = json.loads(out), tmp_path / "archive-report" / "report.html"
    assert (status, err, told["verdict"], told["page"]) == (0, "", "balanced", str(page))
    assert "<html" in page.read_text()
    assert told["statistics"] == json.loads(page.with_name("report.json").read_text())

    status, out, err = rmq("overview", path, "--since", "24h", "--json")
    told, page = json.loads(out), tmp_path / "archive-report" / "index.html"
    assert (status, err, told["page"]) == (0, "", str(page))
    assert [(one["queue"], one["verdict"]) for one in told["reports"]] == [("orders", "balanced")]
    assert "orders/report.html" in page.read_text()

    asked = ("replay", "orders", "--archive", path, "--where", "error_type == 'TimeoutError'", "--json")
    assert json.loads(rmq(*asked, "--dry-run")[1])["matched"] == 2
    assert queue.stats().pending == 1
    assert json.loads(rmq(*asked)[1])["published"] == 2
    assert queue.stats().pending == 3
    assert SparkSession.getActiveSession() is spark, "a session that was there before goes on"


@pytest.mark.promise("You can run each job from the shell, with one line and an exit status for each mistake.")
def test_a_file_is_published_by_the_ending_of_its_name(rmq, client, tmp_path, spark):
    source = tmp_path / "orders.jsonl"
    source.write_text("".join(f'{{"order": {order}, "who": "acme"}}\n' for order in range(5)))
    asked = ("backfill", "orders", str(source), "--tenant-column", "who", "--dedup-key-column", "order", "--json")
    results = [json.loads(rmq(*asked)[1]) for _ in range(2)]
    assert [one["published"] for one in results] == [5, 0]
    assert RedisMessageQueue("orders", client=client).tenant("acme").length() == 5


@pytest.mark.promise("You can run each job from the shell, with one line and an exit status for each mistake.")
def test_a_mistake_is_one_line_and_a_status(rmq, spark, tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    for arguments, status, says in MISTAKES:
        with subtests.test(arguments=arguments):
            found, out, err = rmq(*arguments)
            assert (found, out) == (status, "")
            last = err.splitlines()[-1]
            assert last.startswith("rmq spark")
            assert says in last
            assert list(tmp_path.iterdir()) == []


MISTAKES = (
    (("archive", "orders", "x"), ExitStatus.FAILED, "the queue 'orders' has no journal"),
    (("report", "orders", "x"), ExitStatus.FAILED, "there is no archive of the queue 'orders' at "),
    (("replay", "orders", "--where", "no such thing"), ExitStatus.USAGE, "where: the condition cannot be parsed"),
    (("backfill", "orders", "x"), ExitStatus.USAGE, "--format"),
    (("backfill", "orders", "x.json"), ExitStatus.USAGE, "x.json"),
    (("backfill", "orders", "x", "--format", "xml"), ExitStatus.USAGE, "format must be one of json, text, csv"),
    (("report", "orders", "x", "--conf", "nothing"), ExitStatus.USAGE, "'nothing' is not NAME=VALUE"),
    (("report", "orders", "x", "--conf", "master=x"), ExitStatus.USAGE, "'master' does not start with 'spark.'"),
    (("backfill", "orders", "x.csv", "--option", "=1"), ExitStatus.USAGE, "'=1' is not NAME=VALUE"),
    (("report", "orders", "x", "--since", "monday"), ExitStatus.USAGE, "since must be a time such as 2026-09-21"),
    (("overview", "x"), ExitStatus.FAILED, "no queue is archived at "),
    (("archive", "orders"), ExitStatus.USAGE, "Missing argument 'PATH'"),
    (("release", "orders", "x"), ExitStatus.FAILED, "no consumer group 'x'"),
)


@pytest.mark.promise("The demo ends with a report that agrees with its own counts.")
@pytest.mark.in_full  # a JVM of its own; tests/cli plays the demo without its report
def test_the_demo_ends_with_a_page_about_what_it_did(tmp_path, server_setting):
    """Its own counts and those of the journal agree, and the last line says where the page is."""
    played = subprocess.run(
        [sys.executable, "-m", "redis_message_queue", "demo", "--orders", "12", "--output", str(tmp_path)],
        env=os.environ | {SETTING: server_setting},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert played.returncode == 0
    assert "The balance holds" in played.stdout
    assert played.stdout.endswith(
        f"The journal agrees: every message is accounted for.\nOpen the report: {tmp_path}/report/report.html\n"
    )
    assert "orders" in (tmp_path / "report" / "report.html").read_text()
