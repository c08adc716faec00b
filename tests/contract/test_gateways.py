"""A queue behind a gateway of one's own works through seven operations, and takes none of them on trust."""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_message_queue import (
    BaseGracefulInterruptHandler,
    ClaimedMessage,
    CleanupFailedError,
    ConfigurationError,
    EventDrivenInterruptHandler,
    GatewayContractError,
    PayloadTooLargeError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
)
from redis_message_queue.local_runtime import LocalRuntime
from tests.contract.shells import (
    PATIENCE_SECONDS,
    Died,
    Shell,
    Wiring,
    asyncio_only,
    claim_and_die,
    fail,
    sync_only,
    take,
    until,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = 4 * PATIENCE_SECONDS  # a wait that no test sits out

OPERATIONS = (
    *("publish_message", "add_message", "wait_for_message_and_move", "remove_message", "move_message"),
    *("trim_queue", "renew_message_lease"),
)
PROPERTIES = ("message_visibility_timeout_seconds", "max_delivery_count", "dead_letter_queue", "is_redis_cluster")
NOT_A_YES_OR_NO = [None, 1, 0, "True", b"1", []]

LEASED = {"message_visibility_timeout_seconds": 60}
BEATS = {"heartbeat_interval_seconds": 0.02}


# The gateways of these tests


class Core:
    """What is behind every custom gateway here: it notes each call, and answers as it is told to."""

    def __init__(self, *line: Any, **answers: Any) -> None:
        self.line = list(line)  # what is handed over, in turn
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def do(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.calls.append((name, *arguments, *([named] if named else [])))
        if name in self.answers:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments, **named) if callable(answer) else answer
        if name == "wait_for_message_and_move":
            return self.line.pop(0) if self.line else None
        return None if name in ("add_message", "trim_queue") else True

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def count(self, name: str) -> int:
        return self.names.count(name)


def custom(shell: Shell, core: Core, **body: Any) -> Any:
    """A gateway of the shell's colour over the core; what else its class should have is given by name."""

    def operation(name: str) -> Callable[..., Any]:
        def plain(self: Any, *arguments: Any, **named: Any) -> Any:
            return core.do(name, *arguments, **named)

        async def awaited(self: Any, *arguments: Any, **named: Any) -> Any:
            return await done(core.do(name, *arguments, **named))

        return plain if shell.name == "sync" else awaited

    operations = {name: operation(name) for name in OPERATIONS}
    return type("CustomGateway", (shell.module.AbstractRedisGateway,), operations | body)()


async def break_down(queue: Any) -> Any:
    """Claim a message whose handler raises."""
    return await fail(queue, ValueError("the handler's own"))


async def done(result: Any) -> Any:
    """What an operation of either colour came to."""
    return await result if inspect.isawaitable(result) else result


class Door:
    """An operation that is under way until the test opens it."""

    def __init__(self, shell: Shell, answer: Any = True) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        self.is_passed = False
        self._answer = answer
        self._pass = self._blocking if shell.name == "sync" else self._awaited

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.reached.set()
        return self._pass()

    def _blocking(self) -> Any:
        self._opened.wait(PATIENCE_SECONDS)
        return self._outcome()

    async def _awaited(self) -> Any:
        await until(self._opened.is_set)
        return self._outcome()

    def _outcome(self) -> Any:
        self.is_passed = True
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def open(self) -> None:
        self._opened.set()


def no_heartbeat_is_left() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name == "redis-message-queue-heartbeat"]


# What each operation is asked


async def test_a_publish_adds_the_message_as_text(shell: Shell) -> None:
    """To the whole key of the line; a dict as its JSON."""
    core = Core()
    queue = shell.queue(gateway=custom(shell, core))
    assert await queue.publish("grün") is True
    assert await queue.publish({"order": "grün"}) is True
    assert core.calls == [
        ("add_message", "q::pending", "grün"),
        ("add_message", "q::pending", '{"order": "grün"}'),
    ]


async def test_a_publish_with_deduplication_names_the_whole_key(shell: Shell) -> None:
    """The content's hash, or what the key function says."""
    core = Core()
    content = hashlib.sha256(b"a").hexdigest()
    await shell.queue(gateway=custom(shell, core), deduplication=True).publish("a")
    chosen = shell.queue(gateway=custom(shell, core), deduplication=True, get_deduplication_key=lambda m: m["id"])
    await chosen.publish({"id": "7"})
    assert core.calls == [
        ("publish_message", "q::pending", "a", f"q::deduplication::{content}"),
        ("publish_message", "q::pending", '{"id": "7"}', "q::deduplication::7"),
    ]
    assert core.calls[0][3] == chosen.key.deduplication(content)


async def test_the_gateway_decides_what_is_a_duplicate(shell: Shell) -> None:
    """Its False is the publish's False, and an event of its own."""
    events = shell.events()
    core = Core(publish_message=False)
    queue = shell.queue(gateway=custom(shell, core), deduplication=True, on_event=events.listen)
    assert await queue.publish("a") is False
    assert events.names == ["publish_dedup_hit/skipped"]


async def test_nothing_that_breaks_the_queues_own_rules_reaches_the_gateway(shell: Shell) -> None:
    """Payload guards and key functions stand before it."""
    core = Core()
    guarded = shell.queue(gateway=custom(shell, core), max_payload_bytes=3)
    keyless = shell.queue(gateway=custom(shell, core), deduplication=True, get_deduplication_key=lambda m: "")
    with pytest.raises(PayloadTooLargeError):
        await guarded.publish("four")
    with pytest.raises(TypeError):
        await guarded.publish(4)
    with pytest.raises(ConfigurationError, match="get_deduplication_key"):
        await keyless.publish("a")
    assert core.calls == []


HELD = {"lease_token": None}


@pytest.mark.parametrize(
    ("options", "end", "settling"),
    [
        ({}, take, [("remove_message", "q::processing", "m", HELD)]),
        ({}, break_down, [("remove_message", "q::processing", "m", HELD)]),
        (
            {"enable_completed_queue": True},
            take,
            [("move_message", "q::processing", "q::completed", "m", HELD), ("trim_queue", "q::completed", 1_000)],
        ),
        (
            {"enable_failed_queue": True},
            break_down,
            [("move_message", "q::processing", "q::failed", "m", HELD), ("trim_queue", "q::failed", 1_000)],
        ),
        ({"enable_completed_queue": True}, break_down, [("remove_message", "q::processing", "m", HELD)]),
        ({"enable_failed_queue": True}, take, [("remove_message", "q::processing", "m", HELD)]),
        (
            {"enable_completed_queue": True, "max_completed_length": 7},
            take,
            [("move_message", "q::processing", "q::completed", "m", HELD), ("trim_queue", "q::completed", 7)],
        ),
        (
            {"enable_completed_queue": True, "max_completed_length": None},
            take,
            [("move_message", "q::processing", "q::completed", "m", HELD)],
        ),
        (
            {"enable_failed_queue": True, "max_failed_length": None},
            break_down,
            [("move_message", "q::processing", "q::failed", "m", HELD)],
        ),
        ({"enable_completed_queue": True, "enable_failed_queue": True}, claim_and_die, []),
    ],
)
async def test_a_message_is_claimed_and_then_leaves_as_its_handler_ended(
    shell: Shell, options: dict[str, Any], end: Any, settling: list[Any]
) -> None:
    """Removed, or moved and that list trimmed where it has a limit; an exit that is no `Exception` touches nothing."""
    core = Core("m")
    queue = shell.queue(gateway=custom(shell, core), **options)
    assert await end(queue) == "m"
    assert core.calls == [("wait_for_message_and_move", "q::pending", "q::processing"), *settling]


