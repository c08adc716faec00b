"""Traces and metrics of queues for OpenTelemetry: a span for each publish and each processing, linked by the message.

    queue = QueueTracing().trace(RedisMessageQueue("orders", client=client))

The trace context of the producer travels in the headers of the message. `QueueMeter` counts and times events.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.sync.message_queue import RedisMessageQueue as SyncQueue
from redis_message_queue.values.checks import flag, required_function
from redis_message_queue.values.errors import ConfigurationTypeError, MissingExtraError

try:
    from opentelemetry.trace import TracerProvider
except ImportError as error:
    raise MissingExtraError(
        "redis_message_queue.metrics.opentelemetry needs opentelemetry; run: pip install 'redis-exact-queue[metrics]'"
    ) from error

from redis_message_queue.metrics.meter import QueueMeter
from redis_message_queue.metrics.spans import Spans, trace_headers
from redis_message_queue.metrics.traced import TracedAsyncioQueue, TracedSyncQueue, with_async_span, with_span

__all__ = ["QueueMeter", "QueueTracing"]

Handler = TypeVar("Handler", bound=Callable[[Any], Any])


class QueueTracing:
    """Makes spans for any number of queues.

    Args:
        tracer_provider: Where the spans go; by default the global provider.
        record_exceptions: Record the text and the traceback of an exception, which may contain parts of a message. By
            default a span contains only its class.
        tenants: Record the name of the tenant.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, record_exceptions: bool = False, tenants: bool = False
    ) -> None:
        flag("record_exceptions", record_exceptions)
        flag("tenants", tenants)
        if tracer_provider is not None and not isinstance(tracer_provider, TracerProvider):
            raise ConfigurationTypeError(
                f"tracer_provider must be an opentelemetry.trace.TracerProvider, not {type(tracer_provider).__name__}"
            )
        self._spans = Spans(tracer_provider, record_exceptions=record_exceptions, tenants=tenants)

    @overload
    def trace(self, queue: SyncQueue) -> SyncQueue: ...

    @overload
    def trace(self, queue: AsyncioQueue) -> AsyncioQueue: ...

    def trace(self, queue: SyncQueue | AsyncioQueue) -> SyncQueue | AsyncioQueue:
        """Return a queue that does the same and makes spans. Use it instead of the one you pass.

        Each publish has a producer span, and the message carries its context. Each processing, by `process_message()`,
        `process_messages()` or `run()`, has a consumer span, which is the current span of the handler. It links to the
        span of the producer and, if this object saw it, to the span of the previous delivery.

        Raises:
            ConfigurationTypeError: This is not a queue, or it is traced already.
        """
        if isinstance(queue, TracedSyncQueue | TracedAsyncioQueue):
            raise ConfigurationTypeError(
                "this queue is traced already, and each message would have two spans; trace it once"
            )
        if isinstance(queue, SyncQueue):
            return TracedSyncQueue(queue, self._spans)
        if isinstance(queue, AsyncioQueue):
            return TracedAsyncioQueue(queue, self._spans)
        raise ConfigurationTypeError(f"queue must be a RedisMessageQueue, not {type(queue).__name__}")

    def handler(self, function: Handler) -> Handler:
        """Decorate a handler of `run()` with a span, for a queue that you cannot trace, as that of `rmq worker`."""
        required_function("function", function)
        called = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ counts too
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        wrap = with_async_span if is_async else with_span
        return wrap(self._spans, function)  # type: ignore[return-value]  # it is called in the same way

    def get_headers(self) -> dict[str, str]:
        """Return the current trace context as headers. Pass it as ``get_headers`` to a queue that makes no spans."""
        return trace_headers()
