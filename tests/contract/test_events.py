"""`on_event` reports everything that happens, after it happened, in the caller's thread or task, without payloads."""

import asyncio
import dataclasses
import logging
import threading
import warnings
from contextvars import ContextVar
from typing import Any

import pytest

from redis_message_queue import EventOperation, EventOutcome, QueueEvent
from tests.contract.shells import Shell, claim_and_die, fail, sync_only, take, until

pytestmark = pytest.mark.topic("Events")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

OPERATIONS = {
    *("publish", "publish_dedup_hit", "dropped"),
    *("claim", "claim_empty", "claim_reclaim"),
    *("ack", "nack", "completed", "failed", "retried", "requeued", "redriven", "handed_off", "dlq"),
    *("discarded", "cancelled"),
    *("lease_renew", "stale_lease_ack", "stale_lease_nack", "stale_lease_renew"),
    *("cleanup_failed", "trim_failed", "retry_attempt", "retry_exhausted"),
}


# What is told


@pytest.mark.promise("Operations, outcomes and exception class names are plain words that fit metric labels.")
def test_operations_and_outcomes_are_plain_words() -> None:
    """Fit for a metric's label: they are strings, and print as their value."""
    assert {str(operation) for operation in EventOperation} == OPERATIONS
    assert {str(outcome) for outcome in EventOutcome} == {"success", "failure", "skipped"}
    assert str(EventOperation.ACK) == EventOperation.ACK.value == "ack" and f"{EventOutcome.SUCCESS}" == "success"


@pytest.mark.promise("`on_event` receives a frozen `QueueEvent` for everything that happens to messages.")
def test_an_event_is_a_frozen_record() -> None:
    """A callback may keep it or hand it to another thread."""
    event = QueueEvent(queue="q", operation=EventOperation.ACK, outcome=EventOutcome.SUCCESS)
    assert [field.name for field in dataclasses.fields(event)] == [
        *("queue", "operation", "outcome", "message_id", "lease_token_hash"),
        *("delivery_count", "attempt", "duration_seconds", "error", "exception_type"),
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.queue = "other"  # type: ignore[misc]  # wrong on purpose


@pytest.mark.promise("A handled message emits `publish`, `claim`, `ack`, and `completed` if it is kept.")
async def test_events_of_a_handled_message(shell: Shell) -> None:
    """Published, claimed, acked, and kept where that is asked for: one id all along."""
    events = shell.events()
    queue = shell.queue("orders", on_event=events.listen, enable_completed_queue=True)
    await queue.publish("a")
    await take(queue)
    assert events.names == ["publish/success", "claim/success", "ack/success", "completed/success"]
    assert {event.queue for event in events.all} == {"orders"}
    assert len({event.message_id for event in events.all}) == 1
    assert all(event.error is None and event.exception_type is None for event in events.all)


@pytest.mark.promise("A failed message emits `failed` with the handler's error, then `nack`.")
async def test_events_of_a_failed_message(shell: Shell) -> None:
    """The handler's error belongs to `failed`; `nack` says that the cleanup is done, with a failed list or without."""
    for options in ({}, {"enable_failed_queue": True}):
        events = shell.events()
        queue = shell.queue(on_event=events.listen, **options)
        await queue.publish("a")
        error = LookupError("mine")
        await fail(queue, error)
        assert events.names == ["publish/success", "claim/success", "failed/failure", "nack/success"]
        assert events.the("failed").error is error
        assert events.the("failed").exception_type == "LookupError"
        assert events.the("nack").error is None


@pytest.mark.promise("A redelivered message emits `claim_reclaim` before `claim`.")
async def test_events_of_a_redelivered_message(shell: Shell) -> None:
    """claim_reclaim goes before the claim, and both know the number of the delivery."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen)
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    assert events.names == [
        *("publish/success", "claim/success", "claim_reclaim/success", "claim/success", "ack/success")
    ]
    assert [event.delivery_count for event in events.all] == [None, 1, 2, 2, 2]


@pytest.mark.promise(
    "A suppressed publish emits `publish_dedup_hit` and an empty claim `claim_empty`, both with the outcome skipped."
)
async def test_a_suppressed_publish_and_an_empty_claim_are_skipped(shell: Shell) -> None:
    """Nothing went wrong, and nothing was done."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, deduplication=True, wait=0)
    await take(queue)
    await queue.publish("a")
    await queue.publish("a")
    assert events.names == ["claim_empty/skipped", "publish/success", "publish_dedup_hit/skipped"]


async def test_events_of_slow_operations_have_a_duration(shell: Shell) -> None:
    """Publish and claim by their round trips, ack and nack by how long the message was held."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, wait=0)
    for _ in range(2):
        await queue.publish("a")
    async with queue.process_message():
        await asyncio.sleep(0.05)
    with pytest.raises(ValueError):
        async with queue.process_message():
            await asyncio.sleep(0.05)
            raise ValueError
    for operation in ("publish", "claim"):
        assert all(event.duration_seconds is not None and event.duration_seconds >= 0 for event in events.of(operation))
    assert (events.the("ack").duration_seconds or 0) >= 0.05
    assert (events.the("nack").duration_seconds or 0) >= 0.05


@pytest.mark.promise("You can correlate events by `message_id` and `lease_token_hash`.")
async def test_a_lease_is_named_by_a_hash_that_settles_nothing(shell: Shell) -> None:
    """The same in all events of one delivery, another one in the next, and none before a claim."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, enable_completed_queue=True)
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    published, first, reclaim, second, ack, completed = (event.lease_token_hash for event in events.all)
    assert published is None
    assert first and second and first != second
    assert reclaim == second == ack == completed
    assert events.all[0].message_id not in (first, second)


@pytest.mark.promise("Events carry `lease_token_hash` only while the message is leased.")
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "at most once"])
async def test_only_where_there_is_a_lease_events_name_one(shell: Shell, lease: Any) -> None:
    """Everything that happens to a claimed message in a queue without leases has no hash."""
    events = shell.events()
    settings: dict[str, Any] = {"visibility_timeout_seconds": lease, "max_delivery_count": None}
    queue = shell.queue(on_event=events.listen, enable_completed_queue=True, wait=0, **settings)
    for name in ("a", "b", "c"):
        await queue.publish(name)
    await take(queue)
    await fail(queue, ValueError("mine"))
    async with queue.process_messages(1) as batch:
        await batch.ack(batch[0])
    told = [event for event in events.all if event.operation not in ("publish", "claim_empty")]
    assert {event.operation for event in told} == {"claim", "ack", "completed", "failed", "nack"}
    assert all((event.lease_token_hash is not None) == (lease is not None) for event in told)