async def test_an_empty_line_is_asked_once_and_nothing_follows(shell: Shell) -> None:
    """How long to wait is the gateway's affair."""
    core, events = Core(), shell.events()
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen)
    assert await take(queue) is None
    assert await queue.process_message_callback(lambda message: None) is False
    assert core.names == ["wait_for_message_and_move"] * 2
    assert events.names == ["claim_empty/skipped"] * 2


async def test_every_change_of_a_leased_message_names_its_lease(shell: Shell) -> None:
    """The token that came with the claim, whatever becomes of the message."""
    token = {"lease_token": "t"}
    for options, end, last in (
        ({}, take, ("remove_message", "q::processing", "m", token)),
        ({"enable_completed_queue": True}, take, ("move_message", "q::processing", "q::completed", "m", token)),
        ({}, break_down, ("remove_message", "q::processing", "m", token)),
        ({"enable_failed_queue": True}, break_down, ("move_message", "q::processing", "q::failed", "m", token)),
    ):
        core = Core(ClaimedMessage("m", "t"))
        queue = shell.queue(gateway=custom(shell, core, **LEASED), **options)
        await end(queue)
        assert core.calls[1] == last


async def test_every_key_is_the_queues_own(shell: Shell) -> None:
    """With the separator that it was given."""
    core = Core("m")
    queue = shell.queue("jobs", gateway=custom(shell, core), key_separator="/", enable_completed_queue=True)
    await queue.publish("a")
    await take(queue)
    assert [call[1] for call in core.calls] == ["jobs/pending", "jobs/pending", "jobs/processing", "jobs/completed"]
    assert queue.key.completed == "jobs/completed"


@pytest.mark.parametrize(
    ("end", "list_name", "told"),
    [
        (take, "completed", ["ack/success", "completed/success", "trim_failed/failure"]),
        (break_down, "failed", ["failed/failure", "nack/success", "trim_failed/failure"]),
    ],
)
async def test_a_list_that_cannot_be_trimmed_is_an_event_and_no_more(
    shell: Shell, end: Any, list_name: str, told: list[str]
) -> None:
    """The message has been moved, and that is what counts."""
    events = shell.events()
    core = Core("m", trim_queue=LookupError("no such list"))
    queue = shell.queue(
        gateway=custom(shell, core), on_event=events.listen, enable_completed_queue=True, enable_failed_queue=True
    )
    assert await end(queue) == "m"
    assert core.calls[-1] == ("trim_queue", f"q::{list_name}", 1_000)
    assert events.names == ["claim/success", *told]
    complaint = events.the("trim_failed")
    assert "no such list" in str(complaint.error)
    assert complaint.message_id == events.the("claim").message_id


@pytest.mark.parametrize(("end", "told"), [(take, "stale_lease_ack/skipped"), (break_down, "stale_lease_nack/skipped")])
async def test_a_message_that_is_not_held_any_more_is_left_to_its_new_holder(shell: Shell, end: Any, told: str) -> None:
    """An event and a word in the log; nothing is trimmed for it."""
    events = shell.events()
    core = Core(ClaimedMessage("m", "t"), ClaimedMessage("n", "u"), remove_message=False, move_message=False)
    gateway = custom(shell, core, **LEASED)
    plain = shell.queue(gateway=gateway, on_event=events.listen)
    keeping = shell.queue(
        gateway=gateway, on_event=events.listen, enable_completed_queue=True, enable_failed_queue=True
    )
    for queue in (plain, keeping):
        events.clear()
        await end(queue)
        assert events.names[-1] == told
    assert "trim_queue" not in core.names


# What the handler gets


@pytest.mark.parametrize(
    ("handed", "received"),
    [
        ("text", "text"),
        (b"bytes \xff", b"bytes \xff"),
        ("", ""),
        (b"", b""),
        (ClaimedMessage("text", "t"), "text"),
        (ClaimedMessage(b"\x00\xff", "t"), b"\x00\xff"),
        (ClaimedMessage("", "t"), ""),
    ],
)
@pytest.mark.parametrize("leased", [False, True])
async def test_a_handler_gets_the_message_as_it_was_handed_over(
    shell: Shell, handed: Any, received: Any, leased: bool
) -> None:
    """Nothing is decoded or parsed, and an empty message is one; cleaning up names the same."""
    if leased and not isinstance(handed, ClaimedMessage):
        handed = ClaimedMessage(handed, "t")
    core = Core(handed, handed)
    queue = shell.queue(gateway=custom(shell, core, **(LEASED if leased else {})))
    got: list[Any] = []
    assert await queue.process_message_callback(got.append) is True
    got.append(await take(queue))
    assert got == [received] * 2
    assert [type(message) for message in got] == [type(received)] * 2
    assert core.calls[1][2] == received


async def test_leases_that_a_gateway_does_not_speak_of_are_not_watched(shell: Shell) -> None:
    """Plain and claimed messages are both fine then; a token that came along is handed back, heartbeats are refused."""
    core = Core("plain", ClaimedMessage("claimed", "t"))
    gateway = custom(shell, core)
    queue = shell.queue(gateway=gateway)
    assert [await take(queue), await take(queue)] == ["plain", "claimed"]
    assert [call[-1] for call in core.calls[1::2]] == [{"lease_token": None}, {"lease_token": "t"}]
    with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
        shell.queue(gateway=gateway, **BEATS)


# Answers of the wrong type


@pytest.mark.parametrize("answer", NOT_A_YES_OR_NO, ids=repr)
async def test_a_publish_answered_with_neither_yes_nor_no_is_a_broken_contract(shell: Shell, answer: Any) -> None:
    """It may be in the line or not: the caller is told, not left with a guess."""
    events, core = shell.events(), Core(publish_message=answer)
    queue = shell.queue(gateway=custom(shell, core), deduplication=True, on_event=events.listen)
    with pytest.raises(GatewayContractError, match=r"CustomGateway.*publish_message.*True or False") as broken:
        await queue.publish("a")
    assert isinstance(broken.value, TypeError)
    assert (broken.value.queue, broken.value.operation) == ("q", "publish")
    assert events.names == ["publish/failure"]
    assert events.all[0].error is broken.value


