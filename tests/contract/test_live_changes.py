"""Options belong to the queue object and messages to Redis: what a change of options does to existing messages."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.contract.shells import (
    LIMIT_SECONDS,
    AsyncioQueue,
    BlockingQueue,
    Queue,
    Shell,
    claim_and_die,
    fail,
    holding,
    take,
    until,
    with_unconfirmed_claim,
)

pytestmark = pytest.mark.topic("Changes on a live queue")

LEASED = {"visibility_timeout_seconds": 300}
UNLEASED: dict[str, Any] = {"visibility_timeout_seconds": None}

both_ways = pytest.mark.parametrize(("old", "new"), [(LEASED, UNLEASED), (UNLEASED, LEASED)], ids=["off", "on"])


def contents(shell: Shell, queue: Any) -> dict[bytes, bytes]:
    """Every key of this queue but wake-up key and reply cache, as the server would save it."""
    prefix = f"{queue.key.prefix}{queue.key.separator}".encode()
    return {key: shell.redis.dump(key) for key in shell.leftovers(queue) if key.startswith(prefix)}


async def deliver(shell: Shell, queue: Any, times: int) -> None:
    """So many consumers die of what comes back."""
    for _ in range(times):
        await claim_and_die(queue)
        shell.lapse(queue)


async def take_all(queue: Any) -> list[Any]:
    """Handle messages until there is none; the queue must be one that does not wait."""
    taken: list[Any] = []
    while (message := await take(queue)) is not None:
        taken.append(message)
    return taken


def seconds_left(shell: Shell, queue: Any) -> float:
    """How long the only lease still lasts, by the server's clock."""
    ((_, deadline),) = shell.redis.zrange(queue.key.leases, 0, -1, withscores=True)
    seconds, micros = shell.redis.time()  # after the deadline: a heartbeat may renew the lease in between
    return float(deadline / 1e6 - (seconds + micros / 1e6))


# Names


@pytest.mark.promise(
    "A different name or separator is a different queue; the old one stays unchanged under its old name."
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"name": "orders"}, {"name": "orders-2"}),
        ({"name": "orders"}, {"name": "orders", "key_separator": "/"}),
        ({"name": "orders"}, {"name": "orders", "hash_tag": True}),
        ({"name": "orders", "hash_tag": True}, {"name": "orders"}),
    ],
    ids=["name", "key_separator", "hash_tag on", "hash_tag off"],
)
async def test_other_keys_are_another_queue(shell: Shell, old: dict[str, Any], new: dict[str, Any]) -> None:
    """The new one sees and touches nothing of the old, which is whole under its old name: waiting, held, kept, dead."""
    rules = {"wait": 0, "deduplication": True, "enable_completed_queue": True, "max_delivery_count": 2}
    before, after = shell.queue(**rules | old), shell.queue(**rules | new)
    for text in "abcde":
        await before.publish(text)
    await take(before)
    await deliver(shell, before, 2)
    assert await take(before) == b"c"
    await claim_and_die(before)
    whole = contents(shell, before)
    assert (shell.pending(before), shell.processing(before)) == (1, 1)

    assert await take(after) is None
    assert await after.publish("e") is True, "windows belong to a name too"
    assert await take(after) == b"e"
    assert contents(shell, before) == whole

    shell.lapse(before)
    assert await take_all(before) == [b"d", b"e"]
    assert shell.listed(before.key.completed) == [b"e", b"d", b"c", b"a"]
    assert shell.listed(before.key.dead_letter) == [b"b"]
    assert await before.publish("e") is False


@pytest.mark.promise(
    "A different name or separator is a different queue; the old one stays unchanged under its old name."
)
async def test_a_queue_moves_to_a_new_name_while_it_works(shell: Shell) -> None:
    """Producers go first, a consumer of the old name works it off, one of the new name takes what is new."""
    old, new = shell.queue("old", wait=0), shell.queue("new", wait=0)
    for text in "ab":
        await old.publish(text)
    await claim_and_die(old)
    await new.publish("c")
    shell.lapse(old)
    assert (await take_all(old), await take_all(new)) == ([b"a", b"b"], [b"c"])
    assert contents(shell, old) == contents(shell, new) == {}


# Dead letters


def with_dead_letters_in(shell: Shell, key: str | None, **settings: Any) -> Any:
    """A queue behind a gateway that delivers once and puts its dead where it is told to."""
    usual = {"message_visibility_timeout_seconds": 300, "max_delivery_count": 1, "message_wait_interval_seconds": 0}
    return shell.queue(gateway=shell.gateway(**usual | settings, dead_letter_queue=key))


