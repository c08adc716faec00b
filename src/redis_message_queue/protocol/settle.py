"""How messages leave: acknowledged, kept in a list, put off or given back, by their holder alone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis_message_queue.protocol.calls import Calls, Slot
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.port import Argument, Call, Command
from redis_message_queue.scripts import script

_MOST_AT_ONCE = 1_000  # messages in one script
_MOST_BYTES = 4_000_000  # of these messages together
_LONGEST_ERROR = 2_000  # characters of an exception's text that a record keeps
_CUT = b"cut "  # how the script says that a list was cut to its limit


@dataclass(frozen=True, slots=True)
class Keep:
    """The list that a payload goes to, the list of records beside it, and their longest length (None: any)."""

    key: str
    records: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    """Which messages were still ours to settle, what trimming complained about, and how much it cut off."""

    held: list[bool]
    trim_error: str | None = None
    cut: int = 0  # failed messages that the list had no room for any more


@dataclass(frozen=True, slots=True)
class Note:
    """Why messages leave, for their records."""

    reason: str
    error: BaseException | None = None
    held_seconds: float | None = None
    event: str | None = None  # what a journal calls it, where it is not an acknowledgement

    def as_json(self) -> str:
        fields: dict[str, Any] = {"reason": self.reason}
        if self.error is not None:
            fields["error_type"] = type(self.error).__name__
            fields["error"] = words_of(self.error)
        if self.held_seconds is not None:
            fields["held_us"] = int(self.held_seconds * 1_000_000)
        if self.event is not None:
            fields["event"] = self.event
        return json.dumps(fields)


def words_of(error: BaseException) -> str:
    """What an exception says, as far as it can be had and kept."""
    try:
        return str(error).encode("utf-8", "replace").decode()[:_LONGEST_ERROR]
    except Exception:  # its own code: a message must not stay in flight for that
        return ""


_SETTLED = Settled([True])


@dataclass(slots=True, eq=False)
class Riding:
    """A settlement that travels with the next claim; its number makes it safe to send as often as that is."""

    claims: Sequence[Claim]
    slot: Slot
    call: Call
    settled: Settled | None = None  # None until it is answered
    error: Exception | None = None
    landing: Callable[[Riding], Awaitable[None]] | None = None  # how its owner hears of it

    @property
    def is_answered(self) -> bool:
        """Whether anything is known of it, good or bad."""
        return self.settled is not None or self.error is not None

    async def land(self) -> None:
        """Let its owner know, once."""
        landing, self.landing = self.landing, None
        if landing is not None:
            await landing(self)

    def answer(self, reply: Any) -> None:
        """What Redis said to it."""
        if isinstance(reply, Exception):
            self.error = reply
        else:
            self.settled = _read(reply, len(self.claims))


Cancellations = list[BaseException]


def _never() -> bool:
    return False


class Settler:
    """Settles and renews what a consumer of this queue object holds."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        lease_us = int((calls.options.message_visibility_timeout_seconds or 0) * 1_000_000)
        keys, renew = calls.keys, script("renew")
        lines = (keys.line(""), keys.returned(""))
        self._renew = Command(renew, tuple(getattr(keys, name) for name in renew.keys), (lease_us, *lines))

    async def settle(
        self,
        claims: Sequence[Claim],
        keep: Keep | None,
        note: Note | None = None,
        cancellations: Cancellations | None = None,
    ) -> Settled:
        """Messages leave the queue, into ``keep`` or for good; cancellations are noted and do not stop it."""
        open_keys, details = _details(keep, note)
        held: list[bool] = []
        trim_error, cut = None, 0
        for some in _at_most(claims):
            slot = self._calls.borrow()
            try:
                arguments = (*details, slot.next_call(), _tokens(some))
                reply = await self._calls.call_to_the_end(slot.settle, arguments, open_keys, cancellations)
            finally:
                self._calls.give_back(slot)
            if reply == b"1" and len(claims) == 1:
                return _SETTLED
            piece = _read(reply, len(some))
            held += piece.held
            trim_error = piece.trim_error or trim_error
            cut += piece.cut
        return Settled(held, trim_error, cut)

    def ride(self, claims: Sequence[Claim], keep: Keep | None, note: Note | None = None) -> Riding:
        """The same, for at most a thousand of them, to be sent together with a claim."""
        slot = self._calls.borrow()
        open_keys, details = _details(keep, note)
        return Riding(claims, slot, (slot.settle, open_keys, (*details, slot.next_call(), _tokens(claims))))

    async def arrive(self, riding: Riding, cancellations: Cancellations | None = None) -> Settled:
        """Send what no claim has taken along, or what it came to nothing with; cancellations do not stop it."""
        if riding.settled is None:
            command, open_keys, arguments = riding.call
            riding.answer(await self._calls.call_to_the_end(command, arguments, open_keys, cancellations))
        assert riding.settled is not None
        return riding.settled

    def dismiss(self, riding: Riding) -> None:
        """It is over, one way or the other."""
        self._calls.give_back(riding.slot)

    async def put_off(
        self, claim: Claim, delay_seconds: float, error: Exception, cancellations: Cancellations | None = None
    ) -> bool:
        """The message waits for its next attempt; whether it was still ours."""
        slot = self._calls.borrow()
        try:
            delay_us, name = int(delay_seconds * 1_000_000), type(error).__name__
            arguments = (delay_us, name, slot.next_call(), claim.token)
            return bool(await self._calls.call_to_the_end(slot.put_off, arguments, (), cancellations) == b"1")
        finally:
            self._calls.give_back(slot)

    async def give_back(
        self,
        claims: Sequence[Claim],
        *,
        forgiven: bool,
        cancellations: Cancellations | None = None,
        budget: float | None = None,
    ) -> list[bool]:
        """Messages return to the heads of their lines in their order; forgiven, this delivery does not count."""
        given: list[bool] = []
        # The last first: each piece goes before what is there already.
        for some in reversed(list(_at_most(claims))):
            slot = self._calls.borrow()
            try:
                arguments = (int(forgiven), slot.next_call(), _tokens(some))
                reply = await self._calls.call_to_the_end(slot.give_back, arguments, (), cancellations, budget)
            finally:
                self._calls.give_back(slot)
            given = _marks(reply, len(some)) + given
        return given

    async def renew(self, claims: Sequence[Claim], budget: float, is_over: Callable[[], bool] = _never) -> list[bool]:
        """The leases begin anew, as far as they are still ours; the attempt ends when they would or all is over."""
        renewed: list[bool] = []
        for some in _at_most(claims):
            reply = await self._calls.call(self._renew, (_tokens(some),), budget=budget, stopped=is_over)
            renewed += _marks(reply, len(some))
        return renewed