@pytest.mark.parametrize(
    "handed",
    [
        *(1, True, 0.5, ["m"], ("m", "t"), {"m": "t"}, bytearray(b"m")),
        *(ClaimedMessage(1, "t"), ClaimedMessage(None, "t"), ClaimedMessage(bytearray(b"m"), "t")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("leased", [False, True])
async def test_a_claim_that_is_no_message_is_a_broken_contract(shell: Shell, handed: Any, leased: bool) -> None:
    """No handler runs, and the gateway keeps what it has: nothing is removed or moved."""
    events, core = shell.events(), Core(handed)
    queue = shell.queue(gateway=custom(shell, core, **(LEASED if leased else {})), on_event=events.listen)
    with pytest.raises(GatewayContractError, match=r"CustomGateway.*wait_for_message_and_move") as broken:
        await take(queue)
    assert (broken.value.queue, broken.value.operation) == ("q", "claim")
    assert core.names == ["wait_for_message_and_move"]
    assert events.names == ["claim/failure"]


@pytest.mark.parametrize(
    "handed", ["m", b"m", "", *(ClaimedMessage("m", token) for token in (None, "", b"t", 7, True))], ids=repr
)
async def test_a_gateway_that_leases_must_hand_over_a_lease(shell: Shell, handed: Any) -> None:
    """Without its token the cleanup could settle what another consumer has by now, so no handler runs."""
    events, core = shell.events(), Core(handed, ClaimedMessage("n", "t"))
    queue = shell.queue(gateway=custom(shell, core, **LEASED), on_event=events.listen)
    complaint = "lease_token" if isinstance(handed, ClaimedMessage) else "must return a ClaimedMessage where"
    with pytest.raises(GatewayContractError, match=complaint):
        await take(queue)
    assert core.names == ["wait_for_message_and_move"]
    assert events.names == ["claim/failure"]
    assert await take(queue) == "n"  # one broken answer does not break the queue


@pytest.mark.parametrize("answer", NOT_A_YES_OR_NO, ids=repr)
@pytest.mark.parametrize("operation", ["remove_message", "move_message"])
async def test_an_ack_answered_with_neither_yes_nor_no_is_a_failed_cleanup(
    shell: Shell, operation: str, answer: Any
) -> None:
    """The handler has succeeded and nobody knows whether its message is gone; nothing is trimmed after it."""
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


# Refused where the queue is made


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_gateway_has_all_seven_operations(shell: Shell, operation: str) -> None:
    """Python refuses to make one without, and the queue one that has merely the name."""
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


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_that_could_not_be_called_is_refused(shell: Shell, operation: str) -> None:
    """At once, and not when the first lease must be renewed; a subclass of the built-in gateway no less."""
    for wrong in WRONG_SHAPES[operation]:
        with pytest.raises(GatewayContractError, match=rf"CustomGateway\.{operation}"):
            shell.queue(gateway=custom(shell, Core(), **{operation: wrong}))
        overriding = type("Overriding", (shell.module.RedisGateway,), {operation: wrong})
        with pytest.raises(GatewayContractError, match=rf"Overriding\.{operation}"):
            shell.queue(gateway=overriding(redis_client=shell.client))


async def test_names_and_defaults_of_an_operations_parameters_are_its_own(shell: Shell) -> None:
    """What must be given by name is; the rest goes by its place."""

    def move(self: Any, source: str, target: str, body: Any, lease_token: Any = "none", **other: Any) -> Any:
        return core.do("move_message", source, target, body, lease_token=lease_token)

    core = Core("m")
    queue = shell.queue(gateway=custom(shell, core, move_message=move), enable_completed_queue=True)
    assert await take(queue) == "m"
    assert core.calls[1] == ("move_message", "q::processing", "q::completed", "m", HELD)


async def test_an_operation_whose_signature_cannot_be_read_is_given_the_benefit_of_the_doubt(shell: Shell) -> None:
    """Compiled functions may have none to show."""
    compiled = {}.update
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(compiled)
    gateway = custom(shell, Core())
    gateway.add_message = compiled
    assert shell.queue(gateway=gateway)


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


@sync_only
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_sync_queue_refuses_an_operation_that_must_be_awaited(shell: Shell, operation: str) -> None:
    """Of a custom gateway and of a subclass of the built-in one; the error names the package that awaits."""

    async def awaited(self: Any, *arguments: Any, **named: Any) -> Any: ...

    overriding = type("Overriding", (shell.module.RedisGateway,), {operation: awaited})
    for gateway in (custom(shell, Core(), **{operation: awaited}), overriding(redis_client=shell.client)):
        with pytest.raises(GatewayContractError, match=rf"{operation}.*redis_message_queue\.asyncio"):
            shell.queue(gateway=gateway)


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


async def test_what_is_no_gateway_of_this_colour_is_refused(shell: Shell) -> None:
    """The other colour's, the class instead of an object, and what merely looks like one."""
    named = dict.fromkeys(OPERATIONS, lambda self, *arguments, **named: None)
    other = type("OfTheOther", (shell.other_module.AbstractRedisGateway,), named)
    own = type("OfThisColour", (shell.module.AbstractRedisGateway,), named)
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

    class Addressed(shell.module.RedisGateway):
        def __init__(self, client: Any) -> None:
            super().__init__(redis_client=client)
            self.port, self.host, self.options, self.client = 6379, "localhost", {"patient": True}, None
            self.store = self.serve = self.keys = None

    queue = shell.queue(gateway=Addressed(shell.client))
    await queue.publish("a")
    assert await take(queue) == b"a"


# What a gateway says about itself


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
    return custom(shell, Core(), **{name: property(lambda self, value=value: value) for name, value in SAID.items()})


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("message_visibility_timeout_seconds", value) for value in ("30", True, 0, -1, float("nan"), float("inf"))),
        *(("max_delivery_count", value) for value in ("3", 1.5, True, 0, -1)),
        *(("dead_letter_queue", value) for value in (b"dlq", 1, "", " ", "\ud800")),
        *(("is_redis_cluster", value) for value in (None, 1, 0, "yes")),
    ],
)
async def test_a_property_of_the_wrong_kind_is_a_broken_contract(shell: Shell, name: str, value: Any) -> None:
    """Found when the queue is made; the error names the gateway and the property."""
    with pytest.raises(GatewayContractError, match=f"CustomGateway.*{name}"):
        shell.queue(gateway=custom(shell, Core(), **{name: value}))


@pytest.mark.parametrize("name", PROPERTIES)
async def test_a_property_that_raises_is_heard_as_it_is(shell: Shell, name: str) -> None:
    """Its own error, not one about the contract."""

    def complain(self: Any) -> Any:
        raise LookupError("not known yet")

    with pytest.raises(LookupError, match="not known yet"):
        shell.queue(gateway=custom(shell, Core(), **{name: property(complain)}))


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


async def test_the_dead_letters_are_where_the_gateway_says(shell: Shell) -> None:
    """`queue.key.dead_letter` shows the operator that key."""
    queue = shell.queue(gateway=custom(shell, Core(), dead_letter_queue="graveyard"))
    assert queue.key.dead_letter == "graveyard"


async def test_a_gateway_with_a_delivery_limit_serves_one_queue(shell: Shell) -> None:
    """Under one name as many objects as one likes; without a limit any number of queues."""
    limited = custom(shell, Core(), max_delivery_count=3, **LEASED)
    for _ in range(2):
        assert shell.queue("a", gateway=limited)
    with pytest.raises(ConfigurationError, match=r"'a'.*'b'"):
        shell.queue("b", gateway=limited)
    unlimited = custom(shell, Core(), dead_letter_queue="graveyard", **LEASED)
    assert shell.queue("a", gateway=unlimited) and shell.queue("b", gateway=unlimited)


