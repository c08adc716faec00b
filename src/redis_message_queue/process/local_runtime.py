"""The part of a runtime that both shells share: a clock, random numbers, ids and the process."""

from __future__ import annotations

import random
import time

from redis_message_queue.process.identity import after_copy, new_id, process, slot_name

NEVER_AWAITABLE = frozenset((str, bytes, int, float, bool, type(None)))
"""Types of what a user's function returns that need not be asked whether they can be awaited, which takes long."""

_random = random.Random()
# The program's own generator is left alone, and without Python's fork hooks all children would go on with one sequence.
after_copy(_random.seed)


class LocalRuntime:
    """The part of a runtime that is the same in the sync and the async shell."""

    # Without frames of our own: a claim and its ack ask for the time and the process eleven times.
    now = staticmethod(time.monotonic)
    random = staticmethod(_random.random)
    new_id = staticmethod(new_id)
    slot_name = staticmethod(slot_name)
    process = staticmethod(process)
