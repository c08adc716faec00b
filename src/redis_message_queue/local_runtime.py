"""What the runtimes of both shells share: a clock, chance, ids and the process."""

from __future__ import annotations

import random
import time

from redis_message_queue.identity import after_copy, fresh_id, process, slot_name

_random = random.Random()
# The program's own generator is left alone, and without Python's fork hooks all children would go on with one sequence.
after_copy(_random.seed)


class LocalRuntime:
    """The part of a runtime that neither waits nor depends on a colour."""

    def now(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return _random.random()

    def fresh_id(self) -> bytes:
        return fresh_id()

    def slot_name(self) -> bytes:
        return slot_name()

    def process(self) -> int:
        return process()
