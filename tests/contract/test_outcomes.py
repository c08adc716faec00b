"""A handler decides what becomes of its message: it is retried later, discarded, or a dead letter."""

import itertools
import logging
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, DeadLetter, Discard, RetryLater, RetryPolicy
from tests.contract.custom_gateways import Core, custom
from tests.contract.shells import EVERY_WIRING, Awaited, Shell, claim_and_die, take, take_over
from tests.contract.test_run_queues import run_queues
from tests.tables import row

pytestmark = pytest.mark.topic("What a handler decides")

OUTCOMES = [RetryLater(60), Discard("no"), DeadLetter("no")]

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)


async def raise_in_block(queue: Any, outcome: Exception) -> Any:
    """Raise it in a block with the next message; return what the message was."""
    async with queue.process_message() as message:
        assert message is not None
        received = queue.current_message()
        raise outcome
    return received


@pytest.mark.promise(
    "`raise RetryLater(delay_seconds=60)` delivers the message again after that time, and counts as an attempt."
)
@every_wiring
async def test_a_message_is_retried_later(shell: Shell) -> None:
    """The block ends normally. The delay is measured by the server's clock."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, wait=0)
    await queue.publish("m", tenant="a")
    before = shell.server_time
    first = await raise_in_block(queue, RetryLater(delay_seconds=60))
    after = shell.server_time
    assert events.names[-1] == "retried/success" and not events.of("failed")
    (seen,) = await Awaited(queue).peek(source="delayed")
    assert (seen.due_at - before).total_seconds() > 59.9 and (seen.due_at - after).total_seconds() <= 60
    assert await take(queue) is None
    shell.ripen(queue)
    async with queue.process_message():
        again = queue.current_message()
    assert (first.attempt, again.attempt, again.id, again.tenant) == (1, 2, first.id, "a")
    assert not shell.leftovers(queue)


@pytest.mark.promise(
    "At the limit, `max_attempts` of the policy or else `max_delivery_count`, `RetryLater` sends the message to the "
    "dead letters."
)
@pytest.mark.parametrize(
    "options",
    [{"max_delivery_count": 3}, {"retry_policy": RetryPolicy(max_attempts=3)}],
    ids=["delivery limit", "policy"],
)
async def test_the_attempts_of_retry_later_are_limited(shell: Shell, options: dict[str, Any]) -> None:
    """The record tells what the handler could not do, if it says so."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, wait=0, **options)
    await queue.publish("m")
    for attempt in range(3):
        if attempt:
            shell.ripen(queue)
        async with queue.process_message() as message:
            assert message is not None
            raise RetryLater(100) from TimeoutError("no answer")
    assert shell.listed(queue.key.dead_letter) == [b"m"]
    (record,) = await queue.records("dead_letters")
    assert (record.reason, record.error_type, record.error) == ("attempts used up", "TimeoutError", "no answer")
    assert len(events.of("retried")) == 2 and len(events.of("dlq")) == 1
    assert shell.leftovers(queue) == {queue.key.dead_letter.encode()}


async def test_crashes_count_among_the_attempts_without_a_policy(shell: Shell) -> None:
    """The limit is one of deliveries: a message that crashed a consumer has fewer attempts left."""
    queue = shell.queue(wait=0, max_delivery_count=2)
    await queue.publish("m")
    await claim_and_die(queue)
    shell.lapse(queue)
    await raise_in_block(queue, RetryLater(100))
    assert shell.listed(queue.key.dead_letter) == [b"m"]


async def test_without_any_limit_a_message_can_be_put_off_for_ever(shell: Shell) -> None:
    queue = shell.queue(wait=0, max_delivery_count=None)
    await queue.publish("m")
    for _ in range(15):
        await raise_in_block(queue, RetryLater(100))
        shell.ripen(queue)
    assert await take(queue) == shell.payload("m")


