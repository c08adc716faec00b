"""Publishers that meet: they share one queue object, and arrive one after another while the server waits."""

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Self

import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue.protocol.group_commit import GroupCommit, GroupedCall
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.shells import QUICK


class Crowd:
    """One queue object, and calls of it that run beside the test."""

    def __init__(self, port: int, *, is_async: bool, socket_timeout: float = 60, **options: Any) -> None:
        self.is_async = is_async
        self._loop = asyncio.new_event_loop() if is_async else None
        if self._loop is not None:
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        made = redis.asyncio.Redis if is_async else redis.Redis
        self.client: Any = made(host="127.0.0.1", port=port, socket_timeout=socket_timeout)
        self.open(**options)

    def open(self, name: str = "faults", **options: Any) -> None:
        """Make a queue object, in place of the one before."""
        package: Any = redis_message_queue.asyncio if self.is_async else redis_message_queue
        usual = {"deduplication": False, **{one: QUICK[one] for one in QUICK if one.startswith("retry")}}
        self.queue = package.RedisMessageQueue(name, client=self.client, **usual | options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self.client.aclose(), self._loop).result(LIMIT_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LIMIT_SECONDS)
            self._loop.close()
        else:
            self.client.close()

    def begin(self, function: Any, *arguments: Any, **details: Any) -> "Future[Any]":
        """Call something beside the test."""
        if self._loop is None:
            return start(lambda: function(*arguments, **details))
        return asyncio.run_coroutine_threadsafe(function(*arguments, **details), self._loop)

    def call(self, function: Any, *arguments: Any, **details: Any) -> Any:
        """Call something and wait for it."""
        return self.begin(function, *arguments, **details).result(LIMIT_SECONDS)

    def groups(self, operation: str = "") -> list[GroupCommit]:
        """The groups of publishes and acknowledgements of each part, or those of one kind."""
        parts = self.queue._protocol.parts
        found: list[Any] = [part.store.parts[0] for part in parts]
        groups = [one.group for part in found for one in (part.sender, part.scripts) if one.group is not None]
        return [one for one in groups if operation in ("", one._kind.operation)]

    def under_way(self) -> int:
        """How many publishes and acknowledgements have arrived and have no answer."""
        count = 0
        for group in self.groups():
            callers = group._callers
            count += not callers.sender.is_over and not isinstance(callers.sender, GroupedCall)
            members = [] if callers.group is None else callers.group.calls
            count += len({one for one in (*callers.waiting, *members) if one.waits})
        return count

    def publish(self, message: Any, **details: Any) -> "Future[Any]":
        """Begin a publish; return when it has arrived."""
        return self.arrive(self.queue.publish, message, **details)

    def arrive(self, publish: Any, *arguments: Any, **details: Any) -> "Future[Any]":
        """Begin something that publishes; return when it has arrived."""
        before = self.under_way()
        outcome = self.begin(publish, *arguments, **details)
        until(lambda: outcome.done() or self.under_way() > before, "the publish has arrived")
        return outcome


class Held:
    """The server executes no script while this is open."""

    def __init__(self, onlooker: redis.Redis) -> None:
        self._onlooker = onlooker

    def __enter__(self) -> Self:
        self._onlooker.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        return self

    def __exit__(self, *error: object) -> None:
        self._onlooker.execute_command("CLIENT", "UNPAUSE")


def answers(outcomes: "list[Future[Any]]") -> list[Any]:
    """The results of the calls, with exceptions as values."""
    return [one.exception(LIMIT_SECONDS) or one.result() for one in outcomes]
