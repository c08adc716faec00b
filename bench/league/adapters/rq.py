"""RQ: `Queue.enqueue` and `rq worker`, which forks a process for each job."""

from typing import Any

from redis import Redis
from rq import Queue, Retry

from bench.league.handler import handle
from bench.league.settings import LEASE_SECONDS, QUEUE, URL


class Producer:
    def __init__(self) -> None:
        self._queue = Queue(QUEUE, connection=Redis.from_url(URL))
        self._options = {"retry": Retry(max=10)} if LEASE_SECONDS else {}

    def publish(self, message: dict[str, Any]) -> None:
        self._queue.enqueue(handle, message, **self._options)

    def publish_once(self, message: dict[str, Any]) -> None:
        self._queue.enqueue_call(handle, (message,), job_id=str(message["id"]), unique=True)

    def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(handle, (message,)) for message in messages])
