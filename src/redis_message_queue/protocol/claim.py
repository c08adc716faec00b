"""How a consumer gets a message: at once if there is one, else woken by the bell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from redis_message_queue.envelope import LAST_FLAGS, Envelope
from redis_message_queue.errors import RetryBudgetExhaustedError
from redis_message_queue.protocol.calls import Attempt, Calls, Slot, log
from redis_message_queue.protocol.port import Call, Command, StateMissingError
from redis_message_queue.protocol.unsure import UnsureClaims
from redis_message_queue.scripts import script

# An idle consumer sends a claim and a BLPOP in each slice: two commands a second. A lost token costs one slice.
_SLICE_SECONDS = 1.0

_SHORTEST_ATTEMPT_SECONDS = 0.02  # with less time left than this nothing is sent any more

# What the script should know of where a claim comes from.
_FRESH, _WOKEN, _ON_WATCH = 0, 1, 2


class Rider(Protocol):
    """Something that is sent together with a claim, to save a round trip."""

    call: Call
    settled: Any  # None until it is answered

    def answer(self, reply: Any) -> None: ...

    @property
    def is_answered(self) -> bool:
        """Whether anything is known of it, good or bad."""

    async def land(self) -> None:
        """Tell of it: the claim goes on without it."""


Told = Callable[[Exception, int], Awaitable[None]]
"""Hears of each failed try of a claim."""


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
    def size(self) -> int:
        """Bytes that it takes in Redis."""
        return len(self.envelope.stored)

    @property
    def token(self) -> bytes:
        """What names this lease to the scripts."""
        return self.envelope.id + self.nonce

    def continue_as(self, newer: Claim) -> None:
        """Go on under the lease of a later claim of the same message."""
        self.nonce, self.claimed_at = newer.nonce, newer.claimed_at

    def read(self, *, decode: bool) -> str | bytes:
        """What the handler gets."""
        payload = self.envelope.payload
        return payload.decode() if decode else payload


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a claim put aside on its way; without an id it was not ours to begin with."""

    message_id: str | None
    delivery_count: int
    reason: str


@dataclass(slots=True, eq=False)
class Found:
    """What a claim brought."""

    claims: list[Claim] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    trim_error: str | None = None
    again: bool = False
    wake_after: float | None = None
    recovered: bool = False
    in_doubt: bool = False  # it ended before Redis could be asked: by its time limit, or because somebody stopped us


News = Callable[[Found], Awaitable[None]]
"""Hears at once what one answer says of dead letters and of a list that could not be trimmed."""


