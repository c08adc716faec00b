"""The handler of every member of the league: it notes the message and the time in a file."""

import asyncio
import os
import time
from functools import cache
from typing import Any

from bench.league.settings import LOG, PAUSE_SECONDS

STARTED, ENDED = "started", "ended"


def handle(message: dict[str, Any]) -> None:
    if PAUSE_SECONDS:
        _note(STARTED, message)
        time.sleep(PAUSE_SECONDS)
    _note(ENDED, message)


async def handle_async(message: dict[str, Any]) -> None:
    if PAUSE_SECONDS:
        _note(STARTED, message)
        await asyncio.sleep(PAUSE_SECONDS)
    _note(ENDED, message)


def _note(what: str, message: dict[str, Any]) -> None:
    # One write to a file that is opened for appending: the lines of several processes do not mix.
    os.write(_log(), f"{what} {message['id']} {time.monotonic_ns()}\n".encode())


@cache
def _log() -> int:
    return os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
