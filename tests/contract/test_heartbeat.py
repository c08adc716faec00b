"""A heartbeat renews the lease of a running handler, and reports when it cannot."""

import asyncio
import logging
import threading
import warnings
from typing import Any

import pytest

from tests.contract.shells import LIMIT_SECONDS, Shell, claim_and_die, fail, take, take_over, until
from tests.tables import row

pytestmark = [pytest.mark.topic("Heartbeats"), pytest.mark.both_shells]

# Short for the test's sake; a renewal may come half a lease late before anything is lost.
LEASE = {"visibility_timeout_seconds": 1.0, "heartbeat_interval_seconds": 0.15}
# Long enough that no lease ends by itself here; renewals come often.
LONG_LEASE = {"visibility_timeout_seconds": 60, "heartbeat_interval_seconds": 0.05}


def heartbeat_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]


@pytest.mark.promise("A heartbeat renews the lease of a handler that runs longer than the lease.")
async def test_a_heartbeat_keeps_the_lease_of_a_long_handler(shell: Shell) -> None:
    """Longer than the lease: nobody else gets the message, and the ack counts."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen, **LEASE)
    await queue.publish("a")
    async with queue.process_message():
        await asyncio.sleep(1.3)
        assert await take(shell.queue(wait=0, **LEASE)) is None
        assert queue.current_message().lease_lost is False
    assert events.names[-1] == "ack/success"
    assert set(events.names[2:-1]) == {"lease_renew/success"}
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("A heartbeat renews the lease of a handler that runs longer than the lease.")
async def test_a_renewal_gives_the_full_lease_again(shell: Shell) -> None:
    """The deadline in Redis moves on, in microseconds of the server's clock."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, **LONG_LEASE)
    await queue.publish("a")
    async with queue.process_message():
        (token,) = shell.leases(queue)
        before = shell.redis.zscore(queue.key.leases, token)
        shell.redis.zadd(queue.key.leases, {token: before - 30e6})
        told = len(events.of("lease_renew"))
        await events.wait_for("lease_renew", told + 2)
        assert shell.redis.zscore(queue.key.leases, token) >= before


async def end_normally(queue: Any) -> None:
    await take(queue)


async def end_by_exception(queue: Any) -> None:
    await fail(queue, ValueError())


@pytest.mark.promise("A heartbeat starts when a message is claimed and stops when its block ends.")
@pytest.mark.parametrize("end", [end_normally, end_by_exception, claim_and_die])
async def test_a_heartbeat_ends_with_its_block(shell: Shell, end: Any) -> None:
    """However that is left: no thread, no task and no renewal afterwards."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, **LONG_LEASE)
    await queue.publish("a")
    tasks = len(asyncio.all_tasks())
    await end(queue)
    assert await until(lambda: not heartbeat_threads() and len(asyncio.all_tasks()) == tasks)
    told = len(events.of("lease_renew"))
    await asyncio.sleep(0.2)
    assert len(events.of("lease_renew")) == told


@pytest.mark.promise("A heartbeat starts when a message is claimed and stops when its block ends.")
async def test_without_an_interval_there_is_no_heartbeat(shell: Shell) -> None:
    """Neither thread nor task nor renewal."""
    queue = shell.queue()
    await queue.publish("a")
    tasks = len(asyncio.all_tasks())
    async with queue.process_message():
        assert not heartbeat_threads()
        assert len(asyncio.all_tasks()) == tasks


@pytest.mark.promise("A heartbeat starts when a message is claimed and stops when its block ends.")
async def test_without_a_message_there_is_no_heartbeat(shell: Shell) -> None:
    """It begins with a message in hand: not with the queue, and not with a poll that finds nothing."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen, **LONG_LEASE)
    tasks = len(asyncio.all_tasks())
    async with queue.process_message() as message:
        assert message is None
        assert not heartbeat_threads()
        assert len(asyncio.all_tasks()) == tasks
    assert events.names == ["claim_empty/skipped"]