async def test_a_queue_that_could_not_be_made_does_not_occupy_its_gateway(shell: Shell) -> None:
    """One with a delivery limit is still free for the queue that is right."""
    built_in = shell.gateway(message_visibility_timeout_seconds=60, max_delivery_count=3)
    for gateway in (custom(shell, Core(), max_delivery_count=3, **LEASED), built_in):
        with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
            shell.queue("a", gateway=gateway, heartbeat_interval_seconds=59)
        assert shell.queue("b", gateway=gateway)


# Options beside a gateway


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("visibility_timeout_seconds", 60), ("visibility_timeout_seconds", None)),
        *(("max_delivery_count", 3), ("max_delivery_count", None), ("max_dead_letter_length", 5)),
        *(("max_pending_length", 5), ("pending_overload_policy", "block"), ("hash_tag", True), ("hash_tag", False)),
        *(("pending_overload_block_timeout_seconds", 5), ("message_wait_interval_seconds", 0)),
        *(("message_deduplication_log_ttl_seconds", 60), ("retry_budget_seconds", 0)),
        *(("retry_initial_delay_seconds", 1), ("retry_max_delay_seconds", 1)),
        *(("confirm_replicas", 1), ("confirm_fsync", True), ("confirm_timeout_seconds", 5)),
    ],
)
async def test_what_only_a_gateway_can_honour_is_refused_beside_a_custom_one(
    shell: Shell, name: str, value: Any
) -> None:
    """It would have no effect, and nobody should believe that it has."""
    with pytest.raises(ConfigurationError, match=rf"^{name}=.*gateway"):
        shell.queue(gateway=custom(shell, Core()), **{name: value})


async def test_spelled_out_defaults_are_let_through_and_transfer_nothing(shell: Shell) -> None:
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


# Errors of the gateway


@pytest.mark.parametrize(
    "error", [LookupError("mine"), redis.exceptions.ConnectionError("cut"), TypeError("mine"), TimeoutError("mine")]
)
async def test_a_gateways_error_comes_out_as_itself(shell: Shell, error: Exception) -> None:
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


@sync_only
async def test_a_stop_iteration_of_a_gateway_is_told_by_its_name(shell: Shell) -> None:
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


# Events


async def test_the_events_of_a_delivery_belong_together(shell: Shell) -> None:
    """One id for each delivery, made up because the gateway hands over none; no count, and a token only as a hash."""
    events = shell.events()
    core = Core(ClaimedMessage("m", "secret"), ClaimedMessage("n", "other"))
    queue = shell.queue(
        gateway=custom(shell, core, **LEASED),
        on_event=events.listen,
        enable_completed_queue=True,
        enable_failed_queue=True,
        **BEATS,
    )
    await queue.publish("a")
    async with queue.process_message():
        await events.wait_for("lease_renew")
    handled = [event for event in events.all if event.operation != "publish"]
    events.clear()
    await fail(queue, ValueError())
    failed = list(events.all)
    assert list(dict.fromkeys(event.operation for event in handled)) == ["claim", "lease_renew", "ack", "completed"]
    assert events.names == ["claim/success", "failed/failure", "nack/success"]
    for told, token in ((handled, "secret"), (failed, "other")):
        assert len({event.message_id for event in told}) == 1 and told[0].message_id
        assert {event.delivery_count for event in told} == {None}
        assert {event.lease_token_hash for event in told} == {hashlib.sha256(token.encode()).hexdigest()[:16]}
        assert token not in repr(told)
    assert handled[0].message_id != failed[0].message_id


async def test_without_leases_there_is_no_token_to_hash(shell: Shell) -> None:
    """Everything else is told as usual, durations too."""
    events = shell.events()
    queue = shell.queue(gateway=custom(shell, Core("m")), on_event=events.listen)
    await queue.publish("a")
    await take(queue)
    assert events.names == ["publish/success", "claim/success", "ack/success"]
    assert {event.lease_token_hash for event in events.all} == {None}
    assert all(event.duration_seconds is not None and event.queue == "q" for event in events.all)


@pytest.fixture
def hour_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the monotonic clock of all queues on by an hour."""
    ahead = [0.0]
    now = LocalRuntime.now
    monkeypatch.setattr(LocalRuntime, "now", lambda self: now(self) + ahead[0])

    def move_on() -> None:
        ahead[0] += 3600

    return move_on


async def test_the_time_that_a_gateway_waits_is_not_the_handlers(shell: Shell, hour_hand: Callable[[], None]) -> None:
    """Neither in what an ack tells of its duration nor in what `max_processing_seconds` counts."""

    def claim_after_an_hour(*keys: Any) -> ClaimedMessage:
        hour_hand()
        return ClaimedMessage("m", "t")

    events = shell.events()
    core = Core(wait_for_message_and_move=claim_after_an_hour)
    queue = shell.queue(
        gateway=custom(shell, core, **LEASED), on_event=events.listen, max_processing_seconds=1800, **BEATS
    )
    async with queue.process_message():
        await events.wait_for("lease_renew")
    assert events.of("lease_renew")[0].outcome == "success"
    assert events.the("claim").duration_seconds >= 3600
    assert events.the("ack").duration_seconds < 1800


# Heartbeats


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


@pytest.mark.parametrize(("timeout", "interval"), [(None, 1), (10, 5), (10, 20)])
async def test_a_heartbeat_must_fit_the_gateways_lease(shell: Shell, timeout: Any, interval: float) -> None:
    """Less than half of it, and not without one."""
    gateway = custom(shell, Core(), message_visibility_timeout_seconds=timeout)
    with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
        shell.queue(gateway=gateway, heartbeat_interval_seconds=interval)
    assert shell.queue(gateway=custom(shell, Core(), message_visibility_timeout_seconds=10), **BEATS)


# What a custom gateway does not offer


async def test_what_the_contract_has_no_operation_for_is_refused(shell: Shell) -> None:
    """There is no id, count or time to tell, and no call to repeat; the delivery itself is not disturbed."""
    core = Core("m")
    queue = shell.queue(gateway=custom(shell, core))
    assert queue.current_message() is None
    async with queue.process_message():
        with pytest.raises(GatewayContractError, match="custom gateway") as refusal:
            queue.current_message()
        assert (refusal.value.queue, refusal.value.operation) == ("q", "current_message")
    with pytest.raises(GatewayContractError, match="repeat_of") as refusal:
        await done(queue.queue.publish("a", repeat_of=PublishNotConfirmedError("lost")))
    assert (refusal.value.queue, refusal.value.operation) == ("q", "publish")
    assert core.names == ["wait_for_message_and_move", "remove_message"]


# The end of a queue


async def test_a_drained_queue_asks_its_gateway_nothing(shell: Shell) -> None:
    """There is nothing to give back; publishes are refused and no claim is made. The gateway serves others on."""
    core, events = Core("m"), shell.events()
    gateway = custom(shell, core)
    queue = shell.queue(gateway=gateway, on_event=events.listen)
    assert await queue.drain() is True
    with pytest.raises(QueueDrainedError):
        await queue.publish("a")
    assert await take(queue) is None
    assert core.calls == []
    assert events.names == []
    assert await take(shell.queue(gateway=gateway)) == "m"


async def test_a_drain_waits_for_a_publish_that_the_gateway_is_at(shell: Shell) -> None:
    """False while it is under way, True when it is in the line."""
    door = Door(shell, answer=None)
    core = Core(add_message=door)
    queue = shell.queue(gateway=custom(shell, core))
    publishing = shell.beside(lambda: queue.publish("a"))
    assert await until(door.reached.is_set)
    assert await queue.drain(timeout=0) is False
    draining = asyncio.ensure_future(shell.beside(lambda: queue.drain(timeout=PATIENCE_SECONDS)))
    await asyncio.wait({draining}, timeout=0.1)
    assert not draining.done()
    door.open()
    assert await publishing is True
    assert await draining is True


async def test_a_drain_leaves_a_handler_its_message(shell: Shell) -> None:
    """It is acknowledged through the gateway as ever."""
    core = Core("m")
    queue = shell.queue(gateway=custom(shell, core))
    async with queue.process_message():
        assert await queue.drain(timeout=PATIENCE_SECONDS) is True
    assert core.names == ["wait_for_message_and_move", "remove_message"]


async def test_an_interrupted_consumer_asks_for_nothing_more(shell: Shell) -> None:
    """The stop signal is looked at before the gateway is."""
    core, stop = Core("m"), threading.Event()
    queue = shell.queue(gateway=custom(shell, core), interrupt=EventDrivenInterruptHandler(stop))
    stop.set()
    assert await take(queue) is None
    assert core.calls == []


# Cancellation


def chain(error: BaseException | None) -> list[BaseException]:
    """The error and what it happened in the middle of, down to the first."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__context__
    return links


