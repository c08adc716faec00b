"""The same queue in memory and on a server, with one interface for both."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import redis

from redis_message_queue.envelope import HAS_ENTRY
from redis_message_queue.keys import REGISTRY_KEY, QueueKeys
from redis_message_queue.options import GatewayOptions, QueueOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.port import Argument, Command, finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.sync.port import BlockingPort
from tests.protocol.backlog import Place, alarms, by_score, tenant_backlog
from tests.protocol.header import argument_names
from tests.protocol.memory import MemoryRedis
from tests.protocol.port import Lost, MemoryPort
from tests.protocol.stored import Entry, id_of, is_message, payload_of, tenant_of

NAME, OTHER = "orders", "refunds"  # a queue, and one that gets what the handlers of the first hand off
OBJECTS = 2  # queue objects in each world
KEPT = ("completed", "failed", "dlq")
KEPT_AT_MOST = 3
LONG_AGO = (1).to_bytes(8, "big")  # a time of publication


class Call(NamedTuple):
    """A call as it left the protocol."""

    command: Command
    extra_keys: tuple[str, ...]
    arguments: tuple[Argument, ...]

    @property
    def verb(self) -> str:
        return self.command.script.name

    @property
    def given(self) -> dict[str, Any]:
        names = argument_names(self.command.script.source)
        return dict(zip(names, (*self.command.settings, *self.arguments), strict=False))

    @property
    def rest(self) -> tuple[Argument, ...]:
        """The arguments after the named ones."""
        return (*self.command.settings, *self.arguments)[len(argument_names(self.command.script.source)) :]


class UnreliablePort:
    """Loses a call on request, and keeps every call so that the test can send it again."""

    def __init__(self, port: Any, names: Iterable[int], calls: list[Call]) -> None:
        self._port = port
        self._names = iter(names)
        self._calls = calls
        self.executed: list[tuple[Call, Any]] = []
        self.lose: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        lost, self.lose = self.lose, None
        call = Call(command, extra_keys, arguments)
        self._calls.append(call)
        if lost == "request":
            raise Lost
        answer = await self.execute(call)
        if lost == "reply":
            raise Lost
        return answer

    async def call_both(self, first: Any, second: Any) -> tuple[Any, Any]:
        """In one round trip: a loss is the loss of both."""
        lost, self.lose = self.lose, None
        calls = (Call(*first), Call(*second))
        self._calls += calls
        if lost == "request":
            raise Lost
        answers = [await self.execute(call) for call in calls]
        if lost == "reply":
            raise Lost
        return answers[0], answers[1]

    async def execute(self, call: Call) -> Any:
        """Send a call, for the first time or again."""
        answer = await self._port.call(*call)
        self.executed.append((call, answer))
        return answer

    def new_id(self) -> bytes:
        """Return the same ids in both implementations."""
        return next(self._names).to_bytes(8, "big") * 2

    def slot_name(self) -> bytes:
        return next(self._names).to_bytes(15, "big")


class Seen(NamedTuple):
    """A stored message, without the time of its publication."""

    id: bytes
    tenant: bytes
    payload: bytes


@dataclass
class State:
    """All keys and their values, without what depends on a clock; keys of the queue have no prefix."""

    keys: dict[str, Any]
    flagged: set[bytes] = field(
        default_factory=set, compare=False
    )  # ids of messages that say they have delivery counts
    due: Mapping[bytes, float] = field(default_factory=dict, compare=False)  # of leases and alarms, on the server
    delays: Mapping[bytes, float] = field(default_factory=dict, compare=False)

    def __getitem__(self, word: str) -> Any:
        empty = {"LIST": [], "ZSET": [], "HASH": {}, "STRING": 0}
        return self.keys.get(word, empty[_TYPES[word.partition("::")[0]]])

    def places(self, message_id: bytes) -> int:
        """Return in how many places a message is, in this queue and the other."""
        values = (one.values() if isinstance(one, dict) else one for one in self.keys.values())
        messages = [seen for one in values if not isinstance(one, bool | int | bytes) for seen in one]
        return sum(isinstance(one, Seen) and one.id == message_id for one in messages)

    def by_tenant(self, word: str) -> dict[bytes, list[Any]]:
        """Return the pending, or the expired, messages of all tenants."""
        return {
            name.partition("::")[2].encode(): value for name, value in self.keys.items() if name.startswith(f"{word}::")
        }

    @property
    def waiting(self) -> list[Any]:
        """All pending messages, with and without a tenant."""
        return [*self["pending"], *(one for line in self.by_tenant("tenant_pending").values() for one in line)]

    @property
    def expired(self) -> list[bytes]:
        """Messages whose lease expired, which wait for the turn of their tenant."""
        return [one for ids in self.by_tenant("expired").values() for one in ids]

    @property
    def leased(self) -> list[bytes]:
        """Messages that have a lease, the earliest deadline first."""
        return [one for one in self["leases"] if one not in (b"r", b"d")]


_TYPES = {
    **dict.fromkeys(("pending", "tenant_pending", "completed", "failed", "dlq", "records", "wakeup"), "LIST"),
    **dict.fromkeys(("leases", "delayed", "expired", "tenant_ring"), "ZSET"),
    **dict.fromkeys(("processing", "deliveries", "delayed_messages", "weights", "meta"), "HASH"),
    **dict.fromkeys(("tenant_backlog", "timer_owner", "reply", "deduplication", "longest"), "STRING"),
}


def _seen(stored: bytes) -> Any:
    """Return a message without its time, and foreign bytes as they are."""
    return Seen(id_of(stored), tenant_of(stored), payload_of(stored)) if is_message(stored) else stored


def _time(score: float | Place) -> int:
    """Return the virtual time of a tenant. The order of the ring shows who comes first at the same time."""
    return score.time if isinstance(score, Place) else int(score)


def _without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if name in ("finished", "published", "claimed") else value for name, value in record.items()}


# How to compare the value of a key; all other values are compared as they are.
_READ: dict[str, Callable[[Any], Any]] = {
    "pending": lambda line: [_seen(one) for one in reversed(line)],  # the next one first
    "tenant_pending": lambda line: [_seen(one) for one in reversed(line)],
    "processing": lambda bodies: {name: _seen(one) for name, one in bodies.items()},
    "delayed_messages": lambda bodies: {name: _seen(one) for name, one in bodies.items()},
    "tenant_ring": lambda ring: [(tenant, _time(ring[tenant])) for tenant in by_score(ring)],
    "leases": by_score,
    "delayed": by_score,
    "expired": by_score,
    "records": lambda records: [_without_times(one) for one in records],
    "timer_owner": lambda _: True,
}


def _comparable(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return all keys that are not empty, in a form that can be compared."""
    return {
        name.removeprefix(f"{NAME}::"): _READ.get(_kind(name), lambda same: same)(value)
        for name, value in found.items()
        if value not in ([], {}, None)
    }


