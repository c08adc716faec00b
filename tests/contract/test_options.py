"""Every option is checked when a queue or a gateway is made, and an error names the wrong one."""

import inspect
import math
import pydoc
from itertools import product
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from redis_message_queue import ConfigurationError, ConfigurationTypeError
from tests.contract.shells import Shell, claim_and_die, take
from tests.tables import row

pytestmark = pytest.mark.topic("Options")

SECONDS_OF_A_QUEUE = {
    "visibility_timeout_seconds": {},
    "heartbeat_interval_seconds": {},
    "max_processing_seconds": {"heartbeat_interval_seconds": 1},
    "pending_overload_block_timeout_seconds": {},
    "message_deduplication_log_ttl_seconds": {},
    "retry_initial_delay_seconds": {},
    "retry_max_delay_seconds": {},
    "message_wait_interval_seconds": {},
    "retry_budget_seconds": {},
}
COUNTS_OF_A_QUEUE = [
    *("max_completed_length", "max_failed_length", "max_delivery_count", "max_dead_letter_length"),
    *("max_pending_length", "max_payload_bytes", "max_payload_depth"),
]
FLAGS_OF_A_QUEUE = [
    *("deduplication", "enable_completed_queue", "enable_failed_queue", "strict_payload_types", "hash_tag")
]
CALLBACKS_OF_A_QUEUE: dict[str, dict[str, Any]] = {
    "get_deduplication_key": {"deduplication": True},
    "on_heartbeat_failure": {"heartbeat_interval_seconds": 1},
    "on_event": {},
    "get_headers": {},
}
SECONDS_OF_A_GATEWAY = [
    *("retry_initial_delay_seconds", "retry_max_delay_seconds", "message_deduplication_log_ttl_seconds"),
    *("message_visibility_timeout_seconds", "pending_overload_block_timeout_seconds"),
]
ZERO_HAS_A_MEANING = ["retry_budget_seconds", "message_wait_interval_seconds"]  # do not retry, do not wait
COUNTS_OF_A_GATEWAY = ["max_delivery_count", "max_dead_letter_length", "max_pending_length"]

NOT_A_NUMBER = [True, False, "1", b"1", [1], {}, 1j, object()]
NOT_FINITE = [math.nan, math.inf, -math.inf]
NEGATIVE = [-1, -0.5]
TOO_SMALL = [*NEGATIVE, 0, 0.0]
NOT_A_COUNT = [True, False, "1", 1.0, 1.5, math.nan, math.inf, [1], object()]


def refuse(make: Any, name: str, value: Any, **beside: Any) -> None:
    """A wrong value: one of our errors, a ValueError, that names the parameter."""
    with pytest.raises(ConfigurationError, match=name) as refusal:
        make(**beside, **{name: value})
    assert isinstance(refusal.value, ValueError)


def refuse_type(make: Any, name: str, value: Any, **beside: Any) -> None:
    """A wrong type: all of that, and a TypeError."""
    with pytest.raises(ConfigurationTypeError, match=name) as refusal:
        make(**beside, **{name: value})
    assert isinstance(refusal.value, TypeError | ValueError) and isinstance(refusal.value, TypeError)


# Numbers


@pytest.mark.promise("A number of seconds must be finite and not a bool; zero is allowed only where it has a meaning.")
async def test_seconds_of_a_queue_are_finite_numbers(shell: Shell, subtests: pytest.Subtests) -> None:
    """A bool is no number and NaN no time; positive ones, except where zero means: do not retry, do not wait."""
    for name in SECONDS_OF_A_QUEUE:
        with row(subtests, name=name):
            beside = SECONDS_OF_A_QUEUE[name]
            for value in NOT_A_NUMBER:
                refuse_type(shell.queue, name, value, **beside)
            for value in NOT_FINITE + (NEGATIVE if name in ZERO_HAS_A_MEANING else TOO_SMALL):
                refuse(shell.queue, name, value, **beside)


