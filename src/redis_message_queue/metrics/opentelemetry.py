"""Queues as OpenTelemetry sees them: a span for each publish and each processing, linked through the message.

    queue = QueueTracing().trace(RedisMessageQueue("orders", client=client))

The context of the publisher travels in the headers of the message. `QueueMeter` counts and times events.
"""

from __future__ import annotations

from redis_message_queue.metrics.extra import require

require("opentelemetry", "opentelemetry")

from redis_message_queue.metrics.meter import QueueMeter  # noqa: E402  after the check
from redis_message_queue.metrics.tracing import QueueTracing  # noqa: E402

__all__ = ["QueueMeter", "QueueTracing"]