async def cancelled_at(door: Door, work: Any, times: int = 1) -> asyncio.Task[Any]:
    """The task of the work, cancelled while the operation is under way, and then left to end."""
    task = asyncio.ensure_future(work)
    assert await until(door.reached.is_set)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done(), "the operation was not waited for"
    door.open()
    await asyncio.wait({task})
    return task


@asyncio_only
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("operation", ["remove_message", "move_message", "trim_queue"])
async def test_an_ack_is_finished_before_a_cancellation_goes_on(shell: Shell, operation: str, times: int) -> None:
    """However often it comes: the gateway is not cut short, the events are told, the task ends cancelled."""
    door, events = Door(shell), shell.events()
    core = Core("m", **{operation: door})
    keeps = operation != "remove_message"
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen, enable_completed_queue=keeps)
    task = await cancelled_at(door, take(queue), times)
    assert task.cancelled()
    assert core.names[1:] == (["move_message", "trim_queue"] if keeps else ["remove_message"])
    assert events.names == ["claim/success", "ack/success", *(["completed/success"] if keeps else [])]


@asyncio_only
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("operation", ["remove_message", "move_message", "trim_queue"])
async def test_a_failing_handlers_error_outlasts_a_cancellation(shell: Shell, operation: str, times: int) -> None:
    """The message has left as it should, and the first cancellation is the last link of the error's chain."""
    door, events = Door(shell), shell.events()
    core = Core("m", **{operation: door})
    keeps = operation != "remove_message"
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen, enable_failed_queue=keeps)

    async def break_down_cancelled() -> None:
        async with queue.process_message():
            raise ValueError("the handler's own")

    task = await cancelled_at(door, break_down_cancelled(), times)
    assert not task.cancelled()
    assert isinstance(task.exception(), ValueError)
    assert isinstance(chain(task.exception())[-1], asyncio.CancelledError)
    assert core.names[1:] == (["move_message", "trim_queue"] if keeps else ["remove_message"])
    assert events.names == ["claim/success", "failed/failure", "nack/success"]


@asyncio_only
async def test_a_cancelled_ack_that_fails_is_a_failed_cleanup(shell: Shell) -> None:
    """What went wrong with the message is told first; the cancellation stays to be found in the chain."""
    error = LookupError("mine")
    door = Door(shell, answer=error)
    queue = shell.queue(gateway=custom(shell, Core("m", remove_message=door)))
    task = await cancelled_at(door, take(queue))
    assert isinstance(task.exception(), CleanupFailedError)
    assert task.exception().__cause__ is error
    assert any(isinstance(link, asyncio.CancelledError) for link in chain(task.exception()))


@asyncio_only
async def test_a_deadline_that_expires_in_the_cleanup_is_found_in_the_chain(shell: Shell) -> None:
    """The block raises the handler's error, not TimeoutError; from Python 3.13 on that stands in the chain as well."""
    door = Door(shell)
    core = Core("m", move_message=door)
    queue = shell.queue(gateway=custom(shell, core), enable_failed_queue=True)

    async def break_down_cancelled() -> None:
        async with asyncio.timeout(None) as deadline, queue.process_message():
            passed.append(deadline)
            raise ValueError("the handler's own")

    passed: list[asyncio.Timeout] = []
    task = asyncio.ensure_future(break_down_cancelled())
    assert await until(door.reached.is_set)
    passed[0].reschedule(asyncio.get_running_loop().time())
    assert await until(passed[0].expired)
    await asyncio.sleep(0.01)
    door.open()
    await asyncio.wait({task})
    links = [type(link) for link in chain(task.exception())]
    assert links[0] is ValueError
    assert asyncio.CancelledError in links
    assert (TimeoutError in links) == (sys.version_info >= (3, 13))
    assert core.names[1:] == ["move_message", "trim_queue"]


@asyncio_only
async def test_a_cancelled_claim_is_the_gateways_to_clean_up(shell: Shell) -> None:
    """It sees the cancellation itself, at the await where it is, and knows best what it has taken."""
    seen: list[str] = []

    async def wait(*keys: Any) -> None:
        seen.append("waits")
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    core = Core(wait_for_message_and_move=wait)
    queue = shell.queue(gateway=custom(shell, core))
    task = asyncio.ensure_future(take(queue))
    assert await until(lambda: seen)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert seen == ["waits", "cancelled"]
    assert core.names == ["wait_for_message_and_move"]
    core.answers.clear()
    core.line.append("m")
    assert await take(queue) == "m"


# The built-in gateway's own operations

HOLDS = pytest.mark.parametrize(
    "settings", [{}, {"message_visibility_timeout_seconds": 300}], ids=["without leases", "leased"]
)
READS = pytest.mark.parametrize("wiring", [Wiring(), Wiring(decode_responses=True)], ids=str)


def built_in(shell: Shell, **settings: Any) -> Any:
    """A RedisGateway that does not wait unless told to."""
    return shell.gateway(**{"message_wait_interval_seconds": 0} | settings)


def remains(shell: Shell, queue: Any) -> set[bytes]:
    """The keys of a queue besides its bell, its replies, and the records beside a list that is there."""
    prefix = f"{queue.key.prefix}{queue.key.separator}"
    keys = shell.redis.keys("*")
    records = tuple(queue.key.records(key.decode()).encode() for key in keys)
    spared = tuple(f"{prefix}{word}".encode() for word in ("bell", "reply", "meta"))
    return {key for key in keys if not key.startswith(spared) and key not in records}


def token_of(claimed: Any) -> Any:
    return claimed.lease_token if isinstance(claimed, ClaimedMessage) else None


def payload_of(claimed: Any) -> Any:
    return claimed.stored_message if isinstance(claimed, ClaimedMessage) else claimed


