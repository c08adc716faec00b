"""A lost request or reply is retried within a budget, and counts once."""

import contextlib
import threading
import time
from typing import Any

import pytest
import redis.exceptions

from redis_message_queue import EventDrivenInterruptHandler, RedisMessageQueueError, RetryBudgetExhaustedError
from tests.contract.shells import LIMIT_SECONDS, Shell, fail, take, until

pytestmark = pytest.mark.topic("Retries of Redis calls")

QUICK = {"retry_initial_delay_seconds": 0.01, "retry_max_delay_seconds": 0.02}


# Lost once


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
@pytest.mark.promise("Retries of operations other than claims emit no event.")
@pytest.mark.promise("Every publish call is stored once, with or without deduplication, however often it is retried.")
async def test_a_publish_whose_reply_was_lost_is_one_message(shell: Shell) -> None:
    """Sent as often as need be; also without deduplication. The caller hears of nothing but the success."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, on_event=events.listen, **QUICK)
    client.losses.reply(3)
    assert await queue.publish("a") is True
    assert shell.pending(queue) == 1
    assert events.names == ["publish/success"]


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
async def test_a_publish_whose_request_was_lost_arrives(shell: Shell) -> None:
    """The server never heard of the first three."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, **QUICK)
    client.losses.request(3)
    assert await queue.publish("a") is True
    assert shell.pending(queue) == 1


@pytest.mark.promise("A publish that is retried after a lost reply is not treated as its own duplicate.")
async def test_a_repeated_publish_gets_its_first_answer(shell: Shell) -> None:
    """With deduplication: it does not find itself a duplicate. A real duplicate stays one."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, deduplication=True, **QUICK)
    client.losses.reply()
    assert await queue.publish("a") is True
    client.losses.reply()
    assert await queue.publish("a") is False
    assert shell.pending(queue) == 1


@pytest.mark.promise("`drop_oldest` emits an event for each message that it drops.")
async def test_a_repeated_publish_drops_once(shell: Shell) -> None:
    """One in, one out, one event of each."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(
        client=client,
        on_event=events.listen,
        max_pending_length=2,
        pending_overload_policy="drop_oldest",
        max_delivery_count=None,
        **QUICK,
    )
    await queue.publish("a")
    await queue.publish("b")
    client.losses.reply()
    await queue.publish("c")
    assert [await take(queue), await take(queue)] == ["b", "c"]
    assert len(events.of("dropped")) == 1


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
async def test_a_claim_whose_reply_was_lost_is_found_again(shell: Shell) -> None:
    """The same message, in its first delivery; the next one stays in the line. The failed try has an event."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, on_event=events.listen, wait=0, **QUICK)
    await queue.publish("a")
    await queue.publish("b")
    events.clear()
    client.losses.reply(2)
    async with queue.process_message() as message:
        assert message == "a"
        assert queue.current_message().delivery_count == 1
        assert (shell.pending(queue), shell.processing(queue)) == (1, 1)
    assert events.names == ["retry_attempt/failure"] * 2 + ["claim/success", "ack/success"]
    assert [event.attempt for event in events.of("retry_attempt")] == [1, 2]
    assert {event.exception_type for event in events.of("retry_attempt")} == {"ConnectionError"}


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
@pytest.mark.promise("Retries of operations other than claims emit no event.")
@pytest.mark.parametrize("kept", [False, True], ids=["gone", "kept"])
async def test_an_ack_whose_reply_was_lost_is_an_ack(shell: Shell, kept: bool) -> None:
    """Told as a success, and kept once where it is kept."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, on_event=events.listen, enable_completed_queue=kept, **QUICK)
    await queue.publish("a")
    async with queue.process_message():
        client.losses.reply(2)
    assert events.names[2:] == ["ack/success", "completed/success"][: 1 + kept]
    assert shell.listed(queue.key.completed) == [b"a"] * kept
    assert shell.processing(queue) == 0


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
async def test_a_failure_whose_reply_was_lost_is_kept_once(shell: Shell) -> None:
    """In the failed list."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, on_event=events.listen, enable_failed_queue=True, **QUICK)
    await queue.publish("a")
    with pytest.raises(ValueError):
        async with queue.process_message():
            client.losses.reply(2)
            raise ValueError
    assert events.names[-2:] == ["failed/failure", "nack/success"]
    assert shell.listed(queue.key.failed) == [b"a"]


@pytest.mark.promise("A lost renewal is retried within the lease without calling `on_heartbeat_failure`.")
async def test_a_renewal_whose_reply_was_lost_is_sent_again(shell: Shell) -> None:
    """The heartbeat goes on."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(
        client=client,
        on_event=events.listen,
        visibility_timeout_seconds=60,
        heartbeat_interval_seconds=0.03,
        **QUICK,
    )
    await queue.publish("a")
    async with queue.process_message():
        client.losses.reply(2)
        await events.wait_for("lease_renew", 2)
    assert set(events.names) == {"publish/success", "claim/success", "lease_renew/success", "ack/success"}


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
async def test_scripts_are_sent_again_after_the_server_lost_them(shell: Shell) -> None:
    """In the middle of everything, without anybody noticing."""
    queue = shell.queue(wait=0, enable_completed_queue=True)
    shell.redis.script_flush()
    assert await queue.publish("a") is True
    shell.redis.script_flush()
    async with queue.process_message() as message:
        assert message == b"a"
        shell.redis.script_flush()
    assert shell.listed(queue.key.completed) == [b"a"]


