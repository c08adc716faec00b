"""The dashboard inside somebody's own application."""

import os
import socket
import sys
from pathlib import Path

import httpx
import pytest

from tests.dashboard.pages import Page
from tests.dashboard.running import BROWSER
from tests.dashboard.test_access import csrf_of
from tests.fork_server import Program

pytestmark = pytest.mark.topic("Dashboard")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mounted(scene, clean_server):
    """A browser of an application that has the dashboard under /ops/queues."""
    # We listen, so that no other program can take the port, and a request waits until the application is there.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = ["tests.dashboard.mounted_app:app", "--log-level", "warning", "--fd", str(listener.fileno())]
        running = Program(
            [sys.executable, "-W", "error", "-m", "uvicorn", *words],
            env=os.environ | {"REDIS_URL": clean_server.url},
            cwd=ROOT,
            pass_fds=[listener.fileno()],
        )
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, **BROWSER) as browser:
                yield browser
        finally:
            running.terminate()
            running.wait(120)


@pytest.mark.promise("The dashboard can be mounted in any ASGI application.")
def test_all_addresses_stay_below_the_mount(mounted):
    for path in ("/", "/queue?name=orders", "/messages?name=payments&source=failed", "/nowhere"):
        page = Page(mounted.get(f"/ops/queues{path}"))
        targets = [one.get(name, "") for _, one in page.elements for name in ("href", "src", "action", "data-events")]
        assert [one for one in targets if one and one != "#main" and not one.startswith("/ops/queues/")] == []
        (script,) = page.all("script")
        assert mounted.get(script["src"]).status_code == 200
    with mounted.stream("GET", "/ops/queues/events?name=orders") as response:
        assert any(line.startswith("data: ") for line in response.iter_lines())


def test_a_client_that_decodes_works_too_and_changes_arrive(mounted, client):
    assert "3 messages are in flight" in Page(mounted.get("/ops/queues/queue?name=orders")).words
    asked = {"name": "payments", "action": "redrive", "source": "failed"}
    csrf = csrf_of(mounted.get("/ops/queues/change", params=asked))
    answer = mounted.post(
        "/ops/queues/change", params=asked, data={"csrf": csrf}, headers={"origin": str(mounted.base_url)}
    )
    assert "Published 6 messages again." in Page(answer).words
    assert client.llen("payments::pending") == 6
