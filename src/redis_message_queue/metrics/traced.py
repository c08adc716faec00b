"""Queues that make spans around what you call: publishing, blocks and handlers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.metrics.spans import Processing, Spans, trace_headers
from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.event_emitter import log
from redis_message_queue.protocol.loop.run_options import RunSummary
from redis_message_queue.protocol.publish.publish_methods import PublishMethods
from redis_message_queue.protocol.publish.publisher import listed
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.queue_contract import QueueContract
from redis_message_queue.sync.blocking import blocking
from redis_message_queue.sync.message_queue import RedisMessageQueue as SyncQueue
from redis_message_queue.values.checks import functions
from redis_message_queue.values.errors import GatewayContractError
from redis_message_queue.values.messages import Receipt


class _Traced(QueueContract):
    """The spans of a traced queue, sync or async."""

    _protocol: QueueProtocol
    _spans: Spans

    def _trace(self, plain: QueueProtocol, spans: Spans) -> None:
        """Work as ``plain`` does, with the trace context in the headers and the events in the spans."""
        options = plain.options
        self._spans = spans
        self._protocol = plain.with_options(
            on_event=[spans.record, *functions("on_event", options.on_event)],
            get_headers=_with_trace_headers(options) if plain.store.capabilities.headers else None,
        )

    def _span_of_message(self, payload: Any) -> Processing | None:
        """Return the span for the message of a block; None without a message."""
        if payload is None:
            return None
        try:
            messages = [self.current_message()]
        except GatewayContractError:  # a custom gateway delivers only payloads
            messages = []
        return self._spans.processing(self._protocol.options.name, messages)

    def _span_of_batch(self, batch: Sequence[ReceivedMessage[Any]]) -> Processing | None:
        """Return the span for all messages of a batch; None without any."""
        return self._spans.processing(self._protocol.options.name, batch, batch=True) if batch else None

    def process_message(self) -> Any:
        """Like `process_message` of any queue, with a span from the handler's start until the message is settled."""
        return TracedBlock(super().process_message(), self._span_of_message)

    def process_messages(self, max_messages: int, *, wait_seconds: float | None = None) -> Any:
        """Like `process_messages` of any queue, with one span for the batch."""
        return TracedBlock(super().process_messages(max_messages, wait_seconds=wait_seconds), self._span_of_batch)


def _sending(queue: Any, count: int | None = None) -> AbstractContextManager[None]:
    spans: Spans = queue._spans
    return spans.sending(queue._protocol.options.name, count)


class _TracedPublishing(PublishMethods[Any]):
    """The methods for producers, each in a span."""

    async def publish(self, /, message: Any, **details: Any) -> bool:
        """Like `publish` of any queue, in a producer span."""
        with _sending(self):
            return await PublishMethods.publish(self, message, **details)

    async def publish_many(self, /, messages: Iterable[Any], **details: Any) -> list[bool]:
        """Like `publish_many` of any queue, in one producer span."""
        batch = listed(messages)
        with _sending(self, len(batch)):
            return await PublishMethods.publish_many(self, batch, **details)

    async def submit(self, /, message: Any, **details: Any) -> Receipt:
        """Like `submit` of any queue, in a producer span."""
        with _sending(self):
            return await PublishMethods.submit(self, message, **details)

    async def submit_many(self, /, messages: Iterable[Any], **details: Any) -> list[Receipt]:
        """Like `submit_many` of any queue, in one producer span."""
        batch = listed(messages)
        with _sending(self, len(batch)):
            return await PublishMethods.submit_many(self, batch, **details)


class TracedSyncQueue(_Traced, SyncQueue):
    """A sync queue that makes spans."""

    publish = blocking(_TracedPublishing.publish)
    publish_many = blocking(_TracedPublishing.publish_many)
    submit = blocking(_TracedPublishing.submit)
    submit_many = blocking(_TracedPublishing.submit_many)

    def __init__(self, plain: SyncQueue, spans: Spans) -> None:
        self._trace(plain._protocol, spans)

    def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        """Like `run` of any queue, with a span for each call of the handler."""
        return super().run(with_span(self._spans, handler) if callable(handler) else handler, **options)


class TracedAsyncioQueue(_Traced, _TracedPublishing, AsyncioQueue):
    """An asyncio queue that makes spans."""

    def __init__(self, plain: AsyncioQueue, spans: Spans) -> None:
        self._trace(plain._protocol, spans)

    async def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        """Like `run` of any queue, with a span for each call of the handler."""
        return await super().run(with_async_span(self._spans, handler) if callable(handler) else handler, **options)


class TracedBlock(ProcessBound):
    """A block of messages, sync or async, with a span until the messages are settled.

    The span fails if the handler raises, or if the messages cannot be settled.
    """

    def __init__(self, block: Any, make_span: Callable[[Any], Processing | None]) -> None:
        self._block = block
        self._make_span = make_span
        self._span: Processing | None = None

    def leave_alone(self) -> None:
        """Leave the message to its lease, whatever the handler did."""
        self._block.leave_alone()

    def __enter__(self) -> Any:
        taken = self._block.__enter__()
        try:
            self._start_span(taken)
        except BaseException as error:  # Ctrl-C, which leaves the message to its lease
            self._block.__exit__(type(error), error, error.__traceback__)
            raise
        return taken

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        try:
            answer = self._block.__exit__(kind, error, trace)
        except BaseException as settle_error:
            self._end_span(settle_error)
            raise
        self._end_span(error)
        return answer

    async def __aenter__(self) -> Any:
        taken = await self._block.__aenter__()
        self._start_span(taken)
        return taken

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        try:
            answer = await self._block.__aexit__(kind, error, trace)
        except BaseException as settle_error:
            self._end_span(settle_error)
            raise
        self._end_span(error)
        return answer

    def _start_span(self, taken: Any) -> None:
        self._span = self._make_span(taken)
        if self._span is not None:
            self._span.__enter__()

    def _end_span(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None if error is None else type(error), error, None)


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
