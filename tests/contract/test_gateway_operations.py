"""The queue uses the seven operations of a custom gateway as documented."""

import hashlib
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from redis_message_queue import (
    ClaimedMessage,
    ConfigurationError,
    GatewayContractError,
    PayloadTooLargeError,
    PublishNotConfirmedError,
)
from redis_message_queue.process.local_runtime import LocalRuntime
from tests.contract.custom_gateways import BEATS, HELD, LEASED, Core, custom, done
from tests.contract.shells import (
    Shell,
    claim_and_die,
    fail,
    take,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Gateways")


async def break_down(queue: Any) -> Any:
    """Claim a message whose handler raises."""
    return await fail(queue, ValueError("the handler's own"))


# Calls


@pytest.mark.promise("A subclass of `AbstractRedisGateway` has seven operations, and the queue uses only these.")
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


@pytest.mark.promise(
    "Payload checks, deduplication functions, drains and interrupts apply before a custom gateway is called."
)
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


@pytest.mark.promise(
    "Payload checks, deduplication functions, drains and interrupts apply before a custom gateway is called."
)
async def test_the_gateway_decides_what_is_a_duplicate(shell: Shell) -> None:
    """Its False is the publish's False, and an event of its own."""
    events = shell.events()
    core = Core(publish_message=False)
    queue = shell.queue(gateway=custom(shell, core), deduplication=True, on_event=events.listen)
    assert await queue.publish("a") is False
    assert events.names == ["publish_dedup_hit/skipped"]


@pytest.mark.promise(
    "Payload checks, deduplication functions, drains and interrupts apply before a custom gateway is called."
)
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


@pytest.mark.promise("A subclass of `AbstractRedisGateway` has seven operations, and the queue uses only these.")
async def test_a_message_is_claimed_and_then_leaves_as_its_handler_ended(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """Removed, or moved and that list trimmed where it has a limit; an exit that is no `Exception` touches nothing."""
    cases: list[Any] = [
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
    ]
    for options, end, settling in cases:
        with row(subtests, options=options, end=end, settling=settling):
            shell.redis.flushall()
            core = Core("m")
            queue = shell.queue(gateway=custom(shell, core), **options)
            assert await end(queue) == "m"
            assert core.calls == [("wait_for_message_and_move", "q::pending", "q::processing"), *settling]


@pytest.mark.promise("A subclass of `AbstractRedisGateway` has seven operations, and the queue uses only these.")
async def test_an_empty_claim_calls_the_gateway_once(shell: Shell) -> None:
    """How long to wait is the gateway's affair."""
    core, events = Core(), shell.events()
    queue = shell.queue(gateway=custom(shell, core), on_event=events.listen)
    assert await take(queue) is None
    assert await queue.process_message_callback(lambda message: None) is False
    assert core.names == ["wait_for_message_and_move"] * 2
    assert events.names == ["claim_empty/skipped"] * 2


@pytest.mark.promise(
    "A gateway with `message_visibility_timeout_seconds` must return a `ClaimedMessage`; a plain `str` or `bytes` is "
    "an error."
)
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


@pytest.mark.promise("A subclass of `AbstractRedisGateway` has seven operations, and the queue uses only these.")
async def test_every_key_is_the_queues_own(shell: Shell) -> None:
    """With the separator that it was given."""
    core = Core("m")
    queue = shell.queue("jobs", gateway=custom(shell, core), key_separator="/", enable_completed_queue=True)
    await queue.publish("a")
    await take(queue)
    assert [call[1] for call in core.calls] == ["jobs/pending", "jobs/pending", "jobs/processing", "jobs/completed"]
    assert queue.key.completed == "jobs/completed"


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
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


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
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


# What the handler receives


@pytest.mark.promise("A handler receives what the gateway returned, unchanged.")
async def test_a_handler_gets_the_message_as_it_was_handed_over(shell: Shell, subtests: pytest.Subtests) -> None:
    """Nothing is decoded or parsed, and an empty message is one; cleaning up names the same."""
    every_handed: list[Any] = [
        ("text", "text"),
        (b"bytes \xff", b"bytes \xff"),
        ("", ""),
        (b"", b""),
        (ClaimedMessage("text", "t"), "text"),
        (ClaimedMessage(b"\x00\xff", "t"), b"\x00\xff"),
        (ClaimedMessage("", "t"), ""),
    ]
    every_leased: list[Any] = [False, True]
    for (handed, received), leased in product(every_handed, every_leased):
        with row(subtests, handed=handed, received=received, leased=leased):
            shell.redis.flushall()
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


@pytest.mark.promise(
    "A gateway without `message_visibility_timeout_seconds` has no leases: it gets no token, and heartbeats are "
    "refused."
)
async def test_leases_that_a_gateway_does_not_speak_of_are_not_watched(shell: Shell) -> None:
    """Plain and claimed messages are both fine then; a token that came along is handed back, heartbeats are refused."""
    core = Core("plain", ClaimedMessage("claimed", "t"))
    gateway = custom(shell, core)
    queue = shell.queue(gateway=gateway)
    assert [await take(queue), await take(queue)] == ["plain", "claimed"]
    assert [call[-1] for call in core.calls[1::2]] == [{"lease_token": None}, {"lease_token": "t"}]
    with pytest.raises(ConfigurationError, match="heartbeat_interval_seconds"):
        shell.queue(gateway=gateway, **BEATS)


# Events


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
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


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
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
    monkeypatch.setattr(LocalRuntime, "now", staticmethod(lambda: time.monotonic() + ahead[0]))

    def move_on() -> None:
        ahead[0] += 3600

    return move_on


@pytest.mark.promise("With a custom gateway, a lost lease, a failed renewal and a failed trim emit the usual events.")
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
    assert (events.the("claim").duration_seconds or 0) >= 3600
    assert 0 < (events.the("ack").duration_seconds or 0) < 1800


# Unsupported features


@pytest.mark.promise("A feature for which a custom gateway has no operation is refused with `GatewayContractError`.")
async def test_what_the_contract_has_no_operation_for_is_refused(shell: Shell) -> None:
    """There is no id, count or time, and no call to repeat; the delivery itself is not disturbed."""
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
