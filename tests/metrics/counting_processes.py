"""Run processes that use one queue and count into one directory; test_prometheus.py starts this as a script."""

import multiprocessing
import subprocess
import sys

import redis
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from redis_message_queue import RedisMessageQueue
from redis_message_queue.metrics.prometheus import QueueMetrics, StatsCollector

WORKERS, MESSAGES = 3, 10


def work(url: str, metrics: QueueMetrics) -> None:
    with redis.Redis.from_url(url) as client:
        queue = RedisMessageQueue("q", client=client, on_event=metrics.on_event)
        queue.publish_many(f"message {number}" for number in range(MESSAGES))
        for _ in range(MESSAGES):
            with queue.process_message() as message:
                assert message is not None


def main(how: str, url: str) -> None:
    metrics = QueueMetrics()
    if how == "alone":
        work(url, metrics)
        return
    if how == "forked":
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(url, metrics)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * WORKERS
    else:
        others = [subprocess.Popen([sys.executable, __file__, "alone", url]) for _ in range(WORKERS)]
        assert [other.wait() for other in others] == [0] * WORKERS
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    with redis.Redis.from_url(url) as client:
        StatsCollector(registry=registry).watch(RedisMessageQueue("q", client=client))
        print(generate_latest(registry).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
