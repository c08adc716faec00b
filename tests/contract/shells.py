"""One way to write a test for both shells: the sync queue with awaitable methods, the async queue as it is."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
import redis_message_queue.protocol.consume.part_claimer
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored.envelope import TOKEN_BYTES
from redis_message_queue.stored.keys import REGISTRY_KEY
from redis_message_queue.values.events import QueueEvent
from tests import depth

# Longer than anything here should take, however busy the machine is; a test that waits this long has failed.
LIMIT_SECONDS = 120.0

# Long names of options that many tests need.
SHORT_NAMES = {"wait": "message_wait_interval_seconds", "window": "message_deduplication_log_ttl_seconds"}

# Long enough that no lease ends by itself here; renewals come often.
BEATING: dict[str, Any] = {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 0.05}


@dataclass(frozen=True)
class Wiring:
    """How a client speaks with the server."""

    subclassed: bool = False  # not redis-py's own class: no command is packed by hand
    decode_responses: bool = False
    protocol: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {"decode_responses": self.decode_responses}
        return chosen if self.protocol is None else chosen | {"protocol": self.protocol}

    def __str__(self) -> str:
        way = "ordinary" if self.subclassed else "packed"
        return f"{way}-{'text' if self.decode_responses else 'bytes'}-resp{self.protocol}"


# Every combination in `make full`; otherwise half of them, in which each pair of choices meets once.
EVERY_WIRING = [
    Wiring(subclassed, decodes, protocol)
    for subclassed in (False, True)
    for decodes in (False, True)
    for protocol in (2, 3)
    if depth.FULL or (subclassed + decodes + protocol) % 2 == 0
]


class SubclassedRedis(redis.Redis):
    """Stands for every client that is not redis-py's own: instrumented, wrapped, extended."""


class SubclassedAsyncRedis(redis.asyncio.Redis):
    """The same for asyncio."""


def script_name(sha: str) -> str:
    """The name of the script with this hash."""
    from tests.faults.proxy import our_scripts

    return our_scripts()[sha]


class Losses:
    """What happens to the scripts that a client sends: one fate each, in turn; afterwards all is well."""

    def __init__(self) -> None:
        self._fates: list[str] = []
        self._only: str | None = None
        self.sent = 0

    def reply(self, times: int = 1) -> None:
        """The server does its work and the answer is lost."""
        self._fates += ["reply"] * times

    def request(self, times: int = 1, *, only: str | None = None) -> None:
        """The server never hears of it; with `only`, calls of other scripts pass meanwhile."""
        self._fates += ["request"] * times
        self._only = only

    def pass_on(self, times: int = 1) -> None:
        """Nothing happens to it."""
        self._fates += ["nothing"] * times

    def heal(self) -> None:
        """The connection is good again."""
        self._fates.clear()
        self._only = None

    def before(self, command: str, *arguments: Any) -> None:
        if self._concerns(command, arguments):
            self.sent += 1
            if self._fates[:1] == ["request"]:
                self._fates.pop(0)
                raise redis.exceptions.ConnectionError("cut before the request")

    def after(self, command: str, *arguments: Any) -> None:
        if self._concerns(command, arguments) and self._fates and self._fates.pop(0) == "reply":
            raise redis.exceptions.ConnectionError("cut after the execution")

    def _concerns(self, command: str, arguments: tuple[Any, ...]) -> bool:
        if command not in ("EVALSHA", "EVAL"):
            return False
        return self._only is None or (command == "EVALSHA" and script_name(arguments[0]) == self._only)


class LossyRedis(redis.Redis):
    """A client whose connection breaks where `losses` says."""

    losses: Losses

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.losses.before(*args)
        answer = super().execute_command(*args, **options)
        self.losses.after(*args)
        return answer


class LossyAsyncRedis(redis.asyncio.Redis):
    """The same for asyncio."""

    losses: Losses

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.losses.before(*args)
        answer = await super().execute_command(*args, **options)
        self.losses.after(*args)
        return answer


