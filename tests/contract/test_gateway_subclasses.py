"""A subclass of `RedisGateway` can override single operations."""

import asyncio
import contextlib
import functools
import threading
from typing import Any

import pytest
import redis

from redis_message_queue import (
    ClaimedMessage,
    ConfigurationError,
    EventDrivenInterruptHandler,
    GatewayContractError,
    PublishNotConfirmedError,
    QueueBackpressureError,
)
from tests.contract.custom_gateways import BEATS, HOLDS, LONG, OPERATIONS, done, overriding, remains
from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    asyncio_only,
    claim_and_die,
    fail,
    take,
    until,
)

pytestmark = pytest.mark.topic("Gateways")


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
@HOLDS
@pytest.mark.parametrize("by", ["class", "object"])
@pytest.mark.parametrize("operation", [*OPERATIONS, "all"])
async def test_an_operation_that_is_overridden_is_called_and_the_rest_goes_on(
    shell: Shell, operation: str, by: str, settings: dict[str, Any]
) -> None:
    """Every feature of the queue around it comes to the same, and so does what is in Redis afterwards."""
    called: list[str] = []
    names = OPERATIONS if operation == "all" else (operation,)
    gateway = overriding(shell, *names, by=by, called=called, **settings)
    events = shell.events()
    plain, fussy = shell.queue(gateway=gateway), shell.queue(gateway=gateway, deduplication=True)
    keeping = shell.queue(
        gateway=gateway,
        on_event=events.listen,
        enable_completed_queue=True,
        enable_failed_queue=True,
        max_completed_length=1,
        max_failed_length=1,
        **(BEATS if settings else {}),
    )
    assert [await fussy.publish("a"), await fussy.publish("a"), await fussy.publish("b")] == [True, False, True]
    for text in ("c", "d", "e", "f"):
        assert await plain.publish(text) is True
    assert await take(plain) == shell.payload("a")
    assert await fail(plain, ValueError()) == shell.payload("b")
    async with keeping.process_message() as message:
        assert message == shell.payload("c")
        if settings:
            await events.wait_for("lease_renew")
    assert await take(keeping) == shell.payload("d")
    assert await fail(keeping, ValueError()) == shell.payload("e")
    assert await fail(keeping, ValueError()) == shell.payload("f")
    assert await take(keeping) is None
    assert (shell.listed(plain.key.completed), shell.listed(plain.key.failed)) == ([b"d"], [b"f"])
    kept = {plain.key.completed.encode(), plain.key.failed.encode()}
    assert {key for key in remains(shell, plain) if b"::deduplication::" not in key} == kept
    assert {event.outcome for event in events.of("lease_renew")} == ({"success"} if settings else set())
    used = set(names) - (set() if settings else {"renew_message_lease"})
    assert set(called) == used


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
async def test_an_overridden_operation_is_called(shell: Shell) -> None:
    """Its answer and its errors count, not those of the one that it replaces."""
    suppressed = overriding(shell)
    suppressed.publish_message = shell.callback(lambda queue, message, key: False)
    assert await shell.queue(gateway=suppressed, deduplication=True).publish("a") is False
    broken = overriding(shell)
    broken.publish_message = shell.callback(lambda queue, message, key: None)
    with pytest.raises(GatewayContractError, match="publish_message"):
        await shell.queue(gateway=broken, deduplication=True).publish("a")
    leasing = overriding(shell, message_visibility_timeout_seconds=300)
    leasing.wait_for_message_and_move = shell.callback(lambda line, held: b"without a lease")
    with pytest.raises(GatewayContractError, match="ClaimedMessage"):
        await take(shell.queue(gateway=leasing))


