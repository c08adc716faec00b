"""What the ports of both shells share: the client, its settings, and the sorting of its errors."""

from __future__ import annotations

import time
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from redis_message_queue import wire
from redis_message_queue.identity import process, restart_ids

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

    def __init__(self, client: Any, *, pack_by_hand: bool = True) -> None:
        self._client = client
        # Clients that were seen to lead where ours does, by what they are: settings alone do not tell.
        self._same_place: WeakKeyDictionary[Any, _Seen] = WeakKeyDictionary()
        self.born_in = process()
        # So that a queue made after a snapshot was restored shares nothing with those in other copies of the process.
        restart_ids()
        plain = wire.is_plain(client, self._plain_client, self._plain_pools, self._plain_connections)
        self._packs_by_hand = plain and pack_by_hand
        self.socket_timeout: float | None = wire.connection_settings(client).get("socket_timeout")
        self.retry_window = wire.retry_window(client)
        self.decodes = wire.decodes(client)
        self.is_cluster = wire.is_cluster(client)

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
