"""The options of the format `redis_message_queue`: named as in Spark's Kafka connector, checked once, at the door.

Each option is explained where it stands; `dedup_key_column` here is `dedupKeyColumn` to Spark.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

from redis import ConnectionPool, Redis, RedisCluster

from redis_message_queue.errors import ConfigurationError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import DEFAULT_MAX_DELIVERY_COUNT
from redis_message_queue.spark.connection import connected

PayloadFormat = Literal["string", "binary"]
Table = Literal["pending", "processing", "delayed", "completed", "failed", "dead_letters", "records", "journal"]
Listed = Literal["completed", "failed", "dead_letters"]

# What Spark itself puts among the options of a source or a sink.
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})
# Redis takes 512 MB in one piece; a script that copies a fifth of that is felt by everybody else.
LARGEST_PAYLOAD = 100_000_000
_LARGEST_BATCH = 1_000  # what one script may publish
_CENTURY = 3_155_760_000.0


# How a text becomes a value. Spark hands every value over as text.


def _text(name: str, given: str) -> str:
    if not given.strip():
        raise ConfigurationError(f"option {name} must not be empty")
    return given


def _url(name: str, given: str) -> str:
    """Looked at as redis-py does. What is wrong with it is not told: a password may be a part of that."""
    try:
        ConnectionPool.from_url(given)
    except Exception:
        raise ConfigurationError(
            f"option {name} is no URL of a Redis server (not shown: it may hold a password); "
            "write it as redis://user:password@host:6379/0, rediss:// for TLS or unix:// for a socket"
        ) from None
    return given


def _whole(name: str, given: str, most: int | None = None) -> int:
    try:
        value = int(given)
    except ValueError:
        value = 0
    if value < 1 or (most is not None and value > most):
        bound = "of 1 or more" if most is None else f"from 1 to {most:,}"
        raise ConfigurationError(f"option {name} must be a whole number {bound}, not {given!r}")
    return value


def _limit(name: str, given: str) -> int | None:
    """A limit that can be taken off."""
    return None if given.strip() == "0" else _whole(name, given)


def _batch_size(name: str, given: str) -> int:
    return _whole(name, given, _LARGEST_BATCH)


def _payload_bytes(name: str, given: str) -> int:
    return _whole(name, given, LARGEST_PAYLOAD)


def _seconds(name: str, given: str, *, least: float = 0.001) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not least <= value <= _CENTURY:
        raise ConfigurationError(f"option {name} must be a number of seconds of at least {least:g}, not {given!r}")
    return value


def _patience(name: str, given: str) -> float:
    return _seconds(name, given, least=0)


def _flag(name: str, given: str) -> bool:
    if given.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {name} must be true or false, not {given!r}")
    return given.lower() == "true"


def _choice(kind: Any) -> Callable[[str, str], str]:
    words = get_args(kind)

    def choose(name: str, given: str) -> str:
        if given.lower() not in words:
            raise ConfigurationError(f"option {name} must be one of {', '.join(words)}, not {given!r}")
        return given.lower()

    return choose


_DeadLetters = Annotated[str | None, _text, "the key of the dead-letter list, if it is not `<queue>::dlq`"]
_Payloads = Annotated[PayloadFormat, _choice(PayloadFormat), "whether `payload` is text or bytes: `string` or `binary`"]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What source, sink and tables have in common: where the queue is, and how they are read from Spark's options."""

    role: ClassVar[str]  # what these are the options of, in an error

    url: Annotated[str, _url, "where the server is; never shown, because it may hold a password"] = field(repr=False)
    queue: Annotated[str, _text, "the name of the queue"]
    cluster: Annotated[bool, _flag, "the server is a Redis Cluster, and `url` is one of its nodes"] = False
    key_separator: Annotated[str, _text, "what stands between the parts of a key"] = "::"
    hash_tag: Annotated[
        bool, _flag, "the queue's producers and consumers have `hash_tag=True`; on a cluster it is so anyway"
    ] = False

    def __post_init__(self) -> None:
        if self.cluster and not _is_of_a_cluster(self.url):
            raise ConfigurationError(
                "option cluster is true, and the url names a socket or a database, which a cluster does not have; "
                "write it as redis://user:password@host:6379 or rediss://"
            )

    @property
    def keys(self) -> QueueKeys:
        """The keys of the queue; on a cluster they share a slot."""
        return QueueKeys.of(
            self.queue,
            separator=self.key_separator,
            dead_letter=getattr(self, "dead_letter_queue", None),  # a sink has none
            hash_tag=self.hash_tag or self.cluster,
        )

    def connect(self) -> Redis | RedisCluster:
        """A client of its own; the caller closes it."""
        return connected(self.url, cluster=self.cluster)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """The options in what Spark hands over, whatever the case of their names, or one clear error."""
        known = {spoken(name).lower(): name for name in names_of(cls)}
        lowered = {name.lower(): value for name, value in given.items()}
        for name in lowered.keys() - known.keys() - SPARKS_OWN:
            raise _unknown(name, cls)
        values: dict[str, Any] = {}
        hints = get_type_hints(cls, include_extras=True)
        for name, own in known.items():
            read, says = hints[own].__metadata__
            if name in lowered:
                values[own] = read(spoken(own), str(lowered[name]))
            elif not hasattr(cls, own):  # a default would be there
                raise ConfigurationError(f"option {spoken(own)} is missing: {says}; add .option({spoken(own)!r}, ...)")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(_Options):
    """The options of the streaming source."""

    role: ClassVar[str] = "the streaming source"

    consumer_group: Annotated[
        str, _text, "who reads: one query at a time holds the lease of a group; two groups share the messages out"
    ] = "spark"
    max_messages_per_trigger: Annotated[int, _whole, "how many messages a micro-batch takes at the most"] = 100_000
    min_partitions: Annotated[
        int | None, _whole, "how many tasks read a micro-batch at least, if it has that many messages"
    ] = None
    lease_seconds: Annotated[float, _seconds, "how long a query that died keeps others from its group"] = 10.0
    fail_on_data_loss: Annotated[bool, _flag, "stop, rather than go on, if messages of a batch are gone"] = True
    payload_format: _Payloads = "string"
    max_delivery_count: Annotated[
        int | None,
        _limit,
        "how often a message is delivered before it goes to the dead letters; 0 for any number. A replay of a batch "
        "is no delivery",
    ] = DEFAULT_MAX_DELIVERY_COUNT
    message_ttl_seconds: Annotated[
        float | None, _seconds, "a message older than this is not read, and goes to the dead letters"
    ] = None
    dead_letter_queue: _DeadLetters = None
    max_dead_letter_length: Annotated[int | None, _whole, "how many dead letters are kept, the newest"] = None


