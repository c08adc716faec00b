"""keys.md: every Redis key of a queue, from the key map in `stored/keys.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields

from docs.reference.markdown import check_complete, code, page, prose, table
from redis_message_queue.stored.keys import KEY_MAP, REGISTRY_KEY, RESERVED_WORDS, QueueKeys, partition_keys

# Operators may rely on these. All other keys may change from one version to the next.
CONTRACT = ("pending", "processing", "completed", "failed", "dead_letter", "deduplication")


def keys_page() -> str:
    return page(
        "Keys in Redis",
        "`stored/keys.py`",
        prose("""
            All keys of a queue begin with its name. The table shows the keys of a queue called `orders`. In a program,
            take the names from the queue: `queue.key.pending`.
        """),
        table(("key", "Redis type", "holds", "in a program"), _key_rows()),
        prose(f"""
            You can rely on these keys: {", ".join(code(f"queue.key.{name}") for name in CONTRACT)}. Their names and
            types do not change.

            `completed`, `failed` and `dlq` hold the payloads exactly as they were published, one list entry for each
            message, newest on the left. Any Redis tool can read, trim or delete these lists. For monitoring, `LLEN` of
            `pending` is the number of messages that wait, and `HLEN` of `processing` is the number in flight, including
            those whose consumer has died. `HGET` of `groups` with an empty field is the number of messages in the
            claims of streaming queries.

            The values in `pending` and `processing` are payloads with an internal header. They and all other keys are
            internal: do not write to them. A consumer that finds bytes in `pending` that are not a message of this
            library moves them to the dead letters unchanged.
        """),
        prose(f"""
            One key belongs to no queue: `{REGISTRY_KEY}` is a set with a small JSON object for each queue of the
            server, which `queues()` and `rmq queues` read. A queue adds itself at its first contact. Nothing else
            depends on the set, and you may delete it.
        """),
        "## Other names",
        table(("created with", "key of the waiting messages"), _other_names()),
        prose("""
            With a cluster client, the queue adds the braces by itself, because all keys of a queue must be in one slot.
            A name that already has a hash tag keeps it.
        """),
        "## Names that are refused",
        prose(f"""
            A queue name must not contain the separator followed by a reserved word; such a name raises
            `ConfigurationError`. For example, a queue called `orders::tenant_pending` would use the key
            `orders::tenant_pending::pending`, but that key already holds the messages of the tenant `pending` in the
            queue `orders`. The reserved words are {", ".join(map(code, RESERVED_WORDS))}.

            Anywhere else in a name these words are fine: `failed`, `orders::failed-cards` and `orders:failed` are valid
            names. Use the same separator for all queues of a database.
        """),
    )


def _key_rows() -> Iterator[tuple[str, str, str, str]]:
    reached = dict(accessors(QueueKeys.of("orders")))
    check_complete("keys", reached, (f"orders::{kind.word}" for kind in KEY_MAP))
    for kind in KEY_MAP:
        key = f"orders::{kind.word}"
        name = reached[key].split("(")[0]
        yield code(key), kind.type, kind.holds, code(f"queue.key.{reached[key]}") if name in CONTRACT else "internal"


def accessors(keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """Each key of a queue, with the attribute or call of `QueueKeys` that returns it."""
    for field in fields(QueueKeys):
        if field.name not in ("prefix", "separator"):
            yield getattr(keys, field.name), field.name
    for name, method in inspect.getmembers(QueueKeys, inspect.isfunction):
        if not name.startswith("_"):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            required = [one.name for one in parameters if one.default is one.empty]
            for arguments in dict.fromkeys((tuple(required), tuple(one.name for one in parameters))):
                key = method(keys, *(f"<{one}>" for one in arguments))
                yield key.replace("8:<tenant>", "<length>:<tenant>"), f"{name}({', '.join(arguments)})"


def _other_names() -> Iterator[tuple[str, str]]:
    yield '`"orders"`', code(QueueKeys.of("orders").pending)
    yield '`"orders", key_separator=":"`', code(QueueKeys.of("orders", separator=":").pending)
    yield '`"orders", hash_tag=True`', code(QueueKeys.of("orders", hash_tag=True).pending)
    second = partition_keys(QueueKeys.of("orders"), 1, 4)
    yield '`"orders", partitions=4`, partition 1', code(second.pending)
    second = partition_keys(QueueKeys.of("orders", hash_tag=True), 1, 4)
    yield '`"orders", hash_tag=True, partitions=4`, partition 1', code(second.pending)
    yield '`"{shop}:orders", hash_tag=True`', code(QueueKeys.of("{shop}:orders", hash_tag=True).pending)
