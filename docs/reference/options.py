"""options.md: what the constructors take, from their signatures, from `options.py`, and by trying."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import redis

from docs.reference.markdown import OutOfStep, code, in_step, page, prose, sentence, table
from redis_message_queue import ConfigurationError, RedisGateway, RedisMessageQueue, options
from redis_message_queue.options import GatewayOptions, OverloadPolicy, QueueOptions

QUEUE_GROUPS: dict[str, tuple[str, ...]] = {
    "The queue and its server": ("name", "client", "gateway", "key_separator", "hash_tag"),
    "Leases and redelivery": (
        "visibility_timeout_seconds",
        "heartbeat_interval_seconds",
        "max_processing_seconds",
        "on_heartbeat_failure",
        "max_delivery_count",
        "max_dead_letter_length",
    ),
    "Waiting and patience": (
        "message_wait_interval_seconds",
        "retry_budget_seconds",
        "retry_initial_delay_seconds",
        "retry_max_delay_seconds",
    ),
    "Failures and age": ("retry_policy", "message_ttl_seconds"),
    "Tenants": ("tenant_weights", "max_pending_per_tenant"),
    "Deduplication": ("deduplication", "get_deduplication_key", "message_deduplication_log_ttl_seconds"),
    "Backpressure": ("max_pending_length", "pending_overload_policy", "pending_overload_block_timeout_seconds"),
    "Durability": ("confirm_replicas", "confirm_fsync", "confirm_timeout_seconds"),
    "What may be published": ("strict_payload_types", "max_payload_bytes", "max_payload_depth"),
    "What is kept": ("enable_completed_queue", "enable_failed_queue", "max_completed_length", "max_failed_length"),
    "Journal": ("journal", "max_journal_length"),
    "Stopping and watching": ("interrupt", "on_event", "get_headers"),
}
GATEWAY_GROUPS: dict[str, tuple[str, ...]] = {
    "Server and keys": ("redis_client", "dead_letter_queue", "hash_tag"),
    "Patience": ("retry_budget_seconds", "retry_initial_delay_seconds", "retry_max_delay_seconds"),
    "Waiting, leases and redelivery": (
        "message_wait_interval_seconds",
        "message_visibility_timeout_seconds",
        "max_delivery_count",
        "max_dead_letter_length",
    ),
    "Tenants and age": ("tenant_weights", "max_pending_per_tenant", "message_ttl_seconds"),
    "Deduplication": ("message_deduplication_log_ttl_seconds",),
    "Backpressure": ("max_pending_length", "pending_overload_policy", "pending_overload_block_timeout_seconds"),
    "Durability": ("confirm_replicas", "confirm_fsync", "confirm_timeout_seconds"),
    "Journal": ("journal", "max_journal_length"),
}
# The parameters that are no options: they are not checked in options.py, and so not explained there.
CLIENT_SENTENCES = {
    "client": "a redis-py client with a connection pool; an asyncio client for the asyncio queue",
    "gateway": "holds a client and settings of its own, and takes the place of `client`",
    "redis_client": "a redis-py client with a connection pool; an asyncio client for the asyncio gateway",
}
# The queue's name for an option that the gateway calls otherwise.
GATEWAY_NAME = {"visibility_timeout_seconds": "message_visibility_timeout_seconds"}

# Calls that are refused; the page quotes the error, so a rule that is gone or says something else shows here.
CONTRADICTIONS: tuple[tuple[type, dict[str, Any]], ...] = (
    (RedisMessageQueue, {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 30}),
    (RedisMessageQueue, {"visibility_timeout_seconds": None, "heartbeat_interval_seconds": 30}),
    (RedisMessageQueue, {"visibility_timeout_seconds": None, "max_delivery_count": 5}),
    (RedisMessageQueue, {"max_processing_seconds": 600}),
    (RedisMessageQueue, {"on_heartbeat_failure": print}),
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
        "`options.py` and the constructors",
        prose("""
            Every option is checked when the object is made. A value that cannot work raises `ConfigurationError`, a
            value of the wrong type `ConfigurationTypeError` (a `bool` is not a number), and nothing has been sent to
            Redis then. All but `name` are given by keyword.

            `redis_message_queue.asyncio` has the same two classes with the same options. There a callback may be an
            `async def`; here it must be a plain function.

            Options belong to the object, not to the queue in Redis. Give every process that works on a queue the same
            ones: a limit counts for whoever has it, and the lease of a message is as long as its consumer says.
        """),
        "## RedisMessageQueue",
        *_option_tables(RedisMessageQueue, QUEUE_GROUPS),
        "## RedisGateway",
        prose(f"""
            A gateway holds a client, and how messages are kept behind it. Only here: {_only_on_the_gateway()}. One
            gateway can serve many queues, unless it has a `max_delivery_count`: then it serves one.
        """),
        *_option_tables(RedisGateway, GATEWAY_GROUPS),
        "## Beside a gateway",
        prose("""
            A queue with `gateway=` leaves these to the gateway. Beside it they raise `ConfigurationError`, unless the
            value is the one that they have anyway.
        """),
        table(("option of the queue", "set this on the gateway"), _refused_beside_gateway()),
        prose("""
            The same setting has another default there: a gateway that is told nothing delivers at most once, and a
            queue made from a client at least once. Set the lease when you move from one to the other.
        """),
        table(("setting", "a queue with `client=`", "`RedisGateway`"), _different_defaults()),
        "## What contradicts what",
        table(("this call", "is refused with"), _contradictions()),
    )


def _option_tables(owner: type, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    parameters = parameters_of(owner)
    in_step(f"groups of {owner.__name__}", (name for names in groups.values() for name in names), parameters)
    for title, names in groups.items():
        rows = (
            (code(name), _type_of(parameters[name]), _default_of(parameters[name]), sentence(meaning(owner, name)))
            for name in names
        )
        yield f"### {title}"
        yield table(("option", "type", "default", "what it does"), rows)


def parameters_of(owner: type) -> dict[str, inspect.Parameter]:
    """What the constructor takes."""
    return {name: one for name, one in inspect.signature(owner).parameters.items() if name != "self"}


def meaning(owner: type, name: str) -> str:
    """The half-sentence that stands beside an option in `options.py`."""
    if name in CLIENT_SENTENCES:
        return CLIENT_SENTENCES[name]
    places = (QueueOptions, GatewayOptions) if owner is RedisMessageQueue else (GatewayOptions,)
    for place in places:
        hint = get_type_hints(place, include_extras=True).get(
            GATEWAY_NAME.get(name, name) if place is GatewayOptions else name
        )
        if hint is not None:
            return str(get_args(hint)[1])
    raise OutOfStep(f"{name} is explained nowhere")


def _type_of(parameter: inspect.Parameter) -> str:
    """The annotation, and the least value that is let through."""
    words = str(parameter.annotation).split(" | ")
    kinds = [_spelled(word) for word in words if word != "Default"]
    if parameter.name in CLIENT_SENTENCES:
        kinds = ["a client"] if parameter.name != "gateway" else ["`RedisGateway`", "`None`"]
    return " or ".join(kinds) + _least(parameter)


def _spelled(word: str) -> str:
    if word == "OverloadPolicy":
        return " or ".join(code(_literal(one)) for one in get_args(OverloadPolicy))
    return code(word)


def _least(parameter: inspect.Parameter) -> str:
    """Found by trying: the checks know it, and nothing else needs to."""
    if not any(kind in str(parameter.annotation).split(" | ") for kind in ("int", "float")):
        return ""
    for value, words in ((-1, ""), (0, ", 0 or more"), (0.001, ", more than 0"), (1, ", 1 or more")):
        if _takes(parameter.name, value):
            return words
    raise OutOfStep(f"{parameter.name} takes no small number")


def _takes(name: str, value: float) -> bool:
    # Beside settings that nothing contradicts, so that only the value itself can be refused.
    calm: dict[str, Any] = {"message_visibility_timeout_seconds": 300, "retry_initial_delay_seconds": 0.0001}
    name = GATEWAY_NAME.get(name, name)
    try:
        if name in {field.name for field in fields(GatewayOptions)}:
            GatewayOptions(**calm | {name: value})
        else:
            QueueOptions(**{"name": "orders", "heartbeat_interval_seconds": 1} | {name: value})
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
    usual = {name: one.default for name, one in parameters_of(RedisMessageQueue).items()}
    for name in usual:
        try:
            options.refuse_beside_gateway(usual | {name: object()})
        except ConfigurationError:
            yield code(name), code(GATEWAY_NAME.get(name, name))


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
    """What the constructor says to these options; a client that is never used sends nothing."""
    client = redis.Redis()
    required = {"name": "orders", "client": client} if owner is RedisMessageQueue else {"redis_client": client}
    try:
        owner(**required, **given)
    except ConfigurationError as error:
        return str(error)
    raise OutOfStep(f"{owner.__name__} takes {dict(given)}: it is no contradiction any more")