@pytest.mark.promise(
    "`raise Discard(reason)` removes the message with an event, a log line and a journal entry; a completed list keeps "
    "it with the reason."
)
@pytest.mark.parametrize("kept", [False, True], ids=["nothing kept", "completed list"])
async def test_a_message_is_discarded(shell: Shell, kept: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is no failure: neither the failed list nor the dead letters get it."""
    caplog.set_level(logging.INFO, "redis_message_queue")
    events = shell.events()
    queue = shell.queue(
        on_event=events.listen, enable_failed_queue=True, enable_completed_queue=kept, journal=True, wait=0
    )
    await queue.publish("m")
    first = await raise_in_block(queue, Discard("the customer is gone"))
    assert [name for name in events.names if not name.startswith(("publish", "claim"))] == ["discarded/success"]
    assert isinstance(events.the("discarded").error, Discard)
    assert f"q: message {first.id} was discarded by its handler: the customer is gone" in caplog.messages
    last = shell.redis.xrevrange(queue.key.journal, count=1)[0][1]
    assert (last[b"event"], last[b"reason"]) == (b"discarded", b"the customer is gone")
    assert shell.listed(queue.key.failed) == shell.listed(queue.key.dead_letter) == []
    assert shell.processing(queue) == 0
    if kept:
        (record,) = await queue.records("completed")
        assert (record.payload, record.reason) == (shell.payload("m"), "the customer is gone")
    else:
        assert not shell.listed(queue.key.completed)


@pytest.mark.promise("`raise DeadLetter(reason)` moves the message to the dead letters at once, with the reason.")
@pytest.mark.parametrize(
    "options",
    [{}, {"retry_policy": RetryPolicy()}, {"enable_failed_queue": True}, {"visibility_timeout_seconds": None}],
    ids=["plain", "policy", "failed list", "no leases"],
)
async def test_a_message_becomes_a_dead_letter(shell: Shell, options: dict[str, Any]) -> None:
    """Whatever the options say about failures."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen, wait=0, **options)
    await queue.publish("m")
    await raise_in_block(queue, DeadLetter("no such customer"))
    assert shell.listed(queue.key.dead_letter) == [b"m"] and not shell.listed(queue.key.failed)
    (record,) = await queue.records("dead_letters")
    assert (record.reason, record.error_type) == ("no such customer", "DeadLetter")
    assert events.names[-2:] == ["nack/success", "dlq/success"] and not events.of("failed")
    assert await Awaited(queue).redrive_dead_letters()
    assert await take(queue) == shell.payload("m")


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
async def test_a_callback_decides_too(shell: Shell, outcome: Exception) -> None:
    queue = shell.queue(wait=0)
    await queue.publish("m")

    def handle(message: Any) -> None:
        raise outcome

    assert await queue.process_message_callback(shell.callback(handle)) is True
    stats = await queue.stats()
    assert (stats.pending, stats.processing, stats.delayed + stats.dead_letters) == (
        0,
        0,
        0 if isinstance(outcome, Discard) else 1,
    )


@pytest.mark.promise("`RetryLater`, `Discard` and `DeadLetter` work in handlers of `run()` and with `batch.fail()`.")
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_handlers_of_a_loop_decide(shell: Shell, concurrency: int) -> None:
    """The summary counts messages, and attempts apart."""
    queue = shell.queue(max_delivery_count=2)
    await queue.publish_many(["later", "discard", "dead", "fail", "fine"])

    def handle(message: Any) -> None:
        text = message.payload if isinstance(message.payload, str) else message.payload.decode()
        if text == "later" and message.attempt == 1:
            raise RetryLater(0.1)
        if text == "discard":
            raise Discard("not wanted")
        if text == "dead":
            raise DeadLetter("hopeless")
        if text == "fail":
            raise ValueError("broken")

    options = {"until_empty": True, "wait_for_retries": True, "concurrency": concurrency}
    summary = await queue.run(shell.callback(handle), **options)
    assert (summary.handled, summary.dead_lettered, summary.discarded, summary.retried) == (2, 2, 1, 1)
    assert (summary.failed, summary.refused_at_claim) == (0, 0)
    assert (summary.attempts, summary.requeued) == (6, 0)
    assert sorted(shell.listed(queue.key.dead_letter)) == [b"dead", b"fail"]


@pytest.mark.promise(
    "A message that ended counts once: handled, discarded, failed, dead-lettered or refused at its claim."
)
async def test_the_outcomes_of_a_loop_are_disjoint(shell: Shell, subtests: pytest.Subtests) -> None:
    """Wherever a message ends, one number of the summary has it: as many as the list that it is in."""
    endings: dict[str, tuple[dict[str, Any], Exception, tuple[int, int, int]]] = {
        "the failed list": ({"enable_failed_queue": True}, ValueError(), (2, 0, 1)),
        "dead letters instead of a failed list": ({}, ValueError(), (0, 2, 1)),
        "no attempt is left": ({"retry_policy": RetryPolicy(max_attempts=1)}, ValueError(), (0, 2, 1)),
        "the policy gives up": ({"retry_policy": RetryPolicy(give_up_on=(ValueError,))}, ValueError(), (0, 2, 1)),
        "the handler decides": ({"enable_failed_queue": True}, DeadLetter("hopeless"), (0, 2, 1)),
        "the handler discards": ({"enable_failed_queue": True}, Discard("unwanted"), (0, 0, 1)),
    }
    for (name, (options, error, expected)), size in itertools.product(endings.items(), (None, 2)):
        if size is not None and isinstance(error, ValueError) and "retry_policy" not in options:
            continue  # the whole list is requeued
        with row(subtests, name=name, batch_size=size):
            queue = shell.queue(f"{name} {size}".replace(" ", "-"), **options)
            await queue.publish_many(["a", "b"])
            shell.redis.lpush(queue.key.pending, b"foreign")

            def fail(message: Any, error: Exception = error) -> None:
                raise error

            if len(queue.key.pending) % 2:  # half of them beside other queues
                loop = run_queues(shell, {queue: 1}, shell.callback(fail), batch_size=size, until_empty=True)
                (summary,) = await loop
            else:
                summary = await queue.run(shell.callback(fail), batch_size=size, until_empty=True)
            assert (summary.failed, summary.dead_lettered, summary.refused_at_claim) == expected
            assert summary.discarded == (2 if isinstance(error, Discard) else 0)
            stats = await Awaited(queue).stats()
            assert (stats.failed, stats.dead_letters) == (expected[0], expected[1] + expected[2])


async def test_an_outcome_of_a_batch_is_that_of_each_message(shell: Shell) -> None:
    """A handler that is called with a list decides about all of it."""
    queue = shell.queue()
    await queue.publish_many(["a", "b", "c"])

    def handle(messages: Any) -> None:
        raise Discard("all of them")

    summary = await queue.run(shell.callback(handle), batch_size=3, until_empty=True)
    assert (summary.discarded, summary.attempts, summary.requeued) == (3, 3, 0)
    assert not shell.leftovers(queue)


async def test_a_batch_settles_single_messages_so(shell: Shell) -> None:
    queue = shell.queue()
    await queue.publish_many(["later", "discard", "dead"])
    async with queue.process_messages(3) as batch:
        later, discard, dead = batch
        assert await batch.fail(later, RetryLater(60))
        assert await batch.fail(discard, Discard("no"))
        assert await batch.fail(dead, DeadLetter("no"))
    stats = await queue.stats()
    assert (stats.delayed, stats.dead_letters, stats.processing, stats.pending) == (1, 1, 0, 0)


@pytest.mark.promise("Whoever lost the lease can neither discard a message nor retry it later.")
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: type(one).__name__)
async def test_a_lost_message_is_left_alone(shell: Shell, outcome: Exception) -> None:
    """The consumer that has it now settles it."""
    events = shell.events()
    queue = shell.queue(on_event=events.listen)
    await queue.publish("m")
    async with queue.process_message() as message:
        await take_over(shell, queue.current_message())
        events.clear()
        raise outcome
    assert message == shell.payload("m")
    assert events.names == ["stale_lease_nack/skipped"]


