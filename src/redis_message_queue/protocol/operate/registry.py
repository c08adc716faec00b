"""The registry of a server: a set with an entry for each queue that was ever used there, which clients write."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from redis_message_queue.options.declared import (
    DEFAULT_MAX_DELIVERY_COUNT,
    DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
    MOST_PARTITIONS,
    GatewayOptions,
)
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.operate.pages import PAGE, check_count
from redis_message_queue.protocol.port import Argument, Port
from redis_message_queue.stored.keys import DEFAULT_SEPARATOR, REGISTRY_KEY, QueueKeys
from redis_message_queue.values.errors import ConfigurationTypeError, NotPermittedError, RedisMessageQueueError
from redis_message_queue.values.messages import RegisteredQueue
from redis_message_queue.values.plain_values import brief, is_text


async def registered_queues(port: Port, max_queues: int) -> list[RegisteredQueue]:
    """Return the queues of a server that exist, sorted by name."""
    check_count("max_queues", max_queues)
    calls = Calls(port, QueueKeys.unchecked(REGISTRY_KEY), GatewayOptions())
    found: set[RegisteredQueue] = set()
    cursor = b"0"
    while True:
        scan = ("SSCAN", REGISTRY_KEY, cursor, "COUNT", PAGE)
        ((cursor, members),) = await calls.pipeline(REGISTRY_KEY, (scan,), "list queues")
        named = [one for one in map(_entry, members) if one is not None]
        found.update(await _existing(calls, named))
        if cursor == b"0" or len(found) >= max_queues:
            break
    return sorted(found, key=lambda one: (one.name, one.key_separator))[:max_queues]


async def _existing(calls: Calls, queues: list[RegisteredQueue]) -> list[RegisteredQueue]:
    """Return those whose state is still there: somebody may have deleted a queue."""
    if not queues:
        return []
    metas = [QueueKeys.unchecked(one.name, separator=one.key_separator).meta for one in queues]
    looks = [(("EXISTS", meta), ("HMGET", meta, "partitions")) for meta in metas]

    async def look(key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        return await calls.retry(lambda: calls.port.pipeline(key, commands), "list queues")

    if calls.port.is_cluster:  # each is on a node of its own
        answers = [one for meta, commands in zip(metas, looks, strict=True) for one in await look(meta, commands)]
    else:
        answers = await look(REGISTRY_KEY, tuple(command for commands in looks for command in commands))
    found = []
    for one, exists, counted in zip(queues, answers[::2], answers[1::2], strict=True):
        if isinstance(exists, NotPermittedError) and exists.grant.startswith("~"):
            continue  # a user of some queues sees these
        if isinstance(exists, Exception):
            raise exists
        if exists:
            found.append(replace(one, partitions=_count(counted)))
    return found


def _count(answer: Any) -> int:
    """Return the number of partitions; 1 for a key that another program has changed."""
    stored = answer[0] if isinstance(answer, list) else None
    return int(stored) if stored is not None and stored.isdigit() and 0 < int(stored) <= MOST_PARTITIONS else 1


def _entry(member: bytes) -> RegisteredQueue | None:
    """Return the queue of an entry, None for one that another program wrote."""
    try:
        fields: Any = json.loads(member)
        name, separator = fields["name"], fields.get("key_separator", DEFAULT_SEPARATOR)
        dead_letters = fields.get("dead_letter_queue")
        QueueKeys.of(name, separator=separator, dead_letter=dead_letters)
        if not (name and separator and is_text(name) and is_text(separator)):
            return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RedisMessageQueueError):
        return None
    return RegisteredQueue(name=name, key_separator=separator, dead_letter_queue=dead_letters)


def gateway_settings(registered: RegisteredQueue) -> dict[str, Any]:
    """Return the options of a gateway for this queue: its keys are named as they are, and it has the usual leases."""
    if not isinstance(registered, RegisteredQueue):
        raise ConfigurationTypeError(f"registered must be a RegisteredQueue of queues(), not {brief(registered)}")
    return {
        "hash_tag": False,
        "dead_letter_queue": registered.dead_letter_queue,
        "message_visibility_timeout_seconds": DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
        "max_delivery_count": int(DEFAULT_MAX_DELIVERY_COUNT),
    }
