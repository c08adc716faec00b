"""A handler that fails is retried with growing pauses until its attempts are used up; the record says why."""

import dataclasses
import logging
import math
from datetime import timedelta
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, RetryPolicy
from tests.contract.blocked_consumers import blocked_consumer
from tests.contract.shells import (
    EVERY_WIRING,
    Awaited,
    Died,
    Shell,
    claim_and_die,
    fail,
    silent_gateway,
    take,
)
from tests.tables import row

pytestmark = pytest.mark.topic("Retry policies")

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

# Nothing is left to chance, and no test waits for it: `ripen` lets a pause end.
EXACT = {"initial_delay_seconds": 100, "jitter": 0}


def policy(**options: Any) -> RetryPolicy:
    return RetryPolicy(**EXACT | options)


async def fail_often(shell: Shell, queue: Any, error: Exception, times: int) -> None:
    """So many attempts fail; the pauses between them end at once."""
    for attempt in range(times):
        if attempt:
            shell.ripen(queue)
        assert await fail(queue, error) is not None, attempt


# Again


@pytest.mark.promise(
    "With a `RetryPolicy` a message whose handler raised is retried after a delay; the exception still reaches the "
    "caller."
)
@every_wiring
async def test_a_failed_message_comes_back_after_its_pause(shell: Shell) -> None:
    """The handler's exception comes out as ever; the message waits, and its next attempt may succeed."""
    queue = shell.queue(retry_policy=RetryPolicy(initial_delay_seconds=0.05, jitter=0), enable_completed_queue=True)
    await queue.publish("m", tenant="a")
    with pytest.raises(LookupError, match="not yet"):
        async with queue.process_message() as message:
            first = queue.current_message().id
            raise LookupError("not yet")
    stats = await Awaited(queue).stats()
    assert (stats.pending + stats.delayed, stats.processing) == (1, 0)
    async with queue.process_message() as message:
        received = queue.current_message()
        assert (message, received.id, received.tenant) == (shell.payload("m"), first, "a")
    assert shell.listed(queue.key.completed) == [b"m"]
    assert shell.leftovers(queue) == {b"q::completed"}


@pytest.mark.promise("An idle consumer wakes for the next attempt of a retried message.")
async def test_an_idle_consumer_wakes_for_the_next_attempt(shell: Shell) -> None:
    """The pause ends for any waiting consumer, not only for the one that failed."""
    queue = shell.queue(retry_policy=RetryPolicy(initial_delay_seconds=0.2, jitter=0))
    await queue.publish("m")
    with pytest.raises(LookupError):
        async with queue.process_message():
            shell.redis.delete(queue.key.wakeup)
            sleeping = await blocked_consumer(shell)
            raise LookupError
    assert await sleeping.wakes() == b"m"


@pytest.mark.promise(
    "Retry delays grow from `initial_delay_seconds` by `multiplier` up to `max_delay_seconds`, by the server's clock."
)
async def test_pauses_grow_up_to_the_longest(shell: Shell) -> None:
    """By the server's clock, from the moment of the failure."""
    queue = shell.queue(retry_policy=policy(max_attempts=6, multiplier=3, max_delay_seconds=1_000))
    await queue.publish("m")
    for pause in (100, 300, 900, 1_000, 1_000):
        before = shell.server_time
        await fail(queue, ValueError())
        after = shell.server_time
        (seen,) = await Awaited(queue).peek(source="delayed")
        assert before + timedelta(seconds=pause) <= seen.due_at <= after + timedelta(seconds=pause)
        shell.ripen(queue)


