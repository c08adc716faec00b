"""Pauses and resumes a queue: a field of its state, which every claim reads together with the version."""

from __future__ import annotations

import logging

from redis_message_queue.keys import script_keys
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.pages import PageReader
from redis_message_queue.protocol.port import Command
from redis_message_queue.scripts import script

log = logging.getLogger("redis_message_queue")

_PAUSED = "paused"  # when, in microseconds of the server's clock


class Pauser:
    """Pauses and resumes a queue. Each call can be repeated."""

    def __init__(self, calls: Calls, pages: PageReader) -> None:
        self._calls = calls
        self._meta = calls.keys.meta
        self._pages = pages

    async def pause(self) -> bool:
        """Let no consumer claim a message any more. Returns whether the queue was running."""
        now = await self._pages.server_time()
        (paused,) = await self._pages.send(("HSETNX", self._meta, _PAUSED, now))
        if paused:
            log.warning("%s: the queue is paused; consumers claim nothing until it is resumed", self._calls.keys.prefix)
        return bool(paused)

    async def resume(self) -> bool:
        """Let consumers claim again, and wake them. Returns whether the queue was paused."""
        (resumed,) = await self._pages.send(("HDEL", self._meta, _PAUSED))
        notify = Command(script("notify"), script_keys(self._calls.keys, script("notify").keys))
        await self._calls.call(notify, ())
        if resumed:
            log.warning("%s: the queue is resumed", self._calls.keys.prefix)
        return bool(resumed)

    async def is_paused(self) -> bool:
        """Return whether the queue is paused."""
        (paused,) = await self._pages.send(("HMGET", self._meta, _PAUSED))
        return paused[0] is not None
