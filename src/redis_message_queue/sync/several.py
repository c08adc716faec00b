"""Runs handlers on several queues in one process, with as many messages of each as its weight says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack, overload

from redis_message_queue.options.declared import takes_fields_of
from redis_message_queue.process.loop_signals import stopped_by_signals
from redis_message_queue.protocol import queue_contract
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.loop.run_options import BatchSettings, LoopSettings, RunOptions, RunSummary
from redis_message_queue.protocol.loop.shared_loop import QueuesRun
from redis_message_queue.protocol.loop.turns import Share, checked_shares
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue_contract import described_as
from redis_message_queue.sync.handlers import THREADS, wrapped
from redis_message_queue.sync.message import ReceivedMessage
from redis_message_queue.sync.message_queue import RedisMessageQueue
from redis_message_queue.values.checks import suggests_options


@overload
def run_queues(
    queues: Mapping[RedisMessageQueue[M], int],
    handler: Callable[[ReceivedMessage[M]], object],
    *,
    batch_size: None = None,
    **options: Unpack[LoopSettings],
) -> list[RunSummary]: ...


@overload
def run_queues(
    queues: Mapping[RedisMessageQueue[M], int],
    handler: Callable[[list[ReceivedMessage[M]]], object],
    *,
    batch_size: int,
    batch_seconds: float | None = None,
    **options: Unpack[LoopSettings],
) -> list[RunSummary]: ...


@overload
def run_queues(
    queues: Mapping[RedisMessageQueue[Any], Callable[[Any], object] | tuple[Callable[[Any], object], int]],
    **options: Unpack[BatchSettings],
) -> list[RunSummary]: ...


@suggests_options
@takes_fields_of(RunOptions)
@described_as(queue_contract.run_queues)
def run_queues(
    queues: Mapping[RedisMessageQueue[Any], Any],
    handler: Callable[[Any], Any] | None = None,
    **options: Unpack[BatchSettings],
) -> list[RunSummary]:
    shares = checked_shares(queues, handler, RedisMessageQueue)
    middleware = options.get("middleware", ())
    run = QueuesRun(
        THREADS,
        {queue: Share(wrapped(share.handler, middleware), share.weight) for queue, share in shares.items()},
        **options,
    )
    has_interrupt = any(queue._protocol.options.interrupt is not None for queue in shares)
    with stopped_by_signals(run.stop, wanted=options.get("signals", True) and not has_interrupt):
        return finish(run.run())
