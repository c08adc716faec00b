"""What the ports of both shells share: the client, its settings, and the sorting of its errors."""

from __future__ import annotations

import functools
import math
import time
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from redis import exceptions

from redis_message_queue import attempt_limits, wire
from redis_message_queue.attempt_limits import Limited
from redis_message_queue.identity import process, restart_ids
from redis_message_queue.protocol.port import attempt_ends_at

LISTENING_SECONDS = 5.0  # how long we listen for one answer with a client that has no socket_timeout
_TRUSTED_SECONDS = 30.0  # a name may lead to another server one day, for one client and not for the other


class _Seen(NamedTuple):
    """When two clients were seen to reach one server, and who was the primary of each then, by their Sentinels."""

    primaries: tuple[Any, Any]
    at: float


def _pool(client: Any) -> Any:
    return getattr(client, "connection_pool", None)


class ClientPort:
    """The half of a port that knows a client and does not talk to it."""

    _plain_client: ClassVar[type]
    _plain_pools: ClassVar[tuple[type, ...]]
    _plain_connections: ClassVar[tuple[type, ...]]

    def __init__(self, client: Any, *, pack_by_hand: bool = True, client_retries: bool = False) -> None:
        self._client = client
        # Clients that were seen to lead where ours does, by what they are: settings alone do not tell.
        self._same_place: WeakKeyDictionary[Any, _Seen] = WeakKeyDictionary()
        self.born_in = process()
        # So that a queue made after a snapshot was restored shares nothing with those in other copies of the process.
        restart_ids()
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

    def reaches_the_same(self, other: Any) -> bool | None:
        mine, theirs = self._client, other._client
        if mine is theirs or _pool(mine) is _pool(theirs) is not None:
            return True
        if self.is_cluster != other.is_cluster:
            return False
        seen = self._same_place.get(theirs)
        if seen is None or seen.primaries != (wire.primary_of(mine), wire.primary_of(theirs)):
            return None
        return True if time.monotonic() - seen.at < _TRUSTED_SECONDS else None

    def note_the_same(self, other: Any) -> None:
        primaries = wire.primary_of(self._client), wire.primary_of(other._client)
        self._same_place[other._client] = _Seen(primaries, time.monotonic())

    def is_transient(self, error: BaseException) -> bool:
        return wire.is_transient(error)
