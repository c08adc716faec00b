"""Every Redis key of a queue: its name, its type, and one sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from redis_message_queue.errors import ConfigurationError


class KeyKind(NamedTuple):
    """One row of the key map: the last word of the name, the Redis type, what it holds."""

    word: str
    type: str
    holds: str


# The key map of the documentation is made from this table; a test keeps it true.
KEY_MAP = (
    KeyKind("pending", "LIST", "stored messages that wait, pushed left, taken right"),
    KeyKind(
        "processing", "HASH", "id, or token where there are no leases, to stored message, for everything in flight"
    ),
    KeyKind(
        "leases",
        "ZSET",
        "token (id of the message and nonce of the claim) by deadline, in microseconds of the server's clock; beside "
        "them alarms: `d` when a delay ends, `r` while tenants wait",
    ),
    KeyKind(
        "deliveries",
        "HASH",
        "id to attempts, delivery count and failures, from the moment a message comes back or is taken over",
    ),
    KeyKind("delayed", "ZSET", "id by due time, for messages that wait for their time or their next attempt"),
    KeyKind("later", "HASH", "id to stored message, for these"),
    KeyKind("tenants", "ZSET", "the tenants with work, by virtual time"),
    KeyKind("line::<tenant>", "LIST", "what `pending` is, for one tenant"),
    KeyKind("returned::<tenant>", "ZSET", "token by deadline, for a tenant's messages whose lease ran out"),
    KeyKind("size", "STRING", "how many messages wait in the lines of tenants"),
    KeyKind(
        "longest",
        "STRING, TTL",
        "the tenant with the longest line when messages were dropped last, where more than 100 tenants wait",
    ),
    KeyKind("weights", "HASH", "tenant to weight, for those whose weight is not 1"),
    KeyKind("completed", "LIST", "raw payloads of handled messages, newest left"),
    KeyKind("failed", "LIST", "raw payloads of messages whose handler raised, newest left"),
    KeyKind("dlq", "LIST", "raw payloads of messages that were delivered too often, newest left"),
    KeyKind(
        "records::<list>", "LIST", "beside each of these lists: ids, counts, times, errors, and which payload is meant"
    ),
    KeyKind("deduplication::<key>", "STRING, TTL", "the id of the message that has this key; it suppresses others"),
    KeyKind("tenant_deduplication::<length>:<tenant>:<key>", "STRING, TTL", "the same within one tenant"),
    KeyKind("reply::<caller>", "STRING, TTL", "number and answer of that caller's last call"),
    KeyKind("bell", "LIST", "at most one token: there is work"),
    KeyKind("journal", "STREAM", "what has happened to the messages of this queue, where it has a journal"),
    KeyKind(
        "meta",
        "HASH",
        "the `version` of what is stored and the number of `partitions`; of a journal its rules, its identity, the "
        "serial number of its last entry, and what is archived",
    ),
    KeyKind("watch", "STRING, TTL", "somebody is awake when the next lease ends"),
    KeyKind(
        "group::<group>",
        "HASH",
        "how far a streaming query has come: its `epoch`, its `holder` and until when (`deadline`), the numbers of its "
        "claims up to which they are `sealed`, `acked`, `cleared` and `released`, and for each number what lies there",
    ),
    KeyKind(
        "group::<group>::<number>",
        "LIST",
        "the messages of one claim of a streaming query in their order, with the delivery count before those whose "
        "count is not 1",
    ),
    KeyKind(
        "groups", "HASH", "consumer group to how many messages lie in its claims; under the empty name all of them"
    ),
    KeyKind("backfill::<name>", "HASH, TTL", "file to size and time of change, for those that a backfill is done with"),
)


# What may follow a queue's name and separator; none of them can be a part of another queue's name.
RESERVED_WORDS = tuple(sorted({kind.word.partition("::")[0] for kind in KEY_MAP}))


def hash_tag_of(key: str) -> str | None:
    """The part of a key that decides its cluster slot, where braces mark one."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and start + 1 < end else None


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The names of one queue's keys; ``queue.key`` for the operator."""

    prefix: str
    separator: str
    pending: str
    processing: str
    completed: str
    failed: str
    dead_letter: str
    leases: str
    deliveries: str
    bell: str
    watch: str
    delayed: str
    later: str
    tenants: str
    size: str
    weights: str
    longest: str
    groups: str
    journal: str
    meta: str

    @classmethod
    def of(
        cls, name: str, *, separator: str = "::", dead_letter: str | None = None, hash_tag: bool = False
    ) -> QueueKeys:
        """The keys of the queue ``name``; with ``hash_tag`` all of them in one cluster slot.

        Raises `ConfigurationError` for a name or a dead-letter list that another key could be mistaken for.
        """
        refuse_reserved_words(name, separator)
        prefix = tagged(name) if hash_tag else name
        if dead_letter is not None:
            if hash_tag:
                dead_letter = _tagged_sibling(dead_letter, name, prefix, separator)
            _refuse_other_keys(dead_letter, prefix, separator)
        return cls.unchecked(prefix, separator=separator, dead_letter=dead_letter)

    @classmethod
    def unchecked(cls, prefix: str, *, separator: str = "::", dead_letter: str | None = None) -> QueueKeys:
        """The keys that begin with ``prefix``, whatever it is."""

        def key(word: str) -> str:
            return f"{prefix}{separator}{word}"

        return cls(
            prefix=prefix,
            separator=separator,
            pending=key("pending"),
            processing=key("processing"),
            completed=key("completed"),
            failed=key("failed"),
            dead_letter=dead_letter or key("dlq"),
            leases=key("leases"),
            deliveries=key("deliveries"),
            bell=key("bell"),
            watch=key("watch"),
            delayed=key("delayed"),
            later=key("later"),
            tenants=key("tenants"),
            size=key("size"),
            weights=key("weights"),
            longest=key("longest"),
            groups=key("groups"),
            journal=key("journal"),
            meta=key("meta"),
        )

    def _sibling(self, *words: str) -> str:
        return self.separator.join((self.prefix, *words))

    def line(self, tenant: str) -> str:
        """The line of one tenant."""
        return self._sibling("line", tenant)

    def returned(self, tenant: str) -> str:
        """The messages of one tenant whose lease ran out."""
        return self._sibling("returned", tenant)

    def records(self, list: str) -> str:
        """What is remembered beside the payloads of ``completed``, ``failed``, ``dlq``, or of any list by its key."""
        words = {self.completed: "completed", self.failed: "failed", self.dead_letter: "dlq"}
        return self._sibling("records", words.get(list, list))

    def deduplication(self, key: str, tenant: str | None = None) -> str:
        """The key that remembers a published deduplication key, for messages of this tenant or without one."""
        if tenant is None:
            return self._sibling("deduplication", key)
        # The length keeps tenant and key apart, whatever is in them, and the word the keys of no tenant.
        return self._sibling("tenant_deduplication", f"{len(tenant)}:{tenant}:{key}")

    def reply(self, caller: str) -> str:
        """The key that remembers the answer to a caller's last call."""
        return self._sibling("reply", caller)

    def group(self, group: str) -> str:
        """What is known of a consumer group."""
        return self._sibling("group", group)

    def members(self, group: str, number: int) -> str:
        """The messages of one claim of a consumer group."""
        return self._sibling("group", group, str(number))

    def backfill(self, name: str) -> str:
        """What a backfill is done with."""
        return self._sibling("backfill", name)


