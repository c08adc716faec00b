"""What a server tells of itself: its INFO and, if it lets us, its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from redis.exceptions import ResponseError

from redis_message_queue.cli.node import text_of

_SETTINGS = (
    *("maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "save", "timeout", "tcp-keepalive", "maxclients"),
    *("min-replicas-to-write", "min-replicas-max-lag"),
)


@dataclass
class Patient:
    """One server, and a plain client of it."""

    node: Any
    info: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.info = self.node.info()

    @cached_property
    def settings(self) -> dict[str, str] | None:
        """None where CONFIG is not for us, as on most managed servers."""
        try:
            return {name: text_of(self.node.config_get(name).get(name, "")) for name in _SETTINGS}
        except ResponseError:  # no permission, or no such command
            return None

    def setting(self, name: str, default: str = "") -> str:
        return (self.settings or {}).get(name, default)

    def number(self, name: str) -> int:
        """A figure of INFO, 0 where this server has none."""
        return int(self.info.get(name, 0))

    @property
    def max_memory(self) -> int:
        return self.number("maxmemory")
