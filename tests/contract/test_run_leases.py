"""`run()` keeps the leases of its messages and notices when one is lost."""

import asyncio
import threading
import time
from typing import Any

import pytest

from redis_message_queue import RetryPolicy
from tests.contract.loops import LONG, Crossing, ended, filled, running, summary_of, text, words
from tests.contract.shells import (
    BEATING,
    LIMIT_SECONDS,
    Shell,
    take,
    take_over,
    until,
)
from tests.contract.test_run_queues import run_queues

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]


@pytest.mark.promise("One heartbeat renews all messages that `run()` holds, started or not.")
async def test_a_heartbeat_renews_prefetched_and_running_messages(shell: Shell) -> None:
    """One command an interval for all that were claimed; what is acked is left out."""
    events = shell.events()
    queue, crossing = await filled(shell, words(6), on_event=events.listen, **BEATING), Crossing(shell)
    async with running(shell, queue, crossing.handler, concurrency=2, prefetch=6):
        await crossing.is_entered_by(2)
        await events.wait_for("lease_renew", 12)
        assert {event.message_id for event in events.of("lease_renew")} == {
            event.message_id for event in events.of("claim")
        }
        crossing.is_open.set()
        await events.wait_for("ack", 6)
        await asyncio.sleep(0.2)
        renewed = len(events.of("lease_renew"))
        await asyncio.sleep(0.2)
        assert len(events.of("lease_renew")) == renewed
    assert len(crossing.done) == 6


@pytest.mark.promise(
    "`run()` renews the leases of its messages, at `heartbeat_interval_seconds` or a third of the lease, unless "
    "`renew_leases=False`."
)
@pytest.mark.parametrize("several", [False, True], ids=["run", "run_queues"])
async def test_a_loop_renews_leases_without_being_told(shell: Shell, several: bool) -> None:
    """Three times within a lease; a handler that takes longer than that keeps its message."""
    events = shell.events()
    queue = await filled(shell, "a", on_event=events.listen, visibility_timeout_seconds=3)
    crossing = Crossing(shell)
    loop = run_queues(shell, {queue: 1}, crossing.handler, until_empty=True) if several else None
    loop = loop or asyncio.ensure_future(queue.run(crossing.handler, until_empty=True))
    await crossing.is_entered_by(1)
    await events.wait_for("lease_renew", 4)
    crossing.is_open.set()
    ending = await loop
    assert summary_of(ending[0] if several else ending) == (1, 0, 0)
    assert len(events.of("claim")) == 1


@pytest.mark.promise(
    "`run()` renews the leases of its messages, at `heartbeat_interval_seconds` or a third of the lease, unless "
    "`renew_leases=False`."
)
async def test_a_loop_that_is_told_not_to_renews_nothing(shell: Shell) -> None:
    """Whatever the queue says."""
    events = shell.events()
    queue, crossing = await filled(shell, "a", on_event=events.listen, **BEATING), Crossing(shell)
    async with running(shell, queue, crossing.handler, renew_leases=False):
        await crossing.is_entered_by(1)
        await asyncio.sleep(0.3)
        crossing.is_open.set()
        await events.wait_for("ack", 1)
    assert events.of("lease_renew") == []


async def quiet(shell: Shell, events: Any, failures: list[Any]) -> None:
    """Nobody was told of a loss that was none."""
    assert failures == []
    assert "stale_lease_renew/skipped" not in events.names


def quick(shell: Shell, listen: Any, failures: list[Any]) -> dict[str, Any]:
    """Heartbeats that meet every moment."""
    return {
        "on_event": listen,
        "on_heartbeat_failure": shell.callback(lambda: failures.append(1)),
        "visibility_timeout_seconds": 60,
        "heartbeat_interval_seconds": 0.001,
    }


@pytest.mark.promise(
    "`run()` never reports a lost lease for a settled message, however slow the heartbeat or the event callback."
)
async def test_an_idle_loop_has_no_lease_to_lose(shell: Shell) -> None:
    """What was acked beside a claim that waits on is no longer renewed, so nothing seems to be lost."""
    events, failures = shell.events(), []
    queue = await filled(shell, "ab", wait=LONG, **quick(shell, events.listen, failures))
    handled: list[Any] = []
    async with running(shell, queue, handled.append, prefetch=2):
        assert await until(lambda: len(handled) == 2)
        assert await until(lambda: shell.processing(queue) == 0)
        await asyncio.sleep(0.1)
    await quiet(shell, events, failures)


