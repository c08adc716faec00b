"""A custom gateway that raises or returns a wrong value loses no message."""

from itertools import product
from typing import Any

import pytest
import redis

from redis_message_queue import (
    ClaimedMessage,
    CleanupFailedError,
    GatewayContractError,
)
from tests.contract.custom_gateways import BEATS, LEASED, OPERATIONS, Core, custom
from tests.contract.shells import (
    Shell,
    sync_only,
    take,
    until,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Gateways")


def claimed(stored: Any, token: Any) -> ClaimedMessage:
    """What a gateway without types may return."""
    return ClaimedMessage(stored, token)


NOT_A_YES_OR_NO = [None, 1, 0, "True", b"1", []]


# Wrong return values


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
async def test_a_publish_answered_with_neither_yes_nor_no_is_a_broken_contract(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """It may be in the line or not: the caller is told, not left with a guess."""
    for answer in NOT_A_YES_OR_NO:
        with row(subtests, answer=answer):
            shell.redis.flushall()
            events, core = shell.events(), Core(publish_message=answer)
            queue = shell.queue(gateway=custom(shell, core), deduplication=True, on_event=events.listen)
            with pytest.raises(GatewayContractError, match=r"CustomGateway.*publish_message.*True or False") as broken:
                await queue.publish("a")
            assert isinstance(broken.value, TypeError)
            assert (broken.value.queue, broken.value.operation) == ("q", "publish")
            assert events.names == ["publish/failure"]
            assert events.all[0].error is broken.value


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
async def test_a_claim_that_is_no_message_is_a_broken_contract(shell: Shell, subtests: pytest.Subtests) -> None:
    """No handler runs, and the gateway keeps what it has: nothing is removed or moved."""
    for handed, leased in product(
        [
            *(1, True, 0.5, ["m"], ("m", "t"), {"m": "t"}, bytearray(b"m")),
            *(claimed(one, "t") for one in (1, None, bytearray(b"m"))),
        ],
        [False, True],
    ):
        with row(subtests, handed=handed, leased=leased):
            shell.redis.flushall()
            events, core = shell.events(), Core(handed)
            queue = shell.queue(gateway=custom(shell, core, **(LEASED if leased else {})), on_event=events.listen)
            with pytest.raises(GatewayContractError, match=r"CustomGateway.*wait_for_message_and_move") as broken:
                await take(queue)
            assert (broken.value.queue, broken.value.operation) == ("q", "claim")
            assert core.names == ["wait_for_message_and_move"]
            assert events.names == ["claim/failure"]


@pytest.mark.promise(
    "A gateway with `message_visibility_timeout_seconds` must return a `ClaimedMessage`; a plain `str` or `bytes` is "
    "an error."
)
async def test_a_gateway_that_leases_must_hand_over_a_lease(shell: Shell, subtests: pytest.Subtests) -> None:
    """Without its token the cleanup could settle what another consumer has by now, so no handler runs."""
    for handed in ["m", b"m", "", *(claimed("m", token) for token in (None, "", b"t", 7, True))]:
        with row(subtests, handed=handed):
            shell.redis.flushall()
            events, core = shell.events(), Core(handed, ClaimedMessage("n", "t"))
            queue = shell.queue(gateway=custom(shell, core, **LEASED), on_event=events.listen)
            complaint = "lease_token" if isinstance(handed, ClaimedMessage) else "must return a ClaimedMessage where"
            with pytest.raises(GatewayContractError, match=complaint):
                await take(queue)
            assert core.names == ["wait_for_message_and_move"]
            assert events.names == ["claim/failure"]
            assert await take(queue) == "n"  # one broken answer does not break the queue


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
async def test_an_ack_answered_with_neither_yes_nor_no_is_a_failed_cleanup(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """The handler has succeeded and nobody knows whether its message is gone; nothing is trimmed after it."""
    for answer, operation in product(NOT_A_YES_OR_NO, ["remove_message", "move_message"]):
        with row(subtests, answer=answer, operation=operation):
            shell.redis.flushall()
            events, core = shell.events(), Core("m", **{operation: answer})
            queue = shell.queue(
                gateway=custom(shell, core), on_event=events.listen, enable_completed_queue=operation == "move_message"
            )
            with pytest.raises(CleanupFailedError) as failure:
                await take(queue)
            assert isinstance(failure.value.__cause__, GatewayContractError)
            assert operation in str(failure.value.__cause__)
            assert core.names == ["wait_for_message_and_move", operation]
            assert events.names == ["claim/success", "cleanup_failed/failure"]
            assert events.the("cleanup_failed").error is failure.value.__cause__


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
@pytest.mark.parametrize("operation", ["remove_message", "move_message"])
async def test_a_failing_handlers_error_outshines_a_broken_contract(shell: Shell, operation: str) -> None:
    """The contract's breach is an event beside it."""
    events, core = shell.events(), Core("m", **{operation: 1})
    queue = shell.queue(
        gateway=custom(shell, core), on_event=events.listen, enable_failed_queue=operation == "move_message"
    )
    with pytest.raises(ValueError, match="the handler's own"):
        async with queue.process_message():
            raise ValueError("the handler's own")
    assert core.names == ["wait_for_message_and_move", operation]
    assert events.names == ["claim/success", "failed/failure", "cleanup_failed/failure"]
    assert isinstance(events.the("cleanup_failed").error, GatewayContractError)


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
@pytest.mark.parametrize("answer", NOT_A_YES_OR_NO, ids=repr)
async def test_a_renewal_answered_with_neither_yes_nor_no_is_a_failed_heartbeat(shell: Shell, answer: Any) -> None:
    """It stops and says so; the handler goes on, and its ack is the gateway's to judge."""
    events, told = shell.events(), []
    core = Core(ClaimedMessage("m", "t"), renew_message_lease=answer)
    queue = shell.queue(
        gateway=custom(shell, core, **LEASED),
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: told.append(1)),
        **BEATS,
    )
    async with queue.process_message():
        assert await until(lambda: told)
    assert core.names == ["wait_for_message_and_move", "renew_message_lease", "remove_message"]
    assert events.names == ["claim/success", "lease_renew/failure", "ack/success"]
    assert isinstance(events.the("lease_renew").error, GatewayContractError)


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
@sync_only
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "renew_message_lease"])
async def test_an_awaitable_is_no_answer_in_the_sync_queue(shell: Shell, operation: str) -> None:
    """Also from a function that does not look like one; its coroutine is closed, not left to a warning."""

    async def never() -> bool:
        return True

    events, core = shell.events(), Core("m", **{operation: lambda *arguments, **named: never()})
    queue = shell.queue(
        gateway=custom(shell, core),
        on_event=events.listen,
        deduplication=operation == "publish_message",
        enable_completed_queue=operation in ("move_message", "trim_queue"),
    )
    if operation == "trim_queue":
        assert await take(queue) == "m"
        assert events.names[-1] == "trim_failed/failure"
        return
    settles = operation in ("remove_message", "move_message")
    with pytest.raises(CleanupFailedError if settles else GatewayContractError) as refusal:
        await (queue.publish("a") if operation in ("add_message", "publish_message") else take(queue))
    contract = refusal.value.__cause__ if settles else refusal.value
    assert isinstance(contract, GatewayContractError)
    assert operation in str(contract) and "await" in str(contract)


