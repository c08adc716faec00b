"""The spans of a queue, by OpenTelemetry's conventions for messaging: one around a publish, one around a processing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from redis_message_queue import headers
from redis_message_queue.errors import RedisMessageQueueError
from redis_message_queue.events import EventOperation, QueueEvent
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.tell import log
from redis_message_queue.sync.runtime import BlockingRuntime

SYSTEM = "redis_message_queue"
_REMEMBERED = 10_000  # deliveries that a later one of the same message can be linked to: about 3 MB

_SENDING = {EventOperation.PUBLISH, EventOperation.PUBLISH_DEDUP_HIT}
# What the span of a processing tells beside how it ended.
_SETTLING = {
    *(EventOperation.RETRIED, EventOperation.DLQ, EventOperation.GIVEN_BACK, EventOperation.HANDED_OFF),
    *(EventOperation.STALE_LEASE_ACK, EventOperation.STALE_LEASE_NACK, EventOperation.CLEANUP_FAILED),
}

_sending: ContextVar[Span | None] = ContextVar("redis_message_queue_sending", default=None)
_processing: ContextVar[Processing | None] = ContextVar("redis_message_queue_processing", default=None)


class Spans:
    """Opens spans for any number of queues, and remembers which deliveries of a message went before."""

    def __init__(self, provider: TracerProvider | None, *, record_exceptions: bool, tenants: bool) -> None:
        self.tracer = trace.get_tracer(SYSTEM, tracer_provider=provider)
        self.record_exceptions = record_exceptions
        self.tenants = tenants
        self._earlier: OrderedDict[str, SpanContext] = OrderedDict()
        self._lock = BlockingRuntime().lock()  # which a forked child finds free

    @contextmanager
    def sending(self, queue: str, count: int | None) -> Iterator[None]:
        """A producer's span, current while messages are published; ``count`` only for a batch."""
        attributes = _attributes(queue, "publish", "send")
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        span = self.tracer.start_span(f"publish {queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        current = context.attach(trace.set_span_in_context(span))
        token = _sending.set(span if count is None else None)
        try:
            yield
        except BaseException as error:
            self.fail(span, error)
            raise
        finally:
            _sending.reset(token)
            context.detach(current)
            span.end()

    def processing(self, queue: str, messages: Sequence[ReceivedMessage], *, batch: bool = False) -> Processing:
        """A consumer's span, not yet begun."""
        return Processing(self, queue, messages, batch)

    def fail(self, span: Span, error: BaseException) -> None:
        """The class of an error always; what it says only where that is wanted, for it may hold a payload."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
        if self.record_exceptions:
            span.record_exception(error)

    def note(self, event: QueueEvent) -> None:
        """What an event adds to the span around it."""
        sending, processing = _sending.get(), _processing.get()
        if event.operation in _SENDING and sending is not None and event.message_id is not None:
            sending.set_attribute("messaging.message.id", event.message_id)
            if event.operation is EventOperation.PUBLISH_DEDUP_HIT:
                sending.set_attribute("rmq.duplicate", True)
        elif event.operation in _SETTLING and processing is not None and event.message_id in processing.ids:
            processing.tell(str(event.operation), str(event.message_id))

    def remember(self, ids: Sequence[str], span: SpanContext) -> None:
        with self._lock:
            for message_id in ids:
                self._earlier[message_id] = span
                self._earlier.move_to_end(message_id)
            while len(self._earlier) > _REMEMBERED:
                self._earlier.popitem(last=False)

    def earlier(self, message_id: str, *, forget: bool = False) -> SpanContext | None:
        with self._lock:
            return self._earlier.pop(message_id, None) if forget else self._earlier.get(message_id)


class Processing:
    """The span around the work on one message or a batch of them, current while it lasts."""

    def __init__(self, spans: Spans, queue: str, messages: Sequence[ReceivedMessage], batch: bool) -> None:
        self._spans = spans
        self._queue = queue
        self._messages = messages
        self._batch = batch
        self.ids = [message.id for message in messages]
        self._span: Span | None = None
        self._around: Processing | None = None

    def __enter__(self) -> Span:
        base, links = self._origin()
        self._span = span = self._spans.tracer.start_span(
            f"process {self._queue}", kind=SpanKind.CONSUMER, attributes=self._attributes(), links=links
        )
        self._spans.remember(self.ids, span.get_span_context())
        self._current = context.attach(trace.set_span_in_context(span, base))
        self._around = _processing.get()
        _processing.set(self)
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        if error is not None:
            self._spans.fail(span, error)
        elif not self._batch:  # of a batch some may have failed by themselves
            for message_id in self.ids:
                self._spans.earlier(message_id, forget=True)
        _processing.set(self._around)  # no reset: a block may be left in another context than it was entered in
        context.detach(self._current)
        span.end()

    def tell(self, what: str, message_id: str) -> None:
        if self._span is not None:
            self._span.add_event(what, {"messaging.message.id": message_id})

    def _attributes(self) -> dict[str, Any]:
        attributes = _attributes(self._queue, "process", "process")
        if self._batch:
            attributes["messaging.batch.message_count"] = len(self._messages)
        for message in () if self._batch else self._messages:
            attributes["messaging.message.id"] = message.id
            attributes["rmq.delivery_count"] = message.delivery_count
            if self._spans.tenants and message.tenant is not None:
                attributes["rmq.tenant"] = message.tenant
        return attributes

    def _origin(self) -> tuple[Context, list[Link]]:
        """The context that the handler gets, with the publisher's baggage, and where the messages come from."""
        here, links = context.get_current(), []
        base = here
        for message in self._messages:
            extracted = _extracted(message, here)
            origin = trace.get_current_span(extracted).get_span_context()
            named = {"messaging.message.id": message.id}
            if origin.is_valid and origin != trace.get_current_span(here).get_span_context():
                links.append(Link(origin, named))
            if (earlier := self._spans.earlier(message.id)) is not None and earlier.is_valid:
                links.append(Link(earlier, named | {"rmq.link": "previous_delivery"}))
            if not self._batch:
                base = extracted
        return base, links


def carrier() -> dict[str, str]:
    """The current context as headers; if its baggage is too large, the trace alone: a publish must not fail for it."""
    found: dict[str, str] = {}
    propagate.inject(found)
    try:
        headers.carried(found)
    except RedisMessageQueueError as error:
        log.warning("the context of a trace does not fit into headers, and goes without baggage: %s", error)
        found = {}
        TraceContextTextMapPropagator().inject(found)
    return found


def _extracted(message: ReceivedMessage, here: Context) -> Context:
    try:
        return propagate.extract(message.headers, context=here)
    except Exception as error:  # a propagator of the user's must not cost a message
        log.warning("the headers of message %s could not be read: %s", message.id, type(error).__name__)
        return here


def _attributes(queue: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
