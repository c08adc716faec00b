"""A message that was delivered too often goes to the dead letters."""

import asyncio
import logging
from typing import Any

import pytest

from tests.contract.shells import LIMIT_SECONDS, Shell, claim_and_die, fail, holding, take, until

pytestmark = pytest.mark.topic("Dead letters")


async def deliver(shell: Shell, queue: Any, times: int) -> None:
    """So many consumers die of the message that comes back."""
    for _ in range(times):
        await claim_and_die(queue)
        shell.lapse(queue)


@pytest.mark.promise("A message over its delivery limit is skipped, and the same claim returns the next message.")
@pytest.mark.promise(
    "A message that has been delivered `max_delivery_count` times is dead-lettered instead of being delivered again."
)
async def test_after_the_last_delivery_a_message_goes_to_the_dead_letters(shell: Shell) -> None:
    """As its raw payload, with nothing of it left elsewhere; the claim that found it goes on to the next message."""
    events = shell.events()
    queue = shell.queue(wait=0, max_delivery_count=2, on_event=events.listen)
    await queue.publish({"k": "漢"})
    await deliver(shell, queue, 2)
    await queue.publish("next")
    events.clear()
    assert await take(queue) == b"next"
    assert shell.listed(queue.key.dead_letter) == ['{"k": "漢"}'.encode()]
    assert shell.leftovers(queue) == {b"q::dlq"}
    assert events.names == ["dlq/success", "claim/success", "ack/success"]
    assert await take(queue) is None


@pytest.mark.promise("A dead-lettered message emits `dlq` with its id and delivery count.")
async def test_the_event_of_a_dead_letter_has_its_id_and_delivery_count(shell: Shell) -> None:
    """Its id and the number of deliveries that it had."""
    events = shell.events()
    queue = shell.queue(wait=0, max_delivery_count=3, on_event=events.listen)
    await queue.publish("a")
    await deliver(shell, queue, 3)
    assert await take(queue) is None
    told = events.the("dlq")
    assert (told.message_id, told.delivery_count) == (events.the("publish").message_id, 3)


@pytest.mark.promise("With `max_delivery_count=1` a message is delivered once.")
async def test_a_limit_of_one_delivers_once(shell: Shell) -> None:
    """Any return leads to the dead letters."""
    queue = shell.queue(wait=0, max_delivery_count=1)
    await queue.publish("a")
    await deliver(shell, queue, 1)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"a"]


@pytest.mark.promise("With `client=` the delivery limit is 10 by default; `None` removes it.")
async def test_ten_deliveries_are_the_default(shell: Shell) -> None:
    """On a queue made with a bare client."""
    queue = shell.queue()
    await queue.publish("a")
    await deliver(shell, queue, 10)
    assert shell.listed(queue.key.dead_letter) == []
    await queue.publish("next")
    assert await take(queue) == b"next"
    assert shell.listed(queue.key.dead_letter) == [b"a"]


@pytest.mark.promise("With `client=` the delivery limit is 10 by default; `None` removes it.")
async def test_none_delivers_without_end(shell: Shell) -> None:
    """Also on a gateway, whose default that is."""
    for queue in (
        shell.queue("a", max_delivery_count=None),
        shell.queue("b", gateway=shell.gateway(message_visibility_timeout_seconds=300)),
    ):
        await queue.publish("m")
        await deliver(shell, queue, 15)
        async with queue.process_message():
            assert queue.current_message().delivery_count == 16


@pytest.mark.promise("The last allowed delivery can still succeed.")
async def test_an_ack_at_the_last_delivery_is_in_time(shell: Shell) -> None:
    """The limit counts deliveries, not failures: the last one may succeed."""
    queue = shell.queue(wait=0, max_delivery_count=2)
    await queue.publish("a")
    await deliver(shell, queue, 1)
    assert await take(queue) == b"a"
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("The delivery count is stored in Redis with the message.")
async def test_the_count_goes_with_the_message(shell: Shell) -> None:
    """Into the completed or the failed list, after any number of deliveries: nothing of it is left."""
    queue = shell.queue(wait=0, max_delivery_count=5, enable_completed_queue=True, enable_failed_queue=True)
    for text, end in (("a", lambda: take(queue)), ("b", lambda: fail(queue, ValueError()))):
        await queue.publish(text)
        await deliver(shell, queue, 3)
        assert shell.redis.hlen(queue.key.deliveries) == 1
        await end()
    assert shell.leftovers(queue) == {b"q::completed", b"q::failed"}


