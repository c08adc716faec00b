"""What a worker process is asked to do, as it travels to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from redis_message_queue.cli.choices import QueueChoice
from redis_message_queue.cli.delivery_options import DeliveryOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """It goes through a pipe and never onto a command line, where everybody could read the password."""

    handler: str
    queue_object: str | None  # where the user's own queue is found
    queue: QueueChoice | None  # or which one to open
    delivery: DeliveryOptions
    run: dict[str, Any]  # what `queue.run` is given beside the handler
    payload_bytes: bool
    log_level: str
    tracebacks: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Task:
        facts = json.loads(text)
        facts["queue"] = facts["queue"] and QueueChoice(**facts["queue"])
        facts["delivery"] = DeliveryOptions(**facts["delivery"])
        return cls(**facts)
