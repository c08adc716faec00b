"""The entry that a loop keeps in Redis, by which people see who works on a queue, also while there is nothing to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from redis_message_queue.process.identity import consumer_name
from redis_message_queue.protocol.calls import log
from redis_message_queue.protocol.port import BackgroundTask, Command, Pause
from redis_message_queue.stored.envelope import PROCESS_BYTES
from redis_message_queue.stored.scripts import script
from redis_message_queue.version import __version__

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_FIRST_SECONDS = 1.0  # nobody looks for a loop that ends sooner, and it costs no command
_INTERVAL_SECONDS = 10.0
_KEPT_MS = 30_000  # so two writes may be lost
_ATTEMPT_SECONDS = 1.0


class WorkerEntry:
    """Writes the entry of one loop every ten seconds, beside its handlers, and removes it when the loop ends.

    It expires without that. Each loop has its own entry; readers merge those of one process. If Redis does not take an
    entry, the loop goes on without: only what people read depends on it.
    """

    def __init__(self, queue: QueueProtocol, concurrency: int, is_over: Callable[[], bool]) -> None:
        self._calls = queue.store.calls if queue.store.parts else None  # a custom gateway has no keys of ours
        self._port = queue.port
        self._lease_seconds = queue.store.options.message_visibility_timeout_seconds
        self._label = queue.store.options.consumer_name
        self._concurrency = concurrency
        self._is_over = is_over
        self._began = queue.port.now()
        self.claimed_at: float | None = None  # when the loop claimed last
        self._former: bytes = b""  # the entry in Redis
        self._was_refused = False
        self._task: BackgroundTask | None = None

    def begin(self) -> None:
        """Keep the entry until the end, in a thread or a task."""
        if self._calls is not None:
            self._task = self._port.spawn(self._keep)

    async def end(self) -> None:
        """Remove the entry."""
        if self._task is not None:
            await self._task.stop()
        if self._former and not self._is_away():
            await self._write("")

    def _is_away(self) -> bool:
        return self._calls is None or self._calls.away is not None

    async def _keep(self, pause: Pause) -> None:
        seconds = _FIRST_SECONDS
        # After a Ctrl-C between its start and the assignment, only the end of the leases can stop it.
        while not await pause(seconds) and not self._is_over():
            await self._write(self._description())
            seconds = _INTERVAL_SECONDS

    def _description(self) -> str:
        process = self._port.slot_name()[:PROCESS_BYTES]
        host, _, pid = consumer_name(process).rpartition(":")
        told = {
            "process": process.hex(),
            "name": self._label,
            "host": host,
            "pid": int(pid),
            "version": __version__,
            "concurrency": self._concurrency,
            "lease_seconds": self._lease_seconds,
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"))

    async def _write(self, description: str) -> None:
        assert self._calls is not None
        now, claimed_at = self._port.now(), self.claimed_at
        command = Command(script("announce_worker"), (self._calls.keys.connected_workers,), (_KEPT_MS,))
        idle_us = -1 if claimed_at is None else int((now - claimed_at) * 1e6)
        arguments = (self._former, int((now - self._began) * 1e6), idle_us, description)
        try:
            call = partial(self._calls.port.call, command, (), arguments)
            self._former = await self._calls.until(now + _ATTEMPT_SECONDS, call)
            self._was_refused = False
        except Exception as error:
            if not self._port.is_transient(error) and not self._was_refused:
                self._was_refused = True
                text = "%s: Redis refused the entry of this worker, so rmq workers does not show it (%s)"
                log.warning(text, self._calls.keys.prefix, error, extra={"queue": self._calls.keys.prefix})
