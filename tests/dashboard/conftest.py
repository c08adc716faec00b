"""A dashboard of queues in all states, and browsers without a window."""

import contextlib
from collections.abc import Callable, Iterator

import httpx
import pytest

from redis_message_queue.embedded import EmbeddedRedis
from tests.dashboard.running import Running, dashboard
from tests.dashboard.scenario import QUEUES, fill

Start = Callable[..., Running]


@pytest.fixture
def start_dashboard(clean_server: EmbeddedRedis) -> Iterator[Start]:
    """Starts `rmq dashboard`; it ends with the test."""
    with contextlib.ExitStack() as started:

        def start(*arguments: str, url: str = clean_server.url, **variables: str) -> Running:
            return started.enter_context(dashboard(*arguments, url=url, **variables))

        yield start


@pytest.fixture
def scene(client) -> None:
    """Queues in all states."""
    fill(client)


@pytest.fixture
def browser(scene, start_dashboard) -> Iterator[httpx.Client]:
    """A browser of a read-only dashboard of all queues."""
    with start_dashboard(*QUEUES).browser() as opened:
        yield opened


@pytest.fixture
def editor(scene, start_dashboard) -> Iterator[httpx.Client]:
    """A browser of a dashboard that allows changes."""
    with start_dashboard(*QUEUES, "--allow-changes").browser() as opened:
        yield opened