@pytest.mark.promise("Without a retry policy, an exception in `process_message()` never makes a dead letter.")
async def test_an_exception_in_a_handler_makes_no_dead_letter(shell: Shell) -> None:
    """It removes the message, or keeps it in the failed list, in the first delivery and in the last."""
    queue = shell.queue(wait=0, max_delivery_count=1, enable_failed_queue=True)
    await queue.publish("a")
    await fail(queue, ValueError())
    assert shell.listed(queue.key.failed) == [b"a"]
    assert shell.listed(queue.key.dead_letter) == []


@pytest.mark.promise("A dead letter is the raw payload, so equal payloads are indistinguishable in the list.")
async def test_identical_payloads_stand_side_by_side_newest_left(shell: Shell) -> None:
    """A dead letter is the payload and nothing else."""
    queue = shell.queue(wait=0, max_delivery_count=1)
    for text in ("same", "same", "other"):
        await queue.publish(text)
        await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"other", b"same", b"same"]


@pytest.mark.promise("`max_dead_letter_length` limits the dead-letter list.")
async def test_the_list_may_be_limited(shell: Shell) -> None:
    """max_dead_letter_length keeps the newest; without it every one stays."""
    for options, kept in (({"max_dead_letter_length": 2}, [b"d", b"c"]), ({}, [b"d", b"c", b"b", b"a"])):
        shell.redis.flushall()
        queue = shell.queue(wait=0, max_delivery_count=1, **options)
        for text in "abcd":
            await queue.publish(text)
            await claim_and_die(queue)
        shell.lapse(queue)
        assert await take(queue) is None
        assert shell.listed(queue.key.dead_letter) == kept


@pytest.mark.promise("A failed cleanup emits `cleanup_failed`, and a failed trim `trim_failed`.")
async def test_trimming_the_list_is_best_effort(shell: Shell, user_without_ltrim: dict[str, str]) -> None:
    """If it fails, the message is a dead letter nevertheless, the claim continues, and an event reports it."""
    events = shell.events()
    client = shell.new_client(**user_without_ltrim)
    queue = shell.queue(client=client, wait=0, max_delivery_count=1, max_dead_letter_length=1, on_event=events.listen)
    for text in "ab":
        await queue.publish(text)
        await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("c")
    events.clear()
    assert await take(queue) == b"c"
    assert shell.listed(queue.key.dead_letter) == [b"b", b"a"]
    assert events.names == [*("dlq/success", "dlq/success", "trim_failed/failure", "claim/success", "ack/success")]


@pytest.mark.promise("A claim never returns empty while a deliverable message exists.")
async def test_a_claim_is_never_empty_while_a_deliverable_message_waits(shell: Shell) -> None:
    """Behind more poison than one script may clear away, one call still finds it."""
    queue = shell.queue(wait=0, max_delivery_count=1)
    for _ in range(1_050):
        await queue.publish("poison")
        await claim_and_die(queue)
    await queue.publish("good")
    shell.lapse(queue)
    assert await take(queue) == b"good"
    assert shell.redis.llen(queue.key.dead_letter) == 1_050


@pytest.mark.promise("The deduplication window outlives the message, whether it was acked, failed or dead-lettered.")
@pytest.mark.promise("A dead letter never returns to the queue on its own.")
async def test_a_dead_message_is_not_suppressed_twice_nor_delivered_again(shell: Shell) -> None:
    """It is terminal: no claim brings it back, and its deduplication window goes on."""
    queue = shell.queue(wait=0, max_delivery_count=1, deduplication=True)
    await queue.publish("a")
    await deliver(shell, queue, 1)
    assert await take(queue) is None
    assert await queue.publish("a") is False
    assert await take(queue) is None


@pytest.mark.promise("When a message is dead-lettered, its last consumer loses its lease.")
async def test_the_last_consumer_is_fenced_off_when_its_message_is_dead_lettered(shell: Shell) -> None:
    """Its late ack finds nothing to do."""
    events = shell.events()
    queue = shell.queue(wait=0, max_delivery_count=1, on_event=events.listen, enable_completed_queue=True)
    await queue.publish("a")
    async with queue.process_message():
        shell.lapse(queue)
        assert await take(shell.queue(wait=0, max_delivery_count=1)) is None
    assert events.names[-1] == "stale_lease_ack/skipped"
    assert shell.leftovers(queue) == {b"q::dlq"}


@pytest.mark.promise("A dead-letter key of the wrong type makes the claim fail and loses nothing.")
async def test_a_wrong_typed_dead_letter_key_fails_the_claim_and_loses_nothing(shell: Shell) -> None:
    """Fail closed: the poison is still in processing when the key is repaired."""
    queue = shell.queue(wait=0, max_delivery_count=1)
    await queue.publish("a")
    await deliver(shell, queue, 1)
    shell.redis.set(queue.key.dead_letter, "not a list")
    with pytest.raises(shell.module.LuaScriptError):
        await take(queue)
    assert shell.processing(queue) == 1
    shell.redis.delete(queue.key.dead_letter)
    assert await take(queue) is None
    assert shell.listed(queue.key.dead_letter) == [b"a"]


