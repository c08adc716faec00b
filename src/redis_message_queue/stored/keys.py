"""The Redis keys of a queue: the name, the type and the content of each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from redis_message_queue.values.errors import ConfigurationError


class KeyKind(NamedTuple):
    """One row of the key map: the end of the key's name, its Redis type and what it holds."""

    word: str
    type: str
    holds: str


# The reference page "Keys in Redis" is generated from this table, and a test compares it with a real server.
KEY_MAP = (
    KeyKind("pending", "LIST", "Messages that are waiting. Producers push on the left, consumers pop from the right."),
    KeyKind(
        "processing", "HASH", "Messages in flight: message id (without leases: claim token) to the stored message."
    ),
    KeyKind(
        "leases",
        "ZSET",
        "Claim tokens (message id plus the nonce of the claim), scored by the time the lease ends in microseconds of "
        "the server's clock. Three more members are alarms: `d` for the next delayed message, `r` while tenants wait, "
        "`s` for the next tick of a schedule.",
    ),
    KeyKind(
        "deliveries",
        "HASH",
        "Message id to attempts, delivery count and failures. A message gets a field when it is requeued, retried or "
        "reclaimed.",
    ),
    KeyKind("delayed", "ZSET", "Ids of messages that wait for their time or their next attempt, scored by that time."),
    KeyKind("delayed_messages", "HASH", "Message id to the stored message, for every id in `delayed`."),
    KeyKind(
        "cancelled",
        "ZSET, TTL",
        "Ids of waiting messages that are cancelled, scored by the time of the call in microseconds of the server's "
        "clock. The claim that meets such a message drops it.",
    ),
    KeyKind(
        "tenant_ring",
        "ZSET",
        "Tenants that have messages waiting, scored by virtual time; a tenant that is paused or at its limit is behind "
        "all times.",
    ),
    KeyKind("tenant_pending::<tenant>", "LIST", "The waiting messages of one tenant, ordered as in `pending`."),
    KeyKind(
        "expired::<tenant>", "ZSET", "Claim tokens of a tenant's messages whose lease ran out, scored by that time."
    ),
    KeyKind("tenant_backlog", "STRING", "The number of messages that wait in all tenant queues together."),
    KeyKind(
        "longest",
        "STRING, TTL",
        "The tenant that had the longest queue at the last drop. Used only while more than 100 tenants wait.",
    ),
    KeyKind(
        "tenant_in_flight",
        "ZSET",
        "The messages of tenants in flight, if a consumer limits them: the length of the tenant, the tenant and the "
        "id, all with the score 0.",
    ),
    KeyKind("weights", "HASH", "Tenant to weight, for every tenant whose weight is not 1."),
    KeyKind("completed", "LIST", "Payloads of handled messages, newest on the left."),
    KeyKind("failed", "LIST", "Payloads of messages whose handler raised, newest on the left."),
    KeyKind("dlq", "LIST", "Payloads of dead letters, newest on the left."),
    KeyKind(
        "records::<list>",
        "LIST",
        "The ids, counts, times and errors that belong to the payloads in one of these three lists.",
    ),
    KeyKind(
        "deduplication::<key>",
        "STRING, TTL",
        "The id of the message that was published with this deduplication key. While it exists, other messages with "
        "the key are suppressed.",
    ),
    KeyKind(
        "tenant_deduplication::<length>:<tenant>:<key>", "STRING, TTL", "The same for a message that has a tenant."
    ),
    KeyKind(
        "reply::<caller>",
        "STRING, TTL",
        "The number and the reply of a caller's last call, so that a repeated call gets the same reply.",
    ),
    KeyKind(
        "consumer_name::<process>",
        "STRING, TTL",
        "The name, host and process id of a process whose consumers have a `consumer_name`. Claim tokens contain "
        "`<process>`.",
    ),
    KeyKind(
        "connected_workers",
        "ZSET, TTL",
        "An entry of each `run()`, `run_queues` and `rmq worker`, scored by the time when it expires: since when the "
        "loop runs, when it last claimed, and as JSON its process, host, version and concurrency. In a queue with "
        "partitions, the first has it.",
    ),
    KeyKind("wakeup", "LIST", "At most one wake-up token, which a waiting consumer pops when there is work."),
    KeyKind("journal", "STREAM", "The state changes of this queue's messages, if the queue has a journal."),
    KeyKind(
        "meta",
        "HASH",
        "The `version` of the stored format, and once more in `version_journal` or the like by clients that ask for a "
        "journal or weights, the number of `partitions`, `tenants` once a message of a tenant has waited, "
        "the bytes of the `largest` message since the queue was empty, if one was large, since when the queue is "
        "`paused`, how many `paused_tenants` there are and since when each of them is (`paused:<tenant>`), "
        "`cancels` while messages are marked as cancelled, and `counts` while consumers limit the messages in flight. "
        "With a journal also its rules, its identity, the serial number of its last entry and how far it is archived. "
        "In a queue with partitions `meta::<partitions>` holds all that.",
    ),
    KeyKind(
        "meta::<partitions>",
        "HASH",
        "In each partition of a queue that has several: what `meta` holds otherwise. A client with another number of "
        "partitions looks for another key, finds nothing there, and is refused. `meta` has their number only.",
    ),
    KeyKind("timer_owner", "STRING, TTL", "Exists while one consumer is set to wake up when the next lease ends."),
    KeyKind(
        "group::<group>",
        "HASH",
        "The progress of a streaming query: its `epoch`, its `holder` and the `deadline` of that holder, the last "
        "claim numbers that are `sealed`, `acked`, `cleared` and `released`, and for each claim how many messages it "
        "has, how many were rejected, in how many slices it is read, how many were delivered before, and the bytes of "
        "the largest. `part` and `dead` are the last answer, in case the call is repeated.",
    ),
    KeyKind(
        "group::<group>::<number>",
        "LIST",
        "The messages of one claim of a streaming query, in order. A delivery count other than 1 precedes its message, "
        "and a message that was rejected leaves a `-`.",
    ),
    KeyKind(
        "groups",
        "HASH",
        "Consumer group to the number of messages in its claims. The empty field holds the total.",
    ),
    KeyKind("schedules", "ZSET", "The names of the schedules, scored by the time of their next tick."),
    KeyKind(
        "schedule::<name>",
        "HASH",
        "A schedule: its `definition` as JSON, the `payload` of its message, the `timing` of its ticks, the `revision` "
        "of this definition, when it was `created`, the tick `after` which the next one comes, and the `last` tick "
        "that has a message.",
    ),
    KeyKind(
        "backfill::<name>",
        "HASH, TTL",
        "File to size and modification time, for every file a backfill has read; and how many rows of each split of a "
        "file are published, with a digest of them.",
    ),
)


