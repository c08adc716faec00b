"""Celery: `task.delay` and the `celery` worker with one process. No result backend."""

from typing import Any

from celery import Celery

from bench.league.handler import handle
from bench.league.settings import LEASE_SECONDS, QUEUE, URL

app = Celery(QUEUE, broker=URL)
if LEASE_SECONDS:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_transport_options={"visibility_timeout": LEASE_SECONDS},
    )


@app.task(name="task")
def task(message: dict[str, Any]) -> None:
    handle(message)


class Producer:
    def publish(self, message: dict[str, Any]) -> None:
        task.delay(message)
