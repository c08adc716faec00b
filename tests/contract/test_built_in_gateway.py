"""`RedisGateway` offers the seven operations to your own code."""

import threading
from typing import Any

import pytest
import redis

from redis_message_queue import (
    ClaimedMessage,
    ConfigurationError,
    EventDrivenInterruptHandler,
    GatewayContractError,
    QueueBackpressureError,
)
from tests.contract.custom_gateways import HOLDS, built_in, done, remains
from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    Wiring,
    claim_and_die,
    take,
)

pytestmark = pytest.mark.topic("Gateways")

READS = pytest.mark.parametrize("wiring", [Wiring(), Wiring(decode_responses=True)], ids=str)


def token_of(claimed: Any) -> Any:
    return claimed.lease_token if isinstance(claimed, ClaimedMessage) else None


def payload_of(claimed: Any) -> Any:
    return claimed.stored_message if isinstance(claimed, ClaimedMessage) else claimed


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
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


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
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


@pytest.mark.promise(
    "The lease tokens of `RedisGateway` are fencing tokens: after a takeover the old token has no effect."
)
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


@pytest.mark.promise(
    "The lease tokens of `RedisGateway` are fencing tokens: after a takeover the old token has no effect."
)
async def test_an_unknown_token_breaks_the_gateway_contract(shell: Shell) -> None:
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


@pytest.mark.promise(
    "The lease tokens of `RedisGateway` are fencing tokens: after a takeover the old token has no effect."
)
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


@pytest.mark.promise(
    "The lease tokens of `RedisGateway` are fencing tokens: after a takeover the old token has no effect."
)
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


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
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


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
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


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
@pytest.mark.parametrize(
    ("line", "held"),
    [
        *(("q:pending", "q:processing"), ("q/pending", "q/processing"), ("q_pending", "q_processing")),
        *(("{t}.pending", "{t}.processing"), ("grün→pending", "grün→processing"), ("pending", "processing")),
        *(("jobs", "jobs in hand"), ("a::pending", "b::processing"), ("processing", "pending")),
    ],
)
async def test_gateway_operations_accept_any_two_keys(shell: Shell, line: str, held: str) -> None:
    """Leases, fencing and waking work for whatever two keys are given."""
    patient = built_in(shell, message_visibility_timeout_seconds=300, message_wait_interval_seconds=LIMIT_SECONDS)
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


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
@pytest.mark.parametrize("separator", ["::", ":", "/", "-", "_"])
async def test_gateway_and_queue_work_on_the_same_keys(shell: Shell, separator: str) -> None:
    """What one publishes the other claims; what one holds the other takes over when its lease ends."""
    queue = shell.queue(key_separator=separator, wait=LIMIT_SECONDS)
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


@pytest.mark.promise("The library writes only the keys that the key map names.")
async def test_the_operations_leave_no_keys_but_those_of_the_key_map(shell: Shell) -> None:
    """Who looks for the replies of a queue finds these among them."""
    gateway, queue = built_in(shell), shell.queue()
    await done(gateway.add_message(queue.key.pending, "a"))
    message = await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    await done(gateway.remove_message(queue.key.processing, message))
    assert shell.leftovers(queue) == set()


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
async def test_the_operations_know_the_gateways_limits(shell: Shell) -> None:
    """What is delivered too often goes to the dead letters, what is too much is refused."""
    gateway = built_in(
        shell,
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue="poison",
        max_pending_length=1,
    )
    queue = shell.queue(gateway=gateway)
    await done(gateway.add_message(queue.key.pending, "a"))
    with pytest.raises(QueueBackpressureError):
        await done(gateway.add_message(queue.key.pending, "b"))
    await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing))
    shell.lapse(queue)
    assert await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing)) is None
    assert shell.listed("poison") == [b"a"]
    assert remains(shell, queue) == {b"poison"}


@pytest.mark.promise("`RedisGateway` offers the same seven operations on the keys of its queues.")
@pytest.mark.parametrize("wiring", [Wiring(decode_responses=True)], ids=str)
async def test_what_cannot_be_decoded_goes_to_the_dead_letters(shell: Shell) -> None:
    """And the next message is handed over instead."""
    gateway = built_in(shell)
    queue = shell.queue(gateway=gateway)
    await done(gateway.add_message(queue.key.pending, b"\xff"))
    await done(gateway.add_message(queue.key.pending, "b"))
    assert await done(gateway.wait_for_message_and_move(queue.key.pending, queue.key.processing)) == "b"
    assert shell.listed(queue.key.dead_letter) == [b"\xff"]


@pytest.mark.promise("The next call on the same `RedisGateway` recovers a claim whose reply was lost.")
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
