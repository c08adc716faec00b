"""A dashboard of queues in all states, and browsers without a window."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import httpx
import pytest

from redis_message_queue.embedded import EmbeddedRedis
from tests.dashboard.running import Running, dashboard, served
from tests.dashboard.scenario import QUEUES, fill

Start = Callable[..., Running]
Serve = Callable[..., contextlib.AbstractContextManager[httpx.Client]]


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
def serve(clean_server: EmbeddedRedis) -> Serve:
    """Serves a dashboard of these queues in this process, for a block that gets a browser of it."""
    return functools.partial(served, clean_server.url)


@pytest.fixture
def browser(scene, serve: Serve) -> Iterator[httpx.Client]:
    """A browser of a read-only dashboard of all queues."""
    with serve(*QUEUES) as opened:
        yield opened


@pytest.fixture
def editor(scene, serve: Serve) -> Iterator[httpx.Client]:
    """A browser of a dashboard that allows changes."""
    with serve(*QUEUES, allow_changes=True) as opened:
        yield opened