@pytest.mark.promise("A gateway with a delivery limit serves one queue only.")
async def test_one_gateway_with_a_delivery_limit_serves_one_queue(shell: Shell) -> None:
    """Dead letters are the gateway's, so a second queue on it is refused; without a limit it may serve many."""
    limited = shell.gateway(message_visibility_timeout_seconds=300, max_delivery_count=3, dead_letter_queue="a::dlq")
    shell.queue("a", gateway=limited)
    with pytest.raises(shell.module.ConfigurationError, match="gateway"):
        shell.queue("b", gateway=limited)
    shared = shell.gateway(message_visibility_timeout_seconds=300)
    one, other = shell.queue("a", gateway=shared), shell.queue("b", gateway=shared)
    await one.publish("m")
    assert (shell.pending(one), shell.pending(other)) == (1, 0)


# At most once


@pytest.mark.promise(
    "With `visibility_timeout_seconds=None` a message is delivered at most once and stays in `processing` after a "
    "crash."
)
async def test_without_a_visibility_timeout_a_message_is_delivered_at_most_once(shell: Shell) -> None:
    """A dead consumer's message stays in processing, with nothing beside it, and nobody gets it again."""
    queue = shell.queue(wait=0, visibility_timeout_seconds=None, max_delivery_count=None)
    await queue.publish("a")
    async with holding(queue) as message:
        assert message == b"a"
        received = queue.current_message()
        assert (received.delivery_count, received.lease_lost) == (1, False)
    assert await take(queue) is None
    assert shell.leftovers(queue) == {b"q::processing"}
    assert shell.processing(queue) == 1


@pytest.mark.promise(
    "With `visibility_timeout_seconds=None` a message is delivered at most once and stays in `processing` after a "
    "crash."
)
async def test_without_a_visibility_timeout_ack_and_failure_work_as_ever(shell: Shell) -> None:
    """Completed and failed lists included."""
    queue = shell.queue(visibility_timeout_seconds=None, enable_completed_queue=True, enable_failed_queue=True)
    await queue.publish("a")
    await queue.publish("b")
    await take(queue)
    await fail(queue, ValueError())
    assert shell.leftovers(queue) == {b"q::completed", b"q::failed"}


@pytest.mark.promise(
    "A delivery limit needs a visibility timeout: without one the default is ignored and an explicit limit is refused."
)
async def test_at_most_once_makes_the_defaulted_limit_inert_and_an_explicit_one_an_error(shell: Shell) -> None:
    """The default needs no lease; a limit that the user sets does."""
    assert shell.queue(visibility_timeout_seconds=None)
    assert shell.queue(visibility_timeout_seconds=None, max_delivery_count=None)
    for limit in (1, 10):
        with pytest.raises(shell.module.ConfigurationError, match="max_delivery_count"):
            shell.queue(visibility_timeout_seconds=None, max_delivery_count=limit)
    with pytest.raises(shell.module.ConfigurationError, match="max_delivery_count"):
        shell.gateway(max_delivery_count=3)


@pytest.mark.promise("With `gateway=` the queue has no lease and no delivery limit unless the gateway sets them.")
async def test_a_gateway_is_at_most_once_unless_it_is_given_a_timeout(shell: Shell) -> None:
    """The queue's own defaults are not copied into it, also where they are spelled out."""
    gateway = shell.gateway(message_wait_interval_seconds=0)
    queue = shell.queue(gateway=gateway, visibility_timeout_seconds=300, max_delivery_count=10)
    await queue.publish("a")
    await claim_and_die(queue)
    assert shell.leftovers(queue) == {b"q::processing"}


@pytest.mark.promise("A dead letter is reported by event and log immediately, even while the consumer keeps waiting.")
@pytest.mark.parametrize("way", ["process_message", "run"])
async def test_a_dead_letter_is_reported_while_the_consumer_that_found_it_waits_on(
    shell: Shell, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The event and the log line come with the answer that says it, and not when the wait is over."""
    events = shell.events()
    queue = shell.queue(wait=30 * LIMIT_SECONDS, max_delivery_count=1, on_event=events.listen)
    await queue.publish("a")
    await claim_and_die(queue)
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        waiting = asyncio.ensure_future(
            queue.run(lambda message: None) if way == "run" else shell.beside(lambda: take(queue))
        )
        assert await until(lambda: int(shell.redis.info("clients")["blocked_clients"]) == 1)
        shell.lapse(queue)
        await events.wait_for("dlq")
        assert not waiting.done()
    assert str(events.the("publish").message_id) in caplog.text
    await queue.drain(timeout=0)
    shell.redis.lpush(queue.key.wakeup, "1")
    await waiting