async def test_an_outcome_that_redis_did_not_confirm_leaves_the_block(shell: Shell) -> None:
    """The caller must not take the message for settled."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, retry_budget_seconds=0)
    await queue.publish("m")
    with pytest.raises(Discard):
        async with queue.process_message() as message:
            assert message == "m"
            client.losses.request(only="settle")
            raise Discard("no")
    assert shell.processing(queue) == 1


async def test_a_custom_gateway_removes_and_moves(shell: Shell) -> None:
    """It cannot retry later: such a message fails as with any exception, which reaches the caller."""
    core = Core("first", "second", "third")
    queue = shell.queue(gateway=custom(shell, core))
    for outcome in (Discard("no"), DeadLetter("no")):
        async with queue.process_message():
            raise outcome
    assert core.names == ["wait_for_message_and_move", "remove_message", "wait_for_message_and_move", "move_message"]
    assert core.calls[-1][:4] == ("move_message", queue.key.processing, queue.key.dead_letter, "second")
    with pytest.raises(RetryLater):
        async with queue.process_message():
            raise RetryLater(1)
    assert core.names[-1] == "remove_message"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RetryLater(-1), "delay_seconds must be at least 0, not -1"),
        (lambda: RetryLater("soon"), "delay_seconds must be a number"),  # type: ignore[arg-type]
        (lambda: RetryLater(float("nan")), "delay_seconds must be a finite number"),
        (lambda: Discard(""), "reason must not be empty"),
        (lambda: DeadLetter(None), "reason must be a str"),  # type: ignore[arg-type]
    ],
)
def test_outcomes_that_make_no_sense_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make()


# The end of a loop


@pytest.mark.promise("`run(until_empty=True, wait_for_retries=True)` waits for the next attempts of what it retries.")
async def test_a_loop_waits_for_its_retries_if_asked(shell: Shell) -> None:
    """Without it the loop ends, and the message waits for another consumer."""
    policy = RetryPolicy(initial_delay_seconds=0.3, jitter=0, max_attempts=3)
    queue, seen = shell.queue(retry_policy=policy), []
    await queue.publish("m")
    await queue.publish("much later", delay_seconds=3600)

    def handle(message: Any) -> None:
        seen.append(message.attempt)
        if message.attempt < 3:
            raise ValueError("not yet")

    summary = await queue.run(shell.callback(handle), until_empty=True)
    assert (seen, summary.retried, summary.attempts, summary.dead_lettered) == ([1], 1, 1, 0)
    shell.ripen(queue)
    shell.redis.zadd(queue.key.delayed, {shell.redis.zrange(queue.key.delayed, 1, 1)[0]: 1e17})
    summary = await queue.run(shell.callback(handle), until_empty=True, wait_for_retries=True)
    assert (seen, summary.retried, summary.attempts, summary.handled) == ([1, 2, 3], 1, 2, 1)
    assert (await queue.stats()).delayed == 1


async def test_a_loop_does_not_wait_for_a_retry_that_another_consumer_took(shell: Shell) -> None:
    """It waits until the attempt is due, finds nothing, and ends."""
    policy = RetryPolicy(initial_delay_seconds=0.3, jitter=0)
    queue = shell.queue(retry_policy=policy)
    await queue.publish("m")

    def steal(event: Any) -> None:
        if event.operation == "retried":
            shell.redis.delete(queue.key.delayed, queue.key.delayed_messages, queue.key.deliveries)

    queue = shell.queue(retry_policy=policy, on_event=shell.callback(steal))

    def handle(message: Any) -> None:
        raise ValueError("not yet")

    summary = await queue.run(shell.callback(handle), until_empty=True, wait_for_retries=True)
    assert (summary.attempts, summary.retried) == (1, 1)


async def test_waiting_for_retries_needs_an_end(shell: Shell) -> None:
    with pytest.raises(ConfigurationError, match="wait_for_retries needs until_empty=True"):
        await shell.queue().run(print, wait_for_retries=True)
