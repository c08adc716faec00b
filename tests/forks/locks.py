"""Holds every lock behind an object in another thread: the worst moment for a fork."""

import contextlib
import gc
import threading
import types
from collections.abc import Iterator
from typing import Any

LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Attributes that lead out of an object, to shared code.
CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, threading.Thread)


def locks_behind(thing: Any) -> list[Any]:
    """All locks behind an object, found through attributes and containers."""
    found, seen, ahead = [], set(), [thing]
    while ahead:
        each = ahead.pop()
        if id(each) in seen or isinstance(each, CODE):
            continue
        seen.add(id(each))
        if isinstance(each, LOCKS):
            found.append(each)
        else:
            ahead += gc.get_referents(each)
    return found


@contextlib.contextmanager
def all_locks_held(thing: Any) -> Iterator[int]:
    """Another thread holds the locks during the block. Yields their number."""
    locks = locks_behind(thing)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as holding:
            for lock in locks:
                holding.enter_context(lock)
            held.set()
            over.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        assert held.wait(60), "a lock is held by someone else"
        yield len(locks)
    finally:
        over.set()
        thread.join()