@pytest.mark.promise("A number of seconds must be finite and not a bool; zero is allowed only where it has a meaning.")
async def test_seconds_of_a_gateway_are_finite_numbers(shell: Shell, subtests: pytest.Subtests) -> None:
    """Positive ones, except where zero means: do not retry, do not wait."""
    for name in SECONDS_OF_A_GATEWAY + ZERO_HAS_A_MEANING:
        with row(subtests, name=name):
            for value in NOT_A_NUMBER:
                refuse_type(shell.gateway, name, value)
            for value in NOT_FINITE + (NEGATIVE if name in ZERO_HAS_A_MEANING else TOO_SMALL):
                refuse(shell.gateway, name, value)


@pytest.mark.promise("A count must be an int of at least 1, not a bool or a float.")
@pytest.mark.promise("Each payload limit is a positive int or `None`.")
async def test_counts_of_a_queue_are_whole_numbers_from_one(shell: Shell, subtests: pytest.Subtests) -> None:
    """Not 1.0, not "1", not True, not 0."""
    for name in COUNTS_OF_A_QUEUE:
        with row(subtests, name=name):
            for value in NOT_A_COUNT:
                refuse_type(shell.queue, name, value)
            for value in (0, -1):
                refuse(shell.queue, name, value)


@pytest.mark.promise("A count must be an int of at least 1, not a bool or a float.")
@pytest.mark.parametrize("name", COUNTS_OF_A_GATEWAY)
async def test_counts_of_a_gateway_are_whole_numbers_from_one(shell: Shell, name: str) -> None:
    """The same at the gateway's own door."""
    beside = {"message_visibility_timeout_seconds": 300}
    for value in NOT_A_COUNT:
        refuse_type(shell.gateway, name, value, **beside)
    for value in (0, -1):
        refuse(shell.gateway, name, value, **beside)


@pytest.mark.promise("`None` is refused for options where it has no meaning.")
async def test_none_is_refused_where_it_has_no_meaning(shell: Shell) -> None:
    """It stands for "unlimited" or "not at all" in some options, and for nothing in these."""
    optional = {"visibility_timeout_seconds", "heartbeat_interval_seconds", "max_processing_seconds"}
    for name in (*(SECONDS_OF_A_QUEUE.keys() - optional), *FLAGS_OF_A_QUEUE[:-1], "key_separator"):
        refuse_type(shell.queue, name, None)
    for name in {*SECONDS_OF_A_GATEWAY, *ZERO_HAS_A_MEANING} - {"message_visibility_timeout_seconds"}:
        refuse_type(shell.gateway, name, None)


@pytest.mark.promise("The error for a bad option names the option, the value you gave and the values that are allowed.")
async def test_an_error_shows_the_given_and_the_allowed_values(shell: Shell) -> None:
    """So that one reading is enough."""
    for make, option, words in (
        (shell.queue, {"max_completed_length": -3}, ("-3", "1 or more", "None")),
        (shell.queue, {"visibility_timeout_seconds": "60"}, ("str", "'60'", "number")),
        (shell.queue, {"enable_failed_queue": 1}, ("int", "True or False")),
        (shell.gateway, {"retry_budget_seconds": -2}, ("-2", "at least 0")),
        (shell.queue, {"pending_overload_policy": "drop"}, ("'drop'", "'raise'", "'block'", "'drop_oldest'")),
    ):
        with pytest.raises(ConfigurationError) as refusal:
            make(**option)
        assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.promise("A number of seconds must be finite and not a bool; zero is allowed only where it has a meaning.")
async def test_a_number_beyond_all_floats_is_refused_like_infinity(shell: Shell) -> None:
    """Python's ints have no end; Redis's clock has."""
    for name in SECONDS_OF_A_QUEUE:
        refuse(shell.queue, name, 10**400, **SECONDS_OF_A_QUEUE[name])
    for name in SECONDS_OF_A_GATEWAY + ZERO_HAS_A_MEANING:
        refuse(shell.gateway, name, 10**400)


