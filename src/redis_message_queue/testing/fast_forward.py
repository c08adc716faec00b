"""Time that passes without anybody waiting: everything that a queue remembers gets older."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, cast

import redis
from redis import exceptions

from redis_message_queue import checks
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, LuaScriptError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.local_runtime import LocalRuntime
from redis_message_queue.protocol.port import Argument, Port
from redis_message_queue.scripts import with_includes
from redis_message_queue.testing.inside import Queue, is_queue, keys_of, port_of

# How each key of `keys.KEY_MAP` gets older, by its word; `::` stands for the open ones. Those with a TTL lose it as
# every key does. None: nothing in it is a moment, or it is a history that nobody may rewrite.
AGEING: dict[str, str | None] = {
    "pending": "line",
    "processing": "bodies",
    "leases": "moments",
    "deliveries": None,
    "delayed": "moments",
    "later": "bodies",
    "tenants": None,
    "line::": "line",
    "returned::": "moments",
    "size": None,
    "weights": None,
    "longest": None,
    "completed": None,
    "failed": None,
    "dlq": None,
    "records::": "records",
    "deduplication::": None,
    "tenant_deduplication::": None,
    "meta": None,
    "reply::": None,
    "bell": None,
    "journal": None,
    "watch": None,
    "group::": "claims",
    "groups": None,
    "backfill::": None,
}
_LONGEST_SECONDS = 10 * 366 * 86_400  # scores count from 1970, and must not go below


def fast_forward(client: redis.Redis, seconds: float, *queues: Queue) -> None:
    """Let ``seconds`` pass for the named queues, or for everything in the database of ``client``.

    Leases, delays, pauses before a retry, the age of messages and records, deduplication windows and every other TTL
    come so much nearer to their end; consumers that wait look again. What this process knows of its leases ages too,
    as if it had been suspended for so long. The clock of the server does not move: what comes later has its real time.
    """
    if not isinstance(client, redis.Redis):
        raise ConfigurationTypeError(
            f"client must be a blocking redis.Redis of the same database, not {type(client).__name__}; "
            "asyncio queues can be named behind the seconds"
        )
    check_seconds(seconds)
    for queue in queues:
        if not is_queue(queue):
            raise ConfigurationTypeError(f"what follows the seconds must be queues, not {type(queue).__name__}")
    named = [keys_of(queue) for queue in queues]
    cast(Any, client).execute_command(*_command(seconds, named))
    if queues:
        for queue in queues:
            _clock.skip(seconds, port_of(queue))
    else:
        _clock.skip(seconds)


def check_seconds(seconds: Any) -> None:
    """A span that tests could mean."""
    checks.number("seconds", seconds)
    if seconds > _LONGEST_SECONDS:
        raise ConfigurationError(f"seconds must be at most {_LONGEST_SECONDS:,} (ten years), not {seconds!r}")


async def let_pass(seconds: float, port: Port, keys: QueueKeys) -> None:
    """The same for one queue, through its own client, in the colour of its port."""
    (answer,) = await port.converse(keys.pending, (_command(seconds, [keys]),))
    if isinstance(answer, exceptions.ResponseError):
        raise LuaScriptError(f"Redis refused to let time pass: {answer}", operation="fast_forward") from answer
    _clock.skip(seconds, port)


@cache
def _source() -> str:
    return with_includes((files("redis_message_queue") / "testing" / "fast_forward.lua").read_text("utf-8"))


def _command(seconds: float, named: list[QueueKeys]) -> tuple[Argument, ...]:
    anchors = [keys.pending for keys in named[:1]]
    places = [[keys.prefix, keys.separator] for keys in named] or [["", "::"]]
    arguments = (round(seconds * 1_000_000), int(not named), _json(_spelled(AGEING)), _json(places))
    return ("EVAL", _source(), len(anchors), *anchors, *arguments)


def _spelled(ageing: dict[str, str | None]) -> dict[str, str]:
    return {word: how or "stays" for word, how in ageing.items()}


def _json(value: Iterable[Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Clock:
    """The monotonic clock that queue objects of this process read, which tests can put forward."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._installed = False

    def skip(self, seconds: float, port: Any = None) -> None:
        """For one port, or for all of them. It never goes back: a clock that did would not be monotonic."""
        if not self._installed:
            # Here and not in the library, which need not pay for it on every call.
            setattr(LocalRuntime, "now", lambda runtime: self._now(runtime))  # noqa: B010  mypy knows it as a method
            self._installed = True
        if port is None:
            self._ahead += seconds
        else:
            port.skipped_seconds = getattr(port, "skipped_seconds", 0.0) + seconds

    def _now(self, runtime: Any) -> float:
        return time.monotonic() + self._ahead + float(getattr(runtime, "skipped_seconds", 0.0))


_clock = _Clock()
