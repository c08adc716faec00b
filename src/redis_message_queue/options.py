"""What a user can set: frozen, and checked once, at the door."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, Literal, get_args

from redis_message_queue.envelope import PayloadRules
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.interrupt import BaseGracefulInterruptHandler

OverloadPolicy = Literal["raise", "block", "drop_oldest"]


class Default(Enum):
    """Stands where the caller said nothing, in places where a spoken default means something else."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "<default>"


UNSET: Final = Default.UNSET
DEFAULT_VISIBILITY_TIMEOUT_SECONDS = 300
DEFAULT_MAX_DELIVERY_COUNT = 10
DEFAULT_TRACKING_LENGTH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How messages are kept in Redis, and how long one tries to reach it."""

    retry_budget_seconds: float = 120.0
    retry_initial_delay_seconds: float = 0.01
    retry_max_delay_seconds: float = 5.0
    message_deduplication_log_ttl_seconds: float = 3600
    message_wait_interval_seconds: float = 5.0
    message_visibility_timeout_seconds: float | None = None
    max_delivery_count: int | None = None
    dead_letter_queue: str | None = None
    max_dead_letter_length: int | None = None
    max_pending_length: int | None = None
    pending_overload_policy: OverloadPolicy = "raise"
    pending_overload_block_timeout_seconds: float = 1.0
    hash_tag: bool | None = None

    def __post_init__(self) -> None:
        number("retry_budget_seconds", self.retry_budget_seconds, least=0)
        number("retry_initial_delay_seconds", self.retry_initial_delay_seconds)
        number("retry_max_delay_seconds", self.retry_max_delay_seconds)
        number("message_deduplication_log_ttl_seconds", self.message_deduplication_log_ttl_seconds)
        number("message_wait_interval_seconds", self.message_wait_interval_seconds, least=0)
        number("message_visibility_timeout_seconds", self.message_visibility_timeout_seconds, optional=True)
        number("pending_overload_block_timeout_seconds", self.pending_overload_block_timeout_seconds)
        for name in ("max_delivery_count", "max_dead_letter_length", "max_pending_length"):
            whole_number(name, getattr(self, name), optional=True)
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
        if self.pending_overload_policy not in get_args(OverloadPolicy):
            raise ConfigurationError(
                f"pending_overload_policy must be 'raise', 'block' or 'drop_oldest', "
                f"not {self.pending_overload_policy!r}"
            )
        if self.pending_overload_policy != "raise" and self.max_pending_length is None:
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

    name: str
    key_separator: str = "::"
    deduplication: bool = False
    get_deduplication_key: Callable[[Any], Any] | None = None
    enable_completed_queue: bool = False
    enable_failed_queue: bool = False
    max_completed_length: int | None = DEFAULT_TRACKING_LENGTH
    max_failed_length: int | None = DEFAULT_TRACKING_LENGTH
    heartbeat_interval_seconds: float | None = None
    max_processing_seconds: float | None = None
    on_heartbeat_failure: Callable[[], Any] | None = None
    strict_payload_types: bool = False
    max_payload_bytes: int | None = None
    max_payload_depth: int | None = None
    interrupt: BaseGracefulInterruptHandler | None = None
    on_event: Callable[[Any], Any] | None = None

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
        for name in ("get_deduplication_key", "on_heartbeat_failure", "on_event"):
            function(name, getattr(self, name))
        number("heartbeat_interval_seconds", self.heartbeat_interval_seconds, optional=True)
        number("max_processing_seconds", self.max_processing_seconds, optional=True)
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

    def check_beside(self, *, visibility_timeout_seconds: float | None, overload_policy: str) -> None:
        """The rules that bind a queue to the gateway it works with."""
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
    "max_delivery_count",
    "max_dead_letter_length",
    "max_pending_length",
    "pending_overload_policy",
    "pending_overload_block_timeout_seconds",
    "hash_tag",
)


def queue_options(given: Mapping[str, Any]) -> QueueOptions:
    """The queue's own options, out of everything its constructor was given."""
    return QueueOptions(**{field.name: given[field.name] for field in fields(QueueOptions)})


