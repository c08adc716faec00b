"""Each module that a page names can be imported, with the names that users need of it."""

from importlib import import_module

import pytest

PUBLIC = {
    "redis_message_queue": ("RedisMessageQueue", "RedisGateway", "ReceivedMessage", "RetryPolicy", "DeadLetter"),
    "redis_message_queue.asyncio": ("RedisMessageQueue", "RedisGateway", "ReceivedMessage", "run_queues"),
    "redis_message_queue.dashboard": ("Dashboard",),
    "redis_message_queue.embedded": ("EmbeddedRedis", "EmbeddedServerError", "ServerBinary", "find_server"),
    "redis_message_queue.metrics.opentelemetry": ("QueueMeter", "QueueTracing"),
    "redis_message_queue.metrics.prometheus": ("QueueMetrics", "StatsCollector"),
    "redis_message_queue.payloads": ("Codec", "JsonCodec", "BytesCodec", "PydanticCodec", "MsgspecCodec"),
    "redis_message_queue.spark": ("session", "prepare", "register", "QueueListener"),
    "redis_message_queue.spark.driver": ("QUICK_START",),
    "redis_message_queue.spark.jobs.archive": ("ArchiveOptions", "archive"),
    "redis_message_queue.spark.jobs.backfill": ("BackfillOptions", "backfill"),
    "redis_message_queue.spark.jobs.lake": ("read_messages",),
    "redis_message_queue.spark.jobs.records": ("read_records",),
    "redis_message_queue.spark.jobs.refresh": ("RefreshOptions", "refresh"),
    "redis_message_queue.spark.jobs.replay": ("ReplayOptions", "replay"),
    "redis_message_queue.spark.jobs.report": ("ReportOptions", "report"),
    "redis_message_queue.spark.prometheus": ("StreamMetrics",),
    "redis_message_queue.testing": ("deliver_twice", "fast_forward", "kill_and_redeliver", "lose_reply"),
    "redis_message_queue.testing.fast_forward": ("fast_forward",),
    "pyspark_redis_message_queue": ("DefaultSource",),
    "pytest_redis_message_queue": ("rmq_queue", "async_rmq_queue"),
}


@pytest.mark.parametrize("path", PUBLIC)
def test_a_public_path_can_be_imported(path: str) -> None:
    module = import_module(path)
    assert [name for name in PUBLIC[path] if not hasattr(module, name)] == []
