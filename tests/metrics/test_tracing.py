"""Spans of queues, and the links between producer and consumer."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import default_setter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from redis_message_queue import (
    ConfigurationTypeError,
    PayloadTooLargeError,
    QueueBackpressureError,
    RetryPolicy,
)
from redis_message_queue.metrics.opentelemetry import QueueTracing
from tests import fork_server
from tests.contract.custom_gateways import Core, custom
from tests.contract.shells import Awaited, Died, Shell, asyncio_only, claim_and_die, fail, sync_only, take
from tests.contract.test_unprintable_errors import Unprintable, refuse

pytestmark = pytest.mark.topic("Tracing")


class Traces:
    """A QueueTracing and its finished spans, in the order of their ends."""

    def __init__(self, shell: Shell, **options: Any) -> None:
        self._shell = shell
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = QueueTracing(tracer_provider=self.provider, **options)
        self.tracer = self.provider.get_tracer("the test")

    def queue(self, name: str = "q", **options: Any) -> Any:
        plain = self._shell.queue(name, **({} if "gateway" in options else {"wait": 0}) | options)
        return self._shell._facade(self.tracing.trace(plain.queue))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is kind]

    @property
    def sent(self) -> list[ReadableSpan]:
        return self.of(SpanKind.PRODUCER)

    @property
    def processed(self) -> list[ReadableSpan]:
        return self.of(SpanKind.CONSUMER)


@pytest.fixture
def traces(shell: Shell) -> Traces:
    return Traces(shell)


def linked(span: ReadableSpan) -> list[int]:
    """Which spans a span links to."""
    return [link.context.span_id for link in span.links]


def number(span: ReadableSpan) -> int:
    assert span.context is not None
    span_id: int = span.context.span_id
    return span_id


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


# Publisher and consumer


@pytest.mark.promise(
    "A traced publish has a producer span, and processing has a consumer span linked to it, both with the message id."
)
async def test_the_span_of_a_consumer_links_to_that_of_the_publisher(traces: Traces, shell: Shell) -> None:
    """After the messaging conventions, with the id of the message in both; each is the root of its own trace."""
    queue = traces.queue("orders")
    await queue.publish("m")
    async with queue.process_message():
        received = queue.current_message()
    (sent,), (processed,) = traces.sent, traces.processed
    assert (sent.name, processed.name) == ("publish orders", "process orders")
    assert dict(sent.attributes or {}) == {
        "messaging.system": "redis_message_queue",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": received.id,
    }
    assert dict(processed.attributes or {}) == {
        "messaging.system": "redis_message_queue",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": received.id,
        "rmq.delivery_count": 1,
    }
    assert linked(processed) == [number(sent)]
    assert (sent.parent, processed.parent) == (None, None)
    assert received.headers.keys() == {"traceparent"}


@pytest.mark.promise(
    "The handler's span is current in a block, a callback, a batch, and in each thread or task of `run()`."
)
async def test_a_handler_finds_its_span_current_and_what_it_publishes_belongs_to_it(
    traces: Traces, shell: Shell
) -> None:
    """For every method that delivers messages; afterwards no span is current."""
    queue, other = traces.queue(), traces.queue("other")
    await queue.publish_many(["a", "b", "c", "d"])
    seen: list[int] = []

    async with queue.process_message():
        seen.append(current())
        await other.publish("result")
    await queue.process_message_callback(shell.callback(lambda message: seen.append(current())))
    async with queue.process_messages(1):
        seen.append(current())
    assert current() == 0
    await queue.run(shell.callback(lambda message: seen.append(current())), until_empty=True)
    assert seen == [number(span) for span in traces.processed]
    (result,) = [span for span in traces.sent if span.name == "publish other"]
    assert result.parent is not None and result.parent.span_id == seen[0]
    assert current() == 0


@pytest.mark.promise(
    "A traced publish has a producer span, and processing has a consumer span linked to it, both with the message id."
)
async def test_the_span_around_a_publish_is_its_parent(traces: Traces, shell: Shell) -> None:
    """So a trace leads from a request through the queue."""
    queue = traces.queue()
    with traces.tracer.start_as_current_span("request") as request:
        await queue.publish("m")
        assert current() == request.get_span_context().span_id
    (sent,) = traces.sent
    assert sent.parent is not None and sent.parent.span_id == request.get_span_context().span_id


@pytest.mark.promise(
    "A redelivery is a new span with links to the publish span and, if known, to the previous delivery."
)
async def test_a_redelivery_is_a_new_span_with_links_to_both_that_went_before(traces: Traces, shell: Shell) -> None:
    """To the publisher's, and to the previous delivery's: after a failure that is tried again, and after a crash."""
    queue = traces.queue(retry_policy=RetryPolicy(max_attempts=3))
    await queue.publish("m")
    await fail(queue, ValueError())
    shell.ripen(queue)
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    first, second, third = traces.processed
    (sent,) = traces.sent
    assert linked(first) == [number(sent)]
    assert linked(second) == [number(sent), number(first)]
    assert linked(third) == [number(sent), number(second)]
    assert [(span.attributes or {})["rmq.delivery_count"] for span in (first, second, third)] == [1, 1, 2]
    assert (second.links[1].attributes or {})["rmq.link"] == "previous_delivery"


@pytest.mark.promise(
    "A traced publish has a producer span, and processing has a consumer span linked to it, both with the message id."
)
async def test_another_process_links_to_the_publisher_alone(traces: Traces, shell: Shell) -> None:
    """It does not know earlier deliveries in other processes."""
    queue = traces.queue()
    await queue.publish("m")
    await claim_and_die(queue)
    shell.lapse(queue)
    elsewhere = Traces(shell)
    await take(elsewhere.queue())
    (processed,) = elsewhere.processed
    assert linked(processed) == [number(traces.sent[0])]


@pytest.mark.promise("Messages published together share a span, and a batch links to each of its producers.")
async def test_messages_that_were_published_together_share_one_span(traces: Traces, shell: Shell) -> None:
    """It has their number; all their consumers link to it, and a batch links to each of its producers."""
    queue = traces.queue()
    await queue.publish_many(["a", "b"])
    await queue.publish("c")
    async with queue.process_messages(3) as batch:
        ids = [message.id for message in batch]
    together, alone = traces.sent
    (processed,) = traces.processed
    assert (together.attributes or {})["messaging.batch.message_count"] == 2
    assert (processed.attributes or {})["messaging.batch.message_count"] == 3
    assert linked(processed) == [number(together), number(together), number(alone)]
    assert [(link.attributes or {})["messaging.message.id"] for link in processed.links] == ids


@pytest.mark.promise(
    "The handler's span is current in a block, a callback, a batch, and in each thread or task of `run()`."
)
async def test_a_loop_with_batches_has_one_span_for_each(traces: Traces, shell: Shell) -> None:
    """One span for each call of the handler."""
    queue = traces.queue()
    await queue.publish_many(["a", "b", "c", "d"])
    seen: list[int] = []
    handler = shell.callback(lambda messages: seen.append(current()))
    await queue.run(handler, batch_size=2, until_empty=True)
    assert seen == [number(span) for span in traces.processed] and len(seen) == 2


@pytest.mark.promise(
    "The handler's span is current in a block, a callback, a batch, and in each thread or task of `run()`."
)
async def test_several_workers_have_their_own_spans(traces: Traces, shell: Shell) -> None:
    """Threads and tasks do not share spans."""
    queue = traces.queue()
    await queue.publish_many(str(place) for place in range(20))
    seen: list[tuple[str, int]] = []

    async def work(message: Any) -> None:
        before = current()
        await asyncio.sleep(0)
        assert current() == before
        seen.append((message.id, before))

    await queue.run(shell.handler(work), concurrency=4, until_empty=True)
    spans = {(span.attributes or {})["messaging.message.id"]: number(span) for span in traces.processed}
    assert dict(seen) == spans and len(spans) == 20


# Retries, failures and other ends


@pytest.mark.promise(
    "A trace continues through delays, tenants, hand-offs and redrives, and baggage travels with it as far as it fits."
)
async def test_headers_lead_through_delays_tenants_hand_offs_and_redrives(traces: Traces, shell: Shell) -> None:
    """The link to the publisher stays, wherever a message goes."""
    queue, target = traces.queue(max_delivery_count=1), traces.queue("target")
    await Awaited(Awaited(queue)._thing.tenant("acme")).publish("m", delay_seconds=3600)
    shell.ripen(queue)
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    await Awaited(queue).redrive_dead_letters()
    async with queue.process_message():
        await Awaited(queue.current_message()).complete(publish=[(target.queue, "result")])
    await take(target)
    died, redriven, result = traces.processed
    (sent,) = traces.sent
    assert (linked(died), linked(redriven)) == ([number(sent)], [number(sent)])
    assert linked(result) == [number(redriven)]
    assert [event.name for event in redriven.events] == ["handed_off"]


@pytest.mark.promise(
    "A span has the error class and the result; it has the error text and the tenant only if you ask for them."
)
async def test_a_duplicate_has_a_span_that_says_so(traces: Traces, shell: Shell) -> None:
    """It has `rmq.duplicate`."""
    queue = traces.queue(deduplication=True)
    await queue.publish("m")
    await queue.publish("m")
    first, second = ((span.attributes or {}).get("rmq.duplicate") for span in traces.sent)
    assert (first, second) == (None, True)


@pytest.mark.promise(
    "A span has the error class and the result; it has the error text and the tenant only if you ask for them."
)
async def test_a_failed_processing_records_only_the_class_of_the_error(traces: Traces, shell: Shell) -> None:
    """The text may contain parts of the message. An event says what happened to the message."""
    queue = traces.queue(retry_policy=RetryPolicy(max_attempts=2))
    await queue.publish("m")
    await fail(queue, LookupError("secret payload"))
    (span,) = traces.processed
    assert span.status.status_code is StatusCode.ERROR and span.status.description is None
    assert (span.attributes or {})["error.type"] == "LookupError"
    assert [event.name for event in span.events] == ["retried"]
    assert "secret" not in span.to_json()


@pytest.mark.promise(
    "A span has the error class and the result; it has the error text and the tenant only if you ask for them."
)
async def test_record_exceptions_records_text_and_traceback(shell: Shell) -> None:
    """They are in an event of the span."""
    traces = Traces(shell, record_exceptions=True, tenants=True)
    queue = traces.queue()
    await queue.publish("m", tenant="acme")
    await fail(queue, LookupError("words"))
    (span,) = traces.processed
    (recorded,) = [event for event in span.events if event.name == "exception"]
    assert (recorded.attributes or {})["exception.message"] == "words"
    assert (span.attributes or {})["rmq.tenant"] == "acme"


@pytest.mark.promise(
    "A span has the error class and the result; it has the error text and the tenant only if you ask for them."
)
async def test_a_tenant_is_recorded_only_on_request(traces: Traces, shell: Shell) -> None:
    """A tenant may be the name of a customer."""
    queue = traces.queue()
    await queue.publish("m", tenant="acme")
    await take(queue)
    assert "acme" not in "".join(span.to_json() for span in traces.spans)


@pytest.mark.promise(
    "A span has the error class and the result; it has the error text and the tenant only if you ask for them."
)
async def test_a_refused_publish_is_an_error(traces: Traces, shell: Shell) -> None:
    """Refused by the server or before anything was sent; the caller gets the exception."""
    queue = traces.queue(max_pending_length=1, max_payload_bytes=10)
    await queue.publish("m")
    with pytest.raises(QueueBackpressureError):
        await queue.publish("m")
    with pytest.raises(PayloadTooLargeError):
        await queue.publish("x" * 11)
    kinds = [(span.attributes or {}).get("error.type") for span in traces.sent]
    assert kinds == [None, "QueueBackpressureError", "PayloadTooLargeError"]
    assert current() == 0


@pytest.mark.promise("Every span ends, however its block ends; an empty claim creates none.")
async def test_every_end_of_a_handler_ends_its_span(traces: Traces, shell: Shell) -> None:
    """Also a BaseException, which leaves the message until its lease expires."""
    queue = traces.queue()
    await queue.publish_many(["a", "b"])
    with contextlib.suppress(Died):
        async with queue.process_message():
            raise Died
    with contextlib.suppress(Died):
        async with queue.process_messages(1):
            raise Died
    assert [(span.attributes or {})["error.type"] for span in traces.processed] == ["Died", "Died"]
    assert current() == 0


@pytest.mark.promise("Every span ends, however its block ends; an empty claim creates none.")
async def test_an_empty_queue_makes_no_spans(traces: Traces, shell: Shell) -> None:
    """Waiting is not processing."""
    queue = traces.queue()
    assert await take(queue) is None
    async with queue.process_messages(5) as batch:
        assert len(batch) == 0
    assert traces.spans == ()


@pytest.mark.promise("A traced queue keeps the options, events and headers of the original queue.")
async def test_a_message_that_nobody_traced_has_a_span_without_links(traces: Traces, shell: Shell) -> None:
    """The publisher has no tracing, or its headers are not a trace context."""
    await shell.queue().publish("a")
    await shell.queue(get_headers=shell.callback(lambda: {"traceparent": "nonsense"})).publish("b")
    queue = traces.queue()
    with traces.tracer.start_as_current_span("consumer"):
        await take(queue)
        await take(queue)
    assert [linked(span) for span in traces.processed] == [[], []]


# With options of the user


@pytest.mark.promise("A traced queue keeps the options, events and headers of the original queue.")
async def test_a_traced_queue_keeps_the_options_of_the_one_it_was_made_from(traces: Traces, shell: Shell) -> None:
    """Its on_event is called, its headers travel with the trace context, and its other options apply."""
    events = shell.events()
    mine = shell.callback(lambda: {"request": "7"})
    queue = traces.queue(on_event=events.listen, get_headers=mine, enable_completed_queue=True)
    await queue.publish("m")
    async with queue.process_message():
        headers = queue.current_message().headers
    assert (headers["request"], headers.keys()) == ("7", {"request", "traceparent"})
    assert events.names == ["publish/success", "claim/success", "ack/success", "completed/success"]
    assert (await Awaited(queue).stats()).completed == 1
    assert isinstance(queue.queue, shell.module.RedisMessageQueue)


@pytest.mark.promise(
    "A trace continues through delays, tenants, hand-offs and redrives, and baggage travels with it as far as it fits."
)
async def test_baggage_travels_with_a_message(traces: Traces, shell: Shell) -> None:
    """The handler has the baggage of the publisher; afterwards it is gone."""
    queue = traces.queue()
    token = context.attach(baggage.set_baggage("customer", "7"))
    await queue.publish("m")
    context.detach(token)
    async with queue.process_message():
        assert baggage.get_baggage("customer") == "7"
    assert baggage.get_baggage("customer") is None


class BrokenPropagator(TraceContextTextMapPropagator):
    """A propagator that writes more than the headers can hold, and fails to read."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = default_setter) -> None:
        super().inject(carrier, context, setter)
        setter.set(carrier, "too-long", "x" * 20_000)

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        raise LookupError("no idea")