@pytest.mark.promise("A heartbeat starts when a message is claimed and stops when its block ends.")
async def test_every_message_has_a_heartbeat_of_its_own(shell: Shell) -> None:
    """Two messages in hand, both leases renewed."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, **LONG_LEASE)
    await queue.publish("a")
    await queue.publish("b")
    async with queue.process_message(), queue.process_message():
        assert await until(lambda: len({event.message_id for event in events.of("lease_renew")}) == 2)


# When it cannot


@pytest.mark.promise("A consumer that has lost its lease cannot ack, fail or renew the message.")
@pytest.mark.promise(
    "If a heartbeat cannot renew the lease, it stops; the handler continues, and its ack reports the result."
)
@pytest.mark.promise("`on_heartbeat_failure` is called once if a heartbeat stops because it cannot renew the lease.")
@pytest.mark.promise(
    "A renewal emits `lease_renew`; late calls emit `stale_lease_ack`, `stale_lease_nack` or `stale_lease_renew`."
)
@pytest.mark.promise("`lease_lost` of a received message says that its lease is lost.")
async def test_a_heartbeat_that_finds_its_lease_taken_stops_and_reports_it(shell: Shell) -> None:
    """An event, a call of on_heartbeat_failure, and lease_lost: once, and the new holder is left alone."""
    events, calls = shell.events(), []
    queue = shell.queue(
        on_event=events.listen, on_heartbeat_failure=shell.callback(lambda: calls.append(1)), **LONG_LEASE
    )
    await queue.publish("a")
    async with queue.process_message():
        received = queue.current_message()
        assert received.lease_lost is False
        await take_over(shell, received)
        held = shell.redis.zrange(queue.key.leases, 0, -1, withscores=True)
        await events.wait_for("stale_lease_renew")
        assert await until(lambda: calls)
        assert received.lease_lost is True
        await asyncio.sleep(0.15)
        assert shell.redis.zrange(queue.key.leases, 0, -1, withscores=True) == held
    assert calls == [1]
    assert events.the("stale_lease_renew").outcome == "skipped"
    assert events.the("stale_lease_renew").message_id == events.the("publish").message_id
    assert events.names[-1] == "stale_lease_ack/skipped"


@pytest.mark.promise(
    "If a heartbeat cannot renew the lease, it stops; the handler continues, and its ack reports the result."
)
async def test_a_renewal_that_redis_refuses_is_a_failed_heartbeat(shell: Shell) -> None:
    """The event has the error; the handler works on and its ack counts, since nobody took the message."""
    events, calls = shell.events(), []
    queue = shell.queue(
        on_event=events.listen, on_heartbeat_failure=shell.callback(lambda: calls.append(1)), **LONG_LEASE
    )
    await queue.publish("a")
    async with queue.process_message():
        shell.redis.rename(queue.key.leases, "aside")
        shell.redis.set(queue.key.leases, "not a sorted set")
        assert await until(lambda: calls)
        shell.redis.rename("aside", queue.key.leases)
    (failure,) = [event for event in events.of("lease_renew") if event.outcome == "failure"]
    assert isinstance(failure.error, shell.module.LuaScriptError)
    assert failure.exception_type == "LuaScriptError"
    assert calls == [1]
    assert events.names[-1] == "ack/success"


@pytest.mark.promise("In the async queue, `on_heartbeat_failure` may be an `async def` function.")
async def test_on_heartbeat_failure_may_be_async_only_where_it_can_be_awaited(shell: Shell) -> None:
    """The asyncio queue awaits it (a plain function will do there, too); the sync queue refuses it."""
    calls: list[str] = []

    async def tell() -> None:
        await asyncio.sleep(0)
        calls.append("awaited")

    if shell.name == "sync":
        with pytest.raises(shell.module.ConfigurationError, match=r"^on_heartbeat_failure "):
            shell.queue(on_heartbeat_failure=tell, **LONG_LEASE)
        return
    for callback in (tell, lambda: calls.append("called")):
        queue = shell.queue(on_heartbeat_failure=callback, **LONG_LEASE)
        await queue.publish("a")
        async with queue.process_message():
            await take_over(shell, queue.current_message())
            said = len(calls)
            assert await until(lambda said=said: len(calls) > said)
    assert calls == ["awaited", "called"]


@pytest.mark.promise("An exception in `on_heartbeat_failure` does not affect the handler or the queue.")
async def test_an_exception_in_on_heartbeat_failure_affects_nothing_else(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged and warned about, and the handler goes on."""

    def complain() -> None:
        raise LookupError("mine")

    queue = shell.queue(on_heartbeat_failure=shell.callback(complain), **LONG_LEASE)
    await queue.publish("a")
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.ERROR, "redis_message_queue"):
        warnings.simplefilter("always")
        async with queue.process_message():
            await take_over(shell, queue.current_message())
            assert await until(lambda: warned)
    assert warned[0].category is RuntimeWarning
    assert "on_heartbeat_failure" in str(warned[0].message)
    assert "LookupError" in caplog.text


@pytest.mark.promise("A heartbeat that finds its message already settled is not a failure.")
async def test_a_settled_message_is_no_failed_heartbeat(shell: Shell) -> None:
    """A renewal that comes just after the ack finds no lease, and that is as it should be."""
    events, calls = shell.events(), []
    queue = shell.queue(
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: calls.append(1)),
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.001,
    )
    for number in range(30):
        await queue.publish(str(number))
        async with queue.process_message():
            await asyncio.sleep(0.002)
    assert calls == []
    assert "stale_lease_renew/skipped" not in events.names


