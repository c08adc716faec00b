"""A queue checks a custom gateway, its settings and its signatures at construction."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from redis_message_queue import (
    ConfigurationError,
    GatewayContractError,
)
from tests.contract.custom_gateways import HELD, LEASED, OPERATIONS, Core, custom
from tests.contract.shells import (
    Shell,
    asyncio_only,
    fail,
    sync_only,
    take,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Gateways")

PROPERTIES = ("message_visibility_timeout_seconds", "max_delivery_count", "dead_letter_queue", "is_redis_cluster")


# Signatures


@pytest.mark.promise("A subclass of `AbstractRedisGateway` has seven operations, and the queue uses only these.")
async def test_a_gateway_has_all_seven_operations(shell: Shell, subtests: pytest.Subtests) -> None:
    """Python refuses to make one without, and the queue one that has merely the name."""
    for operation in OPERATIONS:
        with row(subtests, operation=operation):
            contract = shell.module.AbstractRedisGateway
            others = {name: lambda self, *arguments, **named: None for name in OPERATIONS if name != operation}
            with pytest.raises(TypeError, match=operation):
                type("Incomplete", (contract,), others)()
            for nothing in (None, "a word"):
                with pytest.raises(GatewayContractError, match=operation):
                    shell.queue(gateway=custom(shell, Core(), **{operation: nothing}))


WRONG_SHAPES: dict[str, list[Callable[..., Any]]] = {
    "publish_message": [lambda self, queue, message: True, lambda self, queue, message, key, window: True],
    "add_message": [lambda self, queue: None, lambda self, queue, message, key: None],
    "wait_for_message_and_move": [lambda self, queue: None, lambda self, here, there, seconds: None],
    "remove_message": [lambda self, queue, message: True, lambda self, queue, message, token: True],
    "move_message": [lambda self, here, there, message: True, lambda self, here, there, *, lease_token: True],
    "trim_queue": [lambda self, queue: None, lambda self, queue, *, max_length: None],
    # The first is how it was before heartbeats told their gateway when to stop.
    "renew_message_lease": [
        lambda self, queue, message, lease_token: True,
        lambda self, queue, lease_token, *, is_interrupted=None: True,
    ],
}


@pytest.mark.promise("A gateway operation with an incompatible signature is refused at construction.")
async def test_an_operation_that_could_not_be_called_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """At once, and not when the first lease must be renewed; a subclass of the built-in gateway no less."""
    for operation in OPERATIONS:
        with row(subtests, operation=operation):
            for wrong in WRONG_SHAPES[operation]:
                with pytest.raises(GatewayContractError, match=rf"CustomGateway\.{operation}"):
                    shell.queue(gateway=custom(shell, Core(), **{operation: wrong}))
                overriding = type("Overriding", (shell.module.RedisGateway,), {operation: wrong})
                with pytest.raises(GatewayContractError, match=rf"Overriding\.{operation}"):
                    shell.queue(gateway=overriding(redis_client=shell.client))


@pytest.mark.promise("A gateway operation with an incompatible signature is refused at construction.")
async def test_names_and_defaults_of_an_operations_parameters_are_its_own(shell: Shell) -> None:
    """What must be given by name is; the rest goes by its place."""

    def move(self: Any, source: str, target: str, body: Any, lease_token: Any = "none", **other: Any) -> Any:
        return core.do("move_message", source, target, body, lease_token=lease_token)

    core = Core("m")
    queue = shell.queue(gateway=custom(shell, core, move_message=move), enable_completed_queue=True)
    assert await take(queue) == "m"
    assert core.calls[1] == ("move_message", "q::processing", "q::completed", "m", HELD)


@pytest.mark.promise("A gateway operation with an incompatible signature is refused at construction.")
async def test_an_operation_whose_signature_cannot_be_read_is_accepted(shell: Shell) -> None:
    """Compiled functions may have none to show."""
    compiled = {}.update
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(compiled)
    gateway = custom(shell, Core())
    gateway.add_message = compiled
    assert shell.queue(gateway=gateway)


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
async def test_an_operation_that_would_only_yield_publishes_nothing_and_says_so(shell: Shell) -> None:
    """Calling a generator function runs none of it, and that must not count as published."""

    def generator(self: Any, queue: str, message: str) -> Any:
        yield core.do("add_message", queue, message)

    async def asynchronous(self: Any, queue: str, message: str) -> Any:
        yield core.do("add_message", queue, message)

    core = Core()
    for yielding in (generator, asynchronous):
        with pytest.raises(GatewayContractError, match="add_message"):
            await shell.queue(gateway=custom(shell, core, add_message=yielding)).publish("a")


@pytest.mark.promise("A gateway operation with an incompatible signature is refused at construction.")
@sync_only
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_sync_queue_refuses_an_operation_that_must_be_awaited(shell: Shell, operation: str) -> None:
    """Of a custom gateway and of a subclass of the built-in one; the error names the package that awaits."""

    async def awaited(self: Any, *arguments: Any, **named: Any) -> Any: ...

    overriding = type("Overriding", (shell.module.RedisGateway,), {operation: awaited})
    for gateway in (custom(shell, Core(), **{operation: awaited}), overriding(redis_client=shell.client)):
        with pytest.raises(GatewayContractError, match=rf"{operation}.*redis_message_queue\.asyncio"):
            shell.queue(gateway=gateway)


@pytest.mark.promise("A gateway operation with an incompatible signature is refused at construction.")
@asyncio_only
async def test_the_asyncio_queue_takes_plain_operations_too(shell: Shell) -> None:
    """What need not wait need not be awaited."""
    core = Core("m", "n")
    plain = {
        name: lambda self, *arguments, name=name, **named: core.do(name, *arguments, **named) for name in OPERATIONS
    }
    queue = shell.queue(gateway=custom(shell, core, **plain), deduplication=True, enable_completed_queue=True)
    assert await queue.publish("a") is True
    assert await take(queue) == "m"
    await fail(queue, ValueError())
    assert core.names == [
        *("publish_message", "wait_for_message_and_move", "move_message", "trim_queue"),
        *("wait_for_message_and_move", "remove_message"),
    ]


@pytest.mark.promise("A sync queue refuses an async gateway and the reverse, and both refuse other objects.")
async def test_gateways_of_the_other_kind_and_other_objects_are_refused(shell: Shell) -> None:
    """An async gateway for a sync queue or the reverse, a class instead of an object, and a lookalike."""
    named = dict.fromkeys(OPERATIONS, lambda self, *arguments, **named: None)
    other = type("OfTheOther", (shell.other_module.AbstractRedisGateway,), named)
    own = type("OfThisKind", (shell.module.AbstractRedisGateway,), named)
    alike = type("Alike", (), named | dict.fromkeys(PROPERTIES))
    for gateway in (other(), own, alike()):
        with pytest.raises(GatewayContractError, match="AbstractRedisGateway"):
            shell.queue(gateway=gateway)


async def test_the_contract_takes_no_names_but_its_own(shell: Shell) -> None:
    """A gateway may call everything else as it likes, without getting in the queue's way."""
    public = {name for name in dir(shell.module.AbstractRedisGateway) if not name.startswith("_")}
    assert public == {*OPERATIONS, *PROPERTIES}


