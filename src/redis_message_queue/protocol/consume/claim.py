"""What a claim is: a message that a consumer holds, how a script's answer is read, and who asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.calls import log, never_stop
from redis_message_queue.stored.envelope import LAST_FLAGS, TIME_AT, Envelope

if TYPE_CHECKING:
    from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt
    from redis_message_queue.protocol.consume.settle import PiggybackedAck
    from redis_message_queue.protocol.parts import Part

# What the script should know of where a claim comes from.
FRESH, WOKEN, TIMER_OWNER = 0, 1, 2

Request = tuple[bytes, int, int, int]
"""Of one claim: its number, how many messages, how long it could sleep in microseconds, and where it comes from."""

DEAD_LETTERS_ARE_FULL = ("dead-letter list", "max_dead_letter_length")
_CUT = b"cut "  # how a script says that a list was cut to its limit


@dataclass(slots=True, eq=False)
class Claim:
    """A message that this consumer holds, under a lease where the queue has them."""

    envelope: Envelope
    claimed_at: float  # monotonic, from before the request was sent
    nonce: bytes = b""  # what no other claim has
    attempt: int = 1  # deliveries so far, this one included
    delivery_count: int | None = 1  # those that count for the limit
    reclaimed: bool = False
    failures: int = 0  # how many of its attempts have failed under a retry policy
    is_plain: bool = False  # whether it has a lease and was never delivered before, in a queue without a journal
    part: Part | None = field(default=None, repr=False)  # where it came from, if that is a part of ours

    @property
    def id(self) -> bytes:
        return self.envelope.id

    @property
    def message_id(self) -> str:
        return self.id.hex()

    @property
    def lease_token(self) -> str | None:
        """What names this lease to the outside."""
        return f"{self.message_id}:{self.nonce.hex()}"

    @property
    def token(self) -> bytes:
        """What names this lease to the scripts."""
        return self.envelope.stored[1:TIME_AT] + self.nonce

    def continue_as(self, newer: Claim) -> None:
        """Continue with the lease of a later claim of the same message."""
        self.nonce, self.claimed_at, self.is_plain = newer.nonce, newer.claimed_at, newer.is_plain

    def read(self, *, decode: bool) -> str | bytes:
        """What the handler gets."""
        payload = self.envelope.payload
        return payload.decode() if decode else payload


@dataclass(frozen=True, slots=True)
class DroppedMessage:
    """A message that a claim moved to the dead letters; without an id it was not ours to begin with.

    A cancelled message is reported in the same way, but it is gone.
    """

    message_id: str | None
    delivery_count: int
    reason: str

    @property
    def is_cancelled(self) -> bool:
        return self.reason == "cancelled"


@dataclass(slots=True, eq=False)
class ClaimResult:
    """What a claim brought."""

    claims: list[Claim] = field(default_factory=list)
    dead: list[DroppedMessage] = field(default_factory=list)
    trim_error: str | None = None
    cut: int = 0  # older dead letters that the list had no room for any more
    again: bool = False
    has_tick: bool = False  # a schedule has a tick, and this consumer was told to publish it
    wake_after: float | None = None
    recovered: bool = False
    unconfirmed: bool = False  # it ended without an answer, at its time limit or because its consumer should stop


def read_dead(said: list[Any]) -> list[DroppedMessage]:
    """What a script says of dead letters: id, delivery count and reason of each."""
    triples = zip(said[::3], said[1::3], said[2::3], strict=True)
    return [DroppedMessage(id.hex() or None, int(count), reason.decode()) for id, count, reason in triples]


def read_trimming(said: bytes) -> tuple[str | None, int]:
    """What a script says of trimming a list: what went wrong, and how many of its messages were deleted."""
    if said.startswith(_CUT):
        return None, int(said.removeprefix(_CUT))
    return said.decode("utf-8", "replace") or None, 0


def log_cut(queue_name: str, what: tuple[str, str], cut: int) -> None:
    """Say that messages are gone because their list is full: which list, and the option that limits it."""
    name, option = what
    log.warning(
        "%s: the %s is full, so its %d oldest messages were deleted; %s sets how many it keeps, None for all",
        *(queue_name, name, cut, option),
        extra={"queue": queue_name},
    )


def log_cancelled(queue_name: str, message_id: str | None) -> None:
    """Say that a cancelled message is gone."""
    log.info("%s: message %s was cancelled, and nobody has handled it", queue_name, message_id)


def log_dead(queue_name: str, dead: list[DroppedMessage], cut: int) -> None:
    """Say which messages went to the dead letters, and how many older ones were deleted to stay within the limit."""
    for one in dead:
        if one.is_cancelled:
            log_cancelled(queue_name, one.message_id)
            continue
        name = one.message_id or "(foreign)"
        extra = {"queue": queue_name, "message_id": one.message_id}
        log.warning("%s: message %s went to the dead letters (%s)", queue_name, name, one.reason, extra=extra)
    if cut:
        log_cut(queue_name, DEAD_LETTERS_ARE_FULL, cut)


class Claimant:
    """The caller of a claim: when it stops, and what is reported to it meanwhile. This one only logs dead letters."""

    __slots__ = (
        *("_is_stopped", "has_one_attempt", "has_time_limit", "needs_certainty", "queue_name", "wait_ends_at"),
    )

    def __init__(self, queue_name: str, is_stopped: Callable[[], bool] = never_stop) -> None:
        self.queue_name = queue_name
        self.has_time_limit = True  # without one, a claim may use the whole retry budget
        self.has_one_attempt = False  # whether a request that gets no answer is not repeated
        self.wait_ends_at: float | None = None  # when only one more attempt follows; None: at the limit of the claim
        self.needs_certainty = False  # whether a partition that does not answer must not be taken for empty
        self._is_stopped = is_stopped

    def is_stopped(self) -> bool:
        """Whether to take no new work."""
        return self._is_stopped()

    async def on_retry(self, error: Exception, tries: int) -> None:
        """A request has failed, for the ``tries``-th time."""

    async def on_dead(self, result: ClaimResult) -> None:
        """Report dead letters, and how their list was trimmed, at once: the claim may last much longer."""
        log_dead(self.queue_name, result.dead, result.cut)

    def on_attempt(self, attempt: ClaimAttempt) -> None:
        """The claim goes on with another attempt, in another part of the queue."""

    async def on_tick(self, limit: float | None, part: Part) -> None:
        """A schedule of this part has a tick that somebody should publish before the ``limit``."""

    def on_away(self, part: Part) -> bool:
        """A part does not answer. Returns whether the claimant finds out when that changes."""
        return False

    def wanted(self) -> int:
        """How many messages to claim now, where the number was not given with the claim."""
        return 1

    async def before_wait(self, acks: list[PiggybackedAck]) -> None:
        """The claim is about to wait, which may last: confirm the acks that it had to send, and empty the list."""

    def on_wait(self, waiting: bool) -> None:
        """The claim begins or ends to wait for messages: meanwhile it holds nothing."""


_SHORT_TEXT = 0xD9  # its length is in the byte that follows


def _unpacked(text: bytes) -> Iterator[bytes]:
    """Several messages in one text: an array of strings in MessagePack."""
    at, end = 1 if text[0] < 0xA0 else 3, len(text)
    while at < end:
        kind = text[at]
        if kind == _SHORT_TEXT:
            start, length = at + 2, text[at + 1]
        elif kind < 0xC0:  # the length is in the same byte
            start, length = at + 1, kind & 0x1F
        else:  # in two bytes or four that follow
            start = at + 1 + (1 << (kind - _SHORT_TEXT))
            length = int.from_bytes(text[at + 1 : start], "big")
        at = start + length
        yield text[start:at]


def read_reply(
    reply: Any, sent_at: float, nonce: bytes, is_leased: bool = False, part: Part | None = None
) -> ClaimResult:
    """Return a script's answer as values. Bare messages are the fast path; one alone begins with its flags."""
    if isinstance(reply, bytes) or isinstance(reply[0], bytes):
        found = reply if isinstance(reply, list) else (reply,) if reply[0] <= LAST_FLAGS else _unpacked(reply)
        # Everything by its place: a name would cost an eighth of this.
        return ClaimResult([Claim(Envelope(one), sent_at, nonce, 1, 1, False, 0, is_leased, part) for one in found])
    again, wait_us, dead, trimming, *messages = reply
    result = ClaimResult(again=bool(again & 1), has_tick=bool(again & 2))
    for stored, ticket in zip(messages[::2], messages[1::2], strict=True):
        attempt, count, origin, failures = ticket.split(b":")
        reclaimed = origin == b"lease"
        result.claims.append(
            Claim(Envelope(stored), sent_at, nonce, int(attempt), int(count), reclaimed, int(failures), False, part)
        )
    result.dead = read_dead(dead)
    result.trim_error, result.cut = read_trimming(trimming)
    if wait_us >= 0:
        result.wake_after = wait_us / 1_000_000
    return result
