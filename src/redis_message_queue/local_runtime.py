"""What the runtimes of both shells share: a clock, chance, ids and the process."""

from __future__ import annotations

import os
import random
import time

from redis_message_queue.identity import fresh_id


class LocalRuntime:
    """The part of a runtime that neither waits nor depends on a colour."""

    def now(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return random.random()

    def fresh_id(self) -> bytes:
        return fresh_id()

    def process(self) -> int:
        return os.getpid()
