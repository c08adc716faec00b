"""The sync and the async queue have the same names, parameters and docstrings."""

import inspect
from typing import Any

import pytest

import redis_message_queue
import redis_message_queue.asyncio
from tests.tables import row

pytestmark = [pytest.mark.topic("Names and keys"), pytest.mark.both_shells]

SYNC, ASYNCIO = redis_message_queue, redis_message_queue.asyncio
CLASSES = ["RedisMessageQueue", "RedisGateway"]
# The one name that differs: a shutdown is awaited under the name that asyncio uses for it.
AWAITED_NAMES = {"close": "aclose"}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def twins() -> list[tuple[str, str, Any, Any]]:
    """Class and name of every public attribute, with both of its sides."""
    found = []
    for kind in CLASSES:
        there = public(getattr(ASYNCIO, kind))
        for name, one in public(getattr(SYNC, kind)).items():
            other = there.get(name, there.get(AWAITED_NAMES.get(name, name)))
            found.append((kind, name, one, other))
    return found


def plain(member: Any) -> Any:
    """The function behind a property or a class method."""
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


@pytest.mark.promise(
    "You import the sync queue from `redis_message_queue` and the async queue from `redis_message_queue.asyncio`; "
    "both export the same names."
)
def test_both_modules_export_the_same_names() -> None:
    """In the same order, each once, and every one exists."""
    assert SYNC.__all__ == ASYNCIO.__all__
    assert all(hasattr(SYNC, name) and hasattr(ASYNCIO, name) for name in SYNC.__all__)
    assert len(set(SYNC.__all__)) == len(SYNC.__all__)


@pytest.mark.promise("Both modules export the same errors, events and interrupt handlers.")
def test_errors_events_and_interrupt_handlers_are_the_same_in_both_modules() -> None:
    """Errors, events, interrupts and messages are shared; only what talks to Redis is there twice."""
    different = {name for name in SYNC.__all__ if getattr(SYNC, name) is not getattr(ASYNCIO, name)}
    classes = {"RedisMessageQueue", "RedisGateway", "AbstractRedisGateway", "ReceivedMessage"}
    assert different <= classes | {"queues", "open_registered", "run_queues"}
    assert different >= set(CLASSES)


@pytest.mark.promise(
    "The sync and async queues take the same parameters with the same defaults and have the same methods."
)
@pytest.mark.parametrize("kind", CLASSES)
def test_both_classes_are_made_alike(kind: str) -> None:
    """Same parameters, defaults and annotations, in the same order; the types of client and gateway differ."""
    one, other = getattr(SYNC, kind), getattr(ASYNCIO, kind)
    here, there = inspect.signature(one).parameters, inspect.signature(other).parameters
    assert list(here) == list(there)
    for name in here.keys() - {"client", "gateway", "redis_client"}:
        assert here[name] == there[name]
    assert one.__doc__ == other.__doc__
    assert one.__init__.__doc__ == other.__init__.__doc__


@pytest.mark.promise(
    "The sync and async queues take the same parameters with the same defaults and have the same methods."
)
@pytest.mark.parametrize("kind", CLASSES)
def test_both_classes_have_the_same_public_names(kind: str) -> None:
    """Nothing is offered by the sync or the async queue only."""
    one, other = public(getattr(SYNC, kind)), public(getattr(ASYNCIO, kind))
    assert {AWAITED_NAMES.get(name, name) for name in one} == set(other)


@pytest.mark.promise(
    "The sync and async queues take the same parameters with the same defaults and have the same methods."
)
def test_sync_and_async_methods_have_the_same_signature_and_docstring(subtests: pytest.Subtests) -> None:
    """Signature and docstring, word for word; a docstring there is."""
    for kind, name, one, other in twins():
        with row(subtests, kind=kind, name=name, one=one, other=other):
            assert type(one) is type(other)
            if not callable(plain(one)):
                assert one == other
                return
            assert inspect.signature(plain(one)) == inspect.signature(plain(other))
            documented = inspect.getdoc(getattr(getattr(SYNC, kind), name))  # an override may leave it to the contract
            assert documented == inspect.getdoc(getattr(getattr(ASYNCIO, kind), AWAITED_NAMES.get(name, name)))
            assert documented


@pytest.mark.promise("Methods that talk to Redis are coroutines in the async queue only.")
def test_calls_to_redis_are_coroutines_in_the_async_queue_only() -> None:
    """publish and process_message_callback; process_message gives a sync or an async context."""
    for name in ("publish", "process_message_callback"):
        assert not inspect.iscoroutinefunction(getattr(SYNC.RedisMessageQueue, name))
        assert inspect.iscoroutinefunction(getattr(ASYNCIO.RedisMessageQueue, name))


@pytest.mark.promise("A queue is not a context manager: each message has its own `with` block.")
def test_a_queue_is_not_a_context_manager_itself() -> None:
    """A block is for one message, not for a queue."""
    for queue in (SYNC.RedisMessageQueue, ASYNCIO.RedisMessageQueue):
        assert not hasattr(queue, "__enter__") and not hasattr(queue, "__aenter__")


@pytest.mark.promise(
    "You import the sync queue from `redis_message_queue` and the async queue from `redis_message_queue.asyncio`; "
    "both export the same names."
)
@pytest.mark.parametrize("module", [SYNC, ASYNCIO], ids=["sync", "asyncio"])
def test_the_documented_names_can_be_imported(module: Any) -> None:
    """Queue, gateways, interrupts, events and errors, from either module."""
    assert set(module.__all__) >= {
        *("RedisMessageQueue", "RedisGateway", "AbstractRedisGateway", "ClaimedMessage", "QueueEvent"),
        *("GracefulInterruptHandler", "EventDrivenInterruptHandler", "BaseGracefulInterruptHandler"),
        *("RedisMessageQueueError", "ConfigurationError", "GatewayContractError", "LuaScriptError"),
        *("QueueBackpressureError", "QueueDrainedError", "PayloadTooLargeError", "PayloadTooDeepError"),
        *("CleanupFailedError", "RetryBudgetExhaustedError"),
    }