async def dead_letter(shell: Shell, queue: Any, text: str) -> None:
    await queue.publish(text)
    await deliver(shell, queue, 1)
    assert await take(queue) is None


@pytest.mark.promise(
    "Renaming the dead-letter list, or changing between `gateway=` and `client=`, leaves the old list as it is."
)
async def test_a_renamed_dead_letter_list_leaves_the_old_one_as_it_is(shell: Shell) -> None:
    """What died before stays there and what dies afterwards does not go there; changed back, all goes there again."""
    old, new = with_dead_letters_in(shell, "poison"), with_dead_letters_in(shell, "other-poison")
    await dead_letter(shell, old, "a")
    await dead_letter(shell, new, "b")
    assert (shell.listed("poison"), shell.listed("other-poison")) == ([b"a"], [b"b"])
    await dead_letter(shell, old, "c")
    assert (shell.listed("poison"), shell.listed("other-poison")) == ([b"c", b"a"], [b"b"])


@pytest.mark.promise(
    "Renaming the dead-letter list, or changing between `gateway=` and `client=`, leaves the old list as it is."
)
async def test_the_claiming_queue_chooses_the_dead_letter_list(shell: Shell) -> None:
    """Not where the consumer that had it would have: a message has no dead-letter list, a queue object has one."""
    old, new = with_dead_letters_in(shell, "poison"), with_dead_letters_in(shell, "other-poison")
    await old.publish("a")
    await deliver(shell, old, 1)
    assert await take(new) is None
    assert (shell.listed("poison"), shell.listed("other-poison")) == ([], [b"a"])


@pytest.mark.promise(
    "Renaming the dead-letter list, or changing between `gateway=` and `client=`, leaves the old list as it is."
)
async def test_client_instead_of_gateway_buries_in_the_queues_own_list(shell: Shell) -> None:
    """The same as a rename where the gateway had named another, and no change where it had not."""
    plain = shell.queue(wait=0, max_delivery_count=1)
    await dead_letter(shell, with_dead_letters_in(shell, "poison"), "a")
    await dead_letter(shell, plain, "b")
    assert (shell.listed("poison"), shell.listed("q::dlq")) == ([b"a"], [b"b"])
    unnamed = with_dead_letters_in(shell, None)
    assert unnamed.key.dead_letter == plain.key.dead_letter
    await dead_letter(shell, unnamed, "c")
    assert shell.listed("q::dlq") == [b"c", b"b"]


@pytest.mark.promise(
    "Renaming the dead-letter list, or changing between `gateway=` and `client=`, leaves the old list as it is."
)
async def test_gateway_instead_of_client_brings_neither_a_lease_nor_a_limit(shell: Shell) -> None:
    """Unless it is given them: a bare gateway switches the visibility timeout off, and what was leased stays put."""
    plain, bare = shell.queue(wait=0), shell.queue(gateway=shell.gateway(message_wait_interval_seconds=0))
    await plain.publish("a")
    await plain.publish("b")
    await claim_and_die(plain)
    shell.lapse(plain)
    assert await take_all(bare) == [b"b"]
    assert shell.processing(plain) == 1
    assert await take(plain) == b"a"


@pytest.mark.promise("A lower delivery limit counts earlier deliveries.")
async def test_a_lowered_delivery_limit_counts_what_was_delivered_before(shell: Shell) -> None:
    """The next claim buries what has had as many or more; the others are delivered."""
    before, after = shell.queue(wait=0), shell.queue(wait=0, max_delivery_count=2)
    for number, text in enumerate(("three times", "twice", "once"), start=1):
        await before.publish(text)
        for _ in range(number):
            await claim_and_die(before)
        shell.lapse(before)
    assert await take_all(after) == [b"once"]
    assert shell.listed(after.key.dead_letter) == [b"twice", b"three times"]
    assert shell.leftovers(after) == {b"q::dlq"}


@pytest.mark.promise("A lower delivery limit counts earlier deliveries.")
async def test_a_lowered_delivery_limit_does_not_take_a_message_from_its_holder(shell: Shell) -> None:
    """It is looked at when the lease is over; until then the last delivery may succeed."""
    before, after = shell.queue(), shell.queue(wait=0, max_delivery_count=1)
    await before.publish("a")
    await deliver(shell, before, 3)
    async with before.process_message() as message:
        assert message == b"a"
        assert await take(after) is None
    assert shell.leftovers(after) == set()


