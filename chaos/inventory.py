"""Which keys may exist when every message is handled, and what they must look like: from the key map of the library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from chaos.evidence import StoredKey
from redis_message_queue.stored.keys import KEY_MAP, REGISTRY_KEY, KeyKind

# What holds messages that are under way: nothing of it is left when everything is handled.
TRANSIENT = frozenset(
    {
        *("pending", "processing", "leases", "deliveries", "delayed", "delayed_messages", "cancelled"),
        *("tenant_ring", "tenant_pending", "expired", "tenant_backlog", "tenant_in_flight"),
    }
)
_LONGEST_TTL_SECONDS = 86_400


def check_keys(keys: Iterable[StoredKey], queues: Sequence[str]) -> Iterator[str]:
    """Say what is wrong with each key that should not be there, or not like this."""
    names = sorted(queues, key=len, reverse=True)
    for key in keys:
        if (key.name, key.type) == (REGISTRY_KEY, "set"):
            continue
        queue = next((name for name in names if key.name.startswith(f"{name}::")), None)
        if queue is None:
            yield f"{key.name} belongs to no queue"
            continue
        rest = key.name.removeprefix(f"{queue}::")
        kind = _kind_of(rest)
        if kind is None:
            yield f"{key.name} is not in the key map"
        else:
            yield from _check_key(key, rest.partition("::")[0], kind)


def _check_key(key: StoredKey, word: str, kind: KeyKind) -> Iterator[str]:
    wanted, _, expires = kind.type.partition(", ")
    if key.type.upper() != wanted:
        yield f"{key.name} is a {key.type}, and the key map says {wanted}"
    if bool(expires) != (key.ttl is not None):
        yield f"{key.name} has {'no' if key.ttl is None else 'a'} TTL, and the key map says {kind.type}"
    if key.ttl is not None and key.ttl > _LONGEST_TTL_SECONDS:
        yield f"{key.name} lives for {key.ttl:.0f} s"
    if word in TRANSIENT:
        yield f"{key.name} has {key.size} elements, and every message is handled"
    if word == "wakeup" and key.size > 1:
        yield f"{key.name} has {key.size} tokens, and at most one may be there"


def _kind_of(rest: str) -> KeyKind | None:
    """The row of the key map that a key belongs to; the most exact one."""
    for kind in sorted(KEY_MAP, key=lambda kind: len(kind.word), reverse=True):
        pattern = re.sub(r"<[^>]*>", ".+", re.escape(kind.word).replace(r"\<", "<").replace(r"\>", ">"))
        if re.fullmatch(pattern, rest, re.DOTALL):
            return kind
    return None
