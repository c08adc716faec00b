"""What a queue can do with its gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis_message_queue.values.errors import GatewayContractError

# What an error says of a missing capability: what it is, and what to use instead.
_ERRORS = {
    "chunks": ("publishing in batches, for tenants or with a delay", "publish(message) for each message"),
    "receipts": ("submit()", "publish(message), which returns whether it was accepted"),
    "codecs": ("codec", "text or JSON that your handlers decode themselves"),
    "headers": ("get_headers", "fields of the message itself"),
    "time_limits": ("timeout_seconds", "a time limit of the gateway itself"),
    "repeats": ("repeat_of", "a deduplication key that makes it safe to publish again"),
    "batches": ("taking messages in batches, as process_messages() and run() do", "process_message()"),
    "retries": ("retry_policy", "a gateway that delivers failed messages again"),
    "hand_off_target": ("being a target of complete()", "publish() on that queue before the handler returns"),
    "hand_off": ("complete()", "publish() on the other queue before the handler returns"),
    "schedules": ("scheduling messages", "a program that calls publish(message) at its times"),
    "operators": (
        "what operators do (stats, peek, records, purge, redrive, tenants)",
        "the tools of the gateway's own store",
    ),
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which features work with a gateway: all of them with ours, fewer with a custom one."""

    gateway: str = "RedisGateway"
    chunks: bool = True  # publish_many, tenants, delays
    receipts: bool = True  # submit
    codecs: bool = True  # codec
    headers: bool = True  # get_headers, headers=
    time_limits: bool = True  # timeout_seconds=
    repeats: bool = True  # repeat_of
    batches: bool = True  # process_messages, run
    retries: bool = True  # retry_policy
    hand_off_target: bool = True  # being a target of complete()
    hand_off: bool = True  # message.complete()
    schedules: bool = True  # schedule, schedules, unschedule
    operators: bool = True  # stats, peek, records, purge, redrive, tenants

    @classmethod
    def of_custom(cls, gateway: Any, *, publishes: bool, consumes: bool, has_client: bool) -> Capabilities:
        """Return those of a gateway that publishes or consumes by its own operations, and may have no client."""
        return cls(
            gateway=type(gateway).__name__,
            chunks=not publishes,
            receipts=not publishes,
            codecs=not (publishes or consumes),
            headers=not publishes,
            time_limits=not publishes,
            repeats=not publishes,
            batches=not consumes,
            retries=not consumes,
            hand_off_target=has_client and not publishes,
            hand_off=has_client,
            schedules=has_client and not publishes,
            operators=has_client,
        )

    def require(self, capability: str) -> None:
        """Raise if the gateway lacks this capability."""
        if not getattr(self, capability):
            raise self.lacks(capability)

    def lacks(self, capability: str) -> GatewayContractError:
        """Return the error for a capability that the gateway does not have."""
        what, instead = _ERRORS[capability]
        return GatewayContractError(
            f"{what} is not part of the contract of a custom gateway ({self.gateway}); use {instead}, or give the "
            "queue client= or a RedisGateway that overrides nothing"
        )
