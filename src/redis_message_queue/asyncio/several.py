"""Runs handlers on several queues in one event loop, with as many messages of each as its weight says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis_message_queue.asyncio.handlers import TASKS, wrapped
from redis_message_queue.asyncio.message_queue import RedisMessageQueue
from redis_message_queue.process.loop_signals import stopped_by_signals
from redis_message_queue.protocol import queue_contract
from redis_message_queue.protocol.loop.run_options import Middleware, RunSummary
from redis_message_queue.protocol.loop.shared_loop import QueuesRun
from redis_message_queue.protocol.loop.turns import Share, checked_shares
from redis_message_queue.protocol.queue_contract import described_as
from redis_message_queue.values.checks import suggests_options


@suggests_options
@described_as(queue_contract.run_queues)
async def run_queues(
    queues: Mapping[RedisMessageQueue[Any], Any],
    handler: Callable[[Any], Any] | None = None,
    *,
    concurrency: int = 1,
    prefetch: int | None = None,
    batch_size: int | None = None,
    batch_seconds: float | None = None,
    until_empty: bool = False,
    wait_for_retries: bool = False,
    middleware: Sequence[Middleware] = (),
    renew_leases: bool = True,
    signals: bool = True,
) -> list[RunSummary]:
    shares = checked_shares(queues, handler, RedisMessageQueue)
    run = QueuesRun(
        TASKS,
        {queue: Share(wrapped(share.handler, middleware), share.weight) for queue, share in shares.items()},
        concurrency=concurrency,
        prefetch=prefetch,
        batch_size=batch_size,
        batch_seconds=batch_seconds,
        until_empty=until_empty,
        wait_for_retries=wait_for_retries,
        renew_leases=renew_leases,
        signals=signals,
    )
    has_interrupt = any(queue._protocol.options.interrupt is not None for queue in shares)
    with stopped_by_signals(run.stop, wanted=signals and not has_interrupt):
        return await run.run()
