"""`run_queues()` serves several queues with the handlers of one process, in proportion to their weights."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, ConfigurationTypeError, RedisMessageQueueError
from tests.contract.blocked_consumers import blocked_clients
from tests.contract.loops import Crossing, ended, side_by_side, summary_of, text, words
from tests.contract.shells import LIMIT_SECONDS, Sent, Shell, until

pytestmark = [pytest.mark.topic("The consumer loop"), pytest.mark.both_shells]

SHARES = (
    "`run_queues()` gives each queue handlers in proportion to its weight, and an empty queue's share to the others."
)


def run_queues(shell: Shell, queues: dict[Any, Any], handler: Any, **options: Any) -> Any:
    """In both shells something to await; the sync loop runs in a thread beside the test."""
    weights = {one.queue: weight for one, weight in queues.items()}
    if shell.name == "asyncio":
        return asyncio.ensure_future(shell.module.run_queues(weights, handler, **options))
    return shell._start(lambda: shell.module.run_queues(weights, handler, **options))  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def serving(shell: Shell, queues: dict[Any, int], handler: Any, **options: Any) -> AsyncIterator[Any]:
    loop = run_queues(shell, queues, handler, **options)
    try:
        yield loop
    finally:
        for queue in queues:
            await queue.drain(timeout=0)
            shell.redis.lpush(queue.key.wakeup, "1")
        await asyncio.wait({loop}, timeout=2 * LIMIT_SECONDS)
        assert loop.done(), "the loop does not end"


async def filled(shell: Shell, name: str, count: int, **options: Any) -> Any:
    queue = shell.queue(name, **options)
    if count:
        await queue.publish_many([f"{name}{word}" for word in words(count)])
    return queue


@pytest.mark.promise(
    "`run_queues()` gives each queue handlers in proportion to its weight, and an empty queue's share to the others."
)
@pytest.mark.parametrize("prefetch", [1, 10])
async def test_each_queue_gets_its_share(shell: Shell, prefetch: int) -> None:
    """Whatever was claimed ahead."""
    urgent, bulk = await filled(shell, "u", 60), await filled(shell, "b", 60)
    handled: list[str] = []
    summaries = await run_queues(
        shell, {urgent: 3, bulk: 1}, lambda one: handled.append(one.queue), prefetch=prefetch, until_empty=True
    )
    shares = Counter(handled[:40])
    assert abs(shares["u"] - 30) <= 2, shares
    assert [summary_of(one) for one in summaries] == [(60, 0, 0), (60, 0, 0)]
    assert [shell.processing(one) for one in (urgent, bulk)] == [0, 0]


@pytest.mark.promise(
    "`run_queues()` gives each queue handlers in proportion to its weight, and an empty queue's share to the others."
)
@side_by_side
async def test_an_empty_queue_leaves_its_share_to_the_others(shell: Shell, concurrency: int) -> None:
    """And it saves none of it for later."""
    idle, busy = await filled(shell, "i", 0), await filled(shell, "b", 40)
    crossing = Crossing(shell)
    async with serving(shell, {idle: 1000, busy: 1}, crossing.handler, concurrency=concurrency) as loop:
        await crossing.is_entered_by(concurrency)
        assert all(one.startswith("b") for one in crossing.inside)
        crossing.is_open.set()
        assert await until(lambda: len(crossing.done) == 40)
        await idle.publish("i")
        assert await until(lambda: "i" in crossing.done)
        assert not loop.done()


async def test_handlers_of_all_queues_run_side_by_side_up_to_the_limit(shell: Shell) -> None:
    """Not more, and not less."""
    queues = {await filled(shell, name, 5): 1 for name in "abc"}
    crossing = Crossing(shell)
    async with serving(shell, queues, crossing.handler, concurrency=4) as loop:
        await crossing.is_entered_by(4)
        await asyncio.sleep(0.3)
        assert len(crossing.inside) == 4
        assert {one[0] for one in crossing.inside} == {"a", "b", "c"}
        crossing.is_open.set()
        assert await until(lambda: len(crossing.done) == 15)
        assert not loop.done()


async def test_one_claim_serves_all_handlers_that_can_start(shell: Shell) -> None:
    """Each has its place before its message is claimed; places that are not used go back."""
    busy, other = await filled(shell, "b", 0), await filled(shell, "o", 0)
    crossing = Crossing(shell)
    async with serving(shell, {busy: 1, other: 1}, crossing.handler, concurrency=14):
        assert await until(lambda: blocked_clients(shell) == 2)
        with Sent(shell.server) as sent:
            await busy.publish_many(words(12))
            await crossing.is_entered_by(12)
        assert sent.scripts.count("claim") + sent.scripts.count("take") < 12, sent.scripts
        await other.publish_many(["o1", "o2", "o3"])
        await crossing.is_entered_by(14)
        assert shell.processing(busy) == 12
        crossing.is_open.set()
        assert await until(lambda: len(crossing.done) == 15)
        await busy.publish_many(words(6))
        assert await until(lambda: len(crossing.done) == 21)


@pytest.mark.promise("`run_queues()` leaves a message to other processes while its own handlers are busy with others.")
async def test_a_message_that_cannot_be_handled_now_is_left_to_others(shell: Shell) -> None:
    """As if it had never been claimed."""
    busy, other = await filled(shell, "b", 0), await filled(shell, "o", 0)
    crossing = Crossing(shell)
    async with serving(shell, {busy: 1, other: 1}, crossing.handler):
        assert await until(lambda: blocked_clients(shell) == 2)  # both wait, and the second still does when
        await busy.publish("b")
        await crossing.is_entered_by(1)
        await other.publish("o")
        async with shell.queue("o", client=shell.new_client()).process_messages(1, wait_seconds=LIMIT_SECONDS) as batch:
            assert [(text(one), one.delivery_count) for one in batch] == [("o", 1)]
        await other.publish("o2")
        crossing.is_open.set()
        assert await until(lambda: "o2" in crossing.done)


async def test_it_ends_when_all_queues_are_empty(shell: Shell) -> None:
    """Also if the handler of one fills another."""
    first, second = await filled(shell, "a", 3), shell.queue("b")

    async def handle(message: Any) -> None:
        if message.queue == "a":
            sender = shell.queue("b", client=client) if shell.name == "sync" else second
            await sender.publish(f"from {text(message)}")
        handled.append(message.queue)

    handled: list[str] = []
    client = shell.new_client()
    await first.publish_many(["x", "y"])
    summaries = await run_queues(shell, {second: 1, first: 1}, shell.handler(handle), until_empty=True)
    assert [one.handled for one in summaries] == [5, 5]
    assert Counter(handled) == {"a": 5, "b": 5}


@side_by_side
async def test_a_stop_lets_handlers_finish_and_requeues_the_rest(shell: Shell, concurrency: int) -> None:
    """Of all queues."""
    queues = {await filled(shell, name, 10): 1 for name in "ab"}
    crossing = Crossing(shell)
    async with serving(shell, queues, crossing.handler, concurrency=concurrency, prefetch=4) as loop:
        await crossing.is_entered_by(concurrency)
        for queue in queues:
            await queue.drain(timeout=0)
        crossing.is_open.set()
        summaries = await ended(loop)
    assert sum(one.handled for one in summaries) == len(crossing.done) == concurrency
    assert sum(shell.pending(queue) for queue in queues) == 20 - concurrency
    assert [shell.processing(queue) for queue in queues] == [0, 0]


async def test_an_error_of_one_queue_ends_all(shell: Shell) -> None:
    """Nobody would notice a queue that is served no more."""
    sound, broken = await filled(shell, "a", 3), shell.queue("b")
    shell.redis.set(broken.key.pending, "not a list")
    with pytest.raises(RedisMessageQueueError):
        await run_queues(shell, {sound: 1, broken: 1}, lambda message: None)
    assert shell.processing(sound) == 0


async def test_wrong_arguments_are_refused(shell: Shell) -> None:
    """Before anything is claimed."""
    queue = await filled(shell, "a", 1)
    for queues, said in [
        ({}, "queues must be a mapping"),
        ([queue.queue], "queues must be a mapping"),
        ({"a": 1}, "queues must contain objects of redis_message_queue"),
        ({queue.queue: 0}, "a weight in queues must be 1 or more"),
        ({queue.queue: 1_001}, "a weight in queues must be at most 1,000"),
        ({queue.queue: True}, "a weight in queues must be an int"),
        ({queue.queue: print}, "pass either weights and one handler"),
        ({queue.queue: (print, 2)}, "pass either weights and one handler"),
    ]:
        await refused(shell, said, queues, lambda message: None)

    async def later(message: Any) -> None: ...

    other = shell.queue("b").queue
    for mapping, said in [
        ({queue.queue: 1}, "pass either weights and one handler"),
        ({queue.queue: print, other: 3}, "pass either weights and one handler"),
        ({queue.queue: (print, 0)}, "a weight in queues must be 1 or more"),
        ({queue.queue: ("print", 1)}, "handler must be callable"),
        ({queue.queue: (print, 1, 2)}, "pass either weights and one handler"),
        ({queue.queue: print, other: later}, "some handlers in queues are async functions and others are not"),
    ]:
        await refused(shell, said, mapping)
    assert shell.pending(queue) == 1


async def refused(shell: Shell, said: str, *arguments: Any) -> None:
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=said):
        running = shell.module.run_queues(*arguments)
        if shell.name == "asyncio":
            await running


@pytest.mark.promise("`run_queues({orders: charge, mails: (send, 3)})` calls the handler of each queue, by weight.")
@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "concurrency": 3}])
async def test_each_queue_may_have_a_handler_of_its_own(shell: Shell, options: dict[str, Any]) -> None:
    """With one queue and with several, with parts of one and of three, and inside of middleware."""
    orders = await filled(shell, "o", 12, partitions=3)
    mails, alone = await filled(shell, "m", 12), await filled(shell, "a", 2)
    calls: list[tuple[str, str]] = []

    def noting(name: str) -> Any:
        async def handle(message: Any) -> None:
            calls.extend((name, one.queue) for one in (message if isinstance(message, list) else [message]))

        return shell.handler(handle)

    served = {orders: noting("charge"), mails: (noting("send"), 3)}
    summaries = await run_queues(shell, served, None, until_empty=True, **options)
    assert [one.handled for one in summaries] == [12, 12]
    assert Counter(calls) == {("charge", "o"): 12, ("send", "m"): 12}
    if not options:
        assert abs(Counter(calls[:12])["send", "m"] - 9) <= 2, calls
    calls.clear()
    await run_queues(shell, {alone: noting("pack")}, None, until_empty=True)
    assert calls == [("pack", "a")] * 2