@pytest.mark.promise(
    "`jitter` makes retry delays random, so that messages that fail together are not retried together."
)
@pytest.mark.parametrize(("jitter", "shortest"), [(0, 1_000_000), (0.25, 750_000), (1, 0)])
async def test_the_part_of_a_pause_that_is_left_to_chance_is(shell: Shell, jitter: float, shortest: int) -> None:
    """Messages that fail together do not come back together; without jitter they do."""
    # So long that no message is due before it is looked for, however small a part of it chance leaves.
    longest = 1_000_000
    policy = RetryPolicy(initial_delay_seconds=longest, max_delay_seconds=longest, jitter=jitter)
    queue = shell.queue(wait=0, retry_policy=policy)
    await queue.publish_many([str(number) for number in range(20)])
    before = shell.server_time
    for _ in range(20):
        await fail(queue, ValueError())
    took = shell.server_time - before
    due = [seen.due_at - before for seen in await Awaited(queue).peek(20, source="delayed")]
    assert len(due) == 20
    assert all(timedelta(seconds=shortest) <= pause <= timedelta(seconds=longest) + took for pause in due)
    # By chance alone 20 pauses are closer together than a tenth of their range once in 10**18 times.
    spread = max(due) - min(due)
    assert spread <= took if jitter == 0 else spread > timedelta(seconds=(longest - shortest) / 10) + took


@pytest.mark.promise(
    "Other messages are delivered while one waits for its retry, and the retried message joins the end of the queue."
)
async def test_others_are_served_while_a_failed_message_pauses(shell: Shell) -> None:
    """It does not hold up the line, and returns to its tail."""
    queue = shell.queue(wait=0, retry_policy=policy())
    await queue.publish_many(["bad", "good", "better"])
    await fail(queue, ValueError())
    assert await take(queue) == b"good"
    shell.ripen(queue)
    assert [await take(queue) for _ in range(3)] == [b"better", b"bad", None]


@pytest.mark.promise(
    "Without a `RetryPolicy` an exception is final: the message is removed, or kept in the failed list with the reason."
)
async def test_without_a_policy_an_exception_is_the_end(shell: Shell) -> None:
    """As ever: removed, or kept in the failed list with the reason."""
    for options in ({}, {"enable_failed_queue": True}):
        queue = shell.queue(wait=0, **options)
        await queue.publish("m")
        await fail(queue, ValueError("why"))
        assert await take(queue) is None
    (record,) = await Awaited(queue).records("failed")
    assert (record.reason, record.error_type, record.error) == ("failed", "ValueError", "why")
    assert shell.leftovers(queue) == {b"q::failed"}


# The end


@pytest.mark.promise(
    "After its last attempt a message is dead-lettered if there is a delivery limit, else kept in the failed list, "
    "else removed."
)
@pytest.mark.promise(
    "The record of a failed message has the type and text of the last error and says whether attempts ran out or were "
    "given up."
)
async def test_when_the_attempts_are_used_up_the_message_is_a_dead_letter(shell: Shell) -> None:
    """Where the queue has a delivery limit, as it does by default; its record tells the last error and all times."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=3), enable_failed_queue=True)
    before = shell.server_time
    await queue.publish({"k": "漢"}, tenant="ä")
    await fail_often(shell, queue, KeyError("wrong"), 2)
    shell.ripen(queue)
    await fail(queue, TimeoutError("no answer"))
    assert await take(queue) is None
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.tenant) == ('{"k": "漢"}'.encode(), "ä")
    assert (letter.reason, letter.error_type, letter.error) == ("attempts used up", "TimeoutError", "no answer")
    assert before <= letter.published_at <= letter.claimed_at <= letter.finished_at <= shell.server_time
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise(
    "After its last attempt a message is dead-lettered if there is a delivery limit, else kept in the failed list, "
    "else removed."
)
@pytest.mark.parametrize("limits", [{"max_delivery_count": None}, {"visibility_timeout_seconds": None}], ids=str)
async def test_without_a_delivery_limit_it_goes_to_the_failed_list(shell: Shell, limits: dict[str, Any]) -> None:
    """If that is enabled; otherwise to the dead letters all the same."""
    for enabled, left in ((True, {b"q::failed"}), (False, {b"q::dlq"})):
        shell.redis.flushall()
        queue = shell.queue(wait=0, retry_policy=policy(max_attempts=2), enable_failed_queue=enabled, **limits)
        await queue.publish("m")
        await fail_often(shell, queue, ValueError("why"), 2)
        assert await take(queue) is None
        assert shell.leftovers(queue) == left
        for record in await Awaited(queue).records("failed"):
            assert (record.payload, record.reason, record.error) == (b"m", "attempts used up", "why")


@pytest.mark.promise(
    "After its last attempt a message is dead-lettered if there is a delivery limit, else kept in the failed list, "
    "else removed."
)
async def test_one_attempt_is_all(shell: Shell) -> None:
    """A policy with one attempt retries nothing, and still sends to the dead letters."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=1))
    await queue.publish("m")
    await fail(queue, ValueError())
    (letter,) = await Awaited(queue).records("dead_letters")
    assert letter.reason == "attempts used up"


