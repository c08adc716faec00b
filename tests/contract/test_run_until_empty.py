"""`run(until_empty=True)` ends when a claim that has seen all of the loop's own acknowledgements finds nothing."""

import asyncio
import threading
from typing import Any

import pytest

from redis_message_queue import RetryLater
from tests.contract.loops import filled, side_by_side, text, words
from tests.contract.shells import EVERY_WIRING, LIMIT_SECONDS, Awaited, Sent, Shell, Wiring, until
from tests.contract.test_partitions import keys_for
from tests.contract.test_run_queues import run_queues

pytestmark = pytest.mark.topic("The consumer loop")


limited = pytest.mark.parametrize(
    "limit", [{"ordered_tenants": True}, {"max_in_flight_per_tenant": 1}, {"max_in_flight_per_tenant": 2}], ids=str
)
parted = pytest.mark.parametrize("partitions", [1, 3])


async def published(shell: Shell, tenants: list[str], **options: Any) -> Any:
    """A queue with six messages of each tenant, on a server that has no scripts in its cache."""
    queue = shell.queue(**{"wait": 0} | options)
    for tenant in tenants:
        await queue.publish_many(words(6), tenant=tenant)
    shell.redis.script_flush()
    return queue


class Handled:
    """What the handlers of a loop have had, in order."""

    def __init__(self, shell: Shell, before: Any = None) -> None:
        self.messages: list[tuple[str, str]] = []
        self._before = before
        self.handler = shell.callback(self._handle)

    def _handle(self, received: Any) -> None:
        if self._before is not None:
            self._before()
        for message in received if isinstance(received, list) else [received]:
            self.messages.append((message.tenant, text(message)))


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
@limited
@parted
@side_by_side
async def test_a_server_without_scripts_does_not_end_the_loop_early(
    shell: Shell, limit: dict[str, Any], partitions: int, concurrency: int
) -> None:
    """Its first claim loads the script of the claims. The first ack finds none of its own, and arrives behind it."""
    handled = Handled(shell)
    queue = await published(shell, ["acme"], partitions=partitions, **limit)
    summary = await queue.run(handled.handler, until_empty=True, concurrency=concurrency)
    assert summary.handled == 6
    assert sorted(word for _, word in handled.messages) == words(6)


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
@parted
@pytest.mark.parametrize("options", [{"prefetch": 10}, {"batch_size": 4}, {"wait_for_retries": True}], ids=str)
async def test_nor_does_it_end_a_loop_that_claims_several_at_once(
    shell: Shell, partitions: int, options: dict[str, Any]
) -> None:
    """Acks of several messages, and of several partitions, travel together."""
    tenants, handled = keys_for(1), Handled(shell)
    queue = await published(shell, tenants, partitions=partitions, max_in_flight_per_tenant=2)
    assert (await queue.run(handled.handler, until_empty=True, **options)).handled == 18


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
@pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)
async def test_nor_does_a_server_that_loses_its_scripts_meanwhile(shell: Shell, wiring: Wiring) -> None:
    """Whatever the server still knows: before each ack it knows the script of the claims alone."""
    other = shell.queue("other", wait=0, ordered_tenants=True)

    def forget() -> None:
        shell.redis.script_flush()
        shell.redis.script_load(other.queue._protocol.store.calls.acquire_slot().claim.script.source)

    handled = Handled(shell, before=forget)
    queue = await published(shell, ["acme"], ordered_tenants=True)
    assert (await queue.run(handled.handler, until_empty=True)).handled == 6
    assert [word for _, word in handled.messages] == words(6)


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
@side_by_side
async def test_nor_does_it_end_the_loops_of_several_queues(shell: Shell, concurrency: int) -> None:
    """Each queue is empty when its own loop has seen its own acks."""
    first = await published(shell, ["acme"], partitions=3, ordered_tenants=True)
    second = shell.queue("second", wait=0, ordered_tenants=True)
    await second.publish_many(words(6), tenant="acme")
    shell.redis.script_flush()
    handler = Handled(shell).handler
    summaries = await run_queues(shell, {first: 1, second: 2}, handler, until_empty=True, concurrency=concurrency)
    assert [summary.handled for summary in summaries] == [6, 6]


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
@parted
@pytest.mark.parametrize("lost", [1, 2])
async def test_an_ack_whose_request_was_lost_does_not_end_the_loop_early(
    shell: Shell, partitions: int, lost: int
) -> None:
    """The claim beside it arrives, and finds the tenant with a message in flight."""
    client = shell.lossy_client()
    queue = await published(shell, ["acme"], client=client, partitions=partitions, ordered_tenants=True)
    handled = Handled(shell)
    client.losses.request(lost, only="settle")
    assert (await queue.run(handled.handler, until_empty=True)).handled == 6
    assert [word for _, word in handled.messages] == words(6)


@pytest.mark.promise("`run(until_empty=True)` does not take a partition that is silent for an empty one.")
@pytest.mark.parametrize("filled", [{0}, {1}, {0, 1}], ids=str)
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_partition_whose_claim_was_lost_is_not_taken_for_empty(
    shell: Shell, filled: set[int], lost: int
) -> None:
    """Also if the other partition answers meanwhile, and if the lost one can be asked what it has not taken."""
    client, keys = shell.lossy_client(), keys_for(1, of=2)
    queue = shell.queue(client=client, wait=0, partitions=2)
    await queue.run(print, until_empty=True)  # loads the scripts
    for number in filled:
        await queue.publish(keys[number], partition_key=keys[number])
    seen: list[str] = []
    client.losses.request(lost, only="claim")
    summary = await queue.run(shell.callback(lambda message: seen.append(text(message))), until_empty=True)
    assert sorted(seen) == sorted(keys[number] for number in filled)
    assert summary.handled == len(filled)