async def test_a_subclass_of_the_built_in_gateway_may_keep_things_under_its_own_names(shell: Shell) -> None:
    """An address, settings, a store: natural names, and none of them the queue's."""

    class Addressed(shell.module.RedisGateway):  # type: ignore[name-defined,misc]  # known at run time only
        def __init__(self, client: Any) -> None:
            super().__init__(redis_client=client)
            self.port, self.host, self.options, self.client = 6379, "localhost", {"patient": True}, None
            self.store = self.serve = self.keys = None

    queue = shell.queue(gateway=Addressed(shell.client))
    await queue.publish("a")
    assert await take(queue) == b"a"


# Settings


@pytest.mark.promise(
    "A gateway without `message_visibility_timeout_seconds` has no leases: it gets no token, and heartbeats are "
    "refused."
)
async def test_a_gateway_that_says_nothing_has_no_leases_no_limit_and_no_cluster(shell: Shell) -> None:
    """The four have defaults; nobody needs to write them down."""
    gateway = custom(shell, Core("m"))
    assert [getattr(gateway, name) for name in PROPERTIES] == [None, None, None, False]
    queue = shell.queue(gateway=gateway)
    assert queue.key.dead_letter == "q::dlq"
    assert await take(queue) == "m"


SAID = {
    "message_visibility_timeout_seconds": 30,
    "max_delivery_count": 3,
    "dead_letter_queue": "{q}::poison",
    "is_redis_cluster": True,
}