DEFAULT_SEPARATOR = "::"

# The only key that belongs to no queue: a set with an entry for each queue of the server.
REGISTRY_KEY = "redis_message_queue::queues"

# A queue name must not contain one of these after a separator: its keys would look like another queue's.
_PARTITION = "partition"  # before the number of a partition
RESERVED_WORDS = tuple(sorted({_PARTITION, *(kind.word.partition("::")[0] for kind in KEY_MAP)}))
_RESERVED = "|".join(map(re.escape, RESERVED_WORDS))


def hash_tag_of(key: str) -> str | None:
    """The hash tag of a key, which decides its cluster slot, or None if the key has none."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and start + 1 < end else None


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The names of one queue's keys. Available as ``queue.key``."""

    prefix: str
    separator: str
    pending: str
    processing: str
    completed: str
    failed: str
    dead_letter: str
    leases: str
    deliveries: str
    wakeup: str
    connected_workers: str
    timer_owner: str
    delayed: str
    delayed_messages: str
    cancelled: str
    tenant_ring: str
    tenant_backlog: str
    weights: str
    tenant_in_flight: str
    longest: str
    groups: str
    schedules: str
    journal: str
    meta: str

    @classmethod
    def of(
        cls, name: str, *, separator: str = DEFAULT_SEPARATOR, dead_letter: str | None = None, hash_tag: bool = False
    ) -> QueueKeys:
        """The keys of the queue ``name``; with ``hash_tag`` all of them share one cluster slot.

        Raises `ConfigurationError` if the name or the dead-letter list could clash with another key.
        """
        refuse_reserved_words(name, separator)
        prefix = tagged(name) if hash_tag else name
        if dead_letter is not None:
            if hash_tag:
                dead_letter = _tagged_sibling(dead_letter, name, prefix, separator)
            _refuse_other_keys(dead_letter, prefix, separator)
        return cls.unchecked(prefix, separator=separator, dead_letter=dead_letter)

    @classmethod
    def unchecked(cls, prefix: str, *, separator: str = DEFAULT_SEPARATOR, dead_letter: str | None = None) -> QueueKeys:
        """The keys that begin with ``prefix``, which is not checked."""
        begin = prefix + separator
        made = {name: begin + name for name in cls.__slots__}
        return cls(**made | {"prefix": prefix, "separator": separator, "dead_letter": dead_letter or f"{begin}dlq"})

    @property
    def counted(self) -> str:
        """Where the number of partitions is stored; without partitions this is ``meta``."""
        return self._sibling("meta")

    @property
    def registry_entry(self) -> str:
        """The entry of this queue in the registry of the server: a JSON object, without what has its default."""
        entry = {"name": self.prefix}
        if self.separator != DEFAULT_SEPARATOR:
            entry["key_separator"] = self.separator
        if self.dead_letter != self._sibling("dlq"):
            entry["dead_letter_queue"] = self.dead_letter
        return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))

    def _sibling(self, *words: str) -> str:
        return self.separator.join((self.prefix, *words))

    def tenant_pending(self, tenant: str) -> str:
        """The waiting messages of one tenant."""
        return self._sibling("tenant_pending", tenant)

    def expired(self, tenant: str) -> str:
        """The messages of one tenant whose lease ran out."""
        return self._sibling("expired", tenant)

    def records(self, list: str) -> str:
        """The records that belong to the payloads of ``completed``, ``failed``, ``dlq`` or any other list."""
        words = {self.completed: "completed", self.failed: "failed", self.dead_letter: "dlq"}
        return self._sibling("records", words.get(list, list))

    @property
    def terminal_lists(self) -> dict[str, tuple[str, str]]:
        """The lists of messages that have ended, by their kinds: the key of each, and that of its records."""
        return {
            "completed": (self.completed, self.records("completed")),
            "failed": (self.failed, self.records("failed")),
            "dead_letters": (self.dead_letter, self.records("dlq")),
        }

    def deduplication(self, key: str, tenant: str | None = None) -> str:
        """The key that remembers a deduplication key, for messages of this tenant or of none."""
        if tenant is None:
            return self._sibling("deduplication", key)
        # The length separates tenant and key, whatever they contain. The other word keeps apart keys without a tenant.
        return self._sibling("tenant_deduplication", f"{len(tenant)}:{tenant}:{key}")

    def reply(self, caller: str) -> str:
        """The key that remembers the reply to a caller's last call."""
        return self._sibling("reply", caller)

    def consumer_name(self, process: str) -> str:
        """The key that has the readable name of a process; claim tokens have these hexadecimal digits as bytes."""
        return self._sibling("consumer_name", process)

    def partitioned_meta(self, partitions: int) -> str:
        """The state of a partition, if the queue has so many of them."""
        return self._sibling("meta", str(partitions))

    def group(self, group: str) -> str:
        """The progress of a consumer group."""
        return self._sibling("group", group)

    def members(self, group: str, number: int) -> str:
        """The messages of one claim of a consumer group."""
        return self._sibling("group", group, str(number))

    def schedule(self, name: str) -> str:
        """The record of one schedule."""
        return self._sibling("schedule", name)

    def backfill(self, name: str) -> str:
        """The files that a backfill has read."""
        return self._sibling("backfill", name)


