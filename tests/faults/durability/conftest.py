"""A primary with replicas behind a proxy, and the shells that publish to it."""

from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from tests.concurrency import until
from tests.faults.durability.replicas import SYNC_AND_ASYNC, WAYS, Family
from tests.faults.proxy import FaultyProxy
from tests.faults.shells import BlockingShell


@pytest.fixture(scope="module")
def running_family(server_setting: str) -> Iterator[Family]:
    """Shared, because a first copy takes a second; a test that kills somebody starts its own servers."""
    with Family(server_setting) as started:
        yield started


@pytest.fixture
def family(running_family: Family) -> Family:
    """Empty, in step, and nobody waits for anything."""
    running_family.clean()
    until(lambda: running_family.blocked() == 0)
    return running_family


@pytest.fixture
def proxy(family: Family) -> Iterator[FaultyProxy]:
    """What stands between the queue under test and the primary."""
    with FaultyProxy(family.primary.port) as opened:
        yield opened


@pytest.fixture(params=SYNC_AND_ASYNC)
def shell(request: pytest.FixtureRequest, proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """Sync and async on the hand-packed path; `every_way` adds the ordinary path."""
    opened = WAYS[request.param](proxy.port)
    yield opened
    opened.close()


@pytest.fixture
def blocking(proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """For what only threads can do."""
    opened = BlockingShell(proxy.port, redis.Redis)
    yield opened
    opened.close()