def said_by_properties(shell: Shell) -> Any:
    def said(value: Any) -> property:
        return property(lambda self: value)

    return custom(shell, Core(), **{name: said(value) for name, value in SAID.items()})


def said_by_the_class(shell: Shell) -> Any:
    return custom(shell, Core(), **SAID)


def said_by_the_object(shell: Shell) -> Any:
    gateway = custom(shell, Core())
    for name, value in SAID.items():
        setattr(gateway, name, value)
    return gateway


def said_by_a_frozen_dataclass(shell: Shell) -> Any:
    body = {"__annotations__": dict.fromkeys(SAID, object), **SAID}
    return dataclasses.dataclass(frozen=True)(type(custom(shell, Core(), **body)))()


@pytest.mark.promise("The four gateway settings may be properties or plain attributes, and are validated.")
@pytest.mark.parametrize("say", [said_by_properties, said_by_the_class, said_by_the_object, said_by_a_frozen_dataclass])
async def test_a_gateway_speaks_by_properties_or_plain_attributes(shell: Shell, say: Any) -> None:
    """All of them are heard: leases, the limit, the dead letters and the cluster."""
    gateway = say(shell)
    queue = shell.queue(gateway=gateway, heartbeat_interval_seconds=14)
    assert (queue.key.pending, queue.key.dead_letter) == ("{q}::pending", "{q}::poison")
    with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
        shell.queue(gateway=gateway, heartbeat_interval_seconds=15)
    with pytest.raises(ConfigurationError, match="max_delivery_count"):
        shell.queue("other", gateway=gateway)


@pytest.mark.promise("The four gateway settings may be properties or plain attributes, and are validated.")
async def test_a_property_of_the_wrong_kind_is_a_broken_contract(shell: Shell, subtests: pytest.Subtests) -> None:
    """Found when the queue is made; the error names the gateway and the property."""
    for name, value in [
        *(("message_visibility_timeout_seconds", value) for value in ("30", True, 0, -1, float("nan"), float("inf"))),
        *(("max_delivery_count", value) for value in ("3", 1.5, True, 0, -1)),
        *(("dead_letter_queue", value) for value in (b"dlq", 1, "", " ", "\ud800")),
        *(("is_redis_cluster", value) for value in (None, 1, 0, "yes")),
    ]:
        with row(subtests, name=name, value=value), pytest.raises(GatewayContractError, match=f"CustomGateway.*{name}"):
            shell.queue(gateway=custom(shell, Core(), **{name: value}))


@pytest.mark.promise("The four gateway settings may be properties or plain attributes, and are validated.")
@pytest.mark.parametrize("name", PROPERTIES)
async def test_an_exception_in_a_property_reaches_the_caller(shell: Shell, name: str) -> None:
    """Its own error, not one about the contract."""

    def complain(self: Any) -> Any:
        raise LookupError("not known yet")

    with pytest.raises(LookupError, match="not known yet"):
        shell.queue(gateway=custom(shell, Core(), **{name: property(complain)}))


@pytest.mark.promise("`is_redis_cluster` puts all keys of a gateway's queues into one slot.")
async def test_on_a_cluster_all_keys_of_a_queue_share_a_slot(shell: Shell) -> None:
    """In `queue.key` and in every operation; a dead-letter list of another slot is refused."""
    core = Core("m")
    gateway = custom(shell, core, is_redis_cluster=True, dead_letter_queue="q::poison")
    queue = shell.queue(gateway=gateway, enable_completed_queue=True, deduplication=True)
    await queue.publish("a")
    await take(queue)
    keys = [argument for call in core.calls for argument in call[1:] if isinstance(argument, str) and "::" in argument]
    assert len(keys) == 7 and all(key.startswith("{q}::") for key in keys)
    assert queue.key.dead_letter == "{q}::poison"
    with pytest.raises(ConfigurationError, match="elsewhere"):
        shell.queue(gateway=custom(shell, Core(), is_redis_cluster=True, dead_letter_queue="elsewhere"))
    tagged = shell.queue("{own}.jobs", gateway=custom(shell, Core(), is_redis_cluster=True))
    assert tagged.key.pending == "{own}.jobs::pending"