class Claimer:
    """Claims for all consumers of one queue object, and remembers the claims that nobody saw the answer of."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.unsure = UnsureClaims(calls)
        self._ring = Command(script("ring"), (calls.keys.bell,))
        self._failing_since: float | None = None  # since when no claim has had an answer
        timeout = calls.port.socket_timeout
        # Redis answers a BLPOP at the end of its time, and the socket must still be listening then.
        self._slice = _SLICE_SECONDS if timeout is None else min(_SLICE_SECONDS, 0.8 * timeout)

    def allow_batches(self) -> None:
        """They are allowed here."""

    def attempt(self) -> Attempt:
        """Begin; the slot is this attempt's until it is handed over, released or abandoned."""
        return Attempt(self._calls.borrow())

    def hand_over(self, attempt: Attempt) -> None:
        """The handler is about to have the message: the slot is free as soon as `unsure` is False.

        Clearing that flag is the shell's very last step. A plain store cannot be interrupted half-way, so either
        the handler has the message or the attempt is still unsure and can be asked again.
        """
        if attempt.asker is not None:  # it was found again, and is on the list still
            self.unsure.strike_off(attempt)
        self._calls.give_back_when_sure(attempt)

    def release(self, attempt: Attempt) -> None:
        """The attempt is over: if it is unsure, the next claim or a drain will ask what came of it."""
        if attempt.unsure:
            self.unsure.note(attempt)
        else:
            self.unsure.strike_off(attempt)
            attempt.abandoned = True
            self._calls.give_back(attempt.slot)

    def limit(self, deadline: float) -> float:
        """When a claim must be over whose wait ends at the deadline: it may take the time of one answer longer."""
        return deadline + self._calls.listening_seconds

    async def recover(
        self,
        asker: object,
        stopped: Callable[[], bool],
        told: Told,
        budget: float | None = None,
        limit: float | None = None,
    ) -> tuple[Attempt, Found] | None:
        """Ask one unsure claim what it took; None when there is none that nobody else asks.

        It stays on the list until its message has a handler or turns out not to exist. At the ``limit`` it ends in
        doubt.
        """
        attempt = self.unsure.next_for(asker)
        if attempt is None:
            return None
        # With a count of 0 the script only repeats its answer; if the call never arrived, it never will.
        question = (attempt.call, 0, 0, _FRESH)
        try:
            found = await self._send(attempt.slot, question, None, stopped, told, None, budget, limit)
        except BaseException:
            attempt.asker = None
            raise
        found.recovered = not found.in_doubt
        attempt.unsure = found.in_doubt or bool(found.claims)
        return attempt, found

    async def claim(
        self,
        attempt: Attempt,
        wait_seconds: float,
        stopped: Callable[[], bool],
        told: Told,
        count: int = 1,
        rider: Rider | None = None,
        news: News | None = None,
    ) -> Found:
        """Take up to ``count`` messages, waiting for the first if need be; none means that there was none to be had.

        A caller that waits for so long does not wait much longer for a Redis that cannot be reached: then the claim
        ends in doubt, until no claim has had an answer for the whole retry budget. One that is ``patient`` repeats for
        that long each time.

        ``news`` hears of dead letters as soon as an answer names them: the wait may go on for long after that.
        """
        port, slot = self._calls.port, attempt.slot
        deadline = port.now() + wait_seconds
        limit = None if attempt.patient else self.limit(deadline)
        try:
            await self._calls.open_journal(limit)
            await self._calls.write_weights(limit)
        except RetryBudgetExhaustedError:
            if self._failing_since is None:
                self._failing_since = deadline - wait_seconds
            if limit is None or port.now() < limit or self._is_given_up():
                raise
            return Found(in_doubt=True)
        woken = _FRESH
        untold = Found()
        while not stopped():
            left = deadline - port.now()
            slice_us = int(max(0.0, min(left, self._slice)) * 1_000_000)
            attempt.call = slot.next_call()
            attempt.unsure = True
            asked = (attempt.call, count, slice_us, woken)
            found = await self._send(slot, asked, deadline if wait_seconds else None, stopped, told, rider, limit=limit)
            if found.dead or found.trim_error is not None:
                if news is not None:
                    await news(found)
                else:
                    untold.dead += found.dead
                    untold.trim_error = found.trim_error or untold.trim_error
            found.dead, found.trim_error = untold.dead, untold.trim_error
            if found.claims:
                return found
            attempt.unsure = found.in_doubt
            if found.in_doubt:
                untold.in_doubt = True
                return untold
            if found.again:
                continue
            left = deadline - port.now()
            if left <= 0 or stopped():
                break
            if rider is not None and rider.is_answered:
                await rider.land()
                rider = None
            woken = _WOKEN if found.wake_after is None else _ON_WATCH
            pause = min(left, self._slice if found.wake_after is None else found.wake_after)
            if await self._rest(attempt, pause, limit) and stopped():
                await self.ring()
        return untold

    async def _rest(self, attempt: Attempt, seconds: float, limit: float | None) -> bool:
        if attempt.resting is None:
            return await self._sleep_by_the_bell(seconds, limit)
        attempt.resting(True)
        try:
            return await self._sleep_by_the_bell(seconds, limit)
        finally:
            attempt.resting(False)

    async def ring(self) -> None:
        """Pass a token on that was taken and will not be used. If that fails, it costs the others a slice."""
        port = self._calls.port
        try:
            await self._calls.call(self._ring, (), budget=_SLICE_SECONDS)
        except Exception as error:
            if not (port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)):
                raise

    async def _send(
        self,
        slot: Slot,
        arguments: tuple[bytes, int, int, int],
        deadline: float | None,
        stopped: Callable[[], bool],
        told: Told,
        rider: Rider | None,
        budget: float | None = None,
        limit: float | None = None,
    ) -> Found:
        """One claim, repeated under its number. After the deadline it only asks what it took in time.

        At the limit it ends without an answer: in doubt, so that the next claim or a drain asks again.
        """
        calls, port = self._calls, self._calls.port
        started, tries = port.now(), 0
        while True:
            sent_at = port.now() if tries else started
            call, count, _, woken = arguments
            try:
                if not calls.met:
                    await calls.meet(started)
                if tries == 0 and count > 0 and calls.plan.budget_seconds > 0:
                    # Begun in time, and the client itself ends in time.
                    found = await self._ask(slot, arguments, rider, sent_at)
                else:
                    found = await calls.until(limit, partial(self._ask, slot, arguments, rider, sent_at))
                self._failing_since = None
                if count == 0 and not found.claims and woken != _FRESH:
                    await self.ring()  # the token was taken and nobody looked for its work
                return found
            except StateMissingError:
                await calls.write_state(limit)
                continue
            except Exception as error:
                tries += 1
                transient = port.is_transient(error) and calls.plan.budget_seconds > 0
                if transient:
                    self._failing_since = started if self._failing_since is None else self._failing_since
                    await told(error, tries)
                if count == 0 and stopped() and port.is_transient(error):
                    return Found(in_doubt=True)
                ending = budget
                if transient and limit is not None:
                    left = limit - port.now()
                    if left < _SHORTEST_ATTEMPT_SECONDS:
                        return self._in_doubt(error, tries, started)
                    # Half of the time that is left at the most, so that there is an attempt shortly before its end.
                    longest = port.now() - started + left / 2
                    ending = longest if budget is None else min(budget, longest)
                await calls.rest_before_retry(error, "claim", tries, started, ending, stopped)
            if stopped() or (deadline is not None and port.now() >= deadline):
                arguments = (call, 0, 0, woken)

    async def _ask(
        self, slot: Slot, arguments: tuple[bytes, int, int, int], rider: Rider | None, sent_at: float
    ) -> Found:
        """One attempt; a rider that has no answer yet goes with it."""
        port = self._calls.port
        if rider is None or rider.settled is not None:
            reply = await port.call(slot.claim, (), arguments)
        else:
            answer, reply = await port.call_both(rider.call, (slot.claim, (), arguments))
            rider.answer(answer)
            if isinstance(reply, Exception):
                raise reply
        return _read(reply, sent_at, slot.nonce_of(arguments[0]))

    def _in_doubt(self, error: Exception, tries: int, started: float) -> Found:
        """The time of a claim is over and Redis out of reach: nobody knows what it took. At some point, say so."""
        if self._is_given_up():
            raise self._calls.exhausted(error, "claim", tries, self._failing_since or started) from error
        calls = self._calls
        log.warning(
            "%s: claim got no answer in its time (%s, redis at %s); the next one or a drain finds what it took",
            calls.keys.prefix,
            type(error).__name__,
            calls.port.address,
        )
        return Found(in_doubt=True)

    def _is_given_up(self) -> bool:
        """Whether no claim has had an answer for the whole retry budget, or Redis was never reached at all."""
        calls = self._calls
        if not calls.met:
            return True
        since = self._failing_since
        return since is not None and calls.port.now() - since >= calls.plan.budget_seconds

    async def _sleep_by_the_bell(self, seconds: float, limit: float | None) -> bool:
        """Every return from here is followed by a claim, so an error costs no more than a lost token."""
        port = self._calls.port
        if seconds <= 0:
            return False
        try:
            return await self._calls.until(limit, partial(port.wait, self._calls.keys.bell, seconds))
        except Exception as error:
            if not port.is_transient(error):
                raise
            # Where the bell cannot be heard, polling must not become a storm.
            await port.sleep(min(seconds, self._calls.plan.max_delay_seconds, 0.25))
            return False