# Lost for good


def unreachable(shell: Shell, port: int, **options: Any) -> Any:
    return shell.queue(client=shell.dead_client(port), wait=0, **QUICK | {"retry_budget_seconds": 0.2} | options)


@pytest.mark.promise("When the retry budget is spent, `RetryBudgetExhaustedError` is raised from the last error.")
@pytest.mark.promise("A publish or claim that raises emits a failure event with its error.")
@pytest.mark.promise("`RetryBudgetExhaustedError` is a redis-py `RedisError`.")
async def test_when_the_budget_is_spent_the_error_says_so(shell: Shell, dead_port: int) -> None:
    """It is a redis-py RedisError with the last failure as its cause, and knows its queue and operation."""
    events = shell.events()
    queue = unreachable(shell, dead_port, on_event=events.listen)
    started = time.monotonic()
    with pytest.raises(RetryBudgetExhaustedError) as spent:
        await queue.publish("a")
    assert 0.2 <= time.monotonic() - started < LIMIT_SECONDS
    assert isinstance(spent.value, redis.exceptions.RedisError)
    assert isinstance(spent.value, RedisMessageQueueError)
    assert isinstance(spent.value.__cause__, redis.exceptions.ConnectionError)
    assert (spent.value.queue, spent.value.operation) == ("q", "publish")
    assert events.names == ["publish/failure"]
    assert events.all[0].error is spent.value
    assert events.all[0].exception_type == "RetryBudgetExhaustedError"
    assert events.all[0].message_id


@pytest.mark.promise(
    "A claim, or the recovery of one, emits `retry_attempt` for each failed attempt and `retry_exhausted` at the end."
)
@pytest.mark.promise("A publish or claim that raises emits a failure event with its error.")
async def test_a_claim_emits_events_for_every_retry_and_for_giving_up(shell: Shell, dead_port: int) -> None:
    """retry_attempt for each, numbered; then retry_exhausted; then the claim's own failure."""
    events = shell.events()
    queue = unreachable(shell, dead_port, on_event=events.listen)
    with pytest.raises(RetryBudgetExhaustedError) as spent:
        await take(queue)
    *tries, exhausted, failed = events.all
    assert {event.operation for event in tries} == {"retry_attempt"}
    assert [event.attempt for event in tries] == list(range(1, len(tries) + 1))
    assert len(tries) >= 2
    assert all(isinstance(event.error, redis.exceptions.ConnectionError) for event in tries)
    assert events.names[-2:] == ["retry_exhausted/failure", "claim/failure"]
    assert exhausted.error is failed.error is spent.value
    assert (spent.value.queue, spent.value.operation) == ("q", "claim")


