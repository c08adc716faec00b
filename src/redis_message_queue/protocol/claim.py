"""How a consumer gets a message: at once if there is one, else woken by the bell."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from redis_message_queue import envelope
from redis_message_queue.protocol.calls import Calls, Slot
from redis_message_queue.protocol.port import Command
from redis_message_queue.scripts import script

# An idle consumer sends a claim and a BLPOP in each slice: two commands a second. A lost token costs one slice.
_SLICE_SECONDS = 1.0

Told = Callable[[Exception, int], Awaitable[None]]
"""Hears of each failed try of a claim."""


@dataclass(slots=True)
class Claim:
    """A message that this consumer holds, under a lease where the queue has them."""

    id: bytes
    lease: int
    delivery_count: int
    published_at: float
    tenant: str | None
    payload: bytes
    claimed_at: float  # monotonic, from before the request was sent
    reclaimed: bool

    @property
    def message_id(self) -> str:
        return self.id.hex()

    @property
    def lease_token(self) -> str:
        """What names this lease to the outside."""
        return f"{self.id.hex()}:{self.lease}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a claim put aside on its way; without an id it was not ours to begin with."""

    message_id: str | None
    delivery_count: int


@dataclass(slots=True)
class Attempt:
    """One consumer's way to a message. Unsure from before a claim is sent until its answer has been seen."""

    slot: Slot
    unsure: bool = False


@dataclass(slots=True)
class Found:
    """What a claim brought."""

    claims: list[Claim]
    dead: list[DeadLetter]
    trim_error: str | None = None
    again: bool = False
    wake_after: float | None = None
    recovered: bool = False


class Claimer:
    """Claims for all consumers of one queue object, and remembers the claims that nobody saw the answer of."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._unsure: deque[Attempt] = deque()
        self._ring = Command(script("ring"), (calls.keys.bell,))
        timeout = calls.port.socket_timeout
        # Redis answers a BLPOP at the end of its time, and the socket must still be listening then.
        self._slice = _SLICE_SECONDS if timeout is None else min(_SLICE_SECONDS, 0.8 * timeout)

    @property
    def unsure_claims(self) -> int:
        """How many claims of this object may hold a message that no handler has seen."""
        return len(self._unsure)

    def attempt(self) -> Attempt:
        """Begin: the slot is the caller's until `release`."""
        return Attempt(self._calls.borrow())

    def release(self, attempt: Attempt) -> None:
        """The attempt is over; if it is in doubt, the next claim or a drain will ask what came of it."""
        if attempt.unsure:
            self._unsure.append(attempt)
        else:
            self._calls.give_back(attempt.slot)

    async def recover(self) -> tuple[Attempt, Found] | None:
        """Ask one unsure claim what it took; None when there is none left to ask."""
        try:
            attempt = self._unsure.popleft()
        except IndexError:
            return None
        try:
            # With a count of 0 the script only repeats its answer; if the call never arrived, it never will.
            reply = await self._calls.call(attempt.slot.claim, (attempt.slot.number, 0, 0, 0))
        except BaseException:
            self._unsure.append(attempt)
            raise
        found = _read(reply, self._calls.port.now())
        found.recovered = True
        return attempt, found

    async def claim(self, attempt: Attempt, wait_seconds: float, stopped: Callable[[], bool], told: Told) -> Found:
        """Take one message, waiting for it if need be; an empty answer means that there was none to be had."""
        port, slot = self._calls.port, attempt.slot
        deadline = port.now() + wait_seconds
        watching = False
        everything = Found([], [])
        while not stopped():
            left = max(0.0, deadline - port.now())
            attempt.unsure = True
            arguments = (slot.next_number(), 1, int(min(left, self._slice) * 1_000_000), int(watching))
            found = await self._send(slot, arguments, deadline if wait_seconds else None, stopped, told)
            attempt.unsure = bool(found.claims)
            everything.claims = found.claims
            everything.dead += found.dead
            everything.trim_error = found.trim_error or everything.trim_error
            if found.claims or (left == 0 and not found.again):
                break
            if found.again:
                continue
            watching = found.wake_after is not None
            pause = min(left, self._slice if found.wake_after is None else found.wake_after)
            if await self._sleep_by_the_bell(pause) and stopped():
                await self.ring()
        return everything

    async def ring(self) -> None:
        """Pass a token on that was taken and will not be used."""
        await self._calls.call(self._ring, ())

    async def _send(
        self,
        slot: Slot,
        arguments: tuple[int, int, int, int],
        deadline: float | None,
        stopped: Callable[[], bool],
        told: Told,
    ) -> Found:
        """One claim, repeated under its number. After the deadline it only asks what it took in time."""
        port = self._calls.port
        started, tries = port.now(), 0
        while True:
            sent_at = port.now()
            try:
                return _read(await port.call(slot.claim, (), arguments), sent_at)
            except Exception as error:
                tries += 1
                if port.is_transient(error):
                    await told(error, tries)
                await self._calls.rest_before_retry(error, "claim", tries, started)
            if stopped() or (deadline is not None and port.now() >= deadline):
                number, _, _, watching = arguments
                arguments = (number, 0, 0, watching)

    async def _sleep_by_the_bell(self, seconds: float) -> bool:
        """Every return from here is followed by a claim, so an error costs no more than a lost token."""
        port = self._calls.port
        if seconds <= 0:
            return False
        try:
            return await port.wait(self._calls.keys.bell, seconds)
        except Exception as error:
            if not port.is_transient(error):
                raise
            # Where the bell cannot be heard, polling must not become a storm.
            await port.sleep(min(seconds, self._calls.plan.max_delay_seconds, 0.25))
            return False


def _read(reply: Any, sent_at: float) -> Found:
    """The script's answer as values."""
    again, wait_us, dead, notes, *claims = reply
    found = Found([], [], again=again == 1)
    if claims:
        found.claims = [_opened(claims[at], claims[at + 1], sent_at) for at in range(0, len(claims), 2)]
    if dead:
        found.dead = [DeadLetter(dead[at].hex() or None, int(dead[at + 1])) for at in range(0, len(dead), 2)]
    if notes:
        found.trim_error = notes.decode("utf-8", "replace")
    if wait_us >= 0:
        found.wake_after = wait_us / 1_000_000
    return found


def _opened(stored: bytes, ticket: bytes, claimed_at: float) -> Claim:
    opened = envelope.unpack(stored)
    lease, count, origin = ticket.split(b":")
    return Claim(
        id=opened.id,
        lease=int(lease),
        delivery_count=int(count),
        published_at=opened.published_at,
        tenant=opened.tenant,
        payload=opened.payload,
        claimed_at=claimed_at,
        reclaimed=origin == b"lease",
    )
