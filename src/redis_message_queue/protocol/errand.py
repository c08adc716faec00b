"""What a queue wants to know of an operation that somebody has put between it and the built-in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from redis_message_queue.protocol.publish import Published


def _never() -> bool:
    return False


@dataclass(slots=True, eq=False)
class Errand:
    """Whether the queue has been stopped meanwhile, and what was published: the contract has no words for either."""

    stopped: Callable[[], bool] = _never
    published: Published | None = None


_current: ContextVar[Errand | None] = ContextVar("redis_message_queue_errand", default=None)


def errand() -> Errand:
    """That of the queue around this call; outside of one nothing is stopped."""
    return _current.get() or Errand()


@contextmanager
def on_an_errand(stopped: Callable[[], bool]) -> Iterator[Errand]:
    sent = Errand(stopped)
    token = _current.set(sent)
    try:
        yield sent
    finally:
        _current.reset(token)
