"""Publishes that share a request lead to the same as the same publishes one after another, in order of arrival."""

from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.port import finish
from redis_message_queue.stored.envelope import HEADER_BYTES, Envelope
from tests.depth import often
from tests.faults.crowd import Crowd, Held, answers

pytestmark = pytest.mark.topic("Group commit")

NAME = "model"
TENANTS = (None, None, "acme", "zeta")

publishes = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "tenant": st.sampled_from(TENANTS),
            "delay_seconds": st.sampled_from((0, 3600)),
            "deduplication_key": st.sampled_from(("one", "two")),
            "ttl_seconds": st.sampled_from((60, 90)),
            "headers": st.sampled_from(({"colour": "red"}, {})),
        },
    ),
    min_size=1,
    max_size=10,
)
options = st.fixed_dictionaries(
    {"partitions": st.sampled_from((1, 1, 3))},
    optional={
        "max_pending_length": st.sampled_from((1, 3, 5)),
        "max_pending_per_tenant": st.sampled_from((1, 2)),
        "pending_overload_policy": st.sampled_from(("raise", "drop_oldest")),
        "journal": st.sampled_from((True, "payload")),
        "tenant_weights": st.just({"acme": 2}),
        "deduplication": st.just(True),
    },
)

caller: ContextVar[int] = ContextVar("caller")


class Told:
    """The events of each caller."""

    def __init__(self) -> None:
        self.of: dict[int, list[Any]] = {}
        self.names: dict[str, int] = {}  # which caller published which message

    def listen(self, event: Any) -> None:
        self.of.setdefault(caller.get(), []).append(event)
        if event.operation.startswith("publish") and event.message_id is not None:
            self.names[event.message_id] = caller.get()

    def by_caller(self) -> dict[int, list[tuple[Any, ...]]]:
        """With the callers' numbers in place of ids."""
        return {
            nth: [
                (str(one.operation), str(one.outcome), one.exception_type, self.names.get(one.message_id, "own"))
                for one in some
            ]
            for nth, some in self.of.items()
        }


def play(
    crowd: Crowd, onlooker: redis.Redis, calls: list[dict[str, Any]], chosen: dict[str, Any], *, meet: bool
) -> Any:
    """What the callers got and were told, and what is in Redis."""
    onlooker.flushall()
    told = Told()
    crowd.open(NAME, on_event=told.listen, **chosen)
    crowd.queue._protocol.publisher._turn = 0  # which part comes first is a matter of chance
    queue = crowd.queue

    async def publish(nth: int, **details: Any) -> bool:
        caller.set(nth)
        result: bool = await queue.publish(f"message {nth % 7}", **details)
        return result

    def publish_sync(nth: int, **details: Any) -> bool:
        caller.set(nth)
        result: bool = queue.publish(f"message {nth % 7}", **details)
        return result

    function = publish if crowd.is_async else publish_sync
    for part in queue._protocol.parts:  # the first contact is not shared
        crowd.call(part.store.calls.write_state if crowd.is_async else partial(_write_state, part.store.calls))
    if meet:
        with Held(onlooker):
            outcomes = [crowd.arrive(function, nth, **details) for nth, details in enumerate(calls)]
    else:
        outcomes = []
        for nth, details in enumerate(calls):
            outcomes.append(crowd.begin(function, nth, **details))
            answers(outcomes[-1:])
    results = [(type(one).__name__, one if isinstance(one, bool) else None) for one in answers(outcomes)]
    return {"results": results, "events": told.by_caller(), **state(onlooker, told, chosen["partitions"])}


def play_acks(
    crowd: Crowd, onlooker: redis.Redis, messages: list[dict[str, Any]], chosen: dict[str, Any], *, meet: bool
) -> Any:
    """What leaving a block for each message led to; some messages came before, and some have lost their lease."""
    onlooker.flushall()
    told = Told()
    crowd.open(NAME, on_event=told.listen, message_wait_interval_seconds=0, **chosen)
    queue, context = crowd.queue, ("__aenter__", "__aexit__") if crowd.is_async else ("__enter__", "__exit__")
    crowd.queue._protocol.publisher._turn = crowd.queue._protocol.store.claimer._turn = 0

    async def run(nth: int, function: Any, *arguments: Any, **details: Any) -> Any:
        caller.set(nth)
        return await function(*arguments, **details)

    def run_sync(nth: int, function: Any, *arguments: Any, **details: Any) -> Any:
        caller.set(nth)
        return function(*arguments, **details)

    as_caller = run if crowd.is_async else run_sync
    for nth, one in enumerate(messages):
        crowd.call(as_caller, nth, queue.publish, f"message {nth}", tenant=one.get("tenant"))
    blocks = [(nth, queue.process_message()) for nth in range(len(messages))]
    for nth, block in blocks:
        crowd.call(as_caller, nth, getattr(block, context[0]))
        if messages[nth].get("lost"):
            for key in onlooker.keys("*::leases"):
                onlooker.zrem(key, block._block.claimed.token)
    if meet:
        with Held(onlooker):
            outcomes = [
                crowd.arrive(as_caller, nth, getattr(block, context[1]), None, None, None) for nth, block in blocks
            ]
    else:
        outcomes = []
        for nth, block in blocks:
            outcomes.append(crowd.begin(as_caller, nth, getattr(block, context[1]), None, None, None))
            answers(outcomes[-1:])
    results = [one if one is None else type(one).__name__ for one in answers(outcomes)]
    return {"results": results, "events": told.by_caller(), **state(onlooker, told, chosen["partitions"])}


