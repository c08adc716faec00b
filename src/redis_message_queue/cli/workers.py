"""rmq workers: the processes that work on a queue, whether they have work or not."""

from __future__ import annotations

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output, to_dict
from redis_message_queue.cli.peek import Limit


def workers(queue: QueueChoice, output: Output, limit: Limit = 1_000) -> ExitStatus | None:
    """List the processes that run a consumer loop on a queue, those that have run longest first.

    Each process that runs `rmq worker`, `run()` or `run_queues` keeps an entry, from its second second on. The entry of
    one that was killed is gone after 30 seconds. Consumers that use `process_message` alone have none. The exit status
    is 1 if no worker is connected.
    """
    with queue.open() as opened:
        found = [to_dict(one) for one in opened.workers(max_workers=limit)]
    shown = ("consumer", "concurrency", "since", "last_claim", "version")
    output.table(
        found if output.json else [{name: one[name] for name in shown} for one in found], empty="no worker is connected"
    )
    return None if found else ExitStatus.FAILED