def _unpacked(text: bytes) -> Iterator[bytes]:
    """Several messages in one text: an array of strings in MessagePack."""
    at, end = 1 if text[0] < 0xA0 else 3, len(text)
    while at < end:
        kind = text[at]
        if kind < 0xC0:  # the length is in the same byte
            start, length = at + 1, kind & 0x1F
        else:  # in one byte, two or four that follow
            start = at + 1 + (1 << (kind - 0xD9))
            length = int.from_bytes(text[at + 1 : start], "big")
        at = start + length
        yield text[start:at]


def _read(reply: Any, sent_at: float, nonce: bytes) -> Found:
    """The script's answer as values. Bare messages are the usual case; one alone begins with its flags."""
    if isinstance(reply, bytes):
        stored = (reply,) if reply[0] <= LAST_FLAGS else _unpacked(reply)
        return Found([Claim(Envelope(one), sent_at, nonce) for one in stored])
    if isinstance(reply[0], bytes):
        return Found([Claim(Envelope(stored), sent_at, nonce) for stored in reply])
    again, wait_us, dead, notes, *messages = reply
    found = Found(again=again == 1)
    for stored, ticket in zip(messages[::2], messages[1::2], strict=True):
        attempt, count, origin, failures = ticket.split(b":")
        reclaimed = origin == b"lease"
        found.claims.append(Claim(Envelope(stored), sent_at, nonce, int(attempt), int(count), reclaimed, int(failures)))
    for at in range(0, len(dead), 3):
        found.dead.append(DeadLetter(dead[at].hex() or None, int(dead[at + 1]), dead[at + 2].decode()))
    if notes:
        found.trim_error = notes.decode("utf-8", "replace")
    if wait_us >= 0:
        found.wake_after = wait_us / 1_000_000
    return found