def partition_keys(keys: QueueKeys, number: int, count: int) -> QueueKeys:
    """The keys of one partition of a queue that has ``count`` of them. The first has the queue's own names.

    A name that is a hash tag as a whole, as on a cluster, gets the number inside: each partition has its own slot.
    """
    prefix = keys.prefix
    if number:
        is_tag = len(prefix) > 2 and hash_tag_of(prefix) == prefix[1:-1]
        own = keys.separator.join((prefix[1:-1] if is_tag else prefix, _PARTITION, str(number)))
        prefix = f"{{{own}}}" if is_tag else own
    made = QueueKeys.unchecked(prefix, separator=keys.separator)
    return replace(made, meta=made.partitioned_meta(count))


# The fields of `QueueKeys` by the names that headers of scripts have for them.
_KEYS_OF_HEADERS = {name: name for name in QueueKeys.__slots__} | {"dlq": "dead_letter"}


def script_keys(keys: QueueKeys, names: Sequence[str], **given: str) -> tuple[str, ...]:
    """The keys that the header of a script names, in its order, without the last ones that each call brings itself.

    ``given`` has those that are not the same for every caller, such as its ``reply``.
    """
    found: list[str] = []
    for name in names:
        if name in given:
            found.append(given[name])
        elif name in _KEYS_OF_HEADERS:
            found.append(getattr(keys, _KEYS_OF_HEADERS[name]))
        else:
            break
    if any(name in given or name in _KEYS_OF_HEADERS for name in names[len(found) :]):
        raise KeyError(names[len(found)])
    return tuple(found)


