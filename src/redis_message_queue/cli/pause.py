"""rmq pause and rmq resume: stop the consumers of a queue or of one tenant, and let them go on."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.output import Output

OneTenant = Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant; the others are served as ever.")]


def pause(queue: QueueChoice, output: Output, tenant: OneTenant = None) -> None:
    """Let no consumer claim a message of a queue, or of one tenant, until you resume it.

    Consumers stop with their next claim, and finish what they have. Publishing goes on, and so do delays, leases and
    acknowledgements. Streaming queries read nothing either. What is paused already stays paused.
    """
    with queue.open() as opened:
        changed = opened.pause(tenant=tenant)
    output.document(_row(queue, tenant, paused=True, changed=changed))


def resume(queue: QueueChoice, output: Output, tenant: OneTenant = None) -> None:
    """Let the consumers of a paused queue, or of one tenant, claim messages again, at once."""
    with queue.open() as opened:
        changed = opened.resume(tenant=tenant)
    output.document(_row(queue, tenant, paused=False, changed=changed))


def _row(queue: QueueChoice, tenant: str | None, *, paused: bool, changed: bool) -> dict[str, object]:
    whose = {} if tenant is None else {"tenant": tenant}
    return {"queue": queue.name, **whose, "paused": paused, "changed": changed}