def _kind(name: str) -> str:
    """Return the second word of a key, which says what the key stores."""
    return name.split("::")[1]


class Backend(ABC):
    """One of the two implementations: its queue objects, and its state."""

    def __init__(self, options: GatewayOptions, port: Any) -> None:
        self.keys = QueueKeys.of(NAME)
        self.calls: list[Call] = []
        names = count(1)
        self.ports = [UnreliablePort(port, names, self.calls) for _ in range(OBJECTS)]
        self.stores = [RedisStore(one, self.keys, options) for one in self.ports]
        # One of them keeps completed messages.
        kept: dict[str, Any] = {"enable_completed_queue": True, "max_completed_length": KEPT_AT_MOST}
        of_objects = [QueueOptions(name=NAME, **kept), QueueOptions(name=NAME)]
        self.queues = [QueueProtocol(*one) for one in zip(of_objects, self.stores, strict=True)]
        other = RedisStore(self.ports[0], QueueKeys.of(OTHER), GatewayOptions(max_pending_length=3))
        self.other = QueueProtocol(QueueOptions(name=OTHER), other)

    def executed(self) -> list[tuple[Call, Any]]:
        return [one for port in self.ports for one in port.executed]

    def send_again(self, number: int) -> Any:
        return finish(self.ports[0].execute(self.calls[number]))

    def slots(self, at: int) -> Calls:
        """The reply slots of one queue object."""
        calls = self.stores[at].calls
        assert calls is not None
        return calls

    @abstractmethod
    def state(self) -> State:
        """Every key there is."""

    @abstractmethod
    def let_run_out(self, ids: dict[bytes, int]) -> None:
        """Let these leases expire, in the order of their numbers."""

    @abstractmethod
    def let_delays_end(self, ids: dict[bytes, int]) -> None:
        """Make these delayed messages due, in the order of their numbers."""

    @abstractmethod
    def let_grow_old(self, ids: set[bytes]) -> None:
        """Make these messages older than their time to live."""

    @abstractmethod
    def put_in_front(self, line: str, values: list[bytes]) -> None:
        """Write foreign values to the end of a list that is read next."""

    @abstractmethod
    def push_foreign(self, values: list[bytes]) -> None:
        """Write foreign values as a publisher would."""

    @abstractmethod
    def take_token(self) -> bool:
        """Take the wake-up token, if there is one."""


