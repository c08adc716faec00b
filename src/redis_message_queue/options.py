"""What a user can set: frozen, and checked once, at the door.

Each option is explained where it stands; the reference page is made from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, get_args

from redis_message_queue.checks import MILLISECOND, flag, function, lease, number, text, whole_number
from redis_message_queue.envelope import PayloadRules, tenant_name
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, RedisMessageQueueError
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.retry_policy import RetryPolicy

OverloadPolicy = Literal["raise", "block", "drop_oldest"]
Journal = bool | Literal["payload"]
_POLICIES: Final = get_args(OverloadPolicy)


class ImplicitDefault(int):
    """A default that differs from the same number given by the caller.

    Signatures and `help()` show the plain number; whether the caller gave it is decided by identity.
    """


DEFAULT_VISIBILITY_TIMEOUT_SECONDS = 300
DEFAULT_MAX_DELIVERY_COUNT: Final = ImplicitDefault(10)
DEFAULT_TRACKING_LENGTH = 1_000
DEFAULT_DEDUPLICATION_SECONDS = 3600
DEFAULT_WAIT_SECONDS = 5.0
DEFAULT_RETRY_BUDGET_SECONDS = 120.0
DEFAULT_RETRY_INITIAL_DELAY_SECONDS = 0.01
DEFAULT_RETRY_MAX_DELAY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How messages are kept in Redis, and how long one tries to reach it."""

    retry_budget_seconds: Annotated[
        float,
        "how long a call is repeated after transient errors, counted from its first attempt; 0 for a single attempt, "
        "which the client's own `Retry` may repeat",
    ] = DEFAULT_RETRY_BUDGET_SECONDS
    retry_initial_delay_seconds: Annotated[
        float, "the first pause between two attempts; each further one is twice as long, half of it chance"
    ] = DEFAULT_RETRY_INITIAL_DELAY_SECONDS
    retry_max_delay_seconds: Annotated[float, "the longest pause between two attempts"] = (
        DEFAULT_RETRY_MAX_DELAY_SECONDS
    )
    message_deduplication_log_ttl_seconds: Annotated[
        float, "how long a published deduplication key suppresses its repetition"
    ] = DEFAULT_DEDUPLICATION_SECONDS
    message_wait_interval_seconds: Annotated[
        float,
        "how long `process_message()` waits for a message before it gives None; 0 to look once. When Redis is out of "
        "reach it takes the time of one answer longer",
    ] = DEFAULT_WAIT_SECONDS
    message_visibility_timeout_seconds: Annotated[
        float | None,
        "length of a lease: a message not settled or renewed in time is delivered again; None for at-most-once",
    ] = None
    max_delivery_count: Annotated[
        int | None, "how often a message is delivered before it goes to the dead letters; None for any number"
    ] = None
    dead_letter_queue: Annotated[str | None, "the key of the dead-letter list, if it is not `<name>::dlq`"] = None
    max_dead_letter_length: Annotated[int | None, "how many dead letters are kept, the newest; None for all"] = None
    max_pending_length: Annotated[int | None, "how many messages may wait; None for any number"] = None
    max_pending_per_tenant: Annotated[
        int | None, "how many may wait in the line of one tenant; None for any number"
    ] = None
    tenant_weights: Annotated[
        Mapping[str, int] | None, "how many turns a tenant has in a round, where that is not 1; kept in Redis for all"
    ] = None
    message_ttl_seconds: Annotated[
        float | None, "a message older than this is not delivered and goes to the dead letters; None for any age"
    ] = None
    journal: Annotated[
        Journal,
        "tell a stream what happens to each message, whoever does it; `payload` tells payloads too",
    ] = False
    max_journal_length: Annotated[
        int, "how many entries the journal keeps; of what an archive has not read, ten times as many"
    ] = 1_000_000
    pending_overload_policy: Annotated[
        OverloadPolicy, "what a publish does at that limit: `raise`, `block` or `drop_oldest`"
    ] = "raise"
    pending_overload_block_timeout_seconds: Annotated[
        float, "how long a blocked publish waits for room, retries included"
    ] = 1.0
    confirm_replicas: Annotated[
        int | None, "how many replicas must have a message before `publish()` returns (`WAIT`); None to ask nobody"
    ] = None
    confirm_fsync: Annotated[
        bool, "a message must be on the server's disk before `publish()` returns (`WAITAOF`), on the replicas' too"
    ] = False
    confirm_timeout_seconds: Annotated[
        float, "how long that may take before `PublishNotConfirmedError` says that it is not known"
    ] = 1.0
    hash_tag: Annotated[
        bool | None, "put the name into braces, so that all keys share a cluster slot; None does it for cluster clients"
    ] = None

    def __post_init__(self) -> None:
        number("retry_budget_seconds", self.retry_budget_seconds, least=0)
        number("retry_initial_delay_seconds", self.retry_initial_delay_seconds)
        number("retry_max_delay_seconds", self.retry_max_delay_seconds)
        number("message_deduplication_log_ttl_seconds", self.message_deduplication_log_ttl_seconds, least=MILLISECOND)
        number("message_wait_interval_seconds", self.message_wait_interval_seconds, least=0)
        lease("message_visibility_timeout_seconds", self.message_visibility_timeout_seconds)
        number("pending_overload_block_timeout_seconds", self.pending_overload_block_timeout_seconds)
        number("confirm_timeout_seconds", self.confirm_timeout_seconds, least=MILLISECOND)
        flag("confirm_fsync", self.confirm_fsync)
        number("message_ttl_seconds", self.message_ttl_seconds, optional=True, least=MILLISECOND)
        for name in (
            "max_delivery_count",
            "max_dead_letter_length",
            "max_pending_length",
            "max_pending_per_tenant",
            "confirm_replicas",
        ):
            whole_number(name, getattr(self, name), optional=True)
        whole_number("max_journal_length", self.max_journal_length)
        if not (isinstance(self.journal, bool) or self.journal == "payload"):
            raise ConfigurationError(f"journal must be True, False or 'payload', not {self.journal!r}")
        if self.tenant_weights is not None:
            _check_weights(self.tenant_weights)
        if self.dead_letter_queue is not None:
            text("dead_letter_queue", self.dead_letter_queue)
        if self.hash_tag is not None:
            flag("hash_tag", self.hash_tag)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.retry_initial_delay_seconds > self.retry_max_delay_seconds:
            raise ConfigurationError(
                f"retry_initial_delay_seconds ({self.retry_initial_delay_seconds}) is longer than "
                f"retry_max_delay_seconds ({self.retry_max_delay_seconds}); the first pause must be the shortest"
            )
        if self.max_delivery_count is not None and self.message_visibility_timeout_seconds is None:
            raise ConfigurationError(
                f"max_delivery_count={self.max_delivery_count} needs a visibility timeout: without one a message "
                "is never delivered twice; set the timeout, or max_delivery_count=None"
            )
        if not isinstance(self.pending_overload_policy, str) or self.pending_overload_policy not in _POLICIES:
            wrong = ConfigurationError if isinstance(self.pending_overload_policy, str) else ConfigurationTypeError
            raise wrong(
                f"pending_overload_policy must be 'raise', 'block' or 'drop_oldest', "
                f"not {self.pending_overload_policy!r}"
            )
        if self.pending_overload_policy != "raise" and not (self.max_pending_length or self.max_pending_per_tenant):
            raise ConfigurationError(
                f"pending_overload_policy={self.pending_overload_policy!r} needs max_pending_length: "
                "without a limit there is nothing to wait for or to drop from"
            )
        if self.pending_overload_policy == "drop_oldest" and self.max_delivery_count is not None:
            raise ConfigurationError(
                "pending_overload_policy='drop_oldest' needs max_delivery_count=None: a queue that may drop "
                "messages cannot promise to keep the poisonous ones"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What a queue does around its gateway: names, tracking, payload rules, heartbeats, callbacks."""

    name: Annotated[str, "the name of the queue, and the beginning of all its keys"]
    key_separator: Annotated[str, "what stands between the parts of a key"] = "::"
    deduplication: Annotated[bool, "suppress a message whose key was published within the window"] = False
    get_deduplication_key: Annotated[
        Callable[[Any], Any] | None, "gives the key of a message; without it the SHA-256 of its content is the key"
    ] = None
    enable_completed_queue: Annotated[bool, "keep the payloads of handled messages"] = False
    enable_failed_queue: Annotated[bool, "keep the payloads of messages whose handler raised"] = False
    max_completed_length: Annotated[int | None, "how many handled payloads are kept, the newest; None for all"] = (
        DEFAULT_TRACKING_LENGTH
    )
    max_failed_length: Annotated[int | None, "how many failed payloads are kept, the newest; None for all"] = (
        DEFAULT_TRACKING_LENGTH
    )
    heartbeat_interval_seconds: Annotated[
        float | None, "renew the lease this often while a handler works; less than half of the visibility timeout"
    ] = None
    retry_policy: Annotated[
        RetryPolicy | None, "another attempt, later, for a message whose handler raised; None for none"
    ] = None
    max_processing_seconds: Annotated[
        float | None, "stop renewing after this time, so that a hung handler loses its message"
    ] = None
    on_heartbeat_failure: Annotated[
        Callable[[], Any] | None, "called when a heartbeat ends because its lease could not be renewed"
    ] = None
    strict_payload_types: Annotated[bool, "refuse values in a dict that JSON would not give back unchanged"] = False
    max_payload_bytes: Annotated[int | None, "refuse payloads of more bytes than this"] = None
    max_payload_depth: Annotated[int | None, "refuse dicts that nest deeper than this"] = None
    interrupt: Annotated[
        BaseGracefulInterruptHandler | None, "a stop signal that waiting consumers and blocked publishers look at"
    ] = None
    on_event: Annotated[Callable[[Any], Any] | None, "called with a `QueueEvent` for everything that happens"] = None
    get_headers: Annotated[
        Callable[[], Any] | None,
        "asked at each publish for headers, a mapping of str to str that travels with the message",
    ] = None

    def __post_init__(self) -> None:
        text("name", self.name)
        text("key_separator", self.key_separator)
        for name in (
            "deduplication",
            "enable_completed_queue",
            "enable_failed_queue",
            "strict_payload_types",
        ):
            flag(name, getattr(self, name))
        for name in ("max_completed_length", "max_failed_length", "max_payload_bytes", "max_payload_depth"):
            whole_number(name, getattr(self, name), optional=True)
        for name in ("get_deduplication_key", "on_heartbeat_failure", "on_event", "get_headers"):
            function(name, getattr(self, name))
        number("heartbeat_interval_seconds", self.heartbeat_interval_seconds, optional=True)
        number("max_processing_seconds", self.max_processing_seconds, optional=True)
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            raise ConfigurationTypeError(
                f"retry_policy must be a RetryPolicy or None, not {type(self.retry_policy).__name__}"
            )
        if self.interrupt is not None and not isinstance(self.interrupt, BaseGracefulInterruptHandler):
            raise ConfigurationTypeError(
                f"interrupt must be a BaseGracefulInterruptHandler, not {type(self.interrupt).__name__}; "
                "subclass it to bring a stop signal of your own"
            )
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.get_deduplication_key is not None and not self.deduplication:
            raise ConfigurationError(
                "get_deduplication_key is given and deduplication is off, so it would never be asked; "
                "pass deduplication=True, or leave the function out"
            )
        for name in ("on_heartbeat_failure", "max_processing_seconds"):
            if getattr(self, name) is not None and self.heartbeat_interval_seconds is None:
                raise ConfigurationError(
                    f"{name} needs heartbeat_interval_seconds: without heartbeats nothing would come of it"
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
        if self.heartbeat_interval_seconds is not None:
            if visibility_timeout_seconds is None:
                raise ConfigurationError(
                    "heartbeat_interval_seconds needs a visibility timeout: without a lease there is nothing to renew"
                )
            if self.heartbeat_interval_seconds >= visibility_timeout_seconds / 2:
                raise ConfigurationError(
                    f"heartbeat_interval_seconds ({self.heartbeat_interval_seconds}) must be less than half of the "
                    f"visibility timeout ({visibility_timeout_seconds}), so that one lost renewal is survived"
                )
        if overload_policy == "drop_oldest" and self.deduplication:
            raise ConfigurationError(
                "pending_overload_policy='drop_oldest' cannot stand beside deduplication: a dropped message would "
                "leave its key behind and suppress its own repetition; use 'raise' or 'block'"
            )

    @property
    def payload_rules(self) -> PayloadRules:
        """The rules for what may be published."""
        return PayloadRules(self.strict_payload_types, self.max_payload_bytes, self.max_payload_depth)


# What a queue's constructor hands on to its gateway; the one name that differs there stands apart.
_GATEWAY_NAMES = (
    "retry_budget_seconds",
    "retry_initial_delay_seconds",
    "retry_max_delay_seconds",
    "message_deduplication_log_ttl_seconds",
    "message_wait_interval_seconds",
    "max_delivery_count",
    "max_dead_letter_length",
    "max_pending_length",
    "max_pending_per_tenant",
    "tenant_weights",
    "message_ttl_seconds",
    "journal",
    "max_journal_length",
    "pending_overload_policy",
    "pending_overload_block_timeout_seconds",
    "confirm_replicas",
    "confirm_fsync",
    "confirm_timeout_seconds",
    "hash_tag",
)


def queue_options(given: Mapping[str, Any]) -> QueueOptions:
    """The queue's own options, out of everything its constructor was given."""
    return QueueOptions(**{field.name: given[field.name] for field in fields(QueueOptions)})


def client_options(given: Mapping[str, Any]) -> GatewayOptions:
    """The gateway options of a queue that was given a bare client, with the defaults that belong to that path."""
    handed_on = {name: given[name] for name in _GATEWAY_NAMES}
    timeout = given["visibility_timeout_seconds"]
    lease("visibility_timeout_seconds", timeout)
    if handed_on["max_delivery_count"] is DEFAULT_MAX_DELIVERY_COUNT:
        # A limit that nobody asked for must not forbid at-most-once.
        handed_on["max_delivery_count"] = None if timeout is None else int(DEFAULT_MAX_DELIVERY_COUNT)
    return GatewayOptions(message_visibility_timeout_seconds=timeout, **handed_on)


def refuse_beside_gateway(given: Mapping[str, Any]) -> None:
    """Raise for queue-level options that only the gateway can honour; spelled-out defaults are let through."""
    usual = {field.name: field.default for field in fields(GatewayOptions)}
    usual["visibility_timeout_seconds"] = DEFAULT_VISIBILITY_TIMEOUT_SECONDS
    usual["max_delivery_count"] = DEFAULT_MAX_DELIVERY_COUNT
    for name in ("visibility_timeout_seconds", *_GATEWAY_NAMES):
        value = given[name]
        if value == usual[name]:
            continue
        there = f"message_{name}" if name == "visibility_timeout_seconds" else name
        raise ConfigurationError(
            f"{name}={value!r} has no effect beside gateway=; set it on the gateway: RedisGateway({there}={value!r})"
        )


_HEAVIEST = 1_000


def _check_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise ConfigurationTypeError(f"tenant_weights must map tenants to weights, not {type(weights).__name__}")
    for tenant, weight in weights.items():
        try:
            tenant_name(tenant)
        except RedisMessageQueueError as error:
            raise ConfigurationError(f"tenant_weights: {error}") from None
        whole_number(f"the weight of {tenant!r} in tenant_weights", weight)
        if weight > _HEAVIEST:
            raise ConfigurationError(f"a weight in tenant_weights is at most {_HEAVIEST:,}, not {weight}")
