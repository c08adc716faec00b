"""The gateways in `examples/` keep the promises of a queue."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    fail,
    sync_only,
    take,
)

pytestmark = pytest.mark.topic("Gateways")

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(shell: Shell) -> Any:
    """The module that the how-to shows to readers who want a gateway of their own."""
    path = EXAMPLES / ("in_memory_gateway.py" if shell.name == "sync" else "asyncio/in_memory_gateway.py")
    spec = importlib.util.spec_from_file_location("in_memory_gateway", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_keeps_what_a_queue_promises(shell: Shell) -> None:
    """Four consumers handle each message once; duplicates are suppressed, failures kept, lists trimmed."""
    gateway = example(shell).InMemoryGateway()
    queue = shell.queue(
        gateway=gateway, deduplication=True, enable_completed_queue=True, enable_failed_queue=True, max_failed_length=1
    )
    texts = [f"job {number}" for number in range(40)]
    assert [await queue.publish(text) for text in (*texts, texts[0])] == [True] * 40 + [False]
    handled: list[Any] = []

    async def consume() -> None:
        while await queue.process_message_callback(handled.append):
            pass

    await asyncio.gather(*(shell.beside(consume) for _ in range(4)))
    assert sorted(handled) == sorted(texts)
    assert sorted(gateway.lists[queue.key.completed]) == sorted(texts)
    for text in ("x", "y"):
        await queue.publish(text)
        assert await fail(queue, ValueError()) == text
    assert list(gateway.lists[queue.key.failed]) == ["y"]
    assert not gateway.lists[queue.key.pending] and not gateway.lists[queue.key.processing]


async def test_the_example_wakes_a_consumer_that_waits(shell: Shell) -> None:
    """A message that arrives during the wait is handed over then, to one of those who wait."""
    gateway = example(shell).InMemoryGateway(wait_seconds=LIMIT_SECONDS)
    queue = shell.queue(gateway=gateway)
    consumers = [shell.beside(lambda: take(queue)) for _ in range(2)]
    await asyncio.sleep(0.05)
    for text in ("a", "b"):
        await queue.publish(text)
    taken = await asyncio.wait_for(asyncio.gather(*consumers), LIMIT_SECONDS)
    assert set(taken) <= {"a", "b", None} and taken != [None, None]


@sync_only
async def test_the_example_with_leases_fences(shell: Shell) -> None:
    """A consumer that was too slow finds its message gone, and its ack settles nothing of the next holder's."""
    events = shell.events()
    gateway = example(shell).InMemoryGateway(lease_seconds=0.05, most_deliveries=2)
    slow, quick = shell.queue(gateway=gateway, on_event=events.listen), shell.queue(gateway=gateway)
    await slow.publish("a")
    async with slow.process_message():
        context = quick.process_message()
        while await context.__aenter__() is None:
            context = quick.process_message()
    assert events.names[-1] == "stale_lease_ack/skipped"
    await context.__aexit__(None, None, None)
    assert await take(quick) is None
    assert not gateway.lists["dead letters"]