@pytest.mark.promise(
    "`run(until_empty=True)` ends when a claim that has seen all of its own acks finds nothing, whatever was lost."
)
@parted
async def test_a_loop_over_batches_by_hand_ends_when_the_queue_is_empty(shell: Shell, partitions: int) -> None:
    """Leaving a batch acknowledges it before the next claim is sent."""
    queue, seen = await published(shell, ["acme"], partitions=partitions, ordered_tenants=True), 0
    while True:
        shell.redis.script_flush()
        async with queue.process_messages(3) as batch:
            if not batch:
                break
            seen += len(batch)
            shell.redis.script_flush()
    assert seen == 6
    assert (await Awaited(queue.queue).stats()).pending == 0


# What waits behind a retry


def postpone(shell: Shell, *tenants: str) -> Any:
    """A handler that wants the first message of these tenants again in an hour."""

    def handle(message: Any) -> None:
        if message.tenant in tenants:
            raise RetryLater(3600)

    return shell.callback(handle)


@pytest.mark.promise(
    "With `ordered_tenants`, `RunSummary.left_behind` counts what `run(until_empty=True)` leaves behind a retry."
)
@parted
@side_by_side
async def test_a_summary_counts_what_waits_behind_a_retry(shell: Shell, partitions: int, concurrency: int) -> None:
    """Not the message that is retried, nor those of other tenants. The next loop finds them as they are."""
    tenants = keys_for(1)
    queue = await published(shell, tenants, partitions=partitions, ordered_tenants=True)
    handler, options = postpone(shell, *tenants[:2]), {"until_empty": True, "concurrency": concurrency}
    summary = await queue.run(handler, **options)
    assert (summary.handled, summary.retried, summary.left_behind) == (6, 2, 10)
    summary = await queue.run(handler, **options)
    assert (summary.handled, summary.retried, summary.left_behind) == (0, 0, 10)


@pytest.mark.promise(
    "With `ordered_tenants`, `RunSummary.left_behind` counts what `run(until_empty=True)` leaves behind a retry."
)
async def test_of_several_queues_each_summary_counts_its_own(shell: Shell) -> None:
    """Once, however many rounds the loops make."""
    first = await published(shell, ["acme", "initech"], ordered_tenants=True)
    second = shell.queue("second", wait=0, ordered_tenants=True)
    await second.publish_many(words(3), tenant="acme")
    summaries = await run_queues(shell, {first: 1, second: 1}, postpone(shell, "acme"), until_empty=True)
    assert [(one.handled, one.retried, one.left_behind) for one in summaries] == [(6, 1, 5), (0, 1, 2)]


@pytest.mark.promise(
    "With `ordered_tenants`, `RunSummary.left_behind` counts what `run(until_empty=True)` leaves behind a retry."
)
@pytest.mark.parametrize("limit", [{}, {"ordered_tenants": True}, {"max_in_flight_per_tenant": 1}], ids=str)
async def test_what_waits_behind_a_handler_or_for_its_time_is_not_left_behind(
    shell: Shell, limit: dict[str, Any]
) -> None:
    """Another consumer has the first message of a tenant, and it is not retried."""
    queue = await published(shell, ["acme"], **limit)
    await queue.publish("later", tenant="initech", delay_seconds=3600)
    async with shell.queue(wait=0, **limit).process_message():
        assert (await queue.run(postpone(shell), until_empty=True)).left_behind == 0


@pytest.mark.promise(
    "With `ordered_tenants`, `RunSummary.left_behind` counts what `run(until_empty=True)` leaves behind a retry."
)
async def test_a_loop_that_waits_for_its_retries_leaves_nothing_behind(shell: Shell) -> None:
    """Its messages wait no longer than the retries that it waits for."""
    queue = await published(shell, ["acme"], ordered_tenants=True)

    def handle(message: Any) -> None:
        if message.attempt == 1:
            raise RetryLater(0.02)

    summary = await queue.run(shell.callback(handle), until_empty=True, wait_for_retries=True)
    assert (summary.handled, summary.retried, summary.left_behind) == (6, 6, 0)


@pytest.mark.promise(
    "With `ordered_tenants`, `RunSummary.left_behind` counts what `run(until_empty=True)` leaves behind a retry."
)
async def test_thousands_of_tenants_behind_retries_are_counted(shell: Shell) -> None:
    """In replies of bounded size."""
    queue, count = shell.queue(wait=0, ordered_tenants=True), 1_500
    for tenant in map(str, range(count)):
        await queue.publish_many(words(2), tenant=tenant)
    summary = await queue.run(postpone(shell, *map(str, range(count))), until_empty=True, prefetch=500)
    assert (summary.retried, summary.left_behind) == (count, count)


@pytest.mark.both_shells
async def test_workers_that_are_idle_together_end_with_one_claim(shell: Shell) -> None:
    """And not with one for each of them."""
    queue, inside = await filled(shell, words(20)), list[Any]()
    tasks, threads = asyncio.Barrier(21), threading.Barrier(21)

    async def meet(message: Any) -> None:
        inside.append(message)
        await tasks.wait()

    def meet_in_threads(message: Any) -> None:
        inside.append(message)
        threads.wait(LIMIT_SECONDS)

    is_async = shell.name == "asyncio"
    loop = asyncio.ensure_future(queue.run(meet if is_async else meet_in_threads, concurrency=20, until_empty=True))
    assert await until(lambda: len(inside) == 20)
    with Sent(shell.server) as sent:
        await (tasks.wait() if is_async else asyncio.to_thread(threads.wait, LIMIT_SECONDS))
        assert (await loop).handled == 20
    assert sent.scripts.count("claim") < 20, sent.scripts
