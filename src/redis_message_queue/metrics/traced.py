"""Queues that trace what they do: the same protocol, with spans around its publishes and deliveries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.errors import GatewayContractError
from redis_message_queue.events import QueueEvent
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.metrics.spans import Processing, Spans, carrier
from redis_message_queue.options import QueueOptions
from redis_message_queue.protocol.batch import BatchDelivery
from redis_message_queue.protocol.delivery import Delivery
from redis_message_queue.protocol.feed import RunSummary
from redis_message_queue.protocol.foreign import ForeignPublisher
from redis_message_queue.protocol.outbox import Message, Outbox, listed
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.tell import log
from redis_message_queue.sync.queue import RedisMessageQueue as BlockingQueue


class TracedOutbox(Outbox):
    """Publishes inside a producer's span, whose context the messages carry."""

    def __init__(self, spans: Spans, plain: QueueProtocol) -> None:
        super().__init__(plain.options, plain.store, plain.teller, plain.gate)
        self._spans = spans

    async def publish(self, message: Message, **details: Any) -> bool:
        with self._spans.sending(self._options.name, None):
            return await super().publish(message, **details)

    async def publish_many(self, messages: Iterable[Message], **details: Any) -> list[bool]:
        together = listed(messages)
        with self._spans.sending(self._options.name, len(together)):
            return await super().publish_many(together, **details)


class _Traced:
    """What both kinds of deliveries share: a span from the last step of entering to the last step of leaving."""

    _span: Processing | None = None

    def _begin(self, span: Processing) -> None:
        self._span = span
        span.__enter__()

    def _end(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None if error is None else type(error), error, None)

    @contextmanager
    def _ending(self, error: BaseException | None) -> Iterator[None]:
        """Settling is part of it: by what that raises, else as the handler ended."""
        try:
            yield
        except BaseException as trouble:
            self._end(trouble)
            raise
        self._end(error)


class TracedDelivery(_Traced, Delivery):
    """One message, and its span."""

    def __init__(self, queue: QueueProtocol, spans: Spans) -> None:
        super().__init__(queue)
        self._spans = spans

    async def enter(self) -> None:
        await super().enter()
        if self.claim is not None:
            self._begin(self._spans.processing(self.queue.options.name, self._messages()))

    def _messages(self) -> list[ReceivedMessage]:
        try:
            return [self.current]
        except GatewayContractError:  # a custom gateway hands over payloads alone
            return []

    def abandon(self) -> None:
        super().abandon()
        self._end(None)

    async def leave(self, error: BaseException | None) -> None:
        with self._ending(error):
            await super().leave(error)


class TracedBatch(_Traced, BatchDelivery):
    """Several messages, and one span for all."""

    def __init__(self, queue: QueueProtocol, spans: Spans, count: int, wait_seconds: float | None) -> None:
        super().__init__(queue, count, wait_seconds)
        self._spans = spans

    async def enter(self) -> None:
        await super().enter()
        if self.messages:
            self._begin(self._spans.processing(self.queue.options.name, self.messages, batch=True))

    def abandon(self) -> None:
        super().abandon()
        self._end(None)

    async def leave(self, error: BaseException | None) -> None:
        with self._ending(error):
            await super().leave(error)


class TracedProtocol(QueueProtocol):
    """A queue object on the same messages, with the options of the one that it was made from."""

    def __init__(self, plain: QueueProtocol, spans: Spans) -> None:
        theirs = plain.options
        options = replace(theirs, on_event=_noting(spans, theirs), get_headers=_carrying(theirs))
        if isinstance(plain.store.publisher, ForeignPublisher):  # there they have nowhere to travel
            options = replace(options, get_headers=None)
        super().__init__(options, plain.store, plain.message_class)
        self.spans = spans
        self.outbox = TracedOutbox(spans, self)

    def delivery(self) -> Delivery:
        return TracedDelivery(self, self.spans)

    def batch(self, max_messages: int, wait_seconds: float | None) -> BatchDelivery:
        self.check_batch(max_messages, wait_seconds)
        return TracedBatch(self, self.spans, max_messages, wait_seconds)


def _noting(spans: Spans, options: QueueOptions) -> Callable[[QueueEvent], Any]:
    theirs = options.on_event

    def on_event(event: QueueEvent) -> Any:
        spans.note(event)
        return None if theirs is None else theirs(event)

    return on_event


def _carrying(options: QueueOptions) -> Callable[[], Any]:
    """The context of the trace, beside what the user lets travel."""
    theirs = options.get_headers
    if theirs is None:
        return carrier

    def get_headers() -> Any:
        given = theirs()
        return _beside_awaited(given) if inspect.isawaitable(given) else _beside(given)

    return get_headers


def _beside(given: Any) -> Any:
    return {**given, **carrier()} if isinstance(given, Mapping) else given


async def _beside_awaited(given: Awaitable[Any]) -> Any:
    return _beside(await given)


class TracedBlockingQueue(BlockingQueue):
    """A queue for threads and processes that traces what it does."""

    def __init__(self, plain: BlockingQueue, spans: Spans) -> None:
        self._protocol = TracedProtocol(plain._protocol, spans)
        self._spans = spans

    def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        """The same as ever; each call of the handler has a span."""
        return super().run(in_span(self._spans, handler) if callable(handler) else handler, **options)


class TracedAsyncioQueue(AsyncioQueue):
    """A queue for asyncio tasks that traces what it does."""

    def __init__(self, plain: AsyncioQueue, spans: Spans) -> None:
        self._protocol = TracedProtocol(plain._protocol, spans)
        self._spans = spans

    async def run(self, handler: Callable[[Any], Any], **options: Any) -> RunSummary:
        """The same as ever; each call of the handler has a span."""
        return await super().run(in_awaited_span(self._spans, handler) if callable(handler) else handler, **options)


def in_span(spans: Spans, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A plain handler of `run` with a span around each call."""

    @functools.wraps(handler, updated=())
    def traced(argument: Any) -> Any:
        span = _span_for(spans, argument)
        if span is None:
            return handler(argument)
        with span:
            return handler(argument)

    return traced


def in_awaited_span(spans: Spans, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A handler of the asyncio queue's `run`, awaited if it wants to be, with a span around each call."""

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
    """Of the message or the list of messages that a handler is called with."""
    if isinstance(argument, ReceivedMessage):
        return spans.processing(argument.queue, [argument])
    if isinstance(argument, Sequence) and argument and all(isinstance(one, ReceivedMessage) for one in argument):
        return spans.processing(argument[0].queue, argument, batch=True)
    # A message must not fail for it.
    log.warning("a traced handler was called with a %s instead of a message, and has no span", type(argument).__name__)
    return None