# When it is told


@pytest.mark.promise("Events are emitted after the commit; `failed` is emitted before the cleanup.")
async def test_events_follow_the_commit_and_failed_goes_before_the_cleanup(shell: Shell) -> None:
    """What each callback finds in Redis at its moment."""
    found: list[tuple[str, int, int, int, int]] = []

    def look(event: QueueEvent) -> None:
        key = queue.key
        lists = (shell.redis.llen(name) for name in (key.completed, key.failed))
        found.append((event.operation, shell.pending(queue), shell.processing(queue), *lists))

    queue = shell.queue(on_event=shell.callback(look), enable_completed_queue=True, enable_failed_queue=True)
    await queue.publish("a")
    await take(queue)
    await queue.publish("b")
    await fail(queue, ValueError())
    assert found == [
        ("publish", 1, 0, 0, 0),
        ("claim", 0, 1, 0, 0),
        ("ack", 0, 0, 1, 0),
        ("completed", 0, 0, 1, 0),
        ("publish", 1, 0, 1, 0),
        ("claim", 0, 1, 1, 0),
        ("failed", 0, 1, 1, 0),
        ("nack", 0, 0, 1, 1),
    ]


@pytest.mark.promise("Events are emitted after the commit; `failed` is emitted before the cleanup.")
async def test_the_claim_event_comes_before_the_handler_runs(shell: Shell) -> None:
    """And the ack before the caller goes on."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen)
    await queue.publish("a")
    async with queue.process_message():
        assert events.names[-1] == "claim/success"
    assert events.names[-1] == "ack/success"


# Where it is told


@pytest.mark.promise("Event callbacks run in the caller's thread or task with its context, also on failures.")
async def test_callbacks_run_where_the_caller_is(shell: Shell) -> None:
    """In the caller's thread or task, with the caller's context variables, on every path."""
    seen: list[tuple[str, Any, Any, Any]] = []

    def listen(event: QueueEvent) -> None:
        seen.append((event.operation, request_id.get(), threading.current_thread(), asyncio.current_task()))

    queue = shell.queue(on_event=shell.callback(listen), wait=0, enable_completed_queue=True, deduplication=True)
    token = request_id.set("r1")
    await queue.publish("a")
    await queue.publish("a")
    await take(queue)
    await queue.publish("b")
    await fail(queue, ValueError())
    await take(queue)
    request_id.reset(token)
    assert {operation for operation, *_ in seen} == {
        *("publish", "publish_dedup_hit", "claim", "ack", "completed", "failed", "nack", "claim_empty")
    }
    here = ("r1", threading.current_thread(), asyncio.current_task())
    assert {(bound, thread, task) for _, bound, thread, task in seen} == {here}


@pytest.mark.promise("Event callbacks run in the caller's thread or task with its context, also on failures.")
async def test_callbacks_run_where_the_caller_is_when_things_go_wrong(shell: Shell) -> None:
    """Lost tries, a claim found again, dead letters, dropped messages, stale ends and failed cleanups as well."""
    seen: list[tuple[str, Any, Any, Any]] = []

    def listen(event: QueueEvent) -> None:
        seen.append((event.operation, request_id.get(), threading.current_thread(), asyncio.current_task()))

    client, options = shell.lossy_client(), {"on_event": shell.callback(listen), "wait": 0}
    queue = shell.queue(
        client=client, max_delivery_count=2, enable_completed_queue=True, retry_budget_seconds=0.1, **options
    )
    dropping = shell.queue(
        "d", max_pending_length=1, pending_overload_policy="drop_oldest", max_delivery_count=None, **options
    )
    token = request_id.set("r1")
    await dropping.publish("a")
    await dropping.publish("b")
    await queue.publish("a")
    client.losses.reply(1_000)
    with pytest.raises(shell.module.RetryBudgetExhaustedError):
        await take(queue)
    client.losses.heal()
    async with queue.process_message():
        shell.lapse(queue)
        await claim_and_die(shell.queue())
    shell.lapse(queue)
    await take(queue)
    await queue.publish("b")
    shell.redis.set(queue.key.completed, "not a list")
    with pytest.raises(shell.module.CleanupFailedError):
        await take(queue)
    client.losses.request(1_000)
    with pytest.raises(shell.module.RetryBudgetExhaustedError):
        await queue.publish("c")
    client.losses.heal()
    request_id.reset(token)
    assert {operation for operation, *_ in seen} >= {
        *("dropped", "retry_attempt", "retry_exhausted", "claim", "claim_reclaim", "stale_lease_ack", "dlq"),
        *("cleanup_failed", "publish"),
    }
    here = ("r1", threading.current_thread(), asyncio.current_task())
    assert {(bound, thread, task) for _, bound, thread, task in seen} == {here}


@pytest.mark.promise("Event callbacks run in the caller's thread or task with its context, also on failures.")
async def test_what_a_handler_binds_is_seen_by_the_events_of_its_end(shell: Shell) -> None:
    """A span that is opened in the block is current when the ack is told."""
    seen: dict[str, Any] = {}
    queue = shell.queue(
        on_event=shell.callback(lambda event: seen.update({str(event.operation): request_id.get()})),
    )
    await queue.publish("a")
    async with queue.process_message():
        token = request_id.set("inside")
    request_id.reset(token)
    assert seen == {"publish": None, "claim": None, "ack": "inside"}


@pytest.mark.promise(
    "Heartbeat events come from a thread without the caller's context, or from a task with a copy of it."
)
async def test_heartbeat_events_come_from_their_own_thread_or_task(shell: Shell) -> None:
    """A thread knows nothing of the caller's context; a task has a copy of what was bound when the handler began."""
    seen: list[tuple[Any, Any, Any]] = []

    def listen(event: QueueEvent) -> None:
        if event.operation == "lease_renew":
            task = None if shell.name == "sync" else asyncio.current_task()
            seen.append((request_id.get(), threading.current_thread(), task))

    queue = shell.queue(on_event=shell.callback(listen), visibility_timeout_seconds=60, heartbeat_interval_seconds=0.02)
    await queue.publish("a")
    token = request_id.set("at entry")
    async with queue.process_message():
        request_id.set("later")
        assert await until(lambda: seen)
    request_id.reset(token)
    bound, thread, task = seen[0]
    if shell.name == "sync":
        assert bound is None
        assert thread is not threading.current_thread()
    else:
        assert bound == "at entry"
        assert thread is threading.current_thread()
        assert task is not asyncio.current_task()