@pytest.mark.promise(
    "A return value that the gateway contract does not allow raises `GatewayContractError`, and nothing is settled."
)
@sync_only
async def test_a_renewal_that_would_have_to_be_awaited_is_a_failed_heartbeat(shell: Shell) -> None:
    """The same breach, told by an event because the handler is at work."""

    async def never() -> bool:
        return True

    events = shell.events()
    core = Core(ClaimedMessage("m", "t"), renew_message_lease=lambda *arguments, **named: never())
    queue = shell.queue(gateway=custom(shell, core, **LEASED), on_event=events.listen, **BEATS)
    async with queue.process_message():
        await events.wait_for("lease_renew")
    assert isinstance(events.the("lease_renew").error, GatewayContractError)


# Exceptions


@pytest.mark.promise("A custom gateway does its own retries: the queue raises its errors immediately.")
@pytest.mark.parametrize(
    "error", [LookupError("mine"), redis.exceptions.ConnectionError("cut"), TypeError("mine"), TimeoutError("mine")]
)
async def test_an_error_of_a_gateway_reaches_the_caller(shell: Shell, error: Exception) -> None:
    """From publishing and claiming, at the first time: retrying is up to the gateway."""
    events = shell.events()
    core = Core(add_message=error, publish_message=error, wait_for_message_and_move=error)
    gateway = custom(shell, core)
    queue = shell.queue(gateway=gateway, on_event=events.listen)
    deduplicating = shell.queue(gateway=gateway, deduplication=True)
    for attempt in (lambda: queue.publish("a"), lambda: take(queue), lambda: deduplicating.publish("a")):
        with pytest.raises(type(error)) as raised:
            await attempt()
        assert raised.value is error
    assert core.names == ["add_message", "wait_for_message_and_move", "publish_message"]
    assert events.names == ["publish/failure", "claim/failure"]
    assert [event.exception_type for event in events.all] == [type(error).__name__] * 2