@pytest.mark.promise(
    "Only exceptions in `retry_on` are retried, and those in `give_up_on` are not, subclasses included."
)
async def test_exceptions_that_mean_the_end_are_not_tried_again(shell: Shell) -> None:
    """give_up_on wins over retry_on, subclasses included; the record says that it was given up."""
    queue = shell.queue(wait=0, retry_policy=policy(retry_on=(LookupError,), give_up_on=(KeyError,)))
    for error in (KeyError("k"), type("Missing", (KeyError,), {})("m")):
        await queue.publish("m")
        await fail(queue, error)
        (letter, *_) = await Awaited(queue).records("dead_letters")
        assert (letter.reason, letter.error_type) == ("given up", type(error).__name__)
    await queue.publish("m")
    await fail(queue, IndexError())
    assert (await Awaited(queue).stats()).delayed == 1


@pytest.mark.promise(
    "Only exceptions in `retry_on` are retried, and those in `give_up_on` are not, subclasses included."
)
async def test_only_exceptions_of_retry_on_are_tried_again(shell: Shell) -> None:
    """Any other is the end at once, and its record does not speak of attempts that nobody made."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=5, retry_on=ConnectionError))
    await queue.publish("m")
    await fail(queue, ValueError())
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.error_type, letter.reason) == ("ValueError", "given up")
    await queue.publish("m")
    await fail(queue, ConnectionResetError())
    assert (await Awaited(queue).stats()).delayed == 1


@pytest.mark.promise("An exception that is not an `Exception` counts as no failure and no attempt.")
async def test_what_is_no_exception_is_no_failure(shell: Shell) -> None:
    """A handler that is ended from outside leaves its message to the lease, and no attempt is counted."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=1))
    await queue.publish("m")
    for ending in (Died, KeyboardInterrupt, SystemExit):
        with pytest.raises(ending):
            async with queue.process_message() as message:
                assert message == b"m"
                raise ending
        stats = await Awaited(queue).stats()
        assert (stats.processing, stats.delayed, stats.dead_letters) == (1, 0, 0)
        shell.lapse(queue)


# What is counted


@pytest.mark.promise(
    "Attempts and deliveries are counted separately: failures do not use up the delivery limit, crashes do."
)
async def test_attempts_and_deliveries_are_counted_apart(shell: Shell) -> None:
    """A failure that is tried again does not use up what max_delivery_count allows for crashes."""
    queue = shell.queue(wait=0, max_delivery_count=2, retry_policy=policy(max_attempts=10))
    await queue.publish("m")
    await fail_often(shell, queue, ValueError(), 6)
    shell.ripen(queue)
    assert await claim_and_die(queue) == b"m"
    shell.lapse(queue)
    async with queue.process_message():
        assert queue.current_message().delivery_count == 2
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "Attempts and deliveries are counted separately: failures do not use up the delivery limit, crashes do."
)
async def test_crashes_count_though_failures_lie_between(shell: Shell) -> None:
    """The second crash is one too many, whatever happened meanwhile, and the record says that it was deliveries."""
    queue = shell.queue(wait=0, max_delivery_count=2, retry_policy=policy(max_attempts=10))
    await queue.publish("m")
    for _ in range(2):
        await fail(queue, ValueError())
        shell.ripen(queue)
        assert await claim_and_die(queue) == b"m"
        shell.lapse(queue)
    assert await take(queue) is None
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.reason, letter.delivery_count, letter.error_type) == ("deliveries", 2, None)