# max_processing_seconds


@pytest.mark.promise("`max_processing_seconds` stops renewing the lease of a handler that hangs.")
async def test_a_handler_that_hangs_gives_its_message_up(shell: Shell) -> None:
    """After max_processing_seconds the lease is no longer renewed: it ends, and another consumer gets the message."""
    events = shell.events()
    queue = shell.queue(
        on_event=events.listen,
        visibility_timeout_seconds=300,
        heartbeat_interval_seconds=0.1,
        max_processing_seconds=0.25,
    )
    await queue.publish("a")
    async with queue.process_message():
        assert await until(lambda: "lease_renew/skipped" in events.names)
        shell.lapse(queue)
        assert await take(shell.queue(wait=LIMIT_SECONDS)) == b"a"
    assert events.names[-1] == "stale_lease_ack/skipped"


@pytest.mark.promise("`max_processing_seconds` stops renewing the lease of a handler that hangs.")
async def test_a_handler_within_its_time_is_not_disturbed(shell: Shell) -> None:
    """max_processing_seconds ends nothing early."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, max_processing_seconds=60, **LONG_LEASE)
    await queue.publish("a")
    async with queue.process_message():
        await events.wait_for("lease_renew", 3)
    assert set(events.names[2:-1]) == {"lease_renew/success"}


# What must fit together


@pytest.mark.promise(
    "The heartbeat interval must be less than half of the visibility timeout, whether the queue or the gateway sets it."
)
async def test_a_heartbeat_that_could_not_keep_a_lease_is_refused(shell: Shell, subtests: pytest.Subtests) -> None:
    """The interval must be less than half of the lease, and what belongs to heartbeats needs a lease."""
    cases: list[Any] = [
        ({"heartbeat_interval_seconds": 5, "visibility_timeout_seconds": None}, "heartbeat_interval_seconds"),
        ({"heartbeat_interval_seconds": 5, "visibility_timeout_seconds": 10}, "heartbeat_interval_seconds"),
        ({"heartbeat_interval_seconds": 150}, "heartbeat_interval_seconds"),
        ({"heartbeat_interval_seconds": 10, "visibility_timeout_seconds": 5}, "heartbeat_interval_seconds"),
        ({"on_heartbeat_failure": lambda: None, "visibility_timeout_seconds": None}, "on_heartbeat_failure"),
        ({"max_processing_seconds": 5, "visibility_timeout_seconds": None}, "max_processing_seconds"),
    ]
    for options, named in cases:
        with row(subtests, options=options, named=named), pytest.raises(shell.module.ConfigurationError, match=named):
            shell.queue(**options)


@pytest.mark.promise(
    "`run()` renews the leases of its messages, at `heartbeat_interval_seconds` or a third of the lease, unless "
    "`renew_leases=False`."
)
async def test_what_belongs_to_heartbeats_is_refused_where_no_lease_is_renewed(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """`run()` renews by itself; blocks renew if there is an interval; and nothing is claimed before the error."""
    for name, value in (("on_heartbeat_failure", shell.callback(lambda: None)), ("max_processing_seconds", 5)):
        with row(subtests, name=name):
            queue = shell.queue(**{name: value})
            await queue.publish("a")
            for block in (queue.process_message, lambda queue=queue: queue.process_messages(1)):
                with pytest.raises(shell.module.ConfigurationError, match=f"{name}.*heartbeat_interval_seconds"):
                    async with block():
                        pass
            with pytest.raises(shell.module.ConfigurationError, match=f"{name}.*renew_leases"):
                await queue.run(shell.callback(lambda message: None), until_empty=True, renew_leases=False)
            summary = await queue.run(shell.callback(lambda message: None), until_empty=True)
            assert (summary.handled, summary.attempts) == (1, 1)


@pytest.mark.promise(
    "The heartbeat interval must be less than half of the visibility timeout, whether the queue or the gateway sets it."
)
async def test_an_interval_just_under_half_of_the_lease_is_fine(shell: Shell) -> None:
    """The rule is strict at half, and nowhere else."""
    assert shell.queue(heartbeat_interval_seconds=4.99, visibility_timeout_seconds=10)


@pytest.mark.promise(
    "The heartbeat interval must be less than half of the visibility timeout, whether the queue or the gateway sets it."
)
async def test_the_lease_of_a_gateway_counts_for_the_interval(shell: Shell) -> None:
    """A gateway without a visibility timeout has nothing to renew, one with a short one too little."""
    for settings in ({}, {"message_visibility_timeout_seconds": 10}):
        with pytest.raises(shell.module.ConfigurationError, match="heartbeat_interval_seconds"):
            shell.queue(gateway=shell.gateway(**settings), heartbeat_interval_seconds=5)