def _details(keep: Keep | None, note: Note | None) -> tuple[tuple[str, ...], tuple[Argument, Argument]]:
    """The keys of the lists, if any, and what the script should know of them."""
    if keep is None:
        return (), (0, "" if note is None or note.event is None else note.as_json())
    return (keep.key, keep.records), (keep.limit or 0, "{}" if note is None else note.as_json())


def _read(reply: bytes, count: int) -> Settled:
    held, said = _marks(reply, count), reply[count:]
    if said.startswith(_CUT):
        return Settled(held, cut=int(said.removeprefix(_CUT)))
    return Settled(held, said.decode("utf-8", "replace") or None)


def _at_most(claims: Sequence[Claim]) -> Sequence[Sequence[Claim]]:
    """Pieces of at most a thousand messages and some megabytes: a script that reads more is felt by everybody else."""
    if len(claims) == 1:
        return (claims,)
    pieces, start, size = [], 0, 0
    for place, claim in enumerate(claims):
        weight = claim.size
        if place > start and (place - start == _MOST_AT_ONCE or size + weight > _MOST_BYTES):
            pieces.append(claims[start:place])
            start, size = place, 0
        size += weight
    return [*pieces, claims[start:]]


def _tokens(claims: Sequence[Claim]) -> bytes:
    """Their leases, one behind the other: one argument, because each of them costs."""
    return b"".join([claim.token for claim in claims])


def _marks(reply: bytes, count: int) -> list[bool]:
    return [mark == 49 for mark in reply[:count]]  # 49: the digit 1