@pytest.mark.promise("Attempts are counted in Redis and survive crashes and batches.")
async def test_attempts_survive_crashes_and_batches(shell: Shell) -> None:
    """They are in Redis: a message that is requeued or reclaimed goes on where it was."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=3))
    await queue.publish("m")
    await fail(queue, ValueError())
    shell.ripen(queue)
    await claim_and_die(queue)
    shell.lapse(queue)
    with pytest.raises(LookupError):
        async with queue.process_messages(1):  # requeued, and that is no failure of this message
            raise LookupError
    await fail(queue, ValueError())
    assert (await Awaited(queue).stats()).delayed == 1
    shell.ripen(queue)
    await fail(queue, ValueError())
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.dead_letters) == (0, 1)


@pytest.mark.promise("A consumer that has lost its lease cannot schedule a retry.")
async def test_a_consumer_that_lost_its_lease_schedules_no_retry(shell: Shell) -> None:
    """The new holder's message stays as it is."""
    events = shell.events()
    queue = shell.queue(wait=0, retry_policy=policy(), on_event=events.listen)
    await queue.publish("m")
    with pytest.raises(ValueError, match="late"):
        async with queue.process_message():
            shell.lapse(queue)
            assert await claim_and_die(queue) == b"m"
            raise ValueError("late")
    assert events.names[-1] == "stale_lease_nack/skipped"
    stats = await Awaited(queue).stats()
    assert (stats.processing, stats.delayed, stats.dead_letters) == (1, 0, 0)


@pytest.mark.promise("A failure that is retried after a lost reply counts as one attempt.")
async def test_a_lost_answer_counts_one_failure(shell: Shell) -> None:
    """However often the call is sent, the message waits once and has one attempt less."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_policy=policy(max_attempts=2))
    await queue.publish("m")
    with pytest.raises(ValueError, match="first"):
        async with queue.process_message():
            client.losses.reply(2)
            client.losses.request()
            raise ValueError("first")
    assert (await Awaited(queue).stats()).delayed == 1
    shell.ripen(queue)
    with pytest.raises(ValueError, match="second"):
        async with queue.process_message():
            client.losses.reply(2)
            raise ValueError("second")
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.dead_letters) == (0, 1)
    assert shell.leftovers(queue) == {b"q::dlq"}


# Who listens


@pytest.mark.promise("Every attempt emits `failed`, then `retried`, or `nack` and `dlq` at the end.")
async def test_events_tell_of_every_attempt(shell: Shell) -> None:
    """That it failed, and whether it is tried again or dead; always of the same message."""
    events = shell.events()
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=2), on_event=events.listen)
    await queue.publish("m")
    events.clear()
    error = ValueError("why")
    await fail_often(shell, queue, error, 2)
    assert events.names == [
        *("claim/success", "failed/failure", "retried/success"),
        *("claim/success", "failed/failure", "nack/success", "dlq/success"),
    ]
    assert len({event.message_id for event in events.all}) == 1
    assert [event.error for event in events.of("failed")] == [error, error]


async def test_each_failure_is_one_log_line(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """It names the queue, the message and the error, and says what happens next."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=2, initial_delay_seconds=4.0))
    await queue.publish("m")
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        await fail_often(shell, queue, ValueError("no such customer"), 2)
    (letter,) = await Awaited(queue).records("dead_letters")
    assert caplog.messages == [
        f"q: message {letter.id} failed (ValueError: no such customer) at attempt 1 of 2, retrying in 4 s",
        f"q: message {letter.id} failed (ValueError: no such customer) and went to the dead letters (attempts used up)",
    ]


