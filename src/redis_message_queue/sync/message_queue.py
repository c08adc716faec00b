"""The queue for threads and processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Unpack, cast, overload

import redis

from redis_message_queue.options import declared as options
from redis_message_queue.process.loop_signals import stopped_by_signals
from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.claim_attempt import HANDED_OVER
from redis_message_queue.protocol.consume.message_block import MessageBlock, current_message
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.loop.run_options import LoopSettings, RunOptions, RunSummary
from redis_message_queue.protocol.loop.worker_loop import Loop
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.queue_contract import QueueContract
from redis_message_queue.redis_py.client_gateway import open_queue
from redis_message_queue.sync.abstract import AbstractRedisGateway
from redis_message_queue.sync.awaitable import refuse_awaitable
from redis_message_queue.sync.batch import ProcessMessages
from redis_message_queue.sync.blocking import BlockingOperatorMethods, BlockingPublishMethods
from redis_message_queue.sync.handlers import THREADS, wrapped
from redis_message_queue.sync.message import ReceivedMessage
from redis_message_queue.sync.redis_gateway import RedisGateway
from redis_message_queue.sync.tenant import Tenant
from redis_message_queue.values import checks
from redis_message_queue.version import __version__


@dataclass(frozen=True, kw_only=True)
class QueueArguments(options.QueueArguments):
    """The arguments of the constructor, with the types of this package."""

    client: redis.Redis | redis.RedisCluster | None = None
    gateway: AbstractRedisGateway | None = None


class RedisMessageQueue(BlockingOperatorMethods[M], QueueContract, BlockingPublishMethods[M], ProcessBound):
    """A queue of messages in Redis: publish at one end, process at the other.

    Give it a redis-py ``client``, or a ``gateway`` that has one. Everything else is optional. Leases are on by
    default: a message whose consumer crashes is delivered again after ``visibility_timeout_seconds``.

    Handlers must be idempotent: a message can be delivered more than once.
    """

    __version__ = __version__

    @options.constructor(QueueArguments)
    def __init__(self, arguments: QueueArguments) -> None:
        for callback in ("get_deduplication_key", "on_heartbeat_failure", "get_headers"):
            checks.plain_function(callback, getattr(arguments, callback))
        for listener in checks.functions("on_event", arguments.on_event):
            checks.plain_function("on_event", listener)
        self._protocol = open_queue(arguments, RedisGateway)

    def partition(self, number: int) -> RedisMessageQueue:
        part = object.__new__(RedisMessageQueue)
        part._protocol = self._protocol.partition(number)
        return part

    def process_message(self) -> ProcessMessage[M]:
        return ProcessMessage(self._protocol)

    def process_message_callback(self, handler: Callable[[M], object]) -> bool:
        checks.required_function("handler", handler)
        context = self.process_message()
        with context as message:
            if message is None:
                return False
            result = handler(message)
            if inspect.isawaitable(result):
                context.leave_alone()
                refuse_awaitable(result)
        return True

    def process_messages(self, max_messages: int, *, wait_seconds: float | None = None) -> ProcessMessages[M]:
        return ProcessMessages[M](self._protocol, max_messages, wait_seconds)

    @overload
    def run(
        self,
        handler: Callable[[ReceivedMessage[M]], object],
        *,
        batch_size: None = None,
        **options: Unpack[LoopSettings],
    ) -> RunSummary: ...

    @overload
    def run(
        self,
        handler: Callable[[list[ReceivedMessage[M]]], object],
        *,
        batch_size: int,
        batch_seconds: float | None = None,
        **options: Unpack[LoopSettings],
    ) -> RunSummary: ...

    @checks.suggests_options
    @options.takes_fields_of(RunOptions)
    def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        rules = RunOptions(handler=wrapped(handler, options.get("middleware", ())), **options)
        loop = Loop(self._protocol, rules, THREADS)
        with stopped_by_signals(loop.stop, wanted=rules.signals and self._protocol.options.interrupt is None):
            return finish(loop.run())

    def tenant(self, name: str) -> Tenant[M]:
        return Tenant[M](self, name)

    def current_message(self) -> ReceivedMessage[M] | None:
        return cast(ReceivedMessage[M] | None, current_message(self._protocol))

    def drain(self, timeout: float | None = None) -> bool:
        return finish(self._protocol.drain(timeout))

    def close(self, timeout: float | None = None) -> bool:
        """Do the same as `drain`."""
        return self.drain(timeout)


class ProcessMessage(ProcessBound, Generic[M]):
    """One message for one ``with`` block."""

    def __init__(self, protocol: QueueProtocol) -> None:
        self._protocol = protocol
        self._block: MessageBlock | None = None

    def __enter__(self) -> M | None:
        if self._block is not None:
            raise RuntimeError("this context is in use; call process_message() again for another message")
        block = self._block = self._protocol.message_block()
        wait = self._protocol.store.options.message_wait_interval_seconds
        try:
            attempt = block.begin(finish(block.consumer.claim(1, wait)))
            if attempt is None:
                return None
            payload: M = block.payload
            # The last step before the handler: up to here Ctrl-C leaves a claim that is recovered.
            attempt.state = HANDED_OVER
            return payload
        except BaseException:
            self._block = None
            block.abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        block, self._block = self._block, None
        return False if block is None else finish(block.leave(error))

    def leave_alone(self) -> None:
        """Leave the message to its lease, whatever the handler did."""
        if self._block is not None:
            self._block.is_left_alone = True
