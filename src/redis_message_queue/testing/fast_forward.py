"""Let time pass without waiting: every time that a queue has stored moves into the past."""

from __future__ import annotations

import json
import time
from functools import cache
from importlib.resources import files
from typing import Any, cast

import redis
from redis import exceptions

from redis_message_queue.process.local_runtime import LocalRuntime
from redis_message_queue.protocol.port import Argument, Port
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.stored.scripts import assembled
from redis_message_queue.testing.queue_internals import Queue, keys_of, port_of
from redis_message_queue.values import checks
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, LuaScriptError

# Where each key of `keys.KEY_MAP` stores times; a word with `::` stands for all keys that begin with it. Every key that
# has a TTL expires earlier as well. None: it stores no times, or it is a history that must not be rewritten.
AGEING: dict[str, str | None] = {
    "pending": "message_list",
    "processing": "message_hash",
    "leases": "scores",
    "deliveries": None,
    "delayed": "scores",
    "delayed_messages": "message_hash",
    "cancelled": "scores",
    "tenant_ring": None,
    "tenant_pending::": "message_list",
    "expired::": "scores",
    "tenant_backlog": None,
    "weights": None,
    "tenant_in_flight": None,
    "longest": None,
    "completed": None,
    "failed": None,
    "dlq": None,
    "records::": "records",
    "deduplication::": None,
    "tenant_deduplication::": None,
    "meta": None,
    "meta::": None,
    "reply::": None,
    "consumer_name::": None,
    "connected_workers": "scores",
    "wakeup": None,
    "journal": None,
    "timer_owner": None,
    "group::": "group",
    "groups": None,
    "schedules": "scores",
    "schedule::": "schedule",
    "backfill::": None,
}
_MAX_SECONDS = 10 * 366 * 86_400  # a score counts from 1970 and must stay positive


def fast_forward(client: redis.Redis, seconds: float, *queues: Queue) -> None:
    """Let ``seconds`` pass for these queues, or without queues for everything in the database of ``client``.

    Leases, delays, pauses before a retry, deduplication windows and every other TTL end so much earlier; messages and
    records are so much older. Waiting consumers wake up. For handlers in this process it is as if the process had been
    suspended, so their leases can be lost. The clock of the server does not change: what you publish later has the
    real time.

    Args:
        client: A sync client of the database; for asyncio queues as well.
        seconds: How much time passes, at most ten years.
        queues: Sync or async queues of that database.

    Raises:
        ConfigurationError: ``seconds`` is not positive, or too large. Nothing was changed.
    """
    if not isinstance(client, redis.Redis):
        raise ConfigurationTypeError(
            f"client must be a sync redis.Redis of the same database, not {type(client).__name__}; "
            "pass asyncio queues after the seconds"
        )
    checks.number("seconds", seconds)
    if seconds > _MAX_SECONDS:
        raise ConfigurationError(f"seconds must be at most {_MAX_SECONDS:,} (ten years), not {seconds!r}")
    for queue in queues:
        if not isinstance(queue, Queue):
            raise ConfigurationTypeError(f"the arguments after seconds must be queues, not {type(queue).__name__}")
    sender: Any = client
    sender.execute_command(*_command(seconds, [keys for queue in queues for keys in keys_of(queue)]))
    for port in map(port_of, queues):
        _clock.skip(seconds, port)
    if not queues:
        _clock.skip(seconds)


async def fast_forward_queue(seconds: float, protocol: QueueProtocol) -> None:
    """Let time pass for one queue, with its own client."""
    port = cast(Port, protocol.port)
    for keys in (part.keys for part in protocol.parts):
        (reply,) = await port.pipeline(keys.pending, (_command(seconds, [keys]),))
        if isinstance(reply, exceptions.ResponseError):
            raise LuaScriptError(f"Redis refused fast_forward: {reply}", operation="fast_forward") from reply
    _clock.skip(seconds, port)


@cache
def _source() -> str:
    return assembled((files("redis_message_queue") / "testing" / "fast_forward.lua").read_text("utf-8"))


def _command(seconds: float, queues: list[QueueKeys]) -> tuple[Argument, ...]:
    anchors = [keys.pending for keys in queues[:1]]
    places = [[keys.prefix, keys.separator] for keys in queues] or [["", "::"]]
    ageing = {word: how or "none" for word, how in AGEING.items()}
    arguments = (round(seconds * 1_000_000), int(not queues), _json(ageing), _json(places))
    return ("EVAL", _source(), len(anchors), *anchors, *arguments)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Clock:
    """The monotonic clock of this process's queues, which `fast_forward` moves. It never goes back."""

    def __init__(self) -> None:
        self._skipped_seconds = 0.0
        self._installed = False

    def skip(self, seconds: float, port: Any = None) -> None:
        """Move the clock of one port, or of all."""
        if not self._installed:
            # Installed at the first use, so that production code does not pay for it.
            LocalRuntime.now = lambda runtime: self._now(runtime)  # type: ignore[assignment]  # tests only
            self._installed = True
        if port is None:
            self._skipped_seconds += seconds
        else:
            port.skipped_seconds = getattr(port, "skipped_seconds", 0.0) + seconds

    def _now(self, runtime: Any) -> float:
        return time.monotonic() + self._skipped_seconds + float(getattr(runtime, "skipped_seconds", 0.0))


_clock = _Clock()