def _write_state(calls: Calls) -> None:
    finish(calls.write_state())


def state(onlooker: Any, told: Told, partitions: int) -> dict[str, Any]:
    """Everything in Redis but times and the reply cache, with callers in place of ids."""
    names: dict[bytes, bytes] = {}
    for one, nth in told.names.items():
        names[one.encode()] = names[bytes.fromhex(one)] = f"<{nth}>".encode()
    found: dict[str, Any] = {}
    for key in sorted(onlooker.keys("*")):
        text = key.decode()
        if "::reply::" in text or "::meta" in text or not text.startswith((NAME, "{" + NAME)):
            continue
        kind = onlooker.type(key)
        if kind == b"list":
            found[text] = [named(one, names) for one in onlooker.lrange(key, 0, -1)]
        elif kind == b"zset":
            delayed = text.endswith(("::delayed", "::leases"))
            pairs = onlooker.zrange(key, 0, -1, withscores=True)
            found[text] = sorted((names.get(one, one), None if delayed else score) for one, score in pairs)
        elif kind == b"hash":
            found[text] = {names.get(one, one): named(value, names) for one, value in onlooker.hgetall(key).items()}
        elif kind == b"stream":
            found[text] = [
                {field: names.get(value, value) for field, value in entry.items() if field not in (b"at", b"due")}
                for _, entry in onlooker.xrange(key)
            ]
        elif kind == b"string":
            found[text] = names.get(value := onlooker.get(key), value)
    return found


def named(value: bytes, names: dict[bytes, bytes]) -> Any:
    if len(value) < HEADER_BYTES or value[0] < 0x80:
        return value
    one = Envelope(value)
    return (names.get(one.id, b"?"), value[:1], value[HEADER_BYTES:])


@pytest.fixture(params=["async", "sync"])
def crowd(request: pytest.FixtureRequest, server: EmbeddedRedis) -> Iterator[Crowd]:
    with Crowd(server.port, is_async=request.param == "async", name=NAME) as opened:
        yield opened


@pytest.fixture
def onlooker(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with server.client() as opened:
        yield opened


@pytest.mark.promise("Publishes that share a request lead to what they lead to one after another.")
@settings(
    max_examples=often(30, 1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(publishes, options)
@example([{}, {}, {}], {"partitions": 1})
@example([{"deduplication_key": "one"}] * 3, {"partitions": 3, "journal": "payload"})
@example([{}, {}, {"tenant": "acme"}, {}], {"partitions": 1, "max_pending_length": 3, "journal": True})
@example(
    [{}, {"tenant": "acme"}, {"tenant": "acme"}, {"tenant": "zeta"}, {}, {}],
    {"partitions": 1, "max_pending_length": 3, "pending_overload_policy": "drop_oldest", "journal": True},
)
def test_a_group_and_single_publishes_lead_to_the_same(
    crowd: Crowd, onlooker: redis.Redis, calls: list[dict[str, Any]], chosen: dict[str, Any]
):
    """Results, events of each caller, journal and stored state."""
    if not {"max_pending_length", "max_pending_per_tenant"} & {*chosen}:
        chosen = {name: value for name, value in chosen.items() if name != "pending_overload_policy"}
    if chosen.get("pending_overload_policy") == "drop_oldest":
        chosen = {name: value for name, value in chosen.items() if name != "deduplication"}
        chosen["max_delivery_count"] = None
        calls = [{name: value for name, value in one.items() if name != "deduplication_key"} for one in calls]
    grouped = play(crowd, onlooker, calls, chosen, meet=True)
    single = play(crowd, onlooker, calls, chosen, meet=False)
    assert grouped == single


acknowledged = st.lists(
    st.fixed_dictionaries({}, optional={"tenant": st.sampled_from(TENANTS), "lost": st.booleans()}),
    min_size=1,
    max_size=8,
)
ack_options = st.fixed_dictionaries(
    {"partitions": st.sampled_from((1, 1, 3))}, optional={"journal": st.sampled_from((True, "payload"))}
)


@pytest.mark.promise("Acknowledgements that share a request lead to what they lead to one after another.")
@settings(
    max_examples=often(15, 500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acknowledged, ack_options)
@example([{}, {"lost": True}, {}, {"tenant": "acme"}], {"partitions": 1})
@example([{}, {"lost": True}, {}, {"tenant": "acme"}], {"partitions": 3, "journal": True})
def test_a_group_and_single_acknowledgements_lead_to_the_same(
    crowd: Crowd, onlooker: redis.Redis, messages: list[dict[str, Any]], chosen: dict[str, Any]
):
    """Events of each block, journal and stored state."""
    grouped = play_acks(crowd, onlooker, messages, chosen, meet=True)
    single = play_acks(crowd, onlooker, messages, chosen, meet=False)
    assert grouped == single
