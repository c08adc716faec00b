"""What `rmq worker` knows of itself, in a situation of a test."""

from collections import Counter

from redis_message_queue.cli.worker.health import Health, ProcessHealth


def worker_health(*, ready: bool = True, restarts: int = 0, longest: float = 0.0, **outcomes: int) -> Health:
    """One process of a worker of the queue "orders"."""
    process = ProcessHealth(
        number=1,
        pid=1,
        ready=ready,
        loops_age_seconds=0,
        redis_age_seconds=0,
        redis_lost=False,
        activity={"running": {"orders": 1}, "longest_seconds": longest},
    )
    return Health(
        wanted_processes=1,
        processes=[process],
        stopping=False,
        supervisor_age_seconds=0,
        restarts=restarts,
        totals={"orders": Counter(outcomes)},
        ended={},
    )