@pytest.mark.promise("A duration that Redis cannot represent, or a lease too short to measure, is refused.")
async def test_a_span_that_redis_cannot_count_is_refused_or_works(shell: Shell, subtests: pytest.Subtests) -> None:
    """It must not be found out by a publish that has half happened."""
    for value, name in product(
        [1e18, 1e300],
        ["message_deduplication_log_ttl_seconds", "retry_budget_seconds", "message_visibility_timeout_seconds"],
    ):
        with row(subtests, value=value, name=name):
            shell.redis.flushall()
            try:
                gateway = shell.gateway(**{name: value})
            except ConfigurationError as refusal:
                assert name in str(refusal)
                return
            queue = shell.queue(gateway=gateway, deduplication=True)
            assert await queue.publish("a") is True
            assert await take(queue) == b"a"


@pytest.mark.promise("A duration that Redis cannot represent, or a lease too short to measure, is refused.")
async def test_a_lease_too_short_to_measure_is_refused_or_is_a_lease(shell: Shell) -> None:
    """It must not turn into a queue without leases on the quiet."""
    try:
        queue = shell.queue(wait=1, visibility_timeout_seconds=1e-7, max_delivery_count=None)
    except ConfigurationError as refusal:
        assert "visibility_timeout_seconds" in str(refusal)
        return
    await queue.publish("a")
    await claim_and_die(queue)
    assert await take(queue) == b"a"


# Words, flags, functions


@pytest.mark.promise("A callback must be callable, and a name must be a non-empty string.")
@pytest.mark.parametrize("name", ["name", "key_separator"])
async def test_names_are_texts_that_are_not_empty(shell: Shell, name: str) -> None:
    """Nor blank, nor with half of a character in them."""
    for value in (None, 1, b"q", True, ["q"]):
        refuse_type(shell.queue, name, value)
    for text in ("", "  ", "\n", "q\ud800"):
        refuse(shell.queue, name, text)


@pytest.mark.promise("A callback must be callable, and a name must be a non-empty string.")
async def test_a_dead_letter_name_is_a_text_that_is_not_empty(shell: Shell) -> None:
    """Or None, for the usual one."""
    for value in (1, b"dlq", False):
        refuse_type(shell.gateway, "dead_letter_queue", value)
    for text in ("", " ", "\udfff"):
        refuse(shell.gateway, "dead_letter_queue", text)


@pytest.mark.promise("A flag must be `True` or `False`.")
async def test_flags_are_true_or_false(shell: Shell, subtests: pytest.Subtests) -> None:
    """Not 1, not "yes", not an empty list."""
    for name in FLAGS_OF_A_QUEUE:
        with row(subtests, name=name):
            for value in (0, 1, "yes", "", [], object()):
                refuse_type(shell.queue, name, value)


@pytest.mark.promise("A callback must be callable, and a name must be a non-empty string.")
@pytest.mark.parametrize("name", CALLBACKS_OF_A_QUEUE)
async def test_callbacks_can_be_called(shell: Shell, name: str) -> None:
    """Anything else is a wrong type."""
    for value in (1, "print", True, [1], {print}, object()):
        refuse_type(shell.queue, name, value, **CALLBACKS_OF_A_QUEUE[name])


@pytest.mark.promise("`interrupt=` accepts only an interrupt handler.")
async def test_an_interrupt_is_a_handler_of_ours_or_a_subclass(shell: Shell) -> None:
    """A bare function or event is not enough: the error says what to subclass."""
    for value in (True, lambda: False, object(), "SIGTERM"):
        refuse_type(shell.queue, "interrupt", value)


@pytest.mark.promise("The overload policy is `raise`, `block` or `drop_oldest`.")
async def test_a_policy_is_one_of_three_words(shell: Shell) -> None:
    """A wrong word is a wrong value, anything else a wrong type."""
    for word in ("RAISE", "drop", "", "wait"):
        refuse(shell.queue, "pending_overload_policy", word, max_pending_length=5)
        refuse(shell.gateway, "pending_overload_policy", word, max_pending_length=5)
    for value in (None, 1, True, ["raise"]):
        refuse_type(shell.queue, "pending_overload_policy", value, max_pending_length=5)
        refuse_type(shell.gateway, "pending_overload_policy", value, max_pending_length=5)