def client_options(given: Mapping[str, Any]) -> GatewayOptions:
    """The gateway options of a queue that was given a bare client, with the defaults that belong to that path."""
    handed_on = {name: given[name] for name in _GATEWAY_NAMES}
    timeout = given["visibility_timeout_seconds"]
    number("visibility_timeout_seconds", timeout, optional=True)
    if handed_on["max_delivery_count"] is UNSET:
        # A limit that nobody asked for must not forbid at-most-once.
        handed_on["max_delivery_count"] = None if timeout is None else DEFAULT_MAX_DELIVERY_COUNT
    return GatewayOptions(message_visibility_timeout_seconds=timeout, **handed_on)


def refuse_beside_gateway(given: Mapping[str, Any]) -> None:
    """Raise for queue-level options that only the gateway can honour; spelled-out defaults are let through."""
    usual = {field.name: field.default for field in fields(GatewayOptions)}
    usual["visibility_timeout_seconds"] = DEFAULT_VISIBILITY_TIMEOUT_SECONDS
    usual["max_delivery_count"] = DEFAULT_MAX_DELIVERY_COUNT
    for name in ("visibility_timeout_seconds", *_GATEWAY_NAMES):
        value = given[name]
        if value is UNSET or value == usual[name]:
            continue
        there = f"message_{name}" if name == "visibility_timeout_seconds" else name
        raise ConfigurationError(
            f"{name}={value!r} has no effect beside gateway=; set it on the gateway: RedisGateway({there}={value!r})"
        )


def number(name: str, value: Any, *, optional: bool = False, least: float | None = None) -> None:
    """A finite number, positive or at least ``least``."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationTypeError(f"{name} must be a number, not {_shown(value)}")
    if not math.isfinite(value):
        raise ConfigurationError(f"{name} must be a finite number, not {value!r}")
    if value < least if least is not None else value <= 0:
        bound = "positive" if least is None else f"at least {least}"
        raise ConfigurationError(f"{name} must be {bound}, not {value!r}")


def whole_number(name: str, value: Any, *, optional: bool = False) -> None:
    """An int of 1 or more."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationTypeError(f"{name} must be an int{' or None' if optional else ''}, not {_shown(value)}")
    if value < 1:
        raise ConfigurationError(f"{name} must be 1 or more{' or None' if optional else ''}, not {value!r}")


def text(name: str, value: Any) -> None:
    """A str that is not empty and that UTF-8 can carry."""
    if not isinstance(value, str):
        raise ConfigurationTypeError(f"{name} must be a str, not {_shown(value)}")
    if not value.strip():
        raise ConfigurationError(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name} has a lone surrogate at position {error.start}") from None


def flag(name: str, value: Any) -> None:
    """True or False, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ConfigurationTypeError(f"{name} must be True or False, not {_shown(value)}")


def function(name: str, value: Any) -> None:
    """A callable or None."""
    if value is not None and not callable(value):
        raise ConfigurationTypeError(f"{name} must be callable or None, not {_shown(value)}")


def required_function(name: str, value: Any) -> None:
    """A callable, and nothing else."""
    if not callable(value):
        raise ConfigurationTypeError(f"{name} must be callable, not {_shown(value)}")


def plain_function(name: str, value: Any) -> None:
    """A callable that the sync queue can call: an ``async def`` would never run there."""
    asked = getattr(value, "__call__", None)  # noqa: B004  an object with an async __call__ counts too
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(asked):
        raise ConfigurationTypeError(
            f"{name} is an async function, which the sync queue cannot await; pass a plain function, "
            "or use redis_message_queue.asyncio"
        )


def _shown(value: Any) -> str:
    return (
        f"{type(value).__name__} ({value!r})" if isinstance(value, bool | int | float | str) else type(value).__name__
    )
