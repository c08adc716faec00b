"""The example that needs Spark runs, ends by itself and prints what its page shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "sales"


@pytest.mark.timeout(600)
def test_the_sales_pipeline_prints_what_its_page_shows(clean_server, client, tmp_path):
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE / "sales.py"), str(tmp_path)],
        env=os.environ | {"REDIS_URL": clean_server.url},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == blocks_of(EXAMPLE / "README.md", "text")[0].code
    assert (tmp_path / "report" / "report.html").exists()
    # The next run would find what this one leaves behind.
    assert [key for key in client.scan_iter() if key.endswith((b"::pending", b"::processing", b"::dlq"))] == []
