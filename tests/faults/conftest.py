"""The faulty network, the four ways into it, and a look at what is really in Redis."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis

from redis_message_queue import scripts
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.envelope import TOKEN_BYTES
from redis_message_queue.keys import QueueKeys
from tests.faults.proxy import FaultyProxy
from tests.faults.shells import WAYS, BlockingShell


@dataclass
class Truth:
    """The queue "faults" as the server has it, past all faults."""

    client: redis.Redis
    key: QueueKeys

    @property
    def pending(self) -> int:
        return self.client.llen(self.key.pending)

    @property
    def processing(self) -> int:
        return self.client.hlen(self.key.processing)

    @property
    def completed(self) -> list[bytes]:
        """Payloads, oldest first."""
        return self.client.lrange(self.key.completed, 0, -1)[::-1]

    @property
    def failed(self) -> list[bytes]:
        return self.client.lrange(self.key.failed, 0, -1)[::-1]

    @property
    def dead(self) -> list[bytes]:
        return self.client.lrange(self.key.dead_letter, 0, -1)[::-1]

    @property
    def deadlines(self) -> list[float]:
        return [score for _, score in self.client.zrange(self.key.leases, 0, -1, withscores=True)]

    def end_leases(self) -> None:
        """As if the time of every lease were over."""
        held = [one for one in self.client.zrange(self.key.leases, 0, -1) if len(one) == TOKEN_BYTES]
        if held:
            self.client.zadd(self.key.leases, dict.fromkeys(held, 1), xx=True)

    @property
    def is_empty(self) -> bool:
        """Nothing waits, is in flight, or was left behind by what was."""
        leftovers = (self.key.pending, self.key.processing, self.key.leases, self.key.deliveries)
        return not self.client.exists(*leftovers)


@pytest.fixture
def truth(client: redis.Redis) -> Truth:
    # The scripts are there already, so that a test can count on one request for each call.
    for name in scripts.all_names():
        client.script_load(scripts.script(name).source)
    # And the queues have been used before: the first contact has tests of its own.
    for name in ("faults", "results"):
        client.hset(QueueKeys.of(name).meta, "version", 1)
    return Truth(client, QueueKeys.of("faults"))


@pytest.fixture
def proxy(server: EmbeddedRedis, truth: Truth) -> Iterator[FaultyProxy]:
    """What stands between the queue under test and the shared server."""
    with FaultyProxy(server.port) as opened:
        yield opened


@pytest.fixture(params=WAYS)
def shell(request: pytest.FixtureRequest, proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """Both colours, and both ways of sending; all of them through the proxy."""
    opened = WAYS[request.param](proxy.port)
    yield opened
    opened.close()