@pytest.mark.promise("No event, error or log line contains a payload.")
async def test_events_of_a_retry_contain_no_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in an event nor in a log line nor in the record beside it: retried, given up, used up, too late."""
    secret, events = "s3cret", shell.events()
    queue = shell.queue(
        wait=0, retry_policy=policy(max_attempts=2, give_up_on=KeyError), on_event=events.listen, max_delivery_count=3
    )
    with caplog.at_level(logging.DEBUG):
        await queue.publish(secret, tenant="t")
        await fail_often(shell, queue, ValueError("why"), 2)
        await queue.publish(secret)
        await fail(queue, KeyError("gone"))
        await queue.publish(secret)
        with pytest.raises(ValueError, match="late"):
            async with queue.process_message():
                shell.lapse(queue)
                assert await claim_and_die(queue) == secret.encode()
                raise ValueError("late")
        shell.lapse(queue)
        client = shell.lossy_client()
        lost = shell.queue(client=client, wait=0, retry_policy=policy(), retry_budget_seconds=0, on_event=events.listen)
        with pytest.raises(ValueError, match="mine"):
            async with lost.process_message() as message:
                assert message == secret
                client.losses.request()
                raise ValueError("mine")
    told = {event.operation for event in events.all}
    assert {"retried", "dlq", "nack", "stale_lease_nack", "cleanup_failed", "claim_reclaim"} <= told
    assert [event for event in events.all if secret in repr(event)] == []
    assert secret not in caplog.text
    assert caplog.records
    assert [one for one in shell.redis.lrange(queue.key.records("dlq"), 0, -1) if secret.encode() in one] == []


# Everywhere


@pytest.mark.promise("The retry policy applies to blocks, callbacks, batches and `run()`.")
async def test_a_callback_is_tried_again(shell: Shell) -> None:
    """process_message_callback takes the same path."""
    queue = shell.queue(wait=0, retry_policy=policy())
    await queue.publish("m")

    def refuse(message: Any) -> None:
        raise ValueError(message)

    with pytest.raises(ValueError, match="m"):
        await queue.process_message_callback(shell.callback(refuse))
    assert (await Awaited(queue).stats()).delayed == 1


@pytest.mark.promise("The retry policy applies to blocks, callbacks, batches and `run()`.")
async def test_one_of_a_batch_is_tried_again(shell: Shell) -> None:
    """batch.fail sends that one to its next attempt, and the rest is acknowledged."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=2), enable_completed_queue=True)
    await queue.publish_many(["a", "b", "c"])
    async with queue.process_messages(3) as batch:
        assert await batch.fail(batch[1], ValueError()) is True
    assert shell.listed(queue.key.completed) == [b"c", b"a"]
    shell.ripen(queue)
    async with queue.process_messages(3) as batch:
        assert [message.payload for message in batch] == [b"b"]
        await batch.fail(batch[0], ValueError())
    assert shell.listed(queue.key.dead_letter) == [b"b"]


