"""How messages are settled in Redis: acknowledged, kept in a list, retried later or requeued, by their owner alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from redis_message_queue.process.identity import labelled
from redis_message_queue.protocol.calls import Calls, ReplySlot, never_stop
from redis_message_queue.protocol.consume.claim import Claim, read_trimming
from redis_message_queue.protocol.group_commit import GroupCommit, SingleCall
from redis_message_queue.protocol.port import Argument, Call, Command, split
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.envelope import ID_BYTES, PLAIN_FLAGS, TIME_AT
from redis_message_queue.stored.keys import script_keys
from redis_message_queue.values.plain_values import class_name, error_text

if TYPE_CHECKING:
    from redis_message_queue.protocol.parts import Part

TerminalKind = Literal["completed", "failed", "dead_letters", "other"]


@dataclass(frozen=True, slots=True)
class TerminalList:
    """A list for messages that have ended. Each part of a queue has one of each kind, with records beside it."""

    kind: TerminalKind
    limit: int | None  # its longest length; None: any
    other: tuple[str, str] = ("", "")  # the keys of a list that a gateway was told to move a message to


@dataclass(frozen=True, slots=True)
class Settled:
    """Which messages were still ours to settle, why a list could not be trimmed, and how much trimming deleted."""

    owned: list[bool]
    trim_error: str | None = None
    cut: int = 0  # failed messages that the list had no room for any more


@dataclass(frozen=True, slots=True)
class SettleReason:
    """Why messages leave, for their records."""

    reason: str
    error: BaseException | None = None
    held_seconds: float | None = None
    event: str | None = None  # what a journal calls it, where it is not an acknowledgement
    handled: Sequence[int] = ()  # for a journal, where a loop knows it: see HandlerTimes.take
    traceback: str | None = None

    def as_json(self, consumer: str | None = None) -> str:
        fields: dict[str, Any] = {"reason": self.reason}
        if consumer is not None:
            fields["consumer"] = consumer
        if self.error is not None:
            fields["error_type"] = class_name(self.error)
            fields["error"] = error_text(self.error)
        if self.traceback is not None:
            fields["traceback"] = self.traceback
        if self.held_seconds is not None:
            fields["held_us"] = int(self.held_seconds * 1_000_000)
        if self.event is not None:
            fields["event"] = self.event
        if self.handled:
            fields["handled"] = self.handled
        return json.dumps(fields)


SETTLED = Settled([True])  # the one message that it is about
KEEPS_NOTHING: tuple[Argument, Argument] = (0, "")

Cancellations = list[BaseException]


@dataclass(slots=True, eq=False)
class PiggybackedAck:
    """An acknowledgement that is sent with the next claim; it is numbered, so it can be sent again."""

    claims: Sequence[Claim]
    call: Call
    calls: Calls
    slot: ReplySlot
    plain: tuple[bytes, bytes] | None = None  # its number and token, if it is on the fast path
    settled: Settled | None = None  # what Redis answered
    failed: Exception | None = None  # why there is no answer
    is_answered: bool = False  # whether there is an answer or an error

    @property
    def was_seen(self) -> bool:
        """Whether it was executed before the claim that it was sent with."""
        return self.settled is not None and self.failed is None

    @property
    def part(self) -> Part | None:
        """Where its messages came from."""
        return self.claims[0].part

    def joined_with(self, slot: ReplySlot, call: bytes, nonce: bytes) -> Call | None:
        """One call for this ack and a claim on another slot of the same part; None if it is not on the fast path.

        The ack keeps its number: whether that was executed can be asked by sending it alone.
        """
        if self.plain is None or slot.prefix != self.slot.prefix:
            return None
        return slot.ack_and_take, (self.slot.key,), (call, nonce, *self.plain)

    def sent(self, reply: Any) -> None:
        """Note the answer, or the error."""
        if isinstance(reply, Exception):
            self.failed = reply
        else:
            self.settled = _read(reply, len(self.claims))
        self.is_answered = True

    async def send_alone(self, cancellations: Cancellations) -> Settled:
        """Send it alone, unless it was answered together with a claim. Cancellations are noted and do not stop it."""
        if self.settled is None:
            command, extra_keys, arguments = self.call
            self.sent(await self.calls.call(command, arguments, extra_keys=extra_keys, cancellations=cancellations))
        assert self.settled is not None
        return self.settled

    def close(self) -> None:
        """Release its slot: it is not sent again."""
        self.calls.release_slot(self.slot)


class SettleScripts:
    """The scripts that settle and renew the messages of one part."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        lease_us = int((calls.options.message_visibility_timeout_seconds or 0) * 1_000_000)
        keys, renew = calls.keys, calls.script("renew")
        self.group: GroupCommit | None = None  # what lets acknowledgements share requests, if they do
        self._lists = keys.terminal_lists
        prefixes = (keys.tenant_pending(""), keys.expired(""))
        self._renew = Command(renew, script_keys(keys, renew.keys), (lease_us, *prefixes))

    async def settle(
        self,
        claims: Sequence[Claim],
        terminal_list: TerminalList | None,
        reason: SettleReason | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        """Remove messages, with or without a copy in a terminal list. Cancellations are noted and do not stop it."""
        extra_keys, details = self._details(claims, terminal_list, reason)
        owned: list[bool] = []
        trim_error, cut = None, 0
        for some in _chunks(claims):

            def settle(slot: ReplySlot, tokens: bytes = joined_tokens(some)) -> Call:
                return slot.settle, extra_keys, (*details, slot.next_call(), tokens)

            reply = await self._calls.numbered(settle, cancellations=cancellations)
            if reply == b"1" and len(claims) == 1:
                return SETTLED
            piece = _read(reply, len(some))
            owned += piece.owned
            trim_error = piece.trim_error or trim_error
            cut += piece.cut
        return Settled(owned, trim_error, cut)

    async def ack_one(self, claim: Claim, cancellations: Cancellations) -> Settled:
        """Remove one message without a copy: now, or together with others if another one is being removed."""
        calls, group, call = self._calls, self.group, SingleCall()
        if group is not None and not group.begin(call):
            joining = group.new_call(claim, claim.id, calls.port.now(), cancellations=cancellations)
            settled: Settled = await group.join(joining)
            return settled
        slot = calls.acquire_slot()
        try:
            number, token, reply = slot.next_call(), claim.token, b""
            if claim.is_plain:
                reply = await calls.call(slot.ack_one, (number, token), cancellations=cancellations)
            if reply == b"":  # another case: the same call goes to the script that knows them all
                arguments = (*KEEPS_NOTHING, number, token)
                reply = await calls.call(slot.settle, arguments, cancellations=cancellations)
        finally:
            call.is_over = True
            calls.release_slot(slot)
            if group is not None:
                group.end(call)
        return SETTLED if reply == b"1" else _read(reply, 1)

    def attach(
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None = None
    ) -> PiggybackedAck:
        """The same for at most a thousand messages, to be sent together with a claim."""
        slot = self._calls.acquire_slot()
        extra_keys, details = self._details(claims, terminal_list, reason)
        number, tokens = slot.next_call(), joined_tokens(claims)
        call = (slot.settle, extra_keys, (*details, number, tokens))
        is_fast_path = len(claims) == 1 and claims[0].is_plain and claims[0].envelope.stored[0] == PLAIN_FLAGS
        plain = (number, tokens) if is_fast_path and terminal_list is None and reason is None else None
        return PiggybackedAck(claims, call, self._calls, slot, plain)

    def _details(
        self, claims: Sequence[Claim], terminal_list: TerminalList | None, reason: SettleReason | None
    ) -> tuple[tuple[str, ...], tuple[Argument, Argument]]:
        """The keys of the lists, if any, and what the script should know of them."""
        if terminal_list is None:
            is_plain = reason is None or (reason.event is None and not reason.handled)
            return (), KEEPS_NOTHING if reason is None or is_plain else (0, reason.as_json())
        extra_keys, limit = self._lists.get(terminal_list.kind, terminal_list.other), terminal_list.limit or 0
        if reason is None:
            return extra_keys, (limit, "{}")
        # Whoever looks for the cause of a failure wants to know where; a success needs no more bytes.
        is_failure = reason.event is not None and len(claims) > 0
        consumer = labelled(self._calls.options.consumer_name, claims[0].token[ID_BYTES:]) if is_failure else None
        return extra_keys, (limit, reason.as_json(consumer))

    async def retry_later(
        self,
        claim: Claim,
        delay_seconds: float,
        error: Exception,
        cancellations: Cancellations | None = None,
        handled: Sequence[int] = (),
    ) -> bool:
        """Delay the message until its next attempt. Returns whether it was still ours."""
        details = (int(delay_seconds * 1_000_000), class_name(error), " ".join(map(str, handled)))

        def retry_later(slot: ReplySlot) -> Call:
            return slot.retry_later, (), (*details, slot.next_call(), claim.token)

        return bool(await self._calls.numbered(retry_later, cancellations=cancellations) == b"1")

    async def requeue(
        self,
        claims: Sequence[Claim],
        forgiven: bool,
        cancellations: Cancellations | None = None,
        budget: float | None = None,
    ) -> list[bool]:
        """Return messages to the front of their queues, in order. If ``forgiven``, this delivery does not count."""
        owned: list[bool] = []
        # The last first: each chunk goes before what is there already.
        for some in reversed(list(_chunks(claims))):

            def requeue(slot: ReplySlot, tokens: bytes = joined_tokens(some)) -> Call:
                return slot.requeue, (), (int(forgiven), slot.next_call(), tokens)

            reply = await self._calls.numbered(requeue, cancellations=cancellations, budget=budget)
            owned = _flags(reply, len(some)) + owned
        return owned

    async def renew(
        self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = never_stop
    ) -> list[bool]:
        """Renew the leases that we still own; retry until they would expire or the delivery is over."""
        renewed: list[bool] = []
        for some in _chunks(claims):
            reply = await self._calls.call(self._renew, (joined_tokens(some),), budget=budget, stopped=is_over)
            renewed += _flags(reply, len(some))
        return renewed


def _read(reply: bytes, count: int) -> Settled:
    return Settled(_flags(reply, count), *read_trimming(reply[count:]))


def _chunks(claims: Sequence[Claim]) -> Sequence[Sequence[Claim]]:
    """Yield at most a thousand messages and some megabytes each: a larger script delays all other clients."""
    if len(claims) == 1:
        return (claims,)
    sizes = [len(claim.envelope.stored) for claim in claims]
    return list(split(claims, sizes, MAX_MESSAGES, MAX_BYTES)) or [claims]


def joined_tokens(claims: Sequence[Claim]) -> bytes:
    """Their leases, joined: one argument, because each argument costs time."""
    return b"".join([claim.envelope.stored[1:TIME_AT] + claim.nonce for claim in claims])


def _flags(reply: bytes, count: int) -> list[bool]:
    return [flag == 49 for flag in reply[:count]]  # 49: the digit 1
