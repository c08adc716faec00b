"""How acknowledgements that meet are sent together: by one script, which answers for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_message_queue.protocol.calls import ReplySlot
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.settle import KEEPS_NOTHING, SETTLED, Settled, joined_tokens
from redis_message_queue.protocol.group_commit import GroupedCall
from redis_message_queue.protocol.port import Call
from redis_message_queue.stored.bounds import MAX_MESSAGES


class AckGroups:
    """The `GroupKind` of acknowledgements in one part, of messages that leave no copy."""

    operation = "ack"
    advice = "its outcome is unknown"
    most = MAX_MESSAGES

    def size(self, item: Claim) -> int:
        return len(item.envelope.stored)

    def request(self, slot: ReplySlot, members: Sequence[GroupedCall]) -> Call:
        claims = [one.item for one in members]
        return slot.settle, (), (*KEEPS_NOTHING, slot.next_call(), joined_tokens(claims))

    def read(self, reply: Any, members: Sequence[GroupedCall]) -> list[GroupedCall]:
        for one, mark in zip(members, reply, strict=False):
            one.outcome = SETTLED if mark == ord("1") else Settled([False])
        return []

    def result(self, call: GroupedCall) -> Settled:
        settled: Settled = call.outcome
        return settled