@pytest.mark.promise("The retry policy applies to blocks, callbacks, batches and `run()`.")
@pytest.mark.parametrize("batch_size", [None, 10])
async def test_the_loop_tries_again(shell: Shell, batch_size: int | None) -> None:
    """It goes on with the others; a list whose handler raises is tried again message by message."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=2))
    await queue.publish_many(["a", "b", "c"])

    def refuse(handled: Any) -> None:
        raise ValueError

    summary = await queue.run(refuse, prefetch=10, batch_size=batch_size, until_empty=True)
    assert (summary.handled, summary.failed, summary.requeued, summary.retried) == (0, 0, 0, 3)
    assert (await Awaited(queue).stats()).delayed == 3
    shell.ripen(queue)
    await queue.run(refuse, prefetch=10, batch_size=batch_size, until_empty=True)
    assert sorted(shell.listed(queue.key.dead_letter)) == [b"a", b"b", b"c"]
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("A redriven message has all its attempts again.")
async def test_a_redriven_message_has_all_its_attempts_again(shell: Shell) -> None:
    """It is a new one."""
    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=2))
    await queue.publish("m")
    await fail_often(shell, queue, ValueError(), 2)
    await Awaited(queue).redrive_dead_letters()
    await fail_often(shell, queue, ValueError(), 1)
    stats = await Awaited(queue).stats()
    assert (stats.delayed, stats.dead_letters) == (1, 0)


@pytest.mark.promise(
    "The record of a failed message has the type and text of the last error and says whether attempts ran out or were "
    "given up."
)
async def test_any_error_text_can_be_recorded(shell: Shell, subtests: pytest.Subtests) -> None:
    """What UTF-8 cannot encode is replaced, and what is too long is cut."""
    for text in [
        "",
        "żółć 漢字 🐘",
        "lone \ud800 surrogate",
        "nul \x00 and\r\nline ends",
        '"quotes" \\ and {json}',
        "x" * 100_000,
    ]:
        with row(subtests, text=text):
            shell.redis.flushall()
            queue = shell.queue(wait=0, retry_policy=policy(max_attempts=1))
            await queue.publish("m")
            await fail(queue, ValueError(text))
            (letter,) = await Awaited(queue).records("dead_letters")
            assert letter.error == text.replace("\ud800", "?")[:2_000]


@pytest.mark.promise(
    "The record of a failed message has the type and text of the last error and says whether attempts ran out or were "
    "given up."
)
async def test_an_error_without_a_text_is_a_failure_too(shell: Shell) -> None:
    """An exception whose text cannot be had does not keep its message in flight."""

    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    queue = shell.queue(wait=0, retry_policy=policy(max_attempts=1), enable_failed_queue=True)
    await queue.publish("m")
    with pytest.raises(Speechless):
        async with queue.process_message():
            raise Speechless
    (letter,) = await Awaited(queue).records("dead_letters")
    assert (letter.payload, letter.error_type) == (b"m", "Speechless")
    assert shell.leftovers(queue) == {b"q::dlq"}


# The policy itself


@pytest.mark.promise("A retry policy that cannot work, and an object that is no policy, are refused by name.")
def test_a_policy_that_cannot_work_is_refused(subtests: pytest.Subtests) -> None:
    """With a typed error that names the parameter."""
    cases: list[Any] = [
        *(({"max_attempts": value}, "max_attempts") for value in (0, -1, 1.5, True, "3", None)),
        *(({"initial_delay_seconds": value}, "initial_delay_seconds") for value in (-1, math.nan, math.inf, True, "1")),
        *(({"multiplier": value}, "multiplier") for value in (0.9, 0, -2, math.nan, math.inf, True, "2", None)),
        *(({"max_delay_seconds": value}, "max_delay_seconds") for value in (-1, math.nan, True, "1", None)),
        *(({"jitter": value}, "jitter") for value in (-0.1, 1.1, math.nan, True, "1", None)),
        ({"initial_delay_seconds": 2, "max_delay_seconds": 1}, "initial_delay_seconds"),
        *(({"retry_on": value}, "retry_on") for value in ((ValueError, 7), KeyboardInterrupt, "ValueError", None)),
        *(({"give_up_on": value}, "give_up_on") for value in ((BaseException,), ValueError(), [int])),
    ]
    for options, word in cases:
        with row(subtests, options=options, word=word), pytest.raises(ConfigurationError, match=word):
            RetryPolicy(**options)


@pytest.mark.promise("By default there are five attempts; the first delay is one second and doubles up to an hour.")
def test_a_policy_has_sensible_defaults_and_does_not_change() -> None:
    """Five attempts, a second, twice as long each time, at most an hour, half of it chance; any exception."""
    usual = RetryPolicy()
    defaults: dict[str, Any] = {
        "max_attempts": 5,
        "initial_delay_seconds": 1.0,
        "multiplier": 2.0,
        "max_delay_seconds": 3600.0,
        "jitter": 0.5,
        "retry_on": (Exception,),
        "give_up_on": (),
    }
    assert dataclasses.asdict(usual) == defaults
    assert [usual.pause(failures, 0.0) for failures in (1, 2, 3, 20)] == [1, 2, 4, 3_600]
    assert [usual.pause(failures, 0.5) for failures in (1, 2, 20)] == [0.75, 1.5, 2_700]
    assert [usual.tries_again(ValueError(), failures) for failures in (1, 4, 5, 6)] == [True, True, False, False]
    assert usual == RetryPolicy(**defaults | {"retry_on": Exception, "give_up_on": []})
    for name in defaults:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(usual, name, 6)
    kinds: list[type[Exception]] = [ValueError]
    given = RetryPolicy(give_up_on=kinds)  # type: ignore[arg-type]  # a list will do, and is not shared
    kinds.append(KeyError)
    assert given.give_up_on == (ValueError,)
    assert hash(given) == hash(RetryPolicy(give_up_on=(ValueError,)))


@pytest.mark.promise("`jitter` shortens a retry delay by at most its fraction.")
@pytest.mark.parametrize("jitter", [0, 0.25, 0.5, 1])
def test_chance_shortens_a_pause_by_no_more_than_it_may(jitter: float) -> None:
    """Between all of it and its part without jitter."""
    some = RetryPolicy(initial_delay_seconds=8, jitter=jitter)
    pauses = [some.pause(1, chance) for chance in (0.0, 0.5, 0.999)]
    assert pauses[0] == 8
    assert all(8 * (1 - jitter) <= pause <= 8 for pause in pauses)
    assert pauses == sorted(pauses, reverse=True)


@pytest.mark.promise(
    "Retry delays grow from `initial_delay_seconds` by `multiplier` up to `max_delay_seconds`, by the server's clock."
)
@pytest.mark.parametrize("multiplier", [1, 2, 2.0, 10, 10.0, 3_000_000_000.0])
def test_no_number_of_attempts_is_too_many(multiplier: float) -> None:
    """However often it has failed, the pause is a number, and no longer than the longest."""
    patient = RetryPolicy(max_attempts=10**9, multiplier=multiplier, max_delay_seconds=60, jitter=0)
    assert all(1 <= patient.pause(failures, 0.0) <= 60 for failures in (1, 40, 400, 2_000, 10**8))
    at_once = RetryPolicy(max_attempts=10**9, multiplier=multiplier, initial_delay_seconds=0)
    assert all(at_once.pause(failures, 0.0) == 0 for failures in (1, 40, 400, 2_000, 10**8))


@pytest.mark.promise("A retry policy that cannot work, and an object that is no policy, are refused by name.")
async def test_what_is_no_policy_is_refused(shell: Shell) -> None:
    """A queue takes a RetryPolicy or None."""
    for wrong in (3, {"max_attempts": 3}, RetryPolicy, "often"):
        with pytest.raises(shell.module.ConfigurationError, match="retry_policy"):
            shell.queue(retry_policy=wrong)


@pytest.mark.promise("A queue with a custom gateway refuses a retry policy at construction.")
async def test_a_custom_gateway_has_no_retries(shell: Shell) -> None:
    """Its queue says so when it is made, and not when the first handler has failed."""
    with pytest.raises(shell.module.GatewayContractError, match="retry_policy"):
        shell.queue(gateway=silent_gateway(shell), retry_policy=policy())


@pytest.mark.promise(
    "A misspelt option of a constructor, of `run()`, of `rmq` or of Spark gets an error that names the nearest."
)
def test_a_misspelt_option_of_a_policy_names_the_nearest() -> None:
    """The error has the type that Python's own error would have."""
    with pytest.raises(TypeError, match=r"RetryPolicy has no option 'max_attempt'; did you mean 'max_attempts'\?"):
        RetryPolicy(max_attempt=3)  # type: ignore[call-arg]