@pytest.mark.promise("A lower delivery limit counts earlier deliveries.")
async def test_a_raised_delivery_limit_gives_what_still_lives_further_deliveries(shell: Shell) -> None:
    """What is dead stays dead."""
    before, after = shell.queue(wait=0, max_delivery_count=2), shell.queue(wait=0, max_delivery_count=4)
    await before.publish("dead")
    await deliver(shell, before, 2)
    assert await take(before) is None
    await before.publish("alive")
    await deliver(shell, before, 2)
    async with after.process_message() as message:
        assert message == b"alive"
        assert after.current_message().delivery_count == 3
    assert await take(after) is None
    assert shell.listed(after.key.dead_letter) == [b"dead"]


@pytest.mark.promise("Deliveries are counted even without a limit, and nothing is left behind.")
async def test_deliveries_are_counted_with_and_without_a_limit(shell: Shell) -> None:
    """From a number to None and back: the count goes on, so the limit finds what was delivered in between."""
    limited, unlimited = shell.queue(wait=0, max_delivery_count=3), shell.queue(wait=0, max_delivery_count=None)
    await limited.publish("a")
    await deliver(shell, limited, 1)
    await deliver(shell, unlimited, 4)
    async with holding(unlimited):
        assert unlimited.current_message().delivery_count == 6
    shell.lapse(unlimited)
    assert await take(limited) is None
    assert shell.listed(limited.key.dead_letter) == [b"a"]


@pytest.mark.promise("Deliveries are counted even without a limit, and nothing is left behind.")
@pytest.mark.parametrize("end", [take, lambda queue: fail(queue, ValueError())], ids=["ack", "failure"])
async def test_without_a_limit_the_count_goes_with_its_message(shell: Shell, end: Callable[[Any], Any]) -> None:
    """From a number to None nothing is left behind that somebody would have to clear away."""
    limited, unlimited = shell.queue(wait=0, max_delivery_count=9), shell.queue(wait=0, max_delivery_count=None)
    await limited.publish("a")
    await deliver(shell, limited, 4)
    assert shell.redis.hlen(limited.key.deliveries) == 1
    assert await end(unlimited) == b"a"
    assert shell.leftovers(unlimited) == set()


@pytest.mark.promise("A lower list limit applies with the next message of its kind.")
async def test_a_limit_on_the_dead_letters_trims_with_the_next_one(shell: Shell) -> None:
    """Until somebody dies the list is left alone; then the newest stay."""
    endless, limited = with_dead_letters_in(shell, None), with_dead_letters_in(shell, None, max_dead_letter_length=2)
    for text in "abcd":
        await dead_letter(shell, endless, text)
    await limited.publish("handled")
    assert await take_all(limited) == [b"handled"]
    assert shell.listed("q::dlq") == [b"d", b"c", b"b", b"a"]
    await dead_letter(shell, limited, "e")
    assert shell.listed("q::dlq") == [b"e", b"d"]


# The visibility timeout, switched off and on


@pytest.mark.promise(
    "Turning the visibility timeout on or off loses nothing; messages in processing keep the rule they were claimed "
    "under."
)
@both_ways
@pytest.mark.parametrize("failing", [False, True], ids=["ack", "failure"])
async def test_a_holder_settles_its_message_after_the_toggle(
    shell: Shell, old: dict[str, Any], new: dict[str, Any], failing: bool
) -> None:
    """Consumers of the new kind work beside it, do not get what it holds, and nothing is left in the end."""
    kept = {"enable_completed_queue": True, "enable_failed_queue": True}
    before, after = shell.queue(wait=0, **kept, **old), shell.queue(wait=0, **kept, **new)
    await before.publish("a")
    with contextlib.suppress(ValueError):
        async with before.process_message() as message:
            assert message == b"a"
            await after.publish("b")
            assert await take_all(after) == [b"b"]
            if failing:
                raise ValueError
    ends = (shell.listed(after.key.completed), shell.listed(after.key.failed))
    assert ends == (([b"b"], [b"a"]) if failing else ([b"a", b"b"], []))
    assert shell.leftovers(after) <= {b"q::completed", b"q::failed"}


@pytest.mark.promise(
    "Turning the visibility timeout on or off loses nothing; messages in processing keep the rule they were claimed "
    "under."
)
async def test_switched_off_what_a_dead_consumer_held_waits_for_one_with_a_timeout(shell: Shell) -> None:
    """It stays in processing with its lease and its count; consumers without a timeout go past it, for ever."""
    before, after = shell.queue(wait=0, **LEASED), shell.queue(wait=0, **UNLEASED)
    await before.publish("a")
    await deliver(shell, before, 2)
    for text in "bc":
        await before.publish(text)
    whole = {key: shell.redis.dump(key) for key in (before.key.processing, before.key.leases, before.key.deliveries)}
    assert await take_all(after) == [b"b", b"c"]
    assert {key: shell.redis.dump(key) for key in whole} == whole

    async with before.process_message() as message:
        assert message == b"a"
        assert before.current_message().delivery_count == 3
    assert shell.leftovers(before) == set()


