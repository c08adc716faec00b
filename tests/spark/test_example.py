"""The example that needs Spark runs, ends by itself and prints what its page shows."""

import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import blocks_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "sales"
PROGRAM = str(EXAMPLE / "sales.py")
(SHOWN, *_) = blocks_of(EXAMPLE / "README.md", "text")


def check(printed: str, directory: Path, client) -> None:
    assert printed == SHOWN.code
    assert (directory / "report" / "report.html").exists()
    # The next run would find what this one leaves behind.
    assert [key for key in client.scan_iter() if key.endswith((b"::pending", b"::processing", b"::dlq"))] == []


@pytest.fixture
def quiet():
    """The example turns a logger off."""
    logger = logging.getLogger("redis_message_queue")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.mark.in_full  # its source, its sink and its report have tests of their own
def test_the_sales_pipeline_prints_what_its_page_shows(
    spark, clean_server, client, tmp_path, monkeypatch, capsys, quiet
):
    """In the session that is there, which goes on."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    monkeypatch.setattr(sys, "argv", [PROGRAM, str(tmp_path)])
    monkeypatch.setenv("REDIS_URL", clean_server.url)
    runpy.run_path(PROGRAM, run_name="__main__")
    check(capsys.readouterr().out, tmp_path, client)


@pytest.mark.in_full  # a JVM of its own
@pytest.mark.timeout(600)
def test_the_sales_pipeline_is_a_program_that_ends_by_itself(clean_server, client, tmp_path):
    ended = subprocess.run(
        [sys.executable, PROGRAM, str(tmp_path)],
        env=os.environ | {"REDIS_URL": clean_server.url},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr
    check(ended.stdout, tmp_path, client)
