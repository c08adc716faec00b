"""A hand-off happens once or not at all: with a lost lease, lost replies, and in its events."""

import asyncio
import logging
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_message_queue.protocol.calls import Calls
from tests.contract.hand_offs import complete, everything, hand_off, waiting
from tests.contract.shells import (
    Awaited,
    Shell,
    claim_and_die,
    take,
)

pytestmark = pytest.mark.topic("Hand-off")


# Leases


@pytest.mark.promise("A hand-off without a valid lease publishes nothing and raises `LeaseLostError`.")
async def test_a_consumer_that_lost_its_lease_hands_nothing_off(shell: Shell) -> None:
    """The new holder has it: nothing is published, and nothing of it is changed."""
    events = shell.events()
    queue, results = shell.queue(wait=0, on_event=events.listen), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        shell.lapse(queue)
        assert await claim_and_die(queue) == b"m"
        before = everything(shell)
        with pytest.raises(shell.module.LeaseLostError) as caught:
            await complete(batch[0], (results, "late"))
        assert (caught.value.queue, caught.value.message_id) == ("q", batch[0].id)
        assert everything(shell) == before
    assert events.names[-1] == "stale_lease_ack/skipped"
    assert (await Awaited(queue).stats()).processing == 1


@pytest.mark.promise("A lease that ran out stays valid until another consumer claims the message.")
async def test_a_lease_that_ran_out_stays_valid_until_another_consumer_claims(shell: Shell) -> None:
    """Without tenants, and with them, where it has returned to its line already."""
    results = shell.queue("results")
    for tenant in (None, "a"):
        queue = shell.queue(wait=0)
        await queue.publish("slow", tenant=tenant)
        async with queue.process_messages(1) as batch:
            shell.lapse(queue)
            if tenant:
                await queue.publish("other", tenant="b")
                assert await take(queue) == b"other"
                assert await Awaited(queue).tenants() == {"a": 1}
            await complete(batch[0], (results, "in time"))
        assert await take(queue) is None
        assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()
    assert await waiting(results) == [b"in time"] * 2


@pytest.mark.promise("A completed message has no lease to lose and reports none.")
async def test_the_heartbeat_of_a_completed_message_ends(shell: Shell) -> None:
    """Nobody is told of a lease that was lost: there is none to lose."""
    failures: list[str] = []
    queue = shell.queue(
        visibility_timeout_seconds=5,
        heartbeat_interval_seconds=0.02,
        on_heartbeat_failure=shell.callback(lambda: failures.append("failed")),
    )
    events = shell.events()
    listening = shell.queue("q", on_event=events.listen, visibility_timeout_seconds=5, heartbeat_interval_seconds=0.02)
    results = shell.queue("results")
    for consumer in (queue, listening):
        await queue.publish("m")
        async with consumer.process_messages(1) as batch:
            await complete(batch[0], (results, "r"))
            assert not batch[0].lease_lost
            await asyncio.sleep(0.1)
            assert not batch[0].lease_lost
    assert failures == []
    assert not [name for name in events.names if "stale" in name]


@pytest.mark.promise("A hand-off works in queues without leases.")
async def test_at_most_once_queues_hand_off_as_well(shell: Shell) -> None:
    """Without leases there is nothing to lose but the message itself."""
    queue, results = shell.queue(visibility_timeout_seconds=None), shell.queue("results")
    await queue.publish("m")
    await hand_off(queue, (results, "r"))
    assert await waiting(results) == [b"r"]
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


# Events


@pytest.mark.promise(
    "The source emits `ack` and `handed_off`, each target emits its publishes, and a failed trim is reported as after "
    "an ack."
)
async def test_events_are_emitted_for_both_sides(shell: Shell) -> None:
    """The source of an ack and a hand-off, each target of what was published there, with the ids that it has."""
    heard, there = shell.events(), shell.events()
    queue = shell.queue(on_event=heard.listen, enable_completed_queue=True)
    results = shell.queue("results", on_event=there.listen)
    await queue.publish("m")
    heard.clear()
    await hand_off(queue, (results, "a"), (results, "b"))
    assert heard.names == ["claim/success", "ack/success", "completed/success", "handed_off/success"]
    assert there.names == ["publish/success"] * 2
    assert [event.message_id for event in there.all] == [one.id for one in await Awaited(results).peek()]


