"""rmq pause and rmq resume: stop the consumers of a queue, and let them go on."""

from __future__ import annotations

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.output import Output


def pause(queue: QueueChoice, output: Output) -> None:
    """Let no consumer claim a message of a queue until you resume it.

    Consumers stop with their next claim, and finish what they have. Publishing goes on, and so do delays, leases and
    acknowledgements. Streaming queries read nothing either. A queue that is paused already stays paused.
    """
    with queue.open() as opened:
        changed = opened.pause()
    output.document({"queue": queue.name, "paused": True, "changed": changed})


def resume(queue: QueueChoice, output: Output) -> None:
    """Let the consumers of a paused queue claim messages again, at once."""
    with queue.open() as opened:
        changed = opened.resume()
    output.document({"queue": queue.name, "paused": False, "changed": changed})
