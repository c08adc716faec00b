"""keys.md: every Redis key of a queue, from the key map in `keys.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields

from docs.reference.markdown import code, in_step, page, prose, table
from redis_message_queue.keys import KEY_MAP, RESERVED_WORDS, QueueKeys

# What an operator may rely on; everything else may change from one version to the next.
CONTRACT = ("pending", "processing", "completed", "failed", "dead_letter", "deduplication")


def keys_page() -> str:
    return page(
        "Keys in Redis",
        "`keys.py`",
        prose("""
            All keys of a queue begin with its name. The names below are those of a queue called `orders`; in a program
            ask the queue for them: `queue.key.pending`.
        """),
        table(("key", "Redis type", "holds", "in a program"), _key_rows()),
        prose(f"""
            For operators: {", ".join(code(f"queue.key.{name}") for name in CONTRACT)}. Their names and types stay.
            `completed`, `failed` and `dlq` hold the payloads as they were published, one list entry each, the newest
            left: any Redis tool can read, cut or empty them. `LLEN` of `pending` says how many wait, `HLEN` of
            `processing` how many are in flight, with those whose consumer has died; `HGET` of `groups` with an empty
            field, how many lie in the claims of streaming queries.

            What `pending` and `processing` hold is a payload with a header, and internal; so are all other keys. Do not
            write to them. Bytes in `pending` that are no message of this library are put among the dead letters as they
            are.
        """),
        "## Other names",
        table(("made with", "its line is"), _other_names()),
        prose("""
            With a cluster client the braces are put there without being asked for, because all keys of a queue must
            share a slot. A name that has a hash tag of its own keeps it.
        """),
        "## Names that are refused",
        prose(f"""
            A name in which the separator is followed by one of the words of the key map is refused with a
            `ConfigurationError`: `orders::line` would have the key `orders::line::pending`, and that is where messages
            of the tenant `pending` of the queue `orders` wait. The words are
            {", ".join(map(code, RESERVED_WORDS))}. They are free everywhere else in a name: `line`, `orders::lines` and
            `orders:line` are good names. Use one separator for all queues of a database.
        """),
    )


def _key_rows() -> Iterator[tuple[str, str, str, str]]:
    reached = dict(accessors(QueueKeys.of("orders")))
    in_step("keys", reached, (f"orders::{kind.word}" for kind in KEY_MAP))
    for kind in KEY_MAP:
        key = f"orders::{kind.word}"
        name = reached[key].split("(")[0]
        yield code(key), kind.type, kind.holds, code(f"queue.key.{reached[key]}") if name in CONTRACT else "internal"


def accessors(keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """Each key of a queue, and what gives it in a program."""
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
    yield '`"{shop}:orders", hash_tag=True`', code(QueueKeys.of("{shop}:orders", hash_tag=True).pending)