@pytest.mark.promise(
    "The source emits `ack` and `handed_off`, each target emits its publishes, and a failed trim is reported as after "
    "an ack."
)
async def test_a_list_that_cannot_be_trimmed_emits_an_event(shell: Shell, user_without_ltrim: dict[str, str]) -> None:
    """As after an ack."""
    events = shell.events()
    queue = shell.queue(
        client=shell.new_client(**user_without_ltrim),
        enable_completed_queue=True,
        max_completed_length=1,
        on_event=events.listen,
    )
    for text in "ab":
        await queue.publish(text)
        await hand_off(queue)
    assert shell.listed(queue.key.completed) == [b"b", b"a"]
    assert "trim_failed/failure" in events.names


@pytest.mark.promise("No event, error or log line contains a payload.")
async def test_events_of_a_hand_off_contain_no_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of the message nor of its results: in events, errors and log lines, where it works and where it fails."""
    secret, heard, errors = "s3cret", shell.events(), []
    client = shell.lossy_client()
    options: dict[str, Any] = {"on_event": heard.listen, "client": client, "wait": 0}
    queue = shell.queue(**options, retry_budget_seconds=0, enable_completed_queue=True)
    full = shell.queue("full", max_pending_length=1, **options)
    small = shell.queue("small", max_payload_bytes=1, **options)
    spoiled, results = shell.queue("spoiled", **options), shell.queue("results", deduplication=True, **options)
    shell.redis.set(spoiled.key.pending, "no list")

    async def fails(message: Any, *publish: tuple[Any, ...]) -> None:
        with pytest.raises(Exception) as caught:  # whatever it is, it is looked at below
            await complete(message, *publish)
        errors.append(caught.value)

    with caplog.at_level(logging.DEBUG):
        await queue.publish_many([secret] * 3)
        async with queue.process_messages(3) as batch:
            await complete(batch[0], (results, secret), (results, secret), (full, secret, {"tenant": "t"}))
            await fails(batch[0], (results, secret))
            for target in (full, small, spoiled):
                await fails(batch[1], (target, secret))
            await fails(batch[1], (results, {"k": {secret}}))
            await fails(batch[1], (results, secret, {"delay_seconds": -1}))
            await fails(batch[1], secret)  # type: ignore[arg-type]  # no pair
            client.losses.reply()
            await fails(batch[1], (results, secret))
            await fails(batch[1], (results, secret))
            shell.lapse(queue)
            await claim_and_die(queue)
            await fails(batch[2], (results, secret))
    assert len(errors) == 10
    told = {event.operation for event in heard.all}
    assert {"handed_off", "publish_dedup_hit", "stale_lease_ack"} <= told
    assert [event for event in heard.all if secret in repr(event)] == []
    assert [error for one in errors for error in chain(one) if secret in f"{error!r} {error}"] == []
    assert secret not in caplog.text


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and what led to it."""
    return [] if error is None else [error, *chain(error.__cause__ or error.__context__)]


# When answers are lost


@pytest.mark.promise(
    "A hand-off that is retried after a lost reply takes effect once, and one that arrives late publishes nothing."
)
async def test_a_lost_answer_hands_off_once(shell: Shell) -> None:
    """However often the call is sent: the message leaves once, and each result enters once, where keys count or not."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, enable_completed_queue=True)
    plain, strict = shell.queue("plain", client=client), shell.queue("strict", client=client, deduplication=True)
    await queue.publish_many(["a", "b", "c"])
    for losses in (("reply",), ("request",), ("reply", "request", "reply")):
        async with queue.process_messages(1) as batch:
            message = batch[0]
            for one in losses:
                getattr(client.losses, one)()
            await complete(message, *((target, f"of {message.payload}") for target in (plain, strict)))
    for target in (plain, strict):
        assert [one.payload for one in await Awaited(target).peek()] == ["of a", "of b", "of c"]
    assert shell.listed(queue.key.completed) == [b"c", b"b", b"a"]
    assert (await Awaited(queue).stats()).processing == 0


@pytest.mark.promise(
    "If Redis is unreachable, a hand-off happened whole or not at all, and repeating one that arrived is refused."
)
async def test_when_redis_is_out_of_reach_nothing_is_certain_and_nothing_is_doubled(shell: Shell) -> None:
    """The error says so; a second try of the handler after the first one had arrived is refused."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, retry_budget_seconds=0)
    results = shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        client.losses.reply()
        with pytest.raises(shell.module.CleanupFailedError, match="all of it has happened, or nothing"):
            await complete(batch[0], (results, "r"))
        with pytest.raises(shell.module.LeaseLostError):
            await complete(batch[0], (results, "r"))
    assert await waiting(results) == [b"r"]
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