def siblings(key: str) -> QueueKeys:
    """The keys of the queue that has ``key`` as one of its own; an unknown name is taken as the queue's."""
    for word in ("pending", "processing", "completed", "failed", "dlq"):
        if key.endswith(word) and len(key) > len(word) and not key[-len(word) - 1].isalnum():
            head = key[: -len(word)]
            # The usual separator, or whatever stands there; a brace belongs to the name.
            separator = "::" if head.endswith("::") else head[len(_without_marks(head)) :]
            return QueueKeys.unchecked(head[: -len(separator)], separator=separator)
    return QueueKeys.unchecked(key)


def _without_marks(text: str) -> str:
    while text and not text[-1].isalnum() and text[-1] != "}":
        text = text[:-1]
    return text


def refuse_reserved_words(name: str, separator: str) -> None:
    """Raise for a queue name whose keys could be those of another queue, as `jobs::line` is a key of `jobs`."""
    whole = name + separator  # every key begins with it
    words = "|".join(map(re.escape, RESERVED_WORDS))
    found = re.search(f"{re.escape(separator)}({words})(?={re.escape(separator)})", whole)
    if found is not None:
        raise ConfigurationError(
            f"name {name!r} has the separator {separator!r} followed by the reserved word {found[1]!r}, and its keys "
            f"could be mistaken for keys of the queue {name[: found.start()]!r}; use another name, for example "
            f"{name.replace(separator, '-')!r}"
        )


def _refuse_other_keys(dead_letter: str, prefix: str, separator: str) -> None:
    """Raise for a dead-letter list that is one of the queue's other keys."""
    begin = prefix + separator
    word = dead_letter.removeprefix(begin).partition(separator)[0] if dead_letter.startswith(begin) else ""
    if word in RESERVED_WORDS and dead_letter != f"{begin}dlq":
        raise ConfigurationError(
            f"dead_letter_queue {dead_letter!r} is a key that the queue itself uses ({word!r}); dead letters need a "
            f"list of their own: leave the option out for {begin + 'dlq'!r}, or give a name that no other key has"
        )


def tagged(name: str) -> str:
    """A name whose keys share a cluster slot; a name with a tag of its own keeps it."""
    if hash_tag_of(name) is not None:
        return name
    if "{" in name or "}" in name:
        raise ConfigurationError(
            f"name {name!r} has braces that are no hash tag; on a cluster use a name without braces, "
            "or with one whole tag such as '{orders}'"
        )
    return f"{{{name}}}"


def _tagged_sibling(dead_letter: str, name: str, prefix: str, separator: str) -> str:
    """A dead-letter name in the queue's own slot, or an error that says which would do."""
    if hash_tag_of(dead_letter) == hash_tag_of(prefix):
        return dead_letter
    if dead_letter.startswith(name + separator):
        return prefix + dead_letter[len(name) :]
    raise ConfigurationError(
        f"dead_letter_queue {dead_letter!r} lies in another cluster slot than the queue {name!r}; "
        f"use a name that begins with {name + separator!r} or has the hash tag {{{hash_tag_of(prefix)}}}"
    )
