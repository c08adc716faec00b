"""Tracing for queues: what a program makes once, and asks for traced queues and handlers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from opentelemetry.trace import TracerProvider

from redis_message_queue.asyncio import RedisMessageQueue as AsyncioQueue
from redis_message_queue.checks import flag, required_function
from redis_message_queue.errors import ConfigurationTypeError
from redis_message_queue.metrics.spans import Spans, carrier
from redis_message_queue.metrics.traced import TracedAsyncioQueue, TracedBlockingQueue, in_awaited_span, in_span
from redis_message_queue.sync.queue import RedisMessageQueue as BlockingQueue

Handler = TypeVar("Handler", bound=Callable[[Any], Any])


class QueueTracing:
    """Makes spans for queues, any number of them.

    ``tracer_provider`` is the global one unless you say otherwise. A span of a failure has the class of the exception;
    ``record_exceptions`` adds what it says and its traceback, which may hold what is in a message. ``tenants`` adds the
    name of the tenant.
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
    def trace(self, queue: BlockingQueue) -> BlockingQueue: ...

    @overload
    def trace(self, queue: AsyncioQueue) -> AsyncioQueue: ...

    def trace(self, queue: BlockingQueue | AsyncioQueue) -> BlockingQueue | AsyncioQueue:
        """The same queue with spans; use it in the place of the one given.

        A publish has a producer's span, and the message carries its context. Each processing, by `process_message()`,
        `process_messages()` or `run()`, has a consumer's span that is current for the handler, with links to the
        publisher's and, where this object has seen it, to the previous delivery's.
        """
        if isinstance(queue, TracedBlockingQueue | TracedAsyncioQueue):
            raise ConfigurationTypeError("this queue is traced already; every message would have two spans")
        if isinstance(queue, BlockingQueue):
            return TracedBlockingQueue(queue, self._spans)
        if isinstance(queue, AsyncioQueue):
            return TracedAsyncioQueue(queue, self._spans)
        raise ConfigurationTypeError(f"queue must be a RedisMessageQueue, not {type(queue).__name__}")

    def handler(self, function: Handler) -> Handler:
        """A decorator for handlers of `run()` where the queue itself is not yours to trace, as in a worker's module."""
        required_function("function", function)
        called = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ counts too
        awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        wrap = in_awaited_span if awaited else in_span
        return wrap(self._spans, function)  # type: ignore[return-value]  # it is called in the same way

    def get_headers(self) -> dict[str, str]:
        """The current context as headers: for the option of that name, where a queue should make no spans itself."""
        return carrier()
