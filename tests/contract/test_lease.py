"""While a lease lasts, no other consumer gets the message; afterwards its old holder can change nothing."""

import asyncio
import contextlib
import itertools
import logging
import time

import pytest

from redis_message_queue.process.local_runtime import LocalRuntime
from tests.contract.shells import LIMIT_SECONDS, Shell, claim_and_die, fail, holding, take

pytestmark = [pytest.mark.topic("Leases"), pytest.mark.every_server]


@pytest.mark.promise("A message that is not settled when its lease ends is delivered again, but never earlier.")
@pytest.mark.promise(
    "A lease does not limit a handler: the handler is not interrupted and may overlap with the next delivery."
)
async def test_a_message_comes_back_when_its_lease_is_over(shell: Shell) -> None:
    """And no sooner: by the real clock, to the next consumer."""
    queue = shell.queue(wait=LIMIT_SECONDS, visibility_timeout_seconds=0.4)
    await queue.publish("a")
    started = time.monotonic()
    async with queue.process_message():
        first = queue.current_message()
        with contextlib.suppress(ValueError):
            async with queue.process_message() as message:
                second = queue.current_message()
                assert message == b"a"
                assert time.monotonic() - started >= 0.4
                raise ValueError
    assert (first.delivery_count, second.delivery_count) == (1, 2)
    assert (first.id, first.published_at) == (second.id, second.published_at)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("By default a claim takes a lease of 300 seconds: delivery is at least once.")
async def test_a_lease_lasts_five_minutes_unless_the_user_says_otherwise(shell: Shell) -> None:
    """Read from the deadline, which is in microseconds of the server's clock."""
    for options, length in (
        ({}, 300),
        ({"visibility_timeout_seconds": 7}, 7),
        ({"visibility_timeout_seconds": 0.5}, 0.5),
    ):
        shell.redis.flushall()
        queue = shell.queue(**options)
        await queue.publish("a")
        seconds, micros = shell.redis.time()
        async with holding(queue):
            ((_, deadline),) = shell.redis.zrange(queue.key.leases, 0, -1, withscores=True)
        assert length - 0.001 <= deadline / 1e6 - (seconds + micros / 1e6) < length + LIMIT_SECONDS


@pytest.mark.promise("Every lease counts as a delivery, even if no handler started.")
@pytest.mark.promise("The delivery count is stored in Redis with the message.")
async def test_every_delivery_is_counted(shell: Shell) -> None:
    """From the grant of the claim on, whether or not a handler got to run."""
    queue = shell.queue()
    await queue.publish("a")
    for expected in range(1, 5):
        async with holding(queue):
            assert queue.current_message().delivery_count == expected
        shell.lapse(queue)
    assert shell.redis.hlen(queue.key.deliveries) == 1
    await take(queue)
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("Redelivered messages are claimed before pending ones.")
async def test_what_comes_back_goes_before_what_waits(shell: Shell) -> None:
    """In the order of the deadlines, also when the messages were claimed by different consumers."""
    one, other = shell.queue(wait=0), shell.queue(wait=0)
    for text in "abcd":
        await one.publish(text)
    for queue in (one, other, one):
        await claim_and_die(queue)
    shell.lapse(one)
    assert [await take(other) for _ in range(5)] == [b"a", b"b", b"c", b"d", None]


@pytest.mark.promise("Messages whose leases end together keep their order, however many there are.")
async def test_hundreds_come_back_in_their_order(shell: Shell) -> None:
    """Quick claims, whose deadlines differ by microseconds only; the real deadlines decide."""
    queue = shell.queue(wait=LIMIT_SECONDS, visibility_timeout_seconds=LIMIT_SECONDS)
    for number in range(230):
        await queue.publish(str(number))
    for _ in range(230):
        await claim_and_die(queue)
    # All deadlines move by the same: that keeps their order, and saves the test the waiting.
    held = shell.redis.zrange(queue.key.leases, 0, -1, withscores=True)
    shell.redis.zadd(queue.key.leases, {message_id: deadline - 1e9 for message_id, deadline in held})
    assert [int(await take(queue)) for _ in range(230)] == list(range(230))


# Fencing


@pytest.mark.promise("A consumer that has lost its lease cannot ack, fail or renew the message.")
@pytest.mark.promise(
    "A renewal emits `lease_renew`; late calls emit `stale_lease_ack`, `stale_lease_nack` or `stale_lease_renew`."
)
async def test_a_consumer_that_lost_its_lease_cannot_ack(shell: Shell) -> None:
    """The second holder's message stays when the first holder finishes late; the second one's ack counts."""
    events = shell.events()
    slow = shell.queue(on_event=events.listen, enable_completed_queue=True)
    quick = shell.queue(enable_completed_queue=True)
    await slow.publish("a")
    late = slow.process_message()
    await late.__aenter__()
    shell.lapse(slow)
    async with quick.process_message() as message:
        assert message == b"a"
        await late.__aexit__(None, None, None)
        assert shell.processing(quick) == 1
        assert shell.listed(quick.key.completed) == []
        assert shell.redis.zcard(quick.key.leases) == 1
        assert events.names[-1] == "stale_lease_ack/skipped"
    assert shell.leftovers(quick) == {b"q::completed"}
    assert shell.listed(quick.key.completed) == [b"a"]


