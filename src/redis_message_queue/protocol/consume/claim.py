"""How a consumer gets messages: at once if there are some, else when the wake-up key says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.process.identity import labelled
from redis_message_queue.protocol.calls import FEWEST_ATTEMPTS, Calls, ReplySlot, log, never_stop
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt, UnconfirmedClaims
from redis_message_queue.protocol.port import AttemptEnd, Call, Command, StateMissingError
from redis_message_queue.stored.envelope import LAST_FLAGS, PLAIN_FLAGS, PROCESS_BYTES, TIME_AT, Envelope
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import RetryBudgetExhaustedError

if TYPE_CHECKING:
    from redis_message_queue.protocol.consume.settle import Acks, PiggybackedAck
    from redis_message_queue.protocol.parts import Part

# An idle consumer sends a claim and a BLPOP in each slice: two commands a second. A lost wake-up costs one slice.
_SLICE_SECONDS = 1.0

PATIENCE_SECONDS = 0.5  # for so long a claim that does not wait is repeated while Redis does not answer
_SHORTEST_ATTEMPT_SECONDS = 0.02  # with less time left than this nothing is sent any more

# The name of a process is written again long before Redis forgets it, and soon if Redis did not take it.
_NAME_KEPT_MS, _NAME_SECONDS, _NO_NAME_SECONDS = 86_400_000, 3_600.0, 60.0

# What the script should know of where a claim comes from.
FRESH, WOKEN, TIMER_OWNER = 0, 1, 2

Request = tuple[bytes, int, int, int]
"""Of one claim: its number, how many messages, how long it could sleep in microseconds, and where it comes from."""

_NO_END = nullcontext()
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
class DeadLetter:
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
    dead: list[DeadLetter] = field(default_factory=list)
    trim_error: str | None = None
    cut: int = 0  # older dead letters that the list had no room for any more
    again: bool = False
    has_tick: bool = False  # a schedule has a tick, and this consumer was told to publish it
    wake_after: float | None = None
    recovered: bool = False
    unconfirmed: bool = False  # it ended without an answer, at its time limit or because its consumer should stop


def read_dead(said: list[Any]) -> list[DeadLetter]:
    """What a script says of dead letters: id, delivery count and reason of each."""
    triples = zip(said[::3], said[1::3], said[2::3], strict=True)
    return [DeadLetter(id.hex() or None, int(count), reason.decode()) for id, count, reason in triples]


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


def log_dead(queue_name: str, dead: list[DeadLetter], cut: int) -> None:
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

    async def on_tick(self, limit: float | None, part: Part | None = None) -> None:
        """A schedule of this part, or of any, has a tick that somebody should publish before the ``limit``."""

    def on_away(self, part: Part) -> bool:
        """A part does not answer. Returns whether the claimant finds out when that changes."""
        return False

    def on_wait(self, waiting: bool) -> None:
        """The claim begins or ends to wait for messages: meanwhile it holds nothing."""


class Claimer:
    """Claims for all consumers of one queue object, and recovers claims whose answer was lost."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.unconfirmed = UnconfirmedClaims(calls.owns, calls.port.lock())
        self._notify = Command(script("notify"), (calls.keys.wakeup,))
        self._failing_since: float | None = None  # since when no claim has had an answer
        self._is_leased = bool(calls.options.message_visibility_timeout_seconds)
        self._may_take = self._is_leased and not calls.options.message_ttl_seconds
        self._takes = False  # whether to try take.lua first: the last claim met the usual case
        self._label = calls.options.consumer_name
        self._named: tuple[int, float] = (0, 0.0)  # the process whose name was written, and when to write it again
        timeout = calls.port.socket_timeout
        # Redis answers a BLPOP at the end of its time, and the socket must still be listening then.
        self.slice_seconds = _SLICE_SECONDS if timeout is None else min(_SLICE_SECONDS, 0.8 * timeout)

    def is_silent(self) -> bool:
        """Whether Redis has not answered the last claim."""
        return self._failing_since is not None

    def attempt(self) -> ClaimAttempt:
        """Begin; the reply slot is the attempt's until its messages are handed over or it is released."""
        return ClaimAttempt(self._calls.acquire_slot())

    def offer(self, attempt: ClaimAttempt) -> None:
        """The handler is about to get the messages: the slot is free as soon as the attempt is `HANDED_OVER`."""
        attempt.apply("offer")
        if attempt.recovered_by is not None:
            self.unconfirmed.discard(attempt)
        self._calls.release_slot_when_handed_over(attempt)

    def release(self, attempt: ClaimAttempt, claimant: object) -> None:
        """The claimant is done with the attempt; what that may have taken is left to the next claim or a drain."""
        if self.unconfirmed.release(attempt, claimant):
            self._calls.release_slot(attempt.slot)

    def limit(self, deadline: float) -> float:
        """When a claim must be over whose wait ends at the deadline: it may take the time of one answer longer."""
        return deadline + self._calls.listening_seconds

    async def recover(self, claimant: Claimant, limit: float | None = None) -> tuple[ClaimAttempt, ClaimResult] | None:
        """Ask Redis what one unconfirmed claim took; None when there is none that nobody else asks for.

        The attempt stays unconfirmed until its messages have a handler or there turn out to be none, and also if the
        ``limit`` comes before the answer.
        """
        attempt = self.unconfirmed.recover_next(claimant)
        if attempt is None:
            return None
        # With a count of 0 the script only repeats its answer; if the call never arrived, it never will.
        request = (attempt.call, 0, 0, FRESH)
        try:
            result = await self.exchange(attempt, request, claimant, limit=limit)
        except BaseException:
            self.unconfirmed.leave_to_others(claimant)
            raise
        if not result.unconfirmed:
            result.recovered = True
            attempt.apply("receive" if result.claims else "receive_nothing")
        return attempt, result

    async def claim(
        self,
        attempt: ClaimAttempt,
        claimant: Claimant,
        wait_seconds: float,
        count: int = 1,
        acks: Acks | None = None,
        limit: float | None = None,
    ) -> ClaimResult:
        """Claim up to ``count`` messages, and wait for the first if there is none. The result may be empty.

        It ends at the ``limit``, or so long after its wait as one answer takes.

        A claimant with a time limit does not wait much longer for a Redis that cannot be reached: the claim ends
        unconfirmed, until no claim has had an answer for the whole retry budget. Others use that budget each time.
        """
        calls, port, slot = self._calls, self._calls.port, attempt.slot
        left, deadline = wait_seconds, port.now() + wait_seconds
        if limit is None and claimant.has_time_limit:
            limit, claimant.wait_ends_at = self.limit(deadline), port.now() + max(wait_seconds, PATIENCE_SECONDS)
        if not calls.is_prepared and not await self.prepare(deadline - wait_seconds, limit):
            return ClaimResult(unconfirmed=True)
        origin = FRESH
        while not claimant.is_stopped():
            slice_us = int((left if left < self.slice_seconds else self.slice_seconds) * 1_000_000)
            attempt.call = slot.next_call()
            attempt.apply("send")
            request = (attempt.call, count, slice_us, origin)
            ack = None if acks is None else acks.parts[0]
            result = await self.exchange(attempt, request, claimant, ack, deadline if wait_seconds else None, limit)
            if result.unconfirmed:
                return result
            attempt.apply("receive" if result.claims else "receive_nothing")
            if result.claims:
                return result
            left = max(0.0, deadline - port.now())
            if result.again:
                continue
            if left <= 0 or claimant.is_stopped():
                break
            if acks is not None and acks.is_answered:
                await acks.confirmed()
                acks = None
            origin = WOKEN if result.wake_after is None else TIMER_OWNER
            owns_timer = result.wake_after is not None
            pause = min(left, self.slice_seconds if result.wake_after is None else result.wake_after)
            if await self._wait_for_wakeup(claimant, pause, limit, owns_timer) and claimant.is_stopped():
                await self.notify(limit)
            left = max(0.0, deadline - port.now())
        return ClaimResult()

    async def prepare(self, started: float, limit: float | None) -> bool:
        """Write what the queue must have before its first claim; False if the time was up."""
        try:
            await self._calls.prepare(limit, drains=True)
            return True
        except RetryBudgetExhaustedError:
            if self._failing_since is None:
                self._failing_since = started
            if limit is None or self._calls.port.now() < limit - self._calls.listening_seconds or self._is_given_up():
                raise
            return False

    async def notify(self, limit: float | None = None) -> None:
        """Pass on a wake-up that was taken and will not be used. If that fails, it costs the others a slice.

        At the ``limit`` it gives up: the claim that it belongs to must be over then.
        """
        port, budget = self._calls.port, _SLICE_SECONDS
        if limit is not None:
            budget = min(budget, max(0.0, limit - port.now()))
        try:
            await self._calls.until(limit, partial(self._calls.call, self._notify, (), budget=budget))
        except Exception as error:
            if not (port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)):
                raise

    async def exchange(
        self,
        attempt: ClaimAttempt,
        request: Request,
        claimant: Claimant,
        piggyback: PiggybackedAck | None = None,
        deadline: float | None = None,
        limit: float | None = None,
    ) -> ClaimResult:
        """Send one claim until it is answered, together with an ack that has no answer yet.

        After the deadline it only asks what it took in time. At the limit it ends unconfirmed.
        """
        calls, port, slot = self._calls, self._calls.port, attempt.slot
        started = sent_at = port.now()
        requests = tries = 0
        while True:
            if requests:
                sent_at = port.now()
            requests += 1
            call, count, slice_us, origin = request
            nonce = slot.nonce_of(call)
            is_one = count == 1 and origin == FRESH and self._may_take
            # The first request of a claim usually begins so early that the client itself ends in time.
            is_first = tries == 0 and count > 0 and calls.plan.budget_seconds > 0
            ends_in_time = is_first and (limit is None or sent_at + calls.listening_seconds <= limit)
            try:
                if not calls.has_connected:
                    await calls.connect(started)
                if self._label is not None:
                    await self._write_name(self._label, slot, limit)
                takes = is_one and self._takes
                # Only with the first request: a claim that is repeated does not wait for its ack.
                ack = None if piggyback is None or tries or piggyback.settled is not None else piggyback
                joined = ack.joined_with(slot, call, nonce) if takes and ack is not None else None
                claim: Call = joined or ((slot.take, (), (call, nonce)) if takes else (slot.claim, (), request))
                is_one_script = ack is None or joined is not None
                if is_one_script and ends_in_time:
                    reply = await port.call(*claim)
                else:
                    with _NO_END if ends_in_time or limit is None else AttemptEnd(limit):
                        if ack is None or is_one_script:
                            reply = await port.call(*claim)
                        else:
                            settled, reply = await port.call_both(ack.call, claim)
                            ack.sent(settled)
                            if isinstance(reply, Exception):
                                raise reply
                if not takes or isinstance(reply, bytes):
                    if ack is not None and joined is not None:
                        ack.sent(b"1")
                    break
                # Nothing is there, or this is another case: then the same call goes to the script that knows them all.
                self._takes = False
                if reply is None and slice_us == 0:
                    self._failing_since = None
                    if calls.away is not None:
                        calls.has_answered()
                    return ClaimResult()
                continue
            except StateMissingError:
                self._named = (0, 0.0)
                if not await self._write_state(claimant, limit):
                    return ClaimResult(unconfirmed=True)
                continue
            except Exception as error:
                tries += 1
                if await self._gives_up(error, tries, started, claimant, limit, count == 0):
                    return ClaimResult(unconfirmed=True)
            if claimant.is_stopped() or (deadline is not None and port.now() >= deadline):
                request = (call, 0, 0, origin)
        self._failing_since = None
        if calls.away is not None:
            calls.has_answered()
        # Not for a consumer that was woken: it usually takes the only message.
        if is_one and not self._takes and isinstance(reply, bytes) and reply[0] == PLAIN_FLAGS:
            self._takes = True
        result = _read(reply, sent_at, nonce, self._is_leased)
        if count == 0 and not result.claims and origin != FRESH:
            await self.notify(limit)  # it took the wake-up, and did not claim for it
        if result.dead or result.trim_error is not None:
            await claimant.on_dead(result)
        if result.has_tick:
            await claimant.on_tick(limit)
            result.again = True  # its message may be the next
        return result

    async def _write_state(self, claimant: Claimant, limit: float | None) -> bool:
        """Write the state that a claim did not find; False if Redis does not answer, and there is one attempt."""
        calls = self._calls
        try:
            await calls.write_state(limit, drains=True)
            return True
        except Exception as error:
            has_no_answer = calls.port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)
            if not (claimant.has_one_attempt and has_no_answer and calls.plan.budget_seconds > 0):
                raise
            calls.has_failed(error)
            return False

    async def _write_name(self, label: str, slot: ReplySlot, limit: float | None) -> None:
        """Write what this process is called, now and then, if that works: only what people read depends on it."""
        calls, port = self._calls, self._calls.port
        process, due = self._named
        if process == slot.process and port.now() < due:
            return
        self._named = (slot.process, port.now() + _NAME_SECONDS)  # first, so that other threads do not write it too
        key, name = calls.keys.consumer_name(slot.holder[:PROCESS_BYTES].hex()), labelled(label, slot.holder)
        try:
            write = (("PSETEX", key, _NAME_KEPT_MS, name),)
            (answer,) = await calls.until(limit, lambda: port.pipeline(key, write))
        except Exception as error:
            answer = error
        if isinstance(answer, Exception):
            self._named = (slot.process, port.now() + _NO_NAME_SECONDS)
            log.debug("%s: the name %s was not written: %s", calls.keys.prefix, name, type(answer).__name__)

    async def _gives_up(
        self, error: Exception, tries: int, started: float, claimant: Claimant, limit: float | None, is_question: bool
    ) -> bool:
        """Rest before the next request, or raise; True if the claim ends unconfirmed instead."""
        calls, port = self._calls, self._calls.port
        is_transient, budget = port.is_transient(error), None
        retries = is_transient and calls.plan.budget_seconds > 0
        if retries:
            self._failing_since = started if self._failing_since is None else self._failing_since
            await claimant.on_retry(error, tries)
        if (retries and claimant.has_one_attempt) or (is_question and is_transient and claimant.is_stopped()):
            calls.has_failed(error)
            return True
        if retries and limit is not None:
            left, waits_for = limit - port.now(), claimant.wait_ends_at
            is_over = waits_for is not None and tries >= FEWEST_ATTEMPTS and port.now() >= waits_for
            if left < _SHORTEST_ATTEMPT_SECONDS or is_over:
                self._log_unconfirmed(error, tries, started)
                return True
            # The last attempt follows when the wait is over. A drain has no wait, and half of the time that is left is
            # the longest rest, so that there is an attempt shortly before its end.
            rest = left / 2 if waits_for is None else max(waits_for - port.now(), calls.plan.max_delay_seconds / 100)
            budget = port.now() - started + min(rest, left / 2)
        await calls.rest_before_retry(error, "claim", tries, started, budget, claimant.is_stopped)
        return False

    def _log_unconfirmed(self, error: Exception, tries: int, started: float) -> None:
        """Log that the time of a claim is over and Redis out of reach, or raise if that has lasted for too long."""
        calls = self._calls
        if self._is_given_up():
            raise calls.exhausted(error, "claim", tries, self._failing_since or started) from error
        log.warning(
            "%s: claim got no reply in time (%s, redis at %s); the next claim or a drain recovers what it took",
            *(calls.keys.prefix, type(error).__name__, calls.port.address),
            extra={"queue": calls.keys.prefix, "address": calls.port.address},
        )

    def _is_given_up(self) -> bool:
        """Whether no claim has had an answer for the whole retry budget, or Redis was never reached at all."""
        calls = self._calls
        if not calls.has_connected:
            return True
        since = self._failing_since
        return since is not None and calls.port.now() - since >= calls.plan.budget_seconds

    async def _wait_for_wakeup(
        self, claimant: Claimant, seconds: float, limit: float | None, punctual: bool = False
    ) -> bool:
        """Whether a wake-up came. A claim follows in any case, so an error costs no more than a lost wake-up."""
        port = self._calls.port
        if seconds <= 0:
            return False
        claimant.on_wait(True)
        try:
            wait = partial(port.wait, self._calls.keys.wakeup, seconds, punctual=punctual)
            return await self._calls.until(limit, wait)
        except Exception as error:
            if not port.is_transient(error):
                raise
            # Where the wake-up key cannot be read, polling must not become a storm.
            await port.sleep(min(seconds, self._calls.plan.max_delay_seconds, 0.25))
            return False
        finally:
            claimant.on_wait(False)


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


def _read(reply: Any, sent_at: float, nonce: bytes, is_leased: bool = False) -> ClaimResult:
    """The script's answer as values. Bare messages are the usual case; one alone begins with its flags."""
    if isinstance(reply, bytes) or isinstance(reply[0], bytes):
        found = reply if isinstance(reply, list) else (reply,) if reply[0] <= LAST_FLAGS else _unpacked(reply)
        # Everything by its place: a name would cost an eighth of this.
        return ClaimResult([Claim(Envelope(one), sent_at, nonce, 1, 1, False, 0, is_leased) for one in found])
    again, wait_us, dead, trimming, *messages = reply
    result = ClaimResult(again=bool(again & 1), has_tick=bool(again & 2))
    for stored, ticket in zip(messages[::2], messages[1::2], strict=True):
        attempt, count, origin, failures = ticket.split(b":")
        reclaimed = origin == b"lease"
        result.claims.append(
            Claim(Envelope(stored), sent_at, nonce, int(attempt), int(count), reclaimed, int(failures))
        )
    result.dead = read_dead(dead)
    result.trim_error, result.cut = read_trimming(trimming)
    if wait_us >= 0:
        result.wake_after = wait_us / 1_000_000
    return result
