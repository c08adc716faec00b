"""The options of queues and gateways: each is declared, described and checked here, and nowhere else.

Constructors, `help()`, the reference page, the command line and the Spark options take names, types, defaults and
descriptions from these declarations.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec, TypeVar, get_args, get_type_hints

from redis_message_queue.options.retry_policy import RetryPolicy
from redis_message_queue.process.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.stored.codecs import codec_for
from redis_message_queue.stored.envelope import PayloadRules, tenant_name
from redis_message_queue.values.checks import (
    MILLISECOND,
    flag,
    function,
    functions,
    lease,
    number,
    refuse_unknown,
    text,
    whole_number,
)
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, RedisMessageQueueError
from redis_message_queue.values.events import QueueEvent
from redis_message_queue.values.plain_values import brief, is_text, plain

_LONGEST_CONSUMER_NAME = 64  # characters
OverloadPolicy = Literal["raise", "block", "drop_oldest"]
JournalMode = bool | Literal["payload"]
LeaseSeconds = Annotated[
    float | None,
    "The length of a lease. A message that is neither settled nor renewed in time is delivered again. None means "
    "at-most-once delivery: a message whose consumer crashes is lost.",
]
DeliveryLimit = Annotated[
    int | None, "How often a message is delivered before it goes to the dead letters instead. None sets no limit."
]
_POLICIES: Final = get_args(OverloadPolicy)


class ImplicitDefault(int):
    """A default that differs from the same number given by the caller.

    Signatures and `help()` show the plain number; whether the caller gave it is decided by identity.
    """


DEFAULT_VISIBILITY_TIMEOUT_SECONDS = 300
DEFAULT_MAX_DELIVERY_COUNT: Final = ImplicitDefault(10)
DEFAULT_TRACKING_LENGTH = 1_000
DEFAULT_DEDUPLICATION_SECONDS = 3600
DEFAULT_RETRY_BUDGET_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """How messages are kept in Redis, and how long a call tries to reach it: for queues and gateways alike."""

    message_wait_interval_seconds: Annotated[
        float,
        "How long `process_message()` waits for a message before it returns None; 0 looks once. While Redis cannot be "
        "reached, the call takes up to one socket timeout longer.",
    ] = 5.0
    max_dead_letter_length: Annotated[
        int | None, "How many dead letters to keep. The oldest are deleted beyond that. None keeps all."
    ] = None
    message_ttl_seconds: Annotated[
        float | None,
        "The longest a message may wait, counted from when it was published. An older one goes to the dead letters "
        "instead of a handler. None sets no limit.",
    ] = None
    tenant_weights: Annotated[
        Mapping[str, int] | None,
        "How many messages of a tenant are served per round, for tenants that get more than one. Stored in Redis, so "
        "the weights apply to all consumers.",
    ] = None
    message_deduplication_log_ttl_seconds: Annotated[
        float, "The deduplication window: for this long, a message with the same key is suppressed."
    ] = DEFAULT_DEDUPLICATION_SECONDS
    max_pending_length: Annotated[int | None, "How many messages may wait in the queue. None sets no limit."] = None
    max_pending_per_tenant: Annotated[int | None, "How many messages of one tenant may wait. None sets no limit."] = (
        None
    )
    max_in_flight_per_tenant: Annotated[
        int | None,
        "How many messages of one tenant this consumer lets be in flight, those of other consumers included. None sets "
        "no limit. Needs leases.",
    ] = None
    ordered_tenants: Annotated[
        bool,
        "Handle the messages of a tenant strictly in their order: this consumer claims none while an earlier one is in "
        "flight or waits for its next attempt. Give it to all consumers. Needs leases.",
    ] = False
    pending_overload_policy: Annotated[
        OverloadPolicy,
        "What `publish()` does when the queue is full: `raise` raises `QueueBackpressureError`, `block` waits for "
        "room, `drop_oldest` deletes the oldest message of the longest tenant queue.",
    ] = "raise"
    pending_overload_block_timeout_seconds: Annotated[
        float,
        'With `pending_overload_policy="block"`: how long `publish()` waits for room, retries included, before it '
        "raises `QueueBackpressureError`.",
    ] = 1.0
    journal: Annotated[
        JournalMode,
        'Record every state change of a message in a Redis stream. With `"payload"` the payloads are recorded too.',
    ] = False
    max_journal_length: Annotated[
        int, "How many entries the journal keeps. Entries that no archive has read yet are kept ten times as long."
    ] = 1_000_000
    confirm_replicas: Annotated[
        int | None,
        "How many replicas must have a message before `publish()` returns (`WAIT`). None does not wait for any.",
    ] = None
    confirm_fsync: Annotated[
        bool,
        "Wait until a message is on the server's disk before `publish()` returns (`WAITAOF`), and on the disks of "
        "`confirm_replicas` replicas.",
    ] = False
    confirm_timeout_seconds: Annotated[
        float, "How long to wait for that confirmation before `publish()` raises `PublishNotConfirmedError`."
    ] = 1.0
    retry_budget_seconds: Annotated[
        float,
        "How long a call is retried after transient errors, counted from its first attempt. 0 makes one attempt, "
        "which the client's own `Retry` may repeat.",
    ] = DEFAULT_RETRY_BUDGET_SECONDS
    retry_initial_delay_seconds: Annotated[
        float, "The pause before the first retry. Each further pause is twice as long, and half of it is random."
    ] = 0.01
    retry_max_delay_seconds: Annotated[float, "The longest pause between two retries."] = 5.0
    consumer_name: Annotated[
        str | None,
        "What to call the consumers of this process, at most 64 characters. `peek`, `get`, `trace`, records and the "
        "dashboard then show `<name>@<host>:<pid>`, on every host. Without it, host and process id, and other hosts as "
        "four bytes.",
    ] = None
    hash_tag: Annotated[
        bool | None,
        "Put the queue's name into braces, so that all its keys share one cluster slot. None does so for cluster "
        "clients only.",
    ] = None

    def __post_init__(self) -> None:
        number("retry_budget_seconds", self.retry_budget_seconds, least=0)
        number("retry_initial_delay_seconds", self.retry_initial_delay_seconds)
        number("retry_max_delay_seconds", self.retry_max_delay_seconds)
        number("message_deduplication_log_ttl_seconds", self.message_deduplication_log_ttl_seconds, least=MILLISECOND)
        number("message_wait_interval_seconds", self.message_wait_interval_seconds, least=0)
        number("pending_overload_block_timeout_seconds", self.pending_overload_block_timeout_seconds)
        number("confirm_timeout_seconds", self.confirm_timeout_seconds, least=MILLISECOND)
        flag("confirm_fsync", self.confirm_fsync)
        flag("ordered_tenants", self.ordered_tenants)
        number("message_ttl_seconds", self.message_ttl_seconds, optional=True, least=MILLISECOND)
        for name in (
            "max_dead_letter_length",
            "max_pending_length",
            "max_pending_per_tenant",
            "max_in_flight_per_tenant",
            "confirm_replicas",
        ):
            whole_number(name, getattr(self, name), optional=True)
        whole_number("max_journal_length", self.max_journal_length)
        if not (isinstance(self.journal, bool) or (is_text(self.journal) and self.journal == "payload")):
            raise ConfigurationError(f"journal must be True, False or 'payload', not {brief(self.journal)}")
        if self.tenant_weights is not None:
            _check_weights(self.tenant_weights)
        if self.hash_tag is not None:
            flag("hash_tag", self.hash_tag)
        if self.consumer_name is not None:
            _check_consumer_name(self.consumer_name)
        self._check_storage()

    def _check_storage(self) -> None:
        if self.ordered_tenants and self.max_in_flight_per_tenant not in (None, 1):
            raise ConfigurationError(
                f"ordered_tenants=True lets one message of a tenant be in flight, not max_in_flight_per_tenant="
                f"{self.max_in_flight_per_tenant}; leave one of them out"
            )
        if self.retry_initial_delay_seconds > self.retry_max_delay_seconds:
            raise ConfigurationError(
                f"retry_initial_delay_seconds ({self.retry_initial_delay_seconds}) is longer than "
                f"retry_max_delay_seconds ({self.retry_max_delay_seconds}); the first pause must be the shortest"
            )
        if not is_text(self.pending_overload_policy) or self.pending_overload_policy not in _POLICIES:
            wrong = ConfigurationError if is_text(self.pending_overload_policy) else ConfigurationTypeError
            raise wrong(
                f"pending_overload_policy must be 'raise', 'block' or 'drop_oldest', "
                f"not {brief(self.pending_overload_policy)}"
            )
        if self.pending_overload_policy != "raise" and not (self.max_pending_length or self.max_pending_per_tenant):
            raise ConfigurationError(
                f"pending_overload_policy={self.pending_overload_policy!r} needs max_pending_length: "
                "without a limit there is nothing to wait for or to drop from"
            )


def _check_consumer_name(name: Any) -> None:
    text("consumer_name", name)
    if len(name) > _LONGEST_CONSUMER_NAME or not plain(name).isprintable():
        raise ConfigurationError(
            f"consumer_name must be at most {_LONGEST_CONSUMER_NAME} printable characters, not {brief(name)}"
        )


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(StorageOptions):
    """The options of a gateway."""

    message_visibility_timeout_seconds: LeaseSeconds = None
    max_delivery_count: DeliveryLimit = None
    dead_letter_queue: Annotated[str | None, "The key of the dead-letter list, if it is not `<name>::dlq`."] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        lease("message_visibility_timeout_seconds", self.message_visibility_timeout_seconds)
        whole_number("max_delivery_count", self.max_delivery_count, optional=True)
        if self.dead_letter_queue is not None:
            text("dead_letter_queue", self.dead_letter_queue)
        if self.max_delivery_count is not None and self.message_visibility_timeout_seconds is None:
            raise ConfigurationError(
                f"max_delivery_count={self.max_delivery_count} needs a visibility timeout: without one a message "
                "is never delivered twice; set the timeout, or max_delivery_count=None"
            )
        if self.max_in_flight_per_tenant is not None and self.message_visibility_timeout_seconds is None:
            raise ConfigurationError(
                f"max_in_flight_per_tenant={self.max_in_flight_per_tenant} needs a visibility timeout: without one, a "
                "message of a consumer that crashed would keep its place for ever; set the timeout, or leave the limit "
                "out"
            )
        if self.ordered_tenants and self.message_visibility_timeout_seconds is None:
            raise ConfigurationError(
                "ordered_tenants=True needs a visibility timeout: without one, a message of a consumer that crashed "
                "would hold up its tenant for ever; set the timeout"
            )
        if self.pending_overload_policy == "drop_oldest" and self.max_delivery_count is not None:
            raise ConfigurationError(
                "pending_overload_policy='drop_oldest' needs max_delivery_count=None: a queue that may drop "
                "messages cannot guarantee that failing ones reach the dead letters"
            )


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The options of a queue around its gateway: names, tracking, payload rules, heartbeats, callbacks."""

    name: Annotated[str, "The name of the queue. All its Redis keys begin with it."] = field(kw_only=False)
    deduplication: Annotated[
        bool, "Suppress a message whose deduplication key was published within the deduplication window."
    ] = False
    get_deduplication_key: Annotated[
        Callable[[Any], Any] | None,
        "Called with each message to get its deduplication key. Without it, the SHA-256 of the content is the key.",
    ] = None
    heartbeat_interval_seconds: Annotated[
        float | None,
        "Renew the lease this often while a handler runs. Must be less than half of the visibility timeout. None is a "
        "third of that in `run`; `process_message` and `process_messages` then renew nothing.",
    ] = None
    max_processing_seconds: Annotated[
        float | None,
        "Stop renewing the lease of a handler that runs longer than this, so that a hung handler loses its message.",
    ] = None
    on_heartbeat_failure: Annotated[
        Callable[[], Any] | None, "Called when a lease was lost or could not be renewed while its handler runs."
    ] = None
    retry_policy: Annotated[
        RetryPolicy | None,
        "When to retry a message whose handler raised. None does not retry: the message fails at once.",
    ] = None
    enable_completed_queue: Annotated[bool, "Keep the payloads of handled messages in the `completed` list."] = False
    max_completed_length: Annotated[int | None, "How many handled payloads to keep, newest first. None keeps all."] = (
        DEFAULT_TRACKING_LENGTH
    )
    enable_failed_queue: Annotated[bool, "Keep the payloads of messages whose handler raised in the `failed` list."] = (
        False
    )
    max_failed_length: Annotated[int | None, "How many failed payloads to keep, newest first. None keeps all."] = (
        DEFAULT_TRACKING_LENGTH
    )
    keep_tracebacks: Annotated[
        bool,
        "Keep the end of the handler's traceback (4 kB, without values of variables) in the record of a message that "
        "failed for good, and log it where no caller gets the exception. It may quote what the handler put into it.",
    ] = True
    strict_payload_types: Annotated[
        bool, "Refuse dicts with values that JSON cannot represent exactly, such as tuples."
    ] = False
    max_payload_bytes: Annotated[int | None, "Refuse messages that are larger than this. None sets no limit."] = None
    max_payload_depth: Annotated[int | None, "Refuse dicts that nest deeper than this. None sets no limit."] = None
    interrupt: Annotated[
        BaseGracefulInterruptHandler | None,
        "A stop signal, for example `GracefulInterruptHandler()`: consumers then claim nothing more, and a publish "
        "that waits for room ends with an error.",
    ] = None
    on_event: Annotated[
        Callable[[QueueEvent], Any] | Sequence[Callable[[QueueEvent], Any]] | None,
        "Called with a `QueueEvent` for every operation of this object: one function, or a list of functions, of which "
        "each is called whatever the others do.",
    ] = None
    get_headers: Annotated[
        Callable[[], Any] | None,
        "Called at each publish to get headers: a mapping of str to str that is delivered with the message.",
    ] = None
    codec: Annotated[
        Any,
        "How objects become payloads and payloads objects: the type of the messages (a dataclass, a pydantic model, a "
        "msgspec Struct, `dict`, `list` or `bytes`), or an object with `encode` and `decode`. None publishes str and "
        "dict, and delivers text or bytes.",
    ] = None
    key_separator: Annotated[str, "What separates the parts of a Redis key."] = "::"
    partitions: Annotated[
        int,
        "How many queues in Redis the messages are spread over, so that on a cluster one queue uses many nodes. Stored "
        "at first use: every client must give the same number, and `rmq partitions` grows it.",
    ] = 1

    def __post_init__(self) -> None:
        text("name", self.name)
        text("key_separator", self.key_separator)
        for name in (
            "deduplication",
            "enable_completed_queue",
            "enable_failed_queue",
            "keep_tracebacks",
            "strict_payload_types",
        ):
            flag(name, getattr(self, name))
        for name in ("max_completed_length", "max_failed_length", "max_payload_bytes", "max_payload_depth"):
            whole_number(name, getattr(self, name), optional=True)
        functions("on_event", self.on_event)
        for name in ("get_deduplication_key", "on_heartbeat_failure", "get_headers"):
            function(name, getattr(self, name))
        number("heartbeat_interval_seconds", self.heartbeat_interval_seconds, optional=True)
        number("max_processing_seconds", self.max_processing_seconds, optional=True)
        check_partitions("partitions", self.partitions)
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            raise ConfigurationTypeError(
                f"retry_policy must be a RetryPolicy or None, not {type(self.retry_policy).__name__}"
            )
        if self.interrupt is not None and not isinstance(self.interrupt, BaseGracefulInterruptHandler):
            raise ConfigurationTypeError(
                f"interrupt must be a BaseGracefulInterruptHandler, not {type(self.interrupt).__name__}; "
                "subclass it to use a stop signal of your own"
            )
        codec_for(self.codec)
        self._check_combinations()

    def _check_combinations(self) -> None:
        for name, unset in (("strict_payload_types", False), ("max_payload_depth", None)):
            if self.codec is not None and getattr(self, name) != unset:
                raise ConfigurationError(f"{name} is a rule for dicts, and codec encodes the messages; leave it out")
        if self.get_deduplication_key is not None and not self.deduplication:
            raise ConfigurationError(
                "get_deduplication_key is given and deduplication is off, so it would never be called; "
                "pass deduplication=True, or leave the function out"
            )

    def check_renewal(self, interval: float | None) -> None:
        """Raise for what has no effect on messages whose leases are not renewed, which is an ``interval`` of None."""
        if interval is not None or (self.on_heartbeat_failure is None and self.max_processing_seconds is None):
            return
        name = "max_processing_seconds" if self.on_heartbeat_failure is None else "on_heartbeat_failure"
        raise ConfigurationError(
            f"{name} has no effect if leases are not renewed: `run` does that, unless renew_leases is False, and "
            "`process_message` and `process_messages` do it if heartbeat_interval_seconds is set"
        )

    def check_beside(
        self,
        *,
        visibility_timeout_seconds: float | None,
        overload_policy: str,
        message_ttl_seconds: float | None = None,
    ) -> None:
        """The rules that bind a queue to the gateway it works with."""
        if self.retry_policy is not None and message_ttl_seconds is not None:
            soonest = self.retry_policy.pause(1, 1.0)
            if soonest >= message_ttl_seconds:
                raise ConfigurationError(
                    f"retry_policy waits at least {soonest:g} s before the second attempt, and message_ttl_seconds="
                    f"{message_ttl_seconds:g} makes every message too old by then; shorten initial_delay_seconds, or "
                    "raise message_ttl_seconds"
                )
        if visibility_timeout_seconds is None:
            for name in ("heartbeat_interval_seconds", "on_heartbeat_failure", "max_processing_seconds"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"{name} needs a visibility timeout: without a lease there is nothing to renew"
                    )
        elif (self.heartbeat_interval_seconds or 0) >= visibility_timeout_seconds / 2:
            raise ConfigurationError(
                f"heartbeat_interval_seconds ({self.heartbeat_interval_seconds}) must be less than half of the "
                f"visibility timeout ({visibility_timeout_seconds}), so that a lease survives one lost renewal"
            )
        if overload_policy == "drop_oldest" and self.deduplication:
            raise ConfigurationError(
                "pending_overload_policy='drop_oldest' cannot be combined with deduplication: the key of a dropped "
                "message would remain and suppress the same message when it is published again; use 'raise' or 'block'"
            )

    @property
    def payload_rules(self) -> PayloadRules:
        """The rules for what may be published."""
        return PayloadRules(self.strict_payload_types, self.max_payload_bytes, self.max_payload_depth)