@pytest.mark.promise("A custom gateway does its own retries: the queue raises its errors immediately.")
@pytest.mark.parametrize("operation", ["remove_message", "move_message"])
async def test_an_error_of_the_gateway_in_an_ack_is_a_failed_cleanup(shell: Shell, operation: str) -> None:
    """With that error as its cause; nothing more is asked."""
    error, events = LookupError("mine"), shell.events()
    core = Core("m", **{operation: error})
    queue = shell.queue(
        gateway=custom(shell, core), on_event=events.listen, enable_completed_queue=operation == "move_message"
    )
    with pytest.raises(CleanupFailedError) as failure:
        await take(queue)
    assert failure.value.__cause__ is error
    assert (failure.value.queue, failure.value.operation) == ("q", "ack")
    assert failure.value.message_id == events.the("claim").message_id
    assert core.names == ["wait_for_message_and_move", operation]
    assert events.names == ["claim/success", "cleanup_failed/failure"]


@pytest.mark.promise("A custom gateway does its own retries: the queue raises its errors immediately.")
@pytest.mark.parametrize("operation", ["remove_message", "move_message"])
async def test_an_error_of_the_gateway_after_a_failing_handler_is_an_event(shell: Shell, operation: str) -> None:
    """The handler's error is the one to see."""
    error, events = LookupError("mine"), shell.events()
    core = Core("m", **{operation: error})
    queue = shell.queue(
        gateway=custom(shell, core), on_event=events.listen, enable_failed_queue=operation == "move_message"
    )
    with pytest.raises(ValueError, match="the handler's own"):
        async with queue.process_message():
            raise ValueError("the handler's own")
    assert events.names == ["claim/success", "failed/failure", "cleanup_failed/failure"]
    assert events.the("cleanup_failed").error is error


@pytest.mark.promise("A custom gateway does its own retries: the queue raises its errors immediately.")
@sync_only
async def test_a_stop_iteration_of_a_gateway_is_reported_by_name(shell: Shell) -> None:
    """No coroutine lets it through, which is the library's affair alone; asyncio's own rule makes a RuntimeError."""
    error, events = StopIteration("mine"), shell.events()
    core = Core("m", add_message=error, remove_message=error)
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen)
    with pytest.raises(StopIteration):
        queue.queue.publish("a")
    with pytest.raises(CleanupFailedError, match="StopIteration") as failure:
        await take(queue)
    assert failure.value.__cause__ is error
    assert [event.exception_type for event in events.all if event.error] == ["StopIteration"] * 2