@pytest.mark.promise("A consumer that has lost its lease cannot ack, fail or renew the message.")
@pytest.mark.promise(
    "A renewal emits `lease_renew`; late calls emit `stale_lease_ack`, `stale_lease_nack` or `stale_lease_renew`."
)
async def test_a_consumer_that_lost_its_lease_cannot_fail_the_message(shell: Shell) -> None:
    """Its own exception still reaches its caller; the message is neither removed nor in the failed list."""
    events = shell.events()
    slow = shell.queue(on_event=events.listen, enable_failed_queue=True)
    quick = shell.queue(enable_failed_queue=True)
    await slow.publish("a")
    with pytest.raises(ValueError, match="late"):
        async with slow.process_message():
            shell.lapse(slow)
            await claim_and_die(quick)
            raise ValueError("late")
    assert events.names[-2:] == ["failed/failure", "stale_lease_nack/skipped"]
    assert shell.listed(quick.key.failed) == []
    assert shell.processing(quick) == 1


@pytest.mark.promise(
    "A late ack changes nothing once the message is settled; it counts if no other consumer has claimed the message."
)
async def test_a_late_ack_does_nothing_after_the_message_is_done(shell: Shell) -> None:
    """The second holder has finished; the first one's end is told as stale and changes nothing."""
    events = shell.events()
    slow = shell.queue(on_event=events.listen, enable_completed_queue=True)
    await slow.publish("a")
    async with slow.process_message():
        shell.lapse(slow)
        await take(shell.queue(enable_completed_queue=True))
    assert events.names[-1] == "stale_lease_ack/skipped"
    assert shell.listed(slow.key.completed) == [b"a"]


@pytest.mark.promise("A consumer that has lost its lease cannot ack, fail or renew the message.")
async def test_every_earlier_holder_is_fenced_off(shell: Shell) -> None:
    """Not the last one only: three consumers come too late, in any order, and the fourth acks."""
    queue = shell.queue()
    await queue.publish("a")
    late = [queue.process_message() for _ in range(3)]
    for context in late:
        await context.__aenter__()
        shell.lapse(queue)
    async with queue.process_message():
        for context in (late[1], late[2], late[0]):
            await context.__aexit__(None, None, None)
        assert shell.processing(queue) == 1
    assert shell.leftovers(queue) == set()


@pytest.mark.promise(
    "A late ack changes nothing once the message is settled; it counts if no other consumer has claimed the message."
)
async def test_a_late_ack_counts_while_nobody_else_has_the_message(shell: Shell) -> None:
    """The lease is over but not taken over: done is done."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen)
    await queue.publish("a")
    async with queue.process_message():
        shell.lapse(queue)
    assert events.names[-1] == "ack/success"
    assert await take(queue) is None
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("A late ack or nack logs a warning without the payload.")
async def test_a_stale_end_is_logged_without_the_payload(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """A warning with the message's id, so that somebody finds the lease too short."""
    queue = shell.queue()
    await queue.publish("secret")
    with caplog.at_level(logging.DEBUG, "redis_message_queue"):
        async with queue.process_message():
            message_id = queue.current_message().id
            shell.lapse(queue)
            await claim_and_die(queue)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert message_id in record.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.promise(
    "A lease does not limit a handler: the handler is not interrupted and may overlap with the next delivery."
)
@pytest.mark.promise("`lease_lost` of a received message says that its lease is lost.")
async def test_lease_lost_shows_a_handler_that_its_lease_ended(shell: Shell) -> None:
    """By the consumer's own clock, without asking Redis; after the block it can still be read."""
    queue = shell.queue(visibility_timeout_seconds=0.5)
    await queue.publish("a")
    async with queue.process_message():
        received = queue.current_message()
        assert received.lease_lost is False
        await asyncio.sleep(0.55)
        assert received.lease_lost is True


@pytest.mark.promise("A lease that ends before Redis has answered the claim is logged with the message and what to do.")
async def test_a_lease_shorter_than_the_answer_of_redis_is_logged(
    shell: Shell, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No handler may start with such a message, so without the log line the queue would just seem to be empty."""
    queue = shell.queue(wait=0, visibility_timeout_seconds=0.005)
    await queue.publish("a")
    seconds = itertools.count(time.monotonic(), 0.01)  # the clock is so much further whenever it is read
    with monkeypatch.context() as slow, caplog.at_level(logging.WARNING, "redis_message_queue"):
        slow.setattr(LocalRuntime, "now", staticmethod(lambda: next(seconds)))
        assert await take(queue) is None
    assert "cannot be delivered" in caplog.text
    assert "visibility_timeout_seconds" in caplog.text
    assert await take(shell.queue(wait=LIMIT_SECONDS)) == b"a"


@pytest.mark.promise("A queue object with a different visibility timeout respects existing leases.")
async def test_a_queue_with_another_timeout_respects_the_lease_of_the_first(shell: Shell) -> None:
    """The deadline is in Redis: a consumer with a short timeout does not take what another still holds."""
    patient, hasty = shell.queue(visibility_timeout_seconds=300), shell.queue(wait=0, visibility_timeout_seconds=0.05)
    await patient.publish("a")
    async with patient.process_message():
        await asyncio.sleep(0.1)
        assert await take(hasty) is None


@pytest.mark.promise("Without a retry policy, failed messages are not retried.")
async def test_a_failure_after_redelivery_removes_the_message_for_good(shell: Shell) -> None:
    """Redelivery is for crashes; an ordinary exception ends a message in any delivery."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await fail(queue, ValueError()) == b"a"
    assert shell.leftovers(queue) == set()
