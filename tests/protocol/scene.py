"""A stage for the protocol's tests: queue objects on one memory, and where their messages are."""

from collections import Counter
from functools import cache
from typing import Any

from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions, QueueOptions
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.retry_policy import RetryPolicy
from redis_message_queue.sync.queue import ProcessMessage
from tests.protocol.lines import by_score
from tests.protocol.memory import MemoryRedis
from tests.protocol.port import MemoryPort
from tests.protocol.stored import payload_of

LEASE = 30.0
DELAY = 2.0  # of messages that wait for their time, or for their next attempt
LATER = RetryPolicy(initial_delay_seconds=DELAY, multiplier=1, jitter=0)


class HandlerError(Exception):
    """What a handler raises when it fails."""


class Scene:
    """One queue in memory. Nobody waits for messages, and leases last 30 seconds, unless a test says otherwise."""

    def __init__(self, **settings: Any) -> None:
        self.memory = MemoryRedis()
        self.keys = QueueKeys.of("orders")
        usual = {"message_visibility_timeout_seconds": LEASE, "message_wait_interval_seconds": 0}
        self.settings = _settings(**usual | settings)

    def port(self, *arguments: Any, **options: Any) -> MemoryPort:
        """A port to this memory; see `MemoryPort` for how it can be broken."""
        return MemoryPort(self.memory, *arguments, **options)

    def store(self, port: MemoryPort | None = None) -> RedisStore:
        """The verbs of one queue object."""
        return RedisStore(port or self.port(), self.keys, self.settings)

    def queue(self, port: MemoryPort | None = None, **options: Any) -> QueueProtocol:
        """One queue object. It keeps what it handled, so that every message can be found somewhere."""
        usual = {"enable_completed_queue": True, "enable_failed_queue": True}
        return QueueProtocol(QueueOptions(name="orders", **usual | options), self.store(port))

    # -- where the messages are

    @property
    def pending(self) -> list[bytes]:
        """The payloads in line, the next one first."""
        return self._waiting_in(self.keys.pending)

    def line(self, tenant: str) -> list[bytes]:
        """The same for one tenant."""
        return self._waiting_in(self.keys.line(tenant))

    def _waiting_in(self, key: str) -> list[bytes]:
        return [payload_of(stored) for stored in reversed(self.memory.lists[key])]

    @property
    def in_lines(self) -> list[bytes]:
        """The payloads in the lines of all tenants."""
        keys = [key for key in self.memory.lists if key.startswith(self.keys.line(""))]
        return [payload for key in keys for payload in self._waiting_in(key)]

    @property
    def later(self) -> list[bytes]:
        """The payloads that wait for their time, the next one first."""
        bodies = self.memory.hashes[self.keys.later]
        return [payload_of(bodies[key]) for key in by_score(self.memory.zsets[self.keys.delayed])]

    @property
    def processing(self) -> list[bytes]:
        return sorted(payload_of(stored) for stored in self.memory.hashes[self.keys.processing].values())

    @property
    def completed(self) -> list[bytes]:
        return self.memory.lists[self.keys.completed]

    @property
    def failed(self) -> list[bytes]:
        return self.memory.lists[self.keys.failed]

    @property
    def dead(self) -> list[bytes]:
        return self.memory.lists[self.keys.dead_letter]

    @property
    def waiting(self) -> list[bytes]:
        """The payloads that wait, for their turn or for their time."""
        return [*self.pending, *self.in_lines, *self.later]

    @property
    def places(self) -> Counter[bytes]:
        """In how many places each message is."""
        return Counter([*self.waiting, *self.processing, *self.completed, *self.failed, *self.dead])

    @property
    def rings(self) -> bool:
        """Whether a token lies in the bell."""
        return bool(self.memory.lists[self.keys.bell])

    def let_delays_end(self) -> None:
        self.memory.pass_time(DELAY)

    def let_leases_run_out(self) -> None:
        self.memory.pass_time((self.settings.message_visibility_timeout_seconds or 0) + 1)


def _settings(**given: Any) -> GatewayOptions:
    return GatewayOptions(**given) if "tenant_weights" in given else _frozen(**given)


_frozen = cache(GatewayOptions)  # there are thousands of scenes, and they do not change


async def nobody_listens(error: Exception, tries: int) -> None:
    """The protocol tells of each failed try; here nobody wants to know."""


async def give_back(queue: QueueProtocol, claim: Claim, *, forgiven: bool) -> bool:
    """Return a message to the line."""
    (given,) = await queue.store.settler.give_back([claim], forgiven=forgiven)
    return given


def check_that_slots_are_lent_once(queue: QueueProtocol) -> None:
    """Two callers with one slot would be given each other's answers."""
    slots = [queue.store.calls.borrow() for _ in range(4)]
    assert len({slot.key for slot in slots}) == len(slots)
    for slot in slots:
        queue.store.calls.give_back(slot)


def process_all(queue: QueueProtocol) -> list[bytes]:
    """Handle messages, as the blocking shell does, until the queue is empty."""
    handled = []
    while True:
        with ProcessMessage(queue) as payload:
            if payload is None:
                return handled
            handled.append(payload)