@pytest.mark.promise(
    "The delivery limit and dead-letter list are set on the gateway, and a gateway with a limit serves one queue."
)
async def test_the_dead_letters_are_where_the_gateway_says(shell: Shell) -> None:
    """`queue.key.dead_letter` shows the operator that key."""
    queue = shell.queue(gateway=custom(shell, Core(), dead_letter_queue="poison"))
    assert queue.key.dead_letter == "poison"


@pytest.mark.promise(
    "The delivery limit and dead-letter list are set on the gateway, and a gateway with a limit serves one queue."
)
async def test_a_gateway_with_a_delivery_limit_serves_one_queue(shell: Shell) -> None:
    """Under one name as many objects as one likes; without a limit any number of queues."""
    limited = custom(shell, Core(), max_delivery_count=3, **LEASED)
    for _ in range(2):
        assert shell.queue("a", gateway=limited)
    with pytest.raises(ConfigurationError, match=r"'a'.*'b'"):
        shell.queue("b", gateway=limited)
    unlimited = custom(shell, Core(), dead_letter_queue="poison", **LEASED)
    assert shell.queue("a", gateway=unlimited) and shell.queue("b", gateway=unlimited)


@pytest.mark.promise(
    "The delivery limit and dead-letter list are set on the gateway, and a gateway with a limit serves one queue."
)
async def test_a_queue_that_could_not_be_made_does_not_occupy_its_gateway(shell: Shell) -> None:
    """One with a delivery limit is still free for the queue that is right."""
    built_in = shell.gateway(message_visibility_timeout_seconds=60, max_delivery_count=3)
    for gateway in (custom(shell, Core(), max_delivery_count=3, **LEASED), built_in):
        with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
            shell.queue("a", gateway=gateway, heartbeat_interval_seconds=59)
        assert shell.queue("b", gateway=gateway)


# Options of the queue


@pytest.mark.promise(
    "Next to `gateway=`, an option that belongs to the gateway is accepted only with its default value."
)
async def test_options_that_belong_to_the_gateway_are_refused_with_a_custom_one(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """It would have no effect, and nobody should believe that it has."""
    for name, value in [
        *(("visibility_timeout_seconds", 60), ("visibility_timeout_seconds", None)),
        *(("max_delivery_count", 3), ("max_delivery_count", None), ("max_dead_letter_length", 5)),
        *(("max_pending_length", 5), ("pending_overload_policy", "block"), ("hash_tag", True), ("hash_tag", False)),
        *(("pending_overload_block_timeout_seconds", 5), ("message_wait_interval_seconds", 0)),
        *(("message_deduplication_log_ttl_seconds", 60), ("retry_budget_seconds", 0)),
        *(("retry_initial_delay_seconds", 1), ("retry_max_delay_seconds", 1)),
        *(("confirm_replicas", 1), ("confirm_fsync", True), ("confirm_timeout_seconds", 5)),
    ]:
        with row(subtests, name=name, value=value), pytest.raises(ConfigurationError, match=rf"^{name}=.*gateway"):
            shell.queue(gateway=custom(shell, Core()), **{name: value})


@pytest.mark.promise("With `gateway=` the queue has no lease and no delivery limit unless the gateway sets them.")
async def test_explicit_defaults_are_accepted_and_have_no_effect(shell: Shell) -> None:
    """Neither the lease nor the delivery limit of the `client=` path comes to a gateway by itself."""
    core = Core("plain")
    gateway = custom(shell, core)
    defaults = {"visibility_timeout_seconds": 300, "max_delivery_count": 10, "pending_overload_policy": "raise"}
    queue = shell.queue(gateway=gateway, **defaults)
    assert shell.queue("another", gateway=gateway, **defaults)
    assert await take(queue) == "plain"
    assert [getattr(gateway, name) for name in PROPERTIES] == [None, None, None, False]
    with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
        shell.queue(gateway=gateway, **defaults, heartbeat_interval_seconds=60)
