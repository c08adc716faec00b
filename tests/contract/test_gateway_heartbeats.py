"""Heartbeats renew leases through a custom gateway."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from redis_message_queue import (
    BaseGracefulInterruptHandler,
    ClaimedMessage,
    ConfigurationError,
)
from tests.contract.custom_gateways import BEATS, LEASED, Core, Door, custom
from tests.contract.shells import (
    Died,
    Shell,
    until,
)

pytestmark = [pytest.mark.topic("Gateways"), pytest.mark.both_shells]


def no_heartbeat_is_left() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]


@pytest.mark.promise("`renew_message_lease` receives `is_interrupted`, which becomes true when the delivery has ended.")
@pytest.mark.parametrize("end", ["normally", "by an exception", "at once"])
async def test_a_heartbeat_renews_through_the_gateway_and_lets_it_see_the_end(shell: Shell, end: str) -> None:
    """The observer says False while the handler works and True ever after, however that ended."""
    seen: list[BaseGracefulInterruptHandler] = []

    def renew(*arguments: Any, is_interrupted: Any) -> bool:
        seen.append(is_interrupted)
        return True

    core = Core(ClaimedMessage("m", "t"), renew_message_lease=renew)
    queue = shell.queue(gateway=custom(shell, core, **LEASED), **BEATS)
    with contextlib.suppress(ValueError, Died):
        async with queue.process_message():
            assert await until(lambda: len(seen) >= 2)
            assert not any(observer.is_interrupted() for observer in seen)
            if end != "normally":
                raise ValueError if end == "by an exception" else Died
    assert all(isinstance(observer, BaseGracefulInterruptHandler) for observer in seen)
    assert all(observer.is_interrupted() for observer in seen)
    renewals = [call[:-1] for call in core.calls if call[0] == "renew_message_lease"]
    assert set(renewals) == {("renew_message_lease", "q::processing", "m", "t")}


@pytest.mark.promise("`renew_message_lease` receives `is_interrupted`, which becomes true when the delivery has ended.")
@pytest.mark.parametrize("answer", [False, LookupError("given up")], ids=repr)
async def test_a_renewal_that_gives_up_because_the_handler_ended_is_no_failure(shell: Shell, answer: Any) -> None:
    """It was told to: no event of a lost lease, and no call of on_heartbeat_failure."""
    began, gave_up, told = threading.Event(), threading.Event(), []

    def outcome() -> bool:
        gave_up.set()
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    def persevere(*arguments: Any, is_interrupted: Any) -> Any:
        began.set()
        if shell.name == "sync":
            while not is_interrupted.is_interrupted():
                threading.Event().wait(0.002)
            return outcome()

        async def awaited() -> bool:
            assert await until(is_interrupted.is_interrupted)
            return outcome()

        return awaited()

    events = shell.events()
    core = Core(ClaimedMessage("m", "t"), renew_message_lease=persevere)
    queue = shell.queue(
        gateway=custom(shell, core, **LEASED),
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: told.append(1)),
        **BEATS,
    )
    async with queue.process_message():
        assert await until(began.is_set)
    assert await until(lambda: gave_up.is_set() and no_heartbeat_is_left())
    assert told == []
    assert events.names == ["claim/success", "ack/success"]


@pytest.mark.promise("`renew_message_lease` receives `is_interrupted`, which becomes true when the delivery has ended.")
async def test_a_renewal_that_hangs_does_not_hold_up_the_ack(shell: Shell) -> None:
    """It gets a moment to end; what it says afterwards interests nobody."""
    renewal, events = Door(shell, answer=False), shell.events()
    core = Core(ClaimedMessage("m", "t"), renew_message_lease=renewal)
    queue = shell.queue(gateway=custom(shell, core, **LEASED), on_event=events.listen, **BEATS)
    async with queue.process_message():
        assert await until(renewal.reached.is_set)
    assert events.names == ["claim/success", "ack/success"]
    assert not renewal.is_passed, "the ack has waited for the renewal"
    renewal.open()
    assert await until(no_heartbeat_is_left)
    assert events.names == ["claim/success", "ack/success"]


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
async def test_a_lease_that_the_gateway_says_is_lost_ends_the_heartbeat(shell: Shell) -> None:
    """Said once, by an event and on_heartbeat_failure; the ack then is the gateway's to refuse."""
    events, told = shell.events(), []
    core = Core(ClaimedMessage("m", "t"), renew_message_lease=False, remove_message=False)
    queue = shell.queue(
        gateway=custom(shell, core, **LEASED),
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: told.append(1)),
        **BEATS,
    )
    async with queue.process_message():
        assert await until(lambda: told)
        await asyncio.sleep(5 * BEATS["heartbeat_interval_seconds"])
    assert told == [1]
    assert core.count("renew_message_lease") == 1
    assert events.names == ["claim/success", "stale_lease_renew/skipped", "stale_lease_ack/skipped"]
    assert len({event.message_id for event in events.all}) == 1


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
async def test_a_renewal_that_raises_ends_the_heartbeat(shell: Shell) -> None:
    """With the gateway's own error in the event; whether the ack still counts is its to say."""
    error, events, told = LookupError("mine"), shell.events(), []
    core = Core(ClaimedMessage("m", "t"), renew_message_lease=error)
    queue = shell.queue(
        gateway=custom(shell, core, **LEASED),
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: told.append(1)),
        **BEATS,
    )
    async with queue.process_message():
        assert await until(lambda: told)
        await asyncio.sleep(5 * BEATS["heartbeat_interval_seconds"])
    assert told == [1]
    assert core.count("renew_message_lease") == 1
    assert events.names == ["claim/success", "lease_renew/failure", "ack/success"]
    assert events.the("lease_renew").error is error


@pytest.mark.promise(
    "The heartbeat interval must be less than half of the visibility timeout, whether the queue or the gateway sets it."
)
@pytest.mark.parametrize(("timeout", "interval"), [(None, 1), (10, 5), (10, 20)])
async def test_a_heartbeat_must_fit_the_gateways_lease(shell: Shell, timeout: Any, interval: float) -> None:
    """Less than half of it, and not without one."""
    gateway = custom(shell, Core(), message_visibility_timeout_seconds=timeout)
    with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
        shell.queue(gateway=gateway, heartbeat_interval_seconds=interval)
    assert shell.queue(gateway=custom(shell, Core(), message_visibility_timeout_seconds=10), **BEATS)
