"""How the oracle reads what the server executed: the names of keys, arguments and messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.stored.partitioning import partition_of
from redis_message_queue.stored.scripts import Script, argument_names
from simulator.keyspace import SortedSet
from simulator.lua import as_bytes
from simulator.oracle.invariants import fail
from simulator.server import Step

# Words of keys that must have an expiry time.
EXPIRING = ("reply", "deduplication", "tenant_deduplication", "timer_owner", "longest", "connected_workers")


@lru_cache(4096)
def split_key(key: bytes) -> tuple[str, str, str]:
    """The queue or partition of a key, the word that tells what it holds, and what follows."""
    words = key.decode(errors="replace").split("::")
    first = 3 if words[1:2] == ["partition"] else 1
    return "::".join(words[:first]), "::".join(words[first : first + 1]), "::".join(words[first + 1 :])


def queue_of(step: Step) -> str:
    """The queue or partition that a script worked on."""
    return split_key(step.keys[0].encode())[0]


def payload_key(payload: bytes) -> bytes:
    """The deduplication key of a simulated message, '' if it has none: queue/tenant/key/name."""
    return payload.split(b"/")[2]


def payload_of_body(body: bytes) -> bytes:
    """The payload of a message whose script adds the id and the time."""
    return Envelope(body[:1] + bytes(24) + body[1:]).payload


def key_owner(payload: bytes) -> bytes:
    """What a deduplication key belongs to: the queue, the tenant and the key."""
    return b"/".join(payload.split(b"/")[:3])


def tenant_of(payload: bytes) -> str:
    """The tenant of a simulated message, '' if it has none."""
    return payload.split(b"/")[1].decode()


def listed(keys: Iterable[bytes]) -> str:
    return ", ".join(sorted(key.decode(errors="replace") for key in keys))


def scores(value: Any) -> dict[bytes, float]:
    return value.scores if isinstance(value, SortedSet) else {}


def partitions_of(step: Step) -> int | None:
    """The number of partitions that the caller of a script believes in: it names the key of the state."""
    if step.script is None or "meta" not in step.script.keys:
        return None
    number = split_key(step.keys[step.script.keys.index("meta")].encode())[2]
    return int(number or 1)


def check_number(step: Step, key: str) -> None:
    """Whether what has this key went to the partition that the key names. Without a key it can go to any of them."""
    number, queue = partitions_of(step) or 1, queue_of(step)
    if number > 1 and key and int(queue.partition("::partition::")[2] or 0) != partition_of(key, number):
        fail("partitions", f"{step.name} of something with the key {key!r} went to {queue}")


def group_of(step: Step) -> str:
    assert step.script is not None
    return step.keys[step.script.keys.index("group")]


_names_of = cache(argument_names)


def by_name(script: Script, values: tuple[Any, ...]) -> dict[str, Any]:
    """The values of a script's arguments by the names of its header."""
    return dict(zip(_names_of(script.source), values, strict=False))


def named_arguments(step: Step) -> dict[str, Any]:
    """The arguments of a script by the names of its header."""
    assert step.script is not None
    return by_name(step.script, step.arguments)


_WORDS = {"bare": 1, "ready": 2, "full": 3, "each": 3}  # arguments for each message


def enqueued(step: Step) -> list[bytes]:
    """The payloads of an enqueue, in the order of its call."""
    given = named_arguments(step)
    messages = [as_bytes(one) for one in step.arguments[len(given) :]]
    words = _WORDS[given["form"]]
    last = messages[words - 1 :: words]
    return [payload_of_body(one) for one in last] if words == 3 else last