@READS
@HOLDS
async def test_the_seven_operations_take_a_message_through_its_life(shell: Shell, settings: dict[str, Any]) -> None:
    """On the keys of an ordinary queue; with a visibility timeout it comes with its lease, without as it is."""
    gateway = built_in(shell, **settings)
    queue = shell.queue(gateway=gateway, enable_completed_queue=True)
    line, held = queue.key.pending, queue.key.processing
    assert await done(gateway.wait_for_message_and_move(line, held)) is None
    for text in ("grün", "b", "c"):
        assert await done(gateway.add_message(line, text)) is None
    assert (shell.pending(queue), shell.processing(queue)) == (3, 0)

    first = await done(gateway.wait_for_message_and_move(line, held))
    second = await done(gateway.wait_for_message_and_move(line, held))
    assert [payload_of(first), payload_of(second)] == [shell.payload("grün"), shell.payload("b")]
    assert isinstance(first, ClaimedMessage) is bool(settings)
    assert (shell.pending(queue), shell.processing(queue)) == (1, 2)
    assert shell.redis.zcard(queue.key.leases) == (2 if settings else 0)

    removed = gateway.remove_message(held, payload_of(first), lease_token=token_of(first))
    moved = gateway.move_message(held, queue.key.completed, payload_of(second), lease_token=token_of(second))
    assert [await done(removed), await done(moved)] == [True, True]
    again = gateway.remove_message(held, payload_of(first), lease_token=token_of(first))
    assert await done(again) is False
    assert shell.listed(queue.key.completed) == [b"b"]
    assert await take(queue) == shell.payload("c")
    assert remains(shell, queue) == {queue.key.completed.encode()}


async def test_a_deduplication_key_is_remembered_as_it_is_given(shell: Shell) -> None:
    """A whole key, for the gateway's window; what a queue has published counts as well."""
    gateway = built_in(shell, message_deduplication_log_ttl_seconds=60)
    queue = shell.queue(gateway=gateway, deduplication=True, get_deduplication_key=str)
    publish = gateway.publish_message
    assert await done(publish(queue.key.pending, "a", "my own key")) is True
    assert await done(publish(queue.key.pending, "b", "my own key")) is False
    assert 0 < shell.redis.ttl("my own key") <= 60
    assert await queue.publish("c") is True
    assert await done(publish(queue.key.pending, "c", queue.key.deduplication("c"))) is False
    assert [await take(queue), await take(queue), await take(queue)] == [b"a", b"c", None]


def state(shell: Shell, queue: Any) -> list[Any]:
    """Everything that a queue has, apart from its replies."""
    return [
        *(shell.listed(key) for key in (queue.key.pending, queue.key.completed, queue.key.dead_letter)),
        *(shell.redis.hgetall(key) for key in (queue.key.processing, queue.key.deliveries)),
        shell.redis.zrange(queue.key.leases, 0, -1, withscores=True),
    ]


async def test_a_token_of_a_lease_that_was_taken_over_opens_nothing(shell: Shell) -> None:
    """It neither removes, moves nor renews; the present one does."""
    gateway = built_in(shell, message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway)
    await queue.publish("a")
    old = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    shell.lapse(queue)
    new = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    assert new.stored_message == b"a" and new.lease_token != old.lease_token
    before = state(shell, queue)
    for attempt in (
        gateway.remove_message(queue.key.processing, b"a", lease_token=old.lease_token),
        gateway.move_message(queue.key.processing, queue.key.completed, b"a", lease_token=old.lease_token),
        gateway.renew_message_lease(queue.key.processing, b"a", old.lease_token),
        gateway.remove_message(queue.key.processing, b"a"),
        gateway.move_message(queue.key.processing, queue.key.completed, b"a"),
    ):
        assert await done(attempt) is False
    assert state(shell, queue) == before
    assert await done(gateway.renew_message_lease(queue.key.processing, b"a", new.lease_token)) is True
    moved = gateway.move_message(queue.key.processing, queue.key.completed, b"a", lease_token=new.lease_token)
    assert await done(moved) is True
    assert remains(shell, queue) == {queue.key.completed.encode()}


async def test_a_token_that_is_none_of_ours_is_a_broken_contract(shell: Shell) -> None:
    """Rather than a lost lease: the caller has mixed something up. Nothing is changed."""
    gateway = built_in(shell, message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway)
    await queue.publish("a")
    claimed = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    id, _, nonce = claimed.lease_token.partition(":")
    before = state(shell, queue)
    held = queue.key.processing
    for token in ("t", id, f"{id}:", f":{nonce}", f"{id}:x", f"{id[:-2]}:{nonce}", "z" * 32 + ":1", 7, b"t", ["t"]):
        for attempt in (
            lambda token: gateway.remove_message(held, b"a", lease_token=token),
            lambda token: gateway.move_message(held, queue.key.completed, b"a", lease_token=token),
            lambda token: gateway.renew_message_lease(held, b"a", token),
        ):
            with pytest.raises(GatewayContractError, match="lease_token"):
                await done(attempt(token))
    assert await done(gateway.remove_message(held, b"a", lease_token=f"{'0' * 32}:{nonce}")) is False
    assert state(shell, queue) == before


@READS
async def test_equal_messages_without_leases_are_settled_one_by_one(shell: Shell) -> None:
    """The holder names nothing but the payload, and each is there once."""
    gateway = built_in(shell)
    queue = shell.queue(gateway=gateway)
    for _ in range(3):
        await queue.publish("a")
    held = queue.key.processing
    taken = [await done(gateway.wait_for_message_and_move(queue.key.pending, held)) for _ in range(2)]
    assert taken == [shell.payload("a")] * 2
    assert await done(gateway.remove_message(held, taken[0])) is True
    assert (shell.pending(queue), shell.processing(queue)) == (1, 1)
    assert await done(gateway.move_message(held, queue.key.failed, taken[1])) is True
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)
    assert await done(gateway.remove_message(held, taken[0])) is False
    assert await take(queue) == shell.payload("a")
    assert shell.listed(queue.key.failed) == [b"a"]


@HOLDS
async def test_only_the_holder_of_a_message_settles_it(shell: Shell, settings: dict[str, Any]) -> None:
    """Not who merely knows its payload: it may wait in the line, or be held through another gateway."""
    gateway, other = built_in(shell, **settings), built_in(shell, **settings)
    queue = shell.queue(gateway=gateway)
    await queue.publish("a")
    held = queue.key.processing
    assert await done(gateway.remove_message(held, b"a")) is False
    await done(other.wait_for_message_and_move(queue.key.pending, held))
    assert await done(gateway.remove_message(held, b"a")) is False
    assert await done(gateway.move_message(held, queue.key.completed, b"a")) is False
    assert (shell.processing(queue), shell.listed(queue.key.completed)) == (1, [])