@pytest.mark.promise("An option that would have no effect, or that contradicts another, is refused at construction.")
async def test_options_that_would_have_no_effect_are_refused(shell: Shell) -> None:
    """A key function that is never asked; a first pause longer than the longest."""
    with pytest.raises(ConfigurationError, match="get_deduplication_key"):
        shell.queue(get_deduplication_key=str)
    with pytest.raises(ConfigurationError, match="retry_initial_delay_seconds"):
        shell.gateway(retry_initial_delay_seconds=2, retry_max_delay_seconds=1)


@pytest.mark.promise("Every optional feature is off, or has its documented default, until you ask for it.")
@pytest.mark.promise(
    "`block` waits for room for up to `pending_overload_block_timeout_seconds` (default: one second) and then raises."
)
async def test_defaults_are_as_documented(shell: Shell) -> None:
    """What a queue and a gateway do when they are told nothing."""
    queue = inspect.signature(shell.module.RedisMessageQueue).parameters
    for name, usual in {
        "deduplication": False,
        "get_deduplication_key": None,
        "enable_completed_queue": False,
        "enable_failed_queue": False,
        "max_completed_length": 1_000,
        "max_failed_length": 1_000,
        "visibility_timeout_seconds": 300,
        "heartbeat_interval_seconds": None,
        "max_processing_seconds": None,
        "max_delivery_count": 10,
        "max_dead_letter_length": None,
        "max_pending_length": None,
        "pending_overload_policy": "raise",
        "pending_overload_block_timeout_seconds": 1.0,
        "strict_payload_types": False,
        "max_payload_bytes": None,
        "max_payload_depth": None,
        "message_deduplication_log_ttl_seconds": 3_600,
        "key_separator": "::",
        "interrupt": None,
        "on_event": None,
        "get_headers": None,
    }.items():
        assert queue[name].default == usual, name
    gateway = inspect.signature(shell.module.RedisGateway).parameters
    for name in ("message_visibility_timeout_seconds", "max_delivery_count", "dead_letter_queue"):
        assert gateway[name].default is None, name
    for name in gateway.keys() & queue.keys() - {"max_delivery_count"}:
        assert gateway[name].default == queue[name].default, name


@pytest.mark.promise("Every optional feature is off, or has its documented default, until you ask for it.")
async def test_the_default_delivery_limit_is_shown_and_differs_from_a_given_one(shell: Shell) -> None:
    """`help()` shows 10. Only a limit that the caller gave contradicts at-most-once, the same number too."""
    queue = shell.module.RedisMessageQueue
    shown = inspect.signature(queue).parameters["max_delivery_count"]
    assert str(shown).endswith("= 10")
    assert "max_delivery_count: int | None = 10" in pydoc.plain(pydoc.render_doc(queue.__init__))
    shell.queue(visibility_timeout_seconds=None)
    shell.queue(visibility_timeout_seconds=None, max_delivery_count=None)
    for given in (10, 3, int("10")):
        with pytest.raises(ConfigurationError, match=f"max_delivery_count={given}"):
            shell.queue(visibility_timeout_seconds=None, max_delivery_count=given)


@pytest.mark.promise("All constructor arguments after the name are keyword-only.")
async def test_arguments_after_the_name_are_keyword_only(shell: Shell) -> None:
    """So that no two options can be mixed up."""
    with pytest.raises(TypeError, match="positional"):
        shell.module.RedisMessageQueue("q", shell.client)
    with pytest.raises(TypeError, match="positional"):
        shell.module.RedisGateway(shell.client)