@pytest.fixture
def broken_propagator() -> Iterator[None]:
    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(BrokenPropagator())
    yield
    propagate.set_global_textmap(usual)


@pytest.mark.promise(
    "A trace continues through delays, tenants, hand-offs and redrives, and baggage travels with it as far as it fits."
)
async def test_a_propagator_that_fails_does_not_fail_a_message(
    traces: Traces, shell: Shell, broken_propagator: None
) -> None:
    """What does not fit is left out and the trace continues; what cannot be read is a missing link."""
    queue = traces.queue()
    await queue.publish("m")
    async with queue.process_message():
        assert queue.current_message().headers.keys() == {"traceparent"}
    assert [linked(span) for span in traces.processed] == [[]]


@pytest.mark.promise("A traced queue keeps the options, events and headers of the original queue.")
async def test_get_headers_alone_carries_the_span_around(traces: Traces, shell: Shell) -> None:
    """For a publisher whose queue makes no spans."""
    plain = shell.queue(get_headers=shell.callback(traces.tracing.get_headers))
    with traces.tracer.start_as_current_span("request") as request:
        await plain.publish("m")
    await take(traces.queue())
    assert linked(traces.processed[0]) == [request.get_span_context().span_id]


@pytest.mark.promise(
    "The handler's span is current in a block, a callback, a batch, and in each thread or task of `run()`."
)
@sync_only
async def test_a_decorated_handler_has_a_span_in_a_loop_that_is_not_traced(traces: Traces, shell: Shell) -> None:
    """As in `rmq worker`, which makes the queue; with another argument it works without a span."""
    seen: list[int] = []

    @traces.tracing.handler
    def handle(message: Any) -> None:
        """My handler."""
        seen.append(current())

    queue = shell.queue("orders", wait=0)
    await queue.publish("m")
    await queue.run(handle, until_empty=True)
    await queue.publish("m")
    assert await queue.process_message_callback(handle) is True
    (span,) = traces.processed
    assert seen == [number(span), 0] and span.name == "process orders"
    assert (handle.__name__, handle.__doc__) == ("handle", "My handler.")