@dataclass(frozen=True, kw_only=True)
class SinkOptions(_Options):
    """The options of the sink, for streams and for batches."""

    role: ClassVar[str] = "the sink"

    payload_column: Annotated[str, _text, "the column with the payloads: text or bytes"] = "payload"
    dedup_key_column: Annotated[
        str | None,
        _text,
        "the column with the deduplication keys: text or whole numbers; a row whose key is known is skipped",
    ] = None
    tenant_column: Annotated[str | None, _text, "the column with the tenants; null for none"] = None
    delay_column: Annotated[
        str | None,
        _text,
        "the column that says when to deliver: a number of seconds or a timestamp; null for at once",
    ] = None
    batch_size: Annotated[int, _batch_size, "how many messages a script publishes at the most, up to 1,000"] = 1_000
    deduplication_seconds: Annotated[
        float, _seconds, "how long a key suppresses its repetition: longer than a retry or a restart may take"
    ] = 3_600.0
    max_pending_length: Annotated[
        int | None, _whole, "how many messages may wait in the queue; the sink waits for room"
    ] = None
    max_pending_per_tenant: Annotated[int | None, _whole, "how many messages of one tenant may wait"] = None
    pressure_timeout_seconds: Annotated[
        float, _patience, "how long a task waits for room for its next messages before it fails; 0 to fail at once"
    ] = 300.0
    max_payload_bytes: Annotated[int, _payload_bytes, "a larger payload is an error"] = LARGEST_PAYLOAD


@dataclass(frozen=True, kw_only=True)
class TableOptions(_Options):
    """The options of the batch reader."""

    role: ClassVar[str] = "the batch reader"

    table: Annotated[Table, _choice(Table), f"what to read: one of {', '.join(get_args(Table))}"]
    source: Annotated[
        Listed, _choice(Listed), f"whose records, with table=records: one of {', '.join(get_args(Listed))}"
    ] = "dead_letters"
    min_partitions: Annotated[int | None, _whole, "how many tasks read at least, if there are that many rows"] = None
    payload_format: _Payloads = "string"
    dead_letter_queue: _DeadLetters = None


def _is_of_a_cluster(url: str) -> bool:
    return not url.startswith("unix:") and not ConnectionPool.from_url(url).connection_kwargs.get("db")


_ROLES = (SourceOptions, SinkOptions, TableOptions)


def spoken(name: str) -> str:
    """The name of an option as Spark's users write it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Raise for a name that no part of the connector knows, before it is known which part is wanted."""
    for name in given:
        if name.lower() not in SPARKS_OWN and not _roles_of(name.lower()):
            raise _unknown(name, None)


def names_of(role: type[_Options]) -> list[str]:
    """The names of a part's options, as Python has them."""
    return [one.name for one in fields(role)]


def _roles_of(name: str) -> list[type[_Options]]:
    return [role for role in _ROLES if name in (spoken(one).lower() for one in names_of(role))]


def _unknown(name: str, wanted: type[_Options] | None) -> ConfigurationError:
    names = {spoken(one).lower(): spoken(one) for role in _ROLES for one in names_of(role)}
    if wanted is not None and (roles := _roles_of(name)):
        return ConfigurationError(
            f"option {names[name]} is for {' and '.join(role.role for role in roles)}, and would do nothing for "
            f"{wanted.role}; leave it out"
        )
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]}?" if close else f"there are: {', '.join(sorted(names.values()))}"
    return ConfigurationError(f"option {name} is unknown; {hint}")
