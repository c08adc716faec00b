"""The loop of `rmq consume`: claim, hand over, acknowledge, until there is enough or nothing more."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.cli.stopping import StopSignals
from redis_message_queue.cli.table import printable

if TYPE_CHECKING:
    from redis_message_queue import ReceivedMessage, RedisMessageQueue
    from redis_message_queue.sync.batch import Batch

_FOLLOWING_SECONDS = 30.0  # one wait of those without end


class GivenBack(Exception):
    """Raised inside a batch, so that what is not settled in it goes back to the queue."""


class Taker(Protocol):
    """Who gets the messages."""

    def take(self, batch: Batch) -> int:
        """Do something with each, and return how many failed; a `GivenBack` returns the rest to the queue."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop."""

    count: int | None
    wait_seconds: float | None  # None for ever
    batch: int


class Consuming:
    """One run of `rmq consume`."""

    def __init__(self, queue: RedisMessageQueue, limits: Limits, stop: StopSignals, taker: Taker) -> None:
        self._queue, self._limits, self._stop, self._taker = queue, limits, stop, taker
        self._taken = self._failed = 0
        self._gave_back = False

    def run(self) -> ExitStatus:
        """Until there is enough, nothing more, or a signal."""
        while not self._stop.is_interrupted() and self._wanted():
            if not self._take_some() and self._limits.wait_seconds is not None:
                break
        # Whoever follows ends by a signal, and well; anything else was broken off.
        broken_off = self._stop.is_interrupted() and self._limits.wait_seconds is not None and self._wanted() > 0
        if broken_off or self._gave_back:
            return self._stop.status
        if self._failed or (self._taken == 0 and self._limits.wait_seconds is not None):
            return ExitStatus.NO
        return ExitStatus.OK

    def _wanted(self) -> int:
        """How many more at a time."""
        count = self._limits.count
        return self._limits.batch if count is None else min(self._limits.batch, count - self._taken)

    def _take_some(self) -> bool:
        wait = _FOLLOWING_SECONDS if self._limits.wait_seconds is None else self._limits.wait_seconds
        try:
            with self._queue.process_messages(self._wanted(), wait_seconds=wait) as batch:
                if batch:
                    self._failed += self._taker.take(batch)
                    self._taken += len(batch)
                return bool(batch)
        except GivenBack:
            self._gave_back = True
            return False


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints messages; what could not be written goes back to the queue with its batch."""

    queue: str
    output: Output

    def take(self, batch: Batch) -> int:
        for message in batch:
            if self.output.json:
                self.output.line(facts_of(message, self.queue))
            elif sys.stdout.isatty():
                print(printable(message.payload))
            else:
                _write_raw(message.payload)
        sys.stdout.flush()
        return 0


def facts_of(message: ReceivedMessage, queue: str) -> dict[str, Any]:
    """A message as `--json` prints it."""
    return {
        "queue": queue,
        "id": message.id,
        "tenant": message.tenant,
        "delivery_count": message.delivery_count,
        "published_at": message.published_at,
        "payload": message.payload,
    }


def _write_raw(payload: str | bytes) -> None:
    """Byte for byte where nobody looks: another program reads it."""
    sys.stdout.flush()
    sys.stdout.buffer.write((payload if isinstance(payload, bytes) else payload.encode()) + b"\n")
