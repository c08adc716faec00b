"""A primary with replicas, and publishes that wait for their confirmation."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest
import redis
import redis.asyncio

from redis_message_queue import PublishNotConfirmedError
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored import scripts
from redis_message_queue.stored.envelope import ID_BYTES
from redis_message_queue.stored.keys import QueueKeys
from tests.concurrency import LIMIT_SECONDS
from tests.faults.shells import AsyncioShell, BlockingShell, OrdinaryAsyncioRedis, OrdinaryRedis

KEY = QueueKeys.of("faults")

HEAD_BYTES = 1 + ID_BYTES + 8  # flags, id and time stand before the payload

# A server looks ten times a second for those who have waited long enough, unless it is told to look more often.
CONFIG: dict[str, str | int] = {"hz": 100, "repl-diskless-sync-delay": 0, "appendfsync": "always"}

# A confirmation that does not come is soon given up; one that comes has all the time of a busy machine.
HASTY: dict[str, Any] = {"confirm_replicas": 1, "confirm_timeout_seconds": 0.05}

PATIENT: dict[str, Any] = {"confirm_replicas": 1, "confirm_timeout_seconds": LIMIT_SECONDS}


class Family:
    """A primary and two replicas. The primary and the first replica write to their disks, the second does not."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            self._open = opening
            self.primary, self.careful, self.careless = (
                self._start(append_only) for append_only in (True, True, False)
            )
            self.redis = self._open.enter_context(self.primary.client())
            for name in scripts.all_names():  # so that a test can count on one request for each call
                self.redis.script_load(scripts.script(name).source)
            for replica in self.replicas:
                follow(replica, self.primary)
            self.clean()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def replicas(self) -> tuple[EmbeddedRedis, EmbeddedRedis]:
        return self.careful, self.careless

    def clean(self) -> None:
        """Empty all three, and wait until they are."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.flushall().execute_command("WAIT", 2, int(LIMIT_SECONDS * 1000))
            assert pipe.execute()[-1] == 2

    @contextlib.contextmanager
    def stopped(self, *replicas: EmbeddedRedis) -> Iterator[None]:
        """Replicas, if not all of them, hear nothing; afterwards they go on where they were."""
        with contextlib.ExitStack() as stopping:
            for replica in replicas or self.replicas:
                stopping.callback(replica.resume)
                replica.pause()
            yield

    def blocked(self) -> int:
        """How many connections lie in a WAIT, a WAITAOF or a blocking read."""
        return int(self.redis.info("clients")["blocked_clients"])

    def asked(self) -> int:
        """How often replicas were waited for."""
        return int(self.redis.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])

    def replies(self) -> list[bytes]:
        return list(self.redis.keys("*reply*"))

    @contextlib.contextmanager
    def configured(self, server: EmbeddedRedis, **settings: Any) -> Iterator[None]:
        """Other settings for a while."""
        wanted = {name.replace("_", "-"): value for name, value in settings.items()}
        with server.client(decode_responses=True) as client:
            before = {name: client.config_get(name)[name] for name in wanted}
            try:
                for name, value in wanted.items():
                    client.config_set(name, value)
                yield
            finally:
                for name, value in before.items():
                    client.config_set(name, value)

    def _start(self, append_only: bool) -> EmbeddedRedis:
        return self._open.enter_context(
            EmbeddedRedis(binary=self._binary, append_only=append_only, config=CONFIG, password=False)
        )


def follow(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """Become its replica; the copy takes a moment."""
    with replica.client() as client:
        client.execute_command("REPLICAOF", primary.host, primary.port)


def stored(server: EmbeddedRedis) -> list[bytes]:
    """What waits in the queue "faults", as it lies there, the oldest first."""
    with server.client() as client:
        return list(client.lrange(KEY.pending, 0, -1))[::-1]


def payloads(server: EmbeddedRedis) -> list[bytes]:
    return [each[HEAD_BYTES:] for each in stored(server)]


class Loop:
    """Runs coroutines as asyncio.Runner does, and takes them from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop-of-the-test", daemon=True)
        self._thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * LIMIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_SECONDS)
        self._loop.close()

    async def _cancel_the_rest(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=1)  # redis-py closes some of its connections beside everything else
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class LoopShell(AsyncioShell):
    """The queue for tasks; a thread beside the test can use it too."""

    def __init__(self, port: int, client_class: Any) -> None:
        super().__init__(port, client_class)
        self.runner: Any = Loop()


WAYS = {
    "sync-packed": lambda port: BlockingShell(port, redis.Redis),
    "sync-ordinary": lambda port: BlockingShell(port, OrdinaryRedis),
    "asyncio-packed": lambda port: LoopShell(port, redis.asyncio.Redis),
    "asyncio-ordinary": lambda port: LoopShell(port, OrdinaryAsyncioRedis),
}

SYNC_AND_ASYNC = ("sync-packed", "asyncio-packed")

every_way = pytest.mark.parametrize("shell", WAYS, indirect=True)


def done(shell: BlockingShell, answer: Any) -> Any:
    """The result of a sync or an async call."""
    return shell.runner.run(answer) if isinstance(shell, AsyncioShell) else answer


def publish(shell: BlockingShell, queue: Any, message: Any = "message", repeat_of: Any = None) -> bool:
    return done(shell, queue.publish(message, repeat_of=repeat_of))


def drain(shell: BlockingShell, queue: Any, timeout: float | None = None) -> bool:
    return done(shell, queue.drain(timeout))


def unconfirmed(
    shell: BlockingShell, queue: Any, message: Any = "message", repeat_of: Any = None
) -> PublishNotConfirmedError:
    with pytest.raises(PublishNotConfirmedError) as raised:
        publish(shell, queue, message, repeat_of)
    return raised.value


def repeat(shell: BlockingShell, queue: Any, error: PublishNotConfirmedError | None, message: Any = "message") -> bool:
    """Until it is confirmed: a replica that has just woken up may need longer than a hasty queue waits."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return publish(shell, queue, message, error)
        except PublishNotConfirmedError as again:
            assert time.monotonic() < deadline, "nobody confirms"
            error = again


def lacking(shell: BlockingShell, queue: Any, what: str, message: Any = "message") -> PublishNotConfirmedError:
    """An error that says what is missing; on a busy machine even those that do have it need their time."""
    error = unconfirmed(shell, queue, message)
    deadline = time.monotonic() + LIMIT_SECONDS / 3
    while what not in str(error):
        assert time.monotonic() < deadline, error
        error = unconfirmed(shell, queue, message, error)
    return error
