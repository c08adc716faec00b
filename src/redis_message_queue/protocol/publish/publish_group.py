"""How publishes that meet are sent together: by one script, which decides about each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_message_queue.protocol.calls import ReplySlot
from redis_message_queue.protocol.group_commit import GroupedCall
from redis_message_queue.protocol.port import Call
from redis_message_queue.protocol.publish.sender import (
    ACCEPTED,
    SUPPRESSED,
    OutgoingMessage,
    Published,
    Sender,
    chunk_ids,
)
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.envelope import ID_BYTES

# With a limit, the script plans each message by itself; one that must drop others may look at a thousand tenants: 1 ms.
_MOST_WITH_A_LIMIT = 50
_PLACE_BYTES = 2
_NO_ROOM = Published([])
_OUTCOMES = {ord("1"): ACCEPTED, ord("0"): SUPPRESSED, ord("-"): _NO_ROOM, ord("?"): None}  # by their marks


class PublishGroups:
    """The `GroupKind` of publishes to one part."""

    operation = "publish"
    advice = "its outcome is unknown, and it is safe to call again later where deduplication covers it"

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.most = _MOST_WITH_A_LIMIT if sender.is_limited else MAX_MESSAGES

    def size(self, item: OutgoingMessage) -> int:
        return len(item.payload) + len(item.extras)

    def request(self, slot: ReplySlot, members: Sequence[GroupedCall]) -> Call:
        first = members[0]
        if len(members) == 1:
            first.message_id = first.own_id
            command, extra_keys, arguments = self._sender.choose_for_one(slot, first.own_id, first.item)
            return command, extra_keys, (slot.next_call(), *arguments)
        ids = chunk_ids(first.own_id, len(members))
        for one, message_id in zip(members, ids, strict=True):
            one.message_id = message_id
        messages = [one.item for one in members]
        command, extra_keys, arguments = self._sender.choose_enqueue(slot, ids, messages, one_by_one=True)
        return command, extra_keys, (slot.next_call(), *arguments)

    def read(self, reply: Any, members: Sequence[GroupedCall]) -> list[GroupedCall]:
        if len(members) == 1:
            members[0].outcome = self._sender.read(reply, [members[0].message_id])
            return []
        dropped: dict[int, list[str]] = {}
        for at in range(len(members), len(reply), _PLACE_BYTES + ID_BYTES):
            place, message_id = reply[at : at + _PLACE_BYTES], reply[at + _PLACE_BYTES : at + _PLACE_BYTES + ID_BYTES]
            dropped.setdefault(int.from_bytes(place, "big") - 1, []).append(message_id.hex())
        for one, mark in zip(members, reply, strict=False):
            one.outcome = _OUTCOMES[mark]
        for place, ids in dropped.items():
            members[place].outcome = Published([True], tuple(ids))
        return [one for one in members if one.waits]

    def result(self, call: GroupedCall) -> Published:
        if call.outcome is _NO_ROOM:
            raise self._sender.full_queue_error([call.message_id])
        published: Published = call.outcome
        return published
