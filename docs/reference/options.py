"""options.md: the options of the constructors, from their signatures and from `options/declared.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import redis

from docs.reference.markdown import OutOfSync, check_complete, code, page, prose, sentence, table
from redis_message_queue import ConfigurationError, RedisGateway, RedisMessageQueue
from redis_message_queue.options import declared as options
from redis_message_queue.options.declared import GatewayArguments, GatewayOptions, QueueArguments, QueueOptions

# What most people decide, in the order in which they meet it, with the page that shows it.
FIRST_OPTIONS = {
    "visibility_timeout_seconds": "recover-from-crashes.md",
    "heartbeat_interval_seconds": "recover-from-crashes.md#choose-the-lease",
    "retry_policy": "delay-and-retry.md",
    "enable_failed_queue": "recover-from-crashes.md#look-at-the-dead-letters",
    "max_delivery_count": "recover-from-crashes.md",
    "deduplication": "deduplicate.md",
    "get_deduplication_key": "deduplicate.md",
    "max_pending_length": "backpressure.md",
    "codec": "typed-messages.md",
    "journal": "keep-a-journal.md",
}
QUEUE_GROUPS: dict[str, tuple[str, ...]] = {
    "The queue and its server": ("name", "client", "gateway", "key_separator", "hash_tag", "partitions"),
    "Leases and redelivery": (
        "visibility_timeout_seconds",
        "heartbeat_interval_seconds",
        "max_processing_seconds",
        "on_heartbeat_failure",
        "max_delivery_count",
        "max_dead_letter_length",
    ),
    "Waiting and retrying calls": (
        "message_wait_interval_seconds",
        "retry_budget_seconds",
        "retry_initial_delay_seconds",
        "retry_max_delay_seconds",
    ),
    "Failures and expiry": ("retry_policy", "message_ttl_seconds", "keep_tracebacks"),
    "Tenants": ("tenant_weights", "max_pending_per_tenant", "max_in_flight_per_tenant", "ordered_tenants"),
    "Deduplication": ("deduplication", "get_deduplication_key", "message_deduplication_log_ttl_seconds"),
    "Backpressure": ("max_pending_length", "pending_overload_policy", "pending_overload_block_timeout_seconds"),
    "Durability": ("confirm_replicas", "confirm_fsync", "confirm_timeout_seconds"),
    "Payload checks": ("strict_payload_types", "max_payload_bytes", "max_payload_depth", "codec"),
    "Lists of handled messages": (
        "enable_completed_queue",
        "enable_failed_queue",
        "max_completed_length",
        "max_failed_length",
    ),
    "Journal": ("journal", "max_journal_length"),
    "Names": ("consumer_name",),
    "Shutdown, events and headers": ("interrupt", "on_event", "get_headers"),
}
GATEWAY_GROUPS: dict[str, tuple[str, ...]] = {
    "Server and keys": ("redis_client", "dead_letter_queue", "hash_tag"),
    "Retrying calls": ("retry_budget_seconds", "retry_initial_delay_seconds", "retry_max_delay_seconds"),
    "Waiting, leases and redelivery": (
        "message_wait_interval_seconds",
        "message_visibility_timeout_seconds",
        "max_delivery_count",
        "max_dead_letter_length",
    ),
    "Tenants and expiry": (
        "tenant_weights",
        "max_pending_per_tenant",
        "max_in_flight_per_tenant",
        "ordered_tenants",
        "message_ttl_seconds",
    ),
    "Deduplication": ("message_deduplication_log_ttl_seconds",),
    "Backpressure": ("max_pending_length", "pending_overload_policy", "pending_overload_block_timeout_seconds"),
    "Durability": ("confirm_replicas", "confirm_fsync", "confirm_timeout_seconds"),
    "Journal": ("journal", "max_journal_length"),
    "Names": ("consumer_name",),
}
# Options that have a different name on the gateway.
GATEWAY_NAME = {"visibility_timeout_seconds": "message_visibility_timeout_seconds"}

# Calls that raise. The page quotes the real error, so a changed rule changes the page.
CONTRADICTIONS: tuple[tuple[type, dict[str, Any]], ...] = (
    (RedisMessageQueue, {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 30}),
    (RedisMessageQueue, {"visibility_timeout_seconds": None, "heartbeat_interval_seconds": 30}),
    (RedisMessageQueue, {"visibility_timeout_seconds": None, "max_delivery_count": 5}),
    (RedisMessageQueue, {"visibility_timeout_seconds": None, "max_processing_seconds": 600}),
    (RedisMessageQueue, {"get_deduplication_key": str}),
    (RedisMessageQueue, {"pending_overload_policy": "block"}),
    (RedisMessageQueue, {"pending_overload_policy": "drop_oldest", "max_pending_length": 100}),
    (
        RedisMessageQueue,
        {
            "pending_overload_policy": "drop_oldest",
            "max_pending_length": 100,
            "max_delivery_count": None,
            "deduplication": True,
        },
    ),
    (RedisGateway, {"retry_initial_delay_seconds": 10, "retry_max_delay_seconds": 5}),
    (RedisGateway, {"max_delivery_count": 5}),
)


def options_page() -> str:
    return page(
        "Options",
        "`options/declared.py` and the constructors",
        prose("""
            The constructor checks every option before it sends anything to Redis. A value that cannot work raises
            `ConfigurationError`, and a value of the wrong type raises `ConfigurationTypeError` (a `bool` is not a
            number). Pass every option except `name` by keyword.

            `redis_message_queue.asyncio` has the same two classes with the same options. There a callback may be an
            `async def` function; in the sync queue it must be a plain function.

            Options belong to the Python object, not to the queue in Redis. Use the same options in every process that
            works on a queue: each producer applies its own limits, and each consumer decides how long its leases last.
        """),
        "## The ten that matter",
        prose("""
            Most programs need a name, a client and a few of these. You can leave out every other option until a how-to
            page asks for it.
        """),
        table(("option", "default", "what it does", "how to use it"), _first_options()),
        "## RedisMessageQueue",
        *_option_tables(RedisMessageQueue, QUEUE_GROUPS),
        "## RedisGateway",
        prose(f"""
            A gateway combines a client with the rules for storing messages. Only the gateway has
            {_only_on_the_gateway()}. One gateway can serve many queues, unless it has a `max_delivery_count`: then it
            serves one.
        """),
        *_option_tables(RedisGateway, GATEWAY_GROUPS),
        "## Beside a gateway",
        prose("""
            If you pass `gateway=` to a queue, set these options on the gateway instead. On the queue they raise
            `ConfigurationError`, unless you pass their default value.
        """),
        table(("option of the queue", "option of the gateway"), _refused_beside_gateway()),
        prose("""
            Some defaults differ. A gateway with default options delivers at most once; a queue created with `client=`
            delivers at least once. Set the visibility timeout when you move from one to the other.
        """),
        table(("setting", "a queue with `client=`", "`RedisGateway`"), _different_defaults()),
        "## Options that contradict each other",
        table(("call", "error"), _contradictions()),
    )


def _option_tables(owner: type, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    parameters = parameters_of(owner)
    check_complete(f"groups of {owner.__name__}", (name for names in groups.values() for name in names), parameters)
    for title, names in groups.items():
        rows = (
            (code(name), _type_of(parameters[name]), _default_of(parameters[name]), sentence(meaning(owner, name)))
            for name in names
        )
        yield f"### {title}"
        yield table(("option", "type", "default", "what it does"), rows)


def _first_options() -> Iterator[tuple[str, str, str, str]]:
    parameters = parameters_of(RedisMessageQueue)
    for name, how_to in FIRST_OPTIONS.items():
        title = how_to.partition(".md")[0].replace("-", " ")
        meant = sentence(meaning(RedisMessageQueue, name))
        yield code(name), _default_of(parameters[name]), meant, f"[{title}](../how-to/{how_to})"


def parameters_of(owner: type) -> dict[str, inspect.Parameter]:
    """The parameters of the constructor, without `self`."""
    return {name: one for name, one in inspect.signature(owner).parameters.items() if name != "self"}


def meaning(owner: type, name: str) -> str:
    """The description of an option in `options/declared.py`."""
    return options.descriptions(QueueArguments if owner is RedisMessageQueue else GatewayArguments)[name]


def _type_of(parameter: inspect.Parameter) -> str:
    """The annotation, and the smallest value that is accepted."""
    if parameter.name in ("client", "redis_client"):
        return "a client"
    kinds = get_args(parameter.annotation) if _is_union(parameter.annotation) else (parameter.annotation,)
    return " or ".join(_spelled(kind) for kind in kinds) + _least(parameter)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _spelled(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(code(_literal(one)) for one in get_args(kind))
    return code("None" if kind is NoneType else getattr(kind, "__name__", "function"))


def _least(parameter: inspect.Parameter) -> str:
    """The smallest accepted value, found by trying: only the checks know it."""
    if not {int, float} & {parameter.annotation, *get_args(parameter.annotation)}:
        return ""
    for value, words in ((-1, ""), (0, ", 0 or more"), (0.001, ", more than 0"), (1, ", 1 or more")):
        if _takes(parameter.name, value):
            return words
    raise OutOfSync(f"{parameter.name} accepts no small number")


def _takes(name: str, value: float) -> bool:
    # The other settings contradict nothing, so that only the value itself can be refused.
    for_gateway: dict[str, Any] = {"message_visibility_timeout_seconds": 300, "retry_initial_delay_seconds": 0.0001}
    for_queue: dict[str, Any] = {"name": "orders", "heartbeat_interval_seconds": 1}
    name = GATEWAY_NAME.get(name, name)
    try:
        if name in {field.name for field in fields(GatewayOptions)}:
            GatewayOptions(**for_gateway | {name: value})
        else:
            QueueOptions(**for_queue | {name: value})
    except ConfigurationError:
        return False
    return True


def _default_of(parameter: inspect.Parameter) -> str:
    if parameter.name in ("client", "gateway"):
        return "one of the two"
    if parameter.default is inspect.Parameter.empty:
        return "required"
    if parameter.default is options.DEFAULT_MAX_DELIVERY_COUNT:
        return f"`{options.DEFAULT_MAX_DELIVERY_COUNT}`; `None` without a visibility timeout"
    return code(_literal(parameter.default))


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else getattr(value, "__name__", repr(value))


def _only_on_the_gateway() -> str:
    on_the_queue = {GATEWAY_NAME.get(name, name) for name in parameters_of(RedisMessageQueue)} | {"redis_client"}
    return ", ".join(code(name) for name in parameters_of(RedisGateway) if name not in on_the_queue)


def _refused_beside_gateway() -> Iterator[tuple[str, str]]:
    for one in options.options_of_gateway():
        yield code(one.name), code(GATEWAY_NAME.get(one.name, one.name))


def _different_defaults() -> Iterator[tuple[str, str, str]]:
    there = parameters_of(RedisGateway)
    for name, here in parameters_of(RedisMessageQueue).items():
        other = there.get(GATEWAY_NAME.get(name, name))
        if other is not None and other.default != here.default:
            yield code(name), _default_of(here), _default_of(other)


def _contradictions() -> Iterator[tuple[str, str]]:
    for owner, given in CONTRADICTIONS:
        spelled = ", ".join(f"{name}={_literal(value)}" for name, value in given.items())
        yield code(f"{owner.__name__}(…, {spelled})"), refusal_of(owner, given)


def refusal_of(owner: type, given: Mapping[str, Any]) -> str:
    """The text of the error that these options raise; the client is never used and sends nothing."""
    client = redis.Redis()
    required = {"name": "orders", "client": client} if owner is RedisMessageQueue else {"redis_client": client}
    try:
        owner(**required, **given)
    except ConfigurationError as error:
        return str(error)
    raise OutOfSync(f"{owner.__name__} accepts {dict(given)}: it is no contradiction any more")