@asyncio_only
async def test_a_plain_override_may_hand_on_what_is_to_be_awaited(shell: Shell) -> None:
    """It need not be an `async def` itself."""

    class Plain(shell.module.RedisGateway):  # type: ignore[name-defined,misc]  # known at run time only
        def add_message(self, queue: str, message: str) -> Any:
            return super().add_message(queue, message.upper())

        def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> Any:
            return super().remove_message(queue, message, lease_token=lease_token)

    queue = shell.queue(gateway=Plain(redis_client=shell.client))
    await queue.publish("a")
    assert await take(queue) == b"A"
    assert shell.processing(queue) == 0


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
async def test_a_subclass_may_change_a_message_on_its_way(shell: Shell) -> None:
    """Sealed in Redis, open in the handler: the lease token names it, whatever it looks like."""
    inherited = shell.module.RedisGateway

    def seal(self: Any, queue: str, message: str) -> Any:
        return inherited.add_message(self, queue, message[::-1])

    def opened(claimed: Any) -> Any:
        return claimed and ClaimedMessage(claimed.stored_message[::-1], claimed.lease_token)

    async def open_awaited(self: Any, line: str, held: str) -> Any:
        return opened(await inherited.wait_for_message_and_move(self, line, held))

    def open_plain(self: Any, line: str, held: str) -> Any:
        return opened(inherited.wait_for_message_and_move(self, line, held))

    opening = open_plain if shell.name == "sync" else open_awaited
    body = {"add_message": seal, "wait_for_message_and_move": opening}
    gateway = type("Sealing", (inherited,), body)(redis_client=shell.client, message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway, enable_completed_queue=True)
    await queue.publish("secret")
    assert b"secret" not in shell.redis.lindex(queue.key.pending, 0)
    assert await take(queue) == b"secret"
    assert shell.listed(queue.key.completed) == [b"terces"]
    assert shell.processing(queue) == 0


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
async def test_overriding_how_messages_get_in_changes_nothing_about_how_they_get_out(shell: Shell) -> None:
    """Handlers know all about their message; it has one id, from its publish to its ack."""
    events = shell.events()
    gateway = overriding(shell, "add_message", "publish_message", message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway, on_event=events.listen)
    await queue.publish("a")
    async with queue.process_message():
        received = queue.current_message()
        assert (received.payload, received.delivery_count, received.lease_lost) == (b"a", 1, False)
    assert events.names == ["publish/success", "claim/success", "ack/success"]
    assert {event.message_id for event in events.all} == {received.id}


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
async def test_overriding_how_messages_get_out_changes_nothing_about_how_they_get_in(shell: Shell) -> None:
    """A publish tells the id that the message has in Redis; a handler gets what the contract gives."""
    events = shell.events()
    gateway = overriding(shell, "remove_message", message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway, on_event=events.listen)
    await queue.publish("a")
    async with queue.process_message() as message:
        assert message == b"a"
        assert shell.redis.hkeys(queue.key.processing) == [bytes.fromhex(events.the("publish").message_id or "")]
        with pytest.raises(GatewayContractError, match="custom gateway"):
            queue.current_message()
    assert events.names == ["publish/success", "claim/success", "ack/success"]
    with pytest.raises(ConfigurationError, match="repeat_of is an error of another queue"):  # so it can be repeated
        await done(queue.queue.publish("a", repeat_of=PublishNotConfirmedError("another's")))


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
@HOLDS
async def test_a_subclass_may_retry_around_the_built_in_operation(shell: Shell, settings: dict[str, Any]) -> None:
    """What did not reach Redis the first time is done the second time, with leases and without."""

    class Patient(shell.module.RedisGateway):  # type: ignore[name-defined,misc]  # known at run time only
        pass

    async def awaited(self: Any, name: str, *arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(redis.exceptions.ConnectionError):
            return await getattr(super(Patient, self), name)(*arguments, **named)
        return await getattr(super(Patient, self), name)(*arguments, **named)

    def plain(self: Any, name: str, *arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(redis.exceptions.ConnectionError):
            return getattr(super(Patient, self), name)(*arguments, **named)
        return getattr(super(Patient, self), name)(*arguments, **named)

    retrying = plain if shell.name == "sync" else awaited
    for name in ("add_message", "wait_for_message_and_move", "move_message", "remove_message"):
        setattr(Patient, name, functools.partialmethod(retrying, name))
    client, events = shell.lossy_client(), shell.events()
    gateway = Patient(redis_client=client, retry_budget_seconds=0, **settings)
    for options in ({}, {"enable_completed_queue": True}):
        queue = shell.queue(gateway=gateway, on_event=events.listen, **options)
        client.losses.request()
        await queue.publish("a")
        client.losses.request()
        async with queue.process_message() as message:
            assert message == "a"
            client.losses.request()
        assert "ack/success" in events.names and "stale_lease_ack/skipped" not in events.names
        assert shell.processing(queue) == 0
        events.clear()
    assert shell.listed(queue.key.completed) == [b"a"]


@pytest.mark.promise("A subclass of `RedisGateway` can override one operation; the other features keep working.")
@pytest.mark.parametrize("separator", ["::", "/", "x"])
@pytest.mark.parametrize("operation", ["add_message", "remove_message"])
async def test_a_queue_behind_a_subclass_keeps_to_its_keys(shell: Shell, operation: str, separator: str) -> None:
    """It shares leases, wake-ups and dead letters with an ordinary queue of the same name, whatever the separator."""
    gateway = overriding(shell, operation, message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway, key_separator=separator)
    other = shell.queue(key_separator=separator, wait=LIMIT_SECONDS)
    consumer = shell.beside(lambda: take(other))
    await queue.publish("a")
    assert await consumer == b"a"
    await queue.publish("b")
    await claim_and_die(queue)
    shell.lapse(other)
    assert await take(other) == b"b"
    assert remains(shell, queue) == set()


@pytest.mark.promise("`is_redis_cluster` puts all keys of a gateway's queues into one slot.")
async def test_the_dead_letters_of_a_subclass_share_the_queues_slot(shell: Shell) -> None:
    """Where `queue.key.dead_letter` says, and not where the name without its hash tag would be."""
    gateway = overriding(
        shell,
        "remove_message",
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue="q::poison",
        hash_tag=True,
    )
    queue = shell.queue(gateway=gateway)
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert queue.key.dead_letter == "{q}::poison"
    assert shell.listed("{q}::poison") == [b"a"]


@pytest.mark.promise("The settings of a `RedisGateway` subclass apply, and interrupts and drains stop its operations.")
@pytest.mark.parametrize("leases_itself", [False, True])
async def test_the_settings_of_a_subclass_apply(shell: Shell, leases_itself: bool) -> None:
    """A visibility timeout by attribute means leases, as for any gateway, or is refused when the queue is made."""
    body: dict[str, Any] = {"message_visibility_timeout_seconds": 300}
    if leases_itself:
        body["wait_for_message_and_move"] = shell.callback(lambda self, line, held: "without a lease")
    gateway = type("Saying", (shell.module.RedisGateway,), body)(redis_client=shell.client)
    try:
        queue = shell.queue(gateway=gateway, heartbeat_interval_seconds=149)
    except GatewayContractError:
        return
    if leases_itself:
        with pytest.raises(GatewayContractError, match="ClaimedMessage"):
            await take(queue)
        return
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) == b"a"


@pytest.mark.promise("The settings of a `RedisGateway` subclass apply, and interrupts and drains stop its operations.")
async def test_a_consumer_that_waits_in_a_subclass_leaves_when_it_is_stopped(shell: Shell) -> None:
    """By a drain or an interrupt, and not when its wait is over."""
    stop = threading.Event()
    gateway = overriding(shell, "remove_message", message_wait_interval_seconds=LONG)
    drained = shell.queue(gateway=gateway)
    interrupted = shell.queue(gateway=gateway, interrupt=EventDrivenInterruptHandler(stop))
    consumers = [shell.beside(lambda: take(drained)), shell.beside(lambda: take(interrupted))]
    assert await until(lambda: shell.redis.info("clients")["blocked_clients"] == 2)
    stop.set()
    await drained.drain()
    try:
        left = asyncio.gather(*(asyncio.shield(consumer) for consumer in consumers))
        assert await asyncio.wait_for(left, LIMIT_SECONDS) == [None, None]
    finally:
        for _ in consumers:
            await shell.queue().publish("so that nobody is left behind")


@pytest.mark.promise("The settings of a `RedisGateway` subclass apply, and interrupts and drains stop its operations.")
async def test_stopping_the_queue_ends_a_publish_that_a_subclass_delays(shell: Shell) -> None:
    """One that waits for room, by a drain or an interrupt; nothing is published."""
    stop = threading.Event()
    gateway = overriding(
        shell,
        "add_message",
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=LONG,
    )
    drained = shell.queue(gateway=gateway)
    interrupted = shell.queue(gateway=gateway, interrupt=EventDrivenInterruptHandler(stop))
    await drained.publish("a")
    publishers = [shell.beside(lambda: drained.publish("b")), shell.beside(lambda: interrupted.publish("c"))]
    assert await until(lambda: len(shell.redis.keys("q::reply*")) >= 2)
    stop.set()
    draining = shell.beside(lambda: drained.drain(timeout=LIMIT_SECONDS))
    try:
        let_go = asyncio.gather(*(asyncio.shield(publisher) for publisher in publishers), return_exceptions=True)
        outcomes = await asyncio.wait_for(let_go, LIMIT_SECONDS)
        assert [type(outcome) for outcome in outcomes] == [QueueBackpressureError] * 2
    finally:
        while not all(publisher.done() for publisher in publishers):
            shell.redis.delete(drained.key.pending)  # there is room
            await asyncio.sleep(0.01)
        await draining