@pytest.mark.promise("With a retry budget of 0 a call is attempted once, and its exception is raised unchanged.")
async def test_a_budget_of_zero_tries_once_and_lets_the_original_through(shell: Shell) -> None:
    """redis-py's own exception, not wrapped, after one attempt."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, on_event=events.listen, retry_budget_seconds=0)
    client.losses.request()
    with pytest.raises(redis.exceptions.ConnectionError) as original:
        await queue.publish("a")
    assert type(original.value) is redis.exceptions.ConnectionError
    assert client.losses.sent == 1
    assert events.names == ["publish/failure"]
    assert events.all[0].error is original.value
    client.losses.request()
    events.clear()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    assert client.losses.sent == 2
    assert events.names[-1] == "claim/failure"
    assert "retry_exhausted/failure" not in events.names


async def test_a_publish_after_a_failed_one_works(shell: Shell) -> None:
    """What could not be sent is not published later behind the caller's back."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, retry_budget_seconds=0)
    client.losses.request()
    with pytest.raises(redis.exceptions.ConnectionError):
        await queue.publish("a")
    assert await queue.publish("b") is True
    assert await take(queue) == "b"
    assert shell.pending(queue) == 0


@pytest.mark.promise("Errors that are not transient are not retried.")
async def test_what_is_not_transient_is_not_retried(shell: Shell) -> None:
    """A wrong password will not be right in a moment; the budget here is two minutes."""
    client = shell.new_client(username="nobody", password="wrong", retry=None)
    queue = shell.queue(client=client)
    started = time.monotonic()
    with pytest.raises(redis.exceptions.AuthenticationError):
        await queue.publish("a")
    with pytest.raises(redis.exceptions.AuthenticationError):
        await take(queue)
    assert time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.promise("The next call recovers a claim that ran out of retries, with or without leases.")
@pytest.mark.parametrize("lease", [300, None], ids=["leased", "at most once"])
async def test_a_claim_that_ran_out_of_retries_is_recovered_by_the_next_one(shell: Shell, lease: Any) -> None:
    """The server leased the message and nobody saw it. The same queue object asks first what its lost claim took: at
    once, in the first delivery, and told as a reclaim."""
    client, events = shell.lossy_client(), shell.events()
    options: dict[str, Any] = {"wait": 0, "visibility_timeout_seconds": lease, "max_delivery_count": None}
    queue = shell.queue(client=client, on_event=events.listen, retry_budget_seconds=0, **options)
    await queue.publish("a")
    await queue.publish("b")
    await take(queue)
    await queue.publish("c")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    assert shell.processing(queue) == 1
    events.clear()
    async with queue.process_message() as message:
        assert message == "b"
        assert queue.current_message().delivery_count == 1
    assert events.names == ["claim_reclaim/success", "claim/success", "ack/success"]
    assert await take(queue) == "c"
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("Any queue object on the same gateway recovers a lost claim; objects on other gateways do not.")
async def test_a_lost_claim_belongs_to_its_queue_object(shell: Shell) -> None:
    """Others wait for the lease; then the object that lost it does not get it twice."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, retry_budget_seconds=0)
    other = shell.queue(wait=0)
    await queue.publish("a")
    client.losses.reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await take(queue)
    assert await take(other) is None
    shell.lapse(queue)
    assert await take(other) == b"a"
    assert await take(queue) is None


@pytest.mark.promise(
    "An ack that cannot be sent raises `CleanupFailedError`; after a failed handler, the handler's error is raised."
)
@pytest.mark.promise("`CleanupFailedError` means that the handler succeeded and its ack failed.")
async def test_an_ack_that_cannot_be_sent_is_a_failed_cleanup(shell: Shell) -> None:
    """The handler's work is done and the queue does not know: CleanupFailedError, with the reason as its cause."""
    for budget, cause in ((0, redis.exceptions.ConnectionError), (0.1, RetryBudgetExhaustedError)):
        client, events = shell.lossy_client(), shell.events()
        queue = shell.queue(client=client, wait=0, on_event=events.listen, **QUICK, retry_budget_seconds=budget)
        await queue.publish("a")
        with pytest.raises(shell.module.CleanupFailedError) as failure:
            async with queue.process_message():
                client.losses.request(1_000)
        assert isinstance(failure.value.__cause__, cause)
        assert events.names[-1] == "cleanup_failed/failure"
        assert events.all[-1].error is failure.value.__cause__
        shell.lapse(queue)
        assert await take(shell.queue(wait=0)) == b"a"