@pytest.mark.promise("You can correlate events by `message_id` and `lease_token_hash`.")
async def test_heartbeat_events_name_the_message_and_the_lease(shell: Shell) -> None:
    """So that they can be brought together with the rest."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, visibility_timeout_seconds=60, heartbeat_interval_seconds=0.02)
    await queue.publish("a")
    async with queue.process_message():
        await events.wait_for("lease_renew")
    claim, renewal = events.the("claim"), events.of("lease_renew")[0]
    assert (renewal.message_id, renewal.lease_token_hash) == (claim.message_id, claim.lease_token_hash)
    assert renewal.delivery_count == 1


# A callback's own mistakes


@pytest.mark.promise("An exception in an event callback is logged with a warning and affects nothing else.")
async def test_a_callback_that_raises_disturbs_nothing(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Each of its errors is logged and warned about, and every operation ends as it would have."""

    def listen(event: QueueEvent) -> None:
        raise LookupError("mine")

    queue = shell.queue(on_event=shell.callback(listen), enable_completed_queue=True, enable_failed_queue=True)
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.ERROR, "redis_message_queue"):
        warnings.simplefilter("always")
        assert await queue.publish("a") is True
        assert await take(queue) == b"a"
        await queue.publish("b")
        with pytest.raises(ValueError, match="handler"):
            async with queue.process_message():
                raise ValueError("handler")
    assert shell.listed(queue.key.completed) == [b"a"]
    assert shell.listed(queue.key.failed) == [b"b"]
    # publish, claim, ack, completed; publish, claim, failed, nack
    assert [warning.category for warning in warned] == [RuntimeWarning] * 8
    assert all("on_event" in str(warning.message) for warning in warned)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 8
    assert "LookupError" in caplog.text