@pytest.mark.promise(
    "Turning the visibility timeout on or off loses nothing; messages in processing keep the rule they were claimed "
    "under."
)
async def test_switched_on_what_a_dead_consumer_held_stays_in_processing(shell: Shell) -> None:
    """It was at most once when it was delivered, and stays so: it has no lease that could end. Nothing else is left."""
    before, after = shell.queue(wait=0, **UNLEASED), shell.queue(wait=0, **LEASED)
    await before.publish("a")
    await claim_and_die(before)
    await after.publish("b")
    assert await take_all(after) == [b"b"]
    assert shell.leftovers(after) == {b"q::processing"}
    ((_, stored),) = shell.redis.hgetall(after.key.processing).items()
    assert stored.endswith(b"a")


@pytest.mark.promise(
    "Turning the visibility timeout on or off loses nothing; messages in processing keep the rule they were claimed "
    "under."
)
@both_ways
async def test_what_waits_is_delivered_under_the_new_rule(
    shell: Shell, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """A message in the line has no lease yet: it gets one if the consumer that takes it gives leases."""
    before, after = shell.queue(wait=0, **old), shell.queue(wait=0, **new)
    await before.publish("a")
    async with after.process_message() as message:
        assert message == b"a"
        assert shell.redis.zcard(after.key.leases) == (new is LEASED)
    assert shell.leftovers(after) == set()


@pytest.mark.promise(
    "Turning the visibility timeout on or off loses nothing; messages in processing keep the rule they were claimed "
    "under."
)
@both_ways
async def test_messages_requeued_before_the_toggle_are_delivered_after_it(
    shell: Shell, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """It has an entry in the deliveries, which goes with it under the other rule too."""
    before, after = await with_unconfirmed_claim(shell, **old), shell.queue(wait=0, **new)
    assert await before.drain() is True
    assert shell.redis.hlen(after.key.deliveries) == 1
    async with after.process_message() as message:
        assert message == b"a"
        assert after.current_message().delivery_count == 1
    assert shell.leftovers(after) == set()


@pytest.mark.promise(
    "Turning the visibility timeout on or off loses nothing; messages in processing keep the rule they were claimed "
    "under."
)
async def test_while_both_kinds_work_together_each_message_is_handled_once(shell: Shell) -> None:
    """A deployment in waves: two consumers with leases, two without, one line."""
    expected = [b"%d" % number for number in range(120)]
    producer, handled = shell.queue(), Counter[bytes]()

    def consumer(options: dict[str, Any]) -> Callable[[], Any]:
        queue = shell.queue(wait=LIMIT_SECONDS, **options)

        async def work() -> None:
            while (message := await take(queue)) != b"go home":
                handled[message] += 1

        return work

    crew = [shell.beside(consumer(options)) for options in (LEASED, UNLEASED, LEASED, UNLEASED)]
    for text in [*expected, *[b"go home"] * len(crew)]:
        await producer.publish(text.decode())
    await asyncio.gather(*crew)
    assert handled == Counter(expected)
    assert shell.leftovers(producer) == set()


# The visibility timeout, longer and shorter


@pytest.mark.promise("A changed visibility timeout applies to new leases and renewals.")
async def test_a_longer_timeout_does_not_prolong_the_leases_that_are_out(shell: Shell) -> None:
    """They end when they were meant to, by the real clock; the delivery after that has the new length."""
    before = shell.queue(visibility_timeout_seconds=0.4)
    after = shell.queue(wait=LIMIT_SECONDS, visibility_timeout_seconds=5_000)
    await before.publish("a")
    await claim_and_die(before)
    assert seconds_left(shell, before) <= 0.4
    async with after.process_message() as message:
        assert message == b"a"
        assert after.current_message().delivery_count == 2
        assert 5_000 - LIMIT_SECONDS < seconds_left(shell, after) <= 5_000.001


@pytest.mark.promise("A changed visibility timeout applies to new leases and renewals.")
async def test_a_shorter_timeout_does_not_shorten_the_leases_that_are_out(shell: Shell) -> None:
    """The deadline in Redis stays as it is, however short the leases are that others give."""
    before, after = shell.queue(), shell.queue(wait=0, visibility_timeout_seconds=0.05)
    await before.publish("a")
    await claim_and_die(before)
    deadlines = shell.redis.zrange(before.key.leases, 0, -1, withscores=True)
    await asyncio.sleep(0.1)
    assert await take(after) is None
    assert shell.redis.zrange(before.key.leases, 0, -1, withscores=True) == deadlines
    shell.lapse(before)
    async with holding(after) as message:
        assert message == b"a"
        assert seconds_left(shell, after) <= 0.051


@pytest.mark.promise("A changed visibility timeout applies to new leases and renewals.")
@pytest.mark.parametrize(("held", "other"), [(60, 5_000), (5_000, 60)], ids=["longer", "shorter"])
async def test_a_renewal_has_the_length_that_its_holder_was_made_with(shell: Shell, held: float, other: float) -> None:
    """A consumer of before the change renews with the old length, one of after it with the new, side by side."""
    events = shell.events()
    beating = {"heartbeat_interval_seconds": 0.05, "on_event": events.listen}
    before = shell.queue(visibility_timeout_seconds=held, **beating)
    await before.publish("a")
    async with before.process_message():
        await shell.queue(visibility_timeout_seconds=other).publish("b")
        assert await take(shell.queue(wait=0, visibility_timeout_seconds=other)) == b"b"
        # All but spent, so that what is read afterwards is a renewal.
        shell.redis.zincrby(before.key.leases, (1 - held) * 1e6, *shell.leases(before))
        told = len(events.of("lease_renew"))
        await events.wait_for("lease_renew", told + 2)
        assert held - LIMIT_SECONDS < seconds_left(shell, before) <= held + 0.001


# Deduplication


def by_order(message: Any) -> str:
    return f"order-{message['order']}"


def by_customer(message: Any) -> str:
    return f"customer-{message['customer']}"


@pytest.mark.promise("A new deduplication function makes new keys; the old ones expire.")
@pytest.mark.parametrize(
    ("old", "new"),
    [(None, by_order), (by_order, None), (by_order, by_customer)],
    ids=["from content", "to content", "to another"],
)
async def test_another_key_function_forgets_and_the_old_one_remembers(
    shell: Shell, old: Callable[[Any], str] | None, new: Callable[[Any], str] | None
) -> None:
    """A message may come once more under its new key; old keys run out by themselves and count until then."""
    before = shell.queue(deduplication=True, get_deduplication_key=old, window=600)
    after = shell.queue(deduplication=True, get_deduplication_key=new)
    message = {"order": 1, "customer": 2}
    await before.publish(message)
    (marker,) = shell.redis.keys("q::deduplication::*")
    assert [await after.publish(message), await after.publish(message)] == [True, False]
    assert 0 < shell.redis.pttl(marker) <= 600_000
    assert await before.publish(message) is False
    assert shell.pending(after) == 2


@pytest.mark.promise("Turning deduplication off takes effect immediately; its keys expire.")
async def test_deduplication_switched_off_lets_through_and_keeps_what_it_knows(shell: Shell) -> None:
    """The keys stay until their time is over and count if it is switched on again; meanwhile none is made."""
    on, off = shell.queue(deduplication=True, window=600), shell.queue()
    await on.publish("a")
    (marker,) = shell.redis.keys("q::deduplication::*")
    assert [await off.publish("a"), await off.publish("b")] == [True, True]
    assert shell.redis.keys("q::deduplication::*") == [marker]
    assert 0 < shell.redis.pttl(marker) <= 600_000
    assert [await on.publish("a"), await on.publish("b"), await on.publish("b")] == [False, True, False]
    assert shell.pending(on) == 4


@pytest.mark.promise("Turning deduplication off takes effect immediately; its keys expire.")
async def test_deduplication_switched_on_does_not_know_what_waits(shell: Shell) -> None:
    """Only what is published under it has a key: each message may come once more."""
    off, on = shell.queue(wait=0), shell.queue(wait=0, deduplication=True)
    await off.publish("a")
    assert [await on.publish("a"), await on.publish("a")] == [True, False]
    assert await take_all(on) == [b"a", b"a"]


@pytest.mark.promise("A new deduplication function makes new keys; the old ones expire.")
@pytest.mark.parametrize(("old", "new"), [(3_600, 60), (60, 3_600)], ids=["shorter", "longer"])
async def test_a_new_window_is_for_new_keys(shell: Shell, old: int, new: int) -> None:
    """Those that are there keep the time they had, and a suppressed publish does not change it."""
    rules = {"deduplication": True, "get_deduplication_key": str}
    before, after = shell.queue(window=old, **rules), shell.queue(window=new, **rules)
    await before.publish("known")
    assert await after.publish("known") is False
    await after.publish("fresh")
    left = [shell.redis.pttl(after.key.deduplication(key)) / 1000 for key in ("known", "fresh")]
    assert old - LIMIT_SECONDS < left[0] <= old
    assert new - LIMIT_SECONDS < left[1] <= new


# Completed and failed lists


@pytest.mark.promise("Turning the failed list off removes new failures; entries already kept stay.")
@pytest.mark.parametrize("limit", [10, None], ids=["limit", "no limit"])
async def test_failures_without_a_failed_list_are_gone(shell: Shell, limit: int | None) -> None:
    """With or without a delivery limit: a handler's exception leads to no dead letter. What was kept before stays."""
    events = shell.events()
    kept = shell.queue(enable_failed_queue=True, max_delivery_count=limit)
    unkept = shell.queue(max_delivery_count=limit, on_event=events.listen)
    for queue, text in ((kept, "a"), (unkept, "b")):
        await queue.publish(text)
        await fail(queue, ValueError())
    assert shell.leftovers(kept) == {b"q::failed"}
    assert shell.listed(kept.key.failed) == [b"a"]
    assert events.names[-2:] == ["failed/failure", "nack/success"], "the events are all that tells of it"


@pytest.mark.promise("Turning the failed list off removes new failures; entries already kept stay.")
async def test_successes_without_a_completed_list_leave_the_old_ones(shell: Shell) -> None:
    """Not even a limit that is given beside it trims a list that is no longer kept."""
    kept = shell.queue(enable_completed_queue=True)
    unkept = shell.queue(max_completed_length=1)
    for queue, text in ((kept, "a"), (kept, "b"), (unkept, "c")):
        await queue.publish(text)
        await take(queue)
    assert shell.listed(kept.key.completed) == [b"b", b"a"]


async def succeed(queue: Any, text: str) -> None:
    await queue.publish(text)
    await take(queue)


async def break_down(queue: Any, text: str) -> None:
    await queue.publish(text)
    await fail(queue, ValueError())


@pytest.mark.promise("A lower list limit applies with the next message of its kind.")
@pytest.mark.parametrize(
    ("end", "word", "other_end"), [(succeed, "completed", break_down), (break_down, "failed", succeed)]
)
@pytest.mark.parametrize("old", [None, 5], ids=["from none", "from five"])
async def test_a_lower_cap_trims_with_the_next_message_of_its_kind(
    shell: Shell, end: Callable[..., Any], word: str, other_end: Callable[..., Any], old: int | None
) -> None:
    """Not before, and to the newest; a higher cap afterwards brings nothing back and lets the list grow."""
    kept = {"enable_completed_queue": True, "enable_failed_queue": True}
    before, after = shell.queue(**kept, **{f"max_{word}_length": old}), shell.queue(**kept, **{f"max_{word}_length": 2})
    key = getattr(before.key, word)
    for text in "abcde":
        await end(before, text)
    await other_end(after, "of the other kind")
    assert shell.listed(key) == [b"e", b"d", b"c", b"b", b"a"]
    await end(after, "f")
    assert shell.listed(key) == [b"f", b"e"]
    await end(before, "g")
    assert shell.listed(key) == [b"g", b"f", b"e"]


# Backpressure, with more in the line than the new limit allows


async def fill(shell: Shell, count: int) -> list[bytes]:
    """So many wait, published when there was no limit."""
    queue, texts = shell.queue(), [b"%d" % number for number in range(count)]
    for text in texts:
        await queue.publish(text.decode())
    return texts


@pytest.mark.promise("A limit below the current backlog drops nothing, except with `drop_oldest`.")
async def test_a_limit_below_what_waits_refuses_until_consumers_have_caught_up(shell: Shell) -> None:
    """Nothing that waits is dropped, and publishing works again with the first free place."""
    waiting = await fill(shell, 5)
    queue = shell.queue(wait=0, max_pending_length=2)
    for text in waiting[:4]:
        with pytest.raises(shell.module.QueueBackpressureError):
            await queue.publish("new")
        assert await take(queue) == text
    assert await queue.publish("new") is True
    assert await take_all(queue) == [b"4", b"new"]


@pytest.mark.promise("A limit below the current backlog drops nothing, except with `drop_oldest`.")
async def test_a_limit_below_what_waits_blocks_until_consumers_have_caught_up(shell: Shell) -> None:
    """The publisher waits for all that is too much to go, and then gets in."""
    waiting = await fill(shell, 5)
    queue = shell.queue(
        wait=0,
        max_pending_length=2,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=5 * LIMIT_SECONDS,
    )
    publisher = shell.beside(lambda: queue.publish("new"))
    consumer = shell.queue(wait=LIMIT_SECONDS)
    for text in waiting[:3]:
        assert await take(consumer) == text
        await asyncio.sleep(0.03)
    assert shell.pending(queue) == 2, "three have gone, and that is not room enough"
    assert [await take(consumer) for _ in range(3)] == [b"3", b"4", b"new"]
    assert await publisher is True


@pytest.mark.promise("A limit below the current backlog drops nothing, except with `drop_oldest`.")
async def test_a_limit_below_what_waits_drops_the_oldest_a_thousand_at_a_time(shell: Shell) -> None:
    """One publish does not block the server for all of them. Each is told, and what is in flight is not touched."""
    waiting = await fill(shell, 1_503)
    await claim_and_die(shell.queue())
    events = shell.events()
    queue = shell.queue(
        wait=0,
        max_pending_length=3,
        pending_overload_policy="drop_oldest",
        max_delivery_count=None,
        on_event=events.listen,
    )
    left = []
    for text in ("new", "newer", "newest"):
        await queue.publish(text)
        left.append((shell.pending(queue), len(events.of("dropped"))))
    assert left == [(503, 1_000), (3, 1_501), (3, 1_502)]
    shell.lapse(queue)
    assert await take_all(queue) == [waiting[0], b"new", b"newer", b"newest"]


@pytest.mark.promise("A limit below the current backlog drops nothing, except with `drop_oldest`.")
async def test_a_dropped_message_leaves_the_key_that_it_was_published_under(shell: Shell) -> None:
    """So a queue that dropped for a while suppresses the repetition of what it dropped, once deduplication is back."""
    remembering = shell.queue(wait=0, deduplication=True)
    dropping = shell.queue(max_pending_length=1, pending_overload_policy="drop_oldest", max_delivery_count=None)
    await remembering.publish("a")
    await dropping.publish("b")
    assert await take_all(remembering) == [b"b"]
    assert await remembering.publish("a") is False


# Payloads


@pytest.mark.promise("Changed payload rules apply to new publishes only.")
@pytest.mark.parametrize(
    ("rule", "message", "stored"),
    [
        ({"max_payload_bytes": 4}, "longer than four", b"longer than four"),
        ({"max_payload_depth": 1}, {"a": {"b": 1}}, b'{"a": {"b": 1}}'),
        ({"strict_payload_types": True}, {"a": (1, 2)}, b'{"a": [1, 2]}'),
    ],
    ids=["bytes", "depth", "types"],
)
async def test_payload_rules_are_for_what_is_published_from_now_on(
    shell: Shell, rule: dict[str, Any], message: Any, stored: bytes
) -> None:
    """What waits, and what comes back after a crash, is delivered whole, and may fail or be completed."""
    before = shell.queue()
    after = shell.queue(wait=0, enable_completed_queue=True, **rule)
    await before.publish(message)
    await before.publish(message)
    await claim_and_die(before)
    shell.lapse(before)
    with pytest.raises((ValueError, TypeError)) as refusal:
        await after.publish(message)
    assert isinstance(refusal.value, shell.module.RedisMessageQueueError)
    assert await take_all(after) == [stored, stored]
    assert shell.listed(after.key.completed) == [stored, stored]


# The client


@pytest.mark.promise("`decode_responses` decides between `str` and `bytes`, and nothing else.")
@pytest.mark.parametrize("decoding", [False, True], ids=["to bytes", "to text"])
async def test_decode_responses_changes_the_type_and_nothing_else(shell: Shell, decoding: bool) -> None:
    """What waits and what a dead consumer held arrive as the client of today decodes; Redis holds the same bytes."""
    text = "żółć 🐘"
    before = shell.queue(client=shell.new_client(decode_responses=not decoding), deduplication=True)
    after = shell.queue(
        client=shell.new_client(decode_responses=decoding), wait=0, deduplication=True, enable_completed_queue=True
    )
    await before.publish(text)
    await before.publish({"k": text})
    await claim_and_die(before)
    shell.lapse(before)
    stored = [text.encode(), f'{{"k": "{text}"}}'.encode()]
    assert await take_all(after) == ([each.decode() for each in stored] if decoding else stored)
    assert shell.listed(after.key.completed) == stored[::-1]
    assert await after.publish(text) is False


@contextlib.asynccontextmanager
async def of_the_other_kind(shell: Shell, **options: Any) -> AsyncIterator[Queue]:
    """The same queue for asyncio beside the one for threads, or the other way round."""
    options = {"message_wait_interval_seconds": 0} | options
    if shell.name == "sync":
        async with shell.server.async_client() as client:
            yield AsyncioQueue(shell.other_module.RedisMessageQueue("q", client=client, **options))
    else:
        with shell.server.client() as client:
            queue = shell.other_module.RedisMessageQueue("q", client=client, **options)
            yield BlockingQueue(queue, asyncio.to_thread)


@pytest.mark.promise("Sync and async queues share messages, leases, deduplication windows and lists.")
async def test_switching_between_sync_and_async_changes_nothing(shell: Shell) -> None:
    """What waits, what a dead consumer held with its count, windows, and the lists that are kept."""
    kept = {"deduplication": True, "enable_completed_queue": True}
    before = shell.queue(**kept)
    async with of_the_other_kind(shell, **kept) as after:
        for text in "abc":
            await before.publish(text)
        await take(before)
        await claim_and_die(before)
        shell.lapse(before)
        async with after.process_message() as message:
            assert message == b"b"
            received = after.current_message()
            assert received is not None and received.delivery_count == 2
        assert await take_all(after) == [b"c"]
        assert await after.publish("a") is False
    assert shell.listed(before.key.completed) == [b"c", b"b", b"a"]


@pytest.mark.promise("Sync and async queues share messages, leases, deduplication windows and lists.")
async def test_a_lease_fences_between_sync_and_async_queues(shell: Shell) -> None:
    """A sync queue cannot ack what an async one has taken over, nor the reverse."""
    events = shell.events()
    before = shell.queue(on_event=events.listen)
    async with of_the_other_kind(shell) as after:
        await before.publish("a")
        async with before.process_message():
            assert await take(after) is None
            shell.lapse(before)
            assert await claim_and_die(after) == b"a"
        assert events.names[-1] == "stale_lease_ack/skipped"
        assert shell.processing(before) == 1


@pytest.mark.promise(
    "Unconfirmed claims do not move between a sync and an async queue: a drain or the end of the lease returns them."
)
@pytest.mark.parametrize("rule", [LEASED, UNLEASED], ids=["leased", "unleased"])
async def test_a_drain_requeues_an_unconfirmed_claim_before_the_switch(shell: Shell, rule: dict[str, Any]) -> None:
    """Then the other queue has it immediately, in its first delivery."""
    before = await with_unconfirmed_claim(shell, **rule)
    async with of_the_other_kind(shell, **rule) as after:
        assert await take(after) is None
        assert await before.drain() is True
        async with after.process_message() as message:
            assert message == b"a"
            received = after.current_message()
            assert received is not None and received.delivery_count == 1
    assert shell.leftovers(before) == set()


@pytest.mark.promise(
    "Unconfirmed claims do not move between a sync and an async queue: a drain or the end of the lease returns them."
)
async def test_an_unconfirmed_claim_returns_when_its_lease_ends(shell: Shell) -> None:
    """An unconfirmed claim is known to its object alone; where there are leases, that costs time and nothing else."""
    before = await with_unconfirmed_claim(shell, **LEASED)
    async with of_the_other_kind(shell, **LEASED) as after:
        assert await take(after) is None
        shell.lapse(before)
        assert await take(after) == b"a"


@pytest.mark.promise(
    "Unconfirmed claims do not move between a sync and an async queue: a drain or the end of the lease returns them."
)
async def test_an_unconfirmed_claim_without_a_lease_waits_for_its_own_object(shell: Shell) -> None:
    """Nobody else gets it, and it is not lost: it is in processing until its object asks or drains."""
    before = await with_unconfirmed_claim(shell, **UNLEASED)
    async with of_the_other_kind(shell, **UNLEASED) as after:
        assert await take(after) is None
    assert shell.leftovers(before) == {b"q::processing"}
    assert await take(before) == "a"
    assert shell.leftovers(before) == set()


@pytest.mark.promise("Sync and async queues share messages, leases, deduplication windows and lists.")
async def test_sync_and_async_consumers_share_a_queue(shell: Shell) -> None:
    """A deployment in waves: each message is handled by one of them, and the one that waits is woken."""
    ours = shell.queue(wait=LIMIT_SECONDS)
    handled: list[bytes] = []

    async def consume() -> None:
        while (message := await take(ours)) != b"go home":
            handled.append(message)

    working = shell.beside(consume)
    async with of_the_other_kind(shell) as theirs:
        for number in range(60):
            await theirs.publish(str(number))
            if number % 3 == 0 and (message := await take(theirs)) is not None:
                handled.append(message)
        assert await until(lambda: shell.pending(ours) == 0)
        await theirs.publish("go home")
        await working
    assert Counter(handled) == Counter(b"%d" % number for number in range(60))
    assert shell.leftovers(ours) == set()