async def test_a_renewal_gives_the_whole_lease_again(shell: Shell) -> None:
    """Where there is none to renew it says so, and makes none."""
    gateway, leaseless = built_in(shell, message_visibility_timeout_seconds=300), built_in(shell)
    queue = shell.queue(gateway=gateway)
    await queue.publish("a")
    claimed = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    ((id, deadline),) = shell.redis.zrange(queue.key.leases, 0, -1, withscores=True)
    shell.redis.zadd(queue.key.leases, {id: deadline - 200e6})
    never = EventDrivenInterruptHandler(threading.Event())
    renewed = gateway.renew_message_lease(queue.key.processing, b"a", claimed.lease_token, is_interrupted=never)
    assert await done(renewed) is True
    assert shell.redis.zscore(queue.key.leases, id) >= deadline
    shell.redis.zrem(queue.key.leases, id)
    assert await done(leaseless.renew_message_lease(queue.key.processing, b"a", claimed.lease_token)) is False
    assert shell.redis.zcard(queue.key.leases) == 0


async def test_a_list_is_trimmed_to_its_newest(shell: Shell) -> None:
    """A length that is none and a key that is no list are errors, and change nothing."""
    gateway = built_in(shell)
    shell.redis.lpush("list", "a", "b", "c")
    assert await done(gateway.trim_queue("list", 2)) is None
    assert shell.listed("list") == [b"c", b"b"]
    for length in (0, -1, True, "2", None):
        with pytest.raises(ConfigurationError, match="max_length"):
            await done(gateway.trim_queue("list", length))
    shell.redis.set("text", "value")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        await done(gateway.trim_queue("text", 1))
    assert (shell.listed("list"), shell.redis.get("text")) == ([b"c", b"b"], b"value")


@pytest.mark.parametrize(
    ("line", "held"),
    [
        *(("q:pending", "q:processing"), ("q/pending", "q/processing"), ("q_pending", "q_processing")),
        *(("{t}.pending", "{t}.processing"), ("grün→pending", "grün→processing"), ("pending", "processing")),
        *(("jobs", "jobs in hand"), ("a::pending", "b::processing"), ("processing", "pending")),
    ],
)
async def test_the_names_of_line_and_hand_are_free(shell: Shell, line: str, held: str) -> None:
    """Leases, fencing and waking work for whatever two keys are given."""
    patient = built_in(shell, message_visibility_timeout_seconds=300, message_wait_interval_seconds=PATIENCE_SECONDS)
    hasty = built_in(shell, message_visibility_timeout_seconds=0.02)
    leaseless = built_in(shell)
    waiting = shell.beside(lambda: done(patient.wait_for_message_and_move(line, held)))
    await done(hasty.add_message(line, "a"))
    claimed = await waiting
    removed = patient.remove_message(held, b"a", lease_token=claimed.lease_token)
    assert (claimed.stored_message, await done(removed)) == (b"a", True)

    await done(patient.add_message(line, "b"))
    old = await done(hasty.wait_for_message_and_move(line, held))
    new = await done(patient.wait_for_message_and_move(line, held))
    assert (old.stored_message, new.stored_message) == (b"b", b"b")
    assert await done(hasty.remove_message(held, b"b", lease_token=old.lease_token)) is False
    assert await done(patient.renew_message_lease(held, b"b", new.lease_token)) is True
    assert await done(patient.move_message(held, "done", b"b", lease_token=new.lease_token)) is True

    await done(leaseless.add_message(line, "c"))
    assert await done(leaseless.wait_for_message_and_move(line, held)) == b"c"
    assert await done(leaseless.remove_message(held, b"c")) is True
    assert shell.listed("done") == [b"b"]
    assert not shell.redis.exists(line, held)


@pytest.mark.parametrize("separator", ["::", ":", "/", "-", "_"])
async def test_gateway_and_queue_work_on_the_same_keys(shell: Shell, separator: str) -> None:
    """What one publishes the other claims; what one holds the other takes over when its lease ends."""
    queue = shell.queue(key_separator=separator, wait=PATIENCE_SECONDS)
    gateway = built_in(shell, message_visibility_timeout_seconds=300)
    line, held = queue.key.pending, queue.key.processing
    consumer = shell.beside(lambda: take(queue))
    await done(gateway.add_message(line, "a"))
    assert await consumer == b"a"

    await queue.publish("b")
    old = await done(gateway.wait_for_message_and_move(line, held))
    shell.lapse(queue)
    async with queue.process_message() as message:
        assert message == b"b" and queue.current_message().delivery_count == 2
        assert await done(gateway.remove_message(held, b"b", lease_token=old.lease_token)) is False

    await queue.publish("c")
    await claim_and_die(queue)
    shell.lapse(queue)
    taken_over = await done(gateway.wait_for_message_and_move(line, held))
    assert taken_over.stored_message == b"c"
    assert await done(gateway.remove_message(held, b"c", lease_token=taken_over.lease_token)) is True
    assert remains(shell, queue) == set()


async def test_the_operations_leave_no_keys_but_those_of_the_key_map(shell: Shell) -> None:
    """Who looks for the replies of a queue finds these among them."""
    gateway, queue = built_in(shell), shell.queue()
    await done(gateway.add_message(queue.key.pending, "a"))
    message = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    await done(gateway.remove_message(queue.key.processing, message))
    assert shell.leftovers(queue) == set()


async def test_the_operations_know_the_gateways_limits(shell: Shell) -> None:
    """What is delivered too often goes to the dead letters, what is too much is refused."""
    gateway = built_in(
        shell,
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue="graveyard",
        max_pending_length=1,
    )
    queue = shell.queue(gateway=gateway)
    await done(gateway.add_message(queue.key.pending, "a"))
    with pytest.raises(QueueBackpressureError):
        await done(gateway.add_message(queue.key.pending, "b"))
    await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    shell.lapse(queue)
    assert await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing)) is None
    assert shell.listed("graveyard") == [b"a"]
    assert remains(shell, queue) == {b"graveyard"}


@pytest.mark.parametrize("wiring", [Wiring(decode_responses=True)], ids=str)
async def test_what_cannot_be_decoded_goes_to_the_dead_letters(shell: Shell) -> None:
    """And the next message is handed over instead."""
    gateway = built_in(shell)
    queue = shell.queue(gateway=gateway)
    await done(gateway.add_message(queue.key.pending, b"\xff"))
    await done(gateway.add_message(queue.key.pending, "b"))
    assert await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing)) == "b"
    assert shell.listed(queue.key.dead_letter) == [b"\xff"]


@HOLDS
async def test_a_claim_whose_answer_was_lost_is_found_by_the_next(shell: Shell, settings: dict[str, Any]) -> None:
    """Of the same gateway object; it can be settled like any other."""
    client = shell.lossy_client()
    gateway = built_in(shell, redis_client=client, retry_budget_seconds=0, **settings)
    queue = shell.queue(gateway=gateway)
    await queue.publish("a")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    assert shell.processing(queue) == 1
    found = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    assert payload_of(found) == "a"
    removed = gateway.remove_message(queue.key.processing, "a", lease_token=token_of(found))
    assert await done(removed) is True
    assert shell.processing(queue) == 0


# Subclasses of the built-in gateway