def siblings(key: str) -> QueueKeys:
    """The keys of the queue that ``key`` belongs to. A key that is not recognised is taken as a queue's name."""
    for word in ("pending", "processing", "completed", "failed", "dlq"):
        if key.endswith(word) and len(key) > len(word) and not key[-len(word) - 1].isalnum():
            head = key[: -len(word)]
            # The default separator, or any other punctuation; a brace belongs to the name.
            separator = DEFAULT_SEPARATOR if head.endswith(DEFAULT_SEPARATOR) else head[len(_without_marks(head)) :]
            return QueueKeys.unchecked(head[: -len(separator)], separator=separator)
    return QueueKeys.unchecked(key)


def _without_marks(text: str) -> str:
    while text and not text[-1].isalnum() and text[-1] != "}":
        text = text[:-1]
    return text


def refuse_reserved_words(name: str, separator: str) -> None:
    """Raise for a queue name whose keys could belong to another queue: `jobs::tenant_pending` is a key of `jobs`."""
    whole = name + separator  # every key begins with it
    for mark in (separator, DEFAULT_SEPARATOR):  # another queue may use the default one
        found = re.search(f"{re.escape(mark)}({_RESERVED})(?={re.escape(mark)})", whole)
        if found is not None:
            other = f"name, for example {name.replace(mark, '-')!r}" if mark in name else "key_separator"
            raise ConfigurationError(
                f"name {name!r} with the separator {separator!r} has {mark!r} followed by the reserved word "
                f"{found[1]!r}, so its keys could clash with keys of the queue {whole[: found.start()]!r}; "
                f"use another {other}"
            )


def _refuse_other_keys(dead_letter: str, prefix: str, separator: str) -> None:
    """Raise if the dead-letter list is one of the queue's other keys."""
    begin = prefix + separator
    word = dead_letter.removeprefix(begin).partition(separator)[0] if dead_letter.startswith(begin) else ""
    if word in RESERVED_WORDS and dead_letter != f"{begin}dlq":
        raise ConfigurationError(
            f"dead_letter_queue {dead_letter!r} is a key that the queue itself uses ({word!r}); "
            f"leave the option out to use {begin + 'dlq'!r}, or choose a name that no other key has"
        )


def tagged(name: str) -> str:
    """The name with a hash tag, so that its keys share a cluster slot. A name that has a tag keeps it."""
    if hash_tag_of(name) is not None:
        return name
    if "{" in name or "}" in name:
        raise ConfigurationError(
            f"name {name!r} has braces that are not a hash tag; on a cluster use a name without braces, "
            "or with one complete tag such as '{orders}'"
        )
    return f"{{{name}}}"


def refuse_one_slot(name: str) -> None:
    """Raise for a name with a hash tag in it, which would keep all partitions in one slot."""
    tag = hash_tag_of(name)
    if tag is not None and name != f"{{{tag}}}":
        raise ConfigurationError(
            f"name {name!r} has the hash tag {{{tag}}}, which would keep all partitions in one cluster slot; use a "
            f"name without braces, for example {name.replace('{', '').replace('}', '')!r}"
        )


def _tagged_sibling(dead_letter: str, name: str, prefix: str, separator: str) -> str:
    """The dead-letter name in the queue's own slot, or an error that suggests one."""
    if hash_tag_of(dead_letter) == hash_tag_of(prefix):
        return dead_letter
    if dead_letter.startswith(name + separator):
        return prefix + dead_letter[len(name) :]
    raise ConfigurationError(
        f"dead_letter_queue {dead_letter!r} is in another cluster slot than the queue {name!r}; "
        f"use a name that begins with {name + separator!r} or has the hash tag {{{hash_tag_of(prefix)}}}"
    )