@pytest.mark.promise(
    "An ack that cannot be sent raises `CleanupFailedError`; after a failed handler, the handler's error is raised."
)
async def test_a_failure_that_cannot_be_sent_leaves_the_handlers_error_alone(shell: Shell) -> None:
    """That is what the caller sees; the rest is told as an event."""
    client, events = shell.lossy_client(), shell.events()
    queue = shell.queue(client=client, wait=0, on_event=events.listen, retry_budget_seconds=0)
    await queue.publish("a")
    error = ValueError("mine")
    with pytest.raises(ValueError) as raised:
        async with queue.process_message():
            client.losses.request()
            raise error
    assert raised.value is error
    assert events.names[-2:] == ["failed/failure", "cleanup_failed/failure"]
    shell.lapse(queue)
    assert await fail(queue, KeyError()) == "a"


@pytest.mark.promise("`on_heartbeat_failure` is called once if a heartbeat stops because it cannot renew the lease.")
async def test_a_heartbeat_that_cannot_reach_redis_reports_a_failure(shell: Shell) -> None:
    """It gives up when the lease would end, at the latest, and calls on_heartbeat_failure."""
    client, events, calls = shell.lossy_client(), shell.events(), []
    queue = shell.queue(
        client=client,
        on_event=events.listen,
        on_heartbeat_failure=shell.callback(lambda: calls.append(1)),
        visibility_timeout_seconds=0.8,
        heartbeat_interval_seconds=0.1,
        retry_budget_seconds=600,
        retry_initial_delay_seconds=0.01,
        retry_max_delay_seconds=0.05,
    )
    await queue.publish("a")
    async with queue.process_message():
        received = queue.current_message()
        client.losses.request(100_000)
        assert await until(lambda: calls)
        assert received.lease_lost is True
        client.losses.heal()
    assert calls == [1]
    (failure,) = [event for event in events.of("lease_renew") if event.outcome == "failure"]
    assert isinstance(failure.error, RetryBudgetExhaustedError)
    assert events.names[-1] == "ack/success"


# A wait that is over, a consumer that stops


@pytest.mark.promise("When its wait is over, a consumer claims nothing new but still receives what it claimed in time.")
async def test_after_its_time_a_wait_takes_no_fresh_work(shell: Shell) -> None:
    """The request was lost, and when Redis can be reached again the wait is over: the message stays for the next."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0.05, retry_initial_delay_seconds=0.4, retry_max_delay_seconds=0.4)
    await queue.publish("a")
    client.losses.request()
    assert await take(queue) is None
    assert (shell.pending(queue), shell.processing(queue)) == (1, 0)
    assert await take(queue) == "a"


@pytest.mark.promise("When its wait is over, a consumer claims nothing new but still receives what it claimed in time.")
async def test_after_its_time_a_wait_still_gets_what_it_took_in_time(shell: Shell) -> None:
    """The reply was lost: the message is this consumer's, so it gets it, late as it is."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0.05, retry_initial_delay_seconds=0.4, retry_max_delay_seconds=0.4)
    await queue.publish("a")
    client.losses.reply()
    assert await take(queue) == "a"


@pytest.mark.promise("An interrupt ends the retries of a claim and the recovery of an unconfirmed one.")
async def test_an_interrupt_ends_the_retries_of_a_claim(shell: Shell, dead_port: int) -> None:
    """A consumer that should stop does not sit out its budget because Redis is gone; it gets None or the error."""
    stop = threading.Event()
    queue = unreachable(
        shell, dead_port, retry_budget_seconds=3 * LIMIT_SECONDS, interrupt=EventDrivenInterruptHandler(stop)
    )
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    started = time.monotonic()
    with contextlib.suppress(redis.exceptions.RedisError):
        assert await take(queue) is None
    timer.join()
    assert time.monotonic() - started < LIMIT_SECONDS
