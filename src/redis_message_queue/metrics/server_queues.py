"""The queues of a server, by the name that is shown: those that were named, and those that its registry has."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from redis_message_queue.asyncio import RedisMessageQueue, open_registered
from redis_message_queue.asyncio import queues as registered_queues
from redis_message_queue.protocol.operate.growth import stored_partitions
from redis_message_queue.redis_py import wire
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.checks import flag
from redis_message_queue.values.errors import ConfigurationTypeError, RedisMessageQueueError
from redis_message_queue.values.messages import RegisteredQueue
from redis_message_queue.values.plain_values import brief, is_text

UNREADABLE = (RedisError, RedisMessageQueueError, OSError)
_MOST_QUEUES = 1_000
_REGISTRY_SECONDS = 10.0


class ServerQueues:
    """Knows the names of the queues, and opens them.

    Args:
        client: An asyncio client of redis-py.
        names: The queues that are known without the registry.
        discover: Whether queues of the registry are known, too.
        retry_budget_seconds: How long to wait for a server that is away.
        settings: How keys are named, as options of `RedisMessageQueue`.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        names: Collection[str],
        *,
        discover: bool,
        retry_budget_seconds: float,
        **settings: Any,
    ) -> None:
        wire.refuse_unusable_client(client, asynchronous=True)
        if is_text(names) or not isinstance(names, Collection) or not all(map(is_text, names)):
            raise ConfigurationTypeError(f"queues must be a list of names, not {brief(names)}")
        flag("discover", discover)
        self.names = list(dict.fromkeys(names))
        self.discovers = discover
        self._client = client
        self._budget = retry_budget_seconds
        self._settings = settings
        self._registered: dict[str, RegisteredQueue] = {}  # by the name that is shown
        self._due_at = float("-inf")  # when the registry may be read again
        # Raises for a name that no queue can have.
        self._named_keys = {self._open_named(name).key.pending for name in self.names}

    async def known(self) -> list[str]:
        """Return the names, those that were given first."""
        if self.discovers and time.monotonic() >= self._due_at:
            self._due_at = float("inf")  # whoever comes meanwhile gets what was known before
            try:
                with contextlib.suppress(*UNREADABLE):  # this user may not read it, or the server is away
                    self._register(await registered_queues(self._client, max_queues=_MOST_QUEUES))
            finally:
                self._due_at = time.monotonic() + _REGISTRY_SECONDS
        return list(dict.fromkeys([*self.names, *self._registered]))

    async def open(self, name: str) -> RedisMessageQueue:
        """Return a queue object with as many partitions as the queue has."""
        queue = self._open_named(name)
        with contextlib.suppress(*UNREADABLE):  # then its first reader hears what is wrong
            count = await stored_partitions(queue._protocol.store.calls) or 1
            queue = self._open_named(name, count)
        return queue

    def _open_named(self, name: str, partitions: int = 1) -> RedisMessageQueue:
        if name in self._registered:
            registered = replace(self._registered[name], partitions=partitions)
            return open_registered(registered, self._client, retry_budget_seconds=self._budget)
        settings = self._settings | {"partitions": partitions, "retry_budget_seconds": self._budget}
        return RedisMessageQueue(name, client=self._client, **settings)

    def _register(self, found: list[RegisteredQueue]) -> None:
        """Give each queue of the registry a name to show; one that was named by hand is the same queue."""
        registered: dict[str, RegisteredQueue] = {}
        for one in found:
            if QueueKeys.unchecked(one.name, separator=one.key_separator).pending in self._named_keys:
                continue
            is_taken = one.name in registered or one.name in self.names
            registered[f"{one.name} (separator {one.key_separator})" if is_taken else one.name] = one
        self._registered = registered