@pytest.mark.promise(
    "`run()` never reports a lost lease for a settled message, however slow the heartbeat or the event callback."
)
@pytest.mark.parametrize("moment", ["nack", "requeued", "ack", "retried"])
async def test_a_settled_message_is_no_lost_lease_however_slow_its_listener_is(shell: Shell, moment: str) -> None:
    """The heartbeat beats on while the events of the settlement are told."""
    failures: list[Any] = []
    events = shell.events()

    def listen(event: Any) -> Any:
        heard = events.listen(event)
        if event.operation == moment and shell.name == "sync":
            time.sleep(0.02)
        return heard

    async def listen_awaited(event: Any) -> None:
        await listen(event)
        if event.operation == moment:
            await asyncio.sleep(0.02)

    settings = quick(shell, listen if shell.name == "sync" else listen_awaited, failures)
    if moment == "retried":
        settings["retry_policy"] = RetryPolicy(initial_delay_seconds=60)
    queue = await filled(shell, words(6), **settings)

    async def handle(message: Any) -> None:
        if moment == "requeued":
            await queue.drain(timeout=0)
        elif moment != "ack":
            raise ValueError

    await queue.run(shell.handler(handle), prefetch=6, until_empty=True)
    await quiet(shell, events, failures)
    assert len(events.of(moment)) >= 5


@pytest.mark.promise(
    "`run()` never reports a lost lease for a settled message, however slow the heartbeat or the event callback."
)
async def test_a_completed_message_is_no_lost_lease(shell: Shell) -> None:
    """Its heartbeat may be under way while it is completed from inside the handler."""
    events, failures = shell.events(), []
    queue = await filled(shell, words(150), **quick(shell, events.listen, failures))

    async def handle(message: Any) -> None:
        done = message.complete()
        if shell.name == "asyncio":
            await done

    assert summary_of(await queue.run(shell.handler(handle), prefetch=50, until_empty=True)) == (150, 0, 0)
    await quiet(shell, events, failures)


@pytest.mark.promise("A message whose lease was lost is not counted as handled, and `run()` continues with the others.")
async def test_a_lost_lease_is_lost_for_one_message_of_the_loop(shell: Shell) -> None:
    """It says so, its ack comes too late and is not counted; the others go on."""
    events, failures = shell.events(), []
    queue = await filled(
        shell,
        "abc",
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: failures.append(1)),
        **BEATING,
    )
    inside: dict[str, Any] = {}
    opened = threading.Event()

    async def handle(message: Any) -> None:
        inside[text(message)] = message
        assert await until(opened.is_set)

    async with running(shell, queue, shell.handler(handle), concurrency=3, prefetch=3, until_empty=True) as loop:
        assert await until(lambda: len(inside) == 3)
        await take_over(shell, inside["b"])
        await events.wait_for("stale_lease_renew")
        assert await until(lambda: failures)
        assert {name: message.lease_lost for name, message in inside.items()} == {"a": False, "b": True, "c": False}
        opened.set()
        assert summary_of(await ended(loop)) == (2, 0, 0)
    assert failures == [1]
    assert events.the("stale_lease_ack").message_id == inside["b"].id
    assert len(events.of("ack")) == 2
    assert shell.processing(queue) == 1


@pytest.mark.promise(
    "`max_processing_seconds` counts from the start of a handler; a handler that exceeds it loses its message and is "
    "reported once."
)
async def test_a_handler_that_hangs_loses_its_message_and_is_reported_once(shell: Shell) -> None:
    """After max_processing_seconds its lease is not renewed; the others' are, and another consumer gets it."""
    events = shell.events()
    queue = await filled(
        shell,
        "abc",
        on_event=events.listen,
        visibility_timeout_seconds=2,
        heartbeat_interval_seconds=0.1,
        max_processing_seconds=0.5,
    )
    ids = [event.message_id for event in events.of("publish")]
    crossing = Crossing(shell)
    async with running(shell, queue, crossing.handler, prefetch=3) as loop:
        await crossing.is_entered_by(1)
        assert await take(shell.queue(wait=LIMIT_SECONDS)) == b"a"
        skipped = [event.message_id for event in events.of("lease_renew") if event.outcome == "skipped"]
        assert skipped == ids[:1]
        before = len(events.of("lease_renew"))
        await events.wait_for("lease_renew", before + 6)
        assert {event.message_id for event in events.of("lease_renew")[before:]} == set(ids[1:])
        assert await take(shell.queue(wait=0)) is None
        crossing.is_open.set()
        await events.wait_for("ack", 2)
        await queue.drain()
        assert summary_of(await ended(loop)) == (2, 0, 0)
    assert events.names.count("lease_renew/skipped") == 1
    assert events.the("stale_lease_ack").message_id == ids[0]
    assert [event.message_id for event in events.of("ack")] == ids[1:]
    assert crossing.done == ["a", "b", "c"]
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "`max_processing_seconds` counts from the start of a handler; a handler that exceeds it loses its message and is "
    "reported once."
)
async def test_the_time_of_a_handler_begins_when_it_begins(shell: Shell) -> None:
    """What was claimed ahead and waits for its turn is not taken for a handler that hangs."""
    events = shell.events()
    queue = await filled(shell, words(8), on_event=events.listen, max_processing_seconds=1, **BEATING)

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.2)

    assert summary_of(await queue.run(shell.handler(handle), prefetch=8, until_empty=True)) == (8, 0, 0)
    assert "lease_renew/skipped" not in events.names