@pytest.mark.promise(
    "The handler's span is current in a block, a callback, a batch, and in each thread or task of `run()`."
)
@asyncio_only
async def test_a_decorated_coroutine_has_a_span_until_it_is_done(traces: Traces, shell: Shell) -> None:
    """The span does not end at the first await."""
    seen: list[int] = []

    @traces.tracing.handler
    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        seen.append(current())

    queue = shell.queue(wait=0)
    await queue.publish("m")
    await queue.run(handle, until_empty=True)
    assert seen == [number(span) for span in traces.processed] and len(seen) == 1


@pytest.mark.promise("A traced queue keeps the options, events and headers of the original queue.")
async def test_a_queue_on_a_custom_gateway_has_spans_without_links(traces: Traces, shell: Shell) -> None:
    """Its messages have neither headers nor ids, but publishing and processing are traced."""
    queue = traces.queue(gateway=custom(shell, Core("m")))
    await queue.publish("m")
    async with queue.process_message() as message:
        assert message == "m" and current() != 0
    (sent,), (processed,) = traces.sent, traces.processed
    assert (sent.name, processed.name, linked(processed)) == ("publish q", "process q", [])
    assert "messaging.message.id" not in (processed.attributes or {})


@pytest.mark.promise("A traced queue keeps the options, events and headers of the original queue.")
async def test_what_is_no_queue_is_refused(traces: Traces, shell: Shell) -> None:
    """Also a queue that is traced already, whose messages would have two spans."""
    with pytest.raises(ConfigurationTypeError, match="queue must be a RedisMessageQueue, not str"):
        traces.tracing.trace("q")  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(ConfigurationTypeError, match="traced already"):
        traces.tracing.trace(traces.queue().queue)
    with pytest.raises(ConfigurationTypeError, match="tracer_provider must be"):
        QueueTracing(tracer_provider="global")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationTypeError, match="record_exceptions must be True or False"):
        QueueTracing(record_exceptions=1)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationTypeError, match="function must be callable"):
        traces.tracing.handler("handle")  # type: ignore[type-var]  # wrong on purpose


