"""The options of the Spark format, each declared once: its type, its check and its description.

The reference page, the help of `rmq spark` and the errors about options are made from these declarations. An option
that a queue has too takes its description and its name from the queue: `max_pending_length` is `maxPendingLength`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from redis import ConnectionPool, Redis, RedisCluster

from redis_message_queue.options.declared import (
    DEFAULT_MAX_DELIVERY_COUNT,
    GatewayOptions,
    ImplicitDefault,
    QueueOptions,
    check_partitions,
)
from redis_message_queue.protocol.operate.reader import RecordSource
from redis_message_queue.spark.connection import connect, refuse_with_partitions
from redis_message_queue.spark.time_options import check_time, parse_time
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.checks import MILLISECOND, flag, number, text, whole_number
from redis_message_queue.values.errors import ConfigurationError, RedisMessageQueueError
from redis_message_queue.values.plain_values import brief, described, is_text, plain

PayloadFormat = Literal["string", "binary"]
InvalidPayloads = Literal["fail", "column", "dead_letters"]
Table = Literal[
    "pending", "processing", "delayed", "claimed", "completed", "failed", "dead_letters", "records", "journal"
]
Check = Callable[[str, Any], None]

# What Spark itself puts among the options of a source or a sink.
_OPTIONS_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname"})
# Redis accepts values of up to 512 MB; a script that copies a fifth of that delays every other client.
LARGEST_PAYLOAD = 100_000_000


class Option(NamedTuple):
    """One declared option: what it accepts, and what it does."""

    kind: Any  # str, int, float, bool or a Literal; jobs have options of other types, which no text can express
    optional: bool  # whether None is allowed
    check: Check
    description: str
    default: Any  # MISSING if the option is required


_declared: dict[type, dict[str, Option]] = {}  # reading the annotations of a class takes several milliseconds


def declared_options(options: type) -> dict[str, Option]:
    """Return the options that a class declares, by their Python names."""
    if options in _declared:
        return _declared[options]
    hints = get_type_hints(options, include_extras=True)
    found: dict[str, Option] = {}
    for one in fields(options):
        declared, check, description = get_args(hints[one.name])
        optional = NoneType in get_args(declared)
        kind = get_args(declared)[0] if optional else declared
        found[one.name] = Option(kind, optional, check, description, one.default)
    _declared[options] = found
    return found


def spark_name(name: str) -> str:
    """Return the name of an option as Spark users write it: `min_partitions` is `minPartitions`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _queue_option(name: str, more: str = "") -> str:
    """Return the description of an option of the queue, with what is special about it in Spark."""
    for options in (GatewayOptions, QueueOptions):
        hint = get_type_hints(options, include_extras=True).get(name)
        for said in get_args(hint)[1:]:
            if isinstance(said, str):
                return f"{said[0].upper()}{said[1:].rstrip('.')}. {more}".strip()
    raise LookupError(f"the queue has no described option {name!r}")


def one_of(kind: Any) -> Check:
    """Return a check that accepts the words of a Literal."""

    def check(name: str, value: Any) -> None:
        if not is_text(value) or value not in get_args(kind):
            raise ConfigurationError(f"{name} must be one of {', '.join(get_args(kind))}, not {brief(value)}")

    return check


def _redis_url(name: str, value: Any) -> None:
    """Parse the URL as redis-py does. The error does not show it, because it may contain a password."""
    try:
        ConnectionPool.from_url(value)
    except Exception:
        raise ConfigurationError(
            f"{name} is not the URL of a Redis server (not shown here: it may contain a password). "
            "Write it as redis://user:password@host:6379/0, rediss:// for TLS or unix:// for a socket."
        ) from None


def _at_most(most: int) -> Check:
    def check(name: str, value: Any) -> None:
        whole_number(name, value)
        if value > most:
            raise ConfigurationError(f"{name} must be at most {most:,}, not {brief(value)}")

    return check


def split_names(given: str) -> list[str]:
    """Return the names of tenants in a text, in alphabetical order: '' for no tenant."""
    names = json.loads(given) if given.lstrip().startswith("[") else [one.strip() for one in given.split(",")]
    return sorted(set(names))


def _tenant_names(name: str, value: Any) -> None:
    try:
        for one in split_names(value):
            if one != "":
                tenant_name(one)
    except (RedisMessageQueueError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{name} must be names of tenants with commas between them, or a JSON list of texts, not {brief(value)} "
            f"({described(error)})"
        ) from None


