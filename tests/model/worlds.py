"""The same queue twice, in memory and on a server, and how each is asked and looked at."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import redis

from redis_message_queue.envelope import HAS_ENTRY
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.port import Argument, Command, finish
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.sync.port import BlockingPort
from tests.protocol.memory import MemoryRedis, argument_names, by_deadline, id_of, is_message, payload_of
from tests.protocol.port import Lost, MemoryPort

NAME = "orders"
OBJECTS = 2  # queue objects in each world


class Call(NamedTuple):
    """A call as it left the protocol."""

    command: Command
    open_keys: tuple[str, ...]
    arguments: tuple[Argument, ...]

    @property
    def verb(self) -> str:
        return self.command.script.name

    @property
    def given(self) -> dict[str, Any]:
        names = argument_names(self.command.script.source)
        return dict(zip(names, (*self.command.settings, *self.arguments), strict=False))


class UnreliablePort:
    """Loses the call that it is told to lose, and keeps every call so that it can be sent again at any time."""

    def __init__(self, port: Any, names: Iterable[int], calls: list[Call]) -> None:
        self._port = port
        self._names = iter(names)
        self._calls = calls
        self.executed: list[tuple[Call, Any]] = []
        self.lose: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def call(self, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        lost, self.lose = self.lose, None
        call = Call(command, open_keys, arguments)
        self._calls.append(call)
        if lost == "request":
            raise Lost
        answer = await self.execute(call)
        if lost == "reply":
            raise Lost
        return answer

    async def execute(self, call: Call) -> Any:
        """Send a call, for the first time or again."""
        answer = await self._port.call(*call)
        self.executed.append((call, answer))
        return answer

    def fresh_id(self) -> bytes:
        """The same names in both worlds."""
        return next(self._names).to_bytes(8, "big") * 2


@dataclass
class State:
    """Everything that can be seen of a queue, without what only a clock could tell."""

    pending: list[Any]  # the next one first
    processing: dict[bytes, bytes]
    leases: list[bytes]  # the earliest deadline first
    deliveries: dict[bytes, tuple[int, int]]
    completed: list[bytes]
    failed: list[bytes]
    dead: list[bytes]
    bell: int
    watched: bool
    markers: set[str]
    slots: dict[str, int]  # the number of the last call that each remembers
    flagged: set[bytes] | None = field(default=None, compare=False)  # ids that say of themselves to have an entry

    def lists(self) -> list[list[bytes]]:
        return [self.completed, self.failed, self.dead]


class World:
    """One of the two: its queue objects, and its state."""

    def __init__(self, options: GatewayOptions, port: Any) -> None:
        self.keys = QueueKeys.of(NAME)
        self.calls: list[Call] = []
        names = count(1)
        self.ports = [UnreliablePort(port, names, self.calls) for _ in range(OBJECTS)]
        self.stores = [RedisStore(one, self.keys, options) for one in self.ports]

    def executed(self) -> list[tuple[Call, Any]]:
        return [one for port in self.ports for one in port.executed]

    def send_again(self, number: int) -> Any:
        return finish(self.ports[0].execute(self.calls[number]))


class MemoryWorld(World):
    """The queue in memory."""

    def __init__(self, options: GatewayOptions) -> None:
        self.memory = MemoryRedis()
        super().__init__(options, MemoryPort(self.memory))

    def state(self) -> State:
        memory, keys = self.memory, self.keys
        return State(
            pending=[_line(stored) for stored in reversed(memory.lists[keys.pending])],
            processing={name: payload_of(stored) for name, stored in memory.hashes[keys.processing].items()},
            leases=by_deadline(memory.zsets[keys.leases]),
            deliveries={name: tuple(entry) for name, entry in memory.hashes[keys.deliveries].items()},
            completed=memory.lists[keys.completed],
            failed=memory.lists[keys.failed],
            dead=memory.lists[keys.dead_letter],
            bell=len(memory.lists[keys.bell]),
            watched=memory.get(keys.watch) is not None,
            markers={key for key in memory.strings if "deduplication" in key},
            slots={key: value[0] for key, (value, _) in memory.strings.items() if "reply" in key},
        )

    def let_run_out(self, ids: dict[bytes, int]) -> None:
        leases = self.memory.zsets[self.keys.leases]
        leases.update({name: score for name, score in ids.items() if name in leases})

    def push_foreign(self, values: list[bytes]) -> None:
        self.memory.lists[self.keys.pending][:0] = reversed(values)

    def take_token(self) -> bool:
        return self.memory.take_token(self.keys.bell)


class RealWorld(World):
    """The queue on a server."""

    def __init__(self, options: GatewayOptions, client: redis.Redis) -> None:
        self.client = client
        client.flushall()
        super().__init__(options, BlockingPort(client))

    def state(self) -> State:
        keys = self.keys
        with self.client.pipeline() as asked:
            for name in (keys.pending, keys.completed, keys.failed, keys.dead_letter):
                asked.lrange(name, 0, -1)
            asked.hgetall(keys.processing).zrange(keys.leases, 0, -1).hgetall(keys.deliveries)
            asked.llen(keys.bell).exists(keys.watch).keys("*")
            pending, completed, failed, dead, processing, leases, deliveries, bell, watched, names = asked.execute()
        texts = [name.decode() for name in names]
        replies = sorted(name for name in texts if "reply" in name)
        stored = [*processing.values(), *(one for one in pending if is_message(one))]
        return State(
            pending=[_line(one) for one in reversed(pending)],
            processing={name: payload_of(one) for name, one in processing.items()},
            leases=leases,
            deliveries={name: tuple(map(int, entry.split(b":"))) for name, entry in deliveries.items()},
            completed=completed,
            failed=failed,
            dead=dead,
            bell=bell,
            watched=bool(watched),
            markers={name for name in texts if "deduplication" in name},
            slots={name: int(value[:12]) for name, value in zip(replies, self._read(replies), strict=True)},
            flagged={id_of(one) for one in stored if one[0] & HAS_ENTRY},
        )

    def _read(self, names: list[str]) -> list[bytes]:
        return self.client.mget(names) if names else []

    def let_run_out(self, ids: dict[bytes, int]) -> None:
        if ids:
            self.client.zadd(self.keys.leases, ids, xx=True)

    def push_foreign(self, values: list[bytes]) -> None:
        self.client.lpush(self.keys.pending, *values)

    def take_token(self) -> bool:
        return self.client.lpop(self.keys.bell) is not None


def _line(stored: bytes) -> Any:
    """A message by its id and payload; other bytes as they are."""
    return (id_of(stored), payload_of(stored)) if is_message(stored) else stored