@pytest.mark.promise(
    "A redelivery is a new span with links to the publish span and, if known, to the previous delivery."
)
@sync_only
async def test_only_the_latest_deliveries_are_remembered(
    traces: Traces, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are forgotten first, and a message that succeeded is forgotten at once."""
    monkeypatch.setattr("redis_message_queue.metrics.spans._MAX_PREVIOUS_DELIVERIES", 2)
    queue = traces.queue()
    await queue.publish_many(["a", "b", "c"])
    for _ in range(3):
        await claim_and_die(queue)
    shell.lapse(queue)
    for _ in range(3):
        await take(queue)
    assert [len(linked(span)) for span in traces.processed[3:]] == [1, 1, 2]  # a new delivery takes a place too
    assert len(traces.tracing._spans._previous) == 0


@pytest.mark.promise(
    "Without the `metrics` extra there is one clear error, and a queue never imports an adapter on its own."
)
@pytest.mark.parametrize("module", ["prometheus", "opentelemetry"])
def test_a_missing_extra_is_one_clear_error(module: str) -> None:
    """It says how to install it; the library itself does not need it."""
    package = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}[module]
    program = f"""
import sys
for name in [name for name in sys.modules if name.startswith(("redis_message_queue", {package!r}))]:
    del sys.modules[name]
sys.modules[{package!r}] = None
import redis_message_queue
try:
    import redis_message_queue.metrics.{module}
except redis_message_queue.MissingExtraError as error:
    print(error)
"""
    said = fork_server.run([sys.executable, "-W", "error", "-c", program])
    assert said.stderr == ""
    assert f"metrics.{module} needs {package}" in said.stdout
    assert "pip install 'redis-exact-queue[metrics]'" in said.stdout


@pytest.mark.promise(
    "Without the `metrics` extra there is one clear error, and a queue never imports an adapter on its own."
)
def test_a_plain_queue_does_not_load_the_adapters() -> None:
    """Importing the library does not import them."""
    program = """
import sys, redis_message_queue.asyncio
print({name for name in sys.modules if name.startswith(("prometheus_client", "redis_message_queue.metrics"))})
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


# Partitions


@pytest.mark.promise("A queue with partitions is traced as any other: its messages, batches, tenants and `run()`.")
@pytest.mark.both_shells
async def test_a_queue_with_partitions_is_traced_as_any_other(traces: Traces, shell: Shell) -> None:
    """Each message goes to the partition of its key, and each consumer span links to its producer span."""
    queue = traces.queue(partitions=3, deduplication=True)
    for name in "abcdef":
        await queue.publish(name)
    assert not await queue.publish("a")
    assert not await shell.queue(wait=0, partitions=3, deduplication=True).publish("b")
    async with queue.process_message():
        assert current() == number_of(queue.current_message(), traces)
    async with queue.process_messages(2) as batch:
        taken = len(batch)  # of one partition
        assert 1 <= taken <= 2 and current() != 0
    handled = shell.callback(lambda message: None)
    assert (await queue.run(handled, until_empty=True)).handled == 5 - taken
    assert [(span.attributes or {}).get("rmq.duplicate") for span in traces.sent] == [None] * 6 + [True]
    links = [link for span in traces.processed for link in linked(span)]
    assert sorted(links) == sorted(number(span) for span in traces.sent[:6])
    assert len(traces.processed) == 7 - taken


def number_of(message: Any, traces: Traces) -> int:
    """The span of the block that holds this message, which remembers it as its latest delivery."""
    remembered = traces.tracing._spans.previous_delivery(message.id)
    assert remembered is not None
    span_id: int = remembered.span_id
    return span_id


class FailingSampler(Sampler):
    """A sampler with a mistake."""

    def should_sample(self, *arguments: Any, **named: Any) -> Any:
        raise LookupError("no idea")

    def get_description(self) -> str:
        return "fails"


@pytest.mark.promise("Every span ends, however its block ends; an empty claim creates none.")
async def test_a_tracer_that_fails_does_not_fail_a_delivery(
    traces: Traces, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler gets its message, without a span."""
    await shell.queue().publish_many(["a", "b", "c"])
    queue = traces.queue()
    traces.provider.sampler = FailingSampler()
    traces.tracing._spans.tracer.sampler = FailingSampler()  # type: ignore[attr-defined]  # of the SDK
    assert await take(queue) == b"a"
    async with queue.process_messages(1) as batch:
        assert [message.payload for message in batch] == [b"b"]
    assert (await queue.run(shell.callback(lambda message: None), until_empty=True)).handled == 1
    assert caplog.messages == ["q: a delivery has no span, because the tracer raised LookupError"] * 3
    assert (await Awaited(queue).stats()).processing == 0 and current() == 0


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
@pytest.mark.parametrize("recorded", [False, True])
async def test_an_exception_that_cannot_be_printed_ends_its_span(shell: Shell, recorded: bool) -> None:
    """OpenTelemetry asks an exception for its text, and this one raises."""
    traces = Traces(shell, record_exceptions=recorded)
    queue = traces.queue()
    await queue.publish("a")
    with pytest.raises(Unprintable):
        async with queue.process_message():
            refuse()
    (span,) = traces.processed
    assert (span.attributes or {})["error.type"] == "Unprintable"
    assert len(span.events) == recorded