class Events:
    """Everything that a queue told its listener, in order."""

    def __init__(self, *, awaited: bool) -> None:
        self.all: list[QueueEvent] = []
        self.listen: Callable[[QueueEvent], Any] = self._listen_awaited if awaited else self.all.append

    async def _listen_awaited(self, event: QueueEvent) -> None:
        self.all.append(event)

    @property
    def names(self) -> list[str]:
        """operation/outcome of each."""
        return [f"{event.operation}/{event.outcome}" for event in self.all]

    def of(self, operation: str) -> list[QueueEvent]:
        return [event for event in self.all if event.operation == operation]

    def the(self, operation: str) -> QueueEvent:
        """The only event of that operation."""
        (event,) = self.of(operation)
        return event

    async def wait_for(self, operation: str, count: int = 1) -> None:
        assert await until(lambda: len(self.of(operation)) >= count), f"no {operation}: {self.names}"

    def clear(self) -> None:
        self.all.clear()


class Sent:
    """Every command that clients send to the server while this is open; what scripts call is left out."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self._server = server
        self.lines: list[str] = []

    def __enter__(self) -> Sent:
        self._client = self._server.client()
        self._monitor = self._client.monitor().__enter__()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._started = time.monotonic()
        return self

    def __exit__(self, *error: Any) -> None:
        self.seconds = time.monotonic() - self._started
        with self._server.client() as client:
            client.echo("end of the observation")
        self._reader.join(LIMIT_SECONDS)
        self._monitor.__exit__(*error)
        self._client.close()

    def _read(self) -> None:
        for heard in self._monitor.listen():
            if "end of the observation" in heard["command"]:
                return
            if heard["client_type"] != "lua" and not heard["command"].startswith(("HELLO", "CLIENT")):
                self.lines.append(heard["command"])

    @property
    def commands(self) -> list[str]:
        """The verbs alone."""
        return [line.split(" ", 1)[0] for line in self.lines]

    @property
    def scripts(self) -> list[str]:
        """The names of the scripts that were called, in order; other commands are left out."""
        words = [line.split(" ", 2) for line in self.lines]
        return [script_name(word[1].strip('"')) for word in words if word[0] == "EVALSHA"]


async def until(happened: Callable[..., Any], within_seconds: float = LIMIT_SECONDS) -> bool:
    """Wait without blocking tasks; whether it happened in time."""
    deadline = time.monotonic() + within_seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


class BlockingQueue:
    """The sync queue with the asyncio queue's shape; each call is made inline, in the thread of the caller.

    Only `run`, which would hold that thread until it is stopped, has one of its own.
    """

    def __init__(self, queue: redis_message_queue.RedisMessageQueue, start: Callable[..., Awaitable[Any]]) -> None:
        self.queue = queue
        self.current_message = queue.current_message
        self._start = start

    @property
    def key(self) -> Any:
        return self.queue.key

    async def publish(self, message: Any, **details: Any) -> bool:
        return self.queue.publish(message, **details)

    async def publish_many(self, messages: Any, **details: Any) -> list[bool]:
        return self.queue.publish_many(messages, **details)

    def process_messages(self, *arguments: Any, **options: Any) -> BlockingBatchContext:
        return BlockingBatchContext(self.queue.process_messages(*arguments, **options))

    async def run(self, *arguments: Any, **options: Any) -> Any:
        return await self._start(lambda: self.queue.run(*arguments, **options))

    async def stats(self) -> Any:
        return self.queue.stats()

    async def records(self, *arguments: Any, **options: Any) -> list[Any]:
        return self.queue.records(*arguments, **options)

    async def process_message_callback(self, handler: Any) -> bool:
        return self.queue.process_message_callback(handler)

    async def drain(self, timeout: float | None = None) -> bool:
        return self.queue.drain(timeout)

    def process_message(self) -> BlockingContext:
        return BlockingContext(self.queue.process_message())


class BlockingContext:
    def __init__(self, context: Any) -> None:
        self._context = context

    async def __aenter__(self) -> Any:
        return self._context.__enter__()

    async def __aexit__(self, *error: Any) -> Any:
        return self._context.__exit__(*error)


class BlockingBatchContext(BlockingContext):
    async def __aenter__(self) -> Any:
        return BlockingBatch(self._context.__enter__())


class BlockingBatch(Sequence[Any]):
    """The sync queue's batch with the asyncio batch's shape."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __getitem__(self, place: Any) -> Any:
        return self.batch[place]

    def __len__(self) -> int:
        return len(self.batch)

    async def ack(self, message: Any) -> bool:
        return bool(self.batch.ack(message))

    async def fail(self, message: Any, error: Any) -> bool:
        return bool(self.batch.fail(message, error))