seconds = partial(number, least=MILLISECOND)
seconds_or_zero = partial(number, least=0)


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Options that are checked when they are made."""

    def __post_init__(self) -> None:
        for name, option in declared_options(type(self)).items():
            value = getattr(self, name)
            if not isinstance(value, ImplicitDefault):
                value = plain(value)
                object.__setattr__(self, name, value)
            if value is not None or not option.optional:
                option.check(name, value)


@dataclass(frozen=True, kw_only=True)
class QueueAddress(CheckedOptions):
    """Where a queue is: its server, its name, and how its keys are named."""

    role: ClassVar[str]  # what these are the options of, for errors

    url: Annotated[
        str,
        _redis_url,
        "The Redis server: redis://user:password@host:6379/0, rediss:// for TLS or unix:// for a socket. Never shown, "
        "because it may contain a password.",
    ] = field(repr=False)
    queue: Annotated[str, text, _queue_option("name")]
    cluster: Annotated[bool, flag, "Whether the server is a Redis Cluster. `url` is then any of its nodes."] = False
    key_separator: Annotated[str, text, _queue_option("key_separator")] = "::"
    hash_tag: Annotated[bool, flag, _queue_option("hash_tag")] = False
    dead_letter_queue: Annotated[str | None, text, _queue_option("dead_letter_queue")] = None
    partitions: Annotated[
        int | None,
        check_partitions,
        _queue_option(
            "partitions", "Here you need it only for a queue that nobody has used yet: the default is what is stored."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cluster and (
            self.url.startswith("unix:") or ConnectionPool.from_url(self.url).connection_kwargs.get("db")
        ):
            raise ConfigurationError(
                "option cluster is true, but the url names a socket or a database, which a cluster does not have. "
                "Write it as redis://user:password@host:6379 or rediss://."
            )
        _ = self.keys  # raises for a name that cannot be one
        if self.partitions is not None and self.partitions > 1:
            refuse_with_partitions(self)

    @property
    def keys(self) -> QueueKeys:
        """The keys of the queue. On a cluster they share a slot."""
        return QueueKeys.of(
            self.queue,
            separator=self.key_separator,
            dead_letter=self.dead_letter_queue,
            hash_tag=self.hash_tag or self.cluster,
        )

    @property
    def address(self) -> dict[str, Any]:
        """The options of the address alone."""
        return {name: getattr(self, name) for name in declared_options(QueueAddress)}

    def connect(self) -> Redis | RedisCluster:
        """Return a new client. The caller closes it."""
        return connect(self.url, cluster=self.cluster)

    @classmethod
    def from_spark(cls, given: Mapping[str, str]) -> Self:
        """Read the options that Spark hands over: names in any case, every value as text.

        Raises:
            ConfigurationError: An option is missing, unknown, or has a value that cannot work.
        """
        declared = declared_options(cls)
        lowered = {name.lower(): str(value) for name, value in given.items()}
        names = {spark_name(name).lower(): name for name in declared}
        for name in lowered.keys() - names.keys() - _OPTIONS_OF_SPARK:
            raise _unknown(name, cls)
        values: dict[str, Any] = {}
        for lower, name in names.items():
            if lower in lowered:
                values[name] = _parse(spark_name(name), declared[name], lowered[lower])
            elif declared[name].default is MISSING:
                shown = spark_name(name)
                raise ConfigurationError(
                    f"option {shown} is missing. {declared[name].description} Add .option({shown!r}, ...)."
                )
        return cls(**values)


def _parse(name: str, option: Option, given: str) -> Any:
    """Return the value that a text stands for. A limit that is on by default is switched off by 0."""
    value: Any = given
    if option.kind is bool:
        value = {"true": True, "false": False}.get(given.lower())
    elif option.kind in (int, float):
        try:
            value = option.kind(given)
        except ValueError:
            value = None
    elif get_origin(option.kind) is Literal:
        value = given.lower()
    if value is None:
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[option.kind]
        raise ConfigurationError(f"option {name} must be {wanted}, not {brief(given)}")
    if value == 0 and option.kind is int and option.optional and option.default is not None:
        return None
    option.check(f"option {name}", value)
    return value


_PayloadFormat = Annotated[
    PayloadFormat, one_of(PayloadFormat), "The type of the column `payload`: `string` or `binary`."
]
_DeduplicationWindow = Annotated[
    float,
    seconds,
    _queue_option(
        "message_deduplication_log_ttl_seconds", "Choose more than a retry, or a restart of the query or job, may take."
    ),
]
_BlockTimeout = Annotated[
    float,
    seconds_or_zero,
    _queue_option("pending_overload_block_timeout_seconds", "The task then fails. 0 fails at once."),
]


@dataclass(frozen=True, kw_only=True)
class SourceOptions(QueueAddress):
    """The options of the streaming source."""

    role: ClassVar[str] = "the streaming source"

    consumer_group: Annotated[
        str,
        text,
        "The name under which the query reads. One query at a time holds a consumer group. Two groups of a queue "
        "share its messages: each message goes to one of them.",
    ] = "spark"
    max_messages_per_trigger: Annotated[int, whole_number, "The largest number of messages in a micro-batch."] = 100_000
    min_partitions: Annotated[
        int | None, whole_number, "The smallest number of tasks that read a micro-batch, if it has that many messages."
    ] = None
    lease_seconds: Annotated[
        float, seconds, "How long a query that died keeps other queries out of its consumer group."
    ] = 10.0
    fail_on_data_loss: Annotated[
        bool, flag, "Stop the query if messages of a micro-batch are gone. `false` logs a warning and continues."
    ] = True
    payload_format: _PayloadFormat = "string"
    invalid_payloads: Annotated[
        InvalidPayloads,
        one_of(InvalidPayloads),
        "What to do with a payload that is not UTF-8, if it is read as a string: `fail` stops the query, `column` adds "
        "a column `corrupt_payload` with its bytes, and `payload` is null, and `dead_letters` moves the message to the "
        "dead letters.",
    ] = "fail"
    max_delivery_count: Annotated[
        int | None,
        whole_number,
        _queue_option("max_delivery_count", "Write 0 for None. Replaying a micro-batch is not another delivery."),
    ] = DEFAULT_MAX_DELIVERY_COUNT
    message_ttl_seconds: Annotated[float | None, number, _queue_option("message_ttl_seconds")] = None
    max_dead_letter_length: Annotated[int | None, whole_number, _queue_option("max_dead_letter_length")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.invalid_payloads != "fail" and self.payload_format == "binary":
            raise ConfigurationError(
                f"option invalidPayloads={self.invalid_payloads} is for payloads that are read as strings, but "
                "payloadFormat is binary: every payload is valid then. Leave one of them out."
            )
        if self.key_separator in self.consumer_group:
            raise ConfigurationError(
                f"option consumerGroup must not contain {self.key_separator!r}, the separator of the queue's keys; "
                f"it is {self.consumer_group!r}"
            )


@dataclass(frozen=True, kw_only=True)
class PublishOptions(QueueAddress):
    """How the sink and the jobs publish."""

    batch_size: Annotated[int, _at_most(MAX_MESSAGES), "How many messages one script publishes, up to 1,000."] = (
        MAX_MESSAGES
    )
    message_deduplication_log_ttl_seconds: _DeduplicationWindow = 30 * 86_400.0
    max_pending_length: Annotated[int | None, whole_number, _queue_option("max_pending_length")] = None
    max_pending_per_tenant: Annotated[int | None, whole_number, _queue_option("max_pending_per_tenant")] = None
    pending_overload_block_timeout_seconds: _BlockTimeout = 60.0


@dataclass(frozen=True, kw_only=True)
class SinkOptions(PublishOptions):
    """The options of the sink, for streams and for batches."""

    role: ClassVar[str] = "the sink"

    message_deduplication_log_ttl_seconds: _DeduplicationWindow = 3_600.0
    pending_overload_block_timeout_seconds: _BlockTimeout = 300.0
    payload_column: Annotated[str, text, "The column with the payloads: string or binary."] = "payload"
    dedup_key_column: Annotated[
        str | None,
        text,
        "The column with the deduplication keys: strings or whole numbers. A row whose key was published before is "
        "skipped.",
    ] = None
    tenant_column: Annotated[str | None, text, "The column with the tenants. Null means no tenant."] = None
    partition_key_column: Annotated[
        str | None,
        text,
        "In a queue with partitions: the column with the partition keys, strings or whole numbers. Rows with the same "
        "key go to the same partition. Null, or no column, takes the tenant, else the deduplication key, else each in "
        "turn.",
    ] = None
    delay_column: Annotated[
        str | None,
        text,
        "The column that says when to deliver: a number of seconds from now, or a timestamp. Null means at once.",
    ] = None
    headers_column: Annotated[
        str | None, text, "The column with the headers, a map of strings to strings. Null means no headers."
    ] = None
    max_payload_bytes: Annotated[int, _at_most(LARGEST_PAYLOAD), _queue_option("max_payload_bytes")] = LARGEST_PAYLOAD


@dataclass(frozen=True, kw_only=True)
class TableOptions(QueueAddress):
    """The options of the batch reader."""

    role: ClassVar[str] = "the batch reader"

    table: Annotated[Table, one_of(Table), f"The table to read: one of {', '.join(get_args(Table))}."]
    records_of: Annotated[
        RecordSource,
        one_of(RecordSource),
        f"With table=records: whose records to read, one of {', '.join(get_args(RecordSource))}.",
    ] = "dead_letters"
    consumer_group: Annotated[
        str | None, text, "With table=claimed: the consumer group whose messages to read. Without it: all groups."
    ] = None
    min_partitions: Annotated[
        int | None, whole_number, "The smallest number of tasks that read the table, if it has that many rows."
    ] = None
    payload_format: _PayloadFormat = "string"
    tenants: Annotated[
        str | None,
        _tenant_names,
        "With table=pending: the tenants whose messages to read, separated by commas, or a JSON list. An empty name "
        "stands for messages without a tenant. Other messages are not read from Redis.",
    ] = None
    since: Annotated[
        Any | None,
        check_time,
        "With table=journal: read what happened from this time on. 2026-09-21, 2026-09-21T08:00 (UTC), "
        "2026-09-21T08:00+02:00, a time ago such as 24h or 7d, today or yesterday. Earlier entries are not read "
        "from Redis.",
    ] = None
    until: Annotated[
        Any | None, check_time, "With table=journal: read what happened before this time, written like `since`."
    ] = None
    due_until: Annotated[
        Any | None,
        check_time,
        "With table=delayed: the messages that are due before this time, written like `since`. Other messages are not "
        "read from Redis.",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, table in _TABLE_OF.items():
            if self.table != table and getattr(self, name) != declared_options(TableOptions)[name].default:
                raise _ineffective(name, self.table)
        for name in ("since", "until", "due_until"):  # once, so that all tasks mean the same time by `24h`
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, parse_time(f"option {spark_name(name)}", value))
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise ConfigurationError(f"option until must be later than since: {self.until} is not after {self.since}")

    @classmethod
    def from_spark(cls, given: Mapping[str, str]) -> Self:
        options = super().from_spark(given)
        # The value alone does not say whether somebody has written the default.
        if options.table != "records" and "recordsof" in (name.lower() for name in given):
            raise _ineffective("records_of", options.table)
        return options


# The options that one table has.
_TABLE_OF: dict[str, Table] = {
    "records_of": "records",
    "consumer_group": "claimed",
    "tenants": "pending",
    "since": "journal",
    "until": "journal",
    "due_until": "delayed",
}


def _ineffective(name: str, table: str) -> ConfigurationError:
    return ConfigurationError(
        f"option {spark_name(name)} applies only to table={_TABLE_OF[name]}, not to table={table}; leave it out"
    )


_ROLES: tuple[type[QueueAddress], ...] = (SourceOptions, SinkOptions, TableOptions)


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Raise for an option that no part of the format has, before it is known which part is wanted."""
    for name in given:
        if name.lower() not in _OPTIONS_OF_SPARK and not _roles_with(name):
            raise _unknown(name, None)


def _roles_with(name: str) -> list[type[QueueAddress]]:
    return [role for role in _ROLES if name.lower() in (spark_name(one).lower() for one in declared_options(role))]


def _unknown(name: str, wanted: type[QueueAddress] | None) -> ConfigurationError:
    names = {spark_name(one).lower(): spark_name(one) for role in _ROLES for one in declared_options(role)}
    if wanted is not None and (roles := _roles_with(name)):
        return ConfigurationError(
            f"option {names[name]} belongs to {' and '.join(role.role for role in roles)} and has no effect on "
            f"{wanted.role}. Leave it out."
        )
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]}?" if close else f"the options are: {', '.join(sorted(names.values()))}"
    return ConfigurationError(f"option {name if name.isidentifier() else brief(name)} is unknown; {hint}")