@pytest.mark.promise("Every option works at its smallest allowed value.")
async def test_every_option_at_its_smallest_is_accepted(shell: Shell) -> None:
    """The limits themselves are within."""
    queue = shell.queue(
        deduplication=True,
        get_deduplication_key=str,
        enable_completed_queue=True,
        enable_failed_queue=True,
        max_completed_length=1,
        max_failed_length=1,
        visibility_timeout_seconds=0.1,
        heartbeat_interval_seconds=0.01,
        max_processing_seconds=0.01,
        on_heartbeat_failure=shell.callback(lambda: None),
        max_delivery_count=1,
        max_dead_letter_length=1,
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=0.001,
        strict_payload_types=True,
        max_payload_bytes=1,
        max_payload_depth=1,
        key_separator=":",
    )
    await queue.publish("a")
    assert await take(queue) == b"a"


# Client and gateway


@pytest.mark.promise("A queue needs either a client or a gateway, not both.")
async def test_a_queue_needs_a_client_or_a_gateway_and_not_both(shell: Shell) -> None:
    """Neither and both are refused with a word about the two."""
    make = shell.module.RedisMessageQueue
    for options in ({}, {"client": None, "gateway": None}, {"client": shell.client, "gateway": shell.gateway()}):
        with pytest.raises(ConfigurationError, match=r"client.*gateway"):
            make("q", **options)


@pytest.mark.promise("A Sentinel manager is refused; the client from its `master_for` works.")
async def test_a_sentinel_manager_is_no_client(shell: Shell) -> None:
    """It sends no commands itself; the error says what to ask it for."""
    for sentinel in (redis.sentinel.Sentinel([]), redis.asyncio.sentinel.Sentinel([])):
        for make in (lambda client: shell.queue(client=client), lambda client: shell.gateway(redis_client=client)):
            with pytest.raises(ConfigurationError, match="master_for"):
                make(sentinel)


@pytest.mark.promise("A client with `single_connection_client=True` is refused.")
async def test_a_client_pinned_to_one_connection_is_refused(shell: Shell) -> None:
    """A consumer and its heartbeat cannot share a socket."""
    pinned = shell.new_client(single_connection_client=True)
    with pytest.raises(ConfigurationError, match="single_connection_client"):
        shell.queue(client=pinned)
    with pytest.raises(ConfigurationError, match="single_connection_client"):
        shell.gateway(redis_client=pinned)


@pytest.mark.promise(
    "A sync queue refuses an async client and the reverse, and both refuse other objects, at construction."
)
async def test_a_sync_queue_refuses_an_async_client_and_the_reverse(shell: Shell) -> None:
    """The error names the module that would take it."""
    other: Any = redis.asyncio.Redis() if shell.name == "sync" else redis.Redis()
    fitting = "redis_message_queue.asyncio" if shell.name == "sync" else "redis_message_queue"
    for make in (lambda: shell.queue(client=other), lambda: shell.gateway(redis_client=other)):
        with pytest.raises(ConfigurationTypeError, match=f"{fitting}$"):
            make()


@pytest.mark.promise(
    "A sync queue refuses an async client and the reverse, and both refuse other objects, at construction."
)
async def test_what_is_no_client_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """A wrong type, at construction and not at the first publish."""
    for client in ["redis://localhost", 6379, object(), redis.ConnectionPool()]:
        with row(subtests, client=client):
            with pytest.raises(ConfigurationTypeError, match="client"):
                shell.module.RedisMessageQueue("q", client=client)
            with pytest.raises(ConfigurationTypeError, match="client"):
                shell.gateway(redis_client=client)


@pytest.mark.promise("A sync queue refuses an async gateway and the reverse, and both refuse other objects.")
async def test_what_is_no_gateway_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """One of our errors that is a TypeError, not an AttributeError from inside."""
    for gateway in ["gateway", 1, object(), dict]:
        with row(subtests, gateway=gateway):
            with pytest.raises(shell.module.RedisMessageQueueError, match="gateway") as refusal:
                shell.module.RedisMessageQueue("q", gateway=gateway)
            assert isinstance(refusal.value, TypeError)