async def test_a_new_target_is_no_sign_of_a_flushed_server(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Its state is written at its first contact, in one more round trip; the state of the source is not missing."""
    queue, results = shell.queue(wait=0), shell.queue("results")
    shell.redis.delete(results.key.meta)
    await queue.publish_many(["a", "b"])
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        await hand_off(queue, (results, "r"))
        await hand_off(queue, (results, "s"))
    assert caplog.records == []
    assert await waiting(results) == [b"r", b"s"]


async def test_a_target_whose_state_is_lost_again_gets_its_result(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover to a stale replica may lose what has just been written."""
    queue, results = shell.queue(wait=0), shell.queue("results")
    shell.redis.delete(results.key.meta)
    await queue.publish("m")
    write_state, written = Calls.write_state, list[str]()

    async def write_and_lose_it_once(calls: Calls, *arguments: Any, **options: Any) -> None:
        await write_state(calls, *arguments, **options)
        written.append(calls.keys.prefix)
        if len(written) == 1:
            shell.redis.delete(results.key.meta)

    monkeypatch.setattr(Calls, "write_state", write_and_lose_it_once)
    await hand_off(queue, (results, "r"))
    assert written == ["results", "results"]
    assert await waiting(results) == [b"r"]


@pytest.mark.promise("`complete()` raises `CleanupFailedError` if Redis did not confirm it, and never a Redis error.")
@pytest.mark.parametrize("budget", [0, 0.05])
@pytest.mark.parametrize("has_results", [False, True])
async def test_a_hand_off_without_a_reply_raises_our_own_error(shell: Shell, budget: float, has_results: bool) -> None:
    """With and without results or retries. The error names the message, and its cause is what Redis or we said."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=budget, on_event=events.listen)
    results = shell.queue("results", client=client)
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        message = batch[0]
        client.losses.request(10_000)
        with pytest.raises(shell.module.CleanupFailedError) as caught:
            await complete(message, *([(results, "r")] if has_results else []))
        client.losses.heal()
        error = caught.value
        assert (error.queue, error.message_id, error.operation) == ("q", message.id, "complete")
        cause = shell.module.RetryBudgetExhaustedError if budget else redis.ConnectionError
        assert isinstance(error.__cause__, cause)
        assert events.the("cleanup_failed").message_id == message.id
        await complete(message, *([(results, "r")] if has_results else []))
    assert await waiting(results) == (["r"] if has_results else [])
    assert {key for key in shell.leftovers(queue) if key.startswith(b"q::")} == set()


@pytest.mark.promise("`complete()` raises `CleanupFailedError` if Redis did not confirm it, and never a Redis error.")
async def test_a_target_that_cannot_be_looked_for_is_our_own_error_too(shell: Shell) -> None:
    """Whether both queues are in one place is asked before anything is sent, and so the error says."""
    client = shell.new_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0)
    await queue.publish("m")
    results = shell.queue("results", client=shell.new_client())
    async with queue.process_messages(1) as batch:
        shell.redis.config_set("maxclients", 1)
        shell.redis.client_kill_filter(_type="normal", skipme=True)
        try:
            with pytest.raises(shell.module.CleanupFailedError, match="nothing was published"):
                await complete(batch[0], (results, "r"))
        finally:
            shell.redis.config_set("maxclients", 10_000)
        await complete(batch[0], (results, "r"))
    assert await waiting(results) == [b"r"]


@pytest.mark.promise(
    "A message whose `complete()` got no reply is left to its lease, like one whose acknowledgement got none."
)
@pytest.mark.parametrize("way", ["block", "callback", "run"])
@pytest.mark.parametrize("has_arrived", [False, True])
async def test_a_hand_off_without_a_reply_does_not_fail_its_message(
    shell: Shell, way: str, has_arrived: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis was out of reach, which is no fault of the message: it is neither removed nor a dead letter."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0, on_event=events.listen)
    results = shell.queue("results", client=client)
    await queue.publish("m")

    def handler(given: Any) -> Any:
        """Returns a coroutine if it is async."""
        (client.losses.reply if has_arrived else client.losses.request)()
        message = given if way == "run" else queue.current_message()
        return message.complete(publish=[(results.queue, "r")])

    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        if way == "run":
            summary = await queue.run(handler, until_empty=True)
            assert (summary.attempts, summary.handled, summary.failed) == (1, 0, 0)
        else:
            with pytest.raises(shell.module.CleanupFailedError):
                if way == "callback":
                    await queue.process_message_callback(handler)
                else:
                    async with queue.process_message() as payload:
                        if (awaitable := handler(payload)) is not None:
                            await awaitable
    assert "could not be completed; if Redis still has it" in caplog.text
    assert events.of("nack") == events.of("dlq") == []
    if not has_arrived:
        shell.lapse(queue)
    assert await take(queue) == (None if has_arrived else "m")
    assert await waiting(results) == (["r"] if has_arrived else [])
    assert shell.listed(queue.key.dead_letter) == []
