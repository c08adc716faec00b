"""What the ports of both shells share: the client, its settings, and the sorting of its errors."""

from __future__ import annotations

import functools
import math
import os
from typing import Any, ClassVar

from redis import exceptions

from redis_message_queue import attempt_limits, wire
from redis_message_queue.attempt_limits import Limited
from redis_message_queue.protocol.port import attempt_ends_at

LISTENING_SECONDS = 5.0  # how long we listen for one answer with a client that has no socket_timeout


class ClientPort:
    """The half of a port that knows a client and does not talk to it."""

    _plain_client: ClassVar[type]
    _plain_pools: ClassVar[tuple[type, ...]]
    _plain_connections: ClassVar[tuple[type, ...]]

    def __init__(self, client: Any, *, pack_by_hand: bool = True, client_retries: bool = False) -> None:
        self._client = client
        self.born_in = os.getpid()
        plain = wire.is_plain(client, self._plain_client, self._plain_pools, self._plain_connections)
        self._packs_by_hand = plain and pack_by_hand
        timeout = wire.socket_timeout(client)
        self.socket_timeout = LISTENING_SECONDS if timeout is None else timeout
        self.retry_window = wire.retry_window(client)
        self.decodes = wire.decodes(client)
        self.is_cluster = wire.is_cluster(client)
        self._client_retries = client_retries  # whether the client's own Retry is all there is
        self._read_seconds = LISTENING_SECONDS if timeout is None else math.inf
        self._usual = Limited(client_retries, math.inf, self._read_seconds)
        attempt_limits.limit(client)

    @functools.cached_property
    def address(self) -> str:
        return wire.address(self._client)

    def _attempt(self) -> Limited:
        """A block in which the client keeps to the limits of one attempt of ours."""
        until = attempt_ends_at()
        if until is None and not self._usual.is_timed:
            return self._usual
        return Limited(self._client_retries, math.inf if until is None else until, self._read_seconds)

    @staticmethod
    def _has_answered(error: exceptions.RedisError) -> bool:
        """Whether somebody has reached the server although we got no connection for now.

        Either the pool has none to spare, because all are in use, or the server answers that it is busy or loading.
        """
        if isinstance(error, exceptions.MaxConnectionsError) or "No connection available" in str(error):
            return True
        return isinstance(error, exceptions.ResponseError | exceptions.BusyLoadingError) and wire.is_transient(error)

    async def reaches_the_same(self, other: Any) -> bool:
        return other._client is self._client or wire.lead_to_the_same(self._client, other._client)

    def is_transient(self, error: BaseException) -> bool:
        return wire.is_transient(error)