@dataclass(frozen=True, kw_only=True)
class QueueArguments(QueueOptions, StorageOptions):
    """Everything that the constructor of a queue takes."""

    client: Annotated[
        Any, "A redis-py client with a connection pool: sync for the sync queue, async for the async one."
    ] = None
    gateway: Annotated[
        Any, "A `RedisGateway` or a gateway of your own, with its own client and options. Replaces `client`."
    ] = None
    visibility_timeout_seconds: LeaseSeconds = DEFAULT_VISIBILITY_TIMEOUT_SECONDS
    max_delivery_count: DeliveryLimit = DEFAULT_MAX_DELIVERY_COUNT

    def __post_init__(self) -> None:
        QueueOptions.__post_init__(self)
        if (self.client is None) == (self.gateway is None):
            raise ConfigurationError("give the queue a client or a gateway, and only one of them")

    def gateway_options(self) -> GatewayOptions:
        """The options of a gateway for ``client``."""
        timeout, limit = self.visibility_timeout_seconds, self.max_delivery_count
        lease("visibility_timeout_seconds", timeout)
        if limit is DEFAULT_MAX_DELIVERY_COUNT:
            # The default limit must not forbid at-most-once delivery.
            limit = None if timeout is None else int(limit)
        shared = {one.name: getattr(self, one.name) for one in fields(StorageOptions)}
        return GatewayOptions(message_visibility_timeout_seconds=timeout, max_delivery_count=limit, **shared)

    def refuse_beside_gateway(self) -> None:
        """Raise for options that only ``gateway`` can honour; values that equal the default are let through."""
        for one in options_of_gateway():
            value = getattr(self, one.name)
            if value is one.default or (type(value) in (bool, int, float, str) and value == one.default):
                continue
            there = f"message_{one.name}" if one.name == "visibility_timeout_seconds" else one.name
            raise ConfigurationError(
                f"{one.name}={brief(value)} has no effect with gateway=; set it on the gateway: "
                f"RedisGateway({there}={brief(value)})"
            )