@pytest.mark.promise("An exception in an event callback is logged with a warning and affects nothing else.")
async def test_a_callback_that_raises_disturbs_nothing_where_warnings_are_errors(shell: Shell) -> None:
    """As in this very test run."""

    def listen(event: QueueEvent) -> None:
        raise LookupError("mine")

    queue = shell.queue(on_event=shell.callback(listen))
    assert await queue.publish("a") is True
    assert await take(queue) == b"a"
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("An exception in an event callback is logged with a warning and affects nothing else.")
async def test_a_callback_that_raises_does_not_end_a_heartbeat(shell: Shell) -> None:
    """The lease is renewed again and again, and each of the callback's errors is warned about."""
    told: list[str] = []

    def listen(event: QueueEvent) -> None:
        told.append(event.operation)
        raise LookupError("mine")

    queue = shell.queue(on_event=shell.callback(listen), visibility_timeout_seconds=60, heartbeat_interval_seconds=0.02)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await queue.publish("a")
        async with queue.process_message():
            assert await until(lambda: told.count("lease_renew") >= 3)
    assert told[-1] == "ack"
    assert [warning.category for warning in warned] == [RuntimeWarning] * len(told)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("An exception in an event callback is logged with a warning and affects nothing else.")
async def test_a_callback_may_raise_the_end_of_an_iteration(shell: Shell) -> None:
    """StopIteration is an exception like any other here."""

    def listen(event: QueueEvent) -> None:
        raise StopIteration

    queue = shell.queue(on_event=listen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert await queue.publish("a") is True
        assert await take(queue) == b"a"


@pytest.mark.promise("The sync queue takes a plain event callback; the async queue takes an async or a plain one.")
async def test_an_async_callback_belongs_to_the_asyncio_queue(shell: Shell) -> None:
    """There it is awaited, as a plain one is called; the sync queue refuses it at construction."""
    seen: list[str] = []

    async def listen(event: QueueEvent) -> None:
        await asyncio.sleep(0)
        seen.append(event.operation)

    class Listener:
        async def __call__(self, event: QueueEvent) -> None:
            await listen(event)

    for callback in (listen, Listener()):
        if shell.name == "sync":
            with pytest.raises(shell.module.ConfigurationError, match=r"^on_event "):
                shell.queue(on_event=callback)
        else:
            await shell.queue(on_event=callback).publish("a")
    if shell.name == "asyncio":
        await shell.queue(on_event=lambda event: seen.append(f"plain {event.operation}")).publish("a")
        assert seen == ["publish", "publish", "plain publish"]


@pytest.mark.promise("The sync queue takes a plain event callback; the async queue takes an async or a plain one.")
@sync_only
async def test_a_sync_callback_that_returns_a_coroutine_is_reported(shell: Shell) -> None:
    """A lambda around an async function cannot be seen through at construction; it is reported, not dropped."""

    async def listen(event: QueueEvent) -> None:
        raise AssertionError("never runs")

    queue = shell.queue(on_event=lambda event: listen(event))
    with pytest.warns(RuntimeWarning, match="on_event raised TypeError"):
        assert await queue.publish("a") is True


async def test_a_callback_may_use_the_queue_itself(shell: Shell) -> None:
    """It runs inside an operation, and yet the queue can be asked from there."""
    log_queue = shell.queue("log")

    def by_hand(event: QueueEvent) -> None:
        log_queue.queue.publish(event.operation.value)

    async def awaited(event: QueueEvent) -> None:
        await log_queue.publish(event.operation.value)

    queue = shell.queue(on_event=by_hand if shell.name == "sync" else awaited)
    await queue.publish("a")
    await take(queue)
    assert [await take(log_queue) for _ in range(3)] == [b"publish", b"claim", b"ack"]


# What is never told


@pytest.mark.promise(
    "No event, error or log line of ours contains a payload; a traceback may quote what a handler raised."
)
async def test_no_payload_in_any_event_or_log_line(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """On the good paths and on the bad ones; what a handler's own error says is its own affair."""
    events = shell.events()
    options: dict[str, Any] = {"on_event": events.listen, "wait": 0, "max_delivery_count": 2}
    queue = shell.queue(**options, deduplication=True, enable_completed_queue=True, enable_failed_queue=True)
    tight = shell.queue("tight", **options, max_pending_length=1)
    dropping = shell.queue(
        "dropping",
        **options | {"max_delivery_count": None},
        max_pending_length=1,
        pending_overload_policy="drop_oldest",
    )
    decoding = shell.queue(client=shell.new_client(decode_responses=True), **options)
    with caplog.at_level(logging.DEBUG):
        for text in ("s3cret", "s3cret", "s3cret 2", "s3cret 3"):
            await queue.publish(text)
        await take(queue)
        await fail(queue, ValueError("why"))
        async with queue.process_message():  # comes too late, with its ack
            shell.lapse(queue)
            await claim_and_die(queue)
        shell.lapse(queue)
        await take(queue)  # buries it
        await tight.publish("s3cret")
        with pytest.raises(shell.module.QueueBackpressureError):
            await tight.publish("s3cret")
        await dropping.publish("s3cret")
        await dropping.publish("s3cret")
        shell.redis.lpush(queue.key.pending, "s3cret by hand")
        await take(queue)
        await queue.publish("s3cret broken")
        shell.redis.lset(
            queue.key.pending, 0, shell.redis.lindex(queue.key.pending, 0).replace(b"broken", b"brok\xffn")
        )
        await take(decoding)
        await queue.publish("s3cret 4")
        shell.redis.delete(queue.key.completed)
        shell.redis.set(queue.key.completed, "not a list")
        with pytest.raises(shell.module.CleanupFailedError):
            await take(queue)
    told = {event.operation for event in events.all}
    assert {"dlq", "stale_lease_ack", "dropped", "cleanup_failed", "publish_dedup_hit", "nack"} <= told
    for event in events.all:
        without_the_handlers = dataclasses.replace(event, error=None) if event.operation == "failed" else event
        assert "s3cret" not in repr(without_the_handlers)
    assert "s3cret" not in caplog.text