class AsyncioQueue:
    """The asyncio queue, with the way to the object itself that `BlockingQueue` has."""

    def __init__(self, queue: redis_message_queue.asyncio.RedisMessageQueue) -> None:
        self.queue = queue
        self.current_message = queue.current_message
        self.publish = queue.publish
        self.publish_many = queue.publish_many
        self.process_messages = queue.process_messages
        self.run = queue.run
        self.stats = queue.stats
        self.records = queue.records
        self.process_message = queue.process_message
        self.process_message_callback = queue.process_message_callback
        self.drain = queue.drain

    @property
    def key(self) -> Any:
        return self.queue.key


Queue = BlockingQueue | AsyncioQueue


class Shell(ABC):
    """What a test needs of a shell: queues, clients, something to run beside, and a look into Redis."""

    name: str
    module: Any
    other_module: Any

    def __init__(self, server: EmbeddedRedis, onlooker: redis.Redis, wiring: Wiring) -> None:
        self.server = server
        self.wiring = wiring
        self.redis: Any = onlooker  # reads bytes, and belongs to the test, not to any queue
        self._runner = asyncio.Runner()
        self._clients: list[Any] = []
        self._client: Any = None

    # Making

    @property
    def client(self) -> Any:
        """The client that queues get unless they are given another one."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self, **options: Any) -> Any:
        """One more client of the server, wired as the test asks; it is closed after the test."""
        client = self._connect(self.wiring.options | options, subclassed=self.wiring.subclassed)
        return self.closing(client)

    def lossy_client(self) -> Any:
        """A client with `losses`, without retries of its own."""
        client = self._connect_lossy(decode_responses=True, retry=None)
        client.losses = Losses()
        return self.closing(client)

    def dead_client(self, port: int) -> Any:
        """A client of a port where nobody listens, without retries of its own."""
        options: dict[str, Any] = {"host": "127.0.0.1", "port": port, "retry": None, "socket_connect_timeout": 1}
        return self.closing(self._connect_anywhere(**options))

    def closing(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def gateway(self, **settings: Any) -> Any:
        return self.module.RedisGateway(**{"redis_client": self.client} | settings)

    def queue(self, name: str = "q", /, **options: Any) -> Any:
        """A queue with a bare client, unless it is given a gateway."""
        for short in SHORT_NAMES.keys() & options.keys():
            options[SHORT_NAMES[short]] = options.pop(short)
        if "gateway" not in options:
            options.setdefault("client", self.client)
        made = self._facade(self.module.RedisMessageQueue(**{"name": name} | options))
        # As if somebody had used it before: the first contact has tests of its own.
        if options.get("partitions", 1) == 1:
            self.redis.hsetnx(made.key.meta, "version", 1)
        return made

    def events(self) -> Events:
        return Events(awaited=self.name == "asyncio")

    def callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A plain function as this shell documents callbacks: sync or async."""
        if self.name == "sync":
            return function

        async def awaited(*arguments: Any) -> Any:
            return function(*arguments)

        return awaited

    def handler(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Callable[[Any], Any]:
        """A coroutine function as a handler of `run` in this shell, so that it can wait without holding up others."""
        return (lambda message: asyncio.run(work(message))) if self.name == "sync" else work

    def payload(self, text: str) -> str | bytes:
        """What a handler receives for this text, as the client decodes."""
        return text if self.wiring.decode_responses else text.encode()

    # Looking

    def pending(self, queue: Any) -> int:
        return int(self.redis.llen(queue.key.pending))

    def processing(self, queue: Any) -> int:
        return int(self.redis.hlen(queue.key.processing))

    def listed(self, key: str) -> list[bytes]:
        """A terminal list, newest first."""
        return list(self.redis.lrange(key, 0, -1))

    def leftovers(self, queue: Any) -> set[bytes]:
        """The keys of a queue without its wake-up key, reply cache, version and the records beside its lists."""
        prefix = f"{queue.key.prefix}{queue.key.separator}"
        spared = tuple(f"{prefix}{word}".encode() for word in ("wakeup", "reply", "records", "meta"))
        return {key for key in self.redis.keys("*") if not key.startswith((*spared, REGISTRY_KEY.encode()))}

    @property
    def is_empty(self) -> bool:
        """Whether the server holds nothing but the version of what is stored."""
        return all(key.endswith(b"::meta") for key in self.redis.keys("*"))

    def lapse(self, queue: Any) -> None:
        """End every lease now, in their order, as if its time were over."""
        held = self.leases(queue)
        assert held, "nothing is leased"
        self.redis.zadd(queue.key.leases, {token: place + 1.0 for place, token in enumerate(held)})

    def leases(self, queue: Any, message_id: str = "") -> list[bytes]:
        """The members of the leases, of all messages or of one; the others there are alarms."""
        found = self.redis.zrange(queue.key.leases, 0, -1)
        return [one for one in found if len(one) == TOKEN_BYTES and one.hex().startswith(message_id)]

    def ripen(self, queue: Any) -> None:
        """End every delay now, in their order, as if its time were over."""
        waiting = self.redis.zrange(queue.key.delayed, 0, -1)
        assert waiting, "nothing is delayed"
        self.redis.zadd(queue.key.delayed, {message_id: place + 1.0 for place, message_id in enumerate(waiting)})
        self.redis.zadd(queue.key.leases, {b"d": 1.0})  # the alarm

    @property
    def server_time(self) -> datetime:
        """What the server's clock says."""
        seconds, microseconds = self.redis.time()
        return datetime.fromtimestamp(int(seconds), UTC) + timedelta(microseconds=int(microseconds))

    # Running

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self._runner.run(test)

    def close(self) -> None:
        try:
            self._runner.run(self._close())
        finally:
            self._runner.close()

    @abstractmethod
    async def _close(self) -> None: ...

    @abstractmethod
    def beside(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> asyncio.Future[Any]:
        """Start a consumer or producer that runs beside the test; awaiting it gives its result."""

    @abstractmethod
    def _facade(self, queue: Any) -> Any: ...

    @abstractmethod
    def _connect(self, options: dict[str, Any], *, subclassed: bool) -> Any: ...

    @abstractmethod
    def _connect_lossy(self, **options: Any) -> Any: ...

    @abstractmethod
    def _connect_anywhere(self, **options: Any) -> Any: ...


class SyncShell(Shell):
    name = "sync"
    module = redis_message_queue
    other_module = redis_message_queue.asyncio

    def __init__(self, server: EmbeddedRedis, onlooker: redis.Redis, wiring: Wiring) -> None:
        super().__init__(server, onlooker, wiring)
        self._threads: list[threading.Thread] = []

    def beside(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> asyncio.Future[Any]:
        return self._start(lambda: asyncio.run(work()))

    def _start(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """In a thread of its own; awaiting it gives the result."""
        result: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        thread = threading.Thread(target=run, name="beside the test", daemon=True)
        self._threads.append(thread)
        thread.start()
        return asyncio.wrap_future(result)

    def _facade(self, queue: Any) -> BlockingQueue:
        return BlockingQueue(queue, self._start)

    def _connect(self, options: dict[str, Any], *, subclassed: bool) -> Any:
        return SubclassedRedis.from_url(self.server.url, **options) if subclassed else self.server.client(**options)

    def _connect_lossy(self, **options: Any) -> Any:
        return LossyRedis.from_url(self.server.url, **options)

    def _connect_anywhere(self, **options: Any) -> Any:
        return redis.Redis(**options)

    async def _close(self) -> None:
        for thread in self._threads:
            thread.join(2 * LIMIT_SECONDS)
        for client in self._clients:
            client.close()
        assert not [thread for thread in self._threads if thread.is_alive()], "a thread outlived its test"


class AsyncioShell(Shell):
    name = "asyncio"
    module = redis_message_queue.asyncio
    other_module = redis_message_queue

    def __init__(self, server: EmbeddedRedis, onlooker: redis.Redis, wiring: Wiring) -> None:
        super().__init__(server, onlooker, wiring)
        self._beside: list[asyncio.Task[Any]] = []

    def beside(self, work: Callable[..., Coroutine[Any, Any, Any]]) -> asyncio.Future[Any]:
        self._beside.append(task := self._runner.get_loop().create_task(work()))
        return task

    def _facade(self, queue: Any) -> AsyncioQueue:
        return AsyncioQueue(queue)

    def _connect(self, options: dict[str, Any], *, subclassed: bool) -> Any:
        if subclassed:
            return SubclassedAsyncRedis.from_url(self.server.url, **options)
        return self.server.async_client(**options)

    def _connect_lossy(self, **options: Any) -> Any:
        return LossyAsyncRedis.from_url(self.server.url, **options)

    def _connect_anywhere(self, **options: Any) -> Any:
        return redis.asyncio.Redis(**options)

    async def _close(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        # Also those that have failed: unseen exceptions would be reported while another test runs.
        await asyncio.gather(*left, *self._beside, return_exceptions=True)
        for client in self._clients:
            await client.aclose()


SHELLS: dict[str, type[Shell]] = {"sync": SyncShell, "asyncio": AsyncioShell}

# For the few things that only one of them can do.
sync_only = pytest.mark.parametrize("shell", ["sync"], indirect=True)
asyncio_only = pytest.mark.parametrize("shell", ["asyncio"], indirect=True)


class Died(BaseException):
    """A consumer's sudden end: not an `Exception`, so the queue keeps its hands off the message."""


@contextlib.asynccontextmanager
async def holding(queue: Any) -> AsyncIterator[Any]:
    """Claim a message that its consumer will neither ack nor fail; it stays in processing."""
    with contextlib.suppress(Died):
        async with queue.process_message() as message:
            yield message
            raise Died


async def claim_and_die(queue: Any) -> Any:
    """A consumer that is gone right after it got its message."""
    async with holding(queue) as message:
        return message


async def take_over(shell: Shell, message: Any) -> None:
    """Its lease ends, and another consumer takes it and keeps it."""
    thief, taken = shell.queue(wait=0), []
    deadline = time.monotonic() + LIMIT_SECONDS
    while message.id not in taken:
        assert time.monotonic() < deadline, "the message cannot be taken over"
        # As if the lease had run out; if a renewal was quicker, once more.
        shell.redis.zadd(thief.key.leases, dict.fromkeys(shell.leases(thief, message.id), 1) or {b"": 1}, xx=True)
        with contextlib.suppress(Died):
            async with thief.process_messages(1) as batch:
                taken += [stolen.id for stolen in batch]
                raise Died


async def take(queue: Any) -> Any:
    """Claim a message and ack it."""
    async with queue.process_message() as message:
        return message


async def fail(queue: Any, error: Exception) -> Any:
    """Claim a message whose handler raises; the error does not get out of here."""
    message = None
    with contextlib.suppress(type(error)):
        async with queue.process_message() as message:
            raise error
    return message


async def with_unconfirmed_claim(shell: Shell, client: Any = None, **options: Any) -> Any:
    """A queue object whose claim took "a", and whose reply was lost."""
    client = client or shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0, **options)
    await queue.publish("a")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    assert (shell.pending(queue), shell.processing(queue)) == (0, 1)
    return queue


def only_woken(shell: Shell, name: str = "q", *, connections: int = 100, **options: Any) -> Any:
    """A queue whose consumers would look for themselves long after the test has given up: they have to be woken."""
    seconds = 3 * LIMIT_SECONDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_message_queue.protocol.consume.part_claimer, "_SLICE_SECONDS", seconds)
        # A shorter timeout would end the sleep, and so would none at all: our reads then end after five seconds.
        client = shell.new_client(socket_timeout=3 * seconds, max_connections=connections)
        return shell.queue(name, client=client, **{"wait": seconds} | options)


class Awaited:
    """The methods of a sync or an async queue, tenant or message, awaitable for both."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing.queue if isinstance(thing, BlockingQueue | AsyncioQueue) else thing

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._thing, name)

        async def ask(*arguments: Any, **options: Any) -> Any:
            answer = method(*arguments, **options)
            return await answer if inspect.isawaitable(answer) else answer

        return ask


def silent_gateway(shell: Shell) -> Any:
    """A custom gateway with all seven operations, none of which the queue should get as far as to call."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("not to be called")

    async def refuse_awaited(*arguments: Any, **options: Any) -> Any:
        refuse()

    operations = (
        *("publish_message", "add_message", "move_message", "remove_message", "renew_message_lease"),
        *("wait_for_message_and_move", "trim_queue"),
    )
    body = dict.fromkeys(operations, refuse if shell.name == "sync" else refuse_awaited)
    return type("Mine", (shell.module.AbstractRedisGateway,), body)()
