"""The spans of a queue, after the messaging conventions of OpenTelemetry: one for each publish and each processing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.event_emitter import log
from redis_message_queue.stored import headers
from redis_message_queue.sync.runtime import BlockingRuntime
from redis_message_queue.values.errors import RedisMessageQueueError
from redis_message_queue.values.events import EventOperation, QueueEvent
from redis_message_queue.values.outcomes import HandlerOutcome
from redis_message_queue.values.plain_values import class_name

SYSTEM = "redis_message_queue"
_MAX_PREVIOUS_DELIVERIES = 10_000  # that a redelivery can link to: about 3 MB

_PUBLISH_EVENTS = {EventOperation.PUBLISH, EventOperation.PUBLISH_DEDUP_HIT}
# The events that become events of a processing span.
_SPAN_EVENTS = {
    *(EventOperation.RETRIED, EventOperation.DLQ, EventOperation.REQUEUED, EventOperation.HANDED_OFF),
    EventOperation.DISCARDED,
    *(EventOperation.STALE_LEASE_ACK, EventOperation.STALE_LEASE_NACK, EventOperation.CLEANUP_FAILED),
}

_sending: ContextVar[Span | None] = ContextVar("redis_message_queue_sending", default=None)
_processing: ContextVar[Processing | None] = ContextVar("redis_message_queue_processing", default=None)


class Spans:
    """Makes spans for any number of queues, and remembers the previous delivery of each message."""

    def __init__(self, provider: TracerProvider | None, *, record_exceptions: bool, tenants: bool) -> None:
        self.tracer = trace.get_tracer(SYSTEM, tracer_provider=provider)
        self.record_exceptions = record_exceptions
        self.tenants = tenants
        self._previous: OrderedDict[str, SpanContext] = OrderedDict()
        self._lock = BlockingRuntime().lock()  # a fork releases it in the child

    @contextmanager
    def sending(self, queue: str, count: int | None) -> Iterator[None]:
        """Make a producer span the current span while messages are published; ``count`` is for a batch only."""
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

    def processing(self, queue: str, messages: Sequence[ReceivedMessage[Any]], *, batch: bool = False) -> Processing:
        """Return a consumer span that has not started."""
        return Processing(self, queue, messages, batch)

    def fail(self, span: Span, error: BaseException) -> None:
        """Record the class of an error, and its text only if you asked for it: it may contain a payload."""
        span.set_attribute("error.type", class_name(error))
        span.set_status(Status(StatusCode.ERROR))
        if self.record_exceptions:
            try:
                span.record_exception(error)
            except Exception:  # it asks the exception for its text
                span.add_event("exception", {"exception.type": class_name(error)})

    def record(self, event: QueueEvent) -> None:
        """Add what an event says to the current span."""
        sending, processing = _sending.get(), _processing.get()
        if event.operation in _PUBLISH_EVENTS and sending is not None and event.message_id is not None:
            sending.set_attribute("messaging.message.id", event.message_id)
            if event.operation is EventOperation.PUBLISH_DEDUP_HIT:
                sending.set_attribute("rmq.duplicate", True)
        elif event.operation in _SPAN_EVENTS and processing is not None and event.message_id in processing.ids:
            processing.add_event(str(event.operation), str(event.message_id))

    def remember_delivery(self, ids: Sequence[str], span: SpanContext) -> None:
        with self._lock:
            for message_id in ids:
                self._previous[message_id] = span
                self._previous.move_to_end(message_id)
            while len(self._previous) > _MAX_PREVIOUS_DELIVERIES:
                self._previous.popitem(last=False)

    def previous_delivery(self, message_id: str, *, forget: bool = False) -> SpanContext | None:
        with self._lock:
            return self._previous.pop(message_id, None) if forget else self._previous.get(message_id)


class Processing:
    """The consumer span of one message or one batch. It is the current span while the messages are processed."""

    def __init__(self, spans: Spans, queue: str, messages: Sequence[ReceivedMessage[Any]], batch: bool) -> None:
        self._spans = spans
        self._queue = queue
        self._messages = messages
        self._batch = batch
        self.ids = [message.id for message in messages]
        self._span: Span | None = None
        self._outer: Processing | None = None

    def __enter__(self) -> Span:
        base, links = self._context_and_links()
        self._span = span = self._start(links)
        self._spans.remember_delivery(self.ids, span.get_span_context())
        self._current = context.attach(trace.set_span_in_context(span, base))
        self._outer = _processing.get()
        _processing.set(self)
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        if error is not None and not isinstance(error, HandlerOutcome):
            self._spans.fail(span, error)
        elif error is None and not self._batch:  # single messages of a batch may have failed
            for message_id in self.ids:
                self._spans.previous_delivery(message_id, forget=True)
        _processing.set(self._outer)  # no reset: a block may be left in another context
        context.detach(self._current)
        span.end()

    def _start(self, links: Sequence[Link]) -> Span:
        name, attributes = f"process {self._queue}", self._attributes()
        try:
            return self._spans.tracer.start_span(name, kind=SpanKind.CONSUMER, attributes=attributes, links=links)
        except Exception as error:  # the message must not fail because of the user's sampler
            log.warning("%s: a delivery has no span, because the tracer raised %s", self._queue, class_name(error))
            return INVALID_SPAN

    def add_event(self, name: str, message_id: str) -> None:
        if self._span is not None:
            self._span.add_event(name, {"messaging.message.id": message_id})

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

    def _context_and_links(self) -> tuple[Context, list[Link]]:
        """Return the context for the handler, with the baggage of the producer, and the links to earlier spans."""
        here, links = context.get_current(), []
        base = here
        for message in self._messages:
            extracted = _extract_context(message, here)
            origin = trace.get_current_span(extracted).get_span_context()
            named = {"messaging.message.id": message.id}
            if origin.is_valid and origin != trace.get_current_span(here).get_span_context():
                links.append(Link(origin, named))
            if (previous := self._spans.previous_delivery(message.id)) is not None and previous.is_valid:
                links.append(Link(previous, named | {"rmq.link": "previous_delivery"}))
            if not self._batch:
                base = extracted
        return base, links


def trace_headers() -> dict[str, str]:
    """Return the current trace context as headers, without baggage if that is too large: a publish must not fail."""
    found: dict[str, str] = {}
    propagate.inject(found)
    try:
        headers.encode(found)
    except RedisMessageQueueError as error:
        log.warning(
            "the trace context does not fit into the headers of a message, so its baggage is left out: %s", error
        )
        found = {}
        TraceContextTextMapPropagator().inject(found)
    return found


def _extract_context(message: ReceivedMessage[Any], here: Context) -> Context:
    try:
        return propagate.extract(message.headers, context=here)
    except Exception as error:  # the message must not fail because of the user's propagator
        log.warning(
            "%s: message %s is traced without a link to its producer, because its headers cannot be read (%s)",
            *(message.queue, message.id, class_name(error)),
        )
        return here


def _attributes(queue: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
