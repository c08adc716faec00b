"""What the oracle knows of schedules: their definitions, and which ticks they must publish."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis_message_queue.stored.envelope import Envelope

MARK = b"@"  # the last byte of the payload that all ticks of a schedule share
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATE_US = 60_000_000  # a tick that is later is skipped, if its schedule skips


def name_of(stored: bytes) -> bytes:
    """What the oracle calls a stored message: its payload. The ticks of a schedule share it, and have their times."""
    envelope = Envelope(stored)
    return named(envelope.payload, envelope.extras.get("headers"))


def named(payload: bytes, headers: Any) -> bytes:
    """The name of a message with this payload and these headers."""
    return payload + headers["scheduled_for"].encode() if payload.endswith(MARK) else payload


@dataclass
class ScheduleEntry:
    """A schedule, as its last definition says."""

    payload: bytes
    timing: str
    missed: str
    done_us: int  # the tick up to which it has published

    @classmethod
    def of(cls, given: dict[str, Any], now_us: int) -> ScheduleEntry:
        """From the arguments of `schedule.lua`. It begins when it is stored."""
        missed = json.loads(given["definition"])["missed"]
        return cls(given["payload"], given["timing"], missed, now_us)

    def ticks(self, until_us: int, now_us: int) -> set[bytes]:
        """The names of the messages that take the schedule up to a time."""
        every_us = json.loads(self.timing)["every_us"]
        ticks = range(self.done_us - self.done_us % every_us + every_us, until_us + 1, every_us)
        if self.missed != "all":
            is_skipped = self.missed == "skip" and bool(ticks) and now_us - ticks[-1] > _LATE_US
            ticks = ticks[:0] if is_skipped else ticks[-1:]
        return {self.payload + (_EPOCH + timedelta(microseconds=tick)).isoformat().encode() for tick in ticks}