@pytest.mark.promise("A sync queue refuses an async gateway and the reverse, and both refuse other objects.")
async def test_a_sync_queue_refuses_an_async_gateway_and_the_reverse(shell: Shell) -> None:
    """Its methods could not be awaited, or would have to be."""
    client: Any = redis.asyncio.Redis() if shell.name == "sync" else redis.Redis()
    gateway = shell.other_module.RedisGateway(redis_client=client)
    with pytest.raises(shell.module.RedisMessageQueueError, match="gateway") as refusal:
        shell.module.RedisMessageQueue("q", gateway=gateway)
    assert isinstance(refusal.value, TypeError)


@pytest.mark.promise("With `gateway=`, the gateway's limit applies.")
@pytest.mark.promise(
    "Next to `gateway=`, an option that belongs to the gateway is accepted only with its default value."
)
async def test_gateway_options_on_the_queue_are_refused_with_a_gateway(shell: Shell, subtests: pytest.Subtests) -> None:
    """They would have no effect; the error says where to set them."""
    for name, value, there in [
        ("visibility_timeout_seconds", 60, "message_visibility_timeout_seconds"),
        ("visibility_timeout_seconds", None, "message_visibility_timeout_seconds"),
        ("max_delivery_count", 3, "max_delivery_count"),
        ("max_dead_letter_length", 5, "max_dead_letter_length"),
        ("max_pending_length", 5, "max_pending_length"),
        ("pending_overload_policy", "block", "pending_overload_policy"),
        ("pending_overload_block_timeout_seconds", 5, "pending_overload_block_timeout_seconds"),
        ("hash_tag", True, "hash_tag"),
        ("message_wait_interval_seconds", 1, "message_wait_interval_seconds"),
        ("message_deduplication_log_ttl_seconds", 60, "message_deduplication_log_ttl_seconds"),
        ("retry_budget_seconds", 0, "retry_budget_seconds"),
        ("retry_initial_delay_seconds", 1, "retry_initial_delay_seconds"),
        ("retry_max_delay_seconds", 1, "retry_max_delay_seconds"),
    ]:
        with row(subtests, name=name, value=value, there=there):
            with pytest.raises(ConfigurationError, match=name) as refusal:
                shell.queue(gateway=shell.gateway(), **{name: value})
            assert f"RedisGateway({there}=" in str(refusal.value)


@pytest.mark.promise(
    "Next to `gateway=`, an option that belongs to the gateway is accepted only with its default value."
)
async def test_an_explicit_default_is_accepted_with_a_gateway(shell: Shell) -> None:
    """It changes nothing, and code that says it runs unchanged."""
    assert shell.queue(
        gateway=shell.gateway(),
        visibility_timeout_seconds=300,
        max_delivery_count=10,
        max_dead_letter_length=None,
        max_pending_length=None,
        pending_overload_policy="raise",
        pending_overload_block_timeout_seconds=1.0,
        hash_tag=None,
    )


@pytest.mark.promise("With `gateway=`, tracking, payload rules, deduplication and callbacks stay options of the queue.")
async def test_options_of_the_queue_can_be_combined_with_a_gateway(shell: Shell) -> None:
    """Tracking, payload rules, deduplication and callbacks are the queue's own."""
    events = shell.events()
    queue = shell.queue(
        gateway=shell.gateway(), deduplication=True, enable_completed_queue=True, on_event=events.listen
    )
    assert [await queue.publish("a"), await queue.publish("a")] == [True, False]
    await take(queue)
    assert shell.listed(queue.key.completed) == [b"a"]
    assert events.names[-1] == "completed/success"


@pytest.mark.promise("Creating a queue sends nothing to Redis.")
async def test_creating_a_queue_sends_nothing_to_redis(shell: Shell, dead_port: int) -> None:
    """It may be made before the server is up."""
    assert shell.queue(client=shell.dead_client(dead_port)).key.pending == "q::pending"