def overriding(shell: Shell, *names: str, by: str = "class", called: list[str] | None = None, **settings: Any) -> Any:
    """A RedisGateway that notes the calls of some operations and leaves the work to the built-in ones."""
    noted = [] if called is None else called

    def override(name: str, usual: Callable[[Any], Any]) -> Callable[..., Any]:
        def plain(*arguments: Any, **named: Any) -> Any:
            noted.append(name)
            return usual(arguments[0])(*arguments[1:], **named)

        async def awaited(*arguments: Any, **named: Any) -> Any:
            return await plain(*arguments, **named)

        return plain if shell.name == "sync" else awaited

    settings = {"message_wait_interval_seconds": 0} | settings
    if by == "object":
        gateway = shell.gateway(**settings)
        for name in names:
            usual = getattr(gateway, name)
            bound = override(name, lambda self, usual=usual: usual)
            setattr(gateway, name, functools.partial(bound, gateway))
        return gateway
    made = type("Overriding", (shell.module.RedisGateway,), {})
    for name in names:
        setattr(made, name, override(name, lambda self, name=name: getattr(super(made, self), name)))
    return made(**{"redis_client": shell.client} | settings)


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


async def test_an_overriding_operation_has_the_last_word(shell: Shell) -> None:
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

    class Plain(shell.module.RedisGateway):
        def add_message(self, queue: str, message: str) -> Any:
            return super().add_message(queue, message.upper())

        def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> Any:
            return super().remove_message(queue, message, lease_token=lease_token)

    queue = shell.queue(gateway=Plain(redis_client=shell.client))
    await queue.publish("a")
    assert await take(queue) == b"A"
    assert shell.processing(queue) == 0


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


async def test_overriding_how_messages_get_out_changes_nothing_about_how_they_get_in(shell: Shell) -> None:
    """A publish tells the id that the message has in Redis; a handler gets what the contract gives."""
    events = shell.events()
    gateway = overriding(shell, "remove_message", message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway, on_event=events.listen)
    await queue.publish("a")
    async with queue.process_message() as message:
        assert message == b"a"
        assert shell.redis.hkeys(queue.key.processing) == [bytes.fromhex(events.the("publish").message_id)]
        with pytest.raises(GatewayContractError, match="custom gateway"):
            queue.current_message()
    assert events.names == ["publish/success", "claim/success", "ack/success"]
    with pytest.raises(ConfigurationError, match="repeat_of is an error of another queue"):  # so it can be repeated
        await done(queue.queue.publish("a", repeat_of=PublishNotConfirmedError("another's")))


@HOLDS
async def test_a_subclass_may_retry_around_the_built_in_operation(shell: Shell, settings: dict[str, Any]) -> None:
    """What did not reach Redis the first time is done the second time, with leases and without."""

    class Patient(shell.module.RedisGateway):
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


@pytest.mark.parametrize("separator", ["::", "/", "x"])
@pytest.mark.parametrize("operation", ["add_message", "remove_message"])
async def test_a_queue_behind_a_subclass_keeps_to_its_keys(shell: Shell, operation: str, separator: str) -> None:
    """It shares leases, bell and dead letters with an ordinary queue of the same name, whatever separates its keys."""
    gateway = overriding(shell, operation, message_visibility_timeout_seconds=300)
    queue = shell.queue(gateway=gateway, key_separator=separator)
    other = shell.queue(key_separator=separator, wait=PATIENCE_SECONDS)
    consumer = shell.beside(lambda: take(other))
    await queue.publish("a")
    assert await consumer == b"a"
    await queue.publish("b")
    await claim_and_die(queue)
    shell.lapse(other)
    assert await take(other) == b"b"
    assert remains(shell, queue) == set()


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


@pytest.mark.parametrize("leases_itself", [False, True])
async def test_what_a_subclass_says_about_itself_is_heard(shell: Shell, leases_itself: bool) -> None:
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
        assert await asyncio.wait_for(left, PATIENCE_SECONDS) == [None, None]
    finally:
        for _ in consumers:
            await shell.queue().publish("so that nobody is left behind")


async def test_a_publish_that_a_subclass_holds_up_is_let_go_when_its_queue_is_stopped(shell: Shell) -> None:
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
    draining = shell.beside(lambda: drained.drain(timeout=PATIENCE_SECONDS))
    try:
        let_go = asyncio.gather(*(asyncio.shield(publisher) for publisher in publishers), return_exceptions=True)
        outcomes = await asyncio.wait_for(let_go, PATIENCE_SECONDS)
        assert [type(outcome) for outcome in outcomes] == [QueueBackpressureError] * 2
    finally:
        while not all(publisher.done() for publisher in publishers):
            shell.redis.delete(drained.key.pending)  # there is room
            await asyncio.sleep(0.01)
        await draining


# The examples


def example(shell: Shell) -> Any:
    """The module that the how-to shows to readers who want a gateway of their own."""
    path = EXAMPLES / ("in_memory_gateway.py" if shell.name == "sync" else "asyncio/in_memory_gateway.py")
    spec = importlib.util.spec_from_file_location("in_memory_gateway", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_keeps_what_a_queue_promises(shell: Shell) -> None:
    """Four consumers handle each message once; duplicates are suppressed, failures kept, lists trimmed."""
    gateway = example(shell).InMemoryGateway()
    queue = shell.queue(
        gateway=gateway, deduplication=True, enable_completed_queue=True, enable_failed_queue=True, max_failed_length=1
    )
    texts = [f"job {number}" for number in range(40)]
    assert [await queue.publish(text) for text in (*texts, texts[0])] == [True] * 40 + [False]
    handled: list[Any] = []

    async def consume() -> None:
        while await queue.process_message_callback(handled.append):
            pass

    await asyncio.gather(*(shell.beside(consume) for _ in range(4)))
    assert sorted(handled) == sorted(texts)
    assert sorted(gateway.lists[queue.key.completed]) == sorted(texts)
    for text in ("x", "y"):
        await queue.publish(text)
        assert await fail(queue, ValueError()) == text
    assert list(gateway.lists[queue.key.failed]) == ["y"]
    assert not gateway.lists[queue.key.pending] and not gateway.lists[queue.key.processing]


async def test_the_example_wakes_a_consumer_that_waits(shell: Shell) -> None:
    """A message that arrives during the wait is handed over then, to one of those who wait."""
    gateway = example(shell).InMemoryGateway(wait_seconds=PATIENCE_SECONDS)
    queue = shell.queue(gateway=gateway)
    consumers = [shell.beside(lambda: take(queue)) for _ in range(2)]
    await asyncio.sleep(0.05)
    for text in ("a", "b"):
        await queue.publish(text)
    taken = await asyncio.wait_for(asyncio.gather(*consumers), PATIENCE_SECONDS)
    assert set(taken) <= {"a", "b", None} and taken != [None, None]


@sync_only
async def test_the_example_with_leases_fences(shell: Shell) -> None:
    """A consumer that was too slow finds its message gone, and its ack settles nothing of the next holder's."""
    events = shell.events()
    gateway = example(shell).InMemoryGateway(lease_seconds=0.05, most_deliveries=2)
    slow, quick = shell.queue(gateway=gateway, on_event=events.listen), shell.queue(gateway=gateway)
    await slow.publish("a")
    async with slow.process_message():
        context = quick.process_message()
        while await context.__aenter__() is None:
            context = quick.process_message()
    assert events.names[-1] == "stale_lease_ack/skipped"
    await context.__aexit__(None, None, None)
    assert await take(quick) is None
    assert not gateway.lists["dead letters"]