@dataclass(frozen=True, kw_only=True)
class GatewayArguments(GatewayOptions):
    """Everything that the constructor of a gateway takes."""

    redis_client: Annotated[
        Any, "A redis-py client with a connection pool: sync for the sync gateway, async for the async one."
    ]


def options_of_gateway() -> list[Field[Any]]:
    """The options of a queue that belong to its gateway, where it is given one."""
    own = {"client", "gateway", *(one.name for one in fields(QueueOptions))}
    return [one for one in fields(QueueArguments) if one.name not in own]


P = ParamSpec("P")


def constructor(
    arguments: Callable[P, Any],
) -> Callable[[Callable[[Any, Any], None]], Callable[Concatenate[Any, P], None]]:
    """Turn an ``__init__`` that takes checked arguments into one that takes what their class declares.

    The signature and the docstring that `help()` shows come from the declaration, and a misspelt option gets an error
    that names the nearest one.
    """

    def decorate(initialize: Callable[[Any, Any], None]) -> Callable[Concatenate[Any, P], None]:
        owner = initialize.__qualname__.partition(".")[0]
        signature = signature_of(arguments)

        def __init__(self: Any, /, *given: P.args, **options: P.kwargs) -> None:
            refuse_unknown(owner, options, signature.parameters)
            try:
                signature.bind(self, *given, **options)
            except TypeError as error:
                raise TypeError(f"{owner}(): {error}") from None
            initialize(self, arguments(*map(_plain, given), **{name: _plain(one) for name, one in options.items()}))

        __init__.__doc__ = _described(arguments, signature)
        __init__.__qualname__, __init__.__module__ = initialize.__qualname__, initialize.__module__
        __init__.__signature__ = signature  # type: ignore[attr-defined]  # documented for `inspect.signature`
        return __init__

    return decorate


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_fields_of(declaration: Any) -> Callable[[Function], Function]:
    """Show the fields of a class as the arguments of a function that passes its ``**options`` on to it."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        known = {"handler", *(one.name for one in own)}
        added = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
            for one in fields(declaration)
            if one.name not in known
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]  # as above
        return function

    return decorate


def _plain(value: Any) -> Any:
    """The value of an option without its subclass; a default that is one stays what it is."""
    return value if isinstance(value, ImplicitDefault) else plain(value)


def descriptions(declaration: Any) -> dict[str, str]:
    """Return the description of each option, by its name."""
    described: dict[str, str] = {}
    for one in reversed(declaration.__mro__):
        for name, hint in get_type_hints(one, include_extras=True).items():
            if get_args(hint) and hasattr(hint, "__metadata__"):
                described[name] = hint.__metadata__[0]
    return described


def signature_of(declaration: Any) -> inspect.Signature:
    """The signature of a constructor: the queue and its server first, then the options as they are declared."""
    hints, declared = get_type_hints(declaration), {one.name: one for one in fields(declaration)}
    order = ["name", "client", "gateway", "redis_client"]
    order += [name for one in declaration.__mro__ for name in getattr(one, "__annotations__", ()) if name not in order]
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for one in (declared[name] for name in dict.fromkeys(order) if name in declared):
        kind = inspect.Parameter.KEYWORD_ONLY if one.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        parameters.append(inspect.Parameter(one.name, kind, default=default, annotation=hints[one.name]))
    return inspect.Signature(parameters, return_annotation=None)


def _described(declaration: Any, signature: inspect.Signature) -> str:
    """The docstring of a constructor."""
    described, rows = descriptions(declaration), ["Check the options; nothing is sent to Redis yet.", "", "Args:"]
    for name in list(signature.parameters)[1:]:
        rows.append(textwrap.fill(f"    {name}: {described[name]}", 110, subsequent_indent=" " * 8))
    return "\n".join(rows)


_HEAVIEST = 1_000
MOST_PARTITIONS = 1_000


def check_partitions(name: str, count: Any) -> None:
    """Raise unless a queue can have so many partitions."""
    whole_number(name, count)
    if count > MOST_PARTITIONS:
        raise ConfigurationError(f"{name} must be at most {MOST_PARTITIONS:,}, not {brief(count)}")


def _check_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise ConfigurationTypeError(f"tenant_weights must map tenants to weights, not {type(weights).__name__}")
    for tenant, weight in weights.items():
        try:
            tenant_name(tenant)
        except RedisMessageQueueError as error:
            raise ConfigurationError(f"tenant_weights: {error}") from None
        whole_number(f"the weight of {brief(tenant)} in tenant_weights", weight)
        if weight > _HEAVIEST:
            raise ConfigurationError(f"a weight in tenant_weights is at most {_HEAVIEST:,}, not {brief(weight)}")
