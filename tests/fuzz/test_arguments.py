"""Whatever somebody passes to a public method: a typed error that names the parameter, and nothing written."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redis_message_queue.options.declared import GatewayArguments, QueueArguments
from redis_message_queue.values.errors import RedisMessageQueueError
from tests.fuzz import snapshot
from tests.fuzz.effort import examples
from tests.fuzz.shells import Shell
from tests.fuzz.values import anything, payloads, shown

QUEUE = "jobs"
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # about long values


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def shell(request, clean_server):
    opened = Shell(clean_server, is_async=request.param)
    yield opened
    opened.close()


def refused(error: BaseException, parameter: str, value: Any, call: str) -> None:
    """Fail unless the error is one of ours and says which parameter it is about."""
    about = f"{call}({parameter}={shown(value)}) raised {type(error).__name__}: {str(error)[:300]}"
    assert isinstance(error, RedisMessageQueueError), about
    assert parameter in str(error), about
    assert str(error).isprintable() or parameter == "where", about


def works(shell: Shell, client: Any) -> None:
    """Fail unless the queue still delivers a message, once nobody pauses it."""
    queue = shell.queue(QUEUE, message_wait_interval_seconds=0)
    shell.call(queue.resume)
    shell.call(queue.purge, "pending")
    shell.call(queue.publish, "still here")
    seen: list[Any] = []
    shell.call(queue.process_message_callback, seen.append)
    assert seen == [b"still here"]


# -- methods

# What a call gets where nothing odd is tried: the shortest call that does something and returns.
USUAL: dict[str, dict[str, Any]] = {
    "publish": {"message": "hello"},
    "publish_many": {"messages": ["hello"]},
    "submit": {"message": "hello"},
    "submit_many": {"messages": ["hello"]},
    "get": {"message_id": "ab" * 16},
    "trace": {"message_id": "ab" * 16},
    "process_message_callback": {"handler": lambda message: None},
    "process_messages": {"max_messages": 1},
    "run": {"handler": lambda message: None, "until_empty": True},
    "purge": {"target": "completed"},
    "tenant": {"name": "acme"},
    "redrive_dead_letters": {"dry_run": True},
    "redrive_failed": {"dry_run": True},
    "schedule": {"name": "rare", "message": "hello", "every_seconds": 10**9},
}
# What it gets instead beside one parameter, because not all of them go together.
INSTEAD: dict[tuple[str, str], dict[str, Any]] = {
    ("run", "batch_seconds"): {"batch_size": 1},
    ("schedule", "cron"): {"every_seconds": None},
    ("schedule", "timezone"): {"every_seconds": None, "cron": "0 0 1 1 *"},
}
SHUTDOWN = ("drain", "close", "aclose")
WITHOUT_PARAMETERS = ("process_message", "current_message")
OF_TENANTS = ("publish", "publish_many")
# The word that an error uses where it is not the name of the parameter.
NAMED_AS = {
    ("publish_many", "messages"): "message",
    ("submit_many", "messages"): "message",
    ("tenant", "name"): "tenant",
}


def parameters_of(method: Any) -> list[str]:
    return [one for one in inspect.signature(method).parameters if one != "self"]


def methods(shell: Shell) -> list[tuple[str, str]]:
    """Every parameter of every public method: new ones are found here by themselves."""
    queue = shell.package.RedisMessageQueue
    public = [name for name, one in inspect.getmembers(queue, callable) if not name.startswith("_")]
    return [(name, one) for name in public for one in parameters_of(getattr(queue, name))]


def value_for(parameter: str) -> st.SearchStrategy[Any]:
    if parameter == "message":
        return payloads
    return st.one_of(st.lists(payloads, max_size=3), anything) if parameter == "messages" else anything


def is_waited_for(parameter: str, value: Any) -> bool:
    """Whether a call with this value is right, and goes on for as long as it says or needs as many threads."""
    if parameter in ("handler", "where"):
        return callable(value)  # what a handler raises is the user's own
    if parameter == "until_empty":
        return value is False
    return parameter in ("concurrency", "batch_seconds") and type(value) in (int, float) and 4 < value < 10_001


@examples(20, 4_000)
@given(data=st.data())
def test_every_parameter_of_every_method(shell, client, data):
    """Both queues: the error is ours, it names the parameter, nothing was written, and the queue goes on."""
    name, parameter = data.draw(st.sampled_from(methods(shell)), label="parameter")
    value = data.draw(value_for(parameter), label="value")
    assume(not is_waited_for(parameter, value))
    client.flushall()
    queue = shell.queue(QUEUE, message_wait_interval_seconds=0)
    shell.call(queue.publish, "first")
    before = snapshot.take(client)
    given = USUAL.get(name, {}) | INSTEAD.get((name, parameter), {}) | {parameter: value}
    try:
        result = shell.call(getattr(queue, name), **given)
        if name == "process_messages":
            shell.in_block(result, list)
    except Exception as error:
        refused(error, NAMED_AS.get((name, parameter), parameter), value, name)
        assert snapshot.take(client) == before
    works(shell, client)


@examples(10, 1_000)
@given(data=st.data())
def test_every_parameter_of_a_tenant(shell, client, data):
    """The same for the queue of one tenant."""
    client.flushall()
    queue = shell.queue(QUEUE, message_wait_interval_seconds=0)
    shell.call(queue.publish, "first", tenant="acme")
    before = snapshot.take(client)
    tenant = queue.tenant("acme")
    name = data.draw(st.sampled_from(OF_TENANTS))
    parameter = data.draw(st.sampled_from(parameters_of(getattr(tenant, name))))
    value = data.draw(value_for(parameter), label="value")
    try:
        shell.call(getattr(tenant, name), **USUAL[name] | {parameter: value})
    except Exception as error:
        refused(error, NAMED_AS.get((name, parameter), parameter), value, name)
        assert snapshot.take(client) == before
    works(shell, client)


@examples(10, 1_000)
@given(method=st.sampled_from(["ack", "fail"]), message=anything, error=anything, good=st.booleans())
def test_what_a_batch_is_told_to_settle(shell, client, method, message, error, good):
    """A batch settles its own messages, and nothing that only looks like one."""
    client.flushall()
    queue = shell.queue(QUEUE, message_wait_interval_seconds=0)
    shell.call(queue.publish, "first")

    def settle(batch: Any) -> Any:
        chosen = batch[0] if good else message
        return batch.ack(chosen) if method == "ack" else batch.fail(chosen, error)

    if good and method == "ack":
        assert shell.in_block(queue.process_messages(1), settle)
    elif good and isinstance(error, Exception):
        return
    else:
        with pytest.raises(RedisMessageQueueError):
            shell.in_block(queue.process_messages(1), settle)
        assert shell.call(queue.stats).pending == 1  # the block was left by an error, so it was given back


# -- constructors


def options_of(arguments: Any) -> list[str]:
    return [one.name for one in dataclasses.fields(arguments)]


# What another option needs beside it.
BESIDE: dict[str, dict[str, Any]] = {
    "get_deduplication_key": {"deduplication": True},
    "on_heartbeat_failure": {"heartbeat_interval_seconds": 10},
    "max_processing_seconds": {"heartbeat_interval_seconds": 10},
    "pending_overload_policy": {"max_pending_length": 5},
    "pending_overload_block_timeout_seconds": {"max_pending_length": 5, "pending_overload_policy": "raise"},
}


@examples(20, 5_000)
@given(data=st.data())
def test_every_option_of_a_queue(shell, client, data):
    """A constructor writes nothing; a queue that it makes can be used, or says why not."""
    option = data.draw(st.sampled_from(options_of(QueueArguments)), label="option")
    value = data.draw(anything, label="value")
    given = {"name": QUEUE, "client": shell.client, "message_wait_interval_seconds": 0}
    given |= BESIDE.get(option, {}) | {option: value}
    client.flushall()
    try:
        queue = shell.package.RedisMessageQueue(**given)
    except Exception as error:
        refused(error, option, value, "RedisMessageQueue")
        assert snapshot.take(client) == {}
        return
    assume(not callable(value) and option not in ("client", "gateway", "confirm_replicas", "confirm_fsync"))
    try:
        assert shell.call(queue.publish, "hello") is True
        seen: list[Any] = []
        shell.call(queue.process_message_callback, seen.append)
        shell.call(queue.stats)
    except Exception as error:
        assert isinstance(error, RedisMessageQueueError), f"{option}={shown(value)}: {error!r}"
        assert option in ("max_payload_bytes", "message_ttl_seconds"), f"{option}={shown(value)}: {error!r}"
    else:
        assert seen == [b"hello"], f"{option}={shown(value)}"


@examples(15, 3_000)
@given(data=st.data())
def test_every_option_of_a_gateway(shell, client, data):
    """The same for a gateway."""
    option = data.draw(st.sampled_from(options_of(GatewayArguments)), label="option")
    value = data.draw(anything, label="value")
    beside = BESIDE.get(option, {})
    if option == "max_delivery_count":
        beside = {"message_visibility_timeout_seconds": 300}
    client.flushall()
    try:
        gateway = shell.package.RedisGateway(**{"redis_client": shell.client} | beside | {option: value})
        assume(option not in ("redis_client", "confirm_replicas", "confirm_fsync"))
        queue = shell.package.RedisMessageQueue(QUEUE, gateway=gateway)
    except Exception as error:
        refused(error, option, value, "RedisGateway")
        assert snapshot.take(client) == {}
        return
    assert shell.call(queue.publish, "hello") is True


@examples(10, 2_000)
@given(option=st.sampled_from(["get_deduplication_key", "get_headers"]), value=anything, many=st.booleans())
def test_whatever_a_callback_returns(shell, client, option, value, many):
    """A key or headers that cannot be stored stop the publish before it writes."""
    client.flushall()
    usual = shell.queue(QUEUE)
    shell.call(usual.publish, "first")
    before = snapshot.take(client)
    queue = shell.queue(QUEUE, deduplication=True, **{option: lambda *_: value})
    try:
        if many:
            shell.call(queue.publish_many, ["hello"])
        else:
            shell.call(queue.publish, "hello")
    except Exception as error:
        refused(error, option, value, "publish")
        assert snapshot.take(client) == before
    works(shell, client)


TOKEN = f"{'0' * 32}:{'0' * 40}"
METHODS_OF_GATEWAYS: dict[str, dict[str, Any]] = {
    "add_message": {"queue": "jobs::pending", "message": "hello"},
    "publish_message": {"queue": "jobs::pending", "message": "hello", "dedup_key": "one"},
    "wait_for_message_and_move": {"from_queue": "jobs::pending", "to_queue": "jobs::processing"},
    "remove_message": {"queue": "jobs::processing", "message": "hello", "lease_token": TOKEN},
    "move_message": {"from_queue": "jobs::processing", "to_queue": "jobs::completed", "message": "hello"},
    "renew_message_lease": {"queue": "jobs::processing", "message": "hello", "lease_token": TOKEN},
    "trim_queue": {"queue": "jobs::completed", "max_length": 5},
}


@examples(15, 3_000)
@given(data=st.data())
def test_every_parameter_of_a_gateway(shell, client, data):
    """Somebody may call the built-in gateway directly."""
    kind = shell.package.RedisGateway
    public = {name for name, one in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    assert public == METHODS_OF_GATEWAYS.keys()
    name = data.draw(st.sampled_from(sorted(public)), label="method")
    parameter = data.draw(st.sampled_from(parameters_of(getattr(kind, name))), label="parameter")
    value = data.draw(anything, label="value")
    client.flushall()
    gateway = kind(redis_client=shell.client, message_wait_interval_seconds=0, message_visibility_timeout_seconds=300)
    shell.call(gateway.add_message, "jobs::pending", "first")
    before = snapshot.take(client)
    try:
        shell.call(getattr(gateway, name), **METHODS_OF_GATEWAYS[name] | {parameter: value})
    except Exception as error:
        refused(error, parameter, value, name)
        assert snapshot.take(client) == before
    works(shell, client)