class MemoryBackend(Backend):
    """The queue in memory."""

    def __init__(self, options: GatewayOptions) -> None:
        self.memory = MemoryRedis()
        self.memory.knows_all_queues = False
        self.memory.hashes[QueueKeys.of(OTHER).meta][b"version"] = 1  # the queue was used before
        super().__init__(options, MemoryPort(self.memory))

    def state(self) -> State:
        memory = self.memory
        strings = {key: memory.get(key) for key in memory.strings}
        found = {**memory.lists, **memory.hashes, **memory.zsets, **strings}
        found |= {key: value[0] for key, value in strings.items() if "reply" in key and value is not None}
        for keys in (self.keys, self.other.store.keys):
            leases, ring, delayed = (memory.zsets[key] for key in (keys.leases, keys.tenant_ring, keys.delayed))
            found[keys.leases] = leases | alarms(ring, delayed)
            found[keys.tenant_backlog] = tenant_backlog(memory.lists, keys.tenant_pending("")) or None
        return State(_comparable(found))

    def let_run_out(self, ids: dict[bytes, int]) -> None:
        leases = self.memory.zsets[self.keys.leases]
        leases.update({name: score for name, score in ids.items() if name in leases})

    def let_delays_end(self, ids: dict[bytes, int]) -> None:
        self.memory.zsets[self.keys.delayed].update(ids)

    def let_grow_old(self, ids: set[bytes]) -> None:
        memory, keys = self.memory, self.keys
        for line in memory.lists.values():
            line[:] = [_grown_old(one, ids) for one in line]
        for key in (keys.processing, keys.delayed_messages):
            memory.hashes[key].update({name: _grown_old(one, ids) for name, one in memory.hashes[key].items()})

    def put_in_front(self, line: str, values: list[bytes]) -> None:
        self.memory.lists[line] += values

    def push_foreign(self, values: list[bytes]) -> None:
        self.memory.lists[self.keys.pending][:0] = reversed(values)

    def take_token(self) -> bool:
        return self.memory.take_token(self.keys.wakeup)


class RedisBackend(Backend):
    """The queue on a server."""

    def __init__(self, options: GatewayOptions, client: redis.Redis) -> None:
        self.client: Any = client  # whose replies have many types
        client.flushall()
        client.hset(QueueKeys.of(OTHER).meta, "version", 1)
        super().__init__(options, BlockingPort(client))

    def state(self) -> State:
        found = self._everything()
        keys = self.keys
        bodies = [body for key in (keys.processing, keys.delayed_messages) for body in found.get(key, {}).values()]
        lines = [line for key, line in found.items() if key == keys.pending or key.startswith(keys.tenant_pending(""))]
        stored = [*bodies, *(one for line in lines for one in line if is_message(one))]
        return State(
            _comparable(found),
            flagged={id_of(one) for one in stored if one[0] & HAS_ENTRY},
            due=found.get(keys.leases, {}),
            delays=found.get(keys.delayed, {}),
        )

    def _everything(self) -> dict[str, Any]:
        # The memory has no registry of queues: nothing depends on it.
        names = sorted(name.decode() for name in self.client.keys("*") if name != REGISTRY_KEY.encode())
        with self.client.pipeline(transaction=False) as asked:
            for name in names:
                kind = _TYPES[_kind(name)]
                if kind == "LIST":
                    asked.lrange(name, 0, -1)
                elif kind == "ZSET":
                    asked.zrange(name, 0, -1, withscores=True)
                elif kind == "HASH":
                    asked.hgetall(name)
                else:
                    asked.get(name)
            answers = asked.execute()
        return {name: _parsed(_kind(name), answer) for name, answer in zip(names, answers, strict=True)}

    def let_run_out(self, ids: dict[bytes, int]) -> None:
        if ids:
            self.client.zadd(self.keys.leases, ids, xx=True)

    def let_delays_end(self, ids: dict[bytes, int]) -> None:
        """The alarm moves with the first of them, as it would in time."""
        self.client.zadd(self.keys.delayed, ids)
        ((_, first),) = self.client.zrange(self.keys.delayed, 0, 0, withscores=True)
        self.client.zadd(self.keys.leases, {b"d": first})

    def let_grow_old(self, ids: set[bytes]) -> None:
        keys = self.keys
        lines = [name.decode() for name in self.client.keys(keys.tenant_pending("*"))]
        with self.client.pipeline() as changed:
            for key in (keys.pending, *lines):
                for place, one in enumerate(self.client.lrange(key, 0, -1)):
                    changed.lset(key, place, _grown_old(one, ids))
            for key in (keys.processing, keys.delayed_messages):
                for name, one in self.client.hgetall(key).items():
                    changed.hset(key, name, _grown_old(one, ids))
            changed.execute()

    def put_in_front(self, line: str, values: list[bytes]) -> None:
        self.client.rpush(line, *values)

    def push_foreign(self, values: list[bytes]) -> None:
        self.client.lpush(self.keys.pending, *values)

    def take_token(self) -> bool:
        return self.client.lpop(self.keys.wakeup) is not None


def _parsed(kind: str, answer: Any) -> Any:
    """Return the reply of redis-py for a key in the form of the memory."""
    if _TYPES[kind] == "ZSET":
        return dict(answer)
    if kind == "records":
        return [json.loads(one) for one in answer]
    if kind == "deliveries":
        return {name: Entry(*map(int, entry.split(b":"))) for name, entry in answer.items()}
    if kind in ("weights", "meta"):
        return {name: int(weight) for name, weight in answer.items()}
    if kind == "tenant_backlog":
        return int(answer)
    return int(answer[:12]) if kind == "reply" else answer


def _grown_old(stored: Any, ids: set[bytes]) -> Any:
    is_meant = isinstance(stored, bytes) and is_message(stored) and id_of(stored) in ids
    return stored[:17] + LONG_AGO + stored[25:] if is_meant else stored
