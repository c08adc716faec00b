"""The registry of a server: a set with an entry for each queue that was ever used there, which clients write."""

from __future__ import annotations

import json
from typing import Any

from redis_message_queue.errors import ConfigurationTypeError, RedisMessageQueueError
from redis_message_queue.keys import REGISTRY_KEY, USUAL_SEPARATOR, QueueKeys
from redis_message_queue.messages import RegisteredQueue
from redis_message_queue.options import (
    DEFAULT_MAX_DELIVERY_COUNT,
    DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
    GatewayOptions,
)
from redis_message_queue.plain_values import brief, is_text
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.pages import PAGE, check_count
from redis_message_queue.protocol.port import Port


async def registered_queues(port: Port, max_queues: int) -> list[RegisteredQueue]:
    """Return the queues of a server that exist, sorted by name."""
    check_count("max_queues", max_queues)
    calls = Calls(port, QueueKeys.unchecked(REGISTRY_KEY), GatewayOptions())
    found: set[RegisteredQueue] = set()
    cursor = b"0"
    while True:
        scan = ("SSCAN", REGISTRY_KEY, cursor, "COUNT", PAGE)
        ((cursor, members),) = await calls.pipeline(REGISTRY_KEY, (scan,), "list queues")
        named = [one for one in map(_entry, members) if one is not None and one not in found]
        found.update(await _existing(calls, named))
        if cursor == b"0" or len(found) >= max_queues:
            break
    return sorted(found, key=lambda one: (one.name, one.key_separator))[:max_queues]


async def _existing(calls: Calls, queues: list[RegisteredQueue]) -> list[RegisteredQueue]:
    """Return those whose state is still there: somebody may have deleted a queue."""
    if not queues:
        return []
    metas = [QueueKeys.unchecked(one.name, separator=one.key_separator).meta for one in queues]
    if calls.port.is_cluster:  # each is on a node of its own
        answers = [(await calls.pipeline(meta, (("EXISTS", meta),), "list queues"))[0] for meta in metas]
    else:
        answers = await calls.pipeline(REGISTRY_KEY, tuple(("EXISTS", meta) for meta in metas), "list queues")
    return [one for one, exists in zip(queues, answers, strict=True) if exists]


def _entry(member: bytes) -> RegisteredQueue | None:
    """Return the queue of an entry, None for one that another program wrote."""
    try:
        fields: Any = json.loads(member)
        name, separator = fields["name"], fields.get("key_separator", USUAL_SEPARATOR)
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
