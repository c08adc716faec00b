"""Queues that make spans for their publishes and deliveries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.metrics.spans import Processing, Spans, trace_headers
from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.consume.batch_block import BatchBlock
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt
from redis_message_queue.protocol.consume.consumer import ClaimedPayload
from redis_message_queue.protocol.consume.message_block import MessageBlock
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.event_emitter import log
from redis_message_queue.protocol.loop.run_options import RunSummary
from redis_message_queue.protocol.publish.message_builder import Message
from redis_message_queue.protocol.publish.publisher import Publisher, listed
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.message_queue import RedisMessageQueue as SyncQueue
from redis_message_queue.values.checks import functions
from redis_message_queue.values.errors import GatewayContractError
from redis_message_queue.values.events import QueueEvent
from redis_message_queue.values.messages import Receipt


class TracedPublisher(Publisher):
    """Publishes in a producer span, whose context the messages carry."""

    def __init__(self, spans: Spans, plain: QueueProtocol) -> None:
        super().__init__(plain.store, plain.builder, plain.emitter, plain.gate)
        self._spans = spans

    async def publish(self, message: Message, **details: Any) -> bool:
        with self._spans.sending(self._emitter.queue, None):
            return await super().publish(message, **details)

    async def publish_many(self, messages: Iterable[Message], **details: Any) -> list[bool]:
        batch = listed(messages)
        with self._spans.sending(self._emitter.queue, len(batch)):
            return await super().publish_many(batch, **details)

    async def submit_many(self, messages: Iterable[Message], **details: Any) -> list[Receipt]:
        batch = listed(messages)
        with self._spans.sending(self._emitter.queue, len(batch)):
            return await super().submit_many(batch, **details)


class _Traced:
    """The span of a delivery, from the handler's start until the messages are settled."""

    _span: Processing | None = None

    def _start_span(self, span: Processing) -> None:
        self._span = span
        span.__enter__()

    def _end_span(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None if error is None else type(error), error, None)

    def abandon(self) -> None:
        super().abandon()  # type: ignore[misc]  # of the block that this class goes before
        self._end_span(None)

    async def leave(self, error: BaseException | None) -> Any:
        """Settle the messages. The span fails if that raises, or if the handler did."""
        try:
            answer = await super().leave(error)  # type: ignore[misc]
        except BaseException as settle_error:
            self._end_span(settle_error)
            raise
        self._end_span(error)
        return answer


class TracedMessageBlock(_Traced, MessageBlock):
    """One message, with its span."""

    def __init__(self, queue: QueueProtocol, spans: Spans) -> None:
        super().__init__(queue)
        self._spans = spans

    def begin(self, taken: Sequence[ClaimedPayload]) -> ClaimAttempt | None:
        attempt = super().begin(taken)
        if attempt is not None:
            self._start_span(self._spans.processing(self.queue.options.name, self._messages()))
        return attempt

    def _messages(self) -> list[ReceivedMessage]:
        try:
            return [self.current]
        except GatewayContractError:  # a custom gateway delivers only payloads
            return []


class TracedBatchBlock(_Traced, BatchBlock):
    """A batch, with one span for all its messages."""

    def __init__(self, queue: QueueProtocol, spans: Spans, count: int, wait_seconds: float | None) -> None:
        super().__init__(queue, count, wait_seconds)
        self._spans = spans

    def begin(self, taken: Sequence[ClaimedPayload]) -> ClaimAttempt | None:
        attempt = super().begin(taken)
        if attempt is not None:
            self._start_span(self._spans.processing(self.queue.options.name, self.messages, batch=True))
        return attempt


class TracedProtocol(QueueProtocol):
    """The protocol of a traced queue, with the options of the queue that it was made from."""

    def __init__(self, plain: QueueProtocol, spans: Spans) -> None:
        given = plain.options
        options = replace(given, on_event=_with_span_events(spans, given), get_headers=_with_trace_headers(given))
        if not plain.store.capabilities.headers:
            options = replace(options, get_headers=None)
        super().__init__(options, plain.store, plain.message_class)
        self.spans = spans
        self.publisher = TracedPublisher(spans, self)

    def message_block(self) -> MessageBlock:
        return TracedMessageBlock(self, self.spans)

    def batch_block(self, max_messages: int, wait_seconds: float | None) -> BatchBlock:
        return TracedBatchBlock(self, self.spans, max_messages, wait_seconds)


def _with_span_events(spans: Spans, options: QueueOptions) -> list[Callable[[QueueEvent], Any]]:
    """Return the ``on_event`` of the user, with one before it that adds events to spans."""
    return [spans.record, *functions("on_event", options.on_event)]


def _with_trace_headers(options: QueueOptions) -> Callable[[], Any]:
    """Return a ``get_headers`` that adds the trace context to the user's headers."""
    users = options.get_headers
    if users is None:
        return trace_headers

    def get_headers() -> Any:
        given = users()
        return _added_async(given) if inspect.isawaitable(given) else _added(given)

    return get_headers


def _added(given: Any) -> Any:
    return {**given, **trace_headers()} if isinstance(given, Mapping) else given


async def _added_async(given: Awaitable[Any]) -> Any:
    return _added(await given)


class TracedSyncQueue(SyncQueue):
    """A sync queue that makes spans."""

    def __init__(self, plain: SyncQueue, spans: Spans) -> None:
        self._protocol = TracedProtocol(plain._protocol, spans)
        self._spans = spans

    def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        """Like `run` of any queue, with a span for each call of the handler."""
        return super().run(with_span(self._spans, handler) if callable(handler) else handler, **options)


class TracedAsyncioQueue(AsyncioQueue):
    """An asyncio queue that makes spans."""

    def __init__(self, plain: AsyncioQueue, spans: Spans) -> None:
        self._protocol = TracedProtocol(plain._protocol, spans)
        self._spans = spans

    async def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        """Like `run` of any queue, with a span for each call of the handler."""
        return await super().run(with_async_span(self._spans, handler) if callable(handler) else handler, **options)


def with_span(spans: Spans, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a sync handler of `run` that makes a span for each call."""

    @functools.wraps(handler, updated=())
    def traced(argument: Any) -> Any:
        span = _span_for(spans, argument)
        if span is None:
            return handler(argument)
        with span:
            return handler(argument)

    return traced


def with_async_span(spans: Spans, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an async handler of `run` that makes a span for each call."""

    async def call(argument: Any) -> Any:
        result = handler(argument)
        return await result if inspect.isawaitable(result) else result

    @functools.wraps(handler, updated=())
    async def traced(argument: Any) -> Any:
        span = _span_for(spans, argument)
        if span is None:
            return await call(argument)
        with span:
            return await call(argument)

    return traced


def _span_for(spans: Spans, argument: Any) -> Processing | None:
    """Return the span for the message, or the list of messages, that a handler gets."""
    if isinstance(argument, ReceivedMessage):
        return spans.processing(argument.queue, [argument])
    if isinstance(argument, Sequence) and argument and all(isinstance(item, ReceivedMessage) for item in argument):
        return spans.processing(argument[0].queue, argument, batch=True)
    # Not an error: the message must not fail because of its tracing.
    log.warning(
        "a traced handler got a %s instead of a message, so it has no span; use it with run()", type(argument).__name__
    )
    return None
