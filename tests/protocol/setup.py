"""The setup of the protocol's tests: queue objects on one in-memory Redis, and where their messages are."""

from collections import Counter
from functools import cache
from typing import Any

from redis_message_queue.options.declared import GatewayOptions, QueueOptions
from redis_message_queue.options.retry_policy import RetryPolicy
from redis_message_queue.protocol.consume.claim import Claim, Claimant, ClaimResult, DroppedMessage
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.sync.message_queue import ProcessMessage
from tests.protocol.memory import MemoryRedis
from tests.protocol.port import MemoryPort

KEYS = QueueKeys.of("orders")
LEASE = 30.0
DELAY = 2.0  # of delayed messages and of retries
LATER = RetryPolicy(initial_delay_seconds=DELAY, multiplier=1, jitter=0)


class HandlerError(Exception):
    """What a handler raises when it fails."""


class Setup:
    """One queue in memory. Claims do not wait and leases last 30 seconds, unless a test says otherwise."""

    def __init__(self, **settings: Any) -> None:
        self.memory = MemoryRedis()
        self.keys = KEYS
        usual = {"message_visibility_timeout_seconds": LEASE, "message_wait_interval_seconds": 0}
        self.settings = _settings(**usual | settings)

    def port(self, *arguments: Any, **options: Any) -> MemoryPort:
        """A port to this memory; see `MemoryPort` for how it can be broken."""
        return MemoryPort(self.memory, *arguments, **options)

    def store(self, port: MemoryPort | None = None) -> RedisStore:
        """The store of one queue object."""
        return RedisStore(port or self.port(), self.keys, self.settings)

    def queue(self, port: MemoryPort | None = None, **options: Any) -> QueueProtocol:
        """One queue object. It keeps handled messages, so that every message is in some list."""
        usual = {"enable_completed_queue": True, "enable_failed_queue": True}
        return QueueProtocol(QueueOptions(name="orders", **usual | options), self.store(port))

    # -- where the messages are

    @property
    def pending(self) -> list[bytes]:
        """The payloads of waiting messages without a tenant, the next one first."""
        return self._waiting_in(self.keys.pending)

    def tenant_queue(self, tenant: str) -> list[bytes]:
        """The payloads of one tenant's waiting messages, the next one first."""
        return self._waiting_in(self.keys.tenant_pending(tenant))

    def _waiting_in(self, key: str) -> list[bytes]:
        return [payload_of(stored) for stored in reversed(self.list_of(key))]

    @property
    def in_tenant_queues(self) -> list[bytes]:
        """The payloads of all tenants' waiting messages."""
        keys = self.memory.keys(self.keys.tenant_pending(""))
        return [payload for key in keys for payload in self._waiting_in(key)]

    @property
    def delayed(self) -> list[bytes]:
        """The payloads of delayed messages, the next one first."""
        bodies = self.hash_of(self.keys.delayed_messages)
        return [payload_of(bodies[key]) for key in self.members_of(self.keys.delayed)]

    @property
    def processing(self) -> list[bytes]:
        return sorted(payload_of(stored) for stored in self.hash_of(self.keys.processing).values())

    @property
    def completed(self) -> list[bytes]:
        return self.list_of(self.keys.completed)

    @property
    def failed(self) -> list[bytes]:
        return self.list_of(self.keys.failed)

    @property
    def dead(self) -> list[bytes]:
        return self.list_of(self.keys.dead_letter)

    @property
    def waiting(self) -> list[bytes]:
        """The payloads of all waiting messages, delayed ones included."""
        return [*self.pending, *self.in_tenant_queues, *self.delayed]

    @property
    def places(self) -> Counter[bytes]:
        """In how many places each message is."""
        return Counter([*self.waiting, *self.processing, *self.completed, *self.failed, *self.dead])

    @property
    def is_notified(self) -> bool:
        """Whether the wake-up key has a token."""
        return bool(self.list_of(self.keys.wakeup))

    # -- what the keys have

    def list_of(self, key: str) -> list[bytes]:
        """The elements of a list, the left end first."""
        return list(self.memory.value(key) or ())

    def hash_of(self, key: str) -> dict[bytes, bytes]:
        return dict(self.memory.value(key) or {})

    def members_of(self, key: str) -> list[bytes]:
        """The members of a sorted set, the lowest score first."""
        value = self.memory.value(key)
        return [] if value is None else [member for _, member in value.order]

    def let_delays_end(self) -> None:
        self.memory.pass_time(DELAY)

    def let_leases_run_out(self) -> None:
        self.memory.pass_time((self.settings.message_visibility_timeout_seconds or 0) + 1)


def payload_of(stored: bytes) -> bytes:
    return Envelope(stored).payload


def _settings(**given: Any) -> GatewayOptions:
    return GatewayOptions(**given) if "tenant_weights" in given else _frozen(**given)


_frozen = cache(GatewayOptions)  # there are thousands of setups, and options do not change


CLAIMANT = Claimant("orders")  # ignores what it is told about dead letters


class Listener(Claimant):
    """A claimant that remembers the dead letters that were reported to it."""

    def __init__(self) -> None:
        super().__init__("orders")
        self.dead: list[DroppedMessage] = []

    async def on_dead(self, result: ClaimResult) -> None:
        self.dead += result.dead


async def requeue(queue: QueueProtocol, claim: Claim, *, forgiven: bool) -> bool:
    """Return a message to the front of its queue."""
    (given,) = await queue.store.settler.requeue([claim], forgiven=forgiven)
    return given


def check_that_slots_are_acquired_once(queue: QueueProtocol) -> None:
    """Two callers with the same slot would get each other's replies."""
    calls = queue.store.calls
    slots = [calls.acquire_slot()]
    while calls._free[1]:
        slots.append(calls.acquire_slot())
    assert len({slot.key for slot in slots}) == len(slots)
    for slot in slots:
        calls.release_slot(slot)


def process_all(queue: QueueProtocol) -> list[bytes]:
    """Handle messages, as the blocking shell does, until the queue is empty."""
    handled = []
    while True:
        with ProcessMessage[bytes](queue) as payload:
            if payload is None:
                return handled
            handled.append(payload)
