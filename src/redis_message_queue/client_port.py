"""What the ports of both shells share: the client, its settings, and the sorting of its errors."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from redis_message_queue import wire


class ClientPort:
    """The half of a port that knows a client and does not talk to it."""

    _plain_client: ClassVar[type]
    _plain_pools: ClassVar[tuple[type, ...]]
    _plain_connections: ClassVar[tuple[type, ...]]

    def __init__(self, client: Any, *, pack_by_hand: bool = True) -> None:
        self._client = client
        self.born_in = os.getpid()
        plain = wire.is_plain(client, self._plain_client, self._plain_pools, self._plain_connections)
        self._packs_by_hand = plain and pack_by_hand
        self.socket_timeout = wire.socket_timeout(client)
        self.retry_window = wire.retry_window(client)
        self.decodes = wire.decodes(client)
        self.is_cluster = wire.is_cluster(client)

    async def reaches_the_same(self, other: Any) -> bool:
        return other._client is self._client or wire.lead_to_the_same(self._client, other._client)

    def is_transient(self, error: BaseException) -> bool:
        return wire.is_transient(error)
